//! The set-up of a session with an engine: connection, TLS, greeting. It waits; what
//! comes after does not.

use crate::channel::{Broken, Channel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_fabric::clock::monotonic_ns;
use trefoil_softnic_core::wire::{ClaimStatus, OpenStatus, named_counters};
use trefoil_softnic_core::{Event, Initiator, InitiatorOptions, SessionError};
use trefoil_tls::{HandshakeError, Tls};

/// Bytes received at a time.
pub(crate) const RECEIVE_LEN: usize = 64 << 10;

/// Whether requests and answers go over UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatagramUse {
    /// By the stream.
    #[default]
    No,
    /// Over UDP; what is under way follows how long answers take.
    Yes,
    /// Over UDP with a window of fixed size, to measure what that costs: many answers at
    /// once overflow the queues on their way.
    Unpaced,
}

/// How an engine is reached.
#[derive(Clone)]
pub struct EngineAddress {
    /// Where it listens.
    pub address: SocketAddr,
    /// What its certificate has to name: a host's name or an address.
    pub host: String,
    /// With it TLS is spoken, and our certificate shows who we are.
    pub tls: Option<Tls>,
    /// Where TLS is spoken: whether requests and answers go over UDP, sealed with keys of
    /// that TLS, if they get through.
    pub datagrams: DatagramUse,
    /// What is shown to it where no TLS is spoken; empty if there is none.
    pub token: Arc<[u8]>,
}

impl std::fmt::Debug for EngineAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EngineAddress({})", self.address)
    }
}

/// Why a backend cannot be read by way of an engine.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody is there, or too slow.
    #[error("cannot reach the engine at {address}: {source}")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// It closed the connection.
    #[error("the engine at {address} closed the connection during the greeting")]
    HungUp {
        /// Where.
        address: SocketAddr,
    },
    /// No TLS with it.
    #[error("the engine at {address}: {source}")]
    Handshake {
        /// Where.
        address: SocketAddr,
        /// What is wrong.
        source: HandshakeError,
    },
    /// It refuses this client, or is something else.
    #[error("{address}: {source}")]
    Session {
        /// Where.
        address: SocketAddr,
        /// What was wrong.
        source: SessionError,
    },
    /// It has no such backend now.
    #[error("the engine at {address} does not read backend {backend}: {status}")]
    NotOpened {
        /// Where.
        address: SocketAddr,
        /// Which was asked for.
        backend: u32,
        /// Why.
        status: OpenStatus,
    },
    /// It gives no lane of that queue.
    #[error("the engine at {address} gives no place in queue {queue}: {status}")]
    NotClaimed {
        /// Where.
        address: SocketAddr,
        /// Which was asked for.
        queue: u32,
        /// Why.
        status: ClaimStatus,
    },
    /// Its backend's memory is not understood here, or is another's.
    #[error("the engine at {address} has opened something else than backend {backend}")]
    Inconsistent {
        /// Where.
        address: SocketAddr,
        /// Which was asked for.
        backend: u32,
    },
}

/// A session that stands.
pub(crate) struct Dialled {
    pub(crate) socket: TcpStream,
    pub(crate) channel: Channel,
    pub(crate) initiator: Initiator,
    /// What has come and was not taken in.
    pub(crate) input: Vec<u8>,
}

/// Begins a session, asks what `begin` asks, and waits for answers, for at most
/// `timeout`, until `is_done` says that they are all.
pub(crate) fn dial(
    engine: &EngineAddress,
    timeout: Duration,
    begin: impl FnOnce(&mut Initiator),
    mut is_done: impl FnMut(Event<'_>) -> bool,
) -> Result<Dialled, ConnectError> {
    let address = engine.address;
    let unreachable = |source| ConnectError::Unreachable { address, source };
    let deadline = Instant::now() + timeout;
    let mut channel = match &engine.tls {
        None => Channel::default(),
        Some(tls) => tls
            .session_with_engine(&engine.host)
            .map_err(|source| ConnectError::Handshake { address, source })?
            .into(),
    };
    let broken = |broken| match (broken, &engine.tls) {
        (Broken::Tls(error), Some(tls)) => ConnectError::Handshake {
            address,
            source: tls.explain(&engine.host, error),
        },
        (Broken::Closed | Broken::Tls(_), _) => ConnectError::HungUp { address },
    };
    let socket = TcpStream::connect_timeout(&address, timeout).map_err(unreachable)?;
    socket.set_nodelay(true).map_err(unreachable)?;
    socket.set_nonblocking(true).map_err(unreachable)?;
    // A certificate says it all.
    let token: &[u8] = match engine.tls {
        Some(_) => &[],
        None => &engine.token,
    };
    let mut initiator = Initiator::new(InitiatorOptions {
        token,
        ..InitiatorOptions::default()
    });
    begin(&mut initiator);
    let mut input = Vec::new();
    let mut received = vec![0; RECEIVE_LEN].into_boxed_slice();
    loop {
        let sent = channel.send(&socket, initiator.output()).map_err(broken)?;
        initiator.sent(sent);
        let Some(count) = channel.receive(&socket, &mut received).map_err(broken)? else {
            let wants_room = channel.waits() || !initiator.output().is_empty();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(unreachable(io::ErrorKind::TimedOut.into()));
            }
            await_socket(&socket, wants_room, left).map_err(unreachable)?;
            continue;
        };
        input.extend_from_slice(&received[..count]);
        let mut is_over = false;
        let done = initiator
            .handle(&input, monotonic_ns(), |event| is_over |= is_done(event))
            .map_err(|source| ConnectError::Session { address, source })?;
        input.drain(..done);
        if is_over {
            return Ok(Dialled {
                socket,
                channel,
                initiator,
                input,
            });
        }
    }
}

/// Waits for something to come, or for room, if that is wanted.
fn await_socket(socket: &TcpStream, wants_room: bool, left: Duration) -> io::Result<()> {
    let mut flags = PollFlags::IN;
    flags.set(PollFlags::OUT, wants_room);
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()) as _,
    };
    match poll(&mut [PollFd::new(socket, flags)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What an engine has counted, each with its name: of an earlier release there is less.
pub fn ask_counters(
    engine: &EngineAddress,
    timeout: Duration,
) -> Result<Vec<(&'static str, u64)>, ConnectError> {
    let mut counted = None;
    let begin = |initiator: &mut Initiator| initiator.ask_counters(monotonic_ns());
    dial(engine, timeout, begin, |event| {
        if let Event::Counters(values) = event {
            counted = Some(*values);
        }
        counted.is_some()
    })?;
    Ok(counted.iter().flat_map(named_counters).collect())
}
