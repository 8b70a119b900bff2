//! An update: read, decide, change iff nothing has changed; after a pause once
//! more, if something has.
//!
//! | state | waits for | then |
//! |---|---|---|
//! | `Begin` | nothing | the item is read: `Decide`, or `Reading` if it is not ready |
//! | `Reading` | the item | `Decide` |
//! | `Decide` | the session's decision | `Done`, or `Changing`, or `Held` if there is no room for its copies |
//! | `Held` | room | `Begin` |
//! | `Changing` | the change | `Done`, or `Pausing` if somebody else was faster |
//! | `Pausing` | a time | `Begin` |
//! | `Done` | nothing | the result is told, over the item that was decided on |

use super::operation::{Change, Changed, Operation, Outcome, OwnedItem, OwnedNewItem};
use super::request::Entry;
use super::{DeferredKeyspace, Executor, len_of, out_of_step};
use crate::keyspace::{Access, Decide, Decision, Fault, Halt, Item, Updated};
use trefoil_layout::op::Expected;

/// First upper limit of the pause between two attempts; it doubles.
const PAUSE_NS_MIN: u64 = 10_000;
/// Last upper limit.
const PAUSE_NS_MAX: u64 = 2_000_000;
/// Longest scratch buffer that is kept between updates, in bytes.
const SCRATCH_LEN_MAX: usize = 1 << 20;

#[derive(Debug)]
enum State {
    Begin,
    Reading,
    Decide,
    Held,
    Changing,
    Pausing { until_ns: u64 },
    Done(Result<Updated, Fault>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Update {
    state: State,
    /// What was read last.
    item: Option<OwnedItem>,
    began_ns: u64,
    /// Upper limit of the next pause.
    pause_ns: u64,
}

/// What a look at the item led to.
enum Next {
    Kept,
    Change(Expected, Change),
}

impl Update {
    fn new(now_ns: u64) -> Self {
        Update {
            state: State::Begin,
            item: None,
            began_ns: now_ns,
            pause_ns: PAUSE_NS_MIN,
        }
    }

    /// Bytes of the item that it keeps.
    pub(super) fn held(&self) -> usize {
        self.item.as_ref().map_or(0, OwnedItem::value_len)
    }

    /// Whether it waits for room.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, State::Held)
    }

    /// There is room for it.
    pub(super) fn let_in(&mut self) {
        if matches!(self.state, State::Held) {
            self.state = State::Begin;
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    /// Whether its session has something to do for it.
    pub(super) fn is_to_go_on(&self) -> bool {
        matches!(self.state, State::Begin | State::Decide)
    }

    /// See `Request::take`.
    pub(super) fn take(
        &mut self,
        outcome: Outcome,
        now_ns: u64,
        patience_ns: u64,
        jitter: &mut Jitter,
    ) -> Option<u64> {
        self.state = match (&self.state, outcome) {
            (State::Reading, Outcome::Item(Ok(item))) => {
                self.item = item;
                State::Decide
            }
            (State::Reading, Outcome::Item(Err(fault))) => State::Done(Err(fault)),
            (State::Changing, Outcome::Changed(changed)) => match changed {
                Ok(Changed::Stored(version)) => State::Done(Ok(Updated::Stored(version))),
                Ok(Changed::Erased) => State::Done(Ok(Updated::Erased)),
                Ok(Changed::Lost) if now_ns.saturating_sub(self.began_ns) >= patience_ns => {
                    State::Done(Err(Fault::Contended))
                }
                Ok(Changed::Lost) => {
                    let until_ns = now_ns + jitter.below(self.pause_ns);
                    self.pause_ns = (self.pause_ns * 2).min(PAUSE_NS_MAX);
                    State::Pausing { until_ns }
                }
                Err(fault) => State::Done(Err(fault)),
            },
            _ => {
                debug_assert!(false, "an outcome of another kind");
                State::Done(Err(Fault::Indeterminate))
            }
        };
        match self.state {
            State::Pausing { until_ns } => Some(until_ns),
            _ => None,
        }
    }

    pub(super) fn end_pause(&mut self, until: u64) -> bool {
        let is_over = matches!(self.state, State::Pausing { until_ns } if until_ns == until);
        if is_over {
            self.state = State::Begin;
        }
        is_over
    }
}

/// Shows the item to the decision, and counts what that is as `work`.
fn decide_over(
    item: Option<&Item<'_>>,
    decide: &mut Decide<'_>,
    scratch: &mut Vec<u8>,
    work: &mut u64,
) -> Next {
    scratch.clear();
    *work += len_of(item);
    let expected = item.map_or(Expected::Absent, |item| Expected::Version(item.version));
    match decide(item, scratch) {
        Decision::Keep => Next::Kept,
        Decision::Store(new) => Next::Change(expected, Change::Store(OwnedNewItem::of(&new))),
        Decision::Erase => Next::Change(expected, Change::Erase),
    }
}

impl<E: Executor> DeferredKeyspace<E> {
    pub(super) fn execute_update(
        &mut self,
        key: &[u8],
        decide: &mut Decide<'_>,
    ) -> Result<Updated, Halt> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let updated = self.go_on(key, decide, &mut scratch);
        if scratch.capacity() <= SCRATCH_LEN_MAX {
            self.scratch = scratch;
        }
        updated
    }

    fn go_on(
        &mut self,
        key: &[u8],
        decide: &mut Decide<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Updated, Halt> {
        if !self.current.is_replaying() {
            // Nothing is kept of an update that changes nothing: it was a read.
            let mut item = None;
            let mut next = None;
            let work = &mut self.work;
            let read = self.executor.try_get(key, Access::Peek, &mut |found| {
                let led_to = decide_over(found, decide, scratch, work);
                if matches!(led_to, Next::Change(..)) {
                    item = found.map(OwnedItem::of);
                }
                next = Some(led_to);
            });
            let mut update = Update::new(self.now_ns);
            match (read, next) {
                (None, _) => {
                    update.state = State::Reading;
                    self.current.entries.push(Entry::Update(Box::new(update)));
                    self.submit_update(read_of(key));
                }
                (Some(Err(fault)), _) => return Err(fault.into()),
                (Some(Ok(())), None | Some(Next::Kept)) => return Ok(Updated::Kept),
                (Some(Ok(())), Some(Next::Change(expected, change))) => {
                    update.item = item;
                    self.current.entries.push(Entry::Update(Box::new(update)));
                    self.change(key, expected, change);
                }
            }
        }
        loop {
            let Some(update) = self.current.update() else {
                return Err(out_of_step());
            };
            match &mut update.state {
                State::Reading | State::Held | State::Changing | State::Pausing { .. } => {
                    return Err(Halt::Pending);
                }
                State::Done(result) => {
                    let result = result.clone();
                    let item = update.item.as_ref().map(OwnedItem::item);
                    // Once more, for what it leaves behind.
                    decide_over(item.as_ref(), decide, scratch, &mut self.work);
                    self.current.replay()?;
                    return Ok(result?);
                }
                State::Begin => {
                    let mut found = None;
                    let read = self.executor.try_get(key, Access::Peek, &mut |item| {
                        found = item.map(OwnedItem::of);
                    });
                    let Some(update) = self.current.update() else {
                        return Err(out_of_step());
                    };
                    match read {
                        None => {
                            update.state = State::Reading;
                            self.submit_update(read_of(key));
                        }
                        Some(Err(fault)) => update.state = State::Done(Err(fault)),
                        Some(Ok(())) => {
                            update.item = found;
                            update.state = State::Decide;
                        }
                    }
                }
                State::Decide => {
                    let item = update.item.as_ref().map(OwnedItem::item);
                    match decide_over(item.as_ref(), decide, scratch, &mut self.work) {
                        Next::Kept => update.state = State::Done(Ok(Updated::Kept)),
                        Next::Change(expected, change) => self.change(key, expected, change),
                    }
                }
            }
        }
    }

    fn change(&mut self, key: &[u8], expected: Expected, change: Change) {
        let Some(update) = self.current.update() else {
            return;
        };
        if expected == Expected::Absent && matches!(change, Change::Erase) {
            // Nothing is there already.
            update.state = State::Done(Ok(Updated::Erased));
            return;
        }
        let kept_len = update.held();
        let operation = Operation::Change {
            key: key.to_vec(),
            expected,
            change,
        };
        let is_admitted = self.admit(kept_len + operation.held_len());
        let Some(update) = self.current.update() else {
            return;
        };
        if is_admitted {
            update.state = State::Changing;
            self.submit_update(operation);
        } else {
            // It is read again, and decided over, when there is room.
            update.item = None;
            update.state = State::Held;
        }
    }

    fn submit_update(&mut self, operation: Operation) {
        let Some(outcome) = self.submit(operation) else {
            return;
        };
        let (now_ns, patience_ns) = (self.now_ns, self.update_patience_ns);
        let pause = self
            .current
            .take(outcome, now_ns, patience_ns, &mut self.jitter);
        if let Some(until_ns) = pause {
            let end = std::cmp::Reverse((until_ns, self.connection));
            self.pauses.push(end);
        }
    }
}

fn read_of(key: &[u8]) -> Operation {
    Operation::Get {
        key: key.to_vec(),
        access: Access::Peek,
        with_seen: false,
    }
}

/// Pauses that differ between contenders: Marsaglia's xorshift.
#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Jitter(seed | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
