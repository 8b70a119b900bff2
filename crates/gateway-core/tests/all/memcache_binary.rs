//! The binary protocol where there is nothing to compare with: statistics,
//! authentication, faults of the cell, limits, long inputs and outputs.

use crate::rig::Rig;
use trefoil_gateway_core::keyspace::Fault;
use trefoil_gateway_core::memcache::binary::BinarySession;
use trefoil_gateway_core::session::Wants;
use trefoil_gateway_core::world::{Command, Ending, ServerRequest};
use trefoil_layout::op::Rejection;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const ADD: u8 = 0x02;
const GETKQ: u8 = 0x0d;
const NOOP: u8 = 0x0a;
const STAT: u8 = 0x10;
const SASL_LIST: u8 = 0x20;
const SASL_AUTH: u8 = 0x21;
const SASL_STEP: u8 = 0x22;

fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body_len = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![0x80, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0, 0, 0]);
    bytes.extend(body_len.to_be_bytes());
    bytes.extend([0xde, 0xad, 0xbe, 0xef]);
    bytes.extend([0; 8]);
    for part in [extras, key, value] {
        bytes.extend(part);
    }
    bytes
}

fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    request(SET, &[0; 8], key, value)
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    opcode: u8,
    status: u16,
    key: String,
    /// Without extras.
    value: String,
}

/// The answers in these bytes.
fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[0], 0x81);
        assert_eq!(bytes[12..16], [0xde, 0xad, 0xbe, 0xef], "the opaque");
        let key_len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let extras_len = usize::from(bytes[4]);
        let body_len = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        let body = &bytes[24 + extras_len..24 + body_len];
        answers.push(Answer {
            opcode: bytes[1],
            status: u16::from_be_bytes([bytes[6], bytes[7]]),
            key: String::from_utf8_lossy(&body[..key_len]).into(),
            value: String::from_utf8_lossy(&body[key_len..]).into(),
        });
        bytes = &bytes[24 + body_len..];
    }
    answers
}

fn answer(opcode: u8, status: u16, key: &str, value: &str) -> Answer {
    Answer {
        opcode,
        status,
        key: key.into(),
        value: value.into(),
    }
}

fn rig() -> Rig<BinarySession> {
    Rig::new(BinarySession::new())
}

#[test]
fn statistics_end_with_an_empty_answer() {
    let mut rig = rig();
    let general = answers(&rig.feed(&request(STAT, b"", b"", b"")));
    let expected = [
        answer(STAT, 0, "pid", "1"),
        answer(STAT, 0, "uptime", "2"),
        answer(STAT, 0, "", ""),
    ];
    assert_eq!(general, expected);
    let settings = answers(&rig.feed(&request(STAT, b"", b"settings", b"")));
    assert_eq!(settings[0], answer(STAT, 0, "maxbytes", "3"));
    for silent in ["detail on", "detail off", "items", "reset"] {
        let group = answers(&rig.feed(&request(STAT, b"", silent.as_bytes(), b"")));
        assert_eq!(group, [answer(STAT, 0, "", "")], "{silent}");
    }
    assert_eq!(rig.notes.resets, 1);
    // A value means nothing, and is skipped.
    let with_value = [
        request(STAT, b"", b"nosuch", b"value"),
        request(NOOP, b"", b"", b""),
    ];
    let after = answers(&rig.feed(&with_value.concat()));
    let expected = [answer(STAT, 1, "", "Not found"), answer(NOOP, 0, "", "")];
    assert_eq!(after, expected);
}

#[test]
fn nothing_goes_before_authentication() {
    let refused = |bytes: &[u8]| {
        let mut rig = rig();
        rig.settings.authentication = true;
        let found = answers(&rig.feed(bytes));
        assert!(rig.is_closed());
        found
    };
    let get = request(GET, b"", b"a", b"");
    assert_eq!(refused(&get), [answer(GET, 0x20, "", "Auth failure.")]);
    let big = set(b"a", &[b'x'; 100_000]);
    assert_eq!(
        refused(&big[..24]),
        [answer(SET, 0x20, "", "Auth failure.")]
    );

    let mut rig = rig();
    rig.settings.authentication = true;
    let list = answers(&rig.feed(&request(SASL_LIST, b"", b"", b"")));
    assert_eq!(list, [answer(SASL_LIST, 0, "", "PLAIN")]);
    for (mechanism, message) in [
        ("PLAIN", "\0me\0wrong"),
        ("CRAM-MD5", "\0me\0secret"),
        ("PLAIN", "x"),
    ] {
        let auth = request(SASL_AUTH, b"", mechanism.as_bytes(), message.as_bytes());
        let expected = [answer(SASL_AUTH, 0x20, "", "Auth failure.")];
        assert_eq!(
            answers(&rig.feed(&auth)),
            expected,
            "{mechanism} {message:?}"
        );
    }
    let step = request(SASL_STEP, b"", b"PLAIN", b"\0me\0secret");
    let expected = [answer(SASL_STEP, 0x20, "", "Auth failure.")];
    assert_eq!(
        answers(&rig.feed(&step)),
        expected,
        "a step without a start"
    );
    let long = request(SASL_AUTH, b"", &[b'M'; 33], b"x");
    let expected = [answer(SASL_AUTH, 4, "", "Invalid arguments")];
    assert_eq!(answers(&rig.feed(&long)), expected);
    let huge = request(SASL_AUTH, b"", b"PLAIN", &[0; 70_000]);
    let found = answers(&rig.feed(&huge));
    assert_eq!(found[0].status, 0x82);
    assert_eq!(rig.pending_len(), 0);

    let auth = request(SASL_AUTH, b"", b"PLAIN", b"\0me\0secret");
    let both = [auth, request(GET, b"", b"a", b"")].concat();
    let expected = [
        answer(SASL_AUTH, 0, "", "Authenticated"),
        answer(GET, 1, "", "Not found"),
    ];
    assert_eq!(answers(&rig.feed(&both)), expected);
}

#[test]
fn authentication_in_two_steps() {
    let mut rig = rig();
    rig.settings.authentication = true;
    let start = answers(&rig.feed(&request(SASL_AUTH, b"", b"PLAIN", b"")));
    assert_eq!(start, [answer(SASL_AUTH, 0x21, "", "")]);
    let step = answers(&rig.feed(&request(SASL_STEP, b"", b"PLAIN", b"\0me\0secret")));
    assert_eq!(step, [answer(SASL_STEP, 0, "", "Authenticated")]);
    // A failure afterwards takes the right away again.
    rig.feed(&request(SASL_AUTH, b"", b"PLAIN", b"\0me\0wrong"));
    rig.feed(&request(GET, b"", b"a", b""));
    assert!(rig.is_closed());
}

#[test]
fn faults_are_never_misses() {
    let cases = [
        (Fault::Inquorate, 0x86),
        (Fault::Unavailable("gone".into()), 0x86),
        (Fault::Indeterminate, 0x86),
        (Fault::Contended, 0x86),
        (Fault::Unsupported("this"), 0x83),
        (Fault::Rejected(Rejection::NoMemory), 0x82),
        (Fault::Rejected(Rejection::ValueTooLong), 0x03),
        (Fault::Rejected(Rejection::BadItem), 0x04),
        (Fault::Rejected(Rejection::Recovering), 0x86),
    ];
    let count = [0; 20];
    // Quiet forms speak up.
    let requests = [
        request(GET, b"", b"a", b""),
        [
            request(GETKQ, b"", b"a", b""),
            request(GETKQ, b"", b"b", b""),
        ]
        .concat(),
        set(b"a", b"1"),
        request(0x11, &[0; 8], b"a", b"1"),
        request(ADD, &[0; 8], b"a", b"1"),
        request(0x19, b"", b"a", b"1"),
        request(0x14, b"", b"a", b""),
        request(0x15, &count, b"a", b""),
        request(0x1e, &[0; 4], b"a", b""),
        request(0x18, b"", b"", b""),
    ];
    for (fault, status) in cases {
        for bytes in &requests {
            let mut rig = rig();
            rig.keyspace.fault = Some(fault.clone());
            let found = answers(&rig.feed(bytes));
            assert!(!found.is_empty(), "{fault:?}");
            for answer in found {
                assert_eq!(answer.status, status, "{fault:?} {:#x}", answer.opcode);
            }
            let endings = rig.notes.done.iter().map(|done| done.1);
            assert!(
                endings
                    .into_iter()
                    .all(|ending| ending == Ending::ServerError)
            );
        }
    }
}

#[test]
fn a_large_value_is_asked_for_at_once_and_a_larger_one_never() {
    let mut rig = rig();
    let len = 1 << 20;
    let bytes = set(b"key", &vec![b'v'; len]);
    rig.feed(&bytes[..10]);
    assert_eq!(rig.wants, Wants::Input(24));
    rig.feed(&bytes[10..30]);
    assert_eq!(rig.wants, Wants::Input(bytes.len()));
    assert_eq!(rig.feed(&bytes[30..]).len(), 24);

    let bytes = set(b"key", &vec![b'v'; len + 1]);
    for part in bytes.chunks(1000) {
        rig.feed(part);
        assert!(
            rig.pending_len() < 1000,
            "nothing is kept of a value that is refused"
        );
    }
    assert!(rig.asked_max <= 24 + 8 + 250 + len);
    // The old value went with the new one.
    let get = answers(&rig.feed(&request(GET, b"", b"key", b"")));
    assert_eq!(get, [answer(GET, 1, "", "Not found")]);
}

#[test]
fn a_long_row_of_gets_waits_for_the_output() {
    let mut rig = rig();
    let mut row = Vec::new();
    for number in 0..100 {
        let key = format!("key{number}");
        rig.feed(&set(key.as_bytes(), &[b'v'; 100]));
        row.extend(request(GETKQ, b"", key.as_bytes(), b""));
    }
    row.extend(request(NOOP, b"", b"", b""));
    let whole = rig.feed(&row);
    for out_len_max in [1, 130, 1000] {
        rig.out_len_max = out_len_max;
        assert_eq!(rig.feed(&row), whole);
    }
    assert_eq!(answers(&whole).len(), 101);
}

#[test]
fn commands_are_told_of() {
    let mut rig = rig();
    rig.feed(&set(b"a", b"12"));
    rig.feed(&request(GET, b"", b"a", b""));
    rig.feed(&request(GETKQ, b"", b"b", b""));
    rig.feed(&request(ADD, &[0; 8], b"a", b"1"));
    rig.feed(&request(0x1c, &[0; 4], b"a", b""));
    rig.feed(&request(0x1d, &[0; 4], b"b", b""));
    rig.feed(&request(0x05, &[0; 20], b"a", b""));
    rig.feed(&request(0x04, b"", b"a", b""));
    rig.feed(&request(0x08, &1000u32.to_be_bytes(), b"", b""));
    rig.feed(&request(0x1b, &2u32.to_be_bytes(), b"", b""));
    let told: Vec<(Command, Ending)> = rig.notes.done.iter().map(|d| (d.0, d.1)).collect();
    let expected = [
        (Command::Set, Ending::Hit),
        (Command::Get, Ending::Hit),
        (Command::Get, Ending::Miss),
        (Command::Set, Ending::Refused),
        (Command::Touch, Ending::Hit),
        (Command::GetAndTouch, Ending::Miss),
        (Command::Incr, Ending::Hit),
        (Command::Delete, Ending::Hit),
        (Command::Flush, Ending::Hit),
    ];
    assert_eq!(told, expected);
    let in_1000_s = rig.keyspace.inner.now_ms + 1_000_000;
    let expected = [
        ServerRequest::FlushAt(in_1000_s),
        ServerRequest::Verbosity(2),
    ];
    assert_eq!(rig.notes.requests, expected);
}

#[test]
fn a_touch_leaves_the_unique() {
    let mut rig = rig();
    let stored = rig.feed(&set(b"a", b"1"));
    rig.feed(&request(0x1c, &100u32.to_be_bytes(), b"a", b""));
    let read = rig.feed(&request(GET, b"", b"a", b""));
    assert_eq!(stored[16..24], read[16..24]);
}
