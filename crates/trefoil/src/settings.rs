//! Settings of servers: the command line over the configuration file over the
//! defaults.

use crate::args::{Eviction, Hash, ServeArgs, StoreArgs};
use crate::failure::Failure;
use bytesize::ByteSize;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
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
