//! What the driver is to do, in order, and what is to be said of losses.

use crate::effect::Effect;
use crate::loss::{Extent, Loss, LossReason};
use crate::ranges::joined;
use bytes::Bytes;
use std::collections::VecDeque;
use trefoil_sharder::{AssignmentVersion, KeyPoint, Slice};

/// Effects that were not fetched yet. It touches no other part; all others tell it what to do.
/// Losses wait here for the end of a step, so that those of one kind make one report.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    effects: VecDeque<Effect>,
    losses: Vec<Loss>,
}

impl Outbox {
    pub(crate) fn tell(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// The next thing to do.
    pub(crate) fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Notes a loss; those of one kind are reported together.
    pub(crate) fn lose(
        &mut self,
        version: AssignmentVersion,
        reason: LossReason,
        extent: Extent,
        ranges: Vec<Slice>,
        keys: Vec<(KeyPoint, Bytes)>,
    ) {
        let same = self
            .losses
            .iter_mut()
            .find(|loss| (loss.reason, loss.extent, loss.version) == (reason, extent, version));
        match same {
            Some(loss) => {
                loss.ranges.extend(ranges);
                loss.keys.extend(keys);
            }
            None => self.losses.push(Loss {
                reason,
                extent,
                version,
                ranges,
                keys,
            }),
        }
    }

    /// Reports what was lost.
    pub(crate) fn flush_losses(&mut self) {
        for mut loss in std::mem::take(&mut self.losses) {
            loss.ranges.sort_unstable();
            loss.ranges = joined(loss.ranges);
            self.effects.push_back(Effect::Loss(loss));
        }
    }
}
