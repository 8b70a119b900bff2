//! `sim`: seeds through the simulated cell.

use crate::args::SimArgs;
use crate::failure::{Failure, Outcome, print_line};
use std::process::ExitCode;

/// Seeds that are run unless something else is asked for.
const SEEDS_DEFAULT: u64 = 10_000;

pub fn run(args: SimArgs) -> Outcome {
    match (args.seed, args.seeds) {
        (Some(seed), None) => replay(seed),
        (seed, seeds) => search(seed.unwrap_or(1), seeds.unwrap_or(SEEDS_DEFAULT)),
    }
}
