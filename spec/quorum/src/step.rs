//! What can happen, and what it does.

use crate::rules::{Raise, Repair, Rules, Take, Withdraw};
use crate::state::{
    Answer, Kind, Known, MUTATIONS_MAX, REPLICAS, Replica, State, View, Vote, highest,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Mutation and replica.
    Deliver(u8, u8),
    /// The answer of a CAS gets lost.
    DeliverUnanswered(u8, u8),
    /// A failed CAS's ERASE at its own version arrives.
    Withdraw(u8, u8),
    Evict(u8),
    Forget(u8),
    OthersRaiseFloor(u8),
    Crash(u8),
    /// Receiver and peer.
    Copy(u8, u8),
    Raise(u8),
    Recovered(u8),
    Fetch(u8),
    /// Repair sends mutation to replica.
    Repair(u8, u8),
}

impl Rules {
    pub fn possible(&self, state: &State, out: &mut Vec<Step>) {
        if state.is_stale || state.went_back {
            return;
        }
        for m in 0..self.mutations {
            self.possible_of_mutation(state, m, out);
        }
        for r in 0..REPLICAS as u8 {
            self.possible_at_replica(state, r, out);
        }
    }

    fn possible_of_mutation(&self, state: &State, m: u8, out: &mut Vec<Step>) {
        let mutation = state.mutations[m as usize];
        let is_cas = mutation.kind.is_cas();
        let repeats = if is_cas {
            !self.cas_once
        } else {
            self.with_repeats
        };
        for r in 0..REPLICAS as u8 {
            if repeats || mutation.delivered >> r & 1 == 0 {
                out.push(Step::Deliver(m, r));
                if is_cas && repeats {
                    out.push(Step::DeliverUnanswered(m, r));
                }
            }
            if is_cas && self.may_withdraw(state, m, r) {
                out.push(Step::Withdraw(m, r));
            }
        }
        // What a GET has hit, two replicas agreed on. A SET's late copies are
        // repairs already, where messages are repeated.
        let repairs = state.hit >> m & 1 == 1
            || self.repair == Repair::Newest && self.is_lone_newest(state, m + 1);
        if repairs && (is_cas || !self.with_repeats) {
            out.extend((0..REPLICAS as u8).map(|r| Step::Repair(m, r)));
        }
    }

    fn may_withdraw(&self, state: &State, m: u8, r: u8) -> bool {
        let answers = state.mutations[m as usize].answer;
        let has_left = matches!(answers[r as usize], Answer::Applied(_));
        has_left
            && match self.withdraws {
                Withdraw::WhenFailed => state.failed >> m & 1 == 1,
                Withdraw::AtWill => true,
            }
    }

    fn is_lone_newest(&self, state: &State, version: u8) -> bool {
        let live = || {
            state
                .replicas
                .iter()
                .filter(|r| !r.recovering)
                .map(|r| r.view)
        };
        let holders = |wanted: u8| live().filter(|v| v.present() == Some(wanted)).count();
        holders(version) == 1
            && live().all(|v| v.bound() <= version)
            && live().all(|v| v.present().is_none_or(|other| holders(other) == 1))
    }

    fn possible_at_replica(&self, state: &State, r: u8, out: &mut Vec<Step>) {
        let replica = state.replicas[r as usize];
        let peers = || (0..REPLICAS).filter(move |q| *q != r as usize);
        if replica.recovering {
            let missing = || peers().filter(|q| replica.copied[*q].is_none());
            for q in missing().filter(|q| !state.replicas[*q].recovering) {
                out.push(Step::Copy(r, q as u8));
            }
            if missing().next().is_none() {
                out.push(Step::Recovered(r));
            }
        }
        let was_copied = || {
            state
                .replicas
                .iter()
                .all(|x| !x.recovering || x.copied[r as usize].is_some())
        };
        if self.raise == Raise::AfterTheCopy && replica.epoch < state.newest_epoch() && was_copied()
        {
            out.push(Step::Raise(r));
        }
        if state.crashes > 0 && peers().all(|q| !state.replicas[q].recovering) {
            out.push(Step::Crash(r));
        }
        let is_present = replica.view.present().is_some();
        if !replica.recovering {
            if self.with_eviction && is_present {
                out.push(Step::Evict(r));
            }
            if self.with_forgetting && matches!(replica.view.known, Known::Erased(_)) {
                out.push(Step::Forget(r));
            }
            if self.with_other_keys && replica.view.floor <= self.mutations {
                out.push(Step::OthersRaiseFloor(r));
            }
        }
        if is_present && (!replica.recovering || !self.recovering_is_silent) {
            let pairs = |vote: Vote| {
                vote.replica != r
                    && Some(vote.version) == replica.view.present()
                    && (vote.epoch == replica.epoch || !self.votes_of_one_epoch)
            };
            if state.vote.is_none_or(pairs) {
                out.push(Step::Fetch(r));
            }
        }
    }

    pub fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Deliver(m, r) => self.deliver(state, m as usize, r as usize, true),
            Step::DeliverUnanswered(m, r) => self.deliver(state, m as usize, r as usize, false),
            Step::Withdraw(m, r) => {
                let replica = &mut state.replicas[r as usize];
                if !replica.recovering && m + 1 >= replica.view.bound() {
                    replica.view.known = Known::Erased(m + 1);
                }
            }
            Step::Evict(r) => {
                let raises = self.eviction_raises_floor;
                drop_known(&mut state.replicas[r as usize].view, raises);
            }
            Step::Forget(r) => {
                let raises = self.forgetting_raises_floor;
                drop_known(&mut state.replicas[r as usize].view, raises);
            }
            Step::OthersRaiseFloor(r) => state.replicas[r as usize].view.floor += 1,
            Step::Crash(r) => {
                state.crashes -= 1;
                let epoch = state.newest_epoch() + 1;
                state.replicas[r as usize] = Replica {
                    epoch,
                    recovering: true,
                    ..Replica::default()
                };
            }
            Step::Copy(r, q) => {
                state.replicas[r as usize].copied[q as usize] =
                    Some(state.replicas[q as usize].view);
                if self.raise == Raise::WithTheCopy {
                    let epoch = state.replicas[r as usize].epoch;
                    let peer = &mut state.replicas[q as usize];
                    peer.epoch = peer.epoch.max(epoch);
                }
            }
            Step::Raise(r) => state.replicas[r as usize].epoch = state.newest_epoch(),
            Step::Recovered(r) => {
                let view = self.recovered(state, r as usize);
                let epoch = state.replicas[r as usize].epoch;
                state.replicas[r as usize] = Replica {
                    view,
                    epoch,
                    ..Replica::default()
                };
            }
            Step::Fetch(r) => fetch(state, r),
            Step::Repair(m, r) => {
                let replica = &mut state.replicas[r as usize];
                if !replica.recovering && m + 1 >= replica.view.bound() {
                    replica.view.known = Known::Present(m + 1);
                }
            }
        }
    }

    fn deliver(&self, state: &mut State, m: usize, r: usize, is_answered: bool) {
        let version = m as u8 + 1;
        let mutation = &mut state.mutations[m];
        mutation.delivered |= 1 << r;
        let replica = &mut state.replicas[r];
        if replica.recovering && self.recovering_refuses {
            return;
        }
        let view = &mut replica.view;
        let is_below = self.refuses_below_bound && version < view.bound();
        let is_mine = view.present() == Some(version);
        let applies = match mutation.kind {
            Kind::Set | Kind::Erase => !is_below,
            Kind::Cas(_) if is_mine => true,
            Kind::Cas(0) => view.present().is_none() && version >= view.bound(),
            Kind::Cas(expected) if self.cas_is_exact => view.present() == Some(expected),
            Kind::Cas(_) => !is_below,
            Kind::None => return,
        };
        if applies {
            view.known = match mutation.kind {
                Kind::Erase => Known::Erased(version),
                _ => Known::Present(version),
            };
        }
        let answer = if applies {
            Answer::Applied(replica.epoch)
        } else {
            Answer::Refused
        };
        let is_cas = mutation.kind.is_cas();
        // The first answer of a CAS stands, but an application is news.
        let is_known = is_cas && mutation.answer[r] != Answer::None && !applies;
        if !is_answered || is_known {
            return;
        }
        mutation.answer[r] = answer;
        let answers = mutation.answer;
        if self.are_enough(&answers) {
            state.acknowledged |= 1 << m;
        }
        let refusals = answers.iter().filter(|a| **a == Answer::Refused).count();
        if is_cas
            && state.acknowledged >> m & 1 == 0
            && refusals >= usize::from(self.refusals_to_fail)
        {
            state.failed |= 1 << m;
        }
    }

    fn are_enough(&self, answers: &[Answer; REPLICAS]) -> bool {
        let pairs = |a: Answer, b: Answer| match (a, b) {
            (Answer::Applied(x), Answer::Applied(y)) => x == y || !self.acks_of_one_epoch,
            _ => false,
        };
        (0..REPLICAS).any(|a| (0..a).any(|b| pairs(answers[a], answers[b])))
    }

    /// What a recovering replica ends up with.
    fn recovered(&self, state: &State, r: usize) -> View {
        let own = state.replicas[r].view;
        let copies: Vec<View> = state.replicas[r].copied.iter().flatten().copied().collect();
        let floor_of = |v: &View| {
            if self.recovery_takes_floors {
                v.floor
            } else {
                0
            }
        };
        let bound_of = |v: &View| match v.known {
            Known::Nothing => floor_of(v),
            _ => v.bound(),
        };
        let floor = copies.iter().map(floor_of).max().unwrap_or(0);
        let bound = copies.iter().map(bound_of).max().unwrap_or(0);
        let newest = copies
            .iter()
            .filter(|v| v.known != Known::Nothing)
            .max_by_key(|v| v.bound())
            .map_or(Known::Nothing, |v| v.known);
        let are_agreed = copies.iter().all(|v| v.known == newest);
        let is_taken = match newest {
            Known::Nothing => false,
            Known::Erased(version) => version >= bound,
            Known::Present(version) => {
                version >= bound && (are_agreed || self.recovery_takes == Take::Newest)
            }
        };
        let mut view = if is_taken {
            View {
                known: newest,
                floor,
            }
        } else {
            View {
                known: Known::Nothing,
                floor: bound.max(floor),
            }
        };
        // Only where rule 8 is off it may have stored something meanwhile.
        if own.known != Known::Nothing && own.bound() > bound {
            view.known = own.known;
        }
        view
    }

    /// Forgets what can no longer matter, so that equal futures are one state.
    pub fn normalise(&self, state: &mut State) {
        let epochs = state.replicas.map(|r| r.epoch);
        let is_past = |r: usize, epoch: u8| {
            (0..REPLICAS).all(|q| q == r || epochs[q] > epoch) && self.acks_of_one_epoch
        };
        for m in 0..MUTATIONS_MAX {
            let mutation = &mut state.mutations[m];
            if mutation.kind.is_cas() {
                if !self.cas_once {
                    mutation.delivered = 0;
                }
                continue;
            }
            if self.with_repeats {
                mutation.delivered = 0;
            }
            if state.acknowledged >> m & 1 == 1 {
                mutation.answer = Default::default();
            }
            for r in 0..REPLICAS {
                match mutation.answer[r] {
                    Answer::Refused => mutation.answer[r] = Answer::None,
                    Answer::Applied(epoch)
                        if is_past(r, epoch)
                            && (0..REPLICAS).all(|q| {
                                q == r || mutation.answer[q] != Answer::Applied(epoch)
                            }) =>
                    {
                        mutation.answer[r] = Answer::None;
                    }
                    Answer::Applied(_) if !self.acks_of_one_epoch => {
                        mutation.answer[r] = Answer::Applied(0);
                    }
                    _ => {}
                }
            }
        }
        if self.votes_of_one_epoch
            && state
                .vote
                .is_some_and(|vote| is_past(usize::from(vote.replica), vote.epoch))
        {
            state.vote = None;
        }
        if !self.with_cas && !self.with_add {
            // Without CAS only the highest of them can be contradicted.
            let top = |bits: u8| {
                if bits == 0 {
                    0
                } else {
                    1 << (highest(bits) - 1)
                }
            };
            state.acknowledged = top(state.acknowledged);
            for m in 0..usize::from(highest(state.acknowledged)) {
                state.mutations[m].answer = Default::default();
            }
            state.hit = top(state.hit);
            if self.with_repeats && highest(state.hit) <= highest(state.acknowledged) {
                state.hit = 0;
            }
        }
        if let Some(vote) = &mut state.vote
            && vote.hit <= vote.acknowledged
        {
            vote.hit = 0;
        }
        let floors_follow = self.eviction_raises_floor && self.forgetting_raises_floor;
        if floors_follow && !self.with_other_keys {
            for replica in &mut state.replicas {
                let view = &mut replica.view;
                if view.known != Known::Nothing && view.floor <= view.bound() {
                    view.floor = 0;
                }
            }
        }
    }
}

fn drop_known(view: &mut View, raises_floor: bool) {
    let floor = if raises_floor {
        view.floor.max(view.bound())
    } else {
        view.floor
    };
    *view = View {
        known: Known::Nothing,
        floor,
    };
}

/// A GET is two fetches, at two moments, from two replicas that agree. A third
/// that disagrees decides nothing, and a miss is always allowed.
fn fetch(state: &mut State, r: u8) {
    let replica = state.replicas[r as usize];
    let Some(version) = replica.view.present() else {
        return;
    };
    match state.vote.take() {
        None => {
            state.vote = Some(Vote {
                replica: r,
                version,
                epoch: replica.epoch,
                acknowledged: highest(state.acknowledged),
                hit: highest(state.hit),
            });
        }
        Some(first) => {
            state.hit |= 1 << (version - 1);
            state.is_stale |= version < first.acknowledged;
            state.went_back |= version < first.hit;
        }
    }
}
