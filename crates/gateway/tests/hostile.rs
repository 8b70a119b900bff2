//! Clients that want harm, or behave as if: nobody else notices, and memory
//! stays bounded.

#[path = "all/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::{connect, options, port, start};

/// Memory and descriptors are the whole process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() << 10
}

/// How long the slower round trips take beside what they take
/// without anybody else: more is a stall. The rest is for a busy machine, which
/// delays one or the other by milliseconds.
const SLOWER_MAX: u32 = 4;
const BUSY_MACHINE: Duration = Duration::from_millis(40);

/// Round trips of well-behaved clients, each in turn: this percentile.
fn slow_trip(
    gateway: &trefoil_gateway::server::Gateway,
    percentile: usize,
    clients: usize,
    count: usize,
) -> Duration {
    let mut clients: Vec<_> = (0..clients).map(|_| connect(gateway)).collect();
    for client in &mut clients {
        assert_eq!(client.set("mine", b"value"), "ok");
    }
    let mut times = Vec::with_capacity(count);
    for round in 0..count {
        let index = round % clients.len();
        let begin = Instant::now();
        assert_eq!(clients[index].get("mine").unwrap(), b"value");
        times.push(begin.elapsed());
    }
    times.sort();
    times[count * percentile / 100]
}

/// Whether well-behaved clients are served as if they were alone: beside an own
/// front door that nobody else uses, at the same time.
fn is_responsive(gateway: &trefoil_gateway::server::Gateway, count: usize) -> bool {
    let calm = start(options());
    // Not the 99th: gigabytes that wait in the kernel's buffers have it lose packets
    // now and then, which it sends again after 200 ms.
    let with = slow_trip(gateway, 95, 2, count);
    let without = slow_trip(&calm, 95, 2, count);
    println!("p95 {with:?}, without the others {without:?}");
    with <= without * SLOWER_MAX + BUSY_MACHINE
}

#[test]
fn a_thousand_idle_or_hostile_connections_and_ten_that_behave() {
    let _alone = alone();
    let mut options = options();
    options.limits.buffer_bytes_max = 32 << 20;
    let gateway = start(options);
    let before = resident();
    let without = slow_trip(&gateway, 99, 10, 3000);
    let mut others = Vec::new();
    let half = vec![b'x'; 256 << 10];
    for number in 0..1000 {
        let mut client = connect(&gateway);
        // Any of these may be closed in the middle of it.
        let stream = client.stream.get_mut();
        let _ = match number % 5 {
            // Idle, and idle in the middle of a request.
            0 => Ok(()),
            1 => stream.write_all(b"get ha"),
            // Asks for much and reads nothing.
            2 => stream.write_all(b"fill 1000000000\n"),
            // Announces much and sends some of it.
            3 => stream
                .write_all(format!("set k {}\n", support::VALUE_LEN_MAX).as_bytes())
                .and_then(|()| stream.write_all(&half)),
            // Nonsense, for ever.
            _ => stream.write_all(&[b'g'; 900]),
        };
        others.push(client);
    }
    let with = slow_trip(&gateway, 99, 10, 3000);
    let grown = resident().saturating_sub(before);
    println!(
        "p99 of ten that behave: {without:?} alone, {with:?} beside {} others; {} MiB",
        gateway.connection_count() - 10,
        grown >> 20
    );
    assert!(
        with <= without * SLOWER_MAX + BUSY_MACHINE,
        "{with:?}, {without:?} alone"
    );
    assert!(grown < 64 << 20, "{} MiB", grown >> 20);
    // Those that keep little are all still there.
    assert!(
        gateway.connection_count() >= 600,
        "{}",
        gateway.connection_count()
    );
}

#[test]
fn who_keeps_most_is_closed_and_not_who_asks_next() {
    let _alone = alone();
    let mut options = options();
    options.item_len_max = support::VALUE_LEN_MAX;
    options.limits.buffer_bytes_max = 5 << 20;
    let gateway = start(options);
    // Keeps nearly all that there is.
    let mut hog = connect(&gateway);
    hog.send(format!("set k {}\n", support::VALUE_LEN_MAX));
    hog.send(vec![b'x'; 15 << 18]);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(gateway.connection_count(), 1);
    // Others need little each, and more than is left together.
    let mut others: Vec<_> = (0..20).map(|_| connect(&gateway)).collect();
    for (index, other) in others.iter_mut().enumerate() {
        other.send(format!("set mine{index} 200000\n"));
        other.send(vec![b'y'; 100_000]);
    }
    wait_until(|| gateway.connection_count() == 20);
    for other in &mut others {
        other.send(vec![b'y'; 100_000]);
        assert_eq!(other.line(), "ok");
    }
    let mut rest = Vec::new();
    let _ = hog.stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn slow_readers_take_bounded_memory_and_nobody_waits() {
    let _alone = alone();
    let mut options = options();
    options.limits.buffer_bytes_max = 8 << 20;
    let gateway = start(options);
    let before = resident();
    // Each asks for a gigabyte and reads none of it.
    let slow: Vec<_> = (0..200)
        .map(|_| {
            let mut client = connect(&gateway);
            client.send("fill 1000000000\n");
            client
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_responsive(&gateway, 500));
    let grown = resident().saturating_sub(before);
    assert!(grown < 24 << 20, "{} KiB", grown >> 10);
    drop(slow);
}

#[test]
fn those_who_ask_and_never_read_take_bounded_memory_and_nobody_waits() {
    let _alone = alone();
    let mut options = options();
    options.item_len_max = support::VALUE_LEN_MAX;
    options.limits.buffer_bytes_max = 16 << 20;
    let gateway = start(options);
    assert_eq!(connect(&gateway).set("k", &[b'v'; 64 << 10]), "ok");
    let before = resident();
    let requests = "get k\n".repeat(400_000);
    let mut asking: Vec<_> = (0..40).map(|_| connect(&gateway)).collect();
    for client in &mut asking {
        let stream = client.stream.get_mut();
        stream.set_nonblocking(true).unwrap();
    }
    let mut written = vec![0; asking.len()];
    // As much as anybody takes.
    for _ in 0..40 {
        for (client, written) in asking.iter_mut().zip(&mut written) {
            if let Ok(len) = client
                .stream
                .get_mut()
                .write(&requests.as_bytes()[*written..])
            {
                *written += len;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(is_responsive(&gateway, 200));
    let grown = resident().saturating_sub(before);
    assert!(grown < 40 << 20, "{} KiB", grown >> 10);
    // Those who asked before may not be noticed to have gone yet.
    wait_until(|| gateway.connection_count() == asking.len());
    drop(asking);
    wait_until(|| gateway.connection_count() == 0);
}

#[test]
fn one_who_takes_all_it_can_leaves_time_for_others() {
    let _alone = alone();
    let gateway = start(options());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut greedy = connect(&gateway);
                greedy.send("fill 100000000000\n");
                let mut buffer = vec![0; 1 << 20];
                while !stop.load(Ordering::Relaxed) {
                    greedy.stream.get_mut().read_exact(&mut buffer).unwrap();
                }
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        let is_responsive = is_responsive(&gateway, 200);
        stop.store(true, Ordering::Relaxed);
        assert!(is_responsive);
    });
}

#[test]
fn announced_lengths_cost_nothing_until_bytes_come() {
    let _alone = alone();
    let mut options = options();
    options.item_len_max = support::VALUE_LEN_MAX;
    let gateway = start(options);
    let before = resident();
    let mut clients = Vec::new();
    for _ in 0..500 {
        let mut client = connect(&gateway);
        // 500 times 4 MiB are announced, and a few bytes come.
        client.send(format!("set k {}\nabc", support::VALUE_LEN_MAX));
        clients.push(client);
    }
    let mut impossible = connect(&gateway);
    for len in ["99999999999", "18446744073709551615", "-1", "1e9"] {
        impossible.send(format!("set k {len}\n"));
        assert_eq!(impossible.line(), "error");
        assert_eq!(impossible.line(), "");
        impossible = connect(&gateway);
    }
    assert!(is_responsive(&gateway, 200));
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{} KiB", grown >> 10);
    // Nor do they count for what they have not sent: nobody is closed for them.
    drop(impossible);
    wait_until(|| gateway.connection_count() <= clients.len());
    assert_eq!(gateway.connection_count(), clients.len());
}

#[test]
fn half_sent_values_end_at_the_limit_on_buffers() {
    let _alone = alone();
    let mut options = options();
    options.item_len_max = support::VALUE_LEN_MAX;
    options.limits.buffer_bytes_max = 16 << 20;
    let gateway = start(options);
    let before = resident();
    let half = vec![b'x'; 2 << 20];
    let mut clients = Vec::new();
    for _ in 0..64 {
        let mut client = connect(&gateway);
        client.send(format!("set k {}\n", support::VALUE_LEN_MAX));
        // It may be closed in the middle of it.
        let _ = client.stream.get_mut().write_all(&half);
        clients.push(client);
    }
    // Some are closed.
    wait_until(|| gateway.connection_count() < 64);
    assert!(is_responsive(&gateway, 200));
    let grown = resident().saturating_sub(before);
    assert!(grown < 40 << 20, "{} KiB", grown >> 10);
    // What they took is given back.
    drop(clients);
    let mut client = connect(&gateway);
    let value = vec![7; support::VALUE_LEN_MAX];
    wait_until(|| gateway.connection_count() == 1);
    assert_eq!(client.set("k", &value), "ok");
}

#[test]
fn a_line_that_never_ends_is_refused() {
    let _alone = alone();
    let gateway = start(options());
    let mut client = connect(&gateway);
    let junk = vec![b'g'; 1 << 20];
    // The server stops reading long before the end.
    let _ = client.stream.get_mut().write_all(&junk);
    let mut answer = Vec::new();
    let _ = client.stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer == b"error\n");
    wait_until(|| gateway.connection_count() == 0);
}

#[test]
fn slow_writers_and_resets_disturb_nobody() {
    let _alone = alone();
    let gateway = start(options());
    let mut slow: Vec<_> = (0..100).map(|_| connect(&gateway)).collect();
    for byte in b"set slow 5\nab" {
        for client in &mut slow {
            client.send([*byte]);
        }
    }
    for client in slow.drain(..50) {
        // Closed with the answer to come unread: the kernel sends a reset.
        let socket = client.stream.into_inner();
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    }
    assert!(is_responsive(&gateway, 200));
    for client in &mut slow {
        client.send("cde");
        assert_eq!(client.line(), "ok");
    }
    drop(slow);
    wait_until(|| gateway.connection_count() == 0);
}

#[test]
fn too_many_connections_are_told_so() {
    let _alone = alone();
    let mut options = options();
    options.limits.connections_max = 3;
    let gateway = start(options);
    let mut clients: Vec<_> = (0..3).map(|_| connect(&gateway)).collect();
    for client in &mut clients {
        assert_eq!(client.ask("get k"), "none");
    }
    let mut more = connect(&gateway);
    assert_eq!(more.line(), "ERROR Too many open connections\r");
    assert_eq!(more.line(), "");
    clients.pop();
    wait_until(|| gateway.connection_count() == 2);
    assert_eq!(connect(&gateway).ask("get k"), "none");
}

#[test]
fn idle_connections_end_where_that_is_wanted() {
    let _alone = alone();
    let mut options = options();
    options.limits.idle_timeout = Some(Duration::from_millis(400));
    let gateway = start(options);
    let mut busy = connect(&gateway);
    let mut idle = connect(&gateway);
    let mut watcher = connect(&gateway);
    assert_eq!(watcher.ask("watch"), "ok");
    let begin = Instant::now();
    while gateway.connection_count() == 3 {
        assert_eq!(busy.ask("get k"), "none");
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begin.elapsed() >= Duration::from_millis(350));
    assert_eq!(idle.line(), "", "the idle one has ended");
    // Who watches is silent by nature, and the busy one is not idle.
    assert!(watcher.line().contains("key=k"));
    assert_eq!(busy.ask("get k"), "none");
    assert_eq!(gateway.connection_count(), 2);
}

#[test]
fn ten_thousand_idle_connections_cost_next_to_nothing() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let _alone = alone();
    // Both ends are in this process. Where the hard limit forbids so many,
    // fewer have to do.
    let limit = getrlimit(Resource::Nofile);
    let wanted = Some(21_000);
    let raised = Rlimit {
        current: wanted,
        maximum: limit.maximum.map(|maximum| maximum.max(21_000)),
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        let all = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, all).unwrap();
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(21_000);
    let count = ((descriptors as usize - 500) / 2).min(10_000);
    assert!(count >= 100, "{descriptors} descriptors are too few");

    let gateway = start(options());
    let before = resident();
    let mut idle: Vec<TcpStream> = Vec::with_capacity(count);
    for index in 0..count {
        let mut stream = TcpStream::connect(port(&gateway)).unwrap();
        if index % 3 == 0 {
            // As idle as can be, in the middle of a request.
            stream.write_all(b"get ha").unwrap();
        }
        idle.push(stream);
    }
    wait_until(|| gateway.connection_count() == count);
    let each = resident().saturating_sub(before) / count;
    assert!(each < 2048, "{each} bytes for each of {count}");
    assert!(is_responsive(&gateway, 500));
    for stream in &mut idle[..3] {
        stream.write_all(b"\nget k\nquit\n").unwrap();
    }
    drop(idle);
    wait_until(|| gateway.connection_count() == 0);
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it never is");
        std::thread::sleep(Duration::from_millis(5));
    }
}
