//! One seed, and many.

use crate::profile::Profile;
use crate::rng::Rng;
use crate::stats::Stats;
use crate::violation::{Property, Violation};
use crate::world::{self, Trace};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};

/// Which runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// Everything goes wrong.
    Any,
    /// Strong mode; owners are stopped past their lease, and continued.
    Pauses,
    /// Strong mode; assigners with different leases that lead in turn, or
    /// whose store forgets everything, and servers that are stopped or cut off.
    Assigners,
    /// Few keys, many callers, and maps that change all the time.
    Rush,
    /// Copies, many keys, maps that change all the time, and windows that are always full.
    Windows,
    /// Strong mode; many callers change few keys, each from what is there, and give up
    /// now and then.
    Updates,
    /// Strong mode; some servers have little memory, so keys stay where they were, while
    /// servers die and drain one after another.
    Stays,
    /// Strong mode; links between two servers are cut for long, in both directions or in
    /// one, while all of them have their leases.
    Cuts,
    /// Strong mode; callers change keys, each from what is there, while one server after
    /// another stands still for less than its lease.
    Hangs,
    /// Hundreds of keys at few servers.
    Crowd,
    /// Two assigners that both run and elect one of them, and lose it by pauses and links
    /// that are cut.
    Elections,
}

/// How long a run waits when nothing goes wrong any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// For nothing: the last server dies soon after everything is owned and nobody drains,
    /// and the run ends soon after everything is owned again. Both have their time, too.
    /// Callers ask less than before.
    Early,
    /// Peace lasts for its time, and so does what comes after the last death.
    Late,
}

/// Of many seeds, one in so many ends late.
const LATE_ONE_IN: u64 = 8;

impl Ends {
    /// When a seed ends that is one of many.
    pub fn of_many(seed: u64) -> Self {
        match seed.is_multiple_of(LATE_ONE_IN) {
            true => Ends::Late,
            false => Ends::Early,
        }
    }
}

/// Runs one seed; `trace` receives a line for every step.
pub fn run_seed(runs: Runs, seed: u64, ends: Ends, trace: Trace<'_>) -> Result<Stats, Violation> {
    let mut rng = Rng::new(seed);
    let profile = match runs {
        Runs::Any => Profile::draw(&mut rng),
        Runs::Pauses => Profile::pauses(&mut rng),
        Runs::Assigners => Profile::assigners(&mut rng),
        Runs::Rush => Profile::rush(&mut rng),
        Runs::Windows => Profile::windows(&mut rng),
        Runs::Updates => Profile::updates(&mut rng),
        Runs::Stays => Profile::stays(&mut rng),
        Runs::Cuts => Profile::cuts(&mut rng),
        Runs::Hangs => Profile::hangs(&mut rng),
        Runs::Crowd => Profile::crowd(&mut rng),
        Runs::Elections => Profile::elections(&mut rng),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| world::run(profile, rng, ends, trace)));
    let violation = |property, message| Violation {
        seed,
        runs,
        ends,
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

/// Runs `count` seeds from `first` on all cores, up to a violation: the one
/// with the lowest seed. Each ends as [`Ends::of_many`] says. `progress` is told how many are
/// done, now and then.
pub fn run_many(
    runs: Runs,
    first: u64,
    count: u64,
    progress: impl Fn(u64) + Sync,
) -> Result<Stats, Box<Violation>> {
    let next = AtomicU64::new(first);
    let end = first.saturating_add(count);
    let work = || {
        let mut sum = Stats::default();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= end {
                return Ok(sum);
            }
            match run_seed(runs, seed, Ends::of_many(seed), None) {
                Ok(stats) => sum.merge(&stats),
                Err(violation) => {
                    // Nobody begins another; and whoever has begun a lower one ends it.
                    next.fetch_max(end, Relaxed);
                    return Err(Box::new(violation));
                }
            }
            let done = seed - first + 1;
            if done.is_multiple_of(1_000) {
                progress(done);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<Result<Stats, Box<Violation>>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let join = |worker: ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        };
        workers.into_iter().map(join).collect()
    });
    let mut sum = Stats::default();
    let mut worst: Option<Box<Violation>> = None;
    for result in results {
        match result {
            Ok(stats) => sum.merge(&stats),
            Err(found) if worst.as_ref().is_none_or(|had| found.seed < had.seed) => {
                worst = Some(found);
            }
            Err(_) => {}
        }
    }
    worst.map_or(Ok(sum), Err)
}
