//! How both sides set up a connection, so that they agree on its limits.

use crate::v1::trefoil_client::TrefoilClient;
use crate::v1::trefoil_server::{Trefoil, TrefoilServer};
use std::path::Path;
use tonic::transport::Channel;
pub use tonic::transport::{Endpoint, Error as EndpointError};

/// Longest message, in bytes: the longest value that the formats allow, its
/// key and their frame.
pub const MESSAGE_LEN_MAX: usize = 40 << 20;

/// HTTP/2 flow control: a value of a few MiB does not wait for window updates.
const STREAM_WINDOW_LEN: u32 = 4 << 20;
const CONNECTION_WINDOW_LEN: u32 = 16 << 20;

const _: () = assert!(
    trefoil_layout::limits::VALUE_LEN_LIMIT + trefoil_layout::limits::KEY_LEN_MAX + 4096
        < MESSAGE_LEN_MAX
);

/// A client of one server.
pub type Client = TrefoilClient<Channel>;
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
}

/// A client over `channel` with the contract's message limits.
pub fn client(channel: Channel) -> Client {
    TrefoilClient::new(channel)
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX)
}

/// A server of `handler` with the contract's message limits.
pub fn service<T: Trefoil>(handler: T) -> Service<T> {
    TrefoilServer::new(handler)
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX)
}
