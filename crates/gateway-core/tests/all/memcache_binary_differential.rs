//! The binary protocol beside Debian's memcached: the same requests, the same
//! answers. CAS uniques are compared by the order of their first appearance.
//!
//! A counter keeps its length when it becomes shorter. In memcached it does not
//! if an answer that carries its old value waits to be sent meanwhile, which no
//! client can rely on; here it always does.
//!
//! Left out of the comparison, because they differ on purpose (see the module
//! `memcache::binary`): unknown commands with a key, `stat` with a value, a
//! body of 2 GiB, verbosity, a key over 250 bytes that has not come yet, and
//! what `stat` and `version` say in particular.

use crate::rig;
use crate::rig::Rig;
use crate::rig::random::Random;
use crate::rig::server::{Connection, Server};
use std::collections::HashMap;
use trefoil_gateway_core::memcache::binary::BinarySession;

/// A CAS unique in a request: one that was answered before, by its number, or
/// a bare one.
#[derive(Clone, Copy, Debug)]
enum Cas {
    Zero,
    Seen(usize),
    Wrong,
}

#[derive(Clone, Debug)]
struct Request {
    opcode: u8,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    cas: Cas,
    /// In place of the right lengths.
    lengths: Option<(u16, u8, u32)>,
}

impl Request {
    fn new(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Self {
        Request {
            opcode,
            extras: extras.to_vec(),
            key: key.to_vec(),
            value: value.to_vec(),
            cas: Cas::Zero,
            lengths: None,
        }
    }

    fn with_cas(mut self, cas: Cas) -> Self {
        self.cas = cas;
        self
    }

    fn encode(&self, opaque: u32, seen: &Uniques) -> Vec<u8> {
        let body_len = (self.extras.len() + self.key.len() + self.value.len()) as u32;
        let (key_len, extras_len, body_len) =
            self.lengths
                .unwrap_or((self.key.len() as u16, self.extras.len() as u8, body_len));
        let cas = match self.cas {
            Cas::Zero => 0,
            Cas::Seen(number) => seen.in_order.get(number).copied().unwrap_or(77),
            Cas::Wrong => 0x7777_7777_7777,
        };
        let mut bytes = vec![0x80, self.opcode];
        bytes.extend(key_len.to_be_bytes());
        bytes.extend([extras_len, 0, 0, 0]);
        bytes.extend(body_len.to_be_bytes());
        bytes.extend(opaque.to_be_bytes());
        bytes.extend(cas.to_be_bytes());
        bytes.extend(&self.extras);
        bytes.extend(&self.key);
        bytes.extend(&self.value);
        bytes
    }
}

/// CAS uniques that one side has answered, numbered by first appearance.
#[derive(Default)]
struct Uniques {
    in_order: Vec<u64>,
    number_of: HashMap<u64, usize>,
}

impl Uniques {
    /// Replaces the uniques in answers by their numbers, counted from 1.
    fn normalise(&mut self, answers: &[u8]) -> Vec<u8> {
        let mut normal = answers.to_vec();
        let mut at = 0;
        while let Some(header) = answers.get(at..at + 24) {
            let cas = u64::from_be_bytes(header[16..24].try_into().expect("eight bytes"));
            if cas != 0 {
                let next = self.in_order.len();
                let number = *self.number_of.entry(cas).or_insert(next);
                if number == next {
                    self.in_order.push(cas);
                }
                normal[at + 16..at + 24].copy_from_slice(&(number as u64 + 1).to_be_bytes());
            }
            let body_len = u32::from_be_bytes(header[8..12].try_into().expect("four bytes"));
            at += 24 + body_len as usize;
        }
        assert_eq!(at, answers.len(), "answers are whole: {answers:x?}");
        normal
    }
}

struct Pair {
    server: Server,
    real: Connection,
    real_uniques: Uniques,
    ours: Rig<BinarySession>,
    our_uniques: Uniques,
    marker: u32,
}

const NOOP: u8 = 0x0a;

impl Pair {
    fn new() -> Self {
        let server = Server::start(
            "/usr/bin/memcached",
            &[
                "-U",
                "0",
                "-B",
                "binary",
                "-u",
                "nobody",
                "-l",
                "127.0.0.1",
                "-p",
                "{port}",
                "-t",
                "1",
                "-m",
                "512",
                // Its maintenance thread holds items for a moment, which
                // shows in counters that become shorter.
                "-o",
                "no_modern",
            ],
        );
        let real = server.connect();
        Pair {
            server,
            real,
            real_uniques: Uniques::default(),
            ours: Rig::new(BinarySession::new()),
            our_uniques: Uniques::default(),
            marker: 0xf000_0000,
        }
    }

    /// Sends the same to both sides; they have to answer the same.
    fn same(&mut self, requests: &[Request], random: &mut Random, context: &str) {
        self.marker += 1;
        let encode = |seen: &Uniques| -> Vec<u8> {
            requests
                .iter()
                .enumerate()
                .flat_map(|(index, request)| {
                    // memcached pads a counter that became shorter, but not
                    // while an answer with its old value waits to be sent. A
                    // no-op sends what waits.
                    let mut bytes = match request.opcode {
                        0x05 | 0x06 | 0x15 | 0x16 => plain(NOOP, b"").encode(!0, seen),
                        _ => Vec::new(),
                    };
                    bytes.extend(request.encode(index as u32, seen));
                    bytes
                })
                .collect()
        };
        let noop = Request::new(NOOP, b"", b"", b"").encode(self.marker, &self.our_uniques);
        // The answer to the no-op ends the answers.
        let mut last = noop.clone();
        last[0] = 0x81;

        let mut to_real = encode(&self.real_uniques);
        to_real.extend(&noop);
        let (real, real_closed) = self.real.ask(&to_real, &last);

        self.ours.keyspace.inner.now_ms = rig::now_ms();
        let mut to_ours = encode(&self.our_uniques);
        to_ours.extend(&noop);
        let mut ours = self.ours.feed_in_pieces(&to_ours, random);
        let our_closed = self.ours.is_closed();
        if !our_closed {
            assert!(
                ours.ends_with(&last),
                "{context}: no answer to the no-op in {ours:x?}"
            );
            ours.truncate(ours.len() - last.len());
        }

        let real = self.real_uniques.normalise(&real);
        let ours = self.our_uniques.normalise(&ours);
        assert!(
            real == ours && real_closed == our_closed,
            "{context}: {:?}\nmemcached (closed: {real_closed}): {}\nours (closed: {our_closed}): {}",
            brief(requests),
            show(&real),
            show(&ours),
        );
        if real_closed {
            self.real = self.server.connect();
            self.ours.reconnect(BinarySession::new());
        }
    }
}

fn brief(requests: &[Request]) -> Vec<String> {
    requests
        .iter()
        .map(|request| {
            format!(
                "{:#04x} key {:?} extras {:x?} value {} {:?} {:?}",
                request.opcode,
                String::from_utf8_lossy(&request.key),
                request.extras,
                request.value.len(),
                request.cas,
                request.lengths,
            )
        })
        .collect()
}

fn show(answers: &[u8]) -> String {
    let shown = &answers[..answers.len().min(600)];
    shown.escape_ascii().to_string()
}

fn store(opcode: u8, key: &[u8], value: &[u8], flags: u32, expiration: u32) -> Request {
    let mut extras = flags.to_be_bytes().to_vec();
    extras.extend(expiration.to_be_bytes());
    Request::new(opcode, &extras, key, value)
}

fn count(opcode: u8, key: &[u8], delta: u64, initial: u64, expiration: u32) -> Request {
    let mut extras = delta.to_be_bytes().to_vec();
    extras.extend(initial.to_be_bytes());
    extras.extend(expiration.to_be_bytes());
    Request::new(opcode, &extras, key, b"")
}

fn touch(opcode: u8, key: &[u8], expiration: u32) -> Request {
    Request::new(opcode, &expiration.to_be_bytes(), key, b"")
}

fn plain(opcode: u8, key: &[u8]) -> Request {
    Request::new(opcode, b"", key, b"")
}

/// One scene after another; each is sent at once.
fn script() -> Vec<(&'static str, Vec<Request>)> {
    let big = vec![b'v'; 600_000];
    let too_big = vec![b'v'; (1 << 20) + 1];
    let long = [b'k'; 250];
    let (get, getq, getk, getkq) = (0x00, 0x09, 0x0c, 0x0d);
    let (set, setq) = (0x01, 0x11);
    let wrong = |mut request: Request, key_len: u16, extras_len: u8, body_len: u32| {
        request.lengths = Some((key_len, extras_len, body_len));
        vec![request]
    };
    vec![
        (
            "misses",
            vec![
                plain(get, b"a"),
                plain(getq, b"a"),
                plain(getk, b"a"),
                plain(getkq, b"a"),
            ],
        ),
        (
            "set",
            vec![
                store(set, b"a", b"1", 5, 0),
                plain(get, b"a"),
                plain(getk, b"a"),
            ],
        ),
        (
            "quiet hits",
            vec![plain(getq, b"a"), plain(getkq, b"a"), plain(getq, b"b")],
        ),
        (
            "set quietly",
            vec![store(setq, b"b", b"", 0xffff_ffff, 1000), plain(get, b"b")],
        ),
        (
            "add",
            vec![store(0x02, b"a", b"2", 0, 0), store(0x02, b"c", b"2", 0, 0)],
        ),
        (
            "add quietly",
            vec![store(0x12, b"a", b"2", 0, 0), store(0x12, b"d", b"2", 0, 0)],
        ),
        (
            "replace",
            vec![
                store(0x03, b"a", b"3", 9, 0),
                store(0x03, b"none", b"3", 0, 0),
            ],
        ),
        (
            "replace quietly",
            vec![
                store(0x13, b"a", b"3", 9, 0),
                store(0x13, b"none", b"3", 0, 0),
            ],
        ),
        (
            "the right unique",
            vec![
                store(set, b"a", b"x", 0, 0).with_cas(Cas::Seen(5)),
                store(set, b"c", b"x", 0, 0).with_cas(Cas::Wrong),
                store(set, b"none", b"x", 0, 0).with_cas(Cas::Wrong),
                store(0x02, b"none", b"x", 0, 0).with_cas(Cas::Wrong),
                store(0x03, b"none", b"x", 0, 0).with_cas(Cas::Wrong),
                store(0x02, b"c", b"x", 0, 0).with_cas(Cas::Wrong),
            ],
        ),
        (
            "append",
            vec![
                Request::new(0x0e, b"", b"a", b"-tail"),
                Request::new(0x0f, b"", b"a", b"head-"),
                Request::new(0x19, b"", b"a", b"!"),
                Request::new(0x1a, b"", b"a", b"!"),
                plain(get, b"a"),
                Request::new(0x0e, b"", b"none", b"x"),
                Request::new(0x19, b"", b"none", b"x"),
                Request::new(0x0e, b"", b"a", b"x").with_cas(Cas::Wrong),
                Request::new(0x0e, b"", b"none", b"x").with_cas(Cas::Wrong),
            ],
        ),
        (
            "count",
            vec![
                count(0x05, b"n", 1, 10, 0),
                plain(get, b"n"),
                count(0x05, b"n", 1, 10, 0),
                count(0x06, b"n", 5, 10, 0),
                plain(get, b"n"),
                count(0x06, b"n", 50, 10, 0),
                count(0x05, b"m", 1, 10, 0xffff_ffff),
                count(0x15, b"m", 1, 10, 0xffff_ffff),
                count(0x16, b"m", 1, u64::MAX, 0),
                count(0x05, b"m", 2, 0, 0),
                count(0x05, b"a", 2, 0, 0),
                count(0x05, b"b", 2, 0, 0),
                count(0x05, b"n", 2, 0, 0).with_cas(Cas::Wrong),
                count(0x15, b"n", 2, 0, 0),
                plain(get, b"n"),
            ],
        ),
        (
            "count around 2^64",
            vec![
                count(0x05, b"w", 1, 5, 0),
                count(0x05, b"w", u64::MAX, 0, 0),
                count(0x15, b"w", u64::MAX, 0, 0),
                plain(get, b"w"),
                count(0x06, b"w", u64::MAX, 0, 0),
            ],
        ),
        (
            "counting odd values",
            vec![
                store(set, b"o", b" 12 apples", 3, 0),
                count(0x05, b"o", 1, 0, 0),
                plain(get, b"o"),
                store(set, b"o", b"12apples", 3, 0),
                count(0x05, b"o", 1, 0, 0),
                store(set, b"o", b"-1", 3, 0),
                count(0x05, b"o", 1, 0, 0),
                store(set, b"o", b"18446744073709551616", 3, 0),
                count(0x05, b"o", 1, 0, 0),
                store(set, b"o", b"", 3, 0),
                count(0x05, b"o", 1, 0, 0),
                count(0x05, b"o", 1, 0, 0).with_cas(Cas::Wrong),
            ],
        ),
        (
            "touch",
            vec![
                touch(0x1c, b"a", 100),
                touch(0x1c, b"none", 100),
                touch(0x1d, b"a", 0),
                touch(0x1e, b"a", 100),
                touch(0x23, b"a", 100),
                touch(0x24, b"a", 100),
                touch(0x1d, b"none", 0),
                touch(0x1e, b"none", 0),
                touch(0x23, b"none", 0),
                touch(0x24, b"none", 0),
                plain(get, b"a"),
            ],
        ),
        (
            "expiry in the past",
            vec![
                store(set, b"p", b"x", 0, 2_592_001),
                plain(get, b"p"),
                store(set, b"p", b"x", 0, 2_592_000),
                plain(get, b"p"),
                touch(0x1c, b"p", 2_592_001),
                plain(get, b"p"),
            ],
        ),
        (
            "delete",
            vec![
                plain(0x04, b"a"),
                plain(0x04, b"a"),
                plain(0x14, b"a"),
                plain(0x14, b"b"),
                plain(0x04, b"c").with_cas(Cas::Wrong),
                plain(0x14, b"c").with_cas(Cas::Wrong),
                plain(0x04, b"c"),
                plain(get, b"c"),
            ],
        ),
        (
            "keys",
            vec![
                store(set, &long, b"x", 0, 0),
                plain(getk, &long),
                store(set, b"\x00\xff\r\n ", b"x", 0, 0),
                plain(getk, b"\x00\xff\r\n "),
            ],
        ),
        (
            "big",
            vec![
                store(set, b"big", &big, 0, 0),
                plain(get, b"big"),
                plain(getkq, b"big"),
            ],
        ),
        (
            "too big",
            vec![
                store(set, b"big", &too_big, 0, 0),
                plain(get, b"big"),
                store(set, b"s", b"x", 0, 0),
                store(0x02, b"s", &too_big, 0, 0),
                store(0x13, b"s", &too_big, 0, 0),
                plain(get, b"s"),
                Request::new(0x0e, b"", b"s", &too_big),
                plain(get, b"s"),
                store(setq, b"s", &too_big, 0, 0),
                plain(get, b"s"),
            ],
        ),
        (
            "append until too big",
            vec![
                store(set, b"big", &big, 0, 0),
                Request::new(0x0e, b"", b"big", &big),
                Request::new(0x1a, b"", b"big", &big),
                plain(0x04, b"big"),
            ],
        ),
        (
            "flush",
            vec![
                store(set, b"f", b"x", 0, 0),
                plain(0x08, b""),
                plain(get, b"f"),
                store(set, b"f", b"x", 0, 0),
                plain(0x18, b""),
                plain(get, b"f"),
                Request::new(0x08, &[0, 0, 0, 0], b"", b""),
                Request::new(0x18, &[0, 0, 0, 0], b"", b""),
            ],
        ),
        (
            "stat groups",
            vec![
                plain(0x10, b"nonsense"),
                plain(0x10, b"reset"),
                plain(0x10, b"resetting"),
                plain(0x10, b"detail bogus"),
            ],
        ),
        (
            "unknown",
            vec![
                plain(0x99, b""),
                plain(0x30, b""),
                Request::new(0x99, b"", b"", b"value"),
                plain(get, b"f"),
            ],
        ),
        (
            "no SASL here",
            vec![
                plain(0x20, b""),
                Request::new(0x21, b"", b"PLAIN", b"\0me\0secret"),
                Request::new(0x22, b"", b"PLAIN", b"x"),
            ],
        ),
        (
            "quit",
            vec![
                store(set, b"q", b"x", 0, 0),
                plain(0x07, b""),
                plain(get, b"q"),
            ],
        ),
        ("quit quietly", vec![plain(0x17, b""), plain(get, b"q")]),
        ("get without a key", vec![plain(get, b"")]),
        (
            "get with extras",
            vec![Request::new(get, &[0, 0, 0, 0], b"q", b"")],
        ),
        (
            "get with a value",
            vec![Request::new(getq, b"", b"q", b"value")],
        ),
        (
            "set without extras",
            vec![Request::new(set, b"", b"q", b"value")],
        ),
        ("set without a key", vec![store(setq, b"", b"value", 0, 0)]),
        (
            "delete with a value",
            vec![Request::new(0x04, b"", b"q", b"value")],
        ),
        ("count without extras", vec![plain(0x05, b"q")]),
        ("touch without extras", vec![plain(0x1c, b"q")]),
        ("touch without a key", vec![touch(0x1d, b"", 0)]),
        ("no-op with a key", vec![plain(NOOP, b"q")]),
        ("version with a key", vec![plain(0x0b, b"q")]),
        ("quit with a key", vec![plain(0x17, b"q")]),
        ("flush with a key", vec![plain(0x08, b"q")]),
        (
            "flush with odd extras",
            vec![Request::new(0x08, &[0, 0], b"", b"")],
        ),
        ("append with extras", vec![store(0x0e, b"q", b"x", 0, 0)]),
        (
            "stat with extras",
            vec![Request::new(0x10, &[0; 4], b"", b"")],
        ),
        ("mechanisms with a key", vec![plain(0x20, b"x")]),
        (
            "SASL without a mechanism",
            vec![Request::new(0x21, b"", b"", b"x")],
        ),
        ("a key over 250", vec![plain(get, &[b'k'; 251])]),
        ("key longer than body", wrong(plain(get, b"abcd"), 4, 0, 3)),
        (
            "extras longer than body",
            wrong(store(set, b"abcd", b"", 0, 0), 4, 8, 11),
        ),
        ("still there", vec![plain(get, b"q")]),
    ]
}

#[test]
fn the_script_is_answered_as_memcached_answers() {
    let mut pair = Pair::new();
    let mut random = Random::new(1);
    for (name, requests) in script() {
        pair.same(&requests, &mut random, name);
    }
}

/// What is not a request ends the connection without a word.
#[test]
fn bad_magic_closes() {
    let mut pair = Pair::new();
    let bytes = [0x81; 24];
    assert_eq!(pair.real.ask(&bytes, b"never"), (Vec::new(), true));
    assert_eq!(pair.ours.feed(&bytes), b"");
    assert!(pair.ours.is_closed());
}

/// Numbers stay below 2^63: at a larger one memcached looks for a minus sign as
/// far as the next zero byte, beyond the item, and what it finds there depends on
/// what that memory held before.
fn random_request(random: &mut Random, seen_count: usize) -> Request {
    let key = format!("key{}", random.below(6)).into_bytes();
    let value: Vec<u8> = match random.below(8) {
        0..=2 => (random.next() >> (2 + random.below(62)))
            .to_string()
            .into_bytes(),
        3 => Vec::new(),
        4 => b"12 34".to_vec(),
        5 => (u64::MAX >> 2).to_string().into_bytes(),
        6 => vec![b'x'; random.below(5000) as usize],
        _ => b"some text".to_vec(),
    };
    let expiration = *random.pick(&[0, 0, 0, 1000, 2_592_000, 2_592_001, 4_000_000_000, u32::MAX]);
    let flags = random.next() as u32;
    let delta = *random.pick(&[0, 1, 7, 1000, u64::MAX >> 16]);
    let cas = match random.below(8) {
        0..=4 => Cas::Zero,
        5 => Cas::Wrong,
        // Recent ones are more often right.
        _ => Cas::Seen(seen_count.saturating_sub(1 + random.below(5) as usize)),
    };
    let request = match random.below(40) {
        0..=9 => store(
            *random.pick(&[0x01, 0x11, 0x02, 0x12, 0x03, 0x13]),
            &key,
            &value,
            flags,
            expiration,
        ),
        10..=16 => plain(*random.pick(&[0x00, 0x09, 0x0c, 0x0d]), &key),
        17..=21 => Request::new(*random.pick(&[0x0e, 0x0f, 0x19, 0x1a]), b"", &key, &value),
        22..=29 => count(
            *random.pick(&[0x05, 0x06, 0x15, 0x16]),
            &key,
            delta,
            random.next() >> 2,
            expiration,
        ),
        30..=33 => touch(
            *random.pick(&[0x1c, 0x1d, 0x1e, 0x23, 0x24]),
            &key,
            expiration,
        ),
        34..=36 => plain(*random.pick(&[0x04, 0x14]), &key),
        37 => plain(*random.pick(&[NOOP, 0x08, 0x18, 0x99, 0x20]), b""),
        38 => Request::new(
            *random.pick(&[0x00, 0x05, 0x1c, 0x0a, 0x0b]),
            b"ex",
            &key,
            &value,
        ),
        _ => plain(0x07, b""),
    };
    request.with_cas(cas)
}

#[test]
fn random_requests_are_answered_as_memcached_answers() {
    let mut pair = Pair::new();
    for seed in 0..300 {
        let mut random = Random::new(seed);
        for batch in 0..10 {
            let seen_count = pair.our_uniques.in_order.len();
            let count = 1 + random.below(8);
            let requests: Vec<Request> = (0..count)
                .map(|_| random_request(&mut random, seen_count))
                .collect();
            pair.same(
                &requests,
                &mut random,
                &format!("seed {seed}, batch {batch}"),
            );
        }
    }
}
