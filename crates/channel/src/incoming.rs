//! Connections in.
//!
//! A task accepts, one more for each handshake: who is slow keeps nobody else
//! waiting. Handshakes have a time and a number; whoever comes beyond it waits in the
//! system's queue.

use crate::security::Security;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::server::Connected;
use trefoil_tls::{Accepted, Caller};

/// Handshakes under way.
const HANDSHAKES_MAX: usize = 128;
/// How long one may take.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// Connections that nobody has taken yet.
const WAITING_MAX: usize = 16;
/// Pause after the system refused to accept (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Who is at the other end of a connection, for [`permit`](crate::permit).
#[derive(Clone, Debug)]
pub enum Who {
    /// Nobody asks: there are no certificates.
    Anybody,
    /// By their certificate.
    Known(Arc<Caller>),
}

/// Connections for a tonic server: `serve_with_incoming`. Ends with the value.
#[derive(Debug)]
pub struct Incoming {
    connections: mpsc::Receiver<io::Result<Stream>>,
    task: AbortHandle,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Security {
    /// Takes what comes in at a port. To be called in a tokio runtime.
    pub fn incoming(&self, listener: TcpListener) -> Incoming {
        let (sender, connections) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(accept_all(self.clone(), listener, sender));
        Incoming {
            connections,
            task: task.abort_handle(),
        }
    }
}

async fn accept_all(
    security: Security,
    listener: TcpListener,
    connections: mpsc::Sender<io::Result<Stream>>,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let Ok(place) = Arc::clone(&handshakes).acquire_owned().await else {
            return;
        };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Without it a connection works as well, only later.
        let _ = stream.set_nodelay(true);
        let (security, connections) = (security.clone(), connections.clone());
        tokio::spawn(async move {
            let _place = place;
            tokio::select! {
                stream = greet(&security, stream, from) => if let Some(stream) = stream {
                    // Whoever served is gone.
                    let _ = connections.send(Ok(stream)).await;
                },
                () = connections.closed() => {}
            }
        });
    }
}

async fn greet(security: &Security, stream: TcpStream, from: SocketAddr) -> Option<Stream> {
    let tls = match security {
        Security::Loopback | Security::Plaintext => {
            return Some(Stream {
                who: Who::Anybody,
                wire: Wire::Plain(stream),
            });
        }
        Security::Certificates(tls) => tls,
    };
    match timeout(HANDSHAKE_PATIENCE, trefoil_tls::accept(tls, stream)).await {
        Ok(Ok(Accepted { stream, caller })) => Some(Stream {
            who: Who::Known(Arc::new(caller)),
            wire: Wire::Encrypted(Box::new(stream)),
        }),
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "a connection was not let in");
            None
        }
        Err(_) => {
            tracing::debug!(%from, "a connection did not get on with its handshake");
            None
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct Stream {
    who: Who,
    wire: Wire,
}

#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Encrypted(Box<trefoil_tls::ServerStream>),
}

impl Connected for Stream {
    type ConnectInfo = Who;

    fn connect_info(&self) -> Who {
        self.who.clone()
    }
}

impl tokio_stream::Stream for Incoming {
    type Item = io::Result<Stream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_recv(context)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Wire::Encrypted(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Wire::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(context),
            Wire::Encrypted(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Wire::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Wire::Encrypted(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Wire::Plain(stream) => stream.is_write_vectored(),
            Wire::Encrypted(stream) => stream.is_write_vectored(),
        }
    }
}
