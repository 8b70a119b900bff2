//! Congestion control of a server that offers no option for it.
//!
//! Where the kernel's default is bbr, its pacing adds milliseconds to loopback
//! tails, which would be held against the peer. A system-wide setting is not ours
//! to change. But an accepted socket inherits an explicit choice from its
//! listener, and a listener can be reached from outside: `pidfd_getfd` gives us a
//! duplicate of the peer's descriptor, on which we set the option and which we
//! then close.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::AddressFamily;
use rustix::net::sockopt::{set_tcp_congestion, socket_acceptconn, socket_domain, tcp_congestion};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Used on every benchmark socket: unlike cubic, any user may choose it.
pub const CONGESTION: &str = "reno";

/// Sets the congestion control of all listening TCP sockets of process `pid`, for
/// connections accepted from now on; gives how many there are. Needs what a
/// debugger needs: the same user, and no ptrace restriction that forbids it.
pub fn set_listener_congestion(pid: u32, congestion: &str) -> io::Result<usize> {
    let listeners = tcp_sockets(pid)?
        .into_iter()
        .filter(|(_, listens)| *listens);
    let mut count = 0;
    for (socket, _) in listeners {
        set_tcp_congestion(&socket, congestion)?;
        count += 1;
    }
    Ok(count)
}

/// The congestion controls of the connections that `pid` has accepted or made.
pub(super) fn connection_congestion(pid: u32) -> io::Result<Vec<String>> {
    tcp_sockets(pid)?
        .into_iter()
        .filter(|(_, listens)| !listens)
        .map(|(socket, _)| Ok(tcp_congestion(&socket)?))
        .collect()
}

/// Duplicates of the TCP sockets of `pid`, and whether each listens.
fn tcp_sockets(pid: u32) -> io::Result<Vec<(OwnedFd, bool)>> {
    let process = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|to| to.as_os_str().to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_string_lossy().parse();
        let (true, Ok(number)) = (is_socket, number) else {
            continue;
        };
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
        let family = socket_domain(&socket)?;
        let is_tcp = [AddressFamily::INET, AddressFamily::INET6].contains(&family)
            && tcp_congestion(&socket).is_ok();
        if is_tcp {
            let listens = socket_acceptconn(&socket)?;
            sockets.push((socket, listens));
        }
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn accepted_sockets_inherit_the_listener_s_choice() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Our own listeners are reached just like a child's.
        assert!(set_listener_congestion(std::process::id(), CONGESTION).unwrap() >= 1);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(tcp_congestion(&accepted).unwrap(), CONGESTION);
    }

    #[test]
    fn processes_that_are_not_there_are_an_error() {
        assert!(set_listener_congestion(0, CONGESTION).is_err());
        assert!(set_listener_congestion(u32::MAX, CONGESTION).is_err());
    }
}
