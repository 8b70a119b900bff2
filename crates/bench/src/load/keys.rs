//! Which key comes next, and how its number is spelled.

use rand::distr::Distribution as _;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::Zipf;

use super::{LoadError, Permutation};

/// Digits that every protocol under test accepts in a key.
const ALPHABET: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";
const DIGITS_MAX: usize = 8;
const FILLER: &[u8] = b"trefoil/bench:";
/// memcached takes no longer key; the limit keeps side-by-side runs possible.
const KEY_LEN_MAX: usize = 250;

const VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut i = 0;
    while i < 64 {
        values[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    values
};

/// Spells a key's number in a fixed number of bytes: filler, then up to eight
/// digits of base 64, so that a reader can tell which key it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyCodec {
    key_len: usize,
}

impl KeyCodec {
    /// Keys of `key_len` bytes, which must be enough for `keys_count` numbers.
    pub fn new(key_len: usize, keys_count: u64) -> Result<Self, LoadError> {
        let digits = key_len.min(DIGITS_MAX) as u32;
        if !(1..=KEY_LEN_MAX).contains(&key_len) || keys_count > 1 << (6 * digits) {
            return Err(LoadError::KeyLen {
                key_len,
                keys_count,
            });
        }
        Ok(Self { key_len })
    }

    /// Bytes of every key.
    pub fn key_len(&self) -> usize {
        self.key_len
    }

    /// A buffer that [`encode`](Self::encode) can write into.
    pub fn buffer(&self) -> Vec<u8> {
        FILLER.iter().copied().cycle().take(self.key_len).collect()
    }

    /// Writes the digits of `number` over the end of a buffer made by
    /// [`buffer`](Self::buffer).
    #[inline]
    pub fn encode(&self, number: u64, key: &mut [u8]) {
        let digits = self.key_len.min(DIGITS_MAX);
        let mut rest = number;
        for byte in key.iter_mut().rev().take(digits) {
            *byte = ALPHABET[(rest & 63) as usize];
            rest >>= 6;
        }
    }

    /// The number of a key that `encode` wrote.
    #[inline]
    pub fn decode(&self, key: &[u8]) -> Option<u64> {
        let digits = key.len().min(DIGITS_MAX);
        let mut number = 0;
        let mut invalid = key.len() != self.key_len;
        for &byte in &key[key.len() - digits..] {
            let value = VALUES[usize::from(byte)];
            invalid |= value == 255;
            number = number << 6 | u64::from(value & 63);
        }
        (!invalid).then_some(number)
    }
}

/// How often each key is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// The n-th most popular key with probability ∝ n^−theta; any theta ≥ 0.
    Zipf {
        /// The exponent.
        theta: f64,
    },
    /// One after the other, round and round.
    Sequential,
}

/// Draws key numbers below `keys_count`.
#[derive(Debug, Clone)]
pub struct KeyChooser {
    keys_count: u64,
    law: Law,
    rng: SmallRng,
}

#[derive(Debug, Clone)]
enum Law {
    Uniform,
    Zipf(Zipf<f64>, Permutation),
    Sequential(u64),
}

impl KeyChooser {
    /// Equal arguments give equal sequences. The popularity order of the keys
    /// does not depend on `seed`: clients with different seeds agree on what is
    /// hot.
    pub fn new(popularity: Popularity, keys_count: u64, seed: u64) -> Result<Self, LoadError> {
        if keys_count == 0 {
            return Err(LoadError::NoKeys);
        }
        let law = match popularity {
            Popularity::Uniform => Law::Uniform,
            Popularity::Sequential => Law::Sequential(0),
            Popularity::Zipf { theta } if theta.is_finite() => Law::Zipf(
                Zipf::new(keys_count as f64, theta).map_err(|_| LoadError::Theta { theta })?,
                Permutation::new(keys_count, 0),
            ),
            Popularity::Zipf { theta } => return Err(LoadError::Theta { theta }),
        };
        Ok(Self {
            keys_count,
            law,
            rng: SmallRng::seed_from_u64(seed),
        })
    }

    /// How many keys there are.
    pub fn keys_count(&self) -> u64 {
        self.keys_count
    }

    /// The generator behind the draws, for the other dice of a request.
    pub fn rng(&mut self) -> &mut SmallRng {
        &mut self.rng
    }

    /// The next key's number.
    #[inline]
    pub fn next_key(&mut self) -> u64 {
        match &mut self.law {
            Law::Uniform => self.rng.random_range(0..self.keys_count),
            Law::Zipf(zipf, permutation) => {
                // Ranks are 1-based floats.
                permutation.apply(zipf.sample(&mut self.rng) as u64 - 1)
            }
            Law::Sequential(next) => {
                let key = *next;
                *next = (key + 1) % self.keys_count;
                key
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(popularity: Popularity, keys_count: u64, draws: usize) -> Vec<usize> {
        let mut chooser = KeyChooser::new(popularity, keys_count, 1).unwrap();
        let mut counts = vec![0; keys_count as usize];
        for _ in 0..draws {
            counts[chooser.next_key() as usize] += 1;
        }
        counts
    }

    #[test]
    fn keys_round_trip_at_every_length() {
        for key_len in [1, 2, 3, 8, 9, 10, 36, 250] {
            let keys_count = 1u64 << (6 * key_len.min(8)).min(40);
            let codec = KeyCodec::new(key_len, keys_count).unwrap();
            let mut key = codec.buffer();
            assert_eq!(key.len(), key_len);
            for number in [0, 1, 63 % keys_count, keys_count / 3, keys_count - 1] {
                codec.encode(number, &mut key);
                assert_eq!(codec.decode(&key), Some(number), "{key_len} {number}");
                assert!(key.iter().all(|b| b.is_ascii_graphic()));
            }
        }
    }

    #[test]
    fn foreign_keys_have_no_number() {
        let codec = KeyCodec::new(10, 1000).unwrap();
        assert_eq!(codec.decode(b"short"), None);
        assert_eq!(codec.decode(b"trefoil !x"), None);
        assert_eq!(codec.decode(b""), None);
    }

    #[test]
    fn impossible_keys_are_refused() {
        assert!(KeyCodec::new(0, 1).is_err());
        assert!(KeyCodec::new(251, 1).is_err());
        assert!(KeyCodec::new(2, 4096).is_ok());
        assert!(KeyCodec::new(2, 4097).is_err());
        assert!(KeyChooser::new(Popularity::Uniform, 0, 1).is_err());
        for theta in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(KeyChooser::new(Popularity::Zipf { theta }, 10, 1).is_err());
        }
    }

    #[test]
    fn uniform_draws_are_even() {
        // 10,000 per key: seven standard deviations are 700.
        for count in counts(Popularity::Uniform, 100, 1_000_000) {
            assert!((9_300..10_700).contains(&count), "{count}");
        }
    }

    #[test]
    fn sequential_goes_round() {
        assert_eq!(counts(Popularity::Sequential, 7, 70), vec![10; 7]);
    }

    #[test]
    fn zipf_follows_its_law_below_and_above_one() {
        let (keys_count, draws) = (1_000, 1_000_000);
        for theta in [0.5, 0.99, 1.0, 1.4] {
            let mut counts = counts(Popularity::Zipf { theta }, keys_count, draws);
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let norm: f64 = (1..=keys_count).map(|n| (n as f64).powf(-theta)).sum();
            for rank in [1usize, 2, 5, 20] {
                let expected = draws as f64 * (rank as f64).powf(-theta) / norm;
                let found = counts[rank - 1] as f64;
                assert!(
                    (found - expected).abs() < 0.05 * expected + 60.0,
                    "theta {theta} rank {rank}: {found} instead of {expected}"
                );
            }
        }
    }

    #[test]
    fn zipf_of_zero_is_uniform_and_hot_keys_are_apart() {
        for count in counts(Popularity::Zipf { theta: 0.0 }, 100, 1_000_000) {
            assert!((9_300..10_700).contains(&count), "{count}");
        }
        let counts = counts(Popularity::Zipf { theta: 1.2 }, 1_000, 100_000);
        let hottest = (0..1_000).max_by_key(|&i| counts[i]).unwrap();
        let second = (0..1_000usize)
            .filter(|&i| i != hottest)
            .max_by_key(|&i| counts[i])
            .unwrap();
        assert!(hottest.abs_diff(second) > 1);
    }

    #[test]
    fn seeds_repeat() {
        let draw = |seed| {
            let mut chooser = KeyChooser::new(Popularity::Uniform, 1_000, seed).unwrap();
            (0..50).map(|_| chooser.next_key()).collect::<Vec<_>>()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
