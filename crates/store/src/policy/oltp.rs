//! Hit ratios on the OLTP block trace of the ARC paper (N. Megiddo and
//! D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", USENIX
//! FAST 2003), beside those of the simulator libCacheSim 0.3.5.
//!
//! Every reference is reported, one partition, capacity in objects. Does
//! nothing where the trace file is not there; a made-up trace, compared with
//! the reference models, is always there.

use super::reference::{Model, Random};
use super::*;
use std::collections::HashMap;
use std::io::BufRead as _;

const SIZES: [u32; 5] = [1000, 2000, 5000, 10_000, 15_000];

/// Percent, by policy and size.
const REFERENCE: [(PolicyKind, [f64; 5]); 3] = [
    (PolicyKind::Lru, [32.83, 42.47, 53.65, 60.70, 64.63]),
    (PolicyKind::Arc, [38.95, 46.08, 55.25, 61.87, 65.40]),
    (PolicyKind::S3Fifo, [40.86, 47.03, 55.75, 62.69, 65.98]),
];

/// The blocks in the order of their references, numbered from 0, and how many
/// there are.
fn read_trace() -> Option<(Vec<u32>, usize)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/data/OLTP.lis.zst");
    let file = std::fs::File::open(path).ok()?;
    let reader = std::io::BufReader::new(
        ruzstd::decoding::StreamingDecoder::new(std::io::BufReader::new(file))
            .expect("a zstd file"),
    );
    let mut numbers = HashMap::new();
    let mut references = Vec::new();
    for line in reader.lines() {
        let line = line.expect("readable");
        let mut fields = line
            .split_ascii_whitespace()
            .map(|field| field.parse::<u64>());
        let (Some(Ok(start)), Some(Ok(count))) = (fields.next(), fields.next()) else {
            panic!("not a line of a trace: {line:?}");
        };
        for block in start..start + count {
            let next = numbers.len() as u32;
            references.push(*numbers.entry(block).or_insert(next));
        }
    }
    Some((references, numbers.len()))
}

/// Hits of a look-aside cache of `capacity` objects.
fn hits(kind: PolicyKind, capacity: u32, references: &[u32], key_count: usize) -> u64 {
    let mut policy = new(kind, capacity);
    let mut slot_of = vec![None; key_count];
    let mut key_in = vec![0; capacity as usize];
    let mut hits = 0;
    for &key in references {
        if let Some(slot) = slot_of[key as usize] {
            policy.access(slot);
            hits += 1;
            continue;
        }
        policy.prepare(u64::from(key));
        let mut slot = policy.resident_count();
        if slot == capacity {
            let identity_of = &mut |slot: u32| u64::from(key_in[slot as usize]);
            slot = policy.victim(identity_of).expect("it is full");
            slot_of[key_in[slot as usize] as usize] = None;
        }
        policy.insert(slot, u64::from(key));
        key_in[slot as usize] = key;
        slot_of[key as usize] = Some(slot);
    }
    hits
}

#[test]
fn hit_ratios_equal_those_of_the_reference_simulator() {
    let Some((references, key_count)) = read_trace() else {
        return;
    };
    assert_eq!(references.len(), 914_145);
    for (kind, percents) in REFERENCE {
        for (capacity, expected) in SIZES.into_iter().zip(percents) {
            let hits = hits(kind, capacity, &references, key_count);
            let percent = hits as f64 * 100.0 / references.len() as f64;
            assert!(
                (percent - expected).abs() <= 0.01,
                "{kind} with {capacity} objects: {percent:.3} %, reference {expected} %"
            );
        }
    }
}

/// What SLRU has to come to, in percent: well above LRU at every size.
const SLRU_LEAST: [f64; 5] = [37.5, 44.5, 53.8, 61.4, 65.4];

#[test]
fn slru_hits_more_often_than_lru_on_the_trace() {
    let Some((references, key_count)) = read_trace() else {
        return;
    };
    for (capacity, least) in SIZES.into_iter().zip(SLRU_LEAST) {
        let hits = hits(PolicyKind::Slru, capacity, &references, key_count);
        let percent = hits as f64 * 100.0 / references.len() as f64;
        assert!(percent >= least, "{capacity} objects: {percent:.3} %");
    }
}

/// References to a slowly drifting working set, interrupted by loops and scans.
fn made_up_trace() -> (Vec<u32>, usize) {
    let mut random = Random::new(12);
    let mut references = Vec::new();
    let mut scan_at = 8000;
    while references.len() < 30_000 {
        let drift = references.len() as u64 / 500;
        match random.below(200) {
            0 => {
                references.extend(scan_at..scan_at + 300);
                scan_at += 300;
            }
            1 => (0..3).for_each(|_| references.extend(7000..7200)),
            _ => references.push((drift + random.skewed(6000)) as u32),
        }
    }
    (references, scan_at as usize)
}

fn hits_of_model(kind: PolicyKind, capacity: usize, references: &[u32], key_count: usize) -> u64 {
    let mut model = Model::new(kind);
    // A key is its own slot here.
    let mut resident = vec![false; key_count];
    let mut hits = 0;
    for &key in references {
        if resident[key as usize] {
            model.access(key);
            hits += 1;
            continue;
        }
        model.prepare(u64::from(key));
        if model.count() == capacity {
            let slot = model.victim().expect("it is full");
            resident[slot as usize] = false;
        }
        model.insert(key, u64::from(key));
        resident[key as usize] = true;
    }
    hits
}

#[test]
fn a_made_up_trace_hits_as_often_as_in_the_models() {
    let (references, key_count) = made_up_trace();
    for capacity in [1, 9, 100, 600] {
        let [lru, arc, s3fifo] = REFERENCE.map(|(kind, _)| {
            let hits = hits(kind, capacity, &references, key_count);
            let expected = hits_of_model(kind, capacity as usize, &references, key_count);
            assert_eq!(hits, expected, "{kind} with {capacity} objects");
            hits
        });
        if capacity >= 100 {
            assert!(arc > lru && s3fifo > lru, "{lru} {arc} {s3fifo}");
        }
    }
}
