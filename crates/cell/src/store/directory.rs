//! The configuration of a cell whose processes share a local directory.
//!
//! | file | what |
//! |---|---|
//! | `cell.json` | the configuration in force, and how many incarnations each backend has had in the cell's life; replaced whole |
//! | `cell.lock` | held while it is replaced |
//! | `backend-N.lock` | held by the process that is backend N; says which |
//! | `backend-N.sock` | its RPC service |
//! | `backend-N.fabric` | where it hands its shared memory over |
//! | `spare-NAME.sock`, `spare-NAME.fabric` | the same of a process that was a spare, whatever backend it is |

use super::claim::{BackendLock, Claim, Claimed};
use super::document::{Document, Incarnations};
use super::ending::is_ending;
use super::file::{FileError, FileLock, fail, holder, replace};
use super::{BackendRegistry, ConfigStore, ConfigStoreError, check_swap};
use crate::address::RpcAddress;
use crate::config::CellConfig;
use crate::owner::{check_closed, check_found, check_owner};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trefoil_layout::TopologyId;

/// How long a change waits for another process's change.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long a backend waits for a predecessor that is ending: killed, it keeps
/// its lock until the kernel has taken all of its memory down.
const ENDING_WAIT: Duration = Duration::from_secs(10);
/// How long a predecessor may look alive, lest a signal that is just being
/// delivered is overlooked.
const ALIVE_WAIT: Duration = Duration::from_millis(100);
/// How often a waiting process looks again.
const POLL: Duration = Duration::from_millis(20);
/// The same at first: a predecessor that lets go frees its lock a moment after it has said so,
/// and clients wait.
const POLL_SHORT: Duration = Duration::from_micros(100);
/// More than any configuration of [`crate::BACKEND_COUNT_MAX`] backends needs.
const CONFIG_LEN_MAX: u64 = 16 << 20;

/// A directory that holds one cell.
#[derive(Clone, Debug)]
pub struct DirectoryStore {
    directory: PathBuf,
}

/// Gives `bits` to the mode of a file, or takes them.
fn change_mode(path: &Path, bits: u32, given: bool) -> Result<(), ConfigStoreError> {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    let change = || {
        let old = std::fs::metadata(path)?.permissions().mode() & 0o7777;
        let new = if given { old | bits } else { old & !bits };
        match old == new {
            true => Ok(()),
            false => std::fs::set_permissions(path, Permissions::from_mode(new)),
        }
    };
    change().map_err(|e| fail("change the mode of", path, e).into())
}

/// The lock on one backend's number.
#[derive(Debug)]
struct Locked {
    store: DirectoryStore,
    _lock: FileLock,
}

impl Claim for Locked {
    fn begin_incarnation(&self, number: u32, life: u64) -> Result<u32, ConfigStoreError> {
        let _lock = self.store.lock_config()?;
        let Some(mut document) = self.store.read()? else {
            return Err(ConfigStoreError::NoCell(self.store.directory.clone()));
        };
        let count = document.begin_incarnation(number, life)?;
        self.store.write(&document)?;
        Ok(count)
    }
}

impl DirectoryStore {
    /// Makes the directory if it is not there, for this user alone, and opens
    /// it. It need not hold a cell yet.
    pub fn create(directory: &Path) -> Result<Self, ConfigStoreError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|e| fail("create the directory", directory, e))?;
        let store = Self::at(directory)?;
        check_owner(&store.directory)?;
        check_closed(&store.directory)?;
        Ok(store)
    }

    /// Opens a directory that holds a cell, for a server of it: this user's alone.
    pub fn open(directory: &Path) -> Result<Self, ConfigStoreError> {
        Self::is_there(directory)?;
        let store = Self::at(directory)?;
        check_owner(&store.directory)?;
        check_closed(&store.directory)?;
        Ok(store)
    }

    /// Opens a directory that holds a cell, for a client: this user's, or one whose
    /// cell may let this user in. Returns its owner's user id, too.
    pub fn find(directory: &Path) -> Result<(Self, u32), ConfigStoreError> {
        Self::is_there(directory)?;
        let found = check_found(directory)?;
        let store = DirectoryStore {
            directory: found.path,
        };
        Ok((store, found.owner))
    }

    fn is_there(directory: &Path) -> Result<(), ConfigStoreError> {
        let path = directory.join("cell.json");
        match path.try_exists() {
            Ok(true) => Ok(()),
            Ok(false) => Err(ConfigStoreError::NoCell(directory.to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(ConfigStoreError::Shut { path })
            }
            Err(error) => Err(fail("inspect", &path, error).into()),
        }
    }

    /// Lets other users find the cell here, or no longer. Who of them comes in is
    /// decided at the sockets; they see the configuration and nothing else.
    pub fn let_others_look(&self, allowed: bool) -> Result<(), ConfigStoreError> {
        let to_read = 0o044;
        change_mode(&self.config_path(), to_read, allowed)?;
        self.let_others_pass(allowed)
    }

    /// Lets other users reach the sockets here; what is no longer allowed stays, because
    /// a directory that was open before may hold more than the cell.
    pub fn let_others_pass(&self, allowed: bool) -> Result<(), ConfigStoreError> {
        let to_pass = 0o011;
        match allowed {
            true => change_mode(&self.directory, to_pass, true),
            false => Ok(()),
        }
    }

    fn at(directory: &Path) -> Result<Self, ConfigStoreError> {
        let directory = directory
            .canonicalize()
            .map_err(|e| fail("find", directory, e))?;
        Ok(DirectoryStore { directory })
    }

    /// The directory's absolute path.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where backend `number` serves RPC.
    pub fn rpc_socket(&self, number: u32) -> Result<RpcAddress, ConfigStoreError> {
        let path = self.directory.join(format!("backend-{number}.sock"));
        Ok(RpcAddress::unix(path)?)
    }

    /// Where backend `number` hands its shared memory over.
    pub fn fabric_socket(&self, number: u32) -> Result<PathBuf, ConfigStoreError> {
        let path = self.directory.join(format!("backend-{number}.fabric"));
        RpcAddress::unix(&path)?;
        Ok(path)
    }

    /// Where a spare of this name serves RPC when it has a place, and where it hands its
    /// shared memory over then.
    pub fn spare_sockets(&self, name: &str) -> Result<(RpcAddress, PathBuf), ConfigStoreError> {
        let at = |ending: &str| self.directory.join(format!("spare-{name}.{ending}"));
        let fabric = at("fabric");
        RpcAddress::unix(&fabric)?;
        Ok((RpcAddress::unix(at("sock"))?, fabric))
    }

    /// Becomes backend `number`, for as long as the lock lives. Waits for a
    /// predecessor that is ending, not for one that lives.
    pub fn lock_backend(&self, number: u32) -> Result<BackendLock, ConfigStoreError> {
        let path = self.directory.join(format!("backend-{number}.lock"));
        let begin = Instant::now();
        let lock = loop {
            if let Some(lock) = FileLock::try_acquire(&path)? {
                break lock;
            }
            let pid = holder(&path);
            let patience = if pid.is_some_and(is_ending) {
                ENDING_WAIT
            } else {
                ALIVE_WAIT
            };
            if begin.elapsed() >= patience {
                return Err(ConfigStoreError::BackendLocked { number, pid, path });
            }
            std::thread::sleep(match begin.elapsed() < POLL {
                true => POLL_SHORT,
                false => POLL,
            });
        };
        // For the errors of others only: a full disk is noticed later.
        let _ = lock.sign();
        let locked = Locked {
            store: self.clone(),
            _lock: lock,
        };
        Ok(BackendLock::new(number, locked))
    }

    /// Device and inode of the lock of backend `number`, which is made if it is not there: it is
    /// never removed, so that two processes with one lock are never both the backend.
    #[cfg(feature = "etcd")]
    pub(super) fn lock_identity(&self, number: u32) -> Result<(u64, u64), ConfigStoreError> {
        let path = self.directory.join(format!("backend-{number}.lock"));
        let metadata = match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                drop(FileLock::try_acquire(&path)?);
                std::fs::metadata(&path)
            }
            found => found,
        };
        let metadata = metadata.map_err(|e| fail("inspect", &path, e))?;
        Ok((metadata.dev(), metadata.ino()))
    }

    fn config_path(&self) -> PathBuf {
        self.directory.join("cell.json")
    }

    fn lock_config(&self) -> Result<FileLock, ConfigStoreError> {
        let path = self.directory.join("cell.lock");
        let deadline = Instant::now() + LOCK_WAIT;
        loop {
            if let Some(lock) = FileLock::try_acquire(&path)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                let waited = LOCK_WAIT;
                return Err(ConfigStoreError::Busy { path, waited });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Tells two contents of the file apart without reading it: it is replaced
    /// whole, so every change is another inode or another time.
    fn stamp(&self) -> Result<Option<(u64, i64, i64)>, FileError> {
        let path = self.config_path();
        match std::fs::metadata(&path) {
            Ok(m) => Ok(Some((m.ino(), m.mtime(), m.mtime_nsec()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fail("inspect", &path, error)),
        }
    }
}

impl DirectoryStore {
    fn read(&self) -> Result<Option<Document>, ConfigStoreError> {
        let path = self.config_path();
        let corrupt = |reason: String| ConfigStoreError::Corrupt {
            path: path.clone(),
            reason,
        };
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.len() > CONFIG_LEN_MAX => {
                return Err(corrupt(format!("it has {} bytes", metadata.len())));
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail("read", &path, error).into()),
        }
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(ConfigStoreError::Shut { path });
            }
            Err(error) => return Err(fail("read", &path, error).into()),
        };
        Document::parse(&bytes).map(Some).map_err(corrupt)
    }

    /// Replaces the file. The caller holds the lock on it.
    fn write(&self, document: &Document) -> Result<(), ConfigStoreError> {
        let path = self.config_path();
        let bytes = document.to_bytes().map_err(|e| fail("write", &path, e))?;
        Ok(replace(&path, &bytes)?)
    }
}

impl ConfigStore for DirectoryStore {
    fn load(&self) -> Result<Option<CellConfig>, ConfigStoreError> {
        Ok(self.read()?.map(|document| document.config))
    }

    fn compare_and_swap(
        &self,
        expected: Option<TopologyId>,
        next: &CellConfig,
    ) -> Result<(), ConfigStoreError> {
        let _lock = self.lock_config()?;
        let current = self.read()?;
        let config = current.as_ref().map(|document| &document.config);
        check_swap(config, expected, next)?;
        self.write(&Document::after(current.as_ref(), next))
    }

    fn wait_for_change(
        &self,
        known: Option<TopologyId>,
        timeout: Duration,
    ) -> Result<Option<CellConfig>, ConfigStoreError> {
        let deadline = Instant::now() + timeout;
        let mut seen = None;
        loop {
            let stamp = self.stamp()?;
            if seen != Some(stamp) {
                seen = Some(stamp);
                let config = self.load()?;
                if config.as_ref().map(CellConfig::topology_id) != known {
                    return Ok(config);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(POLL.min(left));
        }
    }
}

impl BackendRegistry for DirectoryStore {
    fn claim(&self, number: u32) -> Result<BackendLock, ConfigStoreError> {
        self.lock_backend(number)
    }

    fn claimed(&self) -> Result<Vec<Claimed>, ConfigStoreError> {
        let directory = &self.directory;
        let entries = std::fs::read_dir(directory).map_err(|e| fail("read", directory, e))?;
        let mut claimed = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| fail("read", directory, e))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let number = name
                .and_then(|name| name.strip_prefix("backend-")?.strip_suffix(".lock"))
                .and_then(|number| number.parse().ok());
            // Whoever is just taking it waits longer than this holds it.
            if let Some(number) = number
                && FileLock::try_acquire(&path)?.is_none()
            {
                let process = holder(&path);
                claimed.push(Claimed { number, process });
            }
        }
        claimed.sort_unstable_by_key(|claimed| claimed.number);
        Ok(claimed)
    }

    fn incarnations(&self) -> Result<Incarnations, ConfigStoreError> {
        Ok(self
            .read()?
            .map_or_else(Incarnations::new, |d| d.incarnations))
    }
}
