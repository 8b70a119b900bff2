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
            engine_paced: true,
            touch_sample: 1,
            preferred: None,
            waiting_len_max: 16 << 20,
            clock_offset_ms: 0,
        }
    }
}
