//! Operations on keys, under way on the event loop's own client.
//!
//! Each is a lookup or a mutation in the client's slab, or a few of them one after
//! another, all under tokens of its ticket:
//!
//! | operation | begins as | goes on as |
//! |---|---|---|
//! | read | get | |
//! | read that somebody may write by | look | another look while a mutation is on its way; a clearing where survivors disagree |
//! | read that tells of use | item uses | get or peek |
//! | reads | gets, up to a few that wait | |
//! | set | set, or a commit, which has its outcome at once | |
//! | change | CAS | peek, if its outcome is not known; for an erase a look |
//!
//! An outcome that is not known is looked for once: if the version that we
//! nominated is there, it was applied; anything else stays unknown, because the
//! message may still be under way. An erase is different: with one replica just
//! stopped, and another one that has missed what the erase expects, nobody can know
//! whether it is stored; but that the item is gone can be seen, and made so where
//! survivors disagree.
//!
//! A *clearing* makes survivors that disagree agree that nothing is there: a CAS
//! that expects nothing, to an item that has expired already. It evicts from each
//! replica what that replica was seen to hold, and nothing else
//! (`client_core::cas`). If somebody has stored a value since, it fails, and the
//! read looks again. An erase at a version of its own would take that value away.
//!
//! Nobody is told that a key is gone while a replica that comes back could bring
//! it back: a read that finds a mutation on its way to the end of its patience is
//! a fault.
//!
//! What is under way is bounded, in operations and in bytes; what comes on top
//! waits for its turn with what it holds, which `--buffers` bounds. Operations on the
//! keys of one cohort have half of the places at most, so that backends which do not
//! answer hold up nobody but those who ask for them; and what waits behind something
//! large passes it if it is small, up to so many times.

use super::committing::LoopCommitting;
use super::items::{HitValue, fault, hand_out, options, seen_by};
use super::spin::Spin;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use trefoil_client::{
    Basis, Client, Commit, Completion, Expected, ItemUses, Lookup, Mutated, OpError, Version,
};
use trefoil_gateway_core::deferred::{Change, Changed, Operation, Outcome, OwnedItem, Ticket};
use trefoil_gateway_core::keyspace::{Access, Fault, Item, NewItem};
use trefoil_layout::data::EXPIRED_MS;
use trefoil_layout::op::Rejection;

/// Operations under way at a time. Calls to one backend are bounded too, for all
/// loops of a process together; see the client's `rpc`.
const COUNT_MAX: usize = 256;
/// Those of one cohort.
const COHORT_COUNT_MAX: usize = COUNT_MAX / 2;
/// Keys and values of so many bytes pass a larger operation that waits for room.
const SMALL_LEN: usize = 16 << 10;
/// How many may pass one that waits, so that its turn comes.
const PASSED_MAX: usize = 1024;
/// How many that wait are looked at in one turn: those of a cohort that has its share
/// stay where they are.
const LOOKED_AT_MAX: usize = 4096;
/// Bytes of keys and values under way at a time. A single longer operation goes
/// alone.
const LEN_MAX: usize = 64 << 20;
/// Bits of a token below its ticket: which of several reads it is.
const INDEX_BITS: u32 = 5;
/// Reads that one operation begins.
const READS_MAX: usize = 1 << INDEX_BITS;
/// Of those, so many that have to be waited for.
const WAITING_READS_MAX: usize = 8;
/// Bytes of values that one operation brings, but for the last ones: a session's
/// output takes no more at a time.
const VALUES_LEN_MAX: usize = 256 << 10;
/// How long a mutation on its way is waited for: by then whoever was at it is
/// through, or what it has left is at rest.
const UNSETTLED_PATIENCE: Duration = Duration::from_millis(1000);
/// How long a read waits for what replicas know of an item's use.
const USES_PATIENCE: Duration = Duration::from_millis(100);
/// Looks for an answer between two yields, while it is waited for on the spot.
const LOOKS_PER_YIELD: u32 = 32;
/// Rounds of one turn: steps that follow at once from others.
const ROUNDS_MAX: usize = 8;

/// See the module.
pub(super) struct Flights {
    pub(super) client: Client,
    under_way: HashMap<Ticket, Flight>,
    /// Bytes that those hold of keys and values.
    held_len: usize,
    /// Operations of each cohort, by its first backend.
    cohorts: Vec<usize>,
    /// What waits for its turn.
    waiting: VecDeque<Waiting>,
    /// Something that waits is too large for the room that is left.
    is_short: bool,
    /// How many have passed it.
    passed: usize,
    outcomes: Vec<(Ticket, Outcome)>,
    /// What the client has completed, until it is taken.
    came: Vec<(u64, Came)>,
    spin: Spin,
    committing: LoopCommitting,
    is_armed: bool,
}

/// An operation that waits for its turn.
struct Waiting {
    ticket: Ticket,
    operation: Operation,
    cohort: u32,
}

/// An operation under way.
struct Flight {
    held_len: usize,
    cohort: u32,
    stage: Stage,
}

/// What it waits for.
enum Stage {
    Get,
    Look {
        key: Vec<u8>,
        began: Instant,
    },
    Clearing {
        key: Vec<u8>,
        began: Instant,
    },
    Uses {
        key: Vec<u8>,
        access: Access,
    },
    Seen(ItemUses),
    Many(Gathered),
    Set,
    Cas(Cas),
    Confirm(Cas),
    /// An erase of unknown outcome: whether the item is gone.
    Gone {
        cas: Cas,
        began: Instant,
    },
    /// It is made so.
    Erasing {
        cas: Cas,
        began: Instant,
    },
}

/// A conditional change.
struct Cas {
    key: Vec<u8>,
    expected: Expected,
    version: Version,
    is_erase: bool,
    /// Whether nothing is to be seen afterwards: an erase, or an item that has expired
    /// already.
    leaves_nothing: bool,
}

/// Reads, in the order of their keys.
struct Gathered {
    items: Vec<Option<Result<Option<OwnedItem>, Fault>>>,
    waiting: usize,
}

/// What the client has completed, in words that own what they say.
enum Came {
    Item(Result<Option<OwnedItem>, Fault>),
    Basis(Result<Ground, Fault>),
    Mutated(Result<Mutated, OpError>),
    Uses(Result<ItemUses, Fault>),
}

/// See [`Basis`].
enum Ground {
    Item(Option<OwnedItem>),
    Disagreeing,
    Unsettled,
}

impl Waiting {
    fn is_small(&self) -> bool {
        self.operation.held_len() <= SMALL_LEN
    }
}

/// Why an operation waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Its cohort has its share of the places.
    Cohort,
    /// What is under way holds too much.
    Room,
}

/// What a step led to.
enum Step {
    Ended(Outcome),
    GoesOn,
}

impl Flights {
    pub(super) fn new(client: Client, spin: Duration, committing: LoopCommitting) -> Self {
        Flights {
            client,
            under_way: HashMap::new(),
            held_len: 0,
            cohorts: Vec::new(),
            waiting: VecDeque::new(),
            is_short: false,
            passed: 0,
            outcomes: Vec::new(),
            came: Vec::new(),
            spin: Spin::new(spin),
            committing,
            is_armed: false,
        }
    }

    /// Begins an operation on a key, or lets it wait for its turn; its outcome, if it
    /// comes at once.
    pub(super) fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        if let Some(outcome) = self.submit_beside(ticket, operation) {
            return Some(outcome);
        }
        if !self.under_way.contains_key(&ticket) {
            return None;
        }
        let limit = self.spin.wait()?;
        let begun = Instant::now();
        let outcome = self.wait_for(ticket, begun + limit);
        self.spin.waited(begun, outcome.is_some());
        outcome
    }

    /// The same, without waiting for it on the spot: others are begun first.
    pub(super) fn submit_beside(
        &mut self,
        ticket: Ticket,
        operation: Operation,
    ) -> Option<Outcome> {
        let cohort = self.cohort_of(&operation);
        let waiting = Waiting {
            ticket,
            operation,
            cohort,
        };
        let obstacle = self.stands(&waiting);
        let may_pass = !self.is_short || (waiting.is_small() && self.passed < PASSED_MAX);
        if self.client.in_flight() < COUNT_MAX && obstacle.is_none() && may_pass {
            self.passed += usize::from(self.is_short);
            return self.begin(waiting);
        }
        self.is_short |= obstacle == Some(Obstacle::Room);
        self.waiting.push_back(waiting);
        None
    }

    /// The first backend of the cohort that an operation is about: of several keys, of
    /// the first one.
    fn cohort_of(&self, operation: &Operation) -> u32 {
        let key = match operation {
            Operation::Get { key, .. }
            | Operation::Set { key, .. }
            | Operation::Change { key, .. } => key.as_slice(),
            Operation::GetMany { keys, .. } => keys.first().map_or(&[][..], Vec::as_slice),
            _ => &[],
        };
        let config = self.client.config();
        config.placement().first(config.hash.hash(key))
    }

    /// Waits on the spot.
    fn wait_for(&mut self, ticket: Ticket, end: Instant) -> Option<Outcome> {
        for look in 1.. {
            self.turn();
            if !self.under_way.contains_key(&ticket) {
                let mut outcomes = self.outcomes.iter();
                let at = outcomes.rposition(|(of, _)| *of == ticket)?;
                return Some(self.outcomes.swap_remove(at).1);
            }
            if Instant::now() >= end {
                break;
            }
            match look % LOOKS_PER_YIELD {
                // Whoever is to answer may need this core to do it.
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        None
    }

    /// Whether a turn may find something to do.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.is_armed || self.client.in_flight() > 0 || !self.waiting.is_empty()
    }

    /// Takes all outcomes that have come. A round of the loop begins.
    pub(super) fn take(&mut self, into: &mut Vec<(Ticket, Outcome)>) {
        self.spin.begin_round();
        into.append(&mut self.outcomes);
    }

    /// Goes on with everything that can go on. Never waits.
    pub(super) fn turn(&mut self) {
        self.is_armed = false;
        for _ in 0..ROUNDS_MAX {
            let mut came = std::mem::take(&mut self.came);
            self.client.poll(&mut |token, completion| {
                came.push((token, Came::of(completion)));
            });
            let is_over = came.is_empty();
            for (token, came) in came.drain(..) {
                self.arrived(token, came);
            }
            self.came = came;
            if is_over {
                break;
            }
        }
        self.begin_waiting();
    }

    /// Nobody waits for this operation any more. A mutation that was begun goes on,
    /// and is counted until it has ended.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.waiting.retain(|waiting| waiting.ticket != ticket);
        let Some(flight) = self.under_way.get(&ticket) else {
            return self.outcomes.retain(|(of, _)| *of != ticket);
        };
        let tokens = match &flight.stage {
            Stage::Set | Stage::Cas(_) | Stage::Clearing { .. } | Stage::Erasing { .. } => return,
            Stage::Many(gathered) => gathered.items.len(),
            _ => 1,
        };
        for index in 0..tokens {
            self.client.abandon(token(ticket, index));
        }
        self.end(ticket);
    }

    /// When to turn though nobody wakes the loop, on the monotonic clock.
    pub(super) fn due_ns(&mut self) -> Option<u64> {
        if !self.outcomes.is_empty() {
            return Some(0);
        }
        if !self.is_busy() {
            return None;
        }
        self.client.next_deadline_ns()
    }

    /// Asks to be woken by answers; `owes_more`: also by those that no operation
    /// waits for. `false` if there is something to do already.
    pub(super) fn arm(&mut self, owes_more: bool) -> bool {
        if !self.outcomes.is_empty() {
            return false;
        }
        if self.client.in_flight() == 0 && !owes_more {
            return true;
        }
        self.is_armed = true;
        self.client.arm()
    }

    /// What stands in the way of an operation, if a place is free.
    fn stands(&self, waiting: &Waiting) -> Option<Obstacle> {
        let of_cohort = self.cohorts.get(waiting.cohort as usize);
        let count_max = match self.client.config().backends.len() {
            1 => COUNT_MAX,
            _ => COHORT_COUNT_MAX,
        };
        if of_cohort.is_some_and(|count| *count >= count_max) {
            return Some(Obstacle::Cohort);
        }
        let len = waiting.operation.held_len();
        match self.held_len == 0 || self.held_len + len <= LEN_MAX {
            true => None,
            false => Some(Obstacle::Room),
        }
    }

    /// Begins what waits and may begin, in order. What is to be done on a key is done in
    /// the order in which it came for each connection: that asks for one thing at a time.
    fn begin_waiting(&mut self) {
        let mut at = 0;
        let was_short = std::mem::take(&mut self.is_short);
        while at < self.waiting.len().min(LOOKED_AT_MAX) && self.client.in_flight() < COUNT_MAX {
            let waiting = &self.waiting[at];
            let is_small = waiting.is_small();
            if self.is_short && (!is_small || self.passed >= PASSED_MAX) {
                // Behind one that waits for room.
                at += 1;
                continue;
            }
            match self.stands(waiting) {
                Some(Obstacle::Cohort) => at += 1,
                Some(Obstacle::Room) => {
                    self.is_short = true;
                    at += 1;
                }
                None => {
                    let Some(waiting) = self.waiting.remove(at) else {
                        return;
                    };
                    self.passed = match is_small {
                        true => self.passed + usize::from(self.is_short),
                        // It has had its turn.
                        false => 0,
                    };
                    let ticket = waiting.ticket;
                    if let Some(outcome) = self.begin(waiting) {
                        self.outcomes.push((ticket, outcome));
                    }
                }
            }
        }
        if !self.is_short {
            // Not looked for where all places are taken.
            let are_all_taken = self.client.in_flight() >= COUNT_MAX;
            self.is_short = was_short && are_all_taken && !self.waiting.is_empty();
        }
        if !self.is_short {
            self.passed = 0;
        }
    }

    fn begin(&mut self, waiting: Waiting) -> Option<Outcome> {
        let Waiting {
            ticket,
            operation,
            cohort,
        } = waiting;
        let held_len = operation.held_len();
        let token = token(ticket, 0);
        let client = &mut self.client;
        let stage = match operation {
            Operation::Get {
                key,
                access,
                with_seen: true,
            } => {
                client.submit_item_uses(&key, USES_PATIENCE, token);
                Stage::Uses { key, access }
            }
            Operation::Get {
                key,
                access: Access::Peek,
                ..
            } => self.begin_look(key, token),
            Operation::Get { key, .. } => match client.get_or_submit(&key, token) {
                Some(found) => return Some(Outcome::Item(owned(found))),
                None => Stage::Get,
            },
            Operation::GetMany {
                keys,
                access: Access::Peek,
            } => {
                // The first one alone: those behind it are most likely ready.
                let key = keys.into_iter().next().unwrap_or_default();
                self.begin_look(key, token)
            }
            Operation::GetMany { keys, .. } => {
                let mut gathered = self.begin_many(ticket, &keys);
                if gathered.waiting == 0 {
                    return Some(gathered.outcome());
                }
                Stage::Many(gathered)
            }
            Operation::Set {
                key,
                item,
                needs_version,
            } => match self.begin_set(&key, &item.item(), needs_version, token) {
                Some(set) => return Some(stored(set)),
                None => Stage::Set,
            },
            Operation::Change {
                key,
                expected,
                change,
            } => match self.begin_cas(key, expected, &change, token) {
                Ok(cas) => Stage::Cas(cas),
                Err(fault) => return Some(Outcome::Changed(Err(fault))),
            },
            of_the_cell => {
                let fault = Fault::Unsupported("this operation");
                return Some(super::whole::outcome_failed(&of_the_cell, fault));
            }
        };
        self.held_len += held_len;
        let at = cohort as usize;
        if self.cohorts.len() <= at {
            self.cohorts.resize(at + 1, 0);
        }
        self.cohorts[at] += 1;
        let flight = Flight {
            held_len,
            cohort,
            stage,
        };
        self.under_way.insert(ticket, flight);
        None
    }

    /// Commits an item if that is wanted, or begins to have it stored.
    fn begin_set(
        &mut self,
        key: &[u8],
        item: &NewItem<'_>,
        needs_version: bool,
        token: u64,
    ) -> Option<Result<Mutated, OpError>> {
        let (commit, value, options) =
            (self.committing.of(needs_version), item.value, options(item));
        let client = &mut self.client;
        let set = client.set_or_submit(key, value, options, commit, token);
        match &set {
            Some(Err(OpError::NotCommittable(why))) => {
                self.committing.never(*why);
                return client.set_or_submit(key, value, options, Commit::Executed, token);
            }
            Some(Ok(Mutated::Committed)) => self.committing.committed(),
            None if commit == Commit::Acknowledged => self.committing.executed(Instant::now),
            _ => {}
        }
        set
    }

    /// A look by which somebody may write.
    fn begin_look(&mut self, key: Vec<u8>, token: u64) -> Stage {
        self.client.submit_look(&key, token);
        Stage::Look {
            key,
            began: Instant::now(),
        }
    }

    fn begin_many(&mut self, ticket: Ticket, keys: &[Vec<u8>]) -> Gathered {
        let mut gathered = Gathered {
            items: Vec::new(),
            waiting: 0,
        };
        let mut len = 0;
        for (index, key) in keys.iter().take(READS_MAX).enumerate() {
            if gathered.waiting == WAITING_READS_MAX || len >= VALUES_LEN_MAX {
                break;
            }
            let found = self.client.get_or_submit(key, token(ticket, index));
            let item = found.map(owned);
            match &item {
                Some(Ok(Some(item))) => len += item.value_len(),
                Some(_) => {}
                None => gathered.waiting += 1,
            }
            gathered.items.push(item);
        }
        gathered
    }

    fn begin_cas(
        &mut self,
        key: Vec<u8>,
        expected: Expected,
        change: &Change,
        token: u64,
    ) -> Result<Cas, Fault> {
        if self.client.config().mode.is_immutable() {
            return Err(Fault::Rejected(Rejection::Immutable));
        }
        let item = match change {
            Change::Store(item) => item.item(),
            // A conditional erase is a CAS to an item whose time is over: every rule
            // of CAS and of expiry holds for it.
            Change::Erase => NewItem {
                expiry_ms: EXPIRED_MS,
                ..NewItem::default()
            },
        };
        self.client
            .submit_cas(&key, expected, item.value, options(&item), token);
        Ok(Cas {
            version: self.client.last_version(),
            is_erase: matches!(change, Change::Erase),
            leaves_nothing: item.expiry_ms == EXPIRED_MS,
            expected,
            key,
        })
    }

    /// Something has come for an operation, if anybody still waits for it.
    fn arrived(&mut self, token: u64, came: Came) {
        let (ticket, index) = (token >> INDEX_BITS, token & ((1 << INDEX_BITS) - 1));
        let Some(flight) = self.under_way.get_mut(&ticket) else {
            return;
        };
        let step = flight.step(token, index as usize, came, &mut self.client);
        if let Step::Ended(outcome) = step {
            self.end(ticket);
            self.outcomes.push((ticket, outcome));
        }
    }

    fn end(&mut self, ticket: Ticket) {
        if let Some(flight) = self.under_way.remove(&ticket) {
            self.held_len -= flight.held_len;
            if let Some(count) = self.cohorts.get_mut(flight.cohort as usize) {
                *count -= 1;
            }
        }
    }
}

impl Flight {
    fn step(&mut self, token: u64, index: usize, came: Came, client: &mut Client) -> Step {
        Step::Ended(match (&mut self.stage, came) {
            (Stage::Get, Came::Item(item)) => Outcome::Item(item),
            (Stage::Look { key, began }, Came::Basis(found)) => match found {
                Ok(Ground::Item(item)) => Outcome::Item(Ok(item)),
                Ok(Ground::Disagreeing) => {
                    submit_clearing(client, key, token);
                    self.stage = Stage::Clearing {
                        key: std::mem::take(key),
                        began: *began,
                    };
                    return Step::GoesOn;
                }
                Ok(Ground::Unsettled) if began.elapsed() <= UNSETTLED_PATIENCE => {
                    client.submit_look(key, token);
                    return Step::GoesOn;
                }
                Ok(Ground::Unsettled) => Outcome::Item(Err(Fault::Inquorate)),
                Err(fault) => Outcome::Item(Err(fault)),
            },
            (Stage::Clearing { key, began }, Came::Mutated(result)) => match cleared(result) {
                Ok(Cleared::Yes) => Outcome::Item(Ok(None)),
                Ok(Cleared::LookAgain) if began.elapsed() <= UNSETTLED_PATIENCE => {
                    client.submit_look(key, token);
                    self.stage = Stage::Look {
                        key: std::mem::take(key),
                        began: *began,
                    };
                    return Step::GoesOn;
                }
                Ok(Cleared::LookAgain) => Outcome::Item(Err(Fault::Contended)),
                Err(fault) => Outcome::Item(Err(fault)),
            },
            (Stage::Uses { key, access }, Came::Uses(uses)) => match uses {
                Ok(uses) => {
                    match access {
                        Access::Use => client.submit_get(key, token),
                        Access::Peek => client.submit_peek(key, token),
                    }
                    self.stage = Stage::Seen(uses);
                    return Step::GoesOn;
                }
                Err(fault) => Outcome::Item(Err(fault)),
            },
            (Stage::Seen(uses), Came::Item(found)) => {
                // The next question is to know of this read.
                client.flush_touches();
                Outcome::Item(found.map(|item| item.map(|item| with_uses(&item, uses))))
            }
            (Stage::Many(gathered), Came::Item(item)) => {
                gathered.items[index] = Some(item);
                gathered.waiting -= 1;
                if gathered.waiting > 0 {
                    return Step::GoesOn;
                }
                gathered.outcome()
            }
            (Stage::Set, Came::Mutated(set)) => stored(set),
            (Stage::Cas(cas), Came::Mutated(result)) => Outcome::Changed(match result {
                Ok(Mutated::Stored { version }) => Ok(cas.changed(version)),
                Ok(_) => Ok(Changed::Lost),
                Err(OpError::Rejected(rejection)) if rejection.is_transient() => Ok(Changed::Lost),
                // What has expired is not shown, whoever wrote it.
                Err(OpError::Indeterminate(_)) if !cas.leaves_nothing => {
                    client.submit_peek(&cas.key, token);
                    self.stage = Stage::Confirm(Cas {
                        key: Vec::new(),
                        ..*cas
                    });
                    return Step::GoesOn;
                }
                Err(OpError::Indeterminate(_)) => {
                    client.submit_look(&cas.key, token);
                    self.stage = Stage::Gone {
                        cas: cas.take(),
                        began: Instant::now(),
                    };
                    return Step::GoesOn;
                }
                Err(error) => Err(fault(error)),
            }),
            (Stage::Gone { cas, began }, Came::Basis(found)) => Outcome::Changed(match found {
                Ok(Ground::Item(None)) => Ok(cas.changed(cas.version)),
                // A quorum holds what was to go: its caller looks, and tries again.
                Ok(Ground::Item(Some(item)))
                    if cas.expected == Expected::Version(item.item().version) =>
                {
                    Ok(Changed::Lost)
                }
                Ok(Ground::Disagreeing) => {
                    submit_clearing(client, &cas.key, token);
                    self.stage = Stage::Erasing {
                        cas: cas.take(),
                        began: *began,
                    };
                    return Step::GoesOn;
                }
                Ok(Ground::Unsettled) if began.elapsed() <= UNSETTLED_PATIENCE => {
                    client.submit_look(&cas.key, token);
                    return Step::GoesOn;
                }
                // Also what was written after the erase, or instead of it.
                _ => Err(Fault::Indeterminate),
            }),
            (Stage::Erasing { cas, began }, Came::Mutated(result)) => {
                Outcome::Changed(match cleared(result) {
                    Ok(Cleared::Yes) => Ok(cas.changed(cas.version)),
                    Ok(Cleared::LookAgain) if began.elapsed() <= UNSETTLED_PATIENCE => {
                        client.submit_look(&cas.key, token);
                        self.stage = Stage::Gone {
                            cas: cas.take(),
                            began: *began,
                        };
                        return Step::GoesOn;
                    }
                    _ => Err(Fault::Indeterminate),
                })
            }
            (Stage::Confirm(cas), Came::Item(found)) => Outcome::Changed(match found {
                Ok(Some(item)) if item.item().version == cas.version => {
                    Ok(cas.changed(cas.version))
                }
                _ => Err(Fault::Indeterminate),
            }),
            (stage, _) => {
                debug_assert!(false, "a completion of another kind");
                stage.lost()
            }
        })
    }
}

impl Stage {
    /// Nothing is known of what has happened.
    fn lost(&self) -> Outcome {
        match self {
            Stage::Set => Outcome::Stored(Err(Fault::Indeterminate)),
            Stage::Cas(_) | Stage::Confirm(_) | Stage::Gone { .. } | Stage::Erasing { .. } => {
                Outcome::Changed(Err(Fault::Indeterminate))
            }
            Stage::Many(_) => Outcome::Items(vec![Err(Fault::Indeterminate)]),
            _ => Outcome::Item(Err(Fault::Indeterminate)),
        }
    }
}

fn stored(set: Result<Mutated, OpError>) -> Outcome {
    match set {
        Ok(Mutated::Committed) => Outcome::Committed,
        Ok(Mutated::Stored { version }) => Outcome::Stored(Ok(version)),
        Ok(_) => Outcome::Stored(Err(Fault::Contended)),
        Err(error) => Outcome::Stored(Err(fault(error))),
    }
}

/// What a clearing came to.
enum Cleared {
    Yes,
    /// Somebody was faster, or nobody knows.
    LookAgain,
}

/// See the module.
fn submit_clearing(client: &mut Client, key: &[u8], token: u64) {
    let nothing = NewItem {
        expiry_ms: EXPIRED_MS,
        ..NewItem::default()
    };
    client.submit_cas(key, Expected::Absent, b"", options(&nothing), token);
}

fn cleared(result: Result<Mutated, OpError>) -> Result<Cleared, Fault> {
    match result {
        Ok(Mutated::Stored { .. }) => Ok(Cleared::Yes),
        Ok(_) | Err(OpError::Indeterminate(_)) => Ok(Cleared::LookAgain),
        Err(OpError::Rejected(rejection)) if rejection.is_transient() => Ok(Cleared::LookAgain),
        Err(error) => Err(fault(error)),
    }
}

impl Cas {
    /// The same, with the key.
    fn take(&mut self) -> Cas {
        Cas {
            key: std::mem::take(&mut self.key),
            ..*self
        }
    }

    fn changed(&self, version: Version) -> Changed {
        match self.is_erase {
            true => Changed::Erased,
            false => Changed::Stored(version),
        }
    }
}

impl Gathered {
    fn outcome(&mut self) -> Outcome {
        Outcome::Items(self.items.drain(..).flatten().collect())
    }
}

impl Came {
    fn of(completion: Completion<'_>) -> Self {
        match completion {
            Completion::Lookup(found) => Came::Item(owned(found)),
            Completion::Basis(basis) => Came::Basis(match basis {
                Ok(Basis::Value(hit)) => {
                    let item = OwnedItem::of(&HitValue(hit).item());
                    Ok(Ground::Item(Some(item)))
                }
                Ok(Basis::Nothing) => Ok(Ground::Item(None)),
                Ok(Basis::Disagreeing) => Ok(Ground::Disagreeing),
                Ok(Basis::Unsettled) => Ok(Ground::Unsettled),
                Err(error) => Err(fault(error)),
            }),
            Completion::Mutated(mutated) => Came::Mutated(mutated),
            Completion::ItemUses(uses) => Came::Uses(uses.map_err(fault)),
        }
    }
}

fn owned(found: Result<Lookup<'_>, OpError>) -> Result<Option<OwnedItem>, Fault> {
    let mut item = None;
    hand_out(found, |found| item = found.map(OwnedItem::of))?;
    Ok(item)
}

fn with_uses(item: &OwnedItem, uses: &ItemUses) -> OwnedItem {
    let item = item.item();
    OwnedItem::of(&Item {
        seen: seen_by(uses, item.version),
        ..item
    })
}

fn token(ticket: Ticket, index: usize) -> u64 {
    ticket << INDEX_BITS | index as u64
}

/// The host's monotonic clock, as the client and the event loop read it.
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
