//! One step of one operation after another, until it waits or has ended.

use crate::driver::{Driver, wait_for_room};
use crate::host::Host;
use crate::inline::{self, COARSE_LAG_NS, RESUMING_NS};
use crate::link::Link;
use crate::op::{AnyPlan, GetMachine, Machine, Message, Op, Outcome, Owed, waits};
use crate::room::{Lateness, Way};
use std::sync::Arc;
use trefoil_client_core::cas::CasStep;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::fill::{Stamps, leaves_room};
use trefoil_client_core::get::{Failure, GetOutcome, GetStep, Strategy};
use trefoil_client_core::mode::{Mode, REPLICAS_MAX};
use trefoil_client_core::mutate::MutateStep;
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::retry::RetryCause;
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::port::{Port, Progress};
use trefoil_layout::Version;
use trefoil_layout::op::{Action, Rejection};

/// Between two calls to a successor that has not answered yet.
const LATE_PAUSE_NS: u64 = 5_000_000;

/// What a step led to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flow {
    Again,
    /// Until something comes, or this time.
    Wait(u64),
    /// For so long.
    Pause(u64),
    Ended(Outcome),
}

impl<H: Host> Driver<H> {
    /// Goes on with the operation at `at`. The time is told once: what decides
    /// about leases is looked at where they are.
    pub(crate) fn step(&mut self, at: u32, now: u64) {
        if self.slab.get(at).is_none() {
            // It was abandoned, and its place has given its memory back.
            return;
        }
        let mut op = self.slab.take(at);
        op.is_queued = false;
        if op.outcome.is_some() || matches!(op.machine, Machine::Idle) {
            self.slab.put(at, op);
            return;
        }
        if let Some(outcome) = op.held {
            return self.hold_or_finish(at, op, outcome, now);
        }
        if op.topology != self.topology_count {
            self.restart(&mut op, now);
        }
        if now >= op.limits.deadline_ns {
            self.excuse_pause(&mut op, now);
            if now >= op.limits.deadline_ns && op.waits_for_room() {
                op.end_waiting();
            }
        }
        if std::mem::take(&mut op.needs_plan) {
            self.plan_anew(&mut op, now);
        }
        while op.too_large != 0 {
            let replica = op.too_large.trailing_zeros() as usize;
            op.too_large &= op.too_large - 1;
            let message = op.messages[replica];
            self.send(at, &mut op, replica, message, true, now);
        }
        let flow = loop {
            if now < op.pause_until_ns {
                break Flow::Wait(op.pause_until_ns);
            }
            let flow = match op.machine {
                Machine::Idle => Flow::Wait(u64::MAX),
                Machine::Get(_) => self.step_get(at, &mut op, now),
                Machine::Mutate(_) => self.step_mutate(at, &mut op, now),
                Machine::Cas { look: Some(_), .. } => self.step_look(at, &mut op, now),
                Machine::Cas { .. } => self.step_cas(at, &mut op, now),
                Machine::Uses { .. } => self.step_uses(at, &mut op, now),
            };
            match flow {
                Flow::Again => {}
                Flow::Pause(ns) => op.pause_until_ns = now + ns,
                flow => break flow,
            }
        };
        match flow {
            Flow::Ended(outcome) => self.hold_or_finish(at, op, outcome, now),
            Flow::Wait(until) => {
                op.wake_ns = until;
                self.slab.set_timer(at, &op);
                self.slab.put(at, op);
            }
            Flow::Again | Flow::Pause(_) => unreachable!("the loop goes on"),
        }
    }

    /// A deadline that passed while this process paused says nothing of those who were
    /// to answer: they may have answered, or have paused with it. They get a moment.
    #[cold]
    pub(crate) fn excuse_pause(&mut self, op: &mut Op, now: u64) {
        let since_ns = self.host.running_since_ns();
        if since_ns > op.begun_ns && inline::is_resuming(since_ns, now) {
            let until_ns = since_ns.saturating_add(RESUMING_NS);
            op.limits.deadline_ns = until_ns;
            op.machine.extend(until_ns);
        }
    }

    /// Another topology: new hash, cohort, mode. What was answered before counts for
    /// nothing; what may have been applied is remembered by the machines.
    #[cold]
    fn restart(&mut self, op: &mut Op, now: u64) {
        let has_moved = op.topology >= self.replicas_since;
        op.topology = self.topology_count;
        op.hash = self.topology.hash(&op.key);
        op.cohort = self.topology.cohort(op.hash);
        op.flush_floor = self.topology.flush_floor();
        op.room_is_gone();
        op.owed = [Owed::Nothing; REPLICAS_MAX];
        op.stamps = [None; REPLICAS_MAX];
        op.too_large = 0;
        op.lateness = Lateness::default();
        if let Machine::Get(_) = op.machine {
            let get = self.new_lookup(op, now);
            op.machine = Machine::Get(get);
        }
        let mode = self.topology.mode();
        match &mut op.machine {
            Machine::Mutate(machine) => machine.restart(mode),
            Machine::Cas { machine, look } => {
                *look = None;
                match has_moved {
                    true => machine.follow(),
                    false => machine.restart(mode),
                }
            }
            Machine::Uses { asked, .. } => *asked = false,
            _ => {}
        }
    }

    fn any_plan(&mut self, op: &Op, now: u64) -> AnyPlan {
        let copies = self.topology.mode().replica_count();
        let mut strategies = [Strategy::Down; REPLICAS_MAX];
        for (place, strategy) in strategies.iter_mut().enumerate().take(copies) {
            *strategy = self.strategy(op.cohort, place, now);
        }
        let own = match &op.machine {
            Machine::Cas { machine, .. } => Some(machine.version()),
            _ => op.is_careful.then_some(Version::ZERO),
        };
        let order = waits(&strategies[..copies]).then(|| self.order(op.cohort, now));
        AnyPlan {
            preferred: self.turns.next(copies),
            order,
            strategies,
            now_unix_ns: self.host.unix_ns(),
            known_ns: self.versions.known_ns(),
            careful: own,
        }
    }

    fn new_lookup(&mut self, op: &Op, now: u64) -> GetMachine {
        let plan = self.any_plan(op, now);
        GetMachine::new(self.topology.mode(), &plan, op.hash, op.limits, now)
    }

    /// A backend that a lookup waits for answers calls, but is not mapped.
    #[cold]
    fn plan_anew(&mut self, op: &mut Op, now: u64) {
        let plan = self.any_plan(op, now);
        let hash = op.hash;
        if let Some(get) = op.lookup() {
            get.restart(&plan, hash, now);
            op.owed = [Owed::Nothing; REPLICAS_MAX];
            op.too_large = 0;
        }
    }

    fn step_get(&mut self, at: u32, op: &mut Op, now: u64) -> Flow {
        let Some(get) = op.lookup() else {
            return Flow::Wait(u64::MAX);
        };
        let step = get.poll(now);
        self.carry_out(at, op, step, now)
    }

    /// Carries one step of a lookup out, as far as nobody has to be waited for.
    pub(crate) fn carry_out(&mut self, at: u32, op: &mut Op, step: GetStep, now: u64) -> Flow {
        match step {
            GetStep::ReadIndex { replica } => self.read_index(at, op, replica, now),
            GetStep::ReadData { replica, pointer } => self.read_data(at, op, replica, pointer, now),
            GetStep::Scan { replica } => self.scan(at, op, replica, true, now),
            GetStep::Vote { replica } => self.scan(at, op, replica, false, now),
            GetStep::Ask { replica, by_rpc } => {
                self.send(at, op, replica, Message::Lookup, by_rpc, now);
                Flow::Again
            }
            // Its engine has looked for another window before it said so.
            GetStep::Refresh {
                replica,
                cause: RetryCause::Window,
            } if self.is_scanned(op, replica) => {
                let link = self.link_of(op, replica);
                if let Some(near) = link.and_then(|link| link.near.as_mut()) {
                    near.refresh();
                }
                if let Some(get) = op.lookup() {
                    get.handle_refreshed(replica);
                }
                Flow::Again
            }
            GetStep::Refresh { replica, .. } => {
                let known = self.topology.id().config_id;
                let near = self
                    .link_of(op, replica)
                    .and_then(|link| link.near.as_mut());
                // The memory of a backend that has ended says nothing of the one that
                // refuses, by message, in its place.
                let is_enough = near.is_some_and(|near| {
                    near.refresh();
                    near.view()
                        .is_some_and(|view| view.config_id() <= known && view.lease_alive(now))
                });
                self.view_count += 1;
                if is_enough {
                    if let Some(get) = op.lookup() {
                        get.handle_refreshed(replica);
                    }
                } else {
                    op.owed[replica] = Owed::Topology;
                    self.begin_learning();
                }
                Flow::Again
            }
            GetStep::Reconnect { replica } => self.reconnect(op, replica, now),
            GetStep::Await { replica } => self.await_back(op, replica, now),
            GetStep::Pause { ns } => Flow::Pause(ns),
            GetStep::Wait { until_ns } => Flow::Wait(until_ns),
            GetStep::Done(outcome) => Flow::Ended(match outcome {
                GetOutcome::Hit { version, replica } => {
                    op.hit_replica = replica;
                    Outcome::Hit { version }
                }
                GetOutcome::Miss { reason } => Outcome::Miss {
                    reason,
                    stamps: self.stamps_after(op),
                },
                GetOutcome::Failed { cause } => Outcome::Failed { cause },
            }),
        }
    }

    /// What the miss that this lookup has ended with leaves for a fill.
    fn stamps_after(&self, op: &mut Op) -> Stamps {
        let stamps = op.stamps;
        let Some(get) = op.lookup() else {
            return self.stamps(op.hash, Version::ZERO, |_| None);
        };
        let dead = get.dead_version();
        let votes: [_; REPLICAS_MAX] = std::array::from_fn(|place| get.voted(place));
        self.stamps(op.hash, dead, |place| {
            let room = leaves_room(votes[place]?, dead, || self.host.unix_ns());
            stamps[place].filter(|_| room)
        })
    }

    /// Whether this replica is looked up by way of an engine.
    fn is_scanned(&mut self, op: &Op, replica: usize) -> bool {
        let link = self.link_of(op, replica);
        let near = link.and_then(|link| link.near.as_ref());
        near.is_some_and(Port::has_scans)
    }

    fn link_of(&mut self, op: &Op, replica: usize) -> Option<&mut crate::link::Link<H::Port>> {
        let number = *op.cohort.as_slice().get(replica)?;
        self.links.get_mut(number as usize)
    }

    fn fail(&mut self, op: &mut Op, replica: usize) {
        if let Some(get) = op.lookup() {
            get.handle_failure(replica, Failure::Connection);
        }
    }

    fn owe_near(&mut self, op: &mut Op, replica: usize, token: trefoil_fabric::Token, now: u64) {
        op.owed[replica] = Owed::Near(token);
        if let Some(link) = self.link_of(op, replica) {
            link.owes_near(now);
        }
    }

    /// By way of an engine, with the data or for a vote alone.
    fn scan(&mut self, at: u32, op: &mut Op, replica: usize, with_data: bool, now: u64) -> Flow {
        let token = self.slab.token(at);
        let (hash, id) = (op.hash, self.topology.id());
        let is_immutable = self.topology.mode() == Mode::R2Immutable;
        let is_wanted = op.reports_use && matches!(op.machine, Machine::Get(_));
        let link = self.link_of(op, replica);
        let is_use = is_wanted && link.is_some_and(Link::keeps_touch);
        let near = self
            .link_of(op, replica)
            .and_then(|link| link.near.as_mut());
        let Some(near) = near else {
            self.fail(op, replica);
            return Flow::Again;
        };
        // Of an immutable corpus one copy decides: see `read_index`.
        if is_immutable
            && let Some(found) = near.config_id()
            && found != id.config_id
        {
            if let Some(get) = op.lookup() {
                get.handle_index(replica, IndexVote::ConfigChanged { found });
            }
            return Flow::Again;
        }
        // What is too long for a scan is asked for by a call.
        op.messages[replica] = Message::Lookup;
        let submitted = match with_data {
            true => near.submit_scan(token, replica, hash, is_use),
            false => near.submit_vote(token, replica, hash, is_use),
        };
        match submitted {
            Progress::Pending => self.owe_near(op, replica, token, now),
            Progress::Done(()) | Progress::Refused => self.fail(op, replica),
        }
        Flow::Again
    }

    fn read_index(&mut self, at: u32, op: &mut Op, replica: usize, now: u64) -> Flow {
        let token = self.slab.token(at);
        let hash = op.hash;
        let number = op.cohort.as_slice()[replica] as usize;
        let Some(near) = self
            .links
            .get_mut(number)
            .and_then(|link| link.near.as_mut())
        else {
            self.fail(op, replica);
            return Flow::Again;
        };
        match near.submit_index(token, replica, hash) {
            Progress::Done(mut vote) => {
                let read_ns = self.host.coarse_ns();
                // Of an immutable corpus one copy decides: who knows of the next corpus
                // takes nothing from a copy that has not changed yet.
                let served = near.view().map(|view| view.config_id());
                if self.topology.mode() == Mode::R2Immutable
                    && let Some(found) = served
                    && found != self.topology.id().config_id
                {
                    vote = IndexVote::ConfigChanged { found };
                }
                if self.links[number].lease_alive(read_ns) {
                    if let Some(get) = op.lookup() {
                        get.handle_index(replica, vote);
                    }
                } else {
                    self.lapsed(op, replica, number);
                }
            }
            Progress::Pending => self.owe_near(op, replica, token, now),
            Progress::Refused => self.fail(op, replica),
        }
        Flow::Again
    }

    fn read_data(
        &mut self,
        at: u32,
        op: &mut Op,
        replica: usize,
        pointer: trefoil_layout::Pointer,
        now: u64,
    ) -> Flow {
        let token = self.slab.token(at);
        let number = op.cohort.as_slice()[replica] as usize;
        let Some(near) = self
            .links
            .get_mut(number)
            .and_then(|link| link.near.as_mut())
        else {
            self.fail(op, replica);
            return Flow::Again;
        };
        match near.submit_data(token, pointer, &mut op.buffers[replica]) {
            Progress::Done(Ok(())) => {
                let read_ns = self.host.coarse_ns();
                let Some(floor) = self.links[number]
                    .view()
                    .filter(|view| view.lease_alive(read_ns + COARSE_LAG_NS))
                    .map(|view| view.flush_floor())
                else {
                    self.lapsed(op, replica, number);
                    return Flow::Again;
                };
                // After the reads: what was flushed before they began is known.
                let check = DataCheck {
                    key: &op.key,
                    now_ms: op.now_ms,
                    flush_floor: op.flush_floor.max(floor),
                };
                let get = match &mut op.machine {
                    Machine::Get(get) => Some(get),
                    Machine::Cas { look, .. } => look.as_mut(),
                    _ => None,
                };
                if let Some(get) = get {
                    get.handle_data(replica, op.buffers[replica].bytes(), &check);
                }
            }
            Progress::Done(Err(_)) => {
                if let Some(get) = op.lookup() {
                    get.handle_out_of_window(replica);
                }
            }
            Progress::Pending => self.owe_near(op, replica, token, now),
            // Longer than engines carry: a call brings it.
            Progress::Refused if self.is_scanned(op, replica) => {
                self.send(at, op, replica, Message::Lookup, true, now);
            }
            Progress::Refused => self.fail(op, replica),
        }
        Flow::Again
    }

    fn lapsed(&mut self, op: &mut Op, replica: usize, number: usize) {
        self.lose(number, "its lease has ended");
        if let Some(get) = op.lookup() {
            get.handle_failure(replica, Failure::Lease);
        }
    }

    /// Has the backend of a replica connected to anew; the operation goes on when
    /// that has ended. Where that was tried a moment ago it still is down.
    fn reconnect(&mut self, op: &mut Op, replica: usize, now: u64) -> Flow {
        let number = op.cohort.as_slice()[replica] as usize;
        let Some(link) = self.links.get_mut(number) else {
            op.reconnected(replica, false, false);
            return Flow::Again;
        };
        let is_late = link.awaits_successor(now);
        let stands = link.near.is_some() && link.lease_alive(now);
        if stands || !link.is_down() {
            let is_mapped = link.view().is_some();
            if is_late && !is_mapped && op.lookup().is_some() {
                return self.look_up_late(op, replica, now);
            }
            op.reconnected(replica, true, is_mapped);
            return Flow::Again;
        }
        if is_late && let Some(get) = op.lookup() {
            get.handle_late(replica);
        }
        // One that has moved is there in a moment, whatever was found a moment ago.
        if !link.was_tried_at(now) || is_late {
            link.begin_connecting(&mut self.host, &Arc::clone(&self.topology));
        }
        if link.greeting_ends_ns() == u64::MAX {
            // It hangs, or was found down just now.
            op.reconnected(replica, false, false);
        } else {
            op.owed[replica] = Owed::Connection;
        }
        Flow::Again
    }

    /// Calls do not tell when a successor has come: it is called again after a pause.
    #[cold]
    fn look_up_late(&mut self, op: &mut Op, replica: usize, now: u64) -> Flow {
        let strategy = self.strategy(op.cohort, replica, now);
        if let Some(get) = op.lookup() {
            get.handle_late_again(replica, strategy);
        }
        let left = op.limits.deadline_ns.saturating_sub(now);
        Flow::Pause(LATE_PAUSE_NS.min(left))
    }

    /// A lookup has no quorum without this replica. Shortly after a pause it is
    /// greeted: it may have paused, too. One that has moved to another process is waited
    /// for. Else it is as it seems to be.
    #[cold]
    fn await_back(&mut self, op: &mut Op, replica: usize, now: u64) -> Flow {
        let number = op.cohort.as_slice()[replica] as usize;
        let has_moved = self
            .links
            .get(number)
            .is_some_and(|link| link.awaits_successor(now));
        if has_moved || inline::is_resuming(self.host.running_since_ns(), now) {
            self.reconnect(op, replica, now)
        } else {
            self.fail(op, replica);
            Flow::Again
        }
    }

    fn step_mutate(&mut self, at: u32, op: &mut Op, now: u64) -> Flow {
        let Machine::Mutate(machine) = &mut op.machine else {
            return Flow::Wait(u64::MAX);
        };
        match machine.poll(now) {
            MutateStep::Send {
                replica,
                version,
                stamp,
            } => {
                let action = match stamp {
                    Some(stamp) => Action::Fill { stamp },
                    None => op.action,
                };
                self.send_mutation(at, op, replica, Message::Mutation { action, version }, now);
                Flow::Again
            }
            MutateStep::Evict { replica, version } => {
                let action = Action::Erase;
                self.send_mutation(at, op, replica, Message::Mutation { action, version }, now);
                Flow::Again
            }
            MutateStep::Nominate { above } => {
                let version = self.nominate_above(above);
                if let Machine::Mutate(machine) = &mut op.machine {
                    machine.handle_version(version);
                }
                Flow::Again
            }
            MutateStep::Refresh { replica } => {
                op.owed[replica] = Owed::Topology;
                self.begin_learning();
                Flow::Again
            }
            MutateStep::Reconnect { replica } => self.reconnect(op, replica, now),
            MutateStep::Pause { ns } => Flow::Pause(ns),
            MutateStep::Wait { until_ns } => Flow::Wait(until_ns),
            MutateStep::Done(outcome) => Flow::Ended(Outcome::Mutated(outcome)),
        }
    }

    /// Sends a mutation, unless its backend is down; touches that should not wait
    /// any longer go first.
    fn send_mutation(&mut self, at: u32, op: &mut Op, replica: usize, message: Message, now: u64) {
        let strategy = self.strategy(op.cohort, replica, now);
        let hash = op.hash;
        if strategy == Strategy::Down {
            let number = op.cohort.as_slice()[replica];
            let owed_before = op.owed[replica];
            op.messages[replica] = message;
            // One that has moved to another process is sent its copy when that is there.
            if let Machine::Mutate(_) = op.machine
                && let Some(link) = self.links.get_mut(number as usize)
                && link.awaits_successor(now)
            {
                return wait_for_room(link, Way::Near, at, op, replica, owed_before, now);
            }
            op.owed[replica] = Owed::Nothing;
            let link = self.links.get(number as usize);
            let failure = match link.is_some_and(|link| link.awaits_successor(now)) {
                true => SendFailure::Moving,
                false => SendFailure::NotSent,
            };
            let why = format!("cannot reach backend {number}");
            op.no_answer(replica, failure, &why);
            return;
        }
        if let Some(link) = self.link_of(op, replica)
            && let Some(view) = link.view()
        {
            let partition = view.partition(replica, hash);
            link.mutated(partition);
        }
        self.send(at, op, replica, message, strategy == Strategy::Rpc, now);
    }

    fn step_cas(&mut self, at: u32, op: &mut Op, now: u64) -> Flow {
        let Machine::Cas { machine, .. } = &mut op.machine else {
            return Flow::Wait(u64::MAX);
        };
        match machine.poll(now) {
            CasStep::Send { replica, version } => {
                let action = op.action;
                self.send_mutation(at, op, replica, Message::Mutation { action, version }, now);
                Flow::Again
            }
            CasStep::Install { replica, version } => {
                let action = Action::Set;
                self.send_mutation(at, op, replica, Message::Mutation { action, version }, now);
                // Its answer is nobody's.
                self.watch_installed(op, replica, now);
                Flow::Again
            }
            CasStep::Evict { replica, version } => {
                let action = Action::Erase;
                self.send_mutation(at, op, replica, Message::Mutation { action, version }, now);
                Flow::Again
            }
            CasStep::Nominate { above } => {
                let version = self.nominate_above(above);
                if let Machine::Cas { machine, .. } = &mut op.machine {
                    machine.handle_version(version);
                }
                Flow::Again
            }
            CasStep::Pause { ns } => Flow::Pause(ns),
            CasStep::Later => {
                self.begin_learning();
                let left = op.limits.deadline_ns.saturating_sub(now);
                Flow::Pause(op.passing_pause().min(left))
            }
            CasStep::Look => {
                let get = self.new_lookup(op, now);
                if let Machine::Cas { look, .. } = &mut op.machine {
                    *look = Some(get);
                }
                Flow::Again
            }
            CasStep::Wait { until_ns } => Flow::Wait(until_ns),
            CasStep::Done(outcome) => self.end_cas(op, outcome, now),
        }
    }

    /// A replica was sent what a CAS has stored at two others, or could not be.
    fn watch_installed(&mut self, op: &mut Op, replica: usize, now: u64) {
        let number = op.cohort.as_slice()[replica];
        match op.owed[replica] {
            Owed::Room(_) | Owed::Last(_) => {}
            Owed::Nothing => self.lacks(number, op.hash),
            _ => self.expect_late(op, replica, now),
        }
    }

    /// A look of a CAS goes on, or has found something.
    fn step_look(&mut self, at: u32, op: &mut Op, now: u64) -> Flow {
        match self.step_get(at, op, now) {
            Flow::Ended(_) => {}
            flow => return flow,
        }
        op.owed = [Owed::Nothing; REPLICAS_MAX];
        if let Machine::Cas { machine, look } = &mut op.machine
            && let Some(get) = look.take()
        {
            self.counters.get_retries.merge(&get.retries());
            machine.handle_look(get.looked());
        }
        Flow::Again
    }

    /// A CAS that was refused for what this client or a backend did not know yet is
    /// nowhere: it begins anew, at a version of its own.
    fn end_cas(&mut self, op: &mut Op, outcome: MutationOutcome, now: u64) -> Flow {
        // It was not sent, because a replica has moved to another process.
        let has_moved = matches!(outcome, MutationOutcome::Failed { .. })
            && op.cohort.as_slice().iter().any(|number| {
                let link = self.links.get(*number as usize);
                link.is_some_and(|link| link.awaits_successor(now))
            });
        // Replicas that stand still for a moment have not compared.
        let was_put_off = matches!(outcome, MutationOutcome::Exists { .. })
            && matches!(&op.machine, Machine::Cas { machine, .. } if machine.was_put_off());
        let is_passing = has_moved
            || was_put_off
            || matches!(
                outcome,
                MutationOutcome::Rejected(
                    Rejection::WrongShard
                        | Rejection::OtherLife
                        | Rejection::StaleConfig
                        | Rejection::UnknownConfig
                )
            );
        let Some(expected) = op.expected() else {
            return Flow::Ended(Outcome::Mutated(outcome));
        };
        if !is_passing {
            return Flow::Ended(Outcome::Mutated(outcome));
        }
        let pause = op.passing_pause();
        if now + pause >= op.limits.deadline_ns {
            return Flow::Ended(Outcome::Mutated(outcome));
        }
        self.begin_learning();
        let version = self.nominate();
        op.owed = [Owed::Nothing; REPLICAS_MAX];
        let machine = self.new_cas(expected, version, op.cohort, op.limits);
        op.machine = Machine::Cas {
            machine,
            look: None,
        };
        Flow::Pause(pause)
    }

    fn step_uses(&mut self, at: u32, op: &mut Op, now: u64) -> Flow {
        let Machine::Uses {
            asked, until_ns, ..
        } = &mut op.machine
        else {
            return Flow::Wait(u64::MAX);
        };
        let until = *until_ns;
        if !std::mem::replace(asked, true) {
            for replica in 0..op.cohort.as_slice().len() {
                // One that is down, or does not renew its lease, is not waited for.
                let strategy = self.strategy(op.cohort, replica, now);
                let is_alive = self
                    .link_of(op, replica)
                    .is_some_and(|link| link.view().is_none() || link.lease_alive(now));
                if strategy != Strategy::Down && is_alive {
                    self.send(at, op, replica, Message::Use, false, now);
                }
            }
        }
        let Machine::Uses { found, .. } = &op.machine else {
            return Flow::Wait(u64::MAX);
        };
        let is_open = |owed: &Owed| !matches!(owed, Owed::Nothing);
        if now >= until || !op.owed.iter().any(is_open) {
            return Flow::Ended(Outcome::Uses(*found));
        }
        Flow::Wait(until)
    }
}

impl Op {
    /// A connection that the operation waited for was made, or could not be.
    pub(crate) fn reconnected(&mut self, replica: usize, is_up: bool, is_mapped: bool) {
        match &mut self.machine {
            // The message is tried again either way.
            Machine::Mutate(machine) => machine.handle_reconnected(replica),
            _ => {
                if let Some(get) = self.lookup() {
                    match is_up {
                        true => get.handle_reconnected(replica),
                        false => get.lost(replica),
                    }
                    // It is not looked up by two reads then.
                    self.needs_plan |= is_up && !is_mapped;
                }
            }
        }
    }

    /// The operation's time is over, and it is not decided: what still waits for room
    /// is not sent, and its machine knows that it was not.
    #[cold]
    pub(crate) fn end_waiting(&mut self) {
        for replica in 0..self.cohort.as_slice().len() {
            if let Owed::Room(_) = self.owed[replica] {
                self.owed[replica] = Owed::Nothing;
                let number = self.cohort.as_slice()[replica];
                let why = format!("no room on the way to backend {number} in time");
                self.no_answer(replica, SendFailure::NotSent, &why);
            }
        }
    }

    /// What waited for room on the way to a process that is no backend any more was not sent.
    fn room_is_gone(&mut self) {
        for replica in 0..REPLICAS_MAX {
            if let Owed::Room(_) = self.owed[replica] {
                self.owed[replica] = Owed::Nothing;
                self.no_answer(replica, SendFailure::Moving, "");
            }
        }
    }

    /// The topology that the operation waited for is known.
    pub(crate) fn refreshed(&mut self, replica: usize) {
        match &mut self.machine {
            Machine::Mutate(machine) => machine.handle_refreshed(replica),
            _ => {
                if let Some(get) = self.lookup() {
                    get.handle_refreshed(replica);
                }
            }
        }
    }
}
