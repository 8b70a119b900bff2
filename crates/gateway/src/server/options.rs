//! What an operator chooses.

use super::users::Users;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trefoil_gateway_core::world::{Isolation, Release, Settings};

/// What is spoken at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's: text, meta and binary.
    Memcached,
    /// Redis's: RESP2 and RESP3.
    Redis,
}

impl Protocol {
    /// As options name it.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Memcached => "memcached",
            Protocol::Redis => "redis",
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a door is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoorAddress {
    /// TCP; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Text that is no address of a door.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no address: give host:port or unix:PATH")]
pub struct DoorAddressError(String);

impl std::str::FromStr for DoorAddress {
    type Err = DoorAddressError;

    fn from_str(text: &str) -> Result<Self, DoorAddressError> {
        let error = || DoorAddressError(text.to_owned());
        match text.strip_prefix("unix:") {
            Some("") => Err(error()),
            Some(path) => Ok(DoorAddress::Unix(path.into())),
            None => {
                let mut addresses = text.to_socket_addrs().map_err(|_| error())?;
                addresses.next().map(DoorAddress::Tcp).ok_or_else(error)
            }
        }
    }
}

impl std::fmt::Display for DoorAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DoorAddress::Tcp(address) => write!(f, "{address}"),
            DoorAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Files of a TLS door, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, with those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities that a client's certificate must come from; without them
    /// clients need none.
    pub client_authorities: Option<PathBuf>,
}

/// One listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// Spoken here.
    pub protocol: Protocol,
    /// Where it is.
    pub address: DoorAddress,
    /// TLS, and nothing but TLS, if given.
    pub tls: Option<TlsFiles>,
}

/// What clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections_max: usize,
    /// A connection that says nothing for so long is closed.
    pub idle_timeout: Option<Duration>,
    /// Where clients have to authenticate, a connection that has not done so for so
    /// long after it was accepted is closed.
    pub authentication_timeout: Duration,
    /// Bytes of half-received requests, of what their operations need and have come
    /// to, and of unsent answers, for each event loop. Operations whose copies need
    /// more than half of it wait for each other. Beyond it, of the connections that keep
    /// more than their share, the one that has stood still for longest is told that there
    /// is no memory, or is closed.
    pub buffer_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 10_000,
            idle_timeout: Some(IDLE_TIMEOUT_DEFAULT),
            authentication_timeout: Duration::from_secs(5),
            buffer_bytes_max: 256 << 20,
        }
    }
}

/// Longer than the pauses of clients that are still there, which keep pools of
/// connections; short enough for what a client that has vanished leaves behind.
pub const IDLE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);

/// Slower than any network, and fast enough that nobody keeps megabytes for hours with a
/// few bytes.
pub const UPLOAD_RATE_MIN_DEFAULT: u64 = 4 << 10;

/// Called with a reason when an event loop has failed.
pub type OnFailure = Arc<dyn Fn(&str) + Send + Sync>;

/// How a front door is run.
#[derive(Clone)]
pub struct GatewayOptions {
    /// Where it listens.
    pub doors: Vec<Door>,
    /// Protocols that are spoken without TLS also where other machines reach them.
    pub plaintext: Vec<Protocol>,
    /// Event loops.
    pub thread_count: usize,
    /// What clients may take.
    pub limits: Limits,
    /// How long an event loop polls after the last request before it sleeps, if
    /// polling has paid lately.
    pub spin: Duration,
    /// Whether the answers of several clients leave by one system call, where the system
    /// allows io_uring.
    pub io_uring: bool,
    /// Bytes a second at which a long request has to come, seen over ten seconds; a
    /// slower one is refused, or its connection closed: others need the room. 0: any.
    pub upload_rate_min: u64,
    /// Who may come in; everybody if not given.
    pub users: Option<Users>,
    /// Longest value that memcached's clients store, in bytes.
    pub item_len_max: usize,
    /// Whether the protocol's `shutdown` is obeyed.
    pub shutdown_allowed: bool,
    /// Whether administrative commands are obeyed: `Role::Admin`.
    pub admin_commands: bool,
    /// What becomes of transactions that cannot be atomic here.
    pub transactions: Isolation,
    /// The memcached whose answers clients get.
    pub release: Release,
    /// Called when a client has asked for a shutdown that is allowed.
    pub on_shutdown: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Called when an event loop has failed. Unless given, the process ends: its
    /// clients would wait for a door that nobody serves.
    pub on_failure: Option<OnFailure>,
}

impl GatewayOptions {
    /// The defaults, with these doors.
    pub fn new(doors: Vec<Door>) -> Self {
        GatewayOptions {
            doors,
            plaintext: Vec::new(),
            thread_count: thread_count_default(),
            limits: Limits::default(),
            spin: SPIN_DEFAULT,
            io_uring: true,
            upload_rate_min: UPLOAD_RATE_MIN_DEFAULT,
            users: None,
            item_len_max: 1 << 20,
            shutdown_allowed: false,
            admin_commands: true,
            transactions: Isolation::Relaxed,
            release: Release::default(),
            on_shutdown: None,
            on_failure: None,
        }
    }

    /// What sessions are told of this.
    pub fn settings(&self) -> Settings {
        Settings {
            item_len_max: self.item_len_max,
            shutdown_allowed: self.shutdown_allowed,
            authentication: self.users.is_some(),
            admin_commands: self.admin_commands,
            release: self.release,
            connections_max: self.limits.connections_max,
            idle_timeout: self.limits.idle_timeout,
            thread_count: self.thread_count.max(1),
            // A buffer that grows has twice the room.
            answer_len_max: self.limits.buffer_bytes_max / 4,
            transactions: self.transactions,
        }
    }
}

/// Long enough that a client which was woken across cores has come back.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);

/// One on small machines, else half the cores, up to four.
pub fn thread_count_default() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, 4)
}

impl std::fmt::Debug for GatewayOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayOptions")
            .field("doors", &self.doors)
            .field("thread_count", &self.thread_count)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back() {
        for text in ["127.0.0.1:11211", "[::1]:0", "unix:/run/cache"] {
            let address: DoorAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert!(matches!(
            "localhost:80".parse(),
            Ok(DoorAddress::Tcp(address)) if address.ip().is_loopback()
        ));
        for text in ["", "unix:", "11211", "127.0.0.1", "127.0.0.1:x"] {
            let error = text.parse::<DoorAddress>().unwrap_err().to_string();
            assert!(error.contains("host:port"), "{error}");
        }
    }
}
