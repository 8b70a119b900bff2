//! Files that are replaced whole, and locks between processes.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A file operation that failed, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}: {source}{}", advice(source))]
pub struct FileError {
    /// Which step.
    pub what: &'static str,
    /// On which path.
    pub path: PathBuf,
    /// The system's reason.
    pub source: io::Error,
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; what was there is unchanged: free some space and try again"
        }
        io::ErrorKind::PermissionDenied => {
            "; the directory must belong to the user who runs the cell"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; choose a directory that can be written",
        _ => "",
    }
}

pub(super) fn fail(what: &'static str, path: &Path, source: impl Into<io::Error>) -> FileError {
    FileError {
        what,
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Replaces `path` by `bytes`: whoever reads it, or finds it after a crash,
/// has the old or the new contents whole. Callers exclude each other.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let next = path.with_extension("next");
    // Who might read the old one may read the new one.
    let mode = std::fs::metadata(path).map(|metadata| metadata.permissions());
    let written = write_synced(&next, bytes).and_then(|file| match mode {
        Ok(mode) => file
            .set_permissions(mode)
            .map_err(|e| fail("change the mode of", &next, e)),
        Err(_) => Ok(()),
    });
    if written.is_err() {
        // Half a file only takes room; the next attempt would replace it anyway.
        let _ = std::fs::remove_file(&next);
    }
    written?;
    std::fs::rename(&next, path).map_err(|e| fail("replace", path, e))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let handle = File::open(directory).map_err(|e| fail("open", directory, e))?;
    handle.sync_all().map_err(|e| fail("sync", directory, e))
}

/// Writes a file that is new: what stands at `path` may be what a crash has left, or a
/// link that somebody has put there, and is not written through.
fn write_synced(path: &Path, bytes: &[u8]) -> Result<File, FileError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(fail("remove", path, error));
        }
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| fail("create", path, e))?;
    let mut file = File::from(fd);
    file.write_all(bytes).map_err(|e| fail("write", path, e))?;
    file.sync_all().map_err(|e| fail("sync", path, e))?;
    Ok(file)
}

/// An exclusive lock between processes; ends with this value or its process.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
}

impl FileLock {
    /// Takes the lock on `path` if nobody holds it. The file is never removed:
    /// two processes must never lock two files of one name.
    pub(super) fn try_acquire(path: &Path) -> Result<Option<Self>, FileError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| fail("open", path, e))?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(FileLock { file: fd.into() })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(fail("lock", path, error)),
        }
    }

    /// Leaves this process's number for whoever finds the lock taken, in one write
    /// of fixed length.
    pub(super) fn sign(&self) -> io::Result<()> {
        let text = format!("{:>PID_LEN$}\n", std::process::id());
        self.file.write_all_at(text.as_bytes(), 0)
    }
}

/// Digits of a process's number in the file of its lock.
const PID_LEN: usize = 10;

/// The process that holds the lock on `path`, or held it last.
pub(super) fn holder(path: &Path) -> Option<u32> {
    let mut bytes = [0; PID_LEN];
    let file = File::open(path).ok()?;
    file.read_exact_at(&mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
}
