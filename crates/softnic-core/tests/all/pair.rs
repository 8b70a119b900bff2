//! A client and an engine, with what they say cut up anyhow.

use crate::world::{CONFIG, Fake, LIFE, TOKEN, data_len, hash, random, vote};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use std::collections::HashMap;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::KeyHash;
use trefoil_softnic_core::limits::{ANSWERS_LEN_MAX, WINDOW_LEN, WINDOW_LEN_MIN};
use trefoil_softnic_core::wire::{Frame, OpenStatus, Region};
use trefoil_softnic_core::{
    Event, Initiator, InitiatorOptions, ReadRange, SessionError, Target, TargetError, Unanswered,
};

struct Pair {
    random: SmallRng,
    client: Initiator,
    target: Target,
    memory: Fake,
    to_engine: Vec<u8>,
    to_client: Vec<u8>,
    /// What the engine has written and the network has not taken.
    out: Vec<u8>,
    now: u64,
}

#[derive(Debug, PartialEq, Clone)]
enum Came {
    Opened(Result<u32, OpenStatus>),
    Scanned(IndexVote, Vec<u8>),
    Voted(IndexVote),
    Read(Vec<u8>),
    Unanswered(Unanswered),
}

impl Pair {
    fn new(seed: u64, token: &[u8]) -> Self {
        let options = InitiatorOptions {
            token,
            window: WINDOW_LEN_MIN,
            ..InitiatorOptions::default()
        };
        Pair {
            random: random(seed),
            client: Initiator::new(options),
            target: Target::new(),
            memory: Fake::new(),
            to_engine: Vec::new(),
            to_client: Vec::new(),
            out: Vec::new(),
            now: 0,
        }
    }

    /// Some bytes go each way.
    fn step(&mut self, came: &mut HashMap<u64, Came>) -> Result<(), SessionError> {
        self.now += 1;
        let piece = |random: &mut SmallRng, len: usize| match random.random_range(0..4) {
            0 => len.min(random.random_range(0..20)),
            1 => len.min(random.random_range(0..2000)),
            _ => len,
        };
        let count = piece(&mut self.random, self.client.output().len());
        self.to_engine
            .extend_from_slice(&self.client.output()[..count]);
        self.client.sent(count);
        // Refusals are of no interest here: what was written still goes out.
        match self
            .target
            .handle(&self.to_engine, &mut self.memory, &mut self.out)
        {
            Ok(done) => {
                self.to_engine.drain(..done);
            }
            Err(TargetError::Refused(_)) => self.to_engine.clear(),
            Err(error) => panic!("{error}"),
        }
        assert!(
            self.to_engine.len() <= self.client.output().len() + 2 * self.target.input_len_max()
        );
        assert!(self.out.len() <= 2 * WINDOW_LEN as usize);
        let count = piece(&mut self.random, self.out.len());
        self.to_client.extend(self.out.drain(..count));
        let done = self.client.handle(&self.to_client, self.now, |event| {
            let (id, event) = match event {
                Event::Opened { id, result } => {
                    (id, Came::Opened(result.map(|opened| opened.handle)))
                }
                Event::Scanned { id, vote, data, .. } => (id, Came::Scanned(vote, data.to_vec())),
                Event::Voted { id, vote, .. } => (id, Came::Voted(vote)),
                Event::Read { id, data, .. } => (id, Came::Read(data.to_vec())),
                Event::Unanswered { id, why, .. } => (id, Came::Unanswered(why)),
                Event::Messaged { .. } => panic!("nobody sends messages"),
                Event::Counters(_) => panic!("nobody asks for counters"),
                Event::Claimed(_) => panic!("nobody asks for a lane"),
            };
            assert_eq!(came.insert(id, event), None, "answered twice");
        })?;
        self.to_client.drain(..done);
        Ok(())
    }

    fn run(&mut self) -> HashMap<u64, Came> {
        let mut came = HashMap::new();
        for _ in 0..100_000 {
            self.client.flush(0);
            assert!(self.client.solicited_under_way() <= WINDOW_LEN_MIN);
            self.step(&mut came).unwrap();
            if !self.client.owes() && self.client.output().is_empty() && self.to_engine.is_empty() {
                return came;
            }
        }
        panic!("it does not end");
    }

    fn opened(seed: u64) -> (Self, u32) {
        let mut pair = Pair::new(seed, TOKEN);
        pair.client.open(1, 2, LIFE, 0);
        let came = pair.run();
        let Some(Came::Opened(Ok(handle))) = came.get(&1) else {
            panic!("{came:?}");
        };
        (pair, *handle)
    }
}

#[test]
fn every_request_is_answered_once_however_its_bytes_are_cut() {
    for seed in 0..12 {
        let (mut pair, handle) = Pair::opened(seed);
        let mut scans: HashMap<u64, KeyHash> = HashMap::new();
        let mut votes: HashMap<u64, KeyHash> = HashMap::new();
        let mut reads: HashMap<u64, u64> = HashMap::new();
        let mut touches = Vec::new();
        for id in 100..100 + pair.random.random_range(1..700) {
            match pair.random.random_range(0..8) {
                0 => {
                    let offset = pair.random.random_range(0..1000) * 8;
                    let range = ReadRange {
                        region: Region::Data,
                        partition: 0,
                        window_id: 0,
                        offset,
                        len: 512,
                    };
                    assert!(pair.client.read(id, handle, &range, 0));
                    reads.insert(id, offset);
                }
                1 => {
                    let hash = hash(&mut pair.random);
                    pair.client.touch(handle, 1, hash);
                    touches.push(hash);
                }
                2 => {
                    let hash = hash(&mut pair.random);
                    pair.client.vote(false, (id, handle), (1, hash), CONFIG, 0);
                    votes.insert(id, hash);
                }
                _ => {
                    let hash = hash(&mut pair.random);
                    pair.client.scan(id, handle, 1, hash, CONFIG, 0);
                    scans.insert(id, hash);
                }
            }
        }
        let came = pair.run();
        assert_eq!(came.len(), scans.len() + votes.len() + reads.len());
        for (id, hash) in &scans {
            let vote = vote(*hash, 1);
            let len = match vote {
                IndexVote::Present { .. } => data_len(*hash),
                _ => 0,
            };
            let data = (0..len).map(|at| (at as u64 ^ hash.tag) as u8).collect();
            assert_eq!(came[id], Came::Scanned(vote, data), "seed {seed}");
        }
        for (id, hash) in &votes {
            assert_eq!(came[id], Came::Voted(vote(*hash, 1)), "seed {seed}");
        }
        for (id, offset) in &reads {
            let data = (0..512).map(|at| (at + offset) as u8).collect();
            assert_eq!(came[id], Came::Read(data));
        }
        assert_eq!(pair.memory.touches, touches);
        assert_eq!(pair.client.solicited_under_way(), 0);
    }
}

#[test]
fn what_cannot_be_answered_is_told() {
    let (mut pair, handle) = Pair::opened(7);
    let absent = KeyHash { place: 1, tag: 1 };
    pair.client.scan(10, handle + 1, 0, absent, CONFIG, 0);
    pair.client.scan(11, handle, 0, absent, CONFIG + 1, 0);
    let far = ReadRange {
        region: Region::Data,
        partition: 0,
        window_id: 0,
        offset: 1 << 20,
        len: 8,
    };
    assert!(pair.client.read(12, handle, &far, 0));
    let odd = ReadRange { offset: 3, ..far };
    assert!(!pair.client.read(13, handle, &odd, 0));
    let came = pair.run();
    assert_eq!(came[&10], Came::Unanswered(Unanswered::Gone));
    let changed = IndexVote::ConfigChanged { found: CONFIG };
    assert_eq!(came[&11], Came::Scanned(changed, Vec::new()));
    assert_eq!(came[&12], Came::Unanswered(Unanswered::OutOfWindow));
    pair.memory.is_lapsed = true;
    pair.client.scan(14, handle, 0, absent, CONFIG, 0);
    assert_eq!(pair.run()[&14], Came::Unanswered(Unanswered::Lapsed));
}

#[test]
fn backends_that_are_not_there_are_not_opened() {
    let mut pair = Pair::new(1, TOKEN);
    pair.client.open(1, 3, LIFE, 0);
    pair.client.open(2, 0, LIFE + 1, 0);
    pair.client.open(3, 0, LIFE, 0);
    let came = pair.run();
    assert_eq!(came[&1], Came::Opened(Err(OpenStatus::NoSuchBackend)));
    assert_eq!(came[&2], Came::Opened(Err(OpenStatus::OtherLife)));
    assert_eq!(came[&3], Came::Opened(Ok(9)));
}

#[test]
fn longer_items_are_asked_for_again_with_room_for_them() {
    let (mut pair, handle) = Pair::opened(3);
    let long = KeyHash {
        place: 5,
        tag: 4094,
    };
    pair.client.scan(10, handle, 0, long, CONFIG, 0);
    let Came::Scanned(IndexVote::Present { .. }, data) = pair.run()[&10].clone() else {
        panic!("not found");
    };
    assert_eq!(data.len(), 4094 * 8);
    assert_eq!(pair.memory.scans, 2);
    // It has learned.
    pair.client.scan(11, handle, 0, long, CONFIG, 0);
    pair.run();
    assert_eq!(pair.memory.scans, 3);
}

#[test]
fn an_engine_that_owes_and_says_nothing_is_silent() {
    let (mut pair, handle) = Pair::opened(3);
    let patience = InitiatorOptions::default().patience_ns;
    assert!(!pair.client.is_silent(u64::MAX));
    let now = 1_000_000_000_000;
    pair.client
        .scan(10, handle, 0, KeyHash { place: 1, tag: 1 }, CONFIG, now);
    assert!(!pair.client.is_silent(now + patience - 1));
    assert!(pair.client.is_silent(now + patience));
    assert_eq!(pair.client.silent_at_ns(), now + patience);
    pair.now = now + patience;
    pair.run();
    assert_eq!(pair.client.silent_at_ns(), u64::MAX);
}

#[test]
fn strangers_are_refused_and_told_why() {
    let mut pair = Pair::new(1, b"not the token");
    pair.client.open(1, 0, LIFE, 0);
    let mut came = HashMap::new();
    let refused = (0..1000).find_map(|_| pair.step(&mut came).err());
    let Some(SessionError::Refused(refusal)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refusal.code.to_string(), "it does not let this user in");
    assert!(came.is_empty() && pair.memory.admitted == 0);
}

#[test]
fn the_backlog_is_how_long_what_is_owed_takes() {
    let (mut pair, handle) = Pair::opened(7);
    let range = ReadRange {
        region: Region::Data,
        partition: 0,
        window_id: 0,
        offset: 0,
        len: 512,
    };
    // One at a time nothing is behind another one.
    for id in 2..10 {
        assert!(pair.client.read(id, handle, &range, pair.now));
        pair.run();
    }
    assert!(!pair.client.has_gaps() && pair.client.backlog_ns() == 0);
    // Ten frames of ten, whose answers come a millisecond apart.
    for id in 100..200 {
        assert!(pair.client.read(id, handle, &range, pair.now));
        if id % 10 == 9 {
            pair.client.flush(0);
        }
    }
    let asked = pair.client.output().to_vec();
    pair.client.sent(asked.len());
    let (target, memory) = (&mut pair.target, &mut pair.memory);
    let mut answers = Vec::new();
    assert_eq!(target.handle(&asked, memory, &mut answers), Ok(asked.len()));
    for frame in 1..=5 {
        let first = Frame::first(&answers, ANSWERS_LEN_MAX).unwrap();
        let len = first.unwrap().total_len();
        pair.now += 1_000_000;
        let done = pair.client.handle(&answers[..len], pair.now, |_| {});
        assert_eq!(done, Ok(len));
        answers.drain(..len);
        let owed = 100 - frame * 10;
        let known = if frame == 1 { 0 } else { owed * 100_000 };
        assert_eq!(pair.client.backlog_ns(), known);
    }
    // This side pauses, with answers in its socket: no gap between them was as long.
    pair.now += 10_000_000_000;
    let first = Frame::first(&answers, ANSWERS_LEN_MAX).unwrap();
    let len = first.unwrap().total_len();
    let done = pair.client.handle(&answers[..len], pair.now, |_| {});
    assert_eq!(done, Ok(len));
    assert!(
        pair.client.backlog_ns() <= 50_000_000,
        "{}",
        pair.client.backlog_ns()
    );
}
