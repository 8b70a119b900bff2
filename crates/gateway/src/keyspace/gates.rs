//! One event loop acts alone on the store of this process, while the others stand
//! still: for a short transaction of several keys. A long one *holds* its keys instead:
//! whoever wants to do something to those waits for it, everybody else goes on. At most
//! one connection holds keys, and nobody is alone meanwhile.
//!
//! **Thread safety.** A loop says that it is busy, and then looks whether somebody
//! wants to be alone; who wants to be alone says so, and then looks who is busy. All
//! of that is sequentially consistent, so one of the two sees the other. A loop that
//! waits is not busy, so those who want to be alone at the same time do not wait for
//! one another but for `wanted`, which one of them has. Keys are held from a moment on in
//! which one loop is alone, so that none begins to be held within a turn of another one. Who
//! finds a key held says under the same lock that he waits, and is woken by the release,
//! which takes that lock.
//!
//! **Fairness.** Who waited at a release has a turn before anybody else holds keys: the
//! release notes the event loops that *owe* such a turn, and each crosses itself out when
//! those whom it resumed have had theirs, or some milliseconds later: a client that reads no
//! answers has none. So a connection that sends one long transaction after the other keeps
//! nobody waiting for more than one of them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trefoil_gateway_core::keyspace::Wake;

/// Looks before a waiting loop sleeps between them.
const YIELDS_MAX: u32 = 100;
/// Between two looks after that: a transaction takes milliseconds at most.
const SLEEP: Duration = Duration::from_micros(50);

/// The gates of all event loops of a front door. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Gates(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Somebody is alone, or about to be.
    wanted: AtomicBool,
    loops: Mutex<Vec<Arc<Busy>>>,
    count: AtomicUsize,
    /// The connection that holds keys; 0 if none does.
    holder: AtomicU64,
    /// How often those who wait were told to look once more: keys were released, or nobody
    /// is owed a turn any more.
    releases: AtomicU64,
    held: Mutex<Held>,
}

/// Keys that are held, and who waits for them.
#[derive(Default)]
struct Held {
    /// Marks of keys, in order.
    keys: Vec<u64>,
    /// Event loops.
    waiting: Vec<usize>,
    /// Those whose connections waited at a release, and have yet to have their turn; and
    /// which release that was, by their number.
    owed: Vec<(usize, u64)>,
    /// How each event loop is woken.
    wakes: Vec<Option<Wake>>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held")
            .field("keys", &self.keys.len())
            .field("waiting", &self.waiting)
            .field("owed", &self.owed)
            .finish_non_exhaustive()
    }
}

impl Held {
    fn add_waiting(&mut self, index: usize) {
        if !self.waiting.contains(&index) {
            self.waiting.push(index);
        }
    }

    /// Whether a loop owes somebody a turn, `but` that one.
    fn is_owed(&self, but: Option<usize>) -> bool {
        self.owed.iter().any(|(index, _)| Some(*index) != but)
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Alone in its cache line: it is written in each turn.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Busy(AtomicBool);

/// Somebody has to wait: for a release that is not among the first so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waits(pub(super) u64);

/// One event loop's.
#[derive(Debug)]
pub(super) struct Gate {
    shared: Arc<Shared>,
    own: Arc<Busy>,
    index: usize,
    /// A connection of this loop holds keys.
    is_holder: bool,
    /// This loop is the one that is alone, or waits for the others to stop.
    is_alone: AtomicBool,
}

/// Waits until `is_over`.
fn wait_until(is_over: impl Fn() -> bool) {
    let mut looks = 0;
    while !is_over() {
        looks += 1;
        if looks <= YIELDS_MAX {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
    }
}

impl Gates {
    /// Of one more event loop. All are made before one of them begins.
    pub(super) fn gate(&self) -> Gate {
        let own = Arc::new(Busy::default());
        let mut loops = self.0.loops.lock().unwrap_or_else(PoisonError::into_inner);
        let index = loops.len();
        loops.push(Arc::clone(&own));
        self.0.count.store(loops.len(), Ordering::SeqCst);
        self.0.held().wakes.push(None);
        Gate {
            shared: Arc::clone(&self.0),
            own,
            index,
            is_holder: false,
            is_alone: AtomicBool::new(false),
        }
    }
}

impl Gate {
    /// The loop begins a turn.
    #[inline]
    pub(super) fn enter(&self) {
        if self.shared.count.load(Ordering::Relaxed) > 1 {
            self.enter_beside_others();
        }
    }

    fn enter_beside_others(&self) {
        loop {
            self.own.0.store(true, Ordering::SeqCst);
            if !self.shared.wanted.load(Ordering::SeqCst) {
                return;
            }
            self.own.0.store(false, Ordering::SeqCst);
            wait_until(|| !self.shared.wanted.load(Ordering::SeqCst));
        }
    }

    /// It has ended.
    #[inline]
    pub(super) fn leave(&self) {
        self.own.0.store(false, Ordering::Release);
    }

    /// How this loop is woken.
    pub(super) fn attach(&self, wake: Wake) {
        if let Some(own) = self.shared.held().wakes.get_mut(self.index) {
            *own = Some(wake);
        }
    }

    /// Within a turn: waits until no other loop is in one, and keeps them so. It has to wait
    /// while a connection holds keys: the loop is woken when it does no more.
    pub(super) fn isolate(&self) -> Result<(), Waits> {
        // Not to keep others from their work for nothing.
        self.waits_for(|_| true)?;
        self.stop_others();
        let waits = self.waits_for(|_| true);
        if waits.is_err() {
            self.end_isolation();
        }
        waits
    }

    fn stop_others(&self) {
        self.own.0.store(false, Ordering::SeqCst);
        let take = || {
            let taken = self.shared.wanted.compare_exchange(
                false,
                true,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            taken.is_ok()
        };
        wait_until(take);
        self.is_alone.store(true, Ordering::Relaxed);
        let loops = self.shared.loops.lock();
        for other in loops.unwrap_or_else(PoisonError::into_inner).iter() {
            wait_until(|| !other.0.load(Ordering::SeqCst));
        }
    }

    /// Within a turn of this connection: keeps all others from the keys with these marks,
    /// until [`Gate::release`]. It has to wait as [`Gate::isolate`] does, and while others
    /// are owed a turn: those of this loop do not count if it is owed one itself (`is_next`).
    pub(super) fn hold(
        &mut self,
        connection: u64,
        mut keys: Vec<u64>,
        is_next: bool,
    ) -> Result<(), Waits> {
        let but = is_next.then_some(self.index);
        self.waits_for_others(but)?;
        self.isolate()?;
        // Keys may have been held and released since.
        if let Err(waits) = self.waits_for_others(but) {
            self.end_isolation();
            return Err(waits);
        }
        keys.sort_unstable();
        self.shared.held().keys = keys;
        self.shared.holder.store(connection, Ordering::SeqCst);
        self.is_holder = true;
        self.end_isolation();
        Ok(())
    }

    fn waits_for_others(&self, but: Option<usize>) -> Result<(), Waits> {
        let mut held = self.shared.held();
        match held.is_owed(but) {
            true => Err(self.wait(&mut held)),
            false => Ok(()),
        }
    }

    /// Notes that this loop is to be woken.
    fn wait(&self, held: &mut Held) -> Waits {
        held.add_waiting(self.index);
        Waits(self.releases())
    }

    /// Those whom this loop owed a turn since the release with this number, and before, have
    /// had it.
    pub(super) fn pay(&self, seen: u64) {
        let mut held = self.shared.held();
        let before = held.owed.len();
        held.owed
            .retain(|(index, release)| *index != self.index || *release > seen);
        let is_last = before > 0 && held.owed.is_empty();
        // Who waits for keys that are held is told when they are released.
        if is_last && !held.waiting.is_empty() && self.holder() == 0 {
            let wakes = self.tell_waiting(&mut held);
            drop(held);
            wakes.iter().for_each(|wake| wake());
        }
    }

    /// Those who wait look once more; how others than this loop are woken.
    fn tell_waiting(&self, held: &mut Held) -> Vec<Wake> {
        self.shared.releases.fetch_add(1, Ordering::SeqCst);
        let waiting = std::mem::take(&mut held.waiting);
        let others = waiting.into_iter().filter(|index| *index != self.index);
        let wake = |index: usize| held.wakes.get(index).cloned().flatten();
        others.filter_map(wake).collect()
    }

    /// Ends that, and wakes those who have waited for it.
    pub(super) fn release(&mut self) {
        if !std::mem::take(&mut self.is_holder) {
            return;
        }
        let mut held = self.shared.held();
        held.keys = Vec::new();
        self.shared.holder.store(0, Ordering::SeqCst);
        let waiting = held.waiting.clone();
        let wakes = self.tell_waiting(&mut held);
        let release = self.releases();
        held.owed.retain(|(index, _)| !waiting.contains(index));
        held.owed
            .extend(waiting.iter().map(|index| (*index, release)));
        drop(held);
        wakes.iter().for_each(|wake| wake());
    }

    /// The connection that holds keys; 0 if none does.
    #[inline]
    pub(super) fn holder(&self) -> u64 {
        self.shared.holder.load(Ordering::Acquire)
    }

    /// How often those who waited were told to look once more.
    pub(super) fn releases(&self) -> u64 {
        self.shared.releases.load(Ordering::Acquire)
    }

    /// Whether another connection holds the key with this mark: the loop is woken when it
    /// does no more.
    pub(super) fn waits_for_key(&self, mark: u64) -> Result<(), Waits> {
        self.waits_for(|keys| keys.binary_search(&mark).is_ok())
    }

    /// Whether keys are held, these among them.
    pub(super) fn waits_for(&self, are_they: impl FnOnce(&[u64]) -> bool) -> Result<(), Waits> {
        if self.holder() == 0 {
            return Ok(());
        }
        let mut held = self.shared.held();
        match self.holder() != 0 && are_they(&held.keys) {
            true => Err(self.wait(&mut held)),
            false => Ok(()),
        }
    }

    /// Within the same turn: lets the others go on.
    pub(super) fn end_isolation(&self) {
        // Busy before the others are let in: the turn goes on.
        self.own.0.store(true, Ordering::SeqCst);
        self.is_alone.store(false, Ordering::Relaxed);
        self.shared.wanted.store(false, Ordering::SeqCst);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A panic in the middle: the others would stand still for ever.
        if self.is_alone.load(Ordering::Relaxed) {
            self.end_isolation();
        }
        // Whoever wants to be alone does not wait for a loop that has gone.
        self.leave();
        let mut held = self.shared.held();
        held.waiting.retain(|index| *index != self.index);
        if let Some(own) = held.wakes.get_mut(self.index) {
            *own = None;
        }
        drop(held);
        self.release();
        self.pay(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Turns that find a pair of numbers unequal have looked in the middle.
    #[test]
    fn whoever_is_alone_is_alone() {
        let gates = Gates::default();
        let pair = [AtomicU64::new(0), AtomicU64::new(0)];
        let all: Vec<Gate> = (0..3).map(|_| gates.gate()).collect();
        std::thread::scope(|scope| {
            for gate in &all {
                scope.spawn(|| {
                    for turn in 0..3000 {
                        gate.enter();
                        let [first, second] = [0, 1].map(|at| pair[at].load(Ordering::Relaxed));
                        assert_eq!(first, second);
                        if turn % 3 == 0 {
                            assert_eq!(gate.isolate(), Ok(()));
                            // Not one addition: another one in between is seen.
                            for number in &pair {
                                let old = number.load(Ordering::Relaxed);
                                std::hint::spin_loop();
                                number.store(old + 1, Ordering::Relaxed);
                            }
                            gate.end_isolation();
                        }
                        gate.leave();
                    }
                });
            }
        });
        assert_eq!(pair[0].load(Ordering::Relaxed), 3000);
    }

    #[test]
    fn who_ends_while_it_is_alone_lets_the_others_go_on() {
        let gates = Gates::default();
        let (ends, other) = (gates.gate(), gates.gate());
        ends.enter();
        assert_eq!(ends.isolate(), Ok(()));
        drop(ends);
        // It would wait for ever.
        other.enter();
        assert_eq!(other.isolate(), Ok(()));
        other.end_isolation();
        other.leave();
    }
}
