//! One backend as one client reaches it: by its best carrier (*near*: mapped
//! memory and messages), by calls (*far*), or not at all for a while.

use crate::host::{Host, NotConnected, SUCCESSOR_NS};
use crate::inline::COARSE_LAG_NS;
use crate::options::{Carrier, LookupStrategy, Options};
use crate::room::{Room, Waiter, Way};
use crate::topology::Topology;
use std::collections::VecDeque;
use std::sync::Arc;
use trefoil_client_core::get::Strategy;
use trefoil_client_core::touch::{TouchBatch, TouchBuffer};
use trefoil_fabric::RegionView;
use trefoil_fabric::port::Port;
use trefoil_layout::KeyHash;
use trefoil_region::WordBuffer;

/// First pause before a backend that was found down is tried again; it doubles
/// up to [`RETRY_NS_MAX`].
const RETRY_NS_MIN: u64 = 20_000_000;
const RETRY_NS_MAX: u64 = 1_000_000_000;
/// The same for a best carrier that could not be had although calls go: out of
/// descriptors or memory, another user, a backend that is starting.
const NEAR_RETRY_NS_MIN: u64 = 200_000_000;
const NEAR_RETRY_NS_MAX: u64 = 30_000_000_000;
/// The longest such pause where an engine is the best carrier, or was: it may be started
/// anew at any time.
const ENGINE_RETRY_NS_MAX: u64 = 1_000_000_000;
/// Patience with a greeting where an operation waits for it. A backend that lives
/// answers within a millisecond, on a starved machine within some hundreds.
const GREETING_NS: u64 = 1_000_000_000;
/// How often a backend that owes answers is looked at: one whose lease has ended,
/// twice in a row, is not waited for. (Once may be a pause of this whole machine,
/// after which the backend renews it at once.)
pub(crate) const LEASE_LOOK_NS: u64 = 50_000_000;
/// How often the lease of a backend that owes nothing is looked at.
pub(crate) const IDLE_LOOK_NS: u64 = 500_000_000;
/// A backend that owes answers to calls and has been silent for so long counts as
/// down, and so much longer for each byte of the values on their way to it: 16 MB/s.
const SILENCE_NS: u64 = 500_000_000;
/// A call counts as owed for so long at least, also where its operation has ended before that:
/// else nobody whose patience is short would notice that a backend is silent.
pub const OWED_NS_MIN: u64 = SILENCE_NS + 100_000_000;
const SILENCE_NS_PER_BYTE: u64 = 64;
/// So long before that one that owes reads only, or nothing to this client while others
/// keep its messages waiting, is greeted: if it answers, it is not silent but busy with
/// what it was asked for, a long value on a slow link for one.
const GREETED_BEFORE_NS: u64 = 250_000_000;
/// How soon after a connection that could not be made an operation may have the
/// next one begun: each takes a thread.
const TRY_SPACING_NS: u64 = 5_000_000;

/// So long after a backend was found down, what it misses is told at once, too: it may have
/// been down for long, unnoticed, and be back.
const LOST_NS: u64 = 1_000_000_000;
/// Keys that a backend has missed: 16 KiB, once it misses any.
const MISSED_COUNT_MAX: usize = 1024;

/// When one that was heard then is looked at.
const fn first_look_ns(heard_ns: u64) -> u64 {
    heard_ns + SILENCE_NS - GREETED_BEFORE_NS
}

/// What carries operations to one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CarrierInUse {
    /// One-sided reads, and messages through rings.
    Shared,
    /// One-sided reads; the rest by RPC.
    SharedReads,
    /// Lookups by an engine on the backend's host, and messages if it takes them; the rest by
    /// RPC.
    Engine,
    /// Everything by RPC.
    Rpc,
    /// Nothing reaches it at present.
    Down,
}

impl CarrierInUse {
    /// The name in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            CarrierInUse::Shared => "shared",
            CarrierInUse::SharedReads => "shared-reads",
            CarrierInUse::Engine => "engine",
            CarrierInUse::Rpc => "rpc",
            CarrierInUse::Down => "down",
        }
    }
}

/// How a client reaches one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Backend number.
    pub backend: u32,
    /// What carries operations to it.
    pub carrier: CarrierInUse,
    /// Why it is not shared memory with rings, if it is not.
    pub why: Option<Arc<str>>,
}

/// Whether the best carrier stands, and when it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Near,
    Far { retry_at_ns: u64 },
    Down { retry_at_ns: u64 },
}

/// How long a process that has moved may take to answer what it was sent before: it hangs up
/// much sooner.
const LEAVING_NS: u64 = 1_000_000_000;

/// What a process that has moved still has to answer.
pub(crate) struct Leaving<P> {
    pub(crate) port: P,
    pub(crate) owes: u32,
    /// One that has neither answered nor hung up by then hangs.
    pub(crate) until_ns: u64,
}

/// See the module.
pub struct Link<P> {
    pub(crate) number: u32,
    pub(crate) near: Option<P>,
    pub(crate) far: Option<P>,
    /// The near port of a process that has moved, until all that was sent there is answered.
    pub(crate) leaving: Option<Leaving<P>>,
    state: State,
    /// When the connection that is being made was begun.
    connecting_since_ns: Option<u64>,
    pause_ns: u64,
    near_pause_ns: u64,
    near_pause_ns_max: u64,
    /// When message rings are asked for again, if the best carrier has none.
    rings_at_ns: u64,
    why: Option<Arc<str>>,
    /// The successor that the host was last told of; 0 is none.
    pub(crate) foreseen: u64,
    /// What the latest inline lookup has read here; what a hit borrows.
    pub(crate) bytes: WordBuffer,
    touches: Box<[TouchBuffer]>,
    touch_sample: u32,
    /// Touches of keys, those included that are left out.
    touch_count: u32,
    /// Operations' answers that the near port, the far port owe.
    pub(crate) near_owes: u32,
    pub(crate) far_owes: u32,
    /// When it was heard last while it owed answers to calls, or others did and kept
    /// messages waiting, and when it is to be looked whether it has gone silent.
    heard_ns: u64,
    silent_at_ns: u64,
    /// The connection that is being made shows whether it is there at all.
    is_greeted: bool,
    /// No operation has it connected to before.
    try_again_ns: u64,
    /// It has moved to another process, which serves by then.
    successor_by_ns: u64,
    /// When it was found down.
    lost_ns: Option<u64>,
    /// Keys of which it lacks what was stored last, the oldest first.
    missed: VecDeque<KeyHash>,
    /// Messages that found the ring full, and calls of which there were too many.
    near_room: Room,
    far_room: Room,
    /// When its lease is looked at.
    pub(crate) look_at_ns: u64,
    was_lapsed: bool,
}

impl<P: Port> Link<P> {
    pub(crate) fn new(number: u32, options: &Options) -> Self {
        Link {
            number,
            near: None,
            far: None,
            leaving: None,
            state: State::Down { retry_at_ns: 0 },
            connecting_since_ns: None,
            pause_ns: RETRY_NS_MIN,
            near_pause_ns: NEAR_RETRY_NS_MIN,
            near_pause_ns_max: match options.engine {
                Some(_) => ENGINE_RETRY_NS_MAX,
                None => NEAR_RETRY_NS_MAX,
            },
            rings_at_ns: u64::MAX,
            why: None,
            foreseen: 0,
            bytes: WordBuffer::default(),
            touches: Box::default(),
            touch_sample: options.touch_sample,
            touch_count: 0,
            near_owes: 0,
            far_owes: 0,
            heard_ns: 0,
            silent_at_ns: u64::MAX,
            is_greeted: false,
            try_again_ns: 0,
            successor_by_ns: 0,
            lost_ns: None,
            missed: VecDeque::new(),
            near_room: Room::new(Way::Near),
            far_room: Room::new(Way::Far),
            look_at_ns: 0,
            was_lapsed: false,
        }
    }

    /// What waits for room on this way to the backend.
    #[inline(always)]
    pub(crate) fn room(&self, way: Way) -> &Room {
        match way {
            Way::Near => &self.near_room,
            Way::Far => &self.far_room,
        }
    }

    #[inline(always)]
    pub(crate) fn room_mut(&mut self, way: Way) -> &mut Room {
        match way {
            Way::Near => &mut self.near_room,
            Way::Far => &mut self.far_room,
        }
    }

    /// The far port, if it has something to tell: an answer, or room.
    #[inline(always)]
    pub(crate) fn far_expected(&self) -> Option<&P> {
        self.far.as_ref().filter(|_| self.expects_far())
    }

    /// The backend's memory, if it is mapped.
    #[inline(always)]
    pub fn view(&self) -> Option<&Arc<RegionView>> {
        self.near.as_ref()?.view()
    }

    /// Memory and read buffer at once.
    #[inline(always)]
    pub(crate) fn view_and_bytes(&mut self) -> Option<(&RegionView, &mut WordBuffer)> {
        Some((self.near.as_ref()?.view()?, &mut self.bytes))
    }

    /// How to look up at this backend now. One that is to be tried again is tried
    /// here.
    #[inline]
    pub(crate) fn strategy<H: Host<Port = P>>(
        &mut self,
        (carrier, lookups): (Carrier, LookupStrategy),
        host: &mut H,
        topology: &Arc<Topology>,
        now_ns: u64,
    ) -> Strategy {
        let try_at_ns = match self.state {
            State::Near => self.rings_at_ns,
            State::Down { retry_at_ns } | State::Far { retry_at_ns } => retry_at_ns,
        };
        if now_ns >= try_at_ns {
            self.begin_connecting(host, topology);
        }
        match (self.state, carrier) {
            (State::Near, Carrier::Auto) => match &self.near {
                Some(near) if near.view().is_some() => Strategy::TwoReads,
                Some(near) if near.has_scans() => match lookups {
                    LookupStrategy::TwoReads => Strategy::VoteThenRead,
                    LookupStrategy::Rpc => Strategy::Rpc,
                    LookupStrategy::Auto if near.prefers_votes() => Strategy::VoteThenRead,
                    _ => Strategy::Scar,
                },
                Some(_) => Strategy::Message,
                None => Strategy::Rpc,
            },
            (State::Near, Carrier::Message)
                if self.near.as_ref().is_some_and(Port::has_messages) =>
            {
                Strategy::Message
            }
            (State::Down { .. }, _) => Strategy::Down,
            _ => Strategy::Rpc,
        }
    }

    /// Begins to connect, unless that is under way or the connection stands.
    #[cold]
    pub(crate) fn begin_connecting<H: Host<Port = P>>(
        &mut self,
        host: &mut H,
        topology: &Arc<Topology>,
    ) {
        if self.connecting_since_ns.is_none() {
            let now_ns = host.monotonic_ns();
            self.connecting_since_ns = Some(now_ns);
            host.connect(topology, self.number, self.awaits_successor(now_ns));
        }
    }

    /// What was connected is of no use: the next attempt begins at once, within the same
    /// patience of those who wait.
    pub(crate) fn connects_anew<H: Host<Port = P>>(
        &mut self,
        host: &mut H,
        topology: &Arc<Topology>,
    ) {
        self.connecting_since_ns = None;
        self.begin_connecting(host, topology);
    }

    /// It has moved to another process: it is found again in a moment, where it was.
    pub(crate) fn has_moved(&mut self, now_ns: u64) {
        self.successor_by_ns = now_ns + SUCCESSOR_NS;
        self.state = State::Down {
            retry_at_ns: now_ns,
        };
        self.try_again_ns = now_ns;
        self.pause_ns = RETRY_NS_MIN;
    }

    /// What it has moved from still answers what it was sent.
    pub(crate) fn leave(&mut self, now_ns: u64) {
        let owes = std::mem::take(&mut self.near_owes);
        self.leaving = self.near.take().map(|port| Leaving {
            port,
            owes,
            until_ns: now_ns + LEAVING_NS,
        });
    }

    /// Whether the process that it has moved from has something to tell, or never will.
    #[inline(always)]
    pub(crate) fn leaves(&self, now_ns: u64) -> bool {
        let ends = |leaving: &Leaving<P>| leaving.port.is_ready() || now_ns >= leaving.until_ns;
        self.leaving.as_ref().is_some_and(ends)
    }

    /// Whether the process that has taken its place is still to come.
    pub(crate) fn awaits_successor(&self, now_ns: u64) -> bool {
        now_ns < self.successor_by_ns
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting_since_ns.is_some()
    }

    /// When operations that wait for the connection are told that it takes too
    /// long; it goes on being made.
    pub(crate) fn greeting_ends_ns(&self) -> u64 {
        self.connecting_since_ns.map_or(u64::MAX, |since| {
            // A successor that is late is no backend that is away.
            let patience_ends_ns = since.saturating_add(GREETING_NS);
            patience_ends_ns.max(self.successor_by_ns)
        })
    }

    /// They have been told.
    pub(crate) fn greeting_is_slow(&mut self) {
        self.connecting_since_ns = Some(u64::MAX);
    }

    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Whether mapped memory stands, of a backend that lives.
    pub fn stands(&self, now_ns: u64) -> bool {
        self.state == State::Near && self.view().is_some_and(|view| view.lease_alive(now_ns))
    }

    /// Whether what stands reaches the same process as `port`, likewise by an engine.
    pub(crate) fn stands_as_well_as(&self, port: &P) -> bool {
        let is_like = |near: &P| {
            let (known, found) = (near.agreement(), port.agreement());
            near.is_indirect() && known.is_some() && known == found
        };
        port.is_indirect() && self.state == State::Near && self.near.as_ref().is_some_and(is_like)
    }

    /// What was connected has no more to offer than what stands.
    pub(crate) fn stays(&mut self, now_ns: u64) {
        self.connecting_since_ns = None;
        self.is_greeted = false;
        // An engine has none to give.
        let has_all = |near: &P| near.has_messages() || near.is_indirect();
        if !self.near.as_ref().is_some_and(has_all) {
            self.ask_for_rings_later(now_ns);
        }
    }

    /// It was connected to: if it was greeted because it was silent, it is busy.
    pub(crate) fn has_answered_greeting(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.is_greeted) && self.expects_far() {
            self.heard(now_ns);
        }
    }

    fn ask_for_rings_later(&mut self, now_ns: u64) {
        self.rings_at_ns = now_ns + self.next_near_pause();
    }

    fn next_near_pause(&mut self) -> u64 {
        let pause_ns = self.near_pause_ns;
        self.near_pause_ns = (pause_ns * 2).min(self.near_pause_ns_max);
        pause_ns
    }

    /// The best carrier stands.
    pub(crate) fn connected(&mut self, port: P, now_ns: u64, host: &mut impl Host<Port = P>) {
        let partition_count = port.view().map_or(0, |view| view.partition_count());
        self.touches = (0..partition_count)
            .map(|_| TouchBuffer::new(self.touch_sample))
            .collect();
        self.successor_by_ns = 0;
        self.connecting_since_ns = None;
        self.has_answered_greeting(now_ns);
        host.reached(self.number);
        self.pause_ns = RETRY_NS_MIN;
        // One that carries no messages never will.
        let is_best = port.has_messages() || port.is_indirect();
        if port.is_indirect() {
            self.near_pause_ns_max = ENGINE_RETRY_NS_MAX;
        }
        self.near = Some(port);
        self.state = State::Near;
        self.was_lapsed = false;
        if is_best {
            self.near_pause_ns = NEAR_RETRY_NS_MIN;
            self.rings_at_ns = u64::MAX;
            self.why = None;
        } else {
            self.ask_for_rings_later(now_ns);
            self.explain(
                "the backend has no message rings left for this client",
                host,
            );
        }
    }

    /// It could not be had.
    pub(crate) fn not_connected(
        &mut self,
        error: &NotConnected,
        now_ns: u64,
        host: &mut impl Host<Port = P>,
    ) {
        self.connecting_since_ns = None;
        self.try_again_ns = now_ns + TRY_SPACING_NS;
        // Its answer speaks for it once.
        let was_greeted = std::mem::take(&mut self.is_greeted);
        if error.is_down {
            self.set_down(&error.why, now_ns, host);
            return;
        }
        if was_greeted && self.expects_far() {
            self.heard(now_ns);
        }
        self.pause_ns = RETRY_NS_MIN;
        let pause_ns = self.next_near_pause();
        self.near = None;
        self.state = State::Far {
            retry_at_ns: match error.is_final {
                true => u64::MAX,
                false => now_ns + pause_ns,
            },
        };
        self.explain(&error.why, host);
    }

    /// The best carrier is gone, and calls go on: it is tried again in a moment, and
    /// then ever more seldom.
    #[cold]
    pub(crate) fn is_without_near(
        &mut self,
        why: &str,
        now_ns: u64,
        host: &mut impl Host<Port = P>,
    ) {
        self.near = None;
        self.near_owes = 0;
        self.state = State::Far {
            retry_at_ns: now_ns + RETRY_NS_MIN,
        };
        self.explain(why, host);
    }

    /// Notes that the backend does not answer. What it owes is lost: the driver
    /// tells the operations.
    #[cold]
    pub(crate) fn set_down(&mut self, why: &str, now_ns: u64, host: &mut impl Host<Port = P>) {
        host.unreached(self.number, why);
        if !self.is_down() {
            self.lost_ns = Some(now_ns);
        }
        self.near = None;
        self.state = State::Down {
            retry_at_ns: now_ns + self.pause_ns,
        };
        self.pause_ns = (self.pause_ns * 2).min(RETRY_NS_MAX);
    }

    /// Whether it was found down at that time, or shortly before.
    pub(crate) fn was_lost_at(&self, now_ns: u64) -> bool {
        self.lost_ns
            .is_some_and(|lost_ns| now_ns < lost_ns.saturating_add(LOST_NS))
    }

    /// It lacks what was stored under this key; what it has lacked for longest is forgotten
    /// where there is no room.
    #[cold]
    pub(crate) fn misses(&mut self, hash: KeyHash) {
        if self.missed.back() == Some(&hash) {
            return;
        }
        if self.missed.capacity() == 0 {
            self.missed.reserve_exact(MISSED_COUNT_MAX);
        }
        if self.missed.len() == MISSED_COUNT_MAX {
            self.missed.pop_front();
        }
        self.missed.push_back(hash);
    }

    /// The first of what it lacks.
    pub(crate) fn missed(&self) -> Option<KeyHash> {
        self.missed.front().copied()
    }

    /// Whoever repairs it knows of that one.
    pub(crate) fn forget_missed(&mut self) {
        self.missed.pop_front();
    }

    /// Whether it is back, and what it lacks is to be told.
    pub(crate) fn is_behind(&self) -> bool {
        !self.missed.is_empty() && !self.is_down()
    }

    /// A message that was sent.
    pub(crate) fn owes(&mut self, way: Way, now_ns: u64) {
        match way {
            Way::Near => self.owes_near(now_ns),
            Way::Far => self.owes_far(now_ns),
        }
    }

    /// A message or read that the near port will answer.
    #[inline]
    pub(crate) fn owes_near(&mut self, now_ns: u64) {
        if self.near_owes == 0 {
            self.look_at_ns = now_ns + LEASE_LOOK_NS;
            self.was_lapsed = false;
        }
        self.near_owes += 1;
    }

    /// A message waits for room.
    pub(crate) fn waits(&mut self, way: Way, waiter: Waiter, now_ns: u64) {
        if way == Way::Far && !self.expects_far() {
            self.heard(now_ns);
        }
        self.room_mut(way).push(waiter, now_ns);
    }

    /// A call that was begun.
    pub(crate) fn owes_far(&mut self, now_ns: u64) {
        if self.far_owes == 0 {
            self.heard(now_ns);
        }
        self.far_owes += 1;
    }

    /// So many of them have ended.
    pub(crate) fn far_has_answered(&mut self, count: u32, now_ns: u64) {
        self.far_owes = self.far_owes.saturating_sub(count);
        self.heard(now_ns);
        if !self.expects_far() {
            self.silent_at_ns = u64::MAX;
        }
    }

    /// So many of them have ended without an answer, for nobody waits for it any more. That
    /// is nothing that was heard.
    pub(crate) fn far_has_expired(&mut self, count: u32) {
        self.far_owes = self.far_owes.saturating_sub(count);
        if !self.expects_far() {
            self.silent_at_ns = u64::MAX;
        }
    }

    /// Looks whether it answers others, whose calls keep this client's waiting.
    pub(crate) fn look_at_others(&mut self, now_ns: u64) {
        if self.far.as_mut().is_some_and(Port::others_have_moved) {
            self.far_room.has_moved(now_ns);
            self.heard(now_ns);
        }
    }

    /// Whether calls are under way to it, or wait for room.
    #[inline(always)]
    fn expects_far(&self) -> bool {
        self.far_owes > 0 || !self.far_room.is_empty()
    }

    fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.silent_at_ns = first_look_ns(now_ns);
    }

    /// When it is to be looked whether it is silent.
    #[inline]
    pub(crate) fn silent_at_ns(&self) -> u64 {
        self.silent_at_ns
    }

    /// Whether it is, with `len` bytes of values on their way to it, or more of others on
    /// the same connection. One whose lease is alive does not hang, and a pause of this
    /// process is not its silence. One that owes nothing but what it was asked to read is
    /// greeted shortly before.
    pub(crate) fn is_silent<H: Host<Port = P>>(
        &mut self,
        len: u64,
        owes_reads_only: bool,
        now_ns: u64,
        host: &mut H,
        topology: &Arc<Topology>,
    ) -> bool {
        if !self.expects_far() {
            self.silent_at_ns = u64::MAX;
            return false;
        }
        let has_paused = host.running_since_ns() > self.heard_ns;
        if has_paused || self.view().is_some_and(|view| view.lease_alive(now_ns)) {
            self.heard(now_ns);
            return false;
        }
        let shared = self.far.as_ref().map_or(0, Port::len_under_way);
        let len = len.max(shared);
        let patience_ns = SILENCE_NS.saturating_add(SILENCE_NS_PER_BYTE.saturating_mul(len));
        let is_first_look = self.silent_at_ns == first_look_ns(self.heard_ns);
        self.silent_at_ns = self.heard_ns.saturating_add(patience_ns);
        if now_ns >= self.silent_at_ns {
            if !is_first_look {
                return true;
            }
            // Nobody has looked in time, and what is owed now may have been sent just now:
            // others before it had little patience. It has the time of one that was looked at.
            self.heard_ns = now_ns.saturating_sub(SILENCE_NS - GREETED_BEFORE_NS);
            self.silent_at_ns = self.heard_ns.saturating_add(patience_ns);
        }
        if self.silent_at_ns - now_ns > GREETED_BEFORE_NS {
            self.silent_at_ns -= GREETED_BEFORE_NS;
        } else if owes_reads_only {
            self.is_greeted = true;
            self.begin_connecting(host, topology);
        }
        false
    }

    /// It is silent: what its calls still bring belongs to nobody.
    #[cold]
    pub(crate) fn is_not_heard(&mut self) {
        if let Some(mut far) = self.far.take() {
            far.give_up();
        }
        self.far_owes = 0;
        self.silent_at_ns = u64::MAX;
    }

    /// Whether it was found down a moment ago.
    pub(crate) fn was_tried_at(&self, now_ns: u64) -> bool {
        now_ns < self.try_again_ns
    }

    /// Remembers why the carrier in use is not the best one, and says it once.
    fn explain(&mut self, why: &str, host: &mut impl Host<Port = P>) {
        if self.why.as_deref() != Some(why) {
            self.why = Some(why.into());
            host.degraded(self.number, why);
        }
    }

    /// What carries operations to this backend now.
    pub fn status(&self) -> LinkStatus {
        let carrier = match (&self.state, &self.near) {
            (State::Near, Some(near)) if near.is_indirect() => CarrierInUse::Engine,
            (State::Near, Some(near)) if near.has_messages() => CarrierInUse::Shared,
            (State::Near, _) => CarrierInUse::SharedReads,
            (State::Far { .. }, _) => CarrierInUse::Rpc,
            (State::Down { .. }, _) => CarrierInUse::Down,
        };
        LinkStatus {
            backend: self.number,
            carrier,
            why: self.why.clone().filter(|_| carrier != CarrierInUse::Down),
        }
    }

    /// Whether what was read before `coarse_now_ns` may be believed.
    #[inline(always)]
    pub fn lease_alive(&self, coarse_now_ns: u64) -> bool {
        self.view()
            .is_some_and(|view| view.lease_alive(coarse_now_ns + COARSE_LAG_NS))
    }

    /// A look at a backend that owes answers: whether it is to be given up.
    pub(crate) fn has_lapsed_twice(&mut self, now_ns: u64) -> bool {
        let is_lapsed = self.view().is_some_and(|view| !view.lease_alive(now_ns));
        let is_over = is_lapsed && self.was_lapsed;
        self.was_lapsed = is_lapsed;
        is_over
    }

    /// The far port, made at first use.
    pub(crate) fn far<H: Host<Port = P>>(
        &mut self,
        host: &mut H,
        topology: &Arc<Topology>,
    ) -> Result<&mut P, String> {
        if self.far.is_none() {
            self.far = Some(host.caller(topology, self.number)?);
        }
        Ok(self.far.as_mut().expect("it was made above"))
    }

    /// Sees to a port for touches that go by calls.
    pub(crate) fn make_caller_for_touches<H: Host<Port = P>>(
        &mut self,
        host: &mut H,
        topology: &Arc<Topology>,
    ) {
        if self.near.as_ref().is_some_and(|near| !near.has_messages()) {
            // Without it they are lost, as they are on a full ring.
            let _ = self.far(host, topology);
        }
    }

    /// Reports that a hit read this slot.
    #[inline(always)]
    pub(crate) fn touch(&mut self, partition: usize, slot: u32) {
        let Some(view) = self.view() else {
            return;
        };
        let window_id = view.window_id(partition);
        if let Some(batch) = self.touches[partition].touch(window_id, slot) {
            report(&mut self.near, &mut self.far, partition, batch);
        }
    }

    /// The same where the slot is not known; this backend has place `place` in the
    /// key's cohort.
    #[inline(always)]
    pub(crate) fn touch_by_name(&mut self, place: usize, hash: KeyHash) {
        let Some(view) = self.view() else {
            return self.touch_key(place, hash);
        };
        let partition = view.partition(place, hash);
        let (window_id, name) = (view.window_id(partition), view.name(partition, hash));
        if let Some(batch) = self.touches[partition].touch_by_name(window_id, name) {
            report(&mut self.near, &mut self.far, partition, batch);
        }
    }

    /// The same where an engine reads, if one does: this side knows no windows.
    #[cold]
    fn touch_key(&mut self, place: usize, hash: KeyHash) {
        if self.keeps_touch()
            && let Some(near) = self.near.as_mut().filter(|near| near.has_scans())
        {
            near.touch_key(place, hash);
        }
    }

    /// Whether one more touch of a key is reported: one in some.
    pub(crate) fn keeps_touch(&mut self) -> bool {
        self.touch_count = self.touch_count.wrapping_add(1);
        self.touch_count.is_multiple_of(self.touch_sample.max(1))
    }

    /// Whether lookups here are scans of an engine, which report uses themselves.
    pub(crate) fn has_scans(&self) -> bool {
        self.near.as_ref().is_some_and(Port::has_scans)
    }

    /// How long what is asked here takes lately, in nanoseconds; 0 where nobody knows.
    pub(crate) fn answer_ns(&self) -> u64 {
        self.near.as_ref().map_or(0, Port::answer_ns)
    }

    /// How much longer it takes what is asked here now, because others come before it.
    pub(crate) fn backlog_ns(&self) -> u64 {
        self.near.as_ref().map_or(0, Port::backlog_ns)
    }

    /// Before a mutation goes to this partition: touches that should not wait any
    /// longer.
    #[inline]
    pub(crate) fn mutated(&mut self, partition: usize) {
        if let Some(batch) = self.touches.get_mut(partition).and_then(|t| t.mutated()) {
            report(&mut self.near, &mut self.far, partition, batch);
        }
    }

    /// Sends the touches collected so far.
    pub(crate) fn flush_touches(&mut self) {
        if self.near.is_none() {
            return;
        }
        for (partition, touches) in self.touches.iter_mut().enumerate() {
            if let Some(batch) = touches.flush() {
                report(&mut self.near, &mut self.far, partition, batch);
            }
        }
        if let Some(near) = &mut self.near {
            near.flush_touches();
        }
        if let Some(far) = &mut self.far {
            far.flush_touches();
        }
    }
}

/// Touches go by messages, or where there are none by calls. Apart from the hits, of
/// which few fill a batch.
#[cold]
#[inline(never)]
fn report<P: Port>(
    near: &mut Option<P>,
    far: &mut Option<P>,
    partition: usize,
    batch: TouchBatch<'_>,
) {
    let port = match near {
        Some(near) if near.has_messages() => Some(near),
        _ => far.as_mut(),
    };
    if let Some(port) = port {
        port.touch(partition, batch);
    }
}
