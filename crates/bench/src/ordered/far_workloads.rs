//! The four workloads from another host. Once all three systems go by the same engine, whose
//! thread is what a network card would be: it shares a core with the server behind it.
//! Then the alternatives go to one thread without an engine, which has that core
//! for itself. The client, which never sleeps, has the other core.

use super::off_host::{Ground, PATIENCE, address_of, beside, failed};
use super::one_thread::OneThread;
use crate::load::pin_current_thread;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trefoil_ordered::{Carrier as _, Committed, Options, Refused, Worker};
use trefoil_ordered_load::{
    Body, Client, Cluster, Line, LoadError, LoadOptions, OrderedReport, Progress, System, Way,
    Workload, measure_by, serve,
};
use trefoil_softnic::{EngineAddress, RemoteQueue};

/// What a request takes on this way, about: one that is due at the end of a slice is done so
/// much later, however idle the system is.
const LATE_MAX: Duration = Duration::from_micros(200);
/// Longest sleep of a server: it is rung for, wherever somebody waits.
const NAP: Duration = Duration::from_secs(1);

struct Far {
    queue: RemoteQueue,
    answer: Vec<u8>,
}

impl Line for Far {
    fn is_committed_at_once(&self) -> bool {
        false
    }

    #[inline]
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        self.queue.submit(request, nilext)
    }

    #[inline]
    fn look(&mut self) -> Result<(), LoadError> {
        match self.queue.look() {
            true => Ok(()),
            false => Err(failed("the connection has broken")),
        }
    }

    #[inline]
    fn is_committed(&mut self, request: Committed) -> bool {
        self.queue.is_committed(request)
    }

    #[inline]
    fn is_executed(&mut self, request: Committed) -> bool {
        self.queue.is_executed(request)
    }

    #[inline]
    fn take_answer(&mut self, to: Committed) -> Result<(), LoadError> {
        let taken = self.queue.take_answer(to, &mut self.answer);
        taken.unwrap_or(Ok(())).map_err(failed)
    }
}

/// All three systems by the same engine, or the alternatives in one thread.
pub(super) fn measure(
    ground: &Ground,
    options: &LoadOptions,
    way: Way,
    told: (&mut OrderedReport, &mut Progress<'_>),
) -> Result<(), LoadError> {
    measure_by(options, way, told, &mut |cluster, system, body| {
        let run = match (way, system) {
            (Way::OneThread, System::RunToCompletion | System::DeferredExec) => by_one_thread,
            _ => by_engine,
        };
        run(ground, options, (cluster, system), body)
    })
}

/// Runs `body` with a client elsewhere of a server that has the cluster's keys.
fn by_engine(
    ground: &Ground,
    options: &LoadOptions,
    (cluster, system): (Cluster, System),
    body: &mut Body<'_>,
) -> Result<(), LoadError> {
    // It sleeps as soon as nothing is there: while it looked, the engine would not have their
    // core.
    let mut worker = Worker::new(
        1,
        Options {
            spin: Duration::ZERO,
            nap: NAP,
            commit_by: system.commit_by(),
            ..Options::default()
        },
    )?;
    let (mut cache, tape) = Workload::new(cluster)?.split();
    let (_engine, address) = beside(ground, options.server_core, &mut worker, false)?;
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let (stop, ready) = (&stop, &ready);
        let serves = scope.spawn(move || {
            let pinned = pin_current_thread(options.server_core);
            ready.wait();
            serve(system, worker, &mut cache, stop);
            pinned
        });
        ready.wait();
        let measured = from_client(ground, options, address, |far| {
            body(&mut Client::new(far, system, tape, LATE_MAX))
        });
        stop.store(true, Ordering::Relaxed);
        let served = serves.join();
        served
            .map_err(|_| failed("the server panicked"))?
            .map_err(failed)?;
        measured
    })
}

/// The same of a server in one thread.
fn by_one_thread(
    ground: &Ground,
    options: &LoadOptions,
    (cluster, system): (Cluster, System),
    body: &mut Body<'_>,
) -> Result<(), LoadError> {
    let (mut cache, tape) = Workload::new(cluster)?.split();
    let server = OneThread::bind(ground, system)?;
    let address = address_of(server.address()?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serves = scope.spawn(|| server.serve(options.server_core, &mut cache, &stop));
        let measured = from_client(ground, options, address, |far| {
            body(&mut Client::new(far, system, tape, LATE_MAX))
        });
        stop.store(true, Ordering::Relaxed);
        let served = serves.join();
        measured.and(served.map_err(|_| failed("the server panicked"))?)
    })
}

/// A connection from the clients' host, which its socket stays on.
fn from_client(
    ground: &Ground,
    options: &LoadOptions,
    address: EngineAddress,
    body: impl FnOnce(Far) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    pin_current_thread(options.client_core).map_err(failed)?;
    let queue = ground
        .client
        .enter(|| RemoteQueue::connect(address, 0, PATIENCE));
    body(Far {
        queue: queue.map_err(failed)?.map_err(failed)?,
        answer: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use trefoil_ordered_load::Load;

    /// Requests under way all the time are done by one thread, which ends with its client.
    #[test]
    fn one_thread_serves_a_slice_and_ends() {
        let ground = Ground::new().expect("two hosts");
        let options = LoadOptions {
            client_core: 0,
            ..LoadOptions::default()
        };
        let cluster = Cluster::all().expect("a table")[0];
        for system in [System::RunToCompletion, System::DeferredExec] {
            let mut done_per_s = 0.0;
            by_one_thread(&ground, &options, (cluster, system), &mut |client| {
                // Others may have the cores for the whole of a slice.
                let begin = Instant::now();
                while done_per_s == 0.0 && begin.elapsed() < Duration::from_secs(30) {
                    done_per_s = client.slice(Load::Window)?.per_s;
                }
                Ok(())
            })
            .expect("slices");
            assert!(done_per_s > 0.0, "{system:?}");
        }
    }
}
