//! A client of a queue over RDMA.
//!
//! A request is committed when its SEND is done: the server's card has it. What is not known
//! to be committed stays in its buffer, and is sent again over another connection if the
//! server says there that it is not in the queue.
//!
//! Whoever waits finds out that the connection has broken, and has another one made, until the
//! time that they have is over. A thread makes it, so that an attempt takes the time that it
//! needs, in however short steps somebody waits.

use crate::memory::{self, MemoryError};
use crate::setup::read_until;
use crate::wire::{
    BUFFER_LEN, END, Hello, PACKET_LEN_MIN, Request, Status, WELCOME_LEN, Welcome, decode_answer,
};
use crate::worker::{open, random};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use trefoil_ordered::slot::PAYLOAD_LEN_MAX;
use trefoil_ordered::{Carrier, Committed, NoAnswer, ProducerId, Refused};
use trefoil_region::{ForkMark, Mapping, WordBuffer};
use trefoil_verbs::{
    Completions, Connection, Device, Outcome, Region, SendFlags, Timers, VerbsError,
};

/// How long it looks for what comes before it sleeps, unless chosen otherwise.
const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// Longest attempt at another connection.
const DIAL_MAX: Duration = Duration::from_secs(6);
/// Who waits for longer is as good as without a bound; the system's clocks are not.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Between two attempts.
const AGAIN_MIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(100);
/// Windows that a server may have; its bounds are [`crate::VerbsOptions`]'.
const WINDOW_MAX: u32 = 1024;

/// Where a queue is, and by what it lets this client in.
#[derive(Clone, Debug)]
pub struct QueueAddress {
    /// Where connections are set up.
    pub address: SocketAddr,
    /// What is shown there.
    pub token: Vec<u8>,
    /// The address of this host's device; `None`: the one by which the server is reached.
    pub device: Option<IpAddr>,
}

/// Why there is no connection to a queue.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Memory for requests.
    #[error("cannot set up buffers for requests: {0}")]
    Memory(#[from] MemoryError),
    /// Nobody is there, or whoever is has hung up.
    #[error("cannot set up a connection to the queue at {address}: {source}")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// Something else is there.
    #[error("what listens at {address} is no queue over RDMA of this version")]
    Foreign {
        /// Where.
        address: SocketAddr,
    },
    /// It does not let this client in.
    #[error("the queue at {address} does not let this client in: {}", words(*status))]
    Refused {
        /// Where.
        address: SocketAddr,
        /// Why not.
        status: Status,
    },
}

fn words(status: Status) -> &'static str {
    match status {
        Status::In => "no reason is given",
        Status::NotAdmitted => "the token is not its; show the one that the server was given",
        Status::Full => "it has as many clients as it takes; end one, or raise the server's bound",
        Status::Forgotten => "it knows nothing of this client any more; make a new one",
        Status::Superseded => "this client has come again meanwhile",
        Status::Version => "it is of another version",
        Status::Device => "its device cannot connect to this one's; are both on one network?",
        Status::Ended => "it has ended",
    }
}

/// A connection that stands.
struct Link {
    control: TcpStream,
    sent: Arc<Completions>,
    received: Arc<Completions>,
    connection: Connection,
    /// Requests first, then buffers for answers.
    region: Region,
}

/// What an attempt at another connection comes to.
type Attempt = mpsc::Receiver<Result<(Link, Welcome), ConnectError>>;

/// A request that was not nilext.
struct Owed {
    number: u64,
    answer: Option<Box<[u8]>>,
}

/// See the module. One thread uses it.
pub struct VerbsQueue {
    address: QueueAddress,
    producer: ProducerId,
    attempts: u64,
    epoch: u64,
    client_id: u64,
    window: u32,
    /// Of all its connections, one after the other.
    mapping: Mapping,
    link: Option<Link>,
    attempt: Option<Attempt>,
    again_at: Option<Instant>,
    again: Duration,
    /// The number of the last request.
    last: u64,
    committed: u64,
    executed: u64,
    /// Bytes of the requests that are not committed.
    lens: VecDeque<u32>,
    owed: VecDeque<Owed>,
    /// Nothing more will be known.
    is_over: bool,
    spin: Duration,
    reconnected: u64,
    message: Vec<u8>,
    image: WordBuffer,
    /// A fork's child has no part in its parent's connection.
    process: ForkMark,
}

impl std::fmt::Debug for VerbsQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsQueue")
            .field("address", &self.address.address)
            .field("is_connected", &self.link.is_some())
            .field("last", &self.last)
            .field("committed", &self.committed)
            .field("executed", &self.executed)
            .finish_non_exhaustive()
    }
}

impl VerbsQueue {
    /// A place in a queue, within `timeout`.
    pub fn connect(address: QueueAddress, timeout: Duration) -> Result<Self, ConnectError> {
        let producer = [random(), random()];
        let asks = Asks {
            address: address.clone(),
            producer,
            epoch: 0,
            attempt: 0,
            former: None,
        };
        let (link, welcome, mapping) = asks.dial(timeout)?;
        Ok(VerbsQueue {
            address,
            producer,
            attempts: 0,
            epoch: welcome.epoch,
            client_id: welcome.client_id,
            window: welcome.window,
            mapping,
            link: Some(link),
            attempt: None,
            again_at: None,
            again: AGAIN_MIN,
            last: 0,
            committed: 0,
            executed: 0,
            lens: VecDeque::new(),
            owed: VecDeque::new(),
            is_over: false,
            spin: SPIN_DEFAULT,
            reconnected: 0,
            message: Vec::new(),
            image: WordBuffer::default(),
            process: ForkMark::new(),
        })
    }

    /// How long to look for what comes before sleeping.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// Connections that were made after the first one.
    pub fn reconnected(&self) -> u64 {
        self.reconnected
    }

    /// Breaks the connection, as a network may: whoever waits makes another one.
    pub fn disconnect(&mut self) {
        self.link = None;
    }

    fn has_room(&self) -> bool {
        // What was answered and not taken holds its place.
        let oldest = self.owed.front().map_or(u64::MAX, |owed| owed.number - 1);
        self.last - self.committed.min(oldest) < u64::from(self.window)
    }

    fn buffer(&self, number: u64) -> u32 {
        (number % u64::from(self.window)) as u32
    }

    /// Sends a request that is in its buffer. `false`: the connection has broken.
    fn post(&self, number: u64) -> bool {
        let Some(link) = &self.link else {
            return false;
        };
        let Some(len) = self.lens.get((number - self.committed - 1) as usize) else {
            return false;
        };
        // Woken by what wants an answer, and now and then for room.
        let is_owed = self.owed.back().is_some_and(|owed| owed.number >= number);
        let how = SendFlags {
            wakes: is_owed || number.is_multiple_of(u64::from(self.window / 2)),
            is_signaled: true,
            immediate: None,
        };
        let part = memory::part(self.buffer(number), *len as usize);
        link.connection
            .send(number, &link.region, part, how)
            .is_ok()
    }

    /// Takes in what the card reports.
    #[inline]
    fn pump(&mut self) {
        let Some(link) = &self.link else {
            return;
        };
        let mut is_broken = false;
        let mut committed = self.committed;
        let polled = drained(&link.sent, |completion| match completion {
            (Outcome::Done, number, _) => committed = committed.max(number),
            _ => is_broken = true,
        });
        is_broken |= polled.is_err();
        let (owed, image, mut executed) = (&mut self.owed, &mut self.image, self.executed);
        let last = self.last;
        let polled = drained(&link.received, |completion| {
            let (Outcome::Done, buffer, len) = completion else {
                is_broken = true;
                return;
            };
            let bytes = memory::read(&link.region, buffer as u32, len as usize, image);
            let Some((number, answer)) = decode_answer(bytes) else {
                is_broken = true;
                return;
            };
            if number > last {
                is_broken = true;
                return;
            }
            executed = executed.max(number);
            // One that was forgotten is not kept.
            if let Ok(at) = owed.binary_search_by_key(&number, |owed| owed.number) {
                owed[at].answer = Some(answer.into());
            }
            let whole = memory::part(buffer as u32, BUFFER_LEN);
            is_broken |= link
                .connection
                .post_receive(buffer, &link.region, whole)
                .is_err();
        });
        is_broken |= polled.is_err();
        // What is executed was in the queue, whenever its acknowledgement is reported.
        self.executed = executed;
        self.commit(committed.max(executed).min(last));
        if is_broken {
            self.hear_the_end();
            self.link = None;
        }
    }

    fn commit(&mut self, committed: u64) {
        for _ in self.committed..committed {
            self.lens.pop_front();
        }
        self.committed = self.committed.max(committed);
    }

    /// Whether the server has said that it ends, or has gone.
    fn hear_the_end(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        let mut word = [0];
        match link.control.read(&mut word) {
            Ok(1) if word[0] == END => {
                self.is_over = true;
                self.link = None;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.link = None,
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
                self.attempts += 1;
                let asks = Asks {
                    address: self.address.clone(),
                    producer: self.producer,
                    epoch: self.epoch,
                    attempt: self.attempts,
                    former: Some((self.mapping.clone(), self.window)),
                };
                match asks.begin() {
                    Ok(attempt) => attempt,
                    // There can be no further thread for now.
                    Err(_) => return self.wait_with_the_next(),
                }
            }
        };
        match attempt.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => self.attempt = Some(attempt),
            Ok(Ok((link, welcome))) => self.resume(link, &welcome),
            Ok(Err(ConnectError::Refused { status, .. })) if is_final(status) => {
                self.is_over = true;
            }
            Ok(Err(ConnectError::Foreign { .. })) => self.is_over = true,
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => self.wait_with_the_next(),
        }
    }

    /// Over another connection: what is not in the queue is sent again.
    fn resume(&mut self, link: Link, welcome: &Welcome) {
        let placed = welcome.placed;
        let is_possible = welcome.epoch == self.epoch
            && welcome.client_id == self.client_id
            && (self.committed..=self.last).contains(&placed);
        if !is_possible {
            self.is_over = true;
            return;
        }
        self.commit(placed);
        self.executed = self.executed.max(placed);
        self.again_at = None;
        self.again = AGAIN_MIN;
        self.reconnected += 1;
        self.link = Some(link);
        for number in placed + 1..=self.last {
            if !self.post(number) {
                self.link = None;
                return;
            }
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
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, NoAnswer> {
        if self.process.is_child() {
            return Err(NoAnswer::OtherProcess);
        }
        let begin = Instant::now();
        loop {
            self.pump();
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if self.is_over {
                return Err(NoAnswer::ServerGone);
            }
            let waited = begin.elapsed();
            let left = timeout.saturating_sub(waited).min(WAIT_MAX);
            match &self.link {
                // Who only looks gets on with it, too.
                None => self.reconnect(left),
                Some(_) if left.is_zero() => self.hear_the_end(),
                Some(_) if waited >= self.spin => self.sleep(left),
                Some(_) => std::hint::spin_loop(),
            }
            if left.is_zero() {
                return Err(NoAnswer::TimedOut(timeout));
            }
        }
    }

    /// Sleeps until the card has something to report, or the connection ends.
    fn sleep(&mut self, left: Duration) {
        let Some(link) = &self.link else {
            return;
        };
        let armed = link.sent.arm(false).and(link.received.arm(false));
        if armed.is_err() {
            self.link = None;
            return;
        }
        let (committed, executed) = (self.committed, self.executed);
        // What came between the last look and this.
        self.pump();
        let Some(link) = &self.link else {
            return;
        };
        if (self.committed, self.executed) == (committed, executed) {
            let mut sockets = [
                PollFd::new(&*link.sent, PollFlags::IN),
                PollFd::new(&*link.received, PollFlags::IN),
                PollFd::new(&link.control, PollFlags::IN),
            ];
            let timeout = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()) as _,
            };
            // An interrupted sleep is a short one.
            let _ = poll(&mut sockets, Some(&timeout));
            let is_end = !sockets[2].revents().is_empty();
            link.sent.silence();
            link.received.silence();
            if is_end {
                // What was acknowledged or answered before the end counts.
                self.pump();
                self.hear_the_end();
            }
        } else {
            link.sent.silence();
            link.received.silence();
        }
    }

    fn taken(&mut self, number: u64, into: &mut Vec<u8>) -> Option<Result<(), NoAnswer>> {
        let Ok(at) = self.owed.binary_search_by_key(&number, |owed| owed.number) else {
            return Some(Err(NoAnswer::NotOwed));
        };
        if let Some(answer) = &self.owed[at].answer {
            into.clear();
            into.extend_from_slice(answer);
        } else if self.executed < number {
            return None;
        }
        let owed = self.owed.remove(at)?;
        Some(owed.answer.map(drop).ok_or(NoAnswer::Lost))
    }
}

impl Drop for VerbsQueue {
    fn drop(&mut self) {
        if self.process.is_child() {
            // What the child would destroy is the device's, and its parent's.
            std::mem::forget(self.link.take());
        }
    }
}

/// All that a queue of completions has; each as how it ended, its number and its length.
#[inline]
fn drained(
    completions: &Completions,
    mut each: impl FnMut((Outcome, u64, u32)),
) -> Result<(), VerbsError> {
    while completions.poll(|one| each((one.outcome, one.id, one.len)))? {}
    Ok(())
}

impl Carrier for VerbsQueue {
    /// Sends a request. Its position is not told. What has ended refuses.
    #[inline]
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        let len = request.len();
        if len > PAYLOAD_LEN_MAX {
            return Err(Refused::TooLong { len });
        }
        if self.process.is_child() {
            return Err(Refused::OtherProcess);
        }
        if !self.has_room() {
            self.pump();
        }
        if self.is_over {
            return Err(Refused::Closed);
        }
        if !self.has_room() {
            return Err(Refused::Full);
        }
        self.last += 1;
        let number = self.last;
        let message = Request {
            client_id: self.client_id,
            number,
            nilext,
            payload: request,
        };
        message.encode(self.epoch, &mut self.message);
        // No longer than a buffer.
        self.lens.push_back(self.message.len() as u32);
        memory::write(self.mapping.words(), self.buffer(number), &self.message);
        if !nilext {
            self.owed.push_back(Owed {
                number,
                answer: None,
            });
        }
        if !self.post(number) {
            // Who waits makes another one.
            self.link = None;
        }
        Ok(Committed {
            position: 0,
            sequence: number,
        })
    }

    fn committed(&mut self, request: Committed, timeout: Duration) -> Result<(), NoAnswer> {
        self.wait(timeout, |queue| {
            (queue.committed >= request.sequence).then_some(())
        })
    }

    fn answer(
        &mut self,
        to: Committed,
        into: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), NoAnswer> {
        self.wait(timeout, |queue| queue.taken(to.sequence, into))?
    }

    fn forget(&mut self, to: Committed) {
        let found = self
            .owed
            .binary_search_by_key(&to.sequence, |owed| owed.number);
        if let Ok(at) = found {
            self.owed.remove(at);
        }
    }

    fn wait_for_room(&mut self, timeout: Duration) -> Result<(), NoAnswer> {
        self.wait(timeout, |queue| queue.has_room().then_some(()))
    }
}

/// Whether a later attempt would come to the same.
fn is_final(status: Status) -> bool {
    match status {
        Status::Full | Status::Device | Status::Superseded => false,
        Status::In | Status::NotAdmitted | Status::Forgotten | Status::Version | Status::Ended => {
            true
        }
    }
}

/// What an attempt at a connection needs.
struct Asks {
    address: QueueAddress,
    producer: ProducerId,
    epoch: u64,
    attempt: u64,
    /// Memory and window of the connections before.
    former: Option<(Mapping, u32)>,
}

impl Asks {
    /// An attempt by a thread of its own. Who does not wait for what comes of it any more has
    /// the connection ended with that.
    fn begin(self) -> io::Result<Attempt> {
        let (to, attempt) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("trefoil-again".to_owned())
            .spawn(move || {
                let dialled = self.dial(DIAL_MAX);
                let _ = to.send(dialled.map(|(link, welcome, _)| (link, welcome)));
            })?;
        Ok(attempt)
    }

    fn dial(&self, timeout: Duration) -> Result<(Link, Welcome, Mapping), ConnectError> {
        let address = self.address.address;
        let unreachable = |source| ConnectError::Unreachable { address, source };
        let timeout = timeout.min(WAIT_MAX);
        let until = Instant::now() + timeout;
        let mut control = TcpStream::connect_timeout(&address, timeout).map_err(unreachable)?;
        control.set_nodelay(true).map_err(unreachable)?;
        let watched = crate::vanished::watch(&control);
        watched.map_err(|error| unreachable(error.into()))?;
        let device = match self.address.device {
            Some(device) => device,
            None => control
                .local_addr()
                .map_err(unreachable)?
                .ip()
                .to_canonical(),
        };
        let device = open(device)?;
        // The window is not known the first time.
        let window = self
            .former
            .as_ref()
            .map_or(WINDOW_MAX, |(_, window)| *window);
        // An answer may be there before the acknowledgement of its request is reported: the
        // next ones are sent meanwhile.
        let sends = 2 * window;
        let sent = Arc::new(Completions::new(&device, sends)?);
        let received = Arc::new(Completions::new(&device, window)?);
        let connection = Connection::new(
            &device,
            (&sent, sends),
            (&received, window),
            None,
            random() as u32,
        )?;
        let hello = Hello {
            producer: self.producer,
            epoch: self.epoch,
            attempt: self.attempt,
            peer: connection.own(),
        };
        let words = hello.encode(&self.address.token);
        control.write_all(&words).map_err(unreachable)?;
        let mut answer = [0; WELCOME_LEN];
        read_until(&mut control, &mut answer, until).map_err(unreachable)?;
        let welcome = Welcome::decode(&answer).map_err(|status| match status {
            Some(status) => ConnectError::Refused { address, status },
            None => ConnectError::Foreign { address },
        })?;
        let is_sound = (2..=WINDOW_MAX).contains(&welcome.window)
            && self
                .former
                .as_ref()
                .is_none_or(|(_, window)| *window == welcome.window);
        let is_first = self.former.is_none();
        let is_possible = welcome.epoch != 0
            && (welcome.placed == 0 || !is_first)
            && welcome.peer.mtu.payload_len() >= PACKET_LEN_MIN;
        if !is_sound || !is_possible {
            return Err(ConnectError::Foreign { address });
        }
        let mapping = match &self.former {
            Some((mapping, _)) => mapping.clone(),
            None => memory::mapping(2 * welcome.window)?,
        };
        let region = memory::region(&device, &mapping)?;
        for buffer in welcome.window..2 * welcome.window {
            let whole = memory::part(buffer, BUFFER_LEN);
            connection.post_receive(buffer.into(), &region, whole)?;
        }
        connection.connect(welcome.peer, Timers::default())?;
        control.set_nonblocking(true).map_err(unreachable)?;
        let link = Link {
            control,
            sent,
            received,
            connection,
            region,
        };
        Ok((link, welcome, mapping))
    }
}

const _: fn() = || {
    fn sent_to_threads<T: Send>() {}
    sent_to_threads::<(VerbsQueue, Device)>();
};
