//! One socket, by `NETLINK_SOCK_DIAG`: the kernel looks it up in its own table, so it
//! takes as long with many sockets as with few.
//!
//! The request is an `nlmsghdr` and an `inet_diag_req_v2`, all in the host's byte order but
//! for ports and addresses:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | length of all |
//! | 4 | 2 | `SOCK_DIAG_BY_FAMILY` |
//! | 6 | 2 | `NLM_F_REQUEST`, without a dump: this socket alone |
//! | 8 | 8 | sequence and port, not used |
//! | 16 | 4 | family, `IPPROTO_TCP`, no extensions, padding |
//! | 20 | 4 | states; of one socket the kernel does not look at them |
//! | 24 | 4 | the socket's port, then the other end's |
//! | 28 | 32 | the socket's address, then the other end's |
//! | 60 | 4 | interface: any |
//! | 64 | 8 | cookie: none |
//!
//! The answer has an `inet_diag_msg` behind its header.

use crate::{Found, table};
use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

const REQUEST_LEN: usize = 72;
const HEADER_LEN: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const IPPROTO_TCP: u8 = 6;
const ANSWER_LEN_MAX: usize = 4096;
/// In an `inet_diag_msg`.
const STATE_AT: usize = HEADER_LEN + 1;
const USER_AT: usize = HEADER_LEN + 64;
const INODE_AT: usize = HEADER_LEN + 68;

/// The socket whose own address is `local` and which is connected to `remote`.
pub(crate) fn find(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    let (local, remote) = (canonical(local), canonical(remote));
    or_else(|| ask(local, remote), || table::find(local, remote))
}

/// The socket that takes connections to `address`.
pub(crate) fn find_listener(address: SocketAddr) -> io::Result<Option<Found>> {
    let address = canonical(address);
    let nobody: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let ask = || ask(address, SocketAddr::new(nobody, 0));
    or_else(ask, || table::find_listener(address))
}

/// The table says it where netlink does not: it is forbidden, or the kernel has none. One
/// that cannot load the part that knows says of every socket that there is no such one;
/// so that is believed once a socket has been found. Where netlink cannot be had, or the
/// table knew what it did not, it is not asked again.
fn or_else(
    ask: impl FnOnce() -> io::Result<Option<Found>>,
    table: impl FnOnce() -> io::Result<Option<Found>>,
) -> io::Result<Option<Found>> {
    static KNOWN: AtomicU8 = AtomicU8::new(UNTRIED);
    by_what_is_known(&KNOWN, ask, table)
}

const UNTRIED: u8 = 0;
const ANSWERS: u8 = 1;
const DOES_NOT: u8 = 2;

fn by_what_is_known(
    known: &AtomicU8,
    ask: impl FnOnce() -> io::Result<Option<Found>>,
    table: impl FnOnce() -> io::Result<Option<Found>>,
) -> io::Result<Option<Found>> {
    let before = known.load(Ordering::Relaxed);
    if before == DOES_NOT {
        return table();
    }
    match ask() {
        Ok(Some(found)) => {
            known.store(ANSWERS, Ordering::Relaxed);
            Ok(Some(found))
        }
        Ok(None) if before == ANSWERS => Ok(None),
        Ok(None) => {
            let found = table()?;
            if found.is_some() {
                known.store(DOES_NOT, Ordering::Relaxed);
            }
            Ok(found)
        }
        Err(error) => {
            if before == UNTRIED && is_for_good(&error) {
                known.store(DOES_NOT, Ordering::Relaxed);
            }
            table()
        }
    }
}

/// Not for want of memory or descriptors.
fn is_for_good(error: &io::Error) -> bool {
    let errors = [
        Errno::PERM,
        Errno::ACCESS,
        Errno::AFNOSUPPORT,
        Errno::PROTONOSUPPORT,
        Errno::NOSYS,
        Errno::OPNOTSUPP,
    ];
    Errno::from_io_error(error).is_some_and(|error| errors.contains(&error))
}

/// An IPv4 address that an IPv6 socket shows is one of IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// `None` if there is no such socket.
fn ask(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(
        &socket,
        &request(local, remote),
        SendFlags::empty(),
        &kernel,
    )?;
    let mut answer = [0; ANSWER_LEN_MAX];
    // It is there when the request has been taken.
    let (len, _) = recv(&socket, &mut answer, RecvFlags::DONTWAIT)?;
    found(&answer[..len])
}

fn request(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_LEN] {
    let mut request = [0; REQUEST_LEN];
    let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(REQUEST_LEN as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    let family = match local {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    put(16, &[family.as_raw() as u8, IPPROTO_TCP]);
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &local.port().to_be_bytes());
    put(26, &remote.port().to_be_bytes());
    for (at, address) in [(28, local), (44, remote)] {
        match address.ip() {
            IpAddr::V4(ip) => put(at, &ip.octets()),
            IpAddr::V6(ip) => put(at, &ip.octets()),
        }
    }
    put(64, &[u8::MAX; 8]);
    request
}

fn found(answer: &[u8]) -> io::Result<Option<Found>> {
    let number = |at: usize| {
        let bytes = answer.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    let short = || io::Error::other("the kernel's answer is cut off");
    let kind = answer.get(4..6).ok_or_else(short)?;
    let kind = u16::from_ne_bytes([kind[0], kind[1]]);
    match kind {
        SOCK_DIAG_BY_FAMILY => {
            let state = *answer.get(STATE_AT).ok_or_else(short)?;
            Ok(Some(Found {
                user: number(USER_AT).ok_or_else(short)?,
                state,
                is_held: number(INODE_AT).ok_or_else(short)? != 0,
            }))
        }
        NLMSG_ERROR => {
            let error = number(HEADER_LEN).ok_or_else(short)? as i32;
            match Errno::from_raw_os_error(error.wrapping_neg()) {
                Errno::NOENT => Ok(None),
                error => Err(error.into()),
            }
        }
        other => Err(io::Error::other(format!(
            "the kernel answers with a message of kind {other}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn netlink_is_not_asked_again_where_it_does_not_answer() {
        let found = Found {
            user: 7,
            state: 1,
            is_held: true,
        };
        let refused = |errno: Errno| move || Err(errno.into());
        let known = AtomicU8::new(UNTRIED);
        let asked = Cell::new(0);
        let ask = |answer: &dyn Fn() -> io::Result<Option<Found>>, table| {
            let answer = || {
                asked.set(asked.get() + 1);
                answer()
            };
            by_what_is_known(&known, answer, || Ok(table)).unwrap()
        };
        // What passes says nothing.
        assert_eq!(ask(&refused(Errno::MFILE), Some(found)), Some(found));
        assert_eq!(ask(&|| Ok(None), None), None);
        assert_eq!(ask(&refused(Errno::AFNOSUPPORT), Some(found)), Some(found));
        assert_eq!(asked.get(), 3);
        assert_eq!(ask(&refused(Errno::AFNOSUPPORT), Some(found)), Some(found));
        assert_eq!(asked.get(), 3);
        // It says of each socket that there is none.
        known.store(UNTRIED, Ordering::Relaxed);
        assert_eq!(ask(&|| Ok(None), Some(found)), Some(found));
        assert_eq!(ask(&|| Ok(None), Some(found)), Some(found));
        assert_eq!(asked.get(), 4);
        // It has answered once, and is believed.
        known.store(UNTRIED, Ordering::Relaxed);
        assert_eq!(ask(&|| Ok(Some(found)), None), Some(found));
        assert_eq!(ask(&|| Ok(None), Some(found)), None);
    }
}
