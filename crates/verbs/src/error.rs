//! What can go wrong, in words that say where and what to do.

use crate::library::LibraryError;
use std::io;
use std::net::IpAddr;

/// Why something of an RDMA device could not be had.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// This host has no device.
    #[error(
        "no RDMA device on this host: `rdma link` lists them; Soft-RoCE makes one of a network \
         link (`rdma link add rxe0 type rxe netdev LINK`)"
    )]
    NoDevice,
    /// No device has that address.
    #[error(
        "no RDMA device on this host has the address {address} (RoCE v2), which ones have: \
         {found}; use one of these, or give the link of a device the address"
    )]
    NoAddress {
        /// What was asked for.
        address: IpAddr,
        /// Devices and addresses that are there.
        found: String,
    },
    /// The link of the device is down.
    #[error("the RDMA device {device} is down: `ip link set LINK up`, LINK as `rdma link` says")]
    Down {
        /// Which one.
        device: String,
    },
    /// Packets of the device are too short.
    #[error(
        "packets of the RDMA device {device} hold {mtu} bytes, and {needed} are needed: `ip link \
         set LINK mtu {link}` (or more), LINK as `rdma link` says, on both hosts and between them"
    )]
    ShortPackets {
        /// Which one.
        device: String,
        /// What a packet holds.
        mtu: usize,
        /// What it would have to.
        needed: usize,
        /// The link's MTU for that.
        link: usize,
    },
    /// The device has not so many.
    #[error("the RDMA device {device} has at most {most} {what}, and {wanted} are wanted")]
    TooMany {
        /// Which one.
        device: String,
        /// Of what.
        what: &'static str,
        /// As many as there may be.
        most: u64,
        /// As many as were asked for.
        wanted: u64,
    },
    /// A call failed.
    #[error("the RDMA device {device} cannot {what}: {source}{}", advice(.what, .source))]
    System {
        /// Which one.
        device: String,
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// What helps against the usual reasons.
fn advice(what: &str, source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOMEM) if what.contains("memory") => {
            " (memory for devices is locked: raise the limit, `ulimit -l unlimited` or systemd's \
             LimitMEMLOCK=infinity)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            " (the user needs the right to open /dev/infiniband/uverbs*)"
        }
        _ => "",
    }
}
