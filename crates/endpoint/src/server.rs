//! The port. A thread for each request, a few at a time; whoever is slow to ask
//! or to read has its thread for seconds at most.

use crate::exposition::exposition;
use crate::process::{Drain, Process};
use crate::samples::Samples;
use crate::visitors::{Place, Visitors};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trefoil_socket_owner::{Users, client_of, own_user};

/// Longest request head read, in bytes.
const HEAD_LEN_MAX: usize = 8 << 10;
/// How long a request may take to come, and an answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);
/// After the system has refused a connection: it has no descriptors, and will not
/// have any in the next moment.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Headers of requests that somebody else has asked for than who sends them.
const PASSED_ON: [&str; 3] = ["Origin", "Forwarded", "X-Forwarded-For"];
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
        Endpoint::listen_for(address, reach, parts, Users::default())
    }

    /// Likewise, and these users may drain it.
    ///
    /// # Errors
    /// The same.
    pub fn listen_for(
        address: SocketAddr,
        reach: Reach,
        parts: Vec<Arc<dyn Process>>,
        drainers: Users,
    ) -> Result<Endpoint, EndpointError> {
        reach.check(address)?;
        let failed = |source| EndpointError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        Endpoint::serve_for(listener, parts, drainers)
    }

    /// Likewise, on a socket that was taken before.
    ///
    /// # Errors
    /// The socket does not work.
    pub fn serve(
        listener: TcpListener,
        parts: Vec<Arc<dyn Process>>,
    ) -> Result<Endpoint, EndpointError> {
        Endpoint::serve_for(listener, parts, Users::default())
    }

    /// Likewise, and these users may drain it.
    ///
    /// # Errors
    /// The socket does not work.
    pub fn serve_for(
        listener: TcpListener,
        parts: Vec<Arc<dyn Process>>,
        drainers: Users,
    ) -> Result<Endpoint, EndpointError> {
        Endpoint::start(listener, Told::Parts(parts, drainers))
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
            .spawn(move || accept_all(&listener, &stops, &told))?;
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

fn accept_all(listener: &TcpListener, stops: &AtomicBool, told: &Arc<Told>) {
    let visitors = Arc::<Visitors>::default();
    let mut has_warned = false;
    for stream in listener.incoming() {
        if stops.load(Ordering::Relaxed) {
            return;
        }
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(%error, "the port for metrics takes no connection");
                }
                std::thread::sleep(REFUSED_PAUSE);
                continue;
            }
        };
        if let Err(error) = begin(stream, &visitors, told) {
            tracing::debug!(%error, "metrics");
        }
    }
}

/// A thread for a connection, if there is a place.
fn begin(stream: TcpStream, visitors: &Arc<Visitors>, told: &Arc<Told>) -> io::Result<()> {
    let is_local = stream.peer_addr()?.ip().to_canonical().is_loopback();
    let Some(place) = visitors.come_in(stream, is_local) else {
        return Err(io::Error::other("too many requests at a time"));
    };
    let told = Arc::clone(told);
    let thread = std::thread::Builder::new().name("trefoil-scrape".to_owned());
    thread.spawn(move || {
        if let Err(error) = serve(&place, &told) {
            tracing::debug!(%error, "metrics");
        }
    })?;
    Ok(())
}

/// What there is to be told.
enum Told {
    Text(Arc<Text>),
    /// And who may drain them.
    Parts(Vec<Arc<dyn Process>>, Users),
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
            Told::Parts(parts, _) => parts,
        }
    }

    fn metrics(&self, accept: &str) -> Answer {
        let text = match self {
            Told::Text(text) => text(),
            Told::Parts(parts, _) => {
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
        let rank = |state: &&Drain| match state {
            Drain::NotBegun | Drain::UnderWay(_) => 0,
            Drain::Lost(_) => 1,
            Drain::Done => 2,
        };
        states.iter().min_by_key(rank).cloned()
    }

    /// Whether who asks at this connection may drain, or why not.
    fn may_drain(&self, place: &Place) -> io::Result<Result<(), String>> {
        if !place.is_local {
            return Ok(Err(
                "only this host may drain: ask from inside it".to_owned()
            ));
        }
        let Told::Parts(_, drainers) = self else {
            return Ok(Ok(()));
        };
        let (here, there) = (place.stream().local_addr()?, place.stream().peer_addr()?);
        let asks = client_of(here, there);
        // One that was reset meanwhile has left its port to others, who were found then.
        place.stream().peer_addr()?;
        Ok(match asks {
            Ok(user) if drainers.let_in(user) => Ok(()),
            Ok(user) => Err(format!(
                "user {user} may not drain: it takes the process's own user ({}), root, or one \
                 whom it was told of",
                own_user()
            )),
            Err(error) => Err(format!("it is not known who asks: {error}")),
        })
    }

    fn drain(&self, begins: Option<Result<(), String>>) -> Answer {
        if self.drained().is_none() {
            return (
                "404 Not Found",
                TEXT,
                "there is nothing to drain here\n".to_owned(),
            );
        }
        if let Some(Err(why)) = begins {
            return ("403 Forbidden", TEXT, format!("{why}\n"));
        }
        if begins.is_some() {
            tracing::info!("asked to drain, at the port for metrics");
            self.parts().iter().for_each(|part| part.drain());
        }
        match self.drained() {
            Some(Drain::Done) | None => (OK, TEXT, "drained\n".to_owned()),
            Some(Drain::Lost(why)) => (OK, TEXT, format!("drained: {why}\n")),
            Some(Drain::UnderWay(left)) => ("202 Accepted", TEXT, format!("{left}\n")),
            Some(Drain::NotBegun) => ("409 Conflict", TEXT, "it is not being drained\n".to_owned()),
        }
    }

    fn answer(&self, head: &[u8], place: &Place) -> io::Result<Answer> {
        let mut words = head.split(|byte| *byte == b' ');
        let (method, path) = (words.next(), words.next().unwrap_or_default());
        // A query says nothing here.
        let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
        let has_parts = !self.parts().is_empty();
        // It comes from this host, and was asked for elsewhere: on a page that a
        // browser shows, or behind a proxy.
        let passed_on = |name: &&&str| header(head, name).is_some();
        if method == Some(b"POST")
            && let Some(name) = PASSED_ON.iter().find(passed_on)
        {
            let why = format!("a POST with the header {name} is not from this host\n");
            return Ok(("403 Forbidden", TEXT, why));
        }
        Ok(match (method, path) {
            (Some(b"GET"), b"/metrics") => self.metrics(accept(head)),
            (Some(b"GET"), b"/livez") if has_parts => self.whether("alive", |part| part.live()),
            (Some(b"GET"), b"/readyz") if has_parts => self.whether("ready", |part| part.ready()),
            (Some(b"GET"), b"/drain") => self.drain(None),
            (Some(b"POST"), b"/drain") => self.drain(Some(self.may_drain(place)?)),
            (Some(b"GET"), _) => ("404 Not Found", TEXT, PATHS.to_owned()),
            _ => {
                let why = "only GET is served here, and POST /drain\n";
                ("405 Method Not Allowed", TEXT, why.to_owned())
            }
        })
    }
}

fn serve(place: &Place, told: &Told) -> io::Result<()> {
    let head = read_head(place.stream())?;
    place.has_asked();
    let (status, kind, body) = told.answer(&head, place)?;
    let len = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    write_answer(place.stream(), answer.as_bytes())
}

/// Writes all of it, within the patience: a reader that takes a byte now and then
/// has no more of it.
fn write_answer(mut stream: &TcpStream, mut answer: &[u8]) -> io::Result<()> {
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
    let value = header(head, "Accept").unwrap_or_default();
    std::str::from_utf8(value).unwrap_or_default().trim()
}

/// The value of a header, whatever bytes it has.
fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').skip(1).find_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let is_it = line[..colon]
            .trim_ascii()
            .eq_ignore_ascii_case(name.as_bytes());
        is_it.then(|| &line[colon + 1..])
    })
}

fn read_head(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
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
