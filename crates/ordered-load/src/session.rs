//! A server and a client of one system, for many short measurements (*slices*).
//!
//! Slices are short and the machine rests between them: a host that gives a virtual machine
//! less than the whole of its cores stops it for a part of each tenth of a second in which
//! both are busy ([`crate::pauses`]). A slice and its rest together use less than that share.

use crate::cache::{Cache, spell};
use crate::clusters::{Cluster, Stream};
use crate::commits::MOST;
use crate::pauses::Pauses;
use crate::report::Latency;
use crate::tape::Tape;
use crate::watch::Watch;
use crate::{LoadError, LoadOptions, pin};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_ordered::{
    Answer, CommitBy, Committed, Options, Queue, Refused, Request, Service, Step, Taken, Worker,
};

/// Keys of a workload.
const KEYS: u64 = 50_000;
/// Requests whose answers, or acknowledgements, are waited for when the peak is looked for.
const WINDOW: usize = 64;
/// Requests that were offered and not begun: the system is behind for good.
const BEHIND_MAX: Duration = Duration::from_secs(2);
/// What is measured at a time.
pub(crate) const SLICE: Duration = Duration::from_millis(20);
/// What is not measured, before that.
const WARM: Duration = Duration::from_millis(5);
/// What is rested, before that.
const REST: Duration = Duration::from_millis(50);
/// How long the server looks for requests before it sleeps: shorter than a rest, and longer
/// than any gap within a slice.
const SPIN: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    RunToCompletion,
    DeferredExec,
    OrderedQueue,
}

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// As much as the system takes, a window of requests under way.
    Window,
    /// Poisson arrivals, so many a second.
    PerSecond(f64),
}

/// One short measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    /// Requests done in its time, a second.
    pub(crate) per_s: f64,
    /// Their part of those that were due in its time.
    pub(crate) kept_up: f64,
    /// Of all that were due in its time, also of those that were done later.
    pub(crate) latency: Latency,
    /// Times that the machine stood still.
    pub(crate) pauses: usize,
    /// The longest of them.
    pub(crate) pause_max: Duration,
}

/// Runs `body` with a client of a server that has the cluster's keys.
pub(crate) fn with_session<R>(
    options: &LoadOptions,
    cluster: Cluster,
    system: System,
    body: impl FnOnce(&mut Client<'_>) -> Result<R, LoadError>,
) -> Result<R, LoadError> {
    let commit_by = match system {
        System::DeferredExec => CommitBy::Acknowledgement,
        System::RunToCompletion | System::OrderedQueue => CommitBy::Publication,
    };
    let mut worker = Worker::new(
        1,
        Options {
            spin: SPIN,
            commit_by,
            ..Options::default()
        },
    )?;
    let mut queue = Queue::join(worker.admit()?)?;
    let mut cache = Cache::new()?;
    let stream = Stream::new(cluster, KEYS, 7).ok_or(LoadError::Cluster(cluster.number))?;
    let value = vec![5u8; cluster.value_len];
    let (mut bytes, mut answer) = (Vec::new(), Answer::default());
    for key in 0..stream.known_count() {
        spell(&mut bytes, key, cluster.key_len, Some(&value));
        cache.run(&bytes, &mut answer);
    }
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let (stop, ready) = (&stop, &ready);
        let server = scope.spawn(move || {
            let pinned = pin(options.server_core);
            ready.wait();
            match system {
                System::DeferredExec => deferred(worker, &mut cache, stop),
                System::RunToCompletion | System::OrderedQueue => worker.serve(&mut cache, stop),
            }
            pinned
        });
        let pinned = pin(options.client_core);
        ready.wait();
        let tape = Tape::new(cluster, stream, &value);
        let result = body(&mut Client::new(&mut queue, system, tape));
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

struct Pending {
    due: Instant,
    committed: Committed,
    /// Its answer is waited for, not its acknowledgement.
    is_answered: bool,
}

/// What an attempt at a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// It is done.
    Done,
    /// It is under way.
    Pending,
    /// No room: it is to be tried again.
    Full,
}

/// What was due in the time of a slice.
struct Tally {
    end: Instant,
    took: Histogram<u64>,
    offered: u64,
    in_time: u64,
}

impl Tally {
    fn new(end: Instant) -> Self {
        Tally {
            end,
            took: Histogram::new_with_max(MOST, 3).expect("valid bounds"),
            offered: 0,
            in_time: 0,
        }
    }

    #[inline]
    fn finish(&mut self, due: Instant, now: Instant) {
        self.took.saturating_record((now - due).as_nanos() as u64);
        self.in_time += u64::from(now <= self.end);
    }
}

/// The client.
pub(crate) struct Client<'q> {
    queue: &'q mut Queue,
    system: System,
    tape: Tape,
    pending: VecDeque<Pending>,
    watch: Watch,
}

impl<'q> Client<'q> {
    fn new(queue: &'q mut Queue, system: System, tape: Tape) -> Self {
        Client {
            queue,
            system,
            tape,
            pending: VecDeque::with_capacity(1024),
            watch: Watch::default(),
        }
    }

    /// Rests, warms caches with as much as the system takes, lets it finish that, and measures
    /// for the time of a slice: what is late because caches were cold would stay late for long
    /// near the peak.
    pub(crate) fn slice(&mut self, load: Load) -> Result<Slice, LoadError> {
        std::thread::sleep(REST);
        self.offer(Load::Window, WARM)?;
        while self.queue.pending() > 0 {
            self.watch.in_vain(self.queue)?;
        }
        self.offer(load, SLICE)
    }

    fn offer(&mut self, load: Load, time: Duration) -> Result<Slice, LoadError> {
        let mut pauses = Pauses::new();
        let start = pauses.now();
        let end = start + time;
        let mut tally = Tally::new(end);
        let mut due = start;
        let mut finished: Option<Instant> = None;
        let mut is_sends_turn = true;
        loop {
            // One look at the clock and one thing done in each turn. The look is also when
            // that was done which the last turn has done or found done.
            let now = pauses.now();
            if let Some(due) = finished.take() {
                tally.finish(due, now);
            }
            let (is_due, is_over) = match load {
                Load::PerSecond(_) => (due <= now && due < end, due >= end),
                Load::Window => {
                    due = now;
                    (now < end && self.pending.len() < WINDOW, now >= end)
                }
            };
            if is_due && (is_sends_turn || self.pending.is_empty()) {
                if now - due > BEHIND_MAX {
                    return Err(LoadError::Queue("the server is too slow for this".into()));
                }
                let sent = self.send(due)?;
                if sent == Sent::Done {
                    finished = Some(due);
                }
                if sent != Sent::Full {
                    tally.offered += 1;
                    if let Load::PerSecond(ops_per_s) = load {
                        let gap_ns = self.tape.gap_ns(1e9 / ops_per_s);
                        due += Duration::from_nanos(gap_ns as u64);
                    }
                }
                is_sends_turn = false;
            } else {
                finished = self.poll()?;
                is_sends_turn = true;
            }
            if is_over && self.pending.is_empty() && finished.is_none() {
                break;
            }
        }
        Ok(Slice {
            per_s: tally.in_time as f64 / time.as_secs_f64(),
            kept_up: tally.in_time as f64 / tally.offered.max(1) as f64,
            latency: Latency::of(&tally.took),
            pauses: pauses.count,
            pause_max: pauses.longest,
        })
    }

    /// Tries to send the request that is next.
    #[inline]
    fn send(&mut self, due: Instant) -> Result<Sent, LoadError> {
        let (request, is_set) = self.tape.request();
        let nilext = is_set && self.system != System::RunToCompletion;
        let committed = match self.queue.submit(request, nilext) {
            Ok(committed) => committed,
            Err(Refused::Full | Refused::Skipped) => {
                self.watch.in_vain(self.queue)?;
                return Ok(Sent::Full);
            }
            Err(refused) => return Err(LoadError::Queue(refused.to_string())),
        };
        self.tape.advance();
        if nilext && self.system == System::OrderedQueue {
            return Ok(Sent::Done);
        }
        self.pending.push_back(Pending {
            due,
            committed,
            is_answered: !nilext,
        });
        Ok(Sent::Pending)
    }

    /// When the oldest request was due, if it is done: they are in the queue's order.
    #[inline]
    fn poll(&mut self) -> Result<Option<Instant>, LoadError> {
        let Some(first) = self.pending.front() else {
            return Ok(None);
        };
        let (due, committed) = (first.due, first.committed);
        let is_done = match first.is_answered {
            true => self.queue.is_executed(committed),
            false => self.queue.is_committed(committed),
        };
        if !is_done {
            self.watch.in_vain(self.queue)?;
            return Ok(None);
        }
        if first.is_answered {
            let answer = self.queue.answer(committed, Duration::ZERO);
            answer.map_err(|error| LoadError::Queue(error.to_string()))?;
        }
        self.pending.pop_front();
        Ok(Some(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::ALL;

    /// Whether a slice over a server that is gone, with a request under way or not, ends.
    fn ends(system: System, load: Load) {
        let mut worker = Worker::new(1, Options::default()).expect("memory");
        let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
        drop(worker);
        let cluster = Cluster::all().expect("a table")[1];
        let stream = Stream::new(cluster, 100, 7).expect("a stream");
        let tape = Tape::new(cluster, stream, &[5; 10]);
        let result = Client::new(&mut queue, system, tape).slice(load);
        assert!(matches!(result, Err(LoadError::Queue(_))), "{result:?}");
    }

    #[test]
    fn slices_end_with_their_server() {
        for system in ALL {
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
        for system in ALL {
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
