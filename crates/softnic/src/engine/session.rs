//! A client's connection: its socket, what has come and is not whole, what is not taken yet.

use super::Who;
use super::claimer::Given;
use super::guest::Guest;
use super::lane::QueueLane;
use super::messages::{Replies, Reply, UnderWay};
use super::seats::Seat;
use crate::channel::{Broken, Channel};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use trefoil_sockets::stream::StreamState;
use trefoil_softnic_core::placing::Placer;
use trefoil_softnic_core::wire::{Claim, Claimed};
use trefoil_softnic_core::{Memory, Target, TargetError};

/// How a turn of a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It waits for more to come.
    Waits,
    /// It has asked for more, and others come first.
    Ready,
    /// It waits for the client to take answers.
    Blocked,
    /// It waits for room in its lane.
    Withheld,
    /// It wants to place requests, and waits for a lane.
    Claims(Claim),
    /// It ends.
    Ends(End),
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    Refused,
    Handshake,
    Malformed,
}

/// Buffers that a loop lends to whichever session has its turn.
pub(super) struct Buffers {
    pub(super) received: Vec<u8>,
    pub(super) out: Vec<u8>,
}

/// Bytes received at a time.
const RECEIVE_LEN: usize = 64 << 10;
/// Bytes of answers after which others have their turn. A client's window stops a turn
/// before its next frame, too: two windows are the most that one turn sends.
pub(super) const TURN_LEN: usize = 64 << 10;
/// Memory for input that an empty session keeps: what a receipt takes behind a frame of requests
/// that came in parts, so that batches do not allocate again and again.
const INPUT_KEPT_LEN: usize = RECEIVE_LEN + (16 << 10);
/// A turn takes as long as so many bytes do, whatever it moves: two calls of the system.
const TURN_WORK: u64 = 8 << 10;

impl Buffers {
    pub(super) fn new() -> Self {
        Buffers {
            received: vec![0; RECEIVE_LEN],
            out: Vec::new(),
        }
    }
}

/// What a session does.
enum Use {
    Reads,
    /// A lane was asked for; or will be, when the client has taken the answers before it.
    Claims(Option<Claim>),
    Places(Box<Placer<QueueLane>>),
    /// Its lane has ended, of which the client was told; what it had sent meanwhile is not
    /// placed. It ends when the client does: closed at once, the kernel might throw away what
    /// the client was told.
    Over,
}

pub(super) struct Session {
    pub(super) socket: OwnedFd,
    pub(super) channel: Channel,
    /// Its name in datagrams, if it has keys.
    pub(super) datagrams: Option<u64>,
    target: Target,
    used_for: Use,
    /// There is a whole request in the input, and no room for it in the lane.
    is_withheld: bool,
    /// It is among those whose lanes are looked at.
    pub(super) is_watched: bool,
    /// Its client.
    pub(super) who: Who,
    /// Whether that may store and erase, too: as of the last time that it was judged.
    pub(super) may_write: bool,
    /// Its messages in backends' rings.
    pub(super) messages: UnderWay,
    /// Goes with it: others see whether it is there still.
    pub(super) life: Arc<()>,
    /// Its place in the engine and in its loop.
    pub(super) seat: Seat,
    /// Less than one frame, unless it is blocked or ready.
    input: Vec<u8>,
    /// Whether there may be whole frames in the input.
    is_ready: bool,
    /// What the client has not taken.
    output: Vec<u8>,
    sent: usize,
    /// Since when it has taken nothing, while it is blocked.
    pub(super) since: Instant,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    /// What was seen of its stream at the last look, with what the socket has not taken.
    pub(super) stream: StreamState,
    work: u64,
}

impl Session {
    /// Of a client that was let in. It goes on with what has come behind the greeting.
    pub(super) fn begin(guest: Guest, (who, seat): (Who, Seat), datagrams: Option<u64>) -> Self {
        let mut session = Session {
            socket: guest.socket,
            channel: guest.channel,
            datagrams,
            target: guest.target,
            used_for: Use::Reads,
            is_withheld: false,
            is_watched: false,
            who,
            may_write: false,
            messages: UnderWay::default(),
            life: Arc::default(),
            seat,
            is_ready: false,
            input: guest.input,
            output: guest.output,
            sent: 0,
            since: Instant::now(),
            bytes_in: 0,
            bytes_out: 0,
            stream: StreamState::default(),
            work: 0,
        };
        // One that is blocked goes on when its socket has room.
        session.is_ready = !session.input.is_empty() && !session.is_blocked();
        session
    }

    pub(super) fn is_blocked(&self) -> bool {
        !self.output.is_empty() || self.channel.waits()
    }

    /// Bytes of answers that its socket has not taken.
    pub(super) fn untaken_len(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Whether it takes nothing more until its lane has room.
    pub(super) fn is_withheld(&self) -> bool {
        self.is_withheld
    }

    /// Whether another loop may have it: nobody else knows it by its name in this one.
    pub(super) fn is_movable(&self) -> bool {
        matches!(self.used_for, Use::Reads) && self.messages.is_none()
    }

    /// What it has cost its loop lately.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// It has had a turn that moved so many bytes.
    pub(super) fn count_work(&mut self, len: u64) {
        self.work += TURN_WORK + len;
    }

    /// So many times what was is worth half.
    pub(super) fn age_work(&mut self, times: u32) {
        self.work = self.work.checked_shr(times).unwrap_or(0);
    }

    /// Whether something will happen in its lane that its client is to hear of.
    pub(super) fn is_waiting(&self) -> bool {
        match &self.used_for {
            Use::Places(placer) => self.is_withheld || placer.is_waiting(),
            Use::Reads | Use::Claims(_) | Use::Over => false,
        }
    }

    /// Its lane, if it has one.
    pub(super) fn lane(&mut self) -> Option<&mut QueueLane> {
        match &mut self.used_for {
            Use::Places(placer) => Some(placer.lane()),
            Use::Reads | Use::Claims(_) | Use::Over => None,
        }
    }

    /// What came of its claim.
    pub(super) fn claimed(&mut self, given: Given) -> Turn {
        let mut out = Vec::new();
        let (used_for, result) = match given {
            Ok((lane, claimed)) => {
                let placer = Placer::new(lane, claimed.slot_count, claimed.placed);
                (Use::Places(Box::new(placer)), Ok(claimed))
            }
            Err(status) => (Use::Over, Err(status)),
        };
        self.used_for = used_for;
        Claimed::encode(&result, &mut out);
        match self.send(&out) {
            Err(end) => Turn::Ends(end),
            Ok(false) => Turn::Blocked,
            Ok(true) => Turn::Waits,
        }
    }

    /// Tells its client what has happened in its lane, and goes on with what was withheld;
    /// not while it is blocked. `None`: nothing was to be told.
    pub(super) fn look(&mut self, buffers: &mut Buffers) -> Option<Turn> {
        if self.is_blocked() {
            return None;
        }
        let Use::Places(placer) = &mut self.used_for else {
            return None;
        };
        if self.is_withheld {
            let len = self.input.len();
            let input = std::mem::take(&mut self.input);
            let (turn, used) = self.place_from(&input, buffers);
            self.input = input;
            self.input.drain(..used);
            let is_over = matches!(turn, Turn::Ends(_));
            let is_news = is_over || self.input.len() < len || !buffers.out.is_empty();
            return is_news.then_some(turn);
        }
        buffers.out.clear();
        placer.look(&mut buffers.out).then(|| self.told(buffers))
    }

    /// Tells its client what came of messages.
    pub(super) fn tell(&mut self, replies: &Replies, its: &[Reply], buffers: &mut Buffers) -> Turn {
        buffers.out.clear();
        for reply in its {
            buffers.out.extend_from_slice(replies.frame(reply));
        }
        self.told_amid(buffers)
    }

    /// Sends what was put out while there may be frames that it has kept. What is blocked goes on
    /// when its client takes answers; what was, and is no more, goes on in the next round, since
    /// nothing else may come that would be a reason to.
    fn told_amid(&mut self, buffers: &Buffers) -> Turn {
        let was_blocked = self.is_blocked();
        match self.told(buffers) {
            Turn::Blocked => {
                self.is_ready = false;
                Turn::Blocked
            }
            Turn::Waits | Turn::Withheld if was_blocked => {
                self.is_ready = true;
                Turn::Ready
            }
            turn => turn,
        }
    }

    /// The server has hung up: tells its client.
    pub(super) fn lane_ends(&mut self, buffers: &mut Buffers) -> Turn {
        let Use::Places(placer) = &mut self.used_for else {
            return Turn::Waits;
        };
        buffers.out.clear();
        let end = placer.lane().end();
        placer.end(end, &mut buffers.out);
        self.used_for = Use::Over;
        self.is_withheld = false;
        self.told(buffers)
    }

    /// Sends what was put out.
    fn told(&mut self, buffers: &Buffers) -> Turn {
        match self.send(&buffers.out) {
            Err(end) => Turn::Ends(end),
            Ok(false) => Turn::Blocked,
            Ok(true) if self.is_withheld => Turn::Withheld,
            Ok(true) => Turn::Waits,
        }
    }

    /// Places what is whole, as far as the lane has room; and how many bytes that were.
    fn place_from(&mut self, input: &[u8], buffers: &mut Buffers) -> (Turn, usize) {
        let Use::Places(placer) = &mut self.used_for else {
            return (Turn::Waits, 0);
        };
        buffers.out.clear();
        let Ok(handled) = placer.handle(input, &mut buffers.out) else {
            return (Turn::Ends(End::Malformed), 0);
        };
        self.is_withheld = handled.is_withheld;
        if handled.is_over {
            self.used_for = Use::Over;
            return (self.told(buffers), input.len());
        }
        (self.told(buffers), handled.used)
    }

    /// Whether its next turn waits for nothing.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Receives once, and carries out what is whole. Not while it is ready: what it keeps
    /// would grow without bound.
    pub(super) fn receive(&mut self, memory: &mut impl Memory, buffers: &mut Buffers) -> Turn {
        // A frame that is not whole leaves less room for what comes next: what is kept
        // stays below one frame and one receipt.
        let received = self
            .channel
            .receive(&self.socket, &mut buffers.received[..]);
        let count = match received {
            Ok(Some(count)) => count,
            Ok(None) if self.is_blocked() => return Turn::Blocked,
            Ok(None) => return Turn::Waits,
            Err(Broken::Closed) => return Turn::Ends(End::Closed),
            Err(Broken::Tls(error)) => {
                tracing::debug!("a session ends: {error}");
                return Turn::Ends(End::Malformed);
            }
        };
        self.bytes_in += count as u64;
        if !self.input.is_empty() {
            self.input.extend_from_slice(&buffers.received[..count]);
            return self.carry_out(memory, buffers);
        }
        // The usual case: whole frames, straight from the loop's buffer.
        let received = std::mem::take(&mut buffers.received);
        let (turn, used) = self.carry_out_from(&received[..count], memory, buffers);
        self.input.extend_from_slice(&received[used..count]);
        buffers.received = received;
        turn
    }

    /// Sends what is left, and goes on with what has come.
    pub(super) fn resume(
        &mut self,
        now: Instant,
        memory: &mut impl Memory,
        buffers: &mut Buffers,
    ) -> Turn {
        match self.send_left(now) {
            Err(end) => return Turn::Ends(end),
            Ok(false) => return Turn::Blocked,
            Ok(true) => {}
        }
        self.carry_out(memory, buffers)
    }

    /// What was kept.
    pub(super) fn carry_out(&mut self, memory: &mut impl Memory, buffers: &mut Buffers) -> Turn {
        let mut input = std::mem::take(&mut self.input);
        let (turn, used) = self.carry_out_from(&input, memory, buffers);
        input.drain(..used);
        // The longest frames are ten times as long as those of requests, and rare.
        if !input.is_empty() || input.capacity() <= INPUT_KEPT_LEN {
            self.input = input;
        }
        turn
    }

    /// Carries out whole frames until there is none, or the client does not take the
    /// answers, or others have waited long enough; and how many bytes that were.
    fn carry_out_from(
        &mut self,
        input: &[u8],
        memory: &mut impl Memory,
        buffers: &mut Buffers,
    ) -> (Turn, usize) {
        let mut used = 0;
        let bytes_out = self.bytes_out;
        self.is_ready = false;
        match &mut self.used_for {
            Use::Reads => {}
            Use::Places(_) => return self.place_from(input, buffers),
            Use::Over => return (Turn::Waits, input.len()),
            Use::Claims(_) if !input.is_empty() => return (Turn::Ends(End::Malformed), 0),
            Use::Claims(later) => return (later.take().map_or(Turn::Waits, Turn::Claims), 0),
        }
        loop {
            buffers.out.clear();
            let result = self.target.handle(&input[used..], memory, &mut buffers.out);
            let sent = self.send(&buffers.out);
            let done = match result {
                // It has been greeted: nobody is refused here.
                Err(TargetError::Refused(_)) => return (Turn::Ends(End::Refused), used),
                Err(TargetError::Malformed(_)) => return (Turn::Ends(End::Malformed), used),
                Ok(done) => done,
            };
            used += done;
            if let Some(claim) = self.target.take_claim() {
                // Its client waits for a lane before it says more.
                let (later, turn) = match sent {
                    Err(end) => (None, Turn::Ends(end)),
                    Ok(_) if used < input.len() => (None, Turn::Ends(End::Malformed)),
                    Ok(true) => (None, Turn::Claims(claim)),
                    Ok(false) => (Some(claim), Turn::Blocked),
                };
                self.used_for = Use::Claims(later);
                return (turn, used);
            }
            match sent {
                Err(end) => return (Turn::Ends(end), used),
                Ok(false) => return (Turn::Blocked, used),
                Ok(true) if done == 0 => return (Turn::Waits, used),
                Ok(true) if self.bytes_out - bytes_out >= TURN_LEN as u64 => {
                    self.is_ready = true;
                    return (Turn::Ready, used);
                }
                Ok(true) => {}
            }
        }
    }

    /// Sends, and keeps what the socket does not take. `false` if there is some.
    fn send(&mut self, bytes: &[u8]) -> Result<bool, End> {
        if bytes.is_empty() {
            return Ok(!self.is_blocked());
        }
        // What is left goes first.
        let count = match self.output.is_empty() {
            true => self.try_send(bytes)?,
            false => 0,
        };
        self.bytes_out += count as u64;
        if count < bytes.len() {
            self.output.extend_from_slice(&bytes[count..]);
        }
        if self.is_blocked() {
            self.since = Instant::now();
        }
        Ok(!self.is_blocked())
    }

    /// `false` if something still is left.
    fn send_left(&mut self, now: Instant) -> Result<bool, End> {
        let waited = self.channel.waits();
        let left = &self.output[self.sent..];
        let sent = self.channel.send(&self.socket, left);
        let count = sent.map_err(|_| End::Closed)?;
        if count > 0 || waited && !self.channel.waits() {
            self.since = now;
        }
        self.sent += count;
        self.bytes_out += count as u64;
        if self.sent == self.output.len() {
            self.output = Vec::new();
            self.sent = 0;
        }
        Ok(!self.is_blocked())
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let sent = self.channel.send(&self.socket, bytes);
        sent.map_err(|_| End::Closed)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::guest::Step;
    use super::super::seats::Seats;
    use super::*;
    use rustix::net::sockopt;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use trefoil_layout::data::DataEntry;
    use trefoil_layout::message::{Request as Asked, RequestHead};
    use trefoil_layout::op::{Action, Mutation};
    use trefoil_layout::{KeyHash, Version};
    use trefoil_softnic_core::limits::WINDOW_LEN;
    use trefoil_softnic_core::wire::message::MESSAGE_SOLICITED_MIN;
    use trefoil_softnic_core::wire::placing::PLACING_VERSION;
    use trefoil_softnic_core::wire::{
        Answer, Ask, HEAD_LEN, Head, Hello, Kind, Message, Open, OpenStatus, Opened, Region,
        Request, Status, Welcome,
    };
    use trefoil_softnic_core::{ReadRange, Scan};

    /// Everybody reads zeroes.
    struct Zeroes;

    impl Memory for Zeroes {
        fn open(&mut self, _: &Open) -> Result<Opened, OpenStatus> {
            unreachable!("nobody opens")
        }

        fn scan(&mut self, _: &Scan, _: &mut Vec<u8>) -> Answer {
            unreachable!("nobody scans")
        }

        fn read(&mut self, _: u32, range: &ReadRange, data: &mut Vec<u8>) -> Answer {
            data.resize(data.len() + range.len as usize, 0);
            Answer {
                data_len: range.len,
                ..Answer::bare(Status::Done)
            }
        }

        fn touch(&mut self, _: u32, _: u8, _: KeyHash) {}
    }

    const READ_LEN: u32 = 128 << 10;

    pub(in super::super) fn asks(frames: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        Hello::new(WINDOW_LEN, &[]).encode(&mut bytes);
        for id in 0..frames {
            let request = Request::Read {
                region: Region::Data,
                partition: 0,
                window_id: 0,
                offset: 0,
                len: READ_LEN,
            };
            let ask = Ask {
                id,
                handle: 0,
                request,
            };
            let ask = ask.encode();
            let head = Head {
                len: ask.len(),
                kind: Kind::Asks,
                count: 1,
            };
            bytes.extend_from_slice(&head.encode());
            bytes.extend_from_slice(&ask);
        }
        bytes
    }

    /// A session whose client is let in, with the first of what came behind its greeting.
    fn admitted(socket: OwnedFd) -> Session {
        let seats = Arc::new(Seats::new(1, 1));
        let mut guest = Guest::new(socket, Channel::default(), Instant::now());
        let welcome = Welcome {
            window: WINDOW_LEN,
            engine: 1,
            session: 1,
        };
        loop {
            let step = guest.step(&mut [0; 4096], |who| {
                let seat = seats.take(&who)?;
                Ok((welcome, (who, seat)))
            });
            match step {
                Step::Waits => std::thread::yield_now(),
                Step::Comes(admitted) => return Session::begin(guest, admitted, None),
                Step::Ends(end) => panic!("{end:?}"),
            }
        }
    }

    #[test]
    fn whoever_asks_for_much_lets_others_in_between() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let frames = 200;
        client.write_all(&asks(frames)).unwrap();
        let mut session = admitted(socket.into());
        // What it takes meanwhile, so that nothing else stops a turn.
        let taker = std::thread::spawn(move || {
            let (mut len, mut buffer) = (0, vec![0; 1 << 20]);
            while let Ok(count) = client.read(&mut buffer)
                && count > 0
            {
                len += count as u64;
            }
            len
        });
        let mut buffers = Buffers::new();
        let (mut longest, mut was_ready) = (0, false);
        while session.bytes_out < frames * u64::from(READ_LEN) {
            let before = session.bytes_out;
            let turn = match (session.is_blocked(), session.is_ready()) {
                (true, _) => session.resume(Instant::now(), &mut Zeroes, &mut buffers),
                (false, true) => session.carry_out(&mut Zeroes, &mut buffers),
                (false, false) => session.receive(&mut Zeroes, &mut buffers),
            };
            assert!(!matches!(turn, Turn::Ends(_)), "{turn:?}");
            was_ready |= turn == Turn::Ready;
            longest = longest.max(session.bytes_out - before);
        }
        assert!(was_ready, "no turn was ended for others");
        let most = 2 * (u64::from(WINDOW_LEN) + (HEAD_LEN as u64) * 64);
        assert!(
            longest <= most + TURN_LEN as u64,
            "{longest} bytes in one turn"
        );
        drop(session);
        assert!(taker.join().unwrap() >= frames * u64::from(READ_LEN));
    }

    /// A CLAIM of this queue.
    pub(in super::super) fn claim(queue: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let claim = Claim {
            version: PLACING_VERSION,
            queue,
            producer: [1, 2],
            returns: None,
        };
        claim.encode(&mut bytes);
        bytes
    }

    /// What came of messages is told amid a turn that goes on in the next round, and the client
    /// does not take it: others must not wait behind that turn, nor it behind others.
    #[test]
    fn whoever_is_told_something_and_does_not_take_it_is_blocked_and_not_ready() {
        let (mut client, mut session) = both(&asks(0));
        sockopt::set_socket_send_buffer_size(&session.socket, 1 << 20).unwrap();
        client.write_all(&asks(3)[asks(0).len()..]).unwrap();
        let mut buffers = Buffers::new();
        // One read fits into what the system keeps, the next does not come at once.
        while !session.is_ready() {
            let turn = session.receive(&mut Zeroes, &mut buffers);
            assert!(matches!(turn, Turn::Waits | Turn::Ready), "{turn:?}");
        }
        let replies = Replies::of_len(1, 4 << 20);
        let its = replies.by_session().next().unwrap();
        assert_eq!(session.tell(&replies, its, &mut buffers), Turn::Blocked);
        assert!(session.is_blocked() && !session.is_ready());
        // What it has kept is carried out when the client takes answers.
        let taker = std::thread::spawn(move || {
            let (mut len, mut buffer) = (0, vec![0; 1 << 20]);
            while let Ok(count) = client.read(&mut buffer)
                && count > 0
            {
                len += count as u64;
            }
            len
        });
        let least = 3 * u64::from(READ_LEN) + (4 << 20);
        while session.bytes_out < least {
            let turn = match (session.is_blocked(), session.is_ready()) {
                (true, _) => session.resume(Instant::now(), &mut Zeroes, &mut buffers),
                (false, true) => session.carry_out(&mut Zeroes, &mut buffers),
                (false, false) => panic!("nothing more comes"),
            };
            assert!(!matches!(turn, Turn::Ends(_)), "{turn:?}");
        }
        drop(session);
        assert!(taker.join().unwrap() >= least);
    }

    /// A long message that came in parts.
    #[test]
    fn a_session_that_waits_keeps_no_memory_of_long_frames() {
        let mut frame = Vec::new();
        let value = vec![7; 60 << 10];
        let request = Asked::Mutate(Mutation {
            action: Action::Set,
            version: Version::new(3, 2, 1),
            entry: DataEntry {
                key: b"k",
                value: &value,
                ..DataEntry::default()
            },
        });
        let head = RequestHead {
            id: 1,
            config_id: 1,
        };
        Message::encode((0, MESSAGE_SOLICITED_MIN), head, &request, &mut frame);
        let (mut client, mut session) = both(&asks(0));
        sockopt::set_socket_send_buffer_size(&session.socket, 1 << 20).unwrap();
        let mut buffers = Buffers::new();
        let (first, last) = frame.split_at(frame.len() - 8);
        for part in [first, last] {
            let received = session.bytes_in + part.len() as u64;
            client.write_all(part).unwrap();
            while session.bytes_in < received {
                let turn = session.receive(&mut Zeroes, &mut buffers);
                assert_eq!(turn, Turn::Waits);
            }
        }
        assert_eq!(session.input.len(), 0);
        let kept = session.input.capacity();
        assert!(kept <= INPUT_KEPT_LEN, "{kept} bytes");
    }

    /// Both ends of a connection; the session has what was sent at first.
    pub(in super::super) fn both(sent: &[u8]) -> (TcpStream, Session) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        // Soon full.
        sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
        socket.set_nonblocking(true).unwrap();
        client.write_all(sent).unwrap();
        (client, admitted(socket.into()))
    }

    /// Turns, until one is none that waits for more.
    fn turn(session: &mut Session) -> Turn {
        let mut buffers = Buffers::new();
        loop {
            let turn = match (session.is_blocked(), session.is_ready()) {
                (true, _) => session.resume(Instant::now(), &mut Zeroes, &mut buffers),
                (false, true) => session.carry_out(&mut Zeroes, &mut buffers),
                (false, false) => session.receive(&mut Zeroes, &mut buffers),
            };
            match turn {
                Turn::Waits | Turn::Ready => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    #[test]
    fn a_session_has_one_claim() {
        let mut sent = asks(0);
        sent.extend(claim(3));
        // Both at once, and one after the other.
        let (_client, mut session) = both(&[&sent[..], &claim(3)].concat());
        assert_eq!(turn(&mut session), Turn::Ends(End::Malformed));
        let (mut client, mut session) = both(&sent);
        assert!(matches!(turn(&mut session), Turn::Claims(claim) if claim.queue == 3));
        client.write_all(&claim(3)).unwrap();
        assert_eq!(turn(&mut session), Turn::Ends(End::Malformed));
        // Nor is anything else asked behind it.
        let (mut client, mut session) = both(&sent);
        assert!(matches!(turn(&mut session), Turn::Claims(_)));
        client.write_all(&asks(1)[asks(0).len()..]).unwrap();
        assert_eq!(turn(&mut session), Turn::Ends(End::Malformed));
    }

    /// More answers than the socket takes, and the CLAIM comes with what they answer: it is
    /// carried out when the client has taken them.
    #[test]
    fn a_claim_waits_behind_answers_that_are_not_read() {
        for frames in [1, 3, 9] {
            let mut sent = asks(frames);
            sent.extend(claim(7));
            let (mut client, mut session) = both(&sent);
            for _ in 0..100 {
                assert_eq!(turn(&mut session), Turn::Blocked, "nobody reads");
            }
            let taker = std::thread::spawn(move || {
                let mut len = 0;
                let mut buffer = vec![0; 64 << 10];
                while len < frames * u64::from(READ_LEN) {
                    len += client.read(&mut buffer).unwrap() as u64;
                }
                client
            });
            let claimed = loop {
                match turn(&mut session) {
                    Turn::Blocked => std::thread::yield_now(),
                    other => break other,
                }
            };
            assert!(
                matches!(claimed, Turn::Claims(claim) if claim.queue == 7),
                "{claimed:?}"
            );
            assert!(!session.is_blocked() && session.bytes_out > frames * u64::from(READ_LEN));
            let mut client = taker.join().unwrap();
            // Still only one.
            client.write_all(&claim(7)).unwrap();
            assert_eq!(turn(&mut session), Turn::Ends(End::Malformed));
        }
    }
}
