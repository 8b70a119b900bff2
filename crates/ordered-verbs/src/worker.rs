//! The server of one queue: a shared receive queue, and what executes what comes by it.
//!
//! # Sleeping
//! Clients mark what wants an answer, and now and then something else, as *solicited*: the card
//! wakes a worker that sleeps for these alone. A nilext request does not; so the sleep is a
//! nap, which ends by itself.

use crate::arrivals::Arrivals;
use crate::clients::{Client, GRACE, Parted, answer_count, answer_region, is_drained};
use crate::memory::{self, MemoryError};
use crate::setup::{Guest, SetUp, Side};
use crate::wire::{BUFFER_LEN, END, Hello, PACKET_LEN_MIN, Request, Status, TOKEN_LEN_MAX};
use crate::wire::{Welcome, refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_ordered::{Answer, Service};
use trefoil_region::WordBuffer;
use trefoil_verbs::{Completions, Connection, Device, Outcome, ReceiveQueue, Timers, VerbsError};

/// Requests executed before anything else is looked after.
const BATCH_MAX: usize = 64;
/// Rounds between two looks at the sockets while it does not sleep.
const SOCKET_ROUNDS: u32 = 1024;
/// How long an orderly end goes on answering.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
/// A completion's number is a position and a buffer, of so many bits.
const BUFFER_BITS: u32 = 16;

/// What an operator may choose.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// Receive buffers: requests that are committed and not executed, of all clients together.
    /// 8 to 32,768.
    pub slots: u32,
    /// Requests of one client under way, and answers that it has not taken: 4 to 1,024.
    pub window: u32,
    /// Clients at a time: 1 to 65,536, and as many as the device has room for answers to.
    pub client_count_max: usize,
    /// How long to look for requests before sleeping.
    pub spin: Duration,
    /// Longest sleep: how late a nilext request may be executed that nobody waits for.
    pub nap: Duration,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        VerbsOptions {
            slots: 4096,
            window: 64,
            client_count_max: 64,
            spin: Duration::from_micros(50),
            nap: Duration::from_millis(5),
        }
    }
}

/// Why a queue cannot be set up, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The memory of the queue.
    #[error("cannot set up the receive buffers: {0}")]
    Memory(#[from] MemoryError),
    /// Sockets.
    #[error("cannot listen for clients of the queue: {0}")]
    System(#[from] io::Error),
    /// Impossible options.
    #[error("{what} may be {least} to {most}, not {value}")]
    Option {
        /// Of what.
        what: &'static str,
        /// Its bounds.
        least: u64,
        /// Its bounds.
        most: u64,
        /// What was given.
        value: u64,
    },
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests executed.
    pub executed: u64,
    /// Connections ended because of nonsense.
    pub broken: u64,
    /// Positions that the card did not report in time ([`crate::arrivals`]).
    pub skipped: u64,
    /// Messages of connections that were closed long before. None is expected.
    pub strays: u64,
}

/// What came into a buffer.
#[derive(Debug)]
struct Arrived {
    buffer: u32,
    connection: u32,
    /// Nothing, if the card took the buffer for an error.
    len: Option<u32>,
}

/// See the module. One thread drives it.
#[derive(Debug)]
pub struct VerbsWorker {
    epoch: u64,
    options: VerbsOptions,
    receive: Arc<ReceiveQueue>,
    received: Arc<Completions>,
    sent: Arc<Completions>,
    arrivals: Arrivals<Arrived>,
    /// The position of the last buffer that was posted.
    posted: u64,
    /// By the numbers of their connections.
    clients: HashMap<u32, Client>,
    parted: Parted,
    /// Those whose former connections are not empty yet.
    waiting: Vec<Guest>,
    setup: SetUp,
    wake: UnixStream,
    next_client_id: u64,
    rounds: u32,
    /// When it last began to look at what the card reports.
    looked: Instant,
    counts: Counts,
    begin: Instant,
    image: WordBuffer,
    message: Vec<u8>,
    answer: Answer,
}

impl VerbsWorker {
    /// A queue of the device that has this address of the host, whose clients set up their
    /// connections at `listener`, if they show the token. No two lives of a queue may have
    /// the same epoch, which is not 0.
    pub fn start(
        epoch: u64,
        device: IpAddr,
        listener: TcpListener,
        token: &[u8],
        options: VerbsOptions,
    ) -> Result<Self, WorkerError> {
        within("the number of slots", 8, 1 << 15, options.slots.into())?;
        within("the window", 4, 1024, options.window.into())?;
        let clients = options.client_count_max as u64;
        within("the number of clients", 1, 1 << 16, clients)?;
        within("the queue's epoch", 1, u64::MAX, epoch)?;
        within(
            "the token's length",
            0,
            TOKEN_LEN_MAX as u64,
            token.len() as u64,
        )?;
        let device = open(device)?;
        let region = memory::region(&device, &memory::mapping(options.slots)?)?;
        let receive = Arc::new(ReceiveQueue::new(&device, options.slots, Arc::new(region))?);
        let answers = clients * u64::from(answer_count(options.window));
        let sent = Completions::new(&device, u32::try_from(answers).unwrap_or(u32::MAX))?;
        let received = Completions::new(&device, options.slots)?;
        let (sent, received) = (Arc::new(sent), Arc::new(received));
        let make_side = MakesSides {
            device: device.clone(),
            receive: Arc::clone(&receive),
            received: Arc::clone(&received),
            sent: Arc::clone(&sent),
            window: options.window,
        };
        let make_side = Box::new(move |hello: &Hello| make_side.make(hello).ok());
        let (wake, ring) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        ring.set_nonblocking(true)?;
        let mut worker = VerbsWorker {
            epoch,
            receive,
            received,
            sent,
            arrivals: Arrivals::new(1),
            posted: 0,
            clients: HashMap::new(),
            parted: Parted::default(),
            waiting: Vec::new(),
            setup: SetUp::start(listener, token.to_vec(), ring, make_side)?,
            wake,
            next_client_id: 1,
            rounds: 0,
            looked: Instant::now(),
            counts: Counts::default(),
            begin: Instant::now(),
            image: WordBuffer::default(),
            message: Vec::new(),
            answer: Answer::default(),
            options,
        };
        for buffer in 0..worker.options.slots {
            worker.post(buffer)?;
        }
        Ok(worker)
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        Counts {
            skipped: self.arrivals.skipped(),
            ..self.counts
        }
    }

    /// Clients that are in.
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// A buffer goes behind the others: the next position is its.
    fn post(&mut self, buffer: u32) -> Result<(), VerbsError> {
        self.posted += 1;
        let id = self.posted << BUFFER_BITS | u64::from(buffer);
        self.receive.post(id, memory::part(buffer, BUFFER_LEN))
    }

    /// Takes in what the card reports. Whether there was anything.
    fn collect(&mut self) -> Result<bool, VerbsError> {
        self.looked = Instant::now();
        let mut to_close = Vec::new();
        let mut is_any = false;
        let (clients, arrivals) = (&mut self.clients, &mut self.arrivals);
        while self.received.poll(|completion| {
            let client = clients.get_mut(&completion.connection);
            if let Some(client) = client {
                client.pending += 1;
            }
            if let Outcome::Failed(_) = completion.outcome {
                to_close.push(completion.connection);
            }
            let arrived = Arrived {
                buffer: (completion.id & ((1 << BUFFER_BITS) - 1)) as u32,
                connection: completion.connection,
                len: (completion.outcome == Outcome::Done).then_some(completion.len),
            };
            arrivals.arrived(completion.id >> BUFFER_BITS, arrived);
        })? {
            is_any = true;
        }
        let message = &mut self.message;
        while self.sent.poll(|completion| {
            let Some(client) = clients.get_mut(&completion.connection) else {
                return;
            };
            let is_good =
                completion.outcome == Outcome::Done && client.sent(completion.id as u32, message);
            if !is_good {
                to_close.push(completion.connection);
            }
        })? {
            is_any = true;
        }
        for connection in to_close {
            self.close(connection);
        }
        Ok(is_any)
    }

    /// Ends a client's connection. What was acknowledged to it is executed.
    fn close(&mut self, connection: u32) {
        if let Some(client) = self.clients.get_mut(&connection) {
            client.close();
            // The client learns of it at once.
            let _ = client.control.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Executes what is there, some at most; returns how many. After an error the device is
    /// not to be used any more: drop the worker.
    pub fn run_once(&mut self, service: &mut impl Service) -> Result<usize, WorkerError> {
        self.collect()?;
        let mut executed = 0;
        let mut taken = 0;
        while taken < BATCH_MAX {
            let now = self.begin.elapsed().as_nanos() as u64;
            let Some((_, arrived)) = self.arrivals.take(now) else {
                break;
            };
            taken += 1;
            executed += usize::from(self.execute(&arrived, service));
            self.post(arrived.buffer)?;
        }
        self.rounds = self.rounds.wrapping_add(1);
        self.look_around()?;
        if self.rounds.is_multiple_of(SOCKET_ROUNDS) {
            self.sleep(Duration::ZERO)?;
        }
        Ok(executed)
    }

    /// One request. Whether it was one.
    fn execute(&mut self, arrived: &Arrived, service: &mut impl Service) -> bool {
        let Some(client) = self.clients.get_mut(&arrived.connection) else {
            self.counts.strays += u64::from(arrived.len.is_some());
            return false;
        };
        client.pending = client.pending.saturating_sub(1);
        let Some(len) = arrived.len else {
            return false;
        };
        if client.is_broken {
            return false;
        }
        let region = self.receive.region();
        let bytes = memory::read(region, arrived.buffer, len as usize, &mut self.image);
        let request = Request::decode(self.epoch, bytes).filter(|request| {
            request.client_id == client.client_id && request.number == client.last + 1
        });
        let Some(request) = request else {
            client.is_broken = true;
            self.counts.broken += 1;
            self.close(arrived.connection);
            return false;
        };
        client.last = request.number;
        self.counts.executed += 1;
        self.answer.clear();
        let at_its_turn = trefoil_ordered::service::Request {
            position: self.counts.executed,
            client_id: request.client_id,
            request_id: request.number,
            nilext: request.nilext,
            payload: request.payload,
        };
        service.execute(at_its_turn, &mut self.answer);
        let is_owed = !request.nilext;
        if is_owed && !client.answer(request.number, self.answer.bytes(), &mut self.message) {
            self.close(arrived.connection);
        }
        true
    }

    /// Lets in who waits, and parts from whose connections have ended.
    fn look_around(&mut self) -> Result<(), WorkerError> {
        let (parted, looked) = (&mut self.parted, self.looked);
        let before = self.clients.len();
        self.clients.retain(|_, client| {
            let is_over = client.is_over(looked);
            if is_over && !client.is_broken {
                parted.push(client);
            }
            !is_over
        });
        if self.clients.len() < before {
            for guest in std::mem::take(&mut self.waiting) {
                self.admit(guest);
            }
        }
        while let Some(guest) = self.setup.guest() {
            self.admit(guest);
        }
        Ok(())
    }

    /// Lets a client in, tells it why not, or has it wait until its former connection has ended
    /// and everything of it is executed.
    fn admit(&mut self, mut guest: Guest) {
        let hello = guest.hello;
        let mut there = self.clients.iter_mut();
        if let Some((&at, former)) = there.find(|(_, client)| client.producer == hello.producer) {
            if hello.epoch != self.epoch {
                return refuse(guest, Status::Forgotten);
            }
            if hello.attempt < former.attempt_min {
                return refuse(guest, Status::Superseded);
            }
            former.attempt_min = hello.attempt;
            self.close(at);
            // One attempt of a client waits: its last one.
            let mut others = self.waiting.iter_mut();
            let before = others.find(|other| other.hello.producer == hello.producer);
            match before {
                Some(before) => refuse(std::mem::replace(before, guest), Status::Superseded),
                None => self.waiting.push(guest),
            }
            return;
        }
        let (client_id, placed) = match (self.parted.find(hello.producer), hello.epoch) {
            (None, 0) => (self.next_client_id, 0),
            (Some(of), epoch) if epoch == self.epoch => match hello.attempt < of.attempt_min {
                true => return refuse(guest, Status::Superseded),
                false => (of.client_id, of.last),
            },
            _ => return refuse(guest, Status::Forgotten),
        };
        if self.clients.len() >= self.options.client_count_max {
            return refuse(guest, Status::Full);
        }
        let Some(side) = guest.side.take() else {
            return refuse(guest, Status::Device);
        };
        let welcome = Welcome {
            status: Status::In,
            window: self.options.window,
            epoch: self.epoch,
            client_id,
            placed,
            peer: side.connection.own(),
        };
        // A few bytes into an empty socket. Who has gone is found out soon.
        let _ = guest.control.write_all(&welcome.encode());
        self.parted.remove(hello.producer);
        self.next_client_id = self.next_client_id.max(client_id + 1);
        let client = Client::new(
            &hello,
            (client_id, placed),
            (side, guest.control),
            self.options.window,
        );
        self.clients.insert(client.connection.number(), client);
    }

    /// Sleeps, if nothing was executed for long enough; `idle_since` is when there last was
    /// something.
    pub fn rest(
        &mut self,
        executed: usize,
        idle_since: &mut Option<Instant>,
    ) -> Result<(), WorkerError> {
        if executed > 0 {
            *idle_since = None;
            return Ok(());
        }
        std::hint::spin_loop();
        let now = Instant::now();
        if now - *idle_since.get_or_insert(now) < self.options.spin {
            return Ok(());
        }
        self.received.arm(true)?;
        self.sent.arm(false)?;
        // What came between the last look and this.
        if !self.collect()? && self.arrivals.is_empty() {
            self.sleep(self.options.nap.min(GRACE))?;
        }
        Ok(())
    }

    /// Waits for the card, guests, and ends of connections.
    fn sleep(&mut self, timeout: Duration) -> Result<(), WorkerError> {
        let mut sockets = vec![
            PollFd::new(&*self.received, PollFlags::IN),
            PollFd::new(&*self.sent, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        let fixed = sockets.len();
        let open: Vec<u32> = self
            .clients
            .iter()
            .filter(|(_, client)| client.closed_since.is_none())
            .map(|(number, client)| {
                sockets.push(PollFd::new(&client.control, PollFlags::IN));
                *number
            })
            .collect();
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()) as _,
        };
        // An interrupted sleep is a short one.
        let _ = poll(&mut sockets, Some(&timeout));
        let ends: Vec<u32> = open
            .into_iter()
            .zip(&sockets[fixed..])
            .filter_map(|(number, socket)| (!socket.revents().is_empty()).then_some(number))
            .collect();
        self.received.silence();
        self.sent.silence();
        let mut rings = [0; 64];
        while matches!((&self.wake).read(&mut rings), Ok(1..)) {}
        for number in ends {
            // Clients say nothing here: a word is nonsense, and no word is the end.
            let is_there = self.clients.get_mut(&number).is_some_and(|client| {
                let read = client.control.read(&mut rings);
                read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            });
            if !is_there {
                self.close(number);
            }
        }
        Ok(())
    }

    /// An orderly end: lets nobody in, closes all connections, executes what was acknowledged,
    /// and tells the clients.
    pub fn finish(mut self, service: &mut impl Service) -> Result<Counts, WorkerError> {
        self.setup.end();
        let begin = Instant::now();
        while begin.elapsed() < LAST_ANSWERS {
            let executed = self.run_once(service)?;
            let mut clients = self.clients.values();
            if executed == 0 && self.arrivals.is_empty() && clients.all(Client::is_answered) {
                break;
            }
        }
        for guest in std::mem::take(&mut self.waiting) {
            refuse(guest, Status::Ended);
        }
        for client in self.clients.values_mut() {
            client.close();
        }
        let closed = Instant::now();
        while !is_drained(closed, self.looked) || !self.arrivals.is_empty() {
            self.collect()?;
            let now = self.begin.elapsed().as_nanos() as u64;
            while let Some((_, arrived)) = self.arrivals.take(now) {
                self.execute(&arrived, service);
            }
            std::thread::yield_now();
        }
        for client in self.clients.values_mut() {
            let _ = client.control.write_all(&[END]);
        }
        Ok(self.counts())
    }
}

/// It is told why it is not let in.
fn refuse(mut guest: Guest, status: Status) {
    let _ = guest.control.write_all(&refusal(status));
}

/// What the server's side of a connection is made of.
struct MakesSides {
    device: Device,
    receive: Arc<ReceiveQueue>,
    received: Arc<Completions>,
    sent: Arc<Completions>,
    window: u32,
}

impl MakesSides {
    /// Connected to who says this. What it sends before the worker has let it in is nobody's.
    fn make(&self, hello: &Hello) -> Result<Side, WorkerError> {
        let answers = answer_region(&self.device, self.window)?;
        let connection = Connection::new(
            &self.device,
            (&self.sent, answer_count(self.window)),
            (&self.received, 0),
            Some(&self.receive),
            random() as u32,
        )?;
        connection.connect(hello.peer, Timers::default())?;
        Ok(Side {
            connection,
            answers,
        })
    }
}

fn within(what: &'static str, least: u64, most: u64, value: u64) -> Result<(), WorkerError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(WorkerError::Option {
            what,
            least,
            most,
            value,
        }),
    }
}

/// A device whose packets are long enough (invariant 1).
pub(crate) fn open(address: IpAddr) -> Result<Device, VerbsError> {
    let device = Device::open(address)?;
    match device.mtu().payload_len() >= PACKET_LEN_MIN {
        true => Ok(device),
        false => Err(VerbsError::ShortPackets {
            device: device.name().to_owned(),
            mtu: device.mtu().payload_len(),
            needed: PACKET_LEN_MIN,
            // The heads of a packet with all options take less than this.
            link: PACKET_LEN_MIN + 152,
        }),
    }
}

pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
