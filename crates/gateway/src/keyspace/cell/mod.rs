//! Any cell as a keyspace, through the client library.
//!
//! ```text
//!  event loop ─ DeferredKeyspace ─► CellExecutor ─ Client::get_now ─► shared memory
//!       │            ▲                   │
//!       │            │ outcomes          ├─ on a key ──────► Flights ─► Client::submit_*
//!       │            └───────────────────┤                      (the client's slab)
//!       └─ sleeps on the client's        └─ on all of them ► Workers: threads that wait
//!          descriptor
//! ```
//!
//! A read that shared memory answers is answered on the event loop. Every other
//! operation on a key is submitted to the loop's own client, any number at a time;
//! none waits for another. What reads before it writes is a CAS that is tried
//! again (`DeferredKeyspace`). What concerns the whole cell is a call to every
//! backend, and made by a thread.
//!
//! | module | what it does |
//! |---|---|
//! | `flights` | operations on keys, under way on the loop's client |
//! | `committing` | whether sets are acknowledged before they are executed, and what is said of it |
//! | `spin` | whether to wait for an answer on the spot |
//! | `workers`, `whole` | operations on the whole cell, by threads that wait |
//! | `pages` | pages of listings, fetched ahead |
//! | `totals` | totals of all backends |
//! | `items` | items and faults of the client library in the keyspace's words |

mod committing;
mod flights;
mod items;
mod pages;
mod spin;
mod totals;
mod whole;
mod workers;

use self::items::{access_is_use, hand_out};
use super::versions::random_bits;
pub use committing::{CommitCounts, Committing};
use flights::Flights;
use pages::{Found, Pages, Part};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use trefoil_client::{Cell, Lookup, MissReason, Options};
use trefoil_gateway_core::deferred::{
    DeferredKeyspace, Executor, Handed, Operation, Outcome, Ticket,
};
use trefoil_gateway_core::keyspace::{Access, Fault, Item, Wake};
use whole::Came;
use workers::{Job, Workers};

/// Patience with one operation: a value of megabytes goes to three replicas by
/// RPC, on a machine that may be busy.
const DEADLINE: Duration = Duration::from_secs(4);
/// How often it is looked which backends went or came back, though nobody asks for
/// anything.
const WATCH_NS: u64 = 1_000_000_000;
/// Items of a listing that an event loop hands out in one piece of work.
const LISTED_MAX: usize = 512;
/// How long totals wait until all copies of what was stored here are where they
/// belong, so that they are counted: a busy machine may take that long with the third one.
const SETTLE_PATIENCE: Duration = Duration::from_millis(300);

/// A cell as an event loop's keyspace.
pub type CellKeyspace = DeferredKeyspace<CellExecutor>;

/// How a cell is used.
#[derive(Clone, Debug)]
pub struct CellOptions {
    /// Of the clients.
    pub client: Options,
    /// Patience with one update, all attempts included.
    pub update_patience: Duration,
    /// How long an operation is waited for on the spot, where that has paid
    /// lately; after that its connection is parked.
    pub spin: Duration,
    /// When a SET is done whose answer tells no version: those of text and meta clients that
    /// ask for no CAS unique, and those of Redis' clients.
    pub commit: Committing,
}

impl Default for CellOptions {
    fn default() -> Self {
        CellOptions {
            client: Options {
                deadline: DEADLINE,
                ..Options::default()
            },
            update_patience: Duration::from_secs(2),
            spin: Duration::from_micros(50),
            commit: Committing::default(),
        }
    }
}

/// A keyspace over `cell`.
pub fn cell_keyspace(cell: Cell, options: CellOptions) -> CellKeyspace {
    let update_patience = options.update_patience;
    let executor = CellExecutor::new(cell, options);
    DeferredKeyspace::new(executor, update_patience, random_bits())
}

/// See the module. One belongs to each event loop.
pub struct CellExecutor {
    flights: Flights,
    workers: Workers,
    pages: Pages,
    /// Totals that wait for copies on their way.
    settling: Vec<Job>,
    /// Somebody has asked how items are used: reads are reported before the next
    /// write, lest they count for what it stores.
    tells_uses: bool,
    outcomes: Vec<(Ticket, Outcome)>,
    /// What workers have brought, until it is taken.
    came: Vec<(Ticket, Came)>,
    cell: Cell,
    watch_at_ns: u64,
}

impl CellExecutor {
    fn new(cell: Cell, options: CellOptions) -> Self {
        CellExecutor {
            cell: cell.clone(),
            watch_at_ns: 0,
            flights: Flights::new(
                cell.client(options.client),
                options.spin,
                options.commit.for_loop(),
            ),
            workers: Workers::new(cell),
            pages: Pages::default(),
            settling: Vec::new(),
            tells_uses: false,
            outcomes: Vec::new(),
            came: Vec::new(),
        }
    }

    /// Now and then: looks after every backend, so that the log tells of those that go
    /// and come back although nobody asks for anything.
    fn watch(&mut self) {
        let now_ns = flights::monotonic_ns();
        if now_ns < self.watch_at_ns {
            return;
        }
        self.watch_at_ns = now_ns + WATCH_NS;
        self.flights.client.tend();
        self.flights.turn();
        self.cell.tell_changes();
    }

    /// Has a worker fetch a page.
    fn fetch(&mut self, page: Option<Part>) {
        if let Some(Part {
            ticket,
            cursor,
            count,
        }) = page
        {
            self.workers.submit(Job {
                ticket,
                begun: Instant::now(),
                operation: Operation::List { cursor, count },
            });
        }
    }

    /// Goes on with everything, and hands totals over that need not wait any more.
    fn go_on(&mut self) {
        self.flights.turn();
        let is_settled = self.flights.client.is_settled();
        let is_due = |job: &mut Job| is_settled || job.begun.elapsed() >= SETTLE_PATIENCE;
        for job in self.settling.extract_if(.., is_due) {
            self.workers.submit(job);
        }
    }
}

impl Executor for CellExecutor {
    #[inline]
    fn try_get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        let client = &mut self.flights.client;
        let found = client.get_now(key, access_is_use(access))?;
        if access == Access::Peek
            && let Ok(Lookup::Miss(miss)) = &found
            && miss.reason == MissReason::Inquorate
        {
            // Somebody may write on the strength of it: to be looked at closely.
            return None;
        }
        Some(hand_out(found, with))
    }

    fn try_get_many(
        &mut self,
        keys: &[&[u8]],
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Handed {
        let mut wants_more = true;
        if access == Access::Peek {
            for (index, key) in keys.iter().enumerate() {
                let read = self.try_get(key, access, &mut |item| {
                    wants_more = each(index, Ok(item));
                });
                match read {
                    None => return Handed::Until(index),
                    Some(Err(fault)) => wants_more = each(index, Err(fault)),
                    Some(Ok(())) => {}
                }
                if !wants_more {
                    break;
                }
            }
            return Handed::Enough;
        }
        let done = self.flights.client.get_many_now(keys, |index, found| {
            let handed = hand_out(found, |item| wants_more = each(index, Ok(item)));
            if let Err(fault) = handed {
                wants_more = each(index, Err(fault));
            }
            wants_more
        });
        match wants_more && done < keys.len() {
            true => Handed::Until(done),
            false => Handed::Enough,
        }
    }

    fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        if let Operation::List { cursor, count } = operation {
            let (found, ahead) = self.pages.ask(ticket, cursor, count);
            self.fetch(ahead);
            return match found {
                Found::Slice(outcome) => Some(outcome),
                Found::UnderWay => None,
                Found::Nothing(page) => {
                    self.fetch(Some(page));
                    None
                }
            };
        }
        match operation {
            Operation::Flush { .. } | Operation::Totals | Operation::SetMemoryLimit { .. } => {
                let job = Job {
                    ticket,
                    begun: Instant::now(),
                    operation,
                };
                if matches!(job.operation, Operation::Flush { .. }) {
                    self.pages.clear();
                }
                let is_counting = matches!(job.operation, Operation::Totals);
                if is_counting && !self.flights.client.is_settled() {
                    self.settling.push(job);
                } else {
                    self.workers.submit(job);
                }
                None
            }
            of_a_key => {
                self.tells_uses |= matches!(
                    of_a_key,
                    Operation::Get {
                        with_seen: true,
                        ..
                    }
                );
                if self.tells_uses {
                    self.flights.client.flush_touches();
                }
                self.flights.submit(ticket, of_a_key)
            }
        }
    }

    fn submit_beside(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        match operation {
            Operation::Set { .. } | Operation::Change { .. } | Operation::Get { .. } => {
                if self.tells_uses {
                    self.flights.client.flush_touches();
                }
                self.flights.submit_beside(ticket, operation)
            }
            other => self.submit(ticket, other),
        }
    }

    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
        if self.flights.is_busy() || !self.settling.is_empty() {
            self.go_on();
        }
        self.flights.take(&mut self.outcomes);
        self.workers.take(&mut self.came);
        let mut came = std::mem::take(&mut self.came);
        for (ticket, came) in came.drain(..) {
            match came {
                Came::Outcome(outcome) => self.outcomes.push((ticket, outcome)),
                Came::Page(page) => {
                    let (asked, ahead) = self.pages.arrived(ticket, page);
                    self.fetch(ahead);
                    self.outcomes.extend(asked);
                }
            }
        }
        self.came = came;
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for (ticket, outcome) in outcomes.drain(..) {
            each(ticket, outcome);
        }
        self.outcomes = outcomes;
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.flights.cancel(ticket);
        self.workers.cancel(ticket);
        self.pages.cancel(ticket);
        self.settling.retain(|job| job.ticket != ticket);
    }

    fn due_ns(&mut self) -> Option<u64> {
        self.watch();
        let settled = self.settling.iter().map(|job| {
            let left = SETTLE_PATIENCE.saturating_sub(job.begun.elapsed());
            flights::monotonic_ns() + left.as_nanos() as u64
        });
        let due = settled.chain(self.flights.due_ns());
        due.chain([self.watch_at_ns]).min()
    }

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        let descriptor = self.flights.client.descriptor();
        descriptor
            .inspect_err(|error| tracing::error!(%error, "answers of the cell wake nobody"))
            .ok()
    }

    fn arm(&mut self) -> bool {
        self.flights.arm(!self.settling.is_empty())
    }

    fn value_len_max(&self) -> usize {
        self.flights.client.config().value_len_max as usize
    }

    fn page_len(&self) -> usize {
        LISTED_MAX
    }

    fn eviction(&self) -> &str {
        &self.flights.client.config().eviction
    }

    fn tend(&mut self) {
        self.flights.client.flush_touches();
        self.pages.forget_old();
        // Also when nothing is under way: there may be connections to take in.
        self.go_on();
        self.watch();
    }

    fn attach(&mut self, wake: Wake) {
        self.workers.attach(wake);
    }
}

impl std::fmt::Debug for CellExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CellExecutor")
            .field("cell", &self.cell.address())
            .finish_non_exhaustive()
    }
}
