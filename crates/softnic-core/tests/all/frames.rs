//! What is encoded decodes to the same, and what is changed by a byte never panics.

use crate::world::{hash, opened, random, vote, welcome};
use rand::RngExt as _;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::Version;
use trefoil_softnic_core::wire::{
    ANSWER_LEN, Answer, Ask, Frame, HEAD_LEN, Head, Hello, Open, OpenStatus, Opened,
    PROTOCOL_VERSION, Refusal, RefusalCode, Region, Request, Status, Welcome,
};

fn body(bytes: &[u8]) -> &[u8] {
    let frame = Frame::first(bytes, bytes.len()).unwrap().unwrap();
    assert_eq!(frame.total_len(), bytes.len());
    frame.body
}

#[test]
fn first_words_come_back_as_they_were() {
    let mut out = Vec::new();
    let hello = Hello::new(4711, b"secret");
    hello.encode(&mut out);
    assert_eq!(Hello::version(&out), Ok(Some(PROTOCOL_VERSION)));
    assert_eq!(Hello::decode(body(&out)), Ok(hello));
    let hello_len = out.len();
    for code in [
        RefusalCode::Protocol,
        RefusalCode::Layout,
        RefusalCode::Token,
        RefusalCode::Full,
        RefusalCode::Share,
    ] {
        let mut out = Vec::new();
        Refusal::new(code).encode(&mut out);
        assert_eq!(Refusal::decode(body(&out)), Ok(Refusal::new(code)));
        assert!(out.len() < hello_len);
    }
    let mut out = Vec::new();
    welcome().encode(&mut out);
    assert_eq!(Welcome::decode(body(&out)), Ok(welcome()));
    assert!(out.len() < hello_len);
}

#[test]
fn a_version_is_told_before_the_rest_has_come_and_whatever_its_length() {
    let mut out = Vec::new();
    Hello {
        protocol: 7,
        ..Hello::new(1, b"")
    }
    .encode(&mut out);
    for len in 0..18 {
        assert_eq!(Hello::version(&out[..len]), Ok(None), "{len}");
    }
    assert_eq!(Hello::version(&out[..18]), Ok(Some(7)));
    out[0] = 64;
    out[1] = 0;
    assert_eq!(Hello::version(&out), Ok(Some(7)));
    out[HEAD_LEN] = b'X';
    assert!(Hello::version(&out).is_err());
}

#[test]
fn openings_come_back_as_they_were() {
    let open = Open {
        id: 3,
        life: u64::MAX,
        backend: 4095,
    };
    let mut out = Vec::new();
    open.encode(&mut out);
    assert_eq!(Open::decode(body(&out)), Ok(open));
    for result in [
        Ok(opened(&open, 0x1234_5678)),
        Err(OpenStatus::NoSuchBackend),
        Err(OpenStatus::NotMapped),
        Err(OpenStatus::OtherLife),
    ] {
        let mut out = Vec::new();
        Opened::encode(8, &result, &mut out);
        assert_eq!(Opened::decode(body(&out)), Ok((8, result)));
    }
}

#[test]
fn requests_come_back_as_they_were() {
    let mut random = random(1);
    for _ in 0..1000 {
        let (place, hash) = (random.random(), hash(&mut random));
        let solicited = random.random_range(0..32_000) * 8;
        let is_vote = random.random();
        let request = match random.random_range(0..3) {
            0 => Request::Scan {
                place,
                hash,
                config_id: random.random(),
                solicited: match is_vote {
                    true => 0,
                    false => solicited,
                },
                is_use: random.random(),
                is_vote,
            },
            1 => Request::Read {
                region: [Region::Control, Region::Index, Region::Data][random.random_range(0..3)],
                partition: random.random(),
                window_id: random.random(),
                offset: random.random::<u64>() & !7,
                len: solicited,
            },
            _ => Request::Touch { place, hash },
        };
        let id = match request {
            Request::Touch { .. } => 0,
            _ => random.random(),
        };
        let ask = Ask {
            id,
            handle: random.random(),
            request,
        };
        assert_eq!(Ask::decode(&ask.encode()), Ok(ask));
    }
}

#[test]
fn answers_come_back_as_they_were() {
    let mut random = random(2);
    for round in 0..1000 {
        let hash = hash(&mut random);
        let found = random.random();
        let epoch = random.random();
        let votes = [
            None,
            Some(vote(hash, 3)),
            Some(IndexVote::Absent { epoch }),
            Some(IndexVote::AskByMessage { epoch }),
            Some(IndexVote::Unstable),
            Some(IndexVote::ConfigChanged { found }),
            Some(IndexVote::Recovering),
        ];
        let answer = Answer {
            status: Status::Done,
            vote: votes[round % votes.len()],
            data_len: random.random_range(0..64) * 8,
            config_id: found,
            lease_left_us: random.random(),
            flush_floor: Version::new(random.random(), 9, 8),
            stamp: random.random(),
        };
        let mut bytes = answer.encode(round as u64).to_vec();
        let data: Vec<u8> = (0..answer.data_len).map(|_| random.random()).collect();
        bytes.extend_from_slice(&data);
        bytes.extend_from_slice(b"what comes next");
        let decoded = Answer::decode(&bytes, |_| hash.tag);
        let len = ANSWER_LEN + data.len();
        assert_eq!(decoded, Ok((round as u64, answer, &data[..], len)));
        for cut in 0..len {
            assert!(Answer::decode(&bytes[..cut], |_| 0).is_err());
        }
    }
}

#[test]
fn reserved_bytes_and_impossible_numbers_are_refused() {
    let ask = Ask {
        id: 1,
        handle: 2,
        request: Request::Scan {
            place: 0,
            hash: hash(&mut random(3)),
            config_id: 4,
            solicited: 64,
            is_use: false,
            is_vote: false,
        },
    };
    let good = ask.encode();
    let refused = |at: usize, byte: u8| {
        let mut bad = good;
        bad[at] = byte;
        assert!(Ask::decode(&bad).is_err(), "{byte} at {at}");
    };
    refused(12, 0);
    refused(12, 4);
    // A vote alone brings no data.
    refused(14, 2);
    refused(14, 4);
    refused(15, 1);
    refused(20, 1);
    refused(23, 0xff);
    refused(40, 1);
    refused(47, 1);
    // A touch with an id would wait for an answer for ever.
    refused(12, 3);
    assert!(Head::decode(&[0, 0, 0, 0, 17, 0, 0, 0], 64).is_err());
    assert!(Head::decode(&[0, 0, 0, 0, 6, 1, 0, 0], 64).is_err());
    assert!(Head::decode(&[1, 0, 0, 0, 6, 0, 0, 0], 64).is_err());
    assert!(Head::decode(&[64, 0, 0, 0, 6, 0, 0, 0], 64).is_err());
    assert!(Head::decode(&[56, 0, 0, 0, 6, 0, 0, 0], 64).is_ok());
    assert!(Head::decode(&[255, 255, 255, 255, 6, 0, 0, 0], usize::MAX).is_err());
}

#[test]
fn any_bytes_decode_to_something_or_nothing() {
    let mut random = random(4);
    for _ in 0..20_000 {
        let len = random.random_range(0..400);
        let mut bytes: Vec<u8> = (0..len)
            .map(|_| random.random::<u8>() & random.random::<u8>())
            .collect();
        if random.random_bool(0.5) && len > 8 {
            // A good head.
            bytes[..4].copy_from_slice(&((len as u32 - 8) & !7).to_le_bytes());
            bytes[4] = random.random_range(0..9);
            bytes[5] = 0;
        }
        let _ = Hello::version(&bytes);
        let _ = Hello::decode(&bytes);
        let _ = Welcome::decode(&bytes);
        let _ = Refusal::decode(&bytes);
        let _ = Open::decode(&bytes);
        let _ = Opened::decode(&bytes);
        let _ = Answer::decode(&bytes, |id| id);
        if let Some(item) = bytes.first_chunk() {
            let _ = Ask::decode(item);
        }
        let _ = Frame::first(&bytes, 300);
    }
}
