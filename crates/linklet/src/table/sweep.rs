//! Going through everything that a server owns, a few entries at a time: to find
//! what is over, and to show what is there.

use super::{Entry, Found, PART_COUNT, Table, cut, last_of, lock, part_of};
use crate::lifetime::{Clocks, Over};
use std::sync::Arc;
use trefoil_linklet_core::Status;
use trefoil_sharder::{KeyPoint, Slice};

/// Entries looked at under one lock.
const WINDOW_COUNT: usize = 1_024;

/// What was found in a window of a part.
pub(crate) struct Swept<V> {
    /// Over, and taken out.
    pub(crate) taken: Vec<(Entry<V>, Over)>,
    /// Over, and copies have to agree first.
    pub(crate) proposed: Vec<(Arc<[u8]>, Over)>,
}

/// Where a sweep is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    part: usize,
    from: usize,
}

impl<V> Table<V> {
    /// Looks at a window for what is over, and says which comes next. What takes
    /// the place of an entry that is taken out may be seen only by the next sweep.
    /// `served` says whether a lease that ends then still lasts. What is idle, or
    /// has copies, stays for now while it is `in_change`.
    pub(crate) fn sweep(
        &self,
        window: Window,
        clocks: Clocks,
        served: impl Fn(std::time::Duration) -> bool,
        in_change: impl Fn(&[u8]) -> bool,
    ) -> (Swept<V>, Option<Window>) {
        let mut swept = Swept {
            taken: Vec::new(),
            proposed: Vec::new(),
        };
        let mut part = lock(&self.parts[window.part]);
        let rules = Arc::clone(&part.rules);
        let to = part.len().min(window.from + WINDOW_COUNT);
        if rules.serve_until().is_none_or(served) {
            for at in (window.from..to).rev() {
                let entry = part.at(at);
                let Some(over) = self.lifetimes.over(entry, clocks) else {
                    continue;
                };
                match rules.status(KeyPoint(entry.hash.place)) {
                    Status::Owned { propose, .. }
                        if (propose || over == Over::Idle) && in_change(&entry.key) => {}
                    Status::Owned { propose: true, .. } => {
                        swept.proposed.push((Arc::clone(&entry.key), over));
                    }
                    Status::Owned { propose: false, .. } => {
                        let entry = part.take_at(at);
                        self.gone(&entry);
                        swept.taken.push((entry, over));
                    }
                    Status::Copy | Status::Ask => {}
                }
            }
        }
        let next = match to < part.len() {
            true => Some(Window { from: to, ..window }),
            false => (window.part + 1 < PART_COUNT).then_some(Window {
                part: window.part + 1,
                from: 0,
            }),
        };
        (swept, next)
    }

    /// What this server owns of the beginning of a slice, within one part, and the
    /// last point of which everything was seen. `None` if a lease has ended.
    pub(crate) fn owned_of(
        &self,
        slice: Slice,
        count_max: usize,
        served: impl Fn(std::time::Duration) -> bool,
    ) -> Option<(Vec<FoundOwned<V>>, KeyPoint)> {
        let index = part_of(slice.start().0);
        let here = Slice::spanning(slice.start(), KeyPoint(last_of(index).min(slice.last().0)));
        let part = lock(&self.parts[index]);
        if !part.rules.serve_until().is_none_or(served) {
            return None;
        }
        let owned = |entry: &&Entry<V>| {
            let point = KeyPoint(entry.hash.place);
            here.contains(point)
                && matches!(part.rules.status(point), Status::Owned { .. })
                && !entry.is_hidden()
                && !entry.leaving
                && !entry.has_ended()
        };
        let mut found: Vec<&Entry<V>> = part.entries().filter(owned).collect();
        let last = cut(&mut found, count_max, here.last());
        let pick = |entry: &Entry<V>| (Arc::clone(&entry.key), entry.value.found());
        Some((found.into_iter().map(pick).collect(), last))
    }
}

/// A key with where its object is.
pub(crate) type FoundOwned<V> = (Arc<[u8]>, Found<V>);
