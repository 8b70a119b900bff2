//! Many seeds, over several threads.

use crate::history::Broken;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::stats::Stats;
use crate::trace::Sink;
use crate::violation::{Form, Property, Violation};
use crate::whole::WholeStats;
use crate::world;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Lines of a violation's history.
const HISTORY_LINES_MAX: usize = 80;
/// Violations that end a batch of runs.
const VIOLATIONS_MAX: usize = 4;
/// Seeds that a thread takes at once.
const CHUNK: u64 = 32;
/// Longer than all that a run frees at once.
const BLOCK_LEN: usize = 30 << 20;
/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(10);

/// Runs one seed; `trace` receives a line for every step.
pub fn run_seed(seed: u64, trace: &mut dyn FnMut(&str)) -> Result<Stats, Violation> {
    let mut history: Vec<(Option<usize>, String)> = Vec::new();
    let mut sink = |key: Option<usize>, line: &str| {
        trace(line);
        history.push((key, line.to_owned()));
    };
    let result = attempt(seed, Some(&mut sink));
    result.map_err(|mut violation| {
        violation.history = relevant(&history);
        violation
    })
}

/// Runs one seed without a trace: fast.
pub fn run(seed: u64) -> Result<Stats, Violation> {
    attempt(seed, None)
}

fn attempt(seed: u64, sink: Option<Sink<'_>>) -> Result<Stats, Violation> {
    let rng = Rng::new(seed);
    let profile = Profile::draw(&rng).repaired(seed).bereft(seed);
    guard(seed, Form::Protocol, || world::run(profile, rng, sink))
}

/// What came of a run, a panic included.
pub(crate) fn guard<S>(
    seed: u64,
    form: Form,
    run: impl FnOnce() -> (S, Result<(), Broken>),
) -> Result<S, Violation> {
    let outcome = catch_unwind(AssertUnwindSafe(run));
    let violation = |property, message| Violation {
        seed,
        form,
        property,
        message,
        history: Vec::new(),
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

/// The last lines that concern the key of the last line that names one.
pub(crate) fn relevant(history: &[(Option<usize>, String)]) -> Vec<String> {
    let key = history.iter().rev().find_map(|(key, _)| *key);
    let wanted = |line: &&(Option<usize>, String)| line.0.is_none() || line.0 == key;
    let mut lines: Vec<String> = history
        .iter()
        .rev()
        .filter(wanted)
        .take(HISTORY_LINES_MAX)
        .map(|(_, line)| line.clone())
        .collect();
    lines.reverse();
    lines
}

/// What runs count.
pub trait Counts: Default + Send {
    /// Adds another run's counts.
    fn add(&mut self, other: &Self);

    /// Every count with its name, for tables.
    fn named(&self) -> Vec<(String, u64)>;
}

impl Counts for Stats {
    fn add(&mut self, other: &Self) {
        self.merge(other);
    }

    fn named(&self) -> Vec<(String, u64)> {
        self.iter().collect()
    }
}

impl Counts for WholeStats {
    fn add(&mut self, other: &Self) {
        self.merge(other);
    }

    fn named(&self) -> Vec<(String, u64)> {
        self.iter().collect()
    }
}

/// What a batch of runs found.
#[derive(Clone, Debug, Default)]
pub struct Report<S = Stats> {
    /// First seed.
    pub first: u64,
    /// Seeds asked for.
    pub count: u64,
    /// Sums over all clean runs.
    pub stats: S,
    /// The first violations found, by seed; each with its history. The batch
    /// ends early when there are several.
    pub violations: Vec<Violation>,
}

impl<S> Report<S> {
    /// Whether every seed was run and kept the promise.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Runs `count` seeds from `first` on `threads` threads. `progress` is called
/// on the calling thread with the number of seeds done so far.
pub fn run_many(first: u64, count: u64, threads: usize, progress: &dyn Fn(u64)) -> Report {
    run_many_with(first, count, threads, progress, &|| {})
}

/// As [`run_many`]; every thread calls `prepare` first.
pub(crate) fn run_many_with(
    first: u64,
    count: u64,
    threads: usize,
    progress: &dyn Fn(u64),
    prepare: &(dyn Fn() + Sync),
) -> Report {
    Batch::of(first, count, threads)
        .run(progress, prepare, &run, &|seed| run_seed(seed, &mut |_| {}))
}

/// Seeds to be run, and by how many threads.
pub(crate) struct Batch {
    first: u64,
    count: u64,
    threads: usize,
}

impl Batch {
    pub(crate) fn of(first: u64, count: u64, threads: usize) -> Self {
        Batch {
            first,
            count,
            threads: threads.max(1),
        }
    }

    /// Every thread calls `prepare`, then `run` for its seeds; `tell` runs once more
    /// what was violated, for its history.
    pub(crate) fn run<S: Counts>(
        &self,
        progress: &dyn Fn(u64),
        prepare: &(dyn Fn() + Sync),
        run: &(dyn Fn(u64) -> Result<S, Violation> + Sync),
        tell: &(dyn Fn(u64) -> Result<S, Violation> + Sync),
    ) -> Report<S> {
        // Once a large block was freed, the C library's allocator keeps smaller ones for
        // the next run, which else is given fresh pages, cleared by the kernel, each time.
        drop(std::hint::black_box(Vec::<u8>::with_capacity(BLOCK_LEN)));
        let next = AtomicU64::new(0);
        let done = AtomicU64::new(0);
        let enough = AtomicBool::new(false);
        let sum: Mutex<(S, Vec<Violation>)> = Mutex::default();
        let work = || {
            prepare();
            let mut stats = S::default();
            while !enough.load(Ordering::Relaxed) {
                let chunk = next.fetch_add(CHUNK, Ordering::Relaxed);
                if chunk >= self.count {
                    break;
                }
                for offset in chunk..(chunk + CHUNK).min(self.count) {
                    let seed = self.first.wrapping_add(offset);
                    match run(seed) {
                        Ok(of_seed) => stats.add(&of_seed),
                        Err(violation) => {
                            let told = tell(seed).err().unwrap_or(violation);
                            let mut sum = sum.lock().unwrap_or_else(|e| e.into_inner());
                            sum.1.push(told);
                            enough.store(sum.1.len() >= VIOLATIONS_MAX, Ordering::Relaxed);
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            sum.lock().unwrap_or_else(|e| e.into_inner()).0.add(&stats);
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            while !workers.iter().all(|worker| worker.is_finished()) {
                progress(done.load(Ordering::Relaxed));
                std::thread::sleep(PROGRESS_INTERVAL);
            }
        });
        progress(done.into_inner());
        let (stats, mut violations) = sum.into_inner().unwrap_or_else(|e| e.into_inner());
        violations.sort_by_key(|violation| violation.seed);
        Report {
            first: self.first,
            count: self.count,
            stats,
            violations,
        }
    }
}
