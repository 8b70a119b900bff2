//! A cell whose replicas differ is made to agree again, in the background and on demand.

use crate::support::{Caller, Cell, LIFE, Setup, TOPOLOGY, next_version};
use std::time::{Duration, Instant};
use trefoil_backend::RepairOptions;
use trefoil_cell::Mode;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_layout::{KeyHasher, Placement, Version};
use trefoil_rpc::v1;

/// As short as an operator may choose it.
const INTERVAL: Duration = Duration::from_secs(1);
/// Far more than two intervals, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn cell(interval: Duration) -> Cell {
    let mut setup = Setup::new(Mode::R32, 3);
    let rate = 64 << 20;
    setup.options.repair = RepairOptions { interval, rate };
    setup.listen.fabric = None;
    setup.start()
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn mutate(
    caller: &mut Caller<'_>,
    backends: &[u32],
    (action, key, value): (Action, &[u8], &[u8]),
    version: Version,
) {
    let entry = DataEntry {
        key,
        value,
        ..DataEntry::default()
    };
    let mutation = Mutation {
        action,
        version,
        entry,
    };
    for backend in backends {
        let request = trefoil_rpc::encode_mutation(*backend, TOPOLOGY, &mutation);
        assert_eq!(caller.mutate(request).unwrap().outcome, Outcome::Applied);
    }
}

fn values(caller: &mut Caller<'_>, key: &[u8]) -> [Option<Vec<u8>>; 3] {
    [0, 1, 2].map(|backend| caller.get(backend, TOPOLOGY.config_id, key))
}

/// Of all backends together.
fn repairs(caller: &mut Caller<'_>) -> v1::RepairStats {
    let stats = caller.stats();
    let mut sum = v1::RepairStats::default();
    for member in stats.members {
        let repair = member.repair.unwrap();
        sum.scans += repair.scans;
        sum.suspects += repair.suspects;
        sum.installed += repair.installed;
        sum.erased += repair.erased;
        sum.renewed += repair.renewed;
        sum.evicted += repair.evicted;
        sum.bytes += repair.bytes;
        sum.named += repair.named;
        sum.backlog += repair.backlog;
    }
    sum
}

/// Waits until that holds; otherwise says what was last.
fn until(caller: &mut Caller<'_>, holds: impl Fn(&v1::RepairStats) -> bool) -> v1::RepairStats {
    let begin = Instant::now();
    loop {
        let stats = repairs(caller);
        if holds(&stats) {
            return stats;
        }
        assert!(begin.elapsed() < PATIENCE, "{stats:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_scan_finds_what_differs_and_mends_it_at_little_cost() {
    let cell = cell(INTERVAL);
    let caller = &mut cell.client();
    let count = 3_000;
    let (all, value) = ([0, 1, 2], vec![b'v'; 1000]);
    let mut versions = Vec::new();
    for number in 0..count {
        versions.push(next_version());
        // One in a hundred is missed by some replica.
        let missing = (number % 100 == 0).then_some((number / 100 % 3) as u32);
        let backends: Vec<u32> = all.into_iter().filter(|b| Some(*b) != missing).collect();
        let set = (Action::Set, &*key(number), &*value);
        mutate(caller, &backends, set, versions[number]);
    }
    // An erasure that one has missed, a write that reached one alone, a long value.
    let erased = key(1);
    mutate(
        caller,
        &[0, 2],
        (Action::Erase, &erased, b""),
        next_version(),
    );
    let lone = key(2);
    mutate(caller, &[1], (Action::Set, &lone, b"lone"), next_version());
    let long = vec![b'l'; 300 << 10];
    let set = (Action::Set, &b"long"[..], &*long);
    mutate(caller, &[1, 2], set, next_version());
    let stats = until(caller, |stats| {
        stats.installed >= 31 && stats.erased >= 1 && stats.renewed >= 1 && stats.backlog == 0
    });
    assert_eq!((stats.installed, stats.erased, stats.renewed), (31, 1, 1));
    for number in 0..count {
        let wanted = (number != 1).then(|| value.clone());
        assert_eq!(
            values(caller, &key(number)),
            [0, 1, 2].map(|_| wanted.clone()),
            "{number}"
        );
    }
    let long_values = values(caller, b"long");
    assert!(
        long_values
            .into_iter()
            .all(|value| value.as_ref() == Some(&long))
    );

    // Two more scans of each cost next to nothing: digests of the whole.
    let before = until(caller, |now| now.scans >= stats.scans + 3);
    let after = until(caller, |now| now.scans >= before.scans + 6);
    let clean = (after.bytes - before.bytes) / 2;
    let corpus = count as u64 * 1000;
    assert!(
        clean < corpus / 500,
        "{clean} bytes a scan of all three shards"
    );
    assert_eq!(after.suspects, before.suspects);
}

#[test]
fn keys_that_are_named_are_mended_before_the_next_scan() {
    let cell = cell(Duration::from_secs(3600));
    let caller = &mut cell.client();
    let placement = Placement::new(3, 3);
    let hasher = KeyHasher::default();
    let name = |caller: &mut Caller<'_>, shard: u32, hashes: Vec<u64>| {
        let request = v1::SuspectRequest {
            shard: Some(v1::ShardName {
                backend: shard,
                shard,
                life: LIFE,
                incarnation: 0,
                backends: 0,
            }),
            keys: Some(v1::ScanKeys { hashes }),
        };
        caller.cell.runtime.block_on(caller.client.suspect(request))
    };
    for number in 0..10 {
        let set = (Action::Set, &*key(number), &b"value"[..]);
        mutate(caller, &[1, 2], set, next_version());
    }
    for number in 0..10 {
        let hash = hasher.hash(&key(number));
        let shard = placement.first(hash);
        // Once more by mistake, and a key of another shard, which is passed over.
        let other = (0..).map(key).map(|key| hasher.hash(&key));
        let other = other
            .into_iter()
            .find(|hash| placement.first(*hash) != shard);
        let hashes = [hash, hash, other.unwrap()];
        name(caller, shard, trefoil_rpc::encode_hashes(&hashes)).unwrap();
    }
    let stats = until(caller, |stats| stats.installed == 10 && stats.backlog == 0);
    assert_eq!((stats.scans, stats.named), (0, 10));
    for number in 0..10 {
        let value = Some(b"value".to_vec());
        assert_eq!(
            values(caller, &key(number)),
            [0, 1, 2].map(|_| value.clone())
        );
    }
    assert!(name(caller, 0, vec![1, 0]).is_err(), "no key has tag 0");
    assert!(name(caller, 7, vec![1, 2]).is_err(), "no such backend");
}

#[test]
fn without_an_interval_nothing_is_repaired() {
    let cell = cell(Duration::ZERO);
    let caller = &mut cell.client();
    let stats = caller.stats();
    assert!(stats.members.iter().all(|member| member.repair.is_none()));
}
