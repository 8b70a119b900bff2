//! Which corpus a backend of an immutable cell has, or how far it is on the way to one,
//! for statistics.

use super::load::Loaded;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trefoil_cell::CorpusId;
use trefoil_rpc::v1;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// What is served; `None` while there is nothing whole, or nobody has said what it is.
    corpus: Option<CorpusId>,
    /// Since when it has nothing whole.
    lacks_since: Option<Instant>,
    /// How often it was lost.
    losses: u64,
    loaded: Loaded,
    /// Of the last time.
    took_ms: Option<u64>,
    shard_count: u32,
    waits_for: String,
    /// The reason that the log has told last.
    told: String,
}

impl Standing {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is served for now.
    pub(crate) fn lacks(&self, shard_count: usize) {
        let mut now = self.lock();
        now.corpus = None;
        now.lacks_since.get_or_insert_with(Instant::now);
        now.losses += 1;
        now.shard_count = shard_count as u32;
        now.loaded = Loaded::default();
    }

    /// This one is served, whole.
    pub(crate) fn has(&self, corpus: Option<CorpusId>) {
        let mut now = self.lock();
        now.corpus = corpus;
        if let Some(since) = now.lacks_since.take() {
            now.took_ms = Some(since.elapsed().as_millis() as u64);
        }
        now.waits_for.clear();
        now.told.clear();
    }

    pub(crate) fn is_lacking(&self) -> bool {
        self.lock().lacks_since.is_some()
    }

    /// A number that is the same for as long as the same corpus is there, whole, under one
    /// config id; `None` while there is none.
    pub(crate) fn whole(&self) -> Option<u64> {
        let now = self.lock();
        now.lacks_since.is_none().then_some(now.losses)
    }

    /// So much is there.
    pub(crate) fn is_at(&self, loaded: Loaded) {
        self.lock().loaded = loaded;
    }

    /// Says so, once for each reason in a row.
    pub(super) fn waits_for(&self, number: u32, why: &str) {
        let mut now = self.lock();
        if now.told != why {
            tracing::warn!(backend = number, why, "the backend has no corpus yet");
            why.clone_into(&mut now.told);
        }
        why.clone_into(&mut now.waits_for);
    }

    /// What is served, as a message.
    pub(crate) fn corpus(&self) -> Option<v1::Corpus> {
        self.lock().corpus.as_ref().map(trefoil_cell::encode_corpus)
    }

    /// Of one that has lost its corpus, as a message.
    pub(crate) fn recovery(&self) -> Option<v1::RecoveryStats> {
        let now = self.lock();
        if now.lacks_since.is_none() && now.took_ms.is_none() {
            return None;
        }
        let is_lacking = now.lacks_since.is_some();
        let elapsed = now.lacks_since.map(|since| since.elapsed());
        let elapsed_ms = elapsed.map(|elapsed| elapsed.as_millis() as u64);
        Some(v1::RecoveryStats {
            shards_left: if is_lacking { now.shard_count } else { 0 },
            permille: if is_lacking { 0 } else { 1000 },
            items: now.loaded.items,
            bytes: now.loaded.len_least,
            took_ms: elapsed_ms.or(now.took_ms).unwrap_or_default(),
            waits_for: now.waits_for.clone(),
            done: !is_lacking,
            ..v1::RecoveryStats::default()
        })
    }
}
