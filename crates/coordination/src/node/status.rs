//! What `trefoil assigner status` and `trefoil linked status` show: a public document.

use super::problems::Problem;
use crate::vitals::Vitals;
use serde::Serialize;
use std::collections::VecDeque;

/// Moves that are remembered.
const MOVES_KEPT: usize = 32;

/// One assigner.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeStatus {
    /// Where it serves.
    pub address: String,
    /// Its store.
    pub store: String,
    /// The length of servers' leases.
    pub lease_ms: u64,
    /// Corpora that are asked for, and that neither this assigner was started
    /// with nor anybody else leads: most likely a flag is wrong.
    pub turned_away: Vec<TurnedAway>,
    /// By name.
    pub corpora: Vec<CorpusStatus>,
}

/// A corpus that is asked for in vain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TurnedAway {
    /// Its name.
    pub corpus: String,
    /// Requests that were refused since this assigner began.
    pub requests: u64,
}

/// One corpus.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CorpusStatus {
    /// Its name.
    pub corpus: String,
    /// Whether this assigner leads.
    pub leads: bool,
    /// The address of the one that does; empty if nobody is known to.
    pub leader: String,
    /// In which term; 0 if nobody leads.
    pub term: u64,
    /// The assignment in force, as `incarnation.generation`.
    pub version: Option<String>,
    /// `off`, `only-dead` or `all`.
    pub freeze: &'static str,
    /// What keeps the map as it is though nobody wants it to: the store is
    /// away, behind, or has forgotten members.
    pub frozen_because: Option<String>,
    /// How many there are.
    pub slices: usize,
    /// In the order of ids.
    pub members: Vec<MemberStatus>,
    /// The last changes, newest first.
    pub changes: Vec<ChangeStatus>,
    /// What does not fit anywhere, as of the last round.
    pub overloaded: Vec<String>,
    /// What was seen or not done in the last round, and why.
    pub notes: Vec<String>,
    /// What somebody should see to, and how.
    pub problems: Vec<Problem>,
    /// The slices that cost most, of those of which the one who leads has heard:
    /// by CPU first, then by bytes.
    pub hottest: Vec<SliceStatus>,
    /// Totals since this assigner began.
    pub totals: Totals,
}

/// One member.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemberStatus {
    /// Its id.
    pub id: u64,
    /// Where it serves.
    pub address: String,
    /// `serving`, `frozen` or `draining`.
    pub state: &'static str,
    /// How many slices it has.
    pub slices: usize,
    /// Its part of the key space, replicas counted in full.
    pub key_space: f64,
    /// CPU-seconds per second that it may spend.
    pub cpu: f64,
    /// Bytes that its values may take.
    pub bytes: u64,
    /// Its load in fair shares, as of the last round.
    pub load: Option<f64>,
    /// How long ago it was heard; only the assigner that leads knows.
    pub heard_ms: Option<u64>,
    /// CPU-seconds per second that it spends, as it said last; only the
    /// assigner that leads knows.
    pub cpu_used: Option<f64>,
    /// Bytes that its values take, likewise.
    pub bytes_used: Option<u64>,
    /// Requests per second, likewise.
    pub requests: Option<f64>,
    /// How it is, likewise.
    pub vitals: Option<Vitals>,
}

/// One slice.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SliceStatus {
    /// Its first and last point, in hexadecimal digits.
    pub first: String,
    /// See `first`.
    pub last: String,
    /// Who has it; the first one owns it.
    pub servers: Vec<u64>,
    /// CPU-seconds per second of all of them.
    pub cpu: f64,
    /// Requests per second.
    pub requests: f64,
    /// Bytes of its values, at its owner.
    pub bytes: u64,
}

/// One change.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChangeStatus {
    /// How long ago.
    pub seconds_ago: f64,
    /// With which version.
    pub version: String,
    /// What, and why.
    pub what: String,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Times that it was elected.
    pub elections: u64,
    /// Assignments that it has put in force.
    pub assignments: u64,
    /// Slices moved or copied by them.
    pub moves: u64,
    /// Bytes that those were.
    pub moved_bytes: u64,
    /// Slices whose values were lost because all who had them were dead.
    pub lost_slices: u64,
    /// Reports heard.
    pub reports: u64,
    /// Leases that have ended without the server's having left.
    pub expired: u64,
    /// Requests to the store that failed.
    pub store_errors: u64,
    /// Times that the map was taken over from servers because the store had
    /// forgotten it.
    pub recoveries: u64,
}

/// The last changes.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    changes: VecDeque<(std::time::Duration, String, String)>,
}

impl Recent {
    pub(crate) fn push(&mut self, now: std::time::Duration, version: &str, what: String) {
        if self.changes.len() == MOVES_KEPT {
            self.changes.pop_front();
        }
        self.changes.push_back((now, version.to_owned(), what));
    }

    pub(crate) fn shown(&self, now: std::time::Duration) -> Vec<ChangeStatus> {
        self.changes
            .iter()
            .rev()
            .map(|(at, version, what)| ChangeStatus {
                seconds_ago: now.saturating_sub(*at).as_secs_f64(),
                version: version.clone(),
                what: what.clone(),
            })
            .collect()
    }
}
