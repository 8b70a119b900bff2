//! Reads through the linklets, each held against what was acknowledged of its row.

use super::rows::{HOT_ROWS, ROWS, Truth};
use super::{Chance, key};
use hdrhistogram::Histogram;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::sleep;
use trefoil_coordination::View;
use trefoil_freshness::SubscriptionStatus;
use trefoil_linklet::Linklet;

/// The bound is told in milliseconds, and by two clocks' readings.
const CLOCK_SLACK: Duration = Duration::from_millis(10);
/// So long after a change of its row a read is one soon after it.
pub(super) const SOON: Duration = Duration::from_millis(100);

/// One linklet, and how its stream of changes is.
#[derive(Clone)]
pub(super) struct Followed {
    pub(super) linklet: Linklet<String>,
    pub(super) stream: watch::Receiver<SubscriptionStatus>,
}

/// What readers have found.
pub(super) struct Reads {
    pub(super) reads: u64,
    pub(super) stale: u64,
    /// While nothing is promised: no stream is followed.
    pub(super) unbound: u64,
    /// While the database failed over: nothing says what is true.
    pub(super) between: u64,
    /// Loads that failed while the database was away.
    pub(super) failed: u64,
    pub(super) oldest: Duration,
    pub(super) widest: Duration,
    pub(super) first_stale: Option<String>,
    /// While all is well, the database is there and the relay is heard: how old what was
    /// kept might be at each read, in microseconds.
    pub(super) bounds: Histogram<u64>,
    /// Of these reads, those that were answered with what was kept.
    pub(super) kept: u64,
    /// Of these again, those that came soon after a change of their row.
    pub(super) kept_soon: u64,
    /// Of all reads while all is well, those.
    pub(super) soon: u64,
}

impl Reads {
    pub(super) fn new() -> Self {
        Reads {
            reads: 0,
            stale: 0,
            unbound: 0,
            between: 0,
            failed: 0,
            oldest: Duration::ZERO,
            widest: Duration::ZERO,
            first_stale: None,
            bounds: histogram(),
            kept: 0,
            kept_soon: 0,
            soon: 0,
        }
    }

    pub(super) fn merge(&mut self, other: Reads) {
        self.reads += other.reads;
        self.stale += other.stale;
        self.unbound += other.unbound;
        self.between += other.between;
        self.failed += other.failed;
        self.oldest = self.oldest.max(other.oldest);
        self.widest = self.widest.max(other.widest);
        self.first_stale = self.first_stale.take().or(other.first_stale);
        // Of one form.
        let added = self.bounds.add(&other.bounds);
        debug_assert!(added.is_ok());
        self.kept += other.kept;
        self.kept_soon += other.kept_soon;
        self.soon += other.soon;
    }

    /// Reads while all was well.
    pub(super) fn well(&self) -> u64 {
        self.bounds.len()
    }
}

/// Microseconds up to a minute; what is more counts as that.
fn histogram() -> Histogram<u64> {
    match Histogram::new_with_max(60_000_000, 3) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("{error}"),
    }
}

/// Reads until all is over.
pub(super) async fn read(
    servers: Vec<Followed>,
    view: watch::Receiver<Arc<View>>,
    truth: Arc<Truth>,
    is_over: Arc<AtomicBool>,
    seed: u64,
) -> Reads {
    let mut chance = Chance(seed);
    let mut reads = Reads::new();
    while !is_over.load(Ordering::Relaxed) {
        let rows = if chance.below(4) == 0 { ROWS } else { HOT_ROWS };
        let row = chance.below(rows);
        let key = key(row);
        let owner = {
            let view = view.borrow();
            let point = servers[0].linklet.point(key.as_bytes());
            view.assignment.slice_of(point).servers.first().copied()
        };
        let server = servers.iter().find(|s| s.linklet.server_id() == owner);
        let Some(Followed { linklet, stream }) = server else {
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        let is_heard = stream.borrow().connected;
        // First this: the bound counts until it is asked for, however late that is.
        let at = Instant::now();
        let bound = linklet.staleness();
        let look = |value: &String| value.parse::<u64>();
        let mut reading = pin!(linklet.read_or_load(key.as_bytes(), look));
        // What is kept is answered at once; a load waits for the database.
        let (found, is_kept) =
            match poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
                Poll::Ready(found) => (found, true),
                Poll::Pending => (reading.await, false),
            };
        let Ok(Some(Ok(value))) = found else {
            reads.failed += 1;
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        reads.reads += 1;
        match bound {
            _ if truth.is_failing_over.load(Ordering::Acquire) => reads.between += 1,
            None => reads.unbound += 1,
            Some(bound) => {
                let age = truth.replaced(row, value, at);
                reads.oldest = reads.oldest.max(age);
                reads.widest = reads.widest.max(bound);
                if is_heard {
                    let micros = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
                    reads.bounds.saturating_record(micros);
                    let is_soon = truth.changed(row, at).is_some_and(|since| since <= SOON);
                    reads.kept += u64::from(is_kept);
                    reads.soon += u64::from(is_soon);
                    reads.kept_soon += u64::from(is_kept && is_soon);
                }
                if age > bound + CLOCK_SLACK {
                    reads.stale += 1;
                    reads.first_stale.get_or_insert_with(|| {
                        let known = truth.row(row);
                        format!(
                            "row {row}: {value}, replaced {age:?} before, with a bound of {bound:?}, \
                             answered in {:?}; {} changes before the failover, {} in its copy, {} \
                             behind it; last begun {:?} before",
                            at.elapsed(),
                            known.former.len(),
                            known.base,
                            known.acknowledged.len(),
                            at.saturating_duration_since(known.base_at)
                        )
                    });
                }
            }
        }
        if reads.reads.is_multiple_of(16) {
            sleep(Duration::from_millis(1)).await;
        }
    }
    reads
}
