//! One run: who acts next, and when it ends.

use crate::client::{Client, Kind};
use crate::env::{Env, Life, Message};
use crate::history::{Broken, KeyHistory};
use crate::profile::{BEREFT_PATIENCE_STEPS, Profile};
use crate::recovery::Recovery;
use crate::repair::Repair;
use crate::rng::Rng;
use crate::stats::{Mark, Stats};
use crate::trace::{Sink, Trace};
use trefoil_layout::op::Found;
use trefoil_region::WordBuffer;

/// Scheduler steps per operation, at most: operations that are stuck behind
/// losses are left unfinished.
const STEPS_PER_OPERATION: u64 = 60;

/// Messages among which the next to arrive is chosen, if it is a recent one.
const RECENT: usize = 4;

/// How long a backend that was chosen to crash still lives, at most.
const SPITE_STEPS: u64 = 12;

pub(crate) struct World<'t, const R: usize> {
    env: Env<'t>,
    clients: Vec<Client<R>>,
    histories: Vec<KeyHistory>,
    /// Operations to begin, final GETs of every key by every client apart.
    remaining: usize,
    finals: usize,
    crash_at: u64,
    recoveries: Vec<Recovery>,
    repairs: Vec<Repair>,
}

/// Runs one profile.
pub(crate) fn run(
    profile: Profile,
    rng: Rng,
    sink: Option<Sink<'_>>,
) -> (Stats, Result<(), Broken>) {
    match profile.replicas {
        1 => World::<1>::new(profile, rng, sink).run(),
        _ => World::<3>::new(profile, rng, sink).run(),
    }
}

impl<'t, const R: usize> World<'t, R> {
    fn new(profile: Profile, rng: Rng, sink: Option<Sink<'t>>) -> Self {
        let env = Env::new(profile, rng, Trace::new(sink));
        let profile = &env.profile;
        env.trace.line(None, || format!("{profile:?}"));
        let mut histories: Vec<_> = env.keys.iter().map(|_| KeyHistory::default()).collect();
        if profile.survivors {
            for (history, held) in histories.iter_mut().zip(env.part_survivors()) {
                history.begin_with(held);
            }
        }
        let crash_at = if profile.crash {
            env.rng.below(profile.crash_interval)
        } else {
            u64::MAX
        };
        World {
            clients: (0..profile.clients).map(|i| Client::new(&env, i)).collect(),
            histories,
            remaining: profile.operations,
            finals: profile.clients * profile.keys,
            crash_at,
            recoveries: Vec::new(),
            repairs: match env.profile.repair {
                0 => Vec::new(),
                _ => (0..env.members.len())
                    .step_by(R)
                    .map(|first| Repair::new(&env, first))
                    .collect(),
            },
            env,
        }
    }

    fn run(mut self) -> (Stats, Result<(), Broken>) {
        let mut steps_max = STEPS_PER_OPERATION * (self.remaining + self.finals) as u64;
        if self.env.profile.bereft {
            steps_max += 3 * BEREFT_PATIENCE_STEPS;
        }
        let mut result = Ok(());
        let mut step = 0;
        while step < steps_max && result.is_ok() && !self.is_over() {
            self.env.step.set(step);
            self.env.trace.set_step(step);
            result = self.step(step);
            step += 1;
        }
        self.conclude(step);
        (self.env.stats.take(), result)
    }

    fn is_over(&self) -> bool {
        self.remaining == 0 && self.finals == 0 && self.env.alone.get().is_none() && self.all_idle()
    }

    fn step(&mut self, step: u64) -> Result<(), Broken> {
        self.env.pass_time();
        if self.crash_at != u64::MAX && self.env.victim.get().is_some() {
            self.crash_at = self.crash_at.min(step + SPITE_STEPS);
        }
        if step >= self.crash_at {
            self.crash_at = u64::MAX;
            self.crash();
        }
        if !self.recoveries.is_empty() && self.env.rng.chance(self.env.profile.recovery_pace) {
            self.recover(step);
            return Ok(());
        }
        if !self.repairs.is_empty() && self.env.rng.chance(self.env.profile.repair) {
            let at = self.env.rng.index(self.repairs.len());
            return self.repairs[at].step(&self.env, &mut self.histories);
        }
        if self.env.rng.chance(self.env.profile.surroundings) {
            self.surroundings();
            return Ok(());
        }
        if self.env.rng.chance(512) && self.arrive() {
            return Ok(());
        }
        let client = self.env.rng.index(self.clients.len());
        if self.clients[client].is_idle() {
            self.begin(client);
        }
        self.clients[client].step(&self.env, &mut self.histories)
    }

    fn begin(&mut self, client: usize) {
        let env = &self.env;
        if let Some(alone) = env.alone.get() {
            if client == alone && self.all_idle() {
                let (kind, key) = if env.heals.take() {
                    (Kind::Cas, self.clients[client].key())
                } else {
                    (Kind::Get, env.rng.index(env.keys.len()))
                };
                self.clients[client].begin(env, &self.histories, kind, key);
            }
            return;
        }
        let (kind, key) = if self.remaining > 0 {
            self.remaining -= 1;
            (self.choose(client), env.rng.index(env.keys.len()))
        } else if self.finals > 0 {
            if env.profile.calm && !self.has_settled() {
                return;
            }
            self.finals -= 1;
            (Kind::Get, self.finals % env.keys.len())
        } else {
            return;
        };
        if env.profile.calm && kind == Kind::Get && env.rng.chance(512) {
            env.alone.set(Some(client));
            return;
        }
        self.clients[client].begin(env, &self.histories, kind, key);
    }

    fn all_idle(&self) -> bool {
        self.clients.iter().all(Client::is_idle)
    }

    /// Whether a calm run's mutations are all through.
    fn has_settled(&self) -> bool {
        let env = &self.env;
        self.all_idle() && env.messages.borrow().is_empty() && env.answers.borrow().is_empty()
    }

    fn choose(&self, client: usize) -> Kind {
        let weights = &self.env.profile.weights;
        let mut ticket = self.env.rng.below(weights.iter().sum());
        let kinds = [Kind::Get, Kind::Set, Kind::Erase, Kind::Cas, Kind::Fill];
        for (kind, weight) in kinds.into_iter().zip(weights) {
            if ticket < *weight {
                let fits = kind != Kind::Fill || self.clients[client].can_fill();
                return if fits { kind } else { Kind::Get };
            }
            ticket -= weight;
        }
        Kind::Get
    }

    /// A message or an answer arrives; `false` if none is on its way.
    fn arrive(&mut self) -> bool {
        let env = &self.env;
        let answers_first = env.rng.chance(512);
        for is_answer in [answers_first, !answers_first] {
            if is_answer {
                let due = |at: usize| env.answers.borrow()[at].due;
                let Some(at) = self.next_to_arrive(env.answers.borrow().len(), due) else {
                    continue;
                };
                let answer = env.answers.borrow_mut().remove(at);
                if env.operations[answer.client].get() == answer.operation {
                    self.clients[answer.client].hear(&answer);
                }
            } else {
                let due = |at: usize| env.messages.borrow()[at].due;
                let Some(at) = self.next_to_arrive(env.messages.borrow().len(), due) else {
                    continue;
                };
                let at = self.first_beside(at);
                let message = env.messages.borrow_mut().remove(at);
                env.deliver(message);
            }
            return true;
        }
        false
    }

    /// Where a replica takes messages in the order in which they were sent: the first one
    /// that goes where this one goes.
    fn first_beside(&self, at: usize) -> usize {
        let messages = self.env.messages.borrow();
        match self.env.profile.bereft {
            true => {
                let goes_there = |message: &Message| message.member == messages[at].member;
                messages.iter().position(goes_there).unwrap_or(at)
            }
            false => at,
        }
    }

    fn next_to_arrive(&self, count: usize, due: impl Fn(usize) -> u64) -> Option<usize> {
        if count == 0 {
            return None;
        }
        let rng = &self.env.rng;
        let at = if rng.chance(self.env.profile.lateness) {
            rng.index(count)
        } else {
            count - 1 - rng.index(count.min(RECENT))
        };
        (due(at) <= self.env.step.get()).then_some(at)
    }

    fn recover(&mut self, step: u64) {
        let at = self.env.rng.index(self.recoveries.len());
        if self.recoveries[at].step(&mut self.env) {
            self.recoveries.swap_remove(at);
            if self.recoveries.is_empty() {
                // One failure at a time; now there may be another.
                let interval = self.env.profile.crash_interval;
                self.crash_at = step + self.env.rng.below(interval);
            }
        }
    }

    fn surroundings(&self) {
        let env = &self.env;
        env.disturb(env.current(env.rng.index(env.members.len())));
    }

    fn crash(&mut self) {
        let env = &self.env;
        let any = env.rng.index(env.members.len());
        let backend = env.victim.take().unwrap_or(env.members[any].backend);
        env.crash(backend);
        if !env.profile.recovery {
            return;
        }
        for (number, member) in env.members.iter().enumerate() {
            if member.backend == backend {
                self.recoveries
                    .push(Recovery::new(env, number, number - number % R));
            }
        }
    }

    /// Counts what the stores have gone through, and how the replicas stand.
    fn conclude(&self, steps: u64) {
        let env = &self.env;
        let mut stats = env.stats.borrow_mut();
        stats.seeds += 1;
        stats.steps += steps;
        for instance in &env.instances {
            let counts = instance.store.stats().counts;
            for (mark, count) in [
                (Mark::EvictedForCapacity, counts.evicted_capacity),
                (Mark::Expired, counts.expired),
                (Mark::IndexReshaped, counts.index_reshapes),
                (Mark::EntriesMoved, counts.entries_moved),
            ] {
                stats.add_mark(mark, count);
            }
        }
        if R == 1 {
            return;
        }
        let mut buffer = WordBuffer::default();
        for key in &env.keys {
            let mut held = [None; 3];
            for (place, held) in held.iter_mut().enumerate() {
                let instance = env.current(key.first_member + place);
                if instance.life.get() != Life::Serving {
                    continue;
                }
                let answer = instance.store.lookup(env.now(), &key.bytes, &mut buffer);
                *held = match answer.found {
                    Found::Present { version, .. } => Some(Some(version)),
                    Found::Absent => Some(None),
                    Found::Rejected(_) => None,
                };
            }
            let [a, b, c] = held;
            let agree = |x: Option<_>, y| x.is_some() && x == y;
            let pairs = [agree(a, b), agree(b, c), agree(a, c)];
            stats.add_mark(
                match pairs.into_iter().filter(|pair| *pair).count() {
                    0 => Mark::NoQuorum,
                    1 => Mark::DirtyQuorum,
                    _ => Mark::CleanQuorum,
                },
                1,
            );
        }
    }
}
