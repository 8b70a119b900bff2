//! Metrics over HTTP for a front door that stands alone: a backend serves them
//! on its own port. One thread, one request at a time; a scraper that is slow
//! keeps only others waiting, and not for long.

use super::observatory::Observatory;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trefoil_backend::{Reporter as _, exposition};

/// Longest request head read, in bytes.
const HEAD_LEN_MAX: usize = 8 << 10;
/// How long a request may take to come, or an answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics: {0}")]
pub struct EndpointError(#[from] io::Error);

/// Serves `/metrics` until dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Begins to serve on a socket that was taken before.
    pub fn start(
        listener: TcpListener,
        cell: String,
        observatory: Arc<Observatory>,
    ) -> Result<Endpoint, EndpointError> {
        listener.set_nonblocking(false)?;
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stopping);
        let thread = std::thread::Builder::new()
            .name("trefoil-metrics".to_owned())
            .spawn(move || {
                for stream in listener.incoming() {
                    if stops.load(Ordering::Relaxed) {
                        return;
                    }
                    let served = stream.and_then(|stream| serve(stream, &cell, &observatory));
                    if let Err(error) = served {
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

fn serve(mut stream: TcpStream, cell: &str, observatory: &Arc<Observatory>) -> io::Result<()> {
    let head = read_head(&mut stream)?;
    let mut words = head.split(|byte| *byte == b' ');
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => match render(cell, observatory) {
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
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(answer.as_bytes())
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

fn render(cell: &str, observatory: &Arc<Observatory>) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Door {
        cell: cell.to_owned(),
        observatory: Arc::clone(observatory),
    }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Door {
    cell: String,
    observatory: Arc<Observatory>,
}

impl Collector for Door {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.observatory.encode(&self.cell, &mut encoder)
    }
}
