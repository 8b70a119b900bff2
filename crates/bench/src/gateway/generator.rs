//! A closed loop over many connections, as cheap as it can be, so that the
//! server is what is measured: one thread, one `recv` and one `send` for each
//! batch of requests, answers counted by their bytes.

use super::GatewayBenchError;
use super::dialect::{Answer, Dialect, Operation};
use crate::peer::CONGESTION;
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_congestion};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::Timespec;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const BUFFER_LEN: usize = 256 << 10;
/// Longest latency that is told apart, in nanoseconds, and significant digits.
const LATENCY_MAX_NS: u64 = 10_000_000_000;
const DIGITS: u8 = 3;

/// How a client waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// It polls all its connections.
    Polling,
    /// It has one connection, and sleeps in the kernel.
    Blocking,
}

/// What is to be generated.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Protocol.
    pub dialect: Dialect,
    /// Each request.
    pub operation: Operation,
    /// Bytes of each value.
    pub value_len: usize,
    /// Keys asked for, which are there.
    pub keys_count: u64,
    /// Connections at a time.
    pub connections: usize,
    /// Requests sent at once on each, answered before the next.
    pub depth: usize,
    /// How it waits.
    pub waits: Waits,
}

/// What came of it.
#[derive(Debug, Clone)]
pub(super) struct Generated {
    /// Items read or stored.
    pub(super) items: u64,
    /// In this time.
    pub(super) elapsed: Duration,
    /// Nanoseconds from each send to the last byte of its answers.
    pub(super) latencies: Histogram<u64>,
}

struct Client {
    stream: TcpStream,
    begun: Instant,
    /// Bytes of the answers received.
    received: usize,
    /// The last few of them.
    tail: [u8; 8],
}

/// Numbers of keys: a full-period walk would favour caches; this does not.
struct Keys {
    state: u64,
    count: u64,
}

impl Keys {
    fn next(&mut self) -> u64 {
        // Marsaglia's xorshift.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.count
    }
}

struct Generator {
    load: Load,
    value: Vec<u8>,
    answer: Answer,
    keys: Keys,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

/// Stores every key once.
pub(super) fn fill(address: SocketAddr, load: &Load) -> Result<(), GatewayBenchError> {
    let load = Load {
        operation: Operation::Set,
        connections: 1,
        depth: 1,
        waits: Waits::Blocking,
        ..*load
    };
    let mut generator = Generator::new(load);
    let mut client = connect(address)?;
    let mut number = 0;
    while number < load.keys_count {
        let count = (load.keys_count - number).min(64);
        generator.request.clear();
        for _ in 0..count {
            let this = number;
            load.dialect.ask(
                Operation::Set,
                &generator.value,
                &mut || this,
                &mut generator.request,
            );
            number += 1;
        }
        generator.load.depth = count as usize;
        generator.send_request(&mut client)?;
        generator.await_answer(&mut client)?;
    }
    Ok(())
}

/// Runs a load: first for `warm_up`, then for `measured`. `begins` is called in
/// between.
pub(super) fn generate(
    address: SocketAddr,
    load: &Load,
    warm_up: Duration,
    measured: Duration,
    begins: &mut dyn FnMut(),
) -> Result<Generated, GatewayBenchError> {
    let mut generator = Generator::new(*load);
    match load.waits {
        Waits::Blocking => {
            let mut client = connect(address)?;
            generator.block(&mut client, warm_up)?;
            begins();
            generator.block(&mut client, measured)
        }
        Waits::Polling => {
            let clients = (0..load.connections).map(|_| connect(address));
            let mut clients = clients.collect::<Result<Vec<_>, _>>()?;
            let queue = generator.begin(&mut clients)?;
            generator.poll(&queue, &mut clients, warm_up)?;
            begins();
            generator.poll(&queue, &mut clients, measured)
        }
    }
}

fn connect(address: SocketAddr) -> Result<Client, GatewayBenchError> {
    let fail = |source| GatewayBenchError::Io {
        what: "connecting",
        source,
    };
    let stream = TcpStream::connect(address).map_err(fail)?;
    stream.set_nodelay(true).map_err(fail)?;
    // Where the kernel has no such algorithm its default stays, for all alike.
    let _ = set_tcp_congestion(&stream, CONGESTION);
    set_socket_timeout(&stream, Timeout::Recv, Some(ANSWER_WITHIN)).map_err(|e| fail(e.into()))?;
    Ok(Client {
        stream,
        begun: Instant::now(),
        received: 0,
        tail: [0; 8],
    })
}

fn io_error(what: &'static str) -> impl Fn(Errno) -> GatewayBenchError {
    move |errno| GatewayBenchError::Io {
        what,
        source: errno.into(),
    }
}

impl Generator {
    fn new(load: Load) -> Self {
        let value: Vec<u8> = (0..load.value_len).map(|i| b'a' + (i % 26) as u8).collect();
        Generator {
            answer: load.dialect.answer(load.operation, &value),
            keys: Keys {
                state: 0x9e37_79b9_7f4a_7c15,
                count: load.keys_count.max(1),
            },
            value,
            load,
            request: Vec::new(),
            buffer: vec![0; BUFFER_LEN],
        }
    }

    fn make_request(&mut self) {
        self.request.clear();
        for _ in 0..self.load.depth {
            let keys = &mut self.keys;
            self.load.dialect.ask(
                self.load.operation,
                &self.value,
                &mut || keys.next(),
                &mut self.request,
            );
        }
    }

    fn send_request(&mut self, client: &mut Client) -> Result<(), GatewayBenchError> {
        client.received = 0;
        client.begun = Instant::now();
        let mut rest = &self.request[..];
        while !rest.is_empty() {
            match send(&client.stream, rest, SendFlags::NOSIGNAL) {
                Ok(len) => rest = &rest[len..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io_error("sending")(errno)),
            }
        }
        Ok(())
    }

    /// Reads once; whether the answers are complete. Nothing if there is
    /// nothing to read.
    fn receive(
        &mut self,
        client: &mut Client,
        flags: RecvFlags,
    ) -> Result<Option<bool>, GatewayBenchError> {
        let len = match recv(&client.stream, &mut self.buffer[..], flags) {
            Ok((0, _)) => {
                return Err(GatewayBenchError::Io {
                    what: "waiting for an answer",
                    source: std::io::ErrorKind::UnexpectedEof.into(),
                });
            }
            Ok((len, _)) => len,
            Err(Errno::INTR) => return Ok(Some(false)),
            Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => return Ok(None),
            Err(errno) => return Err(io_error("waiting for an answer")(errno)),
        };
        let bytes = &self.buffer[..len];
        if client.received == 0 && !starts_alike(bytes, &self.answer.first) {
            return Err(unexpected(bytes));
        }
        client.received += len;
        let tail_len = len.min(client.tail.len());
        client.tail.rotate_left(tail_len);
        let at = client.tail.len() - tail_len;
        client.tail[at..].copy_from_slice(&bytes[len - tail_len..]);
        let expected = self.answer.len * self.load.depth;
        if client.received < expected {
            return Ok(Some(false));
        }
        if client.received > expected || !client.tail.ends_with(&self.answer.last) {
            return Err(unexpected(bytes));
        }
        Ok(Some(true))
    }

    fn await_answer(&mut self, client: &mut Client) -> Result<(), GatewayBenchError> {
        while self.receive(client, RecvFlags::empty())? != Some(true) {}
        Ok(())
    }

    fn block(
        &mut self,
        client: &mut Client,
        time: Duration,
    ) -> Result<Generated, GatewayBenchError> {
        let mut generated = Generated::new()?;
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.make_request();
            self.send_request(client)?;
            self.await_answer(client)?;
            generated.record(client, &self.load);
        }
        generated.elapsed = begin.elapsed();
        Ok(generated)
    }

    /// Sends the first requests of all clients.
    fn begin(&mut self, clients: &mut [Client]) -> Result<rustix::fd::OwnedFd, GatewayBenchError> {
        let fail = io_error("making an event queue");
        let queue = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&fail)?;
        for (index, client) in clients.iter_mut().enumerate() {
            let data = EventData::new_u64(index as u64);
            let flags = EventFlags::IN | EventFlags::ET;
            epoll::add(&queue, &client.stream, data, flags).map_err(&fail)?;
            self.make_request();
            self.send_request(client)?;
        }
        Ok(queue)
    }

    fn poll(
        &mut self,
        queue: &rustix::fd::OwnedFd,
        clients: &mut [Client],
        time: Duration,
    ) -> Result<Generated, GatewayBenchError> {
        let mut generated = Generated::new()?;
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let begin = Instant::now();
        let mut last = begin;
        loop {
            events.clear();
            match epoll::wait(queue, spare_capacity(&mut events), Some(&now)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(io_error("waiting for answers")(errno)),
            }
            let time_now = Instant::now();
            if !events.is_empty() {
                last = time_now;
            } else if time_now - last > ANSWER_WITHIN {
                return Err(GatewayBenchError::Silent(ANSWER_WITHIN));
            }
            for event in &events {
                let Some(client) = clients.get_mut(event.data.u64() as usize) else {
                    continue;
                };
                // Until the answers are complete, or nothing is left.
                loop {
                    match self.receive(client, RecvFlags::DONTWAIT)? {
                        None => break,
                        Some(false) => {}
                        Some(true) => {
                            generated.record(client, &self.load);
                            self.make_request();
                            self.send_request(client)?;
                            break;
                        }
                    }
                }
            }
            // Not before: an event is told once.
            if time_now - begin >= time {
                break;
            }
        }
        generated.elapsed = begin.elapsed();
        Ok(generated)
    }
}

fn starts_alike(bytes: &[u8], expected: &[u8]) -> bool {
    let len = bytes.len().min(expected.len());
    bytes[..len] == expected[..len]
}

fn unexpected(bytes: &[u8]) -> GatewayBenchError {
    let shown = &bytes[..bytes.len().min(80)];
    GatewayBenchError::Unexpected(String::from_utf8_lossy(shown).into_owned())
}

impl Generated {
    fn new() -> Result<Self, GatewayBenchError> {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS)
            .map_err(|_| GatewayBenchError::Histogram)?;
        Ok(Generated {
            items: 0,
            elapsed: Duration::ZERO,
            latencies,
        })
    }

    fn record(&mut self, client: &Client, load: &Load) {
        self.items += (load.operation.items() * load.depth) as u64;
        let latency = client.begun.elapsed().as_nanos() as u64;
        self.latencies.saturating_record(latency);
    }
}
