//! Index windows on their way back to the system, a part at a time.
//!
//! Punching a hole takes time by its length, and whoever populates memory of the
//! same object meanwhile waits for it. So each mutation takes one step, and
//! maintenance takes as many as there are; whoever needs room takes them before
//! it evicts anything.

use crate::budget::Kind;
use crate::index::Index;
use crate::shared::{Shared, lock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use trefoil_layout::control::IndexWindow;

/// Bytes that go back to the system at a time, unless a frame is longer.
const PART_LEN: u64 = 256 << 10;

/// Memory of an index that nobody reads any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// How much of it, from its beginning, is resident and charged.
    pub(crate) resident: u64,
}

impl Window {
    /// One that is resident as a whole.
    pub(crate) fn whole(offset: u64, len: u64) -> Self {
        Window {
            offset,
            len,
            resident: len,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    windows: Mutex<Vec<Window>>,
    /// Whether there are any: so that nobody locks in vain.
    some: AtomicBool,
    /// Windows that the system did not take back. It is asked again.
    stuck: Mutex<Vec<Window>>,
}

impl Leaving {
    /// Has a window go that is on the account of indexes.
    pub(crate) fn add(&self, shared: &Shared, window: Window) {
        let resident = window.resident;
        shared.budget.convert(Kind::Index, Kind::Leaving, resident);
        self.push(window);
    }

    fn push(&self, window: Window) {
        let mut windows = lock(&self.windows);
        windows.push(window);
        self.some.store(true, Ordering::Relaxed);
    }

    /// The same for an index that is resident as a whole.
    pub(crate) fn add_index(&self, shared: &Shared, index: &Index) {
        let bytes = IndexWindow::bytes(index.bucket_count());
        let len = bytes.next_multiple_of(shared.regions.index.frame_len());
        self.add(shared, Window::whole(index.window.offset, len));
    }

    /// Gives a part of a window back; `false` if none waits for it.
    #[inline]
    pub(crate) fn release_step(&self, shared: &Shared) -> bool {
        self.some.load(Ordering::Relaxed) && self.release_part(shared)
    }

    #[cold]
    fn release_part(&self, shared: &Shared) -> bool {
        let window = {
            let mut windows = lock(&self.windows);
            let window = windows.pop();
            self.some.store(!windows.is_empty(), Ordering::Relaxed);
            window
        };
        let Some(window) = window else {
            return false;
        };
        let space = &shared.regions.index;
        let part = PART_LEN.max(space.frame_len()).min(window.resident);
        let resident = window.resident - part;
        let from = window.offset + resident;
        if part > 0 && space.punch(from..from + part).is_err() {
            lock(&self.stuck).push(window);
            return true;
        }
        shared.budget.release(Kind::Leaving, part);
        match resident {
            0 => lock(&shared.windows).release(window.offset, window.len),
            _ => self.push(Window { resident, ..window }),
        }
        true
    }

    /// Asks the system again to take back what it did not.
    pub(crate) fn retry_stuck(&self) {
        let stuck = std::mem::take(&mut *lock(&self.stuck));
        stuck.into_iter().for_each(|window| self.push(window));
    }

    /// Bytes that are still resident.
    pub(crate) fn resident_len(&self) -> u64 {
        let sum = |windows: &Mutex<Vec<Window>>| -> u64 {
            lock(windows).iter().map(|window| window.resident).sum()
        };
        sum(&self.windows) + sum(&self.stuck)
    }
}
