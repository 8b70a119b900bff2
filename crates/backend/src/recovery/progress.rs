//! How far a backend's recovery has come, for statistics.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trefoil_recovery::{Counts, Ended, Recovery};
use trefoil_rpc::v1;
use trefoil_store::PLACES;

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// When the server served, so that peers and clients can be spoken to.
    begun: Option<Instant>,
    shards: Vec<ShardProgress>,
    /// Milliseconds from `begun` to the last shard's vote.
    took_ms: Option<u64>,
    waits_for: String,
    /// The reason that the log has told last.
    told: String,
    done: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct ShardProgress {
    counts: Counts,
    place: u64,
    votes: bool,
    is_lost: bool,
}

impl Now {
    fn votes(&self) -> u32 {
        self.shards.iter().filter(|shard| shard.votes).count() as u32
    }

    fn elapsed_ms(&self) -> u64 {
        let since = self.begun.map(|begun| begun.elapsed());
        since.map_or(0, |since| since.as_millis() as u64)
    }
}

impl Progress {
    pub(crate) fn new(shard_count: usize) -> Self {
        let now = Now {
            shards: vec![ShardProgress::default(); shard_count],
            ..Now::default()
        };
        Progress {
            now: Mutex::new(now),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It can begin.
    pub(super) fn begin(&self) {
        self.lock().begun = Some(Instant::now());
    }

    /// Nothing is left to do.
    pub(super) fn end(&self) {
        self.lock().done = true;
    }

    /// A shard gets on.
    pub(super) fn is_at<D: AsRef<[u8]>>(&self, shard: usize, recovery: &Recovery<D>) {
        let mut now = self.lock();
        let Some(before) = now.shards.get_mut(shard) else {
            return;
        };
        let after = ShardProgress {
            counts: recovery.counts(),
            place: recovery.place(),
            votes: recovery.votes(),
            is_lost: recovery.ended() == Some(Ended::Lost),
        };
        let gets_on = after.place > before.place || after.votes != before.votes;
        *before = after;
        if gets_on || recovery.ended().is_some() {
            now.waits_for.clear();
        }
        if now.votes() as usize == now.shards.len() && now.took_ms.is_none() {
            now.took_ms = Some(now.elapsed_ms());
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
        let shards = &now.shards;
        let sum = |sum: Counts, shard: &ShardProgress| sum.plus(shard.counts);
        let counts = shards.iter().fold(Counts::default(), sum);
        let permille = |shard: &ShardProgress| match shard.votes {
            true => 1000,
            false => shard.place * 1000 / PLACES.end,
        };
        let permille = shards.iter().map(permille).sum::<u64>() / shards.len().max(1) as u64;
        v1::RecoveryStats {
            shards_left: shards.len() as u32 - now.votes(),
            permille: permille as u32,
            items: counts.items,
            bytes: counts.bytes,
            disagreed: counts.disagreed,
            repaired: counts.repaired,
            took_ms: now.took_ms.unwrap_or_else(|| now.elapsed_ms()),
            waits_for: now.waits_for.clone(),
            done: now.done,
            // The store counts them.
            skipped: 0,
            shards_lost: shards.iter().filter(|shard| shard.is_lost).count() as u32,
        }
    }
}
