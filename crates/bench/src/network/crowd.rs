//! Many connections that one thread serves: what a GET costs the server when it has
//! enough to do. Both systems are spoken to by as little code as a client can have.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::NetworkBenchError;
use super::echo::EchoLens;
use trefoil_client::{Client, Completion, Lookup};
use trefoil_layout::KeyHasher;
use trefoil_softnic_core::{Event, Initiator, InitiatorOptions};

/// Connections at a time.
pub const CONNECTIONS_COUNT: usize = 50;
const RECEIVE_LEN: usize = 64 << 10;
/// The only backend, and its place in every key's cohort.
const BACKEND: u32 = 0;
const PLACE: u8 = 0;

/// Whom to ask, and how.
#[derive(Debug, Clone, Copy)]
pub struct CrowdOptions<'a> {
    /// The server.
    pub address: SocketAddr,
    /// What it is.
    pub whom: Whom<'a>,
    /// Requests that each connection has under way.
    pub depth: usize,
    /// Length of every value.
    pub value_len: usize,
}

/// Who is asked.
#[derive(Debug, Clone, Copy)]
pub enum Whom<'a> {
    /// An engine.
    Engine(EngineKeys<'a>),
    /// memcached.
    Memcached,
    /// A server that answers so many bytes with so many.
    Echo(EchoLens),
}

/// What lets one ask an engine.
#[derive(Debug, Clone, Copy)]
pub struct EngineKeys<'a> {
    /// The cell's life.
    pub life: u64,
    /// What is shown to the engine.
    pub token: &'a [u8],
}

/// Asks for so long; how many values came, and in what time.
pub fn crowd(
    options: &CrowdOptions<'_>,
    keys: &[Vec<u8>],
    length: Duration,
) -> io::Result<(u64, Duration)> {
    ask_all(&mut connect(options)?, options, keys, length)
}

/// The same by connections that there are.
pub(super) fn ask_all(
    connections: &mut [Connection],
    options: &CrowdOptions<'_>,
    keys: &[Vec<u8>],
    length: Duration,
) -> io::Result<(u64, Duration)> {
    let mut received = vec![0; RECEIVE_LEN];
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < length {
        for connection in &mut *connections {
            count += connection.turn(options, keys, &mut received)?;
        }
    }
    Ok((count, begin.elapsed()))
}

/// The same by clients as applications have them, one GET at a time each; of the values,
/// those count that came.
pub(super) fn crowd_of_clients(
    clients: &mut [Client],
    keys: &[Vec<u8>],
    value_len: usize,
    length: Duration,
) -> Result<(u64, Duration), NetworkBenchError> {
    let (mut asked, mut count) = (0_usize, 0);
    let begin = Instant::now();
    while begin.elapsed() < length {
        for client in &mut *clients {
            let mut is_missed = false;
            client.poll(&mut |_, completion| match completion {
                Completion::Lookup(Ok(Lookup::Hit(hit))) if hit.value.len() == value_len => {
                    count += 1;
                }
                _ => is_missed = true,
            });
            if is_missed {
                return Err(NetworkBenchError::Miss("one of many clients".to_owned()));
            }
            if client.in_flight() == 0 {
                asked += 7919;
                client.submit_get(&keys[asked % keys.len()], 0);
            }
        }
    }
    Ok((count, begin.elapsed()))
}

/// Connections that have asked for nothing yet.
pub(super) fn connect(options: &CrowdOptions<'_>) -> io::Result<Vec<Connection>> {
    let numbers = 0..CONNECTIONS_COUNT;
    let opened = numbers.map(|number| Connection::open(options, number * 997));
    opened.collect()
}

pub(super) struct Connection {
    stream: TcpStream,
    /// With an engine.
    session: Option<Session>,
    /// What anybody but an engine still has to say, in bytes.
    owed_len: usize,
    /// Requests of which answers are not there.
    owed: usize,
    next: usize,
    out: Vec<u8>,
}

struct Session {
    initiator: Initiator,
    handle: u32,
    hasher: KeyHasher,
    config_id: u32,
    input: Vec<u8>,
}

impl Connection {
    fn open(options: &CrowdOptions<'_>, next: usize) -> io::Result<Self> {
        let mut stream = TcpStream::connect(options.address)?;
        stream.set_nodelay(true)?;
        let session = match &options.whom {
            Whom::Engine(keys) => Some(Session::open(&mut stream, keys)?),
            Whom::Memcached | Whom::Echo(_) => None,
        };
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            session,
            owed_len: 0,
            owed: 0,
            next,
            out: Vec::new(),
        })
    }

    /// Takes what is there; once all answers are, asks again. How many values came.
    fn turn(
        &mut self,
        options: &CrowdOptions<'_>,
        keys: &[Vec<u8>],
        received: &mut [u8],
    ) -> io::Result<u64> {
        let mut came = 0;
        if self.owed > 0 {
            let count = match self.stream.read(received) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) => return Err(error),
            };
            came = match &mut self.session {
                Some(session) => session.take(&received[..count], options.value_len)?,
                None => {
                    self.owed_len = self.owed_len.checked_sub(count).ok_or_else(wrong)?;
                    match self.owed_len {
                        0 => self.owed,
                        _ => 0,
                    }
                }
            };
            self.owed -= came;
            if self.owed > 0 {
                return Ok(came as u64);
            }
        }
        self.ask(options, keys)?;
        Ok(came as u64)
    }

    fn ask(&mut self, options: &CrowdOptions<'_>, keys: &[Vec<u8>]) -> io::Result<()> {
        self.out.clear();
        for _ in 0..options.depth {
            self.next += 7919;
            let key = &keys[self.next % keys.len()];
            match (&mut self.session, options.whom) {
                (Some(session), _) => session.ask(self.next as u64, key),
                (None, Whom::Echo(lens)) => {
                    self.out.resize(self.out.len() + lens.ask, 0);
                    self.owed_len += lens.answer;
                }
                (None, _) => {
                    self.out.extend_from_slice(b"get ");
                    self.out.extend_from_slice(key);
                    self.out.extend_from_slice(b"\r\n");
                    let digits = options.value_len.to_string().len();
                    // VALUE key 0 len, the value, END.
                    let head_len = b"VALUE ".len() + key.len() + b" 0 ".len() + digits + 2;
                    self.owed_len += head_len + options.value_len + b"\r\nEND\r\n".len();
                }
            }
        }
        self.owed = options.depth;
        if let Some(session) = &mut self.session {
            session.initiator.flush(0);
            self.out.extend_from_slice(session.initiator.output());
            let len = session.initiator.output().len();
            session.initiator.sent(len);
        }
        let mut rest = &self.out[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Session {
    fn open(stream: &mut TcpStream, keys: &EngineKeys<'_>) -> io::Result<Self> {
        let mut initiator = Initiator::new(InitiatorOptions {
            token: keys.token,
            ..InitiatorOptions::default()
        });
        initiator.open(1, BACKEND, keys.life, 0);
        stream.write_all(initiator.output())?;
        initiator.sent(initiator.output().len());
        let (mut input, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let count = stream.read(&mut piece)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            input.extend_from_slice(&piece[..count]);
            let mut opened = None;
            let done = initiator.handle(&input, 0, |event| {
                if let Event::Opened { result, .. } = event {
                    opened = result.ok();
                }
            });
            input.drain(..done.map_err(io::Error::other)?);
            if let Some(opened) = opened {
                return Ok(Session {
                    initiator,
                    handle: opened.handle,
                    hasher: opened.hasher,
                    config_id: opened.topology.config_id,
                    input,
                });
            }
        }
    }

    fn ask(&mut self, id: u64, key: &[u8]) {
        let hash = self.hasher.hash(key);
        self.initiator
            .scan(id, self.handle, PLACE, hash, self.config_id, 0);
    }

    fn take(&mut self, bytes: &[u8], value_len: usize) -> io::Result<usize> {
        self.input.extend_from_slice(bytes);
        let (mut came, mut is_wrong) = (0, false);
        let done = self.initiator.handle(&self.input, 0, |event| match event {
            Event::Scanned { data, .. } if data.len() >= value_len => came += 1,
            _ => is_wrong = true,
        });
        self.input.drain(..done.map_err(io::Error::other)?);
        match is_wrong {
            true => Err(wrong()),
            false => Ok(came),
        }
    }
}

fn wrong() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "an answer without the value")
}
