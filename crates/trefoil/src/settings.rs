//! Settings of servers: the command line over the configuration file over the
//! defaults.

use crate::args::{
    CELL_DEFAULT, CommitBy, DoorArgs, Eviction, GatewayArgs, Hash, MemcachedVersion, Plaintext,
    Restart, ServeArgs, StoreArgs, Switch, Transactions, UpArgs,
};
use crate::engine::EngineCount;
use crate::failure::Failure;
use bytesize::ByteSize;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trefoil_backend::{
    MEMORY_LIMIT_MIN, RECOVERY_RATE_MIN, REPAIR_DEFAULT, REPAIR_RATE_MIN, RepairOptions,
};
use trefoil_cell::{LimitNote, RpcAddress};
use trefoil_layout::HashKind;
use trefoil_layout::limits::{PARTITION_COUNT_MAX, VALUE_LEN_LIMIT, VALUE_LEN_MAX_DEFAULT};

/// Memory of a server that was not told.
const MEMORY_DEFAULT: u64 = 1 << 30;

/// Shorter intervals between scans leave no time for a key's second look.
const REPAIR_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Settings of a store.
pub(crate) const STORE_KEYS: [&str; 9] = [
    "memory",
    "eviction",
    "value_max",
    "hash",
    "partitions",
    "huge_pages",
    "repair_interval",
    "repair_rate",
    "recovery_rate",
];
/// Settings of front doors.
pub(crate) const DOOR_KEYS: [&str; 19] = [
    "memcached",
    "redis",
    "threads",
    "connections",
    "idle_timeout",
    "item_max",
    "buffers",
    "spin",
    "io_uring",
    "slow_log",
    "auth_file",
    "auth_timeout",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "enable_shutdown",
    "admin_commands",
    "memcached_version",
    "transactions",
];
pub(crate) const SERVE_KEYS: [&str; 14] = [
    "mode",
    "name",
    "listen",
    "socket",
    "metrics",
    "allow_user",
    "token_file",
    "certs",
    "plaintext",
    "engine",
    "engines",
    "engine_sessions",
    "engine_share",
    "restart",
];
pub(crate) const UP_KEYS: [&str; 22] = [
    "dir",
    "store",
    "mode",
    "backends",
    "load",
    "metrics",
    "name",
    "allow_user",
    "restart",
    "queue",
    "spares",
    "here",
    "listen",
    "advertise",
    "certs",
    "plaintext",
    "token_file",
    "engine",
    "engine_metrics",
    "engines",
    "engine_sessions",
    "engine_share",
];
pub(crate) const GATEWAY_KEYS: [&str; 5] = ["cell", "certs", "commit", "metrics", "plaintext"];

/// The configuration file of any server: the options' names, with underscores.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    cell: Option<String>,
    dir: Option<PathBuf>,
    store: Option<String>,
    backends: Option<u32>,
    load: Option<PathBuf>,
    restart: Option<Restart>,
    spares: Option<u32>,
    #[serde(default)]
    queue: bool,
    engine: Option<String>,
    engine_metrics: Option<String>,
    engines: Option<EngineCount>,
    engine_sessions: Option<usize>,
    engine_share: Option<usize>,
    #[serde(default)]
    here: Vec<u32>,
    advertise: Option<String>,
    mode: Option<String>,
    #[serde(default, deserialize_with = "size")]
    memory: Option<ByteSize>,
    eviction: Option<Eviction>,
    #[serde(default, deserialize_with = "size")]
    value_max: Option<ByteSize>,
    hash: Option<Hash>,
    partitions: Option<usize>,
    huge_pages: Option<bool>,
    #[serde(default, deserialize_with = "duration")]
    repair_interval: Option<Duration>,
    #[serde(default, deserialize_with = "size")]
    repair_rate: Option<ByteSize>,
    #[serde(default, deserialize_with = "size")]
    recovery_rate: Option<ByteSize>,
    name: Option<String>,
    listen: Option<String>,
    socket: Option<PathBuf>,
    metrics: Option<String>,
    #[serde(default)]
    allow_user: Vec<String>,
    token_file: Option<PathBuf>,
    certs: Option<PathBuf>,
    #[serde(default)]
    plaintext: Vec<Plaintext>,
    memcached: Option<String>,
    redis: Option<String>,
    threads: Option<usize>,
    connections: Option<usize>,
    #[serde(default, deserialize_with = "duration")]
    idle_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "size")]
    item_max: Option<ByteSize>,
    #[serde(default, deserialize_with = "size")]
    buffers: Option<ByteSize>,
    #[serde(default, deserialize_with = "duration")]
    spin: Option<Duration>,
    io_uring: Option<Switch>,
    #[serde(default, deserialize_with = "duration")]
    slow_log: Option<Duration>,
    auth_file: Option<PathBuf>,
    #[serde(default, deserialize_with = "duration")]
    auth_timeout: Option<Duration>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_client_ca: Option<PathBuf>,
    enable_shutdown: Option<bool>,
    admin_commands: Option<Switch>,
    memcached_version: Option<MemcachedVersion>,
    transactions: Option<Transactions>,
    commit: Option<CommitBy>,
}

/// As on the command line, or a number of bytes.
fn size<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a size: \"64MiB\", \"1.5GiB\", or a number of bytes"
    )]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(from)? {
        Size::Bytes(bytes) => Ok(Some(ByteSize::b(bytes))),
        Size::Text(text) => crate::args::size(&text)
            .map(Some)
            .map_err(|what| serde::de::Error::custom(format!("{text:?} is no size: {what}"))),
    }
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
    /// `None`: as many as suit the memory.
    pub partition_count: Option<usize>,
    pub huge_pages: bool,
    pub repair: RepairOptions,
    /// Of copies from other backends, 0 without a limit; `None`: nothing was chosen.
    pub recovery_rate: Option<u64>,
}

impl From<&StoreArgs> for StoreSettings {
    fn from(args: &StoreArgs) -> Self {
        StoreSettings {
            memory: args.memory.map_or(MEMORY_DEFAULT, |size| size.as_u64()),
            eviction: args.eviction.unwrap_or(Eviction::Slru),
            value_len_max: args
                .value_max
                .map_or(VALUE_LEN_MAX_DEFAULT as u64, |size| size.as_u64()),
            hash: match args.hash.unwrap_or(Hash::Xxh3) {
                Hash::Xxh3 => HashKind::Xxh3,
                Hash::Sip13 => HashKind::Sip13,
            },
            partition_count: args.partitions,
            huge_pages: args.huge_pages.unwrap_or(true),
            repair: RepairOptions {
                interval: args.repair_interval.unwrap_or(REPAIR_DEFAULT.interval),
                rate: args
                    .repair_rate
                    .map_or(REPAIR_DEFAULT.rate, |size| size.as_u64()),
            },
            recovery_rate: args.recovery_rate.map(|size| size.as_u64()),
        }
    }
}

impl StoreSettings {
    /// Refuses what no server can be run with.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.memory < MEMORY_LIMIT_MIN {
            let (memory, least) = (ByteSize::b(self.memory), ByteSize::b(MEMORY_LIMIT_MIN));
            return Err(Failure::Usage(format!(
                "--memory {memory} is too small: give at least {least}"
            )));
        }
        let (len, longest) = (self.value_len_max, VALUE_LEN_LIMIT as u64);
        if !(1..=longest).contains(&len) {
            return Err(Failure::Usage(format!(
                "--value-max {}: choose 1 to {longest} bytes ({})",
                ByteSize::b(len),
                ByteSize::b(longest)
            )));
        }
        let count = self.partition_count.unwrap_or(1);
        if !(1..=PARTITION_COUNT_MAX).contains(&count) {
            return Err(Failure::Usage(format!(
                "--partitions {count}: choose 1 to {PARTITION_COUNT_MAX}"
            )));
        }
        let (interval, least) = (self.repair.interval, REPAIR_INTERVAL_MIN);
        if !interval.is_zero() && interval < least {
            return Err(Failure::Usage(format!(
                "--repair-interval {}: choose {} or more, or 0s to repair nothing",
                humantime::format_duration(interval),
                humantime::format_duration(least)
            )));
        }
        let (rate, least) = (self.repair.rate, REPAIR_RATE_MIN);
        if rate < least {
            let (rate, least) = (ByteSize::b(rate), ByteSize::b(least));
            return Err(Failure::Usage(format!(
                "--repair-rate {rate} is too little to get on with: give at least {least}"
            )));
        }
        let (rate, least) = (self.recovery_rate, RECOVERY_RATE_MIN);
        if let Some(rate) = rate.filter(|rate| (1..least).contains(rate)) {
            let (rate, least) = (ByteSize::b(rate), ByteSize::b(least));
            return Err(Failure::Usage(format!(
                "--recovery-rate {rate} is too little to get on with: give at least {least}, or 0 for no limit"
            )));
        }
        Ok(())
    }
}

/// The memory limit of a running cell, as its settings had it last.
pub(crate) struct MemoryLimit {
    reach: Reach,
    memory: u64,
    /// Every backend has taken it.
    is_taken: bool,
    /// Where backends note what they were given since, by command too.
    note: Option<LimitNote>,
}

/// Which backends have the limit.
enum Reach {
    /// All of the cell at this address.
    Cell(String),
    /// Those at these Unix sockets: the others are other hosts'.
    Here(Vec<(u32, RpcAddress)>),
}

impl MemoryLimit {
    pub(crate) fn new(address: &str, memory: u64) -> Self {
        MemoryLimit {
            reach: Reach::Cell(address.to_owned()),
            memory,
            is_taken: true,
            note: None,
        }
    }

    /// Of some backends of a cell, at their Unix sockets.
    pub(crate) fn of(sockets: Vec<(u32, RpcAddress)>, memory: u64) -> Self {
        MemoryLimit {
            reach: Reach::Here(sockets),
            memory,
            is_taken: true,
            note: None,
        }
    }

    /// The same, but for what was set since and is noted there.
    pub(crate) fn with_note(mut self, note: LimitNote) -> Self {
        self.note = Some(note);
        self
    }

    /// What was chosen last, in bytes.
    pub(crate) fn chosen(&self) -> u64 {
        let noted = self.note.as_ref().and_then(LimitNote::read);
        noted.unwrap_or(self.memory)
    }

    /// Sets it again: there are backends that do not know it.
    pub(crate) fn set_again(&mut self) -> Result<(), Failure> {
        self.is_taken = false;
        self.set_at_all(self.chosen()).and_then(outcome)
    }

    /// Sets another one, at every backend. One that is as before, and was taken by all
    /// of them, stays what it is: it may have been changed by command.
    pub(crate) fn change(&mut self, memory: u64) -> Result<(), Failure> {
        if memory == self.memory && self.is_taken {
            return Ok(());
        }
        let results = self.set_at_all(memory)?;
        if results.iter().any(|(_, result)| result.is_ok()) {
            self.memory = memory;
        }
        outcome(results)
    }

    /// What each backend says to it.
    fn set_at_all(&mut self, memory: u64) -> Result<Answers, Failure> {
        let results: Answers = match &self.reach {
            Reach::Cell(address) => {
                let cell = trefoil_client::Cell::connect_with(address, None);
                cell.map_err(Failure::of)?.set_memory_limit(memory)
            }
            Reach::Here(sockets) => {
                let set = |socket| trefoil_client::set_memory_limit_at(socket, memory);
                let sockets = sockets.iter();
                sockets.map(|(number, at)| (*number, set(at))).collect()
            }
        };
        if results.iter().any(|(_, result)| result.is_ok()) {
            self.is_taken = results.iter().all(|(_, result)| result.is_ok());
        }
        Ok(results)
    }
}

/// Of each backend the former limit, or why it has not taken the new one.
type Answers = Vec<(u32, Result<u64, String>)>;

fn outcome(answers: Answers) -> Result<(), Failure> {
    for (number, answer) in answers {
        answer.map_err(|e| Failure::Failed(format!("backend {number}: {e}")))?;
    }
    Ok(())
}

impl Eviction {
    /// Its name in the cell's configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Eviction::Slru => "slru",
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
    let known = [&SERVE_KEYS[..], &STORE_KEYS, &DOOR_KEYS].concat();
    let file = read(path, "serve", &known)?;
    args.mode = args.mode.or(file.mode.clone());
    fill_store(&mut args.store, &file);
    args.listen = args.listen.or(file.listen.clone());
    args.socket = args.socket.or(file.socket.clone());
    args.metrics = args.metrics.or(file.metrics.clone());
    args.name = args.name.or(file.name.clone());
    args.token_file = args.token_file.or(file.token_file.clone());
    args.certs = args.certs.or(file.certs.clone());
    args.restart = args.restart.or(file.restart);
    args.engine = args.engine.or(file.engine.clone());
    let size = &mut args.engine_size;
    size.engines = size.engines.or(file.engines);
    size.engine_sessions = size.engine_sessions.or(file.engine_sessions);
    size.engine_share = size.engine_share.or(file.engine_share);
    if args.allow_user.is_empty() {
        args.allow_user = file.allow_user.clone();
    }
    if args.plaintext.is_empty() {
        args.plaintext = file.plaintext.clone();
    }
    fill_doors(&mut args.doors, file);
    Ok(args)
}

/// The same for `cell up`.
pub(crate) fn up_with_file(mut args: UpArgs) -> Result<UpArgs, Failure> {
    let Some(path) = &args.config else {
        return Ok(args);
    };
    let file = read(path, "cell up", &[&UP_KEYS[..], &STORE_KEYS].concat())?;
    fill_store(&mut args.store, &file);
    args.dir = args.dir.or(file.dir);
    args.config_store = args.config_store.or(file.store);
    args.mode = args.mode.or(file.mode);
    args.backends = args.backends.or(file.backends);
    args.load = args.load.or(file.load);
    args.metrics = args.metrics.or(file.metrics);
    args.name = args.name.or(file.name);
    if args.allow_user.is_empty() {
        args.allow_user = file.allow_user;
    }
    args.restart = args.restart.or(file.restart);
    args.spares = args.spares.or(file.spares);
    args.queue |= file.queue;
    args.engine = args.engine.or(file.engine);
    args.engine_metrics = args.engine_metrics.or(file.engine_metrics);
    let size = &mut args.engine_size;
    size.engines = size.engines.or(file.engines);
    size.engine_sessions = size.engine_sessions.or(file.engine_sessions);
    size.engine_share = size.engine_share.or(file.engine_share);
    if args.here.is_empty() {
        args.here = file.here;
    }
    let host = &mut args.host;
    host.listen = host.listen.take().or(file.listen);
    host.advertise = host.advertise.take().or(file.advertise);
    host.certs = host.certs.take().or(file.certs);
    host.token_file = host.token_file.take().or(file.token_file);
    if host.plaintext.is_empty() {
        host.plaintext = file.plaintext;
    }
    Ok(args)
}

/// The same for `gateway`.
pub(crate) fn gateway_with_file(mut args: GatewayArgs) -> Result<GatewayArgs, Failure> {
    let Some(path) = &args.config else {
        return Ok(args);
    };
    let file = read(path, "gateway", &[&GATEWAY_KEYS[..], &DOOR_KEYS].concat())?;
    // The address has a default, so the command line cannot be told from none.
    if let Some(cell) = &file.cell
        && args.address.cell == CELL_DEFAULT
    {
        args.address.cell.clone_from(cell);
    }
    args.address.certs = args.address.certs.or(file.certs.clone());
    args.commit = args.commit.or(file.commit);
    args.metrics = args.metrics.or(file.metrics.clone());
    if args.plaintext.is_empty() {
        args.plaintext = file.plaintext.clone();
    }
    fill_doors(&mut args.doors, file);
    Ok(args)
}

fn fill_store(store: &mut StoreArgs, file: &File) {
    store.memory = store.memory.or(file.memory);
    store.eviction = store.eviction.or(file.eviction);
    store.value_max = store.value_max.or(file.value_max);
    store.hash = store.hash.or(file.hash);
    store.partitions = store.partitions.or(file.partitions);
    store.huge_pages = store.huge_pages.or(file.huge_pages);
    store.repair_interval = store.repair_interval.or(file.repair_interval);
    store.repair_rate = store.repair_rate.or(file.repair_rate);
    store.recovery_rate = store.recovery_rate.or(file.recovery_rate);
}

fn fill_doors(doors: &mut DoorArgs, file: File) {
    *doors = DoorArgs {
        memcached: doors.memcached.take().or(file.memcached),
        redis: doors.redis.take().or(file.redis),
        threads: doors.threads.or(file.threads),
        connections: doors.connections.or(file.connections),
        idle_timeout: doors.idle_timeout.or(file.idle_timeout),
        item_max: doors.item_max.or(file.item_max),
        buffers: doors.buffers.or(file.buffers),
        spin: doors.spin.or(file.spin),
        io_uring: doors.io_uring.or(file.io_uring),
        slow_log: doors.slow_log.or(file.slow_log),
        auth_file: doors.auth_file.take().or(file.auth_file),
        auth_timeout: doors.auth_timeout.or(file.auth_timeout),
        tls_cert: doors.tls_cert.take().or(file.tls_cert),
        tls_key: doors.tls_key.take().or(file.tls_key),
        tls_client_ca: doors.tls_client_ca.take().or(file.tls_client_ca),
        enable_shutdown: doors.enable_shutdown || file.enable_shutdown.unwrap_or(false),
        admin_commands: doors.admin_commands.or(file.admin_commands),
        memcached_version: doors.memcached_version.or(file.memcached_version),
        transactions: doors.transactions.or(file.transactions),
    };
}

/// Reads a file of which `command` knows these settings.
fn read(path: &Path, command: &str, known: &[&str]) -> Result<File, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::doing(format!("cannot read {shown}"), e))?;
    let table: toml::Table =
        toml::from_str(&text).map_err(|e| Failure::Usage(format!("{shown}: {e}")))?;
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(Failure::Usage(format!(
            "{shown}: `trefoil {command}` has no setting \"{key}\"; it has {}",
            known.join(", ")
        )));
    }
    // From the text again: its errors name the line.
    toml::from_str(&text).map_err(|e| Failure::Usage(format!("{shown}: {e}")))
}

/// A seed for a new cell's hash function.
pub(crate) fn random_seed() -> [u64; 2] {
    [(); 2].map(|()| random())
}

/// The name of a cell's life that begins, never 0.
pub(crate) fn random_life() -> u64 {
    random().max(1)
}

fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    // The system's keys are drawn once a thread and then counted up: a life must
    // differ from another process's, too.
    hasher.write_u32(std::process::id());
    if let Ok(now) = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        hasher.write_u128(now.as_nanos());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file may say, and what commands say that they know, is one list.
    #[test]
    fn every_setting_of_a_file_is_some_commands() {
        let Err(error) = toml::from_str::<File>("nonsense = 1") else {
            panic!("it is no setting");
        };
        let error = error.to_string();
        let (_, expected) = error.split_once("expected one of").expect("a list");
        let named: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        assert!(named.contains(&"memory") && named.len() > 40, "{named:?}");
        let known = [
            &STORE_KEYS[..],
            &DOOR_KEYS,
            &SERVE_KEYS,
            &UP_KEYS,
            &GATEWAY_KEYS,
        ]
        .concat();
        let unknown: Vec<_> = named.iter().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
