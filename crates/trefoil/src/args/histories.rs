//! Arguments of `histories`.

use bytesize::ByteSize;
use clap::Args;
use std::path::PathBuf;
use trefoil_history::record::{CarrierKind, Fault, Lens};

#[derive(Args, Debug, Clone)]
pub(crate) struct HistoriesArgs {
    /// Operations of all rounds together
    #[arg(long, default_value_t = 1_000_000)]
    pub operations: u64,
    /// Full memory, and everything that can be done to a cell, in rounds of a minute
    #[arg(long)]
    pub chaos: bool,
    /// Seconds of all rounds together, in the place of operations [default: 120 with --chaos]
    #[arg(long, value_name = "SECONDS", conflicts_with = "operations")]
    pub seconds: Option<f64>,
    /// Backends that may be away at a time; above 1 less is promised, and less is checked
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub overlap: usize,
    /// First round's seed; what is not given below is drawn from it
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Rounds, each with a fresh cell [default: one for each 250000 operations]
    #[arg(long)]
    pub rounds: Option<u64>,
    /// Keys
    #[arg(long)]
    pub keys: Option<u32>,
    /// Bytes of values
    #[arg(long, value_name = "MIN..MAX")]
    pub value_len: Option<Lens>,
    /// Memory of each backend
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Clients at a time, each a process
    #[arg(long)]
    pub clients: Option<usize>,
    /// How clients reach the cell: rings, message, rpc, gateway [default: all], and queue: SETs and ERASEs are acknowledged before they are executed, those of gateways, too
    #[arg(long, value_delimiter = ',', value_name = "NAME[,…]")]
    pub carriers: Option<Vec<CarrierKind>>,
    /// What goes wrong: kill, restart, stop, skew, flush, client-kill, gateway-restart, memory, move, upgrade, drain, etcd-kill, etcd-stop, disk-full, network, resize, replace; or none
    #[arg(long, value_name = "NAME[,…]", value_parser = faults)]
    pub faults: Option<Faults>,
    /// R=1 or R=3.2
    #[arg(long)]
    pub mode: Option<String>,
    /// Program of another release: backends move to it and back, clients and gateways are of both
    #[arg(long, value_name = "PATH", conflicts_with = "chaos")]
    pub previous: Option<PathBuf>,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}

/// What goes wrong in a history; none is a list, too.
#[derive(Debug, Clone)]
pub(crate) struct Faults(pub Vec<Fault>);

fn faults(text: &str) -> Result<Faults, String> {
    if text == "none" {
        return Ok(Faults(Vec::new()));
    }
    let faults = text.split(',').map(str::parse);
    let faults: Result<Vec<Fault>, _> = faults.collect();
    faults.map(Faults).map_err(|e| e.to_string())
}
