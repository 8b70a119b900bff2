//! When the next operation begins.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::LoadError;

/// Longer waits than this give the core away between looks at the clock.
const YIELD_ABOVE: Duration = Duration::from_micros(20);

/// How requests arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Each as soon as the one before is done.
    Closed,
    /// Independently of one another, at a mean rate. Latency counts from the
    /// intended start: a system that stalls cannot hide the requests that it
    /// made wait.
    Poisson {
        /// Operations per second and client.
        ops_per_s: f64,
    },
}

/// The clock of one client.
#[derive(Debug)]
pub(super) struct Pacer {
    mean_gap_s: Option<f64>,
    next: Instant,
    rng: SmallRng,
}

impl Pacer {
    pub(super) fn new(arrivals: Arrivals, seed: u64) -> Result<Self, LoadError> {
        let mean_gap_s = match arrivals {
            Arrivals::Closed => None,
            Arrivals::Poisson { ops_per_s } if ops_per_s.is_finite() && ops_per_s > 1e-6 => {
                Some(1.0 / ops_per_s)
            }
            Arrivals::Poisson { ops_per_s } => return Err(LoadError::Rate { rate: ops_per_s }),
        };
        Ok(Self {
            mean_gap_s,
            next: Instant::now(),
            rng: SmallRng::seed_from_u64(seed ^ 0x00a7_71fa_1500),
        })
    }

    /// Waits for the next start and gives the time that latency counts from.
    #[inline]
    pub(super) fn start(&mut self) -> Instant {
        let Some(mean_gap_s) = self.mean_gap_s else {
            return Instant::now();
        };
        let uniform: f64 = self.rng.random();
        // Capped, so that no draw overflows a Duration.
        let gap_s = (-(1.0 - uniform).ln() * mean_gap_s).min(1e6);
        self.next += Duration::from_secs_f64(gap_s);
        loop {
            let now = Instant::now();
            if now >= self.next {
                return self.next;
            }
            if self.next - now > YIELD_ABOVE {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_keeps_its_rate_and_spread() {
        let mut pacer = Pacer::new(
            Arrivals::Poisson {
                ops_per_s: 50_000.0,
            },
            3,
        )
        .unwrap();
        let starts: Vec<Instant> = (0..10_000).map(|_| pacer.start()).collect();
        let gaps: Vec<f64> = starts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e6)
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((19.0..21.0).contains(&mean), "{mean}");
        // Exponential: the standard deviation equals the mean.
        assert!((0.9..1.1).contains(&(variance.sqrt() / mean)), "{variance}");
    }

    #[test]
    fn a_late_client_counts_from_the_intended_start() {
        let mut pacer = Pacer::new(Arrivals::Poisson { ops_per_s: 1e6 }, 3).unwrap();
        pacer.start();
        std::thread::sleep(Duration::from_millis(20));
        assert!(pacer.start().elapsed() > Duration::from_millis(15));
    }

    #[test]
    fn rates_that_are_none_are_refused() {
        for ops_per_s in [0.0, -5.0, f64::NAN, f64::INFINITY] {
            assert!(Pacer::new(Arrivals::Poisson { ops_per_s }, 1).is_err());
        }
    }
}
