//! Items held per resident byte by caches that are full and go on churning: a
//! corpus of two and a half times the memory, skewed look-aside requests, some
//! writes and deletes. Resident is all that the process holds, its files in
//! memory included; held is what lookups of every key find afterwards.

use std::path::Path;

use rand::RngExt as _;
use serde::Serialize;
use trefoil_client::{Cell, Options};

use crate::compare::CompareError;
use crate::load::{KeyChooser, KeyCodec, Popularity, RunShared, ValueLen, ValueWriter, preload};
use crate::peer::{Memcached, PeerKind, PeerOptions, PeerProcess, Waiting, procfs};
use crate::server::{Server, ServerOptions};
use crate::target::trefoil::Trefoil;
use crate::target::{GetOutcome, Item, Target};

/// Keys, as a multiple of the items that fit by key and value alone.
const CORPUS_FACTOR: f64 = 2.5;
/// Requests after every key was written once, as a multiple of the keys.
const TURNS: u64 = 2;
/// Keys of one request.
const BATCH: usize = 32;
/// Of a hundred keys, how many are written and how many are deleted.
const WRITES_PERCENT: u32 = 10;
const DELETES_PERCENT: u32 = 5;

/// What to run.
#[derive(Debug, Clone)]
pub struct ChurnOptions {
    /// Memory of each cache, in bytes.
    pub memory: u64,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value; a run each.
    pub value_lens: Vec<usize>,
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
    /// Hits per lookup in the second half, 0 to 1.
    pub hit_ratio: f64,
}

/// One length of values.
#[derive(Debug, Clone, Serialize)]
pub struct ChurnCase {
    /// Bytes of a value.
    pub value_size: usize,
    /// One copy.
    pub trefoil: ChurnFigures,
    /// The peer.
    pub memcached: ChurnFigures,
    /// Items per resident byte, Trefoil's by the peer's.
    pub ratio: f64,
}

/// What `trefoil bench churn --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct ChurnReport {
    /// Memory of each cache, in bytes.
    pub memory: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// The peer's name and version.
    pub peer: String,
    /// By length of values.
    pub cases: Vec<ChurnCase>,
}

/// Fills both, lets them churn, and looks at what they hold.
pub fn churn(
    program: &Path,
    options: &ChurnOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<ChurnReport, CompareError> {
    let mut cases = Vec::new();
    let mut peer_label = String::new();
    for &value_len in &options.value_lens {
        progress(&format!("{value_len} B values: Trefoil"));
        let trefoil = {
            let server = Server::start(&ServerOptions::new(program, "R=1", options.memory))?;
            let cell = Cell::connect(&server.address)?;
            let mut target = Trefoil::new(cell.client(Options::default()));
            let run = run(&mut target, options, value_len)?;
            server.settle()?;
            figures(run, server.resident()?)
        };
        progress(&format!("{value_len} B values: memcached"));
        let memcached = {
            let peer =
                PeerProcess::start(PeerOptions::new(PeerKind::Memcached, options.memory >> 20))?;
            peer_label = peer.label();
            let mut target = Memcached::connect(peer.endpoint(), Waiting::Spinning)?;
            let run = run(&mut target, options, value_len)?;
            figures(run, procfs::resident_with_program(peer.pid())?)
        };
        cases.push(ChurnCase {
            value_size: value_len,
            ratio: memcached.resident_bytes_per_item / trefoil.resident_bytes_per_item,
            trefoil,
            memcached,
        });
    }
    Ok(ChurnReport {
        memory: options.memory,
        key_size: options.key_len,
        peer: peer_label,
        cases,
    })
}

/// Items found in the end, and hits per lookup.
type Run = (u64, f64);

fn figures((items, hit_ratio): Run, resident_bytes: u64) -> ChurnFigures {
    ChurnFigures {
        items,
        resident_bytes,
        resident_bytes_per_item: resident_bytes as f64 / items.max(1) as f64,
        hit_ratio,
    }
}

fn run<T: Target>(
    target: &mut T,
    options: &ChurnOptions,
    value_len: usize,
) -> Result<Run, CompareError> {
    let item_len = (options.key_len + value_len) as f64;
    let keys = (options.memory as f64 * CORPUS_FACTOR / item_len) as u64;
    let codec = KeyCodec::new(options.key_len, keys)?;
    let len = ValueLen::Fixed(value_len);
    let shared = RunShared::reading();
    preload(target, codec, 0..keys, len, &shared, &mut |_| {})?;
    let mut chooser = KeyChooser::new(Popularity::Zipf { theta: 0.99 }, keys, 1)?;
    let mut writer = ValueWriter::new(value_len);
    let value = writer.compose(1, 1, value_len).to_vec();
    let mut spelled = vec![codec.buffer(); BATCH];
    let (mut hits, mut lookups) = (0, 0);
    let batches = keys * TURNS / BATCH as u64;
    for batch in 0..batches {
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        for key in &mut spelled {
            codec.encode(chooser.next_key(), key);
            match chooser.rng().random_range(0..100u32) {
                dice if dice < DELETES_PERCENT => {
                    target.erase(key)?;
                }
                dice if dice < DELETES_PERCENT + WRITES_PERCENT => writes.push(key.as_slice()),
                _ => reads.push(key.as_slice()),
            }
        }
        let found = present(target, &reads)?;
        if batch > batches / 2 {
            lookups += reads.len() as u64;
            hits += found.iter().filter(|found| **found).count() as u64;
        }
        let missed = reads.iter().zip(&found).filter(|(_, found)| !**found);
        writes.extend(missed.map(|(key, _)| *key));
        let items: Vec<Item<'_>> = writes.iter().map(|key| (*key, value.as_slice())).collect();
        target.set_many(&items)?;
    }
    let mut items = 0;
    for first in (0..keys).step_by(BATCH) {
        let count = (keys - first).min(BATCH as u64) as usize;
        for (number, key) in (first..).zip(&mut spelled[..count]) {
            codec.encode(number, key);
        }
        let all: Vec<&[u8]> = spelled[..count].iter().map(Vec::as_slice).collect();
        items += present(target, &all)?
            .iter()
            .filter(|found| **found)
            .count() as u64;
    }
    Ok((items, hits as f64 / lookups.max(1) as f64))
}

/// Which keys are there.
fn present<T: Target>(target: &mut T, keys: &[&[u8]]) -> Result<Vec<bool>, CompareError> {
    let mut found = vec![false; keys.len()];
    target.get_many(keys, &mut |at, outcome| {
        found[at] = matches!(outcome, GetOutcome::Hit(_));
    })?;
    Ok(found)
}
