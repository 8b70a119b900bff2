//! A client of a served queue.

use crate::request::{Request, RequestError, Status};
use crate::welcome::{self, DESCRIPTORS, Outcome, ServiceKind, Welcome};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trefoil_fabric::shm::{UserPolicy, receive_with};
use trefoil_ordered::{Carrier, Committed, Invitation, NoAnswer, Queue, Refused, SetUpError};
use trefoil_softnic::{ConnectError, EngineAddress, RemoteQueue};

/// How long a server may take to give a lane: longer than any checkpoint.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// How long the server may take for anything else, unless chosen otherwise.
const WITHIN_DEFAULT: Duration = Duration::from_secs(10);
/// Between two attempts at a socket at which as many wait as it lets wait.
const CROWDED: Duration = Duration::from_millis(5);

/// Why there is no connection to a queue.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody listens.
    #[error("no queue is served at {path} ({source}): start `trefoil queue serve --socket {path}`")]
    Nobody {
        /// Where.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// Another user's server.
    #[error("{path} is served by another user, who is not trusted (--server-user)")]
    Stranger {
        /// Where.
        path: PathBuf,
    },
    /// The server has closed the connection: this user may not come in.
    #[error("the server at {path} lets no client of this user in")]
    NotLetIn {
        /// Where.
        path: PathBuf,
    },
    /// The server does not answer.
    #[error("the server at {path} does not answer: {source}")]
    Silent {
        /// Where.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// Something else listens there.
    #[error("what listens at {path} is no queue of this version")]
    Foreign {
        /// Where.
        path: PathBuf,
    },
    /// As many clients as it takes are there.
    #[error("the queue at {path} has {most} clients, which is as many as it takes (--clients)")]
    Full {
        /// Where.
        path: PathBuf,
        /// How many.
        most: u64,
    },
    /// It could make no lane.
    #[error("the server at {path} has no memory for another client")]
    NoMemory {
        /// Where.
        path: PathBuf,
    },
    /// It ends.
    #[error("the server at {path} is about to end")]
    Ending {
        /// Where.
        path: PathBuf,
    },
    /// The shared memory.
    #[error(transparent)]
    SetUp(#[from] SetUpError),
}

/// Why a request did not do what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// It is none. Nothing was sent.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The queue did not take it: it is not executed.
    #[error("not done: {0}")]
    Refused(#[from] Refused),
    /// It was sent, and nobody knows what became of it.
    #[error("it may be done or not: {0}")]
    NoAnswer(#[from] NoAnswer),
    /// The service's own answer.
    #[error("not done: {0}")]
    Status(Status),
    /// The server's answer is none.
    #[error("the server's answer has no meaning in this version")]
    Foreign,
}

/// Why there is no connection to a queue on another host.
#[derive(Debug, thiserror::Error)]
pub enum RemoteJoinError {
    /// The engine.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Something else is served.
    #[error("what the engine places requests into is no queue of this version")]
    Foreign,
}

/// A connection, over shared memory or by an engine. One thread uses it; others have their
/// own.
#[derive(Debug)]
pub struct Client<C = Queue> {
    queue: C,
    service: ServiceKind,
    is_durable: bool,
    within: Duration,
    bytes: Vec<u8>,
    answer: Vec<u8>,
}

impl Client<RemoteQueue> {
    /// Connects to a queue on another host by the engine beside it, which has this number for
    /// it. A connection that breaks is made anew by whoever waits.
    pub fn connect_by_engine(engine: EngineAddress, queue: u32) -> Result<Self, RemoteJoinError> {
        let queue = RemoteQueue::connect(engine, queue, WELCOME_WITHIN)?;
        let about = welcome::about(queue.claimed().about);
        let (service, is_durable) = about.ok_or(RemoteJoinError::Foreign)?;
        Ok(Client::over(queue, service, is_durable))
    }
}

impl Client {
    /// Connects to the queue that this user, or root, serves at this path.
    pub fn connect(path: &Path) -> Result<Self, JoinError> {
        Client::connect_to(path, &UserPolicy::default())
    }

    /// Connects to the queue that one of these users serves at this path. What a server is
    /// told, and whether it does what it says, is then theirs.
    pub fn connect_to(path: &Path, servers: &UserPolicy) -> Result<Self, JoinError> {
        let at = || path.to_owned();
        let silent = |source: io::Error| JoinError::Silent { path: at(), source };
        let stream = match reach(path, WELCOME_WITHIN) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(silent(error)),
            Err(source) => return Err(JoinError::Nobody { path: at(), source }),
        };
        if !servers.trusts_server(&stream) {
            return Err(JoinError::Stranger { path: at() });
        }
        stream
            .set_read_timeout(Some(WELCOME_WITHIN))
            .map_err(silent)?;
        let (mut bytes, mut descriptors) = ([0; welcome::LEN], Vec::new());
        match receive_with(&stream, &mut bytes, &mut descriptors) {
            Ok(true) => {}
            Ok(false) => return Err(JoinError::NotLetIn { path: at() }),
            Err(error) => return Err(silent(error.into())),
        }
        let welcome = Welcome::decode(&bytes).ok_or_else(|| JoinError::Foreign { path: at() })?;
        match welcome.outcome {
            Outcome::Welcome => {}
            Outcome::Full => {
                let most = welcome.client_count_max;
                return Err(JoinError::Full { path: at(), most });
            }
            Outcome::NoMemory => return Err(JoinError::NoMemory { path: at() }),
            Outcome::Ending => return Err(JoinError::Ending { path: at() }),
            // What an engine is told.
            Outcome::Draining | Outcome::Forgotten | Outcome::Superseded => {
                return Err(JoinError::Foreign { path: at() });
            }
        }
        let [order, lane, bell] = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors)
            .map_err(|_| JoinError::Foreign { path: at() })?;
        let queue = Queue::join(Invitation {
            order,
            lane,
            bell: bell.into(),
            terms: welcome.terms,
        })?;
        Ok(Client::over(queue, welcome.service, welcome.is_durable))
    }
}

impl<C: Carrier> Client<C> {
    fn over(queue: C, service: ServiceKind, is_durable: bool) -> Self {
        Client {
            queue,
            service,
            is_durable,
            within: WITHIN_DEFAULT,
            bytes: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// The same, whatever carries its requests.
    pub fn boxed(self) -> Client<Box<dyn Carrier>>
    where
        C: 'static,
    {
        let Client {
            queue,
            service,
            is_durable,
            within,
            bytes,
            answer,
        } = self;
        Client {
            queue: Box::new(queue),
            service,
            is_durable,
            within,
            bytes,
            answer,
        }
    }

    /// What is behind the queue.
    pub fn service(&self) -> ServiceKind {
        self.service
    }

    /// Whether a commit means persistent.
    pub fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// How long to wait for room, for a commit and for an answer.
    pub fn set_within(&mut self, within: Duration) {
        self.within = within;
    }

    /// The queue itself.
    pub fn queue(&mut self) -> &mut C {
        &mut self.queue
    }

    /// Sends a request, waiting for room if need be, and does not wait for more.
    ///
    /// Over shared memory ([`Client::connect`]), a nilext request to a queue that is not
    /// durable is committed with that. In all other cases it is not: one to a durable queue,
    /// and any that an engine places ([`Client::connect_by_engine`]), which may not have left
    /// this host yet. There [`Client::committed`] tells when it is, and until then nobody knows
    /// whether it will be executed; it sends what the connection did not take at once, too.
    ///
    /// [`Client::answer`] is to follow for each request that is not nilext.
    pub fn send(&mut self, request: &Request<'_>, nilext: bool) -> Result<Committed, ClientError> {
        request.encode(&mut self.bytes)?;
        loop {
            match self.queue.submit(&self.bytes, nilext) {
                Ok(sent) => return Ok(sent),
                // Nothing was sent: to have waited in vain is no doubt.
                Err(Refused::Full) => match self.queue.wait_for_room(self.within) {
                    Ok(()) => {}
                    Err(NoAnswer::ServerGone) => return Err(Refused::Closed.into()),
                    Err(_) => return Err(Refused::Full.into()),
                },
                Err(refused) => return Err(refused.into()),
            }
        }
    }

    /// Waits until what was sent is committed, and with it all before it.
    pub fn committed(&mut self, sent: Committed) -> Result<(), ClientError> {
        Ok(self.queue.committed(sent, self.within)?)
    }

    /// Waits for the answer to a request that was not nilext: its value, or `None` if there
    /// is none.
    ///
    /// The request's slot is held until its answer is taken. After [`NoAnswer::TimedOut`] ask
    /// again, or do without it by [`Carrier::forget`] (of [`Client::queue`]): otherwise the queue
    /// is full as soon as that slot's turn comes again, and stays so.
    pub fn answer(&mut self, sent: Committed) -> Result<Option<&[u8]>, ClientError> {
        self.queue.answer(sent, &mut self.answer, self.within)?;
        self.meaning()
    }

    /// What the last answer says.
    fn meaning(&self) -> Result<Option<&[u8]>, ClientError> {
        match Status::of(&self.answer) {
            Some((Status::Done, value)) => Ok(Some(value)),
            Some((Status::Missing, _)) => Ok(None),
            // It is in a log, the queue's or the store's: the next life may execute it.
            Some((Status::Failed, _)) => Err(NoAnswer::ServerGone.into()),
            Some((status, _)) => Err(ClientError::Status(status)),
            None => Err(ClientError::Foreign),
        }
    }

    /// Sends a request and waits for its answer. One that does not come in time is forgotten:
    /// nobody could take it any more.
    fn ask(&mut self, request: &Request<'_>) -> Result<Option<&[u8]>, ClientError> {
        let sent = self.send(request, false)?;
        if let Err(why) = self.queue.answer(sent, &mut self.answer, self.within) {
            self.queue.forget(sent);
            return Err(why.into());
        }
        self.meaning()
    }

    fn commit(&mut self, request: &Request<'_>) -> Result<(), ClientError> {
        let sent = self.send(request, true)?;
        self.committed(sent)
    }

    /// A key's value. Whatever was committed before, by anybody, is in it.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>, ClientError> {
        self.ask(&Request::Get(key))
    }

    /// A value for a key; returns when that is committed.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        self.commit(&Request::Set(key, value))
    }

    /// No value for a key; returns when that is committed.
    pub fn erase(&mut self, key: &[u8]) -> Result<(), ClientError> {
        self.commit(&Request::Erase(key))
    }

    /// So much more in a key's value; returns when that is executed, with the sum.
    pub fn add(&mut self, key: &[u8], by: i64) -> Result<i64, ClientError> {
        let sum = self
            .ask(&Request::Add(key, by))?
            .and_then(|sum| std::str::from_utf8(sum).ok());
        sum.and_then(|sum| sum.parse().ok())
            .ok_or(ClientError::Foreign)
    }

    /// Bytes behind a key's value; returns when that is executed.
    pub fn append(&mut self, key: &[u8], more: &[u8]) -> Result<(), ClientError> {
        self.ask(&Request::Append(key, more)).map(|_| ())
    }
}

/// A connection to what listens at this path. [`io::ErrorKind::TimedOut`]: as many as it lets
/// wait are waiting, and it has accepted none of them.
pub(crate) fn reach(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let start = Instant::now();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if start.elapsed() < within => std::thread::sleep(CROWDED),
            Err(Errno::AGAIN) => {
                let words = "it accepts no connections";
                return Err(io::Error::new(io::ErrorKind::TimedOut, words));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_server_that_accepts_nobody_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        rustix::net::listen(&listener, 0).expect("a shorter queue");
        let mut waiting = Vec::new();
        let error = loop {
            match reach(&path, Duration::from_millis(20)) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 16, "the queue does not end");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        // There is room again while another one waits.
        std::thread::scope(|scope| {
            let late = scope.spawn(|| reach(&path, Duration::from_secs(120)));
            std::thread::sleep(Duration::from_millis(20));
            drop(listener.accept().expect("the first one"));
            late.join().expect("no panic").expect("room");
        });
    }
}
