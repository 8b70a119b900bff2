//! Sockets by `/proc/net/tcp` and `/proc/net/tcp6`, where netlink is not to be had: in
//! sandboxes, and where `AF_NETLINK` is forbidden. Reads all sockets of the host's network.

use crate::{Found, LISTEN};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};

/// IPv6 sockets that speak IPv4 stand in the second one.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// No row fits better.
const EXACT: u8 = 0;
/// At once: the kernel looks for its place anew with each read.
const READ_BYTES: usize = 64 << 10;

/// The socket whose own address is `local` and which is connected to `remote`.
pub(crate) fn find(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    search(local, |row| {
        (row.local == local && row.remote == remote).then_some(EXACT)
    })
}

/// The socket that takes connections to `address`.
pub(crate) fn find_listener(address: SocketAddr) -> io::Result<Option<Found>> {
    search(address, |row| match row.found.state {
        LISTEN => rank(row.local, address),
        _ => None,
    })
}

/// How well a listener at `local` fits a connection to `address`, the best first, as the
/// kernel chooses: by the address, then one that is for all of its family; one for all of
/// IPv6 may be for IPv4 as well.
fn rank(local: SocketAddr, address: SocketAddr) -> Option<u8> {
    if local == address {
        return Some(EXACT);
    }
    if local.port() != address.port() || !local.ip().is_unspecified() {
        return None;
    }
    match (local, address) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) | (SocketAddr::V6(_), SocketAddr::V6(_)) => Some(1),
        (SocketAddr::V6(_), SocketAddr::V4(_)) => Some(2),
        (SocketAddr::V4(_), SocketAddr::V6(_)) => None,
    }
}

/// The row that fits best, of the tables in which sockets at `address` may stand. One thread
/// reads at a time: on a host with many sockets it is long, and takes the kernel's locks.
fn search(address: SocketAddr, rank: impl Fn(&Row) -> Option<u8>) -> io::Result<Option<Found>> {
    static READING: Mutex<()> = Mutex::new(());
    let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = match address {
        SocketAddr::V4(_) => &TABLES[..],
        SocketAddr::V6(_) => &TABLES[1..],
    };
    let (mut failure, mut best) = (None, None);
    for table in tables {
        match File::open(table).and_then(|file| search_in(file, &rank, &mut best)) {
            Ok(()) if matches!(best, Some((EXACT, _))) => break,
            Ok(()) => {}
            // A kernel without IPv6 has no such table.
            Err(error) if error.kind() == io::ErrorKind::NotFound && *table == TABLES[1] => {}
            Err(error) => failure = Some(error),
        }
    }
    // What could not be read may fit better.
    match (best, failure) {
        (Some((EXACT, found)), _) | (Some((_, found)), None) => Ok(Some(found)),
        (None, None) => Ok(None),
        (_, Some(failure)) => Err(failure),
    }
}

fn search_in(
    table: impl io::Read,
    rank: impl Fn(&Row) -> Option<u8>,
    best: &mut Option<(u8, Found)>,
) -> io::Result<()> {
    for line in BufReader::with_capacity(READ_BYTES, table).lines().skip(1) {
        let Some(row) = row(&line?) else { continue };
        if let Some(rank) = rank(&row)
            && best.is_none_or(|(before, _)| rank < before)
        {
            *best = Some((rank, row.found));
            if rank == EXACT {
                break;
            }
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    found: Found,
}

/// `sl local remote state queues timer retransmits user timeout inode …`.
fn row(line: &str) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace();
    let local = address(fields.nth(1)?)?;
    let remote = address(fields.next()?)?;
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let user = fields.nth(3)?.parse().ok()?;
    let inode: u64 = fields.nth(1)?.parse().ok()?;
    let is_held = inode != 0;
    let found = Found {
        user,
        state,
        is_held,
    };
    Some(Row {
        local,
        remote,
        found,
    })
}

/// `0100007F:1CFD`: the address as words in the host's byte order, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for part in 0..4 {
                octets[part * 4..part * 4 + 4].copy_from_slice(&word(part * 8)?);
            }
            Ipv6Addr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    #[test]
    fn the_listener_that_fits_best_takes_the_connection() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (listeners, address, found) in [
            (vec!["0.0.0.0:1"], "[::1]:1", None),
            (vec!["0.0.0.0:1", "[::]:1"], "[::1]:1", Some("[::]:1")),
            (vec!["[::]:1", "[::1]:1"], "[::1]:1", Some("[::1]:1")),
            (vec!["[::]:1"], "127.0.0.1:1", Some("[::]:1")),
            (
                vec!["[::]:1", "0.0.0.0:1"],
                "127.0.0.1:1",
                Some("0.0.0.0:1"),
            ),
            (
                vec!["0.0.0.0:1", "127.0.0.1:1"],
                "127.0.0.1:1",
                Some("127.0.0.1:1"),
            ),
            (vec!["127.0.0.2:1", "127.0.0.1:2"], "127.0.0.1:1", None),
        ] {
            let fits = listeners.iter().copied().map(at);
            let ranked = fits.filter_map(|local| Some((rank(local, at(address))?, local)));
            let best = ranked.min_by_key(|(rank, _)| *rank).map(|(_, local)| local);
            assert_eq!(best, found.map(at), "{listeners:?} {address}");
        }
    }

    #[test]
    fn rows_are_read() {
        let line = "   5: 0100007F:1CFD 0100007F:C350 01 00000000:00000000 00:00000000 00000000  \
                    1001        0 6700338 1 0000000000000000 20 0 0 10 -1";
        let row = row(line).unwrap();
        assert_eq!(row.local, "127.0.0.1:7421".parse().unwrap());
        assert_eq!(row.remote, "127.0.0.1:50000".parse().unwrap());
        let found = Found {
            user: 1001,
            state: 1,
            is_held: true,
        };
        assert_eq!(row.found, found);
        for (text, shown) in [
            ("00000000000000000000000001000000:0050", "[::1]:80"),
            ("0000000000000000FFFF00000100007F:0050", "127.0.0.1:80"),
            ("00000000000000000000000000000000:0050", "[::]:80"),
        ] {
            assert_eq!(address(text), Some(shown.parse().unwrap()), "{text}");
        }
        for broken in [
            "",
            "sl local_address rem_address",
            "0: 1:2 3:4 5",
            "0: é00000",
        ] {
            assert_eq!(super::row(broken), None, "{broken}");
        }
        assert_eq!(address("é23456:0050"), None);
    }
}
