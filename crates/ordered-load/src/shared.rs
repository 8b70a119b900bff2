//! Commits of many clients that share few connections, beside few clients with a
//! connection each.

use crate::report::{OrderedReport, median};
use crate::{LoadError, LoadOptions, pin};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_ordered::{Answer, Carrier, Options, Queue, Refused, Request, Service, Shared, Worker};

/// Connections.
const CONNECTIONS: usize = 4;
/// Clients that share them.
const CLIENTS: usize = 200;
/// Bytes of a request.
const LEN: usize = 100;
/// Requests between two looks at whether the time is over.
const BATCH: u64 = 64;

/// How often it is looked how many were executed.
const WINDOW: Duration = Duration::from_millis(20);
/// Windows before anything counts: threads are started, and memory is touched.
const WARM: usize = 3;
/// Fewest windows that count.
const WINDOWS_MIN: usize = 2;

struct Count<'c> {
    count: u64,
    /// The same, for who looks at it from outside.
    executed: &'c AtomicU64,
}

impl Service for Count<'_> {
    #[inline]
    fn execute(&mut self, request: Request<'_>, _: &mut Answer) {
        self.count += u64::from(!request.payload.is_empty());
        self.executed.store(self.count, Ordering::Relaxed);
    }
}

pub(crate) fn measure(options: &LoadOptions, report: &mut OrderedReport) -> Result<(), LoadError> {
    let own = run(options, CONNECTIONS)?;
    let sizes = (CONNECTIONS, CONNECTIONS);
    report.add_shared("a connection each", sizes, own);
    let shared = run(options, CLIENTS)?;
    report.add_shared("shared connections", (CLIENTS, CONNECTIONS), shared);
    Ok(())
}

fn run(options: &LoadOptions, clients: usize) -> Result<f64, LoadError> {
    let mut worker = Worker::new(
        1,
        Options {
            slot_count: 1024,
            spin: Duration::from_secs(1 << 30),
            ..Options::default()
        },
    )?;
    let mut queues = Vec::new();
    for _ in 0..CONNECTIONS {
        queues.push(Queue::join(worker.admit()?)?);
    }
    let carriers: Vec<Box<dyn Carrier + Send>> = match clients == CONNECTIONS {
        true => queues
            .into_iter()
            .map(|queue| Box::new(queue) as Box<dyn Carrier + Send>)
            .collect(),
        false => {
            let shared: Vec<Shared> = queues.into_iter().map(Shared::new).collect();
            (0..clients)
                .map(|at| Box::new(shared[at % CONNECTIONS].clone()) as Box<dyn Carrier + Send>)
                .collect()
        }
    };
    let stop = AtomicBool::new(false);
    // The server is there until all clients have ended: it refuses what comes after it.
    let is_over = AtomicBool::new(false);
    let executed = AtomicU64::new(0);
    let ready = Barrier::new(clients + 1);
    std::thread::scope(|scope| {
        let (stop, is_over, ready, executed) = (&stop, &is_over, &ready, &executed);
        let server = scope.spawn(move || {
            let pinned = pin(options.server_core);
            worker.serve(&mut Count { count: 0, executed }, is_over);
            pinned
        });
        let threads: Vec<_> = carriers
            .into_iter()
            .map(|mut carrier| {
                scope.spawn(move || {
                    let pinned = pin(options.client_core);
                    ready.wait();
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..BATCH {
                            match carrier.submit(&[7; LEN], true) {
                                Ok(_) => {}
                                Err(Refused::Full | Refused::Skipped) => std::thread::yield_now(),
                                Err(refused) => {
                                    return Err(LoadError::Queue(refused.to_string()));
                                }
                            }
                        }
                    }
                    pinned
                })
            })
            .collect();
        ready.wait();
        // Medians of short windows: the host stops the machine for a part of each tenth of a
        // second in which both cores are busy, and what it stops is some of them.
        let count = (options.seconds / WINDOW.as_secs_f64()) as usize;
        let mut rates = Vec::new();
        for _ in 0..WARM + count.max(WINDOWS_MIN) {
            let (start, before) = (Instant::now(), executed.load(Ordering::Relaxed));
            std::thread::sleep(WINDOW);
            let done = executed.load(Ordering::Relaxed) - before;
            rates.push(done as f64 / start.elapsed().as_secs_f64());
        }
        stop.store(true, Ordering::Relaxed);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        for ended in ended {
            ended.map_err(|_| LoadError::Queue("a client panicked".into()))??;
        }
        let served = server.join();
        served.map_err(|_| LoadError::Queue("the server panicked".into()))??;
        Ok(median(rates.into_iter().skip(WARM)))
    })
}
