//! A connection's stream, kept beyond the protocol's end.
//!
//! A socket that is closed while it holds bytes that nobody has read resets the connection,
//! and the other end may then lose what it has not read yet: answers, and the word up to
//! which call they go (GOAWAY). To that client the fate of each of its calls is unknown. So
//! a server that ends reads on, and executes nothing, until the client has hung up.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// One stream in several hands: the protocol's, and that of who sees to its end. They use it
/// one after the other, so the lock is free.
pub(crate) struct Shared<T>(Arc<Mutex<T>>);

impl<T> Shared<T> {
    pub(crate) fn new(stream: T) -> Self {
        Shared(Arc::new(Mutex::new(stream)))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: AsyncRead + Unpin> Shared<T> {
    /// Reads, and forgets, until the other end has hung up.
    pub(crate) async fn until_hung_up(mut self) {
        let mut forgotten = [0; 4096];
        while matches!(self.read(&mut forgotten).await, Ok(1..)) {}
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Shared<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(context, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Shared<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    }

    /// The reason for the module, and its cure.
    #[test]
    fn what_the_client_has_not_read_yet_stays_if_it_is_waited_for() {
        runtime().block_on(async {
            for waits in [false, true] {
                let (mut client, server) = UnixStream::pair().unwrap();
                let mut server = Shared::new(server);
                client.write_all(b"a call").await.unwrap();
                server.write_all(b"last word").await.unwrap();
                server.shutdown().await.unwrap();
                let ends = tokio::spawn(async move {
                    if waits {
                        server.until_hung_up().await;
                    }
                });
                if !waits {
                    ends.await.unwrap();
                    let mut heard = Vec::new();
                    let read = client.read_to_end(&mut heard).await;
                    assert!(read.is_err(), "{heard:?}");
                    continue;
                }
                let mut heard = Vec::new();
                client.read_to_end(&mut heard).await.unwrap();
                assert_eq!(heard, b"last word");
                assert!(!ends.is_finished());
                drop(client);
                ends.await.unwrap();
            }
        });
    }
}
