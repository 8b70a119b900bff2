//! A client: the driver, and whoever calls it. An event loop that submits
//! operations and is woken when something has come, or a thread that waits for one
//! operation after another.

use super::book::{Basis, Book, Times};
use super::host::SimHost;
use super::net::Net;
use super::profile::Reach;
use super::stats::Count;
use crate::history::Broken;
use crate::violation::Property;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trefoil_client_core::fill::{FillTicket, Stamps};
use trefoil_client_core::get::{GetOutcome, MissReason};
use trefoil_client_core::outcome::MutationOutcome;
use trefoil_driver::{Driver, Item, LookupStrategy, Options, Outcome, Owner, Purpose};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::Expected;
use trefoil_region::WordBuffer;

/// How much later than its deadline an operation may end: the timers' and clocks'
/// grain, and the event loop's turn.
const BOUND_NS: u64 = 8_000_000;
/// What a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Get,
    GetMany,
    Set,
    Erase,
    Increment,
    Add,
    Cas,
    Fill,
}

impl Want {
    pub(super) const ALL: [Want; 8] = [
        Want::Get,
        Want::GetMany,
        Want::Set,
        Want::Erase,
        Want::Increment,
        Want::Add,
        Want::Cas,
        Want::Fill,
    ];
}

/// What an operation of the driver is.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A lookup, and what follows it.
    Get { then: Option<Want> },
    Mutation {
        write: Option<usize>,
        expected: Option<Expected>,
        times: Times,
    },
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// The caller's token, or the driver's place of whoever waits.
    place: Place,
    key: usize,
    kind: Kind,
    basis: Basis,
    deadline_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Token(u64),
    Waiter(u32),
}

/// How the last operation on a key ended, for whoever looks at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Hit,
    Miss(MissReason),
    GetFailed,
    Mutated(MutationOutcome),
}

/// See the module.
pub(super) struct Client {
    pub(super) number: usize,
    net: Rc<Net>,
    pub(super) driver: Driver<SimHost>,
    is_blocking: bool,
    pending: Vec<Pending>,
    next_token: u64,
    begins_at_ns: u64,
    /// The version last seen of each key, for a CAS.
    known: Vec<Option<Version>>,
    /// What a miss has left for a fill, and when it ended.
    tickets: Vec<Option<(Stamps, u64)>>,
    pub(super) last: Vec<Option<Ended>>,
    held: WordBuffer,
    value: Vec<u8>,
}

pub(super) fn key_name(key: usize) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// How this client looks keys up by way of engines, if there are any.
fn strategy(net: &Net) -> LookupStrategy {
    match net.profile.reach {
        Reach::Engine => {
            let all = LookupStrategy::ALL;
            all[net.ways.index(all.len())]
        }
        Reach::Rings | Reach::Reads | Reach::Calls => LookupStrategy::Auto,
    }
}

impl Client {
    pub(super) fn new(net: &Rc<Net>, number: usize) -> Self {
        let profile = &net.profile;
        let options = Options {
            deadline: Duration::from_nanos(profile.deadline_ns),
            retries_max: profile.retries_max,
            carrier: profile.carrier,
            waiting_len_max: profile.waiting_len_max(),
            strategy: strategy(net),
            ..Options::default()
        };
        let topology = Arc::clone(&net.published.borrow());
        let driver = Driver::new(SimHost::new(net, number), topology, options, number);
        net.wakes[number].set(net.now_ns.get());
        Client {
            number,
            is_blocking: net.rng.chance(profile.blocking),
            driver,
            pending: Vec::new(),
            next_token: 0,
            begins_at_ns: net.now_ns.get() + net.rng.below(500_000),
            known: vec![None; profile.keys],
            tickets: vec![None; profile.keys],
            last: vec![None; profile.keys],
            held: WordBuffer::default(),
            value: Vec::new(),
            net: Rc::clone(net),
        }
    }

    /// Nothing that it has begun is under way for a caller.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// What operations that are over have left waiting for a ring is bounded.
    pub(super) fn check_left_waiting(&self, net: &Net) -> Result<(), Broken> {
        let most = (0..net.processes.borrow().len() as u32)
            .map(|number| self.driver.left_waiting_len(number))
            .max();
        match most {
            Some(len) if len > net.profile.waiting_len_max() => {
                let message = format!("client {} leaves {len} bytes waiting", self.number);
                Err((Property::Leak, message))
            }
            _ => Ok(()),
        }
    }

    /// Operations that hold a place, and answers that are owed.
    pub(super) fn is_settled(&self) -> bool {
        self.driver.in_flight() == 0
            && self.driver.is_settled()
            && self.driver.ports().next().is_none()
    }

    /// The process ends in the middle of whatever it was at.
    pub(super) fn die(&self) {
        self.driver.host_ref().close();
        for backend in self.net.processes.borrow().iter() {
            if self.net.rng.chance(512) {
                backend.poll(&self.net);
            }
        }
    }

    fn life(&self) -> u64 {
        self.driver.topology().id().life
    }

    /// Takes in what has come, and goes on. Then its next wake-up is known.
    pub(super) fn act(&mut self, book: &mut Book) -> Result<(), Broken> {
        self.hear(book)?;
        self.driver.look_at_all();
        match self.pending.first().map(|pending| pending.place) {
            Some(Place::Waiter(at)) => self.driver.turn_for(at),
            _ => self.driver.turn(),
        }
        self.hear(book)?;
        self.check_deadlines()
    }

    pub(super) fn can_begin(&self) -> bool {
        let window = match self.is_blocking {
            true => 1,
            false => self.net.profile.window,
        };
        self.pending.len() < window && self.net.now_ns.get() >= self.begins_at_ns
    }

    /// When it has something to do by itself.
    pub(super) fn set_wake(&mut self, wants_more: bool) {
        let net = &self.net;
        let mut at = match self.pending.first().map(|pending| pending.place) {
            Some(Place::Waiter(place)) => {
                let wake = self.driver.wake_ns(place);
                self.driver.next_work_ns().min(wake)
            }
            _ => self.driver.next_deadline_ns(),
        };
        if self.driver.is_ready() || self.driver.host_ref().has_event() {
            at = 0;
        }
        if wants_more && self.can_begin_later() {
            at = at.min(self.begins_at_ns);
        }
        let soon = net.now_ns.get() + 1 + net.rng.below(2_000);
        let wake = &net.wakes[self.number];
        wake.set(wake.get().min(at.max(soon)));
    }

    fn can_begin_later(&self) -> bool {
        match self.is_blocking {
            true => self.pending.is_empty(),
            false => self.pending.len() < self.net.profile.window,
        }
    }

    fn check_deadlines(&self) -> Result<(), Broken> {
        let now = self.net.now_ns.get();
        match self
            .pending
            .iter()
            .find(|pending| now > pending.deadline_ns + BOUND_NS)
        {
            None => Ok(()),
            Some(pending) => {
                let late_ms = (now - pending.deadline_ns) / 1_000_000;
                let message = format!("client {}: {pending:?} is {late_ms} ms late", self.number);
                Err((Property::Late, message))
            }
        }
    }

    fn pause(&mut self) {
        let net = &self.net;
        let pause = match net.is_struck(net.profile.pause) {
            true => net.rng.below(net.profile.pause_ns),
            false => net.rng.below(20_000),
        };
        self.begins_at_ns = net.now_ns.get() + pause;
    }

    /// Begins what a caller wants of a key.
    pub(super) fn begin(&mut self, book: &mut Book, want: Want, key: usize) -> Result<(), Broken> {
        self.hear(book)?;
        self.net.stats.add(Count::Operations);
        let number = self.number;
        self.net
            .trace(Some(key), || format!("client {number} begins {want:?}"));
        match want {
            Want::Get => self.look_up(book, key, None, false)?,
            Want::GetMany => {
                for key in 0..self.net.profile.keys {
                    self.look_up(book, key, None, true)?;
                }
            }
            Want::Increment | Want::Fill => self.look_up(book, key, Some(want), false)?,
            Want::Set | Want::Erase => self.mutate(book, key, want, None)?,
            Want::Add => self.cas(book, key, Expected::Absent),
            Want::Cas => {
                let expected = self.known[key].map_or(Expected::Absent, Expected::Version);
                self.cas(book, key, expected);
            }
        }
        self.hear(book)?;
        self.abandon();
        self.pause();
        Ok(())
    }

    /// An event loop that does not want to know any more.
    fn abandon(&mut self) {
        let net = &self.net;
        if self.is_blocking || self.pending.is_empty() || !net.is_struck(net.profile.abandon) {
            return;
        }
        let pending = self.pending.swap_remove(net.rng.index(self.pending.len()));
        if let Place::Token(token) = pending.place {
            net.stats.add(Count::Abandoned);
            let number = self.number;
            net.trace(Some(pending.key), || {
                format!("client {number} abandons {:?}", pending.kind)
            });
            self.driver.abandon(token);
        }
    }

    fn place(&mut self) -> (Owner, Option<u64>) {
        if self.is_blocking {
            return (Owner::Waiter, None);
        }
        self.next_token += 1;
        (Owner::Token(self.next_token), Some(self.next_token))
    }

    fn look_up(
        &mut self,
        book: &mut Book,
        key: usize,
        then: Option<Want>,
        is_kept: bool,
    ) -> Result<(), Broken> {
        let basis = book.basis(key);
        let name = key_name(key);
        let now = trefoil_driver::Clock::coarse_ns(self.driver.host_ref());
        let limits = self.driver.limits(now);
        let purpose = match then {
            Some(Want::Increment) => Purpose::Basis,
            _ => Purpose::Use,
        };
        let (owner, token) = match self.place() {
            (Owner::Waiter, token) if is_kept => (Owner::Batch, token),
            place => place,
        };
        let kind = Kind::Get { then };
        let pending = |place| Pending {
            place,
            key,
            kind,
            basis,
            deadline_ns: limits.deadline_ns,
        };
        let begun = self.driver.get(&name, now, limits, purpose, owner);
        let place = match (begun, token) {
            (Ok(inline), Some(token)) if is_kept || self.net.rng.chance(300) => {
                self.driver.keep(&inline, purpose, token);
                Place::Token(token)
            }
            (Ok(inline), None) if is_kept => Place::Waiter(self.driver.keep_for_waiter(&inline)),
            (Ok(inline), _) => {
                self.net.stats.add(Count::Inline);
                let ended = match inline.outcome {
                    GetOutcome::Hit { version, .. } => {
                        let bytes = self.driver.inline_bytes(&inline).to_vec();
                        return self.hit(book, &pending(Place::Token(0)), version, &bytes);
                    }
                    GetOutcome::Miss { reason } => Outcome::Miss {
                        reason,
                        stamps: self.driver.missed(&inline),
                    },
                    GetOutcome::Failed { cause } => Outcome::Failed { cause },
                };
                return self.ended(book, &pending(Place::Token(0)), ended);
            }
            (Err(_), Some(token)) => Place::Token(token),
            (Err(at), None) => Place::Waiter(at),
        };
        self.pending.push(pending(place));
        Ok(())
    }

    /// Begins a SET, an ERASE, or with a miss's stamps a fill.
    fn mutate(
        &mut self,
        book: &mut Book,
        key: usize,
        want: Want,
        miss: Option<(Stamps, u64)>,
    ) -> Result<(), Broken> {
        let basis = book.basis(key);
        let begun_ns = self.net.now_ns.get();
        let write = self.value_of(book, key, want != Want::Erase);
        let (owner, token) = self.place();
        let deadline_ns = begun_ns + self.net.profile.deadline_ns;
        let value = std::mem::take(&mut self.value);
        let mut item = Item::default();
        if self.net.is_struck(self.net.profile.expiry) {
            let now_ms = trefoil_driver::Clock::coarse_unix_ms(self.driver.host_ref());
            item.expiry_ms = now_ms + 1 + self.net.rng.below(40);
        }
        let name = key_name(key);
        let begun = match (want, miss) {
            (Want::Erase, _) => Ok(self.driver.begin_erase(&name, owner)),
            (_, Some((stamps, _))) => {
                let ticket = FillTicket::new(stamps);
                self.driver.begin_fill(ticket, &name, &value, item, owner)
            }
            _ => Ok(self.driver.begin_set(&name, &value, item, owner)),
        };
        self.value = value;
        let place = begun.map_err(|error| (Property::Stuck, format!("a fill: {error}")))?;
        self.pending.push(Pending {
            place: token.map_or(Place::Waiter(place), Place::Token),
            key,
            kind: Kind::Mutation {
                write,
                expected: None,
                times: Times {
                    begun_ns,
                    missed_ns: miss.map(|(_, missed_ns)| missed_ns),
                },
            },
            basis,
            deadline_ns,
        });
        Ok(())
    }

    fn cas(&mut self, book: &mut Book, key: usize, expected: Expected) {
        let basis = book.basis(key);
        let write = self.value_of(book, key, true);
        let (owner, token) = self.place();
        let deadline_ns = self.net.now_ns.get() + self.net.profile.deadline_ns;
        let value = std::mem::take(&mut self.value);
        let item = Item::default();
        let name = key_name(key);
        let place = self.driver.begin_cas(expected, &name, &value, item, owner);
        self.value = value;
        self.pending.push(Pending {
            place: token.map_or(Place::Waiter(place), Place::Token),
            key,
            kind: Kind::Mutation {
                write,
                expected: Some(expected),
                times: Times {
                    begun_ns: deadline_ns - self.net.profile.deadline_ns,
                    missed_ns: None,
                },
            },
            basis,
            deadline_ns,
        });
    }

    fn value_of(&mut self, book: &mut Book, key: usize, is_wanted: bool) -> Option<usize> {
        self.value.clear();
        is_wanted.then(|| book.begin_write(key, self.net.profile.value_len, &mut self.value))
    }

    /// Takes what has ended.
    fn hear(&mut self, book: &mut Book) -> Result<(), Broken> {
        while let Some((at, token)) = self.driver.next_done() {
            self.take(book, at, Place::Token(token))?;
        }
        while let Some(Place::Waiter(at)) = self.pending.first().map(|pending| pending.place)
            && self.driver.has_ended(at)
        {
            self.take(book, at, Place::Waiter(at))?;
        }
        Ok(())
    }

    fn take(&mut self, book: &mut Book, at: u32, place: Place) -> Result<(), Broken> {
        let mut held = std::mem::take(&mut self.held);
        let ended = self.driver.take_ended(at, &mut held);
        let found = self
            .pending
            .iter()
            .position(|pending| pending.place == place);
        let result = match (ended, found) {
            (Some((outcome, _)), Some(found)) => {
                let pending = self.pending.remove(found);
                self.check_end(&pending)?;
                match outcome {
                    Outcome::Hit { version } => {
                        let bytes = held.bytes().to_vec();
                        self.hit(book, &pending, version, &bytes)
                    }
                    outcome => self.ended(book, &pending, outcome),
                }
            }
            (ended, _) => {
                let message = format!("client {}: {place:?} ended as {ended:?}", self.number);
                Err((Property::Stuck, message))
            }
        };
        self.held = held;
        result
    }

    fn check_end(&self, pending: &Pending) -> Result<(), Broken> {
        let now = self.net.now_ns.get();
        if now <= pending.deadline_ns + BOUND_NS {
            return Ok(());
        }
        let late_ms = (now - pending.deadline_ns) / 1_000_000;
        let message = format!(
            "client {}: {pending:?} ended {late_ms} ms late",
            self.number
        );
        Err((Property::Late, message))
    }

    fn hit(
        &mut self,
        book: &mut Book,
        pending: &Pending,
        version: Version,
        bytes: &[u8],
    ) -> Result<(), Broken> {
        let key = pending.key;
        self.net.stats.add(Count::Hits);
        let Some(entry) = DataEntry::decode(bytes) else {
            return Err((Property::Value, "a hit that does not decode".to_owned()));
        };
        let (number, life) = (self.number, self.life());
        self.net.trace(Some(key), || {
            format!("client {number} hits {version:?} in life {life:x}")
        });
        book.hit(key, &pending.basis, life, version, entry.value)?;
        self.last[key] = Some(Ended::Hit);
        self.known[key] = Some(version);
        if let Kind::Get {
            then: Some(Want::Increment),
        } = pending.kind
        {
            self.cas(book, key, Expected::Version(version));
        }
        Ok(())
    }

    fn ended(
        &mut self,
        book: &mut Book,
        pending: &Pending,
        outcome: Outcome,
    ) -> Result<(), Broken> {
        let (key, number) = (pending.key, self.number);
        self.net.trace(Some(key), || {
            format!("client {number} ends {:?}: {outcome:?}", pending.kind)
        });
        match (pending.kind, outcome) {
            (Kind::Get { then }, Outcome::Miss { reason, stamps }) => {
                self.net.stats.miss(reason);
                self.last[key] = Some(Ended::Miss(reason));
                self.known[key] = None;
                match then {
                    Some(Want::Increment) => self.cas(book, key, Expected::Absent),
                    Some(_) => {
                        let miss = (stamps, self.net.now_ns.get());
                        // Some fill long after their miss.
                        let earlier = self.tickets[key].replace(miss);
                        let is_late = self.net.rng.chance(512);
                        let miss = earlier.filter(|_| is_late).unwrap_or(miss);
                        self.mutate(book, key, Want::Fill, Some(miss))?;
                    }
                    None => {}
                }
                Ok(())
            }
            (Kind::Get { .. }, Outcome::Failed { .. }) => {
                self.net.stats.add(Count::GetFailed);
                self.last[key] = Some(Ended::GetFailed);
                Ok(())
            }
            (
                Kind::Mutation {
                    write,
                    expected,
                    times,
                },
                Outcome::Mutated(outcome),
            ) => {
                self.net.stats.mutated(&outcome);
                self.last[key] = Some(Ended::Mutated(outcome));
                if let MutationOutcome::Stored { version } = outcome {
                    self.known[key] = write.map(|_| version);
                }
                let life = self.life();
                book.mutated(write, key, expected, times, life, &outcome)
            }
            (kind, outcome) => {
                let message = format!("{kind:?} ended as {outcome:?}");
                Err((Property::Stuck, message))
            }
        }
    }
}
