//! What stays here though the map gives it to somebody else, and a server could not store a
//! copy of: others are to have it. Should all servers be full, each is offered a little of it
//! after pauses that get longer ([`pause`](crate::pause)), and no more because of a new map.

use crate::config::Config;
use crate::pause::{Pause, RETRY_POINTS};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;
use trefoil_sharder::{KeyPoint, Slice};

/// One server's.
#[derive(Debug, Default)]
pub(super) struct Declined {
    points: BTreeSet<KeyPoint>,
    /// Of these, what it may be sent now.
    offered: BTreeSet<KeyPoint>,
    /// The last one that was offered again; all have their turn.
    last: Option<KeyPoint>,
    pause: Pause,
    again_at: Option<Duration>,
}

impl Declined {
    /// It could not store this.
    pub(super) fn add(&mut self, now: Duration, config: &Config, point: KeyPoint) {
        self.points.insert(point);
        self.offered.remove(&point);
        let again_at = self.pause.end(now, config);
        self.again_at.get_or_insert(again_at);
    }

    /// Whether it could not store this, and it is not its turn.
    pub(super) fn holds(&self, point: KeyPoint) -> bool {
        self.points.contains(&point) && !self.offered.contains(&point)
    }

    /// When some of it is to be offered again.
    pub(super) fn again_at(&self) -> Option<Duration> {
        self.again_at
    }

    /// A few that are to be offered now, if it is time; those of which this is not true are
    /// forgotten.
    pub(super) fn due(
        &mut self,
        now: Duration,
        config: &Config,
        stays: impl Fn(KeyPoint) -> bool,
    ) -> Vec<KeyPoint> {
        if self.again_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.points.retain(|&point| stays(point));
        let after = self.last.map_or(Unbounded, Excluded);
        let behind = self.points.range((after, Unbounded)).take(RETRY_POINTS);
        let mut few: Vec<KeyPoint> = behind.copied().collect();
        if few.is_empty() {
            few = self.points.iter().take(RETRY_POINTS).copied().collect();
        }
        self.last = few.last().copied();
        if !self.pause.is_first() {
            // What it was not sent, for others have it: only a few at a time.
            self.offered.clear();
        }
        self.offered.extend(&few);
        self.pause.lengthen(config);
        let again_at = self.pause.end(now, config);
        self.again_at = (!self.points.is_empty()).then_some(again_at);
        if self.points.is_empty() {
            self.pause = Pause::default();
        }
        few
    }

    /// It has stored this. If it could not before there is room now: it is offered the rest.
    pub(super) fn stored(&mut self, now: Duration, slice: Slice) {
        if self.forget(slice) {
            self.pause = Pause::default();
            self.again_at = (!self.points.is_empty()).then_some(now);
        }
    }

    /// It is not to have this; whether anything of it was here.
    pub(super) fn forget(&mut self, slice: Slice) -> bool {
        let within = || slice.start()..=slice.last();
        self.offered.extract_if(within(), |_| true).for_each(drop);
        self.points.extract_if(within(), |_| true).count() > 0
    }
}
