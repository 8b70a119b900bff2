//! What the tests of the store share: small stores, mutations in one line, and
//! a reader that sees the memory as a client does.
#![allow(dead_code, reason = "each test file uses its own part")]

mod random;

pub(crate) use random::Random;
use trefoil_layout::bucket;
use trefoil_layout::control;
use trefoil_layout::data::{DataEntry, DataError};
use trefoil_layout::hash::KeyHasher;
use trefoil_layout::op::{Action, Expected, Found, Mutation, Outcome};
use trefoil_layout::{KeyHash, Version};
use trefoil_region::{HugePages, SharedWords, WordBuffer};
use trefoil_store::{Now, Regions, Store, StoreConfig};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
/// The tests' clock starts here.
pub(crate) const START: Now = Now::at(1_700_000_000_000_000_000);

pub(crate) fn config(memory_limit: u64, partition_count: usize) -> StoreConfig {
    StoreConfig {
        partition_count,
        memory_limit,
        tombstone_count_max: 64,
        ..StoreConfig::default()
    }
}

pub(crate) fn heap(memory_limit: u64, partition_count: usize) -> Store {
    Store::new(
        config(memory_limit, partition_count),
        Regions::heap(memory_limit),
    )
    .unwrap()
}

pub(crate) fn memfd(memory_limit: u64, memory_max: u64, partition_count: usize) -> Store {
    let regions = Regions::memfd("test", memory_max, HugePages::Off).unwrap();
    Store::new(config(memory_limit, partition_count), regions).unwrap()
}

/// Version number `n` of the tests' only client.
pub(crate) fn version(n: u64) -> Version {
    Version::new(START.unix_ns + n, 7, 0)
}

pub(crate) fn entry<'a>(key: &'a [u8], value: &'a [u8]) -> DataEntry<'a> {
    DataEntry {
        key,
        value,
        ..DataEntry::default()
    }
}

pub(crate) fn set(store: &Store, key: &[u8], value: &[u8], n: u64) -> Outcome {
    let mutation = Mutation {
        action: Action::Set,
        version: version(n),
        entry: entry(key, value),
    };
    store.mutate(START, &mutation).outcome
}

pub(crate) fn erase(store: &Store, key: &[u8], n: u64) -> Outcome {
    let mutation = Mutation {
        action: Action::Erase,
        version: version(n),
        entry: entry(key, b""),
    };
    store.mutate(START, &mutation).outcome
}

pub(crate) fn cas(store: &Store, key: &[u8], value: &[u8], expected: Expected, n: u64) -> Outcome {
    let mutation = Mutation {
        action: Action::Cas(expected),
        version: version(n),
        entry: entry(key, value),
    };
    store.mutate(START, &mutation).outcome
}

/// A lookup by message.
pub(crate) fn get(store: &Store, key: &[u8]) -> Option<(Version, Vec<u8>)> {
    get_at(store, START, key)
}

pub(crate) fn get_at(store: &Store, now: Now, key: &[u8]) -> Option<(Version, Vec<u8>)> {
    let mut buffer = WordBuffer::default();
    match store.lookup(now, key, &mut buffer).found {
        Found::Present { version, data } => {
            let tag = KeyHasher::default().hash(key).tag;
            let entry = DataEntry::validate(data, tag, version, key).expect("a sound entry");
            Some((version, entry.value.to_vec()))
        }
        Found::Absent => None,
        Found::Rejected(rejection) => panic!("{rejection}"),
    }
}

pub(crate) fn resident_len(store: &Store) -> u64 {
    let regions = store.regions();
    [&regions.data, &regions.index]
        .iter()
        .filter_map(|space| space.object())
        .map(|object| object.resident_len().unwrap())
        .sum()
}

/// What a reader of shared memory finds, without any lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OneSided {
    Hit(Version, Vec<u8>),
    Miss,
    /// The side table may know.
    Overflow,
    /// Read again.
    Retry,
}

/// A client's one-sided lookup, written from the layout's rules.
pub(crate) fn one_sided(
    store: &Store,
    partition_count: usize,
    hash: KeyHash,
    key: &[u8],
    buffer: &mut WordBuffer,
) -> OneSided {
    let control = store.regions().control.words();
    let index = store.regions().index.words();
    let partition = hash.partition(0, partition_count);
    let Some(window) = control::index_window(&control, partition) else {
        return OneSided::Retry;
    };
    let home = hash.bucket(window.bucket_count);
    let bucket_at = |number: u64| -> SharedWords<'_> {
        index
            .slice(
                window.offset + number * bucket::BUCKET_LEN as u64,
                bucket::BUCKET_LEN,
            )
            .unwrap()
    };
    let config_id = control::config_id(&control);
    let mut scan = bucket::scan(&bucket_at(home), hash.tag, hash.home_slot());
    if !scan.stable || scan.header.config_id != config_id {
        return OneSided::Retry;
    }
    let header = scan.header;
    for far in 1..=u64::from(header.spill) {
        if scan.found.is_some() {
            break;
        }
        scan = bucket::scan(&bucket_at(home + far), hash.tag, hash.home_slot());
        if !scan.stable || scan.header.config_id != config_id {
            return OneSided::Retry;
        }
    }
    let Some((_, entry)) = scan.found else {
        // The home header must have stood until every bucket was read.
        let again = bucket::header(&bucket_at(home));
        return if again != header {
            OneSided::Retry
        } else if header.overflowed {
            OneSided::Overflow
        } else {
            OneSided::Miss
        };
    };
    let data = store.regions().data.words();
    let Some(words) = data.slice(entry.pointer.offset(), entry.pointer.len()) else {
        return OneSided::Retry;
    };
    buffer.fill_from(words);
    match DataEntry::validate(buffer.bytes(), hash.tag, entry.version, key) {
        Ok(found) => OneSided::Hit(entry.version, found.value.to_vec()),
        Err(DataError::Torn) => OneSided::Retry,
        Err(DataError::OtherKey) => OneSided::Miss,
    }
}
