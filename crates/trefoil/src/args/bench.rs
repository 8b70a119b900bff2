//! `bench` and `demo`.

#[cfg(feature = "linked")]
mod linked;

#[cfg(feature = "linked")]
pub(crate) use linked::*;

use super::{ByEngine, CellAddress, Eviction};
use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// GETs against a cell, filled first
    Get(LoadArgs),
    /// SETs against a cell
    Set(LoadArgs),
    /// 95 % GETs and 5 % SETs (see --get-share)
    Mix(LoadArgs),
    /// Beside memcached or redis, in turn in one run; starts everything itself
    Compare(CompareArgs),
    /// Memory per item beyond key and value, beside memcached
    Memory(MemoryArgs),
    /// Items per resident byte, full and churning, beside memcached
    Churn(ChurnArgs),
    /// Hit ratio of a trace through the real store
    HitRatio(HitRatioArgs),
    /// Value sizes shifting at full memory, beside fresh caches of the new size
    SizeShift {
        #[arg(long)]
        json: bool,
    },
    /// The front door beside memcached or redis, in turn in one run; starts everything itself
    Gateway(GatewayBenchArgs),
    /// GETs off the host by way of an engine, beside memcached and a bare echo, between two network namespaces (needs root)
    Network(NetworkArgs),
    /// Objects linked into app servers beside remote caches; starts everything itself
    #[cfg(feature = "linked")]
    Linked(LinkedBenchArgs),
    #[cfg(not(feature = "linked"))]
    #[command(hide = true, disable_help_flag = true)]
    Linked(super::LeftOut),
    /// The ordered queue on one host: commits beside a bare loop and today's SET, four
    /// workloads on three systems, 200 clients over 4 connections, RocksDB behind the durable
    /// queue; starts everything itself
    Ordered(OrderedBenchArgs),
    /// One thing done to a running cell while a load goes on
    Scenario(ScenarioArgs),
    /// Latency, copied bytes and CPU over time while backends are drained, restarted and
    /// killed, with plots
    Maintenance(MaintenanceArgs),
    /// Every figure that the documentation quotes, with a report and plots
    All(AllArgs),
}

#[derive(Args, Debug)]
pub(crate) struct NetworkArgs {
    /// Lengths of values, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        default_value = "100,1024"
    )]
    pub value_size: Vec<usize>,
    /// How long each case runs in each round
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub seconds: f64,
    /// Rounds, of which medians are shown
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// Only cases in whose title one of these words stands, such as get_many
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Draw what trials have to draw into this directory, as SVG and PNG
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// kill -9 of one of three backends at R=3.2
    Kill,
    /// kill -9 of the backends of a full cell, thirty times, each recovered before the next
    Kills,
    /// kill -9 of the only backend at R=1, and a new process in its place
    Takeover,
    /// Retries of GETs over a million keys, uniform and Zipf
    Retries,
    /// Memory from 64 MiB to 2 GiB and back
    Reshape,
    /// CPU of a backend per one-sided GET, and when idle
    Cpu,
    /// kill -9 of one of three backends with full memory, by gateway and native client
    FullKill,
    /// What the replicas of a full cell disagree on, and its hit ratio beside one copy's
    Alike,
    /// One of three backends stands still, goes on, and another stands still
    StopStop,
    /// A replica misses writes, and another one stands still afterwards
    Away,
    /// Values of 1 to 15 MiB in 64 and 256 MiB
    Large,
    /// Ten million new items at R=3.2: the slowest SET while indexes grow
    Load,
    /// A backend with a gigabyte is killed, recovers under load, and another one is killed
    Recovery,
    /// Each backend moves to another process under load, at R=3.2 and R=1
    Planned,
    /// A cell gets 5, 4 and 3 backends again under load, at R=3.2 and R=1
    Resize,
    /// A cell of the previous release is upgraded to this one under load, and downgraded
    Upgrade,
    /// etcd, which keeps the configuration, is dead for a minute under load
    Etcd,
    /// A million keys: what scans and repairs cost, and what repair does at full memory
    Repair,
    /// `serve` and `cell up` restarted, as themselves and as others, under clients that stay
    Restarts,
    /// 1000 connections that misbehave, 10000 operations at once, 200 client processes
    Crowd,
    /// GETs through the front door beside another client that asks for much, of each kind
    Neighbours,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct ScenarioArgs {
    /// What to do
    pub name: Scenario,
    /// Small and short: shows that it works, not how well
    #[arg(long)]
    pub quick: bool,
    /// Of `alike` and `neighbours`: only the cases whose names contain this, as "oltp by native"; of the latter, several with | between them
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Of `upgrade`: the previous release's program
    #[arg(long, value_name = "PATH")]
    pub previous: Option<PathBuf>,
    /// How often, where medians are reported [default: 3 of planned, resize, recovery and etcd,
    /// 5 of kill, cpu and retries; 1 of upgrade, or if quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: Option<u32>,
    /// Of `kills`: how many [default: 30, or 5 if quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub kills: Option<u32>,
    /// Of `kills`: two backends at a time, so that values are lost: shows that they are counted
    #[arg(long)]
    pub overlap: bool,
    /// Core of the servers
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub server_core: usize,
    /// Core of the load generator
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub client_core: usize,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct MaintenanceArgs {
    /// Folder for the table, CSV and plots
    #[arg(long, default_value = "out/maintenance", value_name = "DIR")]
    pub out: PathBuf,
    /// Small and short: shows that it works, not how well
    #[arg(long)]
    pub quick: bool,
    /// Seconds before the first event, between two, and after the last [default: 6]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Items of 1,000 bytes in the cell [default: 250000]
    #[arg(long)]
    pub keys: Option<u64>,
    /// Core of the servers
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub server_core: usize,
    /// Core of the load generator
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub client_core: usize,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct AllArgs {
    /// Folder for report.md, report.json and plots
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Small and short: shows that everything works, not how well
    #[arg(long)]
    pub quick: bool,
    /// Print report.json instead of report.md
    #[arg(long)]
    pub json: bool,
}

/// Pages behind shared memory.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// The system's base pages, 4 KiB, for cell and floor
    Base,
    /// 2 MiB where the system gives them; the floor gets what the cell has got
    Huge,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub address: CellAddress,
    #[command(flatten)]
    pub by: ByEngine,
    /// Keys in the corpus
    #[arg(long, default_value_t = 100_000)]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    pub value_size: usize,
    /// Keys of one get_many; 1 is a plain get
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Open loop with this many operations a second; without it, closed loop
    #[arg(long, value_name = "OPS")]
    pub rate: Option<f64>,
    /// How long to measure
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// uniform, or zipf with this exponent
    #[arg(long, value_name = "THETA")]
    pub zipf: Option<f64>,
    /// Share of GETs in a mix
    #[arg(long, default_value_t = 0.95)]
    pub get_share: f64,
    /// Core for the load generator
    #[arg(long)]
    pub core: Option<usize>,
    /// Do not fill the corpus first
    #[arg(long)]
    pub no_fill: bool,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Memcached,
    Redis,
    Valkey,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct CompareArgs {
    /// What to compare with
    #[arg(long, default_value = "memcached")]
    pub peer: Peer,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    pub value_size: usize,
    /// Bytes of all values together
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub corpus: ByteSize,
    /// Runs of each system, in turn; medians are reported
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Pages behind Trefoil's memory and behind the floor's
    #[arg(long, default_value = "huge")]
    pub pages: Pages,
    /// Write plots into this folder
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Core of the servers
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub server_core: usize,
    /// Core of the load generator
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub client_core: usize,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct GatewayBenchArgs {
    /// What to compare with, and whose protocol to speak
    #[arg(long, default_value = "memcached")]
    pub peer: Peer,
    /// Without a gateway in front of a cell of three copies
    #[arg(long)]
    pub no_cell: bool,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Runs of each system, in turn; medians are reported
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Keys asked for
    #[arg(long, default_value_t = 100_000)]
    pub keys: u64,
    /// Bytes of values
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1024], value_name = "N[,N…]")]
    pub value_size: Vec<usize>,
    /// Core of the servers
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub server_core: usize,
    /// Core of the load generator
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub client_core: usize,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderedPart {
    /// nilext SETs beside a bare loop, executed ones and today's
    Commits,
    /// After Twitter's clusters 12, 19, 27 and 31
    Workloads,
    /// SETs from another host, by an engine, beside a bare echo and memcached
    OffHost,
    /// The same workloads from another host: all three systems by one engine
    OffHostWorkloads,
    /// The same, the alternatives in one thread that has the socket and the store, without an engine
    OneThread,
    /// 200 clients over 4 connections
    Shared,
    /// SETs that are acknowledged when they are in a file
    Durable,
    /// RocksDB behind the durable queue, beside its own log with sync
    Rocksdb,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct OrderedBenchArgs {
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_name = "PART[,PART…]")]
    pub only: Vec<OrderedPart>,
    /// Rounds over all cases; medians are reported
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub runs: usize,
    /// Seconds of each measurement; of workloads, in slices of 20 ms with rests between them
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
    /// RocksDB's library, if it is not where the system has such
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// Where the durable queue's files are made [default: the system's folder for such]
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Draw the latencies into this directory, as SVG and PNG
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Core of the servers
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub server_core: usize,
    /// Core of the load generator
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub client_core: usize,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct MemoryArgs {
    #[arg(long, default_value_t = 5_000_000)]
    pub items: u64,
    #[arg(long, default_value_t = 36)]
    pub key_size: usize,
    #[arg(long, default_value_t = 224)]
    pub value_size: usize,
    #[arg(long, default_value = "memcached")]
    pub peer: Peer,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct ChurnArgs {
    /// Memory of each cache
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    pub memory: ByteSize,
    #[arg(long, default_value_t = 16)]
    pub key_size: usize,
    /// Bytes of a value; a run each [default: 100,300,1000,2000,5000, unless --cluster is given]
    #[arg(long, value_delimiter = ',', value_name = "N[,N…]")]
    pub value_size: Vec<usize>,
    /// Twitter's clusters by number, with keys and values around their mean lengths; a run each [default: 12,14,19,29,37,40, unless --value-size is given]
    #[arg(long, value_delimiter = ',', value_name = "N[,N…]")]
    pub cluster: Vec<u32>,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touches {
    /// One partition, every access reported at once
    Exact,
    /// The default configuration: partitions, and touches in batches
    Batched,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct HitRatioArgs {
    /// ARC text format (`start count ignore id` a line), zstd or plain
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    #[arg(long)]
    pub policy: Eviction,
    /// Capacities in objects
    #[arg(long, value_delimiter = ',', required = true, value_name = "N[,N…]")]
    pub objects: Vec<u64>,
    #[arg(long, default_value = "exact")]
    pub touches: Touches,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct DemoArgs {
    /// Trace in the ARC text format; the OLTP trace is built in
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}
