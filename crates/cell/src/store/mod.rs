//! Where a cell's configuration is kept.

mod claim;
mod directory;
mod document;
mod embedded;
mod ending;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
mod patience;

pub use claim::{BackendLock, Claimed};
pub use directory::DirectoryStore;
pub use document::Incarnations;
pub use embedded::EmbeddedStore;
pub use ending::is_ending;
#[cfg(feature = "etcd")]
pub use etcd::{
    EtcdAccess, EtcdSettings, EtcdStore, Founder, FounderRegistration, Founders, Held, Leadership,
    SpareRegistration, TlsFiles,
};
pub use file::FileError;
pub use patience::wait_out;

use crate::address::AddressError;
use crate::config::{CellConfig, ConfigError};
use crate::owner::OwnerError;
use std::path::PathBuf;
use std::time::Duration;
use trefoil_layout::TopologyId;

/// Keeps one cell's configuration; changes are compare-and-swap by its identity,
/// so that two writers never both believe that they won. Config ids grow for as
/// long as the store lives, through all lives of the cell.
pub trait ConfigStore: Send + Sync {
    /// The configuration in force; `None` before the first.
    fn load(&self) -> Result<Option<CellConfig>, ConfigStoreError>;

    /// Puts `next` in force if the one in force is `expected` (`None`: if
    /// there is none). `next` must be valid and have a higher id.
    fn compare_and_swap(
        &self,
        expected: Option<TopologyId>,
        next: &CellConfig,
    ) -> Result<(), ConfigStoreError>;

    /// Waits until the configuration in force is another one than `known`
    /// (`None`: until there is one) and returns it; `None` if that took longer
    /// than `timeout`. A store that is away meanwhile is waited for: an error says that
    /// it still was at the end, or that waiting longer does not help.
    fn wait_for_change(
        &self,
        known: Option<TopologyId>,
        timeout: Duration,
    ) -> Result<Option<CellConfig>, ConfigStoreError>;

    /// Whether it is on other machines, so that any call here may take seconds: not
    /// for threads that have something else to do.
    fn is_remote(&self) -> bool {
        false
    }
}

/// A store that knows who is which backend, and how often each has begun.
pub trait BackendRegistry: ConfigStore {
    /// Becomes backend `number`, for as long as the lock lives. Waits for a predecessor
    /// that is ending, not for one that lives.
    fn claim(&self, number: u32) -> Result<BackendLock, ConfigStoreError>;

    /// The same for a process that the configuration in force makes the backend, in whose
    /// place it holds what nobody else does: a store on other machines keeps it waiting no
    /// longer than a moment. By the lock of its directory no other process there is the
    /// backend; others learn of it when the store lets them.
    fn claim_at_last(&self, number: u32) -> Result<BackendLock, ConfigStoreError> {
        self.claim(number)
    }

    /// The backends that somebody is, in order of number. One whose process was killed
    /// is named no longer than its lease, where there are leases.
    fn claimed(&self) -> Result<Vec<Claimed>, ConfigStoreError>;

    /// How often each backend has begun in the present life; those that never have are
    /// not named.
    fn incarnations(&self) -> Result<Incarnations, ConfigStoreError>;
}

/// Why the configuration could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigStoreError {
    /// Somebody else was first.
    #[error("the configuration was changed by somebody else: expected {}, found {}", id_text(*expected), id_text(*found))]
    Conflict {
        /// What the caller expected.
        expected: Option<TopologyId>,
        /// What is in force.
        found: Option<TopologyId>,
    },
    /// Ids only grow.
    #[error("config id {next} does not follow {current}: every change needs a higher id")]
    NotHigher {
        /// In force.
        current: u32,
        /// Offered.
        next: u32,
    },
    /// The new configuration is not valid.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// The stored configuration cannot be understood.
    #[error("{path} holds no valid configuration: {reason}")]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The directory holds no cell.
    #[error("{0} holds no cell: start one with `trefoil cell up --dir {0}`")]
    NoCell(PathBuf),
    /// etcd holds no cell there.
    #[error("{0} holds no cell: start one with `trefoil cell up --store {0}`")]
    NoCellInEtcd(String),
    /// A store on other machines does not answer.
    #[error(
        "{address}: {reason}; the cell's data is served without it, its configuration stays as it is meanwhile"
    )]
    Unavailable {
        /// Which store.
        address: String,
        /// Why not.
        reason: String,
    },
    /// The same while something was being changed.
    #[error(
        "{address}: {reason}; whether the change has taken effect is not known: look, and try again"
    )]
    Undecided {
        /// Which store.
        address: String,
        /// Why not.
        reason: String,
    },
    /// It does not let this process in, or cannot be asked with these settings.
    #[error("{address}: {reason}")]
    Refused {
        /// Which store.
        address: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// It holds less than it once did.
    #[error(
        "{address} holds {}, and {known} was in force before: it was restored from an old backup, or lost its data. That is refused; the cell's data is served on, its configuration cannot change. `trefoil cell restore-config --store {address}` writes what the backends know",
        id_text(*found)
    )]
    Older {
        /// Which store.
        address: String,
        /// What it holds.
        found: Option<TopologyId>,
        /// What was seen before.
        known: TopologyId,
    },
    /// It was restored from an old backup, and changed since: a configuration of the same id
    /// was in force before.
    #[error(
        "{address} holds another configuration {id} than the one that is in force: it was restored from an old backup, and changed since. That is refused; the cell's data is served on, its configuration cannot change. `trefoil cell restore-config --store {address}` writes what the backends know"
    )]
    TwoOfOneId {
        /// Which store.
        address: String,
        /// Of both.
        id: TopologyId,
    },
    /// It has forgotten incarnations.
    #[error(
        "{address} counts {found} starts of backend {number}, and there were {known}: it was restored from an old backup. `trefoil cell restore-config --store {address}` writes what the backends know"
    )]
    OlderCount {
        /// Which store.
        address: String,
        /// Which backend.
        number: u32,
        /// What the store says.
        found: u32,
        /// What this host remembers.
        known: u32,
    },
    /// The directory of a cell in etcd holds a configuration of its own.
    #[error("{0} holds a cell of its own (cell.json): choose another directory for one in etcd")]
    OwnCell(PathBuf),
    /// Another process, elsewhere, is this backend.
    #[error(
        "backend {number} is registered in {address} as process {process} on host {host}, which lives: stop it first"
    )]
    Registered {
        /// Which store.
        address: String,
        /// Which backend.
        number: u32,
        /// Its process.
        process: u32,
        /// Its host.
        host: String,
    },
    /// Hosts that begin a cell together have given one number twice.
    #[error(
        "{address}: another host is to be backend {number}, process {process} on {host} at {at}: give each host a number of its own (--here)"
    )]
    NumberTaken {
        /// Which store.
        address: String,
        /// The number.
        number: u32,
        /// The other's process.
        process: u32,
        /// Its host.
        host: String,
        /// Where it would serve.
        at: String,
    },
    /// They differ about what the cell is to be.
    #[error(
        "{address}: {host} begins this cell with {theirs}, and this host with {ours}: give both the same"
    )]
    OtherPlan {
        /// Which store.
        address: String,
        /// The other host.
        host: String,
        /// What it says.
        theirs: String,
        /// What was said here.
        ours: String,
    },
    /// The configuration names another place for a backend than this host.
    #[error(
        "backend {number} of the cell in {address} is at {holder}{}, and not at {own}: if that machine is lost, start a spare here (`trefoil cell spare`), which takes its place; else give this host another number (--here), or the address that it had",
        registered_text(registered)
    )]
    PlaceElsewhere {
        /// Which store.
        address: String,
        /// Which backend.
        number: u32,
        /// Where it is.
        holder: String,
        /// Who is registered as it, in words.
        registered: Option<String>,
        /// Where this process would be it.
        own: String,
    },
    /// Another process was given this backend's place.
    #[error(
        "the place of backend {number} was given to another process, at {holder}: what this one held is of no use any more. Start it as a spare (`trefoil cell spare`)"
    )]
    PlaceTaken {
        /// Which backend.
        number: u32,
        /// Where the other one is.
        holder: String,
    },
    /// A spare that could not read what the cell's backends hold.
    #[error(
        "{address}: backend {number} is of layout {theirs}, this program of layout {ours}: a spare has to be of the release that the cell runs"
    )]
    OtherLayout {
        /// Which store.
        address: String,
        /// A backend that lives.
        number: u32,
        /// Its layout.
        theirs: u16,
        /// That of this program.
        ours: u16,
    },
    /// A spare whose sockets lead nowhere from where the backends are.
    #[error(
        "{address}: backend {number} is on {host}, and is reached by a Unix socket there: start the spare on that host"
    )]
    OtherHost {
        /// Which store.
        address: String,
        /// A backend that lives.
        number: u32,
        /// Its host.
        host: String,
    },
    /// A spare of a cell on one host where the cell is on several, or the other way round.
    #[error("{address}: {}", kind_text(*is_spread))]
    OtherKind {
        /// Which store.
        address: String,
        /// Whether the cell is on several hosts.
        is_spread: bool,
    },
    /// The directory belongs to another cell in etcd.
    #[error(
        "{directory} is the directory of the cell {theirs} in etcd, not of {ours}: choose another one (or remove its file {file}, if that cell is no more)"
    )]
    OtherCell {
        /// Which directory.
        directory: PathBuf,
        /// The path in etcd of the cell that it belongs to.
        theirs: String,
        /// The path that was asked for.
        ours: String,
        /// What says so.
        file: &'static str,
    },
    /// The cell is another user's, and this one was not let in.
    #[error(
        "Permission denied: {path} may not be read by this user; whoever runs the cell lets others in with --allow-user"
    )]
    Shut {
        /// Which file.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The directory is somebody else's.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The directory's path leaves no room for sockets.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The lock on the configuration did not become free.
    #[error("{path} stayed locked by another process for {} s", waited.as_secs())]
    Busy {
        /// Lock file.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// Another life of the cell has begun.
    #[error("the cell was started anew while backend {number} was starting: start it again")]
    StartedAnew {
        /// Which backend.
        number: u32,
    },
    /// Another process is this backend.
    #[error("backend {number} is already running{} (lock {path}): stop it first", pid_text(*pid))]
    BackendLocked {
        /// Which backend.
        number: u32,
        /// Who holds the lock, if it said so.
        pid: Option<u32>,
        /// Lock file.
        path: PathBuf,
    },
}

impl ConfigStoreError {
    /// That the store at `address` holds `found`, which `known` overrules
    /// ([`CellConfig::is_overruled_by`]).
    pub fn overruled(address: String, found: Option<&CellConfig>, known: &CellConfig) -> Self {
        let (found, known) = (found.map(CellConfig::topology_id), known.topology_id());
        match found == Some(known) {
            true => ConfigStoreError::TwoOfOneId { address, id: known },
            false => ConfigStoreError::Older {
                address,
                found,
                known,
            },
        }
    }

    /// Whether the store is away, and trying again later may help without anybody doing
    /// anything.
    pub fn is_outage(&self) -> bool {
        matches!(
            self,
            ConfigStoreError::Unavailable { .. } | ConfigStoreError::Undecided { .. }
        )
    }

    /// Whether somebody else can end this without this process being started again: the
    /// store comes back, is mended, lets this process in again; or another process ends.
    pub fn may_pass(&self) -> bool {
        self.is_outage()
            || self.is_no_cell()
            || matches!(
                self,
                ConfigStoreError::Older { .. }
                    | ConfigStoreError::TwoOfOneId { .. }
                    | ConfigStoreError::OlderCount { .. }
                    | ConfigStoreError::Refused { .. }
                    | ConfigStoreError::Corrupt { .. }
                    | ConfigStoreError::Conflict { .. }
                    | ConfigStoreError::Registered { .. }
                    | ConfigStoreError::StartedAnew { .. }
            )
    }

    /// Whether nobody has started a cell there.
    pub fn is_no_cell(&self) -> bool {
        matches!(
            self,
            ConfigStoreError::NoCell(_) | ConfigStoreError::NoCellInEtcd(_)
        )
    }
}

fn id_text(id: Option<TopologyId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| id.to_string())
}

fn kind_text(is_spread: bool) -> &'static str {
    match is_spread {
        true => {
            "the cell is on several hosts, and this spare would be reached on its own host only: give it --listen and --certs as the cell's hosts have them"
        }
        false => "the cell's backends are on one host: start the spare there, without --listen",
    }
}

fn registered_text(registered: &Option<String>) -> String {
    let text = |who| format!(" ({who})");
    registered.as_ref().map_or_else(String::new, text)
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" as process {pid}"))
}

/// The rule that every store applies while nobody else can change anything.
fn check_swap(
    current: Option<&CellConfig>,
    expected: Option<TopologyId>,
    next: &CellConfig,
) -> Result<(), ConfigStoreError> {
    next.validate()?;
    let found = current.map(CellConfig::topology_id);
    if found != expected {
        return Err(ConfigStoreError::Conflict { expected, found });
    }
    match found {
        Some(TopologyId {
            config_id: current, ..
        }) if next.config_id <= current => Err(ConfigStoreError::NotHigher {
            current,
            next: next.config_id,
        }),
        _ => Ok(()),
    }
}
