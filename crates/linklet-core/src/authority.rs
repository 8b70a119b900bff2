//! Where the authority is here, and by which assignments it may come here.

use crate::ranges::{RangeMap, RangeSet};
use std::collections::BTreeMap;
use trefoil_sharder::{AssignmentVersion, KeyPoint, Slice};

/// What this server owns, and what it has promised. It touches no other part: the
/// [receiver](crate::receiver) brings what it owns, the [giver](crate::giver) sends it away.
///
/// * Tokens of a point grow with every owner.
/// * Whoever has answered a claim accepts nothing by an older assignment: nothing comes here
///   by one that is older than the promise for its points.
#[derive(Debug, Default)]
pub(crate) struct Authority {
    /// With the tokens.
    owned: RangeMap<AssignmentVersion>,
    /// The newest claim for each point, of anybody.
    promised: RangeMap<AssignmentVersion>,
}

impl Authority {
    /// Where the authority is here, with the token.
    pub(crate) fn owned(&self) -> &RangeMap<AssignmentVersion> {
        &self.owned
    }

    pub(crate) fn token(&self, point: KeyPoint) -> Option<AssignmentVersion> {
        self.owned.get(point).copied()
    }

    /// It is here now.
    pub(crate) fn gain(&mut self, slice: Slice, token: AssignmentVersion) {
        self.owned.insert(slice, token);
    }

    /// It is not here any more.
    pub(crate) fn cede(&mut self, slice: Slice) {
        self.owned.remove(slice);
    }

    /// Nothing is here any more; what was.
    pub(crate) fn cede_all(&mut self) -> Vec<Slice> {
        std::mem::take(&mut self.owned).slices()
    }

    /// Cuts ranges by the tokens that they are owned with.
    pub(crate) fn by_token(&self, ranges: &RangeSet) -> BTreeMap<AssignmentVersion, Vec<Slice>> {
        let mut groups: BTreeMap<AssignmentVersion, Vec<Slice>> = BTreeMap::new();
        for (slice, ()) in ranges.iter() {
            for (slice, &token) in self.owned.within(slice) {
                groups.entry(token).or_default().push(slice);
            }
        }
        groups
    }

    /// Somebody has claimed this by an assignment: nothing of it is accepted by an older one.
    pub(crate) fn promise(&mut self, slice: Slice, version: AssignmentVersion) {
        self.promised.insert(slice, version);
    }

    /// The newest assignment by which a point was claimed.
    pub(crate) fn promised_at(&self, point: KeyPoint) -> Option<AssignmentVersion> {
        self.promised.get(point).copied()
    }

    /// The newest assignment by which anything of these was claimed.
    pub(crate) fn newest_promise(&self, ranges: &[Slice]) -> Option<AssignmentVersion> {
        let promises = ranges.iter().flat_map(|&slice| self.promised.within(slice));
        promises.map(|(_, &version)| version).max()
    }

    /// What was claimed by a newer assignment than this.
    pub(crate) fn promised_after(&self, version: AssignmentVersion) -> Vec<Slice> {
        let newer = self.promised.iter().filter(|&(_, &at)| at > version);
        newer.map(|(slice, _)| slice).collect()
    }

    /// The parts of a range that a claim by this assignment may not have: somebody has
    /// claimed it by a newer one, or has it by one.
    pub(crate) fn refuses(
        &self,
        slice: Slice,
        version: AssignmentVersion,
    ) -> impl Iterator<Item = Slice> {
        let newer = move |&(_, at): &(Slice, &AssignmentVersion)| *at > version;
        let promises = self.promised.within(slice).filter(newer);
        let as_new = move |&(_, at): &(Slice, &AssignmentVersion)| *at >= version;
        let tokens = self.owned.within(slice).filter(as_new);
        promises.chain(tokens).map(|(slice, _)| slice)
    }

    /// The parts of a range that nobody has claimed by a newer assignment than this.
    pub(crate) fn not_promised_after(
        &self,
        slice: Slice,
        version: AssignmentVersion,
    ) -> impl Iterator<Item = Slice> {
        let promises = self.promised.within(slice);
        let older = promises.filter(move |&(_, at)| *at <= version);
        older.map(|(slice, _)| slice)
    }
}
