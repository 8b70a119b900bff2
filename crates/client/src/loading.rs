//! One load for all who wait for one.
//!
//! Who asks while a load is under way may know something that it has not seen, so waits
//! for the next one: that is everybody's who has asked by the time it begins.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Loading<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// Loads that have begun, and which of them has ended last.
    begun: u64,
    ended: u64,
    is_under_way: bool,
    waiting: usize,
    /// What the last one brought, while somebody waits for it.
    brought: Option<T>,
}

impl<T> Default for Loading<T> {
    fn default() -> Self {
        Loading {
            state: Mutex::new(State {
                begun: 0,
                ended: 0,
                is_under_way: false,
                waiting: 0,
                brought: None,
            }),
            ended: Condvar::new(),
        }
    }
}

impl<T: Clone> Loading<T> {
    /// What a load brings that begins after this was called: this thread's, or that of
    /// another one that has waited with it.
    pub(crate) fn load(&self, load: impl FnOnce() -> T) -> T {
        let mut state = self.lock();
        let wanted = state.begun + 1;
        while state.is_under_way {
            state.waiting += 1;
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            let brought = match state.waiting {
                0 => state.brought.take(),
                _ => state.brought.clone(),
            };
            if state.ended >= wanted
                && let Some(brought) = brought
            {
                return brought;
            }
        }
        state.begun += 1;
        state.is_under_way = true;
        drop(state);
        let turn = Turn(self);
        let brought = load();
        let mut state = self.lock();
        state.ended = state.begun;
        state.brought = (state.waiting > 0).then(|| brought.clone());
        drop(state);
        drop(turn);
        brought
    }
}

impl<T> Loading<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The others go on when it ends, also by a panic: then one of them loads.
struct Turn<'l, T>(&'l Loading<T>);

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.0.lock().is_under_way = false;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    /// Has the first load stand still until `count` others wait; what those are brought, and
    /// how many loads there were.
    fn behind_one(count: usize, then: impl Fn() + Sync) -> (Vec<u32>, u32) {
        let (loading, loads) = (Loading::default(), AtomicU32::new(0));
        let load = || loads.fetch_add(1, Ordering::SeqCst) + 1;
        let (begun, has_begun) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                loading.load(|| {
                    let brought = load();
                    begun.send(()).unwrap();
                    while loading.lock().waiting < count {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    then();
                    brought
                })
            });
            has_begun.recv().unwrap();
            let others: Vec<_> = (0..count)
                .map(|_| scope.spawn(|| loading.load(load)))
                .collect();
            let others = others.into_iter().map(|other| other.join().unwrap());
            let brought = others.collect();
            let _ = first.join();
            let state = loading.lock();
            assert!(state.brought.is_none() && !state.is_under_way);
            (brought, loads.load(Ordering::SeqCst))
        })
    }

    #[test]
    fn those_who_wait_share_the_next_load() {
        let (brought, loads) = behind_one(8, || {});
        assert_eq!(loads, 2, "the first had begun before they asked");
        assert_eq!(brought, [2; 8]);
    }

    #[test]
    fn a_load_that_panics_leaves_its_turn_to_the_next() {
        let (brought, loads) = behind_one(3, || panic!("as a test wants it"));
        assert_eq!(loads, 2);
        assert_eq!(brought, [2; 3]);
    }

    #[test]
    fn one_after_the_other_loads_each_time() {
        let loading = Loading::default();
        assert_eq!([1, 2, 3].map(|number| loading.load(|| number)), [1, 2, 3]);
    }
}
