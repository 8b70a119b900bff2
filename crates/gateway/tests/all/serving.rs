//! The door itself: bytes in whatever pieces, large and small, over TCP and
//! Unix sockets, from one loop to another.

use crate::support;
use crate::support::{Client, connect, options, port, start};
use rustix::net::Shutdown;
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use trefoil_gateway::server::{Door, DoorAddress, Doors, Gateway, GatewayError, Protocol, Users};
use trefoil_gateway_core::deferred::{DeferredKeyspace, Executor, Operation, Outcome, Ticket};
use trefoil_gateway_core::keyspace::{Access, Fault, Item, Keyspace as _, Ready as _, Wake};
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::memory::MemoryKeyspace;

#[test]
fn requests_may_come_in_any_pieces() {
    let gateway = start(options());
    let mut client = connect(&gateway);
    let value = b"a value\nof two lines";
    for byte in [&b"set k 20\n"[..], value, b"get k\n"].concat() {
        client.send([byte]);
    }
    assert_eq!(client.line(), "ok");
    assert_eq!(client.line(), "20");
    assert_eq!(client.bytes(20), value);
    // And all at once, far more than one read takes.
    let count = 20_000;
    client.send("get k\n".repeat(count));
    for _ in 0..count {
        assert_eq!(client.line(), "20");
        client.bytes(20);
    }
    assert_eq!(client.ask("get nothing"), "none");
    assert_eq!(client.ask("nonsense"), "error");
    assert_eq!(client.line(), "", "it has ended");
}

#[test]
fn large_values_go_both_ways() {
    let gateway = start(options());
    let mut client = connect(&gateway);
    for len in [0, 1, 4095, 65_536, 65_537, 1 << 20, support::VALUE_LEN_MAX] {
        // More than the first of these are in one go with what follows them.
        let value: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
        assert_eq!(client.set("large", &value), "ok");
        assert!(client.get("large").unwrap() == value, "{len} bytes");
    }
    // An answer in many pieces to a client that takes its time.
    let len = 9 << 20;
    client.send(format!("fill {len}\nget none\n"));
    std::thread::sleep(Duration::from_millis(100));
    assert!(client.bytes(len).iter().all(|byte| *byte == b'x'));
    assert_eq!(client.line(), "none");
}

#[test]
fn loops_share_the_connections() {
    let mut options = options();
    options.thread_count = 3;
    let gateway = start(options);
    let mut clients: Vec<_> = (0..9).map(|_| connect(&gateway)).collect();
    for client in &mut clients {
        // Each loop has a keyspace of its own here: three keep "k", after all.
        assert_eq!(client.set("k", b"v"), "ok");
    }
    for client in &mut clients {
        assert_eq!(client.get("k").unwrap(), b"v");
    }
    assert_eq!(gateway.connection_count(), 9);
    drop(clients);
    wait_until(|| gateway.connection_count() == 0);
}

#[test]
fn unix_sockets_are_private_and_go_with_the_door() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("door");
    let mut options = options();
    options.doors[0].address = DoorAddress::Unix(path.clone());
    let second = options.clone();
    let gateway = start(options);
    let mut client = Client::new(UnixStream::connect(&path).unwrap());
    assert_eq!(client.set("k", &[7; 300_000]), "ok");
    assert_eq!(client.get("k").unwrap(), [7; 300_000]);
    let error = Doors::open(&second).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    gateway.shutdown();
    assert!(!path.exists());
}

#[test]
fn mistakes_are_named_before_anything_is_served() {
    let gateway = start(options());
    let mut taken = options();
    taken.doors[0].address = DoorAddress::Tcp(port(&gateway));
    let error = Doors::open(&taken).unwrap_err().to_string();
    let me = format!("process {}", std::process::id());
    assert!(
        error.contains("in use by") && error.contains(&me),
        "{error}"
    );

    let mut open = options();
    open.doors[0].address = "0.0.0.0:0".parse().unwrap();
    let error = Doors::open(&open).unwrap_err();
    assert!(matches!(error, GatewayError::OffLoopback { .. }), "{error}");
    assert!(error.to_string().contains("--tls-cert"), "{error}");
    open.plaintext = vec![open.doors[0].protocol];
    Doors::open(&open).unwrap();
}

#[test]
fn a_client_that_has_said_all_still_gets_its_answers() {
    let gateway = start(options());
    let mut client = connect(&gateway);
    client.send("get a\nfill 3000000\nget b\n");
    rustix::net::shutdown(client.stream.get_ref(), Shutdown::Write).unwrap();
    assert_eq!(client.line(), "none");
    client.bytes(3_000_000);
    assert_eq!(client.line(), "none");
    assert_eq!(client.line(), "", "then the end");
}

#[test]
fn watchers_see_what_others_do_on_any_loop() {
    let mut options = options();
    options.thread_count = 2;
    let gateway = start(options);
    let mut watcher = connect(&gateway);
    assert_eq!(watcher.ask("watch"), "ok");
    let mut others = [connect(&gateway), connect(&gateway)];
    for (index, other) in others.iter_mut().enumerate() {
        other.ask(&format!("get key{index}"));
        let line = watcher.line();
        let expected = format!("type=item_get key=key{index} status=not_found");
        assert!(line.contains(&expected), "{line}");
    }
    // One that is asked something still answers.
    watcher.send("get own\n");
    let lines = [watcher.line(), watcher.line()];
    assert!(lines.contains(&"none".to_owned()), "{lines:?}");
    assert!(lines.iter().any(|l| l.contains("key=own")), "{lines:?}");
}

/// As many as memcached has; who watches may choose again, and who ends makes room.
#[test]
fn watchers_are_few() {
    let options = options();
    let doors = Doors::open(&options).unwrap();
    let keyspace = |_| MemoryKeyspace::new(0);
    let gateway = Gateway::start(options, doors, keyspace, |_| support::Nobody).unwrap();
    let mut watchers: Vec<_> = (0..20).map(|_| connect(&gateway)).collect();
    for watcher in &mut watchers {
        assert_eq!(watcher.ask("watch mutations\r"), "OK\r");
    }
    let mut more = connect(&gateway);
    let full = "WATCHER_TOO_MANY log watcher limit reached\r";
    assert_eq!(more.ask("watch\r"), full);
    assert_eq!(more.ask("watch evictions\r"), full);
    assert_eq!(watchers[0].ask("watch evictions\r"), "OK\r");
    watchers.pop();
    wait_until(|| more.ask("watch\r") == "OK\r");
    assert_eq!(connect(&gateway).ask("watch\r"), full);
}

#[test]
fn a_slow_watcher_misses_lines_and_is_told() {
    let gateway = start(options());
    let mut watcher = connect(&gateway);
    assert_eq!(watcher.ask("watch"), "ok");
    let mut other = connect(&gateway);
    let requests = "get a-key-of-some-length-that-makes-a-long-line\n".repeat(1000);
    // Until kernel and watcher buffers are full, and then some.
    for _ in 0..120 {
        other.send(&requests);
        for _ in 0..1000 {
            assert_eq!(other.line(), "none");
        }
    }
    let mut skipped = 0;
    let mut lines = 0;
    while skipped + lines < 120_000 {
        let line = watcher.line();
        match line.strip_prefix("[skipped: ") {
            Some(count) => skipped += count.trim_end_matches(']').parse::<u64>().unwrap(),
            None => lines += 1,
        }
        if skipped == 0 && lines == 119_000 {
            panic!("nothing was skipped, of more than buffers hold");
        }
        // The last note comes with the next line.
        if lines % 512 == 0 {
            other.ask("get another");
        }
    }
    assert!(skipped > 0 && lines > 1000, "{skipped} {lines}");
}

#[test]
fn names_and_passwords_come_from_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "ann:secret\n").unwrap();
    let mut options = options();
    options.users = Some(Users::read(file.path()).unwrap());
    let gateway = start(options);
    let mut client = connect(&gateway);
    assert_eq!(client.ask("login ann wrong"), "no");
    assert_eq!(client.ask("login ann secret"), "yes");
}

#[test]
fn a_shutdown_that_a_client_asks_for_reaches_the_owner() {
    let asked = Arc::new(AtomicBool::new(false));
    let mut options = options();
    let seen = Arc::clone(&asked);
    options.on_shutdown = Some(Arc::new(move || seen.store(true, Ordering::SeqCst)));
    let gateway = start(options);
    assert_eq!(connect(&gateway).ask("shutdown"), "ok");
    assert!(asked.load(Ordering::SeqCst));
}

/// Whether an answer that is far longer than the kernel's buffers leaves through a door
/// that is closing, if its reader goes on once nobody else can come in.
fn a_long_answer_leaves() -> bool {
    const LEN: usize = 12 << 20;
    let gateway = start(options());
    let address = port(&gateway);
    let mut client = connect(&gateway);
    let idle = connect(&gateway);
    client.send(format!("fill {LEN}\n"));
    assert_eq!(client.bytes(1), b"x");
    let stopping = std::thread::spawn(move || gateway.shutdown());
    wait_until(|| std::net::TcpStream::connect(address).is_err());
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    // Also beside one that asks nothing.
    stopping.join().unwrap();
    drop(idle);
    1 + rest.len() == LEN
}

#[test]
fn a_stopping_door_lets_answers_leave_first() {
    // They have a second, and a busy machine may stand still for so long, but not always.
    assert!((0..60).any(|_| a_long_answer_leaves()));
}

#[test]
fn two_protocols_have_two_doors() {
    let mut options = options();
    options.doors.push(Door {
        protocol: Protocol::Redis,
        address: "127.0.0.1:0".parse().unwrap(),
        tls: None,
    });
    let gateway = start(options);
    let memcached = gateway.address(Protocol::Memcached).cloned();
    let redis = gateway.address(Protocol::Redis).cloned();
    assert!(memcached.is_some() && redis.is_some() && memcached != redis);
    assert_eq!(connect(&gateway).ask("get k"), "none");
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never is");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn users_are_replaced_while_the_door_is_open() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "ann:secret\n").unwrap();
    let mut with_users = options();
    with_users.users = Some(Users::read(file.path()).unwrap());
    let gateway = start(with_users.clone());
    let mut old = connect(&gateway);
    assert_eq!(old.ask("login ann secret"), "yes");
    std::fs::write(file.path(), "[read]\nbob:other\n").unwrap();
    with_users.users = Some(Users::read(file.path()).unwrap());
    gateway.reload(&with_users).unwrap();
    let mut client = connect(&gateway);
    assert_eq!(client.ask("login ann secret"), "no");
    assert_eq!(client.ask("login bob other"), "yes");
    assert_eq!(old.ask("get k"), "none", "who is in stays in");
    let open = start(options());
    let error = open.reload(&with_users);
    assert!(error.unwrap_err().to_string().contains("restart"));
    let error = gateway.reload(&options());
    assert!(error.unwrap_err().to_string().contains("restart"));
}

#[test]
fn a_loop_that_dies_sounds_the_alarm() {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let mut dying = options();
    let seen = Arc::clone(&reasons);
    dying.on_failure = Some(Arc::new(move |reason: &str| {
        seen.lock().unwrap().push(reason.to_owned());
    }));
    let gateway = start(dying);
    let mut client = connect(&gateway);
    client.send("panic\n");
    assert_eq!(client.line(), "", "its loop is gone");
    let begin = Instant::now();
    while reasons.lock().unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(reasons.lock().unwrap()[0].contains("panicked"));
    // Nothing listens where nobody would answer.
    assert!(std::net::TcpStream::connect(port(&gateway)).is_err());
    // One that is stopped does not.
    start(options()).shutdown();
    assert_eq!(reasons.lock().unwrap().len(), 1);
}

#[test]
fn who_does_not_say_who_it_is_has_little() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "ann:secret\n").unwrap();
    let mut options = options();
    options.users = Some(Users::read(file.path()).unwrap());
    options.item_len_max = support::VALUE_LEN_MAX;
    options.limits.authentication_timeout = Duration::from_secs(3600);
    let gateway = start(options);
    let half = vec![b'x'; support::VALUE_LEN_MAX / 2];
    let request = format!("set k {}\n", support::VALUE_LEN_MAX);
    let mut known = connect(&gateway);
    assert_eq!(known.ask("login ann secret"), "yes");
    known.send(&request);
    known.send(&half);
    let mut stranger = connect(&gateway);
    assert_eq!(stranger.ask("get k"), "none");
    stranger.send(&request);
    // It may be closed in the middle of it.
    let _ = stranger.stream.get_mut().write_all(&half);
    wait_until(|| gateway.connection_count() == 1);
    known.send(&half);
    assert_eq!(known.line(), "ok");
}

#[test]
fn who_does_not_say_who_it_is_does_not_stay() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "ann:secret\n").unwrap();
    let mut options = options();
    options.users = Some(Users::read(file.path()).unwrap());
    options.limits.authentication_timeout = Duration::from_millis(600);
    options.limits.idle_timeout = None;
    let gateway = start(options);
    let begin = Instant::now();
    let mut known = connect(&gateway);
    assert_eq!(known.ask("login ann secret"), "yes");
    let mut silent = connect(&gateway);
    let mut talker = connect(&gateway);
    // To be busy does not help.
    let mut ended = false;
    while !ended {
        let _ = talker.stream.get_mut().write_all(b"get k\n");
        let mut line = String::new();
        ended = matches!(talker.stream.read_line(&mut line), Ok(0) | Err(_));
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begin.elapsed() >= Duration::from_millis(500));
    assert_eq!(silent.line(), "");
    assert_eq!(known.ask("get k"), "none");
}

#[test]
fn who_does_not_say_who_it_is_keeps_no_user_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "ann:secret\n").unwrap();
    let mut options = options();
    options.users = Some(Users::read(file.path()).unwrap());
    options.limits.authentication_timeout = Duration::from_secs(600);
    options.limits.connections_max = 8;
    let gateway = start(options);
    let mut known = connect(&gateway);
    assert_eq!(known.ask("login ann secret"), "yes");
    let mut strangers: Vec<_> = (0..30).map(|_| connect(&gateway)).collect();
    let mut another = connect(&gateway);
    assert_eq!(another.ask("login ann secret"), "yes");
    assert_eq!(known.ask("get k"), "none");
    // The oldest went, and half of the places is left to them.
    assert_eq!(strangers[0].line(), "");
    assert!(gateway.connection_count() <= 6);
}

/// Where buffers are short, those who have to authenticate go if they keep something.
#[test]
fn strangers_that_keep_nothing_make_no_room() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "ann:secret\n").unwrap();
    let mut options = options();
    options.users = Some(Users::read(file.path()).unwrap());
    options.item_len_max = support::VALUE_LEN_MAX;
    options.limits.authentication_timeout = Duration::from_secs(3600);
    options.limits.buffer_bytes_max = 1 << 20;
    let gateway = start(options);
    let mut quiet: Vec<_> = (0..5).map(|_| connect(&gateway)).collect();
    for stranger in &mut quiet {
        assert_eq!(stranger.ask("get k"), "none");
    }
    let mut keeps = connect(&gateway);
    keeps.send("set k 20000\n");
    keeps.send([b'x'; 10_000]);
    let mut known: Vec<_> = (0..4).map(|_| connect(&gateway)).collect();
    for client in &mut known {
        assert_eq!(client.ask("login ann secret"), "yes");
        client.send("set k 600000\n");
        // It may be closed in the middle of it.
        let _ = client.stream.get_mut().write_all(&[b'x'; 500_000]);
    }
    assert_eq!(keeps.line(), "");
    for stranger in &mut quiet {
        assert_eq!(stranger.ask("get k"), "none");
    }
}

/// Answers `slow` when it is told to, and everything else at once.
struct OneSlowKey {
    memory: MemoryKeyspace,
    waiting: Vec<(Ticket, Operation)>,
    is_over: Arc<AtomicBool>,
    wake: Arc<Mutex<Option<Wake>>>,
}

impl Executor for OneSlowKey {
    fn try_get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        if key == b"slow" {
            return None;
        }
        Some(self.memory.get(key, access, with).ready().unwrap())
    }

    fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        self.waiting.push((ticket, operation));
        None
    }

    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
        if self.is_over.load(Ordering::SeqCst) {
            for (ticket, _) in self.waiting.drain(..) {
                each(ticket, Outcome::Item(Ok(None)));
            }
        }
    }

    fn value_len_max(&self) -> usize {
        1 << 20
    }

    fn attach(&mut self, wake: Wake) {
        *self.wake.lock().unwrap() = Some(wake);
    }
}

/// A door for memcached's protocol over what `executor` executes.
fn start_over<E: Executor + Send + 'static>(executor: impl Fn() -> E) -> Gateway {
    let options = options();
    let doors = Doors::open(&options).unwrap();
    let keyspace = |_| DeferredKeyspace::new(executor(), Duration::from_secs(1), 1);
    let session = |_: Protocol, _: &_| MemcacheSession::new();
    Gateway::start_with(options, doors, keyspace, |_| support::Nobody, session).unwrap()
}

/// The door, and what ends the waiting for `slow`.
fn start_with_one_slow_key() -> (Gateway, impl Fn()) {
    let is_over = Arc::new(AtomicBool::new(false));
    let wake = Arc::new(Mutex::new(None::<Wake>));
    let gateway = start_over(|| OneSlowKey {
        memory: MemoryKeyspace::new(0),
        waiting: Vec::new(),
        is_over: Arc::clone(&is_over),
        wake: Arc::clone(&wake),
    });
    let end = move || {
        is_over.store(true, Ordering::SeqCst);
        wake.lock().unwrap().as_ref().unwrap()();
    };
    (gateway, end)
}

#[test]
fn one_slow_key_holds_nobody_else_up() {
    let (gateway, end) = start_with_one_slow_key();
    let mut slow = connect(&gateway);
    slow.send("get a\r\nget slow\r\nget b\r\n");
    assert_eq!(slow.line(), "END\r");
    let mut gone = connect(&gateway);
    gone.send("get slow\r\n");
    // Not one answer of theirs waits for it: it comes only after all of them.
    let mut others: Vec<_> = (0..10).map(|_| connect(&gateway)).collect();
    for _ in 0..200 {
        for other in &mut others {
            assert_eq!(other.ask("get a\r"), "END\r");
        }
    }
    // A client that leaves while it waits takes nothing with it.
    let socket = gone.stream.into_inner();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
    end();
    assert_eq!([slow.line(), slow.line()], ["END\r", "END\r"]);
    slow.send("get slow\r\nquit\r\n");
    assert_eq!(slow.line(), "END\r");
    assert_eq!(slow.line(), "");
    assert_eq!(others[0].ask("get a\r"), "END\r");
}

/// Fails the first flush.
struct FailsOnce {
    flushes: Arc<AtomicUsize>,
}

impl Executor for FailsOnce {
    fn try_get(
        &mut self,
        _: &[u8],
        _: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        with(None);
        Some(Ok(()))
    }

    fn submit(&mut self, _: Ticket, operation: Operation) -> Option<Outcome> {
        let Operation::Flush { .. } = operation else {
            panic!("{operation:?}");
        };
        Some(Outcome::Done(
            match self.flushes.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Fault::Unavailable("for a moment".to_owned())),
                _ => Ok(()),
            },
        ))
    }

    fn poll(&mut self, _: &mut dyn FnMut(Ticket, Outcome)) {}

    fn value_len_max(&self) -> usize {
        1 << 20
    }
}

#[test]
fn a_flush_that_was_put_off_and_fails_is_tried_again() {
    let flushes = Arc::new(AtomicUsize::new(0));
    let gateway = start_over(|| FailsOnce {
        flushes: Arc::clone(&flushes),
    });
    assert_eq!(connect(&gateway).ask("flush_all 1\r"), "OK\r");
    wait_until(|| flushes.load(Ordering::SeqCst) == 2);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(flushes.load(Ordering::SeqCst), 2, "it has been done");
}

#[test]
fn limits_are_replaced_while_connections_go_on() {
    let mut chosen = options();
    chosen.limits.idle_timeout = None;
    let gateway = start(chosen.clone());
    let mut busy = connect(&gateway);
    let mut idle = connect(&gateway);
    assert_eq!([busy.ask("get k"), idle.ask("get k")], ["none", "none"]);
    chosen.limits.connections_max = 2;
    gateway.reload(&chosen).unwrap();
    let mut third = connect(&gateway);
    assert!(third.line().contains("Too many"));
    assert_eq!(gateway.settings().connections_max, 2);
    // Also for those that are open.
    chosen.limits.idle_timeout = Some(Duration::from_millis(400));
    gateway.reload(&chosen).unwrap();
    let begin = Instant::now();
    while gateway.connection_count() == 2 {
        assert_eq!(busy.ask("get k"), "none");
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(idle.line(), "");
    assert_eq!(busy.ask("get k"), "none");
}

#[test]
fn answers_that_have_just_come_leave_before_the_door_closes() {
    let (gateway, end) = start_with_one_slow_key();
    // More than one round serves.
    let mut clients: Vec<_> = (0..300).map(|_| connect(&gateway)).collect();
    for client in &mut clients {
        client.send("get a\r\nget slow\r\n");
        assert_eq!(client.line(), "END\r", "its next request has begun");
    }
    end();
    gateway.shutdown();
    for client in &mut clients {
        assert_eq!([client.line(), client.line()], ["END\r", ""]);
    }
}

/// Connections of all loops are told of with their addresses, and ended by them.
#[test]
fn clients_are_listed_and_ended() {
    let mut options = options();
    options.thread_count = 3;
    options.doors[0].protocol = Protocol::Redis;
    let doors = Doors::open(&options).unwrap();
    let keyspace = |_| MemoryKeyspace::new(0);
    let gateway = Gateway::start(options, doors, keyspace, |_| support::Nobody).unwrap();
    let mut clients: Vec<_> = (0..6).map(|_| connect(&gateway)).collect();
    let address =
        |client: &Client<std::net::TcpStream>| client.stream.get_ref().local_addr().unwrap();
    for client in &mut clients {
        assert_eq!(client.ask("PING\r"), "+PONG\r");
    }
    clients[0].send("CLIENT LIST\r\n");
    let head = clients[0].line();
    let len: usize = head.trim_matches(['$', '\r']).parse().unwrap();
    let text = String::from_utf8(clients[0].bytes(len + 2)).unwrap();
    for client in &clients {
        let line = format!(" addr={} laddr={} ", address(client), port(&gateway));
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
    let kill = format!("CLIENT KILL ADDR {}\r", address(&clients[1]));
    assert_eq!(clients[0].ask(&kill), ":1\r");
    assert_eq!(clients[1].line(), "");
    assert_eq!(clients[0].ask(&kill), ":0\r");
    let kill = format!("CLIENT KILL {}\r", address(&clients[2]));
    assert_eq!(clients[0].ask(&kill), "+OK\r");
    assert_eq!(clients[2].line(), "");
    let id = clients[3].ask("CLIENT ID\r");
    let kill = format!("CLIENT KILL ID {}\r", id.trim_matches([':', '\r']));
    assert_eq!(clients[0].ask(&kill), ":1\r");
    assert_eq!(clients[3].line(), "");
    // All others, and then itself.
    let kill = format!("CLIENT KILL LADDR {} TYPE normal\r", port(&gateway));
    assert_eq!(clients[0].ask(&kill), ":2\r");
    let kill = format!("CLIENT KILL LADDR {} SKIPME no\r", port(&gateway));
    assert_eq!(clients[0].ask(&kill), ":1\r");
    assert_eq!(clients[0].line(), "");
    wait_until(|| gateway.connection_count() == 0);
}
