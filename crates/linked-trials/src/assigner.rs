//! The process of an assigner: the one that `trefoil assigner` runs, with options that
//! trials need and operators do not.

use crate::Failure;
use std::net::SocketAddr;
use std::time::Duration;
use trefoil_coordination::{AssignerServer, NodeOptions};
use trefoil_sharder::BalanceConfig;

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Args {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    store: String,
    #[arg(long)]
    lease_ms: u64,
    /// Replicas, where that is more than the servers ask for.
    #[arg(long)]
    replicas_min: Option<usize>,
    /// Only this corpus is served.
    #[arg(long)]
    only: Option<String>,
}

/// Serves until it is killed.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    crate::server::log();
    // What is to be shown is what happens to values that move, not how few do.
    let mut balance = BalanceConfig {
        churn_max: 1.0,
        ..BalanceConfig::default()
    };
    if let Some(min) = args.replicas_min {
        balance.replicas_min = min;
        balance.replicas_max = balance.replicas_max.max(min);
    }
    let mut options = NodeOptions {
        lease: Duration::from_millis(args.lease_ms),
        balance: balance.clone(),
        ..NodeOptions::default()
    };
    if let Some(only) = args.only {
        options.closed = true;
        options.corpora.insert(only, balance);
    }
    let store = args.store.parse()?;
    let server = AssignerServer::start(args.listen, &store, options).await?;
    println!("ready {}", server.address());
    std::future::pending::<()>().await;
    Ok(())
}
