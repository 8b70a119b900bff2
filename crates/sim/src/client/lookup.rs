//! The client's GETs: every step of the machine, carried out against the live
//! memory of the backends.

use super::Client;
use crate::env::{Env, Life};
use crate::history::{Broken, KeyHistory, Snapshot};
use crate::reads::{NoData, View};
use crate::stats::Mark;
use crate::value;
use crate::violation::Property;
use trefoil_client_core::cas::Looked;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::fill::index_leaves_room;
use trefoil_client_core::get::{Failure, Get, GetOutcome, GetStep, MissReason};
use trefoil_client_core::quorum::Vote;
use trefoil_client_core::retry::RetryCause;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Expected, Found};
use trefoil_layout::{Pointer, Version};

/// A GET under way.
pub(super) struct GetOp<const R: usize> {
    pub(super) machine: Get<R>,
    pub(super) snapshot: Snapshot,
    /// Steps taken from the machine and not carried out yet.
    pub(super) pending: Vec<GetStep>,
    pub(super) votes: [Vote; R],
    /// A part of a CAS: no GET of the caller's.
    pub(super) is_look: bool,
}

impl<const R: usize> Client<R> {
    /// Goes on with a GET; its outcome, once there is one.
    pub(super) fn step_get(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
        op: &mut GetOp<R>,
    ) -> Result<Option<GetOutcome>, Broken> {
        match op.machine.poll(env.time_ns.get()) {
            GetStep::Done(outcome) => {
                self.end_get(env, histories, op, outcome)?;
                return Ok(Some(outcome));
            }
            GetStep::Pause { .. } => {}
            GetStep::Wait { .. } => {
                if op.pending.is_empty() {
                    return Err((Property::Stuck, "a GET waits for nothing".to_owned()));
                }
                self.carry_out_one(env, op);
            }
            step => {
                op.pending.push(step);
                if env.rng.chance(512) {
                    self.carry_out_one(env, op);
                }
            }
        }
        Ok(None)
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
            GetStep::ReadIndex { replica } | GetStep::Vote { replica } => {
                let view = &self.views[key.first_member + replica];
                match env.read_index(view, replica, key.hash) {
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
            // Nobody pauses here.
            GetStep::Await { replica } => {
                op.machine.handle_failure(replica, Failure::Connection);
            }
            GetStep::Reconnect { replica } => {
                let member = key.first_member + replica;
                let current = env.current_number(member);
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
        let vote = match env.read_index(view, replica, key.hash) {
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
        let is_alone = env.alone.get() == Some(self.number) && !op.is_look;
        if is_alone {
            let is_inquorate = op.machine.looked() != Looked::Agreed(Expected::Absent)
                && matches!(outcome, GetOutcome::Miss { .. });
            env.heals.set(env.profile.survivors && is_inquorate);
            if !env.heals.get() {
                env.alone.set(None);
            }
        }
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
                let found = DataEntry::decode(bytes).map(|entry| entry.value);
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
                if is_alone {
                    histories[self.key].lonely_miss(reason == MissReason::Inquorate)?;
                }
                if !op.is_look {
                    let key = &env.keys[self.key];
                    let dead = op.machine.dead_version();
                    let stamps = std::array::from_fn(|place| {
                        let view = self.views.get(key.first_member + place)?;
                        if place >= R {
                            return None;
                        }
                        let stamp = env.read_stamp(view, place, key.hash)?;
                        let vote = env.read_index(view, place, key.hash).ok()?;
                        index_leaves_room(vote, dead, || self.unix_ns(env)).then_some(stamp)
                    });
                    self.fill = Some((self.key, stamps, env.step.get()));
                    self.known[self.key] = None;
                }
                Ok(())
            }
            GetOutcome::Failed { .. } => {
                stats.get_failures += u64::from(!op.is_look);
                Ok(())
            }
        }
    }

    fn touch(&self, env: &Env<'_>, op: &GetOp<R>) {
        let key = &env.keys[self.key];
        for replica in 0..R {
            let partition = key.hash.partition(replica, env.profile.partitions);
            if let Some(slot) = op.machine.touched_slot(replica) {
                let view = &self.views[key.first_member + replica];
                let window_id = view.windows[partition].window_id;
                let store = &env.instances[view.instance].store;
                store.touch(partition, window_id, &[slot]);
            }
        }
    }
}
