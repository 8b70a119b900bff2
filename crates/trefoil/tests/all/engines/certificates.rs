//! Identities: whose sessions there are, and those who are revoked.

use super::by_hand::{CONTROL, Session, hello, said_to};
use super::{Engine, PATIENCE, await_engine, get, metric, said_by_metrics, set, up};
use crate::support::{Cell, free_port, text};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_client::{Client, Options, SetOptions};
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::port::{Completion, Port as _, Progress, Token};
use trefoil_layout::KeyHash;
use trefoil_softnic::{DatagramUse, EngineAddress, EnginePort};
use trefoil_softnic_core::wire::PROTOCOL_VERSION;
use trefoil_tls::LIST_LOOK_PERIOD;

/// A server's and a client's certificates.
pub(super) struct Certs {
    pub(super) own: TempDir,
}

impl Certs {
    pub(super) fn issue() -> Certs {
        let own = tempfile::tempdir().unwrap();
        let dir = own.path().join("ca").display().to_string();
        let run = |args: &[&str]| {
            let made = crate::support::run(&[&["cell", "certs"], args, &["--dir", &dir]].concat());
            assert!(made.status.success(), "{}", text(&made.stderr));
        };
        run(&["init"]);
        let server = ["issue", "--name", "server", "--role", "backend"];
        run(&[&server[..], &["--host", "127.0.0.1,127.0.0.2"]].concat());
        run(&["issue", "--name", "client", "--role", "client"]);
        Certs { own }
    }

    pub(super) fn of_server(&self) -> String {
        self.own.path().join("ca/server").display().to_string()
    }

    pub(super) fn listen(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], free_port()))
    }

    /// Another client's.
    pub(super) fn issue_another(&self, name: &str) {
        let dir = self.own.path().join("ca").display().to_string();
        let issue = ["cell", "certs", "issue", "--name", name, "--role", "client"];
        let made = crate::support::run(&[&issue[..], &["--dir", &dir]].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
    }

    /// Whom the server believes no more.
    pub(super) fn revoke(&self, serials: &[String]) {
        let next = self.own.path().join("next");
        std::fs::write(&next, serials.join("\n")).unwrap();
        std::fs::rename(&next, self.own.path().join("ca/server/revoked")).unwrap();
    }

    /// What single identities may do by the server's list.
    pub(super) fn list(&self, rights: &str) {
        let next = self.own.path().join("next-rights");
        std::fs::write(&next, rights).unwrap();
        std::fs::rename(&next, self.own.path().join("ca/server/rights")).unwrap();
    }

    pub(super) fn tls(&self, name: &str) -> trefoil_client::Tls {
        let files = trefoil_client::CertFiles::in_directory(&self.own.path().join("ca").join(name));
        trefoil_client::Tls::read(&files, trefoil_client::CertUse::Client).unwrap()
    }

    /// A client that shows its certificate, once it reaches all by way of the engine.
    pub(super) fn client(&self, cell: &Cell, options: Options) -> Client {
        let tls = self.tls("client");
        let cell = trefoil_client::Cell::connect_with(&cell.address, Some(tls)).unwrap();
        let mut client = cell.client(options);
        await_engine(&mut client);
        client
    }
}

/// Half of the sessions are the most that clients of one certificate's name have: those
/// beyond call instead, and another name finds some left.
#[test]
fn clients_of_one_certificate_leave_sessions_to_others() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    certs.issue_another("other");
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (at, of_server) = (metrics.to_string(), certs.of_server());
    let more = ["--certs", &of_server, "--engine-sessions", "4"];
    let more = [&more[..], &["--metrics", &at]].concat();
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    let mut own: Vec<Client> = (0..2)
        .map(|_| certs.client(&cell, engine.options()))
        .collect();
    set(&mut own[0], "k", b"v");
    let come = |name| {
        let known = trefoil_client::Cell::connect_with(&cell.address, Some(certs.tls(name)));
        known.unwrap().client(engine.options())
    };
    let mut third = come("client");
    let begin = Instant::now();
    while metric(&said_by_metrics(metrics), "refused_total", "set-up") == 0 {
        assert_eq!(get(&mut third, "k").as_deref(), Some(&b"v"[..]));
        assert!(begin.elapsed() < PATIENCE, "nobody was refused");
    }
    let mut other = come("other");
    await_engine(&mut other);
    assert_eq!(get(&mut other, "k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn who_has_a_token_that_was_replaced_reads_no_more() {
    use std::os::unix::fs::OpenOptionsExt as _;
    let (_dir, cell) = up("R=1");
    let own = tempfile::tempdir().unwrap();
    let file = own.path().join("token");
    let write = |token: &str| {
        let next = own.path().join("next");
        let mut options = std::fs::OpenOptions::new();
        let written = options.write(true).create_new(true).mode(0o600);
        let mut written = written.open(&next).unwrap();
        written.write_all(token.as_bytes()).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    let (first, second) = ("a".repeat(64), "b".repeat(64));
    write(&first);
    let path = file.display().to_string();
    let engine = Engine::start_with(
        &cell,
        SocketAddr::from(([127, 0, 0, 1], free_port())),
        &["--token-file", &path],
    );
    let life = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .config()
        .life;
    let mut session = Session::open_with(&engine, life, first.as_bytes());
    assert!(session.read(CONTROL).is_ok());
    write(&second);
    // It is hung up on.
    assert!(matches!(session.socket.read(&mut [0; 64]), Ok(0) | Err(_)));
    let said = said_to(&engine, &hello(PROTOCOL_VERSION, first.as_bytes()));
    assert_eq!((said.len(), said[4], said[8 + 11]), (24, 3, 3));
    let mut session = Session::open_with(&engine, life, second.as_bytes());
    assert!(session.read(CONTROL).is_ok());
    // Without a file, nobody.
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(session.socket.read(&mut [0; 64]), Ok(0) | Err(_)));
    assert_eq!(engine.stop()["revoked"], 2);
}

/// How long after its certificate was revoked a client that does nothing but read has
/// read last; nothing if it had not read for a while before, on a machine that is busy.
fn read_after_revocation(
    (engine, life, hash): (&Engine, u64, KeyHash),
    (tls, has_datagrams): (trefoil_client::Tls, bool),
    revoke: impl FnOnce(),
) -> Option<Duration> {
    let address = EngineAddress {
        address: engine.address,
        host: engine.address.ip().to_string(),
        tls: Some(tls),
        datagrams: match has_datagrams {
            true => DatagramUse::Yes,
            false => DatagramUse::No,
        },
        token: std::sync::Arc::from([]),
    };
    let mut port = EnginePort::connect(&address, (0, life), false, PATIENCE).unwrap();
    let (began, last_us) = (Instant::now(), std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::atomic::AtomicU64::new(0);
    let now_us = || began.elapsed().as_micros() as u64;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for number in 0.. {
                count.store(number, Ordering::SeqCst);
                let progress = port.submit_scan(Token(number), 0, hash, false);
                assert!(matches!(progress, Progress::Pending), "{progress:?}");
                let mut is_answered = false;
                while !is_answered {
                    let polled = port.poll(|completion| match completion {
                        Completion::Scan(_, vote, data, _) => {
                            assert!(matches!(vote, IndexVote::Present { .. }) && !data.is_empty());
                            is_answered = true;
                            last_us.store(now_us(), Ordering::SeqCst);
                        }
                        Completion::Stamp(..) => {}
                        other => panic!("{other:?}"),
                    });
                    if polled.is_err() {
                        return;
                    }
                    assert!(began.elapsed() < PATIENCE, "its session has not ended");
                }
            }
            unreachable!()
        });
        while count.load(Ordering::SeqCst) <= 100 {
            assert!(!reader.is_finished() && began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        let revoked_us = now_us();
        revoke();
        reader.join().unwrap();
        let last_us = last_us.load(Ordering::SeqCst);
        // It has read until then.
        (last_us + 50_000 > revoked_us)
            .then(|| Duration::from_micros(last_us.saturating_sub(revoked_us)))
    })
}

#[test]
fn who_is_revoked_reads_no_more_within_a_tenth_of_a_second() {
    const MOST: Duration = Duration::from_millis(100);
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let of_server = certs.of_server();
    let more = ["--certs", &of_server, "--engines", "2"];
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    let mut client = certs.client(&cell, engine.options());
    set(&mut client, "secret", b"value");
    let (life, hash) = (client.config().life, client.config().hash.hash(b"secret"));
    let (mut revoked, mut names) = (Vec::new(), 0..);
    for has_datagrams in [false, true] {
        // Again, where this machine has stood still for a moment.
        let late = (0..5).find_map(|_| {
            let name = format!("reader-{}", names.next()?);
            certs.issue_another(&name);
            let tls = certs.tls(&name);
            revoked.push(tls.identity().certificate.serial.clone());
            let of = (&engine, life, hash);
            let revoke = || certs.revoke(&revoked);
            let late = read_after_revocation(of, (tls, has_datagrams), revoke);
            eprintln!("datagrams {has_datagrams}: read last after {late:?}");
            late.filter(|late| *late <= MOST)
        });
        assert!(late.is_some(), "datagrams: {has_datagrams}");
    }
    // Who is not revoked goes on.
    await_engine(&mut client);
    assert_eq!(get(&mut client, "secret").as_deref(), Some(&b"value"[..]));
    drop(client);
    let counted = engine.stop();
    assert_eq!(counted["revoked"], revoked.len() as u64);
    assert!(counted["datagrams_in"] > 100, "{counted:?}");
}

/// Who only reads does so by way of an engine, and asks for nothing else by calls.
#[test]
fn who_has_the_right_to_read_reads_by_engine_as_long_as_it_is_given() {
    const MOST: Duration = Duration::from_millis(100);
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::issue();
    let of_server = certs.of_server();
    let both = ["--certs", &of_server];
    let cell = Cell::serve(dir.path(), &[&["--memory", "64MiB"], &both[..]].concat());
    let engine = Engine::start_with(&cell, certs.listen(), &both);
    certs.issue_another("reader");
    let come = |name| {
        let known = trefoil_client::Cell::connect_with(&cell.address, Some(certs.tls(name)));
        known.unwrap().client(engine.options())
    };
    let mut writer = come("client");
    set(&mut writer, "secret", b"value");
    certs.list("reader read\n");
    std::thread::sleep(LIST_LOOK_PERIOD);
    let mut reader = come("reader");
    await_engine(&mut reader);
    for _ in 0..100 {
        assert_eq!(get(&mut reader, "secret").as_deref(), Some(&b"value"[..]));
    }
    let refused = reader.set(b"secret", b"theirs", SetOptions::default());
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("Mutate needs the right write"), "{error}");
    await_engine(&mut reader);
    assert_eq!(get(&mut reader, "secret").as_deref(), Some(&b"value"[..]));
    // Taken: by the engine soon, by calls at once.
    let (life, hash) = (reader.config().life, reader.config().hash.hash(b"secret"));
    for has_datagrams in [false, true] {
        // Again, where this machine has stood still for a moment.
        let late = (0..5).find_map(|_| {
            certs.list("reader read\n");
            std::thread::sleep(2 * MOST);
            let of = (&engine, life, hash);
            let take = || certs.list("reader none\n");
            let late = read_after_revocation(of, (certs.tls("reader"), has_datagrams), take);
            late.filter(|late| *late <= MOST)
        });
        assert!(late.is_some(), "datagrams: {has_datagrams}");
    }
    let error = match reader.get(b"secret") {
        Err(error) => error.to_string(),
        Ok(found) => panic!("{found:?}"),
    };
    assert!(error.contains("Lookup needs the right read"), "{error}");
    assert_eq!(get(&mut writer, "secret").as_deref(), Some(&b"value"[..]));
    // And given again.
    certs.list("reader read\n");
    std::thread::sleep(2 * MOST);
    await_engine(&mut reader);
    assert_eq!(get(&mut reader, "secret").as_deref(), Some(&b"value"[..]));
    drop((reader, writer));
    let counted = engine.stop();
    assert!(counted["scans"] >= 100, "{counted:?}");
    assert!(counted["revoked"] >= 2, "{counted:?}");
}

#[test]
fn who_has_a_listed_token_reads_by_engine_as_long_as_it_is_listed() {
    let (_dir, cell) = up("R=1");
    let own = tempfile::tempdir().unwrap();
    let put = |name: &str, says: &str| {
        let next = own.path().join("next");
        std::fs::write(&next, says).unwrap();
        std::fs::set_permissions(&next, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(&next, own.path().join(name)).unwrap();
    };
    let (server, reader) = ("a".repeat(64), "b".repeat(64));
    put("token", &server);
    put("reader", &reader);
    let summed = Command::new("sha256sum")
        .arg(own.path().join("reader"))
        .output();
    let summed = text(&summed.unwrap().stdout);
    let digest = summed.split_whitespace().next().unwrap();
    let list = |right: &str| put("token.rights", &format!("reader {right} sha256:{digest}\n"));
    list("read");
    let path = own.path().join("token").display().to_string();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let engine = Engine::start_with(&cell, listen, &["--token-file", &path]);
    let known = trefoil_client::Cell::connect(&cell.address).unwrap();
    let life = known.config().life;
    let mut of_server = Session::open_with(&engine, life, server.as_bytes());
    let mut session = Session::open_with(&engine, life, reader.as_bytes());
    assert!(session.read(CONTROL).is_ok());
    list("none");
    // It is hung up on, and not let in again.
    assert!(matches!(session.socket.read(&mut [0; 64]), Ok(0) | Err(_)));
    let said = said_to(&engine, &hello(PROTOCOL_VERSION, reader.as_bytes()));
    assert_eq!((said.len(), said[4], said[8 + 11]), (24, 3, 3));
    assert!(of_server.read(CONTROL).is_ok());
    list("write");
    std::thread::sleep(2 * LIST_LOOK_PERIOD);
    let mut session = Session::open_with(&engine, life, reader.as_bytes());
    assert!(session.read(CONTROL).is_ok());
    assert_eq!(engine.stop()["revoked"], 1);
}
