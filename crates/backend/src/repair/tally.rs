//! What came of repair so far, for statistics.

use super::Named;
use crate::recovery::Setback;
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_recovery::scan::{Counts, Scan};
use trefoil_rpc::v1;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Keys that others have named.
    pub(crate) named: Named,
    /// A scan is to begin at once.
    is_wanted: AtomicBool,
    interval: Duration,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// Of scans that have ended, and of the one that is under way.
    ended: Counts,
    under_way: Counts,
    backlog: usize,
    scans: u64,
    interrupted: u64,
    bytes: u64,
    calls: u64,
    /// How long the last whole scan took, when it ended, and what it left.
    last: Option<(Duration, Instant, u64)>,
    waits_for: String,
    /// The reason that the log has told last.
    told: String,
}

impl Tally {
    pub(crate) fn new(interval: Duration) -> Self {
        Tally {
            named: Named::default(),
            is_wanted: AtomicBool::new(false),
            interval,
            now: Mutex::default(),
        }
    }

    /// Has a whole scan begin as soon as it can: replicas may have missed something.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Whether one is to begin; asked once.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.swap(false, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A scan gets on.
    pub(super) fn is_at(&self, scan: &Scan<Bytes>) {
        let mut now = self.lock();
        now.under_way = scan.counts();
        now.backlog = scan.backlog();
        now.waits_for.clear();
    }

    /// A call was made and answered.
    pub(super) fn called(&self, bytes: u64) {
        let mut now = self.lock();
        now.bytes += bytes;
        now.calls += 1;
    }

    /// A scan has ended, after `took`, if it was one of all places.
    pub(super) fn ends(
        &self,
        scan: &Scan<Bytes>,
        took: Option<Duration>,
        result: &Result<(), Setback>,
    ) {
        let mut now = self.lock();
        let counts = scan.counts();
        now.ended = now.ended.plus(counts);
        now.under_way = Counts::default();
        now.backlog = 0;
        match (result, took) {
            (Ok(()), Some(took)) => {
                let found = counts.dirty + counts.inquorate;
                let mended = counts.installed + counts.erased + counts.renewed + counts.evicted;
                now.scans += 1;
                now.last = Some((took, Instant::now(), found.saturating_sub(mended)));
                now.told.clear();
                if found > 0 {
                    tracing::info!(
                        dirty = counts.dirty,
                        inquorate = counts.inquorate,
                        repaired = mended,
                        full = counts.full,
                        took_ms = took.as_millis() as u64,
                        "replicas that differed were repaired"
                    );
                }
            }
            (Ok(()), None) | (Err(Setback::Stopping), _) => {}
            (Err(setback), _) => {
                let why = setback.to_string();
                now.interrupted += 1;
                if now.told != why {
                    tracing::info!(why, "repair waits");
                    now.told.clone_from(&why);
                }
                now.waits_for = why;
            }
        }
    }

    /// All of it as a message.
    pub(crate) fn stats(&self) -> v1::RepairStats {
        let now = self.lock();
        let counts = now.ended.plus(now.under_way);
        let (named, forgotten) = self.named.counts();
        let (took, ended, unrepaired) = match now.last {
            Some((took, ended, unrepaired)) => (took, ended.elapsed(), unrepaired),
            None => Default::default(),
        };
        v1::RepairStats {
            backlog: (now.backlog + self.named.count()) as u64,
            scans: now.scans,
            interrupted: now.interrupted,
            suspects: counts.suspects,
            changed: counts.changed,
            dirty: counts.dirty,
            inquorate: counts.inquorate,
            installed: counts.installed,
            erased: counts.erased,
            renewed: counts.renewed,
            evicted: counts.evicted,
            full: counts.full,
            left: counts.left,
            bytes: now.bytes,
            calls: now.calls,
            named,
            forgotten,
            scan_ms: took.as_millis() as u64,
            scan_ago_ms: ended.as_millis() as u64,
            scan_unrepaired: unrepaired,
            waits_for: now.waits_for.clone(),
            interval_ms: self.interval.as_millis() as u64,
        }
    }
}
