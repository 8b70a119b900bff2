use super::*;
use std::sync::atomic::{AtomicU64, Ordering, fence};

struct Shared(Vec<AtomicU64>);

impl Shared {
    fn new(geometry: Geometry) -> Self {
        let count = geometry.object_len() as usize / 8;
        let shared = Shared((0..count).map(|_| AtomicU64::new(0)).collect());
        initialise(&shared);
        shared
    }
}

impl Words for Shared {
    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }
    fn load_acquire(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Acquire)
    }
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }
}

impl WordsMut for Shared {
    fn store(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Relaxed);
    }
    fn store_release(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Release);
    }
    fn fence_release(&self) {
        fence(Ordering::Release);
    }
}

fn small() -> Geometry {
    Geometry::new(RING_LEN_MIN, RING_LEN_MIN).unwrap()
}

fn buffer() -> Vec<u64> {
    vec![0; MESSAGE_LEN_MAX.div_ceil(8)]
}

#[test]
fn geometry_refuses_what_cannot_work() {
    for (requests, answers) in [
        (0, RING_LEN_MIN),
        (RING_LEN_MIN, RING_LEN_MIN + 8),
        (RING_LEN_MIN / 2, RING_LEN_MIN),
        (RING_LEN_MAX * 2, RING_LEN_MIN),
    ] {
        assert_eq!(Geometry::new(requests, answers), None);
    }
    assert!(Geometry::new(RING_LEN_MAX, RING_LEN_MIN).is_some());
}

#[test]
fn records_of_every_length_wrap_around_many_times() {
    let shared = Shared::new(small());
    let mut producer = Producer::requests(small());
    let mut consumer = Consumer::requests(small());
    let mut into = buffer();
    let lengths = [0, 1, 7, 8, 9, 100, 4095, 65_536, MESSAGE_LEN_MAX];
    for round in 0..200u64 {
        let len = lengths[round as usize % lengths.len()];
        let message: Vec<u64> = (0..len.div_ceil(8) as u64)
            .map(|i| round << 32 | i)
            .collect();
        assert_eq!(producer.push(&shared, &message, len), Ok(true));
        assert!(consumer.has_message(&shared));
        assert_eq!(consumer.pop(&shared, &mut into), Ok(Some(len)));
        assert_eq!(into[..message.len()], message);
        assert!(consumer.release(&shared));
        assert!(!consumer.has_message(&shared));
    }
}

#[test]
fn a_full_ring_refuses_until_room_is_released() {
    let shared = Shared::new(small());
    let mut producer = Producer::requests(small());
    let mut consumer = Consumer::requests(small());
    let message = vec![7; 127];
    let mut pushed = 0;
    while producer.push(&shared, &message, 127 * 8).unwrap() {
        pushed += 1;
    }
    assert_eq!(pushed, RING_LEN_MIN / 1024);
    let mut into = buffer();
    assert_eq!(consumer.pop(&shared, &mut into), Ok(Some(127 * 8)));
    assert_eq!(producer.push(&shared, &message, 127 * 8), Ok(false));
    consumer.release(&shared);
    assert_eq!(producer.push(&shared, &message, 127 * 8), Ok(true));
}

#[test]
fn an_unpublished_record_is_invisible() {
    let shared = Shared::new(small());
    let consumer = Consumer::requests(small());
    let ring = small().requests();
    shared.store(ring.first, 16);
    shared.store(ring.first + 1, 0xdead);
    assert!(!consumer.has_message(&shared));
}

#[test]
fn nonsense_cursors_and_lengths_break_the_ring() {
    let len = u64::from(RING_LEN_MIN);
    for written in [3, 8 + 1, len + 8, u64::MAX, u64::MAX - 7, 1 << 63] {
        let shared = Shared::new(small());
        let mut consumer = Consumer::requests(small());
        shared.store(WORD_REQUESTS_WRITTEN, written);
        assert_eq!(consumer.pop(&shared, &mut buffer()), Err(RingBroken));
    }
    for length in [9, MESSAGE_LEN_MAX as u64 + 1, u64::MAX, 1 << 32] {
        let shared = Shared::new(small());
        let mut consumer = Consumer::requests(small());
        shared.store(small().requests().first, length);
        shared.store(WORD_REQUESTS_WRITTEN, 16);
        assert_eq!(consumer.pop(&shared, &mut buffer()), Err(RingBroken));
    }
    for read in [1, 24, u64::MAX, u64::MAX - 7] {
        let shared = Shared::new(small());
        let mut producer = Producer::answers(small());
        assert_eq!(producer.push(&shared, &[1], 8), Ok(true));
        shared.store(WORD_ANSWERS_READ, read);
        assert_eq!(producer.used(&shared), Err(RingBroken), "{read}");
    }
    // Backwards.
    let shared = Shared::new(small());
    let mut producer = Producer::answers(small());
    assert_eq!(producer.push(&shared, &[1], 8), Ok(true));
    shared.store(WORD_ANSWERS_READ, 16);
    assert_eq!(producer.used(&shared), Ok(0));
    shared.store(WORD_ANSWERS_READ, 8);
    assert_eq!(producer.used(&shared), Err(RingBroken));
}
