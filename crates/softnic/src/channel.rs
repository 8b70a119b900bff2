//! TLS on a socket, or nothing: bytes in and out that never wait.
//!
//! What stands in here is bounded by rustls: one record that is not whole, and 64 KiB of
//! what the socket has not taken.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::{ClientConnection, Connection, ServerConnection};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use trefoil_tls::Caller;

/// Records received in a row before what they hold is looked at.
const RECORDS_MAX: usize = 16;
/// What rustls receives at a time: less is all that there was.
const RECEIVED_LEN: usize = 4096;

/// Why nothing goes over the socket any more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other end has closed it, or it is lost.
    Closed,
    /// What came is no TLS, or the other end's certificate is not believed, or ours.
    Tls(rustls::Error),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Channel(Option<Box<Connection>>);

impl From<ClientConnection> for Channel {
    fn from(session: ClientConnection) -> Self {
        Channel(Some(Box::new(session.into())))
    }
}

impl From<ServerConnection> for Channel {
    fn from(session: ServerConnection) -> Self {
        Channel(Some(Box::new(session.into())))
    }
}

impl Channel {
    /// Who is at the other end, on an engine's side after the handshake.
    pub(crate) fn caller(&self) -> Option<Caller> {
        match self.0.as_deref()? {
            Connection::Server(session) => Caller::of_session(session),
            Connection::Client(_) => None,
        }
    }

    /// Bytes that both ends and nobody else draw from the TLS session; `None` if there is
    /// none that has been agreed on.
    pub(crate) fn export<const LEN: usize>(&self, label: &[u8]) -> Option<[u8; LEN]> {
        let tls = self.0.as_ref()?;
        tls.export_keying_material([0; LEN], label, None).ok()
    }

    /// Whether the socket still has to take something.
    pub(crate) fn waits(&self) -> bool {
        self.0.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Receives what is there; `None` if nothing is.
    pub(crate) fn receive(
        &mut self,
        socket: impl AsFd,
        into: &mut [u8],
    ) -> Result<Option<usize>, Broken> {
        let mut socket = Socket(socket.as_fd());
        let Some(tls) = &mut self.0 else {
            return match socket.read(into) {
                Ok(0) => Err(Broken::Closed),
                Ok(count) => Ok(Some(count)),
                Err(error) => nothing_or_broken(&error),
            };
        };
        for _ in 0..RECORDS_MAX {
            let received = match tls.read_tls(&mut socket) {
                Ok(0) => 0,
                Ok(count) => count,
                Err(error) => match nothing_or_broken(&error) {
                    Ok(_) => break,
                    Err(broken) => return Err(broken),
                },
            };
            let state = tls.process_new_packets();
            // An answer in the handshake, or why there is none.
            let flushed = flush(tls, socket.0);
            let plain_len = state.map_err(Broken::Tls)?.plaintext_bytes_to_read();
            flushed?;
            if received == 0 && plain_len == 0 {
                return Err(Broken::Closed);
            }
            if received < RECEIVED_LEN || plain_len >= into.len() {
                break;
            }
        }
        match tls.reader().read(into) {
            Ok(0) => Err(Broken::Closed),
            Ok(count) => Ok(Some(count)),
            Err(error) => nothing_or_broken(&error),
        }
    }

    /// Takes as many of the bytes as there is room for.
    pub(crate) fn send(&mut self, socket: impl AsFd, bytes: &[u8]) -> Result<usize, Broken> {
        let Some(tls) = &mut self.0 else {
            return match Socket(socket.as_fd()).write(bytes) {
                Ok(count) => Ok(count),
                Err(error) => nothing_or_broken(&error).map(|_| 0),
            };
        };
        let mut count = 0;
        // What was taken before goes first.
        while flush(tls, socket.as_fd())? && count < bytes.len() {
            match tls.writer().write(&bytes[count..]) {
                Ok(0) | Err(_) => break,
                Ok(taken) => count += taken,
            }
        }
        Ok(count)
    }

    /// Sends what was taken; whether that was all of it.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> Result<bool, Broken> {
        match &mut self.0 {
            None => Ok(true),
            Some(tls) => flush(tls, socket.as_fd()),
        }
    }
}

fn flush(tls: &mut Connection, socket: BorrowedFd<'_>) -> Result<bool, Broken> {
    while tls.wants_write() {
        match tls.write_tls(&mut Socket(socket)) {
            Ok(_) => {}
            Err(error) => return nothing_or_broken(&error).map(|_| false),
        }
    }
    Ok(true)
}

fn nothing_or_broken(error: &io::Error) -> Result<Option<usize>, Broken> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(Broken::Closed),
    }
}

/// A socket that is never waited for.
struct Socket<'a>(BorrowedFd<'a>);

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let received = recv(self.0, into, RecvFlags::DONTWAIT);
        received.map(|(count, _)| count).map_err(Errno::into)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(self.0, bytes, flags).map_err(Errno::into)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
