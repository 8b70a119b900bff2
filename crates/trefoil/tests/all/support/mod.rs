//! A running cell and the command line, as a user's script sees them.
#![allow(dead_code, unreachable_pub)]

pub mod etcd;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_trefoil");

/// The folder of everything.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    trefoil_ports::free_port(Ipv4Addr::LOCALHOST).unwrap()
}

/// A cell that ends with the test.
pub struct Cell {
    child: Child,
    pub address: String,
    pub pids: Vec<u32>,
    log: Log,
}

/// What processes have said on standard error.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Keeps it flowing; it is shown if the test fails.
    pub fn follow(&self, stderr: impl Read + Send + 'static, who: &'static str) {
        let log = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("[{who}] {line}");
                log.lock().push(line);
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many lines hold all of these.
    pub fn count(&self, parts: &[&str]) -> usize {
        let lines = self.lock();
        let holds_all = |line: &&String| parts.iter().all(|part| line.contains(part));
        lines.iter().filter(holds_all).count()
    }
}

/// Waits until a client reaches every backend. One that begins on a busy machine may do so
/// without one of three, which then misses what is written first.
pub fn reaches_all(client: &mut trefoil_client::Client) {
    let begin = Instant::now();
    let is_down =
        |status: &trefoil_client::LinkStatus| status.carrier == trefoil_client::CarrierInUse::Down;
    while client.carriers().iter().any(is_down) {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{:?}",
            client.carriers()
        );
        let _ = client.get(b"nobody");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Cell {
    /// Runs `trefoil ARGS` until it prints its ready line.
    pub fn start(args: &[&str]) -> Cell {
        Cell::start_by(Command::new(PROGRAM).args(args))
    }

    /// The same by another command.
    pub fn start_by(command: &mut Command) -> Cell {
        let mut child = command
            .env_remove("TREFOIL_CELL")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let Some(Ok(line)) = lines.next() else {
            let mut stderr = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut stderr)
                .unwrap();
            panic!("no ready line from {command:?}: {stderr}");
        };
        let json = line
            .strip_prefix("ready ")
            .expect("the line begins with ready");
        let json: Value = serde_json::from_str(json).unwrap();
        let pids = json["pids"].as_array().unwrap().iter();
        let log = Log::default();
        log.follow(child.stderr.take().unwrap(), "cell");
        Cell {
            child,
            log,
            address: json["cell"].as_str().unwrap().to_owned(),
            pids: pids.map(|pid| pid.as_u64().unwrap() as u32).collect(),
        }
    }

    /// `trefoil serve` on free ports, unless `more` says where.
    pub fn serve(dir: &Path, more: &[&str]) -> Cell {
        let listen = format!("127.0.0.1:{}", free_port());
        let socket = dir.join("serve.sock").display().to_string();
        let mut args = vec!["serve", "--socket", &socket, "--metrics", "off"];
        if !more.contains(&"--listen") {
            args.extend_from_slice(&["--listen", &listen]);
        }
        // The usual port is for one server at a time.
        if !more.contains(&"--memcached") {
            args.extend_from_slice(&["--memcached", "off"]);
        }
        args.extend_from_slice(more);
        Cell::start(&args)
    }

    /// `trefoil cell up` in `dir`. A backend that is killed stays dead, unless `more` says
    /// otherwise.
    pub fn up(dir: &Path, more: &[&str]) -> Cell {
        let dir = dir.display().to_string();
        let mut args = vec!["cell", "up", "--dir", &dir];
        if !more.contains(&"--restart") {
            args.extend_from_slice(&["--restart", "never"]);
        }
        args.extend_from_slice(more);
        Cell::start(&args)
    }

    /// What it and its backends have said.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The process that was started, which may be the parent of the backends.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs `trefoil ARGS --cell ADDRESS`.
    pub fn run(&self, args: &[&str]) -> Output {
        let mut all = args.to_vec();
        all.extend_from_slice(&["--cell", &self.address]);
        run(&all)
    }

    /// The same, of which exit code 0 and JSON are expected.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        parse(&output)
    }

    /// What `cell status` says once every backend that lives has answered it: on a busy
    /// machine one may take longer than it waits. Not for tests in which one hangs.
    pub fn status(&self) -> Value {
        let begin = Instant::now();
        loop {
            let status = self.json(&["cell", "status", "--json"]);
            let mut backends = status["backends"].as_array().unwrap().iter();
            if !backends.any(|backend| backend["state"] == "silent") {
                return status;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{status:#}");
        }
    }

    /// kill -9 of backend `number`'s process.
    pub fn kill(&self, number: usize) {
        kill(self.pids[number], "KILL");
    }

    /// SIGTERM, and the exit code. Seconds on a machine that others leave alone; where all cores
    /// are busy, many: a thread that runs when nobody else wants to has to end, too.
    pub fn stop(mut self) -> i32 {
        kill(self.child.id(), "TERM");
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(
                begin.elapsed() < Duration::from_secs(90),
                "it does not stop"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes the whole process tree away without asking.
    pub fn crash(mut self) {
        for pid in &self.pids {
            kill(*pid, "KILL");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            kill(self.child.id(), "TERM");
            let begin = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) {
                if begin.elapsed() > Duration::from_secs(30) {
                    let _ = self.child.kill();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// A process that stands still until this is dropped.
pub struct Hanging(u32);

impl Hanging {
    /// Returns when all of its threads do: on a busy machine the one that takes the signal may
    /// have its turn late, and the others go on until then.
    pub fn new(pid: u32) -> Self {
        kill(pid, "STOP");
        let hanging = Hanging(pid);
        let begin = Instant::now();
        while !stands_still(pid) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{pid} goes on");
            std::thread::sleep(Duration::from_micros(100));
        }
        hanging
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        kill(self.0, "CONT");
    }
}

/// Whether no thread of a process runs; so it is of one that is gone.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat"));
        // Behind the name, which may have anything in it.
        let state = stat.map(|stat| {
            stat.rsplit(')')
                .next()
                .map(|rest| rest.trim_start().as_bytes().first().copied())
        });
        !matches!(state, Ok(Some(Some(state))) if !b"TtZX".contains(&state))
    })
}

pub fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status();
    assert!(status.is_ok());
}

pub fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(args)
        .env_remove("TREFOIL_CELL")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub fn parse(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", text(&output.stdout)))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
