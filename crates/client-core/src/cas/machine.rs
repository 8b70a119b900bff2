//! The CAS machine. See the parent module's page for its calling order and for
//! its reasons.

use super::{AT_REST_NS, CasStep, Looked};
use crate::mode::{Mode, REPLICAS_MAX};
use crate::mutants::{self, Mutant};
use crate::outcome::{MutationOutcome, SendFailure};
use crate::quorum::{CasDecision, CasState, decide_cas};
use crate::retry::{Limits, Retry, RetryCause, RetryCounts};
use std::ops::Range;
use trefoil_layout::Version;
use trefoil_layout::op::{Ack, Expected, Outcome, Rejection};

/// How long a contender that was first may need to be through: some messages
/// on one host. Doubles while something stays on its way.
const LOOK_AFTER_NS: u64 = 5_000;

/// How often one CAS makes survivors agree that nothing is there.
const HEALS_MAX: u8 = 4;

/// The longest pause. Pauses double, so that nobody waits for much longer than he has to;
/// whoever is waited for as long as that has most likely died.
const PAUSE_NS_MAX: u64 = 10_000_000;

/// Where it is with its look at what a quorum agrees on.
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

/// Where it is with evicting what a replica holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Eviction {
    None,
    Due(Version),
    Open(Version),
    /// The replica has put it off.
    Late(Version),
}

/// Where it is with beginning anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anew {
    No,
    /// After a pause, and once evictions are answered, with this look.
    Paused(Look),
    /// Once evictions are answered, with this look.
    Due(Look),
    /// A version was asked for.
    Nominating(Look),
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Cas {
    expected: Expected,
    version: Version,
    replica_count: usize,
    quorum: usize,
    states: [CasState; REPLICAS_MAX],
    evictions: [Eviction; REPLICAS_MAX],
    /// The highest version that a replica or a look named.
    bound: Version,
    /// The replica to be sent to next.
    next: Option<usize>,
    look: Look,
    pause_ns: u64,
    /// When it was polled last.
    now_ns: u64,
    /// Until when it waits for others at most; `u64::MAX` if it does not.
    waits_until_ns: u64,
    /// Before anything is sent.
    is_pausing: bool,
    /// The replicas that have refused it because they have not got round to what is
    /// expected, as a bit set.
    lagging: u8,
    anew: Anew,
    heals_left: u8,
    /// Replicas have put off what it needs.
    is_late: bool,
    /// The replicas that were sent an `Install`, as a bit set.
    installed: u8,
    /// The replica that has lost an earlier version's message, as a bit set: it is
    /// passed over, and gets what is stored in the end.
    passed_over: u8,
    /// The replicas that are asked anew since they have followed to other processes, and may
    /// have taken what they were asked there before, as a bit set.
    followed: u8,
    /// The version whose message was lost at the replica that is passed over.
    lost_version: Version,
    /// An attempt under another cohort may have left something there.
    uncertain: bool,
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
            evictions: [Eviction::None; REPLICAS_MAX],
            bound: Version::ZERO,
            next: None,
            look: Look::Ahead,
            pause_ns: LOOK_AFTER_NS,
            now_ns: 0,
            waits_until_ns: u64::MAX,
            is_pausing: false,
            lagging: 0,
            anew: Anew::No,
            heals_left: HEALS_MAX,
            is_late: false,
            installed: 0,
            passed_over: 0,
            followed: 0,
            lost_version: Version::ZERO,
            uncertain: false,
            retry: Retry::new(limits),
            outcome: (mode == Mode::R2Immutable)
                .then_some(MutationOutcome::Rejected(Rejection::Immutable)),
        };
        cas.advance();
        cas
    }

    /// A replica of the cohort is known to be down: looks before it sends. To be
    /// called before the first poll.
    pub fn look_first(&mut self) {
        if self.replica_count > 1 && self.outcome.is_none() {
            self.next = None;
            self.look = Look::Due;
        }
    }

    /// Begins anew with another cohort, which a refresh has found the key to
    /// belong to; deadline and budget go on. What was sent before may be seen, so
    /// the end can be uncertain: then this is the end.
    pub fn restart(&mut self, mode: Mode) {
        self.evictions = [Eviction::None; REPLICAS_MAX];
        // Those who refused may have been the odd ones out, and what the others hold was not looked
        // at yet: nor can it be, there.
        let has_looked = matches!(self.look, Look::Ahead | Look::Past);
        let is_refused = matches!(self.outcome, Some(MutationOutcome::Exists { .. }));
        if is_refused && !has_looked && self.is_untouched() {
            self.outcome = None;
        }
        if self.outcome.is_some() {
            self.look = Look::Past;
            return;
        }
        self.uncertain |= !self.is_untouched();
        self.replica_count = mode.replica_count();
        self.quorum = mode.quorum();
        self.states = [CasState::Unsent; REPLICAS_MAX];
        self.next = None;
        self.look = Look::Ahead;
        self.anew = Anew::No;
        self.is_late = false;
        self.installed = 0;
        self.passed_over = 0;
        self.followed = 0;
        if self.uncertain {
            self.outcome = Some(MutationOutcome::Indeterminate);
        } else if mode == Mode::R2Immutable {
            self.outcome = Some(MutationOutcome::Rejected(Rejection::Immutable));
        }
        self.advance();
    }

    /// Goes on with the same replicas in other processes, which a refresh has found: each
    /// holds what it held, at the same place of the key's cohort. Answers that are open
    /// will not come.
    ///
    /// Nobody is given up for that: the process before takes nothing any more, so whether it
    /// has taken what it did not answer is seen where it is now, by asking again. To go on
    /// without that replica would cost a copy of what is expected at another one, and the
    /// third may lag behind: what it refused as it froze, it gets no more.
    pub fn follow(&mut self) {
        let goes_on = self.outcome.is_none();
        for (replica, state) in self.states.iter_mut().enumerate() {
            let bit = 1 << replica;
            *state = match *state {
                CasState::Open | CasState::Lost if goes_on => {
                    self.followed |= bit;
                    if self.passed_over & bit != 0 {
                        // It looked because of that.
                        self.passed_over = 0;
                        self.look = Look::Ahead;
                    }
                    CasState::Unsent
                }
                CasState::Open => CasState::Lost,
                // What an outcome rests on stays.
                CasState::Down | CasState::PutOff | CasState::Awaited | CasState::Rejected(_)
                    if goes_on =>
                {
                    CasState::Unsent
                }
                state => state,
            };
        }
        for eviction in &mut self.evictions {
            if let Eviction::Open(version) | Eviction::Late(version) = *eviction {
                *eviction = Eviction::Due(version);
            }
        }
        if self.look == Look::Open {
            self.look = Look::Due;
        }
        self.is_late = false;
        self.installed = 0;
        if self.is_asking() {
            self.next = None;
            self.advance();
        }
    }

    /// Moves the deadline to `deadline_ns`, if that is later: who could not run has not
    /// waited.
    pub fn extend(&mut self, deadline_ns: u64) {
        self.retry.extend(deadline_ns);
    }

    /// The next step.
    pub fn poll(&mut self, now_ns: u64) -> CasStep {
        self.now_ns = now_ns;
        if now_ns >= self.retry.deadline_ns() {
            self.give_up();
        }
        if std::mem::take(&mut self.is_pausing) {
            return self.pause();
        }
        if let Some(replica) = self.next.take() {
            self.states[replica] = CasState::Open;
            let version = self.version;
            return CasStep::Send { replica, version };
        }
        if let Some(replica) = self.next_to_install() {
            self.installed |= 1 << replica;
            let version = self.version;
            return CasStep::Install { replica, version };
        }
        let wait = CasStep::Wait {
            until_ns: self.retry.deadline_ns(),
        };
        let mut is_evicting = false;
        for (replica, eviction) in self.evictions.iter_mut().enumerate() {
            match *eviction {
                Eviction::None => {}
                Eviction::Due(version) => {
                    *eviction = Eviction::Open(version);
                    return CasStep::Evict { replica, version };
                }
                Eviction::Open(_) => is_evicting = true,
                Eviction::Late(_) => self.is_late = true,
            }
        }
        if is_evicting {
            return wait;
        }
        if std::mem::take(&mut self.is_late) {
            self.retry.count(RetryCause::ConfigChanged);
            self.ask_again();
            return CasStep::Later;
        }
        match self.anew {
            Anew::No => {}
            Anew::Paused(look) => {
                self.anew = Anew::Due(look);
                return self.pause();
            }
            Anew::Due(look) => {
                self.anew = Anew::Nominating(look);
                let above = self.bound.max(self.version);
                return CasStep::Nominate { above };
            }
            Anew::Nominating(_) => return wait,
        }
        match self.look {
            Look::Paused => {
                self.look = Look::Due;
                self.pause()
            }
            Look::Due => {
                self.look = Look::Open;
                self.wait_for_others();
                CasStep::Look
            }
            Look::Open => wait,
            Look::Ahead | Look::Past => self.outcome.map_or(wait, CasStep::Done),
        }
    }

    fn pause(&mut self) -> CasStep {
        let ns = self.pause_ns;
        self.pause_ns = (ns * 2).min(PAUSE_NS_MAX);
        let left_ns = self.retry.deadline_ns().saturating_sub(self.now_ns);
        CasStep::Pause {
            ns: ns.min(left_ns),
        }
    }

    /// It begins to wait, unless it does already: not until what it holds is at rest, and
    /// not until there is no time left to go on.
    fn wait_for_others(&mut self) {
        if self.waits_until_ns == u64::MAX {
            let left_ns = self.retry.deadline_ns().saturating_sub(self.now_ns);
            let patience_ns = (AT_REST_NS / 2).min(left_ns / 2);
            self.waits_until_ns = self.now_ns.saturating_add(patience_ns);
        }
    }

    /// Those that have put it off are asked next.
    fn ask_again(&mut self) {
        for eviction in &mut self.evictions {
            if let Eviction::Late(version) = *eviction {
                *eviction = Eviction::Due(version);
            }
        }
        // An attempt that is over, or gives way to the next one, sends nothing any more.
        if self.outcome.is_none() && self.is_asking() {
            for state in &mut self.states {
                if matches!(state, CasState::PutOff | CasState::Awaited) {
                    *state = CasState::Unsent;
                }
            }
            self.advance();
        }
    }

    /// Whether this attempt goes on without a look or another version.
    fn is_asking(&self) -> bool {
        self.anew == Anew::No && matches!(self.look, Look::Ahead | Look::Past)
    }

    /// What the look has found out.
    pub fn handle_look(&mut self, looked: Looked) {
        if self.look != Look::Open {
            return;
        }
        self.look = Look::Past;
        let has_begun = self.states != [CasState::Unsent; REPLICAS_MAX];
        let has_left = self.states.iter().any(CasState::is_applied);
        match (looked, self.outcome) {
            (Looked::Agreed(Expected::Version(agreed)), _)
                if agreed == self.version && !mutants::is_on(Mutant::OneRefusalFails) =>
            {
                self.outcome = Some(MutationOutcome::Stored { version: agreed });
            }
            // It goes on once it has given way for long enough. What it holds may itself be
            // nothing, and is not to be taken for what others agree on.
            (
                Looked::Disagree { .. } | Looked::Unknown | Looked::Agreed(Expected::Absent),
                None,
            ) if has_left => {
                self.ask_those_ahead_again();
                self.advance();
            }
            // The others say too little for that.
            (Looked::Unknown, None) if self.passed_over != 0 && !self.is_patient() => {
                self.anew = Anew::Due(Look::Past);
            }
            (Looked::Agreed(agreed), None) if agreed == self.expected => {
                if has_begun {
                    self.begin_anew();
                } else {
                    self.look = Look::Ahead;
                    self.advance();
                }
            }
            (Looked::Agreed(agreed), Some(MutationOutcome::Exists { .. }))
                if agreed == self.expected && self.heals_left > 0 =>
            {
                // Refused by the odd ones out, or not received.
                self.heals_left -= 1;
                self.outcome = None;
                self.begin_anew();
            }
            (Looked::Agreed(agreed), _) => {
                self.bound = match agreed {
                    Expected::Version(version) => self.bound.max(version),
                    Expected::Absent => self.bound,
                };
                self.exists(match agreed {
                    Expected::Version(version) => Some(version),
                    Expected::Absent => None,
                });
            }
            (Looked::Disagree { present }, Some(MutationOutcome::Exists { .. }))
                if has_left
                    && self.heals_left > 0
                    && let Some(holder) = self.holder_left_out(&present) =>
            {
                // With its copy two hold this.
                self.heals_left -= 1;
                self.outcome = None;
                self.states[holder] = CasState::Unsent;
                self.advance();
            }
            (Looked::Disagree { present }, outcome) => {
                self.note_present(&present);
                if has_left || self.expected == Expected::Absent {
                    self.evict(&present);
                }
                let may_begin = self.expected == Expected::Absent
                    && matches!(outcome, None | Some(MutationOutcome::Exists { .. }))
                    && self.heals_left > 0
                    && !mutants::is_on(Mutant::DisagreementStays);
                if may_begin {
                    self.heals_left -= 1;
                    self.retry.count(RetryCause::Inquorate);
                    self.outcome = None;
                    self.anew = Anew::Due(Look::Ahead);
                } else {
                    self.exists(None);
                }
            }
            // Something is on its way: nothing is known until it is through.
            (Looked::Unknown, None) => self.look = Look::Paused,
            (Looked::Unknown, Some(_)) if has_left => self.look = Look::Paused,
            (Looked::Unknown, Some(_)) => self.exists(None),
        }
    }

    /// A new version that `Nominate` asked for.
    pub fn handle_version(&mut self, version: Version) {
        let Anew::Nominating(look) = self.anew else {
            return;
        };
        if version <= self.bound.max(self.version) {
            return;
        }
        debug_assert!(self.outcome.is_none(), "an outcome is another attempt's");
        self.anew = Anew::No;
        self.look = look;
        self.version = version;
        // What the version before may have left is told from this one.
        self.followed = 0;
        self.states = [CasState::Unsent; REPLICAS_MAX];
        for (replica, state) in self.states.iter_mut().enumerate() {
            if self.passed_over & 1 << replica != 0 {
                *state = CasState::Down;
            }
        }
        self.advance();
    }

    /// A replica's answer to the message that carried `version`.
    pub fn handle_ack(&mut self, replica: usize, version: Version, ack: Ack) {
        if let Outcome::Mismatch { bound, .. } | Outcome::Superseded { bound } = ack.outcome {
            self.bound = self.bound.max(bound);
        }
        if self.evictions[replica] == Eviction::Open(version) {
            self.evictions[replica] = match ack.outcome {
                Outcome::Rejected(rejection) if puts_off(rejection) => Eviction::Late(version),
                _ => Eviction::None,
            };
            return;
        }
        if !self.is_open(replica, version) {
            return;
        }
        let lags = match ack.outcome {
            Outcome::Mismatch { bound, .. } => bound < self.expected_version(),
            _ => false,
        };
        self.lagging = self.lagging & !(1 << replica) | u8::from(lags) << replica;
        if let Some(state) = self.learned_by_asking_again(replica, ack) {
            self.states[replica] = state;
            return self.advance();
        }
        self.states[replica] = match ack.outcome {
            Outcome::Applied => CasState::Applied { epoch: ack.epoch },
            Outcome::Mismatch { present, .. } => CasState::Refused { present },
            // A replica that knows something newer has not installed it.
            Outcome::Superseded { bound } => CasState::Refused {
                present: Some(bound),
            },
            Outcome::Rejected(rejection) if puts_off(rejection) => CasState::PutOff,
            Outcome::Rejected(rejection) => CasState::Rejected(rejection),
        };
        self.wait_for_those_behind();
        self.advance();
    }

    /// What became of the message before this one, at a replica that was asked again: a
    /// refusal may be the work of that one itself.
    fn learned_by_asking_again(&mut self, replica: usize, ack: Ack) -> Option<CasState> {
        if self.followed & 1 << replica == 0 {
            return None;
        }
        let learned = match ack.outcome {
            Outcome::Mismatch {
                present: Some(present),
                ..
            } if present == self.version => Some(CasState::Applied { epoch: ack.epoch }),
            // It may have been taken, and evicted or overwritten since.
            Outcome::Mismatch { bound, .. } | Outcome::Superseded { bound }
                if bound >= self.version =>
            {
                Some(CasState::Lost)
            }
            // It is asked once more, by the same rule.
            Outcome::Rejected(rejection) if puts_off(rejection) => {
                return Some(CasState::Awaited);
            }
            Outcome::Rejected(_) => Some(CasState::Lost),
            Outcome::Applied | Outcome::Mismatch { .. } | Outcome::Superseded { .. } => None,
        };
        self.followed &= !(1 << replica);
        learned
    }

    /// There is no answer to the message that carried `version`, or there was no
    /// message.
    pub fn handle_failure(&mut self, replica: usize, version: Version, failure: SendFailure) {
        if self.evictions[replica] == Eviction::Open(version) {
            self.evictions[replica] = match failure {
                SendFailure::Moving => Eviction::Late(version),
                SendFailure::NotSent | SendFailure::Lost | SendFailure::Waits => Eviction::None,
            };
            return;
        }
        if !self.is_open(replica, version) {
            return;
        }
        self.retry.count(RetryCause::Connection);
        self.states[replica] = match failure {
            // The one before may have been taken.
            SendFailure::NotSent if self.followed & 1 << replica != 0 => CasState::Lost,
            SendFailure::NotSent => CasState::Down,
            SendFailure::Moving if self.followed & 1 << replica != 0 => CasState::Awaited,
            SendFailure::Moving => CasState::PutOff,
            SendFailure::Lost if mutants::is_on(Mutant::CasResent) && self.may_repeat() => {
                CasState::Unsent
            }
            SendFailure::Lost | SendFailure::Waits => CasState::Lost,
        };
        self.wait_for_those_behind();
        self.advance();
    }

    /// The replica that has not answered, where its copy, if there is one, is the
    /// only one.
    fn lost_alone(&self) -> Option<usize> {
        let states = &self.states[..self.replica_count];
        let is_lost = |state: &CasState| *state == CasState::Lost;
        let is_alone = self.passed_over == 0
            && states.iter().filter(|state| is_lost(state)).count() == 1
            && !states.iter().any(CasState::is_applied);
        is_alone.then(|| states.iter().position(is_lost)).flatten()
    }

    /// The version under which it is being installed; another one when it begins
    /// anew.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The highest version that a replica named: another attempt of the caller's
    /// needs one above it.
    pub fn bound(&self) -> Version {
        self.bound
    }

    /// Whether a replica took nothing because it is about to be another process, or serves
    /// another configuration in a moment: what the others have refused decides nothing yet.
    pub fn was_put_off(&self) -> bool {
        self.states[..self.replica_count].contains(&CasState::PutOff)
    }

    /// Whether it is stored, and this replica is neither known to hold it nor sent it in the
    /// end: a key for whoever repairs them.
    pub fn lacks(&self, replica: usize) -> bool {
        let is_stored = matches!(self.outcome, Some(MutationOutcome::Stored { .. }));
        let state = self.states[replica];
        is_stored
            && replica < self.replica_count
            && self.installed & 1 << replica == 0
            && !state.is_applied()
            && state != CasState::Open
    }

    /// Replicas passed over, by cause.
    pub fn retries(&self) -> RetryCounts {
        self.retry.counts()
    }

    fn is_open(&self, replica: usize, version: Version) -> bool {
        version == self.version && self.states[replica] == CasState::Open
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
                match self.lost_alone() {
                    None => self.next = Some(replica),
                    // By the old version's age, what the others get now would look
                    // at rest as soon as it is there.
                    Some(lost) => {
                        self.passed_over = 1 << lost;
                        self.lost_version = self.version;
                        self.look = Look::Due;
                    }
                }
                None
            }
            CasDecision::Later => {
                self.is_late = true;
                None
            }
            CasDecision::Stored => Some(MutationOutcome::Stored {
                version: self.version,
            }),
            CasDecision::Exists { present } => {
                let is_agreed = self.replica_count == 1 || mutants::is_on(Mutant::PresentByOne);
                let present = present.filter(|_| is_agreed);
                if is_agreed {
                    self.evict_own();
                } else {
                    self.look = Look::Due;
                }
                Some(MutationOutcome::Exists { present })
            }
            CasDecision::Rejected(rejection) => {
                self.evict_own();
                Some(MutationOutcome::Rejected(rejection))
            }
            CasDecision::Unreached => {
                self.evict_own();
                Some(MutationOutcome::Failed {
                    cause: self.retry.unreached(),
                })
            }
            CasDecision::Indeterminate => Some(MutationOutcome::Indeterminate),
        };
    }

    /// A quorum still holds what is expected.
    fn begin_anew(&mut self) {
        self.evict_own();
        self.anew = match self.gives_way(0..self.replica_count) {
            // Whoever is first there comes to the others in a moment.
            true => Anew::Paused(Look::Ahead),
            // It has looked: one refusal does not stop it again.
            false => Anew::Due(Look::Past),
        };
    }

    /// It has failed: what a quorum holds instead.
    fn exists(&mut self, present: Option<Version>) {
        if !self.is_nowhere() && !mutants::is_on(Mutant::OneRefusalFails) {
            // It may have been seen, before what is there now.
            self.outcome = Some(MutationOutcome::Indeterminate);
            return;
        }
        self.outcome = Some(MutationOutcome::Exists { present });
        self.evict_own();
    }

    /// Takes back what a replica holds of one that has failed (one at most, or
    /// it were stored).
    fn evict_own(&mut self) {
        if mutants::is_on(Mutant::FailedCasStays) {
            return;
        }
        for replica in 0..self.replica_count {
            if self.states[replica].is_applied() {
                self.evictions[replica] = Eviction::Due(self.version);
            }
        }
    }

    /// Makes those who disagree say that nothing is there.
    fn evict(&mut self, present: &[Option<Version>; REPLICAS_MAX]) {
        if mutants::is_on(Mutant::FailedCasStays) {
            return;
        }
        for (eviction, present) in self.evictions.iter_mut().zip(present) {
            if let Some(version) = present {
                *eviction = Eviction::Due(*version);
            }
        }
        self.evict_own();
        if mutants::is_on(Mutant::EvictionUnbound) {
            let mut above = self.version.max(self.bound);
            above.time_ns += 1_000_000;
            self.bound = above;
            let due = |eviction: &&mut Eviction| **eviction != Eviction::None;
            for eviction in self.evictions.iter_mut().filter(due) {
                *eviction = Eviction::Due(above);
            }
        }
    }

    fn note_present(&mut self, present: &[Option<Version>; REPLICAS_MAX]) {
        let highest = present.iter().flatten().max();
        self.bound = self.bound.max(highest.copied().unwrap_or(Version::ZERO));
    }

    fn stops_for_a_look(&self) -> bool {
        let states = &self.states[..self.replica_count];
        let has_refused = |state: &CasState| matches!(state, CasState::Refused { .. });
        let held = CasState::may_be_held;
        // Those that may hold it are asked before anybody looks for others.
        if mutants::is_on(Mutant::CasWithoutLook) || self.followed != 0 {
            return false;
        }
        match states.iter().position(held) {
            // Whoever is ahead at one that was asked before has to come past this one.
            Some(held) => self.gives_way(held..self.replica_count),
            None => self.look == Look::Ahead && states.iter().any(has_refused),
        }
    }

    /// Those that have refused it for something newer have done nothing, and may have
    /// something else by now.
    fn ask_those_ahead_again(&mut self) {
        for replica in 0..self.replica_count {
            if self.gives_way(replica..replica + 1) {
                self.states[replica] = CasState::Unsent;
            }
        }
    }

    /// Whether a replica has refused it for something that is newer than what is expected
    /// and not at rest: most likely a contender's, on its way to the next replica, and it is
    /// given the time for that.
    fn gives_way(&self, at: Range<usize>) -> bool {
        let expected = self.expected_version();
        let is_newer = |state: &CasState| {
            let CasState::Refused { present } = state else {
                return false;
            };
            present.is_some_and(|present| {
                let rests_at = present.time_ns.saturating_add(AT_REST_NS);
                let is_own = present == self.lost_version;
                present > expected && rests_at > self.version.time_ns && !is_own
            })
        };
        self.is_patient()
            && self.states[at].iter().any(is_newer)
            && !mutants::is_on(Mutant::CasOvertakes)
    }

    /// What is expected was at one that has died, and where this has taken its place. It is
    /// on its way to those that lag behind, which are asked again: giving up would take away
    /// the last copy.
    fn wait_for_those_behind(&mut self) {
        let states = &self.states[..self.replica_count];
        let is_dead = |state: &CasState| {
            matches!(
                state,
                CasState::Down | CasState::Lost | CasState::Rejected(Rejection::Recovering)
            )
        };
        let waits = states.iter().any(is_dead)
            && states.iter().any(CasState::is_applied)
            && self.is_patient()
            && !mutants::is_on(Mutant::LaggardGivenUp);
        if !waits {
            return;
        }
        for (replica, state) in self.states.iter_mut().enumerate() {
            if self.lagging & 1 << replica != 0 && matches!(state, CasState::Refused { .. }) {
                *state = CasState::Unsent;
                self.is_pausing = true;
            }
        }
        if self.is_pausing {
            self.ask_those_down_again();
            self.wait_for_others();
        }
    }

    /// Those that this version was not sent to may be there again. One that is passed over for
    /// an earlier version is not worth another wait.
    fn ask_those_down_again(&mut self) {
        for (replica, state) in self.states.iter_mut().enumerate() {
            let is_passed_over = self.passed_over & 1 << replica != 0;
            if *state == CasState::Down && !is_passed_over {
                *state = CasState::Unsent;
            }
        }
    }

    /// A replica that still holds what is expected, and was not sent this version: what is
    /// acknowledged may be there alone.
    fn holder_left_out(&self, present: &[Option<Version>; REPLICAS_MAX]) -> Option<usize> {
        let Expected::Version(expected) = self.expected else {
            return None;
        };
        (0..self.replica_count).find(|replica| {
            self.states[*replica] == CasState::Down && present[*replica] == Some(expected)
        })
    }

    /// What is older than this is what a replica has that lags behind.
    fn expected_version(&self) -> Version {
        match self.expected {
            Expected::Version(version) => version,
            Expected::Absent => Version::ZERO,
        }
    }

    fn is_patient(&self) -> bool {
        self.now_ns < self.waits_until_ns
    }

    fn next_to_install(&self) -> Option<usize> {
        if !matches!(self.outcome, Some(MutationOutcome::Stored { .. })) {
            return None;
        }
        let lacks = |state: &CasState| {
            matches!(
                state,
                CasState::Unsent
                    | CasState::Refused { .. }
                    | CasState::Lost
                    | CasState::PutOff
                    | CasState::Awaited
                    // It keeps a SET meanwhile.
                    | CasState::Rejected(Rejection::Recovering)
            )
        };
        (0..self.replica_count).find(|replica| {
            let was_passed_over = self.passed_over & 1 << replica != 0;
            let state = &self.states[*replica];
            let may_lack = (was_passed_over && !state.is_applied()) || lacks(state);
            self.installed & 1 << replica == 0 && may_lack
        })
    }

    /// Whether no replica can have received it.
    fn is_untouched(&self) -> bool {
        let states = &self.states[..self.replica_count];
        let was_received = |state: &CasState| {
            matches!(
                state,
                CasState::Open | CasState::Applied { .. } | CasState::Lost | CasState::Awaited
            )
        };
        self.followed == 0 && !states.iter().any(was_received)
    }

    /// Whether nobody will see it: fewer than a quorum hold it, and nothing is open.
    fn is_nowhere(&self) -> bool {
        let states = &self.states[..self.replica_count];
        let held = |(replica, state): &(usize, &CasState)| {
            let may_hold = self.followed & 1 << *replica != 0;
            may_hold || state.may_be_held()
        };
        let held_count = states.iter().enumerate().filter(held).count();
        !self.uncertain && !states.contains(&CasState::Open) && held_count < self.quorum
    }

    /// The deadline has passed: nothing is waited for any more.
    fn give_up(&mut self) {
        self.anew = Anew::No;
        self.is_late = false;
        for eviction in &mut self.evictions {
            // What is still due is sent, late or not.
            if matches!(eviction, Eviction::Open(_) | Eviction::Late(_)) {
                *eviction = Eviction::None;
            }
        }
        if self.outcome.is_some() {
            if !matches!(self.look, Look::Ahead | Look::Past)
                && matches!(self.outcome, Some(MutationOutcome::Exists { .. }))
            {
                // Without a look, at least what it left itself.
                self.evict_own();
            }
            self.look = Look::Past;
            return;
        }
        self.look = Look::Past;
        self.next = None;
        self.is_pausing = false;
        self.outcome = Some(if self.is_nowhere() {
            self.evict_own();
            MutationOutcome::Failed {
                cause: self.retry.deadline(),
            }
        } else {
            MutationOutcome::Indeterminate
        });
    }
}

/// Whether who says so has done nothing, and takes the same message in a moment.
fn puts_off(rejection: Rejection) -> bool {
    use Rejection::{StaleConfig, UnknownConfig, WrongShard};
    matches!(rejection, UnknownConfig | StaleConfig | WrongShard)
}
