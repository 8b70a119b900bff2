//! Four workloads on three systems of one codebase, over shared memory: requests that are
//! run to completion and answered (as eRPC's are), requests that the CPU acknowledges before
//! it executes them (DeferredExec), and the ordered queue.

use crate::cache::{Cache, spell};
use crate::clusters::{Cluster, Stream};
use crate::commits::MOST;
use crate::pace::Pace;
use crate::report::{Latency, OrderedReport, SYSTEMS};
use crate::watch::Watch;
use crate::{LoadError, LoadOptions, pin};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_ordered::{
    Answer, CommitBy, Committed, Options, Queue, Refused, Request, Service, Taken, Worker,
};

/// Keys of a workload.
const KEYS: u64 = 50_000;
/// Requests under way when the peak is looked for.
const WINDOW: usize = 64;
/// Part of its peak that a system is offered.
const OFFERED: f64 = 0.9;
/// Requests that were offered and not begun: the system is behind for good.
const BEHIND_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    RunToCompletion,
    DeferredExec,
    OrderedQueue,
}

const ALL: [System; 3] = [
    System::RunToCompletion,
    System::DeferredExec,
    System::OrderedQueue,
];
const _: () = assert!(ALL.len() == SYSTEMS.len());

pub(crate) fn measure(options: &LoadOptions, report: &mut OrderedReport) -> Result<(), LoadError> {
    for cluster in Cluster::all()? {
        let mut peaks = [0.0; ALL.len()];
        let mut at_peak = [Latency::default(); ALL.len()];
        for (at, system) in ALL.into_iter().enumerate() {
            (peaks[at], _) = run(options, cluster, system, None)?;
            (_, at_peak[at]) = run(options, cluster, system, Some(peaks[at] * OFFERED))?;
        }
        let lowest = peaks.iter().copied().fold(f64::INFINITY, f64::min);
        for (at, system) in ALL.into_iter().enumerate() {
            let (_, equal) = run(options, cluster, system, Some(lowest * OFFERED))?;
            report.add_workload(cluster.number, at, (peaks[at], at_peak[at], equal));
        }
    }
    Ok(())
}

/// One measurement: requests a second, and their latencies. Without a rate, as many as
/// possible with a window of them under way.
fn run(
    options: &LoadOptions,
    cluster: Cluster,
    system: System,
    ops_per_s: Option<f64>,
) -> Result<(f64, Latency), LoadError> {
    let commit_by = match system {
        System::DeferredExec => CommitBy::Acknowledgement,
        System::RunToCompletion | System::OrderedQueue => CommitBy::Publication,
    };
    let mut worker = Worker::new(
        1,
        Options {
            slot_count: 1024,
            spin: Duration::from_secs(1 << 30),
            commit_by,
            ..Options::default()
        },
    )?;
    let mut queue = Queue::join(worker.admit()?)?;
    let mut cache = Cache::new()?;
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(2);
    let mut stream = Stream::new(cluster, KEYS, 7).ok_or(LoadError::Cluster(cluster.number))?;
    let value = vec![5u8; cluster.value_len];
    let (mut bytes, mut answer) = (Vec::new(), Answer::default());
    for key in 0..stream.known_count() {
        spell(&mut bytes, key, cluster.key_len, Some(&value));
        cache.run(&bytes, &mut answer);
    }
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
        let mut client = Client {
            queue: &mut queue,
            system,
            pending: VecDeque::new(),
            watch: Watch::default(),
            took: Histogram::new_with_max(MOST, 3).expect("valid bounds"),
            warm: Instant::now() + Duration::from_secs_f64(options.seconds / 5.0),
            done: 0,
        };
        let mut send = |client: &mut Client<'_>, due: Instant| {
            let wanted = stream.next();
            let value = wanted.is_set.then_some(&value[..]);
            spell(&mut bytes, wanted.key, cluster.key_len, value);
            client.send(&bytes, wanted.is_set, due)
        };
        let end = Instant::now() + Duration::from_secs_f64(options.seconds * 1.2);
        let result = match ops_per_s {
            Some(ops_per_s) => open_loop(&mut client, ops_per_s, end, &mut send),
            None => closed_loop(&mut client, end, &mut send),
        };
        let measured = client.warm.elapsed().as_secs_f64();
        let figures = (client.done as f64 / measured, Latency::of(&client.took));
        stop.store(true, Ordering::Relaxed);
        let served = server.join();
        pinned?;
        served.map_err(|_| LoadError::Queue("the server panicked".into()))??;
        result.map(|()| figures)
    })
}

type Sender<'s> = dyn FnMut(&mut Client<'_>, Instant) -> Result<(), LoadError> + 's;

fn open_loop(
    client: &mut Client<'_>,
    ops_per_s: f64,
    end: Instant,
    send: &mut Sender<'_>,
) -> Result<(), LoadError> {
    let mut pace = Pace::new(ops_per_s, 11);
    loop {
        let now = Instant::now();
        let due = pace.next();
        if due <= now && due <= end {
            if now - due > BEHIND_MAX {
                return Err(LoadError::Queue("the server is too slow for this".into()));
            }
            pace.advance();
            send(client, due)?;
        }
        client.poll()?;
        if due > end && client.pending.is_empty() {
            return Ok(());
        }
    }
}

fn closed_loop(
    client: &mut Client<'_>,
    end: Instant,
    send: &mut Sender<'_>,
) -> Result<(), LoadError> {
    loop {
        let now = Instant::now();
        if now > end {
            while !client.pending.is_empty() {
                client.poll()?;
            }
            return Ok(());
        }
        if client.pending.len() < WINDOW && client.queue.pending() < WINDOW as u64 {
            send(client, now)?;
        }
        client.poll()?;
    }
}

/// The CPU acknowledges each nilext request as it takes it, and executes it then.
fn deferred(mut worker: Worker, cache: &mut Cache, stop: &AtomicBool) {
    let mut bytes = Vec::new();
    let mut answer = Answer::default();
    while !stop.load(Ordering::Relaxed) {
        let mut taken: Option<Taken> = None;
        worker.take(|request, payload| {
            taken = Some(request);
            bytes.clear();
            bytes.extend_from_slice(payload);
        });
        let Some(taken) = taken else {
            std::hint::spin_loop();
            continue;
        };
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
}

struct Pending {
    due: Instant,
    committed: Committed,
    /// Its answer is waited for, not its acknowledgement.
    is_answered: bool,
}

struct Client<'q> {
    queue: &'q mut Queue,
    system: System,
    pending: VecDeque<Pending>,
    watch: Watch,
    took: Histogram<u64>,
    /// What was due before is not counted.
    warm: Instant,
    done: u64,
}

impl Client<'_> {
    #[inline]
    fn send(&mut self, request: &[u8], is_set: bool, due: Instant) -> Result<(), LoadError> {
        let nilext = is_set && self.system != System::RunToCompletion;
        loop {
            match self.queue.submit(request, nilext) {
                Ok(committed) => {
                    if nilext && self.system == System::OrderedQueue {
                        self.count(due);
                    } else {
                        self.pending.push_back(Pending {
                            due,
                            committed,
                            is_answered: !nilext,
                        });
                    }
                    return Ok(());
                }
                Err(Refused::Full | Refused::Skipped) => {
                    self.watch.in_vain(self.queue)?;
                    self.poll()?;
                }
                Err(refused) => return Err(LoadError::Queue(refused.to_string())),
            }
        }
    }

    #[inline]
    fn count(&mut self, due: Instant) {
        let now = Instant::now();
        if due > self.warm {
            self.took.saturating_record((now - due).as_nanos() as u64);
            self.done += 1;
        }
    }

    /// Looks whether the oldest request is done: they are in the queue's order.
    #[inline]
    fn poll(&mut self) -> Result<(), LoadError> {
        let Some(first) = self.pending.front() else {
            return Ok(());
        };
        let (due, committed) = (first.due, first.committed);
        let is_done = match first.is_answered {
            true => self.queue.is_executed(committed),
            false => self.queue.is_committed(committed),
        };
        if !is_done {
            return self.watch.in_vain(self.queue);
        }
        if first.is_answered {
            let answer = self.queue.answer(committed, Duration::ZERO);
            answer.map_err(|error| LoadError::Queue(error.to_string()))?;
        }
        self.pending.pop_front();
        self.count(due);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a loop over a server that is gone, with a request under way or not, ends.
    fn ends(system: System, ops_per_s: Option<f64>) {
        let mut worker = Worker::new(1, Options::default()).expect("memory");
        let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
        drop(worker);
        let mut client = Client {
            queue: &mut queue,
            system,
            pending: VecDeque::new(),
            watch: Watch::default(),
            took: Histogram::new_with_max(MOST, 3).expect("valid bounds"),
            warm: Instant::now(),
            done: 0,
        };
        let end = Instant::now() + Duration::from_millis(20);
        let mut send = |client: &mut Client<'_>, due: Instant| client.send(b"request", false, due);
        let result = match ops_per_s {
            Some(ops_per_s) => open_loop(&mut client, ops_per_s, end, &mut send),
            None => closed_loop(&mut client, end, &mut send),
        };
        assert!(matches!(result, Err(LoadError::Queue(_))), "{result:?}");
    }

    #[test]
    fn loops_end_with_their_server() {
        for system in ALL {
            ends(system, None);
            ends(system, Some(10_000.0));
        }
    }
}
