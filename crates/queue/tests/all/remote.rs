//! Clients on other hosts: an engine in a process of its own beside the server, and what
//! becomes of requests when the engine, the server or a client is killed, or the server stands
//! still.

use crate::kills::{Sent, Stop, client, kills};
use crate::support::{Server, Wanted, eventually};
use rustix::process::Signal;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use trefoil_fabric::shm::UserPolicy;
use trefoil_ordered::{Carrier, NoAnswer, Refused};
use trefoil_queue::{Client, ClientError, RemoteJoinError, Request, ServiceKind, beside};
use trefoil_softnic::engine::{Admits, CLAIM_WITHIN};
use trefoil_softnic::{
    ConnectError, DatagramUse, Engine, EngineAddress, EngineOptions, RemoteQueue, Who,
};
use trefoil_softnic_core::wire::ClaimStatus;

const ENGINE: &str = "TREFOIL_TEST_QUEUE_ENGINE";
const CLIENT: &str = "TREFOIL_TEST_QUEUE_CLIENT";
const TOKEN: &[u8] = b"writes";
const OTHER: &[u8] = b"writes, too";
const READER: &[u8] = b"reads";

/// An engine's process, which is killed when it is dropped.
pub(crate) struct Beside {
    child: Child,
    address: SocketAddr,
}

impl Beside {
    /// At this port, or a free one.
    pub(crate) fn start(socket: &Path, port: u16) -> Self {
        Beside::start_by(&[socket], port)
    }

    /// Beside several servers.
    fn start_by(sockets: &[&Path], port: u16) -> Self {
        let sockets = sockets
            .iter()
            .map(|socket| format!(" {}", socket.display()));
        let program = std::env::current_exe().expect("a path");
        let mut child = Command::new(program)
            .args(["--exact", "remote::engine_child", "--nocapture"])
            .env(ENGINE, format!("{port}{}", sockets.collect::<String>()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut line = String::new();
        let stderr = child.stderr.take().expect("a pipe");
        BufReader::new(stderr)
            .read_line(&mut line)
            .expect("a line of the engine");
        let address = line.trim().parse().expect("an address");
        Beside { child, address }
    }

    fn at(&self) -> EngineAddress {
        engine_at(self.address, TOKEN)
    }

    pub(crate) fn connect(&self) -> Client<RemoteQueue> {
        Client::connect_by_engine(self.at(), 0).expect("a queue")
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn engine_at(address: SocketAddr, token: &[u8]) -> EngineAddress {
    EngineAddress {
        address,
        host: "localhost".into(),
        tls: None,
        datagrams: DatagramUse::No,
        token: token.into(),
    }
}

/// Started as a process of its own; it ends when its standard input does.
#[test]
fn engine_child() {
    let Ok(spelled) = std::env::var(ENGINE) else {
        return;
    };
    let mut words = spelled.split(' ');
    let port = words.next().and_then(|port| port.parse::<u16>().ok());
    let port = port.expect("a port");
    let listener = eventually("the port", || TcpListener::bind(("127.0.0.1", port)).ok());
    let may_come: Admits = Arc::new(|who| {
        [TOKEN, OTHER, READER]
            .iter()
            .any(|of| *who == Who::Token((*of).into()))
    });
    let may_write: Admits = Arc::new(|who| *who != Who::Token(READER.into()));
    let sockets = words.map(PathBuf::from).collect();
    let queues = beside::queues(sockets, UserPolicy::SameUser, may_write, None);
    let options = EngineOptions::default();
    let engine = Engine::start_for_queues(listener, (None, may_come), queues, options);
    let engine = engine.expect("an engine");
    eprintln!("{}", engine.address());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// One client each of a server's requests, over both kinds of commit.
#[test]
fn a_client_elsewhere_does_what_one_here_does() {
    for is_durable in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let wanted = Wanted::new(ServiceKind::Cache, is_durable, folder.path());
        let server = Server::ready(&wanted);
        let engine = Beside::start(&wanted.socket(), 0);
        let mut far = engine.connect();
        assert_eq!(far.is_durable(), is_durable);
        let mut near = Client::connect(&wanted.socket()).expect("a queue");
        far.set(b"k", b"one").expect("committed");
        assert_eq!(near.get(b"k"), Ok(Some(&b"one"[..])));
        near.set(b"k", b"two").expect("committed");
        assert_eq!(far.get(b"k"), Ok(Some(&b"two"[..])));
        assert_eq!(far.add(b"n", 3), Ok(3));
        far.append(b"k", b"!").expect("executed");
        far.erase(b"n").expect("committed");
        assert_eq!(near.get(b"k"), Ok(Some(&b"two!"[..])));
        assert_eq!(near.get(b"n"), Ok(None));
        drop(far);
        server.stop();
    }
}

#[test]
fn who_may_not_write_gets_no_lane_and_nor_does_who_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    let server = Server::ready(&wanted);
    let engine = Beside::start(&wanted.socket(), 0);
    let status =
        |queue, token| match Client::connect_by_engine(engine_at(engine.address, token), queue) {
            Err(RemoteJoinError::Connect(ConnectError::NotClaimed { status, .. })) => status,
            other => panic!("{other:?}"),
        };
    assert_eq!(status(0, READER), ClaimStatus::NotAllowed);
    assert_eq!(status(1, TOKEN), ClaimStatus::NoSuchQueue);
    let stranger = Client::connect_by_engine(engine_at(engine.address, b"else"), 0);
    let said = stranger.expect_err("a stranger").to_string();
    assert!(said.contains("does not let this user in"), "{said}");
    server.stop();
    assert_eq!(status(0, TOKEN), ClaimStatus::Unreachable);
}

/// One identity gets half of the places; what it is refused says what to do, and another
/// identity has places left.
#[test]
fn one_identity_does_not_take_all_places() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    wanted.clients = 4;
    let server = Server::ready(&wanted);
    let engine = Beside::start(&wanted.socket(), 0);
    let (first, mut second) = (engine.connect(), engine.connect());
    let more = || match Client::connect_by_engine(engine.at(), 0) {
        Ok(client) => Ok(client),
        Err(RemoteJoinError::Connect(error)) => Err(error),
        Err(error) => panic!("{error}"),
    };
    let error = more().expect_err("its share is taken");
    let is_share = matches!(
        error,
        ConnectError::NotClaimed {
            status: ClaimStatus::Share,
            ..
        }
    );
    assert!(is_share, "{error}");
    let said = error.to_string();
    assert!(
        said.contains("--lanes") && said.contains("certificate of another name"),
        "{said}"
    );
    let other = engine_at(engine.address, OTHER);
    let mut other = Client::connect_by_engine(other, 0).expect("a place of another identity");
    other.set(b"k", b"v").expect("committed");
    assert_eq!(second.get(b"k"), Ok(Some(&b"v"[..])));
    drop(first);
    let mut third = eventually("its place", || more().ok());
    assert_eq!(third.get(b"k"), Ok(Some(&b"v"[..])));
    drop((second, third, other));
    server.stop();
}

/// Sessions of an engine have a share by identity, too; who is refused is told so.
#[test]
fn one_identity_does_not_take_all_sessions() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    let server = Server::ready(&wanted);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let everybody: Admits = Arc::new(|_| true);
    let socket = vec![wanted.socket()];
    let queues = beside::queues(socket, UserPolicy::SameUser, everybody.clone(), None);
    let options = EngineOptions {
        sessions_max: 3,
        sessions_of_one_max: Some(2),
        ..EngineOptions::default()
    };
    let engine = Engine::start_for_queues(listener, (None, everybody), queues, options);
    let engine = engine.expect("an engine");
    let come = |token| Client::connect_by_engine(engine_at(engine.address(), token), 0);
    let first = come(TOKEN).expect("a queue");
    let _second = come(TOKEN).expect("a queue");
    let said = come(TOKEN).expect_err("its share is taken").to_string();
    assert!(
        said.contains("this identity") && said.contains("--engine-share"),
        "{said}"
    );
    let _other = come(OTHER).expect("a session that is left");
    let said = come(READER).expect_err("all are taken").to_string();
    assert!(said.contains("no room"), "{said}");
    drop(first);
    let mut third = eventually("its session", || come(TOKEN).ok());
    third.set(b"k", b"v").expect("committed");
    drop(engine);
    server.stop();
}

/// The server's process stands still: commits go on without it, until the lane is full.
#[test]
fn a_server_that_stands_still_is_not_waited_for_until_the_lane_is_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    let slots = u64::from(wanted.options().queue.slot_count);
    let server = Server::ready(&wanted);
    let engine = Beside::start(&wanted.socket(), 0);
    let (mut far, mut other) = (engine.connect(), engine.connect());
    far.set(b"k", b"v").expect("committed");
    assert_eq!(far.get(b"k"), Ok(Some(&b"v"[..])));
    server.pause();
    for number in 0..slots {
        let sent = far.send(&Request::Add(b"n", 1), true).expect("room");
        far.committed(sent).expect("nobody is waited for");
        assert_eq!(number + 3, sent.sequence);
    }
    let full = far.queue().submit(b"x", true);
    assert_eq!(full, Err(Refused::Full));
    let wait = Duration::from_millis(50);
    let timed_out = Err(NoAnswer::TimedOut(wait));
    assert_eq!(far.queue().wait_for_room(wait), timed_out);
    // Others have lanes of their own.
    other.set(b"o", b"v").expect("committed");
    server.signal(Signal::CONT);
    far.queue()
        .wait_for_room(Duration::from_secs(120))
        .expect("it goes on");
    let sum = far.add(b"n", 1).expect("an answer");
    assert_eq!(sum, slots as i64 + 1);
    assert_eq!(other.get(b"o"), Ok(Some(&b"v"[..])));
    server.stop();
}

/// Who waits in steps that are shorter than an attempt at a connection, or only looks, comes
/// again all the same.
#[test]
fn a_client_that_waits_in_short_steps_comes_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    let server = Server::ready(&wanted);
    let start = |port: u16| {
        let listener = eventually("the port", || TcpListener::bind(("127.0.0.1", port)).ok());
        let everybody: Admits = Arc::new(|_| true);
        let socket = vec![wanted.socket()];
        let mut queues = beside::queues(socket, UserPolicy::SameUser, everybody.clone(), None);
        let mut give = queues.claims.pop().expect("one queue");
        queues.claims.push(Box::new(move |claim, asker| {
            std::thread::sleep(Duration::from_millis(30));
            give(claim, asker)
        }));
        let options = EngineOptions::default();
        Engine::start_for_queues(listener, (None, everybody), queues, options).expect("an engine")
    };
    for step in [Duration::ZERO, Duration::from_millis(1)] {
        let engine = start(0);
        let address = engine.address();
        let at = engine_at(address, TOKEN);
        let mut far = Client::connect_by_engine(at, 0).expect("a queue");
        far.set(b"k", b"v").expect("committed");
        drop(engine);
        let _engine = start(address.port());
        let sent = far.send(&Request::Set(b"k", b"w"), true).expect("room");
        eventually("another connection", || {
            match far.queue().committed(sent, step) {
                Ok(()) => Some(()),
                Err(NoAnswer::TimedOut(_)) => None,
                Err(error) => panic!("{error}"),
            }
        });
        assert_eq!(far.queue().reconnected(), 1);
        assert_eq!(far.get(b"k"), Ok(Some(&b"w"[..])));
    }
    server.stop();
}

/// One server's process stands still: who comes to another one by the same engine does not
/// wait for it, and who comes to itself is told before long.
#[test]
fn a_server_that_hangs_delays_no_claim_of_another_one() {
    let folders = [tempfile::tempdir(), tempfile::tempdir()].map(|of| of.expect("a folder"));
    let wanted = folders
        .each_ref()
        .map(|folder| Wanted::new(ServiceKind::Cache, false, folder.path()));
    let [hung, lively] = wanted.each_ref().map(Server::ready);
    let [first, second] = wanted.each_ref().map(Wanted::socket);
    let engine = Beside::start_by(&[&first, &second], 0);
    hung.pause();
    std::thread::scope(|scope| {
        let claims: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let begin = Instant::now();
                    let status = match Client::connect_by_engine(engine.at(), 0) {
                        Err(RemoteJoinError::Connect(ConnectError::NotClaimed {
                            status, ..
                        })) => status,
                        other => panic!("{other:?}"),
                    };
                    (status, begin.elapsed())
                })
            })
            .collect();
        // All three are there.
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        let mut other = Client::connect_by_engine(engine.at(), 1).expect("a queue");
        let took = begin.elapsed();
        assert!(took < Duration::from_millis(700), "it took {took:?}");
        other.set(b"k", b"v").expect("committed");
        for claim in claims {
            let (status, took) = claim.join().expect("no panic");
            assert_eq!(status, ClaimStatus::Unreachable);
            assert!(took < CLAIM_WITHIN + Duration::from_secs(2), "{took:?}");
        }
    });
    hung.signal(Signal::CONT);
    let mut near = Client::connect_by_engine(engine.at(), 0).expect("a queue");
    near.set(b"k", b"v").expect("committed");
    drop(near);
    hung.stop();
    lively.stop();
}

/// Clients live on while the engine is killed again and again: all that they have sent is
/// done once, and in order, and nothing is told that is not so.
fn once_after_engines_die(service: ServiceKind, is_durable: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(service, is_durable, folder.path());
    let server = Server::ready(&wanted);
    let mut engine = Beside::start(&wanted.socket(), 0);
    let port = engine.address.port();
    let at = engine.at();
    let stop = AtomicBool::new(false);
    let mut moment = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    let sent: Vec<(Sent, u64)> = std::thread::scope(|scope| {
        let (stop, at) = (&stop, &at);
        let clients: Vec<_> = (0..2)
            .map(|number| {
                scope.spawn(move || {
                    let mut client = eventually("an engine", || {
                        Client::connect_by_engine(at.clone(), 0).ok()
                    });
                    client.set_within(Duration::from_secs(120));
                    let mut sent = Sent {
                        name: format!("far.{number}"),
                        sent: 0,
                        acknowledged: 0,
                    };
                    sent.send(&mut client, stop).expect("the server lives");
                    // What is under way is done, too.
                    let last = client.send(&Request::Get(b"x"), false).expect("room");
                    match client.answer(last) {
                        Ok(_) | Err(ClientError::NoAnswer(NoAnswer::Lost)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    (sent, client.queue().reconnected())
                })
            })
            .collect();
        let told = Stop(stop);
        for _ in 0..kills() {
            moment ^= moment << 13;
            moment ^= moment >> 7;
            moment ^= moment << 17;
            std::thread::sleep(Duration::from_micros(2_000 + moment % 150_000));
            drop(engine);
            engine = Beside::start(&wanted.socket(), port);
        }
        std::thread::sleep(Duration::from_millis(200));
        drop(told);
        let ended = clients.into_iter().map(|client| client.join());
        ended.map(|sent| sent.expect("no panic")).collect()
    });
    let mut near = Client::connect(&wanted.socket()).expect("a queue");
    for (mut sent, reconnected) in sent {
        println!("{service:?} {is_durable}: {sent:?}, {reconnected} connections more");
        // Some engines live for less time than a client takes to come.
        assert!(reconnected > kills() / 5, "it came again");
        assert!(sent.acknowledged > 10 * kills(), "something was done");
        // All of it, not only what was acknowledged.
        sent.acknowledged = sent.sent;
        assert_eq!(sent.check(&mut near), Ok(0));
    }
    server.stop();
}

#[test]
fn a_cache_has_all_that_was_sent_once_after_engines_are_killed() {
    once_after_engines_die(ServiceKind::Cache, false);
}

#[test]
fn a_durable_cache_has_all_that_was_sent_once_after_engines_are_killed() {
    once_after_engines_die(ServiceKind::Cache, true);
}

/// Servers and engines are killed at random moments: what was acknowledged is there once.
#[test]
fn what_was_acknowledged_elsewhere_is_there_once_after_servers_and_engines_are_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, true, folder.path());
    let mut engine = Beside::start(&wanted.socket(), 0);
    let (port, at) = (engine.address.port(), engine.at());
    let stop = AtomicBool::new(false);
    let mut moment = 0x1234_5678_9abc_def1_u64 ^ u64::from(std::process::id());
    let mut next = move |below: u64| {
        moment ^= moment << 13;
        moment ^= moment >> 7;
        moment ^= moment << 17;
        moment % below
    };
    let tallies = std::thread::scope(|scope| {
        let (stop, at) = (&stop, &at);
        let clients: Vec<_> = (0..2)
            .map(|number| {
                scope.spawn(move || {
                    let connect = || Client::connect_by_engine(at.clone(), 0).ok();
                    client(connect, number, stop)
                })
            })
            .collect();
        let told = Stop(stop);
        for life in 0..kills() {
            let server = match life % 3 {
                0 => Server::start(&wanted),
                _ => Server::ready(&wanted),
            };
            std::thread::sleep(Duration::from_micros(500 + next(150_000)));
            if life % 4 == 1 {
                drop(engine);
                engine = Beside::start(&wanted.socket(), port);
                std::thread::sleep(Duration::from_micros(next(50_000)));
            }
            server.kill();
        }
        let last = Server::ready(&wanted);
        drop(told);
        let tallies: Vec<_> = clients
            .into_iter()
            .map(|client| client.join().expect("no panic"))
            .collect();
        last.stop();
        tallies
    });
    println!("{} kills: {tallies:?}", kills());
    for tally in tallies {
        assert!(tally.acknowledged > kills(), "something was done");
        assert!(tally.checked > kills() / 4, "lives were lived");
    }
}

/// A client that sends as long as it lives, and tells what is acknowledged.
#[test]
fn client_child() {
    let Ok(spelled) = std::env::var(CLIENT) else {
        return;
    };
    let (address, name) = spelled.split_once(' ').expect("two words");
    let at = engine_at(address.parse().expect("an address"), TOKEN);
    let mut client = Client::connect_by_engine(at, 0).expect("a queue");
    let key = format!("{name}.list").into_bytes();
    let mut window = std::collections::VecDeque::new();
    let mut out = std::io::stderr();
    for number in 0u32.. {
        let bytes = number.to_le_bytes();
        let sent = client.send(&Request::Append(&key, &bytes), true);
        window.push_back((number, sent.expect("a server")));
        if window.len() > 8 {
            let (number, sent) = window.pop_front().expect("a window");
            client.committed(sent).expect("a server");
            out.write_all(&number.to_le_bytes()).expect("a pipe");
        }
        // No longer than a value may be.
        if number == 290 {
            std::thread::sleep(Duration::from_secs(600));
        }
    }
}

/// Clients are killed: what was acknowledged to them is done, nothing twice, and no place of
/// theirs is lost.
#[test]
fn clients_that_are_killed_leave_what_was_acknowledged_and_no_lane() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    wanted.clients = 3;
    let server = Server::ready(&wanted);
    let engine = Beside::start(&wanted.socket(), 0);
    let mut near = Client::connect(&wanted.socket()).expect("a queue");
    let mut lens = HashSet::new();
    for life in 0..kills() {
        let program = std::env::current_exe().expect("a path");
        let mut child = Command::new(program)
            .args(["--exact", "remote::client_child", "--nocapture"])
            .env(CLIENT, format!("{} {life}", engine.address))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut stderr = child.stderr.take().expect("a pipe");
        let mut first = [0; 4];
        stderr.read_exact(&mut first).expect("it begins");
        std::thread::sleep(Duration::from_micros(life * 300 % 4_000));
        child.kill().expect("a child");
        child.wait().expect("a child");
        let mut rest = Vec::new();
        stderr.read_to_end(&mut rest).expect("a pipe");
        let acknowledged = 1 + rest.len() / 4;
        // Its lane is drained and free.
        let key = format!("{life}.list").into_bytes();
        let begin = Instant::now();
        let appended = near.get(&key).expect("an answer").expect("a list").to_vec();
        let numbers: Vec<u32> = appended
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")))
            .collect();
        let expected: Vec<u32> = (0..numbers.len() as u32).collect();
        assert_eq!(numbers, expected, "each once, and in order");
        assert!(
            numbers.len() >= acknowledged,
            "{} of {acknowledged} after {:?}",
            numbers.len(),
            begin.elapsed()
        );
        lens.insert(numbers.len());
    }
    println!("{lens:?}");
    assert!(lens.len() > 2, "they died at several moments");
    server.stop();
}
