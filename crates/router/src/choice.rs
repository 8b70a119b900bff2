//! Random numbers for choosing among replicas: cheap, each thread its own.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0u8) | 1);
}

/// Two different places below `count` (at least 2), uniformly.
pub(crate) fn two_of(count: usize) -> (usize, usize) {
    let random = next();
    let first = (random >> 32) as usize % count;
    let step = 1 + (random as u32) as usize % (count - 1);
    (first, (first + step) % count)
}

/// Marsaglia's xorshift.
fn next() -> u64 {
    STATE.with(|state| {
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_comes_and_none_is_a_pair_of_one() {
        for count in 2..6 {
            let mut seen = vec![vec![0u32; count]; count];
            for _ in 0..2_000 * count {
                let (a, b) = two_of(count);
                seen[a][b] += 1;
            }
            for (a, row) in seen.iter().enumerate() {
                for (b, &times) in row.iter().enumerate() {
                    assert_eq!(a == b, times == 0, "{a} and {b} of {count}: {times}");
                }
            }
        }
    }
}
