//! How far a backend's recovery has come, for statistics.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trefoil_recovery::{Counts, Ended, Recovery};
use trefoil_rpc::v1;
use trefoil_store::PLACES;

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    shard_count: u32,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// When the server served, so that peers and clients can be spoken to.
    begun: Option<Instant>,
    /// Shards that have ended before the present one, and what came of their keys.
    ended: u32,
    before: Counts,
    /// The present shard's.
    counts: Counts,
    place: u64,
    votes: bool,
    lost: u32,
    /// Milliseconds from `begun` to the last shard's vote.
    took_ms: Option<u64>,
    waits_for: String,
    /// The reason that the log has told last.
    told: String,
}

impl Now {
    fn votes(&self) -> u32 {
        self.ended + u32::from(self.votes)
    }

    fn elapsed_ms(&self) -> u64 {
        let since = self.begun.map(|begun| begun.elapsed());
        since.map_or(0, |since| since.as_millis() as u64)
    }

    fn note_votes(&mut self, shard_count: u32) {
        if self.votes() >= shard_count && self.took_ms.is_none() {
            self.took_ms = Some(self.elapsed_ms());
        }
    }
}

impl Progress {
    pub(crate) fn new(shard_count: usize) -> Self {
        Progress {
            shard_count: shard_count as u32,
            now: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It can begin.
    pub(super) fn begin(&self) {
        self.lock().begun = Some(Instant::now());
    }

    /// The present shard gets on.
    pub(super) fn is_at<D: AsRef<[u8]>>(&self, recovery: &Recovery<D>) {
        let mut now = self.lock();
        now.counts = recovery.counts();
        let gets_on = recovery.place() > now.place || recovery.votes() != now.votes;
        if gets_on || recovery.ended().is_some() {
            now.waits_for.clear();
        }
        now.place = recovery.place();
        now.votes = recovery.votes();
        now.note_votes(self.shard_count);
        if let Some(ended) = recovery.ended() {
            now.ended += 1;
            now.lost += u32::from(ended == Ended::Lost);
            let (before, counts) = (now.before, now.counts);
            now.before = before.plus(counts);
            (now.counts, now.place, now.votes) = (Counts::default(), 0, false);
        }
    }

    /// Says so, once for each reason in a row.
    pub(super) fn waits_for(&self, why: &str) {
        let mut now = self.lock();
        if now.told != why {
            tracing::warn!(why, "recovery waits");
            why.clone_into(&mut now.told);
        }
        why.clone_into(&mut now.waits_for);
    }

    /// All of it as a message.
    pub(crate) fn stats(&self) -> v1::RecoveryStats {
        let now = self.lock();
        let counts = now.before.plus(now.counts);
        let left = self.shard_count.saturating_sub(now.votes());
        let of_shard = match now.votes {
            true => 1000,
            false => now.place * 1000 / PLACES.end,
        };
        let permille = u64::from(now.ended) * 1000 + of_shard;
        let permille = permille / u64::from(self.shard_count.max(1));
        v1::RecoveryStats {
            shards_left: left,
            permille: permille.min(1000) as u32,
            items: counts.items,
            bytes: counts.bytes,
            disagreed: counts.disagreed,
            repaired: counts.repaired,
            took_ms: now.took_ms.unwrap_or_else(|| now.elapsed_ms()),
            waits_for: now.waits_for.clone(),
            shards_lost: now.lost,
        }
    }
}
