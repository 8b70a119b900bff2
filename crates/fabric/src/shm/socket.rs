//! Bytes, descriptors and doorbells over a connected Unix socket.

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use trefoil_layout::hello::DESCRIPTOR_COUNT_MAX;

/// Sends `bytes` with `descriptors` in one message, without waiting. The
/// caller's messages are far below any socket buffer, so a partial send counts
/// as an error.
pub fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTOR_COUNT_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags)
    })?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(Errno::MSGSIZE)
    }
}

/// Receives exactly `bytes.len()` bytes and the descriptors that come with
/// them. `Ok(false)` if the other side closed before that.
pub fn receive_with(
    socket: impl AsFd,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<bool, Errno> {
    let mut received = 0;
    while received < bytes.len() {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTOR_COUNT_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &socket,
                &mut [IoSliceMut::new(&mut bytes[received..])],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if message.bytes == 0 {
            return Ok(false);
        }
        received += message.bytes;
    }
    Ok(true)
}

/// Rings the other side's bell. A full socket means that it rings already; a
/// dead one is noticed by who waits for it.
pub(super) fn ring(socket: impl AsFd) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::io::retry_on_intr(|| rustix::net::send(&socket, &[1], flags));
}

/// Whether the other side is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Alive,
    Gone,
}

/// Reads of one silencing. A peer that writes faster is still heard next time.
const SILENCE_COUNT_MAX: usize = 8;

/// Silences the bell.
pub(super) fn silence(socket: impl AsFd) -> Peer {
    let mut bytes = [0u8; 64];
    for _ in 0..SILENCE_COUNT_MAX {
        match rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Peer::Gone,
            Ok((_, count)) if count < bytes.len() => return Peer::Alive,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Peer::Alive,
            Err(_) => return Peer::Gone,
        }
    }
    Peer::Alive
}
