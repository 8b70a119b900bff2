//! The message rings under a real memory model: publication of records, reuse
//! of their room, and the announcements around sleeping.
//!
//! Loom never moves a store before an earlier load, so the release of *read*
//! is checked for its place only, not for its ordering.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use std::collections::HashMap;
use trefoil_layout::message::MESSAGE_LEN_MAX;
use trefoil_layout::ring::{self, Consumer, Geometry, Producer, RING_LEN_MIN};
use trefoil_layout::words::{Words, WordsMut};

/// A ring object. The words that a model is about are loom's; the others
/// (thousands of them) are ordinary.
struct Shared {
    watched: HashMap<usize, AtomicU64>,
    others: Vec<std::sync::atomic::AtomicU64>,
}

impl Shared {
    fn new(words: std::ops::Range<usize>) -> Arc<Self> {
        let header = (16..112).filter(|word| word % 16 <= 1);
        let count = geometry().object_len() as usize / 8;
        Arc::new(Shared {
            watched: header
                .chain(words)
                .map(|word| (word, AtomicU64::new(0)))
                .collect(),
            others: (0..count).map(|_| Default::default()).collect(),
        })
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

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.check(test);
}

fn geometry() -> Geometry {
    Geometry::new(RING_LEN_MIN, RING_LEN_MIN).unwrap()
}

const FIRST: usize = 512;

#[test]
fn records_come_whole_and_in_order() {
    model(|| {
        let shared = Shared::new(FIRST..FIRST + 8);
        let writer = Arc::clone(&shared);
        let producer = thread::spawn(move || {
            let mut producer = Producer::requests(geometry());
            for message in [[1, 2], [3, 4]] {
                assert_eq!(producer.push(&*writer, &message, 16), Ok(true));
            }
        });
        let mut consumer = Consumer::requests(geometry());
        let mut into = vec![0; MESSAGE_LEN_MAX / 8];
        let mut expected = [[1, 2], [3, 4]].into_iter();
        for _ in 0..3 {
            match consumer.pop(&*shared, &mut into) {
                Ok(Some(len)) => {
                    assert_eq!(len, 16);
                    assert_eq!(into[..2], expected.next().unwrap());
                    consumer.release(&*shared);
                }
                Ok(None) => thread::yield_now(),
                Err(broken) => panic!("{broken}"),
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn room_is_reused_only_after_it_was_read() {
    model(|| {
        // The ring is full but for two words: a third message overwrites the
        // beginning of the first, once that is released.
        let words = RING_LEN_MIN as usize / 8;
        let shared = Shared::new(FIRST..FIRST + 3);
        let mut producer = Producer::requests(geometry());
        let mut consumer = Consumer::requests(geometry());
        let mut into = vec![0; MESSAGE_LEN_MAX / 8];
        let filler = vec![7; words / 2 - 2];
        for _ in 0..2 {
            let pushed = producer.push(&*shared, &filler, filler.len() * 8);
            assert_eq!(pushed, Ok(true));
        }
        let reader = Arc::clone(&shared);
        let consumer = thread::spawn(move || {
            let len = consumer.pop(&*reader, &mut into).unwrap().unwrap();
            assert!(into[..len / 8].iter().all(|word| *word == 7));
            consumer.release(&*reader);
        });
        let _ = producer.push(&*shared, &[9, 9, 9], 24);
        consumer.join().unwrap();
    });
}

/// Of the side that writes and the side that goes to sleep, at least one sees
/// what the other did.
#[test]
fn a_bell_is_never_forgotten() {
    model(|| {
        let shared = Shared::new(FIRST..FIRST + 4);
        let server = Arc::clone(&shared);
        let server = thread::spawn(move || {
            let consumer = Consumer::requests(geometry());
            ring::set_sleeping(&*server, 1, false);
            server.fence_full();
            consumer.has_message(&*server)
        });
        let mut producer = Producer::requests(geometry());
        assert_eq!(producer.push(&*shared, &[5], 8), Ok(true));
        shared.fence_full();
        let rings = ring::sleeping(&*shared).0 % 2 == 1;
        let sees = server.join().unwrap();
        assert!(rings || sees);
    });
}

#[test]
fn a_waiting_client_is_never_forgotten() {
    model(|| {
        let shared = Shared::new(FIRST + 16 * 1024..FIRST + 16 * 1024 + 4);
        let client = Arc::clone(&shared);
        let client = thread::spawn(move || {
            let consumer = Consumer::answers(geometry());
            ring::set_waiting(&*client, 1);
            client.fence_full();
            consumer.has_message(&*client)
        });
        let mut producer = Producer::answers(geometry());
        assert_eq!(producer.push(&*shared, &[5], 8), Ok(true));
        shared.fence_full();
        let rings = ring::waiting(&*shared) % 2 == 1;
        let sees = client.join().unwrap();
        assert!(rings || sees);
    });
}
