//! What is true of every row, and when it became so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) const ROWS: usize = 2_000;
/// The first ones, which most reads go to: each is read more often than it changes.
pub(super) const HOT_ROWS: usize = 20;
/// Values that were written behind the failover are above this.
pub(super) const BRANCH: u64 = 1_000_000_000;

/// One row: what was acknowledged of it, and when.
#[derive(Debug)]
pub(super) struct Row {
    /// Its value when its history began here: at first, or when the failover was over.
    pub(super) base: u64,
    /// When that was.
    pub(super) base_at: Instant,
    /// When each later change was acknowledged.
    pub(super) acknowledged: Vec<Instant>,
    /// Acknowledgements before the failover, from value 1 on.
    pub(super) former: Vec<Instant>,
}

/// All rows.
pub(super) struct Truth {
    rows: Vec<Mutex<Row>>,
    pub(super) has_failed_over: AtomicBool,
    /// From the end of the database to when it is known what its copy has: that answers
    /// already, with what was true a while ago.
    pub(super) is_failing_over: AtomicBool,
}

impl Truth {
    pub(super) fn new() -> Self {
        let row = |_| {
            Mutex::new(Row {
                base: 0,
                base_at: Instant::now(),
                acknowledged: Vec::new(),
                former: Vec::new(),
            })
        };
        Truth {
            rows: (0..ROWS).map(row).collect(),
            has_failed_over: AtomicBool::new(false),
            is_failing_over: AtomicBool::new(false),
        }
    }

    pub(super) fn row(&self, row: usize) -> MutexGuard<'_, Row> {
        self.rows[row]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The database serves again, and has this.
    pub(super) fn fail_over(&self, values: &[u64], now: Instant) {
        for (number, value) in values.iter().enumerate() {
            let mut row = self.row(number);
            row.former = std::mem::take(&mut row.acknowledged);
            row.base = *value;
            row.base_at = now;
        }
        self.has_failed_over.store(true, Ordering::Release);
        self.is_failing_over.store(false, Ordering::Release);
    }

    /// Since when a value had been replaced at a moment; nothing if it had not.
    pub(super) fn replaced(&self, number: usize, value: u64, at: Instant) -> Duration {
        let row = self.row(number);
        let since = match self.has_failed_over.load(Ordering::Acquire) {
            false => row.acknowledged.get(value as usize),
            true if value >= BRANCH => row.acknowledged.get((value - BRANCH) as usize + 1),
            true if value == row.base => row.acknowledged.first(),
            true if value < row.base => row.former.get(value as usize),
            // Committed and lost.
            true => Some(&row.base_at),
        };
        since.map_or(Duration::ZERO, |since| at.saturating_duration_since(*since))
    }

    /// How long before a moment the row was changed last, if it was before it.
    pub(super) fn changed(&self, number: usize, at: Instant) -> Option<Duration> {
        let row = self.row(number);
        let last = row.acknowledged.iter().rev().find(|since| **since <= at)?;
        Some(at.duration_since(*last))
    }
}
