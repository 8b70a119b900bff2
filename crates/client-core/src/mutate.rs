//! SET, ERASE and cache fill.
//!
//! # Calling order
//!
//! ```text
//! let mut mutate = Mutate::new(mode, kind, version, limits);
//! loop {
//!     match mutate.poll(now) {
//!         Send { replica, version } => message -> handle_ack, or handle_failure, with that version
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

/// What kind of mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutateKind {
    /// Retried above whatever is newer.
    Set,
    /// As a SET.
    Erase,
    /// A SET of what was computed after a miss, which gives way to whatever was
    /// written since ([`crate::fill`]).
    Fill,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutateStep {
    /// Send the mutation at this version.
    Send {
        /// Place in the cohort.
        replica: usize,
        /// To be handed back with the answer.
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
    /// A step is outstanding, or an answer is there.
    None,
}

#[derive(Clone, Copy, Debug)]
struct Replica {
    work: Work,
    ack: AckState,
    /// Why the last attempt did not get through, if so.
    lacking: RetryCause,
}

/// The machine. See the module's page for the calling order.
#[derive(Clone, Debug)]
pub struct Mutate {
    kind: MutateKind,
    version: Version,
    /// Of a fill: its miss has read stamps. One without is a SET at a version taken
    /// at the miss, which gives way to anything above it.
    has_stamps: bool,
    /// Of a fill: the replicas that may take it, as a bit set.
    willing: u8,
    /// Of a fill: the replicas whose stamp is not known, as a bit set.
    unstamped: u8,
    replica_count: usize,
    quorum: usize,
    replicas: [Replica; REPLICAS_MAX],
    /// A new version is needed, above this one.
    above: Option<Version>,
    nominating: bool,
    /// An attempt that is over may have left something at a replica.
    uncertain: bool,
    pause_ns: u64,
    retry: Retry,
    outcome: Option<MutationOutcome>,
}

impl Mutate {
    /// A machine that stores under `version`, freshly issued.
    pub fn new(mode: Mode, kind: MutateKind, version: Version, limits: Limits) -> Self {
        let fresh = Replica {
            work: Work::Send,
            ack: AckState::Open,
            lacking: RetryCause::Connection,
        };
        Mutate {
            kind,
            version,
            has_stamps: false,
            willing: u8::MAX,
            unstamped: 0,
            replica_count: mode.replica_count(),
            quorum: if mutants::is_on(Mutant::AckOfOne) {
                1
            } else {
                mode.quorum()
            },
            replicas: [fresh; REPLICAS_MAX],
            above: None,
            nominating: false,
            uncertain: false,
            pause_ns: 0,
            retry: Retry::new(limits),
            outcome: (mode == Mode::R2Immutable)
                .then_some(MutationOutcome::Rejected(Rejection::Immutable)),
        }
    }

    /// A fill, and the stamps that its miss has read: goes to those replicas first,
    /// as `Action::Fill`; to the others, once it is stored, as a SET. To be called
    /// before the first poll.
    pub fn fill(&mut self, stamps: &[Option<u64>; REPLICAS_MAX]) {
        for (number, stamp) in stamps.iter().enumerate().take(self.replica_count) {
            if stamp.is_none() {
                self.unstamped |= 1 << number;
            }
        }
        self.has_stamps = true;
        self.willing = !self.unstamped;
        self.open_attempt();
        self.advance();
    }

    /// Sends the same version to another cohort, after a refresh has found
    /// that the key belongs there now. Answers from before are lost. A fill ends:
    /// nobody there knows its stamps.
    pub fn restart(&mut self, mode: Mode) {
        self.close_attempt();
        if self.kind == MutateKind::Fill {
            let bound = self.version;
            return self.finish(MutationOutcome::Superseded { bound });
        }
        self.replica_count = mode.replica_count();
        self.quorum = mode.quorum();
        self.open_attempt();
    }

    /// The next step.
    pub fn poll(&mut self, now_ns: u64) -> MutateStep {
        if self.outcome.is_none() && now_ns >= self.retry.deadline_ns() {
            self.give_up(self.retry.deadline());
        }
        if self.pause_ns != 0 && self.outcome.is_none() {
            return MutateStep::Pause {
                ns: std::mem::take(&mut self.pause_ns),
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
                    };
                }
                Work::Refresh if !over => {
                    replica.work = Work::None;
                    return MutateStep::Refresh { replica: number };
                }
                Work::Reconnect if !over => {
                    replica.work = Work::None;
                    return MutateStep::Reconnect { replica: number };
                }
                _ => {}
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
        if version != self.version || self.above.is_some() {
            return;
        }
        if matches!(ack.outcome, Outcome::Mismatch { .. }) {
            self.willing &= !(1 << replica);
        }
        let state = &mut self.replicas[replica];
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
            Outcome::Rejected(Rejection::Recovering | Rejection::UnknownConfig) => {
                state.lacking = RetryCause::Recovering;
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
        if version != self.version || self.above.is_some() {
            return;
        }
        let state = &mut self.replicas[replica];
        state.lacking = RetryCause::Connection;
        match (failure, state.ack) {
            // What one copy of the message has done, another cannot undo.
            (_, AckState::Applied { .. } | AckState::Superseded { .. }) => {}
            (SendFailure::NotSent, AckState::Open) => state.ack = AckState::Down,
            (SendFailure::NotSent, _) => {}
            (SendFailure::Lost, _) => state.ack = AckState::Lost,
        }
        self.advance();
    }

    /// The new version that `Nominate` asked for.
    pub fn handle_version(&mut self, version: Version) {
        if self.above.is_none_or(|above| version <= above) {
            return;
        }
        self.above = None;
        self.nominating = false;
        self.version = version;
        self.open_attempt();
    }

    /// The configuration is fresh and still names the same cohort.
    pub fn handle_refreshed(&mut self, replica: usize) {
        self.replicas[replica].work = Work::Send;
    }

    /// The connection was established anew, or could not be: the message is
    /// tried again either way.
    pub fn handle_reconnected(&mut self, replica: usize) {
        self.replicas[replica].work = Work::Send;
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
        let acks = self.replicas.map(|replica| replica.ack);
        match decide_acks(&acks[..self.replica_count], self.quorum) {
            AckDecision::Open => {}
            AckDecision::Stored => {
                self.outcome = Some(MutationOutcome::Stored {
                    version: self.version,
                });
                for number in 0..self.replica_count {
                    if self.unstamped & 1 << number != 0 {
                        self.replicas[number].work = Work::Send;
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
                self.uncertain = true;
                replica.ack = AckState::Open;
                replica.work = Work::Send;
            }
        }
    }

    fn superseded(&mut self, bound: Version) {
        let willing = (0..self.replica_count)
            .filter(|number| self.willing & 1 << number != 0)
            .count();
        let gives_way = self.kind == MutateKind::Fill && !self.has_stamps;
        if gives_way || willing < self.quorum {
            self.outcome = Some(MutationOutcome::Superseded { bound });
            return;
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
            Err(_) if is_final => self.outcome = Some(MutationOutcome::Superseded { bound }),
            Err(give_up) => self.give_up(give_up),
        }
    }

    /// So many refuse it that the others are no quorum. What one of these holds,
    /// or may still receive, is never seen: a copy alone is neither a vote that
    /// finds a second one nor what recovery or repair spread. Only an earlier
    /// message makes it uncertain.
    fn rejected(&mut self, rejection: Rejection) {
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
        let cause = replicas
            .iter_mut()
            .find(silent)
            .map_or(RetryCause::Connection, |replica| replica.lacking);
        self.uncertain |= replicas.iter().any(|replica| replica.ack == AckState::Lost);
        if !self.spend(cause) {
            return;
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
            AckState::Open => replica.work == Work::None,
            // Whoever answers has received it, and may receive it again.
            AckState::Down => replica.lacking != RetryCause::Connection,
            AckState::Rejected(_) => false,
        };
        let replicas = &self.replicas[..self.replica_count];
        self.uncertain |= replicas.iter().any(may_hold);
    }

    fn open_attempt(&mut self) {
        for (number, replica) in self.replicas[..self.replica_count].iter_mut().enumerate() {
            let is_willing = self.willing & 1 << number != 0;
            replica.work = if is_willing { Work::Send } else { Work::None };
            replica.ack = match is_willing {
                true => AckState::Open,
                // It was written since the miss, or its stamp is not known.
                false => AckState::Superseded {
                    bound: Version::ZERO,
                },
            };
        }
    }
}
