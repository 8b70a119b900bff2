//! A gateway beside what goes wrong: a replica that hangs, settings that change.

use crate::doors::{Front, expect};
use crate::support::{Cell, Hanging, kill, parse, run};
use std::io::{BufRead as _, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Far more than any operation takes, also on a busy machine; a replica that hangs does so
/// for longer.
const LONG: Duration = Duration::from_secs(10);

fn gateway(cell: &str, more: &[&str]) -> Front {
    let mut args = vec!["gateway", "--cell", cell, "--metrics", "off"];
    args.extend_from_slice(&["--memcached", "127.0.0.1:0", "--redis", "127.0.0.1:0"]);
    args.extend_from_slice(more);
    Front::start(&args)
}

#[test]
fn a_gateway_goes_on_beside_a_replica_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let front = gateway(&cell.address, &[]);
    let mut memcached = front.connect("memcached");
    let mut redis = front.connect("redis");
    for key in 0..100 {
        expect(
            &mut memcached,
            &format!("set k{key} 0 0 5\r\nfirst\r\n"),
            "STORED\r\n",
        );
        expect(
            &mut memcached,
            &format!("set n{key} 0 0 1\r\n0\r\n"),
            "STORED\r\n",
        );
    }
    let mut longest = Duration::ZERO;
    let mut timed = |what: &str, operation: &mut dyn FnMut()| {
        let begin = Instant::now();
        operation();
        let took = begin.elapsed();
        longest = longest.max(took);
        assert!(took < LONG, "{what} took {took:?}");
    };
    for number in 0..2 {
        // The second one stands still after the first has come back.
        let hanging = Hanging::new(cell.pids[number]);
        for round in 0..3 {
            for key in 0..100 {
                timed("set", &mut || {
                    let set = format!("set k{key} 0 0 5\r\n{number}-{round}vv\r\n");
                    expect(&mut memcached, &set, "STORED\r\n");
                });
                timed("get", &mut || {
                    let value = format!("VALUE k{key} 0 5\r\n{number}-{round}vv\r\nEND\r\n");
                    expect(&mut memcached, &format!("get k{key}\r\n"), &value[..]);
                });
                timed("incr", &mut || {
                    let count = format!("{}\r\n", number * 3 + round + 1);
                    expect(&mut memcached, &format!("incr n{key} 1\r\n"), &count);
                });
            }
            timed("stats", &mut || {
                memcached.get_mut().write_all(b"stats\r\n").unwrap();
                let mut line = String::new();
                while line != "END\r\n" {
                    line.clear();
                    memcached.read_line(&mut line).unwrap();
                    assert!(line.starts_with("STAT") || line == "END\r\n", "{line}");
                }
            });
            timed("a listing", &mut || {
                redis.get_mut().write_all(b"SCAN 0 COUNT 10\r\n").unwrap();
                let mut line = String::new();
                redis.read_line(&mut line).unwrap();
                assert_eq!(line, "*2\r\n");
                // The cursor, and the keys.
                let mut lines = || {
                    let mut line = String::new();
                    redis.read_line(&mut line).unwrap();
                    line[1..line.len() - 2].parse::<usize>().unwrap()
                };
                lines();
                lines();
                let count = lines();
                assert!(count > 0);
                for _ in 0..2 * count {
                    let mut line = String::new();
                    redis.read_line(&mut line).unwrap();
                }
            });
        }
        drop(hanging);
        // Back within a few leases: the next one may hang.
        std::thread::sleep(Duration::from_secs(6));
        for key in 0..100 {
            let value = format!("VALUE k{key} 0 5\r\n{number}-2vv\r\nEND\r\n");
            expect(&mut memcached, &format!("get k{key}\r\n"), &value);
            let heal = format!("set k{key} 0 0 5\r\n{number}-2vv\r\n");
            expect(&mut memcached, &heal, "STORED\r\n");
            expect(
                &mut memcached,
                &format!("incr n{key} 0\r\n"),
                &format!("{}\r\n", number * 3 + 3),
            );
        }
    }
    eprintln!("the longest operation took {longest:?}");
}

/// Pauses so long that every lease has ended.
const PAUSE: Duration = Duration::from_millis(900);

/// A pause of the machine, as a host makes with its guest, at its worst moment: the
/// gateway and a replica stand still for longer than a lease, of the two others only
/// one has the value whole that the stopped one has acknowledged, too.
#[test]
fn what_was_stored_is_found_after_the_machine_has_paused() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "256MiB"]);
    let front = gateway(&cell.address, &["--item-max", "16MiB"]);
    let mut memcached = front.connect("memcached");
    // More than a connection keeps on its way.
    let len = 12 << 20;
    for round in 0..3 {
        for late in 0..3 {
            let is_behind = (late + 1 + round % 2) % 3;
            let store = |fill: &str| format!("set k 0 0 {len}\r\n{}\r\n", fill.repeat(len));
            expect(&mut memcached, &store("a"), "STORED\r\n");
            let behind = Hanging::new(cell.pids[is_behind]);
            expect(&mut memcached, &store("b"), "STORED\r\n");
            let gateway = Hanging::new(front.pid());
            let last = Hanging::new(cell.pids[late]);
            drop(behind);
            std::thread::sleep(PAUSE);
            memcached.get_mut().write_all(b"get k\r\n").unwrap();
            drop(gateway);
            drop(last);
            let mut line = String::new();
            memcached.read_line(&mut line).unwrap();
            assert_eq!(line, format!("VALUE k 0 {len}\r\n"), "{late} was late");
            let mut value = vec![0; len + "\r\nEND\r\n".len()];
            memcached.read_exact(&mut value).unwrap();
            assert!(value[..len].iter().all(|byte| *byte == b'b'));
        }
    }
}

fn log_in(front: &Front, user: &str, answer: &str) -> std::io::BufReader<std::net::TcpStream> {
    let mut client = front.connect("memcached");
    let words = format!("{user} word");
    let login = format!("set key 0 0 {}\r\n{words}\r\n", words.len());
    expect(&mut client, &login, answer);
    client
}

/// Waits until a user is known, or is not: a signal takes a moment.
fn until_known(front: &Front, user: &str) {
    let begin = Instant::now();
    loop {
        let mut client = front.connect("memcached");
        let words = format!("{user} word");
        let login = format!("set key 0 0 {}\r\n{words}\r\n", words.len());
        client.get_mut().write_all(login.as_bytes()).unwrap();
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        if line == "STORED\r\n" {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{user}: {line}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Changes users and limits under a connection that stays.
fn reloads(front: &Front, config: &Path, users: &Path) {
    let mut ann = log_in(front, "ann", "STORED\r\n");
    expect(&mut ann, "set k 0 0 5\r\nvalue\r\n", "STORED\r\n");
    // A mistake changes nothing, and ends nothing.
    std::fs::write(users, "no colon\n").unwrap();
    kill(front.pid(), "HUP");
    std::thread::sleep(Duration::from_millis(200));
    expect(&mut ann, "get k\r\n", "VALUE k 0 5\r\nvalue\r\nEND\r\n");
    log_in(front, "ann", "STORED\r\n");
    std::fs::write(users, "bob:word\n").unwrap();
    let text = std::fs::read_to_string(config).unwrap();
    let text = text.replace("connections = 1000", "connections = 77");
    std::fs::write(config, text.replace("\"128MiB\"", "\"144MiB\"")).unwrap();
    kill(front.pid(), "HUP");
    until_known(front, "bob");
    log_in(front, "ann", "CLIENT_ERROR authentication failure\r\n");
    // Who is in stays in, and so does what is stored.
    expect(&mut ann, "get k\r\n", "VALUE k 0 5\r\nvalue\r\nEND\r\n");
    ann.get_mut().write_all(b"stats settings\r\n").unwrap();
    let mut line = String::new();
    let mut maxconns = String::new();
    while line != "END\r\n" {
        line.clear();
        ann.read_line(&mut line).unwrap();
        if let Some(value) = line.strip_prefix("STAT maxconns ") {
            maxconns = value.trim().to_owned();
        }
    }
    assert_eq!(maxconns, "77");
}

fn memory_limit(cell: &str) -> u64 {
    let status = parse(&run(&["cell", "status", "--json", "--cell", cell]));
    status["backends"][0]["memory_limit_bytes"]
        .as_u64()
        .unwrap()
}

fn wait_for_limit(cell: &str, limit: u64) {
    let begin = Instant::now();
    while memory_limit(cell) != limit {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn settings_are_read_again_on_a_hangup() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("users");
    let doors = format!(
        "memcached = \"127.0.0.1:0\"\nconnections = 1000\nauth_file = {:?}\nmetrics = \"off\"\n",
        users.display().to_string()
    );
    // The whole cell in one process.
    std::fs::write(&users, "ann:word\n").unwrap();
    let config = dir.path().join("serve.toml");
    let socket = dir.path().join("serve.sock").display().to_string();
    let text =
        format!("memory = \"128MiB\"\nlisten = \"127.0.0.1:0\"\nsocket = {socket:?}\n{doors}");
    std::fs::write(&config, text).unwrap();
    let front = Front::start(&["serve", "--config", config.to_str().unwrap()]);
    reloads(&front, &config, &users);
    wait_for_limit(front.ready["cell"].as_str().unwrap(), 144 << 20);
    drop(front);
    // A process for each backend, and a gateway.
    std::fs::write(&users, "ann:word\n").unwrap();
    let up = dir.path().join("up.toml");
    let cell_dir = dir.path().join("cell").display().to_string();
    std::fs::write(&up, format!("dir = {cell_dir:?}\nmemory = \"128MiB\"\n")).unwrap();
    let cell = Cell::start(&["cell", "up", "--config", up.to_str().unwrap()]);
    let config = dir.path().join("gateway.toml");
    std::fs::write(&config, format!("cell = {:?}\n{doors}", cell.address)).unwrap();
    let front = Front::start(&["gateway", "--config", config.to_str().unwrap()]);
    reloads(&front, &config, &users);
    std::fs::write(&up, format!("dir = {cell_dir:?}\nmemory = \"144MiB\"\n")).unwrap();
    for pid in &cell.pids {
        kill(*pid, "HUP");
    }
    kill(cell.pid(), "HUP");
    wait_for_limit(&cell.address, 144 << 20);
    let mut bob = log_in(&front, "bob", "STORED\r\n");
    expect(&mut bob, "get k\r\n", "VALUE k 0 5\r\nvalue\r\nEND\r\n");
}

/// A setting that needs a restart is not passed over in silence.
#[test]
fn a_reload_names_what_it_does_not_take() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("serve.toml");
    let socket = dir.path().join("serve.sock").display().to_string();
    let text = format!(
        "memory = \"64MiB\"\nlisten = \"127.0.0.1:0\"\nsocket = {socket:?}\nmetrics = \"off\"\n\
         memcached = \"127.0.0.1:0\"\nconnections = 1000\n"
    );
    std::fs::write(&config, &text).unwrap();
    let (front, log) = Front::start_logging(&["serve", "--config", config.to_str().unwrap()]);
    let text = text.replace("connections = 1000", "connections = 77");
    std::fs::write(
        &config,
        format!("{text}eviction = \"lru\"\nspin = \"1us\"\n"),
    )
    .unwrap();
    kill(front.pid(), "HUP");
    log.await_line(&["until a restart: eviction, spin"]);
    log.await_line(&["settings were read again"]);
}

/// Answers to requests that each need a backend, the last line of each.
fn answers(front: &Front) -> Vec<String> {
    let mut memcached = front.connect("memcached");
    let mut redis = front.connect("redis");
    let ask = |door: &mut std::io::BufReader<std::net::TcpStream>, request: &str| {
        door.get_mut().write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        door.read_line(&mut line).unwrap();
        line
    };
    let mut lines = Vec::new();
    for request in [
        "get k\r\n",
        "gets k l m\r\n",
        "set k 0 0 1\r\nv\r\n",
        "add k 0 0 1\r\nv\r\n",
        "cas k 0 0 1 5\r\nv\r\n",
        "append k 0 0 1\r\nv\r\n",
        "incr k 1\r\n",
        "touch k 60\r\n",
        "delete k\r\n",
        "flush_all\r\n",
    ] {
        lines.push(ask(&mut memcached, request));
    }
    for request in ["GET k\r\n", "SET k v\r\n", "DEL k\r\n", "SCAN 0\r\n"] {
        lines.push(ask(&mut redis, request));
    }
    lines
}

/// The log tells of each backend that goes and comes back, and clients of a cell that
/// is down are all told the same.
#[test]
fn a_gateway_tells_of_backends_that_go_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB"]);
    let doors = ["--memcached", "127.0.0.1:0", "--redis", "127.0.0.1:0"];
    let args = ["gateway", "--cell", &cell.address, "--metrics", "off"];
    let (front, log) = Front::start_logging(&[&args[..], &doors].concat());
    let mut memcached = front.connect("memcached");
    expect(&mut memcached, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    drop(memcached);
    // Nobody asks for anything meanwhile.
    cell.kill(1);
    log.await_line(&["backend=1", "cannot be reached: "]);
    cell.crash();
    log.await_line(&["backend=0", "cannot be reached: "]);
    log.await_line(&["backend=2", "cannot be reached: "]);
    let is_told_alike = || {
        let unreachable = "no backend of the cell can be reached\r\n";
        let others = |answer: &String| !answer.ends_with(unreachable);
        let others: Vec<_> = answers(&front).into_iter().filter(others).collect();
        eprintln!("other answers: {others:?}");
        others.is_empty()
    };
    // A lease that had ended before, on a busy machine, was told of before.
    until(is_told_alike);
    for _ in 0..3 {
        assert!(is_told_alike());
    }
    let _again = Cell::up(dir.path(), &["--memory", "64MiB"]);
    for backend in ["backend=0", "backend=1", "backend=2"] {
        log.await_line(&[backend, "is reached again, after "]);
    }
    until(|| answers(&front).contains(&"STORED\r\n".to_owned()));
}

fn until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Anonymous memory of a process, in MiB.
fn anonymous(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() >> 10
}

/// What many uploads took of a gateway's memory goes back to the system.
#[test]
fn a_gateway_is_small_again_after_a_storm_of_uploads() {
    /// In MiB; 43 stay where nobody looks after the heap.
    const GROWN_MAX: u64 = 16;
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let front = gateway(&cell.address, &["--threads", "2"]);
    let before = anonymous(front.pid());
    std::thread::scope(|scope| {
        for client in 0..24 {
            let mut memcached = front.connect("memcached");
            scope.spawn(move || {
                for (round, len) in [900_000, 60_000, 100_000]
                    .into_iter()
                    .cycle()
                    .take(12)
                    .enumerate()
                {
                    let value = "v".repeat(len);
                    let set = format!("set k{client}-{round} 0 0 {len}\r\n{value}\r\n");
                    memcached.get_mut().write_all(set.as_bytes()).unwrap();
                    let mut answer = String::new();
                    // A server that is short of memory may refuse one.
                    memcached.read_line(&mut answer).unwrap();
                    assert!(answer.ends_with("\r\n"), "{answer}");
                }
            });
        }
    });
    let begin = Instant::now();
    let mut after = anonymous(front.pid());
    while after > before + GROWN_MAX && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(500));
        after = anonymous(front.pid());
    }
    assert!(
        after <= before + 48,
        "{before} MiB before, {after} MiB after"
    );
}
