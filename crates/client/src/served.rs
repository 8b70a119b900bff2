//! What backends say of the configuration that they serve.

use crate::cell::CONNECT_PATIENCE;
use crate::rpc::Rpc;
use std::time::Duration;
use trefoil_cell::{CellConfig, Incarnations, RpcAddress};
use trefoil_rpc::v1;

/// What a process with backends serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The configuration.
    pub config: CellConfig,
    /// How often each of the process's backends has begun in the cell's life.
    pub begun: Incarnations,
}

/// Asks the server at each address, one after the other, what it serves.
pub fn served(addresses: &[RpcAddress]) -> Vec<Result<Served, String>> {
    let rpc = Rpc::new(CONNECT_PATIENCE, None);
    let ask_one = |address| ask(&rpc, address, CONNECT_PATIENCE);
    addresses.iter().map(ask_one).collect()
}

pub(crate) fn ask(rpc: &Rpc, address: &RpcAddress, patience: Duration) -> Result<Served, String> {
    let mut client = rpc.open(address)?;
    let call = async { client.config(v1::ConfigRequest {}).await };
    let answer = rpc.wait(call, patience)?.into_inner();
    let config = trefoil_cell::decode_config(&answer.config.unwrap_or_default());
    let begun = answer.begun.into_iter();
    Ok(Served {
        config: config.map_err(|error| error.to_string())?,
        begun: begun.map(|b| (b.backend, b.incarnation)).collect(),
    })
}
