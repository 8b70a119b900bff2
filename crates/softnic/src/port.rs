//! One backend by way of an engine: a carrier of scans and reads, and, where the engine takes
//! them, of messages.
//!
//! # What a client may believe
//! The engine looks at the backend's lease after its last read, on the clock of its own
//! host, which is the backend's. So what an answer says was so at some moment after the
//! request was sent and before the answer came: that is all that a GET needs, and no
//! clock of this host takes part. An answer belongs to the request whose id it repeats,
//! and ids are never used twice in a session.
//!
//! # Messages
//! The engine says of each whether it was executed, or that nobody knows. What was not executed
//! goes by a call, with the same version: the driver is told that it is too large for this way.
//! So does what finds no room among the messages under way. What is lost with the session, or
//! with the backend, is lost as it is with a call.
//!
//! # Sharing
//! Ports of one client to the same engine may share a session ([`crate::Sessions`]). Any of
//! them takes in what has come for all: completions go to the driver by their tokens, and
//! each port says afterwards how many were its own.
//!
//! # Thread safety
//! A port belongs to one client. [`Port::is_ready`] takes `&self` and has to receive,
//! so what changes stands behind a lock, for which nobody waits but a port that is being
//! connected.

use crate::channel::Channel;
use crate::datagrams::Datagrams;
use crate::dial::{ConnectError, DatagramUse, Dialled, EngineAddress, RECEIVE_LEN, dial};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trefoil_client_core::outcome::SendFailure;
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::port::{
    Closed, Completion, OutOfWindow, Port, Progress, Refreshed, SendError, Token,
};
use trefoil_fabric::{Agreement, RegionView};
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::message::{
    Answer, ErrorCode, MESSAGE_LEN_MAX, Request, RequestHead, parse_answer,
};
use trefoil_layout::{KeyHash, Pointer, TopologyId, Version};
use trefoil_region::WordBuffer;
use trefoil_softnic_core::datagram::Window;
use trefoil_softnic_core::limits::{ASK_COUNT_MAX, WINDOW_LEN};
use trefoil_softnic_core::wire::counters::message_frames;
use trefoil_softnic_core::wire::{MESSAGE_FRAMES, MessageStatus, Opened, Region};
use trefoil_softnic_core::{Event, Initiator, ReadRange, Situation, Unanswered};

/// Requests that are sent at the latest; they go sooner when their client looks for
/// answers. As many touches beside them make a whole frame.
const BATCH_COUNT: usize = ASK_COUNT_MAX / 2;
/// Touches that are sent without a request.
const TOUCH_COUNT: usize = 4 * ASK_COUNT_MAX;
/// Bytes of messages that are sent at the latest.
const MESSAGES_LEN: usize = 64 << 10;
/// So long a client that may not, or whose backend has no ring with the engine, calls without
/// asking again.
const NO_MESSAGES_NS: u64 = 1_000_000_000;
/// The id of the only OPEN of a session.
const OPENING: u64 = 0;

/// What changes.
struct Core {
    channel: Channel,
    /// Carries requests and answers instead of the stream, if there is one.
    datagrams: Option<Datagrams>,
    /// What the datagrams could not carry.
    left: Vec<u8>,
    initiator: Initiator,
    /// What has come by the stream and was not taken in: its last frame may be there in part.
    input: Vec<u8>,
    /// What has come by datagrams, whole frames. They have nothing to do with `input`: put
    /// behind a part of a frame they would be taken for the rest of it.
    answers: Vec<u8>,
    received: Box<[u8]>,
    /// Those that there are, and were.
    ports: Vec<PortState>,
    is_closed: bool,
}

/// One backend's part of a session.
struct PortState {
    handle: u32,
    /// That the backend served when it was heard last.
    served: u32,
    /// Answers that were taken in, and of which its port has not told yet.
    came: usize,
    /// The handle is good for nothing more.
    is_over: bool,
    /// The same, for its port, which is asked without the lock.
    ends: Arc<AtomicBool>,
    /// Messages that were not answered.
    messages: usize,
    /// Its port is no more.
    has_left: bool,
    /// Messages go another way until then.
    no_messages_until_ns: u64,
}

impl PortState {
    fn new(handle: u32, served: u32) -> Self {
        PortState {
            handle,
            served,
            came: 0,
            is_over: false,
            ends: Arc::default(),
            messages: 0,
            has_left: false,
            no_messages_until_ns: 0,
        }
    }

    fn is_over(&mut self) {
        self.is_over = true;
        self.ends.store(true, Ordering::Relaxed);
    }

    /// Whether nothing more will come. Of each message the engine says something, whatever it has
    /// said of the others: what was executed is not to be taken for lost.
    fn has_ended(&self) -> bool {
        self.is_over && self.messages == 0
    }
}

/// What a client's ports to one engine share.
pub(crate) struct Session {
    socket: TcpStream,
    /// What wakes its owner, if that is not the socket alone.
    waits: Option<Arc<OwnedFd>>,
    /// The engine's name for its existence: handles mean the same in all of its sessions.
    engine: u64,
    /// How long answers take lately, in nanoseconds.
    answer_ns: AtomicU64,
    /// How long what is asked for takes, in nanoseconds: each lookup looks at it, without the
    /// lock.
    backlog_ns: AtomicU64,
    /// Whether votes are there sooner than scans, likewise.
    prefers_votes: AtomicBool,
    core: Mutex<Core>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.socket)
    }
}

impl Session {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For lookups, which do not take the lock for it: how much there is before them, and what
    /// follows from that.
    fn tell_backlog(&self, core: &Core) {
        if core.initiator.has_gaps() {
            let backlog_ns = core.initiator.backlog_ns();
            self.backlog_ns.store(backlog_ns, Ordering::Relaxed);
        }
        let prefers_votes = core.situation().prefers_votes();
        self.prefers_votes.store(prefers_votes, Ordering::Relaxed);
    }

    /// Takes a port in that was connected by a session of its own; its place. `None` if it
    /// is of another engine, or this session has ended, or has had its handle before:
    /// answers to a port that is gone would be taken for those of the new one.
    pub(crate) fn admit(&self, port: &EnginePort) -> Option<usize> {
        if self.engine != port.session.engine {
            return None;
        }
        let mut core = self.core();
        let is_known = core.ports.iter().any(|of| of.handle == port.handle);
        if core.is_closed || is_known {
            return None;
        }
        core.ports.push(PortState::new(port.handle, port.config_id));
        Some(core.ports.len() - 1)
    }
}

/// See the module.
pub struct EnginePort {
    session: Arc<Session>,
    /// Its place in the session.
    at: usize,
    agreement: Agreement,
    handle: u32,
    /// That buckets are expected to carry, as of the last refresh.
    config_id: u32,
    /// Whether messages go by the engine.
    has_messages: bool,
    /// Nothing new is asked by it.
    ends: Arc<AtomicBool>,
}

impl Drop for EnginePort {
    fn drop(&mut self) {
        self.session.core().ports[self.at].has_left = true;
    }
}

impl EnginePort {
    /// Connects to backend number `backend` of the cell's life `life`. Waits, for at
    /// most `timeout`. With `messages` they go by the engine, too, if it takes them.
    pub fn connect(
        engine: &EngineAddress,
        (backend, life): (u32, u64),
        messages: bool,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let address = engine.address;
        let begin = |initiator: &mut Initiator| {
            initiator.open(OPENING, backend, life, monotonic_ns());
            if messages {
                initiator.ask_counters(monotonic_ns());
            }
        };
        let (mut opened, mut counted) = (None, None);
        let dialled = dial(engine, timeout, begin, |event| {
            match event {
                Event::Opened { result, .. } => opened = Some(result),
                Event::Counters(values) => counted = Some(*values),
                _ => {}
            }
            opened.is_some() && (counted.is_some() || !messages)
        })?;
        let frames = counted.map_or(0, |values| message_frames(&values));
        // It has come, or there would be no session.
        let opened = opened.ok_or(ConnectError::HungUp { address })?;
        let opened = opened.map_err(|status| ConnectError::NotOpened {
            address,
            backend,
            status,
        })?;
        let Dialled {
            socket,
            channel,
            initiator,
            input,
        } = dialled;
        let is_ours = opened.backend == backend
            && opened.topology.life == life
            && opened.layout == LAYOUT_VERSION;
        if !is_ours {
            return Err(ConnectError::Inconsistent { address, backend });
        }
        let window = match engine.datagrams {
            DatagramUse::No => None,
            DatagramUse::Yes => Some(Window::new(WINDOW_LEN)),
            DatagramUse::Unpaced => Some(Window::fixed(WINDOW_LEN)),
        };
        let datagrams = window.and_then(|window| {
            let beside = Datagrams::beside(&socket, &channel, address, window);
            // The stream stands, and carries everything.
            beside.unwrap_or_else(|error| {
                tracing::warn!("the engine at {address} is asked by TCP, not over UDP: {error}");
                None
            })
        });
        let config_id = opened.topology.config_id;
        let session = Session {
            socket,
            waits: datagrams.as_ref().map(Datagrams::waits),
            engine: initiator.welcome().map_or(0, |welcome| welcome.engine),
            answer_ns: AtomicU64::new(0),
            backlog_ns: AtomicU64::new(0),
            prefers_votes: AtomicBool::new(false),
            core: Mutex::new(Core {
                channel,
                datagrams,
                left: Vec::new(),
                initiator,
                input,
                answers: Vec::new(),
                received: vec![0; RECEIVE_LEN].into_boxed_slice(),
                ports: vec![PortState::new(opened.handle, config_id)],
                is_closed: false,
            }),
        };
        let ends = Arc::clone(&session.core().ports[0].ends);
        Ok(EnginePort {
            ends,
            session: Arc::new(session),
            at: 0,
            agreement: agreement(&opened),
            handle: opened.handle,
            config_id,
            has_messages: frames == MESSAGE_FRAMES,
        })
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The same backend by a session that has given it this place.
    pub(crate) fn moved_to(mut self, session: Arc<Session>, at: usize) -> Self {
        self.ends = Arc::clone(&session.core().ports[at].ends);
        (self.session, self.at) = (session, at);
        self
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.session.core()
    }

    /// Asks for something by `ask`, which is given handle, place, config id and the time.
    fn submit(
        &self,
        place: usize,
        ask: impl FnOnce(&mut Initiator, u32, u8, u32, u64),
    ) -> Progress<()> {
        let Ok(place) = u8::try_from(place) else {
            return Progress::Refused;
        };
        let mut core = self.core();
        // Since when the engine owes something matters of the first request only.
        let now_ns = match core.initiator.owes() {
            true => 0,
            false => monotonic_ns(),
        };
        let (handle, config_id) = (self.handle, self.config_id);
        ask(&mut core.initiator, handle, place, config_id, now_ns);
        core.submitted(&self.session.socket);
        self.session.tell_backlog(&core);
        Progress::Pending
    }
}

fn agreement(opened: &Opened) -> Agreement {
    Agreement {
        backend: opened.backend,
        incarnation: opened.incarnation,
        hasher: opened.hasher,
        partition_count: opened.partition_count.into(),
        sub_count: opened.sub_count.into(),
        layout_version: opened.layout,
        topology: opened.topology,
    }
}

impl Core {
    fn submitted(&mut self, socket: &TcpStream) {
        let is_full = self.initiator.waiting_count() >= BATCH_COUNT
            || self.initiator.touch_count() >= TOUCH_COUNT;
        if is_full {
            self.send(socket);
        }
    }

    /// What is known for whoever is about to look a key up.
    fn situation(&self) -> Situation {
        let of = self.initiator.situation();
        match &self.datagrams {
            Some(datagrams) => datagrams.situation(of, self.initiator.waiting_len()),
            None => of,
        }
    }

    /// Sends what the window has room for.
    fn send(&mut self, socket: &TcpStream) {
        self.initiator.flush(match self.initiator.waiting_count() {
            0 => 0,
            _ => monotonic_ns(),
        });
        match &self.datagrams {
            // What is left to the stream goes first, so messages queue up behind that.
            Some(_) => self.initiator.take_messages(&mut self.left),
            None => self.initiator.put_messages(),
        }
        self.send_datagrams();
        while !self.left.is_empty() && !self.is_closed {
            match self.channel.send(socket, &self.left) {
                Ok(0) => return,
                Ok(count) => drop(self.left.drain(..count)),
                Err(_) => self.is_closed = true,
            }
        }
        if self.channel.waits() {
            self.is_closed |= self.channel.flush(socket).is_err();
        }
        while !self.is_closed && !self.initiator.output().is_empty() {
            match self.channel.send(socket, self.initiator.output()) {
                Ok(0) => return,
                Ok(count) => self.initiator.sent(count),
                Err(_) => self.is_closed = true,
            }
        }
    }

    fn send_datagrams(&mut self) {
        let Some(datagrams) = &mut self.datagrams else {
            return;
        };
        let now_ns = monotonic_ns();
        datagrams.take(&mut self.initiator, &mut self.left, now_ns);
        datagrams.receive_before_late(&mut self.answers, now_ns);
        datagrams.send(now_ns);
        datagrams.leave(&mut self.initiator, &mut self.left, now_ns);
        datagrams.tell_window(&mut self.initiator);
    }

    /// Receives, unless something is there already. Whether there is something to take
    /// in, or nothing will come any more.
    fn look(&mut self, socket: &TcpStream) -> bool {
        if self.initiator.owes_messages() {
            self.initiator.ask_whether_it_lives(monotonic_ns());
        }
        self.send(socket);
        if self.is_closed || Initiator::has_frame(&self.input) {
            return true;
        }
        if let Some(datagrams) = &mut self.datagrams {
            if self.answers.is_empty() {
                datagrams.receive(&mut self.answers, monotonic_ns());
            }
            // What datagrams bring keeps nobody from what was asked for by the stream.
            let stream_owes = self.initiator.owes_beside(datagrams.asked_count());
            if !stream_owes {
                if !self.answers.is_empty() {
                    return true;
                }
                let is_silent = self.initiator.is_silent(monotonic_ns());
                if !datagrams.must_look_at_stream() && !is_silent {
                    return false;
                }
            }
        }
        match self.channel.receive(socket, &mut self.received[..]) {
            Ok(Some(count)) => self.input.extend_from_slice(&self.received[..count]),
            // What has come meanwhile would have been received: this process' pauses are
            // not the engine's silence.
            Ok(None) => {
                let is_silent = self.initiator.is_silent(monotonic_ns());
                self.is_closed = self.answers.is_empty() && is_silent;
            }
            Err(_) => self.is_closed = true,
        }
        self.is_closed || self.has_frame()
    }

    /// Whether there is something to take in.
    fn has_frame(&self) -> bool {
        !self.answers.is_empty() || Initiator::has_frame(&self.input)
    }
}

impl Core {
    /// Receives, and takes in what has come, for all ports.
    fn take_in(&mut self, socket: &TcpStream, mut on: impl FnMut(Completion<'_>)) {
        self.look(socket);
        let ports = &mut self.ports;
        let mut hear = |event: Event<'_>| {
            let handle = match event {
                Event::Scanned { handle, .. }
                | Event::Voted { handle, .. }
                | Event::Read { handle, .. }
                | Event::Messaged { handle, .. }
                | Event::Unanswered { handle, .. } => handle,
                Event::Opened { .. } | Event::Counters(_) | Event::Claimed(_) => return,
            };
            let Some(port) = ports.iter_mut().find(|of| of.handle == handle) else {
                return;
            };
            if port.has_left {
                return;
            }
            port.hear(&event);
            if let Event::Scanned { id, stamp, .. } | Event::Voted { id, stamp, .. } = event {
                on(Completion::Stamp(Token(id), stamp));
            }
            if let Some(completion) = completion(&event) {
                port.came += 1;
                on(completion);
            }
        };
        for input in [&mut self.answers, &mut self.input] {
            match self.initiator.handle(input, monotonic_ns(), &mut hear) {
                Ok(done) if done == input.len() => input.clear(),
                Ok(done) => drop(input.drain(..done)),
                Err(_) => self.is_closed = true,
            }
        }
        // What was asked for again, or waited for room in the window.
        self.send(socket);
    }
}

impl PortState {
    fn hear(&mut self, event: &Event<'_>) {
        match *event {
            Event::Scanned {
                vote: IndexVote::ConfigChanged { found },
                ..
            }
            | Event::Voted {
                vote: IndexVote::ConfigChanged { found },
                ..
            } => self.served = found,
            Event::Scanned { config_id, .. } | Event::Voted { config_id, .. } => {
                self.served = config_id;
            }
            Event::Unanswered {
                why: Unanswered::Gone | Unanswered::Lapsed,
                ..
            } => self.is_over(),
            Event::Messaged { result, .. } => {
                self.messages -= 1;
                match result {
                    // The backend is looked for anew.
                    Err(MessageStatus::Gone | MessageStatus::Lost) => self.is_over(),
                    Err(
                        MessageStatus::NotAllowed
                        | MessageStatus::NoRing
                        | MessageStatus::Malformed,
                    ) => self.no_messages_until_ns = monotonic_ns() + NO_MESSAGES_NS,
                    Err(MessageStatus::Full) | Ok(_) => {}
                }
            }
            _ => {}
        }
    }
}

/// What came of a message. What was not executed goes by a call.
fn messaged<'a>(token: Token, result: Result<&'a [u8], MessageStatus>) -> Completion<'a> {
    let lost = |why| Completion::NoAnswer(token, SendFailure::Lost, why);
    match result {
        Ok(answer) => match parse_answer(answer) {
            Ok((_, answer)) => Completion::Answer(token, answer),
            Err(_) => lost("its answer cannot be understood: run the same release on both sides"),
        },
        Err(MessageStatus::Lost) => lost("it has ended, or does not answer its engine"),
        Err(_) => Completion::Answer(token, Answer::Error(ErrorCode::TooLarge)),
    }
}

/// How an event is told to the driver; `None` where it ends the port as well.
fn completion<'a>(event: &Event<'a>) -> Option<Completion<'a>> {
    match *event {
        Event::Opened { .. } | Event::Counters(_) | Event::Claimed(_) => None,
        Event::Scanned {
            id,
            vote,
            data,
            flush_floor,
            ..
        } => Some(Completion::Scan(Token(id), vote, data, flush_floor)),
        Event::Messaged { id, result, .. } => Some(messaged(Token(id), result)),
        Event::Voted { id, vote, .. } => Some(Completion::Index(Token(id), vote)),
        Event::Read {
            id,
            data,
            flush_floor,
            ..
        } => Some(Completion::Data(Token(id), Ok(data), flush_floor)),
        Event::Unanswered {
            id, why, is_scan, ..
        } => {
            let token = Token(id);
            let lost = |why| Some(Completion::NoAnswer(token, SendFailure::Lost, why));
            match why {
                Unanswered::Gone => lost("the engine reads another process by now"),
                Unanswered::Lapsed => lost("its lease has ended"),
                // A call brings it.
                Unanswered::TooLong { .. } => Some(Completion::Answer(
                    token,
                    Answer::Error(ErrorCode::TooLarge),
                )),
                Unanswered::OutOfWindow if !is_scan => {
                    Some(Completion::Data(token, Err(OutOfWindow), Version::ZERO))
                }
                Unanswered::OutOfWindow | Unanswered::Unstable => {
                    lost("what was read was being changed")
                }
            }
        }
    }
}

impl Port for EnginePort {
    fn view(&self) -> Option<&Arc<RegionView>> {
        None
    }

    fn agreement(&self) -> Option<&Agreement> {
        Some(&self.agreement)
    }

    fn config_id(&self) -> Option<u32> {
        Some(self.config_id)
    }

    fn is_indirect(&self) -> bool {
        true
    }

    fn has_scans(&self) -> bool {
        !self.ends.load(Ordering::Relaxed)
    }

    fn has_messages(&self) -> bool {
        self.has_messages
    }

    /// What the engine has said the backend serves.
    fn refresh(&mut self) -> Refreshed {
        let served = self.core().ports[self.at].served;
        match std::mem::replace(&mut self.config_id, served) == served {
            true => Refreshed::Unchanged,
            false => Refreshed::Changed,
        }
    }

    fn submit_index(&mut self, _: Token, _: usize, _: KeyHash) -> Progress<IndexVote> {
        Progress::Refused
    }

    fn submit_data(
        &mut self,
        token: Token,
        pointer: Pointer,
        _: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>> {
        let range = ReadRange {
            region: Region::Data,
            partition: 0,
            window_id: 0,
            offset: pointer.offset(),
            // Its length has fewer than 32 bits.
            len: pointer.len() as u32,
        };
        let mut core = self.core();
        if !core
            .initiator
            .read(token.0, self.handle, &range, monotonic_ns())
        {
            return Progress::Refused;
        }
        core.submitted(&self.session.socket);
        self.session.tell_backlog(&core);
        Progress::Pending
    }

    fn prefers_votes(&self) -> bool {
        self.session.prefers_votes.load(Ordering::Relaxed)
    }

    fn backlog_ns(&self) -> u64 {
        self.session.backlog_ns.load(Ordering::Relaxed)
    }

    fn answer_ns(&self) -> u64 {
        self.session.answer_ns.load(Ordering::Relaxed)
    }

    fn submit_scan(
        &mut self,
        token: Token,
        place: usize,
        hash: KeyHash,
        is_use: bool,
    ) -> Progress<()> {
        self.submit(
            place,
            |initiator, handle, place, config_id, now_ns| match is_use {
                true => initiator.scan_as_use(token.0, handle, place, hash, config_id, now_ns),
                false => initiator.scan(token.0, handle, place, hash, config_id, now_ns),
            },
        )
    }

    fn submit_vote(
        &mut self,
        token: Token,
        place: usize,
        hash: KeyHash,
        is_use: bool,
    ) -> Progress<()> {
        self.submit(place, |initiator, handle, place, config_id, now_ns| {
            initiator.vote(is_use, (token.0, handle), (place, hash), config_id, now_ns);
        })
    }

    /// Nothing is refused as full: what finds no room goes by a call, and does not wait for the
    /// way there and back.
    fn send(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        if request.encoded_len() > MESSAGE_LEN_MAX {
            return Err(SendError::TooLarge);
        }
        if !self.has_messages || under.life != self.agreement.topology.life {
            return Err(SendError::NoMessages);
        }
        let mut core = self.core();
        // An engine that has ended while nobody looked gets nothing: what it will not read is
        // better called.
        if !core.initiator.owes() && !core.initiator.owes_messages() {
            core.look(&self.session.socket);
        }
        let port = &core.ports[self.at];
        if core.is_closed || port.has_ended() {
            return Err(SendError::Closed);
        }
        if port.is_over {
            return Err(SendError::NoMessages);
        }
        let now_ns = monotonic_ns();
        if now_ns < port.no_messages_until_ns {
            return Err(SendError::NoMessages);
        }
        let head = RequestHead {
            id: token.0,
            config_id: under.config_id,
        };
        if !core.initiator.message(self.handle, head, request, now_ns) {
            return Err(SendError::NoMessages);
        }
        core.ports[self.at].messages += 1;
        if core.initiator.messages().len() >= MESSAGES_LEN {
            core.send(&self.session.socket);
        }
        Ok(())
    }

    /// Slots are of windows that this side does not know: see [`Port::touch_key`].
    fn touch(&mut self, _: usize, _: TouchBatch<'_>) {}

    fn touch_key(&mut self, place: usize, hash: KeyHash) {
        if let Ok(place) = u8::try_from(place) {
            let handle = self.handle;
            let mut core = self.core();
            core.initiator.touch(handle, place, hash);
            core.submitted(&self.session.socket);
        }
    }

    fn flush_touches(&mut self) {
        self.core().send(&self.session.socket);
    }

    /// Its room is its own.
    fn others_have_moved(&mut self) -> bool {
        false
    }

    fn len_under_way(&self) -> u64 {
        0
    }

    fn give_up(&mut self) {}

    /// Also completes what was asked of other backends by the same session: their ports say
    /// how much that was.
    fn poll(&mut self, on: impl FnMut(Completion<'_>)) -> Result<usize, Closed> {
        let mut core = self.session.core();
        if core.ports[self.at].came == 0 {
            core.take_in(&self.session.socket, on);
            let answer_ns = core.initiator.answer_ns();
            self.session.answer_ns.store(answer_ns, Ordering::Relaxed);
            self.session.tell_backlog(&core);
        }
        let is_closed = core.is_closed;
        let port = &mut core.ports[self.at];
        match is_closed || port.has_ended() {
            true => Err(Closed::LOST),
            false => Ok(std::mem::take(&mut port.came)),
        }
    }

    fn is_ready(&self) -> bool {
        let mut core = self.core();
        let port = &core.ports[self.at];
        port.came > 0 || port.has_ended() || core.look(&self.session.socket)
    }

    /// Its socket is readable whenever something has come.
    fn arm(&self) {
        let mut core = self.core();
        core.send(&self.session.socket);
        if let Some(datagrams) = &core.datagrams {
            datagrams.arm();
        }
    }

    fn disarm(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(match &self.session.waits {
            Some(waits) => waits.as_fd(),
            None => self.session.socket.as_fd(),
        })
    }
}
