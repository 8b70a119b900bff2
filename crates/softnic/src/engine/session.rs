//! One connection: its socket, what has come and is not whole, what is not taken yet.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::OwnedFd;
use std::time::Instant;
use trefoil_softnic_core::{Memory, Target, TargetError};

/// How a turn of a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It waits for more to come.
    Waits,
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
    Malformed,
}

/// Buffers that a loop lends to whichever session has its turn.
pub(super) struct Buffers {
    pub(super) received: Vec<u8>,
    pub(super) out: Vec<u8>,
}

/// Bytes received at a time.
const RECEIVE_LEN: usize = 64 << 10;

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
    pub(super) target: Target,
    /// Less than one frame, unless it is blocked.
    input: Vec<u8>,
    /// What the client has not taken.
    output: Vec<u8>,
    sent: usize,
    /// Since when it has not shown whose it is, or has taken nothing.
    pub(super) since: Instant,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

impl Session {
    pub(super) fn new(socket: OwnedFd, now: Instant) -> Self {
        Session {
            socket,
            target: Target::new(),
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            since: now,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        !self.output.is_empty()
    }

    /// Receives once, and carries out what is whole.
    pub(super) fn receive(&mut self, memory: &mut impl Memory, buffers: &mut Buffers) -> Turn {
        // A frame that is not whole leaves less room for what comes next: what is kept
        // stays below one frame and one receipt.
        let count = match recv(&self.socket, &mut buffers.received[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Turn::Ends(End::Closed),
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Turn::Waits,
            Err(_) => return Turn::Ends(End::Closed),
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
    fn carry_out(&mut self, memory: &mut impl Memory, buffers: &mut Buffers) -> Turn {
        let mut input = std::mem::take(&mut self.input);
        let (turn, used) = self.carry_out_from(&input, memory, buffers);
        input.drain(..used);
        self.input = input;
        turn
    }

    /// Carries out whole frames until there is none, or the client does not take the
    /// answers; and how many bytes that were.
    fn carry_out_from(
        &mut self,
        input: &[u8],
        memory: &mut impl Memory,
        buffers: &mut Buffers,
    ) -> (Turn, usize) {
        let mut used = 0;
        loop {
            buffers.out.clear();
            let result = self.target.handle(&input[used..], memory, &mut buffers.out);
            let sent = self.send(&buffers.out);
            let done = match result {
                // Whoever is refused reads why, if there is room in its socket.
                Err(TargetError::Refused(_)) => return (Turn::Ends(End::Refused), used),
                Err(TargetError::Malformed(_)) => return (Turn::Ends(End::Malformed), used),
                Ok(done) => done,
            };
            used += done;
            match sent {
                Err(end) => return (Turn::Ends(end), used),
                Ok(false) => return (Turn::Blocked, used),
                Ok(true) if done == 0 => return (Turn::Waits, used),
                Ok(true) => {}
            }
        }
    }

    /// Sends, and keeps what the socket does not take. `false` if there is some.
    fn send(&mut self, bytes: &[u8]) -> Result<bool, End> {
        if bytes.is_empty() {
            return Ok(true);
        }
        let count = self.try_send(bytes)?;
        self.bytes_out += count as u64;
        if count < bytes.len() {
            self.output.extend_from_slice(&bytes[count..]);
            self.since = Instant::now();
        }
        Ok(count == bytes.len())
    }

    /// `false` if something still is left.
    fn send_left(&mut self, now: Instant) -> Result<bool, End> {
        let count = self.try_send(&self.output[self.sent..])?;
        if count > 0 {
            self.since = now;
        }
        self.sent += count;
        self.bytes_out += count as u64;
        let is_done = self.sent == self.output.len();
        if is_done {
            self.output = Vec::new();
            self.sent = 0;
        }
        Ok(is_done)
    }

    fn try_send(&self, bytes: &[u8]) -> Result<usize, End> {
        match send(
            &self.socket,
            bytes,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(_) => Err(End::Closed),
        }
    }
}
