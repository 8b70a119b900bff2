//! Poisson arrivals.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::time::{Duration, Instant};

/// When the next request is due.
#[derive(Debug)]
pub struct Pace {
    mean_gap_s: f64,
    next: Instant,
    rng: SmallRng,
}

impl Pace {
    /// So many a second.
    pub fn new(ops_per_s: f64, seed: u64) -> Self {
        Pace {
            mean_gap_s: 1.0 / ops_per_s.max(1.0),
            next: Instant::now(),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// When the next one is due.
    #[inline]
    pub fn next(&self) -> Instant {
        self.next
    }

    /// That one has begun.
    #[inline]
    pub fn advance(&mut self) {
        let uniform: f64 = self.rng.random();
        let gap_s = (-(1.0 - uniform).ln() * self.mean_gap_s).min(1.0);
        self.next += Duration::from_secs_f64(gap_s);
    }

    /// Waits until it is due; the time that latency counts from.
    #[inline]
    pub fn wait(&mut self) -> Instant {
        let due = self.next;
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        self.advance();
        due
    }
}
