//! Datagrams over a network that loses, doubles, reorders, holds back, damages and replays
//! them, under seeds.

use crate::world::{random, welcome};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use std::collections::{BTreeMap, HashMap};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::{IndexEntry, KeyHash, Pointer, Version};
use trefoil_softnic_core::datagram::piece::{Asked, REQUEST_LEN, encode_probe, encode_request};
use trefoil_softnic_core::datagram::target::{Buffers, carry_out};
use trefoil_softnic_core::datagram::{
    Cipher, Courier, DATAGRAM_DATA_LEN_MAX, DATAGRAM_LEN_MAX, DATAGRAM_LEN_MIN, DATAGRAM_LEN_USUAL,
    Dropped, Path, Sealed, TAG_LEN, Window, datagram_len, payload_len,
};
use trefoil_softnic_core::limits::{SESSION_PATIENCE_NS, WINDOW_LEN};
use trefoil_softnic_core::wire::{
    ANSWER_LEN, Answer, Ask, Open, OpenStatus, Opened, RefusalCode, Region, Request, Status,
    Welcome,
};
use trefoil_softnic_core::{Memory, ReadRange, Scan};

/// No secret, but it finds every damage that the tests do.
struct Toy(u64);

impl Toy {
    fn tag(&self, number: u64, head: &[u8], bytes: &[u8]) -> [u8; TAG_LEN] {
        let mut sum = [self.0 ^ number, !number];
        for (at, byte) in head.iter().chain(bytes).enumerate() {
            let of = &mut sum[at % 2];
            *of = (*of ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3) ^ (*of >> 29);
        }
        let mut tag = [0; TAG_LEN];
        tag[..8].copy_from_slice(&sum[0].to_le_bytes());
        tag[8..].copy_from_slice(&sum[1].to_le_bytes());
        tag
    }
}

impl Cipher for Toy {
    fn number_after(&mut self, before: u64, _: usize) -> u64 {
        before + 1
    }

    fn seal(&mut self, number: u64, head: &[u8], bytes: &mut Vec<u8>, from: usize) {
        bytes[from..].iter_mut().for_each(|byte| *byte ^= 0x5a);
        let tag = self.tag(number, head, &bytes[from..]);
        bytes.extend_from_slice(&tag);
    }

    fn open<'a>(&mut self, number: u64, head: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let (bytes, tag) = sealed.split_at_mut(sealed.len().checked_sub(TAG_LEN)?);
        if self.tag(number, head, bytes) != *tag {
            return None;
        }
        bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
        Some(bytes)
    }
}

/// Memory that is another one at every look, and of one kind within it; but for its data
/// region, where each word says where it stands.
#[derive(Default)]
pub(crate) struct Changing {
    looks: u64,
    touches: u64,
    /// Bytes of reads, those of scans apart.
    read_len: u64,
    /// Nothing can be read any more.
    has_moved: bool,
}

/// What a word of the data region holds.
fn word_at(offset: u64) -> u64 {
    offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn put_region(offset: u64, len: u32, data: &mut Vec<u8>) {
    for at in (offset..offset + u64::from(len)).step_by(8) {
        data.extend_from_slice(&word_at(at).to_le_bytes());
    }
}

/// How long what a scan finds is, and where it stands; nothing at 0.
fn found_len(hash: KeyHash) -> u32 {
    (hash.tag >> 32) as u32
}

fn found_at(hash: KeyHash) -> u64 {
    hash.place << 20
}

impl Memory for Changing {
    fn admit(&mut self, _: &[u8]) -> Result<Welcome, RefusalCode> {
        Ok(welcome())
    }

    fn open(&mut self, _: &Open) -> Result<Opened, OpenStatus> {
        unreachable!("nobody opens")
    }

    fn scan(&mut self, scan: &Scan, data: &mut Vec<u8>) -> Answer {
        self.looks += 1;
        let len = found_len(scan.hash);
        let vote = match len {
            0 => IndexVote::Absent { epoch: 1 },
            len => {
                let pointer = Pointer::new(found_at(scan.hash), len as usize).unwrap();
                put_region(pointer.offset(), pointer.len() as u32, data);
                // The version says which look it was.
                let version = Version::new(self.looks, 1, 1);
                IndexVote::Present {
                    slot_number: 0,
                    entry: IndexEntry {
                        tag: scan.hash.tag,
                        version,
                        pointer,
                    },
                    epoch: 1,
                }
            }
        };
        Answer {
            vote: Some(vote),
            data_len: len,
            ..Answer::bare(Status::Done)
        }
    }

    fn read(&mut self, _: u32, range: &ReadRange, data: &mut Vec<u8>) -> Answer {
        self.looks += 1;
        self.read_len += u64::from(range.len);
        if self.has_moved {
            return Answer::bare(Status::OutOfWindow);
        }
        match range.region {
            Region::Data => put_region(range.offset, range.len, data),
            _ => data.resize(data.len() + range.len as usize, self.looks as u8),
        }
        Answer {
            data_len: range.len,
            ..Answer::bare(Status::Done)
        }
    }

    fn touch(&mut self, _: u32, _: u8, _: KeyHash) {
        self.touches += 1;
    }
}

/// Out of a hundred.
#[derive(Clone, Copy)]
struct Weather {
    lost: u32,
    doubled: u32,
    damaged: u32,
    /// Replayed much later.
    replayed: u32,
    /// Between so long …
    delay_min_ns: u64,
    /// … and so long.
    delay_max_ns: u64,
}

struct World {
    random: SmallRng,
    weather: Weather,
    now: u64,
    /// By time and a number; whether it goes to the engine.
    flying: BTreeMap<(u64, u64), (bool, Vec<u8>)>,
    flown: u64,
    client: Sealed<Toy>,
    engine: Sealed<Toy>,
    courier: Courier,
    memory: Changing,
    buffers: Buffers,
    /// Longer datagrams do not pass.
    mtu: usize,
    /// An engine of an earlier release: knows requests of the usual form only.
    is_old: bool,
    /// No datagram passes.
    is_blocked: bool,
    /// Requests that the stream has carried instead.
    by_stream: u64,
    /// The longest datagram that has come from the engine.
    longest: usize,
    dropped: HashMap<&'static str, u64>,
    asked: HashMap<u64, Ask>,
    answered: HashMap<u64, usize>,
}

impl World {
    fn new(seed: u64, weather: Weather) -> Self {
        World {
            random: random(seed),
            weather,
            now: 1_000_000,
            flying: BTreeMap::new(),
            flown: 0,
            client: Sealed::new(7, Toy(99)),
            engine: Sealed::new(7, Toy(99)),
            courier: Courier::new(Window::new(WINDOW_LEN)),
            memory: Changing::default(),
            buffers: Buffers::default(),
            mtu: usize::MAX,
            is_old: false,
            is_blocked: false,
            by_stream: 0,
            longest: 0,
            dropped: HashMap::new(),
            asked: HashMap::new(),
            answered: HashMap::new(),
        }
    }

    fn happens(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn fly(&mut self, to_engine: bool, datagram: &[u8]) {
        let Weather {
            lost,
            doubled,
            damaged,
            replayed,
            delay_min_ns,
            delay_max_ns,
        } = self.weather;
        assert!(datagram.len() <= DATAGRAM_LEN_MAX);
        let put = |world: &mut World, later: u64, bytes: Vec<u8>| {
            let delay = world.random.random_range(delay_min_ns..=delay_max_ns);
            world.flown += 1;
            let at = (world.now + delay + later, world.flown);
            world.flying.insert(at, (to_engine, bytes));
        };
        if self.happens(doubled) {
            put(self, 0, datagram.to_vec());
        }
        if self.happens(replayed) {
            put(self, 50_000_000, datagram.to_vec());
        }
        if self.happens(lost) || datagram.len() > self.mtu || self.is_blocked {
            return;
        }
        let mut bytes = datagram.to_vec();
        if self.happens(damaged) {
            match self.random.random_range(0..3) {
                0 => bytes.truncate(self.random.random_range(0..bytes.len())),
                1 => bytes.extend_from_slice(&[0; 40]),
                _ => {
                    let at = self.random.random_range(0..bytes.len());
                    bytes[at] ^= 1 << self.random.random_range(0..8);
                }
            }
        }
        put(self, 0, bytes);
    }

    fn ask(&mut self, ask: Ask) {
        if ask.is_answered() {
            self.asked.insert(ask.id, ask);
        }
        self.courier.ask(ask);
    }

    fn send(&mut self) {
        let (mut payload, mut datagram) = (Vec::new(), Vec::new());
        while self.courier.next_payload(self.now, &mut payload) {
            self.client.seal(&payload, &mut datagram);
            self.fly(true, &datagram);
        }
        let (asked, answered) = (&self.asked, &mut self.answered);
        self.courier.take_left(|ask| {
            // The stream has its own time; it always gets through.
            self.by_stream += 1;
            if ask.is_answered() {
                assert_eq!(asked[&ask.id], ask);
                assert!(answered.insert(ask.id, 0).is_none(), "answered twice");
            }
        });
    }

    /// The next thing happens.
    fn step(&mut self) {
        self.send();
        let due = self.courier.due_ns();
        if self.flying.is_empty() && self.courier.is_idle() {
            // The rest is the stream's.
            return;
        }
        match self.flying.first_key_value() {
            Some((&(at, _), _)) if at <= due => self.now = self.now.max(at),
            _ => {
                assert!(due < u64::MAX, "nothing is under way");
                self.now = self.now.max(due);
                return;
            }
        }
        let Some((_, (to_engine, mut bytes))) = self.flying.pop_first() else {
            return;
        };
        let side = match to_engine {
            true => &mut self.engine,
            false => &mut self.client,
        };
        let payload = match side.open(&mut bytes) {
            Ok(payload) => payload.to_vec(),
            Err(dropped) => {
                let name = match dropped {
                    Dropped::Length => "length",
                    Dropped::Session => "session",
                    Dropped::Forged => "forged",
                    Dropped::Replayed => "replayed",
                };
                *self.dropped.entry(name).or_default() += 1;
                return;
            }
        };
        if to_engine {
            let is_new = |request: &[u8]| request[4..8] != [0; 4];
            if self.is_old && payload.chunks(REQUEST_LEN).any(is_new) {
                *self.dropped.entry("malformed").or_default() += 1;
                return;
            }
            let mut out = Vec::new();
            let sent = carry_out(&payload, &mut self.memory, &mut self.buffers, |payload| {
                out.push(payload.to_vec());
            });
            sent.unwrap();
            let mut datagram = Vec::new();
            for payload in out {
                self.engine.seal(&payload, &mut datagram);
                self.fly(false, &datagram);
            }
            return;
        }
        self.longest = self.longest.max(datagram_len(payload.len()));
        let (asked, answered) = (&self.asked, &mut self.answered);
        let taken = self.courier.handle(&payload, self.now, |bytes| {
            let (id, answer, data, len) = Answer::decode(bytes, |_| 0).unwrap();
            assert_eq!((len, answer.status), (bytes.len(), Status::Done));
            let (from, expected) = match asked[&id].request {
                Request::Read {
                    region: Region::Data,
                    offset,
                    len,
                    ..
                } => (Some(offset), len),
                Request::Read { len, .. } => (None, len),
                Request::Scan { hash, .. } => (Some(found_at(hash)), found_len(hash)),
                Request::Touch { .. } => unreachable!(),
            };
            assert_eq!(data.len(), expected as usize);
            match from {
                Some(from) => {
                    let mut all = Vec::new();
                    put_region(from, expected, &mut all);
                    assert!(data == all, "not what stands there");
                }
                // Of one look.
                None => assert!(data.iter().all(|byte| *byte == data[0]), "two looks in one"),
            }
            assert!(answered.insert(id, data.len()).is_none(), "answered twice");
        });
        taken.unwrap();
    }

    fn take_what_has_come(&mut self) {
        let now = self.now;
        while (self.flying.first_key_value()).is_some_and(|((at, _), _)| *at <= now) {
            self.step();
        }
    }

    fn run(&mut self) {
        let begin = self.now;
        self.send();
        while !self.courier.is_idle() {
            self.step();
            assert!(self.now - begin < 60_000_000_000, "it takes for ever");
        }
        assert_eq!(self.answered.len(), self.asked.len());
    }
}

pub(crate) fn read(id: u64, len: u32) -> Ask {
    read_from(Region::Index, id, len)
}

fn read_from(region: Region, id: u64, len: u32) -> Ask {
    Ask {
        id,
        handle: 1,
        request: Request::Read {
            region,
            partition: 0,
            window_id: 0,
            offset: id << 20,
            len,
        },
    }
}

/// A scan that finds something of this length.
fn find(id: u64, len: u32) -> Ask {
    let mut ask = scan(id);
    if let Request::Scan {
        hash, solicited, ..
    } = &mut ask.request
    {
        hash.tag = u64::from(len) << 32;
        *solicited = len;
    }
    ask
}

fn scan(id: u64) -> Ask {
    Ask {
        id,
        handle: 1,
        request: Request::Scan {
            place: 0,
            hash: KeyHash { place: id, tag: id },
            config_id: 1,
            solicited: 4096,
            is_use: false,
            is_vote: false,
        },
    }
}

const BAD: Weather = Weather {
    lost: 10,
    doubled: 10,
    damaged: 10,
    replayed: 10,
    delay_min_ns: 10_000,
    delay_max_ns: 400_000,
};

const CALM: Weather = Weather {
    lost: 0,
    doubled: 0,
    damaged: 0,
    replayed: 0,
    delay_min_ns: 10_000,
    delay_max_ns: 20_000,
};

#[test]
fn every_request_is_answered_once_whatever_the_network_does() {
    for seed in 0..60 {
        let mut world = World::new(seed, BAD);
        for id in 1..=200 {
            let ask = match world.random.random_range(0..6) {
                0 => scan(id),
                4 => find(id, world.random.random_range(1..500) * 32),
                5 => read_from(Region::Data, id, world.random.random_range(1..2000) * 8),
                1 => read(id, world.random.random_range(0..200) * 8),
                2 => read(id, world.random.random_range(0..2000) * 8),
                _ if id % 40 == 0 => read(id, DATAGRAM_DATA_LEN_MAX),
                _ => scan(id),
            };
            world.ask(ask);
            if world.happens(30) {
                world.step();
            }
        }
        world.run();
        // All of it was tried.
        for name in ["length", "forged", "replayed"] {
            assert!(world.dropped.get(name) > Some(&0), "seed {seed}: {name}");
        }
        let counts = world.courier.counts();
        assert!(counts.resent > counts.patched && counts.patched > 0);
    }
}

/// Of twelve pieces a few are lost each time.
#[test]
fn a_piece_that_is_lost_is_asked_for_alone() {
    let weather = Weather { lost: 4, ..FAR };
    let mut world = World::new(3, weather);
    const COUNT: u64 = 500;
    for id in 1..=COUNT {
        let ask = match id % 2 {
            0 => find(id, DATAGRAM_DATA_LEN_MAX),
            _ => read_from(Region::Data, id, DATAGRAM_DATA_LEN_MAX),
        };
        world.ask(ask);
        world.run();
    }
    let counts = world.courier.counts();
    // Two of five answers lose something; wholly asked again are those whose request, or
    // whose first piece, was lost.
    assert!(counts.patched > COUNT / 5, "{counts:?}");
    assert!(counts.resent - counts.patched < COUNT / 4, "{counts:?}");
    // And what was read again is a small part of it.
    let asked_len = COUNT / 2 * u64::from(DATAGRAM_DATA_LEN_MAX);
    let again = world.memory.read_len - asked_len;
    assert!(again < asked_len / 2, "{again} of {asked_len}");
}

#[test]
fn what_can_be_read_no_more_is_asked_for_as_a_whole() {
    let mut world = World::new(3, CALM);
    world.ask(find(1, DATAGRAM_DATA_LEN_MAX));
    let (mut payload, mut out) = (Vec::new(), Vec::new());
    let mut now = 0;
    let carry = |world: &mut World, payload: &[u8], out: &mut Vec<Vec<u8>>| {
        out.clear();
        let buffers = &mut world.buffers;
        let sent = carry_out(payload, &mut world.memory, buffers, |payload| {
            out.push(payload.to_vec());
        });
        sent.unwrap();
    };
    assert!(world.courier.next_payload(now, &mut payload));
    carry(&mut world, &payload, &mut out);
    out.remove(3);
    for payload in &out {
        let taken = world
            .courier
            .handle(payload, now, |_| panic!("a piece is missing"));
        taken.unwrap();
    }
    // The engine has another window by then.
    world.memory.has_moved = true;
    now = world.courier.due_ns();
    assert!(world.courier.next_payload(now, &mut payload));
    assert_eq!(world.courier.counts().patched, 1);
    carry(&mut world, &payload, &mut out);
    for payload in &out {
        let taken = world
            .courier
            .handle(payload, now, |_| panic!("nothing was read"));
        taken.unwrap();
    }
    // At once, and by a scan.
    assert!(world.courier.due_ns() <= now);
    let scans = world.memory.looks;
    assert!(world.courier.next_payload(now, &mut payload));
    carry(&mut world, &payload, &mut out);
    let mut count = 0;
    for payload in &out {
        world.courier.handle(payload, now, |_| count += 1).unwrap();
    }
    assert_eq!((count, world.memory.looks), (1, scans + 1));
    assert!(world.courier.is_idle());
}

#[test]
fn nothing_is_sent_twice_where_nothing_is_lost() {
    let mut world = World::new(1, CALM);
    for id in 1..=2000 {
        world.ask(scan(id));
    }
    world.run();
    assert_eq!(world.courier.counts().resent, 0);
    assert_eq!(world.memory.looks, 2000);
    // Packed: far fewer datagrams than requests.
    assert!(world.flown < 1500, "{}", world.flown);
}

#[test]
fn a_replayed_datagram_is_not_carried_out() {
    let mut courier = Courier::new(Window::new(WINDOW_LEN));
    let (mut client, mut engine) = (Sealed::new(1, Toy(5)), Sealed::new(1, Toy(5)));
    let (mut payload, mut datagram) = (Vec::new(), Vec::new());
    let mut sent = Vec::new();
    for id in 1..=3000 {
        courier.ask(scan(id));
        courier.next_payload(0, &mut payload);
        client.seal(&payload, &mut datagram);
        sent.push(datagram.clone());
    }
    // Out of order within what is remembered, and each once.
    let late = sent.len() - 1000;
    assert!(engine.open(&mut sent[2999].clone()).is_ok());
    assert!(engine.open(&mut sent[late].clone()).is_ok());
    for datagram in [&sent[2999], &sent[late], &sent[0]] {
        assert_eq!(engine.open(&mut datagram.clone()), Err(Dropped::Replayed));
    }
    // A forged one with a number to come takes nothing away.
    let mut forged = sent[late + 1].clone();
    forged[20] ^= 1;
    assert_eq!(engine.open(&mut forged), Err(Dropped::Forged));
    assert!(engine.open(&mut sent[late + 1].clone()).is_ok());
    let mut other = Sealed::new(2, Toy(5));
    assert_eq!(other.open(&mut sent[5].clone()), Err(Dropped::Session));
    assert_eq!(
        other.open(&mut sent[5][..20].to_vec()),
        Err(Dropped::Length)
    );
    let mut wrong_key = Sealed::new(1, Toy(6));
    assert_eq!(wrong_key.open(&mut sent[5].clone()), Err(Dropped::Forged));
}

#[test]
fn what_an_engine_says_that_was_not_asked_is_refused() {
    let mut courier = Courier::new(Window::new(WINDOW_LEN));
    let mut payload = Vec::new();
    courier.ask(read(1, 64));
    courier.next_payload(0, &mut payload);
    let mut memory = Changing::default();
    let mut longer = Vec::new();
    // Longer than was solicited, and for an attempt that was not made.
    let mut asked = Vec::new();
    encode_request(&first(1, read(1, 128)), &mut asked);
    let buffers = &mut Buffers::default();
    carry_out(&asked, &mut memory, buffers, |out| longer = out.to_vec()).unwrap();
    assert!(courier.handle(&longer, 1, |_| panic!("taken")).is_err());
    asked.clear();
    encode_request(&first(2, read(1, 64)), &mut asked);
    carry_out(&asked, &mut memory, buffers, |out| longer = out.to_vec()).unwrap();
    assert!(courier.handle(&longer, 1, |_| panic!("taken")).is_err());
    // Nonsense is no request, and asks for nothing.
    let looks = memory.looks;
    for nonsense in [&b"x"[..], &[0xff; 56], &[0; 57], &[]] {
        let sent = carry_out(nonsense, &mut memory, buffers, |_| panic!("answered"));
        assert!(sent.is_err());
    }
    // Nor does one that goes by the stream, and the others of its datagram with it.
    let mut much = Vec::new();
    encode_request(&first(1, read(1, 64)), &mut much);
    let longer = read(2, DATAGRAM_DATA_LEN_MAX + 8);
    encode_request(&first(1, longer), &mut much);
    assert!(carry_out(&much, &mut memory, buffers, |_| panic!("answered")).is_err());
    assert_eq!(memory.looks, looks);
}

/// An attempt at a request, in the usual datagrams.
fn first(attempt: u32, ask: Ask) -> Asked {
    Asked {
        attempt,
        datagram_len: DATAGRAM_LEN_USUAL,
        ask,
    }
}

/// 25 ms each way.
const FAR: Weather = Weather {
    delay_min_ns: 25_000_000,
    delay_max_ns: 25_100_000,
    ..CALM
};
const FAR_ROUND_TRIP_NS: u64 = 50_000_000;

/// A scan that solicits what short items take.
fn short_scan(id: u64) -> Ask {
    let mut ask = scan(id);
    if let Request::Scan { solicited, .. } = &mut ask.request {
        *solicited = 512;
    }
    ask
}

/// How long a batch takes, in round trips.
fn batch(world: &mut World, ids: std::ops::Range<u64>) -> f64 {
    let begin = world.now;
    ids.for_each(|id| world.ask(short_scan(id)));
    world.run();
    (world.now - begin) as f64 / FAR_ROUND_TRIP_NS as f64
}

#[test]
fn on_a_long_way_a_batch_soon_takes_one_round_trip() {
    let mut world = World::new(1, FAR);
    // 59 KiB are solicited; the window begins with 16.
    let first = batch(&mut world, 1..101);
    assert!(first < 3.1, "{first} round trips");
    let second = batch(&mut world, 101..201);
    assert!(second < 1.1, "{second} round trips");
    // How far it is was learned from the first answer, although that was asked for again before.
    let resent = world.courier.counts().resent;
    assert!(resent <= 60, "{resent} asked again");
    assert!(world.courier.window().patience_ns() > FAR_ROUND_TRIP_NS);
}

#[test]
fn a_way_that_becomes_many_times_as_long_is_learned() {
    let of = |ns| Weather {
        delay_min_ns: ns,
        delay_max_ns: ns,
        ..FAR
    };
    let mut world = World::new(1, of(100_000));
    let mut id = 0;
    let mut ask = |world: &mut World| {
        id += 1;
        world.ask(short_scan(id));
        world.run();
    };
    (0..50).for_each(|_| ask(&mut world));
    for ns in [1_000_000, 10_000_000] {
        world.weather = of(ns);
        (0..100).for_each(|_| ask(&mut world));
        let before = world.courier.counts().resent;
        (0..100).for_each(|_| ask(&mut world));
        assert_eq!(world.courier.counts().resent, before, "{ns} ns each way");
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut world = World::new(1, FAR);
    for id in 1..500 {
        world.ask(short_scan(id));
        world.run();
    }
    assert!(world.courier.window().len() <= 16 << 10);
    batch(&mut world, 1000..1100);
    assert!(world.courier.window().len() > 32 << 10);
}

#[test]
fn what_was_only_late_takes_nothing_from_the_window() {
    let mut world = World::new(1, FAR);
    for round in 0..3 {
        batch(&mut world, round * 100 + 1..round * 100 + 101);
    }
    let before = (world.courier.window().len(), world.courier.counts().resent);
    // Once a quarter longer, which is more than it is waited for, and no queue.
    world.weather.delay_max_ns = 31_000_000;
    world.weather.delay_min_ns = 31_000_000;
    batch(&mut world, 1001..1101);
    assert!(world.courier.counts().resent > before.1);
    assert!(world.courier.window().len() >= before.0);
}

#[test]
fn a_long_way_that_loses_and_reorders_is_used_all_the_same() {
    let weather = Weather {
        lost: 1,
        doubled: 1,
        damaged: 1,
        replayed: 1,
        delay_min_ns: 20_000_000,
        ..FAR
    };
    let mut all = Vec::new();
    for seed in 0..40 {
        let mut world = World::new(seed, weather);
        for round in 0..10 {
            let ids = round * 100 + 1..round * 100 + 101;
            let took = batch(&mut world, ids);
            if round >= 2 {
                all.push(took);
            }
        }
    }
    all.sort_unstable_by(f64::total_cmp);
    let (half, most) = (all[all.len() / 2], all[all.len() * 99 / 100]);
    assert!(half < 2.6, "p50 of {half} round trips");
    assert!(most < 5.5, "p99 of {most} round trips");
}

#[test]
fn one_request_alone_that_is_lost_once_takes_few_round_trips() {
    // 4 % of the round trips lose something, and every thousandth GET is to take three.
    let weather = Weather { lost: 2, ..FAR };
    let mut world = World::new(5, weather);
    let mut all = Vec::new();
    for id in 1..20_001 {
        all.push(batch(&mut world, id..id + 1));
    }
    all.sort_unstable_by(f64::total_cmp);
    let late = all[all.len() * 999 / 1000];
    assert!(late <= 3.0, "p99.9 of {late} round trips");
}

/// One queue of so many bytes a nanosecond, that several windows fill.
#[test]
fn windows_that_share_a_queue_leave_it_short() {
    const CLIENTS: usize = 20;
    // 10 Gbit/s, and a way of 50 us.
    const NS_PER_BYTE: f64 = 0.8;
    const WAY_NS: f64 = 50_000.0;
    const ANSWER: usize = 8 << 10;
    let mut windows = [Window::new(WINDOW_LEN); CLIENTS];
    let mut longest_first = 0u64;
    let mut under_way = [0; CLIENTS];
    let mut coming: BTreeMap<(u64, u64), (usize, u64)> = BTreeMap::new();
    let (mut now, mut free_at, mut number) = (0u64, 0f64, 0);
    let (mut longest_late, mut answered) = (0u64, 0usize);
    while now < 200_000_000 {
        for client in 0..CLIENTS {
            while under_way[client] == 0 || under_way[client] + ANSWER <= windows[client].len() {
                under_way[client] += ANSWER;
                windows[client].sent(under_way[client], now);
                free_at = free_at.max(now as f64 + WAY_NS) + ANSWER as f64 * NS_PER_BYTE;
                number += 1;
                coming.insert((free_at as u64, number), (client, now));
            }
        }
        let ((at, _), (client, sent)) = coming.pop_first().unwrap();
        now = at;
        under_way[client] -= ANSWER;
        windows[client].answered(now - sent, ANSWER, now);
        longest_first = longest_first.max(now - sent);
        if now > 100_000_000 {
            longest_late = longest_late.max(now - sent);
            answered += ANSWER;
        }
    }
    // With fixed windows of 512 KiB, 20 clients stand in a queue of 8 ms.
    assert!(longest_late < 1_500_000, "{longest_late} ns");
    // At the beginning they are doubled until the queue is seen, a round trip later.
    assert!(longest_first < 2_000_000, "{longest_first} ns");
    let share = answered as f64 * NS_PER_BYTE / 100_000_000.0;
    assert!(share > 0.8, "{share} of the link is used");
    const { assert!(ANSWER > ANSWER_LEN) };
}

#[test]
fn batches_with_pauses_between_them_wait_for_no_look_at_the_way() {
    let mut world = World::new(1, FAR);
    let mut longest = 0.0f64;
    for round in 0..30 {
        let ids = round * 100 + 1..round * 100 + 101;
        let took = batch(&mut world, ids);
        world.now += 11_000_000_000;
        if round > 1 {
            longest = longest.max(took);
        }
    }
    assert!(longest < 1.1, "{longest} round trips");
    // Nor with more than the window holds at first.
    let took = batch(&mut world, 10_000..10_400);
    assert!(took < 4.1, "{took} round trips");
}

/// For minutes, one queue that is never empty: how long answers take at the beginning and in
/// the end, and which part of the link was used.
fn long_load(clients: usize) -> (u64, u64, f64) {
    // 40 Mbit/s, and a way of 2 ms.
    const NS_PER_BYTE: u64 = 200;
    const WAY_NS: u64 = 2_000_000;
    const ANSWER: usize = 2 << 10;
    const S: u64 = 1_000_000_000;
    let mut windows = vec![Window::new(WINDOW_LEN); clients];
    let mut under_way = vec![0; clients];
    let mut coming: BTreeMap<(u64, u64), (usize, u64)> = BTreeMap::new();
    let (mut now, mut free_at, mut number) = (0u64, 0u64, 0);
    let (mut early, mut late) = (Vec::new(), Vec::new());
    while now < 130 * S {
        for client in 0..clients {
            // They do not all begin at once.
            if now < client as u64 * S / 10 {
                continue;
            }
            while under_way[client] == 0 || under_way[client] + ANSWER <= windows[client].len() {
                under_way[client] += ANSWER;
                windows[client].sent(under_way[client], now);
                free_at = free_at.max(now + WAY_NS) + ANSWER as u64 * NS_PER_BYTE;
                number += 1;
                coming.insert((free_at, number), (client, now));
            }
        }
        let ((at, _), (client, sent)) = coming.pop_first().unwrap();
        now = at;
        under_way[client] -= ANSWER;
        windows[client].answered(now - sent, ANSWER, now);
        if (5 * S..9 * S).contains(&now) {
            early.push(now - sent);
        } else if now > 100 * S {
            late.push(now - sent);
        }
    }
    let used = (late.len() * ANSWER) as f64 * NS_PER_BYTE as f64 / (30 * S) as f64;
    let p99 = |all: &mut Vec<u64>| {
        all.sort_unstable();
        all[all.len() * 99 / 100]
    };
    (p99(&mut early), p99(&mut late), used)
}

#[test]
fn under_load_that_does_not_end_the_queue_stays_as_short_as_it_was() {
    let (early, late, used) = long_load(1);
    let said = format!("{early} {late} {used}");
    assert!(late <= early * 11 / 10, "{said}");
    assert!(used > 0.95, "{said}");
    // Beside others nobody sees the way alone, and ages it: for 100 s of nothing else.
    let (early, late, used) = long_load(4);
    let said = format!("{early} {late} {used}");
    assert!(late <= early * 2, "{said}");
    assert!(used > 0.95, "{said}");
}

/// A world whose path is tried out, on which so long datagrams pass.
fn on_path(seed: u64, weather: Weather, mtu: usize) -> World {
    let mut world = World::new(seed, weather);
    world.courier = Courier::on(Path::new(DATAGRAM_LEN_MAX), Window::new(WINDOW_LEN));
    world.mtu = mtu;
    world
}

/// Long answers, one after another; which length was found out.
fn long_answers(world: &mut World, ids: std::ops::Range<u64>) -> usize {
    for id in ids {
        world.ask(find(id, DATAGRAM_DATA_LEN_MAX));
        world.run();
        // It is not asked all the time.
        world.now += 1_000_000;
    }
    world.courier.path().len()
}

#[test]
fn the_longest_datagrams_that_pass_are_found_and_used() {
    for (mtu, found) in [
        (65_000, 8968),
        (8972, 8968),
        (8500, 8472),
        (1472, 1472),
        (1452, 1448),
        (1400, 1400),
    ] {
        for (seed, weather) in [(1, CALM), (2, FAR), (3, BAD)] {
            let mut world = on_path(seed, weather, mtu);
            let path = long_answers(&mut world, 1..120);
            match weather.lost {
                0 => assert_eq!(path, found, "{mtu}"),
                // Three probes may be lost of a length that passes.
                _ => assert!((DATAGRAM_LEN_MIN..=found).contains(&path), "{mtu}: {path}"),
            }
            if weather.lost == 0 {
                assert_eq!(world.longest, found);
                // Each length that does not pass is tried three times, and there are few.
                let probes = world.courier.counts().probes;
                assert!(probes <= 20, "{probes} probes");
                // Nothing more is sent for that.
                long_answers(&mut world, 120..140);
                assert_eq!(world.courier.counts().probes, probes);
            }
        }
    }
}

#[test]
fn a_path_that_takes_less_than_usual_is_noticed() {
    let mut world = on_path(1, FAR, 1240);
    assert_eq!(long_answers(&mut world, 1..120), 1232);
    // The first answers took a few attempts, and no later one.
    let resent = world.courier.counts().resent;
    long_answers(&mut world, 120..160);
    assert_eq!(world.courier.counts().resent, resent);
}

#[test]
fn a_path_that_shrinks_and_widens_is_followed() {
    for seed in 0..5 {
        let weather = Weather { lost: 1, ..FAR };
        let mut world = on_path(seed, weather, 9000);
        assert_eq!(long_answers(&mut world, 1..40), 8968, "seed {seed}");
        world.mtu = 1472;
        let begin = world.now;
        world.ask(find(40, DATAGRAM_DATA_LEN_MAX));
        world.run();
        // Whoever waits when it shrinks: three attempts, and what is lost besides.
        let took = (world.now - begin) / FAR_ROUND_TRIP_NS;
        assert!(took < 25, "seed {seed}: {took} round trips");
        let path = long_answers(&mut world, 41..100);
        assert!((1448..=1472).contains(&path), "seed {seed}: {path}");
        // What was too long is tried again after a minute.
        world.mtu = 9000;
        world.now += 61_000_000_000;
        assert_eq!(long_answers(&mut world, 100..140), 8968, "seed {seed}");
    }
}

#[test]
fn an_engine_of_an_earlier_release_is_asked_as_before() {
    for (weather, seed) in [(CALM, 1), (FAR, 2), (BAD, 3)] {
        let mut world = on_path(seed, weather, 9000);
        world.is_old = true;
        assert_eq!(long_answers(&mut world, 1..50), DATAGRAM_LEN_USUAL);
        assert!(!world.courier.path().is_spoken());
        assert!(world.longest <= DATAGRAM_LEN_USUAL);
        // It has seen nothing that it does not know but a few probes.
        let probes = world.courier.counts().probes;
        assert!((1..=3).contains(&probes), "{probes} probes");
        assert!(world.dropped.get("malformed").copied().unwrap_or(0) <= 2 * probes);
    }
}

#[test]
fn a_probe_is_answered_with_as_much_and_whoever_asks_for_nothing_sends_none() {
    let (mut memory, mut buffers) = (Changing::default(), Buffers::default());
    let mut payload = Vec::new();
    for len in [
        16,
        payload_len(DATAGRAM_LEN_MIN),
        payload_len(DATAGRAM_LEN_MAX),
    ] {
        encode_probe(5, len, &mut payload);
        assert_eq!(payload.len(), len);
        let mut answers = Vec::new();
        let sent = carry_out(&payload, &mut memory, &mut buffers, |answer| {
            answers.push(answer.len());
        });
        assert_eq!((sent, answers), (Ok(0), vec![len]));
    }
    assert_eq!(memory.looks, 0);
    let mut courier = Courier::on(Path::new(DATAGRAM_LEN_MAX), Window::new(WINDOW_LEN));
    for now in 0..100 {
        assert!(!courier.next_payload(now * 1_000_000_000, &mut payload));
    }
    assert_eq!(courier.due_ns(), u64::MAX);
}

const MS: u64 = 1_000_000;

/// One request after another, each 20 ms after the answer to the one before; how long the
/// longest took.
fn one_by_one(world: &mut World, ids: std::ops::Range<u64>, ask: impl Fn(u64) -> Ask) -> u64 {
    let mut longest = 0;
    for id in ids {
        let begin = world.now;
        world.ask(ask(id));
        world.run();
        longest = longest.max(world.now - begin);
        world.now += 20 * MS;
        world.take_what_has_come();
    }
    longest
}

#[test]
fn datagrams_that_stop_getting_through_are_left_to_the_stream_and_tried_again() {
    for is_old in [false, true] {
        for (weather, most_ms) in [(CALM, 101), (FAR, 500)] {
            let mut world = on_path(1, weather, 1472);
            world.is_old = is_old;
            one_by_one(&mut world, 1..101, short_scan);
            assert_eq!((world.by_stream, world.courier.counts().silences), (0, 0));
            world.is_blocked = true;
            // Whoever waits when it happens, of a batch as well.
            let begin = world.now;
            (101..140).for_each(|id| world.ask(short_scan(id)));
            world.run();
            let took_ms = (world.now - begin) / MS;
            assert!(took_ms <= most_ms, "{took_ms} ms");
            assert_eq!(world.courier.counts().silences, 1);
            // Nobody afterwards, and little is sent in vain.
            let before = world.courier.counts();
            let took = one_by_one(&mut world, 1000..4000, short_scan);
            assert_eq!(took, 0, "somebody has waited");
            let counts = world.courier.counts();
            let tried = counts.sent - before.sent;
            assert!((5..=12).contains(&tried), "tried {tried} times in a minute");
            assert_eq!(counts.left, world.by_stream);
            // It gets through again.
            world.is_blocked = false;
            one_by_one(&mut world, 100_000..102_000, short_scan);
            let by_stream = world.by_stream;
            let took = one_by_one(&mut world, 200_000..200_100, short_scan);
            assert_eq!(world.by_stream, by_stream);
            assert!(took <= 2 * weather.delay_max_ns, "{took} ns");
            assert_eq!(world.courier.counts().silences, 1);
        }
    }
}

#[test]
fn what_does_not_get_through_at_first_goes_by_the_stream() {
    let mut world = on_path(1, CALM, 1472);
    world.is_blocked = true;
    let took = one_by_one(&mut world, 1..1000, short_scan);
    assert!(took <= 301 * MS, "{took} ns");
    assert_eq!(world.by_stream, 999);
    // A way that is longer than it is waited for is learned all the same.
    world.is_blocked = false;
    world.weather = Weather {
        delay_min_ns: 90 * MS,
        delay_max_ns: 90 * MS,
        ..CALM
    };
    one_by_one(&mut world, 1000..4000, short_scan);
    let by_stream = world.by_stream;
    let took = one_by_one(&mut world, 100_000..100_100, short_scan);
    assert_eq!((world.by_stream, took), (by_stream, 180 * MS));
}

#[test]
fn a_way_that_takes_only_short_datagrams_any_more_is_left_to_the_stream() {
    for is_old in [false, true] {
        let mut world = on_path(1, CALM, 9000);
        world.is_old = is_old;
        let long = |id| find(id, 4000);
        one_by_one(&mut world, 1..100, long);
        world.mtu = 1100;
        let took = one_by_one(&mut world, 100..110, long);
        assert!(took <= 401 * MS, "{took} ns");
        assert_eq!(world.courier.counts().silences, 1);
        // Short ones get through: that ends nothing.
        let before = world.by_stream;
        let took = one_by_one(&mut world, 1000..2500, |id| match id % 2 {
            0 => long(id),
            _ => short_scan(id),
        });
        assert_eq!((took, world.by_stream), (0, before + 1500));
        world.mtu = 9000;
        one_by_one(&mut world, 100_000..102_000, long);
        let before = world.by_stream;
        one_by_one(&mut world, 200_000..200_100, long);
        assert_eq!(world.by_stream, before);
    }
}

/// Of answers that fit any datagram, in batches: their requests fill long ones, and so do all
/// answers together.
#[test]
fn short_values_notice_a_way_that_takes_less_than_usual() {
    for (is_old, each) in [(false, 12), (false, 60), (true, 12), (true, 60)] {
        let mut world = on_path(1, CALM, 1472);
        world.is_old = is_old;
        let short = |id| find(id, 256);
        let batch = |world: &mut World, from: u64| {
            let begin = world.now;
            (from..from + each).for_each(|id| world.ask(short(id)));
            world.run();
            world.now += MS;
            world.now - begin
        };
        for n in 0..50 {
            batch(&mut world, 1 + n * each);
        }
        world.mtu = 1300;
        let mut longest = 0;
        for n in 0..200 {
            longest = longest.max(batch(&mut world, 100_000 + n * each));
        }
        assert!(longest < 400 * MS, "{is_old}, {each}: {longest} ns");
        let counts = world.courier.counts();
        for n in 0..200 {
            let took = batch(&mut world, 200_000 + n * each);
            assert!(took < 3 * MS, "{is_old}, {each}: {took} ns");
        }
        if !is_old {
            // It is known, and nothing goes by the stream.
            assert!(world.courier.path().len() <= 1300);
            assert_eq!(world.courier.counts().resent, counts.resent);
            assert_eq!(world.by_stream, 0);
        }
    }
}

#[test]
fn probes_that_are_late_are_not_taken_for_lost() {
    let mut path = Path::new(DATAGRAM_LEN_MAX);
    let mut now = 0;
    let mut three = |path: &mut Path| {
        let mut last = (0, 0);
        while let Some(probe) = path.next_probe(now, MS) {
            last = probe;
            now += 10 * MS;
        }
        last
    };
    // None of the first ones is answered in time.
    let (number, len) = three(&mut path);
    assert_eq!((number, len), (3, DATAGRAM_LEN_MIN));
    assert!(!path.is_spoken());
    path.answered(2, len);
    assert!(path.is_spoken());
    // Nor of a long length, which passes.
    let (number, len) = path.next_probe(1000 * MS, MS).unwrap();
    assert_eq!(len, 8968);
    for ms in [1010, 1020, 1030] {
        path.next_probe(ms * MS, MS);
    }
    path.answered(number, len);
    assert_eq!(path.len(), 8968);
    // One from before the way became shorter says nothing.
    (0..3).for_each(|_| path.lost(8968));
    assert_eq!(path.len(), DATAGRAM_LEN_MIN);
    path.answered(number, len);
    assert_eq!(path.len(), DATAGRAM_LEN_MIN);
}

#[test]
fn an_engine_that_has_answered_no_probe_is_asked_again_later() {
    let mut world = on_path(1, CALM, 1472);
    world.is_old = true;
    long_answers(&mut world, 1..50);
    assert!(!world.courier.path().is_spoken());
    world.is_old = false;
    world.now += 61_000 * MS;
    assert_eq!(long_answers(&mut world, 50..120), 1472);
}

/// What an engine answers to the datagram that is due now.
fn answers_to_next(world: &mut World) -> Vec<Vec<u8>> {
    let (mut payload, mut out) = (Vec::new(), Vec::new());
    assert!(world.courier.next_payload(world.now, &mut payload));
    let sent = carry_out(&payload, &mut world.memory, &mut world.buffers, |answer| {
        out.push(answer.to_vec());
    });
    sent.unwrap();
    out
}

fn hand_over(world: &mut World, answers: &[Vec<u8>]) -> usize {
    let mut count = 0;
    for answer in answers {
        let taken = world.courier.handle(answer, world.now, |_| count += 1);
        taken.unwrap();
    }
    count
}

#[test]
fn what_waits_until_somebody_looks_is_no_round_trip() {
    let mut world = World::new(1, CALM);
    for id in 1..=50 {
        world.ask(short_scan(id));
        world.run();
    }
    let before = world.courier.window().round_trips_ns();
    // A client that stops looking once two of three have answered.
    for id in 51..60 {
        world.courier.ask(short_scan(id));
        let answers = answers_to_next(&mut world);
        world.now += 1000 * MS;
        assert_eq!(hand_over(&mut world, &answers), 1);
    }
    assert!(world.courier.window().patience_ns() < 10 * MS);
    assert_eq!(world.courier.window().round_trips_ns(), before);
    assert_eq!(world.courier.counts().resent, 0);
    // Nor is what ends a silence.
    world.is_blocked = true;
    world.ask(short_scan(100));
    world.run();
    assert_eq!(world.courier.counts().silences, 1);
    world.now += 200 * MS;
    world.courier.ask(short_scan(101));
    world.courier.take_left(|_| ());
    let answers = answers_to_next(&mut world);
    world.now += 1000 * MS;
    assert_eq!(hand_over(&mut world, &answers), 0);
    assert!(!world.courier.leaves_all(world.now));
    world.is_blocked = false;
    world.ask(short_scan(102));
    world.run();
    let patience_ns = world.courier.window().patience_ns();
    assert!(patience_ns < 10 * MS, "{patience_ns} ns");
}

#[test]
fn a_way_that_is_longer_than_patience_is_learned_by_who_wakes_late() {
    let mut world = World::new(1, CALM);
    let mut now = world.now;
    let (mut payload, mut out) = (Vec::new(), Vec::new());
    let mut resent = Vec::new();
    for id in 1..=100u64 {
        // From 0.1 ms to 4 ms, and each look 3 ms after it is due.
        let (way_ns, late_ns) = if id <= 50 {
            (MS / 10, 0)
        } else {
            (4 * MS, 3 * MS)
        };
        world.courier.ask(short_scan(id));
        let mut coming: BTreeMap<(u64, usize), Vec<u8>> = BTreeMap::new();
        while !world.courier.is_idle() {
            while coming
                .first_key_value()
                .is_some_and(|((at, _), _)| *at <= now)
            {
                let (_, answer) = coming.pop_first().unwrap();
                world.courier.handle(&answer, now, |_| ()).unwrap();
            }
            while world.courier.next_payload(now, &mut payload) {
                out.clear();
                let buffers = &mut world.buffers;
                let sent = carry_out(&payload, &mut world.memory, buffers, |answer| {
                    out.push(answer.to_vec());
                });
                sent.unwrap();
                for answer in &out {
                    let at = (now + way_ns, coming.len());
                    coming.insert(at, answer.clone());
                }
            }
            let next = coming
                .first_key_value()
                .map_or(u64::MAX, |((at, _), _)| *at);
            match next.min(world.courier.due_ns()) {
                u64::MAX => break,
                at => now = now.max(at) + late_ns,
            }
        }
        resent.push(world.courier.counts().resent);
    }
    assert_eq!(resent[49], 0);
    assert_eq!(resent[69], resent[99], "{resent:?}");
}

#[test]
fn on_a_long_way_datagrams_are_given_up_before_the_session_is() {
    for each_way_ms in [75, 90] {
        let weather = Weather {
            delay_min_ns: each_way_ms * MS,
            delay_max_ns: each_way_ms * MS + MS,
            ..CALM
        };
        let mut world = on_path(1, weather, 1472);
        one_by_one(&mut world, 1..51, short_scan);
        // One that is lost is asked again.
        world.ask(short_scan(51));
        world.is_blocked = true;
        world.send();
        world.is_blocked = false;
        world.run();
        assert_eq!((world.by_stream, world.courier.counts().silences), (0, 0));
        // One beside which something was heard, and then nothing any more.
        let (begin, is_heard) = (world.now, !world.flying.is_empty());
        assert!(is_heard, "the second attempt's answer");
        world.ask(short_scan(52));
        world.is_blocked = true;
        world.run();
        let took_ns = world.now - begin;
        assert_eq!((world.by_stream, world.courier.counts().silences), (1, 0));
        assert!(took_ns < SESSION_PATIENCE_NS * 9 / 10, "{took_ns} ns");
        // And one alone.
        let begin = world.now;
        world.ask(short_scan(53));
        world.run();
        let took_ns = world.now - begin;
        assert_eq!((world.by_stream, world.courier.counts().silences), (2, 1));
        assert!(took_ns < SESSION_PATIENCE_NS * 9 / 10, "{took_ns} ns");
    }
}

#[test]
fn what_was_lost_while_nobody_looked_is_asked_again_first() {
    let mut world = World::new(1, CALM);
    for id in 1..=50 {
        world.ask(short_scan(id));
        world.run();
    }
    world.ask(short_scan(51));
    world.is_blocked = true;
    world.send();
    world.now += 200 * MS;
    assert!(!world.courier.take_unwatched());
    let mut payload = Vec::new();
    assert!(world.courier.next_payload(world.now, &mut payload));
    let counts = world.courier.counts();
    assert_eq!((counts.silences, counts.left, counts.resent), (0, 0, 1));
    // The engine owes nothing that it has not heard.
    assert!(world.courier.take_unwatched());
    assert!(!world.courier.take_unwatched());
    // And if that does not get through either, for as long as any other.
    let begin = world.now;
    world.run();
    let took_ns = world.now - begin;
    assert!((50 * MS..=101 * MS).contains(&took_ns), "{took_ns} ns");
    assert_eq!((world.by_stream, world.courier.counts().silences), (1, 1));
    // Who never looks in time gives up, too.
    let mut world = World::new(1, CALM);
    world.is_blocked = true;
    world.ask(short_scan(1));
    for _ in 0..5 {
        world.send();
        world.now += 1000 * MS;
    }
    assert_eq!((world.by_stream, world.courier.counts().silences), (1, 1));
}
