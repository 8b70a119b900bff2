//! A crashed backend's members come back empty and recover from their peers, by the
//! product's own machine: what epochs exist for.
//!
//! A question is put, and its answer made, at one moment; it arrives at a later one, with
//! anything in between.

use crate::env::{Env, Life};
use crate::stats::Mark;
use trefoil_recovery::{Answer, Ask, Copied, Ended};
use trefoil_store::{PLACES, Store};

/// One member's recovery.
#[derive(Debug)]
pub(crate) struct Recovery {
    member: usize,
    /// The other two of its cohort; values come from the first.
    peers: [usize; 2],
    /// Once it has come back.
    machine: Option<trefoil_recovery::Recovery<Vec<u8>>>,
    /// Answers on their way.
    answers: [Option<Answer<Vec<u8>>>; 2],
    has_voted: bool,
}

impl Recovery {
    /// Of a member whose cohort begins at `first_member`.
    pub(crate) fn new(env: &Env<'_>, member: usize, first_member: usize) -> Self {
        let place = member - first_member;
        let mut peers = [1, 2].map(|step| first_member + (place + step) % 3);
        if env.rng.chance(512) {
            peers.swap(0, 1);
        }
        Recovery {
            member,
            peers,
            machine: None,
            answers: [None, None],
            has_voted: false,
        }
    }

    /// Takes one step; `true` when the member serves again, and has been repaired.
    pub(crate) fn step(&mut self, env: &mut Env<'_>) -> bool {
        let shard = env.members[self.member].place;
        if self.machine.is_none() {
            let old = env.current(self.member);
            if old.life.get() == Life::Dead {
                if env.time_ns.get() < old.lease_end_ns.get() {
                    return false;
                }
                let fresh = env.instance(old.backend);
                for shard in 0..fresh.store.shard_count() {
                    fresh.store.set_recovering(shard, true);
                }
                env.serving[fresh.backend] = env.instances.len();
                env.instances.push(fresh);
            }
            self.machine = Some(trefoil_recovery::Recovery::new(shard));
            self.tell(env, "begins to recover");
            return false;
        }
        let Some(machine) = &mut self.machine else {
            return false;
        };
        let peer = env.rng.index(2);
        if let Some(answer) = self.answers[peer].take() {
            let store = &env.current(self.member).store;
            let taken = machine.answer(peer, answer, store, env.now());
            taken.expect("peers speak the same language");
        } else if let Some(ask) = machine.ask(peer) {
            let text = format!("asks member {} for {ask:?}", self.peers[peer]);
            let shard = env.members[self.peers[peer]].place;
            let store = &env.current(self.peers[peer]).store;
            self.answers[peer] = Some(answer(env, store, shard, ask));
            self.tell(env, &text);
        }
        let Some(machine) = &self.machine else {
            return false;
        };
        let (votes, ended) = (machine.votes(), machine.ended());
        if votes && !self.has_voted {
            self.has_voted = true;
            env.mark(Mark::Recovered);
            self.tell(env, "votes");
        }
        match ended {
            None => false,
            Some(Ended::Recovered) => true,
            other => unreachable!("one failure at a time: {other:?}"),
        }
    }

    fn tell(&self, env: &Env<'_>, what: &str) {
        let line = || format!("member {} {what}", self.member);
        env.trace.line(None, line);
    }
}

/// What a peer answers, in pages of any length.
fn answer(env: &Env<'_>, store: &Store, shard: usize, ask: Ask) -> Answer<Vec<u8>> {
    match ask {
        Ask::Standing { raise_to } => {
            let standing = trefoil_recovery::standing(store, shard, raise_to);
            Answer::Standing(standing.expect("epochs that may follow"))
        }
        Ask::Items {
            from,
            until,
            values,
        } => {
            let len = 1 + env.rng.below(PLACES.end);
            let places = from..until.min(from + len);
            let page = Copied::new(store, env.now(), shard).items(places, values);
            Answer::Items(page.expect("nobody revokes the store"))
        }
        Ask::Long { .. } => unreachable!("no value of a run is so long"),
    }
}
