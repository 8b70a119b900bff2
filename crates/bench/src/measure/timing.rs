//! Nanoseconds of something too short to time one by one.

use std::hint::black_box;
use std::time::Instant;

/// What one candidate cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Median over the blocks: what a call costs on an undisturbed core.
    pub median_ns: f64,
    /// Fastest block: the floor below the machine's noise.
    pub min_ns: f64,
}

/// Times `call`, which must turn its argument into a result that depends on it:
/// each call starts from the previous one's result, so that the processor cannot
/// overlap them. A cache's GET waits for its checksum before it may answer, so
/// the latency of one call is the figure, not the throughput of many.
pub fn time_chained(
    blocks_count: usize,
    calls_per_block: usize,
    mut call: impl FnMut(u64) -> u64,
) -> Timing {
    let mut chain = 0;
    for _ in 0..calls_per_block {
        chain = call(black_box(chain));
    }
    let mut blocks_ns: Vec<f64> = (0..blocks_count.max(1))
        .map(|_| {
            let start = Instant::now();
            for _ in 0..calls_per_block {
                chain = call(black_box(chain));
            }
            start.elapsed().as_nanos() as f64 / calls_per_block.max(1) as f64
        })
        .collect();
    black_box(chain);
    blocks_ns.sort_by(f64::total_cmp);
    Timing {
        median_ns: blocks_ns[blocks_ns.len() / 2],
        min_ns: blocks_ns[0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_work_takes_longer() {
        let spin = |rounds: u64| {
            move |seed: u64| (0..rounds).fold(seed, |a, i| black_box(a.rotate_left(5) ^ i))
        };
        let short = time_chained(9, 1_000, spin(10));
        let long = time_chained(9, 1_000, spin(1_000));
        assert!(long.min_ns > 10.0 * short.min_ns, "{short:?} {long:?}");
        assert!(short.min_ns <= short.median_ns);
    }
}
