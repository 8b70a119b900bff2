//! What the port answers about a process of two parts.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trefoil_endpoint::{Drain, Endpoint, EndpointError, MetricInfo, Process, Reach, Samples};

const HELD: MetricInfo = MetricInfo::gauge("held", &["part"], "Things held");

struct Part {
    name: &'static str,
    is_alive: AtomicBool,
    is_ready: AtomicBool,
    draining: AtomicBool,
    held: AtomicU64,
    gives: bool,
}

impl Part {
    fn new(name: &'static str, gives: bool) -> Arc<Self> {
        Arc::new(Part {
            name,
            is_alive: true.into(),
            is_ready: false.into(),
            draining: false.into(),
            held: 2.into(),
            gives,
        })
    }

    fn is(&self, flag: &AtomicBool, word: &str) -> Result<(), String> {
        match flag.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(format!("{} is not {word}", self.name)),
        }
    }
}

impl Process for Part {
    fn collect(&self, samples: &mut Samples) -> fmt::Result {
        samples.put(
            &HELD,
            &[self.name],
            self.held.load(Ordering::Relaxed) as f64,
        );
        Ok(())
    }

    fn live(&self) -> Result<(), String> {
        self.is(&self.is_alive, "alive")
    }

    fn ready(&self) -> Result<(), String> {
        self.is(&self.is_ready, "ready")
    }

    fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn drained(&self) -> Option<Drain> {
        let held = self.held.load(Ordering::Relaxed);
        self.gives
            .then(|| match (self.draining.load(Ordering::Relaxed), held) {
                (false, _) => Drain::NotBegun,
                (true, 0) => Drain::Done,
                (true, left) => Drain::UnderWay(format!("{left} left")),
            })
    }
}

fn at(parts: Vec<Arc<dyn Process>>) -> Endpoint {
    Endpoint::listen("127.0.0.1:0".parse().unwrap(), Reach::Loopback, parts).unwrap()
}

/// Status and body.
fn ask(endpoint: &Endpoint, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(endpoint.address()).unwrap();
    stream
        .write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.trim_end().to_owned())
}

#[test]
fn a_process_is_what_all_its_parts_are() {
    let (a, b) = (Part::new("a", true), Part::new("b", true));
    let endpoint = at(vec![Arc::clone(&a) as _, Arc::clone(&b) as _]);
    let ask = |request: &str| ask(&endpoint, request);
    let said = |status: u16, text: &str| (status, text.to_owned());

    assert_eq!(ask("GET /livez"), said(200, "alive"));
    b.is_alive.store(false, Ordering::Relaxed);
    assert_eq!(ask("GET /livez"), said(503, "b is not alive"));

    assert_eq!(ask("GET /readyz"), said(503, "a is not ready"));
    a.is_ready.store(true, Ordering::Relaxed);
    assert_eq!(ask("GET /readyz?verbose"), said(503, "b is not ready"));
    b.is_ready.store(true, Ordering::Relaxed);
    assert_eq!(ask("GET /readyz"), said(200, "ready"));

    assert_eq!(ask("GET /drain"), said(409, "it is not being drained"));
    assert_eq!(ask("POST /drain"), said(202, "2 left"));
    assert!(a.draining.load(Ordering::Relaxed) && b.draining.load(Ordering::Relaxed));
    a.held.store(0, Ordering::Relaxed);
    assert_eq!(ask("GET /drain"), said(202, "2 left"));
    b.held.store(0, Ordering::Relaxed);
    assert_eq!(ask("GET /drain"), said(200, "drained"));
    assert_eq!(ask("POST /drain"), said(200, "drained"));

    let (status, page) = ask("GET /metrics");
    assert_eq!(status, 200);
    assert_eq!(page.matches("# TYPE held gauge").count(), 1, "{page}");
    assert!(
        page.contains("held{part=\"a\"} 0.0\nheld{part=\"b\"} 0.0"),
        "{page}"
    );
    assert_eq!(ask("GET /").0, 404);
    assert_eq!(ask("PUT /metrics").0, 405);
}

#[test]
fn what_there_is_nothing_to_be_told_of_is_not_found() {
    let endpoint = at(vec![Part::new("a", false)]);
    assert_eq!(ask(&endpoint, "POST /drain").0, 404);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let only = Endpoint::of(listener, Arc::new(|| Ok("# EOF\n".to_owned()))).unwrap();
    assert_eq!(ask(&only, "GET /readyz").0, 404);
    assert_eq!(ask(&only, "GET /metrics").0, 200);
}

/// An address of this host that is not loopback, if it has one.
fn beyond() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing: only asks the system for the way.
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

#[test]
fn off_loopback_only_if_allowed_and_never_to_drain() {
    let anywhere = "0.0.0.0:0".parse().unwrap();
    let refused = Endpoint::listen(anywhere, Reach::Loopback, Vec::new());
    assert!(matches!(refused, Err(EndpointError::OffLoopback { .. })));
    let part = Part::new("a", true);
    let parts: Vec<Arc<dyn Process>> = vec![Arc::clone(&part) as _];
    let endpoint = Endpoint::listen(anywhere, Reach::Plaintext, parts).unwrap();
    let Some(ip) = beyond() else {
        println!("skipped: this host has no address beside loopback");
        return;
    };
    let mut asked = Vec::new();
    for request in ["GET /livez", "GET /drain", "POST /drain"] {
        let mut stream = TcpStream::connect((ip, endpoint.address().port())).unwrap();
        stream
            .write_all(format!("{request} HTTP/1.1\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        asked.push(answer[9..12].to_owned());
    }
    assert_eq!(asked, ["200", "409", "403"]);
    assert!(!part.draining.load(Ordering::Relaxed));
}

#[test]
fn connections_that_say_nothing_keep_nobody_away() {
    let endpoint = at(vec![Part::new("a", true)]);
    // As many as there are places, and some on top.
    let open = |_| TcpStream::connect(endpoint.address()).unwrap();
    let mut idle: Vec<TcpStream> = (0..40).map(open).collect();
    assert_eq!(ask(&endpoint, "GET /livez"), (200, "alive".to_owned()));
    // The newest of them is still heard.
    let newest = idle.last_mut().unwrap();
    newest.write_all(b"GET /livez HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    newest.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_post_that_somebody_passes_on_is_refused() {
    let part = Part::new("a", true);
    let endpoint = at(vec![Arc::clone(&part) as _]);
    for header in [
        "Origin: http://example.org",
        "forwarded: for=192.0.2.1",
        "X-Forwarded-For: 192.0.2.1",
    ] {
        let mut stream = TcpStream::connect(endpoint.address()).unwrap();
        let request = format!("POST /drain HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403"), "{header}: {answer}");
    }
    assert!(!part.draining.load(Ordering::Relaxed));
    assert_eq!(ask(&endpoint, "POST /drain").0, 202);
}
