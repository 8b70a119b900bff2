//! One connection: bytes in, a session's answers out.
//!
//! Ordinarily a connection keeps nothing between turns: a request is read into
//! the desk's buffer, executed from there, answered from the desk's output
//! buffer. It keeps only what cannot be done now: a request of which the rest
//! has yet to come, and answers that the socket does not take. While answers
//! wait, nothing more is executed. What the client asks for meanwhile is kept, up to
//! a bound: one may write a long pipeline before it reads the first answer. Beyond
//! that, nothing more is read, and the client's kernel stops the client.

use super::desk::{Desk, INPUT_LEN, Input, UnderWay};
use super::front::{LoopObserver, Orders};
use super::intake::Intake;
use super::outbox::Outbox;
use super::pace::Pace;
use super::shared::TableEntry;
use super::socket::{Received, Socket};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trefoil_gateway_core::keyspace::Keyspace;
use trefoil_gateway_core::session::{Session, Wants};
use trefoil_layout::copied;
use trefoil_sockets::{Message, Sent};

/// Bytes read and written, or looked at by the keyspace, in one turn, after which others are served.
pub(super) const TURN_WORK_MAX: usize = 64 << 10;
/// What a drive counts in that at least, so that no turn is endless.
const DRIVE_WORK: usize = 512;
/// Bytes that one system call reads or writes at most: they are copied at a stretch.
const CALL_LEN_MAX: usize = 64 << 10;
/// Answers up to this length leave by one call: those of most turns.
const FIRST_CALL_LEN_MAX: usize = 256 << 10;
/// A remainder up to this is copied in front of what is read next; a longer one
/// gets a buffer that is read into.
const REMAINDER_COPIED_MAX: usize = 4 << 10;
/// An announced value is given room as it comes, so that an announcement alone
/// costs next to nothing.
const ROOM_FIRST: usize = 64 << 10;
/// A request may be so many times as long as the longest value: commands that
/// store several. Sessions have their own limits; this one keeps a session's
/// mistake from taking all memory.
const REQUEST_VALUES_MAX: usize = 2;
/// And this much more: keys, commands.
const REQUEST_SLACK: usize = 1 << 20;
/// Bytes of input, and of output, that a client has for showing who it is: a name,
/// a password, and the commands around them.
const STRANGER_LEN_MAX: usize = 32 << 10;
/// An unfinished request that keeps so many bytes has to come on.
const UPLOAD_LEN_MIN: usize = ROOM_FIRST;
/// Requests that come while answers wait may have one in so many of the bytes that a
/// loop's connections may keep, and are taken only while these keep less than half:
/// such requests are no reason to close anybody.
const AHEAD_SHARE: usize = 4;
/// Log lines that wait for a slow watcher, in bytes.
const WATCH_LEN_MAX: usize = 256 << 10;

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It waits for input.
    Wait,
    /// It waits until the socket takes more.
    Blocked,
    /// There is more to do at once, after the others.
    Again,
    /// It has ended.
    Ended,
    /// There is no room for the rest of a request that is coming.
    NoRoom,
    /// It would take more memory than there is.
    Overflow,
}

/// What has become of answers that waited for the socket.
enum Flushed {
    All,
    /// It takes more, after others have had their turn.
    InPart,
    Blocked,
    /// The connection has ended.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// More input is executed as it comes.
    Open,
    /// The session goes on once the output has left.
    Paused,
    /// The session goes on once its operation has a result.
    Parked,
    /// It ends once the output has left.
    Closing,
}

/// See the module.
pub(super) struct Connection<S> {
    socket: Socket,
    session: S,
    number: u64,
    phase: Phase,
    /// Of the request whose operation is pending.
    under_way: UnderWay,
    /// When that began, by the observer's clock, once the operation has a result.
    resumed: Option<u64>,
    parked_at: u64,
    /// The socket may have input.
    readable: bool,
    /// The client has closed its side: a short read does not mean that the end
    /// has not come.
    half_closed: bool,
    /// The event queue tells when the socket takes more.
    pub(super) is_armed: bool,
    /// It stands in the queue of those who have more to do.
    pub(super) is_queued: bool,
    /// Log lines it wants.
    pub(super) watches: u8,
    /// It has a watcher's place, until it ends.
    pub(super) is_watcher: bool,
    skipped: u64,
    /// Input of which the rest has yet to come, or that waits until answers have left.
    input: Intake,
    /// Length that the session expects this input to have.
    expected: usize,
    /// Answers that the socket did not take, from `sent` on.
    output: Vec<u8>,
    sent: usize,
    /// What was received early, onto the desk: see [`super::ahead`].
    early: Option<Received>,
    /// Where in the desk's outbox answers are held.
    held: Option<Range<usize>>,
    /// What the desk has counted as kept by this connection.
    pub(super) counted: usize,
    /// When it last said something, by the monotonic clock.
    pub(super) used_ns: u64,
    /// When it was accepted.
    pub(super) accepted_ns: u64,
    /// When bytes last came or went, or an operation had a result.
    progress_ns: u64,
    /// Bytes that have come.
    received: u64,
    /// How a long request comes.
    pace: Pace,
    /// Its client has gone, and its session goes on to the end of what it has begun.
    is_gone: bool,
    entry: Arc<TableEntry>,
}

impl<S: Session> Connection<S> {
    pub(super) fn new(
        socket: Socket,
        session: S,
        number: u64,
        entry: Arc<TableEntry>,
        now_ns: u64,
    ) -> Self {
        Connection {
            socket,
            session,
            number,
            phase: Phase::Open,
            under_way: UnderWay::default(),
            resumed: None,
            parked_at: 0,
            readable: false,
            half_closed: false,
            is_armed: false,
            is_queued: false,
            watches: 0,
            is_watcher: false,
            skipped: 0,
            input: Intake::default(),
            expected: 0,
            output: Vec::new(),
            sent: 0,
            early: None,
            held: None,
            counted: 0,
            used_ns: now_ns,
            accepted_ns: now_ns,
            progress_ns: now_ns,
            received: 0,
            pace: Pace::default(),
            is_gone: false,
            entry,
        }
    }

    pub(super) fn raw_fd(&self) -> i32 {
        self.socket.raw_fd()
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.socket.is_handshaking()
    }

    /// Whether somebody wants it to end.
    pub(super) fn is_unwanted(&self) -> bool {
        self.entry.is_unwanted.load(Ordering::Acquire)
    }

    /// Whether it waits for an operation of the keyspace.
    pub(super) fn is_parked(&self) -> bool {
        self.phase == Phase::Parked
    }

    /// Its operation has a result.
    pub(super) fn resume(&mut self, now_ns: u64) {
        if self.is_parked() {
            self.progress_ns = now_ns;
            self.phase = Phase::Paused;
            self.resumed = Some(self.parked_at);
        }
    }

    /// Whether its client has shown who it is.
    pub(super) fn is_authenticated(&self) -> bool {
        self.session.is_authenticated()
    }

    /// Bytes that it keeps: its own buffers, its session's, and those of its
    /// encryption. What a pending operation needs is the keyspace's to tell.
    pub(super) fn kept(&self) -> usize {
        let buffers = self.input.capacity() + self.output.capacity();
        buffers + self.session.kept() + self.socket.kept()
    }

    /// Whether there is anything left to do for it, if no more input comes.
    pub(super) fn is_owed(&self) -> bool {
        self.has_output() || self.is_parked() || self.is_queued || self.is_held()
    }

    /// Whether others wait for what its session does.
    pub(super) fn is_holding(&self) -> bool {
        self.session.is_holding()
    }

    /// Since when it has come no further: of connections that keep much the one that
    /// has stood still for longest makes room.
    pub(super) fn progress_ns(&self) -> u64 {
        self.progress_ns
    }

    /// Its client has gone. Whether it goes on nevertheless, without answers: it was in
    /// the middle of what its session has promised to do as a whole.
    pub(super) fn abandon(&mut self) -> bool {
        let goes_on = matches!(self.phase, Phase::Paused | Phase::Parked);
        if !goes_on || !self.session.is_bound() {
            return false;
        }
        self.is_gone = true;
        (self.input, self.expected) = (Intake::default(), 0);
        (self.output, self.sent) = (Vec::new(), 0);
        self.held = None;
        true
    }

    /// Refuses the request that is coming, for which there is no room. `false` if its
    /// client cannot be told so.
    pub(super) fn refuse_unfinished(&mut self) -> bool {
        let is_between = self.phase == Phase::Open && !self.has_output() && !self.is_held();
        let mut answer = Vec::new();
        if self.input.is_empty()
            || !is_between
            || !self
                .session
                .refuse_unfinished(self.input.bytes(), &mut answer)
        {
            return false;
        }
        (self.input, self.expected) = (Intake::default(), 0);
        (self.output, self.sent) = (answer, 0);
        self.pace.end();
        true
    }

    /// Whether it keeps much of a request that is coming.
    pub(super) fn is_uploading(&self) -> bool {
        self.phase == Phase::Open && self.input.len() >= UPLOAD_LEN_MIN
    }

    /// Whether such a request comes at less than so many bytes a second.
    pub(super) fn is_too_slow(&mut self, now_ns: u64, rate_min: u64) -> bool {
        if !self.is_uploading() {
            self.pace.end();
            return false;
        }
        self.pace.is_too_slow(now_ns, self.received, rate_min)
    }

    /// Bytes that its buffers may have. What all connections have together is the
    /// event loop's to limit: see `EventLoop::shed`.
    fn buffers_max<K: Keyspace, O: LoopObserver>(&self, desk: &Desk<K, O>) -> usize {
        let is_stranger = desk.chosen.settings.authentication && !self.is_authenticated();
        match is_stranger {
            true => STRANGER_LEN_MAX,
            false => desk.chosen.limits.buffer_bytes_max,
        }
    }

    /// Whether answers wait for the socket.
    pub(super) fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    /// The event queue's word about the socket.
    pub(super) fn notice(&mut self, readable: bool, half_closed: bool) {
        self.readable |= readable | half_closed;
        self.half_closed |= half_closed;
    }

    /// Whether all that there is to do for it is to receive a request and execute it.
    pub(super) fn is_simple(&self) -> bool {
        let is_between = self.phase == Phase::Open && self.input.is_empty() && self.expected == 0;
        is_between
            && self.readable
            && !self.has_output()
            && !self.is_held()
            && !self.is_queued
            && !self.is_gone
            && self.socket.is_plain()
    }

    /// Receives what its next turn begins with, and gives the key that this is about. The
    /// desk's input has to be this then.
    pub(super) fn receive_early<'a>(&mut self, input: &'a mut [u8]) -> Option<&'a [u8]> {
        let received = self.socket.receive(input);
        self.early = Some(received);
        match received {
            Received::Bytes { len, .. } => self.session.key_ahead(&input[..len]),
            Received::Blocked | Received::Ended => None,
        }
    }

    /// Does all that can be done now, or a fair share of it.
    pub(super) fn turn<K: Keyspace, O: LoopObserver>(&mut self, desk: &mut Desk<K, O>) -> Fate {
        let mut work = 0;
        loop {
            match self.flush(desk, &mut work) {
                Flushed::All => {}
                Flushed::InPart => return Fate::Again,
                Flushed::Blocked => return self.read_ahead(desk),
                Flushed::Broken => return Fate::Ended,
            }
            match self.phase {
                Phase::Closing => return Fate::Ended,
                Phase::Parked => return Fate::Wait,
                Phase::Open | Phase::Paused => {}
            }
            if work >= TURN_WORK_MAX {
                return Fate::Again;
            }
            let (mut end, mut received) = (None, 0);
            if self.phase == Phase::Open {
                if self.is_gone {
                    return Fate::Ended;
                }
                if !self.readable {
                    return Fate::Wait;
                }
                match self.receive(desk) {
                    Ok(Some((len, desk_end))) => (received, end) = (len, desk_end),
                    // A handshake may have left an answer of its own behind.
                    Ok(None) if matches!(self.socket.flush(), Ok(false)) => return Fate::Blocked,
                    Ok(None) => return Fate::Wait,
                    Err(fate) => return fate,
                }
            }
            if let Err(fate) = self.execute(desk, end, received, &mut work) {
                return fate;
            }
        }
    }

    /// Sends what waits: a client that reads as fast as it is written to does not keep
    /// others from their turn.
    fn flush<K: Keyspace, O: LoopObserver>(
        &mut self,
        desk: &mut Desk<K, O>,
        work: &mut usize,
    ) -> Flushed {
        // What holds others up does not wait for its own client.
        if self.is_gone || self.session.is_holding() {
            return Flushed::All;
        }
        while self.has_output() {
            if *work >= TURN_WORK_MAX {
                return Flushed::InPart;
            }
            let end = self.output.len().min(self.sent + CALL_LEN_MAX);
            match self.socket.transmit(&self.output[self.sent..end]) {
                Ok(0) => return Flushed::Blocked,
                Ok(len) => {
                    self.sent += len;
                    *work += len;
                    self.progress_ns = desk.clock.last().monotonic_ns;
                    desk.observer.traffic(0, len);
                }
                Err(_) => return Flushed::Broken,
            }
        }
        if self.output.capacity() > 0 {
            desk.outbox.take_back(std::mem::take(&mut self.output));
            self.sent = 0;
        }
        match self.socket.flush() {
            Ok(true) => Flushed::All,
            Ok(false) => Flushed::Blocked,
            Err(_) => Flushed::Broken,
        }
    }

    /// Keeps what the client asks for while answers wait: it may not read any before it
    /// has written all. That is executed once the answers have left.
    fn read_ahead<K: Keyspace, O: LoopObserver>(&mut self, desk: &mut Desk<K, O>) -> Fate {
        let is_between = matches!(self.phase, Phase::Open | Phase::Paused);
        // Answers may be in the socket's own buffers, those of TLS: that they wait is known.
        if !is_between || self.is_handshaking() {
            return Fate::Blocked;
        }
        let mut work = 0;
        let len_max = self.ahead_max(desk);
        while self.readable {
            if work >= TURN_WORK_MAX {
                return Fate::Again;
            }
            if self.input.is_full() {
                // What is done with makes room once it is worth a move.
                let capacity = self.input.capacity();
                let room = (2 * capacity).max(INPUT_LEN).min(len_max);
                // All of it is moved: for a little more it is not.
                if room < capacity + capacity / 2 || room == 0 {
                    break;
                }
                self.input.make_room(room);
            }
            match self.socket.receive_onto(self.input.tail(), CALL_LEN_MAX) {
                Received::Blocked => self.readable = false,
                // It may still read; if not, the answers find that out.
                Received::Ended => break,
                Received::Bytes { len, drained } => {
                    // It gets on by taking its answers, not by asking for more.
                    let progress_ns = self.progress_ns;
                    self.took_in(desk, len, drained);
                    self.progress_ns = progress_ns;
                    self.phase = Phase::Paused;
                    work += len;
                }
            }
        }
        Fate::Blocked
    }

    /// See [`AHEAD_SHARE`].
    fn ahead_max<K: Keyspace, O: LoopObserver>(&self, desk: &Desk<K, O>) -> usize {
        let buffers_max = self.buffers_max(desk);
        let others = desk.kept.saturating_sub(self.counted) + self.output.capacity();
        let left = (buffers_max / 2).saturating_sub(others);
        left.min(buffers_max / AHEAD_SHARE)
    }

    /// Input has come.
    fn took_in<K: Keyspace, O: LoopObserver>(
        &mut self,
        desk: &mut Desk<K, O>,
        len: usize,
        drained: bool,
    ) {
        self.readable = !drained || self.half_closed;
        self.received += len as u64;
        self.progress_ns = desk.clock.last().monotonic_ns;
        desk.observer.traffic(len, 0);
    }

    /// Reads once: how much. Input is then on the desk up to where it says, or in the
    /// connection's own buffer.
    fn receive<K: Keyspace, O: LoopObserver>(
        &mut self,
        desk: &mut Desk<K, O>,
    ) -> Result<Option<(usize, Option<usize>)>, Fate> {
        let kept = self.input.len();
        let is_copied = kept <= REMAINDER_COPIED_MAX && self.expected <= INPUT_LEN;
        let received = if let Some(early) = self.early.take() {
            early
        } else if is_copied {
            desk.input[..kept].copy_from_slice(self.input.bytes());
            self.socket.receive(&mut desk.input[kept..])
        } else {
            self.make_room(desk)?;
            self.socket.receive_onto(self.input.tail(), CALL_LEN_MAX)
        };
        match received {
            Received::Blocked => {
                self.readable = false;
                Ok(None)
            }
            Received::Ended => Err(Fate::Ended),
            Received::Bytes { len, drained } => {
                self.took_in(desk, len, drained);
                Ok(Some((len, is_copied.then_some(kept + len))))
            }
        }
    }

    fn make_room<K: Keyspace, O: LoopObserver>(
        &mut self,
        desk: &mut Desk<K, O>,
    ) -> Result<(), Fate> {
        let len = self.input.len();
        let value_max = desk.keyspace.value_len_max();
        let value_max = value_max.max(desk.chosen.settings.item_len_max);
        let longest = REQUEST_VALUES_MAX * value_max + REQUEST_SLACK;
        if len >= longest {
            return Err(Fate::Overflow);
        }
        let wanted = match self.expected {
            expected if expected > len => expected,
            _ => len + INPUT_LEN,
        };
        let capacity = wanted.min(longest).min((2 * len).max(ROOM_FIRST));
        let grows = capacity > self.input.capacity();
        if grows && capacity > self.buffers_max(desk).max(ROOM_FIRST) {
            let is_stranger = desk.chosen.settings.authentication && !self.is_authenticated();
            return Err(match is_stranger {
                true => Fate::Overflow,
                false => Fate::NoRoom,
            });
        }
        // No more than twice what it is to be.
        let capacity_max = self.buffers_max(desk).min(2 * wanted.min(longest));
        self.input
            .make_much_room(capacity, capacity_max, &mut desk.spare);
        Ok(())
    }

    /// Executes input, of which so many bytes have just been received, sends answers, and
    /// keeps what is left of either.
    fn execute<K: Keyspace, O: LoopObserver>(
        &mut self,
        desk: &mut Desk<K, O>,
        end: Option<usize>,
        received: usize,
        work: &mut usize,
    ) -> Result<(), Fate> {
        let mut begin = 0;
        // What is received counts at once, though it be a part of a long value; it does
        // not count again when it is executed.
        let mut counted = received;
        *work += received;
        let mut orders = Orders {
            watch: None,
            is_watcher: self.is_watcher,
        };
        let outcome = loop {
            let input = match end {
                Some(end) => Input::Desk { begin, end },
                None => Input::Own(&self.input.bytes()[begin..]),
            };
            let available = end.unwrap_or(self.input.len()) - begin;
            let fd = self.socket.raw_fd();
            if let Some(began) = self.resumed.take() {
                desk.observer.resumed(began);
            }
            desk.observer.driven();
            let work_before = desk.keyspace.work();
            let driven = desk.drive(
                &mut self.session,
                input,
                self.number,
                fd,
                &mut orders,
                &mut self.under_way,
            );
            begin += driven.consumed.min(available);
            // What goes out was looked at before: it counts once.
            let looked_at = desk.keyspace.work().wrapping_sub(work_before);
            let consumed = driven.consumed - driven.consumed.min(counted);
            counted -= driven.consumed.min(counted);
            let moved = consumed + desk.outbox.answer().len();
            *work += moved.max(looked_at as usize) + DRIVE_WORK;
            self.expected = 0;
            self.phase = match driven.wants {
                Wants::Input(len) => {
                    self.expected = len;
                    Phase::Open
                }
                Wants::Events => Phase::Open,
                Wants::Output | Wants::Turn => Phase::Paused,
                Wants::Operation => {
                    self.parked_at = desk.observer.parked();
                    Phase::Parked
                }
                Wants::Close => Phase::Closing,
            };
            // Before the client is told: what it then does elsewhere is seen.
            if let Some(kinds) = orders.watch {
                desk.shared.hub.want_more(desk.index, kinds);
            }
            if let Err(fate) = self.answer(desk) {
                break Err(fate);
            }
            let goes_on = self.phase == Phase::Paused && !self.has_output();
            if !goes_on || *work >= TURN_WORK_MAX {
                break Ok(());
            }
        };
        self.is_watcher = orders.is_watcher;
        if let Some(kinds) = orders.watch {
            self.watches = kinds;
        }
        let now_ns = desk.clock.last().monotonic_ns;
        let used_s = (now_ns / 1_000_000_000) as u32;
        if used_s != (self.used_ns / 1_000_000_000) as u32 {
            self.entry.used_s.store(used_s, Ordering::Relaxed);
        }
        self.used_ns = now_ns;
        outcome?;
        self.keep(desk, begin, end)
    }

    /// Sends the answers in the outbox, or leaves them there if nothing follows
    /// them in this turn; what the socket does not take is kept.
    fn answer<K: Keyspace, O: LoopObserver>(&mut self, desk: &mut Desk<K, O>) -> Result<(), Fate> {
        let len = desk.outbox.answer().len();
        if len == 0 || self.is_gone {
            return Ok(());
        }
        if self.has_output() {
            // It went on though answers waited: see `Session::is_holding`.
            if self.output.len() + len > self.buffers_max(desk) {
                return Err(Fate::Overflow);
            }
            copied::append(&mut self.output, desk.outbox.answer());
            return Ok(());
        }
        if self.is_parked() || (self.phase == Phase::Open && !self.readable) {
            self.held = desk.outbox.hold();
            if self.held.is_some() {
                return Ok(());
            }
        }
        // What takes several calls need not begin with a long one.
        let first = match len <= FIRST_CALL_LEN_MAX {
            true => desk.outbox.answer(),
            false => &desk.outbox.answer()[..CALL_LEN_MAX],
        };
        let Ok(sent) = self.socket.transmit(first) else {
            return Err(Fate::Ended);
        };
        desk.observer.traffic(0, sent);
        if sent == len {
            return Ok(());
        }
        if len - sent > self.buffers_max(desk) {
            return Err(Fate::Overflow);
        }
        (self.output, self.sent) = desk.outbox.take_rest(sent);
        Ok(())
    }

    /// Whether answers are held in the outbox.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// What is held in the outbox, if it can leave together with others'.
    pub(super) fn held_message<'a>(&'a self, outbox: &'a Outbox) -> Option<Message<'a>> {
        let held = outbox.held(self.held.clone()?);
        self.socket.message(held)
    }

    /// Sends what is held in the outbox, unless that was done already.
    pub(super) fn send_held<K: Keyspace, O: LoopObserver>(
        &mut self,
        desk: &mut Desk<K, O>,
        sent: Sent,
    ) -> Fate {
        let Some(at) = self.held.take() else {
            return Fate::Wait;
        };
        let answer = desk.outbox.held(at);
        let sent = match sent {
            Some(sent) => sent.map_err(io::Error::from),
            None => self.socket.transmit(answer),
        };
        let Ok(sent) = sent else {
            return Fate::Ended;
        };
        desk.observer.traffic(0, sent);
        let rest = copied::owned(&answer[sent..]);
        if rest.is_empty() {
            return Fate::Wait;
        }
        if rest.len() > self.buffers_max(desk) {
            return Fate::Overflow;
        }
        self.output = rest;
        self.sent = 0;
        Fate::Blocked
    }

    /// Keeps the input from `begin` on.
    fn keep<K: Keyspace, O: LoopObserver>(
        &mut self,
        desk: &mut Desk<K, O>,
        begin: usize,
        end: Option<usize>,
    ) -> Result<(), Fate> {
        match end {
            Some(end) => {
                let buffers_max = self.buffers_max(desk);
                let rest = &desk.input[begin..end];
                if rest.len() > buffers_max {
                    return Err(Fate::Overflow);
                }
                self.input.replace(rest);
            }
            None => self.input.consume(begin, &mut desk.spare),
        }
        Ok(())
    }

    /// Appends a log line; a slow watcher misses some, and is told how many.
    pub(super) fn push_line(&mut self, line: &str) {
        if self.output.len() - self.sent + line.len() > WATCH_LEN_MAX {
            self.skipped += 1;
            return;
        }
        if self.skipped > 0 {
            let note = format!("[skipped: {}]\n", self.skipped);
            self.output.extend_from_slice(note.as_bytes());
            self.skipped = 0;
        }
        self.output.extend_from_slice(line.as_bytes());
    }

    /// Counts lines that never came this far.
    pub(super) fn skip_lines(&mut self, count: u64) {
        self.skipped += count;
    }

    /// Ends it; the desk's input buffer is free for the purpose.
    pub(super) fn close<K: Keyspace, O: LoopObserver>(self, desk: &mut Desk<K, O>) {
        self.socket.close(&mut desk.input);
    }
}
