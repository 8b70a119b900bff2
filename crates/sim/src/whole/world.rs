//! One run: what happens when, and whether all is as it should be afterwards.

use super::book::Book;
use super::client::{Client, Ended, Want};
use super::moves;
use super::net::{Errand, Log, Net, RENEWAL_NS};
use super::port::SimPort;
use super::process::{Process, State};
use super::profile::Profile;
use super::replace;
use super::resize;
use super::stats::{Count, WholeStats};
use crate::history::Broken;
use crate::rng::Rng;
use crate::violation::Property;
use std::rc::Rc;
use std::sync::Arc;
use trefoil_cell::{BackendConfig, CellConfig, Mode, RpcAddress};
use trefoil_client_core::cas::AT_REST_NS;
use trefoil_client_core::get::MissReason;
use trefoil_client_core::outcome::MutationOutcome;
use trefoil_driver::Topology;
use trefoil_layout::limits::CLOCK_AHEAD_NS_MAX;
use trefoil_layout::op::Found;
use trefoil_layout::{KeyHasher, Version};
use trefoil_region::WordBuffer;

/// Turns of clients in one run, at most.
const TURNS_MAX: u64 = 1_000_000;
/// How long a run may take to come to rest, in nanoseconds of its own time.
const REST_NS: u64 = 20_000_000_000;
/// How often an operation is tried at rest, and what is between two attempts.
const ATTEMPTS: usize = 4;
const PAUSE_NS: u64 = 300_000_000;
/// Until every client has tried its backends again.
const CALM_NS: u64 = 1_500_000_000;
/// Before a backend is started that cannot be yet.
const LATER_NS: u64 = 20_000_000;

/// Something that goes wrong, or is put right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    /// The backend that was killed comes back empty.
    Revive(u32),
    /// A backend moves to another process.
    Move,
    /// The cell gets another size.
    Resize,
    /// A place is given to another process.
    Replace,
    Stop,
    GoOn(u32),
    /// The cell ends; then it begins anew.
    EndCell,
    BeginCell,
    Flush,
    ClientDeath,
    Disconnect,
}

pub(super) struct World {
    net: Rc<Net>,
    book: Book,
    clients: Vec<Client>,
    faults: Vec<(u64, Fault)>,
    operations_left: usize,
    turns: u64,
    /// Incarnations of each backend in this life of the cell.
    counts: Vec<u32>,
    /// What is flushed and not served by every live backend yet.
    flushing: Option<Arc<Topology>>,
    /// The cell has ended and not begun anew.
    is_down: bool,
    /// The one that is killed again and again.
    victim: u32,
}

/// Runs one profile.
pub(super) fn run(profile: Profile, rng: Rng, log: Rc<Log>) -> (WholeStats, Result<(), Broken>) {
    let mut world = World::new(profile, rng, log);
    let result = world.run();
    world.net.stats.add(Count::Seeds);
    let stats = world.net.stats.take();
    world.net.clear();
    (stats, result)
}

/// Where a backend is that was never replaced.
pub(super) fn address(number: u32) -> RpcAddress {
    RpcAddress::Unix(format!("/sim/{number}").into())
}

pub(super) fn backend_at(number: u32, address: RpcAddress) -> BackendConfig {
    BackendConfig {
        number,
        addresses: vec![address],
        fabric_socket: None,
        place: None,
    }
}

fn topology(rng: &Rng, life: u64, replicas: usize, backends: usize) -> Arc<Topology> {
    let backend = |number| backend_at(number, address(number));
    let config = CellConfig {
        life,
        config_id: 1 + rng.below(3) as u32,
        cell: "sim".to_owned(),
        mode: match replicas {
            1 => Mode::R1,
            _ => Mode::R32,
        },
        backends: (0..backends as u32).map(backend).collect(),
        hash: KeyHasher {
            seed: [rng.next(), rng.next()],
            ..KeyHasher::default()
        },
        value_len_max: 1 << 16,
        eviction: "slru".to_owned(),
        flush_floor: Version::ZERO,
        corpus: None,
    };
    Arc::new(Topology::new(Arc::new(config)))
}

impl World {
    fn new(profile: Profile, rng: Rng, log: Rc<Log>) -> Self {
        let first = topology(&rng, rng.next() | 1, profile.replicas, profile.backends);
        let net = Rc::new(Net::new(profile, rng, log, first));
        net.trace(None, || format!("{:?}", net.profile));
        let mut world = World {
            book: Book::new(net.profile.keys, net.profile.twice > 0),
            clients: Vec::new(),
            faults: Vec::new(),
            operations_left: net.profile.operations,
            turns: 0,
            counts: Vec::new(),
            flushing: None,
            is_down: false,
            victim: 0,
            net,
        };
        world.begin_cell();
        world.net.send(RENEWAL_NS, Errand::Renew);
        for number in 0..world.net.profile.clients {
            world.clients.push(Client::new(&world.net, number));
        }
        world.plan_faults();
        world
    }

    fn plan_faults(&mut self) {
        let profile = &self.net.profile;
        let planned = [
            (Fault::Kill, profile.kills),
            (Fault::Move, profile.moves),
            (Fault::Resize, profile.resizes),
            (Fault::Replace, profile.replaces),
            (Fault::Stop, profile.stops),
            (Fault::EndCell, profile.restarts),
            (Fault::Flush, profile.flushes),
            (Fault::ClientDeath, profile.client_deaths),
            (Fault::Disconnect, profile.disconnects),
        ];
        for (fault, count) in planned {
            for _ in 0..count {
                let at = self.net.now_ns.get() + self.net.rng.below(profile.span_ns);
                self.faults.push((at, fault));
            }
        }
    }

    /// Starts every backend of the configuration in force.
    fn begin_cell(&mut self) {
        let net = &self.net;
        let topology = Arc::clone(&net.published.borrow());
        let backends = topology.config().backends.len();
        self.book.begin_life(topology.id().life, net.now_ns.get());
        self.counts = vec![1; backends];
        self.victim = net.rng.index(backends) as u32;
        self.flushing = None;
        let processes: Vec<_> = (0..backends as u32)
            .map(|number| Process::start(net, &topology, number, 1))
            .collect();
        for process in &processes {
            process.fill(net);
        }
        *net.processes.borrow_mut() = processes;
        self.is_down = false;
    }

    fn run(&mut self) -> Result<(), Broken> {
        self.go_on_until(u64::MAX, |world| {
            world.operations_left == 0
                && world.faults.is_empty()
                && world.net.successor.borrow().is_none()
                && world.net.resize.borrow().is_none()
                && world.clients.iter().all(Client::is_idle)
        })?;
        self.heal();
        self.rest()?;
        // Nobody recovers by a floor that lies beyond its clock.
        let end = self.net.now_ns.get() + REST_NS + 2 * self.net.profile.skew_ns;
        self.go_on_until(end, World::is_whole)?;
        if !self.is_whole() {
            let message = "nothing fails, and a backend does not recover".to_owned();
            return Err((Property::Stuck, message));
        }
        self.check_quorums()?;
        self.rest()?;
        for process in self.net.processes.borrow().iter() {
            let counts = process.store.stats().counts;
            self.net.trace(None, || {
                format!(
                    "backend {}: {} indexes replaced, {} evicted",
                    process.number, counts.index_reshapes, counts.evicted_capacity
                )
            });
        }
        if self.net.rng.chance(64) {
            for process in self.net.processes.borrow().iter() {
                if let Err(error) = process.store.check() {
                    let message = format!("backend {}: {error:?}", process.number);
                    return Err((Property::Store, message));
                }
            }
        }
        Ok(())
    }

    /// Lets everything happen, in order, until it is enough or so late.
    fn go_on_until(
        &mut self,
        end_ns: u64,
        is_enough: impl Fn(&World) -> bool,
    ) -> Result<(), Broken> {
        while !is_enough(self) {
            let net = Rc::clone(&self.net);
            let wakes = net.wakes.iter().map(std::cell::Cell::get);
            let faults = self.faults.iter().map(|(at, _)| *at);
            let next = wakes.chain(faults).min().unwrap_or(u64::MAX);
            let next = next.min(net.next_due_ns());
            if next > end_ns {
                net.now_ns.set(net.now_ns.get().max(end_ns));
                return Ok(());
            }
            net.now_ns.set(net.now_ns.get().max(next));
            net.run_due();
            if let Some(broken) = net.broken.take() {
                return Err(broken);
            }
            self.strike();
            for number in 0..self.clients.len() {
                if net.wakes[number].get() <= net.now_ns.get() {
                    self.turn(number)?;
                }
            }
        }
        Ok(())
    }

    /// A client's turn.
    fn turn(&mut self, number: usize) -> Result<(), Broken> {
        self.turns += 1;
        if self.turns > TURNS_MAX {
            let message = "clients turn and turn, and nothing comes of it".to_owned();
            return Err((Property::Stuck, message));
        }
        self.net.wakes[number].set(u64::MAX);
        self.clients[number].act(&mut self.book)?;
        self.clients[number].check_left_waiting(&self.net)?;
        while self.operations_left > 0 && self.clients[number].can_begin() {
            self.operations_left -= 1;
            let want = self.choose();
            let key = self.net.rng.index(self.net.profile.keys);
            self.clients[number].begin(&mut self.book, want, key)?;
        }
        let wants_more = self.operations_left > 0;
        self.clients[number].set_wake(wants_more);
        let is_idle = !wants_more && self.clients.iter().all(Client::is_idle);
        self.net.is_idle.set(is_idle);
        Ok(())
    }

    fn choose(&self) -> Want {
        let weights = &self.net.profile.weights;
        let mut ticket = self.net.rng.below(weights.iter().sum());
        for (want, weight) in Want::ALL.into_iter().zip(weights) {
            if ticket < *weight {
                return want;
            }
            ticket -= weight;
        }
        Want::Get
    }

    /// Whatever goes wrong now.
    fn strike(&mut self) {
        let now = self.net.now_ns.get();
        while let Some(at) = self.faults.iter().position(|(due, _)| *due <= now) {
            let (_, fault) = self.faults.swap_remove(at);
            self.suffer(fault);
        }
        self.end_flush();
    }

    fn suffer(&mut self, fault: Fault) {
        let net = Rc::clone(&self.net);
        let now = net.now_ns.get();
        let any = net.rng.index(net.processes.borrow().len());
        match fault {
            Fault::Kill if self.is_down => {}
            // One copy: what it held is lost, which is no promise. The cell of now
            // counts: it may have been started anew in another mode.
            Fault::Kill if net.published.borrow().mode().replica_count() == 1 => {
                self.suffer(Fault::EndCell);
            }
            Fault::Kill => {
                // One failure at a time: another one only once everything has recovered.
                if self.has_recovered() {
                    self.victim = any as u32;
                }
                let victim = self.victim;
                if self.kill_successor(victim) || self.kill_joiner(victim) {
                    return;
                }
                if net.rng.chance(256) && replace::kill_former(&net, victim) {
                    return net.stats.add(Count::Killed);
                }
                if let Some(process) = net.process(victim) {
                    net.stats.add(Count::Killed);
                    process.end(&net, false);
                    let back = process.lease_end_ns.get().max(now) + net.rng.below(400_000_000);
                    self.faults.push((back, Fault::Revive(victim)));
                    if net.is_struck(if net.profile.replaces > 0 { 700 } else { 0 }) {
                        let about = back - net.rng.below(1 + back - now) / 8;
                        self.faults
                            .push((about + net.rng.below(5_000_000), Fault::Replace));
                    }
                }
            }
            Fault::Revive(number) => self.revive(number),
            Fault::Move => self.begin_move(any as u32),
            Fault::Resize => self.begin_resize(),
            Fault::Replace => self.replace(any as u32),
            Fault::Stop => {
                if let Some(process) = net.process(any as u32) {
                    net.stats.add(Count::Stopped);
                    process.stop(&net);
                    let until = now + net.rng.below(net.profile.stop_ns);
                    self.faults.push((until, Fault::GoOn(any as u32)));
                }
            }
            Fault::GoOn(number) => {
                for process in net.everybody() {
                    if process.number == number {
                        process.go_on(&net);
                    }
                }
            }
            Fault::EndCell if self.is_down => {}
            Fault::EndCell => {
                let is_clean = net.rng.chance(512);
                let mut begin = now + net.rng.below(200_000_000);
                net.resize.take();
                for process in net.everybody() {
                    process.end(&net, is_clean);
                    begin = begin.max(process.lease_end_ns.get());
                }
                self.is_down = true;
                if let Some(successor) = net.successor.take() {
                    successor.state.set(State::Dead);
                }
                self.faults.push((begin, Fault::BeginCell));
            }
            Fault::BeginCell => self.begin_anew(),
            Fault::Flush => self.flush(),
            Fault::ClientDeath => {
                net.stats.add(Count::ClientDied);
                let number = net.rng.index(self.clients.len());
                net.trace(None, || format!("client {number} dies"));
                self.clients[number].die();
                self.clients[number] = Client::new(&net, number);
            }
            Fault::Disconnect => {
                if let Some(process) = net.process(any as u32) {
                    net.stats.add(Count::Disconnected);
                    process.disconnect(&net, false);
                }
            }
        }
    }

    /// A backend of a cell that is whole moves. Who is killed meanwhile is one of the two
    /// processes, or another backend, and then that one alone.
    fn begin_move(&mut self, number: u32) {
        if self.is_down || !self.has_recovered() {
            return;
        }
        let count = self.counts[number as usize];
        if moves::begin(&self.net, number, count) {
            self.victim = match self.net.rng.chance(512) {
                true => number,
                false => self.net.rng.index(self.counts.len()) as u32,
            };
        }
    }

    /// A cell that is whole gets another size.
    fn begin_resize(&mut self) {
        if self.is_down {
            return;
        }
        let net = Rc::clone(&self.net);
        let is_whole = self.has_recovered();
        let now = net.processes.borrow().len();
        let sizes: Vec<u32> = [3, 4, 5]
            .into_iter()
            .filter(|n| *n as usize != now)
            .collect();
        if resize::begin(&net, net.rng.pick(&sizes)) && is_whole {
            self.victim = net.rng.index(now) as u32;
        }
    }

    /// Kills the process that is to be the victim of a cell of another size, if it is its
    /// turn.
    fn kill_joiner(&mut self, victim: u32) -> bool {
        let net = Rc::clone(&self.net);
        let (joiner, is_committed) = match net.resize.borrow().as_ref() {
            Some(resize) => (resize.joiner(victim).cloned(), resize.is_committed()),
            None => return false,
        };
        let Some(joiner) = joiner.filter(|_| is_committed || net.rng.chance(256)) else {
            return false;
        };
        net.stats.add(Count::Killed);
        net.trace(None, || format!("who is to be backend {victim} is killed"));
        joiner.fail(&net);
        if is_committed {
            let back = net.now_ns.get() + net.rng.below(400_000_000);
            self.faults.push((back, Fault::Revive(victim)));
        }
        true
    }

    /// Kills the process that takes the victim's place, if there is one, and it is its
    /// turn.
    fn kill_successor(&mut self, victim: u32) -> bool {
        let net = &self.net;
        let Some(successor) = net.successor.borrow().clone() else {
            return false;
        };
        let is_gone = net.process(victim).is_none();
        if successor.number != victim || !is_gone && net.rng.chance(512) {
            return false;
        }
        net.stats.add(Count::Killed);
        successor.give_up(net);
        if is_gone {
            let back = net.now_ns.get() + net.rng.below(400_000_000);
            self.faults.push((back, Fault::Revive(victim)));
        }
        true
    }

    fn revive(&mut self, number: u32) {
        let net = &self.net;
        let is_later = net.resize.borrow().as_ref().is_some_and(|resize| {
            // Nobody starts a backend of the cell as it was, and its number is held.
            resize.is_critical() || resize.is_committed() && resize.is_held(number)
        });
        if is_later {
            let again = net.now_ns.get() + LATER_NS;
            return self.faults.push((again, Fault::Revive(number)));
        }
        let before = net.resize.borrow().as_ref().and_then(|resize| {
            let is_free = resize.is_committed() && net.at(resize.before(), number).is_none();
            is_free.then(|| Arc::clone(resize.before()))
        });
        if let Some(before) = before
            && number < before.config().backends.len() as u32
            && net.rng.chance(512)
        {
            // Whoever starts it has read the configuration of before.
            let count = self.count_another(number);
            replace::begin_late(&self.net, &before, number, count);
            let again = self.net.now_ns.get() + LATER_NS;
            return self.faults.push((again, Fault::Revive(number)));
        }
        let is_dead = |process: &Rc<Process>| process.state.get() == State::Dead;
        if self.is_down
            || !net
                .processes
                .borrow()
                .get(number as usize)
                .is_some_and(is_dead)
        {
            return;
        }
        if net.at(&net.published.borrow(), number).is_some() {
            // One that has begun late has its number still.
            let again = net.now_ns.get() + LATER_NS;
            return self.faults.push((again, Fault::Revive(number)));
        }
        let count = self.count_another(number);
        let net = &self.net;
        let topology = Arc::clone(&net.published.borrow());
        let process = Process::start(net, &topology, number, count);
        net.processes.borrow_mut()[number as usize] = process;
    }

    /// A backend begins once more.
    fn count_another(&mut self, number: u32) -> u32 {
        // What was no number before may be one of the resized cell.
        let len = self.counts.len().max(number as usize + 1);
        self.counts.resize(len, 1);
        let count = &mut self.counts[number as usize];
        *count += 1;
        *count
    }

    /// A place is given to another process: that of a backend which is dead, or is taken
    /// for dead. While one recovers, it is that one's.
    fn replace(&mut self, number: u32) {
        let net = Rc::clone(&self.net);
        let is_busy = net.resize.borrow().is_some() || net.successor.borrow().is_some();
        if self.is_down || is_busy || net.published.borrow().mode().replica_count() == 1 {
            return;
        }
        if self.has_recovered() {
            self.victim = number;
        }
        let (number, before) = (self.victim, Arc::clone(&net.published.borrow()));
        let former = Rc::clone(&net.processes.borrow()[number as usize]);
        let is_free =
            former.state.get() == State::Dead && former.lease_end_ns.get() <= net.now_ns.get();
        let begins_late = is_free && net.rng.chance(700);
        if begins_late {
            // Whoever starts it again has read the configuration of before.
            let count = self.count_another(number);
            replace::begin_late(&net, &before, number, count);
        }
        let count = self.count_another(number);
        replace::begin(&net, number, count);
    }

    /// The cell is started anew: another life, and perhaps other backends, another
    /// hash.
    fn begin_anew(&mut self) {
        if !self.is_down {
            return;
        }
        let net = Rc::clone(&self.net);
        net.stats.add(Count::Restarted);
        let replicas = match net.rng.chance(128) {
            true => net.rng.pick(&[1, 3]),
            false => net.profile.replicas,
        };
        let backends = match net.rng.chance(512) {
            true => net.rng.pick(&[3, 4, 5]),
            false => net.profile.backends.max(replicas),
        };
        let fresh = topology(&net.rng, net.rng.next() | 1, replicas, backends);
        *net.published.borrow_mut() = fresh;
        self.begin_cell();
    }

    /// A configuration with a higher floor is put in force; backends serve it as they
    /// learn of it.
    fn flush(&mut self) {
        let net = Rc::clone(&self.net);
        if self.is_down || self.flushing.is_some() {
            return;
        }
        let newest = net
            .processes
            .borrow()
            .iter()
            .filter(|process| process.state.get() != State::Dead)
            .map(|process| process.store.newest())
            .max();
        let Some(floor) = newest else {
            return;
        };
        let current = Arc::clone(&net.published.borrow());
        let next = current.config().flushed(floor).expect("ids are left");
        net.trace(None, || format!("a flush raises the floor to {floor:?}"));
        let next = net.publish(Topology::new(Arc::new(next)));
        self.flushing = Some(next);
    }

    /// A flush is acknowledged when every live backend serves it, and nobody believes
    /// the memory of a dead one.
    fn end_flush(&mut self) {
        let Some(next) = &self.flushing else {
            return;
        };
        let id = next.id();
        let now = self.net.now_ns.get();
        let is_served = self.net.processes.borrow().iter().all(|process| {
            process.life == id.life
                && match process.state.get() {
                    State::Dead => process.lease_end_ns.get() + 100_000_000 < now,
                    _ => process.config_id.get() >= id.config_id,
                }
        });
        if is_served {
            self.net
                .trace(None, || "the flush is acknowledged".to_owned());
            self.net.stats.add(Count::Flushes);
            self.book.flushed(next.flush_floor());
            self.flushing = None;
        }
    }

    /// The end of all faults: everybody runs.
    fn heal(&mut self) {
        let net = Rc::clone(&self.net);
        net.is_calm.set(true);
        net.trace(None, || "from here on nothing goes wrong".to_owned());
        for process in net.everybody() {
            process.go_on(&net);
            net.send(1, Errand::CatchUp(process));
        }
    }

    /// Whether every backend is there, and nobody recovers any more.
    fn has_recovered(&self) -> bool {
        let is_over = |process: &Rc<Process>| {
            process.state.get() != State::Dead && process.recoveries.are_over()
        };
        self.net.successor.borrow().is_none() && self.net.processes.borrow().iter().all(is_over)
    }

    /// The same, and nothing else is on its way with the backends.
    fn is_whole(&self) -> bool {
        self.net.resize.borrow().is_none() && self.has_recovered()
    }

    /// Waits until nothing is under way; what has not ended by then has leaked.
    fn rest(&mut self) -> Result<(), Broken> {
        let begin = self.net.now_ns.get();
        self.go_on_until(begin + CALM_NS, |_| false)?;
        let is_settled = |world: &World| world.clients.iter().all(Client::is_settled);
        self.go_on_until(begin + REST_NS, is_settled)?;
        for client in &self.clients {
            if !client.is_settled() {
                let owing: Vec<_> = client.driver.ports().map(SimPort::describe).collect();
                let message = format!(
                    "client {} is at rest, but {} operations hold a place, and these owe answers: {owing:?}",
                    client.number,
                    client.driver.in_flight(),
                );
                return Err((Property::Leak, message));
            }
        }
        Ok(())
    }

    /// Whether a client's clock may be so far ahead of a backend's that what it
    /// writes is refused.
    fn are_clocks_apart(&self) -> bool {
        2 * self.net.profile.skew_ns >= CLOCK_AHEAD_NS_MAX
    }

    /// Every key that anybody touches has a quorum again.
    fn check_quorums(&mut self) -> Result<(), Broken> {
        // Everybody learns what has changed meanwhile.
        for key in 0..self.net.profile.keys {
            for client in 0..self.clients.len() {
                self.carry_out(client, Want::Get, key)?;
            }
        }
        self.rest()?;
        for key in 0..self.net.profile.keys {
            let healer = self.net.rng.index(self.clients.len());
            let want = self.net.rng.pick(&[Want::Set, Want::Add, Want::Erase]);
            let before = self.carry_out(healer, Want::Get, key)?;
            let is_done = |world: &World, ended: Ended| match ended {
                Ended::Mutated(MutationOutcome::Stored { .. }) => true,
                Ended::Mutated(MutationOutcome::Exists { .. }) => want == Want::Add,
                // A copy without a vote has taken it; or what they disagree on may be on
                // its way by the clocks, and it looks until its deadline.
                Ended::Mutated(MutationOutcome::Indeterminate | MutationOutcome::Failed { .. }) => {
                    want == Want::Add
                        && (world.counts.iter().any(|count| *count > 1)
                            || 2 * world.net.profile.skew_ns >= AT_REST_NS)
                }
                _ => false,
            };
            let ended = self.carry_out_until(healer, want, key, &is_done)?;
            if !is_done(self, ended) && !self.are_clocks_apart() {
                let message = format!("nothing fails, but {want:?} ended as {ended:?}");
                return Err((Property::Healed, message));
            }
            if before == Ended::Miss(MissReason::Inquorate) {
                self.net.stats.add(Count::Healed);
            }
            let is_stored = matches!(ended, Ended::Mutated(MutationOutcome::Stored { .. }));
            // What a full replica has evicted meanwhile is no quorum any more.
            let is_right = |world: &World, ended: Ended| match want {
                _ if !is_stored => true,
                Want::Erase => ended == Ended::Miss(MissReason::Absent),
                _ => ended == Ended::Hit || !world.is_held(key),
            };
            for client in 0..self.clients.len() {
                let ended = self.carry_out_until(client, Want::Get, key, &is_right)?;
                if !is_right(self, ended) {
                    let message = format!(
                        "nothing fails: after {want:?} of key {key} client {client}'s GET ended as {ended:?}; {}",
                        self.describe(client, key)
                    );
                    return Err((Property::Kept, message));
                }
            }
        }
        Ok(())
    }

    /// Whether a quorum of one epoch holds a value of the key, the same one.
    fn is_held(&self, key: usize) -> bool {
        let name = super::client::key_name(key);
        let topology = Arc::clone(&self.net.published.borrow());
        let cohort = topology.cohort(topology.hash(&name));
        let processes = self.net.processes.borrow();
        let held = cohort.as_slice().iter().filter_map(|number| {
            let process = &processes[*number as usize];
            let mut bytes = WordBuffer::default();
            let now = process.now(&self.net);
            let answer = process.store.lookup(now, &name, &mut bytes);
            match answer.found {
                Found::Present { version, .. } => Some((answer.epoch, version)),
                _ => None,
            }
        });
        let held: Vec<_> = held.collect();
        let needed = topology.mode().quorum();
        let alike = |one| held.iter().filter(|other| *other == one).count() >= needed;
        held.iter().any(alike)
    }

    /// What the backends hold of a key, and how a client reaches them.
    fn describe(&self, client: usize, key: usize) -> String {
        let name = super::client::key_name(key);
        let topology = Arc::clone(&self.net.published.borrow());
        let mut text = format!(
            "cohort {:?}",
            topology.cohort(topology.hash(&name)).as_slice()
        );
        for process in self.net.processes.borrow().iter() {
            let mut bytes = WordBuffer::default();
            let answer = process
                .store
                .lookup(process.now(&self.net), &name, &mut bytes);
            let held = match answer.found {
                Found::Present { version, .. } => format!("{version:?}"),
                Found::Absent => "nothing".to_owned(),
                Found::Rejected(rejection) => rejection.to_string(),
            };
            text += &format!("; {} in epoch {}: {held}", process.number, answer.epoch);
        }
        format!("{text}; {:?}", self.clients[client].driver.carriers())
    }

    /// The same operation until it ends as it should, or so often: a connection may
    /// have to be made, windows to be learned.
    fn carry_out_until(
        &mut self,
        client: usize,
        want: Want,
        key: usize,
        is_right: &dyn Fn(&World, Ended) -> bool,
    ) -> Result<Ended, Broken> {
        let mut ended = self.carry_out(client, want, key)?;
        for _ in 1..ATTEMPTS {
            if is_right(self, ended) {
                break;
            }
            let end = self.net.now_ns.get() + PAUSE_NS;
            self.go_on_until(end, |_| false)?;
            ended = self.carry_out(client, want, key)?;
        }
        Ok(ended)
    }

    /// One operation, from its begin to its end.
    fn carry_out(&mut self, client: usize, want: Want, key: usize) -> Result<Ended, Broken> {
        self.clients[client].last[key] = None;
        self.clients[client].begin(&mut self.book, want, key)?;
        self.clients[client].set_wake(false);
        let end = self.net.now_ns.get() + REST_NS;
        self.go_on_until(end, |world| {
            world.clients[client].is_idle() && world.clients[client].last[key].is_some()
        })?;
        self.clients[client].last[key].ok_or_else(|| {
            let message = format!("client {client}: {want:?} of key {key} does not end");
            (Property::Stuck, message)
        })
    }
}
