//! Connections with TLS under gRPC: made anew with the certificates of the moment.

use hyper_util::rt::TokioIo;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use trefoil_tls::{Connected, HandshakeError, Tls};

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, Box<dyn Error + Send + Sync>>> + Send>>;

/// A channel to the server at a name or address (without brackets) and a port, with
/// mutual TLS. It connects when first used, and again whenever it has to: each time
/// with the certificates that `tls` has then.
pub fn connect_tls_lazy(endpoint: &Endpoint, tls: &Tls, host: &str, port: u16) -> Channel {
    endpoint.connect_with_connector_lazy(Dial {
        tls: tls.clone(),
        host: host.to_owned(),
        port,
    })
}

/// Why no TLS connection was made, if that is why a call has failed: nothing of the
/// call was sent.
pub fn handshake_error(status: &tonic::Status) -> Option<&HandshakeError> {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<HandshakeError>() {
            return Some(error);
        }
        source = error.source();
    }
    None
}

/// A call's failure for people: what the server said, or why it was not reached.
pub fn failure_text(status: &tonic::Status) -> String {
    if let Some(error) = handshake_error(status) {
        return error.to_string();
    }
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let more = error.to_string();
        // A library's layer, which says nothing.
        if more != "transport error" && !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

struct Dial {
    tls: Tls,
    host: String,
    port: u16,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Connected<TcpStream>>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (tls, host, port) = (self.tls.clone(), self.host.clone(), self.port);
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(
                trefoil_tls::connect(&tls, &host, stream).await?,
            ))
        })
    }
}
