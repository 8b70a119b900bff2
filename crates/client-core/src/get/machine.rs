//! The GET machine's face: steps out, completions in.

use super::rounds::{Data, NO_SLOT, Replica, Work};
use super::{
    Failure, GetFailure, GetOutcome, GetStep, MissReason, ONE_SIDED_FAULTS_MAX, Plan, Strategy,
};
use crate::cas::Looked;
use crate::data::{DataCheck, DataVerdict, judge};
use crate::mode::{Mode, REPLICAS_MAX};
use crate::mutants::{self, Mutant};
use crate::quorum::Vote;
use crate::retry::{Limits, Retry, RetryCause, RetryCounts};
use crate::vote::IndexVote;
use trefoil_layout::op::{Expected, Found, LookupAnswer, Rejection};
use trefoil_layout::{KeyHash, Pointer, Version};

/// The machine. See the parent module's page for the calling order.
///
/// What is known of the replicas stands in arrays by place in the cohort; a
/// replica's *rank* is its place in the order of preference.
#[derive(Clone, Debug)]
pub struct Get<const N: usize> {
    pub(super) tag: u64,
    /// See [`Plan`].
    pub(super) at_rest_ns: u64,
    pub(super) is_careful: bool,
    pub(super) own: Version,
    pub(super) preferred: usize,
    pub(super) fan_out: usize,
    pub(super) replicas: [Replica; N],
    pub(super) votes: [Vote; N],
    pub(super) pointers: [Pointer; N],
    /// Named by one-sided votes.
    pub(super) slot_numbers: [u32; N],
    /// Due before the next step; 0 for none.
    pub(super) pause_ns: u64,
    /// When `poll` must look at the time: next hedge, or the deadline.
    pub(super) wake_ns: u64,
    pub(super) hedge_after_ns: u64,
    /// When data were asked for last.
    pub(super) data_since_ns: u64,
    pub(super) retry: Retry,
    /// Rounds in a row that ended without a quorum and with the same votes, and
    /// a digest of those votes.
    pub(super) still_count: u8,
    pub(super) still_digest: u64,
    /// The missing replicas have been waited for, as long as they are worth it.
    pub(super) has_awaited: bool,
    /// Replicas that are waited for, or were, and have not voted since, as a bit set.
    pub(super) awaited: u8,
    pub(super) outcome: Option<GetOutcome>,
}

impl<const N: usize> Get<N> {
    /// A machine for the key with this hash. `now_ns` is the caller's
    /// monotonic clock, as is the limits' deadline.
    #[inline]
    pub fn new(plan: &Plan<N>, hash: KeyHash, limits: Limits, now_ns: u64) -> Self {
        let mut get = Get {
            tag: hash.tag,
            at_rest_ns: plan.at_rest_ns,
            is_careful: plan.is_careful,
            own: plan.own,
            preferred: plan.preferred,
            fan_out: 0,
            replicas: [Replica::SPARE; N],
            votes: [Vote::Open; N],
            pointers: [Pointer(0); N],
            slot_numbers: [NO_SLOT; N],
            pause_ns: 0,
            wake_ns: limits.deadline_ns,
            hedge_after_ns: plan.hedge_after_ns,
            data_since_ns: 0,
            retry: Retry::new(limits),
            still_count: 0,
            still_digest: 0,
            has_awaited: false,
            awaited: 0,
            outcome: None,
        };
        get.begin(plan, now_ns);
        get
    }

    /// Begins anew under another topology, where the key has this hash; deadline
    /// and budget go on. Answers to steps from before must not be fed any more.
    pub fn restart(&mut self, plan: &Plan<N>, hash: KeyHash, now_ns: u64) {
        for number in 0..N {
            self.clear(number);
        }
        self.replicas = [Replica::SPARE; N];
        self.tag = hash.tag;
        self.pause_ns = 0;
        self.still_count = 0;
        self.has_awaited = false;
        self.awaited = 0;
        self.preferred = plan.preferred;
        self.hedge_after_ns = plan.hedge_after_ns;
        self.begin(plan, now_ns);
    }

    #[inline(always)]
    fn begin(&mut self, plan: &Plan<N>, now_ns: u64) {
        debug_assert!(plan.preferred < N);
        self.fan_out = plan.fan_out.max(Self::quorum()).min(N);
        let mut wanted = self.fan_out;
        for rank in 0..N {
            let number = self.at(rank);
            let replica = &mut self.replicas[number];
            replica.strategy = plan.strategies[number];
            if replica.strategy == Strategy::Down {
                replica.work = Work::Settled;
                replica.lacking = Some(RetryCause::Connection);
                self.votes[number] = Vote::None;
            } else if wanted > 0 {
                replica.work = Work::Lookup;
                wanted -= 1;
            }
        }
        self.wake_ns = self
            .retry
            .deadline_ns()
            .min(now_ns.saturating_add(self.hedge_after_ns));
        if wanted > 0 {
            self.advance();
        }
    }

    #[inline(always)]
    pub(super) fn quorum() -> usize {
        if mutants::is_on(Mutant::VoteOfOne) {
            1
        } else {
            const { Mode::of(N).quorum() }
        }
    }

    /// The replica at this rank.
    #[inline(always)]
    pub(super) fn at(&self, rank: usize) -> usize {
        let number = self.preferred + rank;
        if number >= N { number - N } else { number }
    }

    /// Moves the deadline to `deadline_ns`, if that is later: who could not run has not
    /// waited.
    pub fn extend(&mut self, deadline_ns: u64) {
        self.retry.extend(deadline_ns);
    }

    /// The next step. `now_ns` may lag a little: it decides nothing but
    /// deadline and hedges.
    #[inline]
    pub fn poll(&mut self, now_ns: u64) -> GetStep {
        if let Some(outcome) = self.outcome {
            return GetStep::Done(outcome);
        }
        if now_ns >= self.wake_ns {
            self.alarm(now_ns);
            if let Some(outcome) = self.outcome {
                return GetStep::Done(outcome);
            }
        }
        if self.pause_ns != 0 {
            return GetStep::Pause {
                ns: std::mem::take(&mut self.pause_ns),
            };
        }
        for rank in 0..N {
            let number = self.at(rank);
            let replica = &mut self.replicas[number];
            if replica.is_data_next() {
                // They have as long as anything else, whenever that was late.
                self.data_since_ns = now_ns;
                let late_ns = now_ns.saturating_add(self.hedge_after_ns);
                self.wake_ns = self.wake_ns.min(late_ns);
            }
            match replica.work {
                Work::Spare | Work::Busy | Work::Settled => {}
                Work::Lookup => {
                    replica.work = Work::Busy;
                    return lookup_step(replica.strategy, number);
                }
                Work::Data => {
                    replica.work = Work::Busy;
                    return GetStep::ReadData {
                        replica: number,
                        pointer: self.pointers[number],
                    };
                }
                _ => return rare_step(replica, number),
            }
        }
        GetStep::Wait {
            until_ns: self.wake_ns,
        }
    }

    /// A bucket was scanned ([`crate::vote::index_vote`]).
    #[inline]
    pub fn handle_index(&mut self, replica: usize, vote: IndexVote) {
        if self.outcome.is_some() {
            return;
        }
        let IndexVote::Present {
            slot_number,
            entry,
            epoch,
        } = vote
        else {
            return self.handle_no_entry(replica, vote);
        };
        let version = entry.version;
        self.votes[replica] = Vote::Present { version, epoch };
        self.pointers[replica] = entry.pointer;
        self.slot_numbers[replica] = slot_number;
        self.replicas[replica].data = Data::Unread;
        if Self::quorum() == 1 {
            // Decided already; only its data is missing.
            self.read_data(replica);
            return;
        }
        self.replicas[replica].work = Work::Settled;
        self.advance();
    }

    fn handle_no_entry(&mut self, replica: usize, vote: IndexVote) {
        match vote {
            IndexVote::Absent { epoch } => {
                self.votes[replica] = Vote::Absent { epoch };
                self.replicas[replica].data = Data::Unread;
                self.replicas[replica].work = Work::Settled;
                self.advance();
            }
            IndexVote::AskByMessage { .. } => self.replicas[replica].work = Work::Message,
            IndexVote::Unstable => self.again(replica, RetryCause::Unstable),
            IndexVote::Recovering => self.lacking(replica, RetryCause::Recovering),
            IndexVote::ConfigChanged { .. } => self.refresh(replica, RetryCause::ConfigChanged),
            IndexVote::Present { .. } => {}
        }
    }

    /// A data entry was copied. Whatever the bytes are, they are judged here.
    #[inline]
    pub fn handle_data(&mut self, replica: usize, bytes: &[u8], check: &DataCheck<'_>) {
        if self.outcome.is_some() {
            return;
        }
        let Vote::Present { version, epoch } = self.votes[replica] else {
            return;
        };
        let verdict = judge(bytes, self.tag, version, check);
        let state = &mut self.replicas[replica];
        state.work = Work::Settled;
        state.data = match verdict {
            DataVerdict::Hit(_) if Self::quorum() == 1 => {
                self.outcome = Some(GetOutcome::Hit { version, replica });
                return;
            }
            DataVerdict::Hit(_) => Data::Sound,
            DataVerdict::Expired => Data::Expired,
            DataVerdict::Flushed => Data::Flushed,
            DataVerdict::OtherKey => {
                self.votes[replica] = Vote::Absent { epoch };
                Data::Unread
            }
            DataVerdict::Torn => return self.again(replica, RetryCause::Torn),
        };
        self.advance();
    }

    /// The pointer of a `ReadData` does not lie in the known data window.
    #[cold]
    pub fn handle_out_of_window(&mut self, replica: usize) {
        self.refresh(replica, RetryCause::Window);
    }

    /// A software NIC has scanned the bucket and read the data, in this order;
    /// `bytes` are ignored unless the vote is `Present`.
    #[inline]
    pub fn handle_scar(
        &mut self,
        replica: usize,
        vote: IndexVote,
        bytes: &[u8],
        check: &DataCheck<'_>,
    ) {
        let IndexVote::Present {
            slot_number,
            entry,
            epoch,
        } = vote
        else {
            return self.handle_index(replica, vote);
        };
        let version = entry.version;
        self.slot_numbers[replica] = slot_number;
        self.votes[replica] = Vote::Present { version, epoch };
        self.handle_data(replica, bytes, check);
    }

    /// A replica has answered a lookup by message.
    #[inline]
    pub fn handle_answer(
        &mut self,
        replica: usize,
        answer: &LookupAnswer<'_>,
        check: &DataCheck<'_>,
    ) {
        let epoch = answer.epoch;
        match answer.found {
            Found::Present { version, data } => {
                self.votes[replica] = Vote::Present { version, epoch };
                self.handle_data(replica, data, check);
            }
            Found::Absent => self.handle_index(replica, IndexVote::Absent { epoch }),
            Found::Rejected(Rejection::Recovering) => {
                self.lacking(replica, RetryCause::Recovering);
            }
            Found::Rejected(Rejection::StaleConfig | Rejection::UnknownConfig) => {
                self.refresh_refused(replica);
            }
            Found::Rejected(Rejection::WrongShard | Rejection::OtherLife) => {
                self.refresh(replica, RetryCause::ConfigChanged);
            }
            Found::Rejected(_) if self.outcome.is_some() => {}
            Found::Rejected(rejection) => {
                self.outcome = Some(GetOutcome::Failed {
                    cause: GetFailure::Rejected(rejection),
                });
            }
        }
    }

    /// The windows of this replica are fresh. One that is found under another
    /// configuration time and again is rewriting all its buckets: asked by
    /// message, it does not let that be seen.
    pub fn handle_refreshed(&mut self, replica: usize) {
        let state = &mut self.replicas[replica];
        state.work = if state.faults < ONE_SIDED_FAULTS_MAX {
            Work::Lookup
        } else {
            Work::Message
        };
    }

    /// This replica is connected again, its windows are fresh.
    pub fn handle_reconnected(&mut self, replica: usize) {
        self.clear(replica);
        let state = &mut self.replicas[replica];
        state.work = Work::Lookup;
        if state.strategy == Strategy::Down {
            state.strategy = Strategy::TwoReads;
        }
    }

    /// This replica has moved to another process, which is waited for. What the others say
    /// without it is no loss of quorum: without an answer in time this GET fails.
    pub fn handle_late(&mut self, replica: usize) {
        self.awaited |= 1 << replica;
    }

    /// The same, and it is looked up again by `strategy`, which has not reached that process
    /// yet. Where it does not this time, the driver is asked to wait once more.
    pub fn handle_late_again(&mut self, replica: usize, strategy: Strategy) {
        self.handle_late(replica);
        self.has_awaited = false;
        self.clear(replica);
        let state = &mut self.replicas[replica];
        state.work = Work::Lookup;
        state.strategy = strategy;
    }

    /// This replica has not looked it up, and says so: it ends, or moves to another process,
    /// which is asked in a moment.
    #[cold]
    pub fn handle_refused(&mut self, replica: usize) {
        self.refresh_refused(replica);
    }

    /// The outstanding step at this replica could not be carried out.
    #[cold]
    pub fn handle_failure(&mut self, replica: usize, failure: Failure) {
        if self.has_awaited {
            // It is gone, or not worth waiting for.
            self.awaited &= !(1 << replica);
        }
        match failure {
            Failure::Stale => self.refresh(replica, RetryCause::ConfigChanged),
            Failure::Lease => self.lacking(replica, RetryCause::Lease),
            Failure::Connection => self.lacking(replica, RetryCause::Connection),
        }
    }

    /// What is left of deadline and budget: for a machine that goes on with
    /// another number of copies.
    pub fn limits(&self) -> Limits {
        self.retry.left()
    }

    /// What it has found out, in the words of a CAS.
    pub fn looked(&self) -> Looked {
        match self.outcome {
            Some(GetOutcome::Hit { version, .. }) => Looked::Agreed(Expected::Version(version)),
            Some(GetOutcome::Miss {
                reason: MissReason::Inquorate,
            }) => self.disagreement(),
            Some(GetOutcome::Miss { .. }) => Looked::Agreed(Expected::Absent),
            Some(GetOutcome::Failed { .. }) | None => Looked::Unknown,
        }
    }

    /// The version of an item that this miss found expired or flushed; zero if there
    /// was none.
    pub fn dead_version(&self) -> Version {
        let mut dead = Version::ZERO;
        for (replica, vote) in self.replicas.iter().zip(&self.votes) {
            if let (Vote::Present { version, .. }, Data::Expired | Data::Flushed) =
                (vote, replica.data)
            {
                dead = dead.max(*version);
            }
        }
        dead
    }

    /// What a replica that has voted holds.
    pub fn voted(&self, replica: usize) -> Option<Option<Version>> {
        match self.votes[replica] {
            Vote::Present { version, .. } => Some(Some(version)),
            Vote::Absent { .. } => Some(None),
            Vote::Open | Vote::None => None,
        }
    }

    fn disagreement(&self) -> Looked {
        let mut present = [None; REPLICAS_MAX];
        let mut voters = 0;
        for (present, vote) in present.iter_mut().zip(&self.votes) {
            match vote {
                Vote::Present { version, .. } => *present = Some(*version),
                Vote::Absent { .. } => {}
                Vote::Open | Vote::None => continue,
            }
            voters += 1;
        }
        if voters >= Self::quorum() && self.is_at_rest() {
            Looked::Disagree { present }
        } else {
            Looked::Unknown
        }
    }

    /// Retries so far, by cause.
    pub fn retries(&self) -> RetryCounts {
        self.retry.counts()
    }

    /// Whether there was no retry at all: the common case, for which counters
    /// need not be touched.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.retry.is_clean()
    }

    /// Whether all replicas have voted, and not alike: a key for whoever repairs them.
    /// Where two agree at once, the third is not asked, and this is not known.
    #[inline(always)]
    pub fn is_dirty(&self) -> bool {
        let last = self.votes[self.at(N - 1)];
        N > 2 && last != Vote::Open && self.votes_differ()
    }

    #[cold]
    fn votes_differ(&self) -> bool {
        let held = |vote: &Vote| match vote {
            Vote::Present { version, .. } => Some(Some(*version)),
            Vote::Absent { .. } => Some(None),
            Vote::Open | Vote::None => None,
        };
        let first = held(&self.votes[0]);
        let mut others = self.votes[1..].iter().map(held);
        let is_known = self.votes.iter().all(|vote| held(vote).is_some());
        is_known && others.any(|other| other != first)
    }

    /// What to report as touched at this replica after a hit: the slot of the
    /// item, if it was read there one-sidedly and voted for the hit's version.
    #[inline]
    pub fn touched_slot(&self, replica: usize) -> Option<u32> {
        let Some(GetOutcome::Hit { version: hit, .. }) = self.outcome else {
            return None;
        };
        let slot = self.slot_numbers[replica];
        match self.votes[replica] {
            Vote::Present { version, .. } if version == hit && slot != NO_SLOT => Some(slot),
            _ => None,
        }
    }
}

#[inline(always)]
fn lookup_step(strategy: Strategy, replica: usize) -> GetStep {
    match strategy {
        Strategy::TwoReads | Strategy::Down => GetStep::ReadIndex { replica },
        Strategy::Scar => GetStep::Scan { replica },
        Strategy::Vote | Strategy::VoteThenRead => GetStep::Vote { replica },
        Strategy::Message => GetStep::Ask {
            replica,
            by_rpc: false,
        },
        Strategy::Rpc => GetStep::Ask {
            replica,
            by_rpc: true,
        },
    }
}

#[cold]
fn rare_step(state: &mut Replica, replica: usize) -> GetStep {
    match std::mem::replace(&mut state.work, Work::Busy) {
        Work::Message => GetStep::Ask {
            replica,
            by_rpc: state.strategy == Strategy::Rpc,
        },
        Work::RefreshConfig => GetStep::Refresh {
            replica,
            cause: RetryCause::ConfigChanged,
        },
        Work::RefreshWindow => GetStep::Refresh {
            replica,
            cause: RetryCause::Window,
        },
        Work::Reconnect => GetStep::Reconnect { replica },
        Work::Await => GetStep::Await { replica },
        // `poll` passes only those above.
        _ => lookup_step(state.strategy, replica),
    }
}
