//! The side of a server with copies: it does what the owner says, in order,
//! until a newer owner says something.

use crate::Replication;
use crate::core::Core;
use crate::message::{CopyOrder, Entry, Message, Operation};
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeSet, in_order};
use crate::values::{NotStored, Values};
use crate::wire::Wire;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// Whose copy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyState {
    pub(crate) owner: ServerId,
    pub(crate) token: AssignmentVersion,
}

impl Core {
    pub(crate) fn hear_copy(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        id: u64,
        token: AssignmentVersion,
        order: CopyOrder,
    ) {
        // An owner has its token from an assignment that names it.
        self.note_lived(from, token);
        let ranges = match &order {
            CopyOrder::Fill { ranges, .. }
            | CopyOrder::Attach { ranges }
            | CopyOrder::Exclude { ranges } => ranges.clone(),
            CopyOrder::Apply { point, .. } => vec![Slice::of_point(*point)],
        };
        if !in_order(&ranges) {
            return;
        }
        let (ranges, refused, newest) = match self.struck_off(from, token) {
            Some(newest) => (Vec::new(), ranges, Some(newest)),
            None => self.sift(token, &ranges),
        };
        let state = CopyState { owner: from, token };
        let mut failed = Vec::new();
        let mut kept = false;
        let mut reasons: BTreeSet<Option<NotStored>> = BTreeSet::new();
        match order {
            CopyOrder::Fill { entries, .. } => {
                failed = self.fill(values, state, &ranges, entries, &mut reasons);
            }
            CopyOrder::Attach { .. } => self.attach(now, id, state, &ranges),
            CopyOrder::Exclude { .. } => {
                for slice in ranges {
                    let dropped: Vec<Slice> =
                        self.copies.within(slice).map(|(slice, _)| slice).collect();
                    for slice in dropped {
                        values.forget(slice);
                        self.copies.remove(slice);
                    }
                    self.clean(slice);
                    self.raise_floor(slice, token);
                    self.stale.range(slice);
                }
            }
            CopyOrder::Apply {
                point,
                key,
                operation,
            } => {
                // Where nothing is, nothing is kept: the copy was dropped, or an
                // earlier order of it failed.
                let present = self.copies.get(point) == Some(&state);
                let applied = match present {
                    _ if !refused.is_empty() => Ok(()),
                    false => Err(None),
                    true => self
                        .apply(values, id, state, point, key, operation)
                        .map_err(Some),
                };
                if let Err(why) = applied {
                    reasons.insert(why);
                    // Strong: what was acknowledged before stays here. It is not
                    // served, for the key is not settled.
                    kept = present && self.config.replication == Replication::Strong;
                    if present && !kept {
                        self.drop_point(values, point);
                    }
                    failed.push(point);
                }
            }
        }
        if mutants::is(Mutant::FailedCopyConfirmed) {
            failed.clear();
        }
        let answer = match newest {
            None if !failed.is_empty() => Message::CopyFailed {
                id,
                points: failed,
                kept,
                // One that does not know of it would read from it that nothing is kept.
                no_room: self.knows(from, Wire::IN_PART)
                    && reasons.iter().all(|why| *why == Some(NotStored::NoRoom)),
            },
            None => Message::CopyDone { id },
            Some(newest) => Message::CopyRefused {
                id,
                newest,
                ranges: refused,
            },
        };
        self.say(now, from, answer);
    }

    /// The assignment by which this owner is dead, if a claim has told of one.
    /// Should it be mistaken about that, it gets nothing confirmed any more; and
    /// a copy that it made now would outlive it, and nobody would ever drop it.
    /// An owner between it and the claimant is none of this: it has to settle
    /// what it has begun before it can give.
    pub(crate) fn struck_off(
        &self,
        owner: ServerId,
        token: AssignmentVersion,
    ) -> Option<AssignmentVersion> {
        let (called, alive) = self.roll.as_ref()?;
        (*called > token && !alive.contains(&owner)).then_some(*called)
    }

    /// The parts of an order that may be carried out, those that may not, and
    /// the newest owner of the latter that was heard of.
    fn sift(
        &self,
        token: AssignmentVersion,
        ranges: &[Slice],
    ) -> (Vec<Slice>, Vec<Slice>, Option<AssignmentVersion>) {
        let mut refused = RangeSet::default();
        let mut newest = None;
        for &slice in ranges {
            for (slice, &floor) in self.copy_floor.within(slice) {
                if floor > token {
                    refused.add(slice);
                    newest = newest.max(Some(floor));
                }
            }
            // An owner follows nobody.
            for (slice, &own) in self.owned.within(slice) {
                refused.add(slice);
                newest = newest.max(Some(own));
            }
        }
        let accepted = ranges.iter().flat_map(|&slice| refused.gaps(slice));
        (accepted.collect(), refused.slices(), newest)
    }

    /// From now on only owners with this token or a newer one are followed.
    pub(crate) fn raise_floor(&mut self, slice: Slice, token: AssignmentVersion) {
        let mut lower = self.copy_floor.gaps(slice);
        let below = self
            .copy_floor
            .within(slice)
            .filter(|&(_, had)| *had < token);
        lower.extend(below.map(|(slice, _)| slice));
        for slice in lower {
            self.copy_floor.insert(slice, token);
        }
    }

    fn fill(
        &mut self,
        values: &mut dyn Values,
        state: CopyState,
        ranges: &[Slice],
        entries: Vec<Entry>,
        reasons: &mut BTreeSet<Option<NotStored>>,
    ) -> Vec<KeyPoint> {
        let mut failed = Vec::new();
        for &slice in ranges {
            self.resolve_transit(slice);
            self.clean(slice);
            values.forget(slice);
            self.copies.insert(slice, state);
            self.raise_floor(slice, state.token);
            self.stale.range(slice);
        }
        for entry in entries {
            let point = entry.point;
            if self.copies.get(point) != Some(&state) {
                continue;
            }
            // What cannot be kept is no copy, which the owner hears.
            let stored = match entry.value {
                Some(_) => {
                    let entry = entry.storable();
                    let stored = entry.and_then(|entry| values.store_copy(entry));
                    stored.map_err(Some)
                }
                None => Err(None),
            };
            if let Err(why) = stored {
                reasons.insert(why);
                self.drop_point(values, point);
                failed.push(point);
            }
        }
        failed
    }

    fn drop_point(&mut self, values: &mut dyn Values, point: KeyPoint) {
        values.forget(Slice::of_point(point));
        self.copies.remove(Slice::of_point(point));
        self.stale.range(Slice::of_point(point));
    }

    fn attach(&mut self, now: Duration, id: u64, state: CopyState, ranges: &[Slice]) {
        let mut missing = Vec::new();
        let mut unsettled = Vec::new();
        for &slice in ranges {
            missing.extend(self.copies.gaps(slice));
            let here: Vec<Slice> = self.copies.within(slice).map(|(slice, _)| slice).collect();
            for slice in here {
                self.copies.insert(slice, state);
                unsettled.extend(self.dirty_within(slice));
            }
            self.raise_floor(slice, state.token);
        }
        let message = Message::Attached {
            id,
            missing,
            unsettled,
        };
        self.say(now, state.owner, message);
    }

    /// Carries a commit out, if it can be stored.
    fn apply(
        &mut self,
        values: &mut dyn Values,
        id: u64,
        state: CopyState,
        point: KeyPoint,
        key: Bytes,
        operation: Operation,
    ) -> Result<(), NotStored> {
        if self.config.replication == Replication::Strong {
            self.dirty.insert((point, key.clone()), (state.owner, id));
        }
        match operation {
            Operation::Put { version, value } => {
                let entry = Entry {
                    point,
                    key,
                    version,
                    value: Some(value),
                };
                return values.store_copy(entry.storable()?);
            }
            Operation::Remove => values.remove(point, &key),
        }
        Ok(())
    }

    pub(crate) fn hear_settled(&mut self, from: ServerId, id: u64) {
        self.dirty
            .retain(|_, (owner, order)| *owner != from || *order > id);
    }

    pub(crate) fn dirty_within(&self, slice: Slice) -> Vec<(KeyPoint, Bytes)> {
        let keys = self.dirty.range((slice.start(), Bytes::new())..);
        keys.map(|(key, _)| key.clone())
            .take_while(|(point, _)| *point <= slice.last())
            .collect()
    }

    /// Forgets which keys of this were unsettled.
    pub(crate) fn clean(&mut self, slice: Slice) {
        for key in self.dirty_within(slice) {
            self.dirty.remove(&key);
        }
    }

    /// The copies of this become the owner's values: others may differ about
    /// the last commits.
    pub(crate) fn unsettle_copy(&mut self, slice: Slice) {
        let keys = self.dirty_within(slice);
        self.proposals.unsettle(keys);
    }
}
