//! SET, ERASE and cache fill.
//!
//! # Calling order
//!
//! ```text
//! let mut mutate = Mutate::new(mode, version, limits);   // or Mutate::fill
//! loop {
//!     match mutate.poll(now) {
//!         Send { replica, version, stamp }
//!                                => message -> handle_ack, or handle_failure, with that version
//!         Evict { replica, version }
//!                                => an ERASE at this version, to this replica alone
//!                                   -> handle_ack, or handle_failure
//!         Nominate { above }     => clock.observe(above); clock.next(wall clock) -> handle_version
//!         Refresh { replica }    => configuration by RPC   -> handle_refreshed, or restart
//!         Reconnect { replica }  => a new connection       -> handle_reconnected
//!         Pause { ns }           => spin, yield or sleep that long
//!         Wait { until_ns }      => feed an answer, or poll again at that time
//!         Done(outcome)          => ends it
//!     }
//! }
//! ```
//!
//! * All replicas are sent to before `Done` can come: the third message is
//!   never withheld. After `Done` the machine may be dropped, but a message
//!   that was sent must not be cancelled.
//! * Answers may come in any order. Those to an earlier version are ignored
//!   by the machine; their bounds may be given to the version clock.
//! * A message may be repeated below this machine: SET and ERASE are
//!   idempotent at a replica.

use crate::mode::{Mode, REPLICAS_MAX};
use crate::mutants::{self, Mutant};
use crate::outcome::{MutationOutcome, SendFailure};
use crate::quorum::{AckDecision, AckState, decide_acks};
use crate::retry::{GiveUp, Limits, Retry, RetryCause, RetryCounts};
use trefoil_layout::Version;
use trefoil_layout::op::{Ack, Outcome, Rejection};

/// Pauses before those that move are asked again, in nanoseconds, each twice as long as the
/// one before: each message wakes a thread on a core that they need for what they still have
/// to copy. While a cell of three was resized on one core, those who asked each millisecond
/// took half of it. What is over in a moment is found out a moment later; what takes 30 ms,
/// at most 4 ms later.
const MOVING_PAUSE_NS_MIN: u64 = 125_000;
const MOVING_PAUSE_NS_MAX: u64 = 4_000_000;

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutateStep {
    /// Send the mutation at this version.
    Send {
        /// Place in the cohort.
        replica: usize,
        /// To be handed back with the answer.
        version: Version,
        /// Of a fill: it goes out as `Action::Fill` with this stamp; without one,
        /// as a SET.
        stamp: Option<u64>,
    },
    /// Send an ERASE at this version: a fill that gives way takes back what it has
    /// left.
    Evict {
        /// Place in the cohort.
        replica: usize,
        /// Of what this fill has stored there; to be handed back with the answer.
        version: Version,
    },
    /// Issue a new version above this one.
    Nominate {
        /// The highest bound that a replica named.
        above: Version,
    },
    /// Learn the cell's configuration anew.
    Refresh {
        /// Place in the cohort of the replica that refused the key.
        replica: usize,
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
    /// Nothing to start before an answer or this time.
    Wait {
        /// On the caller's monotonic clock; `u64::MAX` if there is no such time.
        until_ns: u64,
    },
    /// Finished; any further poll says the same.
    Done(MutationOutcome),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Send,
    Refresh,
    Reconnect,
    /// The configuration is being learned for it.
    Refreshing,
    /// It is being reconnected to: nothing of this attempt is under way.
    Connecting,
    /// A step is outstanding, or an answer is there.
    None,
}

#[derive(Clone, Copy, Debug)]
struct Replica {
    work: Work,
    ack: AckState,
    /// Why the last attempt did not get through, if so.
    lacking: RetryCause,
    /// It has answered that it does not take this yet, or any more.
    is_unwilling: bool,
    /// What it was sent last was certainly not executed, and never will be.
    was_not_executed: bool,
    /// It may have taken this version, whatever it answers from now on: an answer was lost, or
    /// was another cohort's.
    may_hold: bool,
}

impl Replica {
    /// It was sent something, and has not answered.
    fn is_under_way(&self) -> bool {
        self.ack == AckState::Open && matches!(self.work, Work::None | Work::Refreshing)
    }
}

/// What only a fill has: see [`crate::fill`].
#[derive(Clone, Copy, Debug)]
struct Fill {
    stamps: [Option<u64>; REPLICAS_MAX],
    /// The replicas that may take it, as a bit set.
    willing: u8,
    /// The latest version at which each replica has taken it.
    held: [Option<Version>; REPLICAS_MAX],
    /// It gives way, to this bound, once what is open is answered.
    gives_way: Option<Version>,
    /// The replicas that are to evict what they hold of it, as a bit set.
    evictions_due: u8,
    /// Those that were told to, and have not answered.
    evictions_open: u8,
}

impl Fill {
    /// How many of the first `replica_count` replicas may take it.
    fn willing_count(&self, replica_count: usize) -> usize {
        (self.willing & ((1 << replica_count) - 1)).count_ones() as usize
    }
}

/// The machine. See the module's page for the calling order.
#[derive(Clone, Debug)]
pub struct Mutate {
    version: Version,
    fill: Option<Fill>,
    replica_count: usize,
    quorum: usize,
    replicas: [Replica; REPLICAS_MAX],
    /// It has this version and no other: see [`Mutate::again`].
    is_fixed: bool,
    /// A new version is needed, above this one.
    above: Option<Version>,
    nominating: bool,
    /// An attempt that is over may have left something at a replica.
    uncertain: bool,
    pause_ns: u64,
    /// The latest one for the sake of those that move.
    moving_pause_ns: u64,
    retry: Retry,
    outcome: Option<MutationOutcome>,
}

impl Mutate {
    /// A SET or ERASE under `version`, freshly issued.
    pub fn new(mode: Mode, version: Version, limits: Limits) -> Self {
        let fresh = Replica {
            work: Work::Send,
            ack: AckState::Open,
            lacking: RetryCause::Connection,
            is_unwilling: false,
            was_not_executed: false,
            may_hold: false,
        };
        Mutate {
            version,
            fill: None,
            replica_count: mode.replica_count(),
            quorum: if mutants::is_on(Mutant::AckOfOne) {
                1
            } else {
                mode.quorum()
            },
            replicas: [fresh; REPLICAS_MAX],
            is_fixed: false,
            above: None,
            nominating: false,
            uncertain: false,
            pause_ns: 0,
            moving_pause_ns: 0,
            retry: Retry::new(limits),
            outcome: (mode == Mode::R2Immutable)
                .then_some(MutationOutcome::Rejected(Rejection::Immutable)),
        }
    }

    /// A SET or ERASE that replicas may have under this very version already. Where it is
    /// superseded nobody knows whether it was executed before that: it is indeterminate, and
    /// does not go again above, after what may have been built upon it.
    pub fn again(mode: Mode, version: Version, limits: Limits) -> Self {
        Mutate {
            is_fixed: true,
            ..Mutate::new(mode, version, limits)
        }
    }

    /// Whether it is one of [`Mutate::again`].
    pub fn is_again(&self) -> bool {
        self.is_fixed
    }

    /// A SET of what was computed after a miss, which gives way to whatever was
    /// written since ([`crate::fill`]), and the stamps that the miss has read. It
    /// goes to those replicas first; to the others, once it is stored, as a SET.
    pub fn fill(
        mode: Mode,
        version: Version,
        stamps: [Option<u64>; REPLICAS_MAX],
        limits: Limits,
    ) -> Self {
        let mut mutate = Mutate::new(mode, version, limits);
        let mut willing = 0;
        for (number, stamp) in stamps.iter().enumerate() {
            if stamp.is_some() || mutants::is_on(Mutant::UnstampedFilled) {
                willing |= 1 << number;
            }
        }
        mutate.fill = Some(Fill {
            stamps,
            willing,
            held: [None; REPLICAS_MAX],
            gives_way: None,
            evictions_due: 0,
            evictions_open: 0,
        });
        mutate.open_attempt();
        mutate.give_way_if_few(Version::ZERO);
        mutate
    }

    /// Sends the same version to another cohort, after a refresh has found
    /// that the key belongs there now. Answers from before are lost. A fill ends:
    /// nobody there knows its stamps.
    pub fn restart(&mut self, mode: Mode) {
        if let Some(fill) = &mut self.fill {
            (fill.evictions_due, fill.evictions_open) = (0, 0);
            for replica in &mut self.replicas {
                replica.work = Work::None;
            }
            if self.outcome.is_none() {
                let bound = self.version;
                self.finish(MutationOutcome::Superseded { bound });
            }
            return;
        }
        self.close_attempt();
        self.replica_count = mode.replica_count();
        self.quorum = mode.quorum();
        for replica in &mut self.replicas {
            let was_taken = matches!(replica.ack, AckState::Applied { .. } | AckState::Lost);
            replica.may_hold |= was_taken || replica.is_under_way();
        }
        self.open_attempt();
    }

    /// Moves the deadline to `deadline_ns`, if that is later: who could not run has not
    /// waited.
    pub fn extend(&mut self, deadline_ns: u64) {
        self.retry.extend(deadline_ns);
    }

    /// The next step.
    pub fn poll(&mut self, now_ns: u64) -> MutateStep {
        if self.outcome.is_none() && now_ns >= self.retry.deadline_ns() {
            self.give_up(self.retry.deadline());
        }
        if self.pause_ns != 0 && self.outcome.is_none() {
            // Once more before the end, and no later than that.
            let left = self.retry.deadline_ns().saturating_sub(now_ns);
            let most = (left / 2).max(MOVING_PAUSE_NS_MIN).min(left);
            return MutateStep::Pause {
                ns: std::mem::take(&mut self.pause_ns).min(most),
            };
        }
        let version = self.version;
        for (number, replica) in self.replicas[..self.replica_count].iter_mut().enumerate() {
            // Messages still to be sent go out even if the others have decided.
            let over = self.outcome.is_some();
            match replica.work {
                Work::Send
                    if !over || matches!(self.outcome, Some(MutationOutcome::Stored { .. })) =>
                {
                    replica.work = Work::None;
                    return MutateStep::Send {
                        replica: number,
                        version,
                        stamp: self.fill.and_then(|fill| fill.stamps[number]),
                    };
                }
                Work::Refresh if !over => {
                    replica.work = Work::Refreshing;
                    return MutateStep::Refresh { replica: number };
                }
                Work::Reconnect if !over => {
                    replica.work = Work::Connecting;
                    return MutateStep::Reconnect { replica: number };
                }
                _ => {}
            }
        }
        if let Some(fill) = &mut self.fill {
            if fill.evictions_due != 0 {
                let replica = fill.evictions_due.trailing_zeros() as usize;
                fill.evictions_due &= !(1 << replica);
                fill.evictions_open |= 1 << replica;
                let version = fill.held[replica].unwrap_or(Version::ZERO);
                return MutateStep::Evict { replica, version };
            }
            let until_ns = self.retry.deadline_ns();
            if fill.evictions_open != 0 && now_ns < until_ns {
                return MutateStep::Wait { until_ns };
            }
        }
        if let Some(outcome) = self.outcome {
            return MutateStep::Done(outcome);
        }
        if let Some(above) = self.above
            && !self.nominating
        {
            self.nominating = true;
            return MutateStep::Nominate { above };
        }
        MutateStep::Wait {
            until_ns: self.retry.deadline_ns(),
        }
    }

    /// A replica's answer to the message that carried `version`.
    pub fn handle_ack(&mut self, replica: usize, version: Version, ack: Ack) {
        if self.is_eviction(replica, version) {
            return;
        }
        if let Some(fill) = &mut self.fill {
            match ack.outcome {
                Outcome::Applied => {
                    fill.held[replica] = fill.held[replica].max(Some(version));
                }
                Outcome::Mismatch { .. } => fill.willing &= !(1 << replica),
                _ => {}
            }
        }
        if version != self.version || self.above.is_some() {
            return;
        }
        let state = &mut self.replicas[replica];
        state.was_not_executed = false;
        let is_put_off = matches!(ack.outcome, Outcome::Rejected(why) if why.is_transient());
        if is_put_off && matches!(state.ack, AckState::Applied { .. }) {
            // What one copy of the message has done, the refusal of another does not undo.
            return;
        }
        let is_unwilling = ack.outcome == Outcome::Rejected(Rejection::UnknownConfig);
        state.ack = match ack.outcome {
            Outcome::Applied => AckState::Applied {
                epoch: match state.ack {
                    // Answers to repeated messages overtake each other.
                    AckState::Applied { epoch } => epoch.max(ack.epoch),
                    _ => ack.epoch,
                },
            },
            Outcome::Superseded { bound } | Outcome::Mismatch { bound, .. } => {
                AckState::Superseded { bound }
            }
            // It is about to be told again, under what was learned meanwhile.
            Outcome::Rejected(_) if is_put_off && state.work == Work::Send => return,
            Outcome::Rejected(Rejection::Recovering | Rejection::UnknownConfig) => {
                state.lacking = RetryCause::Recovering;
                state.is_unwilling = is_unwilling;
                AckState::Down
            }
            Outcome::Rejected(
                Rejection::WrongShard | Rejection::OtherLife | Rejection::StaleConfig,
            ) => {
                state.lacking = RetryCause::ConfigChanged;
                AckState::Down
            }
            Outcome::Rejected(rejection) => AckState::Rejected(rejection),
        };
        self.advance();
    }

    /// There is no answer to the message that carried `version`.
    pub fn handle_failure(&mut self, replica: usize, version: Version, failure: SendFailure) {
        if self.is_eviction(replica, version) || version != self.version || self.above.is_some() {
            return;
        }
        let state = &mut self.replicas[replica];
        state.lacking = RetryCause::Connection;
        state.was_not_executed = false;
        match (failure, state.ack) {
            // What one copy of the message has done, another cannot undo.
            (_, AckState::Applied { .. } | AckState::Superseded { .. }) => {}
            (SendFailure::Moving, AckState::Open | AckState::Unwilling) => {
                // Over in a moment, like its own word for it.
                state.lacking = RetryCause::Recovering;
                state.is_unwilling = true;
                state.was_not_executed = true;
                state.ack = AckState::Down;
            }
            (SendFailure::NotSent, AckState::Open | AckState::Unwilling) => {
                state.ack = AckState::Down;
            }
            (SendFailure::NotSent | SendFailure::Moving, _) => {}
            // Until it is sent it has done nothing. Sent later, it is one copy of an old version.
            (SendFailure::Waits, _) => state.ack = AckState::Lost,
            (SendFailure::Lost, _) => {
                state.ack = AckState::Lost;
                state.may_hold = true;
            }
        }
        self.advance();
    }

    /// Whether an answer is to an eviction: then it is done with.
    fn is_eviction(&mut self, replica: usize, version: Version) -> bool {
        let Some(fill) = &mut self.fill else {
            return false;
        };
        let is_open = fill.evictions_open & 1 << replica != 0;
        let is_eviction = is_open && fill.held[replica] == Some(version);
        if is_eviction {
            fill.evictions_open &= !(1 << replica);
        }
        is_eviction
    }

    /// The new version that `Nominate` asked for.
    pub fn handle_version(&mut self, version: Version) {
        let Some(above) = self.above.filter(|above| version > *above) else {
            return;
        };
        self.above = None;
        self.nominating = false;
        self.version = version;
        for replica in &mut self.replicas {
            replica.may_hold = false;
        }
        self.open_attempt();
        // Answers that came since may have left too few that would take it.
        self.give_way_if_few(above);
    }

    /// Another configuration is in force, in which the key stands where it stood. A flush may
    /// have been what changed it: what was loaded before one is not stored after it.
    pub fn configuration_changed(&mut self) {
        if self.outcome.is_some() || self.gives_way().is_some() {
            return;
        }
        let bound = self.version;
        if let Some(fill) = &mut self.fill {
            fill.gives_way = Some(bound);
            // If it was about to go again, it does not.
            self.above = None;
            self.nominating = false;
            self.end_giving_way();
        }
    }

    /// The configuration is fresh and still names the same cohort. Whoever has refused the
    /// former one, or has yet to answer what was sent under it, is told again: two who take it
    /// now would end the operation without the third.
    pub fn handle_refreshed(&mut self, replica: usize) {
        self.send_after(Work::Refreshing, replica);
        self.configuration_changed();
        if self.outcome.is_some() || self.gives_way().is_some() || self.above.is_some() {
            return;
        }
        for replica in &mut self.replicas[..self.replica_count] {
            let is_told = replica.work == Work::None;
            match replica.ack {
                // What it was sent may be there already, whatever it says to this.
                AckState::Open if is_told => {
                    replica.may_hold = true;
                    self.uncertain = true;
                }
                AckState::Down if is_told && replica.lacking != RetryCause::Connection => {
                    // One that recovers stores what it refuses.
                    let stores = replica.lacking == RetryCause::Recovering && !replica.is_unwilling;
                    replica.may_hold |= stores;
                    self.uncertain |= stores;
                }
                _ => continue,
            }
            replica.ack = AckState::Open;
            replica.work = Work::Send;
        }
    }

    /// The connection was established anew, or could not be: the message is
    /// tried again either way.
    pub fn handle_reconnected(&mut self, replica: usize) {
        self.send_after(Work::Connecting, replica);
    }

    /// Sends to a replica for which this was done, unless nothing is to be sent to it
    /// any more: a fill may have given way meanwhile.
    fn send_after(&mut self, done: Work, replica: usize) {
        let work = &mut self.replicas[replica].work;
        if *work == done {
            *work = Work::Send;
        }
    }

    /// Whether it is stored, and this replica has refused it, was not reached, or will not say
    /// whether it took it: a key for whoever repairs them. One whose answer may still come is
    /// not known to lack it, and one that recovers learns of it from the others.
    pub fn lacks(&self, replica: usize) -> bool {
        let is_stored = matches!(self.outcome, Some(MutationOutcome::Stored { .. }));
        let state = &self.replicas[replica];
        is_stored
            && replica < self.replica_count
            && match state.ack {
                AckState::Applied { .. } => false,
                // The others were enough before it was told.
                AckState::Open | AckState::Unwilling => state.work != Work::None,
                AckState::Superseded { .. } | AckState::Rejected(_) | AckState::Lost => true,
                AckState::Down => state.lacking != RetryCause::Recovering || state.is_unwilling,
            }
    }

    /// Whether it gives way to whatever was written since a miss.
    pub fn is_fill(&self) -> bool {
        self.fill.is_some()
    }

    /// The version under which it is being stored.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Retries so far, by cause.
    pub fn retries(&self) -> RetryCounts {
        self.retry.counts()
    }

    fn advance(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        if self.gives_way().is_some() {
            return self.end_giving_way();
        }
        let acks = self.replicas.map(|replica| replica.ack);
        match decide_acks(&acks[..self.replica_count], self.quorum) {
            AckDecision::Open => {}
            AckDecision::Stored => {
                self.outcome = Some(MutationOutcome::Stored {
                    version: self.version,
                });
                if let Some(fill) = &mut self.fill {
                    for number in 0..self.replica_count {
                        if fill.willing & 1 << number == 0 {
                            fill.stamps[number] = None;
                            self.replicas[number].work = Work::Send;
                        }
                    }
                }
            }
            AckDecision::AskAgain { epoch } => self.ask_again(epoch),
            AckDecision::Superseded { bound } => self.superseded(bound),
            AckDecision::Rejected(rejection) => self.rejected(rejection),
            AckDecision::Unreachable => self.unreachable(),
        }
    }

    /// Applied by enough, but in different epochs: the older ones say it again.
    fn ask_again(&mut self, newest: u32) {
        if !self.spend(RetryCause::Epoch) {
            return;
        }
        for replica in &mut self.replicas[..self.replica_count] {
            if matches!(replica.ack, AckState::Applied { epoch } if epoch < newest) {
                // Its answer is open again; that it holds there is not.
                replica.may_hold = true;
                self.uncertain = true;
                replica.ack = AckState::Open;
                replica.work = Work::Send;
            }
        }
    }

    fn superseded(&mut self, bound: Version) {
        if self.fill.is_some() && !self.may_go_again(bound) {
            return;
        }
        if self.is_fixed {
            self.outcome = Some(MutationOutcome::Indeterminate);
            return;
        }
        // Above what came after it, it would take effect a second time.
        match self.may_have_been_seen() {
            Some(true) => return self.finish(MutationOutcome::Indeterminate),
            Some(false) => {}
            // An answer that is still to come says whether it was.
            None => return,
        }
        // Superseded at so many that the others are no quorum, now or later.
        let is_final = self.replicas[..self.replica_count]
            .iter()
            .filter(|replica| matches!(replica.ack, AckState::Superseded { .. }))
            .count()
            > self.replica_count - self.quorum;
        self.close_attempt();
        match self.retry.spend(RetryCause::Superseded) {
            Ok(()) => {
                self.pause_ns = self.retry.pause_ns();
                self.above = Some(bound);
            }
            Err(_) if is_final => {
                self.take_back();
                self.outcome = Some(MutationOutcome::Superseded { bound });
            }
            Err(give_up) => self.give_up(give_up),
        }
    }

    /// Whether a quorum may have held this version, because answers were lost: by those that
    /// came too few did, and what is newer elsewhere may have come after that. Nothing while
    /// that depends on who has not answered yet.
    fn may_have_been_seen(&self) -> Option<bool> {
        let replicas = &self.replicas[..self.replica_count];
        if self.fill.is_some() || !replicas.iter().any(|of| of.may_hold) {
            return Some(false);
        }
        let held = |of: &&Replica| of.may_hold || matches!(of.ack, AckState::Applied { .. });
        let held = replicas.iter().filter(held).count();
        let open = replicas
            .iter()
            .filter(|of| of.is_under_way() && !of.may_hold);
        match held >= self.quorum {
            true => Some(true),
            false if held + open.count() >= self.quorum => None,
            false => Some(false),
        }
    }

    /// Whether a fill that was superseded may be sent again above `bound`. Not before all that
    /// it has sent was answered: what a replica took of it changes that replica's stamp, and
    /// has to be taken back if it is not stored. So whoever may have taken it is sent it no
    /// more, unless it is stored at others.
    fn may_go_again(&mut self, bound: Version) -> bool {
        if self.give_way_if_few(bound) {
            return false;
        }
        let replicas = &self.replicas[..self.replica_count];
        if replicas.iter().any(Replica::is_under_way) {
            return false;
        }
        if let Some(fill) = &mut self.fill {
            for (number, replica) in replicas.iter().enumerate() {
                if matches!(replica.ack, AckState::Applied { .. } | AckState::Lost) {
                    fill.willing &= !(1 << number);
                }
            }
        }
        !self.give_way_if_few(bound)
    }

    /// Whether a fill gives way now, to `bound`: too few replicas would take it.
    fn give_way_if_few(&mut self, bound: Version) -> bool {
        let Some(fill) = &mut self.fill else {
            return false;
        };
        if fill.willing_count(self.replica_count) >= self.quorum {
            return false;
        }
        fill.gives_way = Some(bound);
        self.end_giving_way();
        true
    }

    fn gives_way(&self) -> Option<Version> {
        self.fill.and_then(|fill| fill.gives_way)
    }

    /// A fill that so many refuse that it cannot be stored any more. What is not
    /// sent is not sent; what was is waited for, and taken back where it was taken:
    /// a copy that two replicas refuse would be one of three different votes as soon
    /// as something else is late at a second replica.
    fn end_giving_way(&mut self) {
        let Some(bound) = self.gives_way() else {
            return;
        };
        let mut is_open = false;
        for replica in &mut self.replicas[..self.replica_count] {
            if replica.work != Work::None {
                replica.work = Work::None;
                replica.ack = AckState::Down;
            }
            is_open |= replica.ack == AckState::Open;
        }
        if !is_open {
            self.take_back();
            self.outcome = Some(MutationOutcome::Superseded { bound });
        }
    }

    /// Has every replica evict what it has taken of a fill that is not stored: at
    /// that entry's own version, so that whatever has come since stays.
    fn take_back(&mut self) {
        if let Some(fill) = &mut self.fill
            && !mutants::is_on(Mutant::FillStays)
        {
            for (number, held) in fill.held[..self.replica_count].iter().enumerate() {
                if held.is_some() {
                    fill.evictions_due |= 1 << number;
                }
            }
        }
    }

    /// So many refuse it that the others are no quorum. What one of these holds,
    /// or may still receive, is never seen: a copy alone is neither a vote that
    /// finds a second one nor what recovery or repair spread. Only an earlier
    /// message makes it uncertain.
    fn rejected(&mut self, rejection: Rejection) {
        self.take_back();
        self.outcome = Some(if self.uncertain {
            MutationOutcome::Indeterminate
        } else {
            MutationOutcome::Rejected(rejection)
        });
    }

    /// No quorum without those that are silent: the same version again.
    fn unreachable(&mut self) {
        let silent =
            |replica: &&mut Replica| matches!(replica.ack, AckState::Lost | AckState::Down);
        let replicas = &mut self.replicas[..self.replica_count];
        // Whichever comes first: one that moves is waited for, whatever another one lacks; one
        // that recovers is not beside one that is gone, which it needs for that.
        let (mut moves, mut recovers, mut gone) = (false, false, None);
        for replica in replicas.iter_mut().filter(silent) {
            match replica.lacking {
                RetryCause::Recovering if replica.is_unwilling => moves = true,
                RetryCause::Recovering => recovers = true,
                lacking => gone = gone.or(Some(lacking)),
            }
        }
        let cause = match gone {
            Some(lacking) if !moves => lacking,
            None if !moves && !recovers => RetryCause::Connection,
            _ => RetryCause::Recovering,
        };
        // What has refused this version has nothing of it, and will not receive it
        // again: rings and calls deliver a message once, and none after its answer. Under
        // a carrier that repeats messages it would be uncertain, too, as it is where
        // an operation ends (`close_attempt`); here a refusal would then be told as
        // indeterminate for the sake of what no carrier does. But one that recovers stores
        // what it refuses.
        for replica in replicas.iter_mut() {
            let stores = replica.lacking == RetryCause::Recovering && !replica.is_unwilling;
            match replica.ack {
                AckState::Lost => self.uncertain = true,
                AckState::Down if stores => {
                    replica.may_hold = true;
                    self.uncertain = true;
                }
                _ => {}
            }
        }
        if !self.spend(cause) {
            return;
        }
        if moves {
            let longer = 2 * self.moving_pause_ns;
            self.moving_pause_ns = longer.clamp(MOVING_PAUSE_NS_MIN, MOVING_PAUSE_NS_MAX);
            self.pause_ns = self.pause_ns.max(self.moving_pause_ns);
        }
        for replica in self.replicas[..self.replica_count]
            .iter_mut()
            .filter(silent)
        {
            replica.ack = AckState::Open;
            replica.work = match replica.lacking {
                RetryCause::ConfigChanged => Work::Refresh,
                RetryCause::Recovering => Work::Send,
                _ => Work::Reconnect,
            };
        }
    }

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

    fn give_up(&mut self, cause: GiveUp) {
        if let Some(bound) = self.gives_way() {
            self.take_back();
            self.outcome = Some(MutationOutcome::Superseded { bound });
            return;
        }
        self.finish(MutationOutcome::Failed { cause });
    }

    /// Ends with `outcome`, which says that nothing was done, unless that is
    /// not certain.
    fn finish(&mut self, outcome: MutationOutcome) {
        self.close_attempt();
        self.outcome = Some(if self.uncertain {
            MutationOutcome::Indeterminate
        } else {
            outcome
        });
    }

    /// Remembers whether this attempt may have left anything anywhere.
    fn close_attempt(&mut self) {
        let may_hold = |replica: &Replica| match replica.ack {
            // Superseded, perhaps, by the successor of its own copy: a message
            // may be repeated below this machine.
            AckState::Applied { .. } | AckState::Superseded { .. } | AckState::Lost => true,
            AckState::Open => replica.is_under_way(),
            // Whoever answers has received it, and may receive it again.
            AckState::Down => {
                !replica.was_not_executed && replica.lacking != RetryCause::Connection
            }
            AckState::Rejected(_) | AckState::Unwilling => false,
        };
        let replicas = &self.replicas[..self.replica_count];
        self.uncertain |= replicas.iter().any(may_hold);
    }

    fn open_attempt(&mut self) {
        for (number, replica) in self.replicas[..self.replica_count].iter_mut().enumerate() {
            let is_willing = self.fill.is_none_or(|fill| fill.willing & 1 << number != 0);
            replica.work = if is_willing { Work::Send } else { Work::None };
            replica.ack = match is_willing {
                true => AckState::Open,
                // It was written since the miss, or its stamp is not known.
                false => AckState::Unwilling,
            };
        }
    }
}
