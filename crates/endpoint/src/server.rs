//! The port. A thread for each request, a few at a time; whoever is slow to ask
//! or to read has its thread for seconds, and keeps nobody waiting.

use crate::exposition::exposition;
use crate::process::{Drain, Process};
use crate::samples::Samples;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest request head read, in bytes.
const HEAD_LEN_MAX: usize = 8 << 10;
/// Requests at a time; one that comes on top is hung up on.
const REQUEST_COUNT_MAX: usize = 32;
/// How long a request may take to come, and an answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is at such a port, for whoever asks for something else.
const PATHS: &str =
    "metrics are at /metrics, and how the process is at /livez, /readyz and /drain\n";

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The socket does not work.
    #[error("cannot serve metrics: {0}")]
    System(#[from] io::Error),
    /// It cannot be opened.
    #[error("cannot serve metrics at {address}: {source}")]
    Listen {
        /// Wanted.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// Other machines could reach it.
    #[error(
        "{address} is reachable from other machines, and metrics are served without TLS: listen \
         on 127.0.0.1, or allow it (--plaintext metrics) if the network is trusted"
    )]
    OffLoopback {
        /// Wanted.
        address: SocketAddr,
    },
}

/// From where a port may be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// From this host.
    #[default]
    Loopback,
    /// From anywhere, in the clear.
    Plaintext,
}

impl Reach {
    /// Whether a port may be opened there.
    ///
    /// # Errors
    /// Other machines could reach it, and nobody has allowed that.
    pub fn check(self, address: SocketAddr) -> Result<(), EndpointError> {
        match self {
            Reach::Loopback if !address.ip().is_loopback() => {
                Err(EndpointError::OffLoopback { address })
            }
            _ => Ok(()),
        }
    }
}

/// Metrics when somebody asks, in the OpenMetrics format.
pub type Text = dyn Fn() -> Result<String, std::fmt::Error> + Send + Sync;

/// Serves until dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Begins to tell of the parts of a process; port 0 takes a free one.
    ///
    /// # Errors
    /// The port may not be opened there, or cannot be.
    pub fn listen(
        address: SocketAddr,
        reach: Reach,
        parts: Vec<Arc<dyn Process>>,
    ) -> Result<Endpoint, EndpointError> {
        reach.check(address)?;
        let failed = |source| EndpointError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        Endpoint::serve(listener, parts)
    }

    /// Likewise, on a socket that was taken before.
    ///
    /// # Errors
    /// The socket does not work.
    pub fn serve(
        listener: TcpListener,
        parts: Vec<Arc<dyn Process>>,
    ) -> Result<Endpoint, EndpointError> {
        Endpoint::start(listener, Told::Parts(parts))
    }

    /// Serves only metrics, on a socket that was taken before.
    ///
    /// # Errors
    /// The socket does not work.
    pub fn of(listener: TcpListener, text: Arc<Text>) -> Result<Endpoint, EndpointError> {
        Endpoint::start(listener, Told::Text(text))
    }

    fn start(listener: TcpListener, told: Told) -> Result<Endpoint, EndpointError> {
        listener.set_nonblocking(false)?;
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stopping);
        let told = Arc::new(told);
        let thread = std::thread::Builder::new()
            .name("trefoil-metrics".to_owned())
            .spawn(move || {
                let under_way = Arc::<AtomicUsize>::default();
                for stream in listener.incoming() {
                    if stops.load(Ordering::Relaxed) {
                        return;
                    }
                    let begun = stream.and_then(|stream| {
                        let Some(place) = Place::take(&under_way) else {
                            return Err(io::Error::other("too many requests at a time"));
                        };
                        let told = Arc::clone(&told);
                        std::thread::Builder::new()
                            .name("trefoil-scrape".to_owned())
                            .spawn(move || {
                                let _place = place;
                                if let Err(error) = serve(stream, &told) {
                                    tracing::debug!(%error, "metrics");
                                }
                            })
                    });
                    if let Err(error) = begun {
                        tracing::debug!(%error, "metrics");
                    }
                }
            })?;
        Ok(Endpoint {
            address,
            stopping,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Wakes the thread, which waits for a connection.
        let _ = TcpStream::connect_timeout(&self.address, PATIENCE);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One of the requests that may be under way at a time.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(under_way: &Arc<AtomicUsize>) -> Option<Place> {
        let place = Place(Arc::clone(under_way));
        (under_way.fetch_add(1, Ordering::Relaxed) < REQUEST_COUNT_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What there is to be told.
enum Told {
    Text(Arc<Text>),
    Parts(Vec<Arc<dyn Process>>),
}

/// Status, content type and body.
type Answer = (&'static str, &'static str, String);

const OK: &str = "200 OK";
const UNAVAILABLE: &str = "503 Service Unavailable";
const TEXT: &str = "text/plain";

impl Told {
    fn parts(&self) -> &[Arc<dyn Process>] {
        match self {
            Told::Text(_) => &[],
            Told::Parts(parts) => parts,
        }
    }

    fn metrics(&self, accept: &str) -> Answer {
        let text = match self {
            Told::Text(text) => text(),
            Told::Parts(parts) => {
                let mut samples = Samples::default();
                let collected = parts.iter().try_for_each(|part| part.collect(&mut samples));
                collected.and_then(|()| samples.text())
            }
        };
        match text {
            Ok(text) => {
                let (kind, body) = exposition(accept, text);
                (OK, kind, body)
            }
            Err(error) => ("500 Internal Server Error", TEXT, format!("{error}\n")),
        }
    }

    /// Whether all parts are, or why one is not.
    fn whether(&self, word: &str, is: impl Fn(&dyn Process) -> Result<(), String>) -> Answer {
        match self.parts().iter().try_for_each(|part| is(&**part)) {
            Ok(()) => (OK, TEXT, format!("{word}\n")),
            Err(reason) => (UNAVAILABLE, TEXT, format!("{reason}\n")),
        }
    }

    /// How far those parts are that have something to give.
    fn drained(&self) -> Option<Drain> {
        let states: Vec<Drain> = self.parts().iter().filter_map(|p| p.drained()).collect();
        let left = |state: &&Drain| **state != Drain::Done;
        let first = states.iter().find(left).or(states.first());
        first.cloned()
    }

    fn drain(&self, begins: bool, is_local: bool) -> Answer {
        if self.drained().is_none() {
            return (
                "404 Not Found",
                TEXT,
                "there is nothing to drain here\n".to_owned(),
            );
        }
        if begins && !is_local {
            let why = "only this host may drain: ask from inside it\n";
            return ("403 Forbidden", TEXT, why.to_owned());
        }
        if begins {
            tracing::info!("asked to drain, at the port for metrics");
            self.parts().iter().for_each(|part| part.drain());
        }
        match self.drained() {
            Some(Drain::Done) | None => (OK, TEXT, "drained\n".to_owned()),
            Some(Drain::UnderWay(left)) => ("202 Accepted", TEXT, format!("{left}\n")),
            Some(Drain::NotBegun) => ("409 Conflict", TEXT, "it is not being drained\n".to_owned()),
        }
    }

    fn answer(&self, head: &[u8], is_local: bool) -> Answer {
        let mut words = head.split(|byte| *byte == b' ');
        let (method, path) = (words.next(), words.next().unwrap_or_default());
        // A query says nothing here.
        let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
        let has_parts = !self.parts().is_empty();
        match (method, path) {
            (Some(b"GET"), b"/metrics") => self.metrics(accept(head)),
            (Some(b"GET"), b"/livez") if has_parts => self.whether("alive", |part| part.live()),
            (Some(b"GET"), b"/readyz") if has_parts => self.whether("ready", |part| part.ready()),
            (Some(b"GET"), b"/drain") => self.drain(false, is_local),
            (Some(b"POST"), b"/drain") => self.drain(true, is_local),
            (Some(b"GET"), _) => ("404 Not Found", TEXT, PATHS.to_owned()),
            _ => {
                let why = "only GET is served here, and POST /drain\n";
                ("405 Method Not Allowed", TEXT, why.to_owned())
            }
        }
    }
}

fn serve(mut stream: TcpStream, told: &Told) -> io::Result<()> {
    let head = read_head(&mut stream)?;
    let is_local = stream.peer_addr()?.ip().to_canonical().is_loopback();
    let (status, kind, body) = told.answer(&head, is_local);
    let len = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    write_answer(&mut stream, answer.as_bytes())
}

/// Writes all of it, within the patience: a reader that takes a byte now and then
/// has no more of it.
fn write_answer(stream: &mut TcpStream, mut answer: &[u8]) -> io::Result<()> {
    let begin = Instant::now();
    while !answer.is_empty() {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(answer) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => answer = &answer[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The value of a request's `Accept` header.
fn accept(head: &[u8]) -> &str {
    let lines = head.split(|byte| *byte == b'\n');
    let mut lines = lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once(':'));
    let found = lines.find(|(name, _)| name.eq_ignore_ascii_case("accept"));
    found.map_or("", |(_, value)| value.trim())
}

fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let (mut head, begin) = (Vec::new(), Instant::now());
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        if left.is_zero() || head.len() > HEAD_LEN_MAX {
            return Err(io::Error::other("no HTTP request came"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => head.extend_from_slice(&part[..len]),
        }
    }
    Ok(head)
}
