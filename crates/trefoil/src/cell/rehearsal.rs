//! Before a backend is to serve other hosts: whether it could.
//!
//! Its port is taken, and whoever connects there is answered by a handshake and a byte. So
//! hosts that begin a cell find out whether they reach each other, by the names and with the
//! certificates that they will use, before there is a cell; and a host that was given a
//! certificate for another name learns it at once.

use crate::cell::spread::Spread;
use crate::failure::Failure;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use trefoil_backend::take_port;
use trefoil_cell::RpcAddress;
use trefoil_tls::{HandshakeError, Tls};

/// How long a connection, and a handshake, may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// After the system refused to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Ports that answer, until dropped.
pub(super) struct Rehearsal {
    runtime: Runtime,
    tls: Option<Tls>,
}

/// Why another host's backend could not be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreached {
    /// No connection.
    #[error("{0}")]
    Connection(String),
    /// A certificate is not what it has to be: waiting does not help.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

impl Rehearsal {
    /// Takes the ports of all backends here, and tries them from this host.
    pub(super) fn begin(spread: &Spread) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("trefoil-rehearsal")
            .enable_all()
            .build()
            .map_err(|e| Failure::doing("cannot start the runtime", e))?;
        let rehearsal = Rehearsal {
            runtime,
            tls: spread.tls.clone(),
        };
        for site in spread.sites.values() {
            let taken = take_port(site.listen).map_err(|error| error.with_option("listen"));
            let (listener, address) = taken.map_err(Failure::of)?;
            let _entered = rehearsal.runtime.enter();
            let listener = TcpListener::from_std(listener).map_err(Failure::of)?;
            rehearsal
                .runtime
                .spawn(answer(listener, rehearsal.tls.clone()));
            rehearsal.check_own(address, &site.advertised)?;
        }
        Ok(rehearsal)
    }

    /// Whether this host's own certificate is for the name by which others know it.
    fn check_own(&self, address: SocketAddr, advertised: &RpcAddress) -> Result<(), Failure> {
        let (Some(tls), RpcAddress::Tcp { host, .. }) = (&self.tls, advertised) else {
            return Ok(());
        };
        let ip = match address.ip() {
            ip if ip.is_unspecified() && ip.is_ipv4() => std::net::Ipv4Addr::LOCALHOST.into(),
            ip if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let at = SocketAddr::new(ip, address.port());
        let tried = self.runtime.block_on(async {
            let stream = connected(TcpStream::connect(at)).await?;
            shake_hands(tls, host, stream).await
        });
        tried.map_err(|error| Failure::Failed(format!("this host's own certificate: {error}")))
    }

    /// Tries to reach another host's backend.
    pub(super) fn reach(&self, address: &RpcAddress) -> Result<(), Unreached> {
        let RpcAddress::Tcp { host, port } = address else {
            return Err(Unreached::Connection(format!(
                "{address} is of its host alone"
            )));
        };
        self.runtime.block_on(async {
            let stream = connected(TcpStream::connect((host.as_str(), *port))).await?;
            match &self.tls {
                None => Ok(()),
                Some(tls) => shake_hands(tls, host, stream).await,
            }
        })
    }
}

async fn connected(
    connecting: impl Future<Output = std::io::Result<TcpStream>>,
) -> Result<TcpStream, Unreached> {
    let none = || Unreached::Connection(format!("no answer within {} s", PATIENCE.as_secs()));
    let connected = timeout(PATIENCE, connecting).await.map_err(|_| none())?;
    connected.map_err(|error| Unreached::Connection(error.to_string()))
}

async fn shake_hands(tls: &Tls, host: &str, stream: TcpStream) -> Result<(), Unreached> {
    let none = || Unreached::Connection("no TLS handshake came to its end".to_owned());
    let shaken = timeout(PATIENCE, trefoil_tls::connect(tls, host, stream)).await;
    match shaken.map_err(|_| none())? {
        Ok(_) => Ok(()),
        // It may have ended meanwhile.
        Err(error @ HandshakeError::Other { .. }) => Err(Unreached::Connection(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

async fn answer(listener: TcpListener, tls: Option<Tls>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(tls) = tls.clone() else { continue };
        tokio::spawn(timeout(PATIENCE, async move {
            if let Ok(mut accepted) = trefoil_tls::accept(&tls, stream).await {
                let _ = accepted.stream.write_all(&[0]).await;
                let _ = accepted.stream.shutdown().await;
            }
        }));
    }
}
