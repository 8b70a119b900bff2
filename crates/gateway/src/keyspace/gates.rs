//! One event loop acts alone on the store of this process, while the others stand
//! still: for a transaction of several keys.
//!
//! **Thread safety.** A loop says that it is busy, and then looks whether somebody
//! wants to be alone; who wants to be alone says so, and then looks who is busy. All
//! of that is sequentially consistent, so one of the two sees the other. A loop that
//! waits is not busy, so those who want to be alone at the same time do not wait for
//! one another but for `wanted`, which one of them has.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
}

/// Alone in its cache line: it is written in each turn.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Busy(AtomicBool);

/// One event loop's.
#[derive(Debug)]
pub(super) struct Gate {
    shared: Arc<Shared>,
    own: Arc<Busy>,
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
        loops.push(Arc::clone(&own));
        self.0.count.store(loops.len(), Ordering::SeqCst);
        Gate {
            shared: Arc::clone(&self.0),
            own,
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

    /// Within a turn: waits until no other loop is in one, and keeps them so.
    pub(super) fn isolate(&self) {
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
        let loops = self.shared.loops.lock();
        for other in loops.unwrap_or_else(PoisonError::into_inner).iter() {
            wait_until(|| !other.0.load(Ordering::SeqCst));
        }
    }

    /// Within the same turn: lets the others go on.
    pub(super) fn end_isolation(&self) {
        // Busy before the others are let in: the turn goes on.
        self.own.0.store(true, Ordering::SeqCst);
        self.shared.wanted.store(false, Ordering::SeqCst);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Whoever wants to be alone does not wait for a loop that has gone.
        self.leave();
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
                            gate.isolate();
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
}
