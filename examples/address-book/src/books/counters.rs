//! What a server has done so far.

use address_book_contract::v1::StatsAnswer;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one process.
#[derive(Debug, Default)]
pub struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Counters {
    /// The book was in memory, here or in the cache.
    pub fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// It was not.
    pub fn miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds them to an answer.
    pub fn add_to(&self, stats: &mut StatsAnswer) {
        stats.hits += self.hits.load(Ordering::Relaxed);
        stats.misses += self.misses.load(Ordering::Relaxed);
    }
}
