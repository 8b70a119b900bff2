//! A keyspace whose operations are executed by somebody else, while the event
//! loop goes on: what they need is copied, their connections are parked, and
//! their results are kept until the same requests ask again.
//!
//! ```text
//!  Session ─► DeferredKeyspace ─ a read that is ready ─► Executor::try_get
//!                │      ▲     └─ anything else ────────► Executor::submit(ticket, operation)
//!     Pending ◄──┘      └── Executor::poll(ticket, outcome) ── Keyspace::poll ─► resume
//! ```
//!
//! **Invariants.**
//! 1. A connection has one request under way, and that at most one operation in
//!    the executor's hands, or several on different keys that were begun together,
//!    known by tickets that are never used twice. An outcome whose ticket nobody
//!    waits for is dropped. A request with several goes on when none is waited for.
//! 2. The outcomes of a request's operations are kept in order and replayed in
//!    order, until [`Keyspace::conclude`]. Reads that were ready at once are not
//!    kept: a session that reads and then goes on says so (`World::advance`).
//! 3. An update is: read, decide, change iff nothing has changed. The item that
//!    was decided over is kept, and shown to the decision once more when the
//!    result is told, so that what the decision leaves behind is right again.
//! 4. The pause between two attempts of an update is a time to come
//!    ([`Keyspace::due_ns`]), never a sleep.
//! 5. What parked requests hold of keys and values is bounded ([`Keyspace::limit_held`]):
//!    an operation that needs more than is left is *held back*, without its copies, and
//!    asked for once more when there is room.
//!
//! | module | what it does |
//! |---|---|
//! | `operation` | operations that own what they need, and their results |
//! | `request` | one connection's request under way |
//! | `update` | attempts, pauses, patience |
//! | `room` | how much all of them may hold |

mod operation;
mod request;
mod room;
mod update;

pub use operation::{Change, Changed, Operation, Outcome, OwnedItem, OwnedListed, OwnedNewItem};

use crate::keyspace::{
    Access, Decide, DecideOf, Fault, HOME_WORK, Halt, Item, Keyspace, LOOKUP_WORK, ListedItem,
    MESSAGE_WORK, NewItem, PAGE_LEN, Pending, Ready as _, Totals, Updated, Wake, erase_if_there,
};
use request::{Entry, Request};
use room::Room;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::BorrowedFd;
use trefoil_layout::Version;
use update::Jitter;

/// Most keys of one read that is not ready: those behind them most likely are.
const READ_COUNT_MAX: usize = 32;
/// The same where somebody may write on the strength of it: each of those waits.
const LOOK_COUNT_MAX: usize = 8;

/// Names an operation in an executor's hands.
pub type Ticket = u64;

/// How many items a read of many has handed out, and why no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// Nobody wants more, or there are no more.
    Enough,
    /// The item of the key with this index is not ready.
    Until(usize),
}

/// Executes operations. One belongs to each event loop.
pub trait Executor {
    /// Reads an item if that needs no waiting; `None`: it does, and `with` was not
    /// called.
    fn try_get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>>;

    /// Reads items as far as that needs no waiting, calling `each` for every key in
    /// order until it returns `false`.
    #[allow(
        clippy::type_complexity,
        reason = "an alias would tie lifetimes together"
    )]
    fn try_get_many(
        &mut self,
        keys: &[&[u8]],
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Handed {
        for (index, key) in keys.iter().enumerate() {
            let mut wants_more = true;
            let read = self.try_get(key, access, &mut |item| wants_more = each(index, Ok(item)));
            match read {
                None => return Handed::Until(index),
                Some(Err(fault)) => wants_more = each(index, Err(fault)),
                Some(Ok(())) => {}
            }
            if !wants_more {
                break;
            }
        }
        Handed::Enough
    }

    /// Begins an operation; its outcome, if it is there at once. Of operations of
    /// one connection on a key the next one comes only after the outcome of the one
    /// before (or after nobody wants that any more).
    fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome>;

    /// The same for one of several that are begun together: none is waited for before
    /// all are.
    fn submit_beside(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        self.submit(ticket, operation)
    }

    /// Hands out the outcomes that have come, each once.
    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome));

    /// Nobody waits for this operation any more. It may be left out if it has not
    /// begun.
    fn cancel(&mut self, _ticket: Ticket) {}

    /// When to poll though nobody wakes the loop, by the monotonic clock.
    fn due_ns(&mut self) -> Option<u64> {
        None
    }

    /// See [`Keyspace::descriptor`].
    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// See [`Keyspace::arm`].
    fn arm(&mut self) -> bool {
        true
    }

    /// Longest value that the cell takes, in bytes.
    fn value_len_max(&self) -> usize;

    /// See [`Keyspace::eviction`].
    fn eviction(&self) -> &str {
        "lru"
    }

    /// See [`Keyspace::page_len`].
    fn page_len(&self) -> usize {
        PAGE_LEN
    }

    /// See [`Keyspace::tend`].
    fn tend(&mut self) {}

    /// See [`Keyspace::attach`].
    fn attach(&mut self, _wake: Wake) {}
}

/// See the module.
#[derive(Debug)]
pub struct DeferredKeyspace<E> {
    executor: E,
    /// How long one update may take, all attempts included.
    update_patience_ns: u64,
    /// The request of the connection whose turn it is.
    current: Request,
    connection: u64,
    now_ns: u64,
    /// Requests that are parked, by connection.
    parked: HashMap<u64, Request>,
    /// Connections by the tickets that they wait for, and which of a request's
    /// operations that is, where it does several.
    waiting: HashMap<Ticket, (u64, Option<usize>)>,
    /// Which one `current` is.
    part: Option<usize>,
    room: Room,
    /// The current request has been let in, or holds something that it cannot give up:
    /// it need not wait for room.
    is_admitted: bool,
    /// Room that was kept for its turn, until it is made use of.
    promised: usize,
    /// Ends of pauses.
    pauses: BinaryHeap<Reverse<(u64, u64)>>,
    next_ticket: Ticket,
    jitter: Jitter,
    scratch: Vec<u8>,
    /// See [`Keyspace::work`].
    work: u64,
}

impl<E: Executor> DeferredKeyspace<E> {
    /// A keyspace over `executor`. Pauses differ by `seed`.
    pub fn new(executor: E, update_patience: std::time::Duration, seed: u64) -> Self {
        DeferredKeyspace {
            executor,
            update_patience_ns: update_patience.as_nanos() as u64,
            current: Request::default(),
            connection: 0,
            now_ns: 0,
            parked: HashMap::new(),
            waiting: HashMap::new(),
            part: None,
            room: Room::new(),
            is_admitted: false,
            promised: 0,
            pauses: BinaryHeap::new(),
            next_ticket: 1,
            jitter: Jitter::new(seed),
            scratch: Vec::new(),
            work: 0,
        }
    }

    /// Who executes.
    pub fn executor(&mut self) -> &mut E {
        &mut self.executor
    }

    /// Requests that are parked.
    pub fn parked_count(&self) -> usize {
        self.parked.len()
    }

    /// Submits an operation of the current request; its outcome, if it is there.
    fn submit(&mut self, operation: Operation) -> Option<Outcome> {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.current.waiting_len = operation.held_len();
        self.work += MESSAGE_WORK + self.current.waiting_len as u64;
        let outcome = match self.part {
            None => self.executor.submit(ticket, operation),
            Some(_) => self.executor.submit_beside(ticket, operation),
        };
        if outcome.is_none() {
            self.waiting.insert(ticket, (self.connection, self.part));
            self.current.ticket = Some(ticket);
        }
        outcome
    }

    /// Whether the current request may hold so much more; it waits for room otherwise.
    fn admit(&mut self, need: usize) -> bool {
        let may = self.is_admitted || self.room.admits(need);
        if !may && std::mem::take(&mut self.promised) == 0 {
            self.room.wait(self.connection, need);
            return false;
        }
        self.is_admitted |= need > 0;
        true
    }

    /// The place of the outcome of the request's next operation, which `make` makes
    /// unless it has been submitted.
    fn outcome(&mut self, make: impl FnOnce() -> Operation) -> Result<usize, Pending> {
        if !self.current.is_replaying() {
            let operation = make();
            if !self.admit(operation.held_len()) {
                self.current.entries.push(Entry::Held);
                return Err(Pending);
            }
            let outcome = self.submit(operation);
            self.current.entries.push(match outcome {
                Some(outcome) => Entry::Outcome(outcome),
                None => Entry::Waiting,
            });
        }
        self.current.replay()
    }

    /// Has the executor forget what the current request waits for.
    fn cancel_current(&mut self) {
        for ticket in self.current.take_tickets() {
            self.waiting.remove(&ticket);
            self.executor.cancel(ticket);
        }
    }

    /// Does several operations on different keys at the same time, by `run`; `each` is
    /// told the results, in order, when all are there.
    fn several<T>(
        &mut self,
        count: usize,
        run: &mut dyn FnMut(&mut Self, usize) -> Result<T, Halt>,
        each: &mut dyn FnMut(usize, Result<T, Fault>),
    ) -> Result<(), Pending> {
        if !self.current.is_replaying() {
            let parts = (0..count).map(|_| Request::default());
            self.current.entries.push(Entry::Several(parts.collect()));
        }
        let Some(mut parts) = self.current.parts().map(std::mem::take) else {
            out_of_step();
            for index in 0..count {
                each(index, Err(Fault::Indeterminate));
            }
            return Ok(());
        };
        let mut results = Vec::new();
        let mut whole = std::mem::take(&mut self.current);
        for (index, part) in parts.iter_mut().enumerate().take(count) {
            if part.is_stuck() {
                continue;
            }
            self.current = std::mem::take(part);
            self.part = Some(index);
            results.push(run(self, index).ready());
            self.current.rewind();
            *part = std::mem::take(&mut self.current);
        }
        self.part = None;
        if let Some(of_whole) = whole.parts() {
            *of_whole = parts;
        }
        self.current = whole;
        let results: Result<Vec<_>, Pending> = results.into_iter().collect();
        match results {
            Ok(results) if results.len() == count => {
                self.current.replay()?;
                for (index, result) in results.into_iter().enumerate() {
                    each(index, result);
                }
                Ok(())
            }
            _ => Err(Pending),
        }
    }
}

/// What a look at an item counts as: see [`Keyspace::work`].
fn len_of(item: Option<&Item<'_>>) -> u64 {
    item.map_or(0, |item| item.value.len() as u64)
}

/// What an operation of another kind left here: the session does not do the same
/// again. Nothing is known of what has happened then.
fn out_of_step() -> Halt {
    debug_assert!(false, "a request was not executed as before");
    Halt::Fault(Fault::Indeterminate)
}

impl<E: Executor> Keyspace for DeferredKeyspace<E> {
    #[inline]
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        if !self.current.is_replaying() {
            let work = &mut self.work;
            let read = self.executor.try_get(key, access, &mut |item| {
                *work += LOOKUP_WORK + len_of(item);
                with(item);
            });
            if let Some(read) = read {
                return Ok(read?);
            }
        }
        let place = self.outcome(|| Operation::Get {
            key: key.to_vec(),
            access,
            with_seen: false,
        })?;
        self.hand_out_item(place, with)
    }

    fn get_seen(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        let place = self.outcome(|| Operation::Get {
            key: key.to_vec(),
            access,
            with_seen: true,
        })?;
        self.hand_out_item(place, with)
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Result<(), Pending> {
        let mut done = 0;
        if self.current.parts().is_some() {
            match self.hand_out_looks(keys, each)? {
                None => return Ok(()),
                Some(count) => done = count,
            }
        } else if self.current.is_replaying() {
            let place = self.current.replay()?;
            // One read alone, too: the session may have had fewer keys then.
            let items = match &self.current.entries[place] {
                Entry::Outcome(Outcome::Items(items)) => items.as_slice(),
                Entry::Outcome(Outcome::Item(item)) => std::slice::from_ref(item),
                _ => {
                    out_of_step();
                    &[]
                }
            };
            for (index, item) in items.iter().take(keys.len()).enumerate() {
                let item = item.as_ref().map_err(Fault::clone);
                let item = item.map(|item| item.as_ref().map(OwnedItem::item));
                let wants_more = match item {
                    Ok(item) => each(index, Ok(item.as_ref())),
                    Err(fault) => each(index, Err(fault)),
                };
                if !wants_more {
                    return Ok(());
                }
            }
            done = items.len();
        }
        let Some(rest) = keys.get(done..).filter(|rest| !rest.is_empty()) else {
            return Ok(());
        };
        let work = &mut self.work;
        let handed = self
            .executor
            .try_get_many(rest, access, &mut |index, read| {
                *work += LOOKUP_WORK + read.as_ref().map_or(0, |item| len_of(*item));
                each(done + index, read)
            });
        let Handed::Until(index) = handed else {
            return Ok(());
        };
        // What was handed out is not asked for again.
        self.current.clear();
        if access == Access::Peek {
            self.look_at(&rest[index..])?;
            self.current.rewind();
            return self.get_many_behind(keys, done + index, access, each);
        }
        let behind = rest[index..].iter().take(READ_COUNT_MAX);
        self.outcome(|| Operation::GetMany {
            keys: behind.map(|key| key.to_vec()).collect(),
            access,
        })?;
        // Its outcome is there already: to be handed out by the next round.
        self.current.rewind();
        self.get_many_behind(keys, done + index, access, each)
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        let place = self.outcome(|| Operation::Set {
            key: key.to_vec(),
            item: OwnedNewItem::of(item),
            needs_version: true,
        })?;
        match &self.current.entries[place] {
            Entry::Outcome(Outcome::Stored(stored)) => Ok(stored.clone()?),
            _ => Err(out_of_step()),
        }
    }

    fn put(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<(), Halt> {
        let place = self.outcome(|| Operation::Set {
            key: key.to_vec(),
            item: OwnedNewItem::of(item),
            needs_version: false,
        })?;
        match &self.current.entries[place] {
            Entry::Outcome(Outcome::Stored(stored)) => Ok(stored.clone().map(drop)?),
            Entry::Outcome(Outcome::Committed) => Ok(()),
            _ => Err(out_of_step()),
        }
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.execute_update(key, decide)
    }

    fn set_many(
        &mut self,
        items: &[(&[u8], NewItem<'_>)],
        each: &mut dyn FnMut(usize, Result<(), Fault>),
    ) -> Result<(), Pending> {
        let mut put = |own: &mut Self, index: usize| {
            let (key, item) = &items[index];
            own.put(key, item)
        };
        self.several(items.len(), &mut put, each)
    }

    fn update_many(
        &mut self,
        keys: &[&[u8]],
        decide: &mut DecideOf<'_>,
        each: &mut dyn FnMut(usize, Result<Updated, Fault>),
    ) -> Result<(), Pending> {
        let mut update = |own: &mut Self, index: usize| {
            own.update(keys[index], &mut |item, scratch| {
                decide(index, item, scratch)
            })
        };
        self.several(keys.len(), &mut update, each)
    }

    fn erase_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Result<bool, Fault>),
    ) -> Result<(), Pending> {
        let mut erase = |own: &mut Self, index: usize| {
            let erased = own.update(keys[index], &mut erase_if_there)?;
            Ok(erased == Updated::Erased)
        };
        self.several(keys.len(), &mut erase, each)
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        let place = self.outcome(|| Operation::Flush { at_ms })?;
        self.done_at(place)
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        let place = self.outcome(|| Operation::List { cursor, count })?;
        match &self.current.entries[place] {
            Entry::Outcome(Outcome::Listed(listed)) => {
                let (items, next) = listed.as_ref().map_err(Fault::clone)?;
                items.iter().for_each(|item| each(&item.item()));
                self.work += items.len() as u64 * HOME_WORK;
                Ok(*next)
            }
            _ => Err(out_of_step()),
        }
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        let place = self.outcome(|| Operation::Totals)?;
        match &self.current.entries[place] {
            Entry::Outcome(Outcome::Totals(totals)) => {
                Ok(**totals.as_ref().map_err(Fault::clone)?)
            }
            _ => Err(out_of_step()),
        }
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        let place = self.outcome(|| Operation::SetMemoryLimit { bytes })?;
        self.done_at(place)
    }

    fn value_len_max(&self) -> usize {
        self.executor.value_len_max()
    }

    fn eviction(&self) -> &str {
        self.executor.eviction()
    }

    fn page_len(&self) -> usize {
        self.executor.page_len()
    }

    fn tend(&mut self) {
        self.executor.tend();
    }

    fn work(&self) -> u64 {
        self.work
    }

    fn charge(&mut self, work: u64) {
        self.work += work;
    }

    #[inline]
    fn enter(&mut self, connection: u64, now_ns: u64) {
        self.connection = connection;
        self.now_ns = now_ns;
        (self.is_admitted, self.promised) = (false, 0);
        if !self.parked.is_empty()
            && let Some(mut request) = self.parked.remove(&connection)
        {
            self.promised = std::mem::take(&mut request.promised);
            self.room.take(self.promised);
            self.room.count(std::mem::take(&mut request.counted), 0);
            self.is_admitted = request.kept_for_good() > 0;
            self.current = request;
        }
    }

    #[inline]
    fn conclude(&mut self) {
        if !self.current.entries.is_empty() {
            self.cancel_current();
            self.current.clear();
        }
        (self.is_admitted, self.promised) = (false, 0);
    }

    #[inline]
    fn leave(&mut self) {
        if self.current.entries.is_empty() {
            return;
        }
        if self.current.is_waiting() {
            let mut request = std::mem::take(&mut self.current);
            request.rewind();
            request.counted = request.held();
            self.room.count(0, request.counted);
            request.promised = self.promised;
            self.room.promise(self.promised);
            if request.is_urgent() {
                self.room.urge(self.connection);
            }
            self.parked.insert(self.connection, request);
        } else {
            self.current.clear();
        }
    }

    fn forget(&mut self, connection: u64) {
        let Some(mut request) = self.parked.remove(&connection) else {
            return;
        };
        self.room.count(request.counted, 0);
        self.room.take(request.promised);
        self.room.forget(connection);
        for ticket in request.take_tickets() {
            self.waiting.remove(&ticket);
            self.executor.cancel(ticket);
        }
    }

    fn poll(&mut self, now_ns: u64, resume: &mut dyn FnMut(u64)) {
        self.now_ns = now_ns;
        let DeferredKeyspace {
            executor,
            waiting,
            parked,
            pauses,
            jitter,
            update_patience_ns,
            room,
            ..
        } = self;
        executor.poll(&mut |ticket, outcome| {
            let Some((connection, part)) = waiting.remove(&ticket) else {
                return;
            };
            let Some(request) = parked.get_mut(&connection) else {
                return;
            };
            let Some(one) = request.part(part) else {
                return;
            };
            one.ticket = None;
            let pause = one.take(outcome, now_ns, *update_patience_ns, jitter);
            let held = request.held();
            room.count(std::mem::replace(&mut request.counted, held), held);
            if request.is_urgent() {
                room.urge(connection);
            }
            if let Some(until_ns) = pause {
                pauses.push(Reverse((until_ns, connection)));
            } else if !request.is_stuck() {
                resume(connection);
            }
        });
        while let Some(Reverse((until_ns, connection))) = pauses.peek().copied()
            && until_ns <= now_ns
        {
            pauses.pop();
            if let Some(request) = parked.get_mut(&connection)
                && request.end_pause(until_ns)
                && !request.is_stuck()
            {
                resume(connection);
            }
        }
        while let Some((connection, need)) = room.next() {
            let Some(request) = parked.get_mut(&connection) else {
                room.take(need);
                continue;
            };
            request.promised += need;
            request.let_in();
            if !request.is_stuck() {
                resume(connection);
            }
        }
    }

    fn due_ns(&mut self) -> Option<u64> {
        if self.room.has_next() {
            return Some(0);
        }
        let pause = self.pauses.peek().map(|Reverse((until_ns, _))| *until_ns);
        [pause, self.executor.due_ns()].into_iter().flatten().min()
    }

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.executor.descriptor()
    }

    fn arm(&mut self) -> bool {
        self.executor.arm()
    }

    fn held(&self, connection: u64) -> usize {
        self.parked.get(&connection).map_or(0, Request::held)
    }

    fn limit_held(&mut self, bytes: usize) {
        self.room.limit(bytes);
    }

    fn attach(&mut self, wake: Wake) {
        self.executor.attach(wake);
    }
}

impl<E: Executor> DeferredKeyspace<E> {
    fn hand_out_item(
        &mut self,
        place: usize,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        let item = match &self.current.entries[place] {
            Entry::Outcome(Outcome::Item(item)) => item,
            // It was the first of several that were asked for then.
            Entry::Outcome(Outcome::Items(items)) if !items.is_empty() => &items[0],
            _ => return Err(out_of_step()),
        };
        let item = item.as_ref().map_err(Fault::clone)?;
        let item = item.as_ref().map(OwnedItem::item);
        self.work += len_of(item.as_ref());
        with(item.as_ref());
        Ok(())
    }

    /// Reads the first of these keys, all at the same time, for those who may write on the
    /// strength of it. How many have been read, once all of them have.
    fn look_at(&mut self, keys: &[&[u8]]) -> Result<usize, Pending> {
        // As many as when it began: more may have come meanwhile.
        let count = self.current.parts().map_or(LOOK_COUNT_MAX, |of| of.len());
        let count = count.min(keys.len());
        let mut look = |own: &mut Self, index: usize| {
            own.outcome(|| Operation::Get {
                key: keys[index].to_vec(),
                access: Access::Peek,
                with_seen: false,
            })?;
            Ok(())
        };
        self.several(count, &mut look, &mut |_, _| {})?;
        Ok(count)
    }

    /// Goes on with that, and hands out what was read: how many, unless nobody wants more.
    #[expect(clippy::type_complexity, reason = "as the trait has it")]
    fn hand_out_looks(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Result<Option<usize>, Pending> {
        let count = self.look_at(keys)?;
        for (index, part) in self.current.told_parts().iter().take(count).enumerate() {
            let Some(Entry::Outcome(Outcome::Item(item))) = part.entries.first() else {
                out_of_step();
                continue;
            };
            let wants_more = match item {
                Ok(item) => {
                    let item = item.as_ref().map(OwnedItem::item);
                    self.work += len_of(item.as_ref());
                    each(index, Ok(item.as_ref()))
                }
                Err(fault) => each(index, Err(fault.clone())),
            };
            if !wants_more {
                return Ok(None);
            }
        }
        Ok(Some(count))
    }

    /// Goes on with reading many items behind the first ones.
    #[expect(clippy::type_complexity, reason = "as the trait has it")]
    fn get_many_behind(
        &mut self,
        keys: &[&[u8]],
        first: usize,
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Result<(), Pending> {
        self.get_many(&keys[first..], access, &mut |index, read| {
            each(first + index, read)
        })
    }

    fn done_at(&self, place: usize) -> Result<(), Halt> {
        match &self.current.entries[place] {
            Entry::Outcome(Outcome::Done(done)) => Ok(done.clone()?),
            _ => Err(out_of_step()),
        }
    }
}
