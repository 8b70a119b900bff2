//! The client's mutations: messages out, answers in, outcomes into the history.

use super::lookup::GetOp;
use super::{Client, Op};
use crate::env::{Env, Life, Message};
use crate::history::{Broken, KeyHistory};
use crate::stats::Mark;
use crate::violation::Property;
use trefoil_client_core::cas::{Cas, CasStep, Looked};
use trefoil_client_core::mutate::{Mutate, MutateStep};
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::retry::{Limits, RetryCause};
use trefoil_layout::Version;
use trefoil_layout::op::{Action, Expected};

/// A SET, ERASE or fill under way.
pub(super) struct MutateOp {
    pub(super) machine: Mutate,
    pub(super) action: Action,
    /// Of a fill: when its miss ended.
    pub(super) missed: Option<u64>,
    /// When it began.
    pub(super) begun: u64,
    pub(super) expiry_ms: u64,
    /// Messages without an answer yet.
    pub(super) open: Vec<(usize, Version)>,
}

/// A CAS under way.
pub(super) struct CasOp<const R: usize> {
    pub(super) machine: Cas,
    pub(super) expected: Expected,
    pub(super) expiry_ms: u64,
    pub(super) limits: Limits,
    /// When it began.
    pub(super) begun: u64,
    /// Messages without an answer yet.
    pub(super) open: Vec<(usize, Version)>,
    /// Its look at what a quorum agrees on.
    pub(super) look: Option<GetOp<R>>,
}

impl<const R: usize> Client<R> {
    pub(super) fn step_mutate(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        mut op: MutateOp,
    ) -> Result<(), Broken> {
        match op.machine.poll(env.time_ns.get()) {
            MutateStep::Done(outcome) => return self.end_mutate(env, histories, &op, outcome),
            MutateStep::Send {
                replica,
                version,
                stamp,
            } => {
                if op.action == Action::Erase || op.expiry_ms != 0 {
                    histories[self.key].removing(version);
                }
                if let Some(missed) = op.missed {
                    histories[self.key].fills(version, missed);
                }
                let action = match stamp {
                    Some(stamp) => Action::Fill { stamp },
                    None => op.action,
                };
                match self.send(env, replica, action, version, op.expiry_ms) {
                    Ok(()) => op.open.push((replica, version)),
                    Err(failure) => op.machine.handle_failure(replica, version, failure),
                }
            }
            MutateStep::Evict { replica, version } => {
                histories[self.key].removing(version);
                match self.send(env, replica, Action::Erase, version, 0) {
                    Ok(()) => {
                        env.mark(Mark::FillEvicted);
                        op.open.push((replica, version));
                    }
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
            MutateStep::Wait { .. } => {
                if op.open.is_empty() {
                    return Err((Property::Stuck, "a mutation waits for nothing".to_owned()));
                }
                if let Some((replica, version)) = self.lose(env, &mut op.open) {
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
                history.written(version, op.begun)?;
                let leaves = op.action == Action::Set && op.expiry_ms == 0;
                history.stored(version, leaves)?;
                if env.profile.calm {
                    history.check_added()?;
                }
                Ok(())
            }
            MutationOutcome::Superseded { bound } => {
                self.clock.observe(bound);
                if op.missed.is_some() {
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

    pub(super) fn step_cas(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        mut op: CasOp<R>,
    ) -> Result<(), Broken> {
        if let Some(look) = &mut op.look {
            if self.step_get(env, histories, look)?.is_some() {
                let looked = look.machine.looked();
                op.look = None;
                self.end_look(env, &mut op.machine, looked);
            }
            self.op = Op::Cas(op);
            return Ok(());
        }
        match op.machine.poll(env.time_ns.get()) {
            CasStep::Done(outcome) => return self.end_cas(env, histories, &op, outcome),
            CasStep::Send { replica, version } => {
                if op.expiry_ms != 0 {
                    histories[self.key].removing(version);
                }
                let action = Action::Cas(op.expected);
                match self.send(env, replica, action, version, op.expiry_ms) {
                    Ok(()) => op.open.push((replica, version)),
                    Err(failure) => op.machine.handle_failure(replica, version, failure),
                }
            }
            CasStep::Install { replica, version } => {
                let _ = self.send(env, replica, Action::Set, version, op.expiry_ms);
            }
            CasStep::Evict { replica, version } => {
                match self.send(env, replica, Action::Erase, version, 0) {
                    Ok(()) => {
                        env.mark(Mark::CasEvicted);
                        op.open.push((replica, version));
                    }
                    Err(failure) => op.machine.handle_failure(replica, version, failure),
                }
            }
            CasStep::Nominate { above } => {
                self.clock.observe(above);
                // What is given up must never be seen.
                histories[self.key].cas_failed(op.machine.version())?;
                op.machine.handle_version(self.nominate(env));
                let (number, version) = (self.number, op.machine.version());
                env.trace.line(Some(self.key), || {
                    format!("client {number} begins its CAS anew, {version:?}")
                });
            }
            CasStep::Pause { .. } | CasStep::Later => {}
            CasStep::Look => {
                let own = Some(op.machine.version());
                op.look = Some(self.begin_get(env, histories, op.limits, own));
            }
            CasStep::Wait { .. } => {
                if op.open.is_empty() {
                    return Err((Property::Stuck, "a CAS waits for nothing".to_owned()));
                }
                if let Some((replica, version)) = self.lose(env, &mut op.open) {
                    op.machine
                        .handle_failure(replica, version, SendFailure::Lost);
                }
            }
        }
        self.op = Op::Cas(op);
        Ok(())
    }

    fn end_look(&mut self, env: &Env<'_>, machine: &mut Cas, looked: Looked) {
        env.mark(match looked {
            Looked::Disagree { .. } => Mark::SurvivorsDisagree,
            _ => Mark::CasLooked,
        });
        machine.handle_look(looked);
    }

    fn end_cas(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        op: &CasOp<R>,
        outcome: MutationOutcome,
    ) -> Result<(), Broken> {
        let version = op.machine.version();
        self.trace_end(env, version, outcome);
        self.count(env, outcome);
        let history = &mut histories[self.key];
        if env.alone.get() == Some(self.number) {
            env.alone.set(None);
            if !matches!(outcome, MutationOutcome::Stored { .. }) {
                return history.not_healed();
            }
            env.mark(Mark::Healed);
        }
        match outcome {
            MutationOutcome::Stored { version } => {
                env.mark(Mark::CasStored);
                self.known[self.key] = Some(version);
                history.written(version, op.begun)?;
                match op.expected {
                    Expected::Version(expected) => history.cas_stored(expected, version)?,
                    Expected::Absent => history.added(version),
                }
                history.stored(version, op.expiry_ms == 0)?;
                if env.profile.calm {
                    history.check_added()?;
                }
                Ok(())
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

    /// A message whose answer is waited for no longer.
    fn lose(&self, env: &Env<'_>, open: &mut Vec<(usize, Version)>) -> Option<(usize, Version)> {
        if !open.is_empty() && env.rng.chance(env.profile.impatience) {
            return Some(open.swap_remove(env.rng.index(open.len())));
        }
        if !env.profile.bereft {
            return None;
        }
        let first = env.keys[self.key].first_member;
        let is_dead = |replica: usize| env.current(first + replica).life.get() == Life::Dead;
        let lost = open.iter().position(|(replica, _)| is_dead(*replica))?;
        env.rng.chance(100).then(|| open.swap_remove(lost))
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
        if is_dead && (env.profile.survivors || env.rng.chance(512)) {
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
}
