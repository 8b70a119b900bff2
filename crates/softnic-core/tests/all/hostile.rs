//! Peers that do not keep to the protocol: bounded memory, no panic, no word more than
//! they have sent before they are let in.

use crate::world::{CONFIG, Fake, LIFE, TOKEN, hash, random};
use rand::RngExt as _;
use trefoil_softnic_core::limits::{ASK_COUNT_MAX, DATA_LEN_MAX, WINDOW_LEN, WINDOW_LEN_MIN};
use trefoil_softnic_core::wire::{
    ASK_LEN, Ask, Frame, Head, Hello, Kind, Open, PROTOCOL_VERSION, Refusal, RefusalCode, Request,
};
use trefoil_softnic_core::{Initiator, InitiatorOptions, Target, TargetError};

fn asks(asks: &[Ask]) -> Vec<u8> {
    let mut bytes = Head {
        len: asks.len() * ASK_LEN,
        kind: Kind::Asks,
        count: asks.len() as u16,
    }
    .encode()
    .to_vec();
    for ask in asks {
        bytes.extend_from_slice(&ask.encode());
    }
    bytes
}

fn hello(token: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Hello::new(WINDOW_LEN, token).encode(&mut bytes);
    bytes
}

fn scan(id: u64, solicited: u32) -> Ask {
    Ask {
        id,
        handle: 9,
        request: Request::Scan {
            place: 0,
            hash: hash(&mut random(id)),
            config_id: CONFIG,
            solicited,
            is_use: false,
            is_vote: false,
        },
    }
}

/// A good conversation.
fn conversation() -> Vec<u8> {
    let mut bytes = hello(TOKEN);
    let open = Open {
        id: 1,
        life: LIFE,
        backend: 0,
    };
    open.encode(&mut bytes);
    let scans: Vec<Ask> = (0..20).map(|id| scan(id, 4096)).collect();
    bytes.extend(asks(&scans));
    bytes
}

/// Hands over what came, as an event loop does; how the session ended, and what was said.
fn converse(input: &[u8], pieces: impl Fn(usize) -> usize) -> (Option<TargetError>, Vec<u8>, bool) {
    let (mut target, mut memory) = (Target::new(), Fake::new());
    let (mut held, mut said) = (Vec::new(), Vec::new());
    let mut rest = input;
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(pieces(rest.len()).clamp(1, rest.len()));
        (rest, held) = (more, [&held[..], piece].concat());
        loop {
            let mut out = Vec::new();
            match target.handle(&held, &mut memory, &mut out) {
                Ok(done) => {
                    held.drain(..done);
                    assert!(out.len() <= 2 * WINDOW_LEN as usize);
                    said.extend_from_slice(&out);
                    if done == 0 {
                        break;
                    }
                }
                Err(error) => {
                    said.extend_from_slice(&out);
                    return (Some(error), said, target.is_admitted());
                }
            }
        }
        // What is kept is less than one frame, and that is bounded.
        assert!(held.len() < target.input_len_max());
    }
    (None, said, target.is_admitted())
}

#[test]
fn a_good_conversation_is_one_however_it_is_cut() {
    let whole = converse(&conversation(), |len| len);
    assert!(whole.0.is_none() && whole.2);
    assert_eq!(converse(&conversation(), |_| 1), whole);
    assert_eq!(converse(&conversation(), |_| 13), whole);
}

#[test]
fn changed_bytes_hurt_nobody() {
    let mut random = random(11);
    let good = conversation();
    for _ in 0..1000 {
        let mut bad = good.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bad.len());
            bad[at] = random.random();
        }
        let cut = random.random_range(1..bad.len() + 1);
        let piece = random.random_range(1..500);
        let (_, said, is_admitted) = converse(&bad[..cut], |_| piece);
        if !is_admitted {
            assert!(said.len() < cut, "a stranger gets more than it has sent");
        }
    }
}

#[test]
fn garbage_is_not_answered() {
    let mut random = random(12);
    for _ in 0..500 {
        let len = random.random_range(18..4000);
        let garbage: Vec<u8> = (0..len).map(|_| random.random()).collect();
        let (error, said, is_admitted) = converse(&garbage, |len| len);
        assert!(
            matches!(error, Some(TargetError::Malformed(_))),
            "{error:?}"
        );
        assert!(said.is_empty() && !is_admitted);
    }
    let (error, said, _) = converse(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", |len| len);
    assert!(error.is_some() && said.is_empty());
}

#[test]
fn another_version_is_told_ours() {
    let mut other = Vec::new();
    Hello {
        protocol: PROTOCOL_VERSION + 1,
        ..Hello::new(WINDOW_LEN, TOKEN)
    }
    .encode(&mut other);
    let (error, said, is_admitted) = converse(&other, |_| 3);
    assert_eq!(error, Some(TargetError::Refused(RefusalCode::Protocol)));
    let frame = Frame::first(&said, said.len()).unwrap().unwrap();
    let refusal = Refusal::decode(frame.body).unwrap();
    assert_eq!(refusal.protocol, PROTOCOL_VERSION);
    assert!(!is_admitted && said.len() < other.len());
    for cut in 0..other.len() {
        let (_, said, _) = converse(&other[..cut], |len| len);
        assert!(said.len() < cut.max(1), "{cut}");
    }
    // And a client says so.
    let mut client = Initiator::new(InitiatorOptions::default());
    let error = client.handle(&said, 0, |_| panic!("nothing has come"));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("run the same release")
    );
}

#[test]
fn another_layout_is_refused() {
    let mut other = Vec::new();
    Hello {
        layout: 200,
        ..Hello::new(WINDOW_LEN, TOKEN)
    }
    .encode(&mut other);
    let (error, ..) = converse(&other, |len| len);
    assert_eq!(error, Some(TargetError::Refused(RefusalCode::Layout)));
}

#[test]
fn whoever_begins_with_requests_is_not_answered() {
    let (error, said, _) = converse(&asks(&[scan(1, 8)]), |len| len);
    assert!(matches!(error, Some(TargetError::Malformed(_))) && said.is_empty());
}

#[test]
fn nobody_solicits_more_than_the_window() {
    let few = WINDOW_LEN as usize / DATA_LEN_MAX;
    for (count, is_too_much) in [(few - 1, false), (few, true), (ASK_COUNT_MAX, true)] {
        let scans: Vec<Ask> = (0..count as u64)
            .map(|id| scan(id, DATA_LEN_MAX as u32))
            .collect();
        let mut input = hello(TOKEN);
        input.extend(asks(&scans));
        let (error, ..) = converse(&input, |len| len);
        assert_eq!(error.is_some(), is_too_much, "{count}");
    }
    // A length that no frame has.
    let mut input = hello(TOKEN);
    input.extend(
        Head {
            len: 1 << 20,
            kind: Kind::Asks,
            count: 1,
        }
        .encode(),
    );
    assert!(converse(&input, |len| len).0.is_some());
}

#[test]
fn an_engine_that_lies_is_left() {
    // What a real engine says.
    let mut input = hello(TOKEN);
    let open = Open {
        id: 1,
        life: LIFE,
        backend: 0,
    };
    open.encode(&mut input);
    let greeting_len = converse(&input, |len| len).1.len();
    input.extend(asks(
        &(100..110).map(|id| scan(id, 4096)).collect::<Vec<_>>(),
    ));
    let said = converse(&input, |len| len).1;
    let mut random = random(13);
    for round in 0..500 {
        let mut client = Initiator::new(InitiatorOptions {
            token: TOKEN,
            ..InitiatorOptions::default()
        });
        client.open(1, 0, LIFE, 0);
        let mut bad = said.clone();
        if round > 0 {
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bad.len());
                bad[at] = random.random();
            }
        }
        let mut count = 0;
        let Ok(done) = client.handle(&bad[..greeting_len], 1, |_| count += 1) else {
            continue;
        };
        for id in 100..110 {
            let hash = hash(&mut crate::world::random(id));
            client.scan(id, 9, 0, hash, CONFIG, 2);
        }
        client.flush(0);
        let result = client.handle(&bad[done..], 3, |_| count += 1);
        assert!(count <= 11);
        if round == 0 {
            assert!(result.is_ok());
        }
    }
}

/// In it no request would ever be looked at, and what comes be kept for ever.
#[test]
fn a_window_without_room_for_an_answer_is_refused() {
    for window in [0, 1, WINDOW_LEN_MIN - 1] {
        let mut bytes = Vec::new();
        Hello::new(window, TOKEN).encode(&mut bytes);
        let (error, said, is_admitted) = converse(&bytes, |len| len);
        assert!(matches!(error, Some(TargetError::Malformed(_))), "{window}");
        assert!(said.is_empty() && !is_admitted, "{window}");
    }
}
