//! Whose process a Unix socket leads to.

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::path::Path;

/// The process that listens at `path`, whether or not it answers; `None` if nobody
/// does, if so many wait there already that no more may, or if it cannot be seen
/// from here. Never waits.
pub fn listening_process(path: &Path) -> Option<u32> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    let peer = socket_peercred(&socket).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_listens_is_known_and_nobody_else() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("socket");
        assert_eq!(listening_process(&path), None);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(listening_process(&path), Some(std::process::id()));
        drop(listener);
        assert_eq!(listening_process(&path), None, "the file alone is nobody");
    }
}
