//! A client: one operation at a time, carried out by the real machines.

use crate::env::{BEGIN_UNIX_NS, Env, Life, Message};
use crate::history::{Broken, KeyHistory, Snapshot};
use crate::reads::{NoData, View};
use crate::stats::Mark;
use crate::value;
use crate::violation::Property;
use trefoil_client_core::cas::{Cas, CasStep};
use trefoil_client_core::clock::VersionClock;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::get::{Failure, Get, GetOutcome, GetStep, MissReason, Plan, Strategy};
use trefoil_client_core::mode::Mode;
use trefoil_client_core::mutate::{Mutate, MutateKind, MutateStep};
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::quorum::Vote;
use trefoil_client_core::retry::{Limits, RetryCause};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::op::{Action, Expected, Found, LookupAnswer, Outcome, Rejection};
use trefoil_layout::{Pointer, Version};
use trefoil_region::WordBuffer;

/// What the next operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Set,
    Erase,
    Cas,
    Fill,
}

struct GetOp<const R: usize> {
    machine: Get<R>,
    snapshot: Snapshot,
    /// Steps taken from the machine and not carried out yet.
    pending: Vec<GetStep>,
    votes: [Vote; R],
}

/// A SET, ERASE or fill under way.
struct MutateOp {
    machine: Mutate,
    action: Action,
    is_fill: bool,
    expiry_ms: u64,
    /// Messages without an answer yet.
    open: Vec<(usize, Version)>,
}

struct CasOp {
    machine: Cas,
    expected: Expected,
    expiry_ms: u64,
    open: Option<usize>,
}

enum Op<const R: usize> {
    None,
    Get(GetOp<R>),
    Mutate(MutateOp),
    Cas(CasOp),
}

/// See the module.
pub(crate) struct Client<const R: usize> {
    number: usize,
    clock: VersionClock,
    /// How far its wall clock is ahead of the backends'.
    skew_ns: i64,
    views: Vec<View>,
    buffers: [WordBuffer; R],
    key: usize,
    op: Op<R>,
    /// By key: what it last saw or stored there.
    known: Vec<Option<Version>>,
    /// Does nothing before this step.
    stalled_until: u64,
    /// A version taken at a miss, for a fill.
    fill: Option<(usize, Version)>,
}

impl<const R: usize> Client<R> {
    pub(crate) fn new(env: &Env<'_>, number: usize) -> Self {
        let skew = env.profile.skew_ns;
        Client {
            number,
            clock: VersionClock::new(env.rng.next()),
            skew_ns: env.rng.below(2 * skew + 1) as i64 - skew as i64,
            views: (0..env.members.len()).map(|i| View::take(env, i)).collect(),
            buffers: std::array::from_fn(|_| WordBuffer::default()),
            key: 0,
            op: Op::None,
            known: vec![None; env.keys.len()],
            stalled_until: 0,
            fill: None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.op, Op::None)
    }

    /// Whether a miss has left a version for a fill.
    pub(crate) fn can_fill(&self) -> bool {
        self.fill.is_some()
    }

    fn unix_ns(&self, env: &Env<'_>) -> u64 {
        (BEGIN_UNIX_NS + env.time_ns.get()).saturating_add_signed(self.skew_ns)
    }

    fn nominate(&mut self, env: &Env<'_>) -> Version {
        let now = self.unix_ns(env);
        loop {
            match self.clock.next(now) {
                Ok(version) => return version,
                Err(_) => self.clock.renew(env.rng.next()),
            }
        }
    }

    /// Begins an operation on `key`.
    pub(crate) fn begin(
        &mut self,
        env: &Env<'_>,
        histories: &[KeyHistory],
        kind: Kind,
        key: usize,
    ) {
        self.key = key;
        let operation = &env.operations[self.number];
        operation.set(operation.get() + 1);
        let profile = &env.profile;
        let limits = Limits {
            deadline_ns: env.time_ns.get() + profile.deadline_ns,
            retries_max: profile.retries_max,
        };
        let mode = Mode::of(R);
        let expiry_ms = match profile.expiry_ms {
            0 => 0,
            ahead if env.rng.chance(512) => self.unix_ns(env) / 1_000_000 + ahead,
            _ => 0,
        };
        self.op = match kind {
            Kind::Get => {
                self.reconnect_in_the_background(env);
                let plan = self.plan(env);
                let hash = env.keys[key].hash;
                Op::Get(GetOp {
                    machine: Get::new(&plan, hash, limits, env.time_ns.get()),
                    snapshot: histories[key].snapshot(),
                    pending: Vec::new(),
                    votes: [Vote::Open; R],
                })
            }
            Kind::Cas => {
                let expected = self.expectation(env);
                let version = self.nominate(env);
                Op::Cas(CasOp {
                    machine: Cas::new(mode, version, limits),
                    expected,
                    expiry_ms,
                    open: None,
                })
            }
            Kind::Set | Kind::Erase | Kind::Fill => {
                let (kind, action, version) = match (kind, self.fill) {
                    (Kind::Erase, _) => (MutateKind::Erase, Action::Erase, self.nominate(env)),
                    (Kind::Fill, Some((key, version))) => {
                        self.fill = None;
                        self.key = key;
                        (MutateKind::Fill, Action::Set, version)
                    }
                    _ => (MutateKind::Set, Action::Set, self.nominate(env)),
                };
                Op::Mutate(MutateOp {
                    machine: Mutate::new(mode, kind, version, limits),
                    action,
                    is_fill: kind == MutateKind::Fill,
                    expiry_ms,
                    open: Vec::new(),
                })
            }
        };
        env.trace.line(Some(self.key), || {
            let number = self.number;
            match &self.op {
                Op::Get(_) => format!("client {number} begins a GET"),
                Op::Mutate(op) => {
                    let fill = if op.is_fill { " (fill)" } else { "" };
                    let version = op.machine.version();
                    format!("client {number} begins {:?}{fill} {version:?}", op.action)
                }
                Op::Cas(op) => {
                    let version = op.machine.version();
                    format!(
                        "client {number} begins CAS {version:?} over {:?}",
                        op.expected
                    )
                }
                Op::None => String::new(),
            }
        });
    }

    fn plan(&self, env: &Env<'_>) -> Plan<R> {
        let profile = &env.profile;
        let mut plan = Plan {
            fan_out: profile.fan_out,
            ..Plan::frugal(env.rng.index(R))
        };
        for (replica, strategy) in plan.strategies.iter_mut().enumerate() {
            let member = env.keys[self.key].first_member + replica;
            if env.current(member).life.get() == Life::Dead && env.rng.chance(256) {
                *strategy = Strategy::Down;
            } else if env.rng.chance(profile.by_message) {
                *strategy = env.rng.pick(&[Strategy::Message, Strategy::Rpc]);
            } else if env.rng.chance(profile.by_scar) {
                *strategy = Strategy::Scar;
            }
        }
        if env.rng.chance(200) {
            plan.hedge_after_ns = env.rng.below(20 * profile.step_ns);
        }
        plan
    }

    fn expectation(&mut self, env: &Env<'_>) -> Expected {
        match self.known[self.key] {
            Some(version) if !env.rng.chance(100) => {
                self.clock.observe(version);
                Expected::Version(version)
            }
            _ => Expected::Absent,
        }
    }

    /// A driver replaces the mapping of a dead incarnation when it learns of
    /// the next one, in its own time.
    fn reconnect_in_the_background(&mut self, env: &Env<'_>) {
        for replica in 0..R {
            let member = env.keys[self.key].first_member + replica;
            let current = env.members[member].instance.get();
            if self.views[member].instance != current && env.rng.chance(300) {
                self.views[member] = View::take(env, current);
            }
        }
    }

    /// Goes on with the operation under way.
    pub(crate) fn step(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
    ) -> Result<(), Broken> {
        let step = env.step.get();
        if step < self.stalled_until {
            return Ok(());
        }
        if env.rng.chance(env.profile.stall) {
            self.stall(env);
        }
        match std::mem::replace(&mut self.op, Op::None) {
            Op::None => Ok(()),
            Op::Get(op) => self.step_get(env, histories, op),
            Op::Mutate(op) => self.step_mutate(env, histories, op),
            Op::Cas(op) => self.step_cas(env, histories, op),
        }
    }

    fn stall(&mut self, env: &Env<'_>) {
        self.stalled_until = env.step.get() + env.rng.below(env.profile.stall_steps);
    }

    fn step_get(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        mut op: GetOp<R>,
    ) -> Result<(), Broken> {
        match op.machine.poll(env.time_ns.get()) {
            GetStep::Done(outcome) => return self.end_get(env, histories, &op, outcome),
            GetStep::Pause { .. } => {}
            GetStep::Wait { until_ns } => {
                if op.pending.is_empty() && until_ns == u64::MAX {
                    return Err((Property::Stuck, "a GET waits for nothing".to_owned()));
                }
                self.carry_out_one(env, &mut op);
            }
            step => {
                op.pending.push(step);
                if env.rng.chance(512) {
                    self.carry_out_one(env, &mut op);
                }
            }
        }
        self.op = Op::Get(op);
        Ok(())
    }

    fn carry_out_one(&mut self, env: &Env<'_>, op: &mut GetOp<R>) {
        if op.pending.is_empty() {
            return;
        }
        let step = op.pending.swap_remove(env.rng.index(op.pending.len()));
        let key = &env.keys[self.key];
        let check = DataCheck {
            key: &key.bytes,
            now_ms: self.unix_ns(env) / 1_000_000,
            flush_floor: Version::ZERO,
        };
        match step {
            GetStep::ReadIndex { replica } => {
                let view = &self.views[key.first_member + replica];
                match env.read_index(view, key.hash) {
                    Ok(vote) => {
                        self.note_vote(env, op, replica, vote);
                        op.machine.handle_index(replica, vote);
                        if env.rng.chance(env.profile.vote_stall) {
                            self.stall(env);
                        }
                    }
                    Err(failure) => op.machine.handle_failure(replica, failure),
                }
            }
            GetStep::ReadData { replica, pointer } => {
                let view = &self.views[key.first_member + replica];
                let buffer = &mut self.buffers[replica];
                match env.read_data(view, pointer, buffer) {
                    Ok(()) => op.machine.handle_data(replica, buffer.bytes(), &check),
                    Err(NoData::OutOfWindow) => op.machine.handle_out_of_window(replica),
                    Err(NoData::Failure(failure)) => op.machine.handle_failure(replica, failure),
                }
            }
            GetStep::Scan { replica } => self.scan(env, op, replica, &check),
            GetStep::Ask { replica, .. } => {
                let instance = env.current(key.first_member + replica);
                let buffer = &mut self.buffers[replica];
                let answer = match instance.life.get() {
                    Life::Dead => return op.machine.handle_failure(replica, Failure::Connection),
                    Life::Recovering => LookupAnswer {
                        epoch: 0,
                        found: Found::Rejected(Rejection::Recovering),
                    },
                    Life::Serving => instance.store.lookup(env.now(), &key.bytes, buffer),
                };
                env.trace.line(Some(self.key), || {
                    let found = match answer.found {
                        Found::Present { version, .. } => format!("{version:?}"),
                        Found::Absent => "nothing".to_owned(),
                        Found::Rejected(rejection) => format!("{rejection:?}"),
                    };
                    let (number, epoch) = (self.number, answer.epoch);
                    format!("client {number} asks replica {replica}: {found} in epoch {epoch}")
                });
                op.machine.handle_answer(replica, &answer, &check);
            }
            GetStep::Refresh { replica, .. } => {
                let view = &mut self.views[key.first_member + replica];
                *view = View::take(env, view.instance);
                op.machine.handle_refreshed(replica);
            }
            GetStep::Reconnect { replica } => {
                let member = key.first_member + replica;
                let current = env.members[member].instance.get();
                if env.instances[current].life.get() == Life::Dead {
                    op.machine.handle_failure(replica, Failure::Connection);
                } else {
                    self.views[member] = View::take(env, current);
                    op.machine.handle_reconnected(replica);
                }
            }
            GetStep::Pause { .. } | GetStep::Wait { .. } | GetStep::Done(_) => {}
        }
    }

    /// What a software NIC would do: scan and read at one go, on the server.
    fn scan(&mut self, env: &Env<'_>, op: &mut GetOp<R>, replica: usize, check: &DataCheck<'_>) {
        let key = &env.keys[self.key];
        let view = &self.views[key.first_member + replica];
        let vote = match env.read_index(view, key.hash) {
            Ok(vote) => vote,
            Err(failure) => return op.machine.handle_failure(replica, failure),
        };
        self.note_vote(env, op, replica, vote);
        let pointer = match vote {
            IndexVote::Present { entry, .. } => entry.pointer,
            _ => Pointer(0),
        };
        let buffer = &mut self.buffers[replica];
        buffer.prepare(0);
        if !pointer.is_empty() {
            match env.read_data(view, pointer, buffer) {
                Ok(()) => {}
                Err(NoData::OutOfWindow) => return op.machine.handle_out_of_window(replica),
                Err(NoData::Failure(failure)) => {
                    return op.machine.handle_failure(replica, failure);
                }
            }
        }
        op.machine.handle_scar(replica, vote, buffer.bytes(), check);
    }

    fn note_vote(&self, env: &Env<'_>, op: &mut GetOp<R>, replica: usize, vote: IndexVote) {
        env.trace.line(Some(self.key), || {
            let vote = match vote {
                IndexVote::Present { entry, epoch, .. } => {
                    format!("{:?} in epoch {epoch}", entry.version)
                }
                other => format!("{other:?}"),
            };
            format!(
                "client {} reads the index of replica {replica}: {vote}",
                self.number
            )
        });
        let seen = match vote {
            IndexVote::Present { entry, epoch, .. } => Vote::Present {
                version: entry.version,
                epoch,
            },
            IndexVote::Absent { epoch } => Vote::Absent { epoch },
            _ => return,
        };
        op.votes[replica] = seen;
        let differs = |other: &Vote| *other != Vote::Open && *other != seen;
        if op.votes.iter().any(differs) {
            env.mark(Mark::Dirty);
        }
    }

    fn end_get(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        op: &GetOp<R>,
        outcome: GetOutcome,
    ) -> Result<(), Broken> {
        env.trace.line(Some(self.key), || {
            let outcome = match outcome {
                GetOutcome::Hit { version, replica } => {
                    format!("hit {version:?} from replica {replica}")
                }
                GetOutcome::Miss { reason } => format!("miss, {reason}"),
                GetOutcome::Failed { cause } => format!("failed: {cause}"),
            };
            format!("client {} ends its GET: {outcome}", self.number)
        });
        let mut stats = env.stats.borrow_mut();
        let retries = op.machine.retries();
        stats.retries.merge(&retries);
        stats.add_mark(Mark::Torn, retries.get(RetryCause::Torn));
        match outcome {
            GetOutcome::Hit { version, replica } => {
                stats.hits += 1;
                drop(stats);
                self.known[self.key] = Some(version);
                self.clock.observe(version);
                self.touch(env, op);
                let bytes = self.buffers[replica].bytes();
                let found = trefoil_layout::data::DataEntry::decode(bytes).map(|entry| entry.value);
                let found = found.unwrap_or_default();
                if !value::is_right(self.key, version, found) {
                    let message = format!(
                        "hit {version:?} of key {} with {}",
                        self.key,
                        value::describe(found)
                    );
                    return Err((Property::Value, message));
                }
                histories[self.key].hit(op.snapshot, version)
            }
            GetOutcome::Miss { reason } => {
                stats.miss(reason);
                if reason == MissReason::Inquorate {
                    stats.add_mark(Mark::Inquorate, 1);
                }
                drop(stats);
                let version = self.nominate(env);
                self.fill = Some((self.key, version));
                self.known[self.key] = None;
                Ok(())
            }
            GetOutcome::Failed { .. } => {
                stats.get_failures += 1;
                Ok(())
            }
        }
    }

    fn touch(&self, env: &Env<'_>, op: &GetOp<R>) {
        let key = &env.keys[self.key];
        let partition = key.hash.partition(env.profile.partitions);
        for replica in 0..R {
            if let Some(slot) = op.machine.touched_slot(replica) {
                let view = &self.views[key.first_member + replica];
                let window_id = view.windows[partition].window_id;
                let store = &env.instances[view.instance].store;
                store.touch(partition, window_id, &[slot]);
            }
        }
    }

    fn step_mutate(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        mut op: MutateOp,
    ) -> Result<(), Broken> {
        match op.machine.poll(env.time_ns.get()) {
            MutateStep::Done(outcome) => return self.end_mutate(env, histories, &op, outcome),
            MutateStep::Send { replica, version } => {
                match self.send(env, replica, op.action, version, op.expiry_ms) {
                    Ok(()) => op.open.push((replica, version)),
                    Err(failure) => op.machine.handle_failure(replica, version, failure),
                }
            }
            MutateStep::Nominate { above } => {
                env.mark(Mark::Superseded);
                self.clock.observe(above);
                let version = self.nominate(env);
                env.trace.line(Some(self.key), || {
                    format!(
                        "client {} goes above {above:?} with {version:?}",
                        self.number
                    )
                });
                op.machine.handle_version(version);
            }
            MutateStep::Refresh { replica } => op.machine.handle_refreshed(replica),
            MutateStep::Reconnect { replica } => op.machine.handle_reconnected(replica),
            MutateStep::Pause { .. } => {}
            MutateStep::Wait { until_ns } => {
                if op.open.is_empty() && until_ns == u64::MAX {
                    return Err((Property::Stuck, "a mutation waits for nothing".to_owned()));
                }
                if !op.open.is_empty() && env.rng.chance(env.profile.impatience) {
                    let (replica, version) = op.open.swap_remove(env.rng.index(op.open.len()));
                    op.machine
                        .handle_failure(replica, version, SendFailure::Lost);
                }
            }
        }
        self.op = Op::Mutate(op);
        Ok(())
    }

    fn end_mutate(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        op: &MutateOp,
        outcome: MutationOutcome,
    ) -> Result<(), Broken> {
        self.trace_end(env, op.machine.version(), outcome);
        let retries = op.machine.retries();
        self.count(env, outcome);
        let mut stats = env.stats.borrow_mut();
        stats.retries.merge(&retries);
        stats.add_mark(Mark::EpochsApart, retries.get(RetryCause::Epoch));
        let history = &mut histories[self.key];
        match outcome {
            MutationOutcome::Stored { version } => {
                self.known[self.key] = (op.action == Action::Set).then_some(version);
                history.stored(version)
            }
            MutationOutcome::Superseded { bound } => {
                self.clock.observe(bound);
                if op.is_fill {
                    stats.add_mark(Mark::FillSuperseded, 1);
                }
                Ok(())
            }
            MutationOutcome::Indeterminate => {
                stats.add_mark(Mark::Indeterminate, 1);
                Ok(())
            }
            // A refusal of the moment does not bind a copy of the message.
            MutationOutcome::Rejected(_) if env.profile.copies > 0 => Ok(()),
            MutationOutcome::Rejected(_) | MutationOutcome::Failed { .. } => {
                history.undone(op.machine.version())
            }
            MutationOutcome::Exists { .. } => Ok(()),
        }
    }

    fn step_cas(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        mut op: CasOp,
    ) -> Result<(), Broken> {
        match op.machine.poll(env.time_ns.get()) {
            CasStep::Done(outcome) => return self.end_cas(env, histories, &op, outcome),
            CasStep::Send { replica } => {
                let version = op.machine.version();
                let action = Action::Cas(op.expected);
                match self.send(env, replica, action, version, op.expiry_ms) {
                    Ok(()) => op.open = Some(replica),
                    Err(failure) => op.machine.handle_failure(replica, failure),
                }
            }
            CasStep::Wait { until_ns } => {
                if op.open.is_none() && until_ns == u64::MAX {
                    return Err((Property::Stuck, "a CAS waits for nothing".to_owned()));
                }
                if let Some(replica) = op.open
                    && env.rng.chance(env.profile.impatience)
                {
                    op.open = None;
                    op.machine.handle_failure(replica, SendFailure::Lost);
                }
            }
        }
        self.op = Op::Cas(op);
        Ok(())
    }

    fn end_cas(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        op: &CasOp,
        outcome: MutationOutcome,
    ) -> Result<(), Broken> {
        let version = op.machine.version();
        self.trace_end(env, version, outcome);
        self.count(env, outcome);
        let history = &mut histories[self.key];
        match outcome {
            MutationOutcome::Stored { version } => {
                env.mark(Mark::CasStored);
                self.known[self.key] = Some(version);
                if let Expected::Version(expected) = op.expected {
                    history.cas_stored(expected, version)?;
                }
                history.stored(version)
            }
            MutationOutcome::Exists { present } => {
                env.mark(Mark::CasFailed);
                self.known[self.key] = present;
                history.cas_failed(version)
            }
            MutationOutcome::Indeterminate => {
                env.mark(Mark::CasIndeterminate);
                Ok(())
            }
            _ => history.undone(version),
        }
    }

    fn count(&self, env: &Env<'_>, outcome: MutationOutcome) {
        let mut stats = env.stats.borrow_mut();
        match outcome {
            MutationOutcome::Stored { .. } => stats.stored += 1,
            _ => stats.not_stored += 1,
        }
    }

    fn trace_end(&self, env: &Env<'_>, version: Version, outcome: MutationOutcome) {
        env.trace.line(Some(self.key), || {
            format!("client {} ends {version:?}: {outcome:?}", self.number)
        });
    }

    /// Puts a message on its way, or finds the replica down.
    fn send(
        &self,
        env: &Env<'_>,
        replica: usize,
        action: Action,
        version: Version,
        expiry_ms: u64,
    ) -> Result<(), SendFailure> {
        let member = env.keys[self.key].first_member + replica;
        let is_dead = env.current(member).life.get() == Life::Dead;
        if is_dead && env.rng.chance(512) {
            return Err(SendFailure::NotSent);
        }
        let message = Message {
            member,
            client: self.number,
            operation: env.operations[self.number].get(),
            replica,
            action,
            key: self.key,
            version,
            expiry_ms,
            is_copy: false,
            due: env.due(),
        };
        let mut messages = env.messages.borrow_mut();
        if !env.rng.chance(env.profile.loss) {
            messages.push(message);
        }
        let may_repeat = !matches!(action, Action::Cas(_));
        if may_repeat && env.rng.chance(env.profile.copies) {
            messages.push(Message {
                is_copy: true,
                due: env.due(),
                ..message
            });
        }
        Ok(())
    }

    /// An answer arrives.
    pub(crate) fn hear(&mut self, answer: &crate::env::Answer) {
        if let Outcome::Superseded { bound } | Outcome::Mismatch { bound, .. } = answer.ack.outcome
        {
            self.clock.observe(bound);
        }
        match &mut self.op {
            Op::Mutate(op) => {
                let wanted = (answer.replica, answer.version);
                if let Some(at) = op.open.iter().position(|open| *open == wanted) {
                    op.open.swap_remove(at);
                    op.machine
                        .handle_ack(answer.replica, answer.version, answer.ack);
                }
            }
            Op::Cas(op) if op.open == Some(answer.replica) => {
                op.open = None;
                op.machine.handle_ack(answer.replica, answer.ack);
            }
            _ => {}
        }
    }
}
