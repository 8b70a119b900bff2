//! The command line: what others script against.

#[cfg(feature = "bench")]
mod bench;
mod certs;
#[cfg(feature = "bench")]
mod histories;
#[cfg(feature = "linked")]
mod linked;
#[cfg(feature = "queue")]
mod queue;
#[cfg(feature = "sim")]
mod sim;

#[cfg(feature = "bench")]
pub(crate) use bench::*;
pub(crate) use certs::*;
#[cfg(feature = "bench")]
pub(crate) use histories::*;
#[cfg(feature = "linked")]
pub(crate) use linked::*;
#[cfg(feature = "queue")]
pub(crate) use queue::*;
#[cfg(feature = "sim")]
pub(crate) use sim::*;

use crate::engine::EngineCount;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use trefoil_client::LookupStrategy;
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
    Serve(Box<ServeArgs>),
    /// Serve memcached's and Redis's clients from any cell
    Gateway(GatewayArgs),
    /// Read the backends of this host for clients on other hosts, in one round trip
    Engine(EngineArgs),
    /// Tell the linked store's servers which rows of a Postgres database changed
    #[cfg(feature = "linked")]
    Relay(RelayArgs),
    #[cfg(not(feature = "linked"))]
    #[command(hide = true, disable_help_flag = true)]
    Relay(LeftOut),
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
    #[command(disable_version_flag = true)]
    Cas(CasArgs),
    /// Look a cell over: keys on which replicas differ, damage, skew, what does not answer, and what to do about it
    Doctor(DoctorArgs),
    /// Watch a cell: operations, memory, latencies, hot keys, backends
    #[cfg(feature = "top")]
    Top(TopArgs),
    #[cfg(not(feature = "top"))]
    #[command(hide = true, disable_help_flag = true)]
    Top(LeftOut),
    /// Measure: a cell under load, beside memcached or redis, hit ratios, memory
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(BenchCommand),
    #[cfg(not(feature = "bench"))]
    #[command(hide = true, disable_help_flag = true)]
    Bench(LeftOut),
    /// An ordered queue on this host, whose SETs commit in shared memory: serve one, use one
    #[cfg(feature = "queue")]
    #[command(subcommand)]
    Queue(QueueCommand),
    #[cfg(not(feature = "queue"))]
    #[command(hide = true, disable_help_flag = true)]
    Queue(LeftOut),
    /// Decide which server of a linked store has which keys
    #[cfg(feature = "linked")]
    Assigner(AssignerArgs),
    #[cfg(not(feature = "linked"))]
    #[command(hide = true, disable_help_flag = true)]
    Assigner(LeftOut),
    /// Look at a linked store: slices, owners, loads, moves, losses, and what to do about them; drain a server
    #[cfg(feature = "linked")]
    #[command(subcommand)]
    Linked(LinkedCommand),
    #[cfg(not(feature = "linked"))]
    #[command(hide = true, disable_help_flag = true)]
    Linked(LeftOut),
    /// Search for violations of the promises in a simulated cell with faults
    #[cfg(feature = "sim")]
    Sim(SimArgs),
    #[cfg(not(feature = "sim"))]
    #[command(hide = true, disable_help_flag = true)]
    Sim(LeftOut),
    /// Search for violations of the promises in a real cell: clients in processes, faults, every answer checked
    #[cfg(feature = "bench")]
    Histories(HistoriesArgs),
    /// One client of `histories`
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    HistoryWorker,
    #[cfg(not(feature = "bench"))]
    #[command(hide = true, disable_help_flag = true)]
    Histories(LeftOut),
    /// Start a replicated cell, replay a real workload through it, kill a backend, compare
    #[cfg(feature = "bench")]
    Demo(DemoArgs),
    #[cfg(not(feature = "bench"))]
    #[command(hide = true, disable_help_flag = true)]
    Demo(LeftOut),
}

/// The arguments of a command that this build was made without.
#[cfg(not(all(
    feature = "top",
    feature = "bench",
    feature = "linked",
    feature = "queue",
    feature = "sim"
)))]
#[derive(Args, Debug, Clone)]
pub(crate) struct LeftOut {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub ignored: Vec<std::ffi::OsString>,
}

/// Where `serve` listens, and so where cells are looked for.
pub(crate) const CELL_DEFAULT: &str = "127.0.0.1:7411";

/// What may be spoken without TLS where other machines reach it.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Plaintext {
    Rpc,
    Metrics,
    Memcached,
    Redis,
}

/// Where the cell is.
#[derive(Args, Debug, Clone)]
pub(crate) struct CellAddress {
    /// host:port[,host:port…], unix:/path (a socket or a cell's directory), etcd://host:port/path, or trefoil://…
    #[arg(
        long,
        env = "TREFOIL_CELL",
        value_name = "ADDR",
        default_value = CELL_DEFAULT
    )]
    pub cell: String,
    /// Directory with certificates (ca.pem, cert.pem, key.pem): servers over TCP are then spoken to with TLS only
    #[arg(long, env = "TREFOIL_CERTS", value_name = "DIR")]
    pub certs: Option<PathBuf>,
}

/// Settings that `serve` and `cell up` share. Unset ones come from the
/// configuration file, then from the defaults.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct StoreArgs {
    /// Bound of all resident memory [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<ByteSize>,
    /// What makes room when memory is full [default: slru]
    #[arg(long, value_name = "POLICY")]
    pub eviction: Option<Eviction>,
    /// Longest value that is accepted [default: 16MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub value_max: Option<ByteSize>,
    /// How keys are hashed; sip13 where strangers choose the keys [default: xxh3]
    #[arg(long, value_name = "KIND")]
    pub hash: Option<Hash>,
    /// Partitions of each backend [default: one for every 128MiB of its memory, 2 to 8]
    #[arg(long, value_name = "N")]
    pub partitions: Option<usize>,
    /// Use huge pages: reserved ones if there are enough, else gathered from small ones [default: true]
    #[arg(long, value_name = "BOOL")]
    pub huge_pages: Option<bool>,
    /// At R=3.2, from one scan for keys on which replicas differ to the next; 0s repairs nothing [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub repair_interval: Option<Duration>,
    /// Bytes a second that a scan and its repairs may move between backends [default: 8MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub repair_rate: Option<ByteSize>,
    /// Bytes a second that a backend which recovers, moves or joins copies from others; 0 sets no limit [default: none for a recovery, 256MiB for a move]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub recovery_rate: Option<ByteSize>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Eviction {
    Slru,
    Lru,
    Arc,
    S3fifo,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Switch {
    On,
    Off,
}

/// See `trefoil_gateway_core::world::Release`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub(crate) enum MemcachedVersion {
    #[value(name = "1.6.18")]
    #[serde(rename = "1.6.18")]
    V1_6_18,
    #[value(name = "1.6.45")]
    #[serde(rename = "1.6.45")]
    V1_6_45,
}

/// See `trefoil_gateway_core::world::Isolation`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transactions {
    Relaxed,
    Strict,
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
    /// The cell's name, for people and metrics [default: serve]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Address of the RPC service, or off [default: 127.0.0.1:7411]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub listen: Option<String>,
    /// Unix socket of the RPC service; shared memory is handed over beside it
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Address of the Prometheus metrics, or off [default: 127.0.0.1:9411]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub metrics: Option<String>,
    /// Settings in TOML, named like the options; options win
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Users besides this one who may come in through the Unix sockets: names or numbers
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub allow_user: Vec<String>,
    /// Token that clients of the RPC service over TCP show, instead of one that is drawn at every start
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Directory with certificates (ca.pem, cert.pem, key.pem): the RPC service over TCP then speaks TLS, with clients that have one of the same authority
    #[arg(long, value_name = "DIR")]
    pub certs: Option<PathBuf>,
    /// What may be reached from other machines without TLS
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub plaintext: Vec<Plaintext>,
    /// Address of an engine in this process, by which clients on other hosts read in one round trip, or off [default: off]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub engine: Option<String>,
    #[command(flatten)]
    pub engine_size: EngineSize,
    /// Whether a parent process starts the server again, empty, when it has died [default: never]
    #[arg(long, value_enum)]
    pub restart: Option<Restart>,
    /// The process that does so
    #[arg(long, hide = true, value_name = "PID")]
    pub supervised_by: Option<u32>,
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
    /// Close connections that say nothing for so long, for example 10m [default: 1h; 0s is never]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub idle_timeout: Option<Duration>,
    /// Longest value that memcached's clients may store [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub item_max: Option<ByteSize>,
    /// Half-received requests and unsent answers, for each event loop [default: serve: an eighth of the memory, 16MiB to 256MiB; gateway: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub buffers: Option<ByteSize>,
    /// How long an event loop polls after the last request before it sleeps; 0s never polls [default: 50us]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub spin: Option<Duration>,
    /// Whether the answers of several clients leave by one system call, where the system allows io_uring [default: on]
    #[arg(long, value_name = "on|off")]
    pub io_uring: Option<Switch>,
    /// Commands that take longer are in the slow log; 0s keeps none [default: 10ms]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub slow_log: Option<Duration>,
    /// Users, as lines of user:password, in sections [read], [write], [admin]; clients then have to authenticate
    #[arg(long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Where clients have to authenticate, close connections that have not done so by then [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub auth_timeout: Option<Duration>,
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
    /// Whether flush_all, FLUSHALL, cache_memlimit and their like are obeyed [default: on]
    #[arg(long, value_name = "on|off")]
    pub admin_commands: Option<Switch>,
    /// The memcached whose answers clients get, where its releases contradict each other [default: 1.6.18]
    #[arg(long, value_name = "1.6.18|1.6.45")]
    pub memcached_version: Option<MemcachedVersion>,
    /// What becomes of a Redis transaction that cannot be atomic: executed one command after the other, or refused [default: relaxed]
    #[arg(long, value_name = "relaxed|strict")]
    pub transactions: Option<Transactions>,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    pub address: CellAddress,
    #[command(flatten)]
    pub doors: DoorArgs,
    /// When SETs are done whose answer tells no version: executed by a quorum, or acknowledged: they stand in the queues of their backends on this host (`cell up --queue`). Then a GET right after it is slower, and with one copy a backend that is killed loses SETs that were answered and not yet executed [default: executed, so that a GET right after it reads memory]
    #[arg(long, value_enum)]
    pub commit: Option<CommitBy>,
    /// Address of the Prometheus metrics, or off [default: 127.0.0.1:9412]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub metrics: Option<String>,
    /// What may be reached from other machines without TLS
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub plaintext: Vec<Plaintext>,
    /// Settings in TOML, named like the options; options win
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub address: CellAddress,
    /// Where clients connect to; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7431")]
    pub listen: String,
    /// Without certificates: file with the token that clients show; without it, one is drawn and left where this user's clients find it
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Let other machines reach it without TLS: needs --token-file
    #[arg(long)]
    pub plaintext: bool,
    /// Address of the Prometheus metrics, or off
    #[arg(long, value_name = "HOST:PORT|off", default_value = "off")]
    pub metrics: String,
    /// Let other machines reach the metrics, and nothing else, without TLS
    #[arg(long, hide = true)]
    pub plaintext_metrics: bool,
    /// Serve even if another process has the port of the metrics, which is tried again then
    #[arg(long, hide = true)]
    pub metrics_may_come_later: bool,
    /// End with the process that has started this one
    #[arg(long, hide = true)]
    pub is_bound: bool,
    #[command(flatten)]
    pub size: EngineSize,
    /// How long to look for requests before sleeping, where they come soon
    #[arg(long, value_name = "TIME", default_value = "50us")]
    pub spin: humantime::Duration,
}

/// How large an engine is.
#[derive(Args, Debug, Clone, Copy, Default)]
pub(crate) struct EngineSize {
    /// Threads by which an engine reads, over which its clients are spread: so many, or by load between two numbers [default: 1]
    #[arg(long, value_name = "N|MIN..MAX")]
    pub engines: Option<EngineCount>,
    /// Clients that an engine takes at a time [default: 256]
    #[arg(long, value_name = "N")]
    pub engine_sessions: Option<usize>,
    /// Of these, clients of one identity at most: a certificate's name, or the token [default: half of them where clients show certificates, else all]
    #[arg(long, value_name = "N")]
    pub engine_share: Option<usize>,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Switch::On
    }
}

/// By way of which engine a cell is read.
#[derive(Args, Debug, Clone)]
pub(crate) struct ByEngine {
    /// Look up by way of the engine at this address instead of shared memory; RPC where it does not help
    #[arg(long, value_name = "HOST:PORT")]
    pub engine: Option<SocketAddr>,
    /// Ask engines to which TLS is spoken over UDP, if that gets through
    #[arg(long)]
    pub engine_udp: bool,
    /// Whether what changes something goes by the engine, too, if it takes messages: on, off (calls)
    #[arg(long, value_name = "HOW", default_value = "off")]
    pub engine_messages: Switch,
    /// How an engine looks keys up: auto, scar (one round trip), scar-all (data from each replica asked), 2xr (votes, then a read), rpc (none does)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub strategy: LookupStrategy,
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
        #[arg(long, value_name = "SIZE", value_parser = size)]
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
    /// Start each backend anew, one after the other, without losing anything
    Restart {
        /// Only these backends
        #[arg(value_name = "BACKEND")]
        backends: Vec<u32>,
        #[command(flatten)]
        address: CellAddress,
        /// Begin even if the host has plainly no room for it
        #[arg(long)]
        without_room: bool,
        /// Machine-readable, a line for each step
        #[arg(long)]
        json: bool,
    },
    /// Move each backend to another program's process, one after the other; goes on where it was stopped
    Upgrade {
        /// The program; it is opened once, so it may be replaced later
        #[arg(long, value_name = "PATH")]
        binary: PathBuf,
        #[command(flatten)]
        address: CellAddress,
        /// Begin even if the host has plainly no room for it
        #[arg(long)]
        without_room: bool,
        /// Machine-readable, a line for each step
        #[arg(long)]
        json: bool,
    },
    /// Move a backend to a spare while it serves; its process ends
    Drain {
        /// Which
        #[arg(value_name = "BACKEND")]
        backend: u32,
        #[command(flatten)]
        address: CellAddress,
        /// Begin even if the host has plainly no room for it
        #[arg(long)]
        without_room: bool,
        /// Machine-readable, a line for each step
        #[arg(long)]
        json: bool,
    },
    /// Start a process in the place of one that was drained: it is a spare now
    Undrain {
        /// Which
        #[arg(value_name = "BACKEND")]
        backend: u32,
        #[command(flatten)]
        address: CellAddress,
        /// Machine-readable, a line for each step
        #[arg(long)]
        json: bool,
    },
    /// Stand by to take the place of a backend that dies, in a cell over etcd
    Spare(SpareArgs),
    /// Give dead backends' places to spares, in a cell over etcd; several may run, one decides
    Controller(ControllerArgs),
    /// Give the cell another number of backends while it serves, without losing anything
    Resize(ResizeArgs),
    /// Write a cell's configuration into an etcd that has lost it, or was restored from an old backup
    RestoreConfig(RestoreArgs),
    /// A private authority, and certificates for servers and clients
    #[command(subcommand)]
    Certs(CertsCommand),
    /// One backend of a cell (started by `cell up`)
    #[command(hide = true)]
    Backend(BackendArgs),
}

#[derive(Args, Debug, Clone)]
#[group(id = "resize", required = true, multiple = false, args = ["backends", "pause", "go_on", "abort"])]
pub(crate) struct ResizeArgs {
    /// Backends that the cell is to have
    #[arg(long, value_name = "N")]
    pub backends: Option<u32>,
    /// Have the resize that is under way copy nothing for now
    #[arg(long)]
    pub pause: bool,
    /// Have it go on
    #[arg(long = "continue")]
    pub go_on: bool,
    /// Give it up: the cell stays as it was
    #[arg(long)]
    pub abort: bool,
    /// Begin even if the host has plainly no room for it
    #[arg(long, requires = "backends")]
    pub without_room: bool,
    #[command(flatten)]
    pub address: CellAddress,
    /// Machine-readable, a line for each step
    #[arg(long)]
    pub json: bool,
}

/// Where a backend of a cell on several hosts is reached by the others. Unset ones come from
/// the configuration file.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "A cell on several hosts")]
pub(crate) struct HostArgs {
    /// Address of the RPC service, which the cell's other hosts and clients reach; the ports of further backends here are the next ones
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// By which name or address they reach it, and its certificate names it [default: --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Directory with a backend's certificate (ca.pem, cert.pem, key.pem): hosts and clients speak TLS, with those that have one of the same authority
    #[arg(long, value_name = "DIR")]
    pub certs: Option<PathBuf>,
    /// What may be reached from other machines without TLS: rpc (needs --token-file), metrics
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub plaintext: Vec<Plaintext>,
    /// Without certificates: the token by which hosts and clients know each other, the same on all hosts
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct UpArgs {
    /// Directory of the cell: configuration, sockets, locks
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    pub dir: Option<PathBuf>,
    /// Where the configuration is kept: etcd://host:port[,host:port…]/path [default: the directory]
    #[arg(long = "store", value_name = "ADDR")]
    pub config_store: Option<String>,
    /// R=1, R=2 (immutable, needs --load) or R=3.2 [default: R=3.2]
    #[arg(long)]
    pub mode: Option<String>,
    /// Settings in TOML, named like the options; options win
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Backend processes [default: as many as the directory's cell had last; else 3 at R=3.2, 2 at R=2, 1 at R=1]
    #[arg(long, value_name = "N")]
    pub backends: Option<u32>,
    /// Corpus of an immutable cell: JSON lines or CSV with a header
    #[arg(long, value_name = "FILE")]
    pub load: Option<PathBuf>,
    /// Address of backend 0's Prometheus metrics, or off; backend N's are at N ports further [default: off]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub metrics: Option<String>,
    /// The cell's name, for people and metrics [default: cell]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Users besides this one who may come in: names or numbers
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub allow_user: Vec<String>,
    /// Processes that stand by to take a backend over [default: 0]
    #[arg(long, value_name = "N")]
    pub spares: Option<u32>,
    /// Address of an engine beside the backends of this host, by which clients on other hosts read in one round trip, or off [default: off]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub engine: Option<String>,
    /// Address of the engine's Prometheus metrics, or off [default: off]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub engine_metrics: Option<String>,
    #[command(flatten)]
    pub engine_size: EngineSize,
    /// Let clients on this host commit SETs and ERASEs before they are executed (`set --commit acknowledged`). Engines cannot read such a cell
    #[arg(long)]
    pub queue: bool,
    /// Whether to start a backend again that has died [default: always]
    #[arg(long, value_enum)]
    pub restart: Option<Restart>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Of a cell on several hosts: the numbers of the backends that are here, 0 to --backends - 1; the other hosts have the others
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        help_heading = "A cell on several hosts"
    )]
    pub here: Vec<u32>,
    #[command(flatten)]
    pub host: HostArgs,
}

/// What becomes of a process that has died.
#[derive(ValueEnum, serde::Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Restart {
    /// It is started again, later each time if it dies soon
    Always,
    /// It stays dead
    Never,
}

#[derive(Args, Debug, Clone)]
#[command(long_about = "\
Write a cell's configuration into an etcd that has lost it, or was restored from an old backup.

The backends are asked what they serve; that is written under a higher config id, with how \
often each of them has begun. Nothing is written while a backend of the cell does not answer, \
unless --accept-loss says that those which do not are dead.

What is at stake: a backend that lives and was not asked may know of a later change (a flush, \
mostly) than the others. Written without it, that change is undone: what was flushed can be \
read again.")]
pub(crate) struct RestoreArgs {
    /// The etcd to write to: etcd://host:port[,host:port…]/path
    #[arg(long, value_name = "ADDR")]
    pub store: String,
    /// Where backends are, besides what etcd still knows: directories of `cell up`, or host:port, with commas
    #[arg(long, value_name = "WHERE", value_delimiter = ',')]
    pub from: Vec<String>,
    /// Backends that do not answer are dead: go on without what they know
    #[arg(long)]
    pub accept_loss: bool,
    /// Directory with certificates, where backends are on several hosts
    #[arg(long, env = "TREFOIL_CERTS", value_name = "DIR")]
    pub certs: Option<PathBuf>,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

/// When a spare takes a dead backend's place.
#[derive(Args, Debug, Clone)]
pub(crate) struct ControlArgs {
    /// How long a backend has to be gone from etcd before a spare takes its place; longer than a restart takes
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub dead_after: Duration,
    /// Replace backends at R=1, too: the spare begins empty, and what the dead one held is lost
    #[arg(long)]
    pub replace_lost: bool,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct ControllerArgs {
    /// The cell: etcd://host:port[,host:port…]/path
    #[arg(long, value_name = "ADDR")]
    pub store: String,
    #[command(flatten)]
    pub control: ControlArgs,
    /// Address of the Prometheus metrics, or off
    #[arg(long, value_name = "HOST:PORT|off", default_value = "off")]
    pub metrics: String,
    /// Directory with certificates, where backends are on several hosts
    #[arg(long, env = "TREFOIL_CERTS", value_name = "DIR")]
    pub certs: Option<PathBuf>,
}

#[derive(Args, Debug, Clone)]
#[command(long_about = "\
Stand by to take the place of a backend that dies, in a cell over etcd.

The process registers in etcd and holds nothing. When a backend has been dead for \
--dead-after, its place in the cell's configuration is given to a spare, which recovers what \
the others hold and votes then. The dead one finds its place taken if it comes back, and does \
not serve.

Each spare runs a controller, of which one decides; `trefoil cell controller` runs one alone.")]
pub(crate) struct SpareArgs {
    /// The cell: etcd://host:port[,host:port…]/path
    #[arg(long, value_name = "ADDR")]
    pub store: String,
    /// Directory for its sockets: the cell's, or one of its own
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub control: ControlArgs,
    /// Run no controller here
    #[arg(long)]
    pub no_controller: bool,
    /// Address of the Prometheus metrics once it is a backend, or off
    #[arg(long, value_name = "HOST:PORT|off", default_value = "off")]
    pub metrics: String,
    /// Users besides this one who may come in: names or numbers
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub allow_user: Vec<String>,
    /// Bound of all resident memory, best that of the other backends [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<ByteSize>,
    /// Partitions [default: one for every 128MiB of its memory, 2 to 8]
    #[arg(long, value_name = "N")]
    pub partitions: Option<usize>,
    /// Use huge pages: reserved ones if there are enough, else gathered from small ones [default: true]
    #[arg(long, value_name = "BOOL")]
    pub huge_pages: Option<bool>,
    /// From one scan for keys on which replicas differ to the next; 0s repairs nothing [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub repair_interval: Option<Duration>,
    /// Bytes a second that a scan and its repairs may move between backends [default: 8MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub repair_rate: Option<ByteSize>,
    /// Bytes a second that it copies from others when it recovers; 0 sets no limit [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub recovery_rate: Option<ByteSize>,
    #[command(flatten)]
    pub host: HostArgs,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct BackendArgs {
    #[arg(long)]
    pub dir: PathBuf,
    #[arg(long = "store")]
    pub config_store: Option<String>,
    #[arg(long, required_unless_present = "spare")]
    pub number: Option<u32>,
    /// Of a process that runs: it is copied while it serves, and goes
    #[arg(long)]
    pub take_over: bool,
    /// Waits on standard input for the number of a backend to take over
    #[arg(long, conflicts_with_all = ["number", "take_over", "metrics"])]
    pub spare: bool,
    /// Of a cell of another size, as it is told on standard input
    #[arg(long, conflicts_with_all = ["spare", "take_over"])]
    pub join: bool,
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
    #[arg(long)]
    pub load: Option<PathBuf>,
    #[arg(long)]
    pub queue: bool,
    #[arg(long, value_delimiter = ',')]
    pub allow_user: Vec<String>,
    #[command(flatten)]
    pub store: StoreArgs,
    #[arg(long, value_delimiter = ',')]
    pub here: Vec<u32>,
    #[command(flatten)]
    pub host: HostArgs,
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

#[derive(Args, Debug, Clone)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub address: CellAddress,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
    /// Look at a share of the keys only, for example 5%; another one each time
    #[arg(long, value_name = "PERCENT", default_value = "100%", value_parser = share)]
    pub sample: f64,
    /// Bytes that are read from each backend in a second; 0 sets no limit
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub rate: ByteSize,
    /// End after so long, with what was found until then [default: when all was looked at]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
    /// Before a key is looked at again that is not clean
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    pub pause: Duration,
    /// Compare versions only and read no values: a fraction of the bytes, and damage stays unseen
    #[arg(long)]
    pub versions_only: bool,
    /// Keys shown of each kind of finding
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub examples: usize,
}

/// A share of the whole as people write it, as a number up to 1.
fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    number
        .ok()
        .filter(|percent| *percent > 0.0 && *percent <= 100.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "give a percentage above 0 and up to 100, for example 5%".to_owned())
}

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    pub key: String,
    #[command(flatten)]
    pub address: CellAddress,
    #[command(flatten)]
    pub by: ByEngine,
    /// Print outcome and version instead of the value
    #[arg(long)]
    pub json: bool,
}

/// Bytes as people write them.
pub(crate) fn size(text: &str) -> Result<ByteSize, String> {
    text.parse().map_err(|_| {
        "give a number, and a unit if it is not bytes: 64MiB, 1.5GiB, 500MB, 65536".to_owned()
    })
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
    /// When it is done: executed by a quorum, or acknowledged: it stands in the queues of its backends on this host (`cell up --queue`)
    #[arg(long, value_enum, default_value_t = CommitBy::Executed)]
    pub commit: CommitBy,
    #[command(flatten)]
    pub address: CellAddress,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

/// When a mutation is done.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CommitBy {
    /// When a quorum has executed it
    #[default]
    Executed,
    /// When it stands in the backend's queue
    Acknowledged,
}

impl From<CommitBy> for trefoil_client::Commit {
    fn from(by: CommitBy) -> Self {
        match by {
            CommitBy::Executed => trefoil_client::Commit::Executed,
            CommitBy::Acknowledged => trefoil_client::Commit::Acknowledged,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct EraseArgs {
    pub key: String,
    /// When it is done, as for `set`
    #[arg(long, value_enum, default_value_t = CommitBy::Executed)]
    pub commit: CommitBy,
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
