//! A server of sessions: `sessions --assigner HOST:PORT`.

use clap::Parser;
use sessions::v1::sessions_server::SessionsServer;
use sessions::{Lifetime, Service};
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Keeps sessions, together with the other servers of the same assigner
#[derive(Parser, Debug)]
struct Args {
    /// The assigner that says who keeps which sessions
    #[arg(long, default_value = "127.0.0.1:7421", value_name = "HOST:PORT")]
    assigner: String,
    /// Address to serve; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Seconds after which a session ends
    #[arg(long, default_value_t = 8 * 3_600, value_name = "SECONDS")]
    lifetime: u64,
    /// Seconds without a request after which a session ends
    #[arg(long, default_value_t = 1_800, value_name = "SECONDS")]
    idle: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let lifetime = Lifetime {
        whole: Duration::from_secs(args.lifetime),
        idle: Duration::from_secs(args.idle),
    };
    let mut stop = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(args.listen).await?;
    let address = listener.local_addr()?.to_string();
    let sessions = sessions::join(&args.assigner, address.clone(), lifetime).await?;
    println!("ready {address}");
    let leaving = sessions.clone();
    let stopped = async move {
        stop.recv().await;
        tokio::select! {
            // Everything moves to the other servers; until then this one serves.
            _ = leaving.drain() => {}
            // Somebody who knows that there is none.
            _ = stop.recv() => {}
        }
        leaving.leave().await;
    };
    Server::builder()
        .add_service(SessionsServer::new(Service(sessions.clone())))
        .add_service(sessions.service().into_server())
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), stopped)
        .await?;
    Ok(())
}
