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
}
