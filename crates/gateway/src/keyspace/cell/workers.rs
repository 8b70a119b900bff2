//! Threads for what concerns a whole cell: flushes, listings, totals, the memory
//! limit. These are calls to every backend, and wait for the answers.
//!
//! One queue for each event loop, served in order by up to a fixed number of
//! threads, which are started when they are needed. Listings never have all of them: one
//! is for everything else, behind however many listings it was asked for. It holds no more than one
//! operation for each connection, so the limit on connections bounds it.

use super::whole::{self, Came};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trefoil_client::Cell;
use trefoil_gateway_core::deferred::{Operation, Ticket};
use trefoil_gateway_core::keyspace::{Fault, Wake};

/// Most threads of one event loop.
const COUNT_MAX: usize = 4;
/// How far they stand behind event loops: a third of their weight.
const NICENESS: i32 = 5;
/// Those that listings may have.
const LISTINGS_MAX: usize = COUNT_MAX - 1;

/// See the module.
pub(super) struct Workers {
    shared: Arc<Shared>,
}

/// An operation to be executed.
pub(super) struct Job {
    pub(super) ticket: Ticket,
    pub(super) operation: Operation,
    /// When it was asked for.
    pub(super) begun: Instant,
}

struct Shared {
    execute: Box<dyn Fn(&Job) -> Came + Send + Sync>,
    state: Mutex<State>,
    /// Tells of operations, and of the end.
    changed: Condvar,
    /// There are outcomes, and the loop was told.
    has_told: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Threads that are at a listing.
    listings: usize,
    outcomes: Vec<(Ticket, Came)>,
    worker_count: usize,
    idle_count: usize,
    wake: Option<Wake>,
    is_ending: bool,
}

impl Workers {
    pub(super) fn new(cell: Cell) -> Self {
        Self::executing(move |job| whole::execute(&cell, job))
    }

    fn executing(execute: impl Fn(&Job) -> Came + Send + Sync + 'static) -> Self {
        Workers {
            shared: Arc::new(Shared {
                execute: Box::new(execute),
                state: Mutex::default(),
                changed: Condvar::new(),
                has_told: AtomicBool::new(false),
            }),
        }
    }

    pub(super) fn attach(&self, wake: Wake) {
        self.shared.lock().wake = Some(wake);
    }

    pub(super) fn submit(&self, job: Job) {
        let mut state = self.shared.lock();
        state.queue.push_back(job);
        let is_short = state.queue.len() > state.idle_count;
        if is_short && state.worker_count < COUNT_MAX {
            state.worker_count += 1;
            drop(state);
            self.start();
        } else {
            drop(state);
            self.shared.changed.notify_one();
        }
    }

    fn start(&self) {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("trefoil-waiter".to_owned())
            .spawn(move || {
                // Event loops go first, and it may have been begun by one. Of the calling
                // thread only; it may not be allowed, and is no condition.
                let _ = rustix::process::setpriority_process(None, NICENESS);
                trefoil_region::take_usual_turns();
                shared.work();
            });
        if let Err(error) = thread {
            let mut state = self.shared.lock();
            state.worker_count -= 1;
            if state.worker_count > 0 {
                tracing::warn!(%error, "no further thread for operations of the cell");
                return;
            }
            // Nobody will come: an answer is better than none.
            let reason = format!("no thread for operations of the cell: {error}");
            tracing::error!("{reason}");
            let State {
                queue, outcomes, ..
            } = &mut *state;
            let failed = queue.drain(..).map(|job| {
                let fault = Fault::Unavailable(reason.clone());
                (job.ticket, whole::failed(&job.operation, fault))
            });
            outcomes.extend(failed);
            self.shared.tell(&state);
        }
    }

    /// Takes all outcomes that have come.
    pub(super) fn take(&self, into: &mut Vec<(Ticket, Came)>) {
        // Nearly always there is nothing: a load alone leaves the line shared.
        if self.shared.has_told.load(Ordering::Acquire)
            && self.shared.has_told.swap(false, Ordering::AcqRel)
        {
            into.append(&mut self.shared.lock().outcomes);
        }
    }

    /// Leaves out an operation that has not begun.
    pub(super) fn cancel(&self, ticket: Ticket) {
        self.shared.lock().queue.retain(|job| job.ticket != ticket);
    }
}

impl Drop for Workers {
    /// Workers end with the operation that they are in.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_ending = true;
        state.wake = None;
        drop(state);
        self.shared.changed.notify_all();
    }
}

fn is_listing(job: &Job) -> bool {
    matches!(job.operation, Operation::List { .. })
}

impl State {
    /// The first operation that a thread may begin.
    fn take_job(&mut self) -> Option<Job> {
        let may_list = self.listings < LISTINGS_MAX;
        let mut jobs = self.queue.iter();
        let at = jobs.position(|job| may_list || !is_listing(job))?;
        let job = self.queue.remove(at)?;
        self.listings += usize::from(is_listing(&job));
        Some(job)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the loop unless it was told already.
    fn tell(&self, state: &State) {
        if !self.has_told.swap(true, Ordering::AcqRel)
            && let Some(wake) = &state.wake
        {
            wake();
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if state.is_ending {
                return;
            }
            let Some(job) = state.take_job() else {
                state.idle_count += 1;
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                state.idle_count -= 1;
                continue;
            };
            drop(state);
            // A panic is a mistake of ours, and no reason to let a client wait for
            // ever. Nothing is kept between jobs that could be half done.
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.execute)(&job)));
            let outcome = outcome.unwrap_or_else(|_| {
                tracing::error!("an operation of the cell panicked");
                let reason = "the operation broke off; the server's log says why".to_owned();
                whole::failed(&job.operation, Fault::Unavailable(reason))
            });
            state = self.lock();
            state.listings -= usize::from(is_listing(&job));
            state.outcomes.push((job.ticket, outcome));
            self.tell(&state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use trefoil_gateway_core::deferred::Outcome;

    fn job(ticket: Ticket, operation: Operation) -> Job {
        Job {
            ticket,
            operation,
            begun: Instant::now(),
        }
    }

    /// Listings that never end leave a thread to those who ask for something else.
    #[test]
    fn listings_do_not_take_all_threads() {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let ends = Mutex::new(ends);
        let workers = Workers::executing(move |job| {
            if is_listing(job) {
                let _ = ends.lock().unwrap().recv();
            }
            whole::failed(&job.operation, Fault::Inquorate)
        });
        let (told, tells) = std::sync::mpsc::channel();
        let told = Mutex::new(told);
        workers.attach(Arc::new(move || {
            let _ = told.lock().unwrap().send(());
        }));
        let listing = Operation::List {
            cursor: 0,
            count: 1,
        };
        for ticket in 0..2 * COUNT_MAX as u64 {
            workers.submit(job(ticket, listing.clone()));
        }
        let mut outcomes = Vec::new();
        for ticket in 100..110 {
            workers.submit(job(ticket, Operation::Totals));
            while outcomes.is_empty() {
                tells.recv_timeout(Duration::from_secs(60)).unwrap();
                workers.take(&mut outcomes);
            }
            assert_eq!(outcomes.pop().unwrap().0, ticket);
        }
        // All listings end.
        drop(end);
        while outcomes.len() < 2 * COUNT_MAX {
            tells.recv_timeout(Duration::from_secs(60)).unwrap();
            workers.take(&mut outcomes);
        }
    }

    #[test]
    fn an_operation_that_panics_has_an_outcome_and_the_next_one_goes_on() {
        let workers = Workers::executing(|job| match job.operation {
            Operation::Totals => panic!("as the test wished"),
            _ => Came::Outcome(Outcome::Done(Ok(()))),
        });
        let (told, tells) = std::sync::mpsc::channel();
        let told = Mutex::new(told);
        workers.attach(Arc::new(move || told.lock().unwrap().send(()).unwrap()));
        let mut outcomes = Vec::new();
        // More than there are threads.
        for ticket in 0..2 * COUNT_MAX as u64 {
            workers.submit(job(ticket, Operation::Totals));
        }
        workers.submit(job(100, Operation::Flush { at_ms: 0 }));
        while outcomes.len() < 2 * COUNT_MAX + 1 {
            tells.recv_timeout(Duration::from_secs(60)).unwrap();
            workers.take(&mut outcomes);
        }
        for (ticket, outcome) in outcomes {
            match outcome {
                Came::Outcome(Outcome::Done(Ok(()))) => assert_eq!(ticket, 100),
                Came::Outcome(Outcome::Totals(Err(Fault::Unavailable(_)))) => {
                    assert_ne!(ticket, 100);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
