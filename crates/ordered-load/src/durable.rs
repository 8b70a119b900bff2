//! A SET that is acknowledged when it is in a file, by both ways of flushing, beside a bare
//! loop that writes a block and flushes it. The state behind is memory: its checkpoints cost
//! nothing here, so this is the queue's part alone. So many requests are under way at a time
//! (a closed loop), and latency counts from when one is submitted.

use crate::commits::MOST;
use crate::report::{DurableRun, Latency, OrderedReport};
use crate::{LoadError, LoadOptions, pin};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_journal::disk::{Blocks, Disk};
use trefoil_journal::{FileDisk, Flush, Log, file};
use trefoil_ordered::{
    Answer, DurableService, DurableWorker, Options, Queue, Refused, Request, Service,
};

/// Bytes of a request: the mean object of the paper's persistent store.
const LEN: usize = 91;
/// Requests under way where throughput is measured.
const WINDOW: usize = 256;
/// Bytes of the journal.
const JOURNAL_LEN: u64 = 16 << 20;
/// How long an acknowledgement is looked for without sleeping: longer than any takes.
const AWAKE: Duration = Duration::from_secs(1);
/// Far from now.
const PATIENCE: Duration = Duration::from_secs(30);

const WAYS: [(Flush, &str); 2] = [
    (Flush::Direct, "O_DIRECT and O_DSYNC"),
    (Flush::Cached, "cache and fdatasync"),
];

/// Where the file system has no direct writes: what was measured instead.
const NOT_DIRECT: &str = "fdatasync: no O_DIRECT";
/// A file system in memory, which flushes nothing.
const TMPFS_MAGIC: u64 = 0x0102_1994;

struct Sum {
    bytes: u64,
    position: u64,
}

impl Service for Sum {
    fn execute(&mut self, request: Request<'_>, _: &mut Answer) {
        self.bytes += request.payload.len() as u64;
    }
}

impl DurableService for Sum {
    type Error = Infallible;

    fn persistent_position(&self) -> u64 {
        self.position
    }

    fn checkpoint(&mut self, position: u64) -> Result<(), Infallible> {
        self.position = position;
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> LoadError {
    LoadError::Queue(error.to_string())
}

/// Whether what is flushed there is on a disk.
pub(crate) fn check_folder(folder: &Path) -> Result<(), LoadError> {
    let kind = rustix::fs::statfs(folder).map_err(failed)?.f_type;
    match kind as u64 == TMPFS_MAGIC {
        true => Err(LoadError::Memory(folder.to_owned())),
        false => Ok(()),
    }
}

pub(crate) fn measure(options: &LoadOptions, report: &mut OrderedReport) -> Result<(), LoadError> {
    check_folder(&options.folder)?;
    let folder = tempfile::tempdir_in(&options.folder).map_err(failed)?;
    for (flush, how) in WAYS {
        let probe = folder.path().join(format!("{flush:?}-probe"));
        let made = file::open(&probe, (1, 1), (1, flush), 0, |_| {});
        drop(made.map_err(failed)?);
        let taken = FileDisk::open(&probe, flush).map_err(failed)?.flush_kind();
        let how = if taken == flush { how } else { NOT_DIRECT };
        let path = folder.path().join(format!("{flush:?}"));
        report.add_durable(
            "bare write and flush of 4 KiB",
            how,
            bare(options, &path, flush)?,
        );
        let path = folder.path().join(format!("{flush:?}-queue"));
        let one = queue(options, &path, flush, 1)?;
        report.add_durable("durable SET, one at a time", how, one);
        let path = folder.path().join(format!("{flush:?}-window"));
        let many = queue(options, &path, flush, WINDOW)?;
        report.add_durable("durable SET, 256 under way", how, many);
    }
    Ok(())
}

fn bare(options: &LoadOptions, path: &Path, flush: Flush) -> Result<DurableRun, LoadError> {
    // A journal's file, all of it written: what the queue writes to.
    let made = file::open(path, (1, 1), (JOURNAL_LEN, flush), 0, |_| {});
    drop(made.map_err(failed)?);
    let mut disk = FileDisk::open(path, flush).map_err(failed)?;
    let blocks = disk.block_count().map_err(failed)?;
    let bytes = Blocks::new(1);
    let mut took = Histogram::new_with_max(MOST, 3).expect("valid bounds");
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(options.seconds);
    let mut at = 0;
    let mut done = 0u64;
    while Instant::now() < end {
        let start = Instant::now();
        disk.write(at, bytes.bytes()).map_err(failed)?;
        disk.flush().map_err(failed)?;
        took.saturating_record(start.elapsed().as_nanos() as u64);
        at = (at + 1) % blocks;
        done += 1;
    }
    Ok(DurableRun {
        latency: Latency::of(&took),
        per_s: done as f64 / begun.elapsed().as_secs_f64(),
    })
}

fn queue(
    options: &LoadOptions,
    path: &Path,
    flush: Flush,
    window: usize,
) -> Result<DurableRun, LoadError> {
    let mut sum = Sum {
        bytes: 0,
        position: 0,
    };
    let worker_options = Options {
        slot_count: 1024,
        spin: Duration::from_secs(1 << 30),
        ..Options::default()
    };
    let opened: Result<DurableWorker<FileDisk>, _> =
        DurableWorker::open(worker_options, &mut sum, |executed, replay| {
            let log: Log<FileDisk> =
                file::open(path, (1, 1), (JOURNAL_LEN, flush), executed, replay)?;
            Ok(log)
        });
    let mut worker = opened.map_err(failed)?;
    let mut queue = Queue::join(worker.admit()?)?;
    queue.set_spin(AWAKE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let server = scope.spawn(move || {
            pin(options.server_core)?;
            worker.serve(&mut sum, stop).map_err(failed)
        });
        let result = pin(options.client_core).and_then(|()| load(options, &mut queue, window));
        stop.store(true, Ordering::Relaxed);
        let served = server.join();
        served.map_err(|_| LoadError::Queue("the server panicked".into()))??;
        result
    })
}

fn load(options: &LoadOptions, queue: &mut Queue, window: usize) -> Result<DurableRun, LoadError> {
    let payload = [7; LEN];
    let mut took = Histogram::new_with_max(MOST, 3).expect("valid bounds");
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(options.seconds);
    let mut under_way = VecDeque::new();
    let mut done = 0u64;
    while Instant::now() < end {
        if under_way.len() < window {
            let start = Instant::now();
            match queue.submit(&payload, true) {
                Ok(sent) => under_way.push_back((start, sent)),
                Err(Refused::Full | Refused::Skipped) => {}
                Err(refused) => return Err(failed(refused)),
            }
            if under_way.len() < window {
                continue;
            }
        }
        let Some((start, sent)) = under_way.pop_front() else {
            continue;
        };
        queue.committed(sent, PATIENCE).map_err(failed)?;
        took.saturating_record(start.elapsed().as_nanos() as u64);
        done += 1;
    }
    let per_s = done as f64 / begun.elapsed().as_secs_f64();
    for (_, sent) in under_way {
        queue.committed(sent, PATIENCE).map_err(failed)?;
    }
    Ok(DurableRun {
        latency: Latency::of(&took),
        per_s,
    })
}
