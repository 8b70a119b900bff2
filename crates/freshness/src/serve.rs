//! A relay as a server of its own: follows a database, serves subscribers.

use crate::database::DatabaseError;
use crate::hub::{Hub, HubOptions, HubStatus};
use crate::metrics::RelayProcess;
use crate::relay::{Relay, RelayOptions, RelayStatus};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use trefoil_channel::{ExposedError, Right, Security, permit};
use trefoil_endpoint::Process;

/// Why a relay's server does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The database is not there, or not as it has to be.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The listening socket does not work.
    #[error("the relay's address: {0}")]
    Listen(#[from] io::Error),
    /// Changes would be told in the clear.
    #[error(transparent)]
    Exposed(#[from] ExposedError),
    /// The server ended.
    #[error("the relay's server ended: {0}")]
    Server(String),
}

/// How often a subscriber's connection is asked whether it still gets through.
const PING_EVERY: Duration = Duration::from_secs(10);

/// One that does not answer for so long is closed.
const PING_PATIENCE: Duration = Duration::from_secs(20);

/// Who may subscribe.
#[derive(Clone, Debug, Default)]
pub struct RelayAccess {
    /// What protects the connections.
    pub security: Security,
    /// With certificates: the corpus for which those of subscribers have to be.
    /// Without a name only those that are for all corpora are taken.
    pub corpus: String,
}

/// A relay that serves subscribers.
#[derive(Debug)]
pub struct RelayServer {
    relay: Relay,
    hub: Hub,
    address: SocketAddr,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    stop: watch::Sender<bool>,
}

impl RelayServer {
    /// Follows a database and serves whoever subscribes at this socket.
    ///
    /// # Errors
    /// The database is not there or not set up, or the socket does not work.
    pub async fn start(
        options: RelayOptions,
        hub: HubOptions,
        listener: TcpListener,
    ) -> Result<Self, ServeError> {
        RelayServer::start_with(options, hub, listener, RelayAccess::default()).await
    }

    /// Likewise, with what protects it.
    ///
    /// # Errors
    /// The same, and an address off the host that nothing protects.
    pub async fn start_with(
        options: RelayOptions,
        hub: HubOptions,
        listener: TcpListener,
        access: RelayAccess,
    ) -> Result<Self, ServeError> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        access.security.check_listen(address)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let hub = Hub::new(hub);
        let relay = Relay::start(options, hub.sink()).await?;
        let (stop, mut stopped) = watch::channel(false);
        let incoming = access.security.incoming(listener);
        let judge = move |request: tonic::Request<()>| {
            let right = Right::Follow(&access.corpus);
            permit(&access.security, request.extensions(), right)?;
            Ok(request)
        };
        let service = InterceptedService::new(hub.service(), judge);
        let server = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            // One whose host has gone, or whose process stands still, leaves.
            let server = Server::builder()
                .http2_keepalive_interval(Some(PING_EVERY))
                .http2_keepalive_timeout(Some(PING_PATIENCE))
                .add_service(service);
            server.serve_with_incoming_shutdown(incoming, stopped).await
        });
        Ok(RelayServer {
            relay,
            hub,
            address,
            server,
            stop,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How it and its subscribers are.
    pub fn status(&self) -> (RelayStatus, HubStatus) {
        (self.relay.status(), self.hub.status())
    }

    /// What it tells at a port for metrics.
    pub fn process(&self) -> Arc<dyn Process> {
        RelayProcess::shared(self.relay.look(), self.hub.clone())
    }

    /// Returns when it cannot go on.
    ///
    /// # Errors
    /// Why.
    pub async fn ended(&mut self) -> Result<(), ServeError> {
        tokio::select! {
            ended = self.relay.ended() => Ok(ended?),
            ended = &mut self.server => match ended {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(ServeError::Server(error.to_string())),
                Err(error) => Err(ServeError::Server(error.to_string())),
            },
        }
    }

    /// Stops following; subscribers see the connection end, and go on where
    /// they are when there is a relay again.
    ///
    /// # Errors
    /// It had ended before.
    pub async fn stop(self) -> Result<(), ServeError> {
        let stopped = self.relay.stop().await;
        self.stop.send_replace(true);
        // Streams of subscribers have no end of their own.
        self.server.abort();
        Ok(stopped?)
    }
}
