//! Connections within the host without certificates: the kernel says which user is at
//! the other end.

use std::net::{Shutdown, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Server;
use trefoil_socket_owner::{Users, client_of, own_user, server_of};

/// How long who is not let in is told so.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);

/// The user who has connected to `local` from `remote`.
pub(crate) fn caller(local: SocketAddr, remote: SocketAddr) -> Result<u32, String> {
    client_of(local, remote).map_err(|error| error.to_string())
}

/// Who is at the other end of a stream that was accepted from there. A connection that was
/// reset stays in the queue until it is accepted; its port may be somebody else's by then, who
/// is found in its place. Such a stream has no other end any more, which is asked last.
pub(crate) async fn caller_of(stream: &TcpStream, from: SocketAddr) -> Result<u32, String> {
    let local = stream.local_addr().map_err(|error| error.to_string())?;
    // It may read all sockets of the host.
    let asked = spawn_blocking(move || caller(local, from)).await;
    let user = asked.map_err(|error| error.to_string())??;
    match stream.peer_addr() {
        Ok(_) => Ok(user),
        Err(error) => Err(format!("the connection from {from} has ended: {error}")),
    }
}

/// Whether that one is let in.
pub(crate) fn judge_caller(users: &Users, caller: &Result<u32, String>) -> Result<(), String> {
    match caller {
        Ok(user) if users.let_in(*user) => Ok(()),
        Ok(user) => Err(format!(
            "user {user} is not let in: without certificates this server answers its own user \
             ({}), root, and those whom it was told of. Start it with --allow-user {user} (in a \
             program `Security::users`), or use certificates (--certs DIR)",
            own_user()
        )),
        Err(why) => Err(format!(
            "it is not known which user calls: {why}. Without certificates (--certs DIR) only \
             users of this host are answered, whom the kernel names"
        )),
    }
}

/// Whether the server of a connection is one to which something may be sent in the clear.
pub(crate) async fn judge_server(
    users: Users,
    local: SocketAddr,
    remote: SocketAddr,
) -> Result<(), String> {
    let asked = spawn_blocking(move || server_of(local, remote)).await;
    match asked.map_err(|error| error.to_string())? {
        Ok(user) if users.let_in(user) => Ok(()),
        Ok(user) => Err(format!(
            "the server at {remote} is user {user}'s: without certificates nothing is sent but to \
             this process's own user ({}), root, and those whom it was told of. If it is the right \
             one: --allow-user {user} (in a program `Security::users`), or certificates (--certs \
             DIR); otherwise somebody else has taken the port",
            own_user()
        )),
        Err(error) => Err(format!(
            "it is not known whose server {remote} is: {error}. Without certificates (--certs \
             DIR) only servers of this host are spoken to, of users whom the kernel names"
        )),
    }
}

/// Answers every call on a connection with this refusal, and ends it soon.
pub(crate) async fn refuse(stream: TcpStream, why: String) {
    let Ok(stream) = stream.into_std() else {
        return;
    };
    // Whatever the other end does: with this future the connection ends, too.
    let Ok(_end) = stream.try_clone().map(HangUp) else {
        return;
    };
    let Ok(stream) = TcpStream::from_std(stream) else {
        return;
    };
    let stream = tokio_stream::once(Ok::<_, std::io::Error>(stream));
    let incoming = stream.chain(tokio_stream::pending());
    let served = Server::builder().serve_with_incoming(Refusal(why), incoming);
    let _ = timeout(REFUSAL_PATIENCE, served).await;
}

struct HangUp(std::net::TcpStream);

impl Drop for HangUp {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Does nothing that it is asked for.
#[derive(Clone)]
struct Refusal(String);

impl Service<http::Request<Body>> for Refusal {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let refused = Status::permission_denied(self.0.as_str());
        std::future::ready(Ok(refused.into_http()))
    }
}
