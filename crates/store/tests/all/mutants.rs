//! Each safety rule turned off does the harm that the simulator looks for.

use crate::common::*;
use trefoil_layout::Version;
use trefoil_layout::op::{Expected, Outcome};
use trefoil_store::mutants::{self, Mutant};
use trefoil_store::{PolicyKind, Regions, Store, StoreConfig};

fn store() -> Store {
    let config = StoreConfig {
        objects_max: Some(2),
        tombstone_count_max: 1,
        // Whose order of eviction is known.
        policy: PolicyKind::Lru,
        ..config(256 * KIB, 1)
    };
    Store::new(config, Regions::heap(256 * KIB)).unwrap()
}

/// Runs `harm` with the rule and without it.
fn both(mutant: Mutant, harm: impl Fn(&Store) -> bool) {
    mutants::set(None);
    assert!(!harm(&store()), "{mutant:?} does harm by itself");
    mutants::set(Some(mutant));
    assert!(harm(&store()), "{mutant:?} does no harm");
    mutants::set(None);
}

#[test]
fn a_set_below_the_bound() {
    both(Mutant::BoundIgnored, |store| {
        set(store, b"k", b"new", 2);
        set(store, b"k", b"old", 1) == Outcome::Applied
    });
}

#[test]
fn a_late_set_over_a_forgotten_tombstone() {
    both(Mutant::TombstoneForgottenSilently, |store| {
        erase(store, b"a", 5);
        erase(store, b"b", 6);
        set(store, b"a", b"late", 4) == Outcome::Applied
    });
}

#[test]
fn a_late_set_over_an_eviction() {
    both(Mutant::EvictionForgotten, |store| {
        for (n, key) in [b"a", b"b", b"c"].into_iter().enumerate() {
            set(store, key, b"v", 5 + n as u64);
        }
        set(store, b"a", b"late", 4) == Outcome::Applied
    });
}

#[test]
fn a_cas_over_another_version() {
    both(Mutant::CasNotExact, |store| {
        set(store, b"k", b"v", 5);
        let expected = Expected::Version(version(4));
        cas(store, b"k", b"w", expected, 6) == Outcome::Applied
    });
}

#[test]
fn data_that_is_not_there_yet_or_not_bound() {
    let hasher = trefoil_layout::KeyHasher::default();
    let torn = |store: &Store| {
        set(store, b"k", b"v", 5);
        let mut buffer = trefoil_region::WordBuffer::default();
        one_sided(store, 1, hasher.hash(b"k"), b"k", &mut buffer) == OneSided::Retry
    };
    both(Mutant::PublishedBeforeData, torn);
    both(Mutant::ChecksumUnbound, torn);
}

#[test]
fn the_late_data_is_written_when_the_partition_is_entered() {
    mutants::set(Some(Mutant::PublishedBeforeData));
    let store = store();
    set(&store, b"k", b"v", 5);
    assert_eq!(get(&store, b"k"), Some((version(5), b"v".to_vec())));
    assert_ne!(store.floor(b"k").unwrap().1, version(5));
    assert_eq!(store.floor(b"k").unwrap().1, Version::ZERO);
    mutants::set(None);
}
