//! A crashed backend's members come back empty and recover from their peers,
//! one peer at a time (rules 6 to 10): what epochs exist for.
//!
//! ```text
//! lease ended -> new, recovering incarnation
//!   -> raise the first peer's epoch -> copy from it
//!   -> raise the second peer's epoch -> copy from it
//!   -> install: the higher bound; a value only if both held it -> serving
//! ```
//! Every arrow is a step of its own, with anything in between.

use crate::env::{Env, Key, Life};
use crate::stats::Mark;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Expected, Found, Mutation, Outcome};
use trefoil_layout::{Version, epoch};
use trefoil_region::WordBuffer;

/// A version that nobody issues: a CAS that expects it changes nothing and
/// names the bound.
const NEVER: Version = Version {
    time_ns: 0,
    origin: 1,
};

/// What a peer holds of one key.
#[derive(Debug, Clone, Default)]
struct Copied {
    bound: Version,
    value: Option<(Version, Vec<u8>)>,
}

/// One member's recovery.
#[derive(Debug)]
pub(crate) struct Recovery {
    member: usize,
    /// The other two of its cohort, in the order of copying.
    peers: [usize; 2],
    epoch: u32,
    stage: usize,
    /// By peer, then by key of this cohort.
    copied: [Vec<Copied>; 2],
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
            epoch: 0,
            stage: 0,
            copied: Default::default(),
        }
    }

    /// Takes one step; `true` when the member serves again.
    pub(crate) fn step(&mut self, env: &mut Env<'_>) -> bool {
        match self.stage {
            0 => {
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
                // Whoever copies from a peer also belongs to its new epoch.
                self.epoch = env.epoch_above(self.peers);
                env.raise_epoch(self.member, self.epoch);
            }
            1 | 3 => env.raise_epoch(self.peers[self.stage / 2], self.epoch),
            2 | 4 => {
                self.copied[self.stage / 2 - 1] = self.copy(env, self.peers[self.stage / 2 - 1])
            }
            _ => {
                self.install(env);
                let shard = env.members[self.member].place;
                env.current(self.member).store.set_recovering(shard, false);
                env.mark(Mark::Recovered);
            }
        }
        env.trace.line(None, || {
            let what = [
                "begins to recover",
                "raises the first peer's epoch",
                "copies from the first peer",
                "raises the second peer's epoch",
                "copies from the second peer",
                "has recovered",
            ][self.stage];
            format!("member {} {what}, epoch {}", self.member, self.epoch)
        });
        self.stage += 1;
        self.stage > 5
    }

    fn keys<'e>(&self, env: &'e Env<'_>) -> impl Iterator<Item = &'e Key> + use<'e> {
        let cohort = self.member - self.member % 3;
        env.keys
            .iter()
            .filter(move |key| key.first_member == cohort)
    }

    fn copy(&self, env: &Env<'_>, peer: usize) -> Vec<Copied> {
        let store = &env.current(peer).store;
        let mut buffer = WordBuffer::default();
        self.keys(env)
            .map(|key| {
                let probe = Mutation {
                    action: Action::Cas(Expected::Version(NEVER)),
                    version: NEVER,
                    entry: DataEntry {
                        key: &key.bytes,
                        ..DataEntry::default()
                    },
                };
                let bound = match store.mutate(env.now(), &probe).outcome {
                    Outcome::Mismatch { bound, .. } | Outcome::Superseded { bound } => bound,
                    other => unreachable!("a CAS that expects nothing known: {other:?}"),
                };
                let value = match store.lookup(env.now(), &key.bytes, &mut buffer).found {
                    Found::Present { version, data } => Some((version, data.to_vec())),
                    _ => None,
                };
                Copied { bound, value }
            })
            .collect()
    }

    fn install(&mut self, env: &Env<'_>) {
        let store = &env.current(self.member).store;
        let [first, second] = &self.copied;
        for ((key, first), second) in self.keys(env).zip(first).zip(second) {
            let bound = first.bound.max(second.bound);
            let agreed = match (&first.value, &second.value) {
                (Some((a, data)), Some((b, _))) if a == b && *a == bound => DataEntry::decode(data),
                _ => None,
            };
            let installed = agreed.map(|entry| {
                let mutation = Mutation {
                    action: Action::Set,
                    version: bound,
                    entry,
                };
                store.import(env.now(), &mutation).outcome
            });
            let is_known = matches!(
                installed,
                Some(Outcome::Applied | Outcome::Superseded { .. })
            );
            if !is_known {
                let known = store.import_bound(key.hash, bound);
                known.expect("a key of the member's shard");
            }
        }
    }
}

impl Env<'_> {
    fn raise_epoch(&self, member: usize, epoch: u32) {
        let shard = self.members[member].place;
        self.current(member).store.raise_epoch(shard, epoch);
    }

    /// An epoch above those of both peers.
    fn epoch_above(&self, peers: [usize; 2]) -> u32 {
        let [a, b] = peers.map(|peer| {
            let shard = self.members[peer].place;
            self.current(peer).store.epoch(shard)
        });
        epoch::shared_above(a.max(b)).expect("no run has so many recoveries")
    }
}
