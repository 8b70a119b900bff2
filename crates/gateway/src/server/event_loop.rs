//! An event loop: waits, accepts, serves whoever is ready, each its turn.

use super::ahead::{Ahead, Early};
use super::connection::{Connection, Fate};
use super::desk::{Desk, LoopClock};
use super::doors::OpenDoor;
use super::front::LoopObserver;
use super::options::{DoorAddress, Protocol};
use super::shared::{Arrival, TableEntry};
use super::socket::Socket;
use super::tls::TlsStream;
use super::waiting::{Wait, Waiting};
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trefoil_gateway_core::keyspace::{Fault, Keyspace, Ready as _};
use trefoil_gateway_core::session::Session;
use trefoil_gateway_core::world::{Settings, WATCH_EVICTIONS};
use trefoil_sockets::{BATCH_MAX, Batch, Sent};

/// Makes a session for a new connection.
pub(super) type OpenSession<S> = fn(Protocol, &Settings) -> S;

/// Token of the waker.
pub(super) const WAKER: Token = Token(usize::MAX);
/// Tokens of doors go down from here, those of connections up from 0.
const DOOR_FIRST: usize = usize::MAX - 1;
const DOORS_MAX: usize = 1024;
/// Token of the keyspace's descriptor.
const KEYSPACE: Token = Token(DOOR_FIRST - DOORS_MAX);

const EVENTS_MAX: usize = 512;
/// Connections accepted before others are served.
const ACCEPT_MAX: usize = 64;
/// When to try again after the system had no descriptor for a connection.
const ACCEPT_RETRY_NS: u64 = 100_000_000;
/// A round that has taken so long serves nobody else who only has more to do.
const ROUND_NS_MAX: u64 = 250_000;
/// Between two looks for connections that are idle for too long.
const SWEEP_NS: u64 = 500_000_000;
/// Looks for idle connections within the time after which they are closed.
const SWEEPS_PER_TIMEOUT: u64 = 20;
/// Within this a client must have shown that it speaks TLS.
const HANDSHAKE_NS: u64 = 10_000_000_000;
/// Where clients have to authenticate, those that have not may have one in so many of
/// the places: not fewer, for users come as strangers, too, and many at a time.
const STRANGERS_SHARE: usize = 2;
/// Between two lines about strangers that had to go.
const STRANGERS_TOLD_NS: u64 = 60_000_000_000;
/// How long a connection may take to receive its last answers.
const FAREWELL_NS: u64 = 1_000_000_000;
/// Of operations that belong to no connection: those are numbered from 1.
const NO_CONNECTION: u64 = 0;
/// Asked of the scheduler: a round, about. Backends that compute on the same core, for lists
/// or statistics, have turns of milliseconds, and a loop that is woken is to go before them.
const TURN: Duration = Duration::from_micros(100);
/// A pause that ends so soon is not slept through: a sleep takes whole
/// milliseconds.
const SPIN_UNTIL_NS: u64 = 200_000;
/// Until a flush that was put off and has failed is tried again.
const FLUSH_AGAIN_NS: u64 = 1_000_000_000;
/// A loop that is never idle tends its keyspace so often.
const TEND_NS: u64 = 1_000_000_000;
/// A time that is so far is looked at again on the way.
const SLEEP_NS_MAX: u64 = 3_600_000_000_000;
/// Copies for operations that wait may have one in so many of the bytes that a loop's
/// connections may keep.
const HELD_SHARE: usize = 2;
/// While evictions are watched, those are looked for so often that no command of
/// this loop has caused.
const EVICTIONS_NS: u64 = 100_000_000;

/// See the module.
pub(super) struct EventLoop<K, O, S> {
    poll: Poll,
    desk: Desk<K, O>,
    open_session: OpenSession<S>,
    /// The first loop has the doors.
    doors: Vec<OpenDoor>,
    connections: Vec<Option<Box<Connection<S>>>>,
    free: Vec<usize>,
    /// Those whose requests were received early.
    ahead: Ahead,
    /// Whether requests are, in this round.
    looks_ahead: bool,
    /// Those who have more to do, in order.
    queue: VecDeque<usize>,
    /// Those whose operations are pending: number and place.
    parked: HashMap<u64, usize>,
    /// Those whose operations have just come to a result.
    resumed: Vec<usize>,
    /// The flush that was put off is under way, and of this time.
    flushing_ms: Option<u64>,
    /// It has failed, and is tried again then.
    flush_again_at: Option<u64>,
    /// Those with answers held in the outbox.
    held: Vec<usize>,
    /// Whether those are to leave by one call.
    io_uring: bool,
    /// By this, where the system allows it.
    batch: Option<Batch>,
    watchers: Vec<usize>,
    /// Those who have to authenticate, in the order in which they came: number and
    /// place. Some have left, or are known by now.
    strangers: VecDeque<(u64, usize)>,
    /// Strangers that had to go since that was told last, and when it was.
    strangers_gone: u64,
    strangers_told_ns: Option<u64>,
    waiting: Waiting,
    /// Nanoseconds of the monotonic clock, where something is due.
    accept_at: Option<u64>,
    sweep_at: Option<u64>,
    stop_at: Option<u64>,
    tended_at: u64,
    /// Something was done since the keyspace was tended.
    is_untended: bool,
    /// Somebody watched evictions in the last round.
    tells_evictions: bool,
    /// What it knows of `Shared::unwanted_count`.
    unwanted_count: u64,
}

impl<K: Keyspace, O: LoopObserver, S: Session> EventLoop<K, O, S> {
    pub(super) fn new(
        poll: Poll,
        mut desk: Desk<K, O>,
        open_session: OpenSession<S>,
        doors: Vec<OpenDoor>,
        spin: Duration,
        io_uring: bool,
    ) -> io::Result<Self> {
        let (shared, own) = (Arc::clone(&desk.shared), desk.index);
        desk.keyspace
            .limit_held(desk.chosen.limits.buffer_bytes_max / HELD_SHARE);
        desk.keyspace
            .attach(Arc::new(move || shared.loops[own].wake()));
        if let Some(descriptor) = desk.keyspace.descriptor() {
            let fd = descriptor.as_raw_fd();
            poll.registry()
                .register(&mut SourceFd(&fd), KEYSPACE, Interest::READABLE)?;
        }
        for (index, door) in doors.iter().enumerate().take(DOORS_MAX) {
            let fd = door.as_fd().as_raw_fd();
            let token = Token(DOOR_FIRST - index);
            poll.registry()
                .register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        }
        Ok(EventLoop {
            poll,
            desk,
            open_session,
            doors,
            connections: Vec::new(),
            free: Vec::new(),
            ahead: Ahead::default(),
            looks_ahead: false,
            queue: VecDeque::new(),
            parked: HashMap::new(),
            resumed: Vec::new(),
            flushing_ms: None,
            flush_again_at: None,
            held: Vec::new(),
            io_uring,
            batch: None,
            watchers: Vec::new(),
            strangers: VecDeque::new(),
            strangers_gone: 0,
            strangers_told_ns: None,
            waiting: Waiting::new(spin.as_nanos() as u64),
            accept_at: None,
            sweep_at: None,
            stop_at: None,
            tended_at: 0,
            is_untended: false,
            tells_evictions: false,
            unwanted_count: 0,
        })
    }

    /// Serves until told to stop.
    pub(super) fn run(mut self) {
        trefoil_region::take_short_turns(TURN);
        self.begin_batches();
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            let now_ns = self.desk.clock.last().monotonic_ns;
            if self.is_finished(now_ns) {
                return;
            }
            let timeout = self.timeout(now_ns);
            let is_polling = timeout == Some(Duration::ZERO) && self.queue.is_empty();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "an event loop cannot wait for its sockets and ends");
                    return;
                }
            }
            // The time of all that is done in this round.
            let now_ns = self.desk.clock.look().monotonic_ns;
            if self.desk.settle_choice() {
                self.choice_changed(now_ns);
            }
            if self.desk.shared.unwanted_count() != self.unwanted_count {
                self.end_unwanted();
            }
            self.resume_parked(now_ns);
            if events.is_empty() && self.queue.is_empty() {
                self.waiting.found_nothing(now_ns);
                // Beside a stranger something was due: to give way would be to be late.
                if is_polling && !self.waiting.is_beside_stranger() {
                    // Whoever is to ask next may need this core to do it.
                    let before_ns = LoopClock::now_ns();
                    std::thread::yield_now();
                    // What is due is reckoned by this one from here on.
                    let now_ns = self.desk.clock.look().monotonic_ns;
                    self.waiting.gave_way(now_ns.saturating_sub(before_ns));
                }
            } else {
                self.waiting.found(now_ns);
                self.desk.observer.round_began();
                self.is_untended = true;
                let are_several = events.iter().nth(1).is_some();
                self.desk.outbox.open(are_several);
                self.looks_ahead = are_several && self.desk.keyspace.foresees();
                for event in &events {
                    self.handle(event);
                }
                while self.serve_early() {}
                self.serve_queue();
                self.send_held();
                self.desk.outbox.open(false);
                self.desk.observer.round_ended();
            }
            self.do_what_is_due();
        }
    }

    /// For this thread, and no other.
    fn begin_batches(&mut self) {
        if !self.io_uring {
            return;
        }
        match Batch::new() {
            Ok(batch) => self.batch = Some(batch),
            Err(error) if self.desk.index == 0 => {
                tracing::info!(%error, "no io_uring: answers are sent one by one");
            }
            Err(_) => {}
        }
    }

    fn timeout(&mut self, now_ns: u64) -> Option<Duration> {
        // Also while connections wait to be accepted, of which nothing will tell.
        let accepts = self.accept_at.is_some_and(|at| at <= now_ns);
        if accepts || !self.queue.is_empty() {
            return Some(Duration::ZERO);
        }
        match self.waiting.next(now_ns) {
            // Who polls beside a thread that computes, on the same core, gives its time
            // away with each look, and is behind it when somebody asks.
            Wait::Poll if !self.desk.scripts.is_busy() => return Some(Duration::ZERO),
            Wait::Poll | Wait::Sleep => {}
        }
        if self.is_untended {
            self.tend(now_ns);
        }
        let pending_at = self.desk.keyspace.due_ns();
        let spin_ns = match self.waiting.is_beside_stranger() {
            // He has the core for longer with each look.
            true => 0,
            false => SPIN_UNTIL_NS,
        };
        if pending_at.is_some_and(|at| at <= now_ns + spin_ns) {
            return Some(Duration::ZERO);
        }
        let evictions_at = self.tells_evictions.then_some(now_ns + EVICTIONS_NS);
        if !self.desk.keyspace.arm() {
            return Some(Duration::ZERO);
        }
        let due = [
            self.accept_at,
            self.sweep_at,
            self.stop_at,
            self.flush_at(),
            pending_at,
            evictions_at,
        ];
        let due = due.into_iter().flatten().min()?;
        // Rounded up, or the loop would be woken a moment too early.
        let wait_ns = due.saturating_sub(now_ns).min(SLEEP_NS_MAX);
        let wait_ns = wait_ns.next_multiple_of(1_000_000);
        Some(Duration::from_nanos(wait_ns.max(1_000_000)))
    }

    fn handle(&mut self, event: &Event) {
        match event.token() {
            WAKER => {
                for arrival in self.handle_of_self().take_arrivals() {
                    self.welcome(arrival);
                }
            }
            // Its results were taken when this round began.
            KEYSPACE => {}
            Token(token) if token > DOOR_FIRST - DOORS_MAX => self.accept(DOOR_FIRST - token),
            Token(index) => {
                let Some(Some(connection)) = self.connections.get_mut(index) else {
                    return;
                };
                let half_closed = event.is_read_closed() || event.is_error();
                connection.notice(event.is_readable(), half_closed);
                if connection.is_parked() && event.is_error() {
                    // Nobody waits for the result any more.
                    self.leave(index);
                } else if connection.has_output() || connection.is_queued {
                    // A long answer, or much work, goes on behind those who ask for little,
                    // and an event gives nobody a further turn.
                    if !std::mem::replace(&mut connection.is_queued, true) {
                        self.queue.push_back(index);
                    }
                } else if self.looks_ahead && connection.is_simple() {
                    self.look_ahead(index);
                } else {
                    self.serve(index);
                }
            }
        }
    }

    /// Receives a connection's request, to be executed a little later.
    fn look_ahead(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        let mut input = self.ahead.room();
        if let Some(key) = connection.receive_early(&mut input) {
            self.desk.keyspace.foresee(key);
        }
        let number = connection.number();
        self.ahead.push(Early {
            index,
            number,
            input,
        });
        if self.ahead.is_full() {
            self.serve_early();
        }
    }

    /// Serves the first of those whose requests are here; whether there was one.
    fn serve_early(&mut self) -> bool {
        let Some(mut early) = self.ahead.pop() else {
            return false;
        };
        let connection = self.connections.get(early.index);
        // It may have had to make room meanwhile.
        if let Some(Some(connection)) = connection
            && connection.number() == early.number
        {
            std::mem::swap(&mut self.desk.input, &mut early.input);
            self.serve(early.index);
        }
        self.ahead.give_back(early.input);
        true
    }

    fn handle_of_self(&self) -> &super::shared::LoopHandle {
        &self.desk.shared.loops[self.desk.index]
    }

    /// Lets those go on whose operations have a result.
    fn resume_parked(&mut self, now_ns: u64) {
        // Also when nobody is parked: a result whose connection has gone has to be
        // taken, or the next one would wake nobody.
        let EventLoop {
            desk,
            connections,
            parked,
            resumed,
            queue,
            ..
        } = self;
        let mut flush_goes_on = false;
        let mut resume = |number: u64| {
            let Some(index) = parked.remove(&number) else {
                return false;
            };
            if let Some(Some(connection)) = connections.get_mut(index) {
                connection.resume(now_ns);
                resumed.push(index);
                if !std::mem::replace(&mut connection.is_queued, true) {
                    queue.push_back(index);
                }
            }
            true
        };
        desk.keyspace.poll(now_ns, &mut |number| match number {
            NO_CONNECTION => flush_goes_on = true,
            number => {
                resume(number);
            }
        });
        desk.scripts.poll(&mut resume);
        if !self.resumed.is_empty() {
            // Results take room until they are answered.
            let mut resumed = std::mem::take(&mut self.resumed);
            for index in resumed.drain(..) {
                self.recount(index);
            }
            self.resumed = resumed;
            if self.desk.excess() > 0 {
                self.shed();
            }
        }
        if flush_goes_on {
            self.go_on_flushing(now_ns);
        }
    }

    /// Counts what is kept for a connection.
    fn recount(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        let kept = connection.kept() + self.desk.keyspace.held(connection.number());
        self.desk.kept = self.desk.kept - connection.counted + kept;
        connection.counted = kept;
    }

    /// The operator has chosen other limits.
    fn choice_changed(&mut self, now_ns: u64) {
        let buffer_bytes_max = self.desk.chosen.limits.buffer_bytes_max;
        let held_max = buffer_bytes_max / HELD_SHARE;
        self.desk.keyspace.limit_held(held_max);
        if self.desk.chosen.limits.idle_timeout.is_some() {
            self.sweep_at = Some(self.sweep_at.map_or(now_ns, |at| at.min(now_ns)));
        }
        if self.desk.excess() > 0 {
            self.shed();
        }
    }

    /// One turn for each of those who had more to do.
    fn serve_queue(&mut self) {
        let end_ns = self.desk.clock.last().monotonic_ns + ROUND_NS_MAX;
        for turn in 0..self.queue.len() {
            // Those who were ready first go on in the next round: behind others who
            // have become ready meanwhile, and ask for little.
            if turn > 0 && LoopClock::now_ns() > end_ns {
                return;
            }
            let Some(index) = self.queue.pop_front() else {
                return;
            };
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                connection.is_queued = false;
                self.serve(index);
            }
        }
    }

    fn serve(&mut self, index: usize) {
        let found = self.connections.get(index).and_then(Option::as_deref);
        if found.is_some_and(Connection::is_held) {
            // What it is answered now comes after that.
            self.send_held();
        }
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        let watched = connection.watches;
        self.desk.observer.served();
        let fate = connection.turn(&mut self.desk);
        if connection.is_held() {
            self.held.push(index);
        }
        if connection.is_parked() {
            self.parked.insert(connection.number(), index);
        }
        let watches = connection.watches;
        if fate == Fate::Again && !connection.is_queued {
            connection.is_queued = true;
            self.queue.push_back(index);
        }
        if watches != watched {
            self.watchers.retain(|watcher| *watcher != index);
            if watches != 0 {
                self.watchers.push(index);
            }
            self.want_lines();
        }
        self.settle(index, fate);
        if self.desk.outbox.is_full() {
            self.send_held();
        }
    }

    /// Sends the answers that are held in the outbox.
    fn send_held(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        let all_sent = self.send_together(&held);
        for (place, index) in held.drain(..).enumerate() {
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                let sent = all_sent.get(place).copied().flatten();
                let fate = connection.send_held(&mut self.desk, sent);
                self.settle(index, fate);
            }
        }
        self.held = held;
        self.desk.outbox.empty();
    }

    /// Sends held answers by one call, where that is possible and saves something.
    fn send_together(&mut self, held: &[usize]) -> [Sent; BATCH_MAX] {
        let Some(batch) = self.batch.as_mut().filter(|_| held.len() > 1) else {
            return [None; BATCH_MAX];
        };
        let sent = batch.send(held.iter().map(|index| {
            let connection = self.connections.get(*index)?.as_deref()?;
            connection.held_message(&self.desk.outbox)
        }));
        let count = sent.iter().filter(|sent| sent.is_some()).count();
        self.desk.observer.left_together(count);
        if batch.is_broken() {
            tracing::warn!("io_uring does not work any more: answers are sent one by one");
            self.batch = None;
        }
        sent
    }

    /// Whether this connection has yet to show who it is.
    fn is_stranger(&self, (number, index): (u64, usize)) -> bool {
        let connection = self.connections.get(index).and_then(Option::as_deref);
        connection.is_some_and(|c| c.number() == number && !c.is_authenticated())
    }

    /// One more connection that has to authenticate. The one goes that has been
    /// asked to for longest if there are too many: they keep no users out.
    fn stranger_came(&mut self, number: u64, index: usize) {
        let places = self.desk.chosen.limits.connections_max / STRANGERS_SHARE;
        let count_max = (places / self.desk.shared.loops.len()).max(1);
        if self.strangers.len() >= count_max {
            let mut strangers = std::mem::take(&mut self.strangers);
            strangers.retain(|stranger| self.is_stranger(*stranger));
            self.strangers = strangers;
        }
        while self.strangers.len() >= count_max {
            self.end_oldest_stranger();
        }
        self.strangers.push_back((number, index));
    }

    /// Ends the connection that has been asked to authenticate for longest, if there
    /// is one.
    #[cold]
    fn end_oldest_stranger(&mut self) {
        while let Some(stranger) = self.strangers.pop_front() {
            if self.is_stranger(stranger) {
                return self.end_stranger(stranger.1);
            }
        }
    }

    #[cold]
    fn end_stranger(&mut self, index: usize) {
        self.strangers_gone += 1;
        self.desk.observer.connection_overflowed();
        self.end(index);
        let now_ns = self.desk.clock.last().monotonic_ns;
        let told_ns = self.strangers_told_ns;
        if told_ns.is_none_or(|told| now_ns.saturating_sub(told) >= STRANGERS_TOLD_NS) {
            self.strangers_told_ns = Some(now_ns);
            tracing::warn!(
                count = self.strangers_gone,
                "closed connections that had not authenticated: there were too many, or buffers were short"
            );
            self.strangers_gone = 0;
        }
    }

    /// Ends connections that have yet to authenticate and keep something, the oldest
    /// first, until all keep no more than they may.
    #[cold]
    fn shed_strangers(&mut self) {
        let mut strangers = std::mem::take(&mut self.strangers);
        strangers.retain(|stranger| {
            if !self.is_stranger(*stranger) {
                return false;
            }
            let kept = self.connections[stranger.1]
                .as_ref()
                .map_or(0, |c| c.counted);
            let goes = self.desk.excess() > 0 && kept > 0;
            if goes {
                self.end_stranger(stranger.1);
            }
            !goes
        });
        self.strangers = strangers;
    }

    /// Closes those who have yet to authenticate and keep something, then those that
    /// keep more than their share and have stood still for longest, until all keep no
    /// more than they may: whoever asks next is not to blame. One whose request can be
    /// refused lives on.
    #[cold]
    fn shed(&mut self) {
        self.shed_strangers();
        while self.desk.excess() > 0 {
            let Some(index) = self.keeps_too_much() else {
                return;
            };
            let kept = |own: &Self| own.connections[index].as_ref().map_or(0, |c| c.counted);
            let before = kept(self);
            if self.refuse(index) && kept(self) < before {
                continue;
            }
            tracing::warn!(
                connection = self.connections[index].as_ref().map_or(0, |c| c.number()),
                kept = before,
                "closed: it keeps more than its share, has stood still for longest, and all together reach the limit on buffers"
            );
            self.desk.observer.connection_overflowed();
            self.leave(index);
            if kept(self) >= before {
                // It goes on by itself, but not at any price.
                self.end(index);
            }
        }
    }

    /// Of those that keep more than their share, the one that has stood still for longest.
    fn keeps_too_much(&self) -> Option<usize> {
        let all = self.connections.iter().enumerate();
        let all = all.filter_map(|(index, connection)| Some((index, connection.as_deref()?)));
        let keeping = all.filter(|(_, connection)| connection.counted > 0);
        let count = keeping.clone().count().max(1);
        let share = self.desk.chosen.limits.buffer_bytes_max / count;
        let by_progress = |(_, connection): &(usize, &Connection<S>)| {
            let counted = std::cmp::Reverse(connection.counted);
            (connection.progress_ns(), counted)
        };
        // What holds keys comes to its end first: others would see a part of it.
        keeping
            .filter(|(_, connection)| connection.counted > share && !connection.is_holding())
            .min_by_key(by_progress)
            .map(|(index, _)| index)
    }

    /// Refuses the request that is coming on a connection; `false` if that cannot be.
    fn refuse(&mut self, index: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return false;
        };
        if !connection.refuse_unfinished() {
            return false;
        }
        let number = connection.number();
        if !std::mem::replace(&mut connection.is_queued, true) {
            self.queue.push_back(index);
        }
        self.recount(index);
        tracing::warn!(
            connection = number,
            "refused a value that was coming: it came too slowly, or there is no room for it"
        );
        true
    }

    /// Ends connections that somebody wants to end.
    #[cold]
    fn end_unwanted(&mut self) {
        self.unwanted_count = self.desk.shared.unwanted_count();
        for index in 0..self.connections.len() {
            let connection = self.connections[index].as_deref();
            if connection.is_some_and(Connection::is_unwanted) {
                self.leave(index);
            }
        }
    }

    /// The client of a connection has gone: it ends, once it is through with what its
    /// session has to do as a whole.
    fn leave(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        if !connection.abandon() {
            return self.end(index);
        }
        if !connection.is_parked() && !std::mem::replace(&mut connection.is_queued, true) {
            self.queue.push_back(index);
        }
        self.recount(index);
    }

    /// Sees to what a turn has left a connection in.
    fn settle(&mut self, index: usize, fate: Fate) {
        self.recount(index);
        let Some(Some(connection)) = self.connections.get(index) else {
            return;
        };
        let (number, kept) = (connection.number(), connection.counted);
        if connection.is_uploading() && self.desk.chosen.upload_rate_min > 0 {
            let soon = self.desk.clock.last().monotonic_ns + SWEEP_NS;
            self.sweep_at = Some(self.sweep_at.map_or(soon, |at| at.min(soon)));
        }
        match fate {
            Fate::Wait | Fate::Again => {}
            Fate::Blocked => self.arm(index),
            Fate::Ended => self.leave(index),
            Fate::NoRoom if self.refuse(index) => {}
            Fate::NoRoom | Fate::Overflow => {
                tracing::warn!(
                    connection = number,
                    kept,
                    "closed: it would take more memory than one connection may"
                );
                self.desk.observer.connection_overflowed();
                self.leave(index);
            }
        }
        if self.desk.excess() > 0 {
            self.shed();
        }
    }

    /// Has the event queue tell when the socket takes more. Connections begin
    /// without that: Unix sockets would tell with every answer that is read.
    fn arm(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        if connection.is_armed {
            return;
        }
        connection.is_armed = true;
        let fd = connection.raw_fd();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        if let Err(error) = registry.reregister(&mut SourceFd(&fd), Token(index), interest) {
            tracing::error!(%error, "cannot watch a connection");
            self.end(index);
        }
    }

    fn accept(&mut self, door: usize) {
        for _ in 0..ACCEPT_MAX {
            let Some(open) = self.doors.get(door) else {
                return;
            };
            match open.accept() {
                Ok(fd) => self.admit(door, fd),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // One that was gone before it was accepted.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; trying again soon");
                    let now_ns = self.desk.clock.last().monotonic_ns;
                    self.accept_at = Some(now_ns + ACCEPT_RETRY_NS);
                    return;
                }
            }
        }
        // There may be more, of which nothing will tell: in the next round, behind others.
        self.accept_at = Some(self.desk.clock.last().monotonic_ns);
    }

    fn admit(&mut self, door: usize, fd: OwnedFd) {
        let shared = Arc::clone(&self.desk.shared);
        let door = &self.doors[door];
        let Some(number) = shared.admit() else {
            self.desk.observer.connection_refused();
            if door.tls.is_none() {
                let _ = rustix::net::send(
                    &fd,
                    too_many(door.protocol),
                    rustix::net::SendFlags::NOSIGNAL,
                );
            }
            return;
        };
        let config = door.tls.as_ref().map(|tls| tls.config());
        let tls = match config.as_ref().map(TlsStream::new).transpose() {
            Ok(tls) => tls.map(Box::new),
            Err(error) => {
                tracing::error!(%error, "cannot begin TLS");
                shared.forget();
                return;
            }
        };
        let entry = Arc::new(TableEntry {
            fd: fd.as_raw_fd(),
            peer: peer_of(&fd, &door.address),
            door: table_name(&door.address),
            own_address: own_address_of(&fd, &door.address),
            accepted_s: (self.desk.clock.last().monotonic_ns / 1_000_000_000) as u32,
            is_unwanted: false.into(),
            used_s: ((self.desk.clock.last().monotonic_ns / 1_000_000_000) as u32).into(),
            said: Default::default(),
        });
        let arrival = Arrival {
            socket: Socket::new(fd, tls),
            protocol: door.protocol,
            number,
            entry: Arc::clone(&entry),
        };
        shared.table.insert(number, entry);
        let target = shared.least_busy();
        let handle = &shared.loops[target];
        handle.connection_count.fetch_add(1, Ordering::Relaxed);
        if target == self.desk.index {
            self.welcome(arrival);
        } else {
            handle.send(arrival);
        }
    }

    /// Takes a connection in.
    fn welcome(&mut self, arrival: Arrival) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let now_ns = self.desk.clock.last().monotonic_ns;
        let session = (self.open_session)(arrival.protocol, &self.desk.chosen.settings);
        let Arrival {
            socket,
            number,
            entry,
            protocol,
        } = arrival;
        self.desk.observer.connection_opened(protocol);
        if self.desk.chosen.settings.authentication {
            self.stranger_came(number, index);
        }
        let connection = Connection::new(socket, session, number, entry, now_ns);
        let fd = connection.raw_fd();
        let needs_sweep = connection.is_handshaking() || self.desk.chosen.settings.authentication;
        self.connections[index] = Some(Box::new(connection));
        let registry = self.poll.registry();
        if let Err(error) = registry.register(&mut SourceFd(&fd), Token(index), Interest::READABLE)
        {
            tracing::error!(%error, "cannot watch a connection");
            self.end(index);
        }
        // It may have been ended on its way here.
        let arrived = self.connections[index].as_ref();
        if arrived.is_some_and(|connection| connection.is_unwanted()) {
            self.end(index);
        }
        if needs_sweep || self.desk.chosen.limits.idle_timeout.is_some() {
            let soon = now_ns + SWEEP_NS;
            self.sweep_at = Some(self.sweep_at.map_or(soon, |at| at.min(soon)));
        }
    }

    fn end(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.desk.kept -= connection.counted;
        self.parked.remove(&connection.number());
        self.desk.keyspace.forget(connection.number());
        self.desk.scripts.forget(connection.number());
        self.desk.observer.connection_closed();
        self.desk.shared.leave(self.desk.index, connection.number());
        if connection.watches != 0 {
            self.watchers.retain(|watcher| *watcher != index);
            self.want_lines();
        }
        if connection.is_watcher {
            self.desk.shared.hub.dismiss();
        }
        connection.close(&mut self.desk);
        self.free.push(index);
    }

    fn want_lines(&self) {
        let each = |index: &usize| self.connections[*index].as_ref().map_or(0, |c| c.watches);
        let kinds = self.watchers.iter().map(each).fold(0, |a, b| a | b);
        self.desk.shared.hub.want(self.desk.index, kinds);
    }

    fn do_what_is_due(&mut self) {
        let now = self.desk.clock.last();
        let now_ns = now.monotonic_ns;
        let is_due = |at: Option<u64>| at.is_some_and(|at| at <= now_ns);
        if self.desk.shared.hub.kinds() & WATCH_EVICTIONS != 0 || self.tells_evictions {
            self.tell_evictions();
        }
        if self.desk.shared.hub.mailbox(self.desk.index).is_wanted() {
            self.deliver_lines();
        }
        if is_due(self.accept_at) {
            self.accept_at = None;
            for door in 0..self.doors.len() {
                self.accept(door);
            }
        }
        if is_due(self.sweep_at) {
            self.sweep(now_ns);
        }
        if is_due(self.flush_at()) {
            self.flush(now.unix_ms);
        }
        if self.is_untended && now_ns.saturating_sub(self.tended_at) >= TEND_NS {
            self.tend(now_ns);
        }
    }

    fn tend(&mut self, now_ns: u64) {
        self.is_untended = false;
        self.tended_at = now_ns;
        self.desk.keyspace.tend();
    }

    /// Makes lines of what was evicted, by this loop's commands or by anybody,
    /// while somebody watches.
    fn tell_evictions(&mut self) {
        let Desk {
            keyspace,
            shared,
            clock,
            index: own,
            ..
        } = &mut self.desk;
        let is_wanted = shared.hub.kinds() & WATCH_EVICTIONS != 0;
        self.tells_evictions = is_wanted;
        // Another loop may have taken the last watcher for gone just now.
        keyspace.watch_evictions(is_wanted);
        let now_ms = clock.last().unix_ms;
        let mut posted = |index: usize| {
            if index != *own {
                shared.loops[index].wake();
            }
        };
        let lost = keyspace.take_evicted(&mut |evicted| {
            shared.hub.publish_evicted(evicted, now_ms, &mut posted);
        });
        shared.hub.dropped(WATCH_EVICTIONS, lost);
    }

    fn deliver_lines(&mut self) {
        let mut lines = Vec::new();
        let hub = &self.desk.shared.hub;
        let dropped = hub.mailbox(self.desk.index).take(&mut lines);
        if lines.is_empty() && dropped == 0 {
            return;
        }
        for index in self.watchers.clone() {
            let Some(Some(connection)) = self.connections.get_mut(index) else {
                continue;
            };
            connection.skip_lines(dropped);
            for line in &lines {
                if line.kinds & connection.watches != 0 {
                    connection.push_line(&line.text);
                }
            }
            self.serve(index);
        }
    }

    /// Ends those who said nothing for too long.
    fn sweep(&mut self, now_ns: u64) {
        let limits = self.desk.chosen.limits;
        let idle_ns = limits.idle_timeout;
        let idle_ns = idle_ns.map_or(u64::MAX, |idle| idle.as_nanos() as u64);
        let has_users = self.desk.chosen.settings.authentication;
        let stranger_ns = limits.authentication_timeout.as_nanos() as u64;
        let rate_min = self.desk.chosen.upload_rate_min;
        let mut is_soon = false;
        let mut is_needed = idle_ns != u64::MAX && self.connections.len() > self.free.len();
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else {
                continue;
            };
            let is_uploading = rate_min > 0 && connection.is_uploading();
            // Of one that is not, too: what it sends next begins anew.
            if rate_min > 0 && connection.is_too_slow(now_ns, rate_min) {
                if !self.refuse(index) {
                    self.desk.observer.connection_timed_out();
                    self.leave(index);
                }
                continue;
            }
            let idle = now_ns.saturating_sub(connection.used_ns);
            let is_handshaking = connection.is_handshaking();
            let is_stranger = has_users && !connection.is_authenticated();
            let age = now_ns.saturating_sub(connection.accepted_ns);
            // Who watches, or waits for an answer, is silent by nature.
            let is_silent = connection.watches == 0 && !connection.is_parked();
            let is_idle = idle >= idle_ns && is_silent;
            let is_late =
                (is_handshaking && age >= HANDSHAKE_NS) || (is_stranger && age >= stranger_ns);
            if is_idle || is_late {
                self.desk.observer.connection_timed_out();
                self.leave(index);
            } else {
                is_soon |= is_handshaking || is_stranger || is_uploading;
            }
        }
        let interval_ns = match is_soon {
            true => SWEEP_NS.min(stranger_ns / 2),
            false => SWEEP_NS.max(idle_ns / SWEEPS_PER_TIMEOUT),
        };
        is_needed |= is_soon;
        self.sweep_at = is_needed.then_some(now_ns + interval_ns.min(idle_ns / 2));
    }

    /// When everything is to be flushed, on the monotonic clock.
    fn flush_at(&self) -> Option<u64> {
        let at_ms = self.desk.shared.flush_at_ms.load(Ordering::Relaxed);
        if at_ms == 0 || self.desk.index != 0 {
            return None;
        }
        let now = self.desk.clock.last();
        let wait_ms = at_ms.saturating_sub(now.unix_ms);
        let wait_ns = wait_ms.saturating_mul(1_000_000);
        let at_ns = now.monotonic_ns.saturating_add(wait_ns);
        Some(at_ns.max(self.flush_again_at.unwrap_or(0)))
    }

    fn flush(&mut self, now_ms: u64) {
        // Another connection may have put it off, or flushed by now.
        let pending = &self.desk.shared.flush_at_ms;
        let at_ms = pending.load(Ordering::Relaxed);
        let is_due = at_ms != 0 && at_ms <= now_ms && self.flushing_ms.is_none();
        let relaxed = Ordering::Relaxed;
        if !is_due
            || pending
                .compare_exchange(at_ms, 0, relaxed, relaxed)
                .is_err()
        {
            return;
        }
        self.flushing_ms = Some(at_ms);
        self.flush_again_at = None;
        self.go_on_flushing(self.desk.clock.last().monotonic_ns);
    }

    /// Flushes what was put off, as a request that is nobody's.
    fn go_on_flushing(&mut self, now_ns: u64) {
        let Some(at_ms) = self.flushing_ms else {
            return;
        };
        let keyspace = &mut self.desk.keyspace;
        keyspace.enter(NO_CONNECTION, now_ns);
        let flushed = keyspace.flush(at_ms).ready();
        if flushed.is_ok() {
            keyspace.conclude();
            self.flushing_ms = None;
        }
        keyspace.leave();
        if let Ok(Err(fault)) = flushed {
            if matches!(fault, Fault::Rejected(_) | Fault::Unsupported(_)) {
                tracing::error!(%fault, "the flush that was put off has failed");
                return;
            }
            tracing::error!(%fault, "the flush that was put off has failed, and is tried again");
            self.flush_again_at = Some(now_ns + FLUSH_AGAIN_NS);
            // Unless another one has taken its place.
            let relaxed = Ordering::Relaxed;
            let pending = &self.desk.shared.flush_at_ms;
            let _ = pending.compare_exchange(0, at_ms, relaxed, relaxed);
        }
    }

    /// Whether all is over: told to stop, and the last answers have left, or
    /// have had their time.
    fn is_finished(&mut self, now_ns: u64) -> bool {
        if !self.desk.shared.is_stopping() {
            return false;
        }
        let stop_at = *self.stop_at.get_or_insert(now_ns + FAREWELL_NS);
        self.doors.clear();
        self.accept_at = None;
        for index in 0..self.connections.len() {
            if let Some(connection) = &self.connections[index]
                && (now_ns >= stop_at || !connection.is_owed())
            {
                self.end(index);
            }
        }
        if self.connections.len() > self.free.len() {
            return false;
        }
        self.desk.keyspace.tend();
        true
    }
}

fn too_many(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Memcached => b"ERROR Too many open connections\r\n",
        Protocol::Redis => b"-ERR max number of clients reached\r\n",
    }
}

fn peer_of(fd: &OwnedFd, door: &DoorAddress) -> String {
    match door {
        DoorAddress::Unix(_) => "unix:".to_owned(),
        DoorAddress::Tcp(_) => {
            let address = rustix::net::getpeername(fd).ok();
            let address = address
                .flatten()
                .and_then(|a| std::net::SocketAddr::try_from(a).ok());
            address.map_or_else(String::new, |address| format!("tcp:{address}"))
        }
    }
}

fn own_address_of(fd: &OwnedFd, door: &DoorAddress) -> String {
    let address = rustix::net::getsockname(fd).ok();
    let address = address.and_then(|a| std::net::SocketAddr::try_from(a).ok());
    match (door, address) {
        (DoorAddress::Tcp(_), Some(address)) => format!("tcp:{address}"),
        _ => table_name(door),
    }
}

fn table_name(door: &DoorAddress) -> String {
    match door {
        DoorAddress::Tcp(address) => format!("tcp:{address}"),
        DoorAddress::Unix(path) => format!("unix:{}", path.display()),
    }
}
