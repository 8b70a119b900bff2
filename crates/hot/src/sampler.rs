//! Which operations are recorded.
//!
//! Two samples are drawn side by side: one of operations, each with the same
//! chance, and one of bytes, where an operation's chance grows with its size;
//! keys that are few but large would hardly ever be seen in the first. Both
//! periods follow the load, so that a quiet server sees every operation and a
//! busy one pays nothing to speak of.

/// Samples a second above which the period doubles.
const SAMPLES_HIGH: u32 = 4096;
/// Samples a second below which it is halved.
const SAMPLES_LOW: u32 = 1024;
/// Longest period of operations.
const OPS_PERIOD_MAX: u64 = 64;
/// Longest period of bytes. What is larger is always recorded: moving it takes
/// far longer.
const BYTES_PERIOD_MAX: u64 = 256 << 10;

/// An operation that is to be recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Operations that it stands for; 0 if it was drawn for its bytes only.
    pub ops: f64,
    /// Bytes that it stands for; 0 if it was not drawn for its bytes.
    pub bytes: f64,
}

/// Chooses; one belongs to each thread, or stands behind a lock.
#[derive(Clone, Debug)]
pub struct Sampler {
    ops: Gap,
    bytes: Gap,
    random: u64,
}

/// What is left until the next sample.
#[derive(Clone, Copy, Debug)]
struct Gap {
    left: u64,
    period: u64,
    period_max: u64,
    /// The second that samples are being counted in.
    second: u64,
    count: u32,
}

impl Gap {
    const fn new(period_max: u64) -> Self {
        Gap {
            left: 1,
            period: 1,
            period_max,
            second: 0,
            count: 0,
        }
    }

    /// Draws the next gap: `period` on average. Random, so that a loop over the
    /// keys does not always show the same ones.
    fn draw(&mut self, random: &mut u64) {
        self.left = if self.period == 1 {
            1
        } else {
            1 + next(random) % (2 * self.period - 1)
        };
    }

    /// Counts a sample and lets the period follow the load.
    fn adapt(&mut self, now_s: f64) {
        let second = now_s as u64;
        if second != self.second {
            // Seconds without any sample in between count as quiet, too.
            if self.count < SAMPLES_LOW || second > self.second + 1 {
                self.period = (self.period / 2).max(1);
            }
            self.second = second;
            self.count = 0;
        }
        self.count += 1;
        if self.count >= SAMPLES_HIGH {
            self.period = (self.period * 2).min(self.period_max);
            self.count = 0;
        }
    }
}

/// Xorshift (Marsaglia, 2003).
pub(crate) fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl Sampler {
    /// A sampler; `seed` tells the loops of a process apart.
    pub const fn new(seed: u64) -> Self {
        Sampler {
            ops: Gap::new(OPS_PERIOD_MAX),
            bytes: Gap::new(BYTES_PERIOD_MAX),
            random: seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// An operation that moved this many bytes. `now_s` is asked only if it is
    /// to be recorded.
    #[inline]
    pub fn tick(&mut self, bytes: u64, now_s: impl FnOnce() -> f64) -> Option<Sample> {
        self.ops.left -= 1;
        if self.ops.left > 0 && bytes < self.bytes.left {
            self.bytes.left -= bytes;
            return None;
        }
        Some(self.draw(bytes, now_s()))
    }

    #[cold]
    fn draw(&mut self, bytes: u64, now_s: f64) -> Sample {
        let mut sample = Sample {
            ops: 0.0,
            bytes: 0.0,
        };
        if self.ops.left == 0 {
            sample.ops = self.ops.period as f64;
            self.ops.adapt(now_s);
            self.ops.draw(&mut self.random);
        }
        if bytes >= self.bytes.period_max {
            sample.bytes = bytes as f64;
        } else if bytes >= self.bytes.left {
            // Large beside the period: it would have been drawn this often.
            let period = self.bytes.period;
            let more = (bytes - self.bytes.left) / period;
            sample.bytes = (period * (1 + more)) as f64;
            self.bytes.adapt(now_s);
            self.bytes.draw(&mut self.random);
        } else {
            self.bytes.left -= bytes;
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Estimates of operations and bytes from a stream, and the samples drawn.
    fn run(sizes: impl Iterator<Item = u64>, ops_per_s: f64) -> (f64, f64, u64) {
        let mut sampler = Sampler::new(7);
        let (mut ops, mut bytes, mut samples) = (0.0, 0.0, 0);
        for (number, size) in sizes.enumerate() {
            if let Some(sample) = sampler.tick(size, || number as f64 / ops_per_s) {
                ops += sample.ops;
                bytes += sample.bytes;
                samples += 1;
            }
        }
        (ops, bytes, samples)
    }

    #[test]
    fn a_quiet_server_records_everything_exactly() {
        let (ops, bytes, samples) = run((0..900).map(|n| 10 + n % 7), 100.0);
        assert_eq!((ops, samples), (900.0, 900));
        let total: u64 = (0..900).map(|n| 10 + n % 7).sum();
        assert!((bytes / total as f64 - 1.0).abs() < 0.02, "{bytes} {total}");
    }

    #[test]
    fn a_busy_one_records_few_and_estimates_well() {
        let size = |n: u64| if n.is_multiple_of(1000) { 300_000 } else { 100 };
        let count = 3_000_000;
        let (ops, bytes, samples) = run((0..count).map(size), 1e6);
        assert!((ops / count as f64 - 1.0).abs() < 0.03, "{ops}");
        let total: u64 = (0..count).map(size).sum();
        assert!((bytes / total as f64 - 1.0).abs() < 0.05, "{bytes} {total}");
        assert!(samples < count / 20, "{samples}");
    }

    #[test]
    fn it_becomes_attentive_again_when_the_load_has_gone() {
        let mut sampler = Sampler::new(1);
        for number in 0..2_000_000 {
            sampler.tick(0, || f64::from(number) / 1e6);
        }
        assert_eq!(sampler.ops.period, OPS_PERIOD_MAX);
        let quiet = (0..20_000u32).map(|n| 2.0 + f64::from(n) / 100.0);
        for now in quiet {
            sampler.tick(0, || now);
        }
        assert_eq!(sampler.ops.period, 1);
    }
}
