//! When sets are done whose version nobody needs; how many were acknowledged before they were
//! executed, and what the log says of it.
//!
//! Each event loop counts its own, which the metrics tell for good. The log tells once that they
//! are acknowledged, and why not: for each kind of reason once, by all event loops together.

use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trefoil_client::{Commit, NotCommittable};

/// Without a commit for so long, it is said: places were asked for several times by then.
const SILENCE: Duration = Duration::from_secs(5);
/// If an event loop has executed so many meanwhile: one that is hardly used finds a place with
/// its second one, however long after the first one that is.
const SILENT_MIN: u64 = 16;

/// When a set is done whose version nobody needs: its clones, and those for event loops, say
/// together what is to be said.
#[derive(Clone, Debug, Default)]
pub struct Committing {
    commit: Commit,
    told: Arc<Told>,
}

/// Sets that were to be acknowledged before they were executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitCounts {
    /// They were.
    pub acknowledged: u64,
    /// They were executed instead, and are acknowledged by that.
    pub executed: u64,
}

/// That of one event loop.
#[derive(Debug)]
pub(super) struct LoopCommitting {
    commit: Commit,
    told: Arc<Told>,
    counts: Arc<Counts>,
    /// When the first one was executed instead.
    began: Option<Instant>,
}

/// One thread writes them.
#[derive(Debug, Default)]
struct Counts {
    acknowledged: AtomicU64,
    executed: AtomicU64,
}

#[derive(Debug, Default)]
struct Told {
    loops: Mutex<Vec<Arc<Counts>>>,
    /// One was committed.
    has_committed: AtomicBool,
    is_silence_told: AtomicBool,
    /// Why none is committed somewhere, each once.
    whys: Mutex<Vec<Discriminant<NotCommittable>>>,
}

impl From<Commit> for Committing {
    fn from(commit: Commit) -> Self {
        Committing {
            commit,
            ..Committing::default()
        }
    }
}

impl Committing {
    /// By all event loops, since the start.
    pub fn counts(&self) -> CommitCounts {
        let mut sum = CommitCounts::default();
        for counts in lock(&self.told.loops).iter() {
            sum.acknowledged += counts.acknowledged.load(Ordering::Relaxed);
            sum.executed += counts.executed.load(Ordering::Relaxed);
        }
        sum
    }

    /// For one more event loop.
    pub(super) fn for_loop(&self) -> LoopCommitting {
        let counts = Arc::<Counts>::default();
        lock(&self.told.loops).push(Arc::clone(&counts));
        LoopCommitting {
            commit: self.commit,
            told: Arc::clone(&self.told),
            counts,
            began: None,
        }
    }
}

impl LoopCommitting {
    /// Of a set.
    pub(super) fn of(&self, needs_version: bool) -> Commit {
        match needs_version {
            true => Commit::Executed,
            false => self.commit,
        }
    }

    /// One was acknowledged before it was executed.
    #[inline]
    pub(super) fn committed(&mut self) {
        add_one(&self.counts.acknowledged);
        let told = &self.told;
        if !told.has_committed.load(Ordering::Relaxed)
            && !told.has_committed.swap(true, Ordering::Relaxed)
        {
            tracing::info!("SETs are acknowledged before they are executed");
        }
    }

    /// One is executed instead, for once.
    #[inline]
    pub(super) fn executed(&mut self, now: impl FnOnce() -> Instant) {
        add_one(&self.counts.executed);
        let told = &self.told;
        if !told.has_committed.load(Ordering::Relaxed)
            && !told.is_silence_told.load(Ordering::Relaxed)
        {
            self.note_silence(now());
        }
    }

    /// One is executed instead, as all such are.
    #[cold]
    pub(super) fn never(&mut self, why: NotCommittable) {
        add_one(&self.counts.executed);
        let mut whys = lock(&self.told.whys);
        if !whys.contains(&discriminant(&why)) {
            whys.push(discriminant(&why));
            // It is said what is the matter.
            self.told.is_silence_told.store(true, Ordering::Relaxed);
            tracing::warn!(
                %why,
                "SETs of some keys, or of all, are acknowledged when they are executed, and not \
                 before"
            );
        }
    }

    #[cold]
    fn note_silence(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let is_long = now.saturating_duration_since(began) >= SILENCE
            && self.counts.executed.load(Ordering::Relaxed) >= SILENT_MIN;
        if is_long && !self.told.is_silence_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "no SET was acknowledged before it was executed so far: that takes queues \
                 (`cell up --queue`) of backends on this host with places that are free, all of \
                 them up, and keys and values of 1360 bytes together at most"
            );
        }
    }
}

/// By the one thread that writes it.
#[inline]
fn add_one(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_silence_told(committing: &Committing) -> bool {
        committing.told.is_silence_told.load(Ordering::Relaxed)
    }

    #[test]
    fn silence_is_told_if_none_was_ever_committed() {
        let begin = Instant::now();
        let executed = |of: &mut LoopCommitting, after: Duration, count: u64| {
            (0..count).for_each(|_| of.executed(|| begin + after));
        };
        let silent = Committing::from(Commit::Acknowledged);
        let mut of_loop = silent.for_loop();
        executed(&mut of_loop, Duration::ZERO, 1);
        executed(&mut of_loop, SILENCE - Duration::from_nanos(1), SILENT_MIN);
        assert!(!is_silence_told(&silent));
        executed(&mut of_loop, SILENCE, 1);
        assert!(is_silence_told(&silent));

        let committing = Committing::from(Commit::Acknowledged);
        let mut of_loop = committing.for_loop();
        executed(&mut of_loop, Duration::ZERO, SILENT_MIN);
        committing.for_loop().committed();
        executed(&mut of_loop, SILENCE, 1);
        assert!(!is_silence_told(&committing));
    }

    /// Each finds its place with the next one.
    #[test]
    fn first_sets_of_several_loops_are_no_silence() {
        let begin = Instant::now();
        let quiet = Committing::from(Commit::Acknowledged);
        for at in 0..2 * SILENT_MIN as u32 {
            quiet.for_loop().executed(|| begin + SILENCE * at);
        }
        let mut of_loop = quiet.for_loop();
        for at in 0..SILENT_MIN as u32 - 1 {
            of_loop.executed(|| begin + SILENCE * at);
        }
        assert!(!is_silence_told(&quiet));
    }

    #[test]
    fn all_loops_are_counted() {
        let committing = Committing::from(Commit::Acknowledged);
        let mut loops = [committing.for_loop(), committing.for_loop()];
        for of_loop in &mut loops {
            of_loop.committed();
            of_loop.executed(Instant::now);
            of_loop.never(NotCommittable::NoQueue(0));
        }
        loops[1].committed();
        let counts = committing.clone().counts();
        assert_eq!((counts.acknowledged, counts.executed), (3, 4));
    }

    #[test]
    fn each_reason_is_told_once() {
        let committing = Committing::from(Commit::Acknowledged);
        for backend in 0..3 {
            let mut of_loop = committing.for_loop();
            of_loop.never(NotCommittable::NoQueue(backend));
            of_loop.never(NotCommittable::NotShared(backend));
        }
        assert_eq!(committing.told.whys.lock().unwrap().len(), 2);
        assert!(is_silence_told(&committing));
    }
}
