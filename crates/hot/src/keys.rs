//! The two sketches together, and what they report.

use crate::sampler::Sample;
use crate::sketch::Sketch;
use std::collections::HashMap;
use twox_hash::XxHash3_64;

/// After this time without an operation a key's rates have halved.
pub const HALF_LIFE_S: f64 = 10.0;
/// Bytes of a key that are kept; keys may be long, and are shown to people.
pub const KEY_KEPT_MAX: usize = 64;
/// Rates over less than this say nothing.
const AGE_S_MIN: f64 = 1.0;

/// A key that is asked for often.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// Its first [`KEY_KEPT_MAX`] bytes.
    pub key: Vec<u8>,
    /// Its length.
    pub key_len: u32,
    /// Tells keys apart that begin alike.
    pub hash: u64,
    /// Operations a second, over about [`HALF_LIFE_S`].
    pub ops_per_s: f64,
    /// Bytes of values a second.
    pub bytes_per_s: f64,
}

/// What a list is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Operations.
    Ops,
    /// Bytes.
    Bytes,
}

impl Order {
    /// The figure of a key that counts.
    pub fn of(self, key: &HotKey) -> f64 {
        match self {
            Order::Ops => key.ops_per_s,
            Order::Bytes => key.bytes_per_s,
        }
    }

    /// Sorts, the hottest first, and keeps `count`.
    pub fn select(self, keys: &mut Vec<HotKey>, count: usize) {
        keys.sort_by(|a, b| self.of(b).total_cmp(&self.of(a)).then(a.key.cmp(&b.key)));
        keys.truncate(count);
    }
}

/// About 120 KiB once the first operation was recorded, and never more.
#[derive(Clone, Debug, Default)]
pub struct HotKeys {
    sketches: Option<Box<Sketches>>,
}

#[derive(Clone, Debug)]
struct Sketches {
    since_s: f64,
    ops: Sketch,
    bytes: Sketch,
}

impl HotKeys {
    /// Nothing is hot yet.
    pub const fn new() -> Self {
        HotKeys { sketches: None }
    }

    /// Records an operation on `key` that was sampled. `now_s` is any clock
    /// that does not go back.
    pub fn record(&mut self, key: &[u8], sample: Sample, now_s: f64) {
        let sketches = self.sketches.get_or_insert_with(|| {
            Box::new(Sketches {
                since_s: now_s,
                ops: Sketch::new(now_s),
                bytes: Sketch::new(now_s),
            })
        });
        let hash = XxHash3_64::oneshot(key);
        if sample.ops > 0.0 {
            sketches.ops.add(hash, key, sample.ops, now_s);
        }
        if sample.bytes > 0.0 {
            sketches.bytes.add(hash, key, sample.bytes, now_s);
        }
    }

    /// Every key that is known, in no order; at most a thousand or so.
    pub fn all(&self, now_s: f64) -> Vec<HotKey> {
        let Some(sketches) = &self.sketches else {
            return Vec::new();
        };
        // What a steady rate's decayed sum comes to, seen since the beginning.
        let age_s = (now_s - sketches.since_s).max(AGE_S_MIN);
        let seen = 1.0 - (-age_s / HALF_LIFE_S).exp2();
        let rate_of_sum = std::f64::consts::LN_2 / HALF_LIFE_S / seen;
        let mut keys: HashMap<u64, HotKey> = HashMap::new();
        for (sketch, is_ops) in [(&sketches.ops, true), (&sketches.bytes, false)] {
            for (entry, sum) in sketch.entries(now_s) {
                let key = keys.entry(entry.hash).or_insert_with(|| HotKey {
                    key: entry.key().to_vec(),
                    key_len: entry.key_len,
                    hash: entry.hash,
                    ops_per_s: 0.0,
                    bytes_per_s: 0.0,
                });
                match is_ops {
                    true => key.ops_per_s = sum * rate_of_sum,
                    false => key.bytes_per_s = sum * rate_of_sum,
                }
            }
        }
        keys.into_values().collect()
    }

    /// The `count` hottest keys by operations and the `count` hottest by bytes,
    /// each once.
    pub fn top(&self, count: usize, now_s: f64) -> Vec<HotKey> {
        hottest(self.all(now_s), count)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.sketches = None;
    }
}

/// Lists of different loops or servers as one: rates of a key are added; the
/// `count` hottest of either order are kept, sorted by operations.
pub fn merge(lists: impl IntoIterator<Item = Vec<HotKey>>, count: usize) -> Vec<HotKey> {
    let mut keys: HashMap<u64, HotKey> = HashMap::new();
    for key in lists.into_iter().flatten() {
        match keys.entry(key.hash) {
            std::collections::hash_map::Entry::Occupied(mut known) => {
                known.get_mut().ops_per_s += key.ops_per_s;
                known.get_mut().bytes_per_s += key.bytes_per_s;
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(key);
            }
        }
    }
    hottest(keys.into_values().collect(), count)
}

fn hottest(mut keys: Vec<HotKey>, count: usize) -> Vec<HotKey> {
    let mut by_bytes = keys.clone();
    Order::Bytes.select(&mut by_bytes, count);
    Order::Ops.select(&mut keys, count);
    let known: Vec<u64> = keys.iter().map(|key| key.hash).collect();
    keys.extend(by_bytes.into_iter().filter(|k| !known.contains(&k.hash)));
    let all = keys.len();
    Order::Ops.select(&mut keys, all);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{Sampler, next};

    /// Records a stream of (key, bytes) at `ops_per_s` for some seconds.
    fn feed(
        keys: &mut HotKeys,
        from_s: f64,
        seconds: f64,
        ops_per_s: f64,
        mut draw: impl FnMut(&mut u64) -> (String, u64),
    ) -> f64 {
        let mut sampler = Sampler::new(3);
        let mut random = 0x1234_5678_9abc_def1;
        let count = (seconds * ops_per_s) as u64;
        for number in 0..count {
            let now = from_s + number as f64 / ops_per_s;
            let (key, bytes) = draw(&mut random);
            if let Some(sample) = sampler.tick(bytes, || now) {
                keys.record(key.as_bytes(), sample, now);
            }
        }
        from_s + seconds
    }

    /// Half of all operations on ten keys, the rest on a million.
    fn skewed(random: &mut u64) -> (String, u64) {
        let draw = next(random) >> 16;
        match draw % 20 {
            hot @ 0..10 => (format!("hot-{hot}"), 100),
            _ => (format!("cold-{}", (draw / 20) % 1_000_000), 100),
        }
    }

    #[test]
    fn heavy_keys_are_found_among_a_million_others() {
        let mut keys = HotKeys::new();
        let now = feed(&mut keys, 5.0, 10.0, 100_000.0, skewed);
        let top = keys.top(10, now);
        for key in top.iter().take(10) {
            let name = String::from_utf8_lossy(&key.key);
            assert!(name.starts_with("hot-"), "{top:?}");
            // 5 % of 100,000 each.
            assert!((key.ops_per_s / 5000.0 - 1.0).abs() < 0.2, "{key:?}");
            assert!((key.bytes_per_s / 500_000.0 - 1.0).abs() < 0.2, "{key:?}");
        }
    }

    #[test]
    fn rates_of_a_zipf_load_are_near_the_truth() {
        let weights: Vec<f64> = (1..=5000).map(|rank| f64::from(rank).powf(-0.99)).collect();
        let total: f64 = weights.iter().sum();
        let sums: Vec<f64> = weights
            .iter()
            .scan(0.0, |sum, weight| {
                *sum += weight / total;
                Some(*sum)
            })
            .collect();
        let mut keys = HotKeys::new();
        let rate = 400_000.0;
        let now = feed(&mut keys, 0.0, 8.0, rate, |random| {
            let draw = (next(random) >> 11) as f64 / (1u64 << 53) as f64;
            let rank = sums.partition_point(|sum| *sum < draw);
            (format!("{rank}"), 100)
        });
        for (rank, key) in keys.top(20, now).iter().take(10).enumerate() {
            let truth = rate * weights[rank] / total;
            let error = key.ops_per_s / truth - 1.0;
            assert_eq!(key.key, format!("{rank}").as_bytes(), "{error}");
            assert!(error.abs() < 0.15, "{rank}: {error}");
        }
    }

    #[test]
    fn few_large_values_lead_by_bytes() {
        let mut keys = HotKeys::new();
        let now = feed(&mut keys, 0.0, 5.0, 50_000.0, |random| {
            match next(random) % 2000 {
                0 => ("large".into(), 1 << 20),
                other => (format!("small-{}", other % 50), 64),
            }
        });
        let mut top = keys.top(5, now);
        Order::Bytes.select(&mut top, 1);
        assert_eq!(top[0].key, b"large");
        let expected = 25.0 * f64::from(1 << 20);
        assert!(
            (top[0].bytes_per_s / expected - 1.0).abs() < 0.35,
            "{top:?}"
        );
    }

    #[test]
    fn what_was_hot_makes_way() {
        let mut keys = HotKeys::new();
        let now = feed(&mut keys, 0.0, 10.0, 1000.0, |_| ("old".into(), 1));
        let now = feed(&mut keys, now, 30.0, 100.0, |_| ("new".into(), 1));
        let top = keys.top(2, now);
        let rates: Vec<f64> = top.iter().map(|key| key.ops_per_s).collect();
        assert_eq!(
            (&top[0].key[..], &top[1].key[..]),
            (&b"new"[..], &b"old"[..])
        );
        assert!((rates[0] / 100.0 - 1.0).abs() < 0.2, "{rates:?}");
        assert!(rates[1] < 80.0, "{rates:?}");
    }

    #[test]
    fn scores_survive_a_year() {
        let mut keys = HotKeys::new();
        for month in 0..12 {
            let now = f64::from(month) * 2_600_000.0;
            feed(&mut keys, now, 5.0, 100.0, |_| (format!("{month}"), 1));
        }
        let top = keys.top(1, 11.0 * 2_600_000.0 + 5.0);
        assert_eq!(top[0].key, b"11");
        assert!(top[0].ops_per_s.is_finite() && top[0].ops_per_s > 0.0);
    }

    #[test]
    fn long_keys_that_begin_alike_are_two() {
        let mut keys = HotKeys::new();
        let sample = Sample {
            ops: 1.0,
            bytes: 1.0,
        };
        for end in ["a", "b"] {
            keys.record(format!("{}{end}", "x".repeat(200)).as_bytes(), sample, 1.0);
        }
        let top = keys.top(5, 2.0);
        assert_eq!(top.len(), 2);
        assert!(top.iter().all(|k| k.key.len() == 64 && k.key_len == 201));
    }

    #[test]
    fn lists_merge_by_key() {
        let list = |ops: f64| {
            let mut keys = HotKeys::new();
            let sample = Sample { ops, bytes: 0.0 };
            keys.record(b"same", sample, 0.0);
            keys.all(1.0)
        };
        let (one, two) = (list(3.0), list(4.0));
        let sum = one[0].ops_per_s + two[0].ops_per_s;
        let merged = merge([one, two], 10);
        assert_eq!(merged.len(), 1);
        assert!((merged[0].ops_per_s - sum).abs() < 1e-9);
    }
}
