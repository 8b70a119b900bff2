//! What moved when: the memory that keeps slices from moving to and fro.

use crate::assignment::Assignment;
use crate::key::Slice;
use crate::ranges::RangeMap;
use crate::server::ServerId;
use std::collections::BTreeMap;
use std::time::Duration;

/// When servers gave keys away, and when the servers of keys changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Until when a server does not get back what it gave away.
    left: BTreeMap<ServerId, RangeMap<Duration>>,
    /// When that was.
    changed: RangeMap<Duration>,
}

impl History {
    /// Knows nothing of the past: everything counts as changed just now, so
    /// that a new assigner first looks for a while.
    pub(crate) fn starting(now: Duration) -> Self {
        let mut history = History::default();
        history.changed.insert(Slice::ALL, now);
        history
    }

    /// Remembers who gained and lost what between two assignments. What a
    /// server had to give (`forced`) it may have back: one whose stop was
    /// called off would otherwise stay empty.
    pub(crate) fn record(
        &mut self,
        old: &Assignment,
        new: &Assignment,
        now: Duration,
        no_return: Duration,
        forced: impl Fn(ServerId) -> bool,
    ) {
        let mut first = 0;
        for after in new.slices() {
            while old.slices()[first].slice.last() < after.slice.start() {
                first += 1;
            }
            for before in &old.slices()[first..] {
                let Some(common) = before.slice.intersection(after.slice) else {
                    break;
                };
                let mut changed = before.servers.len() != after.servers.len();
                for server in &before.servers {
                    if !after.servers.contains(server) {
                        if !forced(*server) {
                            self.note_left(*server, common, now + no_return);
                        }
                        changed = true;
                    }
                }
                if changed {
                    self.note_changed(common, now);
                }
            }
        }
    }

    /// Remembers that `server` gave `slice` away, and until when.
    pub(crate) fn note_left(&mut self, server: ServerId, slice: Slice, until: Duration) {
        self.left.entry(server).or_default().insert(slice, until);
    }

    /// Remembers that the servers of `slice` changed.
    pub(crate) fn note_changed(&mut self, slice: Slice, now: Duration) {
        self.changed.insert(slice, now);
    }

    /// Whether `server` gave away some key of `slice` not long ago.
    pub(crate) fn would_return(&self, server: ServerId, slice: Slice, now: Duration) -> bool {
        self.left
            .get(&server)
            .is_some_and(|ranges| ranges.overlapping(slice).any(|(_, until)| now < until))
    }

    /// Remembers nothing that was given away for longer than until `limit`.
    pub(crate) fn shorten(&mut self, limit: Duration) {
        for ranges in self.left.values_mut() {
            ranges.update(|until| until.min(limit));
        }
    }

    /// Whether the servers of some key of `slice` changed less than `window`
    /// ago.
    pub(crate) fn changed_within(&self, slice: Slice, now: Duration, window: Duration) -> bool {
        self.changed
            .overlapping(slice)
            .any(|(_, at)| now.saturating_sub(at) < window)
    }

    /// Forgets what nobody will ask for any more.
    pub(crate) fn prune(
        &mut self,
        now: Duration,
        changed: Duration,
        is_member: impl Fn(ServerId) -> bool,
    ) {
        self.left.retain(|&server, ranges| {
            ranges.retain(|until| now < until);
            is_member(server) && ranges.len() > 0
        });
        self.changed.retain(|at| now.saturating_sub(at) < changed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assignment::AssignedSlice;
    use crate::key::KeyPoint;
    use crate::version::AssignmentVersion;

    #[test]
    fn who_gave_what_is_remembered_for_a_while() {
        let second = Duration::from_secs(1);
        let (a, b) = (ServerId(1), ServerId(2));
        let old = Assignment::even(AssignmentVersion::first_of(1), &[a], 2, 1);
        let (left, right) = old.slices()[0]
            .slice
            .split_before(KeyPoint(1 << 60))
            .unwrap();
        let mut slices = old.slices().to_vec();
        slices[0].slice = left;
        slices.insert(
            1,
            AssignedSlice {
                slice: right,
                servers: vec![b],
            },
        );
        let new = Assignment::new(old.version().next(), slices).unwrap();
        let mut history = History::default();
        history.record(&old, &new, second, second * 10, |_| false);
        let point = |p: u64| Slice::of_point(KeyPoint(p));
        let ask = |history: &History, server, at, now: u32| {
            history.would_return(server, point(at), second * now)
        };
        assert!(ask(&history, a, 1 << 60, 2) && ask(&history, a, (1 << 63) - 1, 10));
        assert!(!ask(&history, a, (1 << 60) - 1, 2), "kept");
        assert!(!ask(&history, a, 1 << 63, 2), "not of this slice");
        assert!(!ask(&history, b, 1 << 60, 2), "gained");
        assert!(!ask(&history, a, 1 << 60, 11), "long ago");
        assert!(history.changed_within(Slice::ALL, second * 2, second * 10));
        assert!(!history.changed_within(point(0), second * 2, second * 10));
        let mut forced = History::default();
        forced.record(&old, &new, second, second * 10, |server| server == a);
        assert!(forced.left.is_empty() && forced.changed.len() == 1);
        let mut short = history.clone();
        short.shorten(second * 5);
        assert!(ask(&short, a, 1 << 60, 4) && !ask(&short, a, 1 << 60, 5));
        history.prune(second * 11, second * 10, |_| true);
        assert!(history.left.is_empty());
    }
}
