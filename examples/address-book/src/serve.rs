//! A server's life: books in one form, a port, a ready line, and an orderly end.

use crate::books::{Books, CachedBooks, LocalBooks, RemoteBooks};
use crate::cache::{CacheError, Memcached, Redis};
use crate::database::{Database, DatabaseError};
use crate::service::Service;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Where the books are.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Domain-specific store: objects in this process, spread by the callers
    Store,
    /// Stateless, in front of domain-specific stores
    Front,
    /// Stateless, with memcached
    Memcached,
    /// Stateless, with redis
    Redis,
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
    /// Stores or caches behind a stateless server
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT[,…]")]
    pub stores: Vec<String>,
    /// Postgres with the books; without it they live in memory only
    #[arg(
        long,
        env = "ADDRESS_BOOK_POSTGRES",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub postgres: Option<String>,
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
    let needs_stores = args.mode != Mode::Store;
    if needs_stores == args.stores.is_empty() {
        return Err(ServeError::Usage(
            "--stores is for --mode front, memcached or redis, and needed there",
        ));
    }
    let database = match &args.postgres {
        Some(url) => Some(Database::connect(url).await?),
        None => None,
    };
    match args.mode {
        Mode::Store => listen(args, LocalBooks::new(database)).await,
        Mode::Front => listen(args, RemoteBooks::new(&args.stores)?).await,
        Mode::Memcached => {
            let cache = Memcached::new(&args.stores);
            listen(args, CachedBooks::new(cache, database)).await
        }
        Mode::Redis => {
            let cache = Redis::connect(&args.stores).await?;
            listen(args, CachedBooks::new(cache, database)).await
        }
    }
}

async fn listen(args: &ServeArgs, books: impl Books) -> Result<(), ServeError> {
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|source| io_error(format!("listen on {}", args.listen), source))?;
    let address = listener
        .local_addr()
        .map_err(|source| io_error("ask for the port", source))?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|source| io_error("wait for signals", source))?;
    say_ready(address)?;
    let stopped = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    let service = address_book_contract::service(Service::new(Arc::new(books)));
    Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(service)
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            stopped,
        )
        .await?;
    Ok(())
}

/// One line that scripts wait for.
fn say_ready(address: SocketAddr) -> Result<(), ServeError> {
    let ready = serde_json::json!({ "address": address, "pid": std::process::id() });
    writeln!(io::stdout(), "ready {ready}")
        .map_err(|source| io_error("say that it is ready", source))
}

fn io_error(what: impl Into<String>, source: io::Error) -> ServeError {
    ServeError::Io {
        what: what.into(),
        source,
    }
}
