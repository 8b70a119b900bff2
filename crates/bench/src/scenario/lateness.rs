//! How late the load's own loop was, beside how late the operations were. A host that takes
//! the core away for milliseconds makes both late; what only the operations show is the
//! cell's. Nothing is subtracted from anything: both are printed.
//!
//! Two figures, of the same thread at the same time:
//!
//! * `late`: from when an operation was due until the loop came to it, before it did anything
//!   for it. What the loop did for the operations before is in it.
//! * `bare`: the same of a loop that does nothing. While the load waits for the next due time
//!   it looks at the clock some times in a row, with nothing in between. What was due between
//!   two such looks was as late as the second. What was due at any other time is no sample;
//!   `looked_share` says how much of the time was looked at so.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::median::Median;
use crate::peer::procfs;

/// Looks at the clock in a row, between two looks for answers.
const LOOKS: usize = 8;
/// A longer time between two looks is a gap: a look takes less than a microsecond.
const GAP_MIN: Duration = Duration::from_micros(100);
const LATENESS_MAX_NS: u64 = 60_000_000_000;

/// See the module.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LoopFigures {
    /// Of the load's loop: the median.
    pub late_p50_ns: u64,
    /// 99th percentile.
    pub late_p99_ns: u64,
    /// 99.9th percentile.
    pub late_p999_ns: u64,
    /// The latest; of several runs, of all.
    pub late_max_ns: u64,
    /// Of a loop that does nothing: the median.
    pub bare_p50_ns: u64,
    /// 99th percentile.
    pub bare_p99_ns: u64,
    /// 99.9th percentile.
    pub bare_p999_ns: u64,
    /// The latest; of several runs, of all.
    pub bare_max_ns: u64,
    /// Times of 100 us and more between two looks with nothing in between.
    pub gaps: u64,
    /// All of them together.
    pub gaps_ms: f64,
    /// Share of the time that was looked at so; gaps at other times are not seen.
    pub looked_share: f64,
    /// Seconds that the host says it took from the machine's cores, all together.
    pub stolen_s: f64,
}

/// Percentiles are medians, counts are sums: a median would hide a run.
impl Median for LoopFigures {
    fn median(runs: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> u64| {
            let all: Vec<u64> = runs.iter().map(figure).collect();
            u64::median(&all)
        };
        let share: Vec<f64> = runs.iter().map(|run| run.looked_share).collect();
        let most = |figure: fn(&Self) -> u64| runs.iter().map(figure).max();
        Some(LoopFigures {
            late_p50_ns: of(|run| run.late_p50_ns)?,
            late_p99_ns: of(|run| run.late_p99_ns)?,
            late_p999_ns: of(|run| run.late_p999_ns)?,
            late_max_ns: most(|run| run.late_max_ns)?,
            bare_p50_ns: of(|run| run.bare_p50_ns)?,
            bare_p99_ns: of(|run| run.bare_p99_ns)?,
            bare_p999_ns: of(|run| run.bare_p999_ns)?,
            bare_max_ns: most(|run| run.bare_max_ns)?,
            gaps: runs.iter().map(|run| run.gaps).sum(),
            gaps_ms: runs.iter().map(|run| run.gaps_ms).sum(),
            looked_share: f64::median(&share)?,
            stolen_s: runs.iter().map(|run| run.stolen_s).sum(),
        })
    }
}

/// Looks at the clock for a load whose operations are due at even times.
pub(super) struct Lateness {
    begin: Instant,
    /// Between two operations, in nanoseconds.
    period_ns: u64,
    /// The first due time that is no sample yet, as the number of its operation.
    next: u64,
    late: Histogram<u64>,
    bare: Histogram<u64>,
    looked: Duration,
    gaps: u64,
    gap_time: Duration,
    stolen: Option<Duration>,
}

fn histogram() -> Histogram<u64> {
    // Three digits of up to a minute: bounds that are always allowed.
    Histogram::new_with_bounds(1, LATENESS_MAX_NS, 3).expect("constant bounds are valid")
}

impl Lateness {
    pub(super) fn new(ops_per_s: u64) -> Self {
        let stolen = procfs::machine_time().ok().map(|time| time.stolen);
        let (late, bare) = (histogram(), histogram());
        Lateness {
            period_ns: 1_000_000_000 / ops_per_s.max(1),
            next: 0,
            late,
            bare,
            looked: Duration::ZERO,
            gaps: 0,
            gap_time: Duration::ZERO,
            stolen,
            begin: Instant::now(),
        }
    }

    /// When the load began.
    pub(super) fn begin(&self) -> Instant {
        self.begin
    }

    /// When an operation is due, since then.
    pub(super) fn due(&self, number: u64) -> Duration {
        Duration::from_nanos(number * self.period_ns)
    }

    /// Looks at the clock some times, until that is due; whether it is.
    pub(super) fn is_due(&mut self, due: Duration) -> bool {
        let mut now = self.begin.elapsed();
        for _ in 0..LOOKS {
            if now >= due {
                break;
            }
            std::hint::spin_loop();
            let before = std::mem::replace(&mut now, self.begin.elapsed());
            self.between(before, now);
        }
        if now >= due {
            self.late.saturating_record((now - due).as_nanos() as u64);
        }
        now >= due
    }

    /// Two looks with nothing in between.
    fn between(&mut self, before: Duration, now: Duration) {
        let between = now - before;
        self.looked += between;
        if between >= GAP_MIN {
            self.gaps += 1;
            self.gap_time += between;
        }
        let (from, until) = (before.as_nanos() as u64, now.as_nanos() as u64);
        self.next = self.next.max(from.div_ceil(self.period_ns));
        while self.next * self.period_ns < until {
            let late = until - self.next * self.period_ns;
            self.bare.saturating_record(late);
            self.next += 1;
        }
    }

    pub(super) fn figures(&self) -> LoopFigures {
        let [late_p50_ns, late_p99_ns, late_p999_ns] =
            [0.5, 0.99, 0.999].map(|share| self.late.value_at_quantile(share));
        let [bare_p50_ns, bare_p99_ns, bare_p999_ns] =
            [0.5, 0.99, 0.999].map(|share| self.bare.value_at_quantile(share));
        let stolen = procfs::machine_time().ok().map(|time| time.stolen);
        let stolen = stolen.zip(self.stolen);
        let stolen = stolen.map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then));
        LoopFigures {
            late_p50_ns,
            late_p99_ns,
            late_p999_ns,
            late_max_ns: self.late.max(),
            bare_p50_ns,
            bare_p99_ns,
            bare_p999_ns,
            bare_max_ns: self.bare.max(),
            gaps: self.gaps,
            gaps_ms: self.gap_time.as_secs_f64() * 1e3,
            looked_share: self.looked.as_secs_f64() / self.begin.elapsed().as_secs_f64().max(1e-9),
            stolen_s: stolen.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn at_us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn what_was_due_in_a_gap_was_as_late_as_its_end() {
        // Every 100 us.
        let mut lateness = Lateness::new(10_000);
        lateness.between(at_us(10), at_us(11));
        assert_eq!(lateness.bare.len(), 0);
        // Due at 100 to 400.
        lateness.between(at_us(50), at_us(450));
        assert_eq!((lateness.gaps, lateness.bare.len()), (1, 4));
        assert!(lateness.bare.max().abs_diff(350 * US) < US);
        assert!(lateness.bare.min().abs_diff(50 * US) < US);
        // What was due at 500 and 600 was due while the loop was at work: no sample.
        lateness.between(at_us(610), at_us(640));
        assert_eq!(lateness.bare.len(), 4);
        lateness.between(at_us(699), at_us(701));
        assert_eq!((lateness.gaps, lateness.bare.len()), (1, 5));
        assert_eq!(lateness.looked, at_us(1 + 400 + 30 + 2));
    }

    #[test]
    fn a_loop_that_is_held_up_by_its_own_work_is_late_and_a_bare_one_is_not() {
        let mut lateness = Lateness::new(1_000);
        std::thread::sleep(Duration::from_millis(5));
        for number in 0..5 {
            let due = lateness.due(number);
            while !lateness.is_due(due) {}
        }
        let figures = lateness.figures();
        assert!(figures.late_max_ns >= 4_900 * US, "{figures:?}");
        assert_eq!((lateness.late.len(), lateness.bare.len()), (5, 0));
    }

    #[test]
    fn percentiles_of_runs_are_medians_and_gaps_are_sums() {
        let run = |us: u64| LoopFigures {
            late_p999_ns: us * US,
            bare_max_ns: us * US,
            gaps: us,
            ..LoopFigures::default()
        };
        let median = LoopFigures::median(&[run(7), run(1), run(5)]).unwrap();
        assert_eq!((median.late_p999_ns, median.gaps), (5 * US, 13));
        assert_eq!(median.bare_max_ns, 7 * US);
    }
}
