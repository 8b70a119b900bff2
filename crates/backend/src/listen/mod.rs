//! The sockets of a server, taken before anything is served, so that mistakes
//! show at once and a second server cannot start beside this one.

mod ending;
mod holder;
mod unix;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use trefoil_cell::{
    AddressError, OwnerError, RpcAddress, Token, TokenError, TokenFile, read_token,
};
use trefoil_fabric::shm::UserPolicy;
use trefoil_tls::{Tls, TokenRights};

pub use unix::UnixSocket;

/// Where a server listens.
#[derive(Clone, Debug, Default)]
pub struct ListenOptions {
    /// RPC service over TCP; port 0 takes a free one.
    pub tcp: Option<SocketAddr>,
    /// RPC service over a Unix socket.
    pub unix: Option<PathBuf>,
    /// Where shared memory is handed over.
    pub fabric: Option<PathBuf>,
    /// Prometheus metrics over HTTP; port 0 takes a free one.
    pub metrics: Option<SocketAddr>,
    /// What the RPC service speaks over TCP, if it is TLS: then it may listen anywhere,
    /// and knows its clients by their certificates.
    pub tls: Option<Tls>,
    /// Whether the RPC service may listen beyond loopback, without TLS.
    pub plaintext_rpc: bool,
    /// Whether metrics may be served beyond loopback, without TLS.
    pub plaintext_metrics: bool,
    /// Who may come in through the Unix sockets.
    pub users: UserPolicy,
    /// Holds the token that clients over TCP have to show; without it, one is
    /// drawn and left where this user's clients look for it.
    pub token_file: Option<PathBuf>,
}

impl ListenOptions {
    /// What can be known to be wrong before the sockets are free: of a process that is to take
    /// them over from another one.
    pub(crate) fn check(&self) -> Result<(), ListenError> {
        if self.tcp.is_none() && self.unix.is_none() {
            return Err(ListenError::Nowhere);
        }
        check_reach(self.tcp, "rpc", self.plaintext_rpc || self.tls.is_some())?;
        check_reach(self.metrics, "metrics", self.plaintext_metrics)?;
        for path in [&self.fabric, &self.unix].into_iter().flatten() {
            unix::check_path(path)?;
        }
        if let Some(path) = &self.token_file {
            read_token(path)?;
            TokenRights::beside(path)?;
        }
        Ok(())
    }
}

/// Why a socket could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// More than one of the sockets cannot be taken.
    #[error("{}", lines(.0))]
    Several(Vec<ListenError>),
    /// Nothing to listen on.
    #[error("the server would listen nowhere: give a TCP address or a socket path")]
    Nowhere,
    /// Other machines could reach it.
    #[error("{address} is reachable from other machines: {}listen on 127.0.0.1, or pass --plaintext {what} if the network is trusted",
        if *what == "rpc" { "give certificates by --certs DIR (trefoil cell certs makes them), " } else { "this release has no TLS for it: " }
    )]
    OffLoopback {
        /// Wanted.
        address: SocketAddr,
        /// What would be served there, as the option names it.
        what: &'static str,
    },
    /// The port is taken.
    #[error("port {} is in use{} (wanted: {address})", address.port(), holder_text(holder.as_deref()))]
    PortInUse {
        /// Wanted.
        address: SocketAddr,
        /// Who has it, as far as this user may know.
        holder: Option<String>,
    },
    /// The same, and what changes it.
    #[error("{error}: stop it, or choose another address with --{option}")]
    Choose {
        /// What is wrong.
        error: Box<ListenError>,
        /// The option that names the address.
        option: &'static str,
    },
    /// A live server's socket.
    #[error("{0} is in use: another server listens there")]
    SocketInUse(PathBuf),
    /// Some file that is not a socket.
    #[error("{0} exists and is not a socket: choose another path")]
    NotASocket(PathBuf),
    /// Too long a path.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Somebody else's socket or directory.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A Unix socket, for another reason.
    #[error(transparent)]
    Socket(trefoil_fabric::shm::ListenError),
    /// The token for clients over TCP.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The list of others' tokens.
    #[error(transparent)]
    TokenRights(#[from] trefoil_tls::FileError),
    /// Anything else that the system reports.
    #[error("cannot listen on {address}: {source}")]
    System {
        /// Wanted.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl ListenError {
    /// Whether another process has the port.
    pub fn is_port_in_use(&self) -> bool {
        match self {
            ListenError::PortInUse { .. } => true,
            ListenError::Choose { error, .. } => error.is_port_in_use(),
            ListenError::Several(all) => all.iter().all(ListenError::is_port_in_use),
            _ => false,
        }
    }

    fn of(mut all: Vec<ListenError>) -> Self {
        match all.len() {
            1 => all.swap_remove(0),
            _ => ListenError::Several(all),
        }
    }
}

fn lines(all: &[ListenError]) -> String {
    let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
    lines.join("\n  ")
}

fn holder_text(holder: Option<&str>) -> String {
    holder.map_or_else(String::new, |holder| format!(" by {holder}"))
}

/// Sockets that are bound and listen; connections wait until a server accepts
/// them.
#[derive(Debug)]
pub struct Listeners {
    pub(crate) tcp: Option<TcpListener>,
    pub(crate) unix: Option<UnixSocket>,
    pub(crate) metrics: Option<TcpListener>,
    pub(crate) users: UserPolicy,
    /// What is spoken over TCP, if it is TLS.
    pub(crate) tls: Option<Tls>,
    /// What clients over TCP have to show.
    pub(crate) token: Token,
    /// Who comes in by another token, if the operator has chosen the server's.
    pub(crate) token_rights: Option<TokenRights>,
    /// Where they find it, unless the operator has chosen it.
    pub(crate) token_file: Option<TokenFile>,
    fabric: Option<PathBuf>,
    tcp_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
}

impl Listeners {
    /// Takes the sockets. The fabric's is taken when the server serves.
    pub fn bind(options: &ListenOptions) -> Result<Self, ListenError> {
        if options.tcp.is_none() && options.unix.is_none() {
            return Err(ListenError::Nowhere);
        }
        let tcp = bind_tcp(
            options.tcp,
            "rpc",
            options.plaintext_rpc || options.tls.is_some(),
        );
        let metrics = bind_tcp(options.metrics, "metrics", options.plaintext_metrics);
        let fabric = options.fabric.as_deref().map(unix::check_path).transpose();
        let mode = options.users.socket_mode();
        let bind = |path: &Path| UnixSocket::bind_with_mode(path, mode);
        let unix = options.unix.as_deref().map(bind).transpose();
        let token = match &options.token_file {
            Some(path) => chosen_token(path),
            None => Ok((Token::of_bytes(rand::random()), None)),
        };
        // Whatever is wrong is said at once, not one thing a start.
        let (tcp, metrics, unix, token) = match (tcp, metrics, fabric, unix, token) {
            (Ok(tcp), Ok(metrics), Ok(_), Ok(unix), Ok(token)) => (tcp, metrics, unix, token),
            (tcp, metrics, fabric, unix, token) => {
                let sockets = [tcp.err(), metrics.err(), fabric.err(), unix.err()];
                let all = sockets.into_iter().chain([token.err()]).flatten();
                return Err(ListenError::of(all.collect()));
            }
        };
        let (token, token_rights) = token;
        let token_file = match &tcp {
            Some((_, address)) if options.token_file.is_none() && options.tls.is_none() => {
                Some(TokenFile::leave(*address, &token)?)
            }
            _ => None,
        };
        Ok(Listeners {
            users: options.users.clone(),
            tls: options.tls.clone(),
            token,
            token_rights,
            token_file,
            tcp_address: tcp.as_ref().map(|(_, address)| *address),
            metrics_address: metrics.as_ref().map(|(_, address)| *address),
            tcp: tcp.map(|(listener, _)| listener),
            unix,
            metrics: metrics.map(|(listener, _)| listener),
            fabric: options.fabric.clone(),
        })
    }

    /// Where clients reach the RPC service, for the configuration: the Unix
    /// socket first.
    pub fn rpc_addresses(&self) -> Vec<RpcAddress> {
        let unix = self.unix.as_ref().map(|unix| {
            let path = std::path::absolute(unix.path());
            RpcAddress::Unix(path.unwrap_or_else(|_| unix.path().to_owned()))
        });
        let tcp = self.tcp_address.map(|address| RpcAddress::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
        });
        unix.into_iter().chain(tcp).collect()
    }

    /// Where the RPC service listens over TCP, with the real port.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp_address
    }

    /// Where metrics are served, with the real port.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Where shared memory will be handed over.
    pub fn fabric_socket(&self) -> Option<&Path> {
        self.fabric.as_deref()
    }
}

/// The server's own token, and the list beside it.
fn chosen_token(path: &Path) -> Result<(Token, Option<TokenRights>), ListenError> {
    Ok((read_token(path)?, Some(TokenRights::beside(path)?)))
}

fn check_reach(
    address: Option<SocketAddr>,
    what: &'static str,
    plaintext: bool,
) -> Result<(), ListenError> {
    match address {
        Some(address) if !address.ip().is_loopback() && !plaintext => {
            Err(ListenError::OffLoopback { address, what })
        }
        _ => Ok(()),
    }
}

fn bind_tcp(
    address: Option<SocketAddr>,
    what: &'static str,
    plaintext: bool,
) -> Result<Option<(TcpListener, SocketAddr)>, ListenError> {
    check_reach(address, what, plaintext)?;
    let Some(address) = address else {
        return Ok(None);
    };
    let option = if what == "rpc" { "listen" } else { what };
    take_port(address)
        .map(Some)
        .map_err(|error| error.with_option(option))
}

impl ListenError {
    /// The same with the option that names the address, where another address helps.
    pub fn with_option(self, option: &'static str) -> Self {
        match self {
            ListenError::PortInUse { .. } => ListenError::Choose {
                error: Box::new(self),
                option,
            },
            error => error,
        }
    }
}

/// Takes a port, non-blocking, wherever it is reachable from; gives the real
/// port where any would do. Waits for a predecessor that is ending; whoever else
/// has it already is named.
pub fn take_port(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ListenError> {
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::PortInUse {
            address,
            holder: holder::of_port(address.port()),
        },
        _ => ListenError::System {
            address: address.to_string(),
            source,
        },
    };
    let is_in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let listener = ending::outlive(
        || TcpListener::bind(address),
        is_in_use,
        || holder::process(address.port()),
    )
    .map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    Ok((listener, address))
}
