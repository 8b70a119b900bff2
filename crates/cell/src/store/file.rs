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
    let written = write_synced(&next, bytes);
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

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| fail("create", path, e))?;
    let mut file = File::from(fd);
    file.write_all(bytes).map_err(|e| fail("write", path, e))?;
    file.sync_all().map_err(|e| fail("sync", path, e))
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

    /// What the holder before wrote, or nothing.
    pub(super) fn read(&self) -> Option<Note> {
        let mut bytes = [0; Note::LEN];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        Note::parse(&bytes)
    }

    /// Leaves a note for the next holder, in one write of fixed length: a crash
    /// leaves the old one or the new one.
    pub(super) fn write(&self, note: Note) -> io::Result<()> {
        self.file.write_all_at(note.text().as_bytes(), 0)
    }
}

/// What a backend lock's file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// Process that holds or held the lock.
    pub(super) pid: u32,
    /// Life of the cell that it served, 0 if none yet.
    pub(super) life: u64,
    /// Incarnations that the backend has had in that life.
    pub(super) incarnations: u32,
}

impl Note {
    const LEN: usize = 39;

    fn text(self) -> String {
        format!(
            "{:>10} {:016x} {:>10}\n",
            self.pid, self.life, self.incarnations
        )
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut fields = text.split_ascii_whitespace();
        Some(Note {
            pid: fields.next()?.parse().ok()?,
            life: u64::from_str_radix(fields.next()?, 16).ok()?,
            incarnations: fields.next()?.parse().ok()?,
        })
    }

    /// The note of whoever holds the lock on `path`.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        let file = File::open(path).ok()?;
        file.read_exact_at(&mut bytes, 0).ok()?;
        Self::parse(&bytes)
    }
}
