//! The places that a client has at the queues of backends, and what it publishes there
//! (`commit.rs` says by which rules).
//!
//! # More clients than places
//! A commit needs a place at each of a key's backends, and each has so many. Clients that
//! come together would each hold some and lack others, and none would commit. So they ask in one
//! order, that of the backends' numbers: who gets a place at the first one finds others that
//! have come the same way, and no more. Who finds a backend full all the same (one was started
//! again meanwhile, say) gives back what is of no use without it, and asks again after a pause
//! of its own. Who finds one away, or ending, keeps its places: nobody else could commit by them.
//!
//! # Who waits
//! To ask for a place is a greeting: it takes as long as the backend takes to answer. A caller
//! that waits for its mutation asks by itself. For what is submitted a thread asks, one at a time
//! for each client and all that are lacking in the same order, and a later attempt takes up what
//! it was told; until then everything is executed.

use crate::error::NotCommittable;
use crate::host::random;
use crate::time;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_driver::Topology;
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Seat};
use trefoil_layout::message::{Request, RequestHead};
use trefoil_layout::op::Mutation;
use trefoil_layout::{KeyHash, Placement};
use trefoil_ordered::slot::PAYLOAD_LEN_MAX;
use trefoil_region::ForkMark;

/// How long a backend may take to give a place, unless the client's deadline is shorter.
const WELCOME: Duration = Duration::from_secs(2);
/// How long one may take that has given none, or has been away: others wait for it in vain.
const WELCOME_AGAIN: Duration = Duration::from_millis(50);
/// After it gave none, nobody asks for so long.
const RETRY_NS: u64 = 100_000_000;
/// The same where it said that it gives none now: twice as long each time, up to this. A queue
/// that has ended says so until its backend is started again.
const RETRY_NS_MAX: u64 = 3_200_000_000;
/// The same after it was full, and up to as long again, by chance: others ask, too.
const RETRY_FULL_NS: u64 = 50_000_000;
/// The same after it said that it never gives one: it may be another one by then.
const RETRY_NEVER_NS: u64 = 5_000_000_000;
/// The same after it has said nothing: each attempt costs its caller half a deadline.
const RETRY_SILENT_NS: u64 = 2_000_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// By the backend's number.
    by_backend: Vec<Option<Seat>>,
    /// By the backend's number: how one is asked that has given no place, or has been away.
    put_off: HashMap<u32, PutOff>,
    /// A thread asks for places.
    asking: Option<Asking>,
    /// The request that is to be published.
    bytes: Vec<u8>,
    /// The process whose places these are.
    process: ForkMark,
}

/// What came of an attempt to commit.
pub(crate) enum Attempt {
    /// It stands everywhere.
    Committed,
    /// Nothing was sent that will ever be executed.
    Refused,
    /// It may be executed: a backend's lease has ended meanwhile, say.
    Unknown,
}

/// See [`Seats::put_off`].
#[derive(Debug)]
struct PutOff {
    /// Not before then.
    again_ns: u64,
    /// How long it may take then.
    welcome: Duration,
    /// The pause before that, where it said that it gives no place now; else none.
    not_now_ns: u64,
    /// There is no place for this client, and never: it asks again all the same, then.
    why: Option<NotCommittable>,
}

/// Who waits for places that are not there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// The caller, until then at most.
    Until(u64),
    /// A thread of its own.
    Beside,
}

/// What a thread asks for, and is told.
#[derive(Debug)]
struct Asking {
    /// For whose sake: without one of these the others are of no use.
    cohort: Vec<u32>,
    told: Receiver<Vec<(u32, Answer)>>,
}

/// A backend that is to be asked for a place.
#[derive(Debug)]
struct Question {
    backend: u32,
    socket: Option<PathBuf>,
    options: ConnectOptions,
}

/// What it says.
#[derive(Debug)]
enum Answer {
    Taken(Box<Seat>),
    /// All are.
    Full,
    /// It is away.
    Away,
    /// It says nothing.
    Silent,
    /// Its queue ends, or is held up.
    NotNow,
    /// There is none for this client.
    Never(NotCommittable),
    /// No time was left to ask it.
    Unasked,
}

/// What came of asking a backend for a place.
enum Asked {
    Taken,
    /// All are.
    Full,
    /// It is away, serves another topology, or its queue ends.
    NotNow,
    /// There is none for this client.
    Never,
}

impl Question {
    /// Asks, for no longer than so many nanoseconds.
    fn ask(mut self, left_ns: u64) -> (u32, Answer) {
        let backend = self.backend;
        if left_ns == 0 {
            return (backend, Answer::Unasked);
        }
        self.options.timeout = self.options.timeout.min(Duration::from_nanos(left_ns));
        let Some(socket) = self.socket else {
            return (backend, Answer::Never(NotCommittable::NotShared(backend)));
        };
        let answer = match Seat::take(&socket, backend, &self.options) {
            Ok(seat) => Answer::Taken(Box::new(seat)),
            // An older server does not know what is asked for.
            Err(ConnectError::NoQueue { .. } | ConnectError::Hello { .. }) => {
                Answer::Never(NotCommittable::NoQueue(backend))
            }
            Err(
                ConnectError::Permission { .. }
                | ConnectError::ForeignServer { .. }
                | ConnectError::NotAllowed { .. },
            ) => Answer::Never(NotCommittable::NotShared(backend)),
            Err(ConnectError::NoLane { .. }) => Answer::Full,
            Err(ConnectError::Timeout { .. }) => Answer::Silent,
            Err(ConnectError::Unavailable { .. }) => Answer::NotNow,
            Err(_) => Answer::Away,
        };
        (backend, answer)
    }
}

impl Answer {
    /// Whether the next one is asked then: what it gives is not held in vain, or it is to be
    /// known whether there is none at all.
    fn leads_on(&self) -> bool {
        matches!(self, Answer::Taken(_) | Answer::Never(_))
    }
}

impl Seats {
    #[inline]
    fn seat(&mut self, backend: u32) -> Option<&mut Seat> {
        self.by_backend.get_mut(backend as usize)?.as_mut()
    }

    fn leave(&mut self, backend: u32) {
        if let Some(seat) = self.by_backend.get_mut(backend as usize) {
            *seat = None;
        }
    }

    /// Whether there is a place at the queue of each, whose lease goes on.
    #[inline]
    pub(crate) fn has_all(&mut self, cohort: &[u32], now_ns: u64) -> bool {
        let mut backends = cohort.iter();
        backends.all(|backend| {
            let seat = self.seat(*backend);
            seat.is_some_and(|seat| seat.view.lease_alive(now_ns))
        })
    }

    /// Asks for the places at these backends that are not there. Whether all are there then;
    /// none at any, and never, is an error.
    #[cold]
    pub(crate) fn take_all(
        &mut self,
        cohort: &[u32],
        topology: &Topology,
        options: impl Fn() -> ConnectOptions,
        patience: Patience,
    ) -> Result<bool, NotCommittable> {
        let is_under_way = self.take_up(topology, patience);
        let now_ns = time::monotonic_ns();
        for &backend in cohort {
            let seat = self.seat(backend);
            if seat.is_some_and(|seat| !seat.view.lease_alive(now_ns)) {
                self.leave(backend);
                let again = PutOff {
                    again_ns: 0,
                    welcome: WELCOME_AGAIN,
                    not_now_ns: 0,
                    why: None,
                };
                self.put_off.insert(backend, again);
            }
        }
        let mut lacking: Vec<u32> = cohort.to_vec();
        lacking.retain(|backend| self.seat(*backend).is_none());
        lacking.sort_unstable();
        if lacking.is_empty() {
            return Ok(true);
        }
        let mut is_never = false;
        let put_off = |seats: &Self, backend| {
            let put_off = seats.put_off.get(&backend);
            let put_off = put_off.filter(|put_off| now_ns < put_off.again_ns)?;
            Some(put_off.why)
        };
        // What others give would be held in vain.
        for &backend in &lacking {
            match put_off(self, backend) {
                Some(None) => return Ok(false),
                Some(Some(_)) => is_never = true,
                None => {}
            }
        }
        if is_never {
            return self.without(cohort, topology.placement());
        }
        let question = |seats: &Self, backend| Question {
            backend,
            socket: topology
                .config()
                .backend(backend)
                .and_then(|backend| backend.fabric_socket.clone()),
            options: ConnectOptions {
                timeout: seats.put_off.get(&backend).map_or(WELCOME, |it| it.welcome),
                ..options()
            },
        };
        let questions: Vec<Question> = lacking.iter().map(|at| question(self, *at)).collect();
        match patience {
            Patience::Until(until_ns) => {
                let left_ns = || until_ns.saturating_sub(time::monotonic_ns());
                let answers = questions.into_iter().map(|of| of.ask(left_ns()));
                self.settle(cohort, topology, answers)
            }
            Patience::Beside => {
                if !is_under_way && !self.begin_asking(cohort, questions) {
                    self.note(lacking[0], Answer::Away, topology);
                }
                // What was said of one before holds until it says something else.
                let whys = |backend| self.put_off.get(backend)?.why;
                match lacking.iter().any(|backend| whys(backend).is_some()) {
                    true => self.without(cohort, topology.placement()),
                    false => Ok(false),
                }
            }
        }
    }

    /// Has a thread ask. `false`: the system has none left.
    fn begin_asking(&mut self, cohort: &[u32], questions: Vec<Question>) -> bool {
        let (tell, told) = sync_channel(1);
        let ask = move || {
            let mut answers = Vec::new();
            for question in questions {
                let answer = question.ask(u64::MAX);
                let leads_on = answer.1.leads_on();
                answers.push(answer);
                if !leads_on {
                    break;
                }
            }
            // A client that has gone takes none of the places.
            let _ = tell.send(answers);
        };
        let thread = std::thread::Builder::new().name("trefoil-places".to_owned());
        let begun = thread.spawn(ask).is_ok();
        self.asking = begun.then(|| Asking {
            cohort: cohort.to_vec(),
            told,
        });
        begun
    }

    /// Takes up what a thread was told. Whether it still asks.
    fn take_up(&mut self, topology: &Topology, patience: Patience) -> bool {
        let Some(Asking { cohort, told }) = self.asking.take() else {
            return false;
        };
        let answers = match patience {
            Patience::Until(until_ns) => {
                let left_ns = until_ns.saturating_sub(time::monotonic_ns());
                let answers = told.recv_timeout(Duration::from_nanos(left_ns));
                answers.map_err(|error| error == RecvTimeoutError::Timeout)
            }
            Patience::Beside => {
                let answers = told.try_recv();
                answers.map_err(|error| error == TryRecvError::Empty)
            }
        };
        match answers {
            Ok(answers) => {
                // Who asks now learns by itself what there never is.
                let _ = self.settle(&cohort, topology, answers.into_iter());
                false
            }
            Err(is_under_way) => {
                self.asking = is_under_way.then_some(Asking { cohort, told });
                is_under_way
            }
        }
    }

    /// Takes what these backends give, one after the other, as far as that leads. Whether there
    /// is a place at each of the cohort then.
    fn settle(
        &mut self,
        cohort: &[u32],
        topology: &Topology,
        answers: impl Iterator<Item = (u32, Answer)>,
    ) -> Result<bool, NotCommittable> {
        let mut is_never = false;
        for (backend, answer) in answers {
            match self.note(backend, answer, topology) {
                Asked::Taken => {}
                Asked::Full => {
                    self.give_back(cohort, topology.placement());
                    return Ok(false);
                }
                Asked::NotNow => {
                    if is_never {
                        self.give_back(cohort, topology.placement());
                    }
                    return Ok(false);
                }
                // Whether there is none at the others either is asked all the same.
                Asked::Never => is_never = true,
            }
        }
        match is_never {
            true => self.without(cohort, topology.placement()),
            false => Ok(true),
        }
    }

    /// There is never a place at one of these: those at the others are given back, unless they
    /// are of use elsewhere. Never one at any is an error.
    fn without(&mut self, cohort: &[u32], placement: &Placement) -> Result<bool, NotCommittable> {
        self.give_back(cohort, placement);
        let mut never = None;
        for backend in cohort {
            match self.put_off.get(backend).and_then(|put_off| put_off.why) {
                Some(why) => never = never.or(Some(why)),
                None => return Ok(false),
            }
        }
        never.map_or(Ok(false), Err)
    }

    /// Leaves the places at these backends that serve no key at all: those without which no
    /// cohort of theirs is whole.
    fn give_back(&mut self, backends: &[u32], placement: &Placement) {
        for &backend in backends {
            if self.seat(backend).is_none() {
                continue;
            }
            let mut cohorts = (0..placement.backend_count()).map(|s| placement.cohort_of_shard(s));
            let is_of_use = cohorts.any(|cohort| {
                let cohort = cohort.as_slice();
                cohort.contains(&backend) && cohort.iter().all(|of| self.seat(*of).is_some())
            });
            if !is_of_use {
                self.leave(backend);
            }
        }
    }

    /// Takes a place that was given, or note of when to ask again.
    fn note(&mut self, backend: u32, answer: Answer, topology: &Topology) -> Asked {
        let not_now_ns = self.put_off.get(&backend).map_or(0, |it| it.not_now_ns);
        let mut put_off = PutOff {
            again_ns: 0,
            welcome: WELCOME_AGAIN,
            not_now_ns: 0,
            why: None,
        };
        let (pause_ns, asked) = match answer {
            // Where a key belongs is known by the topology alone: a backend of a cell that was
            // resized meanwhile would acknowledge keys that are another's by now. What is
            // executed is refused instead, and so this client learns of the newer one.
            Answer::Taken(seat) if seat.view.agreement().topology == topology.id() => {
                let at = backend as usize;
                if self.by_backend.len() <= at {
                    self.by_backend.resize_with(at + 1, || None);
                }
                self.by_backend[at] = Some(*seat);
                self.put_off.remove(&backend);
                return Asked::Taken;
            }
            Answer::Unasked => return Asked::NotNow,
            Answer::Taken(_) | Answer::Away => (RETRY_NS, Asked::NotNow),
            Answer::Never(why) => {
                put_off.why = Some(why);
                (RETRY_NEVER_NS, Asked::Never)
            }
            Answer::Full => {
                // It has answered, as soon as it could.
                put_off.welcome = WELCOME;
                (RETRY_FULL_NS + random() % RETRY_FULL_NS, Asked::Full)
            }
            Answer::Silent => (RETRY_SILENT_NS, Asked::NotNow),
            Answer::NotNow => {
                put_off.not_now_ns = (2 * not_now_ns).clamp(RETRY_NS, RETRY_NS_MAX);
                (put_off.not_now_ns, Asked::NotNow)
            }
        };
        // The attempt took its time.
        put_off.again_ns = time::monotonic_ns().saturating_add(pause_ns);
        self.put_off.insert(backend, put_off);
        asked
    }

    /// Makes this, which fits into a slot ([`fits`]), the request that is published next.
    pub(crate) fn write(&mut self, mutation: Mutation<'_>, config_id: u32) {
        let request = Request::Mutate(mutation);
        self.bytes.clear();
        self.bytes.resize(request.encoded_len(), 0);
        request.encode(RequestHead { id: 0, config_id }, &mut self.bytes);
    }

    /// What these backends know of the key. `None`: one of them would not count at present, or
    /// has no room.
    pub(crate) fn ask_all(
        &mut self,
        cohort: &[u32],
        hash: KeyHash,
        config_id: u32,
    ) -> Option<Known> {
        let mut known = Known::default();
        let mut epochs = OneEpoch::default();
        for (place, backend) in cohort.iter().enumerate() {
            let seat = self.seat(*backend)?;
            let counts = epochs.takes(seat.epoch(place, hash, config_id));
            if !counts || seat.queue.is_closed() || !seat.queue.has_room() {
                return None;
            }
            // Before the versions.
            known.conditional[place] = seat.marker.conditional(hash.tag)?;
            let executed_ns = seat.view.newest_ns(seat.view.partition(place, hash));
            known.time_ns = known.time_ns.max(executed_ns).max(seat.marker.nominated());
        }
        Some(known)
    }

    /// Publishes the request that was written at its only backend.
    pub(crate) fn commit(&mut self, backend: u32, hash: KeyHash) -> Attempt {
        if !self.publish(backend, hash) {
            return Attempt::Refused;
        }
        match self.all_live(&[backend]) {
            true => Attempt::Committed,
            false => Attempt::Unknown,
        }
    }

    /// Publishes the request that was written, whose version has this time, at all of them.
    pub(crate) fn commit_to_all(
        &mut self,
        cohort: &[u32],
        hash: KeyHash,
        config_id: u32,
        (known, time_ns): (&Known, u64),
    ) -> Attempt {
        // Whoever asks from now on comes behind this.
        for backend in cohort {
            if let Some(seat) = self.seat(*backend) {
                seat.marker.nominate(time_ns);
            }
        }
        for (at, backend) in cohort.iter().enumerate() {
            if !self.publish(*backend, hash) {
                return match at {
                    0 => Attempt::Refused,
                    _ => Attempt::Unknown,
                };
            }
        }
        // A backend raises its epoch, or says that it executes a CAS, and then looks for what
        // is published.
        fence(Ordering::SeqCst);
        let mut epochs = OneEpoch::default();
        for (place, backend) in cohort.iter().enumerate() {
            let Some(seat) = self.seat(*backend) else {
                return Attempt::Unknown;
            };
            let is_between = seat.marker.conditional(hash.tag) != Some(known.conditional[place]);
            if is_between || !epochs.takes(seat.epoch(place, hash, config_id)) {
                return Attempt::Unknown;
            }
        }
        match self.all_live(cohort) {
            true => Attempt::Committed,
            false => Attempt::Unknown,
        }
    }

    /// As if all pauses were over.
    #[cfg(test)]
    pub(crate) fn ask_again_now(&mut self) {
        for put_off in self.put_off.values_mut() {
            put_off.again_ns = 0;
        }
    }

    /// Whether the marks of this backend, at which there is a place, say so.
    #[cfg(test)]
    pub(crate) fn is_pending(&mut self, backend: u32, hash: KeyHash) -> Option<bool> {
        Some(self.seat(backend)?.view.is_pending(hash))
    }

    /// Whether all leases go on. To be asked last: whoever takes a backend's place begins when
    /// its lease is over.
    fn all_live(&mut self, backends: &[u32]) -> bool {
        self.has_all(backends, time::monotonic_ns())
    }

    /// Marks the key and publishes `self.bytes`. `false`: it was refused, and left no trace. A
    /// fork's child has copies of its parent's counts, and would take its marks back by them.
    #[inline]
    fn publish(&mut self, backend: u32, hash: KeyHash) -> bool {
        if self.process.is_child() {
            return false;
        }
        let Seats {
            by_backend, bytes, ..
        } = self;
        let Some(Some(seat)) = by_backend.get_mut(backend as usize) else {
            return false;
        };
        seat.marker.mark(hash.tag);
        if seat.queue.submit(bytes, true).is_ok() {
            seat.marker.commit(hash.tag);
            return true;
        }
        seat.marker.withdraw(hash.tag);
        if seat.queue.is_closed() {
            self.leave(backend);
        }
        false
    }
}

/// Whether this fits into a slot of a queue.
#[inline]
pub(crate) fn fits(mutation: Mutation<'_>) -> bool {
    Request::Mutate(mutation).encoded_len() <= PAYLOAD_LEN_MAX
}

/// What the backends of a key say before a version is nominated.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// No version that any of them knows, or is about to, has a later time.
    pub(crate) time_ns: u64,
    /// By place: see [`Marker::conditional`](trefoil_ordered::marks::Marker::conditional).
    conditional: [u64; REPLICAS_MAX],
}

/// Epochs that count together.
#[derive(Default)]
struct OneEpoch(Option<u32>);

impl OneEpoch {
    #[inline]
    fn takes(&mut self, epoch: Option<u32>) -> bool {
        epoch.is_some_and(|epoch| *self.0.get_or_insert(epoch) == epoch)
    }
}
