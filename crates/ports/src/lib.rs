//! Free TCP ports for servers that cannot take port 0 and say which they got:
//! the caches that benchmarks and tests start beside ours.
//!
//! A port that the system has just handed out and taken back is a poor choice
//! for these: it comes from the ephemeral range, so before the server binds
//! it, anybody's connection or listener may be given it, even the very
//! connection that looks whether the server is up. The ports named here lie
//! below that range, where the system gives nothing away by itself.

mod etcd;
mod process;

pub use etcd::{EtcdProcess, EtcdTls};
pub use process::ServerProcess;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU32, Ordering};

/// The lowest port named; those of well-known services lie below.
const FIRST: u16 = 13_000;
/// The usual beginning of the ephemeral range, where the system does not say.
const USUAL_END: u16 = 32_768;

/// A port that nobody listens at on `address`, and that this process has not
/// been given before.
///
/// # Errors
///
/// If every port below the ephemeral range is taken.
pub fn free_port(address: Ipv4Addr) -> std::io::Result<u16> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let span = u32::from(ephemeral_begin().saturating_sub(FIRST)).max(1);
    // Processes of one test run have neighbouring numbers: spread them.
    let begin = std::process::id().wrapping_mul(0x9E37_79B1) >> 8;
    let mut refusal = None;
    for _ in 0..span {
        let turn = TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (begin.wrapping_add(turn) % span) as u16;
        match try_port(SocketAddrV4::new(address, port)) {
            Ok(()) => return Ok(port),
            Err(error) => refusal = Some(error.into()),
        }
    }
    Err(refusal.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into()))
}

/// Fails if somebody listens at `address`. It is bound and never listened at: a
/// process that is forked this moment holds a copy of the socket until it
/// executes its program. As a listener that copy would take the first
/// connections and keep the server from the port; like this, whoever sets
/// `SO_REUSEADDR`, as servers do, may bind beside it.
fn try_port(address: SocketAddrV4) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)
}

/// Where the ports begin that the system gives to connections.
fn ephemeral_begin() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let begin = range.ok().and_then(|text| {
        let first = text.split_whitespace().next()?;
        first.parse().ok()
    });
    begin.filter(|begin| *begin > FIRST).unwrap_or(USUAL_END)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn ports_are_distinct_and_outside_the_ephemeral_range() {
        let ports: Vec<u16> = (0..100)
            .map(|_| free_port(Ipv4Addr::LOCALHOST).unwrap())
            .collect();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
        assert!(ports.iter().all(|port| *port < ephemeral_begin()));
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let held = free_port(Ipv4Addr::LOCALHOST).unwrap();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, held)).unwrap();
        let span = ephemeral_begin() - FIRST;
        // Once around would come to it again.
        let again = (0..span).any(|_| free_port(Ipv4Addr::LOCALHOST).unwrap() == held);
        assert!(!again);
    }
}
