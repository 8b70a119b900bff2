//! Where a queue's files are:
//!
//! | name | what |
//! |---|---|
//! | `queue` | which service the folder is for, and whether it is durable: a line each |
//! | `lock` | held by the process that serves it |
//! | `journal` | what a durable queue has acknowledged |
//! | `state` | a durable cache's content |
//! | `rocksdb` | the folder of RocksDB |

use crate::welcome::ServiceKind;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const FIRST_LINE: &str = "trefoil queue 1";
const MODE_FOLDER: u32 = 0o700;
const MODE_FILE: u32 = 0o600;

/// Why a folder cannot be served from.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The system refused.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// The attempt.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// Another process has it.
    #[error("another process serves from {0}; end that first, or choose another folder")]
    InUse(PathBuf),
    /// Somebody else's.
    #[error("{0} has files in it, and is no folder of a queue; choose one that is empty, or new")]
    Foreign(PathBuf),
    /// A queue's, of another release.
    #[error("{path} is the folder of a queue of another version: {found:?}")]
    Version {
        /// Which folder.
        path: PathBuf,
        /// Its first line.
        found: String,
    },
    /// Another queue's.
    #[error("{path} is the folder of {found}, and cannot be served as {wanted}")]
    Other {
        /// Which folder.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What was asked for.
        wanted: String,
    },
}

/// A folder that this process has to itself.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: OwnedFd,
}

fn says(service: ServiceKind, is_durable: bool) -> String {
    let durable = if is_durable { "yes" } else { "no" };
    format!(
        "{FIRST_LINE}\nservice {}\ndurable {durable}\n",
        service.name()
    )
}

fn words(service: ServiceKind, is_durable: bool) -> String {
    let durable = if is_durable { "durable " } else { "" };
    format!("a {durable}queue of the service {}", service.name())
}

impl Folder {
    /// Takes the folder, and makes it where there is none.
    pub fn open(path: &Path, service: ServiceKind, is_durable: bool) -> Result<Self, FolderError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(MODE_FOLDER);
        builder.create(path).map_err(failed("make", path))?;
        // Nothing is made in somebody else's, not even a lock.
        is_marked(path, service, is_durable)?;
        let lock = lock(path)?;
        // Another process may have made it its own meanwhile.
        if !is_marked(path, service, is_durable)? {
            let (fresh, mark) = (path.join("queue.new"), mark(path));
            write(&fresh, &says(service, is_durable)).map_err(failed("write", &fresh))?;
            std::fs::rename(&fresh, &mark).map_err(failed("name", &mark))?;
            let folder = File::open(path).and_then(|folder| folder.sync_all());
            folder.map_err(failed("flush", path))?;
        }
        Ok(Folder {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// The journal.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    /// A cache's state.
    pub fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    /// RocksDB's folder.
    pub fn rocksdb(&self) -> PathBuf {
        self.path.join("rocksdb")
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io {
        doing,
        path,
        source,
    }
}

fn mark(path: &Path) -> PathBuf {
    path.join("queue")
}

/// Whether the folder says that it is this queue's. One without a mark is to be empty. An
/// error: it is somebody else's.
fn is_marked(path: &Path, service: ServiceKind, is_durable: bool) -> Result<bool, FolderError> {
    let mark = mark(path);
    match std::fs::read_to_string(&mark) {
        Ok(found) => check(path, &found, service, is_durable).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let entries = path.read_dir().map_err(failed("look into", path))?;
            for entry in entries {
                let name = entry.map_err(failed("look into", path))?.file_name();
                // What an interrupted first start has left, or one that is under way.
                if name == "lock" || name == "queue.new" {
                    continue;
                }
                return match mark.exists() {
                    // It is done: its mark came first.
                    true => is_marked(path, service, is_durable),
                    false => Err(FolderError::Foreign(path.to_owned())),
                };
            }
            Ok(false)
        }
        Err(error) => Err(failed("read", &mark)(error)),
    }
}

fn lock(path: &Path) -> Result<OwnedFd, FolderError> {
    let name = path.join("lock");
    let failed = |source: Errno| FolderError::Io {
        doing: "lock",
        path: name.clone(),
        source: source.into(),
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let lock = rustix::fs::open(&name, flags, Mode::from_raw_mode(MODE_FILE)).map_err(failed)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(FolderError::InUse(path.to_owned())),
        Err(error) => Err(failed(error)),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut options = File::options();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE_FILE);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn check(
    path: &Path,
    found: &str,
    service: ServiceKind,
    is_durable: bool,
) -> Result<(), FolderError> {
    if found == says(service, is_durable) {
        return Ok(());
    }
    for other in ServiceKind::ALL {
        for durable in [false, true] {
            if found == says(other, durable) {
                return Err(FolderError::Other {
                    path: path.to_owned(),
                    found: words(other, durable),
                    wanted: words(service, is_durable),
                });
            }
        }
    }
    let first = found.lines().next().unwrap_or_default();
    Err(match first.starts_with("trefoil queue ") {
        true => FolderError::Version {
            path: path.to_owned(),
            found: first.to_owned(),
        },
        false => FolderError::Foreign(path.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_queues_and_one_processes() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("new/queue");
        let rocks = ServiceKind::Rocksdb;
        let first = Folder::open(&path, rocks, true).expect("a new folder");
        let busy = Folder::open(&path, rocks, true);
        assert!(matches!(busy, Err(FolderError::InUse(_))), "{busy:?}");
        drop(first);
        for (service, durable, expected) in [
            (rocks, false, "a durable queue of the service rocksdb"),
            (
                ServiceKind::Cache,
                true,
                "cannot be served as a durable queue of the service cache",
            ),
        ] {
            let error = Folder::open(&path, service, durable).expect_err("another queue");
            assert!(error.to_string().contains(expected), "{error}");
        }
        Folder::open(&path, rocks, true).expect("its own");
    }

    #[test]
    fn other_folders_are_left_alone() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::write(root.path().join("thesis"), "precious").expect("a file");
        let foreign = Folder::open(root.path(), ServiceKind::Cache, true);
        assert!(
            matches!(foreign, Err(FolderError::Foreign(_))),
            "{foreign:?}"
        );
        std::fs::write(root.path().join("queue"), "trefoil queue 2\n").expect("a file");
        let newer = Folder::open(root.path(), ServiceKind::Cache, true);
        assert!(
            matches!(newer, Err(FolderError::Version { .. })),
            "{newer:?}"
        );
        std::fs::write(root.path().join("queue"), "milk\n").expect("a file");
        let foreign = Folder::open(root.path(), ServiceKind::Cache, true);
        assert!(
            matches!(foreign, Err(FolderError::Foreign(_))),
            "{foreign:?}"
        );
        let file = root.path().join("thesis");
        let no_folder = Folder::open(&file, ServiceKind::Cache, true);
        assert!(
            matches!(no_folder, Err(FolderError::Io { .. })),
            "{no_folder:?}"
        );
        assert_eq!(std::fs::read(file).expect("a file"), b"precious");
        let entries = root.path().read_dir().expect("a folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("a file").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["queue", "thesis"], "nothing else was made");
    }

    #[test]
    fn a_first_start_that_was_interrupted_is_begun_again() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::write(root.path().join("queue.new"), "trefoil qu").expect("a file");
        Folder::open(root.path(), ServiceKind::Cache, true).expect("nothing is lost");
    }
}
