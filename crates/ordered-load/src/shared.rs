//! Commits of many clients that share few connections, beside few clients with a
//! connection each.

use crate::report::OrderedReport;
use crate::{LoadError, LoadOptions, pin};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
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

struct Count(u64);

impl Service for Count {
    #[inline]
    fn execute(&mut self, request: Request<'_>, _: &mut Answer) {
        self.0 += request.payload.len() as u64;
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
    let ready = Barrier::new(clients + 1);
    std::thread::scope(|scope| {
        let (stop, ready) = (&stop, &ready);
        let server = scope.spawn(move || {
            let pinned = pin(options.server_core);
            worker.serve(&mut Count(0), stop);
            pinned
        });
        let threads: Vec<_> = carriers
            .into_iter()
            .map(|mut carrier| {
                scope.spawn(move || {
                    let pinned = pin(options.client_core);
                    ready.wait();
                    let mut done = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..BATCH {
                            match carrier.submit(&[7; LEN], true) {
                                Ok(_) => done += 1,
                                Err(Refused::Full | Refused::Skipped) => std::thread::yield_now(),
                                Err(refused) => {
                                    return Err(LoadError::Queue(refused.to_string()));
                                }
                            }
                        }
                    }
                    pinned.map(|()| done)
                })
            })
            .collect();
        ready.wait();
        let start = Instant::now();
        std::thread::sleep(Duration::from_secs_f64(options.seconds));
        stop.store(true, Ordering::Relaxed);
        let mut done = 0;
        for thread in threads {
            let counted = thread.join();
            done += counted.map_err(|_| LoadError::Queue("a client panicked".into()))??;
        }
        let took = start.elapsed().as_secs_f64();
        let served = server.join();
        served.map_err(|_| LoadError::Queue("the server panicked".into()))??;
        Ok(done as f64 / took)
    })
}
