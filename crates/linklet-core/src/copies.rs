//! The side of a server with copies: it does what the owner says, in order,
//! until a newer owner says something.

mod dirty;

use crate::Replication;
use crate::core::Core;
use crate::message::{CopyOrder, Entry, Message, Operation};
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeMap, RangeSet, in_order};
use crate::table::Stale;
use crate::values::{NotStored, Values};
use crate::wire::Wire;
use bytes::Bytes;
use dirty::Dirty;
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// Whose copy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyState {
    pub(crate) owner: ServerId,
    pub(crate) token: AssignmentVersion,
}

/// Copies of others' values. It marks what is served of them as stale, and touches no other
/// part.
///
/// * Nothing that is owned here is a copy.
/// * A copy follows the owner with the newest token. Whoever has a lower one, or is dead by
///   somebody's claim, is refused.
/// * Strong: a key is dirty from an order of its owner's until that is settled. Dirty copies
///   are not served.
#[derive(Debug)]
pub(crate) struct Copies {
    replication: Replication,
    here: RangeMap<CopyState>,
    /// Orders with a lower token are refused.
    floor: RangeMap<AssignmentVersion>,
    dirty: Dirty,
    /// The newest assignment that anybody has claimed by, and who was alive by
    /// it.
    roll: Option<(AssignmentVersion, BTreeSet<ServerId>)>,
}

/// What could not be done of an order.
#[derive(Debug, Default)]
struct NotCopied {
    points: Vec<KeyPoint>,
    /// What was there before is there.
    kept: bool,
    /// `None`: it was not there, or came without a value.
    reasons: BTreeSet<Option<NotStored>>,
}

/// One commit of an owner's.
struct Ordered {
    id: u64,
    point: KeyPoint,
    key: Bytes,
    operation: Operation,
}

/// The parts of an order.
struct Sifted {
    /// They may be carried out.
    accepted: Vec<Slice>,
    /// They may not.
    refused: Vec<Slice>,
    /// The newest owner of the latter that was heard of.
    newest: Option<AssignmentVersion>,
}

impl Copies {
    pub(crate) fn nothing(replication: Replication) -> Self {
        Copies {
            replication,
            here: RangeMap::default(),
            floor: RangeMap::default(),
            dirty: Dirty::default(),
            roll: None,
        }
    }

    /// The copies that there are.
    pub(crate) fn here(&self) -> &RangeMap<CopyState> {
        &self.here
    }

    /// What was owned here becomes a copy of somebody else's.
    pub(crate) fn become_copy(&mut self, slice: Slice, state: CopyState) {
        self.here.insert(slice, state);
    }

    /// This is owned here, or nothing is here any more.
    pub(crate) fn remove(&mut self, slice: Slice) {
        self.here.remove(slice);
    }

    pub(crate) fn remove_all(&mut self) {
        self.here = RangeMap::default();
    }

    /// Notes who is alive by an assignment.
    pub(crate) fn call_roll(&mut self, version: AssignmentVersion, alive: &[ServerId]) {
        match &mut self.roll {
            Some((called, _)) if *called > version => {}
            // Two lists of one assignment differ in who has died since, and in
            // who has joined since: he has no token as old as that.
            Some((called, roll)) if *called == version => {
                roll.retain(|server| alive.contains(server));
            }
            roll => *roll = Some((version, alive.iter().copied().collect())),
        }
    }

    /// The assignment by which this owner is dead, if a claim has told of one.
    /// Should it be mistaken about that, it gets nothing confirmed any more; and
    /// a copy that it made now would outlive it, and nobody would ever drop it.
    /// An owner between it and the claimant is none of this: it has to settle
    /// what it has begun before it can give.
    pub(crate) fn struck_off(&self, state: CopyState) -> Option<AssignmentVersion> {
        let (called, alive) = self.roll.as_ref()?;
        (*called > state.token && !alive.contains(&state.owner)).then_some(*called)
    }

    /// Which parts of an order may be carried out, beside what is owned here.
    fn sift(
        &self,
        owned: &RangeMap<AssignmentVersion>,
        state: CopyState,
        ranges: Vec<Slice>,
    ) -> Sifted {
        if let Some(newest) = self.struck_off(state) {
            return Sifted {
                accepted: Vec::new(),
                refused: ranges,
                newest: Some(newest),
            };
        }
        let mut refused = RangeSet::default();
        let mut newest = None;
        for &slice in &ranges {
            for (slice, &floor) in self.floor.within(slice) {
                if floor > state.token {
                    refused.add(slice);
                    newest = newest.max(Some(floor));
                }
            }
            // An owner follows nobody.
            for (slice, &own) in owned.within(slice) {
                refused.add(slice);
                newest = newest.max(Some(own));
            }
        }
        let accepted = ranges.iter().flat_map(|&slice| refused.gaps(slice));
        Sifted {
            accepted: accepted.collect(),
            refused: refused.slices(),
            newest,
        }
    }

    /// From now on only owners with this token or a newer one are followed.
    fn raise_floor(&mut self, slice: Slice, token: AssignmentVersion) {
        let mut lower = self.floor.gaps(slice);
        let below = self.floor.within(slice).filter(|&(_, had)| *had < token);
        lower.extend(below.map(|(slice, _)| slice));
        for slice in lower {
            self.floor.insert(slice, token);
        }
    }

    /// Makes these copies, instead of what is here.
    fn fill(
        &mut self,
        values: &mut dyn Values,
        stale: &mut Stale,
        state: CopyState,
        ranges: &[Slice],
        entries: Vec<Entry>,
    ) -> NotCopied {
        let mut failed = NotCopied::default();
        for &slice in ranges {
            self.clean(slice);
            values.forget(slice);
            self.here.insert(slice, state);
            self.raise_floor(slice, state.token);
            stale.range(slice);
        }
        for entry in entries {
            let point = entry.point;
            if self.here.get(point) != Some(&state) {
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
                failed.reasons.insert(why);
                self.drop_point(values, stale, point);
                failed.points.push(point);
            }
        }
        failed
    }

    fn drop_point(&mut self, values: &mut dyn Values, stale: &mut Stale, point: KeyPoint) {
        let slice = Slice::of_point(point);
        values.forget(slice);
        self.here.remove(slice);
        stale.range(slice);
    }

    /// Drops what is here of these.
    fn exclude(
        &mut self,
        values: &mut dyn Values,
        stale: &mut Stale,
        token: AssignmentVersion,
        ranges: &[Slice],
    ) {
        for &slice in ranges {
            let dropped: Vec<Slice> = self.here.within(slice).map(|(slice, _)| slice).collect();
            for slice in dropped {
                values.forget(slice);
                self.here.remove(slice);
            }
            self.clean(slice);
            self.raise_floor(slice, token);
            stale.range(slice);
        }
    }

    /// Follows another owner; which parts are not here, and which keys are dirty.
    fn attach(
        &mut self,
        state: CopyState,
        ranges: &[Slice],
    ) -> (Vec<Slice>, Vec<(KeyPoint, Bytes)>) {
        let mut missing = Vec::new();
        let mut unsettled = Vec::new();
        for &slice in ranges {
            missing.extend(self.here.gaps(slice));
            let here: Vec<Slice> = self.here.within(slice).map(|(slice, _)| slice).collect();
            for slice in here {
                self.here.insert(slice, state);
                unsettled.extend(self.dirty_within(slice));
            }
            self.raise_floor(slice, state.token);
        }
        (missing, unsettled)
    }

    /// Carries a commit out, if it can be stored.
    fn apply(
        &mut self,
        values: &mut dyn Values,
        stale: &mut Stale,
        state: CopyState,
        commit: Ordered,
    ) -> NotCopied {
        let point = commit.point;
        let mut failed = NotCopied::default();
        // Where nothing is, nothing is kept: the copy was dropped, or an
        // earlier order of it failed.
        let present = self.here.get(point) == Some(&state);
        let applied = match present {
            false => Err(None),
            true => self.store(values, state, commit).map_err(Some),
        };
        if let Err(why) = applied {
            failed.reasons.insert(why);
            // Strong: what was acknowledged before stays here. It is not
            // served, for the key is not settled.
            failed.kept = present && self.replication == Replication::Strong;
            if present && !failed.kept {
                self.drop_point(values, stale, point);
            }
            failed.points.push(point);
        }
        failed
    }

    fn store(
        &mut self,
        values: &mut dyn Values,
        state: CopyState,
        commit: Ordered,
    ) -> Result<(), NotStored> {
        let Ordered { id, point, key, .. } = commit;
        if self.replication == Replication::Strong {
            self.soil((point, key.clone()), state.owner, id);
        }
        match commit.operation {
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

    /// Of these keys, which are nobody's, there may be newer copies elsewhere: those that are
    /// here are not to be read.
    pub(crate) fn soil_here(
        &mut self,
        keys: impl Iterator<Item = (KeyPoint, Bytes)>,
        from: ServerId,
    ) {
        for key in keys {
            if self.here.has(key.0) {
                self.soil(key, from, u64::MAX);
            }
        }
    }

    /// A key is not to be read before this order of its owner's is settled.
    fn soil(&mut self, key: (KeyPoint, Bytes), owner: ServerId, order: u64) {
        self.dirty.add(key, owner, order);
    }

    /// All of an owner's orders up to this one are settled.
    pub(crate) fn hear_settled(&mut self, from: ServerId, id: u64) {
        self.dirty.settle(from, id);
    }

    pub(crate) fn is_dirty(&self, point: KeyPoint) -> bool {
        self.dirty.has(point)
    }

    pub(crate) fn dirty_within(&self, slice: Slice) -> Vec<(KeyPoint, Bytes)> {
        self.dirty.within(slice)
    }

    /// Forgets which keys of this were unsettled.
    pub(crate) fn clean(&mut self, slice: Slice) {
        self.dirty.remove(slice);
    }
}

impl Core {
    /// An owner says what this server is to do with its copies.
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
        let state = CopyState { owner: from, token };
        let (copies, stale) = (&mut self.copies, &mut self.published.stale);
        let sifted = copies.sift(self.authority.owned(), state, ranges);
        let ranges = &sifted.accepted;
        let mut failed = NotCopied::default();
        match order {
            CopyOrder::Fill { entries, .. } => {
                for &slice in ranges {
                    self.giver.resolve_transit(slice);
                }
                failed = copies.fill(values, stale, state, ranges, entries);
            }
            CopyOrder::Attach { .. } => {
                let (missing, unsettled) = copies.attach(state, ranges);
                let message = Message::Attached {
                    id,
                    missing,
                    unsettled,
                };
                self.say(now, from, message);
            }
            CopyOrder::Exclude { .. } => copies.exclude(values, stale, token, ranges),
            CopyOrder::Apply {
                point,
                key,
                operation,
            } => {
                if sifted.refused.is_empty() {
                    let commit = Ordered {
                        id,
                        point,
                        key,
                        operation,
                    };
                    failed = copies.apply(values, stale, state, commit);
                }
            }
        }
        if mutants::is(Mutant::FailedCopyConfirmed) {
            failed.points.clear();
        }
        let answer = match sifted.newest {
            None if !failed.points.is_empty() => Message::CopyFailed {
                id,
                points: failed.points,
                kept: failed.kept,
                // One that does not know of it would read from it that nothing is kept.
                no_room: self.peers.knows(from, Wire::IN_PART)
                    && failed
                        .reasons
                        .iter()
                        .all(|why| *why == Some(NotStored::NoRoom)),
            },
            None => Message::CopyDone { id },
            Some(newest) => Message::CopyRefused {
                id,
                newest,
                ranges: sifted.refused,
            },
        };
        self.say(now, from, answer);
    }

    /// The copies of this become the owner's values: others may differ about
    /// the last commits.
    pub(crate) fn unsettle_copy(&mut self, slice: Slice) {
        let keys = self.copies.dirty_within(slice);
        self.proposals.unsettle(keys);
    }
}
