//! Spares that take the places of dead backends, and who decides it: a cell over a real
//! etcd, whose supervisor is told not to restart.

use crate::support::{Cell, Hanging, Log, PROGRAM, free_port, run, text};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_cell::control::View;
use trefoil_cell::{ConfigStore as _, EtcdSettings, EtcdStore};
use trefoil_client::{Client, Lookup, MissReason, Mutated, Options, SetOptions};
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

    fn store(&self) -> EtcdStore {
        let address = self.address().parse().unwrap();
        EtcdStore::open(&address, &EtcdSettings::from_environment().unwrap()).unwrap()
    }

    /// What etcd holds under a key of the cell.
    fn held(&self, key: &str) -> String {
        let key = format!("cells/mail/{key}");
        let get = ["get", "--print-value-only", &key];
        eventually("etcd answers", || self.etcd.ctl(&get).ok())
    }

    fn forget(&self, key: &str) {
        let key = format!("cells/mail/{key}");
        eventually("etcd answers", || self.etcd.ctl(&["del", &key]).ok());
    }

    fn view(&self) -> View {
        let store = self.store();
        eventually("etcd answers", || store.view().ok().flatten())
    }

    /// Gives a backend's place to this spare, as a controller does.
    fn give(&self, number: u32, spare: &Process) {
        let store = self.store();
        let pid = spare.child.id();
        let spares = self.view().spares;
        let spare = spares.iter().find(|s| s.process == pid).unwrap();
        // An answer may be lost: what is there counts.
        eventually("the place is given", || {
            let config = self.view().config;
            if config.backend(number)?.addresses == spare.addresses {
                return Some(());
            }
            let fabric = spare.fabric_socket.as_deref();
            let next = config.with_place(number, &spare.addresses, fabric)?;
            let before = Some(config.topology_id());
            let _ = store.compare_and_swap(before, &next);
            None
        });
    }

    fn put(&self, key: &str, value: &str) {
        let key = format!("cells/mail/{key}");
        self.etcd.ctl(&["put", &key, value]).unwrap();
    }
}

/// `trefoil cell …`, ended with the test.
struct Process {
    child: Child,
    /// When it said that it serves as a backend.
    serves: Arc<AtomicBool>,
    log: Log,
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
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Log::default();
        log.follow(child.stderr.take().unwrap(), "process");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says ready").unwrap();
        let ready: Value = serde_json::from_str(line.strip_prefix("ready ").unwrap()).unwrap();
        assert_eq!(ready["pids"][0], child.id(), "{line}");
        let serves = Arc::<AtomicBool>::default();
        let noted = Arc::clone(&serves);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.starts_with("serves ") {
                    noted.store(true, Ordering::SeqCst);
                }
            }
        });
        Process { child, serves, log }
    }

    fn pid(&self) -> u64 {
        self.child.id().into()
    }

    fn serves(&self) -> bool {
        self.serves.load(Ordering::SeqCst)
    }

    /// Waits until it has said this; it must not end before.
    fn says(&mut self, parts: &[&str]) {
        eventually(&format!("it says {parts:?}"), || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}");
            (self.log.count(parts) > 0).then_some(())
        });
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

/// A starved machine may make an operation fail; what was acknowledged counts.
fn set(client: &mut Client, key: &str, value: &str) {
    eventually("a SET is acknowledged", || {
        let stored = client.set(key.as_bytes(), value.as_bytes(), SetOptions::default());
        matches!(stored, Ok(Mutated::Stored { .. })).then_some(())
    });
}

/// The value is there: no miss but one for want of answers, and no other value.
fn assert_hit(client: &mut Client, key: &str, value: &str) {
    eventually("a GET is answered", || match client.get(key.as_bytes()) {
        Ok(Lookup::Hit(hit)) => {
            assert_eq!(hit.value, value.as_bytes(), "{key}");
            Some(())
        }
        Ok(Lookup::Miss(miss)) if miss.reason == MissReason::Inquorate => None,
        Ok(Lookup::Miss(miss)) => panic!("{key} is lost: {:?}", miss.reason),
        Err(_) => None,
    });
}

/// One at a time: each runs an etcd and up to eight processes.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_spare_takes_a_dead_backends_place_and_nothing_is_lost() {
    let _turn = alone();
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
    for hint in [
        "place of backend 1",
        "another process",
        "trefoil cell spare",
    ] {
        assert!(said.contains(hint), "{hint}: {said}");
    }
    // No other one stands by: that is said loudly.
    eventually("nobody is backend 0", || {
        let shown = text(&cell.run(&["cell", "status"]).stdout);
        shown
            .contains("NO SPARE: nobody is backend 0")
            .then_some(())
    });
    let doctor = cell.run(&["doctor", "--json"]);
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let findings = doctor["findings"].as_array().unwrap();
    assert!(
        findings.iter().any(|f| f["kind"] == "unreplaced"),
        "{doctor:#}"
    );
    // As a spare the dead ones are welcome.
    let other = place.spare("cell", &[]);
    takes_place(&cell, 0, other.pid());
    for key in &keys {
        assert_hit(&mut client(&cell.address), key, key);
    }
}

/// A backend that stood still for so long that its place was given away ends by itself when
/// it goes on, and its supervisor does not start it again.
#[test]
fn a_backend_that_hung_finds_its_place_taken() {
    let _turn = alone();
    let place = Place::new();
    let cell = place.up(&["--restart", "always"]);
    let mut writer = client(&cell.address);
    set(&mut writer, "kept", "before");
    let spare = place.spare("spare", &[]);
    {
        let _hangs = Hanging::new(cell.pids[2]);
        takes_place(&cell, 2, spare.pid());
        set(&mut writer, "kept", "after");
    }
    eventually("it ends", || {
        trefoil_cell::is_ending(cell.pids[2]).then_some(())
    });
    // Started again it would have been by now: pauses begin with none.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        let status = status(&cell);
        assert_eq!(status["backends"][2]["pid"], spare.pid(), "{status:#}");
        assert_eq!(status["config_id"], 2, "{status:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_hit(&mut writer, "kept", "after");
    assert_hit(&mut client(&cell.address), "kept", "after");
    // The others are started again as before.
    cell.kill(0);
    eventually("backend 0 comes back", || {
        let backend = &status(&cell)["backends"][0];
        let is_new = backend["pid"].as_u64() != Some(cell.pids[0].into());
        (is_new && backend["state"] == "up").then_some(())
    });
}

/// The leader is suspended past its lease; the other one goes on. When the former leader
/// wakes up there is a backend to be replaced, and a spare for it: it looks on, and changes
/// nothing, until it is elected again.
#[test]
fn of_two_controllers_one_decides() {
    let _turn = alone();
    let place = Place::new();
    let cell = place.up(&[]);
    let port = free_port();
    let one = place.controller(&["--metrics", &format!("127.0.0.1:{port}")]);
    eventually("it decides", || {
        (status(&cell)["controller"]["process"] == one.pid()).then_some(())
    });
    let other = place.controller(&[]);
    let spares = [
        place.spare("a", &["--no-controller"]),
        place.spare("b", &["--no-controller"]),
    ];
    let pids = spares.each_ref().map(Process::pid);
    let suspended = Hanging::new(one.pid() as u32);
    cell.kill(1);
    let after = eventually("a spare takes the place", || {
        let status = status(&cell);
        let backend = &status["backends"][1];
        let is_it = pids.iter().any(|pid| backend["pid"] == *pid);
        (is_it && backend["state"] == "up").then_some(status)
    });
    assert_eq!(after["controller"]["process"], other.pid(), "{after:#}");
    // The leader is killed. This process is elected in its place, and decides nothing.
    let mut other = other;
    other.kill();
    let store = place.store();
    let elected = eventually("it is elected", || store.campaign().ok().flatten());
    cell.kill(2);
    drop(suspended);
    // The former leader has seen for long enough that there is something to do, and has
    // looked at it since.
    let seen = || gone(&scrape(port), 2);
    let due = eventually("it has counted", || seen().filter(|seconds| *seconds > 4.0));
    eventually("it has looked again", || {
        seen().filter(|later| *later > due + 1.0)
    });
    let view = place.view();
    assert!(elected.is_of(&view), "{view:#?}");
    assert_eq!(
        (view.config.config_id, view.spares.len()),
        (2, 1),
        "{view:#?}"
    );
    // Meanwhile etcd was away, which changes nothing. Then it is elected again.
    let mut place = place;
    place.etcd.kill();
    std::thread::sleep(Duration::from_secs(3));
    place.etcd.run().unwrap();
    drop(elected);
    let spare = *pids
        .iter()
        .find(|pid| after["backends"][1]["pid"] != **pid)
        .unwrap();
    let after = takes_place(&cell, 2, spare);
    assert_eq!(after["controller"]["process"], one.pid(), "{after:#}");
    assert_eq!(
        after["replacements"].as_array().unwrap().len(),
        2,
        "{after:#}"
    );
}

#[test]
fn the_only_copy_is_given_up_only_if_told() {
    let _turn = alone();
    let place = Place::new();
    let cell = place.up(&["--mode", "R=1"]);
    let mut writer = client(&cell.address);
    set(&mut writer, "gone", "value");
    let spare = place.spare("spare", &["--no-controller"]);
    let port = crate::support::free_port();
    let careful = place.controller(&["--metrics", &format!("127.0.0.1:{port}")]);
    cell_dies(&cell, &place);
    eventually("it says why not", || {
        let metrics = scrape(port);
        metrics
            .contains("trefoil_controller_hindered_backends{cell=\"cell\",why=\"would_lose\"} 1")
            .then_some(())
    });
    let metrics = scrape(port);
    for line in [
        "trefoil_controller_leads{cell=\"cell\"} 1",
        "trefoil_controller_spares{cell=\"cell\"} 1",
        "trefoil_controller_replacements_total{cell=\"cell\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(!spare.serves());
    drop(careful);
    let _told = place.controller(&["--replace-lost"]);
    eventually("the spare serves", || spare.serves().then_some(()));
    eventually("what was lost is a miss", || {
        matches!(writer.get(b"gone"), Ok(Lookup::Miss(_))).then_some(())
    });
    eventually("it is stored anew", || {
        let stored = writer.set(b"new", b"value", SetOptions::default());
        matches!(stored, Ok(Mutated::Stored { .. })).then_some(())
    });
    let shown = run(&["cell", "status", "--cell", &place.address()]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("WHAT IT HELD WAS LOST"), "{shown}");
}

/// `cell up` ends with its last backend.
fn cell_dies(cell: &Cell, place: &Place) {
    cell.kill(0);
    let socket = format!("unix:{}/backend-0.sock", place.dir("cell").display());
    eventually("it is dead", || {
        (run(&["get", "gone", "--cell", &socket]).status.code() == Some(1)).then_some(())
    });
}

/// For how many seconds a controller has seen nobody as this backend.
fn gone(metrics: &str, backend: u32) -> Option<f64> {
    let name =
        format!("trefoil_controller_backend_gone_seconds{{cell=\"cell\",backend=\"{backend}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name))?;
    line.parse().ok()
}

/// Etcd dies in the midst of it: when the spare has registered as the backend, and asks the
/// others, which hang. Nobody starts a spare again; it waits, and takes the place.
#[test]
fn a_spare_that_takes_a_place_outlives_etcd() {
    let _turn = alone();
    let mut place = Place::new();
    let cell = place.up(&[]);
    let mut writer = client(&cell.address);
    set(&mut writer, "kept", "value");
    let mut spare = place.spare("spare", &["--no-controller"]);
    cell.kill(1);
    place.forget("backends/1");
    {
        let _hanging = [0, 2].map(|number| Hanging::new(cell.pids[number]));
        place.give(1, &spare);
        eventually("it has registered", || is_registered(&place, 1, &spare));
        place.etcd.kill();
        spare.says(&["the spare waits", "etcd cannot be reached"]);
    }
    place.etcd.run().unwrap();
    takes_place(&cell, 1, spare.pid());
    assert!(spare.serves());
    assert_hit(&mut client(&cell.address), "kept", "value");
}

fn is_registered(place: &Place, number: u32, spare: &Process) -> Option<()> {
    let held = place.held(&format!("backends/{number}"));
    let process = format!("\"process\":{},", spare.pid());
    held.contains(&process).then_some(())
}

/// It stands still in the midst of taking a place for so long that another spare gets it.
/// Then it does not serve, does not say that it is the backend, and stands by again.
#[test]
fn a_spare_whose_place_was_given_to_another_stands_by_again() {
    let _turn = alone();
    let place = Place::new();
    let cell = place.up(&[]);
    let mut slow = place.spare("slow", &["--no-controller"]);
    let quick = place.spare("quick", &["--no-controller"]);
    let names = |place: &Place| -> Vec<String> {
        let spares = place.view().spares;
        let of_slow = spares.into_iter().filter(|s| s.process == slow.child.id());
        of_slow.map(|spare| spare.name).collect()
    };
    let before = names(&place);
    assert_eq!(before.len(), 1);
    cell.kill(1);
    place.forget("backends/1");
    let stands_still = {
        let _hanging = [0, 2].map(|number| Hanging::new(cell.pids[number]));
        place.give(1, &slow);
        eventually("it has registered", || is_registered(&place, 1, &slow));
        Hanging::new(slow.pid() as u32)
    };
    // Its lease has ended, as etcd sees it.
    place.forget("backends/1");
    place.give(1, &quick);
    takes_place(&cell, 1, quick.pid());
    drop(stands_still);
    eventually("it stands by again", || {
        let now = names(&place);
        (now.len() == 1 && now != before).then_some(())
    });
    assert!(!slow.serves());
    let after = takes_place(&cell, 1, quick.pid());
    assert_eq!(after["config_id"], 3, "{after:#}");
    assert_eq!(is_registered(&place, 1, &quick), Some(()));
    // And it takes the next place.
    cell.kill(2);
    place.forget("backends/2");
    place.give(2, &slow);
    takes_place(&cell, 2, slow.pid());
    slow.says(&["stands by again"]);
}

/// Of two spares one has seen what was in force, the other one begins with the old backup;
/// so does a controller.
#[test]
fn spares_and_controllers_refuse_an_old_backup() {
    let _turn = alone();
    let mut place = Place::new();
    let cell = place.up(&[]);
    let backup = place.dir("backup");
    place.etcd.save(&backup).unwrap();
    for _ in 0..3 {
        cell.json(&["cell", "flush", "--json"]);
    }
    let mut stays = place.spare("stays", &[]);
    place.etcd.kill();
    place.etcd.restore(&backup).unwrap();
    place.etcd.run().unwrap();
    let address = place.address();
    let command = format!("trefoil cell restore-config --store {address}");
    let hints = ["config id 1 of", "config id 4 of", "old backup", &command];
    let dir = place.dir("begins").display().to_string();
    let begins = run(&["cell", "spare", "--dir", &dir, "--store", &address]);
    let said = text(&begins.stderr);
    assert_eq!(begins.status.code(), Some(1), "{said}");
    hints
        .iter()
        .for_each(|hint| assert!(said.contains(hint), "{hint}: {said}"));
    stays.says(&[&["the spare waits"][..], &hints].concat());
    // Somebody is dead, and this controller has not seen what was in force. Who decides
    // replaces nobody and says why, it or the spare's own.
    cell.kill(2);
    let port = free_port();
    let begins = place.controller(&["--metrics", &format!("127.0.0.1:{port}")]);
    let refusal = [&["nothing is replaced"][..], &hints].concat();
    eventually("a controller refuses", || {
        let logs = [&begins.log, &stays.log];
        logs.iter().any(|log| log.count(&refusal) > 0).then_some(())
    });
    assert!(place.held("config").contains("\"config_id\": 1,"));
    drop(begins);
    let mend = [
        "cell",
        "restore-config",
        "--store",
        &address,
        "--accept-loss",
    ];
    let mended = run(&mend);
    assert!(mended.status.success(), "{}", text(&mended.stderr));
    takes_place(&cell, 2, stays.pid());
}

fn scrape(port: u16) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn mistakes_are_named() {
    let _turn = alone();
    let place = Place::new();
    let address = place.address();
    let spare = |dir: &str, more: &[&str]| {
        let dir = place.dir(dir).display().to_string();
        let args = ["cell", "spare", "--store", &address, "--dir", &dir];
        run(&[&args[..], more].concat())
    };
    let failed = |output: std::process::Output, code: i32, hints: &[&str]| {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        for hint in hints {
            assert!(said.contains(hint), "{hint}: {said}");
        }
    };
    failed(spare("spare", &[]), 1, &["holds no cell"]);
    let controller = ["cell", "controller", "--store", &address];
    failed(run(&controller), 1, &["holds no cell"]);
    failed(
        run(&[&controller[..], &["--dead-after", "10ms"]].concat()),
        2,
        &["give at least 1s"],
    );
    let cell = place.up(&[]);
    // The directory of another cell: with its own configuration, and in etcd.
    let own = Cell::up(&place.dir("own"), &["--memory", "64MiB", "--mode", "R=1"]);
    failed(spare("own", &[]), 1, &["holds a cell of its own"]);
    assert_eq!(own.stop(), 0);
    let elsewhere = format!("etcd://{}/cells/other", place.etcd.host());
    let dir = place.dir("cell").display().to_string();
    let up = ["cell", "up", "--dir", &dir, "--store", &elsewhere];
    failed(
        run(&up),
        1,
        &["cells/mail", "cells/other", "choose another one"],
    );
    // One who is that backend already.
    failed(place.by_hand(1), 1, &["backend 1 is already running"]);
    // A backend of another layout, as its registration says; and one of another host.
    let record = |layout: u16, boot: &str| {
        format!(
            "{{\"process\":1,\"host\":\"far\",\"place\":\"x\",\"name\":\"n\",\"boot\":\"{boot}\",\"layout\":{layout}}}"
        )
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    place.put("backends/7", &record(999, boot.trim()));
    failed(spare("spare", &[]), 1, &["layout 999", "of the release"]);
    let own = trefoil_layout::limits::LAYOUT_VERSION;
    place.put("backends/7", &record(own.into(), "another-boot"));
    failed(
        spare("spare", &[]),
        1,
        &["backend 7 is on far", "on that host"],
    );
    assert_eq!(cell.stop(), 0);
}
