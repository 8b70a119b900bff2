//! What a nilext commit costs: 100 B and 1 KiB, the server awake and asleep, beside a bare
//! loop over the same memory (ticket, copy, checksum, publish by one store).
//!
//! `cargo run --release -p trefoil-ordered --example commit [ROUNDS]`

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_layout::words::{Words, WordsMut};
use trefoil_ordered::words::{Atomics, Mapped};
use trefoil_ordered::{Answer, Options, Queue, Refused, Request, Service, Worker};
use trefoil_region::Mapping;

/// More than the caches hold.
const TABLE_LEN: usize = 256 << 20;
const ROUNDS: usize = 200_000;
/// Between two commits: the server has executed the last one, and looks for the next.
const PAUSE: Duration = Duration::from_micros(2);

/// A table that values are copied into.
struct Table(Vec<u8>);

impl Service for Table {
    fn execute(&mut self, request: Request<'_>, _: &mut Answer) {
        let rooms = self.0.len() as u64 / 2048;
        let at = (request.position.wrapping_mul(0x9e37_79b9_7f4a_7c15) % rooms) as usize * 2048;
        self.0[at..at + request.payload.len()].copy_from_slice(request.payload);
    }
}

/// `lags`: commits after which the server had not executed everything when the pause was
/// over.
fn print(what: &str, len: usize, mut took_ns: Vec<u64>, lags: usize) {
    took_ns.sort_unstable();
    let at = |share: f64| took_ns[((took_ns.len() - 1) as f64 * share) as usize];
    println!(
        "{what:<22} {len:>5} B  p50 {:>6} ns  p99 {:>6} ns  p99.9 {:>7} ns  \
         server behind {:>3} %",
        at(0.5),
        at(0.99),
        at(0.999),
        lags * 100 / took_ns.len()
    );
}

fn pause() {
    let start = Instant::now();
    while start.elapsed() < PAUSE {
        std::hint::spin_loop();
    }
}

fn commits(queue: &mut Queue, len: usize, rounds: usize) -> (Vec<u64>, usize) {
    let payload = vec![7; len];
    let mut took_ns = Vec::with_capacity(rounds);
    let mut lags = 0;
    while took_ns.len() < rounds {
        let start = Instant::now();
        match queue.submit(black_box(&payload), true) {
            Ok(_) => took_ns.push(start.elapsed().as_nanos() as u64),
            Err(Refused::Full) => queue.wait_for_room(Duration::MAX).expect("a server"),
            Err(refused) => panic!("{refused}"),
        }
        pause();
        lags += usize::from(queue.pending() > 0);
    }
    (took_ns, lags)
}

/// The server spins, or sleeps a second at a time (and wakes when the lane is half full).
fn ours(len: usize, rounds: usize, is_awake: bool) {
    let forever = Duration::from_secs(1 << 30);
    let options = Options {
        slot_count: 4096,
        spin: if is_awake { forever } else { Duration::ZERO },
        nap: Duration::from_secs(1),
        ..Options::default()
    };
    let mut worker = Worker::new(1, options).expect("memory");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(2);
    let (took_ns, lags) = std::thread::scope(|scope| {
        let (stop, ready) = (&stop, &ready);
        scope.spawn(move || {
            let mut table = Table(vec![1; TABLE_LEN]);
            ready.wait();
            worker.serve(&mut table, stop);
        });
        ready.wait();
        commits(&mut queue, len, rounds / 10);
        let measured = commits(&mut queue, len, rounds);
        stop.store(true, Ordering::Relaxed);
        measured
    });
    let what = if is_awake {
        "commit, awake"
    } else {
        "commit, asleep"
    };
    print(what, len, took_ns, lags);
}

/// The floor: what any such queue does, without clients' own lanes, claims and checks.
fn bare(len: usize, rounds: usize, is_awake: bool) {
    const SLOTS: usize = 4096;
    const SLOT: usize = 192;
    let mapping = Mapping::heap((16 + SLOTS * SLOT) as u64 * 8);
    mapping.words().zero();
    let words = Mapped(mapping);
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(if is_awake { 2 } else { 1 });
    // How far the reader is: one that lags leaves the producer its cache lines.
    let read = AtomicU64::new(0);
    let mut lags = 0;
    let took_ns = std::thread::scope(|scope| {
        let (stop, ready, read, reader) = (&stop, &ready, &read, words.clone());
        if is_awake {
            scope.spawn(move || {
                let mut table = Table(vec![1; TABLE_LEN]);
                let mut copy = vec![0; 1 + len.div_ceil(8)];
                let mut next = 1;
                ready.wait();
                while !stop.load(Ordering::Relaxed) {
                    let first = 16 + next as usize % SLOTS * SLOT;
                    if reader.load_acquire(first) < next {
                        std::hint::spin_loop();
                        continue;
                    }
                    reader.load_run(first + 1, &mut copy);
                    let rooms = TABLE_LEN as u64 / 2048;
                    let at = (next.wrapping_mul(0x9e37_79b9_7f4a_7c15) % rooms) as usize * 2048;
                    for (to, from) in table.0[at..].chunks_exact_mut(8).zip(&copy) {
                        to.copy_from_slice(&from.to_le_bytes());
                    }
                    read.store(next, Ordering::Relaxed);
                    next += 1;
                }
            });
        }
        ready.wait();
        let payload = vec![7u8; len.next_multiple_of(8)];
        let mut image = vec![0u64; 1 + payload.len() / 8];
        let mut took_ns = Vec::with_capacity(rounds);
        for round in 0..rounds + rounds / 10 {
            let start = Instant::now();
            let ticket = words.fetch_add(0, 1) + 1;
            let first = 16 + ticket as usize % SLOTS * SLOT;
            for (to, from) in image[1..]
                .iter_mut()
                .zip(black_box(&payload).chunks_exact(8))
            {
                *to = u64::from_le_bytes(from.try_into().expect("eight bytes"));
            }
            image[0] = twox_hash::XxHash3_64::oneshot(black_box(&payload));
            words.store_run(first + 1, &image);
            words.store_release(first, ticket);
            if round >= rounds / 10 {
                took_ns.push(start.elapsed().as_nanos() as u64);
            }
            pause();
            let is_behind = read.load(Ordering::Relaxed) < ticket;
            lags += usize::from(is_behind && round >= rounds / 10);
        }
        stop.store(true, Ordering::Relaxed);
        took_ns
    });
    print(
        if is_awake {
            "bare loop, awake"
        } else {
            "bare loop, asleep"
        },
        len,
        took_ns,
        lags,
    );
}

fn main() {
    let rounds = std::env::args().nth(1);
    let rounds = rounds.map_or(ROUNDS, |text| text.parse().expect("a number of rounds"));
    let mut clock_ns: Vec<u64> = (0..rounds)
        .map(|_| Instant::now().elapsed().as_nanos() as u64)
        .collect();
    clock_ns.sort_unstable();
    println!(
        "two looks at the clock: p50 {} ns, included below",
        clock_ns[rounds / 2]
    );
    for len in [100, 1024] {
        for is_awake in [true, false] {
            bare(len, rounds, is_awake);
            ours(len, rounds, is_awake);
        }
    }
}
