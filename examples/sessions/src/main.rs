//! A server of sessions: `sessions --assigner HOST:PORT`.

use clap::{Parser, ValueEnum};
use sessions::v1::sessions_server::SessionsServer;
use sessions::{Lifetime, Room, Service};
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;
use trefoil_linklet::Security;
use trefoil_linklet::endpoint::{Endpoint, Reach};

/// Keeps sessions, together with the other servers of the same assigner
#[derive(Parser, Debug)]
struct Args {
    /// The assigner that says who keeps which sessions
    #[arg(long, default_value = "127.0.0.1:7421", value_name = "HOST:PORT")]
    assigner: String,
    /// Address to serve; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Address by which others reach it [default: that of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Speak TLS, by the certificates in a directory (ca.pem, cert.pem, key.pem; role backend)
    #[arg(long, value_name = "DIR")]
    certs: Option<PathBuf>,
    /// Address at which metrics, readiness and drain are served
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    /// What may be reached from other machines without TLS
    #[arg(long, value_name = "WHAT")]
    plaintext: Option<Plaintext>,
    /// Seconds after which a session ends
    #[arg(long, default_value_t = 8 * 3_600, value_name = "SECONDS")]
    lifetime: u64,
    /// Seconds without a request after which a session ends
    #[arg(long, default_value_t = 1_800, value_name = "SECONDS")]
    idle: u64,
    /// Bytes of memory for sessions
    #[arg(long, default_value_t = 256 << 20, value_name = "BYTES")]
    memory: u64,
    /// Directory for sessions for which there is no memory [default: new ones are refused]
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// Bytes of files in that directory
    #[arg(long, default_value_t = 4 << 30, value_name = "BYTES")]
    spill_bytes: u64,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Plaintext {
    Metrics,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let lifetime = Lifetime {
        whole: Duration::from_secs(args.lifetime),
        idle: Duration::from_secs(args.idle),
    };
    let room = Room {
        memory: args.memory,
        spill: args.spill.map(|directory| (directory, args.spill_bytes)),
    };
    let security = match &args.certs {
        Some(certs) => Security::of_server(certs)?,
        None => Security::Loopback,
    };
    security.check_listen(args.listen)?;
    let mut stop = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(args.listen).await?;
    let address = match args.advertise {
        Some(address) => address,
        None => listener.local_addr()?.to_string(),
    };
    let reach = match args.plaintext {
        Some(Plaintext::Metrics) => Reach::Plaintext,
        None => Reach::Loopback,
    };
    // Taken before it joins: a port that cannot be had shows while nothing is lost by
    // it, and nobody takes it meanwhile.
    let port = match args.metrics {
        Some(address) => {
            reach.check(address)?;
            Some(std::net::TcpListener::bind(address)?)
        }
        None => None,
    };
    let (at, certs) = (address.clone(), security.clone());
    let sessions = sessions::join(&args.assigner, at, lifetime, room, certs).await?;
    // Kept until the end: who stops this process asks there whether it may.
    let watched = port.map(|port| Endpoint::serve(port, vec![sessions.process()]));
    let watched = watched.transpose()?;
    match &watched {
        Some(watched) => println!("ready {address} {}", watched.address()),
        None => println!("ready {address}"),
    }
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
        .serve_with_incoming_shutdown(security.incoming(listener), stopped)
        .await?;
    Ok(())
}
