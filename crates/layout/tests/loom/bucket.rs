//! The readers' and the writer's protocol under a real memory model.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use trefoil_layout::bucket::{self, BUCKET_WORDS, BucketHeader};
use trefoil_layout::control::{self, IndexWindow};
use trefoil_layout::data::{DataEntry, DataError};
use trefoil_layout::words::{Words, WordsMut};
use trefoil_layout::{IndexEntry, Pointer, Version};

/// Shared words as loom sees them.
struct Shared(Vec<AtomicU64>);

impl Shared {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Shared((0..count).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Words for Shared {
    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }
    fn load_acquire(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Acquire)
    }
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }
}

impl WordsMut for Shared {
    fn store(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Relaxed);
    }
    fn store_release(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Release);
    }
    fn fence_release(&self) {
        fence(Ordering::Release);
    }
}

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(2));
    builder.check(test);
}

const KEY: &[u8] = b"k";
const TAG: u64 = 7;
const HOME: usize = 3;
/// Words of one encoded entry of these tests.
const DATA_WORDS: usize = 4;

fn version(number: u64) -> Version {
    Version::new(number, 1, number as u32)
}

fn pointer(place: usize) -> Pointer {
    Pointer::new((place * DATA_WORDS * 8) as u64, DATA_WORDS * 8).unwrap()
}

fn encoded(tag: u64, number: u64, key: &[u8]) -> [u64; DATA_WORDS] {
    let value = [number as u8; 3];
    let mut bytes = [0u8; DATA_WORDS * 8];
    DataEntry {
        key,
        value: &value,
        ..DataEntry::default()
    }
    .encode(&mut bytes, tag, version(number));
    std::array::from_fn(|i| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap()))
}

fn write_data(data: &Shared, place: usize, words: [u64; DATA_WORDS]) {
    for (i, word) in words.into_iter().enumerate() {
        data.store(place * DATA_WORDS + i, word);
    }
}

fn install(bucket: &Shared, data: &Shared, place: usize, number: u64) {
    write_data(data, place, encoded(TAG, number, KEY));
    let entry = IndexEntry {
        tag: TAG,
        version: version(number),
        pointer: pointer(place),
    };
    bucket::insert(bucket, HOME, entry);
}

enum Read {
    Hit(u64),
    Torn,
    Absent,
    Unstable,
}

/// A whole one-sided GET, as a client does it.
fn read(bucket: &Shared, data: &Shared) -> Read {
    let scan = bucket::scan(bucket, TAG, HOME);
    if !scan.stable {
        return Read::Unstable;
    }
    let Some((_, entry)) = scan.found else {
        return Read::Absent;
    };
    let first = entry.pointer.offset() as usize / 8;
    let mut bytes = [0u8; DATA_WORDS * 8];
    for i in 0..DATA_WORDS {
        bytes[i * 8..i * 8 + 8].copy_from_slice(&data.load(first + i).to_le_bytes());
    }
    match DataEntry::validate(&bytes, TAG, entry.version, KEY) {
        Ok(found) => {
            let number = entry.version.time_ns;
            assert_eq!(
                found.value, [number as u8; 3],
                "a hit is the value of its version"
            );
            Read::Hit(number)
        }
        Err(DataError::Torn) => Read::Torn,
        Err(DataError::OtherKey) => panic!("no other key has this tag here"),
    }
}

#[test]
fn overwritten_in_place_is_never_a_wrong_value_and_never_absent() {
    model(|| {
        let (bucket, data) = (Shared::new(BUCKET_WORDS), Shared::new(2 * DATA_WORDS));
        bucket::set_header(&*bucket, BucketHeader::new(1, 0));
        install(&bucket, &data, 0, 1);
        let writer = {
            let (bucket, data) = (bucket.clone(), data.clone());
            thread::spawn(move || {
                // Version 2 goes elsewhere; the place of version 1 is free at
                // once and is taken by version 3.
                write_data(&data, 1, encoded(TAG, 2, KEY));
                bucket::overwrite(&*bucket, HOME, version(2), pointer(1));
                write_data(&data, 0, encoded(TAG, 3, KEY));
                bucket::overwrite(&*bucket, HOME, version(3), pointer(0));
            })
        };
        match read(&bucket, &data) {
            Read::Hit(number) => assert!((1..=3).contains(&number)),
            Read::Torn => {}
            Read::Absent | Read::Unstable => panic!("the key was there all the time"),
        }
        writer.join().unwrap();
        assert!(matches!(read(&bucket, &data), Read::Hit(3)));
    });
}

#[test]
fn slot_reused_by_another_key_is_not_taken_for_the_first() {
    model(|| {
        let (bucket, data) = (Shared::new(BUCKET_WORDS), Shared::new(2 * DATA_WORDS));
        bucket::set_header(&*bucket, BucketHeader::new(1, 0));
        install(&bucket, &data, 0, 1);
        let writer = {
            let (bucket, data) = (bucket.clone(), data.clone());
            thread::spawn(move || {
                bucket::remove(&*bucket, HOME);
                write_data(&data, 0, encoded(9, 2, b"x"));
                let entry = IndexEntry {
                    tag: 9,
                    version: version(2),
                    pointer: pointer(0),
                };
                bucket::insert(&*bucket, HOME, entry);
            })
        };
        match read(&bucket, &data) {
            Read::Hit(number) => assert_eq!(number, 1),
            Read::Torn | Read::Absent => {}
            Read::Unstable => panic!("the header did not change"),
        }
        // Invariant 1: whoever sees the new tag sees the new words.
        let scan = bucket::scan(&*bucket, 9, HOME);
        if let Some((_, entry)) = scan.found {
            assert_eq!((entry.version, entry.pointer), (version(2), pointer(0)));
        }
        writer.join().unwrap();
        assert!(matches!(read(&bucket, &data), Read::Absent));
    });
}

#[test]
fn vote_of_an_old_epoch_is_never_given_for_a_newer_entry() {
    model(|| {
        let bucket = Shared::new(BUCKET_WORDS);
        let data = Shared::new(2 * DATA_WORDS);
        bucket::set_header(&*bucket, BucketHeader::new(1, 5));
        install(&bucket, &data, 0, 1);
        let writer = {
            let bucket = bucket.clone();
            thread::spawn(move || {
                // Rule 6: the epoch is raised no later than the copy begins.
                bucket::set_header(&*bucket, BucketHeader::new(1, 6));
                bucket::overwrite(&*bucket, HOME, version(2), pointer(1));
            })
        };
        let scan = bucket::scan(&*bucket, TAG, HOME);
        if scan.stable {
            let (_, entry) = scan.found.expect("it was there all the time");
            if entry.version == version(2) {
                assert_eq!(scan.header.epoch, 6, "the new entry under the old epoch");
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn poisoned_bucket_is_invalid_before_its_entries_go() {
    model(|| {
        let bucket = Shared::new(BUCKET_WORDS);
        let data = Shared::new(DATA_WORDS);
        bucket::set_header(&*bucket, BucketHeader::new(1, 0));
        install(&bucket, &data, 0, 1);
        let writer = {
            let bucket = bucket.clone();
            thread::spawn(move || {
                bucket::set_header(&*bucket, BucketHeader::default());
                bucket::remove(&*bucket, HOME);
            })
        };
        let scan = bucket::scan(&*bucket, TAG, HOME);
        if scan.stable && scan.header.config_id == 1 {
            assert!(
                scan.found.is_some(),
                "absent in a bucket that still counted"
            );
        }
        writer.join().unwrap();
    });
}

#[test]
fn index_window_is_taken_whole_or_not_at_all() {
    model(|| {
        let words = Shared::new(64);
        let window = |id: u64| IndexWindow {
            window_id: id,
            offset: id * 1000,
            bucket_count: id * 10,
            epoch: id as u32,
        };
        control::set_index_window(&*words, 0, window(2));
        let writer = {
            let words = words.clone();
            thread::spawn(move || control::set_index_window(&*words, 0, window(4)))
        };
        if let Some(taken) = control::index_window(&*words, 0) {
            assert_eq!(taken, window(taken.window_id));
        }
        writer.join().unwrap();
        assert_eq!(control::index_window(&*words, 0), Some(window(4)));
    });
}
