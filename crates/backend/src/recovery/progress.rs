//! How far a backend's recovery has come, for statistics.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use trefoil_rpc::v1;
use trefoil_store::PLACES;

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    shard_count: u32,
    shards_done: AtomicU32,
    shards_lost: AtomicU32,
    /// The place that the copy of the present shard has come to.
    place: AtomicU64,
    items: AtomicU64,
    bytes: AtomicU64,
    disagreed: AtomicU64,
    repaired: AtomicU64,
    /// When the server serves, so that peers and clients can be spoken to.
    begun: OnceLock<Instant>,
    /// Milliseconds from `begun` to the last shard's vote; 0 before.
    took_ms: AtomicU64,
    waits_for: Mutex<String>,
    /// Where the copy of the present shard goes on after an interruption.
    resume: Mutex<Resume>,
}

/// What has been copied of a shard, and from whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resume {
    pub(super) shard: usize,
    /// The memory of both peers.
    pub(super) incarnations: [u64; 2],
    /// Everything below is done.
    pub(super) place: u64,
}

impl Progress {
    pub(crate) fn new(shard_count: usize) -> Self {
        Progress {
            shard_count: shard_count as u32,
            shards_done: AtomicU32::new(0),
            shards_lost: AtomicU32::new(0),
            place: AtomicU64::new(0),
            items: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            disagreed: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
            begun: OnceLock::new(),
            took_ms: AtomicU64::new(0),
            waits_for: Mutex::default(),
            resume: Mutex::default(),
        }
    }

    /// It can begin.
    pub(super) fn begin(&self) {
        let _ = self.begun.set(Instant::now());
    }

    pub(super) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn disagreed(&self) -> u64 {
        self.disagreed.load(Ordering::Relaxed)
    }

    pub(super) fn took(&self) -> Duration {
        match self.took_ms.load(Ordering::Relaxed) {
            0 => self.begun.get().map_or(Duration::ZERO, Instant::elapsed),
            took_ms => Duration::from_millis(took_ms),
        }
    }

    /// A value of so many bytes was installed.
    pub(super) fn installed(&self, bytes: usize) {
        self.items.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The peers did not agree on a key.
    pub(super) fn has_disagreed(&self) {
        self.disagreed.fetch_add(1, Ordering::Relaxed);
    }

    /// A value came that was written meanwhile.
    pub(super) fn has_repaired(&self) {
        self.repaired.fetch_add(1, Ordering::Relaxed);
    }

    /// Where the copy of a shard goes on, if both peers still have the memory from which
    /// it was begun.
    pub(super) fn resume(&self, shard: usize, incarnations: [u64; 2]) -> u64 {
        let mut resume = lock(&self.resume);
        let is_same = resume.shard == shard && resume.incarnations == incarnations;
        if !is_same {
            *resume = Resume {
                shard,
                incarnations,
                place: 0,
            };
        }
        self.place.store(resume.place, Ordering::Relaxed);
        resume.place
    }

    /// The copy of the present shard has come to `place`.
    pub(super) fn came_to(&self, place: u64) {
        lock(&self.resume).place = place;
        self.place.store(place, Ordering::Relaxed);
        self.gets_on();
    }

    /// The present shard votes.
    pub(super) fn shard_done(&self) {
        self.place.store(0, Ordering::Relaxed);
        let done = self.shards_done.fetch_add(1, Ordering::Relaxed) + 1;
        if done == self.shard_count {
            let took_ms = self.took().as_millis() as u64;
            self.took_ms.store(took_ms.max(1), Ordering::Relaxed);
        }
    }

    /// The present shard comes back empty.
    pub(super) fn shard_lost(&self) {
        self.shards_lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn gets_on(&self) {
        lock(&self.waits_for).clear();
    }

    /// Says so, once for each reason.
    pub(super) fn waits_for(&self, why: &str) {
        let mut waits_for = lock(&self.waits_for);
        if *waits_for != why {
            tracing::warn!(why, "recovery waits");
            why.clone_into(&mut waits_for);
        }
    }

    /// All of it as a message.
    pub(crate) fn stats(&self) -> v1::RecoveryStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let done = self
            .shards_done
            .load(Ordering::Relaxed)
            .min(self.shard_count);
        let of_shard = get(&self.place) * 1000 / PLACES.end;
        let permille = (u64::from(done) * 1000 + of_shard) / u64::from(self.shard_count.max(1));
        v1::RecoveryStats {
            shards_left: self.shard_count - done,
            permille: permille.min(1000) as u32,
            items: self.items(),
            bytes: self.bytes(),
            disagreed: self.disagreed(),
            repaired: get(&self.repaired),
            took_ms: self.took().as_millis() as u64,
            waits_for: lock(&self.waits_for).clone(),
            shards_lost: self.shards_lost.load(Ordering::Relaxed),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_goes_on_where_it_was_unless_a_peer_has_lost_its_memory() {
        let progress = Progress::new(3);
        assert_eq!(progress.resume(0, [5, 6]), 0);
        progress.came_to(PLACES.end / 2);
        assert_eq!(progress.resume(0, [5, 6]), PLACES.end / 2);
        let stats = progress.stats();
        assert_eq!((stats.shards_left, stats.permille), (3, 166));
        assert_eq!(progress.resume(0, [5, 7]), 0, "another memory");
        progress.came_to(9);
        progress.shard_done();
        assert_eq!(progress.resume(1, [5, 7]), 0, "another shard");
        progress.shard_done();
        progress.shard_done();
        let stats = progress.stats();
        assert_eq!((stats.shards_left, stats.permille), (0, 1000));
        assert!(stats.took_ms > 0);
    }

    #[test]
    fn what_it_waits_for_is_said_until_it_gets_on() {
        let progress = Progress::new(3);
        progress.waits_for("backend 1");
        assert_eq!(progress.stats().waits_for, "backend 1");
        progress.came_to(1);
        assert_eq!(progress.stats().waits_for, "");
    }
}
