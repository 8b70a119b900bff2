//! Scripts of Redis's clients: those that are kept, and threads that execute them, so
//! that none of them holds an event loop up.
//!
//! ```text
//!  session ─ Scripts::begin ─► Executor (a queue, up to two threads for each loop)
//!     ▲                            │ engine::execute
//!     └─ Scripts::take ◄─ Executor::poll ◄─ the loop is woken
//! ```

mod bits;
mod engine;
mod json;

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use trefoil_gateway_core::resp::{ScriptHash, ScriptJob};

/// How far threads of scripts stand behind event loops: a third of their weight.
const NICENESS: i32 = 5;
/// Threads of one event loop.
const THREADS_MAX: usize = 2;
/// Scripts of one event loop that wait for a thread.
const WAITING_MAX: usize = 1024;
/// Scripts that are kept, and their bytes.
const KEPT_MAX: usize = 1000;
const KEPT_LEN_MAX: usize = 8 << 20;

/// Scripts by their digests, for all event loops. The oldest are forgotten: whoever
/// asks for one that is gone is told so, and sends it again.
#[derive(Debug, Default)]
pub(super) struct Library(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    sources: HashMap<ScriptHash, Arc<[u8]>>,
    order: VecDeque<ScriptHash>,
    len: usize,
}

impl Library {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, hash: &ScriptHash) -> Option<Arc<[u8]>> {
        self.lock().sources.get(hash).cloned()
    }

    pub(super) fn keep(&self, hash: ScriptHash, source: Arc<[u8]>) {
        let mut kept = self.lock();
        let len = source.len();
        if kept.sources.insert(hash, source).is_some() {
            return;
        }
        kept.len += len;
        kept.order.push_back(hash);
        while kept.order.len() > KEPT_MAX || kept.len > KEPT_LEN_MAX {
            let Some(oldest) = kept.order.pop_front() else {
                return;
            };
            let gone = kept.sources.remove(&oldest);
            kept.len -= gone.map_or(0, |source| source.len());
        }
    }

    pub(super) fn forget(&self) {
        *self.lock() = Kept::default();
    }
}

/// Scripts that are being executed, by connection, for all event loops; and whether
/// nobody wants them to go on.
#[derive(Clone, Debug, Default)]
pub(super) struct Running(Arc<Mutex<HashMap<u64, Arc<AtomicBool>>>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<AtomicBool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, connection: u64) -> Arc<AtomicBool> {
        let is_unwanted = Arc::new(AtomicBool::new(false));
        self.lock().insert(connection, Arc::clone(&is_unwanted));
        is_unwanted
    }

    fn end(&self, connection: u64) {
        self.lock().remove(&connection);
    }

    /// Ends that of a connection, if there is one.
    fn stop(&self, connection: u64) {
        if let Some(is_unwanted) = self.lock().get(&connection) {
            is_unwanted.store(true, Ordering::Relaxed);
        }
    }

    /// Ends all; whether there are any.
    pub(super) fn stop_all(&self) -> bool {
        let running = self.lock();
        for is_unwanted in running.values() {
            is_unwanted.store(true, Ordering::Relaxed);
        }
        !running.is_empty()
    }
}

/// Executes the scripts of one event loop.
pub(super) struct Executor {
    shared: Arc<Shared>,
    /// Those that have been executed, by connection, until their sessions take them.
    done: HashMap<u64, Box<ScriptJob>>,
}

struct Shared {
    state: Mutex<State>,
    running: Running,
    /// Tells of jobs, and of the end.
    changed: Condvar,
    wake: Box<dyn Fn() + Send + Sync>,
    /// There is something in `done`.
    has_done: AtomicBool,
    /// Jobs that wait or are being executed.
    job_count: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(u64, Box<ScriptJob>)>,
    /// Nothing, if a script was too much for its thread.
    done: Vec<(u64, Option<Box<ScriptJob>>)>,
    threads: usize,
    idle: usize,
    is_ending: bool,
}

impl Executor {
    pub(super) fn new(running: Running, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Executor {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                running,
                changed: Condvar::new(),
                wake: Box::new(wake),
                has_done: AtomicBool::new(false),
                job_count: AtomicUsize::new(0),
            }),
            done: HashMap::new(),
        }
    }

    /// Has one executed; gives it back if there are too many.
    pub(super) fn begin(
        &mut self,
        connection: u64,
        job: Box<ScriptJob>,
    ) -> Result<(), Box<ScriptJob>> {
        let mut state = self.shared.lock();
        if state.waiting.len() >= WAITING_MAX {
            return Err(job);
        }
        state.waiting.push_back((connection, job));
        self.shared.job_count.fetch_add(1, Ordering::Relaxed);
        if state.waiting.len() > state.idle && state.threads < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new()
                .name("trefoil-script".to_owned())
                .spawn(move || shared.work());
            match thread {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    tracing::error!(%error, "no thread for scripts");
                    let last = state.waiting.pop_back();
                    self.shared.job_count.fetch_sub(1, Ordering::Relaxed);
                    return last.map_or(Ok(()), |(_, job)| Err(job));
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Says whose scripts have been executed; `false` from there: nobody waits for it.
    pub(super) fn poll(&mut self, resume: &mut dyn FnMut(u64) -> bool) {
        // Nearly always there is nothing.
        if !self.shared.has_done.load(Ordering::Acquire) {
            return;
        }
        let done = {
            let mut state = self.shared.lock();
            self.shared.has_done.store(false, Ordering::Release);
            std::mem::take(&mut state.done)
        };
        for (connection, job) in done {
            if resume(connection)
                && let Some(job) = job
            {
                self.done.insert(connection, job);
            }
        }
    }

    /// Whether anything waits or is being executed.
    pub(super) fn is_busy(&self) -> bool {
        self.shared.job_count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn take(&mut self, connection: u64) -> Option<Box<ScriptJob>> {
        self.done.remove(&connection)
    }

    /// The connection has ended.
    pub(super) fn forget(&mut self, connection: u64) {
        self.done.remove(&connection);
        let mut state = self.shared.lock();
        let before = state.waiting.len();
        state.waiting.retain(|(waiting, _)| *waiting != connection);
        let gone = before - state.waiting.len();
        self.shared.job_count.fetch_sub(gone, Ordering::Relaxed);
        drop(state);
        // Nobody waits for what it is about.
        self.shared.running.stop(connection);
    }
}

impl Drop for Executor {
    /// Threads end with the script that they are in.
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        // Event loops go first. Of the calling thread only; it may not be allowed, and is
        // no condition.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        trefoil_region::take_usual_turns();
        let mut state = self.lock();
        while !state.is_ending {
            let Some((connection, job)) = state.waiting.pop_front() else {
                state.idle += 1;
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            // Commands that were queued are short, and nobody's to stop.
            let is_unwanted = match job.is_program() {
                true => self.running.begin(connection),
                false => Arc::default(),
            };
            drop(state);
            // Nothing is kept between scripts.
            let job = catch_unwind(AssertUnwindSafe(|| engine::execute(job, &is_unwanted)));
            self.running.end(connection);
            self.job_count.fetch_sub(1, Ordering::Relaxed);
            let job = job.inspect_err(|_| tracing::error!("a script panicked"));
            state = self.lock();
            state.done.push((connection, job.ok()));
            self.has_done.store(true, Ordering::Release);
            if state.is_ending {
                return;
            }
            drop(state);
            (self.wake)();
            state = self.lock();
        }
    }
}
