//! The command line: what others script against.

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use trefoil_layout::Version;

/// A replicated in-memory cache whose GETs are memory reads.
#[derive(Parser, Debug)]
#[command(
    name = "trefoil",
    version,
    propagate_version = true,
    infer_long_args = false
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a whole cell in this process
    Serve(ServeArgs),
    /// Serve memcached's and Redis's clients from any cell
    Gateway(GatewayArgs),
    /// Tell the linked store's servers which rows of a Postgres database changed
    Relay(RelayArgs),
    /// Run and steer cells with a process for each backend
    #[command(subcommand)]
    Cell(CellCommand),
    /// Print a value's bytes; exit code 1 and the reason on stderr if it is not there
    Get(GetArgs),
    /// Store a value
    Set(SetArgs),
    /// Remove a value
    Erase(EraseArgs),
    /// Store a value if exactly the given version is present
    Cas(CasArgs),
    /// Watch a cell: operations, memory, latencies, hot keys, backends
    Top(TopArgs),
    /// Measure: a cell under load, beside memcached or redis, hit ratios, memory
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Decide which server of a linked store has which keys
    Assigner(AssignerArgs),
    /// Search for violations of the promises in a simulated cell with faults
    Sim(SimArgs),
    /// Start a replicated cell, replay a real workload through it, kill a backend, compare
    Demo(DemoArgs),
}

/// Where the cell is.
#[derive(Args, Debug, Clone)]
pub(crate) struct CellAddress {
    /// host:port[,host:port…], unix:/path (a socket or a cell's directory), or trefoil://…
    #[arg(long, env = "TREFOIL_CELL", value_name = "ADDR")]
    pub cell: String,
}

/// Settings that `serve` and `cell up` share. Unset ones come from the
/// configuration file, then from the defaults.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct StoreArgs {
    /// Bound of all resident memory [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// What makes room when memory is full [default: lru]
    #[arg(long, value_name = "POLICY")]
    pub eviction: Option<Eviction>,
    /// Longest value that is accepted [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub value_max: Option<ByteSize>,
    /// How keys are hashed; sip13 where strangers choose the keys [default: xxh3]
    #[arg(long, value_name = "KIND")]
    pub hash: Option<Hash>,
    /// Partitions of each backend [default: 8]
    #[arg(long, value_name = "N")]
    pub partitions: Option<usize>,
    /// Use huge pages: reserved ones if there are enough, else gathered from small ones [default: true]
    #[arg(long, value_name = "BOOL")]
    pub huge_pages: Option<bool>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Eviction {
    Lru,
    Arc,
    S3fifo,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Hash {
    Xxh3,
    Sip13,
}

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct ServeArgs {
    /// R=1 (one copy) or R=3.2 (three copies, two agree) [default: R=1]
    #[arg(long)]
    pub mode: Option<String>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Address of the RPC service [default: 127.0.0.1:7411]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<SocketAddr>,
    /// Unix socket of the RPC service; shared memory is handed over beside it
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Address of the Prometheus metrics, or off [default: 127.0.0.1:9411]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub metrics: Option<String>,
    /// Settings in TOML, named like the options; options win
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Allow addresses off loopback without TLS
    #[arg(long)]
    pub insecure: bool,
    #[command(flatten)]
    pub doors: DoorArgs,
}

/// Where memcached's and Redis's clients come in. Unset ones come from the
/// configuration file, then from the defaults.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Clients of memcached and Redis")]
pub(crate) struct DoorArgs {
    /// For memcached's clients: HOST:PORT, unix:PATH, several with commas, or off [default: 127.0.0.1:11211]
    #[arg(long, value_name = "ADDR|off")]
    pub memcached: Option<String>,
    /// For Redis's clients, written alike [default: off]
    #[arg(long, value_name = "ADDR|off")]
    pub redis: Option<String>,
    /// Event loops [default: half the cores, 1 to 4]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Connections at a time [default: 10000]
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,
    /// Close connections that say nothing for so long, for example 10m [default: never]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub idle_timeout: Option<Duration>,
    /// Longest value that memcached's clients may store [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    pub item_max: Option<ByteSize>,
    /// Half-received requests and unsent answers, for each event loop [default: an eighth of the memory, 16MiB to 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub buffers: Option<ByteSize>,
    /// How long an event loop polls after the last request before it sleeps; 0s never polls [default: 50us]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub spin: Option<Duration>,
    /// Commands that take longer are in the slow log; 0s keeps none [default: 10ms]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub slow_log: Option<Duration>,
    /// Users, as lines of user:password; clients then have to authenticate
    #[arg(long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Certificate chain in PEM: TCP addresses then speak TLS, but for those written plain:HOST:PORT
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities that the clients' certificates have to come from, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Obey the shutdown command of memcached's protocol
    #[arg(long)]
    pub enable_shutdown: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    pub address: CellAddress,
    #[command(flatten)]
    pub doors: DoorArgs,
    /// Address of the Prometheus metrics, or off [default: 127.0.0.1:9412]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub metrics: Option<String>,
    /// Allow addresses off loopback without TLS
    #[arg(long)]
    pub insecure: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct RelayArgs {
    /// postgres://user:password@host:port/database, or key=value pairs; better in the environment than on the command line
    #[arg(
        long,
        env = "TREFOIL_POSTGRES",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub postgres: String,
    /// The publication to follow
    #[arg(long, value_name = "NAME")]
    pub publication: String,
    /// Replication slot, in which the database remembers where the relay is
    #[arg(long, value_name = "NAME", default_value = "trefoil")]
    pub slot: String,
    /// Use a slot that ends with the connection: every start is a gap
    #[arg(long, conflicts_with = "slot")]
    pub temporary: bool,
    /// Which keys a row concerns, for example contact=contact/{id}; once for each table and kind of key
    #[arg(long = "map", value_name = "TABLE=TEMPLATE", required = true)]
    pub maps: Vec<String>,
    /// Send these columns with the keys of a table instead of only invalidating them
    #[arg(long = "refresh", value_name = "TABLE=COLUMN[,COLUMN…]")]
    pub refreshes: Vec<String>,
    /// Where subscribers come in
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7431")]
    pub listen: SocketAddr,
    /// How often to write a heartbeat into the database's log
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = humantime::parse_duration)]
    pub heartbeat: Duration,
    /// Memory for the last changes, for subscribers who are behind or away
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub memory: ByteSize,
    /// How long the database keeps changes after they were told, in case that the relay is killed
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub linger: Duration,
    /// Count a restart of the database as a gap (for sessions with synchronous_commit = off)
    #[arg(long)]
    pub restart_is_gap: bool,
    /// Allow addresses off loopback without TLS
    #[arg(long)]
    pub insecure: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum CellCommand {
    /// Start a cell, a process for each backend, and stay until a signal ends it
    Up(UpArgs),
    /// Show what the cell holds and how it is
    Status {
        #[command(flatten)]
        address: CellAddress,
        /// Machine-readable
        #[arg(long)]
        json: bool,
    },
    /// Change the memory bound of every process of the cell
    Memory {
        #[command(flatten)]
        address: CellAddress,
        /// New bound for each process, for example 512MiB
        #[arg(long, value_name = "SIZE")]
        limit: ByteSize,
        /// Machine-readable
        #[arg(long)]
        json: bool,
    },
    /// Make everything that is stored invisible at once; its memory follows
    Flush {
        #[command(flatten)]
        address: CellAddress,
        /// Machine-readable
        #[arg(long)]
        json: bool,
    },
    /// Replace the corpus of an immutable cell (R=2)
    Reload {
        #[command(flatten)]
        address: CellAddress,
        /// JSON lines or CSV with a header
        #[arg(long, value_name = "FILE")]
        load: PathBuf,
        /// Drop the old corpus first, where memory does not hold both
        #[arg(long)]
        clear_first: bool,
    },
    /// One backend of a directory cell (started by `cell up`)
    #[command(hide = true)]
    Backend(BackendArgs),
}

#[derive(Args, Debug, Clone)]
pub(crate) struct UpArgs {
    /// Directory of the cell: configuration, sockets, locks
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// R=1, R=2 (immutable, needs --load) or R=3.2
    #[arg(long, default_value = "R=3.2")]
    pub mode: String,
    /// Backend processes [default: 3 at R=3.2, 2 at R=2, 1 at R=1]
    #[arg(long, value_name = "N")]
    pub backends: Option<u32>,
    /// Corpus of an immutable cell: JSON lines or CSV with a header
    #[arg(long, value_name = "FILE")]
    pub load: Option<PathBuf>,
    /// Address of backend 0's Prometheus metrics; backend N's are at N ports further
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub store: StoreArgs,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct BackendArgs {
    #[arg(long)]
    pub dir: PathBuf,
    #[arg(long)]
    pub number: u32,
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
    #[arg(long)]
    pub load: Option<PathBuf>,
    #[command(flatten)]
    pub store: StoreArgs,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub address: CellAddress,
    /// Print one snapshot as text and end
    #[arg(long)]
    pub once: bool,
    /// Print an object for each interval
    #[arg(long)]
    pub json: bool,
    /// Between two readings
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    pub interval: Duration,
    /// Hot keys shown, of each order
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub keys: usize,
}

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    pub key: String,
    #[command(flatten)]
    pub address: CellAddress,
    /// Print outcome and version instead of the value
    #[arg(long)]
    pub json: bool,
}

/// A duration after which an item expires. Nothing would be stored with none,
/// and elsewhere 0 means "never".
fn time_to_live(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("an item with no time to live would never be seen; leave --ttl out for one that does not expire".to_owned());
    }
    Ok(duration)
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    pub key: String,
    /// The value; or --file
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub value: Option<String>,
    /// Read the value from a file; - is standard input
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Expire after, for example 60s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = time_to_live)]
    pub ttl: Option<Duration>,
    #[command(flatten)]
    pub address: CellAddress,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct EraseArgs {
    pub key: String,
    #[command(flatten)]
    pub address: CellAddress,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CasArgs {
    pub key: String,
    pub value: String,
    /// The version that has to be present: 32 hex digits, as `get --json` prints it
    #[arg(long, value_name = "V")]
    pub version: Version,
    /// Expire after, for example 60s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = time_to_live)]
    pub ttl: Option<Duration>,
    #[command(flatten)]
    pub address: CellAddress,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

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
    /// Hit ratio of a trace through the real store
    HitRatio(HitRatioArgs),
    /// Value sizes shifting at full memory, beside fresh caches of the new size
    SizeShift {
        #[arg(long)]
        json: bool,
    },
    /// The front door beside memcached or redis, in turn in one run; starts everything itself
    Gateway(GatewayBenchArgs),
    /// Objects linked into app servers beside remote caches; starts everything itself
    Linked(LinkedBenchArgs),
    /// One thing done to a running cell while a load goes on
    Scenario(ScenarioArgs),
    /// Every figure that the documentation quotes, with a report and plots
    All(AllArgs),
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// kill -9 of one of three backends at R=3.2
    Kill,
    /// kill -9 of the only backend at R=1, and a new process in its place
    Takeover,
    /// Retries of GETs over a million keys, uniform and Zipf
    Retries,
    /// Memory from 64 MiB to 2 GiB and back
    Reshape,
    /// CPU of a backend per one-sided GET, and when idle
    Cpu,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct ScenarioArgs {
    /// What to do
    pub name: Scenario,
    /// Small and short: shows that it works, not how well
    #[arg(long)]
    pub quick: bool,
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
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkedProtocol {
    /// Length, number, method, message: what is measured is the service
    Frames,
    /// HTTP/2, as the address book's other callers use
    Grpc,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct LinkedBenchArgs {
    /// Folder for the report and plots
    #[arg(long, default_value = "out/linked", value_name = "DIR")]
    pub out: PathBuf,
    /// Small and short: shows that everything works, not how well
    #[arg(long)]
    pub quick: bool,
    /// Forms of the service to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME[,…]")]
    pub variant: Vec<String>,
    /// How callers and app servers speak, in all forms alike
    #[arg(long, default_value = "frames")]
    pub protocol: LinkedProtocol,
    /// Bytes of objects, instead of the paper's cases
    #[arg(long, value_delimiter = ',', value_name = "N[,N…]")]
    pub size: Vec<usize>,
    /// Percent of an object that a request uses, for each --size [default: 100]
    #[arg(long, value_delimiter = ',', value_name = "N[,N…]", requires = "size")]
    pub used: Vec<u32>,
    /// Servers of each kind
    #[arg(long, default_value_t = 2)]
    pub servers: usize,
    /// Runs of each form, in turn; medians are reported
    #[arg(long)]
    pub runs: Option<usize>,
    /// Seconds of each run; more for large objects
    #[arg(long)]
    pub seconds: Option<f64>,
    /// All rates times this
    #[arg(long, default_value_t = 1.0)]
    pub rate: f64,
    /// Changes of whole objects overwrite them unread
    #[arg(long)]
    pub overwrite: bool,
    /// Everything on loopback, without namespaces and counts of bytes
    #[arg(long)]
    pub loopback: bool,
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
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AssignerArgs {
    /// Address of the service
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7421")]
    pub listen: SocketAddr,
    /// Address that others are told [default: that of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// embedded (forgets with the process), embedded:FILE, or etcd://host:port[,host:port…]/prefix for several assigners
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub store: String,
    /// A corpus, and how many replicas its slices have; without any, every corpus that is asked for, with one
    #[arg(long, value_name = "NAME[:MIN..MAX]")]
    pub corpus: Vec<String>,
    /// How long a server is taken for alive after it was last heard
    #[arg(long, value_name = "DURATION", default_value = "2500ms", value_parser = humantime::parse_duration)]
    pub lease: Duration,
    /// Allow addresses off loopback without TLS
    #[arg(long)]
    pub insecure: bool,
    #[command(subcommand)]
    pub action: Option<AssignerAction>,
}

/// Where the assigners are.
#[derive(Args, Debug, Clone)]
pub(crate) struct AssignerAddressArgs {
    /// host:port[,host:port…]
    #[arg(
        long,
        env = "TREFOIL_ASSIGNER",
        value_name = "ADDR",
        default_value = "127.0.0.1:7421"
    )]
    pub assigner: String,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum AssignerAction {
    /// Show corpora, servers, loads, the last moves, and what does not fit
    Status {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Machine-readable: a list with a document for each assigner
        #[arg(long)]
        json: bool,
    },
    /// Move nothing, as during a deployment; slices of dead servers still find new ones
    Freeze {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Only this corpus
        #[arg(long, value_name = "NAME")]
        corpus: Option<String>,
        /// Change nothing at all, not even for dead servers
        #[arg(long)]
        all: bool,
    },
    /// End a freeze
    Thaw {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Only this corpus
        #[arg(long, value_name = "NAME")]
        corpus: Option<String>,
    },
    /// Go on from what the store has although servers know something newer: for a store that was restored from an old copy
    BeginIncarnation {
        #[command(flatten)]
        address: AssignerAddressArgs,
        /// Which corpus
        #[arg(long, value_name = "NAME")]
        corpus: String,
    },
}

#[derive(Args, Debug, Clone)]
pub(crate) struct SimArgs {
    /// First seed; alone, that seed is replayed with every step printed
    #[arg(long)]
    pub seed: Option<u64>,
    /// How many seeds
    #[arg(long)]
    pub seeds: Option<u64>,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct DemoArgs {
    /// Trace in the ARC text format; the OLTP trace is built in
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}
