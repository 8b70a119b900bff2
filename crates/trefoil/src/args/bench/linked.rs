//! `bench linked`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkedProtocol {
    /// Length, number, method, message: what is measured is the service
    Frames,
    /// HTTP/2, as the address book's other callers use
    Grpc,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct LinkedBenchArgs {
    /// Folder for the report and plots
    #[arg(long, default_value = "out/linked", value_name = "DIR")]
    pub out: PathBuf,
    /// Small and short: shows that everything works, not how well
    #[arg(long)]
    pub quick: bool,
    /// Forms of the service to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME[,…]")]
    pub variant: Vec<String>,
    /// How callers and app servers speak, in all forms alike
    #[arg(long, default_value = "frames")]
    pub protocol: LinkedProtocol,
    /// Bytes of objects, instead of the paper's cases
    #[arg(long, value_delimiter = ',', value_name = "N[,N…]")]
    pub size: Vec<usize>,
    /// Percent of an object that a request uses, for each --size [default: 100]
    #[arg(long, value_delimiter = ',', value_name = "N[,N…]", requires = "size")]
    pub used: Vec<u32>,
    /// Servers of each kind
    #[arg(long, default_value_t = 2)]
    pub servers: usize,
    /// Runs of each form, in turn; medians are reported
    #[arg(long)]
    pub runs: Option<usize>,
    /// Seconds of each run; more for large objects
    #[arg(long)]
    pub seconds: Option<f64>,
    /// All rates times this
    #[arg(long, default_value_t = 1.0)]
    pub rate: f64,
    /// Changes of whole objects overwrite them unread
    #[arg(long)]
    pub overwrite: bool,
    /// Everything on loopback, without namespaces and counts of bytes
    #[arg(long)]
    pub loopback: bool,
    /// Machine-readable
    #[arg(long)]
    pub json: bool,
}
