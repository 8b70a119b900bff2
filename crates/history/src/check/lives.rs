//! Losses of the only copy: what was there before is gone, and with it the order
//! of versions.
//!
//! A backend that has lost its memory, and has no peers to learn from, cannot know
//! how high versions have risen: clients whose clocks are ahead had raised them
//! above its own time. Versions on two sides of a loss are therefore not compared.
//! Times are: a value that was written before something that was acknowledged is
//! stale, whatever was lost in between.

use super::writes::Write;
use crate::event::Event;

/// When everything was lost, in the order of time.
pub(super) struct Lives {
    /// From the moment that the only copy was told to end until nothing of it can
    /// answer any more.
    losses: Vec<(u64, u64)>,
}

impl Lives {
    pub(super) fn of(losses: &[&Event]) -> Self {
        let mut losses: Vec<_> = (losses.iter())
            .map(|loss| (loss.begin_ns, loss.end_ns))
            .collect();
        losses.sort_unstable();
        Lives { losses }
    }

    /// How many there were.
    pub(super) fn count(&self) -> usize {
        self.losses.len() + 1
    }

    /// In which life something took place that was done in this time; `None` if it
    /// may have been on either side of a loss.
    fn at(&self, begin_ns: u64, end_ns: u64) -> Option<usize> {
        let over = self.losses.partition_point(|loss| loss.1 < begin_ns);
        let begun = self.losses.partition_point(|loss| loss.0 <= end_ns);
        (over == begun).then_some(over)
    }

    /// The life of an acknowledged mutation.
    pub(super) fn of_mutation(&self, event: &Event) -> Option<usize> {
        self.at(event.begin_ns, event.end_ns)
    }

    /// The life of a write of which somebody saw the value.
    pub(super) fn of_seen(&self, write: &Write<'_>, seen: &Event) -> Option<usize> {
        let done_by = write.stored_by_ns(seen.mark).min(seen.end_ns);
        self.at(write.event.begin_ns, done_by)
    }
}
