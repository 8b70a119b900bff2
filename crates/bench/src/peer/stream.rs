//! A connection to a peer: one request out, one answer in, waited for by
//! spinning or by sleeping.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_congestion};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::inbox::Inbox;
use super::{CONGESTION, Endpoint};
use crate::target::TargetError;

/// How a client waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Polls the socket: the fastest a client can be, at the price of its core.
    Spinning,
    /// Sleeps in the kernel, as clients ordinarily do.
    Blocking,
}

const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Empty polls between two looks at the clock.
const POLLS_PER_CLOCK: u32 = 1 << 12;

/// A connection that is made anew after anything went wrong with it.
#[derive(Debug)]
pub(super) struct PeerStream {
    system: &'static str,
    endpoint: Endpoint,
    waiting: Waiting,
    socket: Option<OwnedFd>,
    pub(super) inbox: Inbox,
}

impl PeerStream {
    pub(super) fn connect(
        system: &'static str,
        endpoint: &Endpoint,
        waiting: Waiting,
    ) -> Result<Self, TargetError> {
        let mut stream = Self {
            system,
            endpoint: endpoint.clone(),
            waiting,
            socket: None,
            inbox: Inbox::default(),
        };
        stream.socket = Some(stream.open()?);
        Ok(stream)
    }

    fn open(&self) -> Result<OwnedFd, TargetError> {
        let fail = |source| TargetError::Io {
            what: "connecting",
            source,
        };
        let socket: OwnedFd = match &self.endpoint {
            Endpoint::Tcp(address) => {
                let socket = TcpStream::connect(address).map_err(fail)?;
                socket.set_nodelay(true).map_err(fail)?;
                // Where the kernel has no such algorithm its default stays; the
                // comparison is then slower for the peer, not impossible.
                let _ = set_tcp_congestion(&socket, CONGESTION);
                socket.into()
            }
            Endpoint::Unix(path) => UnixStream::connect(path).map_err(fail)?.into(),
        };
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WITHIN))
            .map_err(|errno| fail(errno.into()))?;
        Ok(socket)
    }

    /// Sends a request, on a fresh connection if the last one is no good.
    pub(super) fn request(&mut self, bytes: &[u8]) -> Result<(), TargetError> {
        if !self.inbox.begin() {
            self.socket = None;
        }
        if self.socket.is_none() {
            self.socket = Some(self.open()?);
        }
        let Some(socket) = &self.socket else {
            return Err(self.closed());
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            match send(socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.socket = None;
                    return Err(TargetError::Io {
                        what: "sending",
                        source: errno.into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Waits for more of the answer.
    fn receive(&mut self) -> Result<(), TargetError> {
        match self.receive_some() {
            Ok(()) => Ok(()),
            Err(error) => {
                self.socket = None;
                Err(error)
            }
        }
    }

    fn receive_some(&mut self) -> Result<(), TargetError> {
        let Some(socket) = &self.socket else {
            return Err(self.closed());
        };
        let flags = match self.waiting {
            Waiting::Spinning => RecvFlags::DONTWAIT,
            Waiting::Blocking => RecvFlags::empty(),
        };
        let mut polls = 0u32;
        let mut begun = None;
        loop {
            match recv(socket, self.inbox.room(), flags) {
                Ok((_, 0)) => return Err(self.closed()),
                Ok((_, len)) => {
                    self.inbox.received(len);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.waiting == Waiting::Spinning => {
                    polls += 1;
                    if polls.is_multiple_of(POLLS_PER_CLOCK) {
                        let begun = *begun.get_or_insert_with(Instant::now);
                        if begun.elapsed() > ANSWER_WITHIN {
                            return Err(self.timeout());
                        }
                    }
                    std::hint::spin_loop();
                }
                Err(Errno::AGAIN) => return Err(self.timeout()),
                Err(errno) => {
                    return Err(TargetError::Io {
                        what: "receiving",
                        source: errno.into(),
                    });
                }
            }
        }
    }

    /// The next line of the answer.
    pub(super) fn line(&mut self) -> Result<std::ops::Range<usize>, TargetError> {
        loop {
            if let Some(line) = self.inbox.take_line() {
                return Ok(line);
            }
            self.receive()?;
        }
    }

    /// The next `len` bytes of the answer, which a line end follows.
    pub(super) fn block(&mut self, len: usize) -> Result<std::ops::Range<usize>, TargetError> {
        loop {
            if let Some(block) = self.inbox.take_block(len) {
                return Ok(block);
            }
            self.receive()?;
        }
    }

    /// The answer makes no sense: gives the connection up.
    pub(super) fn protocol_error(&mut self, line: std::ops::Range<usize>) -> TargetError {
        let seen = self.inbox.get(line);
        let answer = String::from_utf8_lossy(&seen[..seen.len().min(80)]).into_owned();
        self.socket = None;
        self.inbox.begin();
        TargetError::Protocol {
            system: self.system,
            answer,
        }
    }

    /// The answer is an error in words.
    pub(super) fn refused(&self, line: std::ops::Range<usize>) -> TargetError {
        TargetError::Refused {
            system: self.system,
            message: String::from_utf8_lossy(self.inbox.get(line)).into_owned(),
        }
    }

    /// Gives the connection up: what is still to come belongs to nobody.
    pub(super) fn abandon(&mut self) {
        self.socket = None;
        self.inbox.begin();
    }

    fn closed(&self) -> TargetError {
        TargetError::Io {
            what: "waiting for an answer",
            source: io::ErrorKind::UnexpectedEof.into(),
        }
    }

    fn timeout(&self) -> TargetError {
        TargetError::Timeout {
            system: self.system,
            after: ANSWER_WITHIN,
        }
    }
}
