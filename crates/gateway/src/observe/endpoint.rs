//! Metrics over HTTP for a front door that stands alone: a backend serves them
//! on its own port. A thread for each request, a few at a time; whoever is slow
//! to ask or to read has its thread for seconds, and keeps nobody waiting.

use super::observatory::Observatory;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trefoil_backend::{Reporter as _, encode_certificate, exposition};
use trefoil_tls::Tls;

/// Longest request head read, in bytes.
const HEAD_LEN_MAX: usize = 8 << 10;
/// Requests at a time; one that comes on top is hung up on.
const REQUEST_COUNT_MAX: usize = 32;
/// How long a request may take to come, and an answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics: {0}")]
pub struct EndpointError(#[from] io::Error);

/// What is told when somebody asks.
pub type Text = dyn Fn() -> Result<String, std::fmt::Error> + Send + Sync;

/// Serves `/metrics` until dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Begins to serve on a socket that was taken before. `tls`: what is spoken with
    /// the cell, whose certificate is told of, too.
    pub fn start(
        listener: TcpListener,
        cell: String,
        observatory: Arc<Observatory>,
        tls: Option<Tls>,
    ) -> Result<Endpoint, EndpointError> {
        let cell: Arc<str> = cell.into();
        let text = move || {
            render(Door {
                cell: Arc::clone(&cell),
                observatory: Arc::clone(&observatory),
                tls: tls.clone(),
            })
        };
        Endpoint::of(listener, Arc::new(text))
    }

    /// The same of what `text` says, in the OpenMetrics format.
    pub fn of(listener: TcpListener, text: Arc<Text>) -> Result<Endpoint, EndpointError> {
        listener.set_nonblocking(false)?;
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stopping);
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
                        let text = Arc::clone(&text);
                        std::thread::Builder::new()
                            .name("trefoil-scrape".to_owned())
                            .spawn(move || {
                                let _place = place;
                                if let Err(error) = serve(stream, &*text) {
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

fn serve(mut stream: TcpStream, text: &Text) -> io::Result<()> {
    let head = read_head(&mut stream)?;
    let mut words = head.split(|byte| *byte == b' ');
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => match text() {
            Ok(text) => {
                let (kind, body) = exposition(accept(&head), text);
                ("200 OK", kind, body)
            }
            Err(error) => (
                "500 Internal Server Error",
                "text/plain",
                format!("{error}\n"),
            ),
        },
        (Some(b"GET"), _) => (
            "404 Not Found",
            "text/plain",
            "metrics are at /metrics\n".into(),
        ),
        _ => (
            "405 Method Not Allowed",
            "text/plain",
            "only GET is served here\n".into(),
        ),
    };
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

fn render(door: Door) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(door));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Door {
    cell: Arc<str>,
    observatory: Arc<Observatory>,
    tls: Option<Tls>,
}

impl Collector for Door {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(tls) = &self.tls {
            encode_certificate(&tls.status(), &self.cell, &mut encoder)?;
        }
        self.observatory.encode(&self.cell, &mut encoder)
    }
}
