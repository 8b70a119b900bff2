//! The alternatives as they would be written without an engine: one thread has the socket and
//! the store, and never sleeps: it gives its core away when nothing has come, to what the
//! kernel has to do there. It executes each request and answers it, or acknowledges what
//! has come and executes it then. The same frames over the same kind of socket.

use super::off_host::{Ground, failed};
use crate::load::pin_current_thread;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use trefoil_ordered::{Answer, Request, Service as _};
use trefoil_ordered_load::{Cache, LoadError, System};
use trefoil_softnic_core::Target;
use trefoil_softnic_core::limits::{ASKS_LEN_MAX, WINDOW_LEN};
use trefoil_softnic_core::placing::{Lane, Placer, Placing};
use trefoil_softnic_core::wire::{Claim, Claimed, Frame, Kind, Welcome};

/// As many as a lane has unless chosen otherwise.
const SLOTS: u32 = 256;
/// Bytes received at a time.
const RECEIVE_LEN: usize = 64 << 10;

/// A server without a client.
pub(super) struct OneThread {
    listener: TcpListener,
    system: System,
}

impl OneThread {
    /// On the servers' host.
    pub(super) fn bind(ground: &Ground, system: System) -> Result<Self, LoadError> {
        let host = &ground.server;
        let listener = host.enter(|| TcpListener::bind((host.address, 0)));
        let listener = listener.map_err(failed)?.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(OneThread { listener, system })
    }

    pub(super) fn address(&self) -> Result<SocketAddr, LoadError> {
        self.listener.local_addr().map_err(failed)
    }

    /// Serves one client until it is told to stop.
    pub(super) fn serve(
        self,
        core: usize,
        cache: &mut Cache,
        stop: &AtomicBool,
    ) -> Result<(), LoadError> {
        pin_current_thread(core).map_err(failed)?;
        let client = loop {
            match self.listener.accept() {
                Ok((client, _)) => break client,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        };
        client.set_nodelay(true).map_err(failed)?;
        client.set_nonblocking(true).map_err(failed)?;
        let mut session = Session {
            client,
            input: Vec::new(),
            out: Vec::new(),
            received: vec![0; RECEIVE_LEN],
            target: Target::new(),
            placer: None,
        };
        let defers = self.system == System::DeferredExec;
        let mut lane = Some(Direct::new(cache, defers));
        while !stop.load(Ordering::Relaxed) && session.turn(&mut lane).map_err(failed)? {}
        Ok(())
    }
}

/// What was acknowledged and is not executed.
struct Waiting {
    number: u64,
    request: Vec<u8>,
    nilext: bool,
}

/// The store as a lane.
struct Direct<'c> {
    cache: &'c mut Cache,
    defers: bool,
    waiting: VecDeque<Waiting>,
    /// Used again.
    spare: Vec<Vec<u8>>,
    answers: VecDeque<(u64, Vec<u8>)>,
    placed: u64,
    executed: u64,
    answer: Answer,
}

impl<'c> Direct<'c> {
    fn new(cache: &'c mut Cache, defers: bool) -> Self {
        Direct {
            cache,
            defers,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            answers: VecDeque::new(),
            placed: 0,
            executed: 0,
            answer: Answer::default(),
        }
    }

    fn execute(&mut self, number: u64, payload: &[u8], nilext: bool) {
        self.answer.clear();
        let request = Request {
            position: number,
            client_id: 1,
            request_id: number,
            nilext,
            payload,
        };
        self.cache.execute(request, &mut self.answer);
        self.executed = number;
        if !nilext {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(self.answer.bytes());
            self.answers.push_back((number, bytes));
        }
    }

    fn execute_waiting(&mut self) {
        while let Some(of) = self.waiting.pop_front() {
            self.execute(of.number, &of.request, of.nilext);
            self.spare.push(of.request);
        }
    }
}

impl Lane for Direct<'_> {
    fn place(&mut self, number: u64, request: &[u8], nilext: bool) -> Placing {
        if !self.defers {
            self.execute(number, request, nilext);
        } else if self.waiting.len() >= SLOTS as usize {
            return Placing::NoRoom;
        } else {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(request);
            self.waiting.push_back(Waiting {
                number,
                request: bytes,
                nilext,
            });
        }
        self.placed = number;
        Placing::Placed
    }

    fn committed(&mut self) -> u64 {
        self.placed
    }

    fn executed(&mut self) -> u64 {
        self.executed
    }

    fn take_answer(&mut self, number: u64, into: &mut Vec<u8>) {
        if let Some((of, bytes)) = self.answers.pop_front()
            && of == number
        {
            into.extend_from_slice(&bytes);
            self.spare.push(bytes);
        }
    }
}

struct Session<'c> {
    client: TcpStream,
    input: Vec<u8>,
    out: Vec<u8>,
    received: Vec<u8>,
    target: Target,
    placer: Option<Placer<Direct<'c>>>,
}

fn malformed(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

impl<'c> Session<'c> {
    /// Receives once, and does what has come. `false`: the client has gone.
    fn turn(&mut self, lane: &mut Option<Direct<'c>>) -> io::Result<bool> {
        match self.client.read(&mut self.received) {
            Ok(0) => return Ok(false),
            Ok(count) => self.input.extend_from_slice(&self.received[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::yield_now();
                return Ok(true);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        }
        if self.placer.is_none() {
            self.greet(lane)?;
            return Ok(true);
        }
        loop {
            let Some(placer) = &mut self.placer else {
                return Ok(true);
            };
            let handled = placer.handle(&self.input, &mut self.out);
            let handled = handled.map_err(malformed)?;
            self.input.drain(..handled.used);
            self.send()?;
            // Acknowledged; executed now.
            if let Some(placer) = &mut self.placer {
                placer.lane().execute_waiting();
                placer.look(&mut self.out);
            }
            self.send()?;
            if !handled.is_withheld {
                return Ok(true);
            }
        }
    }

    /// Lets the only client in, and gives it the lane.
    fn greet(&mut self, lane: &mut Option<Direct<'c>>) -> io::Result<()> {
        let welcome = Welcome {
            window: WINDOW_LEN,
            engine: 1,
            session: 1,
        };
        if !self.target.is_admitted() {
            let greeted = self
                .target
                .greet(&self.input, |_| Ok(welcome), &mut self.out);
            let used = greeted.map_err(malformed)?;
            self.input.drain(..used);
        }
        let frame = Frame::first(&self.input, ASKS_LEN_MAX).map_err(malformed)?;
        if let Some(frame) = frame
            && self.target.is_admitted()
        {
            if frame.head.kind != Kind::Claim {
                return Err(malformed("it wants no lane"));
            }
            Claim::decode(frame.body).map_err(malformed)?;
            let used = frame.total_len();
            self.input.drain(..used);
            let claimed = Claimed {
                server_commits: true,
                slot_count: SLOTS,
                epoch: 1,
                placed: 0,
                about: 0,
            };
            Claimed::encode(&Ok(claimed), &mut self.out);
            let lane = lane.take();
            self.placer = lane.map(|lane| Placer::new(lane, SLOTS, 0));
        }
        self.send()
    }

    /// All of it: its client takes everything.
    fn send(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.client.write(&self.out[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        Ok(())
    }
}
