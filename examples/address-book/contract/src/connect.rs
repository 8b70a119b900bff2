//! How both sides set up a connection, so that they agree on its limits.

use crate::server::{AddressBooks, AddressBooksServer};
use crate::v1::address_books_client::AddressBooksClient;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint, Error};

/// Longest message, in bytes: the largest book of the benchmarks, many times.
pub const MESSAGE_LEN_MAX: usize = 16 << 20;

/// HTTP/2 flow control: a book of a megabyte does not wait for window updates.
const STREAM_WINDOW_LEN: u32 = 4 << 20;
const CONNECTION_WINDOW_LEN: u32 = 16 << 20;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// An endpoint at `host:port`.
pub fn endpoint(host_port: &str) -> Result<Endpoint, Error> {
    Ok(Endpoint::from_shared(format!("http://{host_port}"))?
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_WITHIN)
        .initial_stream_window_size(STREAM_WINDOW_LEN)
        .initial_connection_window_size(CONNECTION_WINDOW_LEN))
}

/// A client over `channel` with the contract's message limits.
pub fn client(channel: Channel) -> AddressBooksClient<Channel> {
    AddressBooksClient::new(channel)
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX)
}

/// A server of `handler` with the contract's message limits.
pub fn service<T: AddressBooks>(handler: Arc<T>) -> AddressBooksServer<T> {
    AddressBooksServer::from_arc(handler)
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX)
}
