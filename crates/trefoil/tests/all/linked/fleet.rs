//! Processes of a linked store, and what is asked of them.

use crate::support::PROGRAM;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes that happens at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A process that ends with the test.
pub(crate) struct Running {
    child: Child,
    /// What it printed when it was ready, behind that word.
    pub(crate) ready: String,
}

impl Running {
    /// Begins it, and does not wait until it is ready.
    pub(crate) fn begin(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        Running::begin_by(Command::new(program.into()).args(arguments))
    }

    fn begin_by(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running {
            child,
            ready: String::new(),
        }
    }

    pub(crate) fn start(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        Running::start_by(Command::new(program.into()).args(arguments))
    }

    pub(crate) fn start_by(command: &mut Command) -> Self {
        let mut running = Running::begin_by(command);
        let mut stdout = BufReader::new(running.child.stdout.take().unwrap());
        let (said, hears) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = stdout.read_line(&mut line);
            said.send(read.map(|_| line))
        });
        let line = hears.recv_timeout(PATIENCE);
        let line = line.unwrap_or_else(|_| panic!("{command:?}: it does not get ready"));
        let line = line.unwrap();
        let ready = line.trim_end().strip_prefix("ready ");
        let ready = ready.unwrap_or_else(|| panic!("{command:?}: {line:?}"));
        ready.clone_into(&mut running.ready);
        running
    }

    /// `ready` of the command line's own processes.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.ready).unwrap()
    }

    /// An address in it.
    pub(crate) fn at(&self, name: &str) -> SocketAddr {
        let json = self.json();
        json[name].as_str().expect(name).parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether it has ended, and well.
    pub(crate) fn ended_well(&mut self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An assigner with a port for metrics.
pub(crate) fn assigner(more: &[&str]) -> Running {
    let own = [
        "assigner",
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
    ];
    Running::start(PROGRAM, &[&own[..], more].concat())
}

/// A server of `examples/sessions`; where its metrics are.
pub(crate) fn sessions(assigner: &str, more: &[&str]) -> (Running, SocketAddr) {
    let program = PathBuf::from(PROGRAM).with_file_name("sessions");
    assert!(
        program.exists(),
        "{} is missing: build with --workspace --bins",
        program.display()
    );
    let own = ["--assigner", assigner, "--metrics", "127.0.0.1:0"];
    let running = Running::start(program, &[&own[..], more].concat());
    let (_, metrics) = running.ready.split_once(' ').expect("two addresses");
    let metrics = metrics.parse().unwrap();
    (running, metrics)
}

pub(crate) fn trefoil(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .env_remove("TREFOIL_ASSIGNER")
        .output()
        .unwrap()
}

/// `linked status --json` of an address.
pub(crate) fn status(address: &str) -> serde_json::Value {
    let output = trefoil(&["linked", "status", "--json", "--assigner", address]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Looks until it is as expected.
pub(crate) fn until<T: std::fmt::Debug>(
    look: impl Fn() -> T,
    is_expected: impl Fn(&T) -> bool,
) -> T {
    let begin = Instant::now();
    loop {
        let seen = look();
        if is_expected(&seen) {
            return seen;
        }
        assert!(begin.elapsed() < PATIENCE, "{seen:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Status and text of an answer.
pub(crate) fn http(at: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.trim_end().to_owned())
}

/// Kinds of problems in a status.
pub(crate) fn kinds(status: &serde_json::Value) -> Vec<String> {
    let problems = status["problems"].as_array().unwrap().iter();
    problems
        .map(|problem| problem["kind"].as_str().unwrap().to_owned())
        .collect()
}
