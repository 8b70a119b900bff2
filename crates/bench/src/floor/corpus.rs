//! The smallest thing that a one-sided GET reads: a bucket array and values.
//!
//! ```text
//! mapping: [ bucket × buckets_count | value slot × keys_count ]
//! bucket : [ header 32 B | entry 32 B × (bucket_len/32 − 1) ]
//! entry  : [ tag 8 | checksum 8 | value's first word 8 | unused 8 ]
//! ```

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use twox_hash::XxHash3_64;

use super::{FloorError, PageSize, SharedMapping};
use crate::load::{Permutation, mix64};

const ENTRY_WORDS: usize = 4;
const BUCKET_WORDS_MAX: usize = 64;
/// Slots of a bucket that holds several are three quarters full, as an index
/// that avoids associativity conflicts would be.
const FILL_NUMERATOR: usize = 3;
const FILL_DENOMINATOR: usize = 4;

/// What a floor's memory looks like.
#[derive(Debug, Clone, Copy)]
pub struct FloorOptions {
    /// Bytes of all values together.
    pub corpus_len: usize,
    /// Bytes of one value.
    pub value_len: usize,
    /// 64 (the floor of the comparison), 128, 256 or 512.
    pub bucket_len: usize,
    /// Pages of the mapping.
    pub page: PageSize,
    /// Ask for all of the value's cache lines before copying the first: the
    /// word-wise copy alone does not keep enough misses in flight.
    pub prefetch: bool,
}

impl FloorOptions {
    /// The comparison's floor: 64-byte buckets of one entry, base pages.
    pub fn new(corpus_len: usize, value_len: usize) -> Self {
        Self {
            corpus_len,
            value_len,
            bucket_len: 64,
            page: PageSize::Base,
            prefetch: true,
        }
    }
}

/// How a reader gets at the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketRead {
    /// Copies the whole bucket into private memory, then looks for the tag, as a
    /// read over a network must.
    Copy,
    /// Loads tag after tag in place and then the one entry.
    Scan,
}

/// A corpus in shared memory, and the bare loop that reads it.
#[derive(Debug)]
pub struct FloorCorpus {
    mapping: SharedMapping,
    keys_count: usize,
    buckets: Permutation,
    buckets_count: usize,
    bucket_words: usize,
    value_len: usize,
    prefetch: bool,
}

impl FloorCorpus {
    /// Maps and fills the memory.
    pub fn create(options: FloorOptions) -> Result<Self, FloorError> {
        let bucket_words = options.bucket_len / 8;
        if !options.bucket_len.is_power_of_two() || !(8..=BUCKET_WORDS_MAX).contains(&bucket_words)
        {
            return Err(FloorError::Options(
                "buckets have 64, 128, 256 or 512 bytes",
            ));
        }
        if options.value_len == 0 || options.corpus_len / options.value_len == 0 {
            return Err(FloorError::Options("a corpus holds at least one value"));
        }
        let keys_count = options.corpus_len / options.value_len;
        let entries_count = bucket_words / ENTRY_WORDS - 1;
        let buckets_count = match entries_count {
            1 => keys_count,
            n => (keys_count * FILL_DENOMINATOR).div_ceil(n * FILL_NUMERATOR),
        };
        let slot_words = options.value_len.div_ceil(16) * 2;
        let len_words = buckets_count * bucket_words + keys_count * slot_words;
        let mapping = SharedMapping::create(len_words * 8, options.page)?;
        let corpus = Self {
            mapping,
            keys_count,
            buckets: Permutation::new(keys_count as u64, 1),
            buckets_count,
            bucket_words,
            value_len: options.value_len,
            prefetch: options.prefetch,
        };
        corpus.fill(slot_words);
        Ok(corpus)
    }

    fn fill(&self, slot_words: usize) {
        let words = self.mapping.words();
        let slots = Permutation::new(self.keys_count as u64, 2);
        let values_start = self.buckets_count * self.bucket_words;
        let mut value = vec![0; self.value_len];
        for key in 0..self.keys_count {
            let slot = values_start + slots.apply(key as u64) as usize * slot_words;
            for i in 0..slot_words {
                words[slot + i].store(mix64(key as u64 ^ (i as u64) << 40), Relaxed);
            }
            copy_out(&words[slot..], &mut value);
            let bucket = self.bucket_start(key);
            // A random free slot, so that a scan finds tags at every depth.
            let entries = self.bucket_words / ENTRY_WORDS - 1;
            let first = mix64(key as u64) as usize % entries;
            let Some(entry) = (0..entries)
                .map(|i| bucket + (1 + (first + i) % entries) * ENTRY_WORDS)
                .find(|&at| words[at].load(Relaxed) == 0)
            else {
                continue; // unreachable at this fill: keys are dealt out evenly
            };
            words[entry].store(key as u64 + 1, Relaxed);
            words[entry + 1].store(XxHash3_64::oneshot(&value), Relaxed);
            words[entry + 2].store(slot as u64, Relaxed);
        }
    }

    fn bucket_start(&self, key: usize) -> usize {
        self.buckets.apply(key as u64) as usize % self.buckets_count * self.bucket_words
    }

    /// How many keys there are, numbered from 0.
    pub fn keys_count(&self) -> usize {
        self.keys_count
    }

    /// Bytes of the bucket array.
    pub fn index_len(&self) -> usize {
        self.buckets_count * self.bucket_words * 8
    }

    /// Bytes of a value: the least that [`read`](Self::read)'s buffer must hold.
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Reads the bucket of `key` and then its value into `private`; gives the
    /// verified checksum, or nothing where key or value is not as written.
    #[inline]
    pub fn read(&self, key: usize, how: BucketRead, private: &mut [u8]) -> Option<u64> {
        if key >= self.keys_count {
            return None;
        }
        let words = self.mapping.words();
        let start = self.bucket_start(key);
        let bucket = words.get(start..start + self.bucket_words)?;
        let tag = key as u64 + 1;
        let (checksum, at) = match how {
            BucketRead::Copy => {
                let mut copy = [0u64; BUCKET_WORDS_MAX];
                let copy = &mut copy[..self.bucket_words];
                for (to, from) in copy.iter_mut().zip(bucket) {
                    *to = from.load(Relaxed);
                }
                let entry = copy[ENTRY_WORDS..]
                    .chunks_exact(ENTRY_WORDS)
                    .find(|entry| entry[0] == tag)?;
                (entry[1], entry[2])
            }
            BucketRead::Scan => {
                let entry = bucket[ENTRY_WORDS..]
                    .chunks_exact(ENTRY_WORDS)
                    .find(|entry| entry[0].load(Relaxed) == tag)?;
                (entry[1].load(Relaxed), entry[2].load(Relaxed))
            }
        };
        let private = private.get_mut(..self.value_len)?;
        let value = words.get(at as usize..)?;
        if self.prefetch {
            prefetch_lines(&value[..self.value_len.div_ceil(8)]);
        }
        copy_out(value, private);
        (XxHash3_64::oneshot(private) == checksum).then_some(checksum)
    }
}

/// Asks for the cache lines of `words`, without waiting for them.
#[inline]
fn prefetch_lines(words: &[AtomicU64]) {
    #[cfg(target_arch = "x86_64")]
    for line in words.chunks(8) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint about memory that is mapped; it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = words;
}

/// Word-wise copy out of memory that may change under us.
#[inline]
fn copy_out(from: &[AtomicU64], to: &mut [u8]) {
    let (whole, tail) = to.as_chunks_mut::<8>();
    let mut words = from.iter();
    for (to, from) in whole.iter_mut().zip(&mut words) {
        *to = from.load(Relaxed).to_le_bytes();
    }
    if let (false, Some(last)) = (tail.is_empty(), words.next()) {
        tail.copy_from_slice(&last.load(Relaxed).to_le_bytes()[..tail.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_in_every_geometry() {
        for bucket_len in [64, 128, 256, 512] {
            for value_len in [1, 100, 1024] {
                let corpus = FloorCorpus::create(FloorOptions {
                    bucket_len,
                    ..FloorOptions::new(1000 * value_len, value_len)
                })
                .unwrap();
                let mut private = vec![0; value_len];
                for key in 0..corpus.keys_count() {
                    let copied = corpus.read(key, BucketRead::Copy, &mut private);
                    assert!(copied.is_some(), "{bucket_len} {value_len} {key}");
                    assert_eq!(copied, corpus.read(key, BucketRead::Scan, &mut private));
                }
                assert_eq!(corpus.read(1000, BucketRead::Copy, &mut private), None);
            }
        }
    }

    #[test]
    fn a_changed_value_fails_its_checksum() {
        let corpus = FloorCorpus::create(FloorOptions::new(1024, 1024)).unwrap();
        let mut private = [0; 1024];
        assert!(corpus.read(0, BucketRead::Copy, &mut private).is_some());
        corpus.mapping.words()[8 + 100].fetch_xor(1, Relaxed);
        assert_eq!(corpus.read(0, BucketRead::Copy, &mut private), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for (bucket_len, value_len) in [(96, 100), (32, 100), (1024, 100), (64, 0), (64, 5000)] {
            let options = FloorOptions {
                bucket_len,
                ..FloorOptions::new(4096, value_len)
            };
            assert!(FloorCorpus::create(options).is_err());
        }
    }
}
