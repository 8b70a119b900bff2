//! Certificates that are not believed any more, although they have not ended.
//!
//! They stand in the file `revoked` of a server's directory: serial numbers as
//! `trefoil cell certs list` shows them, one a line; capital letters, colons between digits
//! and zeros before them do no harm; `#` begins a comment. A line that is no such number
//! revokes nothing, and the log says so. A process looks at the file at most once in
//! [`REVOKED_LOOK_PERIOD`]. A file that is taken away revokes nothing; one that cannot be
//! read leaves in force what was, and the log says so, but no server begins with it.

use crate::accept::Caller;
use crate::file::FileError;
use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Name of the file in a directory with certificates.
pub const REVOKED_FILE: &str = "revoked";

/// Between two looks at it.
pub const REVOKED_LOOK_PERIOD: Duration = Duration::from_millis(25);

/// Longest such file, in bytes.
const LEN_MAX: u64 = 16 << 20;

/// See the module.
pub(crate) struct Revoked {
    path: PathBuf,
    serials: RwLock<HashSet<String>>,
    look: Mutex<Look>,
    changes: AtomicU64,
}

struct Look {
    at: Option<Instant>,
    stamp: Option<Stamp>,
    is_unreadable: bool,
}

/// Device, inode, length, and when it was changed, in nanoseconds.
type Stamp = (u64, u64, u64, i64);

impl Revoked {
    /// Beside the certificate at `certificate`, before the first look.
    pub(crate) fn beside(certificate: &Path) -> Self {
        Revoked {
            path: certificate.with_file_name(REVOKED_FILE),
            serials: RwLock::default(),
            look: Mutex::new(Look {
                at: None,
                stamp: None,
                is_unreadable: false,
            }),
            changes: AtomicU64::new(0),
        }
    }

    /// The first look, of one who begins: a file that is there has to be read.
    pub(crate) fn begin(&self) -> Result<(), FileError> {
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        look.at = Some(Instant::now());
        self.take(&mut look).map_err(|source| FileError::Read {
            path: self.path.clone(),
            source,
        })
    }

    /// Looks at the file, if that was not done just before.
    pub(crate) fn look(&self) {
        // Who looks already looks for all.
        let Ok(mut look) = self.look.try_lock() else {
            return;
        };
        if look.at.is_some_and(|at| at.elapsed() < REVOKED_LOOK_PERIOD) {
            return;
        }
        look.at = Some(Instant::now());
        if let Err(error) = self.take(&mut look)
            && !std::mem::replace(&mut look.is_unreadable, true)
        {
            let path = self.path.display();
            tracing::error!("{path} cannot be read, what it said before counts: {error}");
        }
    }

    /// Reads the file, if it has changed.
    fn take(&self, look: &mut Look) -> io::Result<()> {
        let found = stamp(&self.path)?;
        if found == look.stamp && !look.is_unreadable {
            return Ok(());
        }
        let serials = read(&self.path, found)?;
        (look.stamp, look.is_unreadable) = (found, false);
        let mut known = self.serials.write().unwrap_or_else(PoisonError::into_inner);
        if *known != serials {
            tracing::info!(count = serials.len(), "certificates are revoked");
            *known = serials;
            self.changes.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    fn has(&self, serial: &str) -> bool {
        let serials = self.serials.read().unwrap_or_else(PoisonError::into_inner);
        !serials.is_empty() && number(serial).is_some_and(|serial| serials.contains(&serial))
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

fn read(path: &Path, found: Option<Stamp>) -> io::Result<HashSet<String>> {
    match found {
        None => return Ok(HashSet::new()),
        Some((_, _, len, _)) if len > LEN_MAX => {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Some(_) => {}
    }
    let text = std::fs::read_to_string(path)?;
    let mut serials = HashSet::new();
    for (at, line) in text.lines().enumerate() {
        let serial = line.split_once('#').map_or(line, |(serial, _)| serial);
        let serial = serial.trim();
        match number(serial) {
            _ if serial.is_empty() => {}
            Some(serial) => {
                serials.insert(serial);
            }
            None => {
                let path = path.display();
                let line = at + 1;
                tracing::error!(
                    "{path}:{line} is no serial number in hexadecimal digits, and revokes nothing"
                );
            }
        }
    }
    Ok(serials)
}

/// A serial number as all write it alike: small letters, no colons, no zeros before it.
fn number(serial: &str) -> Option<String> {
    let digits: String = serial.chars().filter(|letter| *letter != ':').collect();
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| digits.trim_start_matches('0').to_ascii_lowercase())
}

impl crate::watched::Tls {
    /// Whether the file says that this certificate is not believed any more.
    pub fn is_revoked(&self, caller: &Caller) -> bool {
        self.has_revoked(&caller.serial)
    }

    /// Likewise, by the certificate's serial number in hexadecimal digits.
    pub fn has_revoked(&self, serial: &str) -> bool {
        let revoked = self.revoked();
        revoked.look();
        revoked.has(serial)
    }

    /// How often what the file says has changed, by now.
    pub fn revocation_changes(&self) -> u64 {
        let revoked = self.revoked();
        revoked.look();
        revoked.changes.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_are_taken_as_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(REVOKED_FILE);
        let revoked = Revoked::beside(&folder.path().join("cert.pem"));
        revoked.begin().unwrap();
        let look = || {
            std::thread::sleep(REVOKED_LOOK_PERIOD);
            revoked.look();
        };
        assert!(!revoked.has("0a"));
        std::fs::write(&file, "# of a laptop that was lost\n0A  # anna's\n\n").unwrap();
        look();
        assert!(revoked.has("0a") && !revoked.has("0b") && !revoked.has(""));
        // What cannot be read changes nothing.
        std::fs::write(&file, [0xff, 0xfe]).unwrap();
        look();
        assert!(revoked.has("0a"));
        std::fs::write(&file, "0b\n").unwrap();
        look();
        assert!(!revoked.has("0a") && revoked.has("0b"));
        std::fs::remove_file(&file).unwrap();
        look();
        assert!(!revoked.has("0b"));
    }

    #[test]
    fn however_a_serial_is_written_it_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let revoked = Revoked::beside(&folder.path().join("cert.pem"));
        let text = "00:0A:fF\nserial=12\n7x\n 1234 # one\n";
        std::fs::write(folder.path().join(REVOKED_FILE), text).unwrap();
        revoked.begin().unwrap();
        assert!(revoked.has("0aff") && revoked.has("aff") && revoked.has("1234"));
        assert!(!revoked.has("12") && !revoked.has("7") && !revoked.has("0aff00"));
    }

    #[test]
    fn only_a_file_that_is_not_there_revokes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(REVOKED_FILE);
        let new = || Revoked::beside(&folder.path().join("cert.pem"));
        assert!(new().begin().is_ok());
        let revoked = new();
        std::fs::write(&file, "0a\n").unwrap();
        revoked.begin().unwrap();
        // Neither a folder nor a circle of links can be read, even by root.
        let is_kept = || {
            std::thread::sleep(REVOKED_LOOK_PERIOD);
            revoked.look();
            assert!(revoked.has("0a"));
            assert!(new().begin().is_err());
        };
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        is_kept();
        std::fs::remove_dir(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        is_kept();
        std::fs::remove_file(&file).unwrap();
        std::thread::sleep(REVOKED_LOOK_PERIOD);
        revoked.look();
        assert!(!revoked.has("0a"));
    }
}
