//! Runs seeds from the command line.

use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;
use trefoil_linked_sim::{Runs, run_many, run_seed};

/// Simulates a linked store with everything going wrong.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 50_000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only this one, with a line for every step.
    #[arg(long)]
    seed: Option<u64>,
    /// Owners that are stopped past their lease in strong mode, and nothing else.
    #[arg(long)]
    pauses: bool,
    /// Assigners with different leases, or a store that forgets, in strong mode.
    #[arg(long, conflicts_with = "pauses")]
    assigners: bool,
    /// Few keys, many callers, and maps that change all the time.
    #[arg(long, conflicts_with_all = ["pauses", "assigners"])]
    rush: bool,
    /// Copies, many keys, maps that change all the time, and windows that are always full.
    #[arg(long, conflicts_with_all = ["pauses", "assigners", "rush"])]
    windows: bool,
    /// Many callers that change few keys from what is there, and give up now and then, in strong mode.
    #[arg(long, conflicts_with_all = ["pauses", "assigners", "rush", "windows"])]
    updates: bool,
    /// Servers with little memory, while others die and drain one after another, in strong mode.
    #[arg(long, conflicts_with_all = ["pauses", "assigners", "rush", "windows", "updates"])]
    stays: bool,
    /// Links between two servers that are cut for long, in strong mode.
    #[arg(long, conflicts_with_all = ["pauses", "assigners", "rush", "windows", "updates", "stays"])]
    cuts: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runs = match () {
        () if args.pauses => Runs::Pauses,
        () if args.rush => Runs::Rush,
        () if args.assigners => Runs::Assigners,
        () if args.windows => Runs::Windows,
        () if args.updates => Runs::Updates,
        () if args.stays => Runs::Stays,
        () if args.cuts => Runs::Cuts,
        () => Runs::Any,
    };
    let begin = Instant::now();
    let result = match args.seed {
        Some(seed) => run_seed(runs, seed, Some(&mut |line| println!("{line}"))).map_err(Box::new),
        None => run_many(runs, args.first, args.seeds, |done| {
            eprint!("\r{done} of {} seeds", args.seeds);
        }),
    };
    match result {
        Ok(stats) => {
            eprintln!();
            println!("{stats:#?}");
            let seconds = begin.elapsed().as_secs_f64();
            println!("{} seeds are clean, in {seconds:.1} s", stats.seeds);
            ExitCode::SUCCESS
        }
        Err(violation) => {
            eprintln!();
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}
