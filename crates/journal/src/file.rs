//! A disk that is a file: all of it written once before it is used, so that a commit changes
//! blocks that are there and nothing of the file system's.

use crate::disk::{BLOCK_LEN, Blocks, Disk};
use crate::error::JournalError;
use crate::frame::Record;
use crate::log::{BLOCK_COUNT_MIN, Log};
use crate::superblock::COPIES;
use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a journal unless chosen otherwise.
pub const LEN_DEFAULT: u64 = 16 << 20;
/// Blocks written at a time to a fresh file.
const FRESH_BLOCKS: usize = 256;

/// How what was written becomes persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Each write goes to the device by itself (`O_DIRECT` and `O_DSYNC`). Where the file
    /// system has no such writes, as the next.
    Direct,
    /// Through the system's cache, and `fdatasync`.
    Cached,
}

/// A file as a disk. It is locked as long as this lives.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    path: PathBuf,
    flush: Flush,
}

impl FileDisk {
    /// Opens a file that is there.
    pub fn open(path: &Path, flush: Flush) -> Result<Self, JournalError> {
        let doing = |doing| move |error: Errno| failed(path, doing, error.into());
        let common = OFlags::RDWR | OFlags::CLOEXEC;
        let direct = common | OFlags::DIRECT | OFlags::DSYNC;
        let (file, flush) = match flush {
            Flush::Direct => match rustix::fs::open(path, direct, Mode::empty()) {
                Err(Errno::INVAL) => (
                    rustix::fs::open(path, common, Mode::empty()).map_err(doing("open"))?,
                    Flush::Cached,
                ),
                opened => (opened.map_err(doing("open"))?, Flush::Direct),
            },
            Flush::Cached => (
                rustix::fs::open(path, common, Mode::empty()).map_err(doing("open"))?,
                Flush::Cached,
            ),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let name = path.display().to_string();
                return Err(JournalError::InUse { name });
            }
            Err(error) => return Err(failed(path, "lock", error.into())),
        }
        let disk = FileDisk {
            file: file.into(),
            path: path.to_owned(),
            flush,
        };
        // Between the opening and the lock, another process may have given this file
        // another name, or this name to another file.
        match disk.has_its_name() {
            Ok(true) => Ok(disk),
            Ok(false) => Err(JournalError::InUse {
                name: path.display().to_string(),
            }),
            Err(error) => Err(failed(path, "look at", error.into())),
        }
    }

    fn has_its_name(&self) -> Result<bool, Errno> {
        let opened = rustix::fs::fstat(&self.file)?;
        match rustix::fs::stat(&self.path) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How it is flushed, in fact.
    pub fn flush_kind(&self) -> Flush {
        self.flush
    }
}

impl Drop for FileDisk {
    /// A child that this process has forked, and that has not executed its program yet, has
    /// the file open, too: its lock would outlive the close.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Disk for FileDisk {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn block_count(&mut self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len() / BLOCK_LEN as u64)
    }

    fn read(&mut self, block: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, block * BLOCK_LEN as u64)
    }

    fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, block * BLOCK_LEN as u64)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.flush {
            Flush::Direct => Ok(()),
            Flush::Cached => self.file.sync_data(),
        }
    }
}

/// Opens the journal of a queue, and makes one of `len` bytes where there is none.
/// `salt` is a random number for a fresh one; `executed` and `replay`: [`Log::open`].
///
/// A journal that is missing while the state has executed something is an error:
/// [`JournalError::StateAhead`].
pub fn open(
    path: &Path,
    (queue, salt): (u64, u64),
    (len, flush): (u64, Flush),
    executed: u64,
    replay: impl FnMut(Record<'_>),
) -> Result<Log<FileDisk>, JournalError> {
    let is_there = path.try_exists();
    if !is_there.map_err(|error| failed(path, "look for", error))? {
        if executed > 0 {
            return Err(JournalError::StateAhead {
                name: path.display().to_string(),
                state: executed,
                last: 0,
            });
        }
        create(path, (queue, salt), len)?;
    }
    let disk = FileDisk::open(path, flush)?;
    // Whoever has made it may have been killed before its name was persistent.
    flush_folder(path).map_err(|error| failed(path, "flush the folder of", error))?;
    Log::open(disk, queue, executed, replay)
}

/// Makes a whole journal beside its place, and moves it there. One that is there stays.
/// What an earlier attempt has left is used again.
fn create(path: &Path, (queue, salt): (u64, u64), len: u64) -> Result<(), JournalError> {
    let blocks = (len / BLOCK_LEN as u64).max(COPIES + BLOCK_COUNT_MIN);
    let fresh = beside(path, "new");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    drop(rustix::fs::open(&fresh, flags, mode).map_err(|e| failed(&fresh, "make", e.into()))?);
    let mut disk = FileDisk::open(&fresh, Flush::Cached)?;
    let made = fill(&disk, blocks).and_then(|()| {
        Log::format(&mut disk, queue, salt)?;
        disk.file
            .sync_all()
            .map_err(|error| failed(path, "flush", error))?;
        let at = rustix::fs::CWD;
        match rustix::fs::renameat_with(at, &fresh, at, path, RenameFlags::NOREPLACE) {
            Ok(()) => {
                flush_folder(path).map_err(|error| failed(path, "flush the folder of", error))
            }
            // Somebody else was faster.
            Err(Errno::EXIST) => Err(JournalError::InUse {
                name: path.display().to_string(),
            }),
            Err(error) => Err(failed(path, "name", error.into())),
        }
    });
    if made.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    made
}

/// Writes zeros to all of a fresh file: its room is taken, and later commits find blocks
/// that have been written.
fn fill(disk: &FileDisk, blocks: u64) -> Result<(), JournalError> {
    let bytes = blocks * BLOCK_LEN as u64;
    let no_space = |source| JournalError::NoSpace {
        name: disk.path.display().to_string(),
        bytes,
        source,
    };
    disk.file.set_len(0).map_err(no_space)?;
    let zeros = Blocks::new(FRESH_BLOCKS);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(zeros.bytes().len() as u64);
        disk.file
            .write_all_at(&zeros.bytes()[..len as usize], at)
            .map_err(no_space)?;
        at += len;
    }
    Ok(())
}

/// A name in the same folder.
pub(crate) fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(extension);
    path.with_file_name(name)
}

/// Makes a name in its folder persistent.
pub(crate) fn flush_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn failed(path: &Path, doing: &'static str, source: io::Error) -> JournalError {
    let name = path.display().to_string();
    JournalError::Io {
        name,
        doing,
        source,
    }
}
