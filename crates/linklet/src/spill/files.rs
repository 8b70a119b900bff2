//! Files without names.
//!
//! A file of spilled values never has a name in the directory (`O_TMPFILE`), so nobody else
//! can open it by one, and the kernel frees it when the process ends, however that is.
//! Nothing is ever left behind, and there is nothing to be cleaned up or mistaken for
//! another process's. Where the file system cannot do that, a file has a name for the
//! moment between its creation and its removal; what a process that was killed in that
//! moment has left (an empty file) goes with the next start: at any time, for whoever lives
//! does not need names.

use rustix::fs::{Mode, OFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// What names begin with, where files have some for a moment.
const PREFIX: &str = ".trefoil-spill-";

/// What all segments of a linklet come to.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Bytes of records in files.
    pub(crate) disk: AtomicU64,
    /// Of these, bytes of values that are nowhere else.
    pub(crate) live: AtomicU64,
    pub(crate) segments: AtomicU64,
    /// Wakes the writer.
    pub(crate) wake: Notify,
    /// Segments that nobody needs any more, with their lengths. Closing one frees its
    /// blocks, which takes a while: not a matter for who held the last record, perhaps
    /// under a lock.
    closing: Mutex<Vec<(File, u64)>>,
}

impl Ledger {
    pub(super) fn bury(&self, file: File, len: u64) {
        self.segments.fetch_sub(1, Ordering::Relaxed);
        let mut closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        closing.push((file, len));
        drop(closing);
        self.wake.notify_one();
    }

    /// Closes what nobody needs any more.
    pub(super) fn close(&self) {
        let mut closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let files = std::mem::take(&mut *closing);
        drop(closing);
        for (file, len) in files {
            drop(file);
            self.disk.fetch_sub(len, Ordering::Relaxed);
        }
    }
}

/// Makes files in a directory.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
    /// The file system has no files without names.
    named: bool,
}

impl Files {
    /// Looks whether files can be made and written there.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let mut files = Files {
            directory: directory.to_path_buf(),
            named: false,
        };
        if let Err(error) = files.make() {
            if !has_no_nameless(&error) {
                return Err(error);
            }
            files.named = true;
            files.make()?;
        }
        files.sweep();
        Ok(files)
    }

    /// A file that is this process's alone.
    pub(super) fn make(&self) -> io::Result<File> {
        match self.named {
            true => self.make_named(),
            false => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = rustix::fs::open(&self.directory, flags, Mode::RUSR | Mode::WUSR)?;
                Ok(File::from(file))
            }
        }
    }

    fn make_named(&self) -> io::Result<File> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let path = self.directory.join(name);
        // Of a former process with this number.
        remove(&path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        remove(&path)?;
        Ok(file)
    }

    /// Takes names away that nobody needs.
    fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX)
                && let Err(error) = remove(&entry.path())
            {
                tracing::warn!(path = %entry.path().display(), %error, "a name cannot be removed");
            }
        }
    }
}

fn has_no_nameless(error: &io::Error) -> bool {
    // Kernels and file systems differ in how they say it.
    let answers = [
        rustix::io::Errno::OPNOTSUPP,
        rustix::io::Errno::ISDIR,
        rustix::io::Errno::INVAL,
    ];
    let code = error.raw_os_error();
    answers
        .iter()
        .any(|answer| code == Some(answer.raw_os_error()))
}

/// Whoever cleans up at the same moment may be faster.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        entries
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn files_have_no_names_and_one_reader() {
        let directory = tempfile::tempdir().unwrap();
        let nameless = Files::open(directory.path()).unwrap();
        let named = Files {
            directory: directory.path().to_path_buf(),
            named: true,
        };
        for files in [nameless, named] {
            let (one, two) = (files.make().unwrap(), files.make().unwrap());
            one.write_all_at(b"one", 0).unwrap();
            two.write_all_at(b"two", 0).unwrap();
            let mut read = [0; 3];
            one.read_exact_at(&mut read, 0).unwrap();
            assert_eq!(&read, b"one");
            assert_eq!(one.metadata().unwrap().mode() & 0o777, 0o600);
            assert_eq!(names(directory.path()), [""; 0]);
        }
    }

    #[test]
    fn a_name_that_was_left_goes_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let left = format!("{PREFIX}1-0");
        for name in [left.as_str(), "another"] {
            std::fs::write(directory.path().join(name), b"").unwrap();
        }
        Files::open(directory.path()).unwrap();
        assert_eq!(names(directory.path()), ["another"]);
        // Also where it is in the way.
        let named = Files {
            directory: directory.path().to_path_buf(),
            named: true,
        };
        for n in 0..1_000 {
            let name = format!("{PREFIX}{}-{n}", std::process::id());
            std::fs::write(directory.path().join(name), b"").unwrap();
        }
        named.make().unwrap();
    }

    #[test]
    fn a_directory_that_is_none_is_said_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Files::open(&directory.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let none = Files::open(&file).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotADirectory);
    }
}
