//! What an initiator learns of the way and of what it finds.

use super::*;
use crate::wire::Region;
use trefoil_layout::{IndexEntry, Pointer};

const HANDLE: u32 = 9;
const CONFIG: u32 = 5;
const MS: u64 = 1_000_000;

/// One whose engine has let it in.
fn welcomed() -> Initiator {
    let mut initiator = Initiator::new(InitiatorOptions::default());
    let welcome = Welcome {
        window: u32::MAX,
        engine: 1,
        session: 2,
    };
    let mut said = Vec::new();
    welcome.encode(&mut said);
    assert_eq!(initiator.handle(&said, 0, |_| {}), Ok(said.len()));
    take_output(&mut initiator);
    initiator
}

fn take_output(initiator: &mut Initiator) {
    let len = initiator.output().len();
    initiator.sent(len);
}

fn hash(number: u64) -> KeyHash {
    KeyHash {
        place: number,
        tag: number,
    }
}

fn range(len: u32) -> ReadRange {
    ReadRange {
        region: Region::Data,
        partition: 0,
        window_id: 0,
        offset: 0,
        len,
    }
}

fn done(vote: Option<IndexVote>, data_len: usize) -> Answer {
    Answer {
        vote,
        data_len: data_len as u32,
        config_id: CONFIG,
        ..Answer::bare(Status::Done)
    }
}

/// The engine's answer to request `id`, with its data.
fn hear(initiator: &mut Initiator, id: u64, answer: &Answer, now_ns: u64) {
    let mut frame = Vec::new();
    let head = Head {
        len: ANSWER_LEN + answer.data_follows(),
        kind: Kind::Answers,
        count: 1,
    };
    frame.extend_from_slice(&head.encode());
    frame.extend_from_slice(&answer.encode(id));
    frame.resize(frame.len() + answer.data_follows(), 7);
    assert_eq!(
        initiator.handle(&frame, now_ns, |_| {}),
        Ok(frame.len()),
        "{answer:?}"
    );
}

/// A scan of key `id` that finds so much, or is told that there is more than it has asked for
/// and asks again.
fn find(initiator: &mut Initiator, id: u64, len: usize, now_ns: u64) {
    initiator.scan(id, HANDLE, 0, hash(id), CONFIG, now_ns);
    initiator.flush(now_ns);
    take_output(initiator);
    let vote = IndexVote::Present {
        slot_number: 1,
        entry: IndexEntry {
            tag: id,
            version: Version::new(1, 2, 3),
            pointer: Pointer::new(0, len).unwrap(),
        },
        epoch: 1,
    };
    if len > initiator.solicited as usize {
        let answer = Answer {
            status: Status::TooLong,
            ..done(None, len)
        };
        hear(initiator, id, &answer, now_ns + MS);
        initiator.flush(now_ns + MS);
        take_output(initiator);
    }
    hear(initiator, id, &done(Some(vote), len), now_ns + 2 * MS);
    assert!(!initiator.owes());
}

#[test]
fn what_a_scan_solicits_falls_to_what_items_have() {
    let mut initiator = welcomed();
    for id in 1..=2000 {
        find(&mut initiator, id, 152, id * 10 * MS);
    }
    let solicited = initiator.situation().solicited;
    assert!(solicited <= 520, "{solicited}");
    // And never below, whatever multiple of eight they have.
    for id in 2001..=6000 {
        find(&mut initiator, id, 1096, id * 10 * MS);
    }
    assert_eq!(initiator.situation().solicited, 1096);
}

/// One that has found items of 152 bytes, of which one in so many has 60,000.
fn having_found(long_each: Option<u64>) -> Initiator {
    let mut initiator = welcomed();
    for id in 1..=4000 {
        let is_long = long_each.is_some_and(|each| id % each == 0);
        find(
            &mut initiator,
            id,
            if is_long { 60_000 } else { 152 },
            id * 10 * MS,
        );
    }
    initiator
}

/// What an initiator tells the choice, for items of one length and for mixed ones.
#[test]
fn long_ones_that_are_not_few_make_votes_worth_it() {
    for (long_each, prefers_votes) in [(None, false), (Some(20), false), (Some(8), true)] {
        let mut initiator = having_found(long_each);
        assert!(!initiator.situation().prefers_votes(), "there is room");
        for id in 10_000..10_000 + 5000 {
            initiator.scan(id, HANDLE, 0, hash(id), CONFIG, 50_000 * MS);
        }
        let situation = initiator.situation();
        assert_eq!(situation.prefers_votes(), prefers_votes, "{situation:?}");
    }
}

#[test]
fn a_few_long_ones_do_not_make_all_scans_long() {
    let mut initiator = having_found(Some(50));
    let now_ns = 50_000 * MS;
    for id in 10_000..10_000 + 1000 {
        initiator.scan(id, HANDLE, 0, hash(id), CONFIG, now_ns);
    }
    initiator.flush(now_ns);
    let sent = 1000 - initiator.waiting_count();
    // By what the longest have it would be eight.
    assert!(sent > 300, "{sent} of 1000 have room");
    // Alone, a scan has room for the longest.
    assert_eq!(having_found(Some(50)).situation().solicited, 60_000);
}

#[test]
fn an_engine_that_was_asked_only_now_is_not_silent() {
    let mut initiator = welcomed();
    initiator.scan(1, HANDLE, 0, hash(1), CONFIG, MS);
    // Its client had something else to do.
    let now_ns = MS + 2 * SESSION_PATIENCE_NS;
    initiator.flush(now_ns);
    take_output(&mut initiator);
    assert!(!initiator.is_silent(now_ns + MS));
    assert!(initiator.is_silent(now_ns + SESSION_PATIENCE_NS + MS));
}

#[test]
fn what_has_a_shorter_window_gives_the_longest_less_room() {
    let mut initiator = having_found(Some(50));
    initiator.set_carrier_window(16 << 10);
    initiator.scan(10_000, HANDLE, 0, hash(1), CONFIG, 50_000 * MS);
    assert!(initiator.situation().solicited < 1000);
}

#[test]
fn touches_are_no_requests_whose_answer_takes_long() {
    let mut initiator = welcomed();
    let begin = 1_000_000 * MS;
    assert!(initiator.read(1, HANDLE, &range(512), begin));
    initiator.flush(begin);
    initiator.touch(HANDLE, 0, hash(1));
    // Of a frame of touches nobody asks when it was sent.
    initiator.flush(0);
    take_output(&mut initiator);
    hear(&mut initiator, 1, &done(None, 512), begin + 3 * MS);
    let situation = initiator.situation();
    assert_eq!(situation.round_trip_ns, 3 * MS);
    assert_eq!(situation.way_ns, 3 * MS);
}

#[test]
fn a_session_of_touches_does_not_grow() {
    let mut initiator = welcomed();
    for number in 0..1_000_000 {
        initiator.touch(HANDLE, 0, hash(number));
        initiator.flush(0);
        take_output(&mut initiator);
    }
    assert_eq!(initiator.sent.len(), 0);
    assert!(initiator.waiting.is_empty());
}
