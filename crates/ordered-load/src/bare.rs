//! The floor: what any queue in shared memory does for a commit, without lanes, claims and
//! checks. A ticket, a copy, the same checksum, one store that publishes; a thread on the
//! other core copies into a table, or nobody does.

use crate::commits::{MOST, TABLE_LEN, TABLE_ROOM};
use crate::pace::Pace;
use crate::report::Latency;
use crate::{LoadError, LoadOptions, pin};
use hdrhistogram::Histogram;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_layout::words::{Words, WordsMut};
use trefoil_ordered::words::{Atomics, Mapped};
use trefoil_region::Mapping;
use twox_hash::XxHash3_64;

const SLOTS: usize = 4096;
const SLOT_WORDS: usize = 192;
const FIRST: usize = 16;

pub(crate) fn measure(
    options: &LoadOptions,
    len: usize,
    is_awake: bool,
    ops_per_s: f64,
) -> Result<Latency, LoadError> {
    let mapping = Mapping::heap((FIRST + SLOTS * SLOT_WORDS) as u64 * 8);
    mapping.words().zero();
    let words = Mapped(mapping);
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(if is_awake { 2 } else { 1 });
    std::thread::scope(|scope| {
        let (stop, ready, reader) = (&stop, &ready, words.clone());
        if is_awake {
            scope.spawn(move || {
                let pinned = pin(options.server_core);
                let mut table = vec![1u8; TABLE_LEN];
                let mut copy = vec![0; 1 + len.div_ceil(8)];
                let mut next = 1u64;
                ready.wait();
                while !stop.load(Ordering::Relaxed) {
                    let first = FIRST + next as usize % SLOTS * SLOT_WORDS;
                    if reader.load_acquire(first) < next {
                        std::hint::spin_loop();
                        continue;
                    }
                    reader.load_run(first + 1, &mut copy);
                    let room = next.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize;
                    let at = room % (TABLE_LEN / TABLE_ROOM) * TABLE_ROOM;
                    for (to, from) in table[at..].chunks_exact_mut(8).zip(&copy) {
                        to.copy_from_slice(&from.to_le_bytes());
                    }
                    next += 1;
                }
                pinned
            });
        }
        let pinned = pin(options.client_core);
        ready.wait();
        let payload = vec![7u8; len.next_multiple_of(8)];
        let mut image = vec![0u64; 1 + payload.len() / 8];
        let mut took = Histogram::new_with_max(MOST, 3).expect("valid bounds");
        let mut pace = Pace::new(ops_per_s, 1);
        let end = Instant::now() + Duration::from_secs_f64(options.seconds);
        let warm = Instant::now() + Duration::from_secs_f64(options.seconds / 10.0);
        loop {
            let due = pace.wait();
            if due > end {
                break;
            }
            let ticket = words.fetch_add(0, 1) + 1;
            let first = FIRST + ticket as usize % SLOTS * SLOT_WORDS;
            let bytes = black_box(&payload).chunks_exact(8);
            for (to, from) in image[1..].iter_mut().zip(bytes) {
                *to = u64::from_le_bytes(from.try_into().expect("eight bytes"));
            }
            image[0] = XxHash3_64::oneshot(black_box(&payload));
            words.store_run(first + 1, &image);
            words.store_release(first, ticket);
            let done = Instant::now();
            if due > warm {
                took.saturating_record((done - due).as_nanos() as u64);
            }
        }
        stop.store(true, Ordering::Relaxed);
        pinned?;
        Ok(Latency::of(&took))
    })
}
