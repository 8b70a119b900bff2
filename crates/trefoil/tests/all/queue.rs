//! `trefoil queue`, as a user's script sees it.

use crate::support::{PROGRAM, run, text};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use trefoil_tls::LIST_LOOK_PERIOD;

struct Server {
    child: Child,
    socket: String,
}

impl Server {
    fn start(folder: &Path, args: &[&str]) -> Self {
        let socket = folder.join("queue.sock").display().to_string();
        let mut child = Command::new(PROGRAM)
            .args(["queue", "serve", "--socket", &socket])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready {"), "{line}");
        Server { child, socket }
    }

    /// What a command prints.
    fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    fn output(&self, args: &[&str]) -> std::process::Output {
        let mut all = vec!["queue"];
        all.extend_from_slice(args);
        all.extend_from_slice(&["--socket", &self.socket]);
        run(&all)
    }

    fn terminate(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_durable_queue_is_served_used_killed_and_served_again() {
    for service in ["cache", "rocksdb"] {
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path().join("files").display().to_string();
        let args = ["--service", service, "--durable", "--folder", &files];
        let mut server = Server::start(folder.path(), &args);
        server.run(&["set", "k", "value"]);
        server.run(&["append", "k", "s"]);
        assert_eq!(server.run(&["get", "k"]), "values");
        assert_eq!(server.run(&["add", "n", "5"]).trim(), "5");
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        let gone = server.output(&["get", "k"]);
        assert_eq!(gone.status.code(), Some(1));
        let said = text(&gone.stderr);
        assert!(said.contains("trefoil queue serve --socket"), "{said}");

        let mut server = Server::start(folder.path(), &args);
        assert_eq!(server.run(&["get", "k"]), "values");
        assert_eq!(server.run(&["add", "n", "-2"]).trim(), "3");
        server.run(&["erase", "k"]);
        let miss = server.output(&["get", "k"]);
        assert_eq!(miss.status.code(), Some(1), "{}", text(&miss.stdout));
        assert!(server.terminate().success());
        assert!(
            !Path::new(&server.socket).exists(),
            "it takes its socket with it"
        );
    }
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("queue.sock").display().to_string();
    let long = "v".repeat(1187);
    let server = Server::start(folder.path(), &[]);
    let cases: [(&[&str], i32, &str); 9] = [
        (&["serve", "--service", "etcd"], 2, "rocksdb"),
        (&["serve", "--durable"], 2, "--folder"),
        (&["serve", "--service", "rocksdb"], 2, "--folder"),
        (
            &["serve", "--slots", "3"],
            2,
            "3 is no possible number of slots",
        ),
        (&["serve", "--memory", "1KiB"], 2, "4 MiB"),
        (&["serve", "--nap", "2s"], 2, "100 ms at most"),
        (&["serve"], 1, "in use"),
        (&["set", "k", &long], 2, "1186"),
        (&["add", "", "1"], 2, "a key of 0 bytes"),
    ];
    for (args, code, expected) in cases {
        let mut all = vec!["queue"];
        all.extend_from_slice(args);
        all.extend_from_slice(&["--socket", &socket]);
        let output = run(&all);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    server.run(&["set", "k", "text"]);
    let output = server.output(&["add", "k"]);
    let said = text(&output.stderr);
    assert!(said.contains("no number"), "{said}");
}

/// An engine beside a queue's server, in a process of its own.
struct Engine {
    child: Child,
    address: String,
}

impl Engine {
    fn start(socket: &str, args: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["queue", "engine", "--socket", socket])
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let ready = line.strip_prefix("ready ").expect("it is ready");
        let ready: serde_json::Value = serde_json::from_str(ready).unwrap();
        let address = ready["engine"].as_str().unwrap().to_owned();
        Engine { child, address }
    }

    fn output(&self, args: &[&str]) -> std::process::Output {
        let mut all = vec!["queue"];
        all.extend_from_slice(args);
        all.extend_from_slice(&["--engine", &self.address]);
        run(&all)
    }

    fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        text(&output.stdout)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_queue_is_used_from_elsewhere_by_its_engine() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let engine = Engine::start(&server.socket, &[]);
    engine.run(&["set", "k", "value"]);
    assert_eq!(server.run(&["get", "k"]), "value");
    server.run(&["append", "k", "s"]);
    assert_eq!(engine.run(&["get", "k"]), "values");
    assert_eq!(engine.run(&["add", "n", "5"]).trim(), "5");
    engine.run(&["erase", "k"]);
    assert_eq!(engine.output(&["get", "k"]).status.code(), Some(1));
    let other = engine.output(&["get", "k", "--queue", "1"]);
    let said = text(&other.stderr);
    assert!(said.contains("no such queue"), "{said}");
    drop(server);
    let gone = engine.output(&["set", "k", "value"]);
    let said = text(&gone.stderr);
    assert_eq!(gone.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be reached by the engine"), "{said}");
}

/// With certificates everything goes over TLS, and who has none that writes has no lane.
#[test]
fn a_queue_elsewhere_is_written_by_those_who_may() {
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("ca").display().to_string();
    let certs = |args: &[&str]| {
        let made = run(&[&["cell", "certs"], args, &["--dir", &authority]].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
    };
    certs(&["init"]);
    for name in ["server", "other"] {
        let issue = ["issue", "--name", name, "--role", "backend"];
        certs(&[&issue[..], &["--host", "127.0.0.1"]].concat());
    }
    certs(&["issue", "--name", "app", "--role", "client"]);
    let of = |name: &str| format!("{authority}/{name}");
    let server = Server::start(folder.path(), &[]);
    let engine = Engine::start(&server.socket, &["--certs", &of("server")]);
    engine.run(&["set", "k", "value", "--certs", &of("app")]);
    assert_eq!(engine.run(&["get", "k", "--certs", &of("app")]), "value");
    let refused = engine.output(&["set", "k", "x", "--certs", &of("other")]);
    let said = text(&refused.stderr);
    assert!(said.contains("may not write"), "{said}");
    let plain = engine.output(&["set", "k", "x"]);
    assert_eq!(plain.status.code(), Some(1), "{}", text(&plain.stdout));
    assert_eq!(server.run(&["get", "k"]), "value");
    // Nor has one whose right it is not, whatever its role.
    let list = |rights: &str| {
        std::fs::write(folder.path().join("next"), rights).unwrap();
        let file = format!("{}/rights", of("server"));
        std::fs::rename(folder.path().join("next"), file).unwrap();
        std::thread::sleep(LIST_LOOK_PERIOD);
    };
    list("app read\n");
    let refused = engine.output(&["set", "k", "x", "--certs", &of("app")]);
    let said = text(&refused.stderr);
    assert!(said.contains("may not write"), "{said}");
    list("app write\n");
    engine.run(&["set", "k", "again", "--certs", &of("app")]);
    assert_eq!(server.run(&["get", "k"]), "again");
}
