//! Repair in the background, by the product's own machine, at the first member of each
//! cohort.
//!
//! A question is put, and its answer made, at one moment; it arrives at a later one, with
//! anything in between. A mutation may be lost, and a copy of it may come later, unless
//! it is a CAS.

use crate::env::{Env, Life, Message};
use crate::history::{Broken, KeyHistory};
use crate::stats::Mark;
use crate::value;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Ack, Action, Mutation};
use trefoil_recovery::scan::{self, Done, Limits, Order, Question, Reply, Scan};

/// Of client numbers and operations: nobody's.
const NOBODY: u32 = u32::MAX;

/// The repair of one cohort.
pub(crate) struct Repair {
    first_member: usize,
    /// Of the versions that it nominates.
    client_id: u64,
    sequence: u32,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    machine: Scan<Vec<u8>>,
    /// The first member's memory, when it began.
    instance: usize,
    /// Answers on their way.
    replies: [Option<Reply<Vec<u8>>>; 3],
    /// When the CAS that is under way began.
    begun: u64,
}

impl Repair {
    pub(crate) fn new(env: &Env<'_>, first_member: usize) -> Self {
        Repair {
            first_member,
            client_id: env.rng.next() >> 24,
            sequence: 0,
            under_way: None,
        }
    }

    /// Takes one step.
    pub(crate) fn step(
        &mut self,
        env: &Env<'_>,
        histories: &mut [KeyHistory],
    ) -> Result<(), Broken> {
        let instance = env.current_number(self.first_member);
        if env.instances[instance].life.get() == Life::Dead {
            self.under_way = None;
            return Ok(());
        }
        if self
            .under_way
            .as_ref()
            .is_some_and(|way| way.instance != instance)
        {
            self.under_way = None;
        }
        let Some(way) = &mut self.under_way else {
            self.under_way = Some(begin(env, self.first_member, instance));
            return Ok(());
        };
        let machine = &mut way.machine;
        machine.wake(env.now());
        if let Some(above) = machine.wants_version_above() {
            self.sequence += 1;
            let version = scan::just_above(above, self.client_id, self.sequence);
            machine.nominated(version);
            way.begun = env.step.get();
        }
        let replica = env.rng.index(3);
        if let Some(reply) = way.replies[replica].take() {
            let taken = machine.answer(replica, reply, env.now());
            taken.expect("replicas speak the same language");
        } else if let Some(question) = machine.ask(replica) {
            let reply = put(env, self.first_member + replica, question);
            match reply {
                Some(reply) => way.replies[replica] = Some(reply),
                None => machine.failed(),
            }
        }
        for (hash, done) in machine.take_done() {
            let Some(key) = env.keys.iter().position(|key| key.hash == hash) else {
                continue;
            };
            env.trace.line(Some(key), || format!("repair: {done:?}"));
            let history = &mut histories[key];
            match done {
                Done::Repaired => env.mark(Mark::Repaired),
                Done::Evicted => env.mark(Mark::RepairEvicted),
                Done::Nothing => {}
                Done::Renewed(expected, version) => {
                    env.mark(Mark::RepairRenewed);
                    history.written(version, way.begun)?;
                    history.cas_stored(expected, version)?;
                    history.stored(version, env.profile.expiry_ms == 0)?;
                }
                Done::NotRenewed(version) => {
                    env.mark(Mark::RepairNotRenewed);
                    history.cas_failed(version)?;
                }
            }
        }
        if machine.ended().is_some() {
            self.under_way = None;
        }
        Ok(())
    }
}

/// All places, or the keys of the cohort, as if readers had named them.
fn begin(env: &Env<'_>, first_member: usize, instance: usize) -> UnderWay {
    let profile = &env.profile;
    let limits = Limits {
        pause_ns: profile.repair_pause_ns,
        rest_ns: profile.repair_rest_ns,
    };
    let hasher = env.instances[instance].store.config().hasher;
    let keys = env
        .keys
        .iter()
        .filter(|key| key.first_member == first_member);
    let machine = match env.rng.chance(700) {
        true => Scan::of_keys(hasher, limits, keys.map(|key| key.hash).collect()),
        false => Scan::from(hasher, limits, 0),
    };
    UnderWay {
        machine,
        instance,
        replies: [None, None, None],
        begun: 0,
    }
}

/// A member answers, or nobody does.
fn put(env: &Env<'_>, member: usize, question: Question<Vec<u8>>) -> Option<Reply<Vec<u8>>> {
    let instance = env.current(member);
    if instance.life.get() == Life::Dead {
        return None;
    }
    let Question::Mutate(order) = question else {
        let shard = env.members[member].place;
        return Some(scan::answer(&instance.store, env.now(), shard, &question));
    };
    if env.rng.chance(env.profile.loss) {
        return None;
    }
    let ack = execute(env, member, &order);
    (!env.rng.chance(env.profile.answer_loss)).then_some(Reply::Ack(ack))
}

fn execute(env: &Env<'_>, member: usize, order: &Order<Vec<u8>>) -> Ack {
    let instance = env.current(member);
    let mutation = order
        .mutation()
        .expect("what a store holds is a data entry");
    let key = env
        .keys
        .iter()
        .position(|key| key.bytes == mutation.entry.key);
    let mut bytes = Vec::new();
    let mut mutation = mutation;
    if let Some(key) = key {
        env.trace.line(Some(key), || {
            format!(
                "repair asks member {member}: {:?} {:?}",
                order.action, order.version
            )
        });
        let is_as_it_was = value::is_right(key, order.version, mutation.entry.value);
        if order.action != Action::Erase && !is_as_it_was {
            // A CAS: what it stores is another version's value, which says so.
            value::write(key, order.version, env.profile.value_len, &mut bytes);
            mutation = Mutation {
                entry: DataEntry {
                    value: &bytes,
                    ..mutation.entry
                },
                ..mutation
            };
        }
        let may_repeat = !matches!(order.action, Action::Cas(_));
        if may_repeat && env.rng.chance(env.profile.copies) {
            env.messages.borrow_mut().push(Message {
                member,
                client: 0,
                operation: NOBODY,
                replica: member - env.keys[key].first_member,
                action: order.action,
                key,
                version: order.version,
                expiry_ms: mutation.entry.expiry_ms,
                is_copy: true,
                due: env.due(),
            });
        }
    }
    let ack = instance.store.mutate(env.now(), &mutation);
    if let Some(key) = key {
        env.trace.line(Some(key), || {
            format!(
                "member {member} answers repair: {:?} in epoch {}",
                ack.outcome, ack.epoch
            )
        });
    }
    ack
}
