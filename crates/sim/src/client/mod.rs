//! A client: one operation at a time, carried out by the real machines.

mod lookup;
mod mutation;

use crate::env::{Answer, BEGIN_UNIX_NS, Env, Life};
use crate::history::{Broken, KeyHistory};
use crate::reads::View;
use lookup::GetOp;
use mutation::{CasOp, MutateOp};
use trefoil_client_core::cas::Cas;
use trefoil_client_core::clock::VersionClock;
use trefoil_client_core::get::{Get, Plan, Strategy};
use trefoil_client_core::mode::{Mode, REPLICAS_MAX};
use trefoil_client_core::mutate::Mutate;
use trefoil_client_core::quorum::Vote;
use trefoil_client_core::retry::Limits;
use trefoil_layout::Version;
use trefoil_layout::data::EXPIRED_MS;
use trefoil_layout::op::{Action, Expected, Outcome};
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

enum Op<const R: usize> {
    None,
    Get(GetOp<R>),
    Mutate(MutateOp),
    Cas(CasOp<R>),
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
    /// What a miss has left for a fill: its key, its stamps, and when it ended.
    fill: Option<(usize, [Option<u64>; REPLICAS_MAX], u64)>,
}

impl<const R: usize> Client<R> {
    pub(crate) fn new(env: &Env<'_>, number: usize) -> Self {
        let skew = env.profile.skew_ns;
        Client {
            number,
            clock: VersionClock::new(env.rng.next()),
            skew_ns: env.rng.below(2 * skew + 1) as i64 - skew as i64,
            views: (0..env.members.len())
                .map(|member| View::take(env, env.current_number(member)))
                .collect(),
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

    /// The key of its last operation.
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    /// Whether a miss has left a ticket for a fill.
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
        let erases =
            kind == Kind::Cas && profile.cas_erases > 0 && env.rng.chance(profile.cas_erases);
        let expiry_ms = match profile.expiry_ms {
            _ if erases => EXPIRED_MS,
            0 => 0,
            ahead if env.rng.chance(512) => self.unix_ns(env) / 1_000_000 + ahead,
            _ => 0,
        };
        self.op = match kind {
            Kind::Get => Op::Get(self.begin_get(env, histories, limits, None)),
            Kind::Cas => {
                let expected = self.expectation(env);
                let version = self.nominate(env);
                let mut machine = Cas::new(mode, expected, version, limits);
                if env.is_any_down(key) && env.rng.chance(768) {
                    machine.look_first();
                }
                Op::Cas(CasOp {
                    machine,
                    expected,
                    expiry_ms,
                    limits,
                    begun: env.step.get(),
                    open: Vec::new(),
                    look: None,
                })
            }
            Kind::Set | Kind::Erase | Kind::Fill => {
                let missed = match kind {
                    Kind::Fill => self.fill.take(),
                    _ => None,
                };
                let action = match kind {
                    Kind::Erase => Action::Erase,
                    _ => Action::Set,
                };
                let version = self.nominate(env);
                let machine = match missed {
                    None => Mutate::new(mode, version, limits),
                    Some((key, stamps, _)) => {
                        self.key = key;
                        Mutate::fill(mode, version, stamps, limits)
                    }
                };
                Op::Mutate(MutateOp {
                    machine,
                    action,
                    missed: missed.map(|(_, _, step)| step),
                    begun: env.step.get(),
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
                    let fill = if op.missed.is_some() { " (fill)" } else { "" };
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

    /// A GET, or (with its version) a CAS's look.
    fn begin_get(
        &mut self,
        env: &Env<'_>,
        histories: &[KeyHistory],
        limits: Limits,
        own: Option<Version>,
    ) -> GetOp<R> {
        self.reconnect_in_the_background(env);
        let (plan, now_unix_ns) = (self.plan(env), self.unix_ns(env));
        let plan = match own {
            Some(own) => plan.careful(now_unix_ns, own),
            // One in two is of a release whose readers did not wait.
            None if self.number.is_multiple_of(2) => plan,
            None => plan.at(now_unix_ns),
        };
        let hash = env.keys[self.key].hash;
        GetOp {
            machine: Get::new(&plan, hash, limits, env.time_ns.get()),
            snapshot: histories[self.key].snapshot(),
            pending: Vec::new(),
            votes: [Vote::Open; R],
            is_look: own.is_some(),
        }
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
                *strategy = match replica {
                    1 if R == 3 => Strategy::Vote,
                    _ => Strategy::Scar,
                };
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
            let current = env.current_number(member);
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
            Op::Get(mut op) => {
                if self.step_get(env, histories, &mut op)?.is_none() {
                    self.op = Op::Get(op);
                }
                Ok(())
            }
            Op::Mutate(op) => self.step_mutate(env, histories, op),
            Op::Cas(op) => self.step_cas(env, histories, op),
        }
    }

    fn stall(&mut self, env: &Env<'_>) {
        self.stalled_until = env.step.get() + env.rng.below(env.profile.stall_steps);
    }

    /// An answer arrives.
    pub(crate) fn hear(&mut self, answer: &Answer) {
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
            Op::Cas(op) => {
                let wanted = (answer.replica, answer.version);
                if let Some(at) = op.open.iter().position(|open| *open == wanted) {
                    op.open.swap_remove(at);
                    op.machine
                        .handle_ack(answer.replica, answer.version, answer.ack);
                }
            }
            _ => {}
        }
    }
}
