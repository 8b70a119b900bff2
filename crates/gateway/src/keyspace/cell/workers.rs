//! Threads that wait, so that event loops need not.
//!
//! One queue for each event loop, served in order by up to a fixed number of
//! threads, which are started when they are needed. It holds no more than one
//! operation for each connection, so the limit on connections bounds it.
//!
//! An operation on a key may wait for seconds (a key of which no quorum can be
//! reached): as many such operations as there are workers hold up others that
//! have to wait, too, but no read that shared memory answers.

use super::MakeOperations;
use super::operations::CellOperations;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_gateway_core::deferred::{Operation, Outcome, Ticket};
use trefoil_gateway_core::keyspace::{Fault, Wake};

/// How long totals wait for other workers to settle what they have stored.
const OTHERS_PATIENCE: Duration = Duration::from_millis(250);

/// See the module.
pub(super) struct Workers {
    shared: Arc<Shared>,
    make: MakeOperations,
    count_max: usize,
}

struct Shared {
    state: Mutex<State>,
    /// Tells of operations, of the end, and of wishes to settle.
    changed: Condvar,
    /// There are outcomes, and the loop was told.
    has_told: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Ticket, Operation)>,
    outcomes: Vec<(Ticket, Outcome)>,
    worker_count: usize,
    idle_count: usize,
    wake: Option<Wake>,
    is_ending: bool,
    /// Counts wishes that every worker settles.
    settle_wish: u64,
    /// Workers that have fulfilled the last one.
    settled_count: usize,
}

impl Workers {
    pub(super) fn new(
        count_max: usize,
        make: impl Fn() -> CellOperations + Send + Sync + 'static,
    ) -> Self {
        Workers {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changed: Condvar::new(),
                has_told: AtomicBool::new(false),
            }),
            make: Arc::new(make),
            count_max: count_max.max(1),
        }
    }

    pub(super) fn attach(&self, wake: Wake) {
        self.shared.lock().wake = Some(wake);
    }

    pub(super) fn submit(&self, ticket: Ticket, operation: Operation) {
        let mut state = self.shared.lock();
        state.queue.push_back((ticket, operation));
        let is_short = state.queue.len() > state.idle_count;
        if is_short && state.worker_count < self.count_max {
            state.worker_count += 1;
            drop(state);
            self.start();
        } else {
            drop(state);
            self.shared.changed.notify_one();
        }
    }

    fn start(&self) {
        let (shared, make) = (Arc::clone(&self.shared), Arc::clone(&self.make));
        let thread = std::thread::Builder::new()
            .name("trefoil-waiter".to_owned())
            .spawn(move || shared.work(make()));
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
            let failed = queue.drain(..).map(|(ticket, operation)| {
                (
                    ticket,
                    failed(&operation, Fault::Unavailable(reason.clone())),
                )
            });
            outcomes.extend(failed);
            self.shared.tell(&state);
        }
    }

    /// Takes all outcomes that have come.
    pub(super) fn take(&self, into: &mut Vec<(Ticket, Outcome)>) {
        // Nearly always there is nothing: a load alone leaves the line shared.
        if self.shared.has_told.load(Ordering::Acquire)
            && self.shared.has_told.swap(false, Ordering::AcqRel)
        {
            into.append(&mut self.shared.lock().outcomes);
        }
    }

    /// Leaves out an operation that has not begun.
    pub(super) fn cancel(&self, ticket: Ticket) {
        self.shared
            .lock()
            .queue
            .retain(|(waiting, _)| *waiting != ticket);
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

    fn work(&self, mut operations: CellOperations) {
        let mut state = self.lock();
        let mut settled = state.settle_wish;
        loop {
            if state.is_ending {
                return;
            }
            if state.settle_wish != settled {
                settled = state.settle_wish;
                drop(state);
                operations.settle();
                state = self.lock();
                state.settled_count += usize::from(state.settle_wish == settled);
                self.changed.notify_all();
                continue;
            }
            let Some((ticket, operation)) = state.queue.pop_front() else {
                state.idle_count += 1;
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                state.idle_count -= 1;
                continue;
            };
            if matches!(operation, Operation::Totals) {
                state.settle_wish += 1;
                state.settled_count = 1;
                settled = state.settle_wish;
                drop(state);
                self.changed.notify_all();
                operations.settle();
                self.wait_for_others(settled);
            } else {
                drop(state);
            }
            let outcome = operations.execute(&operation);
            state = self.lock();
            state.outcomes.push((ticket, outcome));
            self.tell(&state);
        }
    }

    /// Waits until all workers have settled, or for a moment.
    fn wait_for_others(&self, wish: u64) {
        let end = Instant::now() + OTHERS_PATIENCE;
        let mut state = self.lock();
        while state.settle_wish == wish
            && state.settled_count < state.worker_count
            && let Some(left) = end.checked_duration_since(Instant::now())
        {
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An operation that nobody will execute.
fn failed(operation: &Operation, fault: Fault) -> Outcome {
    match operation {
        Operation::Get { .. } => Outcome::Item(Err(fault)),
        Operation::GetMany { .. } => Outcome::Items(vec![Err(fault)]),
        Operation::Set { .. } => Outcome::Stored(Err(fault)),
        Operation::Change { .. } => Outcome::Changed(Err(fault)),
        Operation::Flush { .. } | Operation::SetMemoryLimit { .. } => Outcome::Done(Err(fault)),
        Operation::List { .. } => Outcome::Listed(Err(fault)),
        Operation::Totals => Outcome::Totals(Err(fault)),
    }
}
