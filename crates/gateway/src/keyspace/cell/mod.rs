//! Any cell as a keyspace, through the client library.
//!
//! ```text
//!  event loop ─ DeferredKeyspace ─► CellExecutor ─ Client::get_now ─► shared memory
//!                    ▲                    │ anything that waits
//!                    │ poll               ▼
//!                    └── outcomes ◄── Workers: threads with a client each
//! ```
//!
//! A read that shared memory answers is answered on the event loop. Everything
//! else is an operation in a queue: workers execute it, and wake the loop. What
//! reads before it writes is a CAS that is tried again (`DeferredKeyspace`).
//!
//! | module | what it does |
//! |---|---|
//! | `operations` | one operation, executed by whoever may wait |
//! | `totals` | totals of all backends |
//! | `items` | items and faults of the client library in the keyspace's words |
//! | `workers` | threads that wait, so that event loops need not |

mod items;
mod operations;
mod totals;
mod workers;

use self::items::{access_is_use, hand_out};
use super::versions::random_bits;
use operations::CellOperations;
use std::sync::Arc;
use std::time::Duration;
use trefoil_client::{Cell, Client, Lookup, MissReason, Options};
use trefoil_gateway_core::deferred::{
    DeferredKeyspace, Executor, Handed, Operation, Outcome, Ticket,
};
use trefoil_gateway_core::keyspace::{Access, Fault, Item, Wake};
use workers::Workers;

/// Patience with one operation: a value of megabytes goes to three replicas by
/// RPC, on a machine that may be busy.
const DEADLINE: Duration = Duration::from_secs(4);
/// Bytes of values that one read of many brings: a session's output takes no more
/// at a time.
const VALUES_LEN_MAX: usize = 256 << 10;

/// A cell as an event loop's keyspace.
pub type CellKeyspace = DeferredKeyspace<CellExecutor>;

/// How a cell is used.
#[derive(Clone, Copy, Debug)]
pub struct CellOptions {
    /// Of the clients.
    pub client: Options,
    /// Patience with one update, all attempts included.
    pub update_patience: Duration,
    /// Most operations of one event loop that are executed at a time. Each takes a
    /// thread and a client, which are kept once they were needed.
    pub workers_max: usize,
}

impl Default for CellOptions {
    fn default() -> Self {
        CellOptions {
            client: Options {
                deadline: DEADLINE,
                ..Options::default()
            },
            update_patience: Duration::from_secs(2),
            workers_max: 8,
        }
    }
}

/// A keyspace over `cell`.
pub fn cell_keyspace(cell: Cell, options: CellOptions) -> CellKeyspace {
    let executor = CellExecutor::new(cell, options);
    DeferredKeyspace::new(executor, options.update_patience, random_bits())
}

/// See the module. One belongs to each event loop.
pub struct CellExecutor {
    address: String,
    /// For reads of shared memory.
    client: Client,
    workers: Workers,
    /// Somebody has asked how items are used: reads are reported before the next
    /// write, lest they count for what it stores.
    tells_uses: bool,
    outcomes: Vec<(Ticket, Outcome)>,
}

impl CellExecutor {
    fn new(cell: Cell, options: CellOptions) -> Self {
        CellExecutor {
            address: cell.address().to_owned(),
            client: cell.client(options.client),
            workers: Workers::new(options.workers_max, move || {
                CellOperations::new(cell.clone(), options.client)
            }),
            tells_uses: false,
            outcomes: Vec::new(),
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
        let found = self.client.get_now(key, access_is_use(access))?;
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
        let mut done = 0;
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
        done += self.client.get_many_now(keys, |index, found| {
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
        if let Operation::Get {
            with_seen: true, ..
        } = operation
        {
            self.tells_uses = true;
        }
        if self.tells_uses {
            self.client.flush_touches();
        }
        self.workers.submit(ticket, operation);
        None
    }

    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
        self.workers.take(&mut self.outcomes);
        for (ticket, outcome) in self.outcomes.drain(..) {
            each(ticket, outcome);
        }
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.workers.cancel(ticket);
    }

    fn value_len_max(&self) -> usize {
        self.client.config().value_len_max as usize
    }

    fn eviction(&self) -> &str {
        &self.client.config().eviction
    }

    fn tend(&mut self) {
        self.client.flush_touches();
        // Nothing is submitted to it, but it has connections to take in: without
        // this a backend that was away would never be read again.
        self.client.poll(&mut |_, _| {});
    }

    fn attach(&mut self, wake: Wake) {
        self.workers.attach(wake);
    }
}

impl std::fmt::Debug for CellExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CellExecutor")
            .field("cell", &self.address)
            .finish_non_exhaustive()
    }
}

/// What makes a worker's own state.
type MakeOperations = Arc<dyn Fn() -> CellOperations + Send + Sync>;
