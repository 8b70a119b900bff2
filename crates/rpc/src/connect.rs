//! How both sides set up a connection, so that they agree on its limits.

use crate::v1::trefoil_client::TrefoilClient;
use crate::v1::trefoil_server::{Trefoil, TrefoilServer};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
pub use tonic::transport::{Endpoint, Error as EndpointError};
use tonic::{Request, Status};

/// Longest message, in bytes: the longest value that the formats allow, its
/// key and their frame.
pub const MESSAGE_LEN_MAX: usize = 40 << 20;

/// Longest message that tells numbers, and no value that is long: many times what a replica
/// tells at once. Short numbers take more memory than they take of a message.
pub const SHORT_MESSAGE_LEN_MAX: usize = 4 << 20;

/// HTTP/2 flow control: a value of a few MiB does not wait for window updates.
const STREAM_WINDOW_LEN: u32 = 4 << 20;
const CONNECTION_WINDOW_LEN: u32 = 16 << 20;

/// A client's connection from which nothing came for so long is asked for a sign, and
/// given up without one. Behind a full window on a slow link it takes a while.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(20);

const _: () = assert!(
    trefoil_layout::limits::VALUE_LEN_LIMIT + trefoil_layout::limits::KEY_LEN_MAX + 4096
        < MESSAGE_LEN_MAX
);

/// A client of one server, which it shows its credentials.
pub type Client = TrefoilClient<InterceptedService<Channel, Credentials>>;

/// Where a client's token comes from; asked before every call.
type TokenSource = Arc<dyn Fn() -> Option<Arc<str>> + Send + Sync>;

/// What a client shows a server with every call.
#[derive(Clone, Default)]
pub struct Credentials(Option<TokenSource>);

impl Credentials {
    /// Nothing: the server knows by the connection who it is.
    pub fn none() -> Self {
        Self::default()
    }

    /// The token that `source` has at the time of a call, if any.
    pub fn from_source(source: TokenSource) -> Self {
        Credentials(Some(source))
    }
}

impl Credentials {
    /// The token as of now, if there is one: for what is no call.
    pub fn token(&self) -> Option<Arc<str>> {
        self.0.as_ref().and_then(|source| source())
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let token = self.0.as_ref().and_then(|source| source());
        if let Some(token) = token
            && let Ok(mut value) = MetadataValue::try_from(format!("{BEARER}{token}"))
        {
            // Kept out of the connection's compression table, and of logs.
            value.set_sensitive(true);
            request.metadata_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

/// What a server says to whoever it does not let in.
pub const OWN_USER_ONLY: &str = "this server answers its own user only";

/// The header that carries a token, and what stands before it there.
const AUTHORIZATION: &str = "authorization";
const BEARER: &str = "Bearer ";

/// The token that a request shows.
pub fn shown_token(request: &Request<()>) -> Option<&[u8]> {
    let value = request.metadata().get(AUTHORIZATION)?;
    value.as_bytes().strip_prefix(BEARER.as_bytes())
}

/// The one call whose request is a stream, with pauses between its messages.
pub const RELOAD_PATH: &str = "/trefoil.v1.Trefoil/Reload";

/// The one other call whose request holds a value.
pub const MUTATE_PATH: &str = "/trefoil.v1.Trefoil/Mutate";

/// A server's side of the contract.
pub type Service<T> = TrefoilServer<T>;

/// An endpoint at `host:port`.
pub fn endpoint_tcp(host_port: &str) -> Result<Endpoint, EndpointError> {
    Ok(tuned(Endpoint::from_shared(format!("http://{host_port}"))?))
}

/// An endpoint at a Unix socket.
pub fn endpoint_unix(path: &Path) -> Result<Endpoint, EndpointError> {
    Ok(tuned(Endpoint::from_shared(format!(
        "unix://{}",
        path.display()
    ))?))
}

fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_LEN)
        .initial_connection_window_size(CONNECTION_WINDOW_LEN)
        // A connection that only the other side, or something between, knows to be over
        // would swallow calls until the system gives it up: a quarter of an hour.
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_WITHIN)
        .keep_alive_while_idle(true)
}

/// A client over `channel` with the contract's message limits.
pub fn client(channel: Channel, credentials: Credentials) -> Client {
    TrefoilClient::with_interceptor(channel, credentials)
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX)
}

/// The same client for calls whose answers hold no value that is long: what is longer is
/// refused unread.
pub fn of_short(client: Client) -> Client {
    client.max_decoding_message_size(SHORT_MESSAGE_LEN_MAX)
}

/// A server of `handler` with the contract's message limits.
pub fn service<T: Trefoil>(handler: T) -> Service<T> {
    TrefoilServer::new(handler)
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX)
}
