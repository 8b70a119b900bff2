//! Round trips between two threads: what a message costs before anybody does
//! anything with it.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::futex;

use super::FloorError;
use crate::load::{Latency, pin_current_thread};

/// Ends a wait whose wake-up got lost, which would be a bug here and not a hang.
const SLEEP_MAX: futex::Timespec = futex::Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
const WARM_UP_ROUNDS: u64 = 200;
/// Polls between yields when the two threads share a core.
const SPINS_PER_YIELD: u32 = 64;

/// A word on a cache line (and its neighbour, which prefetchers fetch) of its own.
#[repr(align(128))]
struct Line(AtomicU32);

/// Both threads sleep on a futex until the other one wakes them: what a request
/// to a sleeping server costs.
pub fn futex_ping_pong(core_a: usize, core_b: usize, rounds: u64) -> Result<Latency, FloorError> {
    let wait = |line: &Line, expected: u32, quit: &AtomicBool| {
        loop {
            let seen = line.0.load(Acquire);
            if seen == expected || quit.load(Acquire) {
                return;
            }
            // Woken, interrupted, changed before sleeping: look again in any case.
            let _ = futex::wait(&line.0, futex::Flags::PRIVATE, seen, Some(&SLEEP_MAX));
        }
    };
    let tell = |line: &Line, value: u32| {
        line.0.store(value, Release);
        let _ = futex::wake(&line.0, futex::Flags::PRIVATE, 1);
    };
    ping_pong(core_a, core_b, rounds, wait, tell)
}

/// Both threads spin on a shared cache line: what a message ring costs at least.
pub fn ring_ping_pong(core_a: usize, core_b: usize, rounds: u64) -> Result<Latency, FloorError> {
    let share_core = core_a == core_b;
    let wait = move |line: &Line, expected: u32, quit: &AtomicBool| {
        let mut spins = 0u32;
        while line.0.load(Acquire) != expected {
            spins += 1;
            if spins.is_multiple_of(SPINS_PER_YIELD) {
                if quit.load(Acquire) {
                    return;
                }
                if share_core {
                    std::thread::yield_now();
                }
            }
            std::hint::spin_loop();
        }
    };
    ping_pong(core_a, core_b, rounds, wait, |line, value| {
        line.0.store(value, Release);
    })
}

fn ping_pong(
    core_a: usize,
    core_b: usize,
    rounds: u64,
    wait: impl Fn(&Line, u32, &AtomicBool) + Sync,
    tell: impl Fn(&Line, u32) + Sync,
) -> Result<Latency, FloorError> {
    let (ping, pong) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
    let quit = AtomicBool::new(false);
    let rounds_total = rounds + WARM_UP_ROUNDS;
    let pin = |core| {
        pin_current_thread(core).map_err(|source: io::Error| FloorError::Pin { core, source })
    };
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(core_b);
            for round in 1..=rounds_total {
                wait(&ping, round as u32, &quit);
                if quit.load(Acquire) {
                    break;
                }
                tell(&pong, round as u32);
            }
            pinned
        });
        let asking = scope.spawn(|| {
            let pinned = pin(core_a);
            let mut latencies = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)
                .unwrap_or_else(|error| unreachable!("constant histogram bounds: {error}"));
            if pinned.is_ok() {
                for round in 1..=rounds_total {
                    let start = Instant::now();
                    tell(&ping, round as u32);
                    wait(&pong, round as u32, &quit);
                    let elapsed: Duration = start.elapsed();
                    if round > WARM_UP_ROUNDS {
                        latencies.saturating_record(elapsed.as_nanos() as u64);
                    }
                }
            }
            quit.store(true, Release);
            tell(&ping, rounds_total.wrapping_add(1) as u32);
            pinned.map(|()| Latency::of(&latencies))
        });
        let latency = asking.join().unwrap_or(Err(FloorError::Panicked))?;
        echo.join().unwrap_or(Err(FloorError::Panicked))?;
        Ok(latency)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_timed() {
        // On one core, so that the test also runs where there is only one.
        for ping_pong in [futex_ping_pong, ring_ping_pong] {
            let latency = ping_pong(0, 0, 500).unwrap();
            assert_eq!(latency.count, 500);
            assert!(latency.p50_ns > 10 && latency.p50_ns <= latency.p999_ns);
        }
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        assert!(futex_ping_pong(1000, 0, 10).is_err());
        assert!(ring_ping_pong(0, 1000, 10).is_err());
    }
}
