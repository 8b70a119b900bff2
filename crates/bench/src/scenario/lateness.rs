//! How late the load's own loop was, beside how late the operations were, and when the whole
//! machine stood still.
//!
//! While the load waits for the next due time it looks at the clock some times in a row, with
//! nothing in between. If two such looks are far apart, then somebody took the core. What was
//! taken by others of this machine is known: a thread that could run and did not has waited
//! in its core's queue, and Linux counts for how long (`schedstat`). In the rest of the gap
//! nothing of this machine ran on the core: the host had stopped it. The load's clock leaves
//! that out. What would have been due in it is due afterwards, and what was on its way is as
//! late as the clock on the wall says. How much time that was is printed (`stood_ms`).
//! Threads and processes of this machine, the client's own among them, are left out of
//! nothing.
//!
//! Two figures, of the same thread at the same time:
//!
//! * `late`: from when an operation was due until the loop came to it, before it did anything
//!   for it. What the loop did for the operations before is in it.
//! * `bare`: the same of a loop that does nothing. What was due between two looks with nothing
//!   in between was as late as the second. What was due at any other time is no sample;
//!   `looked_share` says how much of the time was looked at so.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use trefoil_ordered_load::Waits;

use crate::median::Median;
use crate::peer::procfs;

/// Looks at the clock in a row, between two looks for answers: some microseconds.
const LOOKS: usize = 128;
/// A longer time between two looks is a gap: a look takes less than a microsecond.
const GAP_MIN: Duration = Duration::from_micros(100);
/// Between two looks at how long the thread has waited in its core's queue: a look is a
/// system call.
const WAITED_PERIOD: Duration = Duration::from_millis(1);
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
    /// Of these, those in which the whole machine stood still; see the module.
    pub stood: u64,
    /// All of them together, which the load's clock leaves out.
    pub stood_ms: f64,
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
            stood: runs.iter().map(|run| run.stood).sum(),
            stood_ms: runs.iter().map(|run| run.stood_ms).sum(),
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
    stood: u64,
    stood_time: Duration,
    waits: Waits,
    /// How long the thread had waited in its core's queue, and when that was looked up.
    waited: Option<Duration>,
    waited_at: Duration,
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
            stood: 0,
            stood_time: Duration::ZERO,
            waits: Waits::of_this_thread(),
            waited: None,
            waited_at: Duration::ZERO,
            stolen,
            begin: Instant::now(),
        }
    }

    /// When the load began.
    pub(super) fn begin(&self) -> Instant {
        self.begin
    }

    /// When an operation is due, since then, as far as is known: the times in which the
    /// machine stood still so far are in it.
    pub(super) fn due(&self, number: u64) -> Duration {
        Duration::from_nanos(number * self.period_ns) + self.stood_time
    }

    /// Looks at the clock some times, until that operation is due; if it is, since when.
    pub(super) fn is_due(&mut self, number: u64) -> Option<Duration> {
        let mut now = self.begin.elapsed();
        if now >= self.waited_at + WAITED_PERIOD && now < self.due(number) {
            self.waited = self.waits.look();
            self.waited_at = now;
            now = self.begin.elapsed();
        }
        for _ in 0..LOOKS {
            if now >= self.due(number) {
                break;
            }
            std::hint::spin_loop();
            let before = std::mem::replace(&mut now, self.begin.elapsed());
            let from = before.saturating_sub(self.stood_time);
            if now - before >= GAP_MIN {
                let waited = self.waits.look();
                self.gap(now - before, waited);
                self.waited_at = now;
            }
            self.between(from, now.saturating_sub(self.stood_time));
        }
        let due = self.due(number);
        if now < due {
            return None;
        }
        self.late.saturating_record((now - due).as_nanos() as u64);
        Some(due)
    }

    /// Two looks were far apart, and so long had the thread waited in its core's queue after
    /// the second. What it has waited since that was last looked up may have been before the
    /// gap: then too little is left out.
    fn gap(&mut self, gap: Duration, waited: Option<Duration>) {
        self.gaps += 1;
        self.gap_time += gap;
        let then = std::mem::replace(&mut self.waited, waited);
        let Some((then, now)) = then.zip(waited) else {
            return;
        };
        let stood = gap.saturating_sub(now.saturating_sub(then));
        if stood >= GAP_MIN {
            self.stood += 1;
            self.stood_time += stood;
        }
    }

    /// Two looks with nothing in between, by the load's clock.
    fn between(&mut self, from: Duration, until: Duration) {
        self.looked += until.saturating_sub(from);
        let [from, until] = [from, until].map(|at| at.as_nanos() as u64);
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
            stood: self.stood,
            stood_ms: self.stood_time.as_secs_f64() * 1e3,
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
    fn the_loads_clock_leaves_out_when_the_machine_stood_still_and_nothing_else() {
        // Every 100 us.
        let mut lateness = Lateness::new(10_000);
        let ms = |ms| Some(Duration::from_millis(ms));
        lateness.waited = ms(7);
        // Of 20 ms others had one.
        lateness.gap(Duration::from_millis(20), ms(8));
        lateness.between(at_us(50), at_us(1_050));
        assert_eq!((lateness.stood, lateness.gaps), (1, 1));
        assert_eq!(lateness.stood_time, Duration::from_millis(19));
        // Due at 100 us by a clock that has stood for 19 ms.
        assert_eq!(lateness.due(1), at_us(19_100));
        // What was due in the millisecond that others had.
        assert_eq!(lateness.bare.len(), 10);
        assert!(lateness.bare.max().abs_diff(950 * US) < US);
        // Others had all of it, or nobody knows.
        lateness.gap(Duration::from_millis(3), ms(11));
        lateness.gap(Duration::from_millis(3), None);
        lateness.gap(Duration::from_millis(3), ms(11));
        assert_eq!((lateness.stood, lateness.gaps), (1, 4));
    }

    #[test]
    fn what_was_due_in_a_gap_was_as_late_as_its_end() {
        // Every 100 us.
        let mut lateness = Lateness::new(10_000);
        lateness.between(at_us(10), at_us(11));
        assert_eq!(lateness.bare.len(), 0);
        // Due at 100 to 400.
        lateness.gap(at_us(400), None);
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
            while lateness.is_due(number).is_none() {}
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
