//! One seed, and many.

use crate::profile::Profile;
use crate::rng::Rng;
use crate::stats::Stats;
use crate::violation::{Property, Violation};
use crate::world::{self, Trace};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Which runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// Everything goes wrong.
    Any,
    /// Strong mode; owners are stopped past their lease, and continued.
    Pauses,
}

/// Runs one seed; `trace` receives a line for every step.
pub fn run_seed(runs: Runs, seed: u64, trace: Trace<'_>) -> Result<Stats, Violation> {
    let mut rng = Rng::new(seed);
    let profile = match runs {
        Runs::Any => Profile::draw(&mut rng),
        Runs::Pauses => Profile::pauses(&mut rng),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| world::run(profile, rng, trace)));
    let violation = |property, message| Violation {
        seed,
        pauses: runs == Runs::Pauses,
        property,
        message,
    };
    match outcome {
        Ok((stats, Ok(()))) => Ok(stats),
        Ok((_, Err((property, message)))) => Err(violation(property, message)),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(violation(Property::Panic, message.to_owned()))
        }
    }
}

/// Runs `count` seeds from `first`, up to the first violation. `progress` is
/// told how many are done, now and then.
pub fn run_many(
    runs: Runs,
    first: u64,
    count: u64,
    mut progress: impl FnMut(u64),
) -> Result<Stats, Box<Violation>> {
    let mut sum = Stats::default();
    for seed in first..first.saturating_add(count) {
        sum.merge(&run_seed(runs, seed, None)?);
        if sum.seeds % 1_000 == 0 {
            progress(sum.seeds);
        }
    }
    Ok(sum)
}
