//! How etcd is reached: its members, certificates and a password, taken anew when their files
//! change.
//!
//! A connection that breaks is made again with the certificate of its channel. So there are
//! new channels when there is a new certificate: calls from then on go by those, and what is
//! under way ends on the former ones.

use crate::error::EtcdError;
use crate::options::{Credentials, EtcdOptions};
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

/// Between two looks at the files.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// After so many looks in a row it is told that what stands there does not do: files are
/// replaced one after the other.
const TELL_AT: u32 = 5;

/// Channels to etcd's members, and who asks by them.
pub(crate) struct Reach {
    pub(crate) members: Vec<Channel>,
    pub(crate) credentials: Option<Credentials>,
    token: Mutex<Token>,
}

/// What etcd gave for the credentials.
#[derive(Clone, Debug, Default)]
pub(crate) enum Token {
    /// Not asked for yet, or no longer good.
    #[default]
    None,
    Shown(MetadataValue<Ascii>),
    /// This etcd lets everybody in.
    NotNeeded,
}

impl Reach {
    fn of(options: &EtcdOptions) -> Result<Arc<Self>, EtcdError> {
        let members = options.endpoints()?;
        Ok(Arc::new(Reach {
            members: members.iter().map(|m| m.connect_lazy()).collect(),
            credentials: options.credentials.clone(),
            token: Mutex::default(),
        }))
    }

    pub(crate) fn token(&self) -> MutexGuard<'_, Token> {
        lock(&self.token)
    }
}

type Read = Box<dyn Fn() -> Result<EtcdOptions, EtcdError> + Send + Sync>;

/// The same, after what its files hold now.
pub(crate) struct Renewed {
    files: Vec<PathBuf>,
    read: Read,
    look: Mutex<Look>,
}

struct Look {
    reach: Arc<Reach>,
    at: Instant,
    /// Of the files that are in use.
    stamps: Vec<Option<Stamp>>,
    /// Looks in a row at which others stood there, and did not do.
    refused: u32,
}

/// What tells that a file was replaced or written to: device, inode, length, and when it was
/// changed and written, in nanoseconds.
type Stamp = (u64, u64, u64, i64, i64);

impl Renewed {
    pub(crate) fn new(files: Vec<PathBuf>, read: Read) -> Result<Self, EtcdError> {
        // Before they are read: what changes meanwhile is read again.
        let stamps = stamps(&files);
        let reach = Reach::of(&read()?)?;
        Ok(Renewed {
            files,
            read,
            look: Mutex::new(Look {
                reach,
                at: Instant::now(),
                stamps,
                refused: 0,
            }),
        })
    }

    /// Has to be called inside a tokio runtime.
    pub(crate) fn now(&self) -> Arc<Reach> {
        let mut look = lock(&self.look);
        if look.at.elapsed() >= LOOK_PERIOD {
            look.at = Instant::now();
            let stamps = stamps(&self.files);
            if stamps != look.stamps {
                self.renew(&mut look, stamps);
            }
        }
        Arc::clone(&look.reach)
    }

    fn renew(&self, look: &mut Look, stamps: Vec<Option<Stamp>>) {
        match (self.read)().and_then(|options| Reach::of(&options)) {
            Ok(reach) => {
                look.reach = reach;
                look.stamps = stamps;
                look.refused = 0;
                tracing::info!("the certificate or password for etcd has changed, and is in use");
            }
            Err(error) => {
                look.refused = look.refused.saturating_add(1);
                if look.refused == TELL_AT {
                    tracing::error!(
                        %error,
                        "the certificate or password for etcd has changed, and cannot be used: the former one stays"
                    );
                }
            }
        }
    }
}

impl fmt::Debug for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewed")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let of = std::fs::metadata(path).ok()?;
        let ns = |s: i64, ns: i64| s.wrapping_mul(1_000_000_000).wrapping_add(ns);
        Some((
            of.dev(),
            of.ino(),
            of.len(),
            ns(of.ctime(), of.ctime_nsec()),
            ns(of.mtime(), of.mtime_nsec()),
        ))
    };
    files.iter().map(stamp).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
