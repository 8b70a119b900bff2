//! How a client behaves; the defaults suit a cache on the same host.

use std::net::SocketAddr;
use std::time::Duration;

/// What carries lookups and mutations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Carrier {
    /// One-sided reads and rings where the backend is on this host, else lookups by an
    /// engine beside it, and RPC.
    #[default]
    Auto,
    /// Lookups by message over the fabric; the rest as `Auto`.
    Message,
    /// Everything by RPC.
    Rpc,
}

/// How keys are looked up where an engine reads the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LookupStrategy {
    /// `Scar`, and `TwoReads` for what would have to wait for room otherwise: where items are
    /// of very different lengths, and many are asked for at once.
    #[default]
    Auto,
    /// One round trip: the engine scans the bucket and sends what it points at. Of two
    /// replicas that are asked the first sends it, and the other its vote alone.
    Scar,
    /// The same, and each replica that is asked sends the data: for comparison.
    ScarAll,
    /// Two round trips: votes from all that are asked, then a read of the data (2xR).
    TwoReads,
    /// Calls to the backends: their threads look the key up.
    Rpc,
}

impl LookupStrategy {
    /// Each of them.
    pub const ALL: [LookupStrategy; 5] = [
        LookupStrategy::Auto,
        LookupStrategy::Scar,
        LookupStrategy::ScarAll,
        LookupStrategy::TwoReads,
        LookupStrategy::Rpc,
    ];

    /// The name on the command line and in figures.
    pub const fn name(self) -> &'static str {
        match self {
            LookupStrategy::Auto => "auto",
            LookupStrategy::Scar => "scar",
            LookupStrategy::ScarAll => "scar-all",
            LookupStrategy::TwoReads => "2xr",
            LookupStrategy::Rpc => "rpc",
        }
    }
}

impl std::str::FromStr for LookupStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = LookupStrategy::ALL.into_iter().find(|of| of.name() == text);
        found.ok_or_else(|| {
            let names = LookupStrategy::ALL.map(LookupStrategy::name).join(", ");
            format!("'{text}' is no way to look keys up: one of {names}")
        })
    }
}

/// A client's settings.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The caller's patience with one operation, retries included. If this process, or the
    /// whole machine, stood still when it ended, the operation has two seconds from the end
    /// of that pause: who was to answer may have stood still, too.
    pub deadline: Duration,
    /// Retries of one operation over all layers.
    pub retries_max: u16,
    /// What carries operations.
    pub carrier: Carrier,
    /// Where an engine (`trefoil engine`) listens that reads the cell's backends on its
    /// host: lookups go by it instead of shared memory. What it does not read, or while
    /// it is away, goes by RPC. `None`: where no shared memory reaches, by the engine that
    /// the backend tells of, if there is one.
    pub engine: Option<SocketAddr>,
    /// Whether lookups by way of an engine to which TLS is spoken go over UDP, if that gets
    /// through.
    pub engine_datagrams: bool,
    /// Whether what changes something, and what else is asked by message, goes by an engine, too,
    /// where it takes messages: otherwise these are calls.
    pub engine_messages: bool,
    /// How keys are looked up by way of engines.
    pub strategy: LookupStrategy,
    /// Over UDP: whether what is asked for at once follows how long answers take. Without it
    /// batches from several hosts overflow the queues on their way; `trefoil bench network`
    /// shows that.
    pub engine_paced: bool,
    /// One touch in this many is reported to the backends (1: every one).
    pub touch_sample: u32,
    /// The replica (place in the cohort) that is asked first; `None` rotates
    /// it from client to client, because all are equally near on one host.
    pub preferred: Option<usize>,
    /// Bytes of messages that may wait for room on the way to one backend (in its ring,
    /// or among the calls under way) while their operations are over: third copies for a replica that does not keep up. Beyond
    /// it whoever writes goes at that replica's pace, and one that has come to a halt
    /// misses copies.
    pub waiting_len_max: usize,
    /// For tests: milliseconds that this client's version clock is ahead of the
    /// host's (negative: behind), as if it ran on a host whose clock is wrong.
    pub clock_offset_ms: i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            deadline: Duration::from_secs(1),
            retries_max: trefoil_client_core::retry::RETRIES_MAX_DEFAULT,
            carrier: Carrier::Auto,
            engine: None,
            engine_datagrams: false,
            engine_messages: false,
            strategy: LookupStrategy::Auto,
            engine_paced: true,
            touch_sample: 1,
            preferred: None,
            waiting_len_max: 16 << 20,
            clock_offset_ms: 0,
        }
    }
}
