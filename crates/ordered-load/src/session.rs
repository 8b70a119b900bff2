//! A server and a client of one system, for many short measurements (*slices*).
//!
//! Slices are short and the machine rests between them: a host that gives a virtual machine
//! less than the whole of its cores stops it for a part of each tenth of a second in which
//! both are busy ([`crate::pauses`]). A slice and its rest together use less than that share.

use crate::cache::{Cache, spell};
use crate::client::{Client, Line, Offered};
use crate::clusters::{Cluster, Stream};
use crate::tape::Tape;
use crate::watch::Watch;
use crate::{LoadError, LoadOptions, pin};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trefoil_ordered::{
    Answer, CommitBy, Committed, Options, Queue, Refused, Request, Service, Step, Taken, Worker,
};

/// Keys of a workload.
const KEYS: u64 = 50_000;
/// How long the server looks for requests before it sleeps: shorter than a rest, and longer
/// than any gap within a slice.
const SPIN: Duration = Duration::from_millis(2);

/// Who acknowledges, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Nobody: every request is executed, then answered, as eRPC does.
    RunToCompletion,
    /// The server's CPU acknowledges a SET, then executes it.
    DeferredExec,
    /// A SET is committed by its place in the queue.
    OrderedQueue,
}

impl System {
    /// In the order of the paper's columns.
    pub const ALL: [System; 3] = [
        System::RunToCompletion,
        System::DeferredExec,
        System::OrderedQueue,
    ];

    /// What commits in its queue.
    pub fn commit_by(self) -> CommitBy {
        match self {
            System::DeferredExec => CommitBy::Acknowledgement,
            System::RunToCompletion | System::OrderedQueue => CommitBy::Publication,
        }
    }
}

/// A server's store with a cluster's keys, and what its client asks.
pub struct Workload {
    cache: Cache,
    tape: Tape,
}

impl Workload {
    /// Of this cluster.
    pub fn new(cluster: Cluster) -> Result<Self, LoadError> {
        let mut cache = Cache::new()?;
        let stream = Stream::new(cluster, KEYS, 7).ok_or(LoadError::Cluster(cluster.number))?;
        let value = vec![5u8; cluster.value_len];
        let (mut bytes, mut answer) = (Vec::new(), Answer::default());
        for key in 0..stream.known_count() {
            spell(&mut bytes, key, cluster.key_len, Some(&value));
            cache.run(&bytes, &mut answer);
        }
        let tape = Tape::new(cluster, stream, &value);
        Ok(Workload { cache, tape })
    }

    /// The server's part, and the client's.
    pub fn split(self) -> (Cache, Tape) {
        (self.cache, self.tape)
    }
}

/// Serves by this system until it is told to stop.
pub fn serve(system: System, mut worker: Worker, cache: &mut Cache, stop: &AtomicBool) {
    match system {
        System::DeferredExec => deferred(worker, cache, stop),
        System::RunToCompletion | System::OrderedQueue => worker.serve(cache, stop),
    }
}

/// Shared memory.
struct Near<'q> {
    queue: &'q mut Queue,
    watch: Watch,
}

impl Line for Near<'_> {
    fn is_committed_at_once(&self) -> bool {
        true
    }

    #[inline]
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        self.queue.submit(request, nilext)
    }

    #[inline]
    fn look(&mut self) -> Result<(), LoadError> {
        self.watch.in_vain(self.queue)
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
        let answer = self.queue.answer(to, Duration::ZERO);
        answer
            .map(drop)
            .map_err(|error| LoadError::Queue(error.to_string()))
    }
}

/// Runs `body` with a client of a server that has the cluster's keys.
pub(crate) fn with_session<R>(
    options: &LoadOptions,
    cluster: Cluster,
    system: System,
    body: impl FnOnce(&mut dyn Offered) -> Result<R, LoadError>,
) -> Result<R, LoadError> {
    let mut worker = Worker::new(
        1,
        Options {
            spin: SPIN,
            commit_by: system.commit_by(),
            ..Options::default()
        },
    )?;
    let mut queue = Queue::join(worker.admit()?)?;
    let (mut cache, tape) = Workload::new(cluster)?.split();
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let (stop, ready) = (&stop, &ready);
        let server = scope.spawn(move || {
            let pinned = pin(options.server_core);
            ready.wait();
            serve(system, worker, &mut cache, stop);
            pinned
        });
        let pinned = pin(options.client_core);
        ready.wait();
        let line = Near {
            queue: &mut queue,
            watch: Watch::default(),
        };
        let result = body(&mut Client::new(line, system, tape, Duration::ZERO));
        stop.store(true, Ordering::Relaxed);
        let served = server.join();
        pinned?;
        served.map_err(|_| LoadError::Queue("the server panicked".into()))??;
        result
    })
}

/// The CPU acknowledges each nilext request as it takes it, and executes it then.
fn deferred(mut worker: Worker, cache: &mut Cache, stop: &AtomicBool) {
    /// As many as the other systems' server executes between two looks around.
    const BATCH: usize = 64;
    let mut bytes = Vec::new();
    let mut answer = Answer::default();
    let mut idle_since = None;
    while !stop.load(Ordering::Relaxed) {
        let mut last = Step::Idle;
        for _ in 0..BATCH {
            let mut taken: Option<Taken> = None;
            let step = worker.take(|request, payload| {
                taken = Some(request);
                bytes.clear();
                bytes.extend_from_slice(payload);
            });
            let Some(taken) = taken else {
                if last != Step::Executed {
                    last = step;
                }
                break;
            };
            last = Step::Executed;
            if taken.nilext {
                worker.acknowledge(&taken);
            }
            answer.clear();
            let request = Request {
                position: taken.position,
                client_id: taken.client_id,
                request_id: taken.request_id,
                nilext: taken.nilext,
                payload: &bytes,
            };
            cache.execute(request, &mut answer);
            worker.complete(taken, &answer);
        }
        worker.tell();
        worker.look_around();
        worker.rest(last, &mut idle_since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Load;

    /// Whether a slice over a server that is gone, with a request under way or not, ends.
    fn ends(system: System, load: Load) {
        let mut worker = Worker::new(1, Options::default()).expect("memory");
        let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
        drop(worker);
        let cluster = Cluster::all().expect("a table")[1];
        let stream = Stream::new(cluster, 100, 7).expect("a stream");
        let tape = Tape::new(cluster, stream, &[5; 10]);
        let line = Near {
            queue: &mut queue,
            watch: Watch::default(),
        };
        let result = Client::new(line, system, tape, Duration::ZERO).slice(load);
        assert!(matches!(result, Err(LoadError::Queue(_))), "{result:?}");
    }

    #[test]
    fn slices_end_with_their_server() {
        for system in System::ALL {
            ends(system, Load::Window);
            ends(system, Load::PerSecond(10_000.0));
        }
    }

    #[test]
    fn what_is_offered_is_done() {
        let options = LoadOptions {
            client_core: 0,
            ..LoadOptions::default()
        };
        let cluster = Cluster::all().expect("a table")[1];
        for system in System::ALL {
            let slice = with_session(&options, cluster, system, |client| {
                client.slice(Load::PerSecond(100_000.0))
            });
            let slice = slice.expect("a slice");
            assert!(slice.per_s <= 120_000.0, "{system:?} {slice:?}");
            assert!(
                slice.kept_up <= 1.0 && slice.latency.p50_ns > 0,
                "{slice:?}"
            );
        }
    }
}
