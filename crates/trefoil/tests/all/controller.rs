//! Spares that take the places of dead backends, and who decides it: a cell over a real
//! etcd, whose supervisor is told not to restart.

use crate::support::{Cell, Hanging, PROGRAM, kill, run, text};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, Mutated, Options, SetOptions};
use trefoil_ports::EtcdProcess;

/// A lease takes 10 s to end, and a loaded machine its time.
const PATIENCE: Duration = Duration::from_secs(120);
const DEAD_AFTER: &str = "2s";

/// An etcd, and room for a cell.
struct Place {
    etcd: EtcdProcess,
    home: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let etcd = EtcdProcess::start(home.path(), None).unwrap();
        Place { etcd, home }
    }

    fn address(&self) -> String {
        format!("etcd://{}/cells/mail", self.etcd.host())
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn up(&self, more: &[&str]) -> Cell {
        let address = self.address();
        let mut args = vec!["--store", &address, "--memory", "64MiB"];
        args.extend_from_slice(more);
        Cell::up(&self.dir("cell"), &args)
    }

    fn spare(&self, name: &str, more: &[&str]) -> Process {
        let dir = self.dir(name).display().to_string();
        let mut args = vec!["spare", "--dir", &dir, "--memory", "64MiB"];
        if !more.contains(&"--no-controller") {
            args.extend_from_slice(&["--dead-after", DEAD_AFTER]);
        }
        args.extend_from_slice(more);
        Process::start(&self.address(), &args)
    }

    fn controller(&self, more: &[&str]) -> Process {
        let mut args = vec!["controller", "--dead-after", DEAD_AFTER];
        args.extend_from_slice(more);
        Process::start(&self.address(), &args)
    }

    /// `trefoil cell backend`, as `cell up` would start it again.
    fn by_hand(&self, number: u32) -> std::process::Output {
        let (dir, number) = (self.dir("cell").display().to_string(), number.to_string());
        let address = self.address();
        let args = ["cell", "backend", "--dir", &dir, "--store", &address];
        run(&[&args[..], &["--number", &number, "--memory", "64MiB"]].concat())
    }

    fn put(&self, key: &str, value: &str) {
        let key = format!("cells/mail/{key}");
        self.etcd.ctl(&["put", &key, value]).unwrap();
    }
}

/// `trefoil cell …`, ended with the test.
struct Process {
    child: Child,
    ready: Value,
    /// When it said that it serves as a backend.
    serves: std::sync::Arc<AtomicBool>,
}

impl Process {
    fn start(address: &str, args: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .arg("cell")
            .args(args)
            .args(["--store", address])
            .env_remove("TREFOIL_CELL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says ready").unwrap();
        let ready = serde_json::from_str(line.strip_prefix("ready ").unwrap()).unwrap();
        let serves = std::sync::Arc::<AtomicBool>::default();
        let noted = std::sync::Arc::clone(&serves);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.starts_with("serves ") {
                    noted.store(true, Ordering::SeqCst);
                }
            }
        });
        Process {
            child,
            ready,
            serves,
        }
    }

    fn pid(&self) -> u64 {
        self.child.id().into()
    }

    fn serves(&self) -> bool {
        self.serves.load(Ordering::SeqCst)
    }

    fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|s| s.code().unwrap_or(-1))
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends the work of other threads, also where a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn client(address: &str) -> Client {
    let connected = trefoil_client::Cell::connect(address).unwrap();
    connected.client(Options::default())
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn status(cell: &Cell) -> Value {
    cell.json(&["cell", "status", "--json"])
}

/// Waits until this process is that backend, and votes.
fn takes_place(cell: &Cell, number: usize, pid: u64) -> Value {
    eventually("a spare takes the place", || {
        let status = status(cell);
        let backend = &status["backends"][number];
        let is_it = backend["pid"] == pid && backend["state"] == "up";
        is_it.then(|| status.clone())
    })
}

/// Stores and reads until told to stop: every SET is acknowledged, and read as it was
/// acknowledged last. Returns how many there were.
fn load(client: &mut Client, name: &str, stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{name}-{}", count % 500);
        let value = format!("value {count}");
        set(client, &key, &value);
        assert_hit(client, &key, &value);
        count += 1;
    }
    count
}

fn set(client: &mut Client, key: &str, value: &str) {
    let stored = client.set(key.as_bytes(), value.as_bytes(), SetOptions::default());
    assert!(matches!(stored, Ok(Mutated::Stored { .. })), "{key}: {stored:?}");
}

fn assert_hit(client: &mut Client, key: &str, value: &str) {
    match client.get(key.as_bytes()) {
        Ok(Lookup::Hit(hit)) => assert_eq!(hit.value, value.as_bytes(), "{key}"),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn a_spare_takes_a_dead_backends_place_and_nothing_is_lost() {
    let place = Place::new();
    let cell = place.up(&[]);
    let spare = place.spare("spare", &[]);
    let before = status(&cell);
    assert_eq!(before["spares"][0]["process"], spare.pid(), "{before:#}");
    eventually("it decides", || {
        (status(&cell)["controller"]["process"] == spare.pid()).then_some(())
    });
    let mut writer = client(&cell.address);
    let keys: Vec<String> = (0..500).map(|n| format!("kept-{n}")).collect();
    keys.iter().for_each(|key| set(&mut writer, key, key));
    let stop = AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let ends = Ends(&stop);
        let worker = scope.spawn(|| load(&mut client(&cell.address), "busy", &stop));
        cell.kill(1);
        let after = takes_place(&cell, 1, spare.pid());
        assert!(spare.serves());
        assert_eq!(after["config_id"], 2, "{after:#}");
        assert_eq!(after["replacements"][0]["backend"], 1, "{after:#}");
        assert_eq!(after["spares"].as_array().unwrap().len(), 0, "{after:#}");
        drop(ends);
        worker.join().unwrap()
    });
    assert!(count > 100, "{count}");
    // It holds what it should: another one may go now.
    cell.kill(0);
    let mut reader = client(&cell.address);
    for key in &keys {
        assert_hit(&mut writer, key, key);
        assert_hit(&mut reader, key, key);
    }
    // The dead one finds its place taken, and does not serve.
    let again = place.by_hand(1);
    let said = text(&again.stderr);
    assert_eq!(again.status.code(), Some(1), "{said}");
    for hint in ["place of backend 1", "another process", "trefoil cell spare"] {
        assert!(said.contains(hint), "{hint}: {said}");
    }
    // No other one stands by: that is said loudly.
    eventually("nobody is backend 0", || {
        let shown = text(&cell.run(&["cell", "status"]).stdout);
        shown.contains("NO SPARE: nobody is backend 0").then_some(())
    });
    let doctor = cell.run(&["doctor", "--json"]);
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let findings = doctor["findings"].as_array().unwrap();
    assert!(findings.iter().any(|f| f["kind"] == "unreplaced"), "{doctor:#}");
    // As a spare the dead ones are welcome.
    let other = place.spare("cell", &[]);
    takes_place(&cell, 0, other.pid());
    for key in &keys {
        assert_hit(&mut client(&cell.address), key, key);
    }
}
