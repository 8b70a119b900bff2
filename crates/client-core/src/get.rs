//! GET: one machine for every mode and every lookup strategy.
//!
//! # Calling order
//!
//! ```text
//! let mut get = Get::new(&plan, hash, limits, now);
//! loop {
//!     match get.poll(now) {
//!         ReadIndex { replica }  => scan the bucket        -> handle_index, or handle_failure
//!         ReadData { replica, .. } => check the pointer against the window
//!                                   outside: handle_out_of_window
//!                                   inside:  copy the bytes -> handle_data, or handle_failure
//!         Scan { replica }       => SCAR, both in one      -> handle_scar, or handle_failure
//!         Ask { replica, .. }    => lookup by message      -> handle_answer, or handle_failure
//!         Refresh { replica, .. } => windows by RPC or from the control region
//!                                                          -> handle_refreshed, or handle_failure
//!         Reconnect { replica }  => a new connection       -> handle_reconnected, or handle_failure
//!         Pause { ns }           => spin, yield or sleep that long
//!         Wait { until_ns }      => nothing to start: feed a completion, or poll again at that time
//!         Done(outcome)          => ends it
//!     }
//! }
//! ```
//!
//! * Every step but `Pause`, `Wait` and `Done` is answered exactly once, at any
//!   time, in any order; until then it is outstanding. A driver that completes
//!   everything at once (shared memory) never sees `Wait`. One that wants to
//!   overlap takes steps until `Wait` before it executes them: under R=3.2 the
//!   first two indexes come one behind the other, so both can be prefetched.
//! * A fabric checks the backend's lease *after* it has copied, and reports
//!   [`Failure::Lease`] instead of the bytes if it had run out.
//! * Bytes given to `handle_data`, `handle_scar` and `handle_answer` are judged
//!   here. The driver keeps each replica's latest bytes until `Done`: a hit
//!   names the replica whose bytes are the value (`DataEntry::decode`).
//! * After `Done` the machine may be dropped, outstanding steps and all.
//! * If a refresh finds that the key now belongs to other backends, the driver
//!   calls [`Get::restart`] with the new plan; deadline and budget go on.

use crate::data::{DataCheck, DataVerdict, judge};
use crate::mode::{Mode, REPLICAS_MAX};
use crate::mutants::{self, Mutant};
use crate::quorum::{Vote, VoteDecision, decide_votes};
use crate::retry::{GiveUp, Limits, Retry, RetryCause, RetryCounts};
use crate::vote::IndexVote;
use trefoil_layout::op::{Found, LookupAnswer, Rejection};
use trefoil_layout::{KeyHash, Pointer, Version};

/// After this many torn or unstable one-sided reads of one replica within one
/// GET, that replica is asked by message, which waits for its writers instead
/// of racing them.
pub const ONE_SIDED_FAULTS_MAX: u8 = 4;

/// How one replica is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Two one-sided reads: bucket, then data.
    #[default]
    TwoReads,
    /// One request to a software NIC, which scans the bucket and reads the data.
    Scar,
    /// A message to the backend over the fabric.
    Message,
    /// An RPC to the backend.
    Rpc,
    /// Known to be down: not asked, unless no quorum is left without it; then
    /// it is reconnected first and looked up by two reads.
    Down,
}

/// Who is asked, and how.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Copies and quorum.
    pub mode: Mode,
    /// The replica (its place in the cohort) to be asked first; the data comes
    /// from it if it agrees. Rotated where all are equally near.
    pub preferred: usize,
    /// By place in the cohort; places beyond the mode's count are ignored.
    pub strategies: [Strategy; REPLICAS_MAX],
    /// Replicas asked at once: at least the quorum is. Over shared memory each
    /// read costs CPU, so as few as possible; over a network all three.
    pub fan_out: usize,
    /// If the answers do not decide it for this long, one more replica is
    /// asked; `u64::MAX` for never.
    pub hedge_after_ns: u64,
}

impl Plan {
    /// As few reads as possible, by two reads from each replica.
    pub const fn frugal(mode: Mode, preferred: usize) -> Self {
        Plan {
            mode,
            preferred,
            strategies: [Strategy::TwoReads; REPLICAS_MAX],
            fan_out: mode.quorum(),
            hedge_after_ns: u64::MAX,
        }
    }
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetStep {
    /// Scan the key's bucket at this replica.
    ReadIndex {
        /// Place in the cohort.
        replica: usize,
    },
    /// Copy a data entry.
    ReadData {
        /// Place in the cohort.
        replica: usize,
        /// Not yet checked against the data window.
        pointer: Pointer,
        /// Of the index entry, for traces.
        version: Version,
    },
    /// Scan and read by the software NIC.
    Scan {
        /// Place in the cohort.
        replica: usize,
    },
    /// Look up by message.
    Ask {
        /// Place in the cohort.
        replica: usize,
        /// By RPC rather than by a message over the fabric.
        by_rpc: bool,
    },
    /// Learn the backend's configuration and windows anew.
    Refresh {
        /// Place in the cohort.
        replica: usize,
        /// What was wrong with the old ones.
        cause: RetryCause,
    },
    /// Establish the connection anew.
    Reconnect {
        /// Place in the cohort.
        replica: usize,
    },
    /// Let others finish what they are at.
    Pause {
        /// Nanoseconds.
        ns: u64,
    },
    /// Nothing to start before a completion or this time.
    Wait {
        /// On the caller's monotonic clock; `u64::MAX` if there is no such time.
        until_ns: u64,
    },
    /// Finished; any further poll says the same.
    Done(GetOutcome),
}

/// How a GET ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// A value.
    Hit {
        /// The mutation that wrote it.
        version: Version,
        /// Whose bytes are the value.
        replica: usize,
    },
    /// No value that could be returned.
    Miss {
        /// Why.
        reason: MissReason,
    },
    /// It could not be found out.
    Failed {
        /// Why.
        cause: GetFailure,
    },
}

/// Why a GET found no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// No value is known.
    Absent,
    /// There is one, past its expiry.
    Expired,
    /// There is one, older than the cell's last flush.
    Flushed,
    /// No two replicas agreed within deadline and budget.
    Inquorate,
}

impl MissReason {
    /// Every reason.
    pub const ALL: [MissReason; 4] = [
        MissReason::Absent,
        MissReason::Expired,
        MissReason::Flushed,
        MissReason::Inquorate,
    ];

    /// The name in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            MissReason::Absent => "absent",
            MissReason::Expired => "expired",
            MissReason::Flushed => "flushed",
            MissReason::Inquorate => "inquorate",
        }
    }
}

impl std::fmt::Display for MissReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a GET failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetFailure {
    /// Deadline or budget ended before any replica had a usable answer.
    #[error(transparent)]
    GaveUp(#[from] GiveUp),
    /// A replica refused the lookup itself.
    #[error(transparent)]
    Rejected(Rejection),
}

/// Why a step could not be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The lease had run out: what was read may be a dead process's memory.
    Lease,
    /// No connection, or it broke.
    Connection,
    /// The window or configuration that the step relied on is not valid any
    /// more (for a fabric that notices before it reads).
    Stale,
}

/// What is to be done at one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Not asked in this round.
    Spare,
    /// Look up by its strategy.
    Lookup,
    /// Look up by message, whatever its strategy.
    Message,
    /// Read the data that its vote points at.
    Data,
    Refresh(RetryCause),
    Reconnect,
    /// A step is outstanding.
    Busy,
    /// It has voted, or gives no vote.
    Settled,
}

/// What is known of the data that a replica's vote points at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Data {
    Unread,
    Reading,
    Sound,
    Expired,
    Flushed,
}

#[derive(Clone, Copy, Debug)]
struct Replica {
    strategy: Strategy,
    work: Work,
    data: Data,
    faults: u8,
    /// Why it gives no vote, if so.
    lacking: Option<RetryCause>,
    /// Named by its one-sided vote; `u32::MAX` if there is none.
    slot_number: u32,
    vote: Vote,
    pointer: Pointer,
}

const NO_SLOT: u32 = u32::MAX;

/// The machine. See the module's page for the calling order.
#[derive(Clone, Debug)]
pub struct Get {
    tag: u64,
    replica_count: usize,
    quorum: usize,
    preferred: usize,
    fan_out: usize,
    replicas: [Replica; REPLICAS_MAX],
    /// Due before the next step; 0 for none.
    pause_ns: u64,
    /// When `poll` must look at the time: next hedge, or the deadline.
    wake_ns: u64,
    hedge_after_ns: u64,
    retry: Retry,
    outcome: Option<GetOutcome>,
}

impl Get {
    /// A machine for the key with this hash. `now_ns` is the caller's
    /// monotonic clock, as is the limits' deadline.
    #[inline]
    pub fn new(plan: &Plan, hash: KeyHash, limits: Limits, now_ns: u64) -> Self {
        let mut get = Get {
            tag: hash.tag,
            replica_count: plan.mode.replica_count(),
            quorum: quorum_of(plan.mode),
            preferred: plan.preferred,
            fan_out: 0,
            replicas: [Replica {
                strategy: Strategy::TwoReads,
                work: Work::Spare,
                data: Data::Unread,
                faults: 0,
                lacking: None,
                slot_number: NO_SLOT,
                vote: Vote::Open,
                pointer: Pointer(0),
            }; REPLICAS_MAX],
            pause_ns: 0,
            wake_ns: limits.deadline_ns,
            hedge_after_ns: plan.hedge_after_ns,
            retry: Retry::new(limits),
            outcome: None,
        };
        get.begin(plan, now_ns);
        get
    }

    /// Begins anew with other replicas; deadline and budget go on. Answers to
    /// steps from before must not be fed any more.
    pub fn restart(&mut self, plan: &Plan, now_ns: u64) {
        for replica in &mut self.replicas {
            clear(replica);
            replica.work = Work::Spare;
            replica.faults = 0;
        }
        self.replica_count = plan.mode.replica_count();
        self.quorum = quorum_of(plan.mode);
        self.preferred = plan.preferred;
        self.hedge_after_ns = plan.hedge_after_ns;
        self.begin(plan, now_ns);
    }

    #[inline(always)]
    fn begin(&mut self, plan: &Plan, now_ns: u64) {
        debug_assert!(plan.preferred < self.replica_count);
        self.fan_out = plan.fan_out.max(self.quorum).min(self.replica_count);
        let mut wanted = self.fan_out;
        for rank in 0..self.replica_count {
            let number = self.at(rank);
            let replica = &mut self.replicas[number];
            replica.strategy = plan.strategies[number];
            if replica.strategy == Strategy::Down {
                replica.work = Work::Settled;
                replica.vote = Vote::None;
                replica.lacking = Some(RetryCause::Connection);
            } else if wanted > 0 {
                replica.work = Work::Lookup;
                wanted -= 1;
            }
        }
        if wanted > 0 {
            self.advance();
        }
        self.wake_ns = self
            .retry
            .deadline_ns()
            .min(now_ns.saturating_add(self.hedge_after_ns));
    }

    /// The replica at this rank, in the order of preference.
    #[inline(always)]
    fn at(&self, rank: usize) -> usize {
        let number = self.preferred + rank;
        if number >= self.replica_count {
            number - self.replica_count
        } else {
            number
        }
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
        for rank in 0..self.replica_count {
            let number = self.at(rank);
            let replica = &mut self.replicas[number];
            match replica.work {
                Work::Spare | Work::Busy | Work::Settled => continue,
                Work::Lookup => {
                    replica.work = Work::Busy;
                    return lookup_step(replica.strategy, number);
                }
                Work::Data => {
                    replica.work = Work::Busy;
                    let version = match replica.vote {
                        Vote::Present { version, .. } => version,
                        _ => Version::ZERO,
                    };
                    return GetStep::ReadData {
                        replica: number,
                        pointer: replica.pointer,
                        version,
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
        let state = &mut self.replicas[replica];
        match vote {
            IndexVote::Present {
                slot_number,
                entry,
                epoch,
            } => {
                state.vote = Vote::Present {
                    version: entry.version,
                    epoch,
                };
                state.pointer = entry.pointer;
                state.slot_number = slot_number;
                state.data = Data::Unread;
                if self.quorum == 1 {
                    // Decided already; only its data is missing.
                    state.work = Work::Data;
                    state.data = Data::Reading;
                    return;
                }
                state.work = Work::Settled;
                self.advance();
            }
            IndexVote::Absent { epoch } => {
                state.vote = Vote::Absent { epoch };
                state.work = Work::Settled;
                self.advance();
            }
            _ => self.no_vote(replica, vote),
        }
    }

    #[cold]
    fn no_vote(&mut self, replica: usize, vote: IndexVote) {
        match vote {
            IndexVote::AskByMessage { .. } => self.replicas[replica].work = Work::Message,
            IndexVote::Unstable => self.again(replica, RetryCause::Unstable),
            IndexVote::Recovering => self.lacking(replica, RetryCause::Recovering),
            IndexVote::ConfigChanged { .. } => self.refresh(replica, RetryCause::ConfigChanged),
            IndexVote::Present { .. } | IndexVote::Absent { .. } => {}
        }
    }

    /// A data entry was copied. Whatever the bytes are, they are judged here.
    #[inline]
    pub fn handle_data(&mut self, replica: usize, bytes: &[u8], check: &DataCheck<'_>) {
        let state = &mut self.replicas[replica];
        let Vote::Present { version, epoch } = state.vote else {
            return;
        };
        if self.outcome.is_some() {
            return;
        }
        let verdict = judge(bytes, self.tag, version, check);
        state.work = Work::Settled;
        if let DataVerdict::Hit(_) = verdict
            && self.quorum == 1
        {
            self.outcome = Some(GetOutcome::Hit { version, replica });
            return;
        }
        state.data = match verdict {
            DataVerdict::Hit(_) => Data::Sound,
            DataVerdict::Expired => Data::Expired,
            DataVerdict::Flushed => Data::Flushed,
            DataVerdict::OtherKey => {
                state.vote = Vote::Absent { epoch };
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
        match vote {
            IndexVote::Present {
                slot_number,
                entry,
                epoch,
            } => {
                let state = &mut self.replicas[replica];
                state.slot_number = slot_number;
                state.vote = Vote::Present {
                    version: entry.version,
                    epoch,
                };
                self.handle_data(replica, bytes, check);
            }
            _ => self.handle_index(replica, vote),
        }
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
                self.replicas[replica].vote = Vote::Present { version, epoch };
                self.handle_data(replica, data, check);
            }
            Found::Absent => self.handle_index(replica, IndexVote::Absent { epoch }),
            Found::Rejected(Rejection::Recovering) => {
                self.lacking(replica, RetryCause::Recovering);
            }
            Found::Rejected(Rejection::WrongShard) => {
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

    /// The windows of this replica are fresh.
    pub fn handle_refreshed(&mut self, replica: usize) {
        self.replicas[replica].work = Work::Lookup;
    }

    /// This replica is connected again, its windows are fresh.
    pub fn handle_reconnected(&mut self, replica: usize) {
        let state = &mut self.replicas[replica];
        clear(state);
        state.work = Work::Lookup;
        if state.strategy == Strategy::Down {
            state.strategy = Strategy::TwoReads;
        }
    }

    /// The outstanding step at this replica could not be carried out.
    #[cold]
    pub fn handle_failure(&mut self, replica: usize, failure: Failure) {
        match failure {
            Failure::Stale => self.refresh(replica, RetryCause::ConfigChanged),
            Failure::Lease => self.lacking(replica, RetryCause::Lease),
            Failure::Connection => self.lacking(replica, RetryCause::Connection),
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

    /// What to report as touched at this replica after a hit: the slot of the
    /// item, if it was read there one-sidedly and voted for the hit's version.
    #[inline]
    pub fn touched_slot(&self, replica: usize) -> Option<u32> {
        let Some(GetOutcome::Hit { version, .. }) = self.outcome else {
            return None;
        };
        let state = &self.replicas[replica];
        match state.vote {
            Vote::Present { version: voted, .. }
                if voted == version && state.slot_number != NO_SLOT =>
            {
                Some(state.slot_number)
            }
            _ => None,
        }
    }

    /// Acts on the votes as they stand now.
    fn advance(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        let votes = self.replicas.map(|replica| replica.vote);
        match decide_votes(&votes[..self.replica_count], self.quorum) {
            VoteDecision::Absent => self.finish_miss(MissReason::Absent),
            VoteDecision::Present { version, members } => self.agreed(version, members),
            VoteDecision::Open => {
                self.speculate();
                self.recruit();
            }
            VoteDecision::Inquorate => self.inquorate(),
        }
    }

    /// A quorum has agreed on `version`: its data must come from a member.
    fn agreed(&mut self, version: Version, members: u8) {
        let mut wanted = None;
        for rank in 0..self.replica_count {
            let number = self.at(rank);
            if members & 1 << number == 0 {
                continue;
            }
            match self.replicas[number].data {
                Data::Sound => {
                    let replica = number;
                    self.outcome = Some(GetOutcome::Hit { version, replica });
                    return;
                }
                Data::Expired => return self.finish_miss(MissReason::Expired),
                Data::Flushed => return self.finish_miss(MissReason::Flushed),
                Data::Reading => return,
                Data::Unread => wanted = wanted.or(Some(number)),
            }
        }
        if let Some(number) = wanted {
            self.read_data(number);
        }
    }

    /// The first vote that names a value has its data read before the quorum
    /// stands: it will most likely agree.
    fn speculate(&mut self) {
        let mut first = None;
        for rank in 0..self.replica_count {
            let number = self.at(rank);
            let replica = &self.replicas[number];
            if replica.data != Data::Unread {
                return;
            }
            if matches!(replica.vote, Vote::Present { .. }) {
                first = first.or(Some(number));
            }
        }
        if let Some(number) = first {
            self.read_data(number);
        }
    }

    fn read_data(&mut self, number: usize) {
        let replica = &mut self.replicas[number];
        replica.data = Data::Reading;
        replica.work = Work::Data;
    }

    /// Brings in spare replicas as long as those asked cannot decide it.
    fn recruit(&mut self) {
        loop {
            // A spare counts as one that gives no vote: can the others do it?
            let votes = self.replicas.map(|replica| match replica.work {
                Work::Spare => Vote::None,
                _ => replica.vote,
            });
            let decision = decide_votes(&votes[..self.replica_count], self.quorum);
            if decision != VoteDecision::Inquorate || !self.recruit_one() {
                return;
            }
        }
    }

    fn recruit_one(&mut self) -> bool {
        for rank in 0..self.replica_count {
            let number = self.at(rank);
            if self.replicas[number].work == Work::Spare {
                self.replicas[number].work = Work::Lookup;
                return true;
            }
        }
        false
    }

    /// All votes are in and no quorum stands.
    #[cold]
    fn inquorate(&mut self) {
        let replicas = &self.replicas[..self.replica_count];
        if replicas
            .iter()
            .any(|r| r.work != Work::Settled && r.work != Work::Spare)
        {
            // Whoever is still at it may yet change its vote.
            return;
        }
        let voters = replicas.iter().filter(|r| r.vote != Vote::None).count();
        if voters >= self.quorum {
            if self.spend(RetryCause::Inquorate) {
                self.new_round();
            }
            return;
        }
        let lacking = replicas.iter().find_map(|replica| replica.lacking);
        if self.spend(lacking.unwrap_or(RetryCause::Connection)) {
            self.win_back();
        }
    }

    /// Everybody who can vote votes again.
    fn new_round(&mut self) {
        let mut wanted = self.fan_out;
        for rank in 0..self.replica_count {
            let number = self.at(rank);
            let replica = &mut self.replicas[number];
            if replica.vote == Vote::None {
                continue;
            }
            clear(replica);
            replica.work = if wanted > 0 {
                Work::Lookup
            } else {
                Work::Spare
            };
            wanted = wanted.saturating_sub(1);
        }
    }

    /// Too few replicas can vote: those that could not are tried again. The
    /// votes of the others stand.
    fn win_back(&mut self) {
        self.pause_ns = self.retry.pause_ns();
        for replica in &mut self.replicas[..self.replica_count] {
            if replica.vote == Vote::None {
                replica.vote = Vote::Open;
                replica.work = match replica.lacking {
                    Some(RetryCause::Lease | RetryCause::Connection) => Work::Reconnect,
                    _ => Work::Lookup,
                };
            }
        }
    }

    /// Reads this replica's index again, or asks it by message if racing its
    /// writers has failed too often.
    #[cold]
    fn again(&mut self, replica: usize, cause: RetryCause) {
        let state = &mut self.replicas[replica];
        clear(state);
        state.faults += 1;
        state.work = if state.faults < ONE_SIDED_FAULTS_MAX {
            Work::Lookup
        } else {
            Work::Message
        };
        self.spend(cause);
    }

    #[cold]
    fn refresh(&mut self, replica: usize, cause: RetryCause) {
        let state = &mut self.replicas[replica];
        clear(state);
        state.work = Work::Refresh(cause);
        self.spend(cause);
    }

    /// This replica gives no vote for now: the others must decide.
    #[cold]
    fn lacking(&mut self, replica: usize, cause: RetryCause) {
        let state = &mut self.replicas[replica];
        clear(state);
        state.vote = Vote::None;
        state.work = Work::Settled;
        state.lacking = Some(cause);
        self.retry.count(cause);
        self.advance();
    }

    /// Takes a retry off the budget; `false` if that ended the GET.
    fn spend(&mut self, cause: RetryCause) -> bool {
        match self.retry.spend(cause) {
            Ok(()) => {
                self.pause_ns = self.retry.pause_ns();
                true
            }
            Err(give_up) => {
                self.give_up(give_up);
                false
            }
        }
    }

    #[cold]
    fn alarm(&mut self, now_ns: u64) {
        if now_ns >= self.retry.deadline_ns() {
            self.give_up(self.retry.deadline());
            return;
        }
        let hedged = self.recruit_one();
        if hedged {
            self.retry.count(RetryCause::Slow);
        }
        self.wake_ns = if hedged {
            self.retry
                .deadline_ns()
                .min(now_ns.saturating_add(self.hedge_after_ns))
        } else {
            self.retry.deadline_ns()
        };
    }

    /// A loss of quorum is a miss to the caller; where nobody could be heard,
    /// or one copy is all there is, it is a failure.
    #[cold]
    fn give_up(&mut self, give_up: GiveUp) {
        if self.outcome.is_some() {
            return;
        }
        let votes = self.replicas.map(|replica| replica.vote);
        let decision = decide_votes(&votes[..self.replica_count], self.quorum);
        // With a quorum, only its data was still missing.
        let agreed = matches!(decision, VoteDecision::Present { .. });
        let replicas = &self.replicas[..self.replica_count];
        let heard = replicas
            .iter()
            .any(|r| matches!(r.vote, Vote::Present { .. } | Vote::Absent { .. }));
        let inquorate = matches!(
            give_up,
            GiveUp::Budget {
                last: RetryCause::Inquorate
            }
        );
        self.outcome = Some(if self.quorum > 1 && !agreed && (heard || inquorate) {
            GetOutcome::Miss {
                reason: MissReason::Inquorate,
            }
        } else {
            GetOutcome::Failed {
                cause: GetFailure::GaveUp(give_up),
            }
        });
    }

    #[inline]
    fn finish_miss(&mut self, reason: MissReason) {
        self.outcome = Some(GetOutcome::Miss { reason });
    }
}

#[inline(always)]
fn quorum_of(mode: Mode) -> usize {
    if mutants::is_on(Mutant::VoteOfOne) {
        1
    } else {
        mode.quorum()
    }
}

/// Forgets what a replica has said.
fn clear(replica: &mut Replica) {
    replica.vote = Vote::Open;
    replica.data = Data::Unread;
    replica.lacking = None;
    replica.slot_number = NO_SLOT;
}

#[inline(always)]
fn lookup_step(strategy: Strategy, replica: usize) -> GetStep {
    match strategy {
        Strategy::TwoReads | Strategy::Down => GetStep::ReadIndex { replica },
        Strategy::Scar => GetStep::Scan { replica },
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
        Work::Refresh(cause) => GetStep::Refresh { replica, cause },
        Work::Reconnect => GetStep::Reconnect { replica },
        // `poll` passes only the three above.
        _ => lookup_step(state.strategy, replica),
    }
}
