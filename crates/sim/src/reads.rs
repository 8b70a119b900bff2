//! One-sided reads, word by word: between any two words something may happen
//! at the backend that is being read.

use crate::env::{Env, Instance, Life};
use crate::stats::Mark;
use crate::words::Interrupted;
use trefoil_client_core::data::pointer_in_window;
use trefoil_client_core::get::Failure;
use trefoil_client_core::vote::{IndexVote, index_vote};
use trefoil_layout::bucket::BUCKET_LEN;
use trefoil_layout::control::{self, IndexWindow};
use trefoil_layout::words::Words;
use trefoil_layout::{KeyHash, Pointer};
use trefoil_region::{SharedWords, WordBuffer};

/// Partitions of a store in any run.
pub(crate) const PARTITIONS_MAX: usize = 2 * 3;

/// What one client knows of one member: which incarnation it maps, and the
/// windows that it has learnt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) instance: usize,
    config_id: u32,
    data_window: u64,
    pub(crate) windows: [IndexWindow; PARTITIONS_MAX],
}

impl View {
    /// Learns the windows of an incarnation from its control region.
    pub(crate) fn take(env: &Env<'_>, instance: usize) -> Self {
        let control = env.instances[instance].store.regions().control.words();
        let mut windows = [IndexWindow::default(); PARTITIONS_MAX];
        let count = env.profile.partitions * env.profile.replicas;
        for (partition, window) in windows.iter_mut().take(count).enumerate() {
            *window = control::index_window(&control, partition).unwrap_or_default();
        }
        View {
            instance,
            config_id: control::config_id(&control),
            data_window: control::data_window(&control),
            windows,
        }
    }
}

/// Why a data read brought no bytes.
pub(crate) enum NoData {
    OutOfWindow,
    Failure(Failure),
}

impl Env<'_> {
    /// What a fill at this replica must find again, if its memory may be believed.
    pub(crate) fn read_stamp(&self, view: &View, place: usize, hash: KeyHash) -> Option<u64> {
        let instance = &self.instances[view.instance];
        let fails = self.profile.read_failure;
        if fails > 0 && self.rng.chance(8 * fails) {
            return None;
        }
        let control = instance.store.regions().control.words();
        let partition = hash.partition(place, self.profile.partitions);
        let count = self.profile.partitions * self.profile.replicas;
        let stamp = control::stamp(&control, partition, count, hash);
        self.check_lease(instance).ok().map(|()| stamp)
    }

    /// Words of a live region: each load may come after an event at its backend.
    #[inline(always)]
    fn interleaved<'a>(
        &'a self,
        instance: &'a Instance,
        words: SharedWords<'a>,
    ) -> Interrupted<'a, impl Fn() + 'a> {
        let before_load = move || {
            let left = self.countdown.get();
            if left != u32::MAX {
                self.count_down(left, instance);
            }
        };
        Interrupted { words, before_load }
    }

    #[cold]
    fn count_down(&self, left: u32, instance: &Instance) {
        if left > 0 {
            self.countdown.set(left - 1);
            return;
        }
        // What happens now may itself read words, but not through this hook.
        self.countdown.set(u32::MAX);
        self.interleave(instance);
        if self.rng.chance(512) {
            self.countdown.set(self.rng.below(8) as u32);
        }
    }

    /// Decides whether and when the read that begins now is interrupted.
    fn arm(&self, loads: u64) {
        let armed = self.rng.chance(self.profile.torn);
        let countdown = if armed {
            self.rng.below(loads) as u32
        } else {
            u32::MAX
        };
        self.countdown.set(countdown);
    }

    /// Scans the bucket of a key through `view`, of the member at `place` in its
    /// cohort.
    pub(crate) fn read_index(
        &self,
        view: &View,
        place: usize,
        hash: KeyHash,
    ) -> Result<IndexVote, Failure> {
        let instance = &self.instances[view.instance];
        if self.rng.chance(self.profile.read_failure) {
            return Err(Failure::Connection);
        }
        let window = view.windows[hash.partition(place, self.profile.partitions)];
        let words = instance.store.regions().index.words();
        self.arm(40);
        let vote = index_vote(hash, view.config_id, window.bucket_count, |bucket| {
            let at = window.offset + bucket * BUCKET_LEN as u64;
            let bucket = words
                .slice(at, BUCKET_LEN)
                .expect("the store advertises windows inside its region");
            self.interleaved(instance, bucket)
        });
        self.countdown.set(u32::MAX);
        self.check_lease(instance)?;
        match vote {
            IndexVote::AskByMessage { .. } => self.mark(Mark::Overflow),
            IndexVote::ConfigChanged { .. } => self.mark(Mark::ConfigChange),
            IndexVote::Unstable => self.mark(Mark::Unstable),
            _ => {}
        }
        Ok(vote)
    }

    /// Copies a data entry through `view`.
    pub(crate) fn read_data(
        &self,
        view: &View,
        pointer: Pointer,
        into: &mut WordBuffer,
    ) -> Result<(), NoData> {
        let instance = &self.instances[view.instance];
        if self.rng.chance(self.profile.read_failure) {
            return Err(NoData::Failure(Failure::Connection));
        }
        if !pointer_in_window(pointer, view.data_window) {
            return Err(NoData::OutOfWindow);
        }
        let words = instance.store.regions().data.words();
        let Some(words) = words.slice(pointer.offset(), pointer.len()) else {
            return Err(NoData::OutOfWindow);
        };
        let source = self.interleaved(instance, words);
        let out = into.prepare(pointer.len());
        self.arm(out.len() as u64);
        for (index, word) in out.iter_mut().enumerate() {
            *word = source.load(index);
        }
        self.countdown.set(u32::MAX);
        self.check_lease(instance).map_err(NoData::Failure)
    }

    /// Whether what was read may be believed: looked at after the read.
    pub(crate) fn check_lease(&self, instance: &Instance) -> Result<(), Failure> {
        if instance.life.get() != Life::Dead {
            return Ok(());
        }
        if self.time_ns.get() >= instance.lease_end_ns.get() {
            self.mark(Mark::LeaseExpired);
            return Err(Failure::Lease);
        }
        self.mark(Mark::DeadMemoryRead);
        Ok(())
    }
}
