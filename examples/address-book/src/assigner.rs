//! An assigner for one machine, without a store of its own: enough to try the
//! stateful form. `trefoil assigner` is the one for services that must not
//! forget their map.

use crate::serve::{ServeError, io_error, say_ready, stopped};
use std::net::SocketAddr;
use trefoil_coordination::{AssignerServer, NodeOptions, StoreAddress};

/// Settings of an assigner.
#[derive(clap::Args, Debug, Clone)]
pub struct AssignerArgs {
    /// Address to serve; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    pub listen: SocketAddr,
    /// Servers that have each key: its owner and copies
    #[arg(long, default_value_t = 1)]
    pub replicas: usize,
}

/// Assigns until a signal ends it.
pub fn run(args: &AssignerArgs) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| io_error("start threads", source))?;
    runtime.block_on(async {
        let mut options = NodeOptions::default();
        options.balance.replicas_min = args.replicas;
        options.balance.replicas_max = args.replicas;
        let stopped = stopped()?;
        let server = AssignerServer::start(args.listen, &StoreAddress::Memory, options).await?;
        say_ready(server.address())?;
        stopped.await;
        server.shutdown().await;
        Ok(())
    })
}
