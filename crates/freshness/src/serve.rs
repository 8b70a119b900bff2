//! A relay as a server of its own: follows a database, serves subscribers.

use crate::database::DatabaseError;
use crate::hub::{Hub, HubOptions};
use crate::metrics::{Followed, RelayProcess};
use crate::notify::{NotifyError, NotifyOptions, NotifyRelay};
use crate::relay::{Relay, RelayOptions};
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
    /// Likewise, where it notifies.
    #[error(transparent)]
    Notify(#[from] NotifyError),
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

/// By what a relay hears of a database's changes.
#[derive(Clone, Debug)]
pub enum RelaySource {
    /// The database's log, by logical replication.
    Log(RelayOptions),
    /// Notifications that triggers send, where that is not to be had.
    Notify(NotifyOptions),
}

impl From<RelayOptions> for RelaySource {
    fn from(options: RelayOptions) -> Self {
        RelaySource::Log(options)
    }
}

impl From<NotifyOptions> for RelaySource {
    fn from(options: NotifyOptions) -> Self {
        RelaySource::Notify(options)
    }
}

/// What follows the database.
#[derive(Debug)]
enum Following {
    Log(Relay),
    Notify(NotifyRelay),
}

/// A relay that serves subscribers.
#[derive(Debug)]
pub struct RelayServer {
    following: Following,
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
        source: impl Into<RelaySource>,
        hub: HubOptions,
        listener: TcpListener,
    ) -> Result<Self, ServeError> {
        RelayServer::start_with(source, hub, listener, RelayAccess::default()).await
    }

    /// Likewise, with what protects it.
    ///
    /// # Errors
    /// The same, and an address off the host that nothing protects.
    pub async fn start_with(
        source: impl Into<RelaySource>,
        hub: HubOptions,
        listener: TcpListener,
        access: RelayAccess,
    ) -> Result<Self, ServeError> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        access.security.check_listen(address)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let hub = Hub::new(hub);
        let following = match source.into() {
            RelaySource::Log(options) => Following::Log(Relay::start(options, hub.sink()).await?),
            RelaySource::Notify(options) => {
                Following::Notify(NotifyRelay::start(options, hub.sink()).await?)
            }
        };
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
            following,
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

    /// What it tells at a port for metrics.
    pub fn process(&self) -> Arc<dyn Process> {
        let followed = match &self.following {
            Following::Log(relay) => Followed::Log(relay.look()),
            Following::Notify(relay) => Followed::Notify(relay.look()),
        };
        RelayProcess::shared(followed, self.hub.clone())
    }

    /// Returns when it cannot go on.
    ///
    /// # Errors
    /// Why.
    pub async fn ended(&mut self) -> Result<(), ServeError> {
        let following = async {
            match &mut self.following {
                Following::Log(relay) => relay.ended().await.map_err(ServeError::from),
                Following::Notify(relay) => relay.ended().await.map_err(ServeError::from),
            }
        };
        tokio::select! {
            ended = following => ended,
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
        let stopped = match self.following {
            Following::Log(relay) => relay.stop().await,
            // The database keeps nothing for it.
            Following::Notify(relay) => {
                drop(relay);
                Ok(())
            }
        };
        self.stop.send_replace(true);
        // Streams of subscribers have no end of their own.
        self.server.abort();
        Ok(stopped?)
    }
}
