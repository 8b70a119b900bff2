//! The socket file by which clients find a backend.
//!
//! A file that a dead process has left behind is replaced, a live one's is
//! not. Two processes that start at once are kept apart by a lock on the
//! directory while they look and bind.

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;
/// Mode of a socket for this user alone.
pub const MODE_PRIVATE: u32 = 0o600;
/// Mode of a socket at which credentials alone decide.
pub const MODE_BY_CREDENTIALS: u32 = 0o666;
const MODE_STICKY: u32 = 0o1000;
const MODE_OTHERS_WRITE: u32 = 0o0002;

/// Why no socket could be opened at a path.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process serves there.
    #[error("{path} is in use: another backend listens there")]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Some other file stands there; it is left alone.
    #[error("{path} exists and is not a socket: choose another path")]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// Anybody could replace the socket by their own.
    #[error("everybody may write to {directory}: choose a directory of your own for the socket")]
    UnsafeDirectory {
        /// Where the socket would be.
        directory: PathBuf,
    },
    /// Longer than a socket address can be.
    #[error("the socket path {path} is longer than the system allows (107 bytes)")]
    PathTooLong {
        /// Where.
        path: PathBuf,
    },
    /// Anything else that the system reports.
    #[error("cannot listen on {path}: {source}")]
    System {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// A bound socket file, removed when dropped. To be dropped before its
/// listening socket, which holds on to the inode: so the number below cannot
/// have been given to a successor's file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: nobody else's file is removed.
    identity: (u64, u64),
}

impl SocketFile {
    /// Opens a listening socket at `path`, with `mode` from its first moment.
    pub fn bind(path: &Path, mode: u32) -> Result<(UnixListener, Self), ListenError> {
        let address = SocketAddrUnix::new(path)
            .map_err(|_| ListenError::PathTooLong { path: path.into() })?;
        let fail = |source: io::Error| ListenError::System {
            path: path.into(),
            source,
        };
        let directory = directory_of(path);
        let _lock = lock_directory(directory).map_err(fail)?;
        if is_open_to_all(directory).map_err(fail)? {
            return Err(ListenError::UnsafeDirectory {
                directory: directory.into(),
            });
        }
        remove_stale(path, &address)?;
        let socket = bind(path, &address, mode).map_err(|e| match e {
            Errno::ADDRINUSE => ListenError::InUse { path: path.into() },
            e => fail(e.into()),
        })?;
        let metadata = std::fs::symlink_metadata(path).map_err(fail)?;
        let file = SocketFile {
            path: path.into(),
            identity: (metadata.dev(), metadata.ino()),
        };
        Ok((UnixListener::from(socket), file))
    }

    /// Has it stand at another path of the same directory from now on, where nobody listens.
    pub fn move_to(&mut self, path: &Path) -> Result<(), ListenError> {
        let address = SocketAddrUnix::new(path)
            .map_err(|_| ListenError::PathTooLong { path: path.into() })?;
        let fail = |source: io::Error| ListenError::System {
            path: path.into(),
            source,
        };
        let _lock = lock_directory(directory_of(path)).map_err(fail)?;
        remove_stale(path, &address)?;
        std::fs::rename(&self.path, path).map_err(fail)?;
        self.path = path.into();
        Ok(())
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Creates the directory if it is missing, and locks it until the result is dropped.
fn lock_directory(directory: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))?;
    Ok(lock)
}

fn is_open_to_all(directory: &Path) -> io::Result<bool> {
    let mode = std::fs::metadata(directory)?.mode();
    Ok(mode & MODE_OTHERS_WRITE != 0 && mode & MODE_STICKY == 0)
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let fail = |source: io::Error| ListenError::System {
        path: path.into(),
        source,
    };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(fail(e)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: path.into() });
        }
        Ok(_) => {}
    }
    // Non-blocking: a live server whose backlog is full must not hold us up.
    let probe = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(|e| fail(e.into()))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(fail),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => Err(ListenError::InUse { path: path.into() }),
        Err(e) => Err(fail(e.into())),
    }
}

fn bind(path: &Path, address: &SocketAddrUnix, mode: u32) -> Result<OwnedFd, Errno> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    // Linux gives the file the socket's own mode (less the umask), so nobody
    // can slip in between binding and a later change of mode.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, address)?;
    let finish = || {
        rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG)
    };
    finish().inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })?;
    Ok(socket)
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_is_private_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/one.sock");
        let (listener, file) = SocketFile::bind(&path, 0o600).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop((listener, file));
        assert!(!path.exists());
    }

    #[test]
    fn a_live_socket_is_in_use_and_a_stale_one_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.sock");
        let (listener, file) = SocketFile::bind(&path, 0o600).unwrap();
        assert!(matches!(
            SocketFile::bind(&path, 0o600),
            Err(ListenError::InUse { .. })
        ));
        // As after kill -9: the file stays, nobody listens.
        drop(listener);
        std::mem::forget(file);
        let (_listener, _successor) = SocketFile::bind(&path, 0o600).unwrap();
    }

    #[test]
    fn a_file_that_took_the_place_of_ours_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.sock");
        let (_listener, file) = SocketFile::bind(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (_successor_listener, _successor) = SocketFile::bind(&path, 0o600).unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn it_takes_a_place_that_nobody_listens_at() {
        let directory = tempfile::tempdir().unwrap();
        let (early, place) = (
            directory.path().join("one.next"),
            directory.path().join("one.sock"),
        );
        let (listener, mut file) = SocketFile::bind(&early, 0o600).unwrap();
        let (held, held_file) = SocketFile::bind(&place, 0o600).unwrap();
        assert!(matches!(
            file.move_to(&place),
            Err(ListenError::InUse { .. })
        ));
        // As after kill -9.
        drop(held);
        std::mem::forget(held_file);
        file.move_to(&place).unwrap();
        assert!(!early.exists());
        std::os::unix::net::UnixStream::connect(&place).unwrap();
        assert!(listener.accept().is_ok());
        drop((listener, file));
        assert!(!place.exists());
    }

    #[test]
    fn what_is_not_a_stale_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(
            SocketFile::bind(&path, 0o600),
            Err(ListenError::NotASocket { .. })
        ));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn paths_that_cannot_work_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("x".repeat(120));
        assert!(matches!(
            SocketFile::bind(&long, 0o600),
            Err(ListenError::PathTooLong { .. })
        ));
        let open = directory.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            SocketFile::bind(&open.join("s"), 0o600),
            Err(ListenError::UnsafeDirectory { .. })
        ));
    }
}
