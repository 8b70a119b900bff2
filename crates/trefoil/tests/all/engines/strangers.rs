//! Who has not shown whose they are, or comes to do harm.

use super::by_hand::{Session, hello, said_to, token_of};
use super::certificates::Certs;
use super::{
    Engine, PATIENCE, await_carriers, await_engine, get, metric, round_of, said_by_metrics, set,
    up, value,
};
use crate::support::{free_port, text};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use trefoil_client::{CarrierInUse, Lookup};
use trefoil_softnic_core::wire::PROTOCOL_VERSION;

#[test]
fn strangers_learn_nothing_and_disturb_nobody() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    // Without the token, with a wrong one.
    for token in [&b""[..], &[b'x'; 64]] {
        let bytes = hello(PROTOCOL_VERSION, token);
        let said = said_to(&engine, &bytes);
        // REFUSED, for want of the token.
        assert_eq!((said.len(), said[4], said[8 + 11]), (24, 3, 3));
        assert!(said.len() < bytes.len());
    }
    // Another version is told which this one is.
    let said = said_to(&engine, &hello(9, b""));
    assert_eq!(
        (said.len(), said[4], said[8 + 8], said[8 + 11]),
        (24, 3, PROTOCOL_VERSION as u8, 1)
    );
    // No protocol, and a length that no frame has: nothing at all.
    assert!(said_to(&engine, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").is_empty());
    assert!(said_to(&engine, &[0xff; 4096]).is_empty());
    // Those that say half a greeting are left after a while.
    assert!(said_to(&engine, &hello(PROTOCOL_VERSION, b"")[..100]).is_empty());
    // Many that say nothing: the oldest make room, and whoever knows the way comes in.
    let silent: Vec<TcpStream> = (0..600)
        .filter_map(|_| TcpStream::connect(engine.address).ok())
        .collect();
    assert!(silent.len() > 300);
    let mut late = engine.client(&cell);
    assert_eq!(get(&mut late, "k").as_deref(), Some(&b"v"[..]));
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
    await_engine(&mut client);
}

/// The most memory that a process has had, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let text = line.unwrap().trim().trim_end_matches(" kB");
    text.parse().unwrap()
}

#[test]
fn strangers_disturb_nobody_where_tls_is_spoken() {
    let (_dir, cell) = up("R=3.2");
    let own = tempfile::tempdir().unwrap();
    let folder = own.path().join("ca");
    let dir = folder.display().to_string();
    let certs = |args: &[&str]| {
        let made = crate::support::run(&[&["cell", "certs"], args, &["--dir", &dir]].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
    };
    certs(&["init"]);
    let host = ["--host", "127.0.0.1"];
    certs(
        &[
            &["issue", "--name", "server", "--role", "backend"],
            &host[..],
        ]
        .concat(),
    );
    certs(&["issue", "--name", "client", "--role", "client"]);
    let path = folder.join("server").display().to_string();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let engine = Engine::start_with(&cell, listen, &["--certs", &path]);
    let connect = || {
        let files = trefoil_client::CertFiles::in_directory(&folder.join("client"));
        let tls = trefoil_client::Tls::read(&files, trefoil_client::CertUse::Client).unwrap();
        let cell = trefoil_client::Cell::connect_with(&cell.address, Some(tls)).unwrap();
        let mut client = cell.client(engine.options());
        await_engine(&mut client);
        client
    };
    let mut client = connect();
    for len in [0, 100, 5000, 100_000, 200_000] {
        let key = format!("of {len}");
        let value = value("k", 7, len);
        set(&mut client, &key, &value);
        assert_eq!(get(&mut client, &key).as_ref(), Some(&value), "{len}");
    }
    // Many keys at once, more than a record holds.
    let keys: Vec<String> = (0..300).map(|number| format!("many-{number}")).collect();
    for key in &keys {
        set(&mut client, key, &value(key, 1, 1000));
    }
    let named: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let mut found = 0;
    client.get_many(&named, |at, result| match result {
        Ok(Lookup::Hit(hit)) => {
            assert_eq!(round_of(&keys[at], hit.value), 1);
            found += 1;
        }
        other => panic!("{}: {other:?}", keys[at]),
    });
    assert_eq!(found, keys.len());

    // Who speaks without TLS, says nonsense, or more than a record may hold.
    let record = |len: usize, content: u8| {
        let mut bytes = vec![0x16, 3, 1];
        bytes.extend_from_slice(&(len as u16).to_be_bytes());
        bytes.resize(5 + len, content);
        bytes
    };
    for bytes in [
        hello(PROTOCOL_VERSION, &[b'x'; 64]),
        record(60_000, 1),
        record(200, 0),
        vec![0x16; 4096],
    ] {
        let said = said_to(&engine, &bytes);
        // An alert at most.
        assert!(said.len() <= 7, "{said:?}");
    }
    // Half a greeting, by the thousand; as many at a time as a process may have open.
    let half_greeting = |_| {
        let mut socket = TcpStream::connect(engine.address).unwrap();
        // It may have been left already.
        let _ = socket.write_all(&record(500, 1)[..200]);
        socket
    };
    let mut half: Vec<TcpStream> = Vec::new();
    for _ in 0..4 {
        half.clear();
        half.extend((0..500).map(half_greeting));
        assert!(get(&mut client, "of 5000").is_some());
    }
    let mut late = connect();
    assert!(get(&mut late, "of 5000").is_some());
    assert!(get(&mut client, "of 5000").is_some());
    let peak = peak_kib(engine.child.id());
    assert!(peak < 200 << 10, "{peak} KiB");
    // Without a certificate of the cell's, nobody comes in by the token, either.
    let mut by_token = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .client(engine.options());
    await_carriers(&mut by_token, |carrier| carrier == CarrierInUse::Rpc);
    assert!(get(&mut by_token, "of 5000").is_some());
    drop(half);
}

/// From another address of this host than everybody else.
fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let from = SocketAddr::from(([127, 0, 0, last], 0));
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &from).unwrap();
    connect(&socket, &to).unwrap();
    socket.into()
}

#[test]
fn strangers_of_one_address_take_no_place_of_others() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (at, of_server) = (metrics.to_string(), certs.of_server());
    let more = ["--certs", &of_server, "--metrics", &at];
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    // One that has begun before all the others, and is slow.
    let slow = TcpStream::connect(engine.address).unwrap();
    let begin = Instant::now();
    let silent: Vec<TcpStream> = (0..300).map(|_| connect_from(9, engine.address)).collect();
    let said = said_by_metrics(metrics);
    let open = metric(&said, "sessions_open", "set-up");
    assert!((2..=65).contains(&open), "{open} of 301");
    // It is still there; if it is, its time is not over.
    slow.set_nonblocking(true).unwrap();
    let is_there = matches!(
        (&slow).read(&mut [0; 1]),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock
    );
    assert!(is_there || begin.elapsed() > Duration::from_millis(1500));
    // Handshakes that come to nothing, by the hundred: nobody who reads is disturbed.
    drop(silent);
    let mut client = certs.client(&cell, engine.options());
    set(&mut client, "k", b"v");
    let mut strange = vec![0x16, 3, 1, 0, 100];
    strange.resize(105, 1);
    for _ in 0..500 {
        let mut socket = connect_from(9, engine.address);
        let _ = socket.write_all(&strange);
    }
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
    // Beyond some hundreds they are turned away, and others come in.
    let begin = Instant::now();
    while metric(&said_by_metrics(metrics), "turned_away_total", "set-up") == 0 {
        for _ in 0..100 {
            connect_from(9, engine.address);
        }
        assert!(begin.elapsed() < PATIENCE);
    }
    let mut late = certs.client(&cell, engine.options());
    assert_eq!(get(&mut late, "k").as_deref(), Some(&b"v"[..]));
    let said = said_by_metrics(metrics);
    assert_eq!(metric(&said, "malformed_total", "0"), 0, "{said}");
    assert_eq!(metric(&said, "refused_total", "0"), 0, "{said}");
}

#[test]
fn who_comes_when_there_is_no_place_is_told_so_and_comes_later() {
    let (_dir, cell) = up("R=1");
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let engine = Engine::start_with(&cell, listen, &["--engine-sessions", "2"]);
    let life = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .config()
        .life;
    let mut sessions: Vec<Session> = (0..2).map(|_| Session::open(&engine, life)).collect();
    // Strangers take none of the places.
    let _silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(engine.address).unwrap())
        .collect();
    let token = token_of(&engine);
    let greeting = hello(PROTOCOL_VERSION, token.as_bytes());
    let said = said_to(&engine, &greeting);
    // REFUSED: full.
    assert_eq!((said.len(), said[4], said[8 + 11]), (24, 3, 4));
    sessions.pop();
    let begin = Instant::now();
    let is_let_in = || {
        let mut socket = TcpStream::connect(engine.address).unwrap();
        socket.write_all(&greeting).unwrap();
        let mut head = [0; 8];
        socket.read_exact(&mut head).is_ok() && head[4] == 2
    };
    while !is_let_in() {
        assert!(begin.elapsed() < PATIENCE, "no place is free");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asks for much and takes nothing: it is given up, and disturbs nobody meanwhile.
#[test]
fn a_client_that_does_not_take_its_answers_is_given_up() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    let token = token_of(&engine);
    let mut socket = TcpStream::connect(engine.address).unwrap();
    socket
        .write_all(&hello(PROTOCOL_VERSION, token.as_bytes()))
        .unwrap();
    let life = client.config().life;
    let mut open = vec![24, 0, 0, 0, 4, 0, 1, 0];
    open.extend([&1u64.to_le_bytes()[..], &life.to_le_bytes(), &[0; 8]].concat());
    socket.write_all(&open).unwrap();
    let mut said = [0; 48 + 80];
    socket.read_exact(&mut said).unwrap();
    assert_eq!((said[4], said[48 + 4], said[48 + 8 + 8]), (2, 5, 0));
    let handle = &said[48 + 8 + 12..48 + 8 + 16];
    // 60 reads of 8 KiB of the control region.
    let mut asks = vec![0x40, 0x0b, 0, 0, 6, 0, 60, 0];
    for id in 0..60u64 {
        let mut ask = [0; 48];
        ask[..8].copy_from_slice(&id.to_le_bytes());
        ask[8..12].copy_from_slice(handle);
        ask[12] = 2;
        ask[20..24].copy_from_slice(&8192u32.to_le_bytes());
        asks.extend(ask);
    }
    socket.set_nonblocking(true).unwrap();
    let (begin, mut refusals) = (Instant::now(), 0);
    let mut at = 0;
    loop {
        match socket.write(&asks[at..]) {
            Ok(count) => at = (at + count) % asks.len(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                refusals += 1;
                assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
                std::thread::sleep(Duration::from_millis(20));
            }
            // It has hung up.
            Err(_) => break,
        }
        assert!(begin.elapsed() < PATIENCE, "it is kept");
    }
    assert!(refusals > 0, "everything was taken");
    let status = std::fs::read_to_string(format!("/proc/{}/status", engine.child.id())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 200 << 10, "{peak_kib} KiB");
}

#[test]
fn an_engine_does_not_leave_the_host_unasked() {
    let (_dir, cell) = up("R=1");
    let refused = cell.run(&["engine", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("--token-file"),
        "{}",
        text(&refused.stderr)
    );
    let refused = cell.run(&["engine", "--listen", "0.0.0.0:0", "--plaintext"]);
    assert_eq!(refused.status.code(), Some(2));
}
