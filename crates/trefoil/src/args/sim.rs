//! `sim`.

use clap::Args;

#[derive(Args, Debug, Clone)]
pub(crate) struct SimArgs {
    /// First seed; alone, that seed is replayed with every step printed
    #[arg(long)]
    pub seed: Option<u64>,
    /// How many seeds
    #[arg(long)]
    pub seeds: Option<u64>,
    /// Simulate the client library's own driver (links, deadlines, reconnects,
    /// restarts of the cell) instead of single operations
    #[arg(long)]
    pub whole: bool,
}
