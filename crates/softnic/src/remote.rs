//! A client of an ordered queue on another host: a carrier whose requests an engine beside
//! the queue places and acknowledges. What is said, and why each request is in the queue
//! once whatever breaks, is in [`trefoil_softnic_core::placing`].
//!
//! Whoever waits finds out that the connection has broken, and has another one made, to the
//! same address, until the time that they have is over. A thread makes it, so that an attempt
//! takes the time that it needs, in however short steps somebody waits; who waits again finds
//! what came of it.

use crate::channel::Channel;
use crate::dial::{ConnectError, Dialled, EngineAddress, RECEIVE_LEN, dial};
use crate::vanished;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use trefoil_fabric::clock::monotonic_ns;
use trefoil_ordered::{Carrier, Committed, NoAnswer, Refused};
use trefoil_region::ForkMark;
use trefoil_softnic_core::placing::{NotSent, Sender, Taken};
use trefoil_softnic_core::wire::placing::{PLACING_VERSION, Return};
use trefoil_softnic_core::wire::{Claim, Claimed};
use trefoil_softnic_core::{Event, SessionError};

/// How long it looks for what comes before it sleeps, unless chosen otherwise.
const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// Longest attempt at another connection; a server may nap before it gives a lane.
const DIAL_MAX: Duration = Duration::from_secs(6);
/// Between two attempts.
const AGAIN_MIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(100);

/// A connection that stands.
struct Link {
    socket: TcpStream,
    channel: Channel,
    /// Less than one frame.
    input: Vec<u8>,
}

/// What an attempt at another connection comes to.
type Attempt = mpsc::Receiver<Result<(Link, Claimed), ConnectError>>;

/// See the module. One thread uses it.
pub struct RemoteQueue {
    engine: EngineAddress,
    claim: Claim,
    claimed: Claimed,
    link: Option<Link>,
    /// At another connection, while there is none.
    attempt: Option<Attempt>,
    sender: Sender,
    received: Box<[u8]>,
    spin: Duration,
    /// Not tried again before then.
    again_at: Option<Instant>,
    again: Duration,
    /// The queue does not know this producer any more: what is not known never will be.
    is_over: bool,
    reconnected: u64,
    /// A fork's child shares the connection with its parent, whose stream it would break.
    process: ForkMark,
}

impl std::fmt::Debug for RemoteQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteQueue")
            .field("engine", &self.engine)
            .field("is_connected", &self.link.is_some())
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}

impl RemoteQueue {
    /// A producer's place in a queue beside an engine, within `timeout`.
    pub fn connect(
        engine: EngineAddress,
        queue: u32,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let claim = Claim {
            version: PLACING_VERSION,
            queue,
            producer: [random(), random()],
            returns: None,
        };
        let (link, claimed) = claim_at(&engine, &claim, timeout)?;
        Ok(RemoteQueue {
            engine,
            claim: Claim {
                returns: Some(Return {
                    epoch: claimed.epoch,
                    attempt: 0,
                }),
                ..claim
            },
            claimed,
            link: Some(link),
            attempt: None,
            sender: Sender::new(&claimed),
            received: vec![0; RECEIVE_LEN].into_boxed_slice(),
            spin: SPIN_DEFAULT,
            again_at: None,
            again: AGAIN_MIN,
            is_over: false,
            reconnected: 0,
            process: ForkMark::new(),
        })
    }

    /// How long to look for what comes before sleeping.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// What the engine said of the queue at first.
    pub fn claimed(&self) -> Claimed {
        self.claimed
    }

    /// Connections that were made after the first one.
    pub fn reconnected(&self) -> u64 {
        self.reconnected
    }

    /// Sends what the connection has not taken yet and takes in what has come, without
    /// waiting, for who looks by themselves ([`RemoteQueue::is_committed`]). `false`: there is
    /// no connection now; who waits makes another one.
    #[inline]
    pub fn look(&mut self) -> bool {
        self.pump();
        self.link.is_some()
    }

    /// Whether a request is known to be committed.
    #[inline]
    pub fn is_committed(&self, request: Committed) -> bool {
        self.sender.committed() >= request.sequence
    }

    /// Whether a request is known to be executed.
    #[inline]
    pub fn is_executed(&self, request: Committed) -> bool {
        self.sender.executed() >= request.sequence
    }

    /// Takes the answer to a request that was not nilext, if it has come: `None` if not.
    #[inline]
    pub fn take_answer(
        &mut self,
        to: Committed,
        into: &mut Vec<u8>,
    ) -> Option<Result<(), NoAnswer>> {
        taken(&mut self.sender, to, into)
    }

    /// Whether nothing more will ever be known of what was sent.
    fn has_ended(&self) -> bool {
        self.is_over || self.sender.end().is_some()
    }

    /// Sends what is to be sent and takes in what has come. Whether something has.
    #[inline]
    fn pump(&mut self) -> bool {
        if self.process.is_child() {
            return false;
        }
        let Some(link) = &mut self.link else {
            return false;
        };
        match link.exchange(&mut self.sender, &mut self.received) {
            Some(came) => came,
            None => {
                self.link = None;
                false
            }
        }
    }

    /// Another connection: waits for what comes of the attempt at it, or until it is time for
    /// one, no longer than `left`.
    fn reconnect(&mut self, left: Duration) {
        let attempt = match self.attempt.take() {
            Some(attempt) => attempt,
            None => {
                let now = Instant::now();
                if let Some(pause) = self.again_at.and_then(|at| at.checked_duration_since(now)) {
                    return std::thread::sleep(pause.min(left));
                }
                if let Some(back) = &mut self.claim.returns {
                    back.attempt += 1;
                }
                match begin(self.engine.clone(), self.claim) {
                    Ok(attempt) => attempt,
                    // There can be no further thread for now.
                    Err(_) => return self.wait_with_the_next(),
                }
            }
        };
        match attempt.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => self.attempt = Some(attempt),
            Ok(Ok((link, claimed))) if self.sender.resume(&claimed) => {
                self.link = Some(link);
                self.again_at = None;
                self.again = AGAIN_MIN;
                self.reconnected += 1;
            }
            Ok(Ok(_)) => self.is_over = true,
            Ok(Err(error)) if is_final(&error) => self.is_over = true,
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => self.wait_with_the_next(),
        }
    }

    fn wait_with_the_next(&mut self) {
        self.again_at = Some(Instant::now() + self.again);
        self.again = (self.again * 2).min(AGAIN_MAX);
    }

    /// Looks for what comes, then sleeps until something does.
    fn wait<T>(
        &mut self,
        timeout: Duration,
        mut look: impl FnMut(&mut Sender) -> Option<T>,
    ) -> Result<T, NoAnswer> {
        if self.process.is_child() {
            return Err(NoAnswer::OtherProcess);
        }
        let begin = Instant::now();
        loop {
            self.pump();
            if let Some(found) = look(&mut self.sender) {
                return Ok(found);
            }
            let waited = begin.elapsed();
            if self.has_ended() {
                return Err(NoAnswer::ServerGone);
            }
            let left = timeout.saturating_sub(waited);
            match &self.link {
                // Who only looks gets on with it, too.
                None => self.reconnect(left),
                Some(_) if left.is_zero() => {}
                Some(link) if waited >= self.spin => {
                    let wants_room = !self.sender.output().is_empty();
                    link.sleep(wants_room, left);
                }
                Some(_) => std::hint::spin_loop(),
            }
            if left.is_zero() {
                return Err(NoAnswer::TimedOut(timeout));
            }
        }
    }
}

/// What a look for an answer comes to.
fn taken(sender: &mut Sender, to: Committed, into: &mut Vec<u8>) -> Option<Result<(), NoAnswer>> {
    match sender.take_answer(to.sequence, into) {
        Taken::Answer => Some(Ok(())),
        Taken::Lost => Some(Err(NoAnswer::Lost)),
        Taken::NotOwed => Some(Err(NoAnswer::NotOwed)),
        Taken::NotYet => None,
    }
}

impl Carrier for RemoteQueue {
    /// Sends a request, or as much of it as the connection takes now: what follows sends the
    /// rest. Its position is not told. What has ended refuses.
    #[inline]
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        if self.process.is_child() {
            return Err(Refused::OtherProcess);
        }
        if self.is_over {
            return Err(Refused::Closed);
        }
        let mut sent = self.sender.submit(request, nilext);
        if sent == Err(NotSent::Full) && self.pump() {
            sent = self.sender.submit(request, nilext);
        }
        let sequence = sent.map_err(|why| match why {
            NotSent::Full => Refused::Full,
            NotSent::TooLong => Refused::TooLong { len: request.len() },
            NotSent::Over(_) => Refused::Closed,
        })?;
        if let Some(link) = &mut self.link
            && link.flush(&mut self.sender).is_none()
        {
            // Who waits makes another one.
            self.link = None;
        }
        Ok(Committed {
            position: 0,
            sequence,
        })
    }

    #[inline]
    fn committed(&mut self, request: Committed, timeout: Duration) -> Result<(), NoAnswer> {
        self.wait(timeout, |sender| {
            (sender.committed() >= request.sequence).then_some(())
        })
    }

    fn answer(
        &mut self,
        to: Committed,
        into: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), NoAnswer> {
        self.wait(timeout, |sender| taken(sender, to, into))?
    }

    fn forget(&mut self, to: Committed) {
        self.sender.forget_answer(to.sequence);
    }

    fn wait_for_room(&mut self, timeout: Duration) -> Result<(), NoAnswer> {
        self.wait(timeout, |sender| sender.has_room().then_some(()))
    }
}

impl Link {
    /// `None`: the connection has broken.
    #[inline]
    fn flush(&mut self, sender: &mut Sender) -> Option<()> {
        if !sender.output().is_empty() || self.channel.waits() {
            let sent = self.channel.send(&self.socket, sender.output()).ok()?;
            sender.sent(sent);
        }
        Some(())
    }

    /// Sends and receives, without waiting. Whether something has come; `None`: the connection
    /// has broken.
    #[inline]
    fn exchange(&mut self, sender: &mut Sender, received: &mut [u8]) -> Option<bool> {
        // What came before the end counts, whether anything more can be sent or not.
        let flushed = self.flush(sender);
        let came = match self.channel.receive(&self.socket, received) {
            Ok(None) => false,
            Ok(Some(count)) if self.input.is_empty() => {
                let done = sender.handle(&received[..count]).ok()?;
                self.input.extend_from_slice(&received[done..count]);
                true
            }
            Ok(Some(count)) => {
                self.input.extend_from_slice(&received[..count]);
                let done = sender.handle(&self.input).ok()?;
                self.input.drain(..done);
                true
            }
            Err(_) => return None,
        };
        if came {
            return Some(true);
        }
        flushed.map(|()| false)
    }

    /// Sleeps until something comes, or there is room for what is to be sent if that is wanted.
    fn sleep(&self, wants_room: bool, left: Duration) {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, wants_room || self.channel.waits());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()) as _,
        };
        // An interrupted wait is a short one.
        let _ = poll(&mut [PollFd::new(&self.socket, flags)], Some(&timeout));
    }
}

/// Begins an attempt at another connection. Who does not wait for what comes of it any more
/// has its session ended with that.
fn begin(engine: EngineAddress, claim: Claim) -> std::io::Result<Attempt> {
    let (to, attempt) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("trefoil-again".to_owned())
        .spawn(move || {
            let _ = to.send(claim_at(&engine, &claim, DIAL_MAX));
        })?;
    Ok(attempt)
}

/// A session whose client may place.
fn claim_at(
    engine: &EngineAddress,
    claim: &Claim,
    timeout: Duration,
) -> Result<(Link, Claimed), ConnectError> {
    let address = engine.address;
    let mut claimed = None;
    let begin = |initiator: &mut trefoil_softnic_core::Initiator| {
        initiator.claim(claim, monotonic_ns());
    };
    let dialled = dial(engine, timeout, begin, |event| {
        if let Event::Claimed(result) = event {
            claimed = Some(result);
        }
        claimed.is_some()
    })?;
    let claimed = claimed.ok_or(ConnectError::HungUp { address })?;
    let claimed = claimed.map_err(|status| ConnectError::NotClaimed {
        address,
        queue: claim.queue,
        status,
    })?;
    let Dialled {
        socket,
        channel,
        input,
        ..
    } = dialled;
    let unreachable = |source: rustix::io::Errno| ConnectError::Unreachable {
        address,
        source: source.into(),
    };
    vanished::watch_writer(&socket).map_err(unreachable)?;
    let link = Link {
        socket,
        channel,
        input,
    };
    Ok((link, claimed))
}

/// Whether a later attempt would come to the same.
fn is_final(error: &ConnectError) -> bool {
    match error {
        ConnectError::NotClaimed { status, .. } => !status.may_pass(),
        ConnectError::Session {
            source: SessionError::Malformed(_),
            ..
        } => true,
        _ => false,
    }
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
