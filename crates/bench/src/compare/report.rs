//! What a comparison found, under names that scripts rely on.

use serde::Serialize;

use crate::load::Latency;

/// Everything that `trefoil bench compare --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct CompareReport {
    /// The peer and its version.
    pub peer: String,
    /// Bytes of a value.
    pub value_size: usize,
    /// Keys of the corpus.
    pub keys: u64,
    /// Runs of each system.
    pub runs: usize,
    /// Single lookups.
    pub get: GetFigures,
    /// Single writes.
    pub set: SetFigures,
    /// Lookups of 100 keys at once, 100-byte values.
    pub get_many: BatchFigures,
    /// By RPC.
    pub rpc: RpcFigures,
    /// CPU of the backend for each one-sided GET, touches included.
    pub server_cpu_us_per_get: f64,
    /// What the peer's side of TCP used; nothing if it could not be set.
    pub peer_congestion_control: Option<String>,
}

/// Single lookups. `memcached` stands for the peer, whichever it is.
#[derive(Debug, Clone, Serialize)]
pub struct GetFigures {
    /// One copy.
    pub trefoil: Latency,
    /// Three copies, quorum of two.
    pub trefoil_r32: Latency,
    /// The peer, asked by a client that spins.
    pub memcached: Latency,
    /// The peer, asked by an ordinary blocking client.
    pub memcached_blocking: Latency,
    /// The bare loop.
    pub floor: Latency,
    /// Peer's p50 by Trefoil's.
    pub ratio_p50: f64,
    /// Blocking peer's p50 by Trefoil's.
    pub ratio_p50_blocking: f64,
    /// Trefoil's p50 by the floor's.
    pub floor_ratio_p50: f64,
    /// Trefoil's p99.9 by its own p50.
    pub tail_ratio: f64,
    /// Three copies' p50 by one copy's.
    pub r32_ratio_p50: f64,
}

/// Single writes.
#[derive(Debug, Clone, Serialize)]
pub struct SetFigures {
    /// One copy, by message, backend awake.
    pub trefoil: Latency,
    /// Three copies in one process.
    pub trefoil_r32: Latency,
    /// Three copies in three processes on one core.
    pub trefoil_r32_processes: Latency,
    /// One copy, backend asleep.
    pub trefoil_asleep: Latency,
    /// A futex ping-pong between the two cores.
    pub futex_ping_pong: Latency,
    /// The peer, asked by a client that spins.
    pub memcached: Latency,
    /// Trefoil's p50 by the peer's.
    pub ratio_p50: f64,
    /// Three copies' p50 (one process) by one copy's.
    pub r32_ratio_p50: f64,
}

/// Lookups of many keys at once.
#[derive(Debug, Clone, Serialize)]
pub struct BatchFigures {
    /// Keys of one batch.
    pub batch: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Keys per second.
    pub trefoil_ops_per_s: f64,
    /// Keys per second.
    pub memcached_ops_per_s: f64,
    /// Trefoil's by the peer's.
    pub ratio: f64,
}

/// Through gRPC.
#[derive(Debug, Clone, Serialize)]
pub struct RpcFigures {
    /// A SET.
    pub set: Latency,
    /// An empty call.
    pub empty: Latency,
    /// SET's p50 by the empty call's.
    pub ratio_p50: f64,
}
