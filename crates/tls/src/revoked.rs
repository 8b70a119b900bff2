//! Certificates that are not believed any more, although they have not ended.
//!
//! They stand in the file `revoked` of a server's directory: serial numbers as
//! `trefoil cell certs list` shows them, one a line; `#` begins a comment. A process looks
//! at the file at most once in [`REVOKED_LOOK_PERIOD`]. A file that is taken away revokes
//! nothing; one that cannot be read leaves in force what was, and the log says so.

use crate::accept::Caller;
use std::collections::HashSet;
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
    /// Beside the certificate at `certificate`.
    pub(crate) fn beside(certificate: &Path) -> Self {
        let revoked = Revoked {
            path: certificate.with_file_name(REVOKED_FILE),
            serials: RwLock::default(),
            look: Mutex::new(Look {
                at: None,
                stamp: None,
                is_unreadable: false,
            }),
            changes: AtomicU64::new(0),
        };
        revoked.look();
        revoked
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
        let found = stamp(&self.path);
        if found == look.stamp && !look.is_unreadable {
            return;
        }
        match read(&self.path, found) {
            Ok(serials) => {
                (look.stamp, look.is_unreadable) = (found, false);
                let mut known = self.serials.write().unwrap_or_else(PoisonError::into_inner);
                if *known != serials {
                    tracing::info!(count = serials.len(), "certificates are revoked");
                    *known = serials;
                    self.changes.fetch_add(1, Ordering::Release);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut look.is_unreadable, true) {
                    let path = self.path.display();
                    tracing::error!("{path} cannot be read, what it said before counts: {error}");
                }
            }
        }
    }

    fn has(&self, serial: &str) -> bool {
        let serials = self.serials.read().unwrap_or_else(PoisonError::into_inner);
        !serials.is_empty() && serials.contains(serial)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    let changed_ns = metadata.ctime().wrapping_mul(1_000_000_000) + metadata.ctime_nsec();
    Some((metadata.dev(), metadata.ino(), metadata.len(), changed_ns))
}

fn read(path: &Path, found: Option<Stamp>) -> std::io::Result<HashSet<String>> {
    match found {
        None => return Ok(HashSet::new()),
        Some((_, _, len, _)) if len > LEN_MAX => {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        Some(_) => {}
    }
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().map(|line| match line.split_once('#') {
        Some((serial, _)) => serial.trim(),
        None => line.trim(),
    });
    let serials = lines.filter(|serial| !serial.is_empty());
    Ok(serials.map(str::to_ascii_lowercase).collect())
}

impl crate::watched::Tls {
    /// Whether the file says that this certificate is not believed any more.
    pub fn is_revoked(&self, caller: &Caller) -> bool {
        let revoked = self.revoked();
        revoked.look();
        revoked.has(&caller.serial)
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
}
