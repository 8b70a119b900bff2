//! More than memory: values for which there is no room go to files, where the application
//! asks for that ([`Builder::spill`](crate::Builder::spill)).
//!
//! ```text
//!   who needs room ─► none left ─► waits (or goes on above the bound) ──┐
//!                        │ wakes                                        │
//!                        ▼                                              │
//!   the writer: victims of the table ─► marshal ─► append to a segment  │
//!                 └─ the same value still? then it is there alone ─► room
//!
//!   who wants a value that is there ─► one read for all ─► unmarshal ─► here again, if
//!                                                                      there is room
//! ```
//!
//! The entry stays in the table with everything that is known of it; only its value is
//! elsewhere ([`Value`](crate::table::Value)). So whatever is decided by the entry alone
//! (whether it is there, whether it has ended, whether a commit conflicts, who owns it) is
//! decided as ever, and nothing is read for it.
//!
//! Invariants:
//!
//! 1. A value goes from memory only when all of its record has been written, and only if
//!    it is the one that was marshalled.
//! 2. What is read is checked: length, checksum, key. What fails is never served; it is
//!    lost, and that is reported, or it is loaded again.
//! 3. Nobody waits for the disk under a lock of the table.
//! 4. Files are memory's extension: they end with the process, and nothing is recovered
//!    from them.
//!
//! Peers get the bytes as they are on disk, for these were made by the same marshaller. The
//! protocol asks for them under its own lock, and reads them there: it has no way to wait.
//! The kernel is told of a batch before the first of it is read, so that a scan costs about
//! one access of the disk and not one for each value.
//!
//! | module | what it does |
//! |---|---|
//! | `files` | files that nobody else can open, and that end with the process |
//! | `segment` | records in a file |
//! | `writer` | which values go to disk; compaction |
//! | `room` | who waits for room, and how long |

mod files;
mod room;
mod segment;
mod writer;

pub(crate) use room::write;
pub(crate) use segment::{Record, Unreadable};

use crate::damped::Damped;
use crate::stats::Stats;
use files::{Files, Ledger};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use writer::Writer;

/// What a read comes to, for everybody who waited for it.
pub(crate) type ReadBack<V> = (Arc<Record>, Result<Arc<V>, Unreadable>);

/// While a write has failed nothing is spilled for this long, doubled each time.
const FAILED_FOR: Duration = Duration::from_secs(1);
const FAILED_FOR_MAX: Duration = Duration::from_secs(60);
/// While the bound is reached.
const FULL_FOR: Duration = Duration::from_millis(100);
/// While there was nothing to spill; ten times as long as it took to find that out, at least.
const NOTHING_FOR: Duration = Duration::from_millis(20);

/// What a linklet keeps on disk.
#[derive(Debug)]
pub(crate) struct Spill {
    ledger: Arc<Ledger>,
    writer: Mutex<Writer>,
    bound: u64,
    /// The writer has freed something, or says that it cannot.
    freed: Notify,
    /// The most bytes that somebody waits for.
    demand: AtomicU64,
    /// Until then nothing is spilled, in milliseconds by the store's clock.
    paused_until_ms: AtomicU64,
    /// Writes that have failed since one has not.
    failed: AtomicU64,
    failures: Damped,
    unreadable: Damped,
}

impl Spill {
    /// Looks whether files can be made there.
    pub(crate) fn open(directory: &Path, bound: u64) -> io::Result<Self> {
        let ledger = Arc::new(Ledger::default());
        let files = Files::open(directory)?;
        Ok(Spill {
            writer: Mutex::new(Writer::new(files, Arc::clone(&ledger), bound)),
            ledger,
            bound,
            freed: Notify::new(),
            demand: AtomicU64::new(0),
            paused_until_ms: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failures: Damped::default(),
            unreadable: Damped::default(),
        })
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // What panics in it are the application's marshallers, and these are caught.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long nothing is spilled; `None` if it goes on.
    fn pause(&self, now: Duration) -> Option<Duration> {
        let until = Duration::from_millis(self.paused_until_ms.load(Ordering::Relaxed));
        until.checked_sub(now).filter(|left| !left.is_zero())
    }

    fn set_pause(&self, now: Duration, span: Duration) {
        let until = (now + span).as_millis();
        let until = u64::try_from(until).unwrap_or(u64::MAX);
        self.paused_until_ms.store(until, Ordering::Relaxed);
        // Who waits goes on without; who comes later asks again.
        self.demand.store(0, Ordering::Relaxed);
    }

    pub(crate) fn fill(&self, stats: &mut Stats) {
        stats.spill_bytes = self.ledger.live.load(Ordering::Relaxed);
        stats.spill_disk_bytes = self.ledger.disk.load(Ordering::Relaxed);
        stats.spill_bytes_max = self.bound;
        stats.spill_segments = self.ledger.segments.load(Ordering::Relaxed);
    }
}
