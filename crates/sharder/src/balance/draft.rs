//! The assignment that the phases work on, with everybody's believed load kept
//! up to date.

use super::history::History;
use super::plan::{Action, Change, Churn, Note, Reason};
use super::refusals::{Refusal, Refusals};
use crate::assignment::AssignedSlice;
use crate::config::BalanceConfig;
use crate::key::{KeyPoint, Slice};
use crate::load::Estimate;
use crate::report::Load;
use crate::server::{Member, MemberState, ServerId};
use std::time::Duration;

/// Fewer requests than one are none.
const EVIDENCE_MIN: f64 = 1.0;
/// Every move costs at least this part of a round's budget.
const COST_MIN: f64 = 0.01;

/// A slice with its believed load.
#[derive(Clone, Debug)]
pub(crate) struct DraftSlice {
    pub(crate) slice: Slice,
    pub(crate) servers: Vec<ServerId>,
    pub(crate) estimate: Estimate,
    /// Its servers were changed in this round.
    pub(crate) touched: bool,
}

impl DraftSlice {
    /// What one of its servers carries because of it.
    pub(crate) fn burden(&self) -> Burden {
        self.burden_with(self.servers.len())
    }

    pub(crate) fn burden_with(&self, replicas: usize) -> Burden {
        Burden::of(self.slice, self.estimate.total, replicas)
    }
}

/// What a server carries, or would.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Burden {
    pub(crate) cpu: f64,
    pub(crate) bytes: f64,
    /// Part of the key space.
    pub(crate) keys: f64,
}

impl Burden {
    pub(crate) fn of(slice: Slice, load: Load, replicas: usize) -> Self {
        Burden {
            cpu: load.cpu_of_one(replicas),
            bytes: load.bytes,
            keys: slice.fraction(),
        }
    }

    pub(crate) fn plus(self, other: Burden) -> Burden {
        Burden {
            cpu: self.cpu + other.cpu,
            bytes: self.bytes + other.bytes,
            keys: self.keys + other.keys,
        }
    }

    pub(crate) fn minus(self, other: Burden) -> Burden {
        Burden {
            cpu: (self.cpu - other.cpu).max(0.0),
            bytes: (self.bytes - other.bytes).max(0.0),
            keys: (self.keys - other.keys).max(0.0),
        }
    }
}

/// A load in fair shares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    pub(crate) cpu: f64,
    pub(crate) bytes: f64,
}

impl Shares {
    /// What decides who gives and who takes.
    pub(crate) fn larger(self) -> f64 {
        self.cpu.max(self.bytes)
    }
}

/// A live server with what it carries.
#[derive(Clone, Debug)]
pub(crate) struct DraftServer {
    pub(crate) member: Member,
    /// Serving, and heard of lately: may give and take of its own.
    pub(crate) active: bool,
    pub(crate) burden: Burden,
}

/// What one fair share is, per unit of capacity.
#[derive(Clone, Copy, Debug, Default)]
struct Scale {
    /// CPU utilisation of all active servers together, prior included.
    cpu: f64,
    /// What is taken to be spread over the key space, in the place of what chance adds to
    /// what is measured.
    prior: f64,
    /// Their memory utilisation, or the floor.
    bytes: f64,
    /// Key space per core of active servers.
    keys_per_cpu: f64,
    /// Capacity of an average active server.
    cpu_capacity: f64,
    bytes_capacity: f64,
    /// Part of a server's memory that moves may fill.
    fill: f64,
}

/// What may still move in this round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) keys: f64,
    pub(crate) bytes: f64,
    pub(crate) moves: usize,
}

impl Budget {
    pub(crate) fn allows(&self, burden: Burden) -> bool {
        self.moves > 0 && burden.keys <= self.keys && burden.bytes <= self.bytes
    }

    pub(crate) fn allows_both(&self, a: Burden, b: Burden) -> bool {
        self.moves > 1 && self.allows(a.plus(b))
    }
}

/// The state that the phases hand on.
#[derive(Clone, Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) config: &'a BalanceConfig,
    pub(crate) history: &'a History,
    pub(crate) now: Duration,
    /// In the order of their ids.
    pub(crate) servers: Vec<DraftServer>,
    /// In the order of the key space.
    pub(crate) slices: Vec<DraftSlice>,
    pub(crate) budget: Budget,
    pub(crate) churn: Churn,
    pub(crate) changes: Vec<Change>,
    pub(crate) notes: Vec<Note>,
    /// How many requests of an average server stand behind what is believed of CPU, if
    /// they are counted.
    pub(crate) evidence: Option<f64>,
    /// Who cannot store what.
    pub(crate) refusals: Refusals,
    /// Copies that are refused by now.
    pub(crate) refused: Vec<Refusal>,
    scale: Scale,
}

impl<'a> Draft<'a> {
    /// `servers` in the order of their ids.
    pub(crate) fn new(
        config: &'a BalanceConfig,
        history: &'a History,
        now: Duration,
        servers: Vec<(Member, bool)>,
        slices: Vec<DraftSlice>,
    ) -> Self {
        let bytes: f64 = slices
            .iter()
            .map(|slice| slice.estimate.total.bytes * slice.servers.len() as f64)
            .sum();
        let mut draft = Draft {
            config,
            history,
            now,
            servers: servers
                .into_iter()
                .map(|(member, active)| DraftServer {
                    member,
                    active: active && member.state == MemberState::Serving,
                    burden: Burden::default(),
                })
                .collect(),
            slices: Vec::new(),
            budget: Budget {
                keys: config.churn_max,
                bytes: config.churn_max * bytes,
                moves: config.moves_max,
            },
            churn: Churn::default(),
            changes: Vec::new(),
            notes: Vec::new(),
            evidence: None,
            refusals: Refusals::default(),
            refused: Vec::new(),
            scale: Scale::default(),
        };
        for slice in &slices {
            draft.carry(&slice.servers, slice.burden(), Burden::plus);
        }
        draft.slices = slices;
        draft.rescale();
        draft
    }

    /// Says anew what a fair share is. Every phase begins with it.
    pub(crate) fn rescale(&mut self) {
        let mut sum = Burden::default();
        let (mut cpu, mut bytes, mut count) = (0.0, 0.0, 0.0);
        for server in self.servers.iter().filter(|server| server.active) {
            sum = sum.plus(server.burden);
            cpu += server.member.capacity.cpu;
            bytes += server.member.capacity.bytes as f64;
            count += 1.0;
        }
        if count == 0.0 {
            self.scale = Scale::default();
            return;
        }
        let filled = sum.bytes / bytes;
        let measured = sum.cpu / cpu;
        let doubt = match self.evidence {
            Some(evidence) => self.config.evidence_half / evidence.max(EVIDENCE_MIN),
            None => 0.0,
        };
        let prior = self.config.cpu_prior + measured * doubt;
        self.scale = Scale {
            cpu: measured + prior,
            prior,
            bytes: filled.max(self.config.bytes_floor),
            keys_per_cpu: sum.keys / cpu,
            cpu_capacity: cpu / count,
            bytes_capacity: bytes / count,
            fill: (filled * self.config.give_above).max(self.config.fill_max),
        };
    }

    /// A burden in fair shares of a server with this capacity.
    fn shares(&self, burden: Burden, cpu_capacity: f64, bytes_capacity: f64) -> Shares {
        let scale = &self.scale;
        if scale.cpu <= 0.0 {
            return Shares::default();
        }
        // The prior is spread over the keys: a server with an average part of
        // the key space for its size carries just the prior.
        let prior = if scale.keys_per_cpu > 0.0 {
            scale.prior * (burden.keys / cpu_capacity) / scale.keys_per_cpu
        } else {
            0.0
        };
        Shares {
            cpu: (burden.cpu / cpu_capacity + prior) / scale.cpu,
            bytes: burden.bytes / bytes_capacity / scale.bytes,
        }
    }

    /// A server's load in both metrics if it carried `burden`.
    pub(crate) fn shares_with(&self, server: usize, burden: Burden) -> Shares {
        let capacity = self.servers[server].member.capacity;
        self.shares(burden, capacity.cpu, capacity.bytes as f64)
    }

    /// What moves bring down: the squares of a server's loads, by its size. It
    /// falls by the difference of two loads for every bit that goes from one
    /// server to the other, however big these are.
    pub(crate) fn strain(&self, server: usize, shares: Shares) -> f64 {
        let capacity = self.servers[server].member.capacity;
        let cpu = capacity.cpu / self.scale.cpu_capacity;
        let bytes = capacity.bytes as f64 / self.scale.bytes_capacity;
        cpu * shares.cpu * shares.cpu + bytes * shares.bytes * shares.bytes
    }

    /// A server's load if it carried `burden`.
    pub(crate) fn load_with(&self, server: usize, burden: Burden) -> f64 {
        self.shares_with(server, burden).larger()
    }

    /// A server's load.
    pub(crate) fn load(&self, server: usize) -> f64 {
        self.load_with(server, self.servers[server].burden)
    }

    /// What a burden is to an average server.
    pub(crate) fn weight(&self, burden: Burden) -> f64 {
        self.shares(burden, self.scale.cpu_capacity, self.scale.bytes_capacity)
            .larger()
    }

    /// Where a server stands in `servers`.
    pub(crate) fn server(&self, id: ServerId) -> Option<usize> {
        self.servers
            .binary_search_by_key(&id, |server| server.member.id)
            .ok()
    }

    /// The servers that may give and take.
    pub(crate) fn active(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.servers.len()).filter(|&server| self.servers[server].active)
    }

    /// Whether the memory of a server has room for so much more.
    pub(crate) fn has_memory(&self, server: usize, bytes: f64) -> bool {
        bytes <= 0.0 || self.memory_fits(server, self.servers[server].burden.bytes + bytes)
    }

    /// Whether the memory of a server has room for so much altogether.
    pub(crate) fn memory_fits(&self, server: usize, bytes: f64) -> bool {
        bytes <= self.servers[server].member.capacity.bytes as f64 * self.scale.fill
    }

    /// What a move costs: the part that it takes of a round's budget, of key
    /// space or of bytes, whichever is more, and something for itself.
    pub(crate) fn cost(&self, burden: Burden) -> f64 {
        let whole = self.budget.bytes + self.churn.bytes;
        let bytes = if whole > 0.0 {
            burden.bytes / whole
        } else {
            0.0
        };
        COST_MIN + (burden.keys / self.config.churn_max).max(bytes)
    }

    /// Whether a server gave some of these keys away not long ago, or cannot store them.
    pub(crate) fn would_return(&self, server: usize, slice: Slice) -> bool {
        let id = self.servers[server].member.id;
        self.history.would_return(id, slice, self.now) || self.refuses(server, slice)
    }

    /// Whether a server has shown that it cannot store some of these keys.
    pub(crate) fn refuses(&self, server: usize, slice: Slice) -> bool {
        self.refusals.has(self.servers[server].member.id, slice)
    }

    /// Whether a slice has to be left alone for a while.
    pub(crate) fn is_cooling(&self, at: usize) -> bool {
        let slice = &self.slices[at];
        slice.touched
            || self
                .history
                .changed_within(slice.slice, self.now, self.config.cooldown)
    }

    /// The points of a slice that are going to get slices of their own.
    pub(crate) fn hot_points(&self, at: usize) -> impl Iterator<Item = (KeyPoint, Burden)> + '_ {
        let slice = &self.slices[at];
        slice
            .estimate
            .hot
            .iter()
            .filter(|_| !slice.slice.is_point())
            .map(|&(point, load)| {
                let burden = Burden::of(Slice::of_point(point), load, slice.servers.len());
                (point, burden)
            })
            .filter(|&(_, burden)| self.weight(burden) >= self.config.isolate_above)
    }

    /// What a server carries because of points that are going to get slices
    /// of their own.
    pub(crate) fn burden_of_hot_points(&self, server: ServerId) -> Burden {
        (0..self.slices.len())
            .filter(|&at| self.slices[at].servers.contains(&server))
            .flat_map(|at| self.hot_points(at))
            .fold(Burden::default(), |sum, (_, burden)| sum.plus(burden))
    }

    /// The most slices that there may be.
    pub(crate) fn slices_max(&self) -> usize {
        self.config.split_until * self.servers.len().max(1)
    }

    /// Puts another list of servers beside a slice.
    pub(crate) fn assign(&mut self, at: usize, servers: Vec<ServerId>) {
        let old = std::mem::take(&mut self.slices[at].servers);
        let burden = self.slices[at].burden_with(old.len());
        self.carry(&old, burden, Burden::minus);
        self.slices[at].servers = servers.clone();
        self.slices[at].touched = true;
        let burden = self.slices[at].burden();
        self.carry(&servers, burden, Burden::plus);
    }

    fn carry(&mut self, servers: &[ServerId], burden: Burden, how: fn(Burden, Burden) -> Burden) {
        for &id in servers {
            // Dead servers carry nothing that anybody counts.
            if let Some(server) = self.server(id) {
                self.servers[server].burden = how(self.servers[server].burden, burden);
            }
        }
    }

    /// Moves one replica, within the budget: the caller has asked it.
    pub(crate) fn transfer(&mut self, at: usize, from: ServerId, to: ServerId, reason: Reason) {
        let mut servers = self.slices[at].servers.clone();
        for server in servers.iter_mut().filter(|server| **server == from) {
            *server = to;
        }
        self.spend(at);
        self.log(at, Action::Move { from, to }, reason, true);
        self.assign(at, servers);
    }

    /// Adds one replica, within the budget: the caller has asked it.
    pub(crate) fn add_replica(&mut self, at: usize, to: ServerId, reason: Reason) {
        let mut servers = self.slices[at].servers.clone();
        servers.push(to);
        self.spend(at);
        self.log(at, Action::AddReplica { to }, reason, true);
        self.assign(at, servers);
    }

    /// Gives one that is missing, whatever the budget.
    pub(crate) fn restore_replica(&mut self, at: usize, to: ServerId) {
        let mut servers = self.slices[at].servers.clone();
        servers.push(to);
        self.churn.forced_keys += self.slices[at].slice.fraction();
        self.log(at, Action::AddReplica { to }, Reason::TooFewReplicas, true);
        self.assign(at, servers);
    }

    /// Takes one replica away.
    pub(crate) fn drop_replica(&mut self, at: usize, from: ServerId, reason: Reason) {
        let mut servers = self.slices[at].servers.clone();
        servers.retain(|server| *server != from);
        self.log(at, Action::DropReplica { from }, reason, false);
        self.assign(at, servers);
    }

    fn spend(&mut self, at: usize) {
        let burden = self.slices[at].burden();
        self.budget.keys -= burden.keys;
        self.budget.bytes -= burden.bytes;
        self.budget.moves = self.budget.moves.saturating_sub(1);
        self.churn.keys += burden.keys;
        self.churn.bytes += burden.bytes;
    }

    /// Writes down a change of the slice at `at`.
    pub(crate) fn log(&mut self, at: usize, action: Action, reason: Reason, sends: bool) {
        let slice = &self.slices[at];
        self.changes.push(Change {
            slice: slice.slice,
            action,
            reason,
            bytes: if sends {
                slice.estimate.total.bytes as u64
            } else {
                0
            },
        });
    }

    /// The slices as they would be published.
    pub(crate) fn assigned(&self) -> Vec<AssignedSlice> {
        self.slices
            .iter()
            .map(|slice| AssignedSlice {
                slice: slice.slice,
                servers: slice.servers.clone(),
            })
            .collect()
    }
}
