//! The giver's side of a move: answering claims, and sending away values and
//! with them the authority.
//!
//! The authority over a range is sent in the one message that has all of its
//! values. So a receiver serves whatever it has got, the rest is still wholly
//! here, and who claims after him asks both. Until a chunk is confirmed, this
//! server keeps the values but neither serves them nor gives them to others;
//! where there are copies, the values become one of them.
//!
//! | module | what it does |
//! |---|---|
//! | `claims` | answering claims |
//! | `chunks` | sending what was claimed, and what comes of it |
//! | `unmoved` | what a claimant could not store |
//! | `recover` | sending copies to who takes over from a dead owner |

mod chunks;
mod claims;
mod recover;
mod unmoved;

use crate::authority::Authority;
use crate::message::Claim;
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeMap, overlapping, parts_within};
use bytes::Bytes;
use recover::Recovery;
use std::collections::{BTreeMap, BTreeSet};
use trefoil_sharder::{Assignment, AssignmentVersion, KeyPoint, ServerId, Slice};
use unmoved::Unmoved;

/// What others have claimed, and what was sent to them. It reads what is owned
/// ([`Authority`]) and the map, and changes no other part.
///
/// * `leaving` is a part of what is owned: what goes to whom by the newest claims, but for
///   what was refused and is held back ([`Unmoved`]). It is not served.
/// * What is in transit is neither owned nor forgotten, and each point of it is in one chunk.
/// * Of each server only the newest claim counts. Nothing is kept of the dead.
#[derive(Debug, Default)]
pub(crate) struct Giver {
    /// The parts of what is owned that were claimed, by whom; not served any more.
    leaving: RangeMap<ServerId>,
    /// Sent, and not confirmed yet.
    transit: BTreeMap<u64, Transit>,
    /// Of each point that is in transit, the chunk.
    transit_at: RangeMap<u64>,
    chunks: u64,
    /// Who has claimed something of `leaving`, and perhaps some who have all of theirs.
    giving: BTreeSet<ServerId>,
    /// Others' claims, the newest of each.
    claims: BTreeMap<ServerId, Claim>,
    /// What somebody waits for at a claimant.
    urgent: BTreeMap<ServerId, BTreeSet<KeyPoint>>,
    /// What claimants could not store.
    unmoved: BTreeMap<ServerId, Unmoved>,
    /// Copies that claimants have asked for, and that were not sent yet.
    recoveries: BTreeMap<ServerId, Recovery>,
}

/// A chunk that is not confirmed yet.
#[derive(Debug)]
struct Transit {
    to: ServerId,
    /// What was owned, with its tokens.
    owned: RangeMap<AssignmentVersion>,
    /// Who had copies of it.
    held: Vec<(ServerId, Vec<Slice>)>,
    unsettled: Vec<(KeyPoint, Bytes)>,
}

impl Giver {
    /// The parts of what is owned that were claimed, and by whom.
    pub(crate) fn leaving(&self) -> &RangeMap<ServerId> {
        &self.leaving
    }

    /// Who was sent a point and has not answered, with the token that it was owned by.
    pub(crate) fn in_transit(&self, point: KeyPoint) -> Option<(ServerId, AssignmentVersion)> {
        let transit = self.transit.get(self.transit_at.get(point)?)?;
        let token = transit.owned.get(point)?;
        Some((transit.to, *token))
    }

    /// Whether anything was sent that is not confirmed.
    pub(crate) fn has_transit(&self) -> bool {
        !self.transit.is_empty()
    }

    /// Whether anybody has claimed by a newer assignment than this.
    pub(crate) fn has_claim_after(&self, version: AssignmentVersion) -> bool {
        self.claims.values().any(|claim| claim.version > version)
    }

    /// Whether there is something to send in turns that was claimed.
    pub(crate) fn gives(&self) -> bool {
        !self.giving.is_empty() || self.unmoved_due().next().is_some()
    }

    /// Who has claimed something, and may have all of it.
    pub(crate) fn giving(&self) -> impl Iterator<Item = ServerId> {
        self.giving.iter().copied()
    }

    /// A number for a chunk.
    fn next_chunk(&mut self) -> u64 {
        self.chunks += 1;
        self.chunks
    }

    /// What is owned in a range goes to who has claimed it by the newest assignment,
    /// unless this server knows of a newer one that says otherwise.
    pub(crate) fn to_leave(
        &self,
        owned: &RangeMap<AssignmentVersion>,
        map: Option<&Assignment>,
        within: Slice,
    ) -> RangeMap<ServerId> {
        let mut leaving: RangeMap<ServerId> = RangeMap::default();
        let mut claims: Vec<(&ServerId, &Claim)> = self.claims.iter().collect();
        claims.sort_by_key(|(_, claim)| claim.version);
        for (&to, claim) in claims {
            for slice in parts_within(&claim.ranges, within) {
                for (slice, _) in owned.within(slice) {
                    leaving.insert(slice, to);
                }
            }
        }
        if let Some(map) = map.filter(|_| !leaving.is_empty()) {
            for assigned in overlapping(map.slices(), within) {
                let stays: Vec<Slice> = leaving
                    .within(assigned.slice)
                    .filter(|&(_, to)| {
                        let older = |claim: &Claim| claim.version < map.version();
                        assigned.servers.first() != Some(to)
                            && self.claims.get(to).is_some_and(older)
                    })
                    .map(|(slice, _)| slice)
                    .collect();
                leaving.remove_all(stays.into_iter());
            }
        }
        self.hold_back(&mut leaving, within);
        leaving
    }

    /// Works out anew which parts of a range go to whom; where that has changed.
    fn redirect(
        &mut self,
        owned: &RangeMap<AssignmentVersion>,
        map: Option<&Assignment>,
        within: Slice,
    ) -> Vec<Slice> {
        let leaving = self.to_leave(owned, map, within);
        let mut changed = self.leaving.unlike(&leaving, within);
        changed.extend(leaving.unlike(&self.leaving, within));
        if !changed.is_empty() {
            self.leaving.remove(within);
            for (slice, &to) in leaving.iter() {
                self.leaving.insert(slice, to);
                self.giving.insert(to);
            }
        }
        changed
    }

    /// A chunk goes on its way: nothing of it is leaving any more. Its number.
    fn send(&mut self, ranges: &[Slice], transit: Transit) -> u64 {
        let chunk = self.next_chunk();
        for &slice in ranges {
            self.leaving.remove(slice);
            self.transit_at.insert(slice, chunk);
        }
        self.transit.insert(chunk, transit);
        chunk
    }

    /// A chunk was answered by whom it was sent to: it is not on its way any more.
    fn take_transit(&mut self, to: ServerId, chunk: u64) -> Option<Transit> {
        // Only whom it was sent to answers.
        self.transit.get(&chunk).filter(|sent| sent.to == to)?;
        let transit = self.transit.remove(&chunk)?;
        for (slice, _) in transit.owned.iter() {
            let here = self.transit_at.within(slice);
            let its: Vec<Slice> = here
                .filter(|(_, at)| **at == chunk)
                .map(|(slice, _)| slice)
                .collect();
            self.transit_at.remove_all(its.into_iter());
        }
        Some(transit)
    }

    /// Somebody else has got this, or this server has it again: what was sent
    /// was taken, though the confirmation is not here yet.
    pub(crate) fn resolve_transit(&mut self, slice: Slice) {
        if mutants::is(Mutant::ForgottenWhenBack) {
            return;
        }
        for (part, chunk) in self.transit_at.within(slice) {
            if let Some(transit) = self.transit.get_mut(chunk) {
                transit.owned.remove(part);
            }
        }
        self.transit_at.remove(slice);
    }

    /// What was held or in transit has come to its end: who is to hear of it, by which claim.
    /// What went to somebody by a newer assignment than a claim's has an owner who may have
    /// answered that claim with "nothing" before: who made it hears of that assignment instead.
    /// Who has taken it knows.
    fn claimants_of(
        &self,
        authority: &Authority,
        taken_by: ServerId,
        ranges: &[Slice],
    ) -> Vec<(ServerId, u64, Vec<Slice>)> {
        let mut news: Vec<(ServerId, u64, Vec<Slice>)> = Vec::new();
        let others = self.claims.iter().filter(|(to, _)| **to != taken_by);
        for (&server, claim) in others {
            let mut gone = Vec::new();
            for slice in ranges
                .iter()
                .flat_map(|&ended| parts_within(&claim.ranges, ended))
            {
                gone.extend(authority.not_promised_after(slice, claim.version));
            }
            if !gone.is_empty() {
                news.push((server, claim.id, gone));
            }
        }
        news
    }

    /// Somebody who claimed is dead: what he claimed, and the chunks that he has not confirmed.
    fn forget_claimant(&mut self, server: ServerId) -> (Vec<Slice>, Vec<u64>) {
        self.giving.remove(&server);
        let claimed = self.claims.remove(&server);
        self.urgent.remove(&server);
        self.unmoved.remove(&server);
        self.recoveries.remove(&server);
        let sent = self.transit.iter().filter(|(_, sent)| sent.to == server);
        let sent = sent.map(|(&chunk, _)| chunk).collect();
        (claimed.map_or(Vec::new(), |claim| claim.ranges), sent)
    }

    /// Nothing is here any more, and nothing is given.
    pub(crate) fn forget_all(&mut self) {
        *self = Giver::default();
    }
}
