//! A lane's turn, tickets, slots and answers under a real memory model: the real producers
//! and the real merge over loom's atomics.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p trefoil-ordered --test loom`. Loom
//! explores the interleavings and the stale values that the C11 memory model allows (up
//! to a bound on pre-emptions).
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use std::cell::Cell;
use std::collections::HashMap;
use trefoil_layout::words::{Words, WordsMut};
use trefoil_ordered::lane::{self, Terms, WORD_TURN};
use trefoil_ordered::merge::{Merge, PATIENCE_NS, Step};
use trefoil_ordered::order::{self, WORD_TICKET};
use trefoil_ordered::producer::{Producer, Refused};
use trefoil_ordered::words::Atomics;
use trefoil_ordered::{Answer, Request, Service};
use trefoil_region::WordBuffer;

/// *Executed* of a lane.
const WORD_EXECUTED: usize = 32;
/// What the sides announce before they sleep.
const WORD_SLEEPING: usize = 48;
const WORD_WAITING: usize = 64;
/// Words of a slot that a request of eight bytes uses.
const SLOT_USED: usize = 8;

/// An object. The words that a model is about are loom's; the others are ordinary.
#[derive(Clone)]
struct Shared {
    watched: Arc<HashMap<usize, AtomicU64>>,
    others: std::sync::Arc<Vec<std::sync::atomic::AtomicU64>>,
}

impl Shared {
    fn new(len: u64, watched: impl Iterator<Item = usize>) -> Self {
        let watched = watched.map(|word| (word, AtomicU64::new(0))).collect();
        let others = (0..len / 8).map(|_| Default::default()).collect();
        Shared {
            watched: Arc::new(watched),
            others: std::sync::Arc::new(others),
        }
    }

    fn get(&self, index: usize, order: Ordering) -> u64 {
        match self.watched.get(&index) {
            Some(word) => word.load(order),
            None => self.others[index].load(Ordering::Relaxed),
        }
    }

    fn set(&self, index: usize, value: u64, order: Ordering) {
        match self.watched.get(&index) {
            Some(word) => word.store(value, order),
            None => self.others[index].store(value, Ordering::Relaxed),
        }
    }
}

impl Words for Shared {
    fn load(&self, index: usize) -> u64 {
        self.get(index, Ordering::Relaxed)
    }
    fn load_acquire(&self, index: usize) -> u64 {
        self.get(index, Ordering::Acquire)
    }
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }
    fn fence_full(&self) {
        fence(Ordering::SeqCst);
    }
}

impl WordsMut for Shared {
    fn store(&self, index: usize, value: u64) {
        self.set(index, value, Ordering::Relaxed);
    }
    fn store_release(&self, index: usize, value: u64) {
        self.set(index, value, Ordering::Release);
    }
    fn fence_release(&self) {
        fence(Ordering::Release);
    }
}

impl Atomics for Shared {
    fn fetch_add(&self, index: usize, by: u64) -> u64 {
        self.watched[&index].fetch_add(by, Ordering::AcqRel)
    }
    fn compare_exchange(&self, index: usize, from: u64, to: u64) -> Result<(), u64> {
        self.watched[&index]
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(2));
    builder.check(test);
}

fn order() -> Shared {
    let order = Shared::new(order::OBJECT_LEN, std::iter::once(WORD_TICKET));
    order::initialise(&order);
    order
}

/// A lane in which the words of the first `slots` sequences are loom's.
fn lane(client_id: u64, slots: std::ops::RangeInclusive<u64>) -> (Shared, Terms) {
    let terms = Terms {
        epoch: 5,
        client_id,
        slot_count: 2,
    };
    let used = slots.flat_map(|n| terms.slot(n)..terms.slot(n) + SLOT_USED);
    let watched = used.chain([WORD_TURN, WORD_EXECUTED, WORD_SLEEPING, WORD_WAITING]);
    let words = Shared::new(terms.object_len(), watched);
    lane::initialise(&words, terms);
    (words, terms)
}

/// Positions and payloads of what was executed.
#[derive(Default)]
struct Log(Vec<(u64, u64)>);

impl Service for Log {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        let payload = request.payload.try_into().expect("eight bytes");
        self.0.push((request.position, u64::from_le_bytes(payload)));
        answer.put(request.payload).expect("eight bytes");
    }
}

fn bytes(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

#[test]
fn a_lower_ticket_is_never_overtaken() {
    model(|| {
        let order = order();
        let mut merge = Merge::new(PATIENCE_NS);
        let producers = [1, 2].map(|client_id| {
            let (words, terms) = lane(client_id, 1..=1);
            merge.admit(words.clone(), terms);
            let order = order.clone();
            thread::spawn(move || {
                let mut producer = Producer::new(words, terms);
                producer
                    .submit(&order, 1, &bytes(client_id), true)
                    .expect("room")
            })
        });
        let mut log = Log::default();
        for _ in 0..2 {
            merge.step(|| 0, &mut log);
        }
        let mut expected: Vec<_> = producers
            .into_iter()
            .zip(1..)
            .map(|(thread, client_id)| (thread.join().unwrap().position, client_id))
            .collect();
        expected.sort_unstable();
        while merge.step(|| 0, &mut log) == Step::Executed {}
        assert_eq!(log.0, expected);
    });
}

#[test]
fn a_claim_is_published_or_skipped_and_both_sides_know() {
    model(|| {
        let order = order();
        let mut merge = Merge::new(PATIENCE_NS);
        let (words, terms) = lane(1, 1..=1);
        merge.admit(words.clone(), terms);
        let mut slow = Producer::new(words, terms);
        let written = slow.write(1, &bytes(1), true).unwrap();
        slow.claim().unwrap();
        let position = slow.ticket(&order).unwrap();
        let (words, terms) = lane(2, 1..=1);
        merge.admit(words.clone(), terms);
        let mut quick = Producer::new(words, terms);
        quick.submit(&order, 1, &bytes(2), true).unwrap();

        let slow = thread::spawn(move || {
            let published = slow.publish(written, position);
            if let Ok(committed) = published {
                slow.mark(committed.sequence);
            }
            published.map(drop)
        });
        let now_ns = Cell::new(1);
        let clock = || {
            now_ns.set(now_ns.get() + PATIENCE_NS);
            now_ns.get()
        };
        let mut log = Log::default();
        for _ in 0..3 {
            merge.step(clock, &mut log);
        }
        let published = slow.join().unwrap();
        while merge.step(clock, &mut log) == Step::Executed {}
        match published {
            Ok(()) => assert_eq!(log.0, [(1, 1), (2, 2)]),
            Err(refused) => {
                assert_eq!(refused, Refused::Skipped);
                assert_eq!(log.0, [(2, 2)]);
            }
        }
        assert_eq!(merge.counts().broken, 0);
    });
}

#[test]
fn a_slot_is_reused_only_after_it_was_copied() {
    model(|| {
        let order = order();
        let mut merge = Merge::new(PATIENCE_NS);
        let (words, terms) = lane(1, 1..=1);
        merge.admit(words.clone(), terms);
        let client = thread::spawn(move || {
            let mut producer = Producer::new(words, terms);
            // The third takes the slot of the first.
            (1..=3)
                .filter(|n| producer.submit(&order, *n, &bytes(*n), true).is_ok())
                .count()
        });
        let mut log = Log::default();
        for _ in 0..2 {
            merge.step(|| 0, &mut log);
        }
        let count = client.join().unwrap();
        while merge.step(|| 0, &mut log) == Step::Executed {}
        let expected: Vec<_> = (1..=count as u64).map(|n| (n, n)).collect();
        assert_eq!(log.0, expected);
        assert_eq!(merge.counts().broken, 0);
    });
}

#[test]
fn an_answer_is_whole_when_its_request_is_executed() {
    model(|| {
        let order = order();
        let mut merge = Merge::new(PATIENCE_NS);
        // The answer stands two slots behind its request.
        let (words, terms) = lane(1, 1..=1);
        let answer = terms.answer(1)..terms.answer(1) + 3;
        let words = {
            let watched = words.watched.keys().copied().chain(answer);
            let words = Shared::new(terms.object_len(), watched);
            lane::initialise(&words, terms);
            words
        };
        merge.admit(words.clone(), terms);
        let mut producer = Producer::new(words, terms);
        let committed = producer.submit(&order, 1, &bytes(9), false).unwrap();
        let client = thread::spawn(move || {
            let mut into = WordBuffer::default();
            if producer.is_executed(committed.sequence) {
                producer.take_answer(committed.sequence, &mut into).unwrap();
                assert_eq!(into.bytes(), bytes(9));
            }
        });
        let mut log = Log::default();
        assert_eq!(merge.step(|| 0, &mut log), Step::Executed);
        client.join().unwrap();
    });
}

#[test]
fn what_is_committed_before_the_end_is_executed_and_nothing_else() {
    model(|| {
        let order = order();
        let mut merge = Merge::new(PATIENCE_NS);
        let (words, terms) = lane(1, 1..=1);
        let id = merge.admit(words.clone(), terms);
        let client = thread::spawn(move || {
            let mut producer = Producer::new(words, terms);
            producer.submit(&order, 1, &bytes(1), true)
        });
        merge.close_all();
        let mut log = Log::default();
        // The mark may not be there yet: the turn says all.
        while !merge.is_drained(id) {
            merge.step(|| 0, &mut log);
        }
        match client.join().unwrap() {
            Ok(committed) => assert_eq!(log.0, [(committed.position, 1)]),
            Err(refused) => {
                assert_eq!(refused, Refused::Closed);
                assert_eq!(log.0, []);
            }
        }
    });
}

#[test]
fn whoever_goes_to_sleep_sees_the_other_or_is_seen() {
    model(|| {
        let order = order();
        let mut merge = Merge::new(PATIENCE_NS);
        let (words, terms) = lane(1, 1..=1);
        merge.admit(words.clone(), terms);
        let server = words.clone();
        let client = thread::spawn(move || {
            let mut producer = Producer::new(words, terms);
            let committed = producer.submit(&order, 1, &bytes(1), false).expect("room");
            let words = producer.words().clone();
            words.fence_full();
            let wakes = lane::sleeping(&words) == 1;
            lane::set_waiting(&words, 1);
            words.fence_full();
            (wakes, producer.is_executed(committed.sequence))
        });
        lane::set_sleeping(&server, 1);
        server.fence_full();
        let finds = merge.has_work();
        let mut log = Log::default();
        let executes = finds && merge.step(|| 0, &mut log) == Step::Executed;
        server.fence_full();
        let tells = lane::waiting(&server) == 1;
        let (wakes, is_answered) = client.join().unwrap();
        assert!(
            finds || wakes,
            "the server sleeps, and the client has not woken it"
        );
        assert!(
            !executes || tells || is_answered,
            "the client sleeps, and the server has not told it"
        );
    });
}
