//! `sim`: seeds through the simulated cell.

use crate::args::SimArgs;
use crate::failure::{Failure, Outcome, print_line};
use std::process::ExitCode;
use trefoil_sim::{Counts, Report, Violation};

/// Seeds that are run unless something else is asked for.
const SEEDS_DEFAULT: u64 = 10_000;

pub(crate) fn run(args: SimArgs) -> Outcome {
    match (args.seed, args.seeds, args.whole) {
        (Some(seed), None, false) => replay(seed, trefoil_sim::run_seed),
        (Some(seed), None, true) => replay(seed, trefoil_sim::whole::run_seed),
        (seed, seeds, false) => search(seed, seeds, trefoil_sim::run_many),
        (seed, seeds, true) => search(seed, seeds, trefoil_sim::whole::run_many),
    }
}

/// Runs one seed, with its trace.
type RunSeed<S> = fn(u64, &mut dyn FnMut(&str)) -> Result<S, Violation>;
/// Runs so many seeds from the first, on so many threads.
type RunMany<S> = fn(u64, u64, usize, &dyn Fn(u64)) -> Report<S>;

fn replay<S: Counts>(seed: u64, run_seed: RunSeed<S>) -> Outcome {
    let mut print = |line: &str| {
        let _ = print_line(line);
    };
    match run_seed(seed, &mut print) {
        Ok(stats) => {
            report(&stats)?;
            print_line(&format!("seed {seed}: the promise was kept"))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(violation) => Err(Failure::Failed(violation.to_string())),
    }
}

fn search<S: Counts>(first: Option<u64>, count: Option<u64>, run_many: RunMany<S>) -> Outcome {
    let (first, count) = (first.unwrap_or(1), count.unwrap_or(SEEDS_DEFAULT));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bar = indicatif::ProgressBar::new(count);
    let report_on = run_many(first, count, threads, &|done| bar.set_position(done));
    bar.finish_and_clear();
    report(&report_on.stats)?;
    for violation in &report_on.violations {
        eprintln!("{violation}");
    }
    print_line(&format!(
        "seeds {first} to {}: {} violations",
        first.saturating_add(count).saturating_sub(1),
        report_on.violations.len()
    ))?;
    Ok(if report_on.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the runs went through: rare branches have to be reached.
fn report(stats: &impl Counts) -> Result<(), Failure> {
    for (name, count) in stats.named() {
        print_line(&format!("{count:>12}  {name}"))?;
    }
    Ok(())
}
