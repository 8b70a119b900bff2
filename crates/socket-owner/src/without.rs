//! Where the system is none that is asked here.

use crate::Found;
use std::io;
use std::net::SocketAddr;

pub(crate) fn find(_: SocketAddr, _: SocketAddr) -> io::Result<Option<Found>> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn find_listener(_: SocketAddr) -> io::Result<Option<Found>> {
    Err(io::ErrorKind::Unsupported.into())
}
