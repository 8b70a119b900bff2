//! Drives one target per client thread and times every operation the same way,
//! whoever is under test: clock, call, clock. Composing keys and values,
//! verifying and recording happen outside the two looks at the clock (except
//! that batched hits are verified as they are handed over), and allocate nothing.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::arrivals::Pacer;
use super::recorder::Recorder;
use super::{
    AckTable, Arrivals, KeyCodec, Kind, LoadError, Operation, Request, RequestSource, RunResult,
    ValueWriter, pin_current_thread, verify,
};
use crate::target::{GetOutcome, SetOutcome, Target, TargetError};

/// When a run, or its warm-up, ends. A dry source and a stop end it as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// After so many operations per client.
    Ops(u64),
    /// After so long.
    Time(Duration),
    /// When the source runs dry.
    Source,
    /// When [`RunShared::stop`] is called.
    Stopped,
}

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Closed or open loop.
    pub arrivals: Arrivals,
    /// Keys per lookup; more than one makes lookups batches.
    pub batch: usize,
    /// Write the value after a miss, as a look-aside cache's user does.
    pub fill_on_miss: bool,
    /// Not measured.
    pub warm_up: Bound,
    /// Measured.
    pub bound: Bound,
    /// Dice of the arrivals.
    pub seed: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            arrivals: Arrivals::Closed,
            batch: 1,
            fill_on_miss: false,
            warm_up: Bound::Time(Duration::from_millis(200)),
            bound: Bound::Time(Duration::from_secs(1)),
            seed: 1,
        }
    }
}

/// What the clients of one run share with each other and with whoever watches.
#[derive(Debug)]
pub struct RunShared {
    acks: Option<AckTable>,
    sequence_base: u64,
    stop: AtomicBool,
    progress_ops: AtomicU64,
}

impl RunShared {
    /// For runs that only read: staleness cannot arise, so nothing is looked up
    /// beside the system under test.
    pub fn reading() -> Self {
        Self::with_acks(None)
    }

    /// For runs that write: remembers what was acknowledged for each key. Use the
    /// same one for loading and for the run.
    pub fn writing(keys_count: u64) -> Self {
        Self::with_acks(Some(AckTable::new(keys_count)))
    }

    fn with_acks(acks: Option<AckTable>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            acks,
            // Later runs begin above whatever earlier ones reached, at less than
            // one write per nanosecond.
            sequence_base: now.map_or(1, |now| now.as_nanos() as u64),
            stop: AtomicBool::new(false),
            progress_ops: AtomicU64::new(0),
        }
    }

    /// Ends the run soon.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Operations done so far by all clients, warm-up included, some tenths of a
    /// second late: for progress bars.
    pub fn progress_ops(&self) -> u64 {
        self.progress_ops.load(Relaxed)
    }

    pub(super) fn sequence_base(&self) -> u64 {
        self.sequence_base
    }

    pub(super) fn acknowledge(&self, key: u64, sequence: u64) {
        if let Some(acks) = &self.acks {
            acks.acknowledge(key, sequence);
        }
    }

    #[inline]
    fn acked(&self, key: u64) -> u64 {
        self.acks.as_ref().map_or(0, |acks| acks.acked(key))
    }
}

/// Runs one client on the calling thread.
pub fn run<T: Target, S: RequestSource>(
    target: &mut T,
    source: &mut S,
    options: &RunOptions,
    shared: &RunShared,
) -> Result<RunResult, LoadError> {
    if options.batch == 0 {
        return Err(LoadError::EmptyBatch);
    }
    if options.bound == Bound::Source && !source.is_finite() {
        return Err(LoadError::Endless);
    }
    Ok(Worker::new(target, source, options, shared)?.run())
}

/// Runs one thread per client, each on its core where one is given, from a common
/// start, and adds up what they found.
pub fn run_clients<T: Target + Send, S: RequestSource + Send>(
    clients: Vec<(T, S, Option<usize>)>,
    options: &RunOptions,
    shared: &RunShared,
) -> Result<RunResult, LoadError> {
    let barrier = Barrier::new(clients.len());
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(index, (mut target, mut source, core))| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let pinned = core.map_or(Ok(()), |core| {
                        pin_current_thread(core).map_err(|source| LoadError::Pin { core, source })
                    });
                    barrier.wait();
                    pinned?;
                    let options = RunOptions {
                        seed: options.seed.wrapping_add(index as u64),
                        ..*options
                    };
                    run(&mut target, &mut source, &options, shared)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(LoadError::Panicked)))
            .collect()
    });
    let mut total: Option<RunResult> = None;
    for result in results {
        let result = result?;
        match &mut total {
            Some(total) => total.merge(&result),
            None => total = Some(result),
        }
    }
    total.ok_or(LoadError::NoKeys)
}

struct Worker<'a, T, S> {
    target: &'a mut T,
    source: &'a mut S,
    options: &'a RunOptions,
    shared: &'a RunShared,
    codec: KeyCodec,
    pacer: Pacer,
    recorder: Recorder,
    writer: ValueWriter,
    sequence: u64,
    key: Vec<u8>,
    batch: Batch,
    answers: Answers,
    missed: Vec<Request>,
    ops: u64,
    ops_reported: u64,
    origin: Instant,
    last_end: Instant,
}

impl<'a, T: Target, S: RequestSource> Worker<'a, T, S> {
    fn new(
        target: &'a mut T,
        source: &'a mut S,
        options: &'a RunOptions,
        shared: &'a RunShared,
    ) -> Result<Self, LoadError> {
        let codec = source.codec();
        let now = Instant::now();
        Ok(Self {
            codec,
            pacer: Pacer::new(options.arrivals, options.seed)?,
            recorder: Recorder::new(),
            writer: ValueWriter::new(4096),
            sequence: shared.sequence_base,
            key: codec.buffer(),
            batch: Batch::new(codec, options.batch),
            answers: Answers::default(),
            missed: Vec::with_capacity(options.batch),
            ops: 0,
            ops_reported: 0,
            origin: now,
            last_end: now,
            target,
            source,
            options,
            shared,
        })
    }

    fn run(mut self) -> RunResult {
        self.run_until(self.options.warm_up);
        self.recorder.restart();
        self.ops = 0;
        self.ops_reported = 0;
        let mut retries_before = BTreeMap::new();
        self.target.count_retries(&mut retries_before);
        self.origin = Instant::now();
        self.last_end = self.origin;
        self.run_until(self.options.bound);
        self.report_progress();

        let mut retries = BTreeMap::new();
        self.target.count_retries(&mut retries);
        for (cause, count) in &mut retries {
            *count = count.saturating_sub(retries_before.get(cause).copied().unwrap_or(0));
        }
        let elapsed = self.last_end.duration_since(self.origin);
        self.recorder.finish(elapsed, retries)
    }

    fn run_until(&mut self, bound: Bound) {
        let (ops_max, time_max) = match bound {
            Bound::Ops(ops) => (ops, Duration::MAX),
            Bound::Time(time) => (u64::MAX, time),
            Bound::Source | Bound::Stopped => (u64::MAX, Duration::MAX),
        };
        while self.ops < ops_max
            && self.last_end.duration_since(self.origin) < time_max
            && !self.shared.stop.load(Relaxed)
        {
            let Some(request) = self.source.next_request() else {
                break;
            };
            match request.operation {
                Operation::Get if self.options.batch > 1 => {
                    if self.batch.push(request) {
                        self.get_many();
                    }
                }
                Operation::Get => self.get(request),
                Operation::Set | Operation::Erase => {
                    self.get_many();
                    let start = self.pacer.start();
                    self.write(request, start);
                }
            }
        }
        self.get_many();
    }

    fn get(&mut self, request: Request) {
        self.codec.encode(request.key, &mut self.key);
        let acked = self.shared.acked(request.key);
        let start = self.pacer.start();
        let outcome = self.target.get(&self.key);
        let end = Instant::now();
        let verdict = match outcome {
            Ok(GetOutcome::Hit(value)) => Ok(Some(verify(value, request.key, acked))),
            Ok(GetOutcome::Miss) => Ok(None),
            Err(error) => Err(error),
        };
        match verdict {
            Ok(Some(verdict)) => {
                self.recorder.hit(verdict);
                self.note(Kind::Get, 1, start, end);
            }
            Ok(None) => {
                self.recorder.missed();
                self.note(Kind::Get, 1, start, end);
                if self.options.fill_on_miss {
                    let fill = Request {
                        operation: Operation::Set,
                        ..request
                    };
                    self.write(fill, Instant::now());
                }
            }
            Err(error) => self.note_failure(1, end, &error),
        }
    }

    fn get_many(&mut self) {
        if self.batch.requests.is_empty() {
            return;
        }
        self.batch.prepare(self.codec, self.shared);
        let count = self.batch.requests.len() as u64;
        let spare = std::mem::take(&mut self.batch.spare);
        let keys = self.batch.keys(spare);
        let answers = &mut self.answers;
        answers.clear();
        let start = self.pacer.start();
        let outcome = self
            .target
            .get_many(&keys, &mut |index, outcome| answers.push(index, outcome));
        let end = Instant::now();
        self.batch.spare = recycle(keys);
        let (requests, acked) = (&self.batch.requests, &self.batch.acked);
        for (index, value) in self.answers.iter() {
            let (Some(request), Some(acked)) = (requests.get(index), acked.get(index)) else {
                continue;
            };
            match value {
                Some(value) => self.recorder.hit(verify(value, request.key, *acked)),
                None => {
                    self.recorder.missed();
                    self.missed.push(*request);
                }
            }
        }
        match outcome {
            Ok(()) => self.note(Kind::Get, count, start, end),
            Err(error) => self.note_failure(count, end, &error),
        }
        self.batch.requests.clear();
        if self.options.fill_on_miss {
            for index in 0..self.missed.len() {
                let fill = Request {
                    operation: Operation::Set,
                    ..self.missed[index]
                };
                self.write(fill, Instant::now());
            }
        }
        self.missed.clear();
    }

    fn write(&mut self, request: Request, start: Instant) {
        self.codec.encode(request.key, &mut self.key);
        self.sequence += 1;
        let sequence = self.sequence;
        // An open loop's latency runs from the intended start; a closed loop's
        // should not contain the composing of the value.
        let is_late = self.options.arrivals != Arrivals::Closed;
        let (start, outcome) = if request.operation == Operation::Erase {
            (start, self.target.erase(&self.key))
        } else {
            let value = self
                .writer
                .compose(request.key, sequence, request.value_len);
            let start = if is_late { start } else { Instant::now() };
            (start, self.target.set(&self.key, value, request.ttl))
        };
        let end = Instant::now();
        match outcome {
            Ok(outcome) => {
                match outcome {
                    SetOutcome::Stored => self.shared.acknowledge(request.key, sequence),
                    SetOutcome::Superseded => self.recorder.superseded(),
                    SetOutcome::Indeterminate => self.recorder.indeterminate(),
                }
                self.note(Kind::Set, 1, start, end);
            }
            Err(error) => self.note_failure(1, end, &error),
        }
    }

    #[inline]
    fn note(&mut self, kind: Kind, ops: u64, start: Instant, end: Instant) {
        let latency_ns = end.saturating_duration_since(start).as_nanos() as u64;
        let now_ns = end.saturating_duration_since(self.origin).as_nanos() as u64;
        self.ops += ops;
        self.last_end = end;
        if self.recorder.succeeded(kind, ops, latency_ns, now_ns) {
            self.report_progress();
        }
    }

    #[cold]
    fn note_failure(&mut self, ops: u64, end: Instant, error: &TargetError) {
        let now_ns = end.saturating_duration_since(self.origin).as_nanos() as u64;
        self.ops += ops;
        self.last_end = end;
        if self.recorder.failed(ops, now_ns, || error.to_string()) {
            self.report_progress();
        }
    }

    #[cold]
    fn report_progress(&mut self) {
        let new = self.ops - self.ops_reported;
        self.shared.progress_ops.fetch_add(new, Relaxed);
        self.ops_reported = self.ops;
    }
}

/// Lookups collected for one `get_many`.
struct Batch {
    len: usize,
    requests: Vec<Request>,
    acked: Vec<u64>,
    arena: Vec<u8>,
    key_len: usize,
    spare: Vec<&'static [u8]>,
}

impl Batch {
    fn new(codec: KeyCodec, len: usize) -> Self {
        Self {
            len,
            requests: Vec::with_capacity(len),
            acked: Vec::with_capacity(len),
            arena: codec.buffer().repeat(len),
            key_len: codec.key_len(),
            spare: Vec::with_capacity(len),
        }
    }

    /// True when the batch is full.
    fn push(&mut self, request: Request) -> bool {
        self.requests.push(request);
        self.requests.len() >= self.len
    }

    fn prepare(&mut self, codec: KeyCodec, shared: &RunShared) {
        self.acked.clear();
        let keys = self.arena.chunks_exact_mut(self.key_len);
        for (request, key) in self.requests.iter().zip(keys) {
            codec.encode(request.key, key);
            self.acked.push(shared.acked(request.key));
        }
    }

    fn keys<'k>(&'k self, spare: Vec<&'static [u8]>) -> Vec<&'k [u8]> {
        let mut keys: Vec<&'k [u8]> = spare;
        let spelled = self.arena.chunks_exact(self.key_len);
        keys.extend(spelled.take(self.requests.len()));
        keys
    }
}

/// What a `get_many` has brought: copied as it comes, as a user would, and
/// verified later, outside of what is timed.
#[derive(Default)]
struct Answers {
    values: Vec<u8>,
    /// Which key, and where its value ends; a miss has none.
    ends: Vec<(usize, Option<usize>)>,
}

impl Answers {
    fn clear(&mut self) {
        self.values.clear();
        self.ends.clear();
    }

    #[inline]
    fn push(&mut self, index: usize, outcome: GetOutcome<'_>) {
        let end = match outcome {
            GetOutcome::Hit(value) => {
                self.values.extend_from_slice(value);
                Some(self.values.len())
            }
            GetOutcome::Miss => None,
        };
        self.ends.push((index, end));
    }

    fn iter(&self) -> impl Iterator<Item = (usize, Option<&[u8]>)> {
        let mut begin = 0;
        self.ends.iter().map(move |&(index, end)| {
            let value = end.map(|end| &self.values[std::mem::replace(&mut begin, end)..end]);
            (index, value)
        })
    }
}

/// Empties a vector of slices and keeps its allocation for slices of another
/// lifetime: collecting a vector's own iterator happens in place.
fn recycle(mut keys: Vec<&[u8]>) -> Vec<&'static [u8]> {
    keys.clear();
    keys.into_iter().map(|_| -> &'static [u8] { &[] }).collect()
}
