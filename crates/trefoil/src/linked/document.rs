//! What an assigner says of itself (`trefoil_coordination::NodeStatus`), as far as
//! it is looked at here. An assigner of another release may leave things out.

use serde::{Deserialize, Serialize};

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(super) struct Node {
    pub(super) address: String,
    pub(super) store: String,
    pub(super) lease_ms: u64,
    pub(super) turned_away: Vec<TurnedAway>,
    pub(super) corpora: Vec<Corpus>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(super) struct TurnedAway {
    pub(super) corpus: String,
    pub(super) requests: u64,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(super) struct Corpus {
    pub(super) corpus: String,
    pub(super) leads: bool,
    pub(super) leader: String,
    pub(super) term: u64,
    pub(super) version: Option<String>,
    pub(super) freeze: String,
    pub(super) frozen_because: Option<String>,
    pub(super) slices: u64,
    pub(super) members: Vec<Member>,
    pub(super) changes: Vec<Change>,
    pub(super) notes: Vec<String>,
    pub(super) problems: Vec<Problem>,
    pub(super) hottest: Vec<Slice>,
    pub(super) totals: Totals,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) address: String,
    pub(super) state: String,
    pub(super) slices: u64,
    pub(super) key_space: f64,
    pub(super) cpu: f64,
    pub(super) bytes: u64,
    pub(super) load: Option<f64>,
    pub(super) heard_ms: Option<u64>,
    pub(super) cpu_used: Option<f64>,
    pub(super) bytes_used: Option<u64>,
    pub(super) requests: Option<f64>,
    pub(super) vitals: Option<Vitals>,
}

#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub(super) struct Vitals {
    pub(super) release: String,
    pub(super) settled: bool,
    pub(super) entries: u64,
    pub(super) slices_short: u64,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) losses: u64,
    pub(super) copies_refused: u64,
    pub(super) moves_refused: u64,
    pub(super) commits_refused: u64,
    pub(super) commits_indeterminate: u64,
    pub(super) staleness_ms: Option<u64>,
}

#[derive(Deserialize, Serialize, Clone, Debug, Default)]
#[serde(default)]
pub(super) struct Change {
    pub(super) seconds_ago: f64,
    pub(super) version: String,
    pub(super) what: String,
}

#[derive(Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Problem {
    /// Empty where it is no corpus's.
    pub(super) corpus: String,
    pub(super) kind: String,
    pub(super) what: String,
    pub(super) advice: String,
}

#[derive(Deserialize, Serialize, Clone, Debug, Default)]
#[serde(default)]
pub(super) struct Slice {
    pub(super) first: String,
    pub(super) last: String,
    /// The first one owns it.
    pub(super) servers: Vec<u64>,
    pub(super) cpu: f64,
    pub(super) requests: f64,
    pub(super) bytes: u64,
}

/// Since the assigner that leads began.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default)]
#[serde(default)]
pub(super) struct Totals {
    pub(super) assignments: u64,
    pub(super) moves: u64,
    pub(super) moved_bytes: u64,
    pub(super) lost_slices: u64,
    pub(super) expired: u64,
    pub(super) store_errors: u64,
    pub(super) recoveries: u64,
}
