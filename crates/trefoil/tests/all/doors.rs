//! The front door as a user's script sees it: `serve` and `gateway`.

use crate::support::{Cell, PROGRAM, free_port, kill, run, text};
use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A server with doors; ends with the test.
pub(crate) struct Front {
    child: Child,
    pub(crate) ready: Value,
}

impl Front {
    pub(crate) fn start(args: &[&str]) -> Front {
        Front::start_by(Command::new(PROGRAM).args(args))
    }

    fn start_by(command: &mut Command) -> Front {
        Front::start_at("warn", command)
    }

    fn start_at(level: &str, command: &mut Command) -> Front {
        let mut child = command
            .env_remove("TREFOIL_CELL")
            .env("RUST_LOG", level)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let json = line.strip_prefix("ready ").expect("a ready line");
        Front {
            child,
            ready: serde_json::from_str(json).unwrap(),
        }
    }

    /// The same, and what it logs.
    pub(crate) fn start_logging(args: &[&str]) -> (Front, Log) {
        let mut command = Command::new(PROGRAM);
        command.args(args).stderr(Stdio::piped());
        let mut front = Front::start_at("info", &mut command);
        let stderr = front.child.stderr.take().unwrap();
        (front, Log::of(stderr))
    }

    fn serve(dir: &Path, more: &[&str]) -> Front {
        let socket = dir.join("serve.sock").display().to_string();
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--metrics", "off"];
        args.extend_from_slice(&["--socket", &socket, "--memory", "128MiB"]);
        args.extend_from_slice(more);
        Front::start(&args)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its metrics are.
    pub(crate) fn metrics(&self) -> &str {
        self.ready["metrics"].as_str().unwrap()
    }

    pub(crate) fn connect(&self, door: &str) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(self.ready[door].as_str().unwrap()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        BufReader::new(stream)
    }

    /// The exit code, which is expected within a few seconds.
    fn ended(&mut self) -> i32 {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            kill(self.child.id(), "TERM");
            self.ended();
        }
    }
}

/// What a process has logged so far.
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn of(stderr: ChildStderr) -> Log {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let taken = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("[server] {line}");
                taken.lock().unwrap().push(line);
            }
        });
        Log(lines)
    }

    /// Lines that have all of these words.
    pub(crate) fn count(&self, words: &[&str]) -> usize {
        let lines = self.0.lock().unwrap();
        let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
        lines.iter().filter(has_all).count()
    }

    /// Waits for such a line.
    pub(crate) fn await_line(&self, words: &[&str]) {
        let begin = Instant::now();
        while self.count(words) == 0 {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "no line {words:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Sends a request and reads an answer of the length expected.
#[track_caller]
pub(crate) fn expect(stream: &mut BufReader<TcpStream>, request: &str, answer: &str) {
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    let mut seen = vec![0; answer.len()];
    let read = stream.read_exact(&mut seen);
    assert!(
        read.is_ok() && seen == answer.as_bytes(),
        "{request:?}: {}",
        text(&seen)
    );
}

#[test]
fn serve_lets_both_kinds_of_clients_in_to_the_same_items() {
    for mode in ["R=1", "R=3.2"] {
        let dir = tempfile::tempdir().unwrap();
        let doors = ["--memcached", "127.0.0.1:0", "--redis", "127.0.0.1:0"];
        let mut front = Front::serve(dir.path(), &[&["--mode", mode][..], &doors].concat());
        let mut memcached = front.connect("memcached");
        let mut redis = front.connect("redis");
        expect(&mut memcached, "set k 0 0 5\r\nvalue\r\n", "STORED\r\n");
        expect(&mut redis, "GET k\r\n", "$5\r\nvalue\r\n");
        expect(&mut redis, "SET n 41\r\n", "+OK\r\n");
        expect(&mut memcached, "incr n 1\r\n", "42\r\n");
        // And the native client sees them, too.
        let cell = front.ready["cell"].as_str().unwrap();
        assert_eq!(
            run(&["get", "k", "--cell", cell]).stdout,
            b"value",
            "{mode}"
        );
        kill(front.child.id(), "TERM");
        assert_eq!(front.ended(), 0);
    }
}

#[test]
fn a_gateway_stands_in_front_of_any_cell() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--mode", "R=3.2", "--memory", "128MiB"]);
    let door = dir.path().join("door").display().to_string();
    let both = format!("127.0.0.1:0,unix:{door}");
    let metrics = ["--metrics", "127.0.0.1:0"];
    let args = ["gateway", "--cell", &cell.address, "--memcached", &both];
    let mut front = Front::start(&[&args[..], &metrics].concat());
    assert_eq!(front.ready["redis"], Value::Null);
    assert_eq!(front.ready["pids"][0], front.child.id());
    let listening = serde_json::json!({
        "memcached": [front.ready["memcached"], format!("unix:{door}")],
        "redis": [],
    });
    assert_eq!(front.ready["listening"], listening);
    let mut client = front.connect("memcached");
    expect(&mut client, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    assert_eq!(cell.run(&["get", "k"]).stdout, b"v");
    cell.kill(0);
    expect(&mut client, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    expect(&mut client, "add k 0 0 1\r\nw\r\n", "NOT_STORED\r\n");
    let mut unix = std::os::unix::net::UnixStream::connect(&door).unwrap();
    unix.write_all(b"get k\r\n").unwrap();
    let mut answer = [0; 18];
    unix.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[..11], b"VALUE k 0 1");
    let mut page = front.connect("metrics");
    page.get_mut()
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    let _ = page.read_to_string(&mut text);
    assert!(text.contains("trefoil_"), "{text}");
    kill(front.child.id(), "INT");
    assert_eq!(front.ended(), 0);
    assert!(!Path::new(&door).exists());
}

#[test]
fn a_port_that_is_not_the_cells_is_told_from_one_where_nobody_listens() {
    let dir = tempfile::tempdir().unwrap();
    let doors = ["--memcached", "127.0.0.1:0", "--redis", "127.0.0.1:0"];
    let front = Front::serve(dir.path(), &doors);
    let door = |name: &str| front.ready[name].as_str().unwrap().to_owned();
    let nobody = format!("127.0.0.1:{}", free_port());
    let status = |address: &str| {
        let output = run(&["cell", "status", "--cell", address]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
        text(&output.stderr).to_owned()
    };
    std::thread::scope(|scope| {
        for name in ["memcached", "redis"] {
            let (door, status) = (door(name), &status);
            scope.spawn(move || {
                let message = status(&door);
                let is_told = message.contains("give the RPC address") && message.contains(&door);
                assert!(is_told && !message.contains("is it up"), "{message}");
            });
        }
        let message = status(&nobody);
        let is_told = message.contains("is it up?") && !message.contains("RPC address");
        assert!(is_told, "{message}");
    });
}

#[test]
fn a_port_in_use_is_named_with_its_holder() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s").display().to_string();
    let listen = format!("127.0.0.1:{}", free_port());
    let serve = [
        "serve",
        "--listen",
        &listen,
        "--socket",
        &socket,
        "--metrics",
        "off",
    ];
    let gateway = ["gateway", "--cell", "127.0.0.1:1", "--metrics", "off"];
    for args in [&serve[..], &gateway[..]] {
        let output = run(&[args, &["--memcached", &address]].concat());
        assert_eq!(output.status.code(), Some(1));
        let message = text(&output.stderr);
        let me = format!("process {}", std::process::id());
        assert!(
            message.contains(&address) && message.contains("in use by") && message.contains(&me),
            "{message}"
        );
    }
}

/// A thousand clients take two thousand descriptors, and the usual limit is 1,024.
#[test]
fn a_server_raises_the_limit_of_its_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("serve.sock").display().to_string();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 256; exec \"$@\"", "sh", PROGRAM, "serve"]);
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "off",
        "--memcached",
        "off",
    ]);
    command.args(["--socket", &socket, "--memory", "128MiB"]);
    let front = Front::start_by(&mut command);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", front.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers = line.unwrap().split_whitespace().skip(3).take(2);
    let numbers: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
    assert!(numbers[0] >= numbers[1].min(16 << 10), "{numbers:?}");
}

/// Its token is not where this user's commands look for one.
#[test]
fn a_server_of_three_copies_reaches_itself_whatever_its_port_asks_for() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("serve.sock").display().to_string();
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef".repeat(2)).unwrap();
    std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let token = token.display().to_string();
    let front = Front::start(&[
        "serve",
        "--mode",
        "R=3.2",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        &token,
        "--socket",
        &socket,
        "--metrics",
        "off",
        "--memory",
        "192MiB",
        "--memcached",
        "127.0.0.1:0",
    ]);
    let mut client = front.connect("memcached");
    client.get_mut().write_all(b"set k 0 0 1\r\nv\r\n").unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    assert_eq!(line, "STORED\r\n");
}

#[test]
fn mistakes_are_usage_errors() {
    for args in [
        &["serve", "--memcached", "11211"][..],
        &["serve", "--redis", "unix:"],
        &["serve", "--tls-cert", "cert.pem"],
        &["serve", "--idle-timeout", "soon"],
        &["serve", "--connections", "0"],
        &["serve", "--buffers", "0"],
        &["serve", "--item-max", "0"],
        &["serve", "--threads", "0"],
        &["serve", "--threads", "100000"],
        &["cell", "up", "--dir", "nowhere", "--backends", "2000"],
        &["gateway", "--cell", "127.0.0.1:1", "--memcached", "off"],
    ] {
        let output = run(args);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    }
    let reachable = ["--memcached", "0.0.0.0:0"];
    let gateway = ["gateway", "--cell", "127.0.0.1:1", "--metrics", "off"];
    let output = run(&[&gateway[..], &reachable].concat());
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(
        message.contains("--tls-cert") && message.contains("--plaintext memcached"),
        "{message}"
    );
}

#[test]
fn users_limits_and_shutdown_come_from_the_configuration_file() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("users");
    std::fs::write(&users, "ann:secret\n").unwrap();
    let file = dir.path().join("trefoil.toml");
    let users = users.display();
    std::fs::write(
        &file,
        format!(
            "memcached = \"127.0.0.1:0\"\nauth_file = \"{users}\"\nconnections = 2\nitem_max = \"2KiB\"\nidle_timeout = \"10m\"\nenable_shutdown = true\n"
        ),
    )
    .unwrap();
    let file = file.display().to_string();
    let mut front = Front::serve(dir.path(), &["--config", &file]);
    let mut client = front.connect("memcached");
    expect(&mut client, "get k\r\n", "CLIENT_ERROR unauthenticated\r\n");
    let mut client = front.connect("memcached");
    expect(
        &mut client,
        "set a 0 0 10\r\nann wrong_\r\n",
        "CLIENT_ERROR authentication failure\r\n",
    );
    drop(client);
    // Two at a time: until it is known that those have gone there may be too many.
    let begin = Instant::now();
    let mut client = loop {
        let mut client = front.connect("memcached");
        let login = client
            .get_mut()
            .write_all(b"set a 0 0 10\r\nann secret\r\n");
        let mut line = String::new();
        if login.is_ok() && client.read_line(&mut line).is_ok() && line == "STORED\r\n" {
            break client;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{line}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let large = "x".repeat(3000);
    let answer = "SERVER_ERROR object too large for cache\r\n";
    expect(
        &mut client,
        &format!("set k 0 0 3000\r\n{large}\r\n"),
        answer,
    );
    // They are let in, or not, in the order in which they come.
    let _second = front.connect("memcached");
    let mut third = front.connect("memcached");
    expect(&mut third, "", "ERROR Too many open connections\r\n");
    client.get_mut().write_all(b"shutdown\r\n").unwrap();
    assert_eq!(front.ended(), 0);
}
