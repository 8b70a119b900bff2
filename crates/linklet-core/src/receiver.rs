//! The receiver's side of a move: claiming what the assignment gives to this
//! server, taking it over, and finding out that nobody has it any more.
//!
//! | module | what it does |
//! |---|---|
//! | `claim` | claiming, the answers, and what follows when all are here |
//! | `chunk` | taking what comes |
//! | `unstored` | what came and could not be stored |

mod chunk;
mod claim;
mod unstored;

use crate::loss::{Extent, LossReason};
use crate::message::ClaimAnswer;
use crate::mutants::{self, Mutant};
use crate::peers::Peers;
use crate::ranges::{RangeMap, RangeSet, overlapping};
use crate::waiting::Waiting;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trefoil_sharder::{AssignedSlice, AssignmentVersion, KeyPoint, ServerId, Slice};
use unstored::Unstored;

/// What is assigned to this server and not here yet. It reads who waits ([`Waiting`]) and who
/// lives ([`Peers`]), and changes no other part.
///
/// * Nothing that is wanted is owned here. Whatever somebody else has claimed by a newer
///   assignment is not wanted any more, and not accepted.
/// * There is a claim as long as anything is wanted.
/// * What is wanted has no owner only once everybody alive has answered the claim, and nobody
///   has it, may have it back, or sends copies of it.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// Assigned to this server, and not here yet.
    wanted: RangeSet,
    claim: Option<MyClaim>,
    claim_ids: u64,
    /// Wanted, and to be looked at: nobody may have it any more.
    conclude_stale: RangeSet,
    /// Who had promised to send what is wanted.
    announced: RangeMap<ServerId>,
    /// Who the map before said was the owner of what is wanted.
    former: RangeMap<ServerId>,
    /// Of `wanted`, what could not be stored here.
    unstored: Unstored,
}

/// What this server has claimed by its present assignment.
#[derive(Debug)]
struct MyClaim {
    id: u64,
    version: AssignmentVersion,
    /// Who was alive then. Who came later has nothing that he did not claim
    /// from this server, too.
    asked: BTreeSet<ServerId>,
    answers: BTreeMap<ServerId, Answer>,
    /// Keys asked for first, and whom.
    pulled: BTreeSet<(ServerId, KeyPoint)>,
    /// Copies asked for because nobody has the authority, and from whom.
    recovering: RangeMap<ServerId>,
}

#[derive(Debug)]
struct Answer {
    held: RangeSet,
    /// Sent to somebody else who may refuse it: then it is held again.
    in_transit: RangeSet,
    /// Not to be taken for ownerless on this server's word.
    busy: RangeSet,
    copies: RangeMap<AssignmentVersion>,
}

impl Answer {
    fn may_send(&self, point: KeyPoint) -> bool {
        self.held.has(point) || self.in_transit.has(point)
    }
}

impl Receiver {
    /// Assigned to this server, and not here yet.
    pub(crate) fn wanted(&self) -> &RangeSet {
        &self.wanted
    }

    /// Who serves what is wanted and could not be stored here.
    pub(crate) fn holder(&self, point: KeyPoint) -> Option<ServerId> {
        self.unstored.holder(point)
    }

    /// Points that could not be stored here, and from when on, where nobody else says so.
    pub(crate) fn lacking(&self) -> &BTreeMap<KeyPoint, Duration> {
        self.unstored.lacking()
    }

    /// A number for a claim.
    pub(crate) fn next_claim(&mut self) -> u64 {
        self.claim_ids += 1;
        self.claim_ids
    }

    /// Whether what is wanted was claimed from this server.
    pub(crate) fn has_asked(&self, server: ServerId) -> bool {
        let claim = self.claim.as_ref();
        claim.is_some_and(|claim| claim.asked.contains(&server))
    }

    /// Whether everybody who was asked is alive.
    fn all_live(&self, peers: &Peers) -> bool {
        let mut asked = self.claim.iter().flat_map(|claim| &claim.asked);
        asked.all(|&server| peers.is_alive(server))
    }

    /// Claims this by an assignment from these servers, instead of what was claimed before;
    /// the number of the claim, if there is one.
    fn claim(
        &mut self,
        me: ServerId,
        version: AssignmentVersion,
        wanted: RangeSet,
        before: &[AssignedSlice],
        asked: BTreeSet<ServerId>,
    ) -> Option<u64> {
        let stale: Vec<Slice> = self
            .announced
            .iter()
            .flat_map(|(slice, _)| wanted.gaps(slice))
            .collect();
        self.announced.remove_all(stale.into_iter());
        self.former = self.former_owners(me, &wanted, before);
        self.unstored.keep(&wanted);
        self.wanted = wanted;
        if self.wanted.is_empty() {
            self.claim = None;
            return None;
        }
        let id = self.next_claim();
        self.claim = Some(MyClaim {
            id,
            version,
            asked,
            answers: BTreeMap::new(),
            pulled: BTreeSet::new(),
            recovering: RangeMap::default(),
        });
        self.look_at_all();
        Some(id)
    }

    /// Who owned what is wanted now: of what is wanted for the first time, by the map before.
    fn former_owners(
        &self,
        me: ServerId,
        wanted: &RangeSet,
        before: &[AssignedSlice],
    ) -> RangeMap<ServerId> {
        let mut former = RangeMap::default();
        for slice in wanted.slices() {
            for (slice, &owner) in self.former.within(slice) {
                former.insert(slice, owner);
            }
            for slice in self.wanted_first(wanted, slice) {
                for assigned in overlapping(before, slice) {
                    let owner = assigned.servers.first().filter(|owner| **owner != me);
                    if let (Some(&owner), Some(part)) = (owner, assigned.slice.intersection(slice))
                    {
                        former.insert(part, owner);
                    }
                }
            }
        }
        former
    }

    /// The parts of a wanted range that were not wanted before.
    fn wanted_first(&self, wanted: &RangeSet, slice: Slice) -> Vec<Slice> {
        let parts = wanted.common(slice);
        parts.flat_map(|slice| self.wanted.gaps(slice)).collect()
    }

    /// All that is wanted may have no owner.
    fn look_at_all(&mut self) {
        self.conclude_stale = RangeSet::of([Slice::ALL]);
    }

    /// Takes an answer to the claim, if it is one; the points that are to be asked for first,
    /// for somebody waits for them.
    fn hear_answer(
        &mut self,
        from: ServerId,
        answer: ClaimAnswer,
        waiting: &Waiting,
    ) -> Option<Vec<KeyPoint>> {
        let claim = self.claim.as_mut().filter(|c| c.id == answer.claim)?;
        let busy = [&answer.held, &answer.in_transit, &answer.refused];
        let mut copies = RangeMap::default();
        for (slice, token) in answer.copies {
            copies.insert(slice, token);
        }
        let kept = Answer {
            busy: RangeSet::of(busy.into_iter().flatten().copied()),
            held: RangeSet::of(answer.held),
            in_transit: RangeSet::of(answer.in_transit),
            copies,
        };
        let points = waiting
            .points()
            .filter(|&point| kept.may_send(point) && claim.pulled.insert((from, point)));
        let points = points.collect();
        for (slice, ()) in kept.held.iter() {
            for slice in self.wanted.common(slice) {
                self.announced.insert(slice, from);
            }
        }
        claim.answers.insert(from, kept);
        self.look_at_all();
        Some(points)
    }

    /// Whom to ask for a point first that nobody was asked for, and by which claim. Without
    /// an answer yet there is nobody to ask.
    pub(crate) fn pull(&mut self, point: KeyPoint) -> Vec<(ServerId, u64)> {
        let Some(claim) = &mut self.claim else {
            return Vec::new();
        };
        let (id, pulled) = (claim.id, &mut claim.pulled);
        let answers = claim.answers.iter();
        let holders = answers.filter(|(_, answer)| answer.may_send(point));
        let asked = holders.filter(|(server, _)| pulled.insert((**server, point)));
        asked.map(|(&server, _)| (server, id)).collect()
    }

    /// Somebody who was asked has nothing of these any more; whether that is an answer to the
    /// claim.
    fn hear_gone(&mut self, from: ServerId, claim: u64, ranges: &[Slice]) -> bool {
        let Some(mine) = self.claim.as_mut().filter(|mine| mine.id == claim) else {
            return false;
        };
        if let Some(answer) = mine.answers.get_mut(&from) {
            for &slice in ranges {
                self.conclude_stale.add(slice);
                answer.busy.remove(slice);
                answer.held.remove(slice);
                answer.in_transit.remove(slice);
                // What it was to recover: it has no copy of it after all.
                let asked = mine.recovering.within(slice);
                let of_it: Vec<Slice> = asked
                    .filter(|&(_, server)| *server == from)
                    .map(|(slice, _)| slice)
                    .collect();
                for slice in of_it {
                    mine.recovering.remove(slice);
                    answer.copies.remove(slice);
                }
            }
        }
        true
    }

    /// A server that was to send something is dead.
    pub(crate) fn forget_source(&mut self, server: ServerId) {
        self.unstored.forget_server(server);
        if let Some(claim) = &mut self.claim {
            claim.answers.remove(&server);
            let from_it = claim.recovering.iter().filter(|&(_, from)| *from == server);
            let from_it: Vec<Slice> = from_it.map(|(slice, _)| slice).collect();
            claim.recovering.remove_all(from_it.into_iter());
            self.look_at_all();
        }
    }

    /// What nobody has, and nobody will accept any more, with the version of the claim: once
    /// everybody alive has answered it. Only where something has come to its end since it was
    /// called last: of ranges there may be thousands, and each chunk that somebody else gets
    /// ends one.
    fn take_ownerless(&mut self, peers: &Peers) -> Option<(AssignmentVersion, RangeSet)> {
        let claim = self.claim.as_ref()?;
        let everybody = claim
            .asked
            .iter()
            .all(|server| claim.answers.contains_key(server) || peers.is_gone(*server));
        if !everybody && !mutants::is(Mutant::NotEverybodyAsked) {
            return None;
        }
        let mut open = RangeSet::default();
        for (stale, ()) in std::mem::take(&mut self.conclude_stale).iter() {
            for slice in self.wanted.common(stale) {
                open.add(slice);
                for answer in claim.answers.values() {
                    open.remove_all(answer.busy.common(slice));
                }
                open.remove_all(claim.recovering.within(slice).map(|(slice, _)| slice));
            }
        }
        (!open.is_empty()).then_some((claim.version, open))
    }

    /// The best copy of every part of these ranges, and who has it: the newest owner's. It
    /// begins with those that are `best` here.
    fn best_copies(
        &self,
        open: &RangeSet,
        mut best: RangeMap<(AssignmentVersion, ServerId)>,
    ) -> RangeMap<(AssignmentVersion, ServerId)> {
        for (&server, answer) in self.claim.iter().flat_map(|claim| &claim.answers) {
            for (slice, &token) in answer.copies.iter() {
                for slice in open.common(slice) {
                    let mut better = best.gaps(slice);
                    let worse = best.within(slice).filter(|(_, (had, _))| *had < token);
                    better.extend(worse.map(|(slice, _)| slice));
                    for slice in better {
                        best.insert(slice, (token, server));
                    }
                }
            }
        }
        best
    }

    /// Copies are asked of a server; by which claim.
    fn recover_from(&mut self, server: ServerId, ranges: &[Slice]) -> Option<u64> {
        let claim = self.claim.as_mut()?;
        for &slice in ranges {
            claim.recovering.insert(slice, server);
        }
        Some(claim.id)
    }

    /// Whether these copies were asked of this server, and are still wanted.
    fn expects(&mut self, from: ServerId, ranges: &[Slice]) -> bool {
        let wanted = ranges.iter().all(|&slice| self.wanted.covers(slice));
        let Some(claim) = &mut self.claim else {
            return false;
        };
        let asked = ranges.iter().all(|&slice| {
            let from_it = claim.recovering.within(slice);
            let parts = from_it.filter(|(_, server)| **server == from);
            RangeSet::of(parts.map(|(slice, _)| slice)).covers(slice)
        });
        if wanted && asked {
            claim.recovering.remove_all(ranges.iter().copied());
        }
        wanted && asked
    }

    /// Who has reported copies of these.
    fn holders_of(&self, ranges: &[Slice]) -> Vec<(ServerId, Slice)> {
        let mut holders = Vec::new();
        for (&server, answer) in self.claim.iter().flat_map(|claim| &claim.answers) {
            for &slice in ranges {
                let copies = answer.copies.within(slice);
                holders.extend(copies.map(|(slice, _)| (server, slice)));
            }
        }
        holders
    }

    /// Why a wanted range is lost, as far as that is known, part by part.
    fn why_lost(&self, slice: Slice, extent: Extent, peers: &Peers) -> Vec<(Slice, LossReason)> {
        let mut parts: Vec<(Slice, LossReason)> = Vec::new();
        let mut unexplained = vec![slice];
        if extent == Extent::All {
            unexplained = self.announced.gaps(slice);
            for (part, &from) in self.announced.within(slice) {
                parts.push((part, LossReason::HandoverBroken(from)));
            }
        }
        for slice in unexplained {
            for part in self.former.gaps(slice) {
                parts.push((part, LossReason::OwnerDied(None)));
            }
            for (part, &owner) in self.former.within(slice) {
                let owner = Some(owner).filter(|&owner| peers.is_gone(owner));
                parts.push((part, LossReason::OwnerDied(owner)));
            }
        }
        parts
    }

    /// This is here now.
    fn take(&mut self, slice: Slice) {
        debug_assert!(self.wanted.covers(slice), "not wanted: {slice}");
        self.announced.remove(slice);
        self.forget(slice);
    }

    /// This is not to come here any more: somebody else has claimed it, or it is here again.
    pub(crate) fn forget(&mut self, slice: Slice) {
        self.wanted.remove(slice);
        self.unstored.forget(slice);
    }

    /// Nothing is to come here any more.
    pub(crate) fn forget_all(&mut self) {
        *self = Receiver::default();
    }

    /// All that was claimed may be here: then there is no claim.
    fn end_claim(&mut self) {
        if self.wanted.is_empty() {
            self.claim = None;
        }
    }

    /// When something is to be tried again.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        self.unstored.next_tick()
    }
}
