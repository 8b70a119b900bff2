//! Compare-and-swap: rules 13 to 15.
//!
//! # Calling order
//!
//! ```text
//! let mut cas = Cas::new(mode, expected, version, limits);
//! loop {
//!     match cas.poll(now) {
//!         Send { replica }  => message -> handle_ack, or handle_failure
//!         Install { replica } => a SET of the same value at the same version; its
//!                              answer is nobody's
//!         Withdraw { replica } => an ERASE at the same version -> handle_ack, or
//!                              handle_failure
//!         Pause { ns }      => let so much time pass
//!         Look              => a GET, and a version above bound() -> handle_agreed
//!         Wait { until_ns } => feed the answer, or poll again at that time
//!         Done(outcome)     => ends it
//!     }
//! }
//! ```
//!
//! * The replicas are asked in the order of the cohort, each after the one
//!   before has answered or was found down: contenders meet at one replica
//!   instead of splitting three ways.
//! * **Each replica gets the message at most once, and no layer below may
//!   repeat it** (rule 14): a copy that finds the first one's work would be
//!   refused, and a refusal must mean that it does not hold. A lost answer
//!   stays unknown.
//! * Once two have applied it, the others get it before `Done` by rule 11: as a
//!   SET at its own version, which also takes the place of what a contender has
//!   left there. A copy of its own on one replica of three would leave the key
//!   without a quorum when another one dies.
//! * **A refusal that comes before any replica has applied it stops it for a
//!   look**: only if a quorum still agrees on what is expected (the replica that
//!   refused was the odd one out) does it begin anew, under a new version, and
//!   then goes on after one refusal. Going on at once would let two contenders
//!   hold one replica each where the third lags behind or has something else:
//!   three replicas with three versions, and no quorum ever again. After the
//!   look, the other two held what both contenders expect, so one of them wins.
//! * One that a replica holds goes on, for the same reason: ending there would
//!   leave its version in nobody's care.
//! * What it says is there instead is what a quorum agrees on, found by a look:
//!   a version that one replica named may be another contender's that is given
//!   up, and who built on it would take away a copy that is still needed.
//! * **One that has failed takes back what it left** at the replica that had
//!   applied it, before `Done`: an ERASE at its own version, which finds that
//!   version or is superseded. To the replica it is as if it had evicted that
//!   entry. Left there, it would be one of three different votes as soon as a
//!   mutation is late at another replica, or that replica dies.

use crate::mode::{Mode, REPLICAS_MAX};
use crate::mutants::{self, Mutant};
use crate::outcome::{MutationOutcome, SendFailure};
use crate::quorum::{CasDecision, CasState, decide_cas};
use crate::retry::{Limits, Retry, RetryCause, RetryCounts};
use trefoil_layout::Version;
use trefoil_layout::op::{Ack, Expected, Outcome, Rejection};

/// How long a contender that was first may need to be through: some messages
/// on one host.
const LOOK_AFTER_NS: u64 = 5_000;

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CasStep {
    /// Send it to this replica, once.
    Send {
        /// Place in the cohort.
        replica: usize,
    },
    /// Send the same value at the same version as a SET, and wait for nothing.
    Install {
        /// Place in the cohort.
        replica: usize,
    },
    /// Send an ERASE at the same version: it has failed.
    Withdraw {
        /// Place in the cohort.
        replica: usize,
    },
    /// Let this time pass: whoever was first may be through then.
    Pause {
        /// Nanoseconds.
        ns: u64,
    },
    /// Find out by a GET what a quorum agrees on, then [`Cas::handle_agreed`].
    Look,
    /// Nothing to start before the answer or this time.
    Wait {
        /// On the caller's monotonic clock; `u64::MAX` if there is no such time.
        until_ns: u64,
    },
    /// Finished; any further poll says the same.
    Done(MutationOutcome),
}

/// Where it is with its look at what a quorum agrees on: before it goes on after
/// a refusal, and when it has failed, to say what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// None was needed.
    Ahead,
    /// The next step but one.
    Paused,
    /// The next step.
    Due,
    /// The driver has it.
    Open,
    /// A refusal does not stop it any more.
    Past,
}

/// Where it is with taking back what it left at a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Withdrawal {
    /// There is nothing to take back.
    None,
    /// The next step but for installing.
    Due(usize),
    /// Sent.
    Open(usize),
}

/// The machine. See the module's page for the calling order.
#[derive(Clone, Debug)]
pub struct Cas {
    expected: Expected,
    version: Version,
    replica_count: usize,
    quorum: usize,
    states: [CasState; REPLICAS_MAX],
    /// The highest bound that a refusal named.
    bound: Version,
    /// The replica to be sent to next.
    next: Option<usize>,
    look: Look,
    /// The replicas that were sent an `Install`, as a bit set.
    installed: u8,
    withdrawal: Withdrawal,
    retry: Retry,
    outcome: Option<MutationOutcome>,
}

impl Cas {
    /// A machine that puts `version` in the place of `expected`. It is freshly
    /// issued by a clock that has observed the expected one: below that, every
    /// replica would refuse.
    pub fn new(mode: Mode, expected: Expected, version: Version, limits: Limits) -> Self {
        let mut cas = Cas {
            expected,
            version,
            replica_count: mode.replica_count(),
            quorum: mode.quorum(),
            states: [CasState::Unsent; REPLICAS_MAX],
            bound: Version::ZERO,
            next: None,
            look: Look::Ahead,
            installed: 0,
            withdrawal: Withdrawal::None,
            retry: Retry::new(limits),
            outcome: (mode == Mode::R2Immutable)
                .then_some(MutationOutcome::Rejected(Rejection::Immutable)),
        };
        cas.advance();
        cas
    }

    /// The next step.
    pub fn poll(&mut self, now_ns: u64) -> CasStep {
        if now_ns >= self.retry.deadline_ns() {
            self.give_up();
        }
        if let Some(replica) = self.next.take() {
            self.states[replica] = CasState::Open;
            return CasStep::Send { replica };
        }
        if let Some(replica) = self.next_to_install() {
            self.installed |= 1 << replica;
            return CasStep::Install { replica };
        }
        let wait = CasStep::Wait {
            until_ns: self.retry.deadline_ns(),
        };
        match self.withdrawal {
            Withdrawal::None => {}
            Withdrawal::Due(replica) => {
                self.withdrawal = Withdrawal::Open(replica);
                return CasStep::Withdraw { replica };
            }
            Withdrawal::Open(_) => return wait,
        }
        match self.look {
            Look::Paused => {
                self.look = Look::Due;
                CasStep::Pause { ns: LOOK_AFTER_NS }
            }
            Look::Due => {
                self.look = Look::Open;
                CasStep::Look
            }
            Look::Open => wait,
            Look::Ahead | Look::Past => self.outcome.map_or(wait, CasStep::Done),
        }
    }

    /// What a GET has found that a quorum agrees on, `None` if on nothing, and a
    /// version above [`Cas::bound`] to begin anew with.
    pub fn handle_agreed(&mut self, agreed: Option<Expected>, version: Version) {
        if self.look != Look::Open {
            return;
        }
        self.look = Look::Past;
        if self.outcome.is_none() && agreed == Some(self.expected) {
            self.version = version;
            self.states = [CasState::Unsent; REPLICAS_MAX];
            return self.advance();
        }
        // Never what a single replica holds: it may have been given up.
        let present = match agreed {
            Some(Expected::Version(version)) => Some(version),
            Some(Expected::Absent) | None => None,
        };
        self.outcome = Some(MutationOutcome::Exists { present });
    }

    /// A replica's answer.
    pub fn handle_ack(&mut self, replica: usize, ack: Ack) {
        if self.withdrawal == Withdrawal::Open(replica) {
            self.withdrawal = Withdrawal::None;
            return;
        }
        if let Outcome::Mismatch { bound, .. } | Outcome::Superseded { bound } = ack.outcome {
            self.bound = self.bound.max(bound);
        }
        self.states[replica] = match ack.outcome {
            Outcome::Applied => CasState::Applied { epoch: ack.epoch },
            Outcome::Mismatch { present, .. } => CasState::Refused { present },
            // A replica that knows something newer has not installed it.
            Outcome::Superseded { bound } => CasState::Refused {
                present: Some(bound),
            },
            Outcome::Rejected(rejection) => CasState::Rejected(rejection),
        };
        self.advance();
    }

    /// There is no answer, or there was no message.
    pub fn handle_failure(&mut self, replica: usize, failure: SendFailure) {
        self.retry.count(RetryCause::Connection);
        if self.withdrawal == Withdrawal::Open(replica) {
            self.withdrawal = Withdrawal::None;
            return;
        }
        self.states[replica] = match failure {
            SendFailure::NotSent => CasState::Down,
            SendFailure::Lost if mutants::is_on(Mutant::CasResent) && self.may_repeat() => {
                CasState::Unsent
            }
            SendFailure::Lost => CasState::Lost,
        };
        self.advance();
    }

    /// The version under which it is being installed; another one after a look.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The highest bound that a replica named when it refused: another attempt
    /// needs a version above it.
    pub fn bound(&self) -> Version {
        self.bound
    }

    /// Replicas passed over, by cause.
    pub fn retries(&self) -> RetryCounts {
        self.retry.counts()
    }

    /// For the mutant of rule 14 only: how often a lost message is repeated.
    fn may_repeat(&mut self) -> bool {
        self.retry.spend(RetryCause::Connection).is_ok()
    }

    fn advance(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        let states = &self.states[..self.replica_count];
        self.outcome = match decide_cas(states, self.quorum) {
            CasDecision::Open => None,
            CasDecision::Ask(_) if self.stops_for_a_look() => {
                self.look = Look::Paused;
                None
            }
            CasDecision::Ask(replica) => {
                self.next = Some(replica);
                None
            }
            CasDecision::Stored => Some(MutationOutcome::Stored {
                version: self.version,
            }),
            CasDecision::Exists { present } => {
                let is_agreed = self.replica_count == 1 || mutants::is_on(Mutant::PresentByOne);
                let present = present.filter(|_| is_agreed);
                if !is_agreed {
                    self.look = Look::Due;
                }
                Some(MutationOutcome::Exists { present })
            }
            CasDecision::Rejected(rejection) => Some(MutationOutcome::Rejected(rejection)),
            CasDecision::Unreached => Some(MutationOutcome::Failed {
                cause: self.retry.unreached(),
            }),
            CasDecision::Indeterminate => Some(MutationOutcome::Indeterminate),
        };
        self.withdrawal = self.left_behind();
    }

    /// Failed, but a replica has applied it (one at most, or it were stored).
    fn left_behind(&self) -> Withdrawal {
        let has_failed = !matches!(
            self.outcome,
            None | Some(MutationOutcome::Stored { .. } | MutationOutcome::Indeterminate)
        );
        let applied = |state: &CasState| matches!(state, CasState::Applied { .. });
        self.states[..self.replica_count]
            .iter()
            .position(applied)
            .filter(|_| has_failed && !mutants::is_on(Mutant::FailedCasStays))
            .map_or(Withdrawal::None, Withdrawal::Due)
    }

    fn stops_for_a_look(&self) -> bool {
        let states = &self.states[..self.replica_count];
        let has_refused = |state: &CasState| matches!(state, CasState::Refused { .. });
        let held = |state: &CasState| matches!(state, CasState::Applied { .. } | CasState::Lost);
        self.look == Look::Ahead
            && states.iter().any(has_refused)
            && !states.iter().any(held)
            && !mutants::is_on(Mutant::CasWithoutLook)
    }

    fn next_to_install(&self) -> Option<usize> {
        if !matches!(self.outcome, Some(MutationOutcome::Stored { .. })) {
            return None;
        }
        let lacks = |state: &CasState| {
            matches!(
                state,
                CasState::Unsent | CasState::Refused { .. } | CasState::Lost
            )
        };
        (0..self.replica_count)
            .find(|replica| self.installed & 1 << replica == 0 && lacks(&self.states[*replica]))
    }

    /// The deadline has passed: nothing is waited for any more.
    fn give_up(&mut self) {
        self.look = Look::Past;
        if self.outcome.is_some() {
            // What is still due is sent, late or not.
            if matches!(self.withdrawal, Withdrawal::Open(_)) {
                self.withdrawal = Withdrawal::None;
            }
            return;
        }
        self.next = None;
        let states = &self.states[..self.replica_count];
        let untouched = states.iter().all(|state| {
            !matches!(
                state,
                CasState::Open | CasState::Applied { .. } | CasState::Lost
            )
        });
        self.outcome = Some(if untouched {
            MutationOutcome::Failed {
                cause: self.retry.deadline(),
            }
        } else {
            MutationOutcome::Indeterminate
        });
    }
}
