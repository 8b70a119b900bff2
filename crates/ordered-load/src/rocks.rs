//! RocksDB with every put persistent when it is acknowledged: by its own log with `sync`,
//! beside the durable queue with RocksDB's log off. Objects are of 91 bytes, the mean of the
//! persistent store that the design's paper measures; popularity is Zipf's with 0.99; half of
//! the requests are puts, or one in twenty.
//!
//! | system | a put is acknowledged |
//! |---|---|
//! | own log, a sync each | when RocksDB's synchronous write is back: run to completion, one after the other |
//! | DeferredExec, a flush each | when the CPU has written and flushed that request; it is executed afterwards |
//! | own log, a sync for each group | when one synchronous write of all puts that were there is back |
//! | durable queue | when the journal has the group |
//! | own log, 32 threads | as the first; RocksDB gathers what its threads write at a time. No queue, and no arrivals: each thread goes on at once |
//!
//! A get travels through the queue with the puts, so it misses none that was acknowledged.

use crate::report::{DURABLE_QUEUE, FLUSH_EACH, OrderedReport, RocksRun, SYNC_EACH};
use crate::rocks_load::{Client, Load, Mix, direct};
use crate::{LoadError, LoadOptions, pin};
use rustix::thread::CpuSet;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trefoil_journal::{FileDisk, Flush, Log, file};
use trefoil_ordered::{
    Answer, CommitBy, DurableWorker, Options, Queue, Request, Service, Step, Taken, Worker,
};
use trefoil_queue::request::Status;
use trefoil_queue::rocks::Rocks;
use trefoil_queue::table::put_answer;
use trefoil_rocksdb::{Batch, Db, DbError, DbOptions, Library, Wal};

/// Bytes of a journal.
const JOURNAL_LEN: u64 = 64 << 20;
/// Requests taken for a group.
const GROUP_MAX: usize = 4096;
/// Part of its peak that a system is offered.
const OFFERED: f64 = 0.9;
/// Part of what is due that has to be done in time.
const KEPT_UP: f64 = 0.98;
/// What is taken off a peak that is not kept up with, so often at most.
const STEP: f64 = 0.9;
const STEPS_MAX: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    SyncEach,
    Deferred,
    SyncGroup,
    DurableQueue,
}

const ALL: [System; 4] = [
    System::SyncEach,
    System::Deferred,
    System::SyncGroup,
    System::DurableQueue,
];

impl System {
    fn name(self) -> &'static str {
        match self {
            System::SyncEach => SYNC_EACH,
            System::Deferred => FLUSH_EACH,
            System::SyncGroup => "own log, a sync for each group",
            System::DurableQueue => DURABLE_QUEUE,
        }
    }

    /// Whether puts are acknowledged before they are executed.
    pub(crate) fn acknowledges(self) -> bool {
        matches!(self, System::Deferred | System::DurableQueue)
    }
}

fn failed(error: impl std::fmt::Display) -> LoadError {
    LoadError::Queue(error.to_string())
}

/// `cores`: of RocksDB's own threads, and of those that use it without a queue.
pub(crate) fn measure(
    options: &LoadOptions,
    cores: &CpuSet,
    report: &mut OrderedReport,
) -> Result<(), LoadError> {
    let library = match Library::load(options.library.as_deref()) {
        Ok(library) => library,
        Err(error) => {
            report.say_of_rocks(format!("not measured: {error}"));
            return Ok(());
        }
    };
    crate::durable::check_folder(&options.folder)?;
    for puts in [0.5, 0.05] {
        let mix = Mix::new(puts);
        let mut runs: Vec<(System, RocksRun)> = Vec::new();
        for system in ALL {
            let run = with_session(options, (library, cores), (system, &mix), |queue| {
                at_peak(options, &mut Client::new(queue, system, &mix))
            })?;
            runs.push((system, run));
        }
        let lowest = runs.iter().map(|(_, run)| run.peak_per_s);
        let lowest = lowest.fold(f64::INFINITY, f64::min);
        for (system, mut run) in runs {
            let load = Load::PerSecond(lowest * OFFERED);
            let equal = with_session(options, (library, cores), (system, &mix), |queue| {
                Client::new(queue, system, &mix).offer(load, options.seconds)
            })?;
            run.at_equal_rate = Some(equal.latency);
            report.add_rocks(system.name(), puts, run);
        }
        let folder = tempfile::tempdir_in(&options.folder).map_err(failed)?;
        let db = open((library, cores), folder.path(), &mix)?;
        let run = direct(&db, &mix, options.seconds).map_err(failed)?;
        report.add_rocks("own log, 32 threads", puts, run);
    }
    Ok(())
}

/// The system's peak, and latencies at 90 % of it.
fn at_peak(options: &LoadOptions, client: &mut Client<'_>) -> Result<RocksRun, LoadError> {
    let most = client.offer(Load::Window, options.seconds)?;
    let mut peak_per_s = most.per_s;
    let mut steps = 0;
    loop {
        let load = Load::PerSecond(peak_per_s * OFFERED);
        let measured = client.offer(load, options.seconds)?;
        if measured.kept_up < KEPT_UP && steps < STEPS_MAX {
            peak_per_s *= STEP;
            steps += 1;
            continue;
        }
        return Ok(RocksRun {
            peak_per_s,
            puts_per_s: most.puts_per_s,
            at_peak: measured.latency,
            at_equal_rate: None,
        });
    }
}

/// A database with all keys. Its threads, and those begun from here, have all cores.
fn open(
    (library, cores): (&'static Library, &CpuSet),
    folder: &Path,
    mix: &Mix,
) -> Result<Db, LoadError> {
    rustix::thread::sched_setaffinity(None, cores).map_err(failed)?;
    let path = folder.join("rocksdb");
    let db = Db::open(library, &path, DbOptions::default()).map_err(failed)?;
    mix.fill(&db).map_err(failed)?;
    Ok(db)
}

/// Runs `body` with a client of a server that has the keys.
fn with_session<R>(
    options: &LoadOptions,
    (library, cores): (&'static Library, &CpuSet),
    (system, mix): (System, &Mix),
    body: impl FnOnce(&mut Queue) -> Result<R, LoadError>,
) -> Result<R, LoadError> {
    let folder = tempfile::tempdir_in(&options.folder).map_err(failed)?;
    let db = open((library, cores), folder.path(), mix)?;
    let commit_by = match system.acknowledges() {
        true => CommitBy::Acknowledgement,
        false => CommitBy::Publication,
    };
    let worker_options = Options {
        slot_count: 1024,
        spin: Duration::from_secs(1 << 30),
        commit_by,
        ..Options::default()
    };
    let journal = folder.path().join("journal");
    let how = (JOURNAL_LEN, Flush::Direct);
    let stop = AtomicBool::new(false);
    if system == System::DurableQueue {
        drop(db);
        let path = folder.path().join("rocksdb");
        let rocks = Rocks::open(
            options.library.as_deref(),
            &path,
            DbOptions::default(),
            true,
        );
        let mut rocks = rocks.map_err(failed)?;
        let opened: Result<DurableWorker<FileDisk>, _> =
            DurableWorker::open(worker_options, &mut rocks, |executed, replay| {
                file::open(&journal, (1, 1), how, executed, replay)
            });
        let mut worker = opened.map_err(failed)?;
        let mut queue = Queue::join(worker.admit()?)?;
        // It ends with its thread, whatever ends that: its client then knows.
        let server = move |stop: &AtomicBool| {
            worker.serve(&mut rocks, stop).map_err(failed)?;
            rocks.failure().map_or(Ok(()), |error| Err(failed(error)))
        };
        return both(options, &stop, server, || body(&mut queue));
    }
    let mut worker = Worker::new(1, worker_options)?;
    let mut queue = Queue::join(worker.admit()?)?;
    let mut service = Direct::new(db);
    // As above.
    let server = move |stop: &AtomicBool| match system {
        System::SyncEach => {
            worker.serve(&mut service, stop);
            service.result()
        }
        System::SyncGroup => groups(&mut worker, &mut service, stop),
        System::Deferred | System::DurableQueue => {
            let log = file::open(&journal, (1, 1), how, 0, |_| {}).map_err(failed)?;
            deferred(&mut worker, &mut service, log, stop)
        }
    };
    both(options, &stop, server, || body(&mut queue))
}

/// A server and a client, each on its core.
fn both<R>(
    options: &LoadOptions,
    stop: &AtomicBool,
    server: impl FnOnce(&AtomicBool) -> Result<(), LoadError> + Send,
    body: impl FnOnce() -> Result<R, LoadError>,
) -> Result<R, LoadError> {
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let ready = &ready;
        let server = scope.spawn(move || {
            let pinned = pin(options.server_core);
            ready.wait();
            pinned.and_then(|()| server(stop))
        });
        let pinned = pin(options.client_core);
        ready.wait();
        let result = pinned.and_then(|()| body());
        stop.store(true, Ordering::Relaxed);
        let served = server.join();
        served.map_err(|_| LoadError::Queue("the server panicked".into()))??;
        result
    })
}

/// RocksDB, each request by itself.
struct Direct {
    db: Db,
    batch: Batch,
    wal: Wal,
    value: Vec<u8>,
    failure: Option<DbError>,
}

impl Direct {
    fn new(db: Db) -> Self {
        Direct {
            batch: Batch::new(db.library()),
            db,
            wal: Wal::Synced,
            value: Vec::new(),
            failure: None,
        }
    }

    fn gather(&mut self, payload: &[u8]) {
        if let Ok(trefoil_queue::Request::Set(key, value)) = trefoil_queue::Request::decode(payload)
        {
            self.batch.put(key, value);
        }
    }

    fn write(&mut self) {
        let written = self.db.write(&mut self.batch, self.wal);
        self.failure = self.failure.take().or(written.err());
        self.batch.clear();
    }

    fn look(&mut self, payload: &[u8], answer: &mut Answer) {
        if let Ok(trefoil_queue::Request::Get(key)) = trefoil_queue::Request::decode(payload) {
            let found = self.db.get(key, &mut self.value);
            self.failure = self.failure.take().or(found.err());
            put_answer(answer, Status::Done, &self.value);
        }
    }

    fn result(&mut self) -> Result<(), LoadError> {
        self.failure
            .take()
            .map_or(Ok(()), |error| Err(failed(error)))
    }
}

/// Whether a request of the load is a put.
fn is_put(payload: &[u8]) -> bool {
    let decoded = trefoil_queue::Request::decode(payload);
    matches!(decoded, Ok(trefoil_queue::Request::Set(..)))
}

impl Service for Direct {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        if is_put(request.payload) {
            self.gather(request.payload);
            self.write();
        } else {
            self.look(request.payload, answer);
        }
    }
}

/// What is there, as one synchronous write; gets are answered after it.
fn groups(worker: &mut Worker, service: &mut Direct, stop: &AtomicBool) -> Result<(), LoadError> {
    let mut group: Vec<(Taken, Vec<u8>)> = Vec::new();
    let mut answer = Answer::default();
    while !stop.load(Ordering::Relaxed) {
        let mut puts = 0;
        while group.len() < GROUP_MAX {
            let step = worker.take(|taken, payload| {
                puts += usize::from(is_put(payload));
                service.gather(payload);
                group.push((taken, payload.to_vec()));
            });
            if step != Step::Executed {
                break;
            }
        }
        if puts > 0 {
            service.write();
        }
        for (taken, payload) in group.drain(..) {
            answer.clear();
            service.look(&payload, &mut answer);
            worker.complete(taken, &answer);
        }
        worker.tell();
        worker.look_around();
        service.result()?;
    }
    Ok(())
}

/// Each put is flushed, acknowledged, and executed then.
fn deferred(
    worker: &mut Worker,
    service: &mut Direct,
    mut log: Log<FileDisk>,
    stop: &AtomicBool,
) -> Result<(), LoadError> {
    service.wal = Wal::Off;
    let mut bytes = Vec::new();
    let mut answer = Answer::default();
    while !stop.load(Ordering::Relaxed) {
        let mut found = None;
        worker.take(|taken, payload| {
            found = Some(taken);
            bytes.clear();
            bytes.extend_from_slice(payload);
        });
        let Some(taken) = found else {
            worker.tell();
            worker.look_around();
            continue;
        };
        answer.clear();
        if taken.nilext {
            log.push(taken.client_id, taken.request_id, true, &bytes);
            log.commit().map_err(failed)?;
            worker.acknowledge(&taken);
            worker.tell();
            service.gather(&bytes);
            service.write();
        } else {
            service.look(&bytes, &mut answer);
        }
        worker.complete(taken, &answer);
        worker.tell();
        service.result()?;
        if log.is_tight() {
            service.db.flush().map_err(failed)?;
            log.release(log.last_position()).map_err(failed)?;
        }
    }
    Ok(())
}
