//! Certificates that change while everything runs.

use super::maker::{Authority, Odd, port, put, sample};
use crate::support::{Cell, free_port, kill};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{CertFiles, CertUse, Lookup, Options, SetOptions, Tls};

fn connect(cell: &Cell, certs: &str) -> trefoil_client::Cell {
    let files = CertFiles::in_directory(Path::new(certs));
    let tls = Some(Tls::read(&files, CertUse::Client).unwrap());
    let address = format!("127.0.0.1:{}", port(cell));
    trefoil_client::Cell::connect_with(&address, tls).unwrap()
}

/// Writes and reads until told to stop; how many operations there were. All have to
/// come to a good end.
fn work(cell: &trefoil_client::Cell, worker: usize, is_over: &AtomicBool, done: &AtomicU64) {
    let mut client = cell.client(Options::default());
    let mut round = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        let key = format!("{worker}-{}", round % 64);
        let value = format!("{worker} wrote {round}");
        client
            .set(key.as_bytes(), value.as_bytes(), SetOptions::default())
            .unwrap_or_else(|error| panic!("set {key}: {error}"));
        match client.get(key.as_bytes()) {
            Ok(Lookup::Hit(hit)) => assert_eq!(hit.value, value.as_bytes()),
            Ok(Lookup::Miss(miss)) => panic!("get {key}: {}", miss.reason),
            Err(error) => panic!("get {key}: {error}"),
        }
        round += 1;
        done.fetch_add(2, Ordering::Relaxed);
    }
}

/// The serial number of the certificate that new connections are shown.
fn serial(cell: &Cell, certs: &str) -> Result<String, std::io::Error> {
    use rustls::pki_types::ServerName;
    use std::io::Read as _;
    let dir = Path::new(certs);
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let roots = trefoil_tls::read_roots(&dir.join("ca.pem")).unwrap();
    let chain = trefoil_tls::read_certificates(&dir.join("cert.pem")).unwrap();
    let key = trefoil_tls::read_key(&dir.join("key.pem")).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut tls = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    let mut socket = std::net::TcpStream::connect(("127.0.0.1", port(cell))).unwrap();
    rustls::Stream::new(&mut tls, &mut socket).read_exact(&mut [0])?;
    let shown = &tls.peer_certificates().unwrap()[0];
    Ok(trefoil_tls::Certificate::parse(shown).unwrap().serial)
}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "it never came: {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn certificates_are_replaced_under_traffic_and_no_call_fails() {
    let authority = Authority::new();
    let server = authority.issue("server", "backend");
    let client = authority.issue("app", "client");
    let metrics = free_port();
    let cell = authority.serve(&server, Some(metrics));
    let (is_over, done, joined) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let is_refused = || sample(metrics, "trefoil_certificate_refused") == 1.0;
    let left_s = || sample(metrics, "trefoil_certificate_left_seconds");
    std::thread::scope(|scope| {
        // What stands goes on, on connections of the beginning.
        let standing = connect(&cell, &client);
        for worker in 0..2 {
            let (standing, is_over, done) = (standing.clone(), &is_over, &done);
            scope.spawn(move || work(&standing, worker, is_over, done));
        }
        // And somebody new comes all the time, who shakes hands with what is there.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let once = AtomicBool::new(false);
                let newcomer = connect(&cell, &client);
                std::thread::scope(|inner| {
                    inner.spawn(|| work(&newcomer, 9, &once, &done));
                    std::thread::sleep(Duration::from_millis(30));
                    once.store(true, Ordering::Relaxed);
                });
                joined.fetch_add(1, Ordering::Relaxed);
            }
        });
        let end = Ending(&is_over);

        let days = |seconds: f64| (seconds / 86_400.0).ceil() as i64;
        assert_eq!(days(left_s()), 90);
        // By looking at the files.
        let renewed = authority.renew("server")["serial"]
            .as_str()
            .unwrap()
            .to_owned();
        until("the renewed certificate", || {
            serial(&cell, &client).unwrap() == renewed
        });
        // By a signal, at once.
        authority.certs(&["renew", "server", "--days", "30"]);
        kill(cell.pid(), "HUP");
        until("30 days", || days(left_s()) == 30);
        authority.renew("app");

        // Files that cannot be used change nothing, and that is shown.
        let good = serial(&cell, &client).unwrap();
        let path = Path::new(&server).join("cert.pem");
        let whole = std::fs::read_to_string(&path).unwrap();
        put(&path, &whole[..200]);
        until("broken files are noticed", is_refused);
        assert_eq!(serial(&cell, &client).unwrap(), good);
        kill(cell.pid(), "HUP");
        let other = Authority::new();
        let theirs = Path::new(&other.issue("server", "backend")).join("cert.pem");
        put(&path, &std::fs::read_to_string(theirs).unwrap());
        std::thread::sleep(Duration::from_millis(1200));
        assert!(is_refused());
        assert_eq!(serial(&cell, &client).unwrap(), good);
        put(&path, &whole);
        until("whole files are taken", || !is_refused());

        // Another authority follows: first both are believed, then everybody's
        // certificate is of the new one, then the old one is believed no more.
        let read = |dir: &Path| std::fs::read_to_string(dir.join("ca.pem")).unwrap();
        let next = Authority::new();
        let both = read(&authority.dir()) + &read(&next.dir());
        let both_sides = [Path::new(&server), Path::new(&client)];
        for side in both_sides {
            put(&side.join("ca.pem"), &both);
        }
        until("both are believed", || {
            let mixed = authority.home.path().join("mixed");
            std::fs::create_dir_all(&mixed).unwrap();
            let theirs = match next.dir().join("probe").exists() {
                true => next.dir().join("probe").display().to_string(),
                false => next.issue("probe", "client"),
            };
            for file in ["cert.pem", "key.pem"] {
                let text = std::fs::read_to_string(Path::new(&theirs).join(file)).unwrap();
                put(&mixed.join(file), &text);
            }
            put(&mixed.join("ca.pem"), &both);
            let mixed = mixed.display().to_string();
            serial(&cell, &mixed).is_ok()
        });
        for (side, made) in [
            (&server, next.issue("server", "backend")),
            (&client, next.issue("app", "client")),
        ] {
            for file in ["key.pem", "cert.pem"] {
                let text = std::fs::read_to_string(Path::new(&made).join(file)).unwrap();
                put(&Path::new(side).join(file), &text);
            }
        }
        let made = next.dir().join("server/cert.pem");
        let made = trefoil_tls::read_certificates(&made).unwrap();
        let made = trefoil_tls::Certificate::parse(&made[0]).unwrap();
        until("the server shows its new certificate", || {
            serial(&cell, &client).is_ok_and(|shown| shown == made.serial)
        });
        // The clients of this process look once a second, too, and nobody tells when.
        std::thread::sleep(Duration::from_secs(5));
        for side in both_sides {
            put(&side.join("ca.pem"), &read(&next.dir()));
        }
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(serial(&cell, &client).unwrap(), made.serial);
        drop(end);
    });
    let (done, joined) = (done.into_inner(), joined.into_inner());
    eprintln!("{done} operations, {joined} newcomers, none failed");
    assert!(done > 2000 && joined > 40, "{done} {joined}");
}

/// Ends the workers, also where an assertion fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection lasts no longer than the certificate by which it was let in. Who has
/// renewed it in time notices nothing; who has not is refused, and let in again once
/// it has.
#[test]
fn a_connection_ends_with_its_certificate() {
    const VALID_S: i64 = 20;
    let authority = Authority::new();
    let cell = authority.serve(&authority.issue("server", "backend"), None);
    let short = Odd {
        until_s: VALID_S,
        ..Odd::default()
    };
    let begin = Instant::now();
    let [in_time, late] = ["in-time", "late"].map(|name| {
        let certs = authority.make(name, &short);
        (connect(&cell, &certs), certs)
    });
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let end = Ending(&is_over);
        for worker in 0..2 {
            let (is_over, done, in_time) = (&is_over, &done, in_time.0.clone());
            scope.spawn(move || work(&in_time, worker, is_over, done));
        }
        authority.make("in-time", &Odd::default());
        let mut client = late.0.client(Options::default());
        client.set(b"late", b"1", SetOptions::default()).unwrap();
        let ends = Duration::from_secs(VALID_S as u64 + 2);
        std::thread::sleep(ends.saturating_sub(begin.elapsed()));
        let error = client
            .set(b"late", b"2", SetOptions::default())
            .unwrap_err();
        assert_eq!(error.to_string(), trefoil_client::UNREACHABLE);
        // Who finds that a backend is away need not be who finds out why.
        until("the reason is known", || {
            let _ = late.0.client(Options::default()).get(b"late");
            let said = late.0.why_unreachable().unwrap_or_default();
            [
                "does not accept the certificate in",
                "late/cert.pem",
                "expired",
            ]
            .iter()
            .all(|words| said.contains(words))
        });
        // A backend that is there is not passed over.
        let error = late.0.flush(0).unwrap_err().to_string();
        assert!(
            error.contains("does not accept the certificate in"),
            "{error}"
        );
        authority.make("late", &Odd::default());
        until("the renewed one is taken", || {
            late.0
                .client(Options::default())
                .set(b"late", b"3", SetOptions::default())
                .is_ok()
        });
        drop(end);
    });
    assert!(done.into_inner() > 1000);
}
