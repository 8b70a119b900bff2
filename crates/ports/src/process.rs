//! A server process of somebody else's on a free port.

use crate::free_port;
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Another process may take a port between our look and the server's.
const ATTEMPT_COUNT: usize = 5;
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A server on a port of the loopback. It is killed with its owner.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    address: SocketAddr,
}

impl ServerProcess {
    /// Starts what `command` says for a port, and waits until it listens there.
    ///
    /// # Errors
    ///
    /// If there is no such program, or if it ends or does not listen within ten
    /// seconds, whatever the port.
    pub fn start(mut command: impl FnMut(u16) -> Command) -> Result<Self> {
        let mut program = String::new();
        for _ in 0..ATTEMPT_COUNT {
            let port = free_port(Ipv4Addr::LOCALHOST)?;
            let mut command = command(port);
            program = command.get_program().to_string_lossy().into_owned();
            let child = command
                .spawn()
                .map_err(|error| Error::new(error.kind(), format!("{program}: {error}")))?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let mut server = ServerProcess { child, address };
            if server.wait_until_it_listens() {
                return Ok(server);
            }
        }
        let message = format!("{program} listens at none of {ATTEMPT_COUNT} free ports");
        Err(Error::new(ErrorKind::TimedOut, message))
    }

    fn wait_until_it_listens(&mut self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < READY_WITHIN && matches!(self.child.try_wait(), Ok(None)) {
            if listens(self.child.id(), self.address.port()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ServerProcess {
    /// SIGKILL.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether this process listens on this port of the loopback. That somebody
/// does is not enough: another process may have been named the same free port.
fn listens(process: u32, port: u16) -> bool {
    const LISTENING: &str = "0A";
    let Ok(sockets) = std::fs::read_to_string("/proc/net/tcp") else {
        return false;
    };
    let address = format!("0100007F:{port:04X}");
    // number, local address, remote address, state, …, inode in place 9
    let inode = sockets.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = words.get(1) == Some(&address.as_str()) && words.get(3) == Some(&LISTENING);
        found.then(|| words.get(9).map(|inode| format!("socket:[{inode}]")))?
    });
    let (Some(inode), Ok(files)) = (inode, std::fs::read_dir(format!("/proc/{process}/fd"))) else {
        return false;
    };
    files.flatten().any(|file| {
        std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == inode.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_server_that_ends_is_an_error_that_names_it() {
        let error = ServerProcess::start(|_| Command::new("false")).unwrap_err();
        assert!(error.to_string().starts_with("false listens"), "{error}");
        let missing = || Command::new("there-is-no-such-program");
        let error = ServerProcess::start(|_| missing()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }

    #[test]
    fn only_the_listener_itself_is_taken_for_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(std::process::id(), port));
        assert!(!listens(1, port));
        drop(listener);
        assert!(!listens(std::process::id(), port));
    }
}
