//! Certificates that are taken anew while a process runs.
//!
//! Before a handshake, and when somebody asks, the files are looked at, at most once
//! in [`LOOK_PERIOD`]. Files that have changed are read and judged; if they are sound,
//! handshakes from then on use them. If not, those before stay in use, the log says
//! so, and [`CertStatus::is_refused`] is true until sound ones stand there. Connections
//! that stand are left alone.

use crate::certificate::{time_text, unix_s};
use crate::error::CertError;
use crate::identity::{CertFiles, Identity};
use crate::revoked::{self, Revoked};
use crate::rights::{self, NameRights};
use crate::role::Role;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

/// Between two looks at the files.
pub const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// A certificate that ends within so long is warned of, or within a quarter of its
/// validity if that is less.
const WARNED_S: i64 = 14 * 86_400;
/// Between two warnings.
const WARNING_PERIOD: Duration = Duration::from_secs(86_400);

/// Files are replaced one after another. Whoever finds them new, and not all of one
/// certificate, takes that for a moment's state for so long.
const HALFWAY: Duration = Duration::from_secs(2);
/// How long one who begins waits for it to be over.
const HALFWAY_PATIENCE: Duration = Duration::from_millis(600);
/// Between two looks of theirs.
const HALFWAY_PAUSE: Duration = Duration::from_millis(50);

/// What certificates are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertUse {
    /// A server's: it has to be a backend's.
    Server,
    /// Anybody's who connects to servers.
    Client,
}

/// A part's certificates and key, and whom it believes: kept up to date with their
/// files. Cheap to clone.
#[derive(Clone)]
pub struct Tls(Arc<Watched>);

struct Watched {
    files: CertFiles,
    needed: Option<Role>,
    current: RwLock<Arc<Identity>>,
    look: Mutex<Look>,
    revoked: Revoked,
    rights: NameRights,
    is_refused: AtomicBool,
    handshakes: AtomicU64,
    handshakes_failed: AtomicU64,
}

struct Look {
    at: Instant,
    /// Of the files that were read last.
    stamps: Option<Stamps>,
    /// Why the files that stand there are not in use.
    refused: Option<String>,
    /// Since when they look as if somebody were replacing them.
    halfway: Option<Instant>,
    warned: Option<Instant>,
}

impl Look {
    /// Whether files of which not all are of one certificate may just be on their way.
    fn is_halfway(&mut self) -> bool {
        self.refused.is_none() && self.halfway.get_or_insert_with(Instant::now).elapsed() < HALFWAY
    }
}

/// What tells that a file was replaced or written to: device, inode, length, and when
/// it was changed and written, in nanoseconds.
type Stamps = [(u64, u64, u64, i64, i64); 3];

/// How a part's certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertStatus {
    /// Seconds until the certificate in use ends; negative once it has.
    pub left_s: i64,
    /// Other files stand there, which cannot be used.
    pub is_refused: bool,
    /// Handshakes that have come to their end, of a server.
    pub handshakes: u64,
    /// Those that have not.
    pub handshakes_failed: u64,
}

impl Tls {
    /// Reads what stands there now. Where it looks as if somebody were replacing the
    /// files, waits for that a moment.
    pub fn read(files: &CertFiles, usage: CertUse) -> Result<Tls, CertError> {
        let needed = match usage {
            CertUse::Server => Some(Role::Backend),
            CertUse::Client => None,
        };
        let begin = Instant::now();
        let (stamps, identity) = loop {
            let stamps = stamps(files);
            match Identity::read(files, needed) {
                Ok(identity) => break (stamps, identity),
                Err(error) => {
                    let may_change = error.is_halfway() && is_new(stamps.as_ref());
                    if !may_change || begin.elapsed() >= HALFWAY_PATIENCE {
                        return Err(error);
                    }
                    std::thread::sleep(HALFWAY_PAUSE);
                }
            }
        };
        let revoked = revoked::beside(&files.certificate);
        let rights = rights::beside(&files.certificate);
        // Nobody else judges callers by them.
        if usage == CertUse::Server {
            revoked.begin()?;
            rights.begin()?;
        }
        Ok(Tls(Arc::new(Watched {
            files: files.clone(),
            needed,
            current: RwLock::new(Arc::new(identity)),
            look: Mutex::new(Look {
                at: Instant::now(),
                stamps,
                refused: None,
                halfway: None,
                warned: None,
            }),
            revoked,
            rights,
            is_refused: AtomicBool::new(false),
            handshakes: AtomicU64::new(0),
            handshakes_failed: AtomicU64::new(0),
        })))
    }

    /// Where they are read.
    pub fn files(&self) -> &CertFiles {
        &self.0.files
    }

    /// What a handshake that begins now uses.
    pub fn identity(&self) -> Arc<Identity> {
        self.look();
        self.current()
    }

    /// Looks at the files, if that was not done just before; what has changed is taken.
    pub fn look(&self) {
        // Who looks already looks for all.
        let Ok(mut look) = self.0.look.try_lock() else {
            return;
        };
        if look.at.elapsed() < LOOK_PERIOD {
            return;
        }
        look.at = Instant::now();
        let found = stamps(&self.0.files);
        // Files that were refused are judged again: one that begins later may be valid
        // by now, and whose mode was wrong may have it set right.
        if look.refused.is_some() || found.is_none() || found != look.stamps {
            let _ = self.take(&mut look, found);
        }
        self.warn(&mut look);
    }

    /// Reads the files again, whether they have changed or not. An error leaves those
    /// in use that were before.
    pub fn read_again(&self) -> Result<(), CertError> {
        let mut look = self.lock();
        look.at = Instant::now();
        let found = stamps(&self.0.files);
        self.take(&mut look, found)
    }

    /// How they are, by now.
    pub fn status(&self) -> CertStatus {
        self.look();
        let of = &self.0;
        CertStatus {
            left_s: self.current().certificate.left_s(SystemTime::now()),
            is_refused: of.is_refused.load(Ordering::Relaxed),
            handshakes: of.handshakes.load(Ordering::Relaxed),
            handshakes_failed: of.handshakes_failed.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn revoked(&self) -> &Revoked {
        &self.0.revoked
    }

    pub(crate) fn rights(&self) -> &NameRights {
        &self.0.rights
    }

    /// Counts a server's handshake.
    pub(crate) fn count(&self, is_done: bool) {
        let counter = match is_done {
            true => &self.0.handshakes,
            false => &self.0.handshakes_failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn current(&self) -> Arc<Identity> {
        let current = &self.0.current;
        Arc::clone(&current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, Look> {
        self.0.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, look: &mut Look, found: Option<Stamps>) -> Result<(), CertError> {
        let files = &self.0.files;
        let read = Identity::read(files, self.0.needed);
        // Somebody is writing: the next look finds all of it.
        let is_settled = found.is_some() && stamps(files) == found;
        look.stamps = found.filter(|_| is_settled);
        match read {
            Ok(identity) => {
                let certificate = &identity.certificate;
                if *certificate != self.current().certificate {
                    tracing::info!(
                        name = certificate.name,
                        serial = certificate.serial,
                        until = time_text(certificate.ends_s),
                        "{}: a new certificate is in use",
                        files.certificate.display()
                    );
                }
                let current = &self.0.current;
                *current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(identity);
                (look.refused, look.halfway) = (None, None);
                self.0.is_refused.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if error.is_halfway() && look.is_halfway() => {
                look.stamps = None;
                Err(error)
            }
            Err(error) => {
                let text = error.to_string();
                if look.refused.as_ref() != Some(&text) {
                    let until = time_text(self.current().certificate.ends_s);
                    tracing::error!(
                        "the certificates were changed and cannot be used; the one before stays in use (until {until}): {text}"
                    );
                    look.refused = Some(text);
                }
                self.0.is_refused.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Says that a certificate ends soon, or has ended, once a day.
    fn warn(&self, look: &mut Look) {
        if look.warned.is_some_and(|at| at.elapsed() < WARNING_PERIOD) {
            return;
        }
        let current = self.current();
        let certificate = &current.certificate;
        let left_s = certificate.ends_s - unix_s(SystemTime::now());
        if left_s >= WARNED_S.min((certificate.ends_s - certificate.begins_s) / 4) {
            return;
        }
        look.warned = Some(Instant::now());
        let (path, until) = (
            self.0.files.certificate.display(),
            time_text(certificate.ends_s),
        );
        match left_s > 0 {
            true => tracing::warn!(
                "{path}: the certificate ends on {until}: renew it (trefoil cell certs renew)"
            ),
            false => tracing::error!(
                "{path}: the certificate has ended on {until}, and nobody accepts it any more: renew it (trefoil cell certs renew)"
            ),
        }
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

/// Whether one of the files was changed just now.
fn is_new(stamps: Option<&Stamps>) -> bool {
    let now_s = unix_s(SystemTime::now());
    let since_s = |changed_ns: i64| now_s - changed_ns / 1_000_000_000;
    let is_new = |stamp: &(u64, u64, u64, i64, i64)| since_s(stamp.3) <= HALFWAY.as_secs() as i64;
    stamps.is_some_and(|stamps| stamps.iter().any(is_new))
}

/// `None` if one of them is not there.
fn stamps(files: &CertFiles) -> Option<Stamps> {
    let mut stamps = Stamps::default();
    for (stamp, path) in stamps.iter_mut().zip(files.all()) {
        let metadata = std::fs::metadata(path).ok()?;
        let changed = metadata.ctime().wrapping_mul(1_000_000_000) + metadata.ctime_nsec();
        let written = metadata.mtime().wrapping_mul(1_000_000_000) + metadata.mtime_nsec();
        let (device, inode, len) = (metadata.dev(), metadata.ino(), metadata.len());
        *stamp = (device, inode, len, changed, written);
    }
    Some(stamps)
}
