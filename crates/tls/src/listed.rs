//! A small text file of the operator's that is looked at while a process runs.
//!
//! A process looks at most once in [`LIST_LOOK_PERIOD`]. A file that is taken away says
//! nothing; one that cannot be read or understood leaves in force what it said before, and
//! the log says so, but no server begins with it.

use crate::file::FileError;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Between two looks at such a file.
pub const LIST_LOOK_PERIOD: Duration = Duration::from_millis(25);

/// Longest such file, in bytes.
const LEN_MAX: u64 = 16 << 20;

/// Makes something of what stands in the file at a path.
type Parse<T> = fn(&Path, &str) -> Result<T, FileError>;

/// See the module. What no file says is the default of `T`.
pub(crate) struct Listed<T> {
    path: PathBuf,
    parse: Parse<T>,
    said: RwLock<T>,
    look: Mutex<Look>,
    changes: AtomicU64,
}

struct Look {
    at: Option<Instant>,
    stamp: Option<Stamp>,
    is_refused: bool,
}

/// Device, inode, length, and when it was changed, in nanoseconds.
type Stamp = (u64, u64, u64, i64);

impl<T: Default + PartialEq> Listed<T> {
    /// Of the file at `path`, before the first look.
    pub(crate) fn at(path: PathBuf, parse: Parse<T>) -> Self {
        Listed {
            path,
            parse,
            said: RwLock::default(),
            look: Mutex::new(Look {
                at: None,
                stamp: None,
                is_refused: false,
            }),
            changes: AtomicU64::new(0),
        }
    }

    /// The first look, of one who begins: a file that is there has to be usable.
    pub(crate) fn begin(&self) -> Result<(), FileError> {
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        look.at = Some(Instant::now());
        self.take(&mut look).map(drop)
    }

    /// Looks at the file, if that was not done just before. Whether it says something else
    /// than before.
    pub(crate) fn look(&self) -> bool {
        // Who looks already looks for all.
        let Ok(mut look) = self.look.try_lock() else {
            return false;
        };
        if look.at.is_some_and(|at| at.elapsed() < LIST_LOOK_PERIOD) {
            return false;
        }
        look.at = Some(Instant::now());
        match self.take(&mut look) {
            Ok(has_changed) => has_changed,
            Err(error) => {
                if !std::mem::replace(&mut look.is_refused, true) {
                    tracing::error!("{error}; what the file said before counts");
                }
                false
            }
        }
    }

    /// Reads the file, if it has changed.
    fn take(&self, look: &mut Look) -> Result<bool, FileError> {
        let found = stamp(&self.path).map_err(|source| self.unreadable(source))?;
        if found == look.stamp && !look.is_refused {
            return Ok(false);
        }
        let says = match read(&self.path, found).map_err(|source| self.unreadable(source))? {
            None => T::default(),
            Some(text) => (self.parse)(&self.path, &text)?,
        };
        (look.stamp, look.is_refused) = (found, false);
        let mut said = self.said.write().unwrap_or_else(PoisonError::into_inner);
        if *said == says {
            return Ok(false);
        }
        *said = says;
        self.changes.fetch_add(1, Ordering::Release);
        Ok(true)
    }

    fn unreadable(&self, source: io::Error) -> FileError {
        FileError::Read {
            path: self.path.clone(),
            source,
        }
    }

    /// What the file said at the last look.
    pub(crate) fn said<R>(&self, of: impl FnOnce(&T) -> R) -> R {
        of(&self.said.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often that has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Where it stands.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// `None` if there is no file.
fn stamp(path: &Path) -> io::Result<Option<Stamp>> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let changed_ns = metadata.ctime().wrapping_mul(1_000_000_000) + metadata.ctime_nsec();
    let (device, inode, len) = (metadata.dev(), metadata.ino(), metadata.len());
    Ok(Some((device, inode, len, changed_ns)))
}

fn read(path: &Path, found: Option<Stamp>) -> io::Result<Option<String>> {
    match found {
        None => Ok(None),
        Some((_, _, len, _)) if len > LEN_MAX => Err(io::ErrorKind::FileTooLarge.into()),
        Some(_) => std::fs::read_to_string(path).map(Some),
    }
}

/// What stands on each line, numbered from 1: `#` begins a comment, and empty lines are
/// passed over.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(at, line)| {
        let says = line.split_once('#').map_or(line, |(says, _)| says).trim();
        (!says.is_empty()).then_some((at + 1, says))
    })
}
