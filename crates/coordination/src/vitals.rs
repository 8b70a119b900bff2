//! How a server is, beside its load: it says so with its report. For people and
//! their tools; the balancer does not go by it.

use serde::Serialize;
use trefoil_sharder::ServerReport;

/// How a server is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Vitals {
    /// The release of its linked store.
    pub release: String,
    /// Everything that is assigned to it has arrived.
    pub settled: bool,
    /// Values, copies for others included.
    pub entries: u64,
    /// Bytes that they count as.
    pub bytes: u64,
    /// Its own slices that have fewer servers than they should.
    pub slices_short: u64,
    /// Bytes sent to others and not confirmed yet.
    pub unconfirmed_bytes: u64,
    /// Values that came from others since it began.
    pub received: u64,
    /// Values that it sent to others since it began.
    pub sent: u64,
    /// Losses that it has reported since it began.
    pub losses: u64,
    /// The last of them.
    pub last_loss: Option<LastLoss>,
    /// Copies of its values that others could not store, since it began.
    pub copies_refused: u64,
    /// Values that could not be stored where they were to move, since it began.
    pub moves_refused: u64,
    /// Commits refused for want of copies, since it began.
    pub commits_refused: u64,
    /// Commits of which it is not known what became, since it began.
    pub commits_indeterminate: u64,
    /// How old what it keeps of a database may be; nothing where nobody tells of
    /// a database's changes.
    pub staleness_ms: Option<u64>,
}

/// A loss.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LastLoss {
    /// How long ago.
    pub ago_ms: u64,
    /// What and why, for people.
    pub what: String,
}

/// What a server says once a second.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) load: ServerReport,
    pub(crate) vitals: Option<Vitals>,
}
