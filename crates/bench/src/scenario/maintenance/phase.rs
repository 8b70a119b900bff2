//! A stretch of a run in one line: before, during or after what is done to the cell.

use serde::Serialize;

use super::super::steady::{Ended, Verdict, at};
use super::slots::Slot;
use crate::report::{bytes, nanoseconds, rate};

/// A stretch of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Phase {
    /// How long it was.
    pub seconds: f64,
    /// Operations that ended in it.
    pub operations: u64,
    /// Of GETs, from when they were due: the median.
    pub get_p50_ns: u64,
    /// 99th percentile.
    pub get_p99_ns: u64,
    /// 99.9th percentile.
    pub get_p999_ns: u64,
    /// Of SETs: the median.
    pub set_p50_ns: u64,
    /// 99th percentile.
    pub set_p99_ns: u64,
    /// 99.9th percentile.
    pub set_p999_ns: u64,
    /// Operations that failed.
    pub failed: u64,
    /// GETs that found nothing.
    pub misses: u64,
    /// GETs that found an old value.
    pub stale: u64,
    /// Operations that were tried more than once.
    pub retried: u64,
    /// Bytes of answers to those who copied from a backend.
    pub copied_bytes: u64,
    /// Bytes of the calls of scans and repairs.
    pub repaired_bytes: u64,
    /// Cores that the cell's processes used, all together.
    pub server_cores: f64,
    /// Share of a core that the client spent in operations.
    pub client_cores: f64,
}

pub(super) const HEADS: [&str; 13] = [
    "",
    "seconds",
    "op/s",
    "GET p50",
    "p99",
    "p99.9",
    "SET p50",
    "p99",
    "p99.9",
    "failed, missed, old",
    "retried",
    "copied, repaired",
    "cores: cell, client",
];

impl Phase {
    /// Of the operations between two moments, in nanoseconds of the run, and of the slots
    /// that belong to them.
    pub(super) fn of(ended: &[Ended], (from_ns, until_ns): (u64, u64), slots: &[Slot]) -> Self {
        let mut phase = Phase {
            seconds: until_ns.saturating_sub(from_ns) as f64 / 1e9,
            ..Phase::default()
        };
        let (mut gets, mut sets) = (Vec::new(), Vec::new());
        let mut inside_ns = 0;
        for one in ended {
            if !(from_ns..until_ns).contains(&(one.at.as_nanos() as u64)) {
                continue;
            }
            let times = if one.is_set { &mut sets } else { &mut gets };
            times.push(one.took.as_nanos() as u64);
            inside_ns += one.inside.as_nanos() as u64;
            phase.operations += 1;
            phase.retried += one.retried;
            phase.failed += u64::from(matches!(one.verdict, Verdict::Failed | Verdict::Wrong));
            phase.misses += u64::from(matches!(one.verdict, Verdict::Missed(_)));
            phase.stale += u64::from(one.verdict == Verdict::Stale);
        }
        gets.sort_unstable();
        sets.sort_unstable();
        [phase.get_p50_ns, phase.get_p99_ns, phase.get_p999_ns] = percentiles(&gets);
        [phase.set_p50_ns, phase.set_p99_ns, phase.set_p999_ns] = percentiles(&sets);
        phase.client_cores = inside_ns as f64 / 1e9 / phase.seconds.max(1e-9);
        for slot in slots {
            phase.copied_bytes += slot.copied_bytes;
            phase.repaired_bytes += slot.repaired_bytes;
            phase.server_cores += slot.server_cores.values().sum::<f64>();
        }
        phase.server_cores /= slots.len().max(1) as f64;
        phase
    }

    /// A row under [`HEADS`].
    pub(super) fn cells(&self, name: &str) -> [String; HEADS.len()] {
        [
            name.to_owned(),
            format!("{:.1}", self.seconds),
            rate(self.operations as f64 / self.seconds.max(1e-9)),
            nanoseconds(self.get_p50_ns),
            nanoseconds(self.get_p99_ns),
            nanoseconds(self.get_p999_ns),
            nanoseconds(self.set_p50_ns),
            nanoseconds(self.set_p99_ns),
            nanoseconds(self.set_p999_ns),
            format!("{}, {}, {}", self.failed, self.misses, self.stale),
            self.retried.to_string(),
            format!(
                "{}, {}",
                bytes(self.copied_bytes),
                bytes(self.repaired_bytes)
            ),
            format!("{:.2}, {:.2}", self.server_cores, self.client_cores),
        ]
    }
}

pub(super) fn percentiles(sorted: &[u64]) -> [u64; 3] {
    [0.5, 0.99, 0.999].map(|share| at(sorted, share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use trefoil_client::MissReason;

    #[test]
    fn a_phase_has_what_ended_in_it_and_nothing_else() {
        let one = |at_ms: u64, took_us: u64, is_set, verdict| Ended {
            at: Duration::from_millis(at_ms),
            is_set,
            took: Duration::from_micros(took_us),
            inside: Duration::from_millis(1),
            retried: u64::from(took_us > 100),
            verdict,
        };
        let ended = [
            one(10, 5, false, Verdict::Fine),
            one(110, 200, false, Verdict::Missed(MissReason::Inquorate)),
            one(120, 300, true, Verdict::Failed),
            one(130, 10, false, Verdict::Stale),
            one(200, 7, true, Verdict::Fine),
        ];
        let slot = |start_ms, copied_bytes| Slot {
            start_ms,
            copied_bytes,
            server_cores: BTreeMap::from([("backend 0".to_owned(), 0.5), ("cell".to_owned(), 0.1)]),
            ..Slot::default()
        };
        let slots = [slot(100, 20), slot(200, 300)];
        let phase = Phase::of(&ended, (100_000_000, 200_000_000), &slots);
        assert_eq!((phase.operations, phase.retried), (3, 2));
        assert_eq!((phase.failed, phase.misses, phase.stale), (1, 1, 1));
        assert_eq!((phase.get_p50_ns, phase.get_p99_ns), (200_000, 200_000));
        assert_eq!(phase.set_p999_ns, 300_000);
        assert_eq!(phase.copied_bytes, 320);
        assert!((phase.server_cores - 0.6).abs() < 1e-9);
        assert!((phase.client_cores - 0.03).abs() < 1e-9);
        let nothing = Phase::of(&[], (0, 0), &[]);
        assert_eq!(nothing.cells("x")[1], "0.0");
    }
}
