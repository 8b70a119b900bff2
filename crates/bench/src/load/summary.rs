//! A run in a dozen figures, under the names that scripts rely on.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::RunResult;

/// Percentiles of one kind of operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many were timed; a batch is one.
    pub count: u64,
    /// Time of all together by their number.
    pub mean_ns: u64,
    /// Half were at most this slow.
    pub p50_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
    /// All.
    pub max_ns: u64,
}

impl Latency {
    /// Percentiles of a histogram in nanoseconds; zeros where it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        Self {
            count: histogram.len(),
            mean_ns: histogram.mean().round() as u64,
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// What `trefoil bench get|set|mix --json` prints. Scripts rely on the names of
/// the first nine fields; others may be added.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Keys operated on, failed ones included.
    pub ops: u64,
    /// Those that failed.
    pub failed: u64,
    /// Lookups without a value.
    pub misses: u64,
    /// Hits older than a write acknowledged before the lookup began.
    pub stale: u64,
    /// Retries by cause.
    pub retries: BTreeMap<String, u64>,
    /// Operations that succeeded, per second.
    pub ops_per_s: f64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Lookups with a value.
    pub hits: u64,
    /// Hits whose value was not the key's.
    pub wrong: u64,
    /// Hits too short to verify.
    pub unverified: u64,
    /// Writes that a newer one preceded.
    pub superseded: u64,
    /// Writes of unknown fate.
    pub indeterminate: u64,
    /// Measured time.
    pub seconds: f64,
    /// Lookups alone.
    pub get: Latency,
    /// Writes alone.
    pub set: Latency,
    /// The first error met, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Summary {
    /// Sums a run up.
    pub fn of(run: &RunResult) -> Self {
        let mut all = run.get.clone();
        // Same bounds by construction, so adding cannot fail.
        let _ = all.add(&run.set);
        let all = Latency::of(&all);
        let seconds = run.elapsed.as_secs_f64();
        Self {
            ops: run.ops,
            failed: run.failed,
            misses: run.misses,
            stale: run.stale,
            retries: run.retries.clone(),
            ops_per_s: if seconds > 0.0 {
                (run.ops - run.failed) as f64 / seconds
            } else {
                0.0
            },
            p50_ns: all.p50_ns,
            p99_ns: all.p99_ns,
            p999_ns: all.p999_ns,
            hits: run.hits,
            wrong: run.wrong,
            unverified: run.unverified,
            superseded: run.superseded,
            indeterminate: run.indeterminate,
            seconds,
            get: Latency::of(&run.get),
            set: Latency::of(&run.set),
            first_error: run.first_error.clone(),
        }
    }

    /// Part of the lookups that found a value; 0 where there were none.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.misses {
            0 => 0.0,
            lookups => self.hits as f64 / lookups as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::recorder::{Kind, Recorder};
    use super::*;

    #[test]
    fn percentiles_and_names_are_as_promised() {
        let mut recorder = Recorder::new();
        for i in 1..=1_000 {
            recorder.succeeded(Kind::Get, 1, i * 1_000, i);
        }
        recorder.succeeded(Kind::Set, 1, 5_000_000, 2_000);
        recorder.failed(1, 3_000, || "gone".into());
        let retries = BTreeMap::from([("torn".to_owned(), 3)]);
        let summary = Summary::of(&recorder.finish(Duration::from_secs(2), retries));
        assert_eq!((summary.ops, summary.failed), (1_002, 1));
        assert_eq!(summary.ops_per_s, 500.5);
        let near = |found: u64, expected: f64| (found as f64 - expected).abs() < 0.002 * expected;
        assert!(near(summary.get.p50_ns, 500_000.0), "{summary:?}");
        assert!(near(summary.p99_ns, 991_000.0), "{summary:?}");
        assert!(near(summary.set.max_ns, 5_000_000.0), "{summary:?}");

        let json = serde_json::to_value(&summary).unwrap();
        for name in [
            "ops",
            "failed",
            "misses",
            "stale",
            "retries",
            "ops_per_s",
            "p50_ns",
            "p99_ns",
            "p999_ns",
        ] {
            assert!(json.get(name).is_some(), "{name}");
        }
        assert_eq!(json["retries"]["torn"], 3);
        assert_eq!(json["first_error"], "gone");
    }

    #[test]
    fn an_empty_run_has_no_figures_and_no_division_by_zero() {
        let summary = Summary::of(&Recorder::new().finish(Duration::ZERO, BTreeMap::new()));
        assert_eq!(summary, Summary::default());
        assert_eq!(summary.hit_ratio(), 0.0);
    }
}
