//! Scores of heavy keys in fixed memory.
//!
//! A set-associative table: a key's hash chooses a set of eight entries. A key
//! that is there gains the sample's weight. A new one takes the place of the
//! set's smallest score with probability `weight / (score + weight)` and then
//! has the sum of both: randomised admission (Ben Basat et al., 2017), which
//! keeps a long tail of rare keys from washing the heavy ones out, in constant
//! time and without a heap.
//!
//! Scores decay: an event at time `t` counts `2^(t / half-life)`, so nothing
//! that is already there ever has to be touched; the common factor is taken out
//! when scores are read, and from time to time for good.

use crate::keys::{HALF_LIFE_S, KEY_KEPT_MAX};
use crate::sampler::next;

/// Entries of a set.
const WAY_COUNT: usize = 8;
/// Sets of a sketch.
const SET_COUNT: usize = 64;
/// Half-lives after which scores are scaled down, far from the end of `f64`.
const RESCALE_HALF_LIVES: f64 = 256.0;

/// A key and its score.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    /// 0 is an empty place.
    pub(crate) score: f64,
    pub(crate) key_len: u32,
    kept: [u8; KEY_KEPT_MAX],
}

impl Entry {
    const EMPTY: Entry = Entry {
        hash: 0,
        score: 0.0,
        key_len: 0,
        kept: [0; KEY_KEPT_MAX],
    };

    /// As much of the key as is kept.
    pub(crate) fn key(&self) -> &[u8] {
        &self.kept[..KEY_KEPT_MAX.min(self.key_len as usize)]
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    sets: Box<[[Entry; WAY_COUNT]]>,
    /// The time at which an event counts 1.
    origin_s: f64,
    random: u64,
}

impl Sketch {
    pub(crate) fn new(now_s: f64) -> Self {
        Sketch {
            sets: vec![[Entry::EMPTY; WAY_COUNT]; SET_COUNT].into(),
            origin_s: now_s,
            random: 0x5851_f42d_4c95_7f2d,
        }
    }

    fn half_lives(&self, now_s: f64) -> f64 {
        ((now_s - self.origin_s) / HALF_LIFE_S).max(0.0)
    }

    pub(crate) fn add(&mut self, hash: u64, key: &[u8], weight: f64, now_s: f64) {
        if self.half_lives(now_s) > RESCALE_HALF_LIVES {
            self.rescale(now_s);
        }
        let weight = weight * self.half_lives(now_s).exp2();
        // Not the bits that a keyed table elsewhere may have used.
        let set = &mut self.sets[(hash >> 32) as usize % SET_COUNT];
        if let Some(entry) = set.iter_mut().find(|e| e.hash == hash && e.score > 0.0) {
            entry.score += weight;
            return;
        }
        let Some(least) = set.iter_mut().min_by(|a, b| a.score.total_cmp(&b.score)) else {
            return;
        };
        let score = least.score + weight;
        let chance = (next(&mut self.random) >> 11) as f64 / (1u64 << 53) as f64;
        if chance * score < weight {
            *least = Entry {
                hash,
                score,
                key_len: key.len() as u32,
                kept: [0; KEY_KEPT_MAX],
            };
            let len = key.len().min(KEY_KEPT_MAX);
            least.kept[..len].copy_from_slice(&key[..len]);
        }
    }

    fn rescale(&mut self, now_s: f64) {
        let factor = (-self.half_lives(now_s)).exp2();
        for entry in self.sets.as_flattened_mut() {
            entry.score *= factor;
        }
        self.origin_s = now_s;
    }

    /// All entries, each with its decayed score.
    pub(crate) fn entries(&self, now_s: f64) -> impl Iterator<Item = (&Entry, f64)> {
        let factor = (-self.half_lives(now_s)).exp2();
        let all = self.sets.as_flattened().iter();
        all.filter(|entry| entry.score > 0.0)
            .map(move |entry| (entry, entry.score * factor))
    }
}
