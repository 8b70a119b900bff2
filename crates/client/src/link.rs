//! One backend as one client reaches it.

use crate::options::Carrier;
use crate::time::COARSE_LAG_NS;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use trefoil_client_core::get::Strategy;
use trefoil_client_core::touch::TouchBuffer;
use trefoil_fabric::shm::{Channel, ConnectError, ConnectOptions, Connection, Reader};
use trefoil_region::WordBuffer;

/// First pause before a backend that was found down is tried again; it doubles
/// up to [`RETRY_NS_MAX`].
const RETRY_NS_MIN: u64 = 20_000_000;
const RETRY_NS_MAX: u64 = 1_000_000_000;
/// Patience with a greeting where nothing else can be done meanwhile. A backend
/// that lives answers within a millisecond, on a starved machine within some
/// hundreds.
const GREETING_PATIENCE: Duration = Duration::from_secs(1);

/// How the backend can be reached.
enum State {
    /// Mapped, with rings.
    Shared(Box<Connection>),
    /// Another host, another user, or no fabric: gRPC.
    RpcOnly,
    /// Not reachable; tried again at this time of the monotonic clock.
    Down { retry_at_ns: u64 },
}

/// A mapped backend in the hands of a batch of lookups: what they read, and
/// where their touches go.
pub(crate) struct Mapped<'a> {
    pub(crate) reader: &'a Reader,
    channel: Option<&'a mut Channel>,
    touches: &'a mut [TouchBuffer],
}

impl Mapped<'_> {
    /// Reports that a hit read this slot.
    #[inline(always)]
    pub(crate) fn touch(&mut self, partition: usize, slot: u32) {
        let window_id = self.reader.window_id(partition);
        if let Some(batch) = self.touches[partition].touch(window_id, slot)
            && let Some(channel) = &mut self.channel
        {
            channel.touch(partition, batch.window_id, batch.slots);
        }
    }

    /// Whether what was read before `coarse_now_ns` may be believed.
    #[inline(always)]
    pub(crate) fn lease_alive(&self, coarse_now_ns: u64) -> bool {
        self.reader.lease_alive(coarse_now_ns + COARSE_LAG_NS)
    }
}

/// The link to one backend.
pub(crate) struct Link {
    pub(crate) number: u32,
    socket: Option<PathBuf>,
    has_tcp: bool,
    state: State,
    /// A connection that is being made. A process that hangs lets one knock and
    /// does not answer: that must not hold up an operation that others can serve.
    attempt: Option<Receiver<Result<Connection, ConnectError>>>,
    pause_ns: u64,
    /// The latest data read from this backend; what a hit borrows.
    pub(crate) bytes: WordBuffer,
    touches: Box<[TouchBuffer]>,
    touch_sample: u32,
}

impl Link {
    pub(crate) fn new(
        number: u32,
        socket: Option<PathBuf>,
        has_tcp: bool,
        touch_sample: u32,
        now_ns: u64,
    ) -> Self {
        let mut link = Link {
            number,
            socket,
            has_tcp,
            state: State::Down { retry_at_ns: 0 },
            attempt: None,
            pause_ns: RETRY_NS_MIN,
            bytes: WordBuffer::default(),
            touches: Box::default(),
            touch_sample,
        };
        link.reconnect(now_ns);
        link
    }

    /// The mapped backend, if it is on this host and up.
    #[inline(always)]
    pub(crate) fn shared(&self) -> Option<&Connection> {
        match &self.state {
            State::Shared(connection) => Some(connection),
            _ => None,
        }
    }

    /// The same, for a batch of lookups.
    #[inline]
    pub(crate) fn mapped(&mut self) -> Option<Mapped<'_>> {
        let State::Shared(connection) = &mut self.state else {
            return None;
        };
        let (reader, channel) = connection.split();
        Some(Mapped {
            reader,
            channel,
            touches: &mut self.touches,
        })
    }

    /// Connection and read buffer at once.
    #[inline(always)]
    pub(crate) fn shared_and_bytes(&mut self) -> Option<(&mut Connection, &mut WordBuffer)> {
        match &mut self.state {
            State::Shared(connection) => Some((connection, &mut self.bytes)),
            _ => None,
        }
    }

    pub(crate) fn is_rpc(&self) -> bool {
        matches!(self.state, State::RpcOnly)
    }

    /// Whether what was read before `coarse_now_ns` may be believed.
    #[inline(always)]
    pub(crate) fn lease_alive(connection: &Connection, coarse_now_ns: u64) -> bool {
        connection.lease_alive(coarse_now_ns + COARSE_LAG_NS)
    }

    /// How to look up at this backend now. A backend that was down is tried
    /// again here when its time has come.
    #[inline]
    pub(crate) fn strategy(&mut self, carrier: Carrier, now_ns: u64) -> Strategy {
        if let State::Down { retry_at_ns } = self.state
            && now_ns >= retry_at_ns
        {
            self.knock(now_ns, Duration::ZERO);
        }
        match (&self.state, carrier) {
            (State::Shared(_), Carrier::Auto) => Strategy::TwoReads,
            (State::Shared(connection), Carrier::Message) if connection.channel().is_some() => {
                Strategy::Message
            }
            (State::Down { .. }, _) => Strategy::Down,
            _ => Strategy::Rpc,
        }
    }

    /// Connects anew, and waits for it a while; `false` if the backend cannot be
    /// reached.
    #[cold]
    pub(crate) fn reconnect(&mut self, now_ns: u64) -> bool {
        self.knock(now_ns, GREETING_PATIENCE)
    }

    /// Begins to connect anew, unless that is under way; `true` if within
    /// `patience` it has come to a way to reach the backend.
    #[cold]
    fn knock(&mut self, now_ns: u64, patience: Duration) -> bool {
        let Some(socket) = &self.socket else {
            self.state = State::RpcOnly;
            return true;
        };
        let attempt = self.attempt.get_or_insert_with(|| {
            let (done, attempt) = sync_channel(1);
            let (socket, number) = (socket.clone(), self.number);
            // A thread that cannot be started leaves the channel without a sender.
            let _ = std::thread::Builder::new()
                .name("trefoil-connect".to_owned())
                .spawn(move || {
                    let options = ConnectOptions::default();
                    let _ = done.send(Connection::connect(&socket, number, &options));
                });
            attempt
        });
        let result = match attempt.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => return false,
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Disconnected) => None,
        };
        self.attempt = None;
        match result {
            Some(result) => self.connected(now_ns, result),
            None => self.set_down(now_ns),
        }
    }

    fn connected(&mut self, now_ns: u64, result: Result<Connection, ConnectError>) -> bool {
        match result {
            Ok(connection) => {
                let partition_count = connection.agreement().partition_count;
                self.touches = (0..partition_count)
                    .map(|_| TouchBuffer::new(self.touch_sample))
                    .collect();
                self.state = State::Shared(Box::new(connection));
                self.pause_ns = RETRY_NS_MIN;
                true
            }
            // The backend on this host is gone, or hangs, or is on its way out.
            Err(
                ConnectError::NobodyListens { .. }
                | ConnectError::Timeout { .. }
                | ConnectError::HungUp { .. },
            ) => self.set_down(now_ns),
            Err(ConnectError::NotFound { .. }) if !self.has_tcp => self.set_down(now_ns),
            // Another host's socket, another user's, another release's layout:
            // RPC reaches it, or says why not.
            Err(_) => {
                self.state = State::RpcOnly;
                true
            }
        }
    }

    /// Notes that the backend does not answer; returns `false` for its callers.
    #[cold]
    pub(crate) fn set_down(&mut self, now_ns: u64) -> bool {
        self.state = State::Down {
            retry_at_ns: now_ns + self.pause_ns,
        };
        self.pause_ns = (self.pause_ns * 2).min(RETRY_NS_MAX);
        false
    }

    /// Reports that a hit read this slot.
    #[inline(always)]
    pub(crate) fn touch(&mut self, partition: usize, slot: u32) {
        if let Some(mut mapped) = self.mapped() {
            mapped.touch(partition, slot);
        }
    }

    /// Before a mutation goes to this partition: touches that should not wait
    /// any longer.
    #[inline]
    pub(crate) fn mutated(&mut self, partition: usize) {
        let State::Shared(connection) = &mut self.state else {
            return;
        };
        if let Some(batch) = self.touches[partition].mutated() {
            connection.touch(partition, batch.window_id, batch.slots);
        }
    }

    /// Sends the touches collected so far.
    pub(crate) fn flush_touches(&mut self) {
        let State::Shared(connection) = &mut self.state else {
            return;
        };
        for (partition, touches) in self.touches.iter_mut().enumerate() {
            if let Some(batch) = touches.flush() {
                connection.touch(partition, batch.window_id, batch.slots);
            }
        }
    }
}
