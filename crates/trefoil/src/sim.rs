//! `sim`: seeds through the simulated cell.

use crate::args::SimArgs;
use crate::failure::{Failure, Outcome, print_line};
use std::process::ExitCode;

/// Seeds that are run unless something else is asked for.
const SEEDS_DEFAULT: u64 = 10_000;

pub(crate) fn run(args: SimArgs) -> Outcome {
    match (args.seed, args.seeds) {
        (Some(seed), None) => replay(seed),
        (seed, seeds) => search(seed.unwrap_or(1), seeds.unwrap_or(SEEDS_DEFAULT)),
    }
}

fn replay(seed: u64) -> Outcome {
    let mut print = |line: &str| {
        let _ = print_line(line);
    };
    match trefoil_sim::run_seed(seed, &mut print) {
        Ok(stats) => {
            report(&stats)?;
            print_line(&format!("seed {seed}: the promise was kept"))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(violation) => Err(Failure::Failed(violation.to_string())),
    }
}

fn search(first: u64, count: u64) -> Outcome {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bar = indicatif::ProgressBar::new(count);
    let report_on = trefoil_sim::run_many(first, count, threads, &|done| bar.set_position(done));
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
fn report(stats: &trefoil_sim::Stats) -> Result<(), Failure> {
    for (name, count) in stats.iter() {
        print_line(&format!("{count:>12}  {name}"))?;
    }
    Ok(())
}
