//! Connections in.
//!
//! A task accepts, one more for each handshake: who is slow keeps nobody else
//! waiting. Handshakes have a time and a number; beyond it the one that has been under
//! way for longest goes for whoever is new: so those who say nothing close no port.

use crate::local;
use crate::security::Security;
use crate::standing::{Believed, Shown};
use crate::wire::Wire;
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
use tonic::Extensions;
use tonic::transport::server::Connected;
use tonic::transport::server::TcpConnectInfo;
use trefoil_socket_owner::Users;
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
    /// Nobody asks: [`Security::Plaintext`].
    Anybody,
    /// A user of this host, or why it is not known who.
    User(Result<u32, String>),
    /// By their certificate.
    Known(Arc<Caller>),
}

impl Who {
    /// Who has sent a request with these extensions, also where the service was mounted
    /// behind tonic's own listener; `None` where nothing is known of its connection.
    pub(crate) fn of(extensions: &Extensions) -> Option<Who> {
        if let Some(who) = extensions.get::<Who>() {
            return Some(who.clone());
        }
        let connection = extensions.get::<TcpConnectInfo>()?;
        let (local, remote) = (connection.local_addr()?, connection.remote_addr()?);
        Some(Who::User(local::caller(local, remote)))
    }

    /// Finds out who has opened a call, once for all that is judged in it.
    pub fn note(extensions: &mut Extensions) {
        if let Some(who) = Who::of(extensions) {
            extensions.insert(who);
        }
    }
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
        Security::Loopback => return greet_local(&Users::default(), stream, from).await,
        Security::Users(users) => return greet_local(users, stream, from).await,
        Security::Plaintext => return Some(Stream::plain(Who::Anybody, stream)),
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

/// Lets a user of this host in, or says why not.
async fn greet_local(users: &Users, stream: TcpStream, from: SocketAddr) -> Option<Stream> {
    let caller = local::caller_of(&stream, from).await;
    match local::judge_caller(users, &caller) {
        Ok(()) => Some(Stream::plain(Who::User(caller), stream)),
        Err(why) => {
            tracing::debug!(%from, "a connection was not let in: {why}");
            local::refuse(stream, why).await;
            None
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct Stream {
    who: Who,
    wire: Wire<trefoil_tls::ServerStream>,
}

impl Stream {
    fn plain(who: Who, stream: TcpStream) -> Self {
        let wire = Wire::Plain(stream);
        Stream { who, wire }
    }
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
        Pin::new(&mut self.wire).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpSocket;

    /// The dead connection waits in the queue when another one takes its port.
    #[tokio::test]
    async fn a_connection_that_was_reset_is_not_the_next_one_of_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut dead = TcpStream::connect(address).await.unwrap();
        let port = dead.local_addr().unwrap();
        dead.write_all(b"for somebody else to have said")
            .await
            .unwrap();
        dead.set_zero_linger().unwrap();
        drop(dead);
        let next = TcpSocket::new_v4().unwrap();
        next.set_reuseaddr(true).unwrap();
        next.bind(port).unwrap();
        let _next = next.connect(address).await.unwrap();

        let (stream, from) = listener.accept().await.unwrap();
        assert_eq!(from, port);
        assert!(greet(&Security::Loopback, stream, from).await.is_none());
        let (stream, from) = listener.accept().await.unwrap();
        assert_eq!(from, port);
        assert!(greet(&Security::Loopback, stream, from).await.is_some());
    }
}
