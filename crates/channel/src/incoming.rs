//! Connections in.
//!
//! A task accepts, one more for each handshake: who is slow keeps nobody else
//! waiting. Handshakes have a time and a number; beyond it the one that has been under
//! way for longest goes for whoever is new: so those who say nothing close no port.

use crate::security::Security;
use crate::standing::{Believed, Shown};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
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
    // In the order in which they came.
    let mut greeted: VecDeque<AbortHandle> = VecDeque::new();
    loop {
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
        if greeted.len() >= HANDSHAKES_MAX {
            greeted.retain(|handshake| !handshake.is_finished());
        }
        if greeted.len() >= HANDSHAKES_MAX
            && let Some(oldest) = greeted.pop_front()
        {
            tracing::debug!("a handshake makes room for a newer one");
            oldest.abort();
        }
        let security = security.clone();
        let mut handshake = tokio::spawn(async move { greet(&security, stream, from).await });
        greeted.push_back(handshake.abort_handle());
        let connections = connections.clone();
        tokio::spawn(async move {
            tokio::select! {
                greeted = &mut handshake => if let Ok(Some(stream)) = greeted {
                    // Whoever served is gone.
                    let _ = connections.send(Ok(stream)).await;
                },
                () = connections.closed() => handshake.abort(),
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
        Ok(Ok(Accepted { stream, caller })) => {
            let shown = Shown {
                name: caller.name.clone(),
                serial: caller.serial.clone(),
                ends_s: caller.ends_s,
            };
            Some(Stream {
                who: Who::Known(Arc::new(caller)),
                wire: Wire::Encrypted(Box::new(Believed::new(stream, tls.clone(), shown))),
            })
        }
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
    Encrypted(Box<Believed<trefoil_tls::ServerStream>>),
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
