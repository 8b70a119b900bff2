//! Items held per resident byte by caches that are full and go on churning: a
//! corpus of two and a half times the memory, look-aside requests, writes and
//! deletes. Resident is all that the process holds, its files in memory included;
//! held is what lookups of every key find afterwards.
//!
//! What is asked is either of one length of values (Zipf 0.99, 10 % writes, 5 %
//! deletes) or shaped like one of Twitter's clusters (`data/README.md`): popularity
//! and the shares of writes and deletes are the cluster's. Their statistics give means
//! of lengths only. A value's length is drawn from a log-normal distribution around
//! the mean, with a deviation of [`VALUE_LEN_SIGMA`] of the logarithm and a bound of
//! [`VALUE_LEN_FACTOR_MAX`] means; a key's evenly from three quarters to five quarters
//! of the mean. Both belong to the key: it has the same lengths whenever it is
//! written. Times to live are left out, for what has expired is held by nobody. Both
//! caches are asked for the very same keys in the same order.

use std::path::Path;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, LogNormal};
use serde::Serialize;
use trefoil_client::{Cell, Options};

use crate::compare::CompareError;
use crate::load::{KeyChooser, KeyCodec, Operation, Popularity, ValueWriter, mix64};
use crate::peer::{Memcached, PeerKind, PeerOptions, PeerProcess, Waiting, procfs};
use crate::server::{Server, ServerOptions};
use crate::target::trefoil::Trefoil;
use crate::target::{GetOutcome, Item, Target};
use crate::workload::Cluster;

/// Keys, as a multiple of the items that fit by key and value alone.
const CORPUS_FACTOR: f64 = 2.5;
/// Requests after every key was written once, as a multiple of the keys.
const TURNS: u64 = 2;
/// Keys of one request.
const BATCH: usize = 32;
/// Requests with values of one length: parts that write and delete, and popularity.
const WRITES: f64 = 0.10;
const DELETES: f64 = 0.05;
const THETA: f64 = 0.99;
/// Deviation of the logarithm of a cluster's lengths of values.
const VALUE_LEN_SIGMA: f64 = 0.5;
/// Longest value of a cluster, as a multiple of the mean.
const VALUE_LEN_FACTOR_MAX: usize = 8;
/// Shortest key of a cluster: its number has to fit.
const KEY_LEN_MIN: usize = 8;

/// What to run.
#[derive(Debug, Clone)]
pub struct ChurnOptions {
    /// Memory of each cache, in bytes.
    pub memory: u64,
    /// Bytes of a key, where values are of one length.
    pub key_len: usize,
    /// Bytes of a value; a run each.
    pub value_lens: Vec<usize>,
    /// Numbers of Twitter's clusters; a run each.
    pub clusters: Vec<u32>,
}

/// The requests of one run.
#[derive(Debug)]
struct Mix {
    cluster: Option<u32>,
    key_len: usize,
    value_len: usize,
    writes: f64,
    deletes: f64,
    theta: f64,
}

impl Mix {
    fn fixed(key_len: usize, value_len: usize) -> Self {
        Mix {
            cluster: None,
            key_len,
            value_len,
            writes: WRITES,
            deletes: DELETES,
            theta: THETA,
        }
    }

    fn of_cluster(number: u32) -> Result<Self, CompareError> {
        let cluster = Cluster::by_number(number)?;
        let part = |operation| {
            let parts = cluster.operations.iter().filter(|(o, _)| *o == operation);
            parts.map(|(_, part)| part).sum()
        };
        Ok(Mix {
            cluster: Some(number),
            key_len: cluster.key_len,
            value_len: cluster.value_len,
            writes: part(Operation::Set),
            deletes: part(Operation::Erase),
            theta: cluster.zipf_theta,
        })
    }

    fn key_len_max(&self) -> usize {
        match self.cluster {
            None => self.key_len,
            Some(_) => (self.key_len * 5 / 4).max(KEY_LEN_MIN),
        }
    }

    fn value_len_max(&self) -> usize {
        match self.cluster {
            None => self.value_len,
            Some(_) => self.value_len * VALUE_LEN_FACTOR_MAX,
        }
    }

    /// Bytes of a key and of its value.
    fn lens(&self, number: u64) -> (usize, usize) {
        if self.cluster.is_none() {
            return (self.key_len, self.value_len);
        }
        let mut dice = SmallRng::seed_from_u64(mix64(number));
        let key_len = dice.random_range(self.key_len * 3 / 4..=self.key_len_max());
        // The median that makes the mean what it should be.
        let location = (self.value_len as f64).ln() - VALUE_LEN_SIGMA.powi(2) / 2.0;
        let drawn = LogNormal::new(location, VALUE_LEN_SIGMA)
            .map_or(self.value_len as f64, |law| law.sample(&mut dice));
        let value_len = (drawn as usize).clamp(1, self.value_len_max());
        (key_len.max(KEY_LEN_MIN.min(self.key_len_max())), value_len)
    }
}

/// One cache.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ChurnFigures {
    /// Items found in the end.
    pub items: u64,
    /// Resident bytes in the end.
    pub resident_bytes: u64,
    /// The same for each item.
    pub resident_bytes_per_item: f64,
    /// Bytes of their keys and values.
    pub item_bytes: u64,
    /// Hits per lookup in the second half, 0 to 1.
    pub hit_ratio: f64,
}

/// One length of values, or one cluster.
#[derive(Debug, Clone, Serialize)]
pub struct ChurnCase {
    /// The cluster's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<u32>,
    /// Bytes of a key; of a cluster, their mean.
    pub key_size: usize,
    /// Bytes of a value; of a cluster, their mean.
    pub value_size: usize,
    /// One copy.
    pub trefoil: ChurnFigures,
    /// The peer.
    pub memcached: ChurnFigures,
    /// Values that the peer refused for want of memory, and that were sent again. A
    /// refusal of Trefoil's ends the run.
    pub refused: u64,
    /// Items per resident byte, Trefoil's by the peer's.
    pub ratio: f64,
}

/// What `trefoil bench churn --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct ChurnReport {
    /// Memory of each cache, in bytes.
    pub memory: u64,
    /// The peer's name and version.
    pub peer: String,
    /// By length of values, then by cluster.
    pub cases: Vec<ChurnCase>,
}

/// Fills both, lets them churn, and looks at what they hold. `ended` is called with
/// every case as it ends, and with the peer's name and version.
pub fn churn(
    program: &Path,
    options: &ChurnOptions,
    progress: &mut dyn FnMut(&str),
    ended: &mut dyn FnMut(&ChurnCase, &str),
) -> Result<ChurnReport, CompareError> {
    let fixed = options.value_lens.iter();
    let fixed = fixed.map(|len| Ok(Mix::fixed(options.key_len, *len)));
    let clusters = options
        .clusters
        .iter()
        .map(|number| Mix::of_cluster(*number));
    let mixes: Vec<Mix> = fixed.chain(clusters).collect::<Result<_, CompareError>>()?;
    let mut cases = Vec::new();
    let mut peer_label = String::new();
    for mix in &mixes {
        let name = match mix.cluster {
            None => format!("{} B values", mix.value_len),
            Some(number) => format!("cluster {number}"),
        };
        progress(&format!("{name}: Trefoil"));
        let trefoil = {
            let server = Server::start(&ServerOptions::new(program, "R=1", options.memory))?;
            let cell = Cell::connect(&server.address)?;
            let mut target = Trefoil::new(cell.client(Options::default()));
            let run = run(&mut target, options.memory, mix)?;
            server.settle()?;
            figures(run, server.resident()?)
        };
        progress(&format!("{name}: memcached"));
        let (memcached, refused) = {
            let peer =
                PeerProcess::start(PeerOptions::new(PeerKind::Memcached, options.memory >> 20))?;
            peer_label = peer.label();
            let mut target = Memcached::connect(peer.endpoint(), Waiting::Spinning)?;
            let run = run(&mut target, options.memory, mix)?;
            let resident = procfs::resident_with_program(peer.pid())?;
            (figures(run, resident), target.refused())
        };
        let case = ChurnCase {
            cluster: mix.cluster,
            key_size: mix.key_len,
            value_size: mix.value_len,
            ratio: memcached.resident_bytes_per_item / trefoil.resident_bytes_per_item,
            trefoil,
            memcached,
            refused,
        };
        ended(&case, &peer_label);
        cases.push(case);
    }
    Ok(ChurnReport {
        memory: options.memory,
        peer: peer_label,
        cases,
    })
}

/// Items found in the end, the bytes of their keys and values, and hits per lookup.
type Run = (u64, u64, f64);

fn figures((items, item_bytes, hit_ratio): Run, resident_bytes: u64) -> ChurnFigures {
    ChurnFigures {
        items,
        resident_bytes,
        resident_bytes_per_item: resident_bytes as f64 / items.max(1) as f64,
        item_bytes,
        hit_ratio,
    }
}

/// Spells keys.
struct Speller<'a> {
    mix: &'a Mix,
    codec: KeyCodec,
    buffer: Vec<u8>,
}

impl Speller<'_> {
    /// A key and the length of its value. The number stands at a key's end.
    fn spell(&mut self, number: u64, key: &mut Vec<u8>) -> usize {
        let (key_len, value_len) = self.mix.lens(number);
        self.codec.encode(number, &mut self.buffer);
        key.clear();
        key.extend_from_slice(&self.buffer[self.buffer.len() - key_len..]);
        value_len
    }
}

fn run<T: Target>(target: &mut T, memory: u64, mix: &Mix) -> Result<Run, CompareError> {
    let item_len = (mix.key_len + mix.value_len) as f64;
    let keys = (memory as f64 * CORPUS_FACTOR / item_len) as u64;
    let codec = KeyCodec::new(mix.key_len_max(), keys)?;
    let mut speller = Speller {
        mix,
        codec,
        buffer: codec.buffer(),
    };
    let value_len_max = mix.value_len_max();
    let mut writer = ValueWriter::new(value_len_max);
    let value = writer.compose(1, 1, value_len_max).to_vec();
    let mut spelled: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0); BATCH];
    for first in (0..keys).step_by(BATCH) {
        let count = (keys - first).min(BATCH as u64) as usize;
        for (number, (key, value_len)) in (first..).zip(&mut spelled[..count]) {
            *value_len = speller.spell(number, key);
        }
        let all = spelled[..count].iter();
        let items: Vec<Item<'_>> = all.map(|(key, len)| (&key[..], &value[..*len])).collect();
        target.set_many(&items)?;
    }
    let mut chooser = KeyChooser::new(Popularity::Zipf { theta: mix.theta }, keys, 1)?;
    let (mut hits, mut lookups) = (0, 0);
    let batches = keys * TURNS / BATCH as u64;
    for batch in 0..batches {
        let (mut writes, mut reads) = (Vec::<Item<'_>>::new(), Vec::<Item<'_>>::new());
        for (key, value_len) in &mut spelled {
            *value_len = speller.spell(chooser.next_key(), key);
            let item = (&key[..], &value[..*value_len]);
            match chooser.rng().random::<f64>() {
                dice if dice < mix.deletes => {
                    target.erase(key)?;
                }
                dice if dice < mix.deletes + mix.writes => writes.push(item),
                _ => reads.push(item),
            }
        }
        let asked: Vec<&[u8]> = reads.iter().map(|(key, _)| *key).collect();
        let found = present(target, &asked)?;
        if batch > batches / 2 {
            lookups += reads.len() as u64;
            hits += found.iter().filter(|found| **found).count() as u64;
        }
        let missed = reads.iter().zip(&found).filter(|(_, found)| !**found);
        writes.extend(missed.map(|(item, _)| *item));
        target.set_many(&writes)?;
    }
    let (mut items, mut item_bytes) = (0, 0);
    for first in (0..keys).step_by(BATCH) {
        let count = (keys - first).min(BATCH as u64) as usize;
        for (number, (key, value_len)) in (first..).zip(&mut spelled[..count]) {
            *value_len = speller.spell(number, key);
        }
        let all: Vec<&[u8]> = spelled[..count].iter().map(|(key, _)| &key[..]).collect();
        let found = present(target, &all)?;
        for ((key, value_len), _) in spelled.iter().zip(&found).filter(|(_, found)| **found) {
            items += 1;
            item_bytes += (key.len() + value_len) as u64;
        }
    }
    Ok((items, item_bytes, hits as f64 / lookups.max(1) as f64))
}

/// Which keys are there.
fn present<T: Target>(target: &mut T, keys: &[&[u8]]) -> Result<Vec<bool>, CompareError> {
    let mut found = vec![false; keys.len()];
    target.get_many(keys, &mut |at, outcome| {
        found[at] = matches!(outcome, GetOutcome::Hit(_));
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clusters_lengths_have_its_means_and_keys_are_apart() {
        let mix = Mix::of_cluster(29).unwrap();
        assert_eq!((mix.key_len, mix.value_len), (36, 799));
        let codec = KeyCodec::new(mix.key_len_max(), 100_000).unwrap();
        let mut speller = Speller {
            mix: &mix,
            codec,
            buffer: codec.buffer(),
        };
        let (mut keys, mut key_bytes, mut value_bytes) = (Vec::new(), 0, 0);
        for number in 0..20_000 {
            let mut key = Vec::new();
            let value_len = speller.spell(number, &mut key);
            assert_eq!((key.len(), value_len), mix.lens(number));
            assert!((1..=mix.value_len_max()).contains(&value_len));
            (key_bytes, value_bytes) = (key_bytes + key.len(), value_bytes + value_len);
            keys.push(key);
        }
        let means = [key_bytes, value_bytes].map(|bytes| bytes as f64 / 20_000.0);
        assert!((means[0] - 36.0).abs() < 0.5, "{means:?}");
        assert!((means[1] - 799.0).abs() < 16.0, "{means:?}");
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 20_000);
    }

    #[test]
    fn clusters_write_and_delete_as_their_rows_say() {
        let mix = Mix::of_cluster(14).unwrap();
        assert!((mix.writes - 0.13).abs() < 1e-9 && (mix.deletes - 0.22).abs() < 1e-9);
        assert!(Mix::of_cluster(5).is_err());
    }
}
