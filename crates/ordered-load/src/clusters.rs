//! The four of Twitter's cache clusters (March 2020) that the design's paper measures, out of
//! the table that `crates/bench/data` carries with its source and licence: Yang, Yue, Rashmi,
//! "A large scale analysis of hundreds of in-memory cache clusters at Twitter", OSDI 2020.
//! The table has means and mixes; lengths are the means, popularity is the Zipf exponent,
//! and keys never seen before are taken one after the other.

use crate::LoadError;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};

const TABLE: &str = include_str!("../../bench/data/twitter-2020-03.csv");

/// Column numbers of the table.
const CLUSTER: usize = 0;
const KEY_LEN: usize = 1;
const VALUE_LEN: usize = 2;
const FRESH_PERCENT: usize = 4;
const OPERATIONS: usize = 6;
const ZIPF: usize = 8;

/// Median latencies at peak throughput in the paper's table, in microseconds: eRPC,
/// DeferredExec, Juneberry.
const PAPER: [(u32, [f64; 3]); 4] = [
    (12, [24.3, 10.3, 3.4]),
    (19, [12.8, 9.2, 5.8]),
    (27, [9.2, 6.8, 5.9]),
    (31, [34.7, 19.7, 3.2]),
];

/// One cluster's requests.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Its number.
    pub number: u32,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// Part of the requests that are SETs.
    pub sets: f64,
    /// Part of the requests for keys never seen before.
    pub fresh: f64,
    /// Exponent of popularity.
    pub zipf: f64,
    /// Medians of the paper, in microseconds: eRPC, DeferredExec, Juneberry.
    pub paper_us: [f64; 3],
}

impl Cluster {
    /// The four.
    pub fn all() -> Result<Vec<Cluster>, LoadError> {
        PAPER
            .iter()
            .map(|(number, paper_us)| {
                Self::read(*number, *paper_us).ok_or(LoadError::Cluster(*number))
            })
            .collect()
    }

    fn read(number: u32, paper_us: [f64; 3]) -> Option<Cluster> {
        let mut rows = TABLE
            .lines()
            .map(|line| line.split(',').collect::<Vec<_>>());
        let row =
            rows.find(|row| row.get(CLUSTER).and_then(|text| text.parse().ok()) == Some(number))?;
        let field = |column: usize| row.get(column).copied();
        let mut sets = 0.0;
        for part in field(OPERATIONS)?.split_whitespace() {
            let (name, share) = part.split_once(':')?;
            if name == "set" {
                sets = share.parse().ok()?;
            }
        }
        Some(Cluster {
            number,
            key_len: field(KEY_LEN)?.parse().ok()?,
            value_len: field(VALUE_LEN)?.parse().ok()?,
            sets,
            fresh: field(FRESH_PERCENT)?.parse::<f64>().ok()? / 100.0,
            zipf: field(ZIPF)?.parse().ok()?,
            paper_us,
        })
    }
}

/// A request: a key's number, and whether it is a SET.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: u64,
    pub(crate) is_set: bool,
}

/// An endless stream of them.
#[derive(Debug)]
pub(crate) struct Stream {
    cluster: Cluster,
    rng: SmallRng,
    zipf: Option<Zipf<f64>>,
    known_count: u64,
    fresh_count: u64,
    fresh_next: u64,
}

impl Stream {
    /// Over so many keys, of which those below [`Stream::known_count`] are chosen by
    /// popularity and the others one after the other, round and round.
    pub(crate) fn new(cluster: Cluster, keys_count: u64, seed: u64) -> Option<Self> {
        let fresh_count = (keys_count as f64 * cluster.fresh) as u64;
        let known_count = keys_count.saturating_sub(fresh_count).max(1);
        let zipf = match cluster.zipf > 0.0 {
            true => Some(Zipf::new(known_count as f64, cluster.zipf).ok()?),
            false => None,
        };
        Some(Stream {
            cluster,
            rng: SmallRng::seed_from_u64(seed),
            zipf,
            known_count,
            fresh_count: fresh_count.max(1),
            fresh_next: 0,
        })
    }

    pub(crate) fn known_count(&self) -> u64 {
        self.known_count
    }

    #[inline]
    pub(crate) fn next(&mut self) -> Wanted {
        let is_set = self.rng.random::<f64>() < self.cluster.sets;
        if self.rng.random::<f64>() < self.cluster.fresh {
            self.fresh_next = (self.fresh_next + 1) % self.fresh_count;
            let key = self.known_count + self.fresh_next;
            return Wanted { key, is_set };
        }
        let rank = match &self.zipf {
            Some(zipf) => zipf.sample(&mut self.rng) as u64 - 1,
            None => self.rng.random_range(0..self.known_count),
        };
        // Popular keys are not neighbours.
        let key = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.known_count;
        Wanted { key, is_set }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_clusters_are_in_the_table() {
        let all = Cluster::all().expect("a table");
        let mixes: Vec<_> = all
            .iter()
            .map(|of| (of.number, of.value_len, of.sets))
            .collect();
        let expected = [
            (12, 1030, 0.8),
            (19, 101, 0.25),
            (27, 8, 0.15),
            (31, 15, 0.94),
        ];
        assert_eq!(mixes, expected);
        for cluster in all {
            let mut stream = Stream::new(cluster, 10_000, 1).expect("a stream");
            let sets = (0..10_000).filter(|_| stream.next().is_set).count() as f64;
            assert!((sets / 10_000.0 - cluster.sets).abs() < 0.02, "{cluster:?}");
        }
    }
}
