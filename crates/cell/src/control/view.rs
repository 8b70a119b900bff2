//! What the store held at one moment, and what is to be written.

use crate::address::RpcAddress;
use crate::config::{BackendConfig, CellConfig};
use crate::store::Incarnations;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// All that the store held of a cell at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The configuration in force.
    pub config: CellConfig,
    /// How often each backend has begun.
    pub incarnations: Incarnations,
    /// Who is registered as which backend.
    pub backends: BTreeMap<u32, Registered>,
    /// Processes that stand by, by name.
    pub spares: Vec<Spare>,
    /// Who decides.
    pub leader: Option<Leader>,
    /// Replacements of this life of the cell, the latest last.
    pub replacements: Vec<Replacement>,
    /// When each key was written last; a key that is not there is not named.
    pub revisions: BTreeMap<Key, i64>,
}

impl View {
    /// When a key was written last; 0 if it is not there.
    pub fn revision(&self, key: &Key) -> i64 {
        self.revisions.get(key).copied().unwrap_or(0)
    }
}

/// A key of the store, below the cell's path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The configuration.
    Config,
    /// Who decides.
    Leader,
    /// What was replaced.
    Replacements,
    /// Who is this backend.
    Backend(u32),
    /// The spare of this name.
    Spare(String),
}

/// A process that is a backend, as it has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its process.
    pub process: u32,
    /// Its host's name.
    pub host: String,
    /// Its host's boot, which tells hosts apart; empty of releases before this one.
    pub boot: String,
    /// Layout of what it shares; `None` of releases before this one, which cannot follow
    /// a configuration in which a place has changed hands.
    pub layout: Option<u16>,
}

/// A process that stands by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spare {
    /// Unlike that of any other process.
    pub name: String,
    /// Its process.
    pub process: u32,
    /// Its host's name.
    pub host: String,
    /// Its host's boot.
    pub boot: String,
    /// Layout of what it would share.
    pub layout: u16,
    /// Bound on its memory, in bytes.
    pub memory: u64,
    /// Where it would serve.
    pub addresses: Vec<RpcAddress>,
    /// Where it would hand its memory over.
    pub fabric_socket: Option<PathBuf>,
    /// What would tell it from others at these addresses ([`BackendConfig::place`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

impl Spare {
    /// What the configuration says of backend `number` while this process is it.
    pub fn as_backend(&self, number: u32) -> BackendConfig {
        BackendConfig {
            number,
            addresses: self.addresses.clone(),
            fabric_socket: self.fabric_socket.clone(),
            place: self.place.clone(),
        }
    }

    /// Whether it is of the cell's kind: one that other hosts reach is for a cell on several
    /// hosts, and no other is.
    pub fn is_for(&self, config: &CellConfig) -> bool {
        self.place.is_some() == config.is_spread()
    }

    /// Whether the configuration names this process as that backend.
    pub fn is(&self, backend: &BackendConfig) -> bool {
        self.addresses == backend.addresses && self.place == backend.place
    }
}

/// The process that decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Unlike that of any other process.
    pub name: String,
    /// Its process.
    pub process: u32,
    /// Its host's name.
    pub host: String,
}

/// A place that has changed hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// Which.
    pub backend: u32,
    /// The configuration in which it has.
    pub config_id: u32,
    /// When, in milliseconds since 1970, by the leader's clock.
    pub at_ms: u64,
    /// Where it was.
    pub from: Vec<RpcAddress>,
    /// Where it is.
    pub to: Vec<RpcAddress>,
    /// The spare's process.
    pub process: u32,
    /// The spare's host.
    pub host: String,
    /// All that the backend held was lost by it.
    #[serde(default)]
    pub is_loss: bool,
}

/// What a backend says when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It has all that it should have.
    Votes,
    /// It has lost its memory, and does not vote for all of its keys yet.
    Recovers,
    /// It does not answer.
    Silent,
}

/// A replacement that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Revisions that these keys have to have; 0: must not be there.
    pub conditions: Vec<(Key, i64)>,
    /// The configuration that follows.
    pub config: CellConfig,
    /// How often each backend has begun, which stands beside it.
    pub incarnations: Incarnations,
    /// Replacements, this one last.
    pub replacements: Vec<Replacement>,
}

impl Plan {
    /// What it does.
    pub fn replacement(&self) -> Option<&Replacement> {
        self.replacements.last()
    }
}
