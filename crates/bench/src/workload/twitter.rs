//! Request streams shaped like Twitter's cache clusters of March 2020.
//!
//! The published statistics are means and mixes, not traces: lengths are the
//! cluster's mean, popularity is its Zipf exponent, and the share of requests for
//! keys never seen before goes to a range of keys of its own, one after the other.
//! Counters and appended values become plain writes. See `data/README.md` for the
//! source and its licence.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::RngExt as _;
use serde::Deserialize;

use crate::load::{
    KeyChooser, KeyCodec, LoadError, Operation, Popularity, Request, RequestSource, Share,
};

const TABLE: &str = include_str!("../../data/twitter-2020-03.csv");

/// A table or a choice from it that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// Not a table.
    #[error("table of clusters: {0}")]
    Table(#[from] csv::Error),
    /// A field with no meaning.
    #[error("cluster {cluster}: {field} {text:?} is not understood")]
    Field {
        /// Whose row.
        cluster: u32,
        /// Which column.
        field: &'static str,
        /// What it says.
        text: String,
    },
    /// Not in the table.
    #[error("no cluster {cluster}: there are {known}")]
    Unknown {
        /// The one asked for.
        cluster: u32,
        /// Those to choose from.
        known: String,
    },
}

/// One cluster's statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Its number.
    pub number: u32,
    /// Mean bytes of a key.
    pub key_len: usize,
    /// Mean bytes of a value.
    pub value_len: usize,
    /// Requests per second of one server.
    pub ops_per_s: f64,
    /// Part of the requests for keys never seen before, 0 to 1.
    pub fresh: f64,
    /// Bytes alive at a time, where at least a megabyte.
    pub working_set_len: Option<u64>,
    /// Part of each operation, adding up to 1.
    pub operations: Vec<(Operation, f64)>,
    /// Lives of written values and the part of each, adding up to 1.
    pub ttls: Vec<(Duration, f64)>,
    /// Exponent of popularity.
    pub zipf_theta: f64,
}

#[derive(Deserialize)]
struct Row {
    cluster: u32,
    key_len: usize,
    value_len: usize,
    rate_kops: f64,
    compulsory_miss_percent: f64,
    working_set_mb: Option<u64>,
    operations: String,
    ttls: String,
    zipf_alpha: f64,
}

/// All clusters of the carried table, by number.
pub fn clusters() -> Result<BTreeMap<u32, Cluster>, WorkloadError> {
    parse(TABLE)
}

impl Cluster {
    /// One cluster of the carried table.
    pub fn by_number(cluster: u32) -> Result<Self, WorkloadError> {
        let mut all = clusters()?;
        all.remove(&cluster).ok_or_else(|| WorkloadError::Unknown {
            cluster,
            known: all
                .keys()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// Part of the requests that are lookups.
    pub fn gets(&self) -> f64 {
        let gets = self.operations.iter().filter(|(o, _)| *o == Operation::Get);
        gets.map(|(_, part)| part).sum()
    }
}

fn parse(table: &str) -> Result<BTreeMap<u32, Cluster>, WorkloadError> {
    csv::Reader::from_reader(table.as_bytes())
        .into_deserialize::<Row>()
        .map(|row| {
            let row = row?;
            let field = |field, text: &str| WorkloadError::Field {
                cluster: row.cluster,
                field,
                text: text.to_owned(),
            };
            let operations = parts(&row.operations, operation)
                .ok_or_else(|| field("operations", &row.operations))?;
            let life = |text: &str| text.parse().ok().map(Duration::from_secs);
            let ttls = parts(&row.ttls, life).ok_or_else(|| field("ttls", &row.ttls))?;
            let fresh = row.compulsory_miss_percent / 100.0;
            if !(0.0..=1.0).contains(&fresh) {
                let text = row.compulsory_miss_percent.to_string();
                return Err(field("compulsory_miss_percent", &text));
            }
            if !(row.zipf_alpha >= 0.0 && row.zipf_alpha.is_finite()) {
                return Err(field("zipf_alpha", &row.zipf_alpha.to_string()));
            }
            Ok((
                row.cluster,
                Cluster {
                    number: row.cluster,
                    key_len: row.key_len,
                    value_len: row.value_len,
                    ops_per_s: row.rate_kops * 1000.0,
                    fresh,
                    working_set_len: row
                        .working_set_mb
                        .filter(|mb| *mb > 0)
                        .map(|mb| mb.saturating_mul(1_000_000)),
                    operations,
                    ttls,
                    zipf_theta: row.zipf_alpha,
                },
            ))
        })
        .collect()
}

fn operation(name: &str) -> Option<Operation> {
    Some(match name {
        "get" | "gets" => Operation::Get,
        "set" | "add" | "cas" | "replace" | "append" | "prepend" | "incr" | "decr" => {
            Operation::Set
        }
        "delete" => Operation::Erase,
        _ => return None,
    })
}

/// `name:part name:part …`, equal names added up, parts scaled to a sum of 1.
fn parts<T: PartialEq>(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<Vec<(T, f64)>> {
    let mut parts: Vec<(T, f64)> = Vec::new();
    for word in text.split_whitespace() {
        let (name, part) = word.split_once(':')?;
        let (name, part) = (read(name)?, part.parse::<f64>().ok()?);
        if !(0.0..=1.0).contains(&part) {
            return None;
        }
        match parts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += part,
            None => parts.push((name, part)),
        }
    }
    let sum: f64 = parts.iter().map(|(_, part)| part).sum();
    if sum <= 0.0 {
        return None;
    }
    for (_, part) in &mut parts {
        *part /= sum;
    }
    Some(parts)
}

fn draw<T: Copy>(parts: &[(T, f64)], dice: f64) -> Option<T> {
    let mut left = dice;
    for (what, part) in parts {
        left -= part;
        if left < 0.0 {
            return Some(*what);
        }
    }
    parts.last().map(|(what, _)| *what)
}

/// An endless stream of one cluster's requests.
#[derive(Debug, Clone)]
pub struct ClusterSource {
    cluster: Cluster,
    codec: KeyCodec,
    chooser: KeyChooser,
    known_count: u64,
    fresh_count: u64,
    fresh_next: u64,
    share: Share,
}

impl ClusterSource {
    /// Over `keys_count` keys: a part of them, as large as the share of requests
    /// for new keys, is used one after the other, round and round; the others by
    /// popularity.
    pub fn new(
        cluster: Cluster,
        keys_count: u64,
        share: Share,
        seed: u64,
    ) -> Result<Self, LoadError> {
        let fresh_count = (keys_count as f64 * cluster.fresh) as u64;
        let known_count = keys_count.saturating_sub(fresh_count).max(1);
        let theta = cluster.zipf_theta;
        Ok(Self {
            codec: KeyCodec::new(cluster.key_len, keys_count)?,
            chooser: KeyChooser::new(Popularity::Zipf { theta }, known_count, seed)?,
            known_count,
            fresh_count: keys_count.saturating_sub(known_count),
            fresh_next: share.index,
            cluster,
            share,
        })
    }

    /// Keys below this are chosen by popularity: those worth loading beforehand.
    pub fn known_count(&self) -> u64 {
        self.known_count
    }
}

impl RequestSource for ClusterSource {
    fn codec(&self) -> KeyCodec {
        self.codec
    }

    fn keys_count(&self) -> u64 {
        self.known_count + self.fresh_count
    }

    fn next_request(&mut self) -> Option<Request> {
        let dice: [f64; 3] = self.chooser.rng().random();
        let operation = draw(&self.cluster.operations, dice[0])?;
        let key = if self.fresh_count > self.share.count && dice[1] < self.cluster.fresh {
            let fresh = self.known_count + self.fresh_next;
            self.fresh_next = (self.fresh_next + self.share.count) % self.fresh_count;
            fresh
        } else {
            self.chooser.next_key()
        };
        let key = match operation {
            Operation::Get => key,
            Operation::Set | Operation::Erase => self.share.own(key, self.keys_count()),
        };
        Some(Request {
            operation,
            key,
            value_len: self.cluster.value_len,
            ttl: draw(&self.cluster.ttls, dice[2]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_carried_cluster_makes_requests() {
        let all = clusters().unwrap();
        assert_eq!(all.len(), 51);
        for cluster in all.into_values() {
            let total: f64 = cluster.operations.iter().map(|(_, part)| part).sum();
            assert!((total - 1.0).abs() < 1e-9);
            let mut source = ClusterSource::new(cluster, 100_000, Share::WHOLE, 1).unwrap();
            for _ in 0..1_000 {
                let request = source.next_request().unwrap();
                assert!(request.key < source.keys_count());
                assert!(request.ttl.is_some());
            }
        }
    }

    #[test]
    fn a_cluster_looks_like_its_row() {
        let cluster = Cluster::by_number(12).unwrap();
        assert_eq!((cluster.key_len, cluster.value_len), (44, 1030));
        assert!((cluster.gets() - 0.2).abs() < 1e-9);
        assert_eq!(cluster.working_set_len, Some(986_000_000));
        let mut source = ClusterSource::new(cluster, 100_000, Share::WHOLE, 1).unwrap();
        let (mut sets, mut fresh, mut five_minutes) = (0, 0, 0);
        for _ in 0..100_000 {
            let request = source.next_request().unwrap();
            sets += u32::from(request.operation == Operation::Set);
            fresh += u32::from(request.key >= source.known_count());
            five_minutes += u32::from(request.ttl == Some(Duration::from_secs(300)));
        }
        assert!((79_000..81_000).contains(&sets), "{sets}");
        assert!((78_500..80_500).contains(&fresh), "{fresh}");
        assert!((97_500..98_500).contains(&five_minutes), "{five_minutes}");
    }

    #[test]
    fn counters_write_and_deletes_erase() {
        let cluster = Cluster::by_number(22).unwrap();
        let sets: f64 = cluster
            .operations
            .iter()
            .filter(|(operation, _)| *operation == Operation::Set)
            .map(|(_, part)| part)
            .sum();
        assert!(sets > 0.27, "incr and set together: {sets}");
        let erases = Cluster::by_number(14).unwrap().operations;
        assert!(
            erases
                .iter()
                .any(|(o, part)| *o == Operation::Erase && *part > 0.2)
        );
    }

    #[test]
    fn unknown_clusters_and_broken_rows_are_errors() {
        let error = Cluster::by_number(5).unwrap_err().to_string();
        assert!(error.contains("1, 2, 3"), "{error}");
        let header = TABLE.lines().next().unwrap();
        for row in [
            "1,8,9,1,0,0,get:x,60:1,1",
            "1,8,9,1,0,0,steal:1,60:1,1",
            "1,8,9,1,0,0,get:1,soon:1,1",
            "1,8,9,1,0,0,,60:1,1",
            "1,8,9,1,101,0,get:1,60:1,1",
            "1,8,9,1,0,0,get:1,60:1,-1",
            "1,8,9,1",
            "1,big,9,1,0,0,get:1,60:1,1",
        ] {
            assert!(parse(&format!("{header}\n{row}\n")).is_err(), "{row}");
        }
    }
}
