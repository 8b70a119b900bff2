//! A nilext SET on one host: 100 B and 1 KiB, the server awake and asleep, beside the bare
//! loop and beside a SET that waits for its execution.

use crate::pace::Pace;
use crate::report::{Latency, OrderedReport};
use crate::watch::Watch;
use crate::{LoadError, LoadOptions, bare, pin};
use hdrhistogram::Histogram;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_ordered::{Answer, Options, Queue, Request, Service, Worker};

/// Nanoseconds beyond which latencies are not told apart.
pub(crate) const MOST: u64 = 10_000_000_000;
/// More than the caches hold.
pub(crate) const TABLE_LEN: usize = 128 << 20;
/// Bytes of the table for one value.
pub(crate) const TABLE_ROOM: usize = 2048;
/// Arrivals while the server is awake: it has executed the last one, mostly.
const AWAKE_PER_S: f64 = 300_000.0;
/// Of executed SETs, whose client has to wait for each.
const EXECUTED_PER_S: f64 = 100_000.0;
/// While a sleeping server has to be woken for each.
const WOKEN_PER_S: f64 = 2_000.0;
/// How long an answer is looked for without sleeping: longer than any takes.
const AWAKE: Duration = Duration::from_secs(1);
/// How long it is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Far from now.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A table that values are copied into.
struct Table(Vec<u8>);

impl Service for Table {
    #[inline]
    fn execute(&mut self, request: Request<'_>, _: &mut Answer) {
        let room = request.position.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize;
        let at = room % (self.0.len() / TABLE_ROOM) * TABLE_ROOM;
        self.0[at..at + request.payload.len()].copy_from_slice(request.payload);
    }
}

pub(crate) fn measure(options: &LoadOptions, report: &mut OrderedReport) -> Result<(), LoadError> {
    for len in [100, 1024] {
        for is_awake in [true, false] {
            let floor = bare::measure(options, len, is_awake, AWAKE_PER_S)?;
            report.add_commit("bare loop", len, is_awake, floor);
            let nilext = queue(options, len, is_awake, true)?;
            report.add_commit("nilext SET, ordered queue", len, is_awake, nilext);
            let executed = queue(options, len, is_awake, false)?;
            report.add_commit("executed SET, ordered queue", len, is_awake, executed);
        }
    }
    Ok(())
}

/// The server spins, or sleeps a second at a time, and wakes when a lane is half full or
/// somebody waits.
fn queue(
    options: &LoadOptions,
    len: usize,
    is_awake: bool,
    nilext: bool,
) -> Result<Latency, LoadError> {
    let mut worker = Worker::new(
        1,
        Options {
            slot_count: 4096,
            spin: if is_awake { FOREVER } else { Duration::ZERO },
            nap: Duration::from_secs(1),
            ..Options::default()
        },
    )?;
    let mut queue = Queue::join(worker.admit()?)?;
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let (stop, ready) = (&stop, &ready);
        let server = scope.spawn(move || {
            let pinned = pin(options.server_core);
            let mut table = Table(vec![1; TABLE_LEN]);
            ready.wait();
            worker.serve(&mut table, stop);
            pinned
        });
        let pinned = pin(options.client_core);
        ready.wait();
        let payload = vec![7; len];
        let mut took = Histogram::new_with_max(MOST, 3).expect("valid bounds");
        let ops_per_s = match (nilext, is_awake) {
            (true, _) => AWAKE_PER_S,
            (false, true) => EXECUTED_PER_S,
            (false, false) => WOKEN_PER_S,
        };
        if !nilext && is_awake {
            queue.set_spin(AWAKE);
        }
        let mut pace = Pace::new(ops_per_s, 1);
        let end = Instant::now() + Duration::from_secs_f64(options.seconds);
        let warm = Instant::now() + Duration::from_secs_f64(options.seconds / 10.0);
        let mut watch = Watch::default();
        let mut failed = None;
        while failed.is_none() {
            let due = pace.wait();
            if due > end {
                break;
            }
            match watch.submit(&mut queue, black_box(&payload), nilext) {
                Ok(committed) if !nilext => {
                    if let Err(error) = queue.answer(committed, PATIENCE) {
                        failed = Some(LoadError::Queue(error.to_string()));
                    }
                }
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
            let done = Instant::now();
            if due > warm {
                took.saturating_record((done - due).as_nanos() as u64);
            }
        }
        stop.store(true, Ordering::Relaxed);
        let served = server.join();
        pinned?;
        served.map_err(|_| LoadError::Queue("the server panicked".into()))??;
        match failed {
            Some(error) => Err(error),
            None => Ok(Latency::of(&took)),
        }
    })
}
