//! kill -9 of one of three backends, each a process, in the middle of an
//! open-loop 95/5 mix at R=3.2: nothing may fail, and latency has to come back.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Mix, Progress, ScenarioError, ScenarioOptions, connect};
use crate::load::{
    Bound, LoadError, Popularity, RunShared, Summary, TIMELINE_SLOT, Timeline, TimelineSlot,
};
use crate::median::Median;
use crate::report::{TimelineEvent, TimelinePlot, TimelineSeries};
use crate::server::{Server, ServerOptions};

const VICTIM: usize = 1;
const MEMORY: u64 = 512 << 20;
const WARM_UP: Duration = Duration::from_millis(500);
/// So many slots in a row have to be fast again: one alone may be luck.
const CALM_SLOTS: usize = 3;
/// Slots that begin so long after the kill count as "after".
const SETTLED_MS: u64 = 1_000;

/// What the kills cost.
#[derive(Debug, Clone, Serialize)]
pub struct KillReport {
    /// Runs; in each a fresh cell loses a backend.
    pub runs: usize,
    /// Keys of the corpus.
    pub keys: u64,
    /// Bytes of a value.
    pub value_size: usize,
    /// Operations per second, Poisson.
    pub rate: f64,
    /// Operations of all runs.
    pub ops: u64,
    /// GETs and SETs that failed, writes of unknown fate included.
    pub failed: u64,
    /// Hits older than a write acknowledged before the GET began.
    pub stale: u64,
    /// Hits with another key's value or torn ones.
    pub wrong: u64,
    /// GETs without a value, although every key is stored and memory suffices.
    pub misses: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
    /// p99 of a tenth of a second before the kill, median of slots and runs.
    pub p99_before_ns: u64,
    /// The same from one second after the kill.
    pub p99_after_ns: u64,
    /// From the kill until p99 stays under twice `p99_before_ns` for three
    /// tenths of a second, in milliseconds, median; nothing if it never did.
    pub recovery_ms: Option<u64>,
    /// The slowest run's; nothing if one never recovered.
    pub recovery_ms_max: Option<u64>,
    /// The run with the median recovery.
    pub timeline: Timeline,
    /// When its backend was killed, in milliseconds of the run.
    pub killed_at_ms: u64,
}

impl KillReport {
    /// Nothing failed, nothing was stale, wrong or lost.
    pub fn is_clean(&self) -> bool {
        self.failed + self.stale + self.wrong + self.misses == 0
    }

    /// Latency over time with the kill marked.
    pub fn plot(&self) -> TimelinePlot {
        TimelinePlot {
            title: format!(
                "R=3.2, 95/5 at {:.0} operations/s: one of three backends killed",
                self.rate
            ),
            series: vec![TimelineSeries {
                name: "trefoil".to_owned(),
                timeline: self.timeline.clone(),
            }],
            events: vec![TimelineEvent {
                at_ms: self.killed_at_ms,
                label: "kill -9 of backend 1".to_owned(),
            }],
        }
    }
}

struct Run {
    summary: Summary,
    timeline: Timeline,
    killed_at_ms: u64,
    recovery: Recovery,
}

/// Kills a backend in each of several runs.
pub fn kill(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<KillReport, ScenarioError> {
    options.pin()?;
    let mix = Mix {
        keys_count: options.scaled(50_000, 10_000),
        value_len: 1024,
        popularity: Popularity::Uniform,
        gets: 0.95,
        ops_per_s: Some(20_000.0),
    };
    let mut runs = Vec::new();
    for number in 0..options.runs.max(1) {
        progress(&format!(
            "kill: run {} of {}",
            number + 1,
            options.runs.max(1)
        ));
        runs.push(run(options, mix, number as u64 + 1)?);
    }
    // Never recovered counts as longest.
    runs.sort_by_key(|run| run.recovery.ms.unwrap_or(u64::MAX));
    let sum = |figure: fn(&Summary) -> u64| runs.iter().map(|run| figure(&run.summary)).sum();
    let figures = |figure: fn(&Recovery) -> u64| -> Vec<u64> {
        runs.iter().map(|run| figure(&run.recovery)).collect()
    };
    let middle = &runs[runs.len() / 2];
    Ok(KillReport {
        runs: runs.len(),
        keys: mix.keys_count,
        value_size: mix.value_len,
        rate: mix.ops_per_s.unwrap_or(0.0),
        ops: sum(|s| s.ops),
        failed: sum(|s| s.failed + s.indeterminate),
        stale: sum(|s| s.stale),
        wrong: sum(|s| s.wrong),
        misses: sum(|s| s.misses),
        first_error: runs.iter().find_map(|run| run.summary.first_error.clone()),
        p99_before_ns: u64::median(&figures(|r| r.p99_before_ns)).unwrap_or(0),
        p99_after_ns: u64::median(&figures(|r| r.p99_after_ns)).unwrap_or(0),
        recovery_ms: middle.recovery.ms,
        recovery_ms_max: runs.last().and_then(|run| run.recovery.ms),
        timeline: middle.timeline.clone(),
        killed_at_ms: middle.killed_at_ms,
    })
}

fn run(options: &ScenarioOptions, mix: Mix, seed: u64) -> Result<Run, ScenarioError> {
    let server = Server::start(&ServerOptions {
        processes: true,
        is_silent: true,
        ..options.server("R=3.2", MEMORY)
    })?;
    let mut target = connect(&server)?;
    let shared = RunShared::writing(mix.keys_count);
    mix.preload(&mut target, &shared)?;
    let measured = Duration::from_secs(options.scaled(6, 3));
    let (result, ended, killed) = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            std::thread::sleep(WARM_UP + measured / 2);
            let now = Instant::now();
            server.kill(VICTIM);
            now
        });
        let bound = Bound::Time(measured);
        let result = mix.run(&mut target, &shared, WARM_UP, bound, seed);
        let ended = Instant::now();
        (result, ended, killer.join())
    });
    let result = result?;
    let killed = killed.map_err(|_| LoadError::Panicked)?;
    // The run's clock began when the warm-up was over.
    let began = ended.checked_sub(result.elapsed).unwrap_or(ended);
    let killed_at_ms = killed.saturating_duration_since(began).as_millis() as u64;
    let summary = Summary::of(&result);
    // The last slot is a part of one, of a few operations.
    let mut timeline = result.timeline;
    timeline.slots.pop();
    let recovery = Recovery::of(&timeline, killed_at_ms);
    Ok(Run {
        summary,
        timeline,
        killed_at_ms,
        recovery,
    })
}

/// How latency went around an event.
#[derive(Debug, PartialEq, Eq)]
struct Recovery {
    p99_before_ns: u64,
    p99_after_ns: u64,
    ms: Option<u64>,
}

impl Recovery {
    fn of(timeline: &Timeline, at_ms: u64) -> Self {
        let slots = &timeline.slots;
        let slot_ms = TIMELINE_SLOT.as_millis() as u64;
        let p99_of = |keep: &dyn Fn(u64) -> bool| {
            let kept = slots.iter().filter(|slot| keep(slot.start_ms));
            u64::median(&kept.map(|slot| slot.p99_ns).collect::<Vec<_>>()).unwrap_or(0)
        };
        let p99_before_ns = p99_of(&|start_ms| start_ms + slot_ms <= at_ms);
        let p99_after_ns = p99_of(&|start_ms| start_ms >= at_ms + SETTLED_MS);
        // From the slot with the event in it.
        let first = slots
            .iter()
            .position(|slot| slot.start_ms + slot_ms > at_ms)
            .unwrap_or(slots.len());
        let is_calm = |slot: &TimelineSlot| {
            slot.failed == 0 && slot.p99_ns > 0 && slot.p99_ns < 2 * p99_before_ns
        };
        let ms = slots[first..]
            .windows(CALM_SLOTS)
            .find(|window| window.iter().all(is_calm))
            .map(|window| window[0].start_ms.saturating_sub(at_ms));
        Self {
            p99_before_ns,
            p99_after_ns,
            ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(p99s: &[u64]) -> Timeline {
        let slot = |(i, p99_ns): (usize, &u64)| TimelineSlot {
            start_ms: i as u64 * 100,
            ops: 10,
            failed: 0,
            p99_ns: *p99_ns,
        };
        Timeline {
            slots: p99s.iter().enumerate().map(slot).collect(),
        }
    }

    #[test]
    fn recovery_counts_from_the_kill_to_the_first_calm_stretch() {
        let slots = [
            10, 11, 10, 500, 400, 12, 900, 15, 15, 15, 15, 15, 15, 15, 15,
        ];
        assert_eq!(
            Recovery::of(&timeline(&slots), 350),
            Recovery {
                p99_before_ns: 10,
                p99_after_ns: 15,
                ms: Some(350),
            }
        );
        let undisturbed = Recovery::of(&timeline(&[10; 20]), 350);
        assert_eq!(undisturbed.ms, Some(0));
    }

    #[test]
    fn a_run_that_stays_slow_or_empty_never_recovers() {
        let slots = [10, 10, 10, 20, 20, 20, 20, 20];
        assert_eq!(Recovery::of(&timeline(&slots), 250).ms, None);
        assert_eq!(Recovery::of(&Timeline::default(), 250).ms, None);
        let stalled = [10, 10, 10, 0, 0, 0, 0];
        assert_eq!(Recovery::of(&timeline(&stalled), 250).ms, None);
    }
}
