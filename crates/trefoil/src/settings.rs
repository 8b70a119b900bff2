//! Settings of servers: the command line over the configuration file over the
//! defaults.

use crate::args::{DoorArgs, Eviction, Hash, ServeArgs, StoreArgs};
use crate::failure::Failure;
use bytesize::ByteSize;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trefoil_layout::HashKind;
use trefoil_layout::limits::VALUE_LEN_MAX_DEFAULT;

/// Memory of a server that was not told.
const MEMORY_DEFAULT: u64 = 1 << 30;
/// Partitions of a backend that was not told.
const PARTITION_COUNT_DEFAULT: usize = 8;

/// The configuration file: the options' names, with underscores.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    mode: Option<String>,
    memory: Option<ByteSize>,
    eviction: Option<Eviction>,
    value_max: Option<ByteSize>,
    hash: Option<Hash>,
    partitions: Option<usize>,
    huge_pages: Option<bool>,
    listen: Option<SocketAddr>,
    socket: Option<PathBuf>,
    metrics: Option<String>,
    insecure: Option<bool>,
    memcached: Option<String>,
    redis: Option<String>,
    threads: Option<usize>,
    connections: Option<usize>,
    #[serde(default, deserialize_with = "duration")]
    idle_timeout: Option<Duration>,
    item_max: Option<ByteSize>,
    buffers: Option<ByteSize>,
    #[serde(default, deserialize_with = "duration")]
    spin: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    slow_log: Option<Duration>,
    auth_file: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_client_ca: Option<PathBuf>,
    enable_shutdown: Option<bool>,
}

/// As on the command line: 50us, 10m.
fn duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text)
        .map(Some)
        .map_err(serde::de::Error::custom)
}

/// What a store is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreSettings {
    /// Bound of all resident bytes of the process.
    pub memory: u64,
    pub eviction: Eviction,
    pub value_len_max: u64,
    pub hash: HashKind,
    pub partition_count: usize,
    pub huge_pages: bool,
}

impl From<&StoreArgs> for StoreSettings {
    fn from(args: &StoreArgs) -> Self {
        StoreSettings {
            memory: args.memory.map_or(MEMORY_DEFAULT, |size| size.as_u64()),
            eviction: args.eviction.unwrap_or(Eviction::Lru),
            value_len_max: args
                .value_max
                .map_or(VALUE_LEN_MAX_DEFAULT as u64, |size| size.as_u64()),
            hash: match args.hash.unwrap_or(Hash::Xxh3) {
                Hash::Xxh3 => HashKind::Xxh3,
                Hash::Sip13 => HashKind::Sip13,
            },
            partition_count: args.partitions.unwrap_or(PARTITION_COUNT_DEFAULT),
            huge_pages: args.huge_pages.unwrap_or(true),
        }
    }
}

impl Eviction {
    /// Its name in the cell's configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Eviction::Lru => "lru",
            Eviction::Arc => "arc",
            Eviction::S3fifo => "s3fifo",
        }
    }
}

/// Fills in from the configuration file what the command line left open.
pub(crate) fn with_file(mut args: ServeArgs) -> Result<ServeArgs, Failure> {
    let Some(path) = &args.config else {
        return Ok(args);
    };
    let file = read(path)?;
    args.mode = args.mode.or(file.mode);
    args.store.memory = args.store.memory.or(file.memory);
    args.store.eviction = args.store.eviction.or(file.eviction);
    args.store.value_max = args.store.value_max.or(file.value_max);
    args.store.hash = args.store.hash.or(file.hash);
    args.store.partitions = args.store.partitions.or(file.partitions);
    args.store.huge_pages = args.store.huge_pages.or(file.huge_pages);
    args.listen = args.listen.or(file.listen);
    args.socket = args.socket.or(file.socket);
    args.metrics = args.metrics.or(file.metrics);
    args.insecure |= file.insecure.unwrap_or(false);
    let doors = &mut args.doors;
    *doors = DoorArgs {
        memcached: doors.memcached.take().or(file.memcached),
        redis: doors.redis.take().or(file.redis),
        threads: doors.threads.or(file.threads),
        connections: doors.connections.or(file.connections),
        idle_timeout: doors.idle_timeout.or(file.idle_timeout),
        item_max: doors.item_max.or(file.item_max),
        buffers: doors.buffers.or(file.buffers),
        spin: doors.spin.or(file.spin),
        slow_log: doors.slow_log.or(file.slow_log),
        auth_file: doors.auth_file.take().or(file.auth_file),
        tls_cert: doors.tls_cert.take().or(file.tls_cert),
        tls_key: doors.tls_key.take().or(file.tls_key),
        tls_client_ca: doors.tls_client_ca.take().or(file.tls_client_ca),
        enable_shutdown: doors.enable_shutdown || file.enable_shutdown.unwrap_or(false),
    };
    Ok(args)
}

fn read(path: &Path) -> Result<File, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::doing(format!("cannot read {shown}"), e))?;
    toml::from_str(&text).map_err(|e| Failure::Usage(format!("{shown}: {e}")))
}

/// A seed for a new cell's hash function.
pub(crate) fn random_seed() -> [u64; 2] {
    use std::hash::{BuildHasher, Hasher, RandomState};
    [(); 2].map(|()| RandomState::new().build_hasher().finish())
}
