//! A client's socket, plain or under TLS, non-blocking.

use super::tls::TlsStream;
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::io;
use trefoil_sockets::Message;

/// What a look at a socket came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// So many bytes; there may be more unless it is `drained`.
    Bytes { len: usize, drained: bool },
    /// Nothing, for now.
    Blocked,
    /// The client has said all it had to say, or is gone.
    Ended,
}

/// See the module.
pub(super) struct Socket {
    fd: OwnedFd,
    // Most connections have none: boxed, so that they do not pay for it.
    tls: Option<Box<TlsStream>>,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd, tls: Option<Box<TlsStream>>) -> Self {
        Socket { fd, tls }
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// To be sent on together with others; `None` if bytes do not go as they are.
    pub(super) fn message<'a>(&'a self, bytes: &'a [u8]) -> Option<Message<'a>> {
        let socket = self.fd.as_fd();
        self.is_plain().then_some(Message { socket, bytes })
    }

    /// Whether bytes go as they are.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Reads what has come.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> Received {
        if let Some(tls) = &mut self.tls {
            return match tls.receive(&self.fd, into) {
                Ok(0) => Received::Ended,
                Ok(len) => Received::Bytes {
                    len,
                    drained: false,
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Received::Blocked,
                Err(e) => {
                    tracing::debug!(error = %e, "a TLS connection ends");
                    Received::Ended
                }
            };
        }
        loop {
            let room = into.len();
            return match recv(&self.fd, &mut *into, RecvFlags::empty()) {
                Ok((0, _)) => Received::Ended,
                // A stream that gives less than asked for has no more.
                Ok((len, _)) => Received::Bytes {
                    len,
                    drained: len < room,
                },
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Received::Blocked,
                Err(_) => Received::Ended,
            };
        }
    }

    /// Appends what has come to `into`, up to its capacity and to `len_max`.
    pub(super) fn receive_onto(&mut self, into: &mut Vec<u8>, len_max: usize) -> Received {
        let len = into.len();
        let room = (into.capacity() - len).min(len_max);
        into.resize(len + room, 0);
        let received = self.receive(&mut into[len..]);
        let come = match received {
            Received::Bytes { len, .. } => len,
            Received::Blocked | Received::Ended => 0,
        };
        into.truncate(len + come);
        received
    }

    /// Sends what the socket takes; how much that is, 0 if it is full. An error
    /// is the end of the connection.
    pub(super) fn transmit(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = match &mut self.tls {
            Some(tls) => tls.transmit(&self.fd, bytes),
            None => loop {
                match send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                    Err(Errno::INTR) => {}
                    other => break other.map_err(io::Error::from),
                }
            },
        };
        match result {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            other => other,
        }
    }

    /// Sends what encryption holds back; whether nothing is left of it.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            None => Ok(true),
            Some(tls) if !tls.has_unsent() => Ok(true),
            Some(tls) => match tls.flush(&self.fd) {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Err(e) => Err(e),
            },
        }
    }

    /// Bytes that encryption keeps.
    pub(super) fn kept(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.kept())
    }

    /// Whether the client has yet to prove that it speaks TLS.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Ends the connection so that what was sent arrives: a socket closed with
    /// input unread resets the connection, and the answer with it.
    pub(super) fn close(mut self, scratch: &mut [u8]) {
        if let Some(tls) = &mut self.tls {
            tls.close(&self.fd);
        }
        let _ = shutdown(&self.fd, Shutdown::Write);
        for _ in 0..CLOSE_READS_COUNT {
            match recv(&self.fd, &mut *scratch, RecvFlags::empty()) {
                Ok((1.., _)) => {}
                _ => break,
            }
        }
    }
}

/// Reads that a closing connection is worth.
const CLOSE_READS_COUNT: usize = 4;
