//! Batches that several engines answer at once, through one narrow link whose queue drops what
//! finds it full.

use crate::datagrams::{Changing, read};
use crate::world::random;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use trefoil_softnic_core::datagram::target::{Buffers, carry_out};
use trefoil_softnic_core::datagram::{Courier, DATAGRAM_HEAD_LEN, TAG_LEN, Window};
use trefoil_softnic_core::limits::WINDOW_LEN;

const ENGINES: usize = 3;
/// Requests of a batch to each engine, and bytes of an answer.
const ASKS: u64 = 200;
const ANSWER: u32 = 1200;
/// 200 Mbit/s, with room for 64 KiB.
const NS_PER_BYTE: u64 = 40;
const QUEUE_NS: u64 = (64 << 10) * NS_PER_BYTE;
const WAY_NS: u64 = 200_000;
/// Ethernet, IP and UDP.
const HEADS_LEN: usize = 42;

enum Flying {
    ToEngine(usize, Vec<u8>),
    ToClient(usize, Vec<u8>),
}

struct Incast {
    random: SmallRng,
    now: u64,
    flying: BTreeMap<(u64, u64), Flying>,
    flown: u64,
    couriers: Vec<Courier>,
    link_free_at: u64,
    overflowed: u64,
    /// Requests that were left to the stream.
    left: u64,
    /// The client's host is busy: now and then it gets to run so much later.
    busy_ns: u64,
    memory: Changing,
    buffers: Buffers,
}

impl Incast {
    fn new(seed: u64, window: Window, busy_ns: u64) -> Self {
        let couriers = (0..ENGINES).map(|_| Courier::new(window)).collect();
        Incast {
            random: random(seed),
            now: 1_000_000,
            flying: BTreeMap::new(),
            flown: 0,
            couriers,
            link_free_at: 0,
            overflowed: 0,
            left: 0,
            busy_ns,
            memory: Changing::default(),
            buffers: Buffers::default(),
        }
    }

    /// One in a thousand is lost, doubled, or passed by others.
    fn put(&mut self, at: u64, what: impl Fn() -> Flying) {
        let (mut copies, mut late) = (1, 0);
        match self.random.random_range(0..1000) {
            0 => copies = 0,
            1 => copies = 2,
            2 => late = 300_000,
            _ => {}
        }
        for _ in 0..copies {
            self.flown += 1;
            self.flying.insert((at + late, self.flown), what());
        }
    }

    fn send(&mut self) {
        let mut payload = Vec::new();
        for engine in 0..ENGINES {
            while self.couriers[engine].next_payload(self.now, &mut payload) {
                let at = self.now + WAY_NS + self.random.random_range(0..20_000);
                self.put(at, || Flying::ToEngine(engine, payload.clone()));
            }
            self.couriers[engine].take_left(|_| self.left += 1);
        }
    }

    fn step(&mut self) {
        // What has come is taken in before something is asked again.
        let has_come = |at: &(u64, u64)| at.0 <= self.now;
        if !self.flying.keys().next().is_some_and(has_come) {
            self.send();
        }
        let due = self.couriers.iter().map(Courier::due_ns).min().unwrap();
        if due == u64::MAX && self.flying.is_empty() {
            return;
        }
        match self.flying.first_key_value() {
            Some((&(at, _), _)) if at <= due.max(self.now) => self.now = self.now.max(at),
            _ => {
                self.now = self.now.max(due);
                return;
            }
        }
        match self.flying.pop_first().unwrap().1 {
            Flying::ToEngine(engine, payload) => {
                let mut out = Vec::new();
                let sent = carry_out(&payload, &mut self.memory, &mut self.buffers, |payload| {
                    out.push(payload.to_vec());
                });
                sent.unwrap();
                for payload in out {
                    let free_at = self.link_free_at.max(self.now);
                    if free_at - self.now > QUEUE_NS {
                        self.overflowed += 1;
                        continue;
                    }
                    let len = payload.len() + HEADS_LEN + DATAGRAM_HEAD_LEN + TAG_LEN;
                    self.link_free_at = free_at + len as u64 * NS_PER_BYTE;
                    let at = self.link_free_at + WAY_NS;
                    self.put(at, || Flying::ToClient(engine, payload.clone()));
                }
            }
            Flying::ToClient(engine, payload) => {
                if self.busy_ns > 0 && self.random.random_range(0..200) == 0 {
                    self.now += self.random.random_range(0..self.busy_ns);
                }
                let taken = self.couriers[engine].handle(&payload, self.now, |_| {});
                taken.unwrap();
            }
        }
    }

    /// How long a batch takes, in nanoseconds.
    fn batch(&mut self, number: u64) -> u64 {
        let begin = self.now;
        for courier in &mut self.couriers {
            let ids = number * ASKS..(number + 1) * ASKS;
            ids.for_each(|id| courier.ask(read(id + 1, ANSWER)));
        }
        while !self.couriers.iter().all(Courier::is_idle) {
            self.step();
            assert!(self.now - begin < 60_000_000_000, "it takes for ever");
        }
        self.now - begin
    }
}

/// The first batch; p50 and p99 of the others; what overflowed for each batch, and was left to
/// the stream of all.
fn batches(window: Window, busy_ns: u64) -> [u64; 5] {
    const BATCHES: u64 = 300;
    let mut world = Incast::new(3, window, busy_ns);
    let first = world.batch(0);
    let first_overflowed = world.overflowed;
    let mut all: Vec<u64> = (1..BATCHES).map(|number| world.batch(number)).collect();
    all.sort_unstable();
    let per_batch = (world.overflowed - first_overflowed) / BATCHES;
    [
        first,
        all[all.len() / 2],
        all[all.len() * 99 / 100],
        per_batch,
        world.left,
    ]
}

#[test]
fn batches_that_come_at_once_do_not_overflow_the_link() {
    let answers_ns = ENGINES as u64 * ASKS * u64::from(ANSWER) * NS_PER_BYTE;
    let [first, half, most, overflowed, left] = batches(Window::new(WINDOW_LEN), 0);
    let fixed = batches(Window::fixed(WINDOW_LEN), 0);
    let said =
        format!("{first} {half} {most} {overflowed} {left}, fixed {fixed:?}, link {answers_ns}");
    // The link is used, and for answers: also by the first batch, whose window is doubled.
    assert!(half < answers_ns * 14 / 10, "{said}");
    assert!(first < answers_ns * 2, "{said}");
    assert!(most < answers_ns * 2, "{said}");
    assert!(most * 2 <= fixed[2], "{said}");
    // With a fixed window hundreds are dropped in each batch.
    assert!(overflowed <= 30 && fixed[3] > 100, "{said}");
    assert_eq!(left, 0, "{said}");
    // A client that now and then gets to run late takes that for a queue, for a moment.
    let [_, half, most, _, left] = batches(Window::new(WINDOW_LEN), 4_000_000);
    assert!(half < answers_ns * 16 / 10, "{half}");
    assert!(most < answers_ns * 24 / 10, "{most}");
    assert_eq!(left, 0);
}
