//! A client's connection: its socket, what has come and is not whole, what is not taken yet.

use super::Who;
use super::guest::Guest;
use super::shared::Seat;
use crate::channel::{Broken, Channel};
use std::os::fd::OwnedFd;
use std::time::Instant;
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

impl Buffers {
    pub(super) fn new() -> Self {
        Buffers {
            received: vec![0; RECEIVE_LEN],
            out: Vec::new(),
        }
    }
}

pub(super) struct Session {
    pub(super) socket: OwnedFd,
    pub(super) channel: Channel,
    /// Its name in datagrams, if it has keys.
    pub(super) datagrams: Option<u64>,
    target: Target,
    /// Its client.
    pub(super) who: Who,
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
}

impl Session {
    /// Of a client that was let in. It goes on with what has come behind the greeting.
    pub(super) fn begin(guest: Guest, (who, seat): (Who, Seat), datagrams: Option<u64>) -> Self {
        let mut session = Session {
            socket: guest.socket,
            channel: guest.channel,
            datagrams,
            target: guest.target,
            who,
            seat,
            is_ready: false,
            input: guest.input,
            output: guest.output,
            sent: 0,
            since: Instant::now(),
            bytes_in: 0,
            bytes_out: 0,
        };
        // One that is blocked goes on when its socket has room.
        session.is_ready = !session.input.is_empty() && !session.is_blocked();
        session
    }

    pub(super) fn is_blocked(&self) -> bool {
        !self.output.is_empty() || self.channel.waits()
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
        self.input = input;
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
        let count = self.try_send(bytes)?;
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
mod tests {
    use super::super::EngineOptions;
    use super::super::guest::Step;
    use super::super::shared::Shared;
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use trefoil_layout::KeyHash;
    use trefoil_softnic_core::limits::WINDOW_LEN;
    use trefoil_softnic_core::wire::{
        Answer, Ask, HEAD_LEN, Head, Hello, Kind, Open, OpenStatus, Opened, Region, Request,
        Status, Welcome,
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

    fn asks(frames: u64) -> Vec<u8> {
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
        let shared = Shared::new(EngineOptions::default(), Arc::new(|_| true)).unwrap();
        let mut guest = Guest::new(socket, Channel::default(), Instant::now());
        let welcome = Welcome {
            window: WINDOW_LEN,
            engine: 1,
            session: 1,
        };
        loop {
            let seat = shared.seat().unwrap();
            let step = guest.step(&mut [0; 4096], |who| Ok((welcome, (who, seat))));
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
}
