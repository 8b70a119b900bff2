//! The client for async callers: futures that need no particular runtime.
//!
//! ```text
//!   tasks ── get ──► views (in place: one-sided reads)          any thread
//!     │                 ▲ published
//!     └── queue ──► thread: one Client, one set of rings ──► answers wake tasks
//! ```
//!
//! A lookup on the backend's host takes about a microsecond and waits for nobody, so
//! it ends where it is called. Everything else goes to the client's own thread, in
//! the order in which it came, at most some hundreds at a time. However many tasks
//! there are: one set of rings and one thread; what waits for it is in its future's
//! hands, first come, first served, and its deadline counts from when it came.
//!
//! # Dropping a future
//!
//! * A lookup that is dropped is over: what it held is free.
//! * A mutation that is dropped before the thread has begun it never happens.
//! * One that has been begun goes on to all replicas, in the background, and ends by
//!   the client's deadline like any other; nobody hears how.
//!
//! Dropping the last clone lets the thread finish what was begun, and end. It does
//! not wait for it: [`AsyncClient::finish`] does. Should the thread end by a panic,
//! everything that waits for it fails, and what comes later, too.

mod queue;
mod thread;
mod views;

use crate::cell::Cell;
use crate::client::{check_key, forked};
use crate::commit::Commit;
use crate::error::{Mutated, OpError};
use crate::mutate::SetOptions;
use crate::owned::OwnedLookup;
use crate::time;
pub(crate) use queue::Signals;
use queue::{Answer, Command, Queue, Submission};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trefoil_client_core::fill::FillTicket;
use trefoil_client_core::retry::Limits;
use trefoil_driver::{Carrier, Options};
use trefoil_layout::copied;
use trefoil_layout::op::Expected;
pub(crate) use views::Reach;
use views::Views;

/// A client that tasks share. Cheap to clone.
#[derive(Clone)]
pub struct AsyncClient {
    user: Arc<User>,
    commit: Commit,
}

/// The last one closes the queue.
struct User {
    cell: Cell,
    queue: Arc<Queue>,
    views: Arc<Views>,
    options: Options,
}

impl Drop for User {
    fn drop(&mut self) {
        if !self.queue.is_forked() {
            self.queue.close();
        }
    }
}

impl Cell {
    /// A client for async callers of any runtime, with a thread of its own. If the
    /// system has no thread left, every operation that needs it fails, and says so.
    pub fn async_client(&self, options: Options) -> AsyncClient {
        let queue = Arc::new(Queue::new());
        let views = Arc::new(Views::default());
        let (cell, thread_queue, thread_views) = (self.clone(), queue.clone(), views.clone());
        let spawned = std::thread::Builder::new()
            .name("trefoil-async".to_owned())
            .spawn(move || thread::run(&cell, options, &thread_queue, &thread_views));
        if spawned.is_err() {
            queue.end();
        }
        let user = User {
            cell: self.clone(),
            queue,
            views,
            options,
        };
        AsyncClient {
            user: Arc::new(user),
            commit: Commit::default(),
        }
    }
}

impl AsyncClient {
    /// See [`crate::Client::get`].
    pub async fn get(&self, key: &[u8]) -> Result<OwnedLookup, OpError> {
        if let Some(found) = self.get_in_place(key) {
            return found;
        }
        self.get_by_thread(key).await
    }

    /// Looks up every key; the results are in the keys' order. Those that have to
    /// wait for somebody wait at the same time.
    pub async fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<OwnedLookup, OpError>> {
        let mut results: Vec<Option<Result<OwnedLookup, OpError>>> = keys
            .iter()
            .map(|key| self.get_in_place(key.as_ref()))
            .collect();
        let mut open: Vec<(usize, std::pin::Pin<Box<Submission<'_>>>)> = Vec::new();
        for (index, result) in results.iter().enumerate() {
            if result.is_none() {
                let command = Command::Get(keys[index].as_ref().to_vec());
                open.push((index, Box::pin(self.submission(command))));
            }
        }
        std::future::poll_fn(|context| {
            open.retain_mut(
                |(index, submission)| match submission.as_mut().poll(context) {
                    std::task::Poll::Ready(answer) => {
                        results[*index] = Some(lookup(answer));
                        false
                    }
                    std::task::Poll::Pending => true,
                },
            );
            match open.is_empty() {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
        results.into_iter().flatten().collect()
    }

    /// The same client, whose SETs and ERASEs are done when this says, unless a call says
    /// otherwise. Other clones go on as before.
    ///
    /// Nobody waits for a place at a backend's queue: until the thread has one, what is to
    /// commit at its acknowledgement is executed.
    #[must_use]
    pub fn with_commit(mut self, commit: Commit) -> Self {
        self.commit = commit;
        self
    }

    /// See [`crate::Client::set`].
    pub async fn set(
        &self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        self.set_by(key, value, options, self.commit).await
    }

    /// See [`crate::Client::set_by`].
    pub async fn set_by(
        &self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
        commit: Commit,
    ) -> Result<Mutated, OpError> {
        let command = Command::Set(key.to_vec(), copied::owned(value), options, commit);
        self.mutate(command).await
    }

    /// See [`crate::Client::fill`].
    pub async fn fill(
        &self,
        ticket: FillTicket,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let command = Command::Fill(ticket, key.to_vec(), copied::owned(value), options);
        self.mutate(command).await
    }

    /// See [`crate::Client::erase`].
    pub async fn erase(&self, key: &[u8]) -> Result<Mutated, OpError> {
        self.erase_by(key, self.commit).await
    }

    /// See [`crate::Client::erase_by`].
    pub async fn erase_by(&self, key: &[u8], commit: Commit) -> Result<Mutated, OpError> {
        self.mutate(Command::Erase(key.to_vec(), commit)).await
    }

    /// See [`crate::Client::cas`].
    pub async fn cas(
        &self,
        key: &[u8],
        expected: Expected,
        value: &[u8],
        options: SetOptions,
    ) -> Result<Mutated, OpError> {
        let command = Command::Cas(key.to_vec(), expected, copied::owned(value), options);
        self.mutate(command).await
    }

    /// Waits, a few seconds at most, until everything that was begun before has been
    /// received by every replica that is up; nothing new begins meanwhile. To be
    /// called before a process ends.
    pub async fn finish(&self) {
        Submission::new(&self.user.queue, Command::Finish, u64::MAX).await;
    }

    /// Operations that wait for the thread, or that it has under way.
    pub fn in_flight(&self) -> usize {
        let queue = &self.user.queue;
        queue.len() + queue.under_way.load(Ordering::SeqCst)
    }

    /// For tests: places that the thread has for operations, used and free.
    #[doc(hidden)]
    pub fn places(&self) -> usize {
        self.user.queue.places.load(Ordering::SeqCst)
    }

    /// Its deadline counts from now, however long it waits for the thread.
    fn submission(&self, command: Command) -> Submission<'_> {
        let deadline_ns = self.deadline_ns(time::monotonic_ns());
        Submission::new(&self.user.queue, command, deadline_ns)
    }

    fn deadline_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_add(time::nanoseconds(self.user.options.deadline))
    }

    fn get_in_place(&self, key: &[u8]) -> Option<Result<OwnedLookup, OpError>> {
        if let Err(rejection) = check_key(key) {
            return Some(Err(rejection.into()));
        }
        if self.user.queue.is_forked() {
            return Some(Err(forked()));
        }
        let options = &self.user.options;
        if options.carrier != Carrier::Auto {
            return None;
        }
        let changes = self.user.cell.shared().changes();
        self.user.views.get(key, changes, |now_ns| Limits {
            deadline_ns: self.deadline_ns(now_ns),
            retries_max: options.retries_max,
        })
    }

    async fn get_by_thread(&self, key: &[u8]) -> Result<OwnedLookup, OpError> {
        let command = Command::Get(key.to_vec());
        lookup(self.submission(command).await)
    }

    async fn mutate(&self, command: Command) -> Result<Mutated, OpError> {
        match self.submission(command).await {
            Answer::Mutated(mutated) => mutated,
            other => Err(OpError::Indeterminate(format!(
                "a mutation ended as {other:?}"
            ))),
        }
    }
}

fn lookup(answer: Answer) -> Result<OwnedLookup, OpError> {
    match answer {
        Answer::Lookup(found) => found,
        other => Err(OpError::Failed(format!("a lookup ended as {other:?}"))),
    }
}
