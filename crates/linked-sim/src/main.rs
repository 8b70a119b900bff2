//! Runs seeds from the command line.

use clap::Parser;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::ExitCode;
use std::time::Instant;
use trefoil_linked_sim::{Ends, Runs, Stats, Violation, run_many, run_seed};

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
    /// A digest of all that happens in each of them: the same before and after a change
    /// that is to change nothing.
    #[arg(long, conflicts_with = "seed")]
    digest: bool,
    /// With `--seed` or `--digest`: waits for nothing when nothing goes wrong any more, as
    /// seven of eight seeds do otherwise.
    #[arg(long)]
    early: bool,
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
    /// Two assigners that both run and elect one of them.
    #[arg(long, conflicts_with_all = ["pauses", "assigners", "rush", "windows", "updates", "stays", "cuts"])]
    elections: bool,
    /// Hundreds of keys at few servers.
    #[arg(long, conflicts_with_all = ["pauses", "assigners", "rush", "windows", "updates", "stays", "cuts", "elections"])]
    crowd: bool,
    /// Servers that stand still for less than their lease, in strong mode.
    #[arg(long, conflicts_with_all = ["pauses", "assigners", "rush", "windows", "updates", "stays", "cuts", "elections", "crowd"])]
    hangs: bool,
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
        () if args.hangs => Runs::Hangs,
        () if args.crowd => Runs::Crowd,
        () if args.elections => Runs::Elections,
        () => Runs::Any,
    };
    let ends = match args.early {
        true => Ends::Early,
        false => Ends::Late,
    };
    let begin = Instant::now();
    let result = match args.seed {
        None if args.digest => digest(runs, ends, args.first, args.seeds),
        Some(seed) => {
            let mut line = |line: &str| println!("{line}");
            run_seed(runs, seed, ends, Some(&mut line)).map_err(Box::new)
        }
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

/// Runs seeds one after another, and prints what each comes to, and all of them.
fn digest(runs: Runs, ends: Ends, first: u64, seeds: u64) -> Result<Stats, Box<Violation>> {
    let (mut sum, mut all) = (Stats::default(), DefaultHasher::new());
    for seed in first..first.saturating_add(seeds) {
        let mut steps = DefaultHasher::new();
        let stats = run_seed(runs, seed, ends, Some(&mut |line| line.hash(&mut steps)))?;
        format!("{stats:?}").hash(&mut steps);
        println!("{seed} {:016x} {} events", steps.finish(), stats.events);
        steps.finish().hash(&mut all);
        sum.merge(&stats);
    }
    println!("all {:016x}", all.finish());
    Ok(sum)
}
