//! A cheap bijection on `0..n`: scatters neighbouring ranks over all keys, so
//! that a distribution's hottest ranks are not neighbours in anybody's memory.

/// Finisher of a 64-bit counter: every input bit reaches
/// every output bit.
#[inline]
pub fn mix64(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// `x → (x · factor + offset) mod n`, with a factor coprime to `n`.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    n: u64,
    factor: u64,
    offset: u64,
}

impl Permutation {
    /// A permutation of `0..n`, another one for each seed. `n` = 0 counts as 1.
    pub fn new(n: u64, seed: u64) -> Self {
        let n = n.max(1);
        let mut factor = mix64(seed) % n;
        while gcd(factor, n) != 1 {
            factor = (factor + 1) % n;
            if n == 1 {
                break;
            }
        }
        Self {
            n,
            factor,
            offset: mix64(seed ^ 0xa5a5) % n,
        }
    }

    /// Where `index` goes; indices beyond `n` wrap.
    #[inline]
    pub fn apply(&self, index: u64) -> u64 {
        let wide = u128::from(index % self.n) * u128::from(self.factor) + u128::from(self.offset);
        // Below 2^32 keys the product fits 64 bits, whose division is far cheaper.
        match u64::try_from(wide) {
            Ok(narrow) => narrow % self.n,
            Err(_) => (wide % u128::from(self.n)) as u64,
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_image() {
        for n in [1, 2, 3, 10, 97, 1000, 4096, 65_537] {
            for seed in 0..5 {
                let permutation = Permutation::new(n, seed);
                let mut seen = vec![false; n as usize];
                for index in 0..n {
                    let image = permutation.apply(index) as usize;
                    assert!(!std::mem::replace(&mut seen[image], true), "n {n}");
                }
            }
        }
    }

    #[test]
    fn large_ranges_do_not_overflow() {
        let permutation = Permutation::new(u64::MAX, 3);
        assert_ne!(permutation.apply(1), permutation.apply(2));
        assert!(permutation.apply(u64::MAX - 1) < u64::MAX);
    }

    #[test]
    fn mixing_reaches_every_bit() {
        let (mut ones, mut zeros) = (0, 0);
        for i in 0..64 {
            ones |= mix64(i);
            zeros |= !mix64(i);
        }
        assert_eq!((ones, zeros), (u64::MAX, u64::MAX));
    }
}
