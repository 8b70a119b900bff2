//! A server's Unix socket, for its own user or for those who are let in.

use super::ListenError;
use super::ending::outlive;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use trefoil_cell::{RpcAddress, check_owner, listening_process};
use trefoil_fabric::shm::{self, MODE_PRIVATE, SocketFile};

/// A listening socket; its file goes when it is dropped.
#[derive(Debug)]
pub struct UnixSocket {
    // Goes before the listener: see `SocketFile`.
    _file: SocketFile,
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// Where it stands.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket itself.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Makes one that only this user can reach, non-blocking.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        Self::bind_with_mode(path, MODE_PRIVATE)
    }

    /// Makes one with this mode from its first moment, non-blocking.
    pub(super) fn bind_with_mode(path: &Path, mode: u32) -> Result<Self, ListenError> {
        check_path(path)?;
        let bound = outlive(
            || SocketFile::bind(path, mode),
            |error| matches!(error, shm::ListenError::InUse { .. }),
            || listening_process(path),
        );
        let (listener, file) = bound.map_err(|error| match error {
            shm::ListenError::InUse { path } => ListenError::SocketInUse(path),
            shm::ListenError::NotASocket { path } => ListenError::NotASocket(path),
            other => ListenError::Socket(other),
        })?;
        Ok(UnixSocket {
            _file: file,
            listener,
            path: path.to_owned(),
        })
    }
}

/// Whether a socket could stand at `path`: its length, and whose it is if
/// there is one.
pub(super) fn check_path(path: &Path) -> Result<(), ListenError> {
    RpcAddress::unix(path)?;
    if std::fs::symlink_metadata(path).is_ok() {
        check_owner(path)?;
    }
    Ok(())
}
