//! Gateways whose SETs are acknowledged before they are executed (`--commit acknowledged`):
//! what is done that way, that nobody sees a difference, and what becomes of it where somebody
//! dies, hangs or moves.

use crate::doors::{Front, Log, expect};
use crate::support::{Cell, Hanging, kill, text};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Connection = BufReader<TcpStream>;

/// Of what takes some tries on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long backends stand still: their leases, of 500 ms, go on.
const STANDSTILL: Duration = Duration::from_millis(200);
const ONE: [&str; 4] = ["--mode", "R=1", "--backends", "2"];
const THREE: [&str; 4] = ["--mode", "R=3.2", "--backends", "3"];
const SHAPES: [[&str; 4]; 2] = [ONE, THREE];
const SAID: &str = "SETs are acknowledged before they are executed";

fn cell(dir: &Path, shape: &[&str]) -> Cell {
    Cell::up(dir, &[shape, &["--memory", "64MiB", "--queue"]].concat())
}

fn gateway(cell: &Cell, commit: &str) -> (Front, Log) {
    Front::start_logging(&[
        "gateway",
        "--cell",
        &cell.address,
        "--metrics",
        "127.0.0.1:0",
        "--memcached",
        "127.0.0.1:0",
        "--redis",
        "127.0.0.1:0",
        "--threads",
        "3",
        "--commit",
        commit,
    ])
}

/// SETs that were acknowledged before they were executed, and those that were executed instead,
/// as the metrics tell.
fn counted(front: &Front) -> [u64; 2] {
    let mut stream = TcpStream::connect(front.metrics()).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    ["acknowledged", "executed"].map(|by| {
        let by = format!("by=\"{by}\"");
        let is_it =
            |line: &&str| line.starts_with("trefoil_gateway_commits_total{") && line.contains(&by);
        let line = page.lines().find(is_it).expect("it is told");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    })
}

/// One whose event loops have asked for their places, and acknowledge.
fn committing(cell: &Cell) -> Front {
    let (front, log) = gateway(cell, "acknowledged");
    let begin = Instant::now();
    loop {
        // More connections than loops.
        (0..6).for_each(|_| warm(&mut front.connect("memcached")));
        if log.count(&[SAID]) > 0 {
            return front;
        }
        assert!(begin.elapsed() < PATIENCE, "it acknowledges nothing");
    }
}

/// Has the event loop of this connection ask for its places.
fn warm(connection: &mut Connection) {
    let sets: String = (0..50)
        .map(|number| format!("set warm{number} 0 0 1\r\nv\r\n"))
        .collect();
    for _ in 0..10 {
        expect(connection, &sets, &"STORED\r\n".repeat(50));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What comes back while all backends stand still.
fn answered(cell: &Cell, connection: &mut Connection, request: &str, len: usize) -> String {
    let hanging: Vec<_> = cell.pids.iter().map(|pid| Hanging::new(*pid)).collect();
    let come = send_and_take(connection, request, len);
    drop(hanging);
    come
}

/// Sends this, and takes as much as comes while backends stand still.
fn send_and_take(connection: &mut Connection, request: &str, len: usize) -> String {
    send_and_take_for(connection, request, len, STANDSTILL)
}

/// The same within this time.
fn send_and_take_for(
    connection: &mut Connection,
    request: &str,
    len: usize,
    within: Duration,
) -> String {
    let stream = connection.get_mut();
    let patience = stream.read_timeout().unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.set_read_timeout(Some(within)).unwrap();
    let (mut come, mut bytes) = (Vec::new(), [0; 4096]);
    while come.len() < len {
        let left = (len - come.len()).min(bytes.len());
        match connection.read(&mut bytes[..left]) {
            Ok(0) | Err(_) => break,
            Ok(read) => come.extend_from_slice(&bytes[..read]),
        }
    }
    connection.get_mut().set_read_timeout(patience).unwrap();
    text(&come)
}

/// Repeats what does not come about on a machine that stands still.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn line(connection: &mut Connection, request: &str) -> String {
    connection.get_mut().write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    connection.read_line(&mut line).unwrap();
    line
}

#[track_caller]
fn expect_value(connection: &mut Connection, key: &str, value: &str) {
    let answer = format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    expect(connection, &format!("get {key}\r\n"), &answer);
}

/// All backends stand still: what is answered then was not executed.
#[test]
fn what_tells_no_version_is_acknowledged_and_everything_else_waits() {
    let many = "set k 0 0 1\r\np\r\n".repeat(20);
    let stored = "STORED\r\n".repeat(20);
    let acknowledged = [
        ("memcached", "set k 0 0 1\r\nt\r\n", "STORED\r\n", "t"),
        (
            "memcached",
            "set k 0 0 1 noreply\r\nn\r\nmn\r\n",
            "MN\r\n",
            "n",
        ),
        ("memcached", "ms k 1\r\nm\r\n", "HD\r\n", "m"),
        ("memcached", "ms k 1 q\r\nq\r\nmn\r\n", "MN\r\n", "q"),
        ("memcached", &many, &stored, "p"),
        ("redis", "SET k r\r\n", "+OK\r\n", "r"),
        ("redis", "SET k e EX 100\r\n", "+OK\r\n", "e"),
        ("redis", "SETEX k 100 x\r\n", "+OK\r\n", "x"),
        ("redis", "PSETEX k 100000 y\r\n", "+OK\r\n", "y"),
        ("redis", "MSET k s l s\r\n", "+OK\r\n", "s"),
    ];
    let waits = [
        ("memcached", "ms k 1 c\r\nb\r\n", "HD c"),
        ("memcached", "add new 0 0 1\r\nb\r\n", "STORED"),
        ("memcached", "replace k 0 0 1\r\nb\r\n", "STORED"),
        ("memcached", "append k 0 0 1\r\nb\r\n", "STORED"),
        ("memcached", "incr n 1\r\n", "2"),
        ("memcached", "touch k 0\r\n", "TOUCHED"),
        ("memcached", "delete k\r\n", "DELETED"),
        ("redis", "SET k a XX\r\n", "+OK"),
        ("redis", "SET k a KEEPTTL\r\n", "+OK"),
        ("redis", "SET never a NX\r\n", "+OK"),
        ("redis", "SET k a GET\r\n", "$1"),
        ("redis", "GETSET k a\r\n", "$1"),
    ];
    for shape in SHAPES {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &shape);
        let front = committing(&cell);
        for (door, request, answer) in waits {
            let mut client = front.connect("memcached");
            expect(&mut client, "set k 0 0 1\r\na\r\n", "STORED\r\n");
            expect(&mut client, "set n 0 0 1\r\n1\r\n", "STORED\r\n");
            expect_value(&mut client, "k", "a");
            expect_value(&mut client, "n", "1");
            let mut client = front.connect(door);
            if door == "memcached" {
                warm(&mut client);
            }
            let come = answered(&cell, &mut client, request, 1);
            assert_eq!(come, "", "{shape:?}: {request} is not executed");
            // An answer comes, when it is.
            let come = line(&mut client, "");
            assert!(come.starts_with(answer), "{shape:?}: {request}: {come}");
        }
        for (door, request, answer, value) in acknowledged {
            until(&format!("{shape:?}: {request} waits for backends"), || {
                let mut client = front.connect(door);
                let come = answered(&cell, &mut client, request, answer.len());
                let is_there = come == answer;
                if is_there {
                    expect_value(&mut front.connect("memcached"), "k", value);
                }
                is_there
            });
        }
    }
}

/// Backends sleep, so what is acknowledged is executed some milliseconds later, and each request
/// here comes before that.
#[test]
fn who_asks_afterwards_sees_no_difference() {
    for shape in SHAPES {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &shape);
        let front = committing(&cell);
        let mut first = front.connect("memcached");
        let mut other = front.connect("memcached");
        let mut redis = front.connect("redis");
        let set = |connection: &mut Connection, value: &str| {
            let set = format!("set k 0 0 {}\r\n{value}\r\n", value.len());
            expect(connection, &set, "STORED\r\n");
        };
        let (long, longer) = ("l".repeat(3_000), "L".repeat(200_000));
        for round in 0..20 {
            set(&mut first, "a");
            expect_value(&mut first, "k", "a");
            set(&mut first, "b");
            expect_value(&mut other, "k", "b");
            expect(&mut redis, "GET k\r\n", "$1\r\nb\r\n");
            // The version of what is there.
            set(&mut first, "c");
            let gets = line(&mut other, "gets k\r\n");
            let unique = gets.split_whitespace().next_back().unwrap().to_owned();
            expect(&mut other, "", "c\r\nEND\r\n");
            set(&mut first, "d");
            let cas = format!("cas k 0 0 1 {unique}\r\ne\r\n");
            expect(&mut other, &cas, "EXISTS\r\n");
            let stored = line(&mut first, "ms k 1 c\r\nf\r\n");
            let unique = stored.trim().strip_prefix("HD c").unwrap().to_owned();
            let cas = format!("cas k 0 0 1 {unique}\r\ng\r\n");
            expect(&mut other, &cas, "STORED\r\n");
            expect_value(&mut first, "k", "g");
            // What reads before it writes.
            set(&mut first, "h");
            expect(&mut other, "add k 0 0 1\r\ni\r\n", "NOT_STORED\r\n");
            expect(&mut other, "append k 0 0 1\r\nj\r\n", "STORED\r\n");
            expect(&mut first, "prepend k 0 0 1\r\nk\r\n", "STORED\r\n");
            expect_value(&mut first, "k", "khj");
            set(&mut first, "41");
            expect(&mut other, "incr k 1\r\n", "42\r\n");
            set(&mut other, "7");
            expect(&mut first, "decr k 2\r\n", "5\r\n");
            set(&mut first, "m");
            expect(&mut first, "touch k 0\r\n", "TOUCHED\r\n");
            expect(&mut other, "delete k\r\n", "DELETED\r\n");
            expect(&mut first, "get k\r\n", "END\r\n");
            expect(&mut first, "add k 0 0 1\r\nn\r\n", "STORED\r\n");
            set(&mut first, "o");
            expect_value(&mut other, "k", "o");
            // One after another, without an answer, and too long for a slot in between.
            let noreply = "set k 0 0 1 noreply\r\np\r\nset k 0 0 1 noreply\r\nq\r\nget k\r\n";
            expect(&mut first, noreply, "VALUE k 0 1\r\nq\r\nEND\r\n");
            for value in [&long, "r", &longer, "s"] {
                set(&mut first, value);
                expect_value(&mut other, "k", value);
            }
            let many: String = (0..50)
                .map(|number| format!("set k 0 0 2\r\n{}\r\n", number + 10))
                .collect();
            let answers = "STORED\r\n".repeat(50) + "VALUE k 0 2\r\n59\r\nEND\r\n";
            expect(&mut first, &(many + "get k\r\n"), &answers);
            // Expiry times.
            expect(&mut first, "set k 0 -1 1\r\nt\r\n", "STORED\r\n");
            expect(&mut other, "get k\r\n", "END\r\n");
            expect(&mut redis, "SET k u EX 1000\r\n", "+OK\r\n");
            let ttl = line(&mut redis, "TTL k\r\n");
            assert!([":1000\r\n", ":999\r\n"].contains(&&ttl[..]), "{ttl}");
            expect(&mut redis, "SET k v\r\nTTL k\r\n", "+OK\r\n:-1\r\n");
            expect(&mut redis, "PSETEX k 1 w\r\n", "+OK\r\n");
            // A front door looks at the clock every few milliseconds.
            std::thread::sleep(Duration::from_millis(50));
            expect(&mut first, "get k\r\n", "END\r\n");
            // Redis' words.
            let several = "MSET k 1 l 2 m 3\r\nMGET k l m\r\n";
            let values = "+OK\r\n*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n";
            expect(&mut redis, several, values);
            expect(&mut redis, "SET k 1\r\nINCR k\r\n", "+OK\r\n:2\r\n");
            expect(&mut redis, "SET k x\r\nSETNX k y\r\n", "+OK\r\n:0\r\n");
            expect(
                &mut redis,
                "SET k x\r\nGETSET k y\r\n",
                "+OK\r\n$1\r\nx\r\n",
            );
            expect(&mut redis, "SET k x\r\nDEL k\r\n", "+OK\r\n:1\r\n");
            expect(&mut redis, "SET k x\r\nEXISTS k\r\n", "+OK\r\n:1\r\n");
            // Of a transaction: what it watches, and what it does.
            expect(&mut redis, "SET k x\r\nWATCH k\r\n", "+OK\r\n+OK\r\n");
            set(&mut first, "y");
            let transaction = "MULTI\r\nSET k z\r\nEXEC\r\n";
            expect(&mut redis, transaction, "+OK\r\n+QUEUED\r\n*-1\r\n");
            expect_value(&mut first, "k", "y");
            let done = "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n";
            expect(&mut redis, transaction, done);
            expect_value(&mut first, "k", "z");
            let transaction = "MULTI\r\nSET k 1\r\nSET l 2\r\nINCR k\r\nEXEC\r\n";
            let done = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n+OK\r\n:2\r\n";
            expect(&mut redis, transaction, done);
            expect_value(&mut first, "k", "2");
            expect_value(&mut first, "l", "2");
            // Lists and flushes.
            let only = format!("only{round}");
            expect(&mut redis, &format!("SET {only} x\r\n"), "+OK\r\n");
            let listed = format!("*1\r\n${}\r\n{only}\r\n", only.len());
            expect(&mut redis, &format!("KEYS {only}\r\n"), &listed);
            set(&mut first, "a");
            expect(&mut other, "flush_all\r\n", "OK\r\n");
            expect(&mut first, "get k\r\n", "END\r\n");
            set(&mut first, "b");
            expect_value(&mut other, "k", "b");
            set(&mut first, "c");
            expect(&mut redis, "FLUSHALL\r\n", "+OK\r\n");
            expect(&mut other, "get k\r\n", "END\r\n");
        }
    }
}

/// Whoever asks while all backends stand still asks before it is executed, surely.
#[test]
fn who_asks_before_it_is_executed_waits_for_that() {
    let [memcached, redis] = ["memcached", "redis"];
    // Behind a SET of `5` to `k`, where `1` is, by another connection.
    let pairs = [
        (memcached, "get k\r\n", "VALUE k 0 1\r\n5\r\nEND\r\n"),
        (memcached, "mg k v\r\n", "VA 1\r\n5\r\n"),
        (
            memcached,
            "get l k\r\n",
            "VALUE l 0 1\r\n1\r\nVALUE k 0 1\r\n5\r\nEND\r\n",
        ),
        (
            memcached,
            "cas k 0 0 1 {unique}\r\n7\r\nget k\r\n",
            "EXISTS\r\nVALUE k 0 1\r\n5\r\nEND\r\n",
        ),
        (memcached, "add k 0 0 1\r\n7\r\n", "NOT_STORED\r\n"),
        (
            memcached,
            "append k 0 0 1\r\n7\r\nget k\r\n",
            "STORED\r\nVALUE k 0 2\r\n57\r\nEND\r\n",
        ),
        (memcached, "incr k 1\r\n", "6\r\n"),
        (
            memcached,
            "touch k 0\r\nget k\r\n",
            "TOUCHED\r\nVALUE k 0 1\r\n5\r\nEND\r\n",
        ),
        (memcached, "delete k\r\nget k\r\n", "DELETED\r\nEND\r\n"),
        (
            memcached,
            "set k 0 0 1\r\n7\r\nget k\r\n",
            "STORED\r\nVALUE k 0 1\r\n7\r\nEND\r\n",
        ),
        (memcached, "flush_all\r\nget k\r\n", "OK\r\nEND\r\n"),
        (redis, "GET k\r\n", "$1\r\n5\r\n"),
        (redis, "MGET l k\r\n", "*2\r\n$1\r\n1\r\n$1\r\n5\r\n"),
        (redis, "EXISTS k\r\n", ":1\r\n"),
        (redis, "INCR k\r\n", ":6\r\n"),
        (redis, "SETNX k 7\r\n", ":0\r\n"),
        (redis, "SET k 7 NX\r\n", "$-1\r\n"),
        (redis, "SET k 7 GET\r\n", "$1\r\n5\r\n"),
        (redis, "GETSET k 7\r\n", "$1\r\n5\r\n"),
        (redis, "DEL k\r\nGET k\r\n", ":1\r\n$-1\r\n"),
        (redis, "KEYS k\r\n", "*1\r\n$1\r\nk\r\n"),
        (
            redis,
            "MULTI\r\nGET k\r\nINCR k\r\nEXEC\r\n",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$1\r\n5\r\n:6\r\n",
        ),
    ];
    for shape in SHAPES {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &shape);
        let front = committing(&cell);
        for (door, request, answer) in pairs {
            until(
                &format!("{shape:?}: none is acknowledged before {request}"),
                || {
                    let mut first = front.connect("memcached");
                    let mut other = front.connect(door);
                    warm(&mut first);
                    let ones = "set k 0 0 1\r\n1\r\nset l 0 0 1\r\n1\r\n";
                    expect(&mut first, ones, "STORED\r\nSTORED\r\n");
                    let gets = line(&mut first, "gets k\r\n");
                    let unique = gets.split_whitespace().next_back().unwrap().to_owned();
                    expect(&mut first, "", "1\r\nEND\r\n");
                    let request = request.replace("{unique}", &unique);
                    let hanging: Vec<_> = cell.pids.iter().map(|pid| Hanging::new(*pid)).collect();
                    let set = "set k 0 0 1\r\n5\r\n";
                    let come = send_and_take(&mut first, set, "STORED\r\n".len());
                    if come.is_empty() {
                        return false;
                    }
                    let none =
                        send_and_take_for(&mut other, &request, 1, Duration::from_millis(20));
                    drop(hanging);
                    // Of several, the first ones may need no backend.
                    expect(&mut other, "", &answer[none.len()..]);
                    assert!(answer.starts_with(&none), "{none} before {answer}");
                    true
                },
            );
        }
    }
}

/// The queues are the servers'.
#[test]
fn a_gateway_that_dies_takes_nothing_along_that_it_has_acknowledged() {
    for shape in SHAPES {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &shape);
        let (executing, _log) = gateway(&cell, "executed");
        let mut attempt = 0;
        until("nothing is acknowledged", || {
            attempt += 1;
            let front = committing(&cell);
            let mut client = front.connect("memcached");
            let sets = (0..50).map(|number| format!("set k{attempt}-{number} 0 0 1\r\nv\r\n"));
            let sets: String = sets.collect();
            let hanging: Vec<_> = cell.pids.iter().map(|pid| Hanging::new(*pid)).collect();
            let come = send_and_take(&mut client, &sets, 50 * "STORED\r\n".len());
            kill(front.pid(), "KILL");
            drop(hanging);
            let acknowledged = come.matches("STORED\r\n").count();
            let mut reader = executing.connect("memcached");
            for number in 0..acknowledged {
                expect_value(&mut reader, &format!("k{attempt}-{number}"), "v");
            }
            acknowledged == 50
        });
    }
}

/// Of three, one that has executed none of it: nor have the others, when it is answered.
#[test]
fn a_backend_of_three_that_dies_takes_nothing_along_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let cell = cell(dir.path(), &THREE);
    let front = committing(&cell);
    let mut client = front.connect("memcached");
    let mut number = 0;
    let mut acknowledged = Vec::new();
    until("nothing is acknowledged beside backends that hang", || {
        warm(&mut client);
        let hanging: Vec<_> = cell.pids.iter().map(|pid| Hanging::new(*pid)).collect();
        number += 1;
        let (key, mut sets) = (|at: usize| format!("k{number}-{at}"), String::new());
        (0..50).for_each(|at| sets += &format!("set {} 0 0 1\r\nv\r\n", key(at)));
        let come = send_and_take(&mut client, &sets, 50 * "STORED\r\n".len());
        let count = come.matches("STORED\r\n").count();
        acknowledged = (0..count).map(key).collect();
        if count == 50 {
            cell.kill(1);
        }
        drop(hanging);
        if count < 50 {
            client = front.connect("memcached");
        }
        count == 50
    });
    let mut other = front.connect("memcached");
    for key in &acknowledged {
        expect_value(&mut other, key, "v");
    }
    // And it goes on, by messages.
    expect(&mut client, "set k 0 0 1\r\nw\r\n", "STORED\r\n");
    expect_value(&mut other, "k", "w");
}

/// What finds its queue full is executed, and waits for that.
#[test]
fn a_queue_that_is_full_loses_nothing() {
    const SETS: usize = 2_000;
    /// Less than an event loop has slots at one backend.
    const AT_ONCE_MIN: usize = 100;
    for shape in SHAPES {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &shape);
        let front = committing(&cell);
        let mut attempt = 0;
        until(&format!("{shape:?}: too few are acknowledged"), || {
            attempt += 1;
            let mut client = front.connect("memcached");
            warm(&mut client);
            let key = |number| format!("k{attempt}-{number}");
            let set = |number| format!("set {} 0 0 5\r\n{number:05}\r\n", key(number));
            let sets: String = (0..SETS).map(set).collect();
            let len = SETS * "STORED\r\n".len();
            let mut come = answered(&cell, &mut client, &sets, len);
            let at_once = come.matches("STORED\r\n").count();
            assert!(at_once < SETS, "{shape:?}: slots for {at_once}");
            while come.matches("\r\n").count() < SETS {
                come += &line(&mut client, "");
            }
            let mut other = front.connect("memcached");
            let mut stored = 0;
            for (number, answer) in come.split_terminator("\r\n").enumerate() {
                // On a machine that stands still leases end, and then it is not known.
                if answer == "STORED" {
                    expect_value(&mut other, &key(number), &format!("{number:05}"));
                    stored += 1;
                }
            }
            assert!(stored >= SETS / 2, "{shape:?}: {stored} of {SETS}");
            at_once >= AT_ONCE_MIN
        });
    }
}

/// Backends move to successors, and the cell to another number of them, beside SETs.
#[test]
fn backends_that_move_take_along_what_was_acknowledged() {
    for (shape, sizes) in [(ONE, ["3", "2"]), (THREE, ["4", "3"])] {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &shape);
        let front = committing(&cell);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| {
                let resize = |to| cell.run(&["cell", "resize", "--backends", to]);
                let moved = [
                    cell.run(&["cell", "restart"]),
                    resize(sizes[0]),
                    resize(sizes[1]),
                ];
                is_over.store(true, Ordering::Relaxed);
                moved
            });
            let mut writer = front.connect("memcached");
            let mut reader = front.connect("memcached");
            let mut number = 0u32;
            let mut unread = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..32 {
                    number += 1;
                    let (key, value) = (format!("k{}", number % 500), format!("{number:08}"));
                    let set = format!("set {key} 0 0 8\r\n{value}\r\n");
                    expect(&mut writer, &set, "STORED\r\n");
                    expect_value(&mut reader, &key, &value);
                }
                // Many that nobody reads until they stand there all.
                let key = |at: usize| format!("u{number}-{at}");
                let sets = (0..100).map(|at| format!("set {} 0 0 1\r\nu\r\n", key(at)));
                let sets: String = sets.collect();
                expect(&mut writer, &sets, &"STORED\r\n".repeat(100));
                if number.is_multiple_of(512) {
                    unread.extend((0..100).map(key));
                } else {
                    (0..100).for_each(|at| expect_value(&mut reader, &key(at), "u"));
                    let deletes = (0..100).map(|at| format!("delete {}\r\n", key(at)));
                    let deletes: String = deletes.collect();
                    expect(&mut writer, &deletes, &"DELETED\r\n".repeat(100));
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            for moved in moves.join().expect("no panic") {
                assert!(moved.status.success(), "{}", text(&moved.stderr));
            }
            for key in &unread {
                expect_value(&mut reader, key, "u");
            }
            for before in number.saturating_sub(499).max(1)..=number {
                let (key, value) = (format!("k{}", before % 500), format!("{before:08}"));
                expect_value(&mut reader, &key, &value);
            }
        });
        // As before, and not because all was executed by then.
        until("nothing is acknowledged any more", || {
            let mut client = front.connect("memcached");
            let set = "set k 0 0 1\r\nv\r\n";
            expect(&mut client, set, "STORED\r\n");
            let pids = cell.status();
            let pids = pids["backends"].as_array().unwrap().iter();
            let pids = pids.filter_map(|backend| backend["pid"].as_u64());
            let hanging: Vec<_> = pids.map(|pid| Hanging::new(pid as u32)).collect();
            let come = send_and_take(&mut client, set, "STORED\r\n".len());
            drop(hanging);
            come == "STORED\r\n"
        });
    }
}

/// What was answered by one connection is seen by all others from then on.
#[test]
fn many_connections_see_what_others_were_told() {
    const WRITERS: usize = 48;
    for shape in SHAPES {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &shape);
        let front = committing(&cell);
        let told: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        let is_over = AtomicBool::new(false);
        let (front, told, is_over) = (&front, &told, &is_over);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|at| {
                    scope.spawn(move || {
                        let mut client = front.connect("memcached");
                        for number in 1..=100u64 {
                            let set = format!("set w{at} 0 0 3\r\n{number:03}\r\n");
                            expect(&mut client, &set, "STORED\r\n");
                            told[at].store(number, Ordering::Release);
                        }
                    })
                })
                .collect();
            for reader in 0..4 {
                scope.spawn(move || {
                    let mut client = front.connect("memcached");
                    let mut at = reader;
                    while !is_over.load(Ordering::Relaxed) {
                        at = (at + 7) % WRITERS;
                        let at_least = told[at].load(Ordering::Acquire);
                        let found = line(&mut client, &format!("mg w{at} v\r\n"));
                        if found == "EN\r\n" {
                            assert_eq!(at_least, 0, "w{at} is missing");
                            continue;
                        }
                        assert_eq!(found, "VA 3\r\n");
                        let value: u64 = line(&mut client, "").trim().parse().unwrap();
                        assert!(value >= at_least, "w{at}: {value} after {at_least}");
                    }
                });
            }
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
    }
}

/// And says so in its log, once.
#[test]
fn where_there_is_no_queue_all_is_executed() {
    for shape in SHAPES {
        let dir = tempfile::tempdir().unwrap();
        let cell = Cell::up(dir.path(), &[&shape[..], &["--memory", "64MiB"]].concat());
        let (front, log) = gateway(&cell, "acknowledged");
        let set_and_get = || {
            // Each event loop has some of them.
            for key in 0..12 {
                let mut client = front.connect("memcached");
                let set = format!("set k{key} 0 0 1\r\nv\r\n");
                expect(&mut client, &set, "STORED\r\n");
                expect_value(&mut client, &format!("k{key}"), "v");
            }
        };
        until("it is not said", || {
            set_and_get();
            log.count(&["start the cell with `--queue`"]) > 0
        });
        (0..20).for_each(|_| set_and_get());
        let only = "SETs of some keys, or of all, are acknowledged when they are executed";
        assert_eq!((log.count(&[only]), log.count(&[SAID])), (1, 0));
        let [acknowledged, executed] = counted(&front);
        assert_eq!(acknowledged, 0);
        assert!(executed >= 20 * 12, "{executed}");
    }
}

/// Until one fits into a slot.
#[test]
fn where_none_was_ever_acknowledged_it_is_said_and_when_one_is_that() {
    let dir = tempfile::tempdir().unwrap();
    let cell = cell(dir.path(), &ONE);
    let (front, log) = gateway(&cell, "acknowledged");
    let mut client = front.connect("memcached");
    let set = |client: &mut Connection, value: &str| {
        let set = format!("set k 0 0 {}\r\n{value}\r\n", value.len());
        expect(client, &set, "STORED\r\n");
        expect_value(client, "k", value);
    };
    let silence = ["no SET was acknowledged before it was executed"];
    until("it is not said", || {
        set(&mut client, &"l".repeat(2_000));
        log.count(&silence) > 0
    });
    assert_eq!(log.count(&[SAID]), 0);
    until("it is not said that one is", || {
        set(&mut client, "short");
        log.count(&[SAID]) > 0
    });
    (0..100).for_each(|_| set(&mut client, &"l".repeat(2_000)));
    assert_eq!([log.count(&silence), log.count(&[SAID])], [1, 1]);
    let before = counted(&front);
    assert!(before[0] >= 1 && before[1] >= 116, "{before:?}");
    // What the log does not tell any more.
    until("it is not counted", || {
        set(&mut client, "short");
        counted(&front)[0] > before[0]
    });
    (0..10).for_each(|_| set(&mut client, &"l".repeat(2_000)));
    assert!(counted(&front)[1] >= before[1] + 10);
}
