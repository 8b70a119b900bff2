//! Any bytes as an index of four buckets: judging them never panics, never
//! reads outside, and a vote for a key is only given under the right config id.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trefoil_client_core::vote::{IndexVote, index_vote};
use trefoil_layout::bucket::{BUCKET_WORDS, SLOT_COUNT};
use trefoil_layout::limits::SPILL_MAX;
use trefoil_layout::words::Words;
use trefoil_layout::KeyHash;

const HOMES: usize = 4;

struct Bucket<'a>(&'a [u64]);

impl Words for Bucket<'_> {
    fn load(&self, index: usize) -> u64 {
        self.0[index]
    }
    fn load_acquire(&self, index: usize) -> u64 {
        self.0[index]
    }
    fn fence_acquire(&self) {}
}

fuzz_target!(|input: (u64, u64, u32, Vec<u64>)| {
    let (place, tag, config, mut words) = input;
    words.resize((HOMES + SPILL_MAX) * BUCKET_WORDS, 0);
    let hash = KeyHash { place, tag: tag.max(1) };
    let at = |bucket: u64| {
        let first = bucket as usize * BUCKET_WORDS;
        Bucket(&words[first..first + BUCKET_WORDS])
    };
    match index_vote(hash, config, HOMES as u64, at) {
        IndexVote::Present { slot_number, entry, .. } => {
            assert_eq!(entry.tag, hash.tag);
            assert!((slot_number as usize) < (HOMES + SPILL_MAX) * SLOT_COUNT);
        }
        IndexVote::ConfigChanged { found } => {
            // Also another layout version under the right config id.
            let _ = found;
        }
        _ => {}
    }
});
