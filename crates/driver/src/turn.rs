//! One turn: whatever has come is taken in, and every operation that can go on goes
//! on.

use crate::driver::{Counters, Driver};
use crate::host::{Event, Host, NotConnected};
use crate::inline;
use crate::late::Via;
use crate::link::{IDLE_LOOK_NS, LEASE_LOOK_NS, Link, LinkStatus};
use crate::op::{Machine, Message, Op, Outcome, Owed, Owner};
use crate::room::{Waiter, Way};
use crate::topology::Topology;
use crate::uses::ItemRead;
use std::sync::Arc;
use trefoil_client_core::get::{GetOutcome, MissReason};
use trefoil_client_core::mutants::{self, Mutant};
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_fabric::port::{Completion, Port, SendError};
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::Rejection;
use trefoil_region::WordBuffer;

/// An operation that has ended, as it is handed out. Bytes are lent.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// How.
    pub outcome: Outcome,
    /// A hit's data entry.
    pub entry: Option<DataEntry<'a>>,
    /// Why a message did not get through, for people.
    pub reason: Option<&'a str>,
}

/// How often the topology is learned for a backend that serves a later one.
const EARLY_LOOKS_MAX: u32 = 50;

impl<H: Host> Driver<H> {
    /// Goes on with everything that can go on. Never waits.
    pub fn turn(&mut self) {
        self.go_on(None);
    }

    /// A turn for somebody who waits for the operation at `at`.
    pub fn turn_for(&mut self, at: u32) {
        self.go_on(Some(at));
    }

    #[inline]
    fn go_on(&mut self, waited_for: Option<u32>) {
        self.take_events();
        let mut now = self.host.monotonic_ns();
        self.poll_ports(now);
        self.look_at_links(now);
        self.slab.expire(now);
        // The timers leave out what somebody waits for.
        if let Some(at) = waited_for
            && self.slab.get(at).is_some_and(|op| op.wake_ns <= now)
        {
            self.slab.make_ready(at);
        }
        while let Some(at) = self.slab.next_ready() {
            self.step(at, now);
            if self.slab.has_ready() {
                now = self.host.monotonic_ns();
            }
        }
        self.take_refused();
    }

    /// Takes what the host has brought: connections, a topology. Part of each turn;
    /// lookups that end in place make none.
    pub fn take_events(&mut self) {
        while let Some(event) = self.host.next_event() {
            self.take_event(event);
        }
    }

    /// Has the next turn look at every port, also those that owe nothing: one whose
    /// connection has ended is dropped.
    pub fn look_at_all(&mut self) {
        self.looks_at_all = true;
    }

    #[inline]
    fn poll_ports(&mut self, now: u64) {
        let all = std::mem::take(&mut self.looks_at_all);
        for number in 0..self.links.len() {
            let link = &mut self.links[number];
            let slab = &mut self.slab;
            if (link.near_owes > 0 || all)
                && let Some(near) = &mut link.near
                && near.is_ready()
            {
                match near.poll(|completion| slab.complete(completion)) {
                    Ok(count) => {
                        link.near_owes = link.near_owes.saturating_sub(count as u32);
                        if !link.room(Way::Near).is_empty() {
                            self.send_blocked(number, Way::Near);
                        }
                    }
                    Err(closed) => self.lose(number, &closed.to_string()),
                }
            }
            if self.links[number].leaves(now) {
                self.poll_leaving(number, now);
            }
            let link = &mut self.links[number];
            let slab = &mut self.slab;
            let mut is_unreached = false;
            let mut expired = 0;
            if link.far_expected().is_some_and(Port::is_ready)
                && let Some(far) = &mut link.far
                && let Ok(count) = far.poll(|completion| {
                    is_unreached |=
                        matches!(completion, Completion::NoAnswer(_, SendFailure::NotSent, _));
                    expired += usize::from(matches!(completion, Completion::Expired(_)));
                    slab.complete(completion);
                })
            {
                if expired > 0 {
                    link.far_has_expired(expired as u32);
                }
                if count > expired {
                    link.far_has_answered((count - expired) as u32, now);
                }
                // Whosever call has ended, there may be room now.
                if !link.room(Way::Far).is_empty() {
                    link.room_mut(Way::Far).has_moved(now);
                    self.send_blocked(number, Way::Far);
                }
            }
            if is_unreached {
                // Nobody is there: the cell may have been started anew elsewhere.
                self.learn_now_and_then(now);
            }
        }
    }

    /// Another process is about to take a backend's place, or is not any more.
    #[cold]
    fn foresee(&mut self, number: usize) {
        let link = &mut self.links[number];
        let successor = link.view().map_or(0, |view| view.successor());
        link.foreseen = successor;
        let backend = link.number;
        self.host.foresee(&self.topology, backend, successor != 0);
    }

    /// Those that do not answer, or do not keep up.
    fn look_at_links(&mut self, now: u64) {
        // Also where nothing is owed: the memory of a backend that has ended is not
        // kept mapped.
        let looks_at_idle = now >= self.idle_look_ns;
        if looks_at_idle {
            self.idle_look_ns = now + IDLE_LOOK_NS;
            if self.links.iter().any(Link::is_behind) {
                self.take_missed(now);
            }
        }
        self.tell_suspects(now);
        for number in 0..self.links.len() {
            let link = &mut self.links[number];
            if link
                .view()
                .is_some_and(|view| view.successor() != link.foreseen)
            {
                self.foresee(number);
            }
            let link = &mut self.links[number];
            if looks_at_idle && link.stands(now) {
                self.host.stands(number as u32);
            }
            let owes_calls = link.far_owes > 0;
            if (link.near_owes > 0 || owes_calls || looks_at_idle) && now >= link.look_at_ns {
                link.look_at_ns = now + LEASE_LOOK_NS;
                // Shortly after a pause of the machine, its end says nothing of the backend.
                let since_ns = self.host.running_since_ns();
                if link.has_lapsed_twice(now) && !inline::is_resuming(since_ns, now) {
                    let why = "the backend does not answer and its lease has ended";
                    // One that has moved still answers what it was called for.
                    let has_moved = link.view().is_some_and(|view| view.has_moved());
                    match owes_calls && !has_moved {
                        true => self.lose_calls(number, why),
                        false => self.lose(number, why),
                    }
                    continue;
                }
            }
            if !link.room(Way::Far).is_empty() {
                link.look_at_others(now);
            }
            if now >= link.silent_at_ns() && self.is_silent(number, now) {
                self.lose_calls(number, "the backend does not answer");
                continue;
            }
            for way in Way::ALL {
                if !self.links[number].room(way).is_empty() {
                    self.send_blocked(number, way);
                    if self.links[number].room_mut(way).is_due(now) {
                        self.decide_without(number, way, now);
                    }
                }
            }
            let link = &mut self.links[number];
            if link.greeting_ends_ns() <= now {
                link.greeting_is_slow();
                self.connection_ended(number as u32, false);
            }
        }
    }

    /// Sends what found no room, in order, as far as it goes.
    #[cold]
    pub(crate) fn send_blocked(&mut self, number: usize, way: Way) {
        let under = self.topology.id();
        loop {
            self.end_held(number, way);
            let Some(waiter) = self.links[number].room(way).front() else {
                return;
            };
            let (at, replica) = (waiter.at, waiter.replica());
            let is_wanted = self.waits_for_room_at(at, replica, number, way);
            if is_wanted && way == Way::Far && self.is_overdue(at, replica) {
                self.slab.make_ready(at);
                continue;
            }
            let link = &mut self.links[number];
            if !is_wanted {
                link.room_mut(way).pop();
                continue;
            }
            let port = match way {
                Way::Near => link.near.as_mut(),
                Way::Far => link.far.as_mut(),
            };
            let Some(port) = port else {
                let awaits = way == Way::Near && link.awaits_successor(self.host.monotonic_ns());
                return match awaits {
                    true => {}
                    false => self.drop_blocked(number, way),
                };
            };
            let token = self.slab.token(at);
            let Some(op) = self.slab.get_mut(at) else {
                continue;
            };
            let message = op.messages[replica];
            let sent = match way {
                Way::Near => port.send(token, under, &op.request(message)),
                Way::Far => op.call(port, token, under, message),
            };
            match sent {
                Ok(()) => {
                    let now = self.host.monotonic_ns();
                    link.owes(way, now);
                    link.room_mut(way).has_moved(now);
                    link.room_mut(way).pop();
                    op.owed[replica] = match way {
                        Way::Near => Owed::Near(token),
                        Way::Far => Owed::Far(token),
                    };
                    if op.held.is_some() {
                        self.slab.make_ready(at);
                    }
                    self.watch_sent(at, replica, now);
                    self.end_of_room(at);
                }
                Err(SendError::Full) => return,
                Err(error) => match way {
                    Way::Near => return self.lose(number, &error.to_string()),
                    Way::Far => {
                        link.room_mut(way).pop();
                        let why = format!("backend {number}: {error}");
                        self.give_up_waiting(at, replica, &why);
                    }
                },
            }
        }
    }

    /// Whether what waits for room here is a question to whose answer nobody would listen: it
    /// waits no more.
    fn is_overdue(&mut self, at: u32, replica: usize) -> bool {
        let now = self.host.monotonic_ns();
        let is_late = self.slab.get(at).is_some_and(|op| {
            let is_question = !matches!(op.messages[replica], Message::Mutation { .. });
            is_question && now >= op.limits.deadline_ns
        });
        if !is_late {
            return false;
        }
        let mut op = self.slab.take(at);
        self.excuse_pause(&mut op, now);
        let is_overdue = now >= op.limits.deadline_ns;
        if is_overdue {
            op.end_waiting();
        }
        self.slab.put(at, op);
        is_overdue
    }

    /// Whether the operation at this place still waits for room at this very
    /// backend. An entry of a link's queue may be left from an operation that has
    /// had the place before, of another cohort.
    fn waits_for_room_at(&self, at: u32, replica: usize, number: usize, way: Way) -> bool {
        self.slab.get(at).is_some_and(|op| {
            op.owed[replica] == Owed::Room(way)
                && (op.cohort.as_slice().get(replica) == Some(&(number as u32))
                    || mutants::is_on(Mutant::StaleBlocked))
        })
    }

    /// The way to a backend has not moved for long: whoever has no outcome yet goes
    /// on without it. Its message goes on waiting where the others are enough, as those
    /// do whose operation has ended: a third copy is not cancelled while its backend
    /// lives, up to a bound on what waits. So does a call that its operation cannot do
    /// without, until the operation's deadline: what keeps it waiting are calls of this
    /// process, and those that a backend does not answer are found out by its silence.
    #[cold]
    fn decide_without(&mut self, number: usize, way: Way, now: u64) {
        let len_max = self.options.waiting_len_max;
        let why = format!("backend {number} does not keep up");
        let mut kept_len = 0;
        // Each once; those that are kept queue up behind.
        for _ in 0..self.links[number].room(way).count() {
            let Some(waiter) = self.links[number].room_mut(way).pop() else {
                break;
            };
            let (at, replica) = (waiter.at, waiter.replica());
            if !self.waits_for_room_at(at, replica, number, way) {
                continue;
            }
            let Some(op) = self.slab.get_mut(at) else {
                continue;
            };
            kept_len += waiter.len();
            let is_over = op.outcome.is_some();
            let is_decided = is_over || op.held.is_some();
            let is_enough = is_decided || op.can_do_without(replica);
            if is_over || kept_len <= len_max && is_enough {
                if !is_decided && op.lateness.is_due(way, now) {
                    op.no_answer(replica, SendFailure::Waits, &why);
                    self.slab.make_ready(at);
                }
                self.links[number].room_mut(way).push_back(waiter);
            } else if way == Way::Far && !is_enough {
                self.links[number].room_mut(way).push_back(waiter);
            } else {
                self.give_up_waiting(at, replica, &why);
            }
        }
        self.end_held(number, way);
    }

    /// Those that were held because too much was waiting here look whether they end.
    #[cold]
    fn end_held(&mut self, number: usize, way: Way) {
        if !self.links[number].room(way).has_held() {
            return;
        }
        let now = self.host.monotonic_ns();
        let room = self.links[number].room_mut(way);
        if room.len() <= self.options.waiting_len_max || room.is_stuck(now) {
            for at in room.take_held() {
                self.slab.make_ready(at);
            }
        }
    }

    /// An operation is decided. One of whose messages waits behind too many others
    /// for room ends when there are fewer: whoever writes does not leave a slow
    /// replica behind by more than that. Where nothing moves, or the caller's patience
    /// ends, that copy is given up.
    pub(crate) fn hold_or_finish(&mut self, at: u32, mut op: Box<Op>, outcome: Outcome, now: u64) {
        let mut is_held = false;
        if op.held.is_some() && op.topology != self.topology_count {
            // What it still has to send has nowhere to go any more.
            op.owed = Default::default();
        }
        let cohort = op.cohort;
        for (replica, number) in cohort.as_slice().iter().enumerate() {
            let Owed::Room(way) = op.owed[replica] else {
                continue;
            };
            let room = self.links[*number as usize].room_mut(way);
            if room.len() <= self.options.waiting_len_max || mutants::is_on(Mutant::NeverHeld) {
                continue;
            }
            if now >= op.limits.deadline_ns || room.is_stuck(now) {
                op.owed[replica] = Owed::Nothing;
            } else {
                room.hold(at);
                is_held = true;
            }
        }
        if is_held {
            op.held = Some(outcome);
            op.wake_ns = op.limits.deadline_ns;
            self.slab.set_timer(at, &op);
            self.slab.put(at, op);
        } else {
            self.slab.put(at, op);
            self.finish(at, outcome, now);
        }
    }

    /// The backend is gone, or does not keep up: what waits for room is not sent.
    #[cold]
    pub(crate) fn drop_blocked(&mut self, number: usize, way: Way) {
        let why = format!("backend {number} does not keep up");
        while let Some(waiter) = self.links[number].room_mut(way).pop() {
            let (at, replica) = (waiter.at, waiter.replica());
            if self.waits_for_room_at(at, replica, number, way) {
                self.give_up_waiting(at, replica, &why);
            }
        }
        self.end_held(number, way);
    }

    /// A message that waits for room is not sent.
    #[cold]
    fn give_up_waiting(&mut self, at: u32, replica: usize, why: &str) {
        let Some(op) = self.slab.get_mut(at) else {
            return;
        };
        op.owed[replica] = Owed::Nothing;
        if op.held.is_none() {
            op.no_answer(replica, SendFailure::NotSent, why);
        }
        // Two hold what the third does not get.
        let lacks = op.is_stored();
        let (hash, number) = (op.hash, op.cohort.as_slice()[replica]);
        self.slab.make_ready(at);
        self.end_of_room(at);
        if lacks {
            self.lacks(number, hash);
        }
    }

    /// The last message of an operation that is decided was sent at last.
    fn watch_sent(&mut self, at: u32, replica: usize, now: u64) {
        if self.slab.get(at).is_some_and(Op::is_stored) {
            let mut op = self.slab.take(at);
            self.expect_late(&mut op, replica, now);
            self.slab.put(at, op);
        }
    }

    /// An operation that is over stays for its last message only.
    pub(crate) fn end_of_room(&mut self, at: u32) {
        if self.slab.get(at).is_some_and(|op| {
            op.outcome.is_some() && op.owner == Owner::Nobody && !op.keeps_its_place()
        }) {
            self.slab.release(at);
        }
    }

    fn take_event(&mut self, event: Event<H::Port>) {
        match event {
            Event::Connected {
                backend,
                topology,
                result,
            } => {
                if self.is_current(&topology) && (backend as usize) < self.links.len() {
                    match result {
                        Ok(port) if is_leaving(&port) => self.met_leaving(backend),
                        Ok(port) if self.is_ahead(&port) => {
                            self.early.push((backend, topology, port, 0));
                            self.begin_learning();
                        }
                        result => self.connected(backend, result),
                    }
                }
            }
            Event::Learned(result) => {
                self.is_learning = false;
                if let Ok(fresh) = result {
                    self.adopt(fresh);
                }
                self.learned();
                self.take_early();
            }
        }
    }

    /// Whether its backends are those of now.
    fn is_current(&self, topology: &Arc<Topology>) -> bool {
        Arc::ptr_eq(topology, &self.topology)
            || topology.config().backends == self.topology.config().backends
                && topology.id().life == self.topology.id().life
    }

    /// Whether the backend serves a later configuration than is known here: the cell may
    /// have been resized, and keys stand elsewhere. Nothing is read there before that is
    /// known.
    fn is_ahead(&self, port: &H::Port) -> bool {
        let found = port.agreement().map(|agreement| agreement.topology);
        found.is_some_and(|found| self.topology.id().is_followed_by(found))
    }

    /// Who has greeted is on its way out. Where a successor is expected, that is looked for
    /// again, and who waits for it goes on waiting.
    #[cold]
    fn met_leaving(&mut self, backend: u32) {
        let now = self.host.monotonic_ns();
        let link = &mut self.links[backend as usize];
        if link.awaits_successor(now) && link.near.is_none() {
            link.connects_anew(&mut self.host, &self.topology);
        } else {
            let why = "it is leaving its place to another process";
            self.connected(backend, Err(NotConnected::down(why)));
        }
    }

    /// Those who waited for the topology.
    fn take_early(&mut self) {
        for (backend, topology, port, looks) in std::mem::take(&mut self.early) {
            if !self.is_current(&topology) || backend as usize >= self.links.len() {
                continue;
            }
            if !self.is_ahead(&port) {
                self.connected(backend, Ok(port));
            } else if looks < EARLY_LOOKS_MAX {
                self.early.push((backend, topology, port, looks + 1));
            } else {
                let why = "its configuration is not known here";
                self.connected(backend, Err(NotConnected::down(why)));
            }
        }
        if !self.early.is_empty() {
            self.begin_learning();
        }
    }

    fn connected(&mut self, backend: u32, result: Result<H::Port, NotConnected>) {
        let now = self.host.monotonic_ns();
        let result = result.and_then(|port| {
            let (id, since) = (self.topology.id(), self.placed_since);
            let found = port.agreement().map(|agreement| agreement.topology);
            match found.is_some_and(|found| found.life == id.life && found.config_id < since) {
                true => Err(NotConnected::down(
                    "it is of the cell before it was resized",
                )),
                false => Ok(port),
            }
        });
        let link = &mut self.links[backend as usize];
        self.view_count += 1;
        let is_up = match result {
            Ok(port) => {
                let expected = |port: &H::Port| {
                    port.agreement().is_none_or(|agreement| {
                        agreement.topology.life == self.topology.id().life
                            && agreement.hasher == self.topology.hasher()
                    })
                };
                if !expected(&port) {
                    // Nothing is read from there under this topology.
                    let why = "another life";
                    if link.near.is_some() {
                        self.lose(backend as usize, why);
                    }
                    let link = &mut self.links[backend as usize];
                    link.not_connected(&NotConnected::down(why), now, &mut self.host);
                    self.begin_learning();
                    false
                } else if link.stands(now) && !port.has_messages() || link.stands_as_well_as(&port)
                {
                    link.has_answered_greeting(now);
                    link.stays(now);
                    true
                } else {
                    let was_owed = std::mem::take(&mut link.near_owes) > 0;
                    link.connected(port, now, &mut self.host);
                    link.make_caller_for_touches(&mut self.host, &self.topology);
                    if was_owed {
                        let why = "another connection has taken this one's place";
                        let is_near = |owed: &Owed| matches!(owed, Owed::Near(_));
                        let failure = (SendFailure::Lost, why);
                        self.lose_owed(backend as usize, failure, is_near);
                    }
                    self.lose_late(backend as usize, Via::Near);
                    self.take_missed(now);
                    true
                }
            }
            Err(_) if link.stands(now) => {
                link.stays(now);
                true
            }
            Err(error) => {
                if link.near.is_some() {
                    self.lose(backend as usize, &error.why);
                }
                let link = &mut self.links[backend as usize];
                link.not_connected(&error, now, &mut self.host);
                let is_down = link.is_down();
                if is_down {
                    self.learn_now_and_then(now);
                }
                !is_down
            }
        };
        self.connection_ended(backend, is_up);
    }

    /// Tells every operation that waits for this backend's connection.
    fn connection_ended(&mut self, backend: u32, is_up: bool) {
        let is_mapped = self.links[backend as usize].view().is_some();
        let mut hit = Vec::new();
        for (at, op) in self.slab.all() {
            for replica in 0..op.cohort.as_slice().len() {
                if op.cohort.as_slice()[replica] == backend && op.owed[replica] == Owed::Connection
                {
                    op.owed[replica] = Owed::Nothing;
                    op.reconnected(replica, is_up, is_mapped);
                    hit.push(at);
                }
            }
        }
        for at in hit {
            self.slab.make_ready(at);
        }
    }

    /// Tells every operation that waits for the topology.
    fn learned(&mut self) {
        let mut hit = Vec::new();
        for (at, op) in self.slab.all() {
            for replica in 0..op.owed.len() {
                if op.owed[replica] == Owed::Topology {
                    op.owed[replica] = Owed::Nothing;
                    op.refreshed(replica);
                    hit.push(at);
                }
            }
        }
        for at in hit {
            self.slab.make_ready(at);
        }
    }

    /// Ends an operation: counts, touches, and hands it to its owner.
    pub(crate) fn finish(&mut self, at: u32, outcome: Outcome, now: u64) {
        let mut op = self.slab.take(at);
        op.outcome = Some(outcome);
        op.wake_ns = u64::MAX;
        if matches!(
            outcome,
            Outcome::Mutated(MutationOutcome::Rejected(Rejection::ClockAhead))
        ) {
            self.versions.begin_again();
        }
        match (&op.machine, outcome) {
            (Machine::Get(get), outcome) => {
                self.counters.lookup_retried(&get.retries());
                if let Outcome::Hit { version } = outcome {
                    let host = &self.host;
                    self.versions.observe_sanely(version, || host.unix_ns());
                    if op.reports_use && op.topology == self.topology_count {
                        self.item_read(ItemRead {
                            hash: op.hash,
                            cohort: op.cohort,
                            slots: std::array::from_fn(|place| get.touched_slot(place)),
                        });
                    }
                }
            }
            (Machine::Mutate(machine), _) => {
                self.counters.mutation_retried(&machine.retries());
            }
            (Machine::Cas { machine, .. }, _) => {
                self.counters.mutation_retried(&machine.retries());
                // The next attempt has to lie above whatever refused this one.
                let host = &self.host;
                self.versions
                    .observe_sanely(machine.bound(), || host.unix_ns());
            }
            _ => {}
        }
        // What is not stored needs no third copy, and what was asked no third answer.
        let is_question = matches!(op.machine, Machine::Get(_) | Machine::Uses { .. });
        let is_stored = matches!(outcome, Outcome::Mutated(MutationOutcome::Stored { .. }));
        if is_question || op.lateness.is_any() && !is_stored {
            op.forget_room();
        }
        if op.is_stored() {
            self.watch_copies(&mut op, now);
        } else if let Machine::Get(get) = &op.machine
            && get.is_dirty()
            && op.topology == self.topology_count
        {
            self.suspect(op.hash);
        }
        count(&mut self.counters, &outcome);
        self.slab.finish(at, &op);
        let is_over = op.owner == Owner::Nobody
            && !op.keeps_its_place()
            && !mutants::is_on(Mutant::AbandonedKept);
        self.slab.put(at, op);
        if is_over {
            self.slab.release(at);
        }
    }

    /// The next operation that has ended, with its caller's token.
    pub fn next_done(&mut self) -> Option<(u32, u64)> {
        while let Some(at) = self.slab.done.pop_front() {
            if let Some(op) = self.slab.get(at)
                && let Owner::Token(token) = op.owner
                && op.outcome.is_some()
            {
                return Some((at, token));
            }
        }
        None
    }

    /// Whether an operation has ended that nobody was told of.
    pub fn has_done(&self) -> bool {
        !self.slab.done.is_empty()
    }

    /// How an operation ended; `None` if it has not.
    pub fn ended(&self, at: u32) -> Option<Ended<'_>> {
        let op = self.slab.get(at)?;
        let outcome = op.outcome?;
        let entry = match outcome {
            Outcome::Hit { .. } => DataEntry::decode(op.buffers[op.hit_replica].bytes()),
            _ => None,
        };
        Some(Ended {
            outcome,
            entry,
            reason: op.reason.as_deref(),
        })
    }

    /// How an operation ended, if it has: its place is free, and a hit's data entry
    /// is in `into`.
    pub fn take_ended(
        &mut self,
        at: u32,
        into: &mut WordBuffer,
    ) -> Option<(Outcome, Option<String>)> {
        let op = self.slab.get_mut(at)?;
        let outcome = op.outcome?;
        let reason = op.reason.take();
        if let Outcome::Hit { .. } = outcome {
            std::mem::swap(&mut op.buffers[op.hit_replica], into);
        }
        self.release(at);
        Some((outcome, reason))
    }

    /// Whether the operation at `at` has ended.
    #[inline]
    pub fn has_ended(&self, at: u32) -> bool {
        self.slab.get(at).is_none_or(|op| op.outcome.is_some())
    }

    /// The owner has been told: the operation's place is free, unless one of its
    /// messages still waits for room, or may have to be sent again.
    pub fn release(&mut self, at: u32) {
        if let Some(op) = self.slab.get_mut(at) {
            if op.keeps_its_place() && op.outcome.is_some() {
                op.owner = Owner::Nobody;
            } else {
                self.slab.release(at);
            }
        }
    }

    /// The caller with this token does not want to know any more. A lookup ends; a
    /// mutation of which something may have been sent goes on to all replicas.
    pub fn abandon(&mut self, token: u64) {
        let Some(at) = self.slab.find(Owner::Token(token)) else {
            return;
        };
        let Some(op) = self.slab.get_mut(at) else {
            return;
        };
        let goes_on = matches!(op.machine, Machine::Mutate(_) | Machine::Cas { .. });
        if goes_on && op.outcome.is_none() {
            op.owner = Owner::Nobody;
        } else {
            self.release(at);
        }
    }

    /// Operations that have a place: under way, or ended and not handed out.
    pub fn in_flight(&self) -> usize {
        self.slab.used
    }

    /// When [`Driver::turn`] is to be called even if nothing has come, on the
    /// monotonic clock; `u64::MAX` if there is no such time.
    pub fn next_deadline_ns(&mut self) -> u64 {
        match self.has_done() {
            true => 0,
            false => self.next_work_ns(),
        }
    }

    /// The same for somebody who waits for one operation: what has ended for others
    /// can wait.
    pub fn next_work_ns(&mut self) -> u64 {
        if self.slab.has_ready() {
            return 0;
        }
        let mut next = self.slab.next_timer_ns();
        for link in &self.links {
            if link.near_owes > 0 || link.far_owes > 0 && link.view().is_some() {
                next = next.min(link.look_at_ns);
            }
            if let Some(leaving) = &link.leaving {
                next = next.min(leaving.until_ns);
            }
            next = next.min(link.silent_at_ns());
            for way in Way::ALL {
                next = next.min(link.room(way).look_at_ns());
            }
            next = next.min(link.greeting_ends_ns());
            if link.is_behind() {
                next = next.min(self.idle_look_ns);
            }
        }
        next.min(self.suspects.due_ns())
    }

    /// When the operation at `at`, which somebody waits for, is to be gone on with.
    pub fn wake_ns(&self, at: u32) -> u64 {
        self.slab.get(at).map_or(0, |op| op.wake_ns)
    }

    /// Whether a turn would find something to do.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        // A loop of its own: what waits for an answer looks here again and again.
        for link in &self.links {
            if link.near_owes > 0 && link.near.as_ref().is_some_and(Port::is_ready)
                || link.far_expected().is_some_and(Port::is_ready)
                || link.leaving.as_ref().is_some_and(|l| l.port.is_ready())
            {
                return true;
            }
        }
        false
    }

    /// Whether something is left for a turn to do, or was done and not handed out.
    pub fn has_work(&self) -> bool {
        self.slab.has_ready() || self.has_done()
    }

    /// The best carriers that stand, and those that owe answers although they do not.
    pub fn near_ports(&self) -> impl Iterator<Item = &H::Port> {
        self.links.iter().flat_map(|link| {
            let leaving = link.leaving.as_ref().map(|leaving| &leaving.port);
            link.near.as_ref().into_iter().chain(leaving)
        })
    }

    /// The ports that owe something, answers or room.
    pub fn ports(&self) -> impl Iterator<Item = &H::Port> {
        self.links.iter().flat_map(|link| {
            let near = link.near.as_ref().filter(|_| link.near_owes > 0);
            let leaving = link.leaving.as_ref().map(|leaving| &leaving.port);
            near.into_iter().chain(link.far_expected()).chain(leaving)
        })
    }

    /// Whether a connection is still being made that nobody has lost patience with.
    pub fn is_connecting(&self) -> bool {
        self.links
            .iter()
            .any(|link| link.is_connecting() && link.greeting_ends_ns() != u64::MAX)
    }

    /// How each backend is reached.
    pub fn carriers(&self) -> Vec<LinkStatus> {
        self.links.iter().map(Link::status).collect()
    }

    /// Bytes of what has ended and still waits for room on the way to one backend, by
    /// ring or by calls, whichever is more: at most
    /// [`waiting_len_max`](crate::Options::waiting_len_max) at each.
    pub fn left_waiting_len(&self, number: u32) -> usize {
        let Some(link) = self.links.get(number as usize) else {
            return 0;
        };
        let len = |way| -> usize {
            let has_ended = |waiter: &&Waiter| {
                self.waits_for_room_at(waiter.at, waiter.replica(), number as usize, way)
                    && self.has_ended(waiter.at)
            };
            let waiters = link.room(way).waiters();
            waiters.filter(has_ended).map(Waiter::len).sum()
        };
        len(Way::Near).max(len(Way::Far))
    }

    /// Whether every answer to what was sent near has come, and nothing waits for room.
    pub fn is_settled(&self) -> bool {
        let is_settled = |link: &Link<_>| {
            link.near_owes == 0
                && link.leaving.is_none()
                && Way::ALL.iter().all(|way| link.room(*way).is_empty())
        };
        self.links.iter().all(is_settled)
    }
}

/// Whether a backend serves nobody: it has left its place, or is at it.
fn is_leaving(port: &impl Port) -> bool {
    let is_changing = (port.agreement()).is_some_and(|found| found.topology.is_changing());
    is_changing || port.view().is_some_and(|view| view.has_moved())
}

fn count(counters: &mut Counters, outcome: &Outcome) {
    match outcome {
        Outcome::Hit { .. } => counters.hits += 1,
        Outcome::Miss { reason, .. } => {
            counters.misses += 1;
            counters.inquorate += u64::from(*reason == MissReason::Inquorate);
        }
        Outcome::Failed { .. }
        | Outcome::Mutated(MutationOutcome::Rejected(_) | MutationOutcome::Failed { .. }) => {
            counters.failed += 1;
        }
        Outcome::Mutated(MutationOutcome::Indeterminate) => counters.indeterminate += 1,
        Outcome::Mutated(_) | Outcome::Uses(_) => {}
    }
}

impl Counters {
    /// Counts a lookup that ended in place.
    #[inline(always)]
    pub fn add(&mut self, outcome: &GetOutcome) {
        match outcome {
            GetOutcome::Hit { .. } => self.hits += 1,
            GetOutcome::Miss { reason } => {
                self.misses += 1;
                self.inquorate += u64::from(*reason == MissReason::Inquorate);
            }
            GetOutcome::Failed { .. } => self.failed += 1,
        }
    }
}

impl NotConnected {
    /// The backend cannot be reached by anything.
    pub fn down(why: &str) -> Self {
        NotConnected {
            why: why.to_owned(),
            is_down: true,
            is_final: false,
        }
    }
}
