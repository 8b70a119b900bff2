//! A server's life: books in one form, a port, a ready line, and an orderly end.

use crate::books::{
    Books, CORPUS, CachedBooks, LinkedBooks, LinkedOptions, LocalBooks, RemoteBooks,
};
use crate::cache::{CacheError, Memcached, Redis};
use crate::database::{Database, DatabaseError};
use crate::service::Service;
use bytesize::ByteSize;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use trefoil_coordination::CoordinationError;
use trefoil_linklet::endpoint::{Endpoint, EndpointError, Reach};
use trefoil_linklet::{Replication, StartError};

/// HTTP/2 flow control: a book of a megabyte does not wait for window updates.
const STREAM_WINDOW_LEN: u32 = 4 << 20;
const CONNECTION_WINDOW_LEN: u32 = 16 << 20;

/// How long a server that is told to stop tries to give its books away.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);

/// Where the books are.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Stateful: objects in this process, in a linked store
    Linked,
    /// Domain-specific store: objects in this process, spread by the callers
    Store,
    /// Stateless, in front of domain-specific stores
    Front,
    /// Stateless, with memcached
    Memcached,
    /// Stateless, with redis
    Redis,
}

/// Copies of a stateful server's books on others.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// None
    None,
    /// Made after a change was acknowledged
    Eventual,
    /// Made before
    Strong,
}

/// Settings of a server.
#[derive(clap::Args, Debug, Clone)]
pub struct ServeArgs {
    /// Where the books are
    #[arg(long)]
    pub mode: Mode,
    /// Address to serve; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    pub listen: SocketAddr,
    /// Address to serve frames at, too: the same messages without HTTP/2
    #[arg(long, value_name = "HOST:PORT")]
    pub frames: Option<SocketAddr>,
    /// Stores or caches behind a stateless server
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT[,…]")]
    pub stores: Vec<String>,
    /// Assigner of the stateful form
    #[arg(long, value_name = "HOST:PORT", required_if_eq("mode", "linked"))]
    pub assigner: Option<String>,
    /// Copies of the stateful form's books; the assigner says how many
    #[arg(long, default_value = "none")]
    pub replication: Copies,
    /// Bound of the stateful form's books in memory
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub memory: ByteSize,
    /// CPU that the stateful form may use, in cores [default: all of them]: the
    /// assigner balances loads relative to it
    #[arg(long, value_name = "CORES")]
    pub cpu: Option<f64>,
    /// Postgres with the books; without it they live in memory only
    #[arg(
        long,
        env = "ADDRESS_BOOK_POSTGRES",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub postgres: Option<String>,
    /// Relay of the database's changes, which the stateful form then follows; it has
    /// to send versions (trefoil relay --map 'books={owner}' --refresh books=version)
    #[arg(long, value_name = "HOST:PORT", requires = "postgres")]
    pub relay: Option<String>,
    /// Where the stateful form serves metrics, readiness and drain
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<SocketAddr>,
    /// With --relay and --metrics: how often a book in memory is compared with the
    /// database
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    pub sample_every: Duration,
    /// Let the stateful form's books, and its metrics, cross a network in the clear
    #[arg(long)]
    pub insecure: bool,
    /// Worker threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

/// Why a server did not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Settings that do not fit together.
    #[error("{0}")]
    Usage(&'static str),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The linked store.
    #[error(transparent)]
    Linked(#[from] StartError),
    /// The assigner.
    #[error(transparent)]
    Assigner(#[from] CoordinationError),
    /// Metrics.
    #[error(transparent)]
    Metrics(#[from] EndpointError),
    /// An address, or the server itself.
    #[error("cannot serve: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// A socket or a signal handler.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// Serves until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads.max(1))
        .enable_all()
        .build()
        .map_err(|source| io_error("start threads", source))?;
    runtime.block_on(serve(args))
}

async fn serve(args: &ServeArgs) -> Result<(), ServeError> {
    let needs_stores = !matches!(args.mode, Mode::Linked | Mode::Store);
    if needs_stores == args.stores.is_empty() {
        return Err(ServeError::Usage(
            "--stores is for --mode front, memcached or redis, and needed there",
        ));
    }
    if args
        .cpu
        .is_some_and(|cores| !(cores > 0.0 && cores.is_finite()))
    {
        return Err(ServeError::Usage("--cpu has to be above 0"));
    }
    if (args.relay.is_some() || args.metrics.is_some()) && args.mode != Mode::Linked {
        return Err(ServeError::Usage(
            "--relay and --metrics are for --mode linked: the other forms follow nothing",
        ));
    }
    let database = match &args.postgres {
        Some(url) => Some(Database::connect(url).await?),
        None => None,
    };
    let port = Port::open(args.listen, args.frames).await?;
    match args.mode {
        Mode::Linked => serve_linked(args, port, database).await,
        Mode::Store => port.serve(LocalBooks::new(database)).await,
        Mode::Front => port.serve(RemoteBooks::new(&args.stores)?).await,
        Mode::Memcached => {
            let cache = Memcached::new(&args.stores);
            port.serve(CachedBooks::new(cache, database)).await
        }
        Mode::Redis => {
            let cache = Redis::connect(&args.stores).await?;
            port.serve(CachedBooks::new(cache, database)).await
        }
    }
}

/// The stateful form: the linked store's own service shares the port, and a
/// server that is told to stop first gives its books to the others.
async fn serve_linked(
    args: &ServeArgs,
    mut port: Port,
    database: Option<Database>,
) -> Result<(), ServeError> {
    let options = LinkedOptions {
        assigner: args.assigner.clone().unwrap_or_default(),
        address: port.address.to_string(),
        replication: match args.replication {
            Copies::None => Replication::None,
            Copies::Eventual => Replication::Eventual,
            Copies::Strong => Replication::Strong,
        },
        memory: args.memory.as_u64(),
        cpu: args.cpu,
        relay: args.relay.clone(),
        insecure: args.insecure,
    };
    let books = Arc::new(LinkedBooks::join(options, database).await?);
    let linklet = books.linklet().clone();
    let reach = match args.insecure {
        true => Reach::Plaintext,
        false => Reach::Loopback,
    };
    let mut parts = vec![linklet.process()];
    // For whoever looks: without a port nobody does.
    let sampler = args.metrics.and_then(|_| books.sample(args.sample_every));
    parts.extend(sampler.as_ref().map(|sampler| sampler.process(CORPUS)));
    let watch = |address| Endpoint::listen(address, reach, parts);
    let watched = args.metrics.map(watch).transpose()?;
    port.metrics = watched.as_ref().map(Endpoint::address);
    let service = Arc::new(Service::new(books));
    let routes = Routes::new(address_book_contract::service(Arc::clone(&service)));
    let routes = routes.add_service(linklet.service().into_server());
    let stopped = stopped()?;
    let drained = async move {
        stopped.await;
        if tokio::time::timeout(DRAIN_WITHIN, linklet.drain())
            .await
            .is_err()
        {
            eprintln!("address-book: books are left after {DRAIN_WITHIN:?}; they are lost here");
        }
        linklet.leave().await;
    };
    port.run(service, routes, drained).await
}

/// Ports that are open, and not yet served.
struct Port {
    listener: TcpListener,
    address: SocketAddr,
    frames: Option<(TcpListener, SocketAddr)>,
    /// Where somebody else serves metrics.
    metrics: Option<SocketAddr>,
}

impl Port {
    async fn open(listen: SocketAddr, frames: Option<SocketAddr>) -> Result<Self, ServeError> {
        let (listener, address) = bind(listen).await?;
        let frames = match frames {
            Some(listen) => Some(bind(listen).await?),
            None => None,
        };
        Ok(Port {
            listener,
            address,
            frames,
            metrics: None,
        })
    }

    async fn serve(self, books: impl Books) -> Result<(), ServeError> {
        let service = Arc::new(Service::new(Arc::new(books)));
        let routes = Routes::new(address_book_contract::service(Arc::clone(&service)));
        let stopped = stopped()?;
        self.run(service, routes, stopped).await
    }

    async fn run(
        self,
        service: Arc<Service<impl Books>>,
        routes: Routes,
        stopped: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let frames = self.frames.as_ref().map(|(_, address)| *address);
        say_ready(self.address, frames, self.metrics)?;
        if let Some((listener, _)) = self.frames {
            tokio::spawn(crate::frames::serve(listener, service));
        }
        let incoming = TcpIncoming::from(self.listener).with_nodelay(Some(true));
        Server::builder()
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_LEN)
            .initial_connection_window_size(CONNECTION_WINDOW_LEN)
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, stopped)
            .await?;
        Ok(())
    }
}

async fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|source| io_error(format!("listen on {listen}"), source))?;
    let address = listener
        .local_addr()
        .map_err(|source| io_error("ask for the port", source))?;
    Ok((listener, address))
}

/// Ends with SIGTERM or SIGINT.
pub(crate) fn stopped() -> Result<impl Future<Output = ()> + Send, ServeError> {
    let catch = |kind| signal(kind).map_err(|source| io_error("wait for signals", source));
    let mut terminate = catch(SignalKind::terminate())?;
    let mut interrupt = catch(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// One line that scripts wait for.
fn say_ready(
    address: SocketAddr,
    frames: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
) -> Result<(), ServeError> {
    let ready = serde_json::json!({
        "address": address,
        "frames": frames,
        "metrics": metrics,
        "pid": std::process::id(),
    });
    writeln!(io::stdout(), "ready {ready}")
        .map_err(|source| io_error("say that it is ready", source))
}

pub(crate) fn io_error(what: impl Into<String>, source: io::Error) -> ServeError {
    ServeError::Io {
        what: what.into(),
        source,
    }
}
