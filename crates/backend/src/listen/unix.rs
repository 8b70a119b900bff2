//! A server's Unix socket: private to this user, taken over from a dead
//! server, never from a live one.

use super::ListenError;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use trefoil_cell::{RpcAddress, check_owner};

/// A listening socket; its file goes when it is dropped.
#[derive(Debug)]
pub struct UnixSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Device and inode: nobody else's file is removed.
    identity: (u64, u64),
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
        check_path(path)?;
        let fail = |source: io::Error| ListenError::System {
            address: path.display().to_string(),
            source,
        };
        // Servers that start at once look and bind one after the other.
        let _lock = lock_directory(path).map_err(fail)?;
        remove_stale(path)?;
        let listener = UnixListener::bind(path).map_err(fail)?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, private).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let metadata = std::fs::symlink_metadata(path).map_err(fail)?;
        Ok(UnixSocket {
            listener,
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
        })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
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

fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))?;
    Ok(lock)
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let fail = |source: io::Error| ListenError::System {
        address: path.display().to_string(),
        source,
    };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(fail(e)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(fail)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(fail(e)),
        Ok(_) => Err(ListenError::SocketInUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_kept_and_a_dead_one_replaced() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("new/s");
        let live = UnixSocket::bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(matches!(
            UnixSocket::bind(&path),
            Err(ListenError::SocketInUse(_))
        ));
        // As a killed process leaves it.
        let dead = home.path().join("new/d");
        drop(UnixListener::bind(&dead).unwrap());
        UnixSocket::bind(&dead).unwrap();
        drop(live);
        assert!(!path.exists());
    }

    #[test]
    fn other_files_are_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(
            UnixSocket::bind(&path),
            Err(ListenError::NotASocket(_))
        ));
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
    }
}
