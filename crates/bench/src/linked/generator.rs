//! Open-loop load: requests begin when they are due, whatever became of those
//! before, and latency counts from when they were due.
//!
//! One thread, in the callers' namespace. It sleeps on a timer of the kernel
//! between requests: a spinning thread would take a core from the servers, and
//! the runtime's own timers are a millisecond coarse.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use address_book_contract::v1::{ChangeAnswer, LookupAnswer, LookupRequest};
use address_book_contract::{owner, sample_book};
use bytes::Bytes;
use hdrhistogram::Histogram;
use prost::Message as _;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;
use tonic::Status;
use trefoil_router::Redirect;

use super::call::{Caller, Method};
use super::error::LinkedBenchError;
use super::objects::{ObjectSet, Requests, fill_request};
use super::placement::{Directory, Placement};
use super::{Variant, fail_call};

const LATENCY_NS_MAX: u64 = 60_000_000_000;
const DIGITS: u8 = 3;
/// How long after the last request is due its answer is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests at once when objects are stored at the beginning.
const FILLS_AT_ONCE: usize = 8;

/// What to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) set: ObjectSet,
    /// Requests a second.
    pub(super) rate: f64,
    pub(super) lookup_share: f64,
    pub(super) warm_up: Duration,
    pub(super) measured: Duration,
    pub(super) seed: u64,
}

/// What came of it.
#[derive(Debug, Clone)]
pub(super) struct Generated {
    pub(super) latencies: Histogram<u64>,
    pub(super) failed: u64,
    /// Answered by another server than the one asked first.
    pub(super) redirected: u64,
    pub(super) first_error: Option<String>,
}

/// Runs a load on the calling thread. `edge` is told when the measured time
/// begins and when its last answer has come.
pub(super) fn generate(
    directory: &Directory,
    load: &Load,
    edge: &mut dyn FnMut() -> Result<(), LinkedBenchError>,
) -> Result<Generated, LinkedBenchError> {
    block_on(async {
        let callers = Callers::connect(directory).await?;
        let mut requests = Requests::new(load.set, load.lookup_share, load.seed);
        let mut clock = Clock::new(load.rate, load.seed)?;
        // Warmed up, and quiet when counting begins.
        let warm = Rc::new(RefCell::new(Tally::new()));
        clock
            .send(load.warm_up, &mut requests, &callers, &warm)
            .await?;
        finish(&warm).await;
        edge()?;
        let tally = Rc::new(RefCell::new(Tally::new()));
        clock
            .send(load.measured, &mut requests, &callers, &tally)
            .await?;
        finish(&tally).await;
        edge()?;
        let tally = tally.borrow();
        Ok(Generated {
            latencies: tally.latencies.clone(),
            failed: tally.failed + tally.pending,
            redirected: tally.redirected,
            first_error: tally.first_error.clone(),
        })
    })
}

/// Stores every object.
pub(super) fn fill(
    variant: Variant,
    directory: &Directory,
    set: &ObjectSet,
) -> Result<(), LinkedBenchError> {
    block_on(async {
        let callers = Callers::connect(directory).await?;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..set.objects_count {
            if tasks.len() >= FILLS_AT_ONCE {
                done(variant, tasks.join_next().await)?;
            }
            let callers = callers.clone();
            let message = fill_request(set, number).encode_to_vec().into();
            tasks.spawn_local(async move {
                callers
                    .call(number, Method::Change, message)
                    .await
                    .map(drop)
            });
        }
        while let Some(task) = tasks.join_next().await {
            done(variant, Some(task))?;
        }
        Ok(())
    })
}

type Filled = Option<Result<Result<(), Status>, tokio::task::JoinError>>;

fn done(variant: Variant, task: Filled) -> Result<(), LinkedBenchError> {
    match task {
        Some(Ok(Err(status))) => Err(fail_call(variant, "filling", status.to_string())),
        Some(Err(error)) => Err(fail_call(variant, "filling", error.to_string())),
        _ => Ok(()),
    }
}

/// Looks at a few objects: that they are there, right, and can be changed.
pub(super) fn verify(
    variant: Variant,
    directory: &Directory,
    set: &ObjectSet,
) -> Result<(), LinkedBenchError> {
    block_on(async {
        let callers = Callers::connect(directory).await?;
        let fail = |what, problem: String| fail_call(variant, what, problem);
        for number in [
            0,
            set.objects_count / 2,
            set.objects_count.saturating_sub(1),
        ] {
            let whole = LookupRequest {
                owner: owner(number),
                first: 0,
                count: u32::MAX,
            };
            let message = whole.encode_to_vec().into();
            let answer = callers.call(number, Method::Lookup, message).await;
            let answer = answer.map_err(|status| fail("lookup", status.to_string()))?;
            let answer = LookupAnswer::decode(answer.bytes);
            let answer = answer.map_err(|error| fail("lookup", error.to_string()))?;
            let right = sample_book(number, set.object_len).contacts;
            if answer.contacts != right {
                return Err(LinkedBenchError::Wrong {
                    variant: variant.name(),
                    found: answer.contacts.len(),
                    expected: right.len(),
                });
            }
            let message = fill_request(set, number).encode_to_vec().into();
            let changed = callers.call(number, Method::Change, message).await;
            let changed = changed.map_err(|status| fail("change", status.to_string()))?;
            let changed = ChangeAnswer::decode(changed.bytes);
            let changed = changed.map_err(|error| fail("change", error.to_string()))?;
            if changed.version <= answer.version {
                let problem = format!("version {} after {}", changed.version, answer.version);
                return Err(fail("change", problem));
            }
        }
        Ok(())
    })
}

fn block_on<R>(
    work: impl Future<Output = Result<R, LinkedBenchError>>,
) -> Result<R, LinkedBenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| io_error("start a runtime", source))?;
    LocalSet::new().block_on(&runtime, work)
}

/// Connections to all app servers, and how to choose one.
#[derive(Clone)]
struct Callers {
    placement: Rc<Placement>,
    callers: Rc<[Caller]>,
}

struct Answer {
    bytes: Bytes,
    is_redirected: bool,
}

impl Callers {
    async fn connect(directory: &Directory) -> Result<Self, LinkedBenchError> {
        let placement = Placement::open(directory).await?;
        let mut callers = Vec::new();
        for (at, address) in placement.addresses.iter().enumerate() {
            let caller = match directory.frames.get(at) {
                Some(frames) => Caller::frames(frames).await.map_err(|e| e.to_string()),
                None => Caller::grpc(address).await.map_err(|e| e.to_string()),
            };
            callers.push(caller.map_err(|problem| LinkedBenchError::NotReady {
                name: address.clone(),
                problem,
            })?);
        }
        Ok(Callers {
            placement: Rc::new(placement),
            callers: callers.into(),
        })
    }

    /// Calls the key's server; where that sends it elsewhere, the other one.
    async fn call(&self, number: u64, method: Method, message: Bytes) -> Result<Answer, Status> {
        let first = self.placement.pick(&owner(number));
        let mut caller = self.callers[first].clone();
        let refused = match caller.call(method, message.clone()).await {
            Ok(bytes) => {
                return Ok(Answer {
                    bytes,
                    is_redirected: false,
                });
            }
            Err(status) => status,
        };
        let redirect = Redirect::of(&refused).and_then(|redirect| redirect.address);
        match redirect.and_then(|address| self.placement.index_of(&address)) {
            Some(other) => Ok(Answer {
                bytes: self.callers[other].clone().call(method, message).await?,
                is_redirected: true,
            }),
            None => Err(refused),
        }
    }
}

async fn finish(tally: &Rc<RefCell<Tally>>) {
    let deadline = Instant::now() + PATIENCE;
    while tally.borrow().pending > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

struct Tally {
    latencies: Histogram<u64>,
    pending: u64,
    failed: u64,
    redirected: u64,
    first_error: Option<String>,
}

impl Tally {
    fn new() -> Self {
        // The bounds are constants that every histogram accepts.
        let latencies = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        Tally {
            latencies: latencies.unwrap_or_else(|_| unreachable!("constant bounds are valid")),
            pending: 0,
            failed: 0,
            redirected: 0,
            first_error: None,
        }
    }

    fn end(&mut self, due: Instant, result: Result<Answer, Status>) {
        self.pending -= 1;
        match result {
            Ok(answer) => {
                self.redirected += u64::from(answer.is_redirected);
                let ns = due.elapsed().as_nanos().min(u128::from(LATENCY_NS_MAX));
                self.latencies.saturating_record(ns as u64);
            }
            Err(status) => {
                self.failed += 1;
                self.first_error.get_or_insert_with(|| status.to_string());
            }
        }
    }
}

/// Poisson arrivals on a kernel timer.
struct Clock {
    timer: AsyncFd<OwnedFd>,
    mean_gap_s: f64,
    rng: SmallRng,
}

impl Clock {
    fn new(rate: f64, seed: u64) -> Result<Self, LinkedBenchError> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(io::Error::from)
            // SAFETY: the descriptor is the timer's own, and the `AsyncFd` owns it
            // for as long as it is registered.
            .and_then(|timer| Ok(unsafe { AsyncFd::register(timer) }?))
            .map_err(|source| io_error("make a timer", source))?;
        Ok(Clock {
            timer,
            mean_gap_s: 1.0 / rate.max(1e-3),
            rng: SmallRng::seed_from_u64(seed ^ 0x00a7_71fa_1500),
        })
    }

    async fn send(
        &mut self,
        length: Duration,
        requests: &mut Requests,
        callers: &Callers,
        tally: &Rc<RefCell<Tally>>,
    ) -> Result<(), LinkedBenchError> {
        let begin = Instant::now();
        let mut due = begin;
        loop {
            let uniform: f64 = self.rng.random();
            due += Duration::from_secs_f64(-(1.0 - uniform).ln() * self.mean_gap_s);
            if due.saturating_duration_since(begin) > length {
                return Ok(());
            }
            // Made before it is due, so that this takes no time from it.
            let request = requests.next();
            let callers = callers.clone();
            self.wait_until(due).await?;
            tally.borrow_mut().pending += 1;
            let tally = tally.clone();
            tokio::task::spawn_local(async move {
                let method = match request.is_lookup {
                    true => Method::Lookup,
                    false => Method::Change,
                };
                let result = callers.call(request.owner, method, request.message).await;
                tally.borrow_mut().end(due, result);
            });
        }
    }

    async fn wait_until(&mut self, due: Instant) -> Result<(), LinkedBenchError> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Others get their turn, however late we are.
                tokio::task::yield_now().await;
                return Ok(());
            }
            self.sleep(left)
                .await
                .map_err(|source| io_error("wait for a timer", source))?;
        }
    }

    async fn sleep(&mut self, left: Duration) -> io::Result<()> {
        let time = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()).max(1),
            },
        };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &time)?;
        let mut ready = self.timer.readable().await?;
        let mut count = [0; 8];
        match rustix::io::read(self.timer.get_ref(), &mut count) {
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(error) => return Err(error.into()),
            Ok(_) => ready.clear_ready(),
        }
        Ok(())
    }
}

fn io_error(what: &'static str, source: io::Error) -> LinkedBenchError {
    LinkedBenchError::Io { what, source }
}
