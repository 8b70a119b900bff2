//! `queue`.

use super::EngineSize;
use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub(crate) enum QueueCommand {
    /// Serve one: Trefoil's own store or RocksDB behind it, for clients on this host
    Serve(QueueServeArgs),
    /// Place requests of clients on other hosts into queues of this host: their SETs commit without the server's CPU
    Engine(QueueEngineArgs),
    /// Print a value's bytes; exit code 1 if it is not there
    Get(QueueKeyArgs),
    /// Store a value; done when the queue has committed it
    Set(QueueValueArgs),
    /// Remove a value; done when the queue has committed it
    Erase(QueueKeyArgs),
    /// Add to a decimal number, which is 0 if it is not there, and print the sum
    Add(QueueAddArgs),
    /// Put bytes behind a value
    Append(QueueValueArgs),
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueService {
    /// Trefoil's own store: bounded memory that evicts
    Cache,
    /// RocksDB, by the system's library (Debian 12: librocksdb7.8)
    Rocksdb,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFlush {
    /// Each write goes to the device by itself (O_DIRECT and O_DSYNC); where the file system has no such writes, cached
    Direct,
    /// Through the system's cache, and fdatasync
    Cached,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct QueueSocket {
    /// The server's Unix socket [default: queue.sock in this user's directory for such]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

// The queue that a command is for. Not a doc comment: clap would take it for the words of the
// commands that it stands in.
#[derive(Args, Debug, Clone)]
pub(crate) struct QueueServer {
    #[command(flatten)]
    pub at: QueueSocket,
    /// Users besides this one and root whose server is trusted: names or numbers
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub server_user: Vec<String>,
    /// Reach the queue by the engine at this address, beside its server on another host [default: shared memory, by --socket: nobody stands between]
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["socket", "server_user"])]
    pub engine: Option<String>,
    /// Which of the engine's queues: 0 is its first --socket
    #[arg(long, value_name = "N", default_value_t = 0, requires = "engine")]
    pub queue: u32,
    /// Directory with certificates (ca.pem, cert.pem, key.pem): the engine is then spoken to with TLS only
    #[arg(long, env = "TREFOIL_CERTS", value_name = "DIR")]
    pub certs: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct QueueEngineArgs {
    /// The Unix sockets of the servers beside it, numbered from 0 [default: queue.sock in this user's directory for such]
    #[arg(long = "socket", value_name = "PATH")]
    pub sockets: Vec<PathBuf>,
    /// Users besides this one and root whose servers are trusted: names or numbers
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub server_user: Vec<String>,
    /// Where clients connect to; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7441")]
    pub listen: String,
    /// Directory with a server's certificates (ca.pem, cert.pem, key.pem): clients then show one of the role client or admin
    #[arg(long, value_name = "DIR")]
    pub certs: Option<PathBuf>,
    /// Without certificates: file with the token that clients show; without it, one is drawn and left where this user's clients find it
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Let other machines reach it without TLS: needs --token-file
    #[arg(long)]
    pub plaintext: bool,
    #[command(flatten)]
    pub size: EngineSize,
    /// Places in each queue that clients of one identity have at most: a certificate's name, or the token [default: half of its server's --clients]
    #[arg(long, value_name = "N")]
    pub lanes: Option<NonZeroUsize>,
    /// How long to look for requests before sleeping, where they come soon
    #[arg(long, value_name = "TIME", default_value = "50us")]
    pub spin: humantime::Duration,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct QueueServeArgs {
    #[command(flatten)]
    pub at: QueueSocket,
    /// What keeps the values
    #[arg(long, value_enum, default_value_t = QueueService::Cache)]
    pub service: QueueService,
    /// Acknowledge what is in a file, and flushed: needs --folder
    #[arg(long)]
    pub durable: bool,
    /// Folder of this queue's files: of RocksDB, and of whatever is durable
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Length of a durable queue's journal, when it is made: half of it is the most that a restart executes again
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub journal: ByteSize,
    /// How the journal is flushed
    #[arg(long, value_enum, default_value_t = QueueFlush::Direct)]
    pub flush: QueueFlush,
    /// Memory of the cache; a durable one takes as much again while it writes its content to a file
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub memory: ByteSize,
    /// RocksDB's library, if it is not where the system has such
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// Requests that a client can have under way: a power of two
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub slots: u32,
    /// Clients at a time
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub clients: usize,
    /// How long to look for requests before sleeping
    #[arg(long, value_name = "DURATION", default_value = "50us", value_parser = humantime::parse_duration)]
    pub spin: Duration,
    /// Longest sleep while there are clients: how late a SET may be executed that nobody waits for; 100ms at most
    #[arg(long, value_name = "DURATION", default_value = "5ms", value_parser = humantime::parse_duration)]
    pub nap: Duration,
    /// Users besides this one who may be clients: names or numbers
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub allow_user: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct QueueKeyArgs {
    pub key: String,
    #[command(flatten)]
    pub server: QueueServer,
}

#[derive(Args, Debug)]
pub(crate) struct QueueValueArgs {
    pub key: String,
    /// The value; or --file
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub value: Option<String>,
    /// Read the value from a file; - is standard input
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub server: QueueServer,
}

#[derive(Args, Debug)]
pub(crate) struct QueueAddArgs {
    pub key: String,
    /// How much
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub by: i64,
    #[command(flatten)]
    pub server: QueueServer,
}
