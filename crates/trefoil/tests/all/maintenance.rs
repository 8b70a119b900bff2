//! Backends move to other processes while clients are at work, and nobody notices.

use crate::support::{Cell, Hanging, Log, PROGRAM, kill};
use rustix::process::Signal;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_cell::{BackendRegistry as _, ConfigStore as _, DirectoryStore};
use trefoil_client::{Client, Completion, Lookup, Mutated, Options, SetOptions};
use trefoil_layout::Version;
use trefoil_layout::op::Expected;
use trefoil_ports::EtcdProcess;
use trefoil_rpc::v1::{HandOverRequest, HandOverStep};

pub(crate) fn client(cell: &Cell) -> Client {
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    // What others on a busy machine may cost is not what this is about.
    connected.client(Options {
        deadline: Duration::from_secs(20),
        ..Options::default()
    })
}

pub(crate) fn set(client: &mut Client, key: &str, value: &str) {
    let stored = client.set(key.as_bytes(), value.as_bytes(), SetOptions::default());
    assert!(
        matches!(stored, Ok(Mutated::Stored { .. })),
        "{key}: {stored:?}"
    );
}

pub(crate) fn get(client: &mut Client, key: &str) -> Option<String> {
    let missed = match client.get(key.as_bytes()).unwrap() {
        Lookup::Hit(hit) => return Some(String::from_utf8(hit.value.to_vec()).unwrap()),
        Lookup::Miss(miss) => miss.reason,
    };
    eprintln!("{key}: a miss: {missed}; {:?}", client.carriers());
    None
}

/// One more than is there, by CAS; what it is now.
pub(crate) fn count(client: &mut Client, key: &str) -> u64 {
    let (expected, before) = match client.get(key.as_bytes()).unwrap() {
        Lookup::Hit(hit) => {
            let text = std::str::from_utf8(hit.value).unwrap();
            (Expected::Version(hit.version), text.parse().unwrap())
        }
        Lookup::Miss(_) => (Expected::Absent, 0),
    };
    let next: u64 = before + 1;
    let value = next.to_string();
    let key = key.as_bytes();
    match client.cas(key, expected, value.as_bytes(), SetOptions::default()) {
        Ok(Mutated::Stored { .. }) => next,
        other => panic!("nobody else counts here: {other:?} {:?}", client.carriers()),
    }
}

pub(crate) fn pids(cell: &Cell) -> Vec<u64> {
    let status = cell.json(&["cell", "status", "--json"]);
    let backends = status["backends"].as_array().unwrap();
    backends
        .iter()
        .map(|b| b["pid"].as_u64().unwrap())
        .collect()
}

/// Whether each of three backends holds so many items.
fn all_hold(cell: &Cell, count: u64) -> bool {
    let status = cell.json(&["cell", "status", "--json"]);
    let backends = status["backends"].as_array().unwrap();
    backends.iter().all(|b| b["items"].as_u64() == Some(count))
}

/// What a command prints as JSON, a line for each step.
pub(crate) fn steps(cell: &Cell, args: &[&str]) -> Vec<serde_json::Value> {
    let output = cell.run(&[args, &["--json"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What a command that fails says.
pub(crate) fn complaint(cell: &Cell, args: &[&str]) -> String {
    let output = cell.run(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The same, with the code that programs tell it by.
pub(crate) fn refusal(cell: &Cell, args: &[&str]) -> (String, String) {
    let output = cell.run(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap_or_default();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["step"], "failed", "{last}");
    let why = last["why"].as_str().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(why), "{said}: {why}");
    (last["code"].as_str().unwrap().to_owned(), said)
}

/// Counters that are raised at once, as an event loop does it: not one change is left
/// undecided when the process that it was sent to goes. How many there were.
fn many_at_once(client: &mut Client, stop: &AtomicBool) -> u64 {
    const AT_ONCE: u64 = 16;
    let mut versions: Vec<Option<Version>> = vec![None; AT_ONCE as usize];
    let (mut idle, mut ended): (Vec<u64>, u64) = ((0..AT_ONCE).collect(), 0);
    while !stop.load(Ordering::Relaxed) || idle.len() < AT_ONCE as usize {
        if !stop.load(Ordering::Relaxed) {
            for token in idle.drain(..) {
                let key = format!("many-{token}");
                let expected = versions[token as usize].map_or(Expected::Absent, Expected::Version);
                let options = SetOptions::default();
                client.submit_cas(key.as_bytes(), expected, b"value", options, token);
            }
        }
        let mut on = |token: u64, completion: Completion<'_>| {
            let Completion::Mutated(Ok(Mutated::Stored { version })) = completion else {
                panic!("{token}: {completion:?}");
            };
            versions[token as usize] = Some(version);
            idle.push(token);
            ended += 1;
        };
        if client.poll(&mut on) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    ended
}

/// Clients of all kinds at work while `order` is carried out.
fn nobody_notices(mode: &str, more: &[&str], order: impl Fn(&Cell)) {
    let dir = tempfile::tempdir().unwrap();
    let mut args = vec!["--mode", mode, "--backends", "3", "--memory", "64MiB"];
    args.extend_from_slice(more);
    let cell = Cell::up(dir.path(), &args);
    let mut keeper = client(&cell);
    const KEYS: usize = 5_000;
    for number in 0..KEYS {
        set(
            &mut keeper,
            &format!("key-{number}"),
            &format!("value {number}"),
        );
    }
    set(&mut keeper, "long", &"long ".repeat(100_000));
    // On a busy machine the client may have begun before it had reached all three: what it
    // wrote meanwhile, the third lacks until it is written again or found by a scan.
    let begin = Instant::now();
    while mode == "R=3.2" && !all_hold(&cell, KEYS as u64 + 1) {
        assert!(begin.elapsed() < Duration::from_secs(30));
        for number in 0..KEYS {
            let (key, value) = (format!("key-{number}"), format!("value {number}"));
            set(&mut keeper, &key, &value);
        }
        set(&mut keeper, "long", &"long ".repeat(100_000));
    }
    let before = pids(&cell);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = client(&cell);
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let key = format!("moving-{}", round % 300);
                set(&mut client, &key, &round.to_string());
                assert_eq!(get(&mut client, &key), Some(round.to_string()));
                round += 1;
            }
            round
        });
        let reader = scope.spawn(|| {
            let mut client = client(&cell);
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number = (number + 7919) % KEYS;
                let value = get(&mut client, &format!("key-{number}"));
                assert_eq!(value, Some(format!("value {number}")));
            }
        });
        let counter = scope.spawn(|| {
            let mut client = client(&cell);
            let mut counted = 0;
            while !stop.load(Ordering::Relaxed) {
                counted += 1;
                assert_eq!(count(&mut client, "counter"), counted);
            }
            counted
        });
        let crowd = scope.spawn(|| many_at_once(&mut client(&cell), &stop));
        let watch = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| order(&cell)));
        let status = cell.run(&["cell", "status"]);
        eprintln!("{}", String::from_utf8_lossy(&status.stdout));
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap();
        reader.join().unwrap();
        let counted = counter.join().unwrap();
        let many = crowd.join().unwrap();
        assert!(many > 100, "{many}");
        watch.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(counted > 10 && written > 10, "{counted} {written}");
        written
    });
    let status = cell.json(&["cell", "status", "--json"]);
    for backend in status["backends"].as_array().unwrap() {
        // There is room for all.
        let evicted = ["evictions_associativity", "evictions_capacity"];
        let evicted = evicted.map(|kind| backend[kind].as_u64().unwrap());
        assert_eq!(evicted, [0, 0], "{backend:#}");
    }
    let after = pids(&cell);
    assert!(
        before.iter().zip(&after).all(|(b, a)| b != a),
        "{before:?} {after:?}"
    );
    // One that was idle all the time does not know of it: what it sends to processes that
    // have gone was executed by nobody, and is sent again.
    for number in 0..16 {
        let (key, options) = (format!("late-{number}"), SetOptions::default());
        let added = keeper.cas(key.as_bytes(), Expected::Absent, b"late", options);
        assert!(
            matches!(added, Ok(Mutated::Stored { .. })),
            "{key}: {added:?}"
        );
    }
    // Everything is there, by a client that has seen nothing of it, too.
    for mut client in [keeper, client(&cell)] {
        for number in 0..KEYS {
            let value = get(&mut client, &format!("key-{number}"));
            assert_eq!(value, Some(format!("value {number}")));
        }
        for round in written.saturating_sub(300)..written {
            let key = format!("moving-{}", round % 300);
            assert_eq!(get(&mut client, &key), Some(round.to_string()));
        }
        assert_eq!(get(&mut client, "long").unwrap().len(), 500_000);
    }
    assert_eq!(cell.stop(), 0);
}

#[test]
fn three_copies_are_restarted_one_after_the_other() {
    nobody_notices("R=3.2", &[], |cell| {
        let steps = steps(cell, &["cell", "restart"]);
        let moved = steps.iter().filter(|step| step["step"] == "moved").count();
        assert_eq!(moved, 3, "{steps:?}");
        assert_eq!(steps.last().unwrap()["step"], "done");
    });
}

#[test]
fn one_copy_moves_to_a_spare_and_keeps_everything() {
    nobody_notices("R=1", &["--spares", "1"], |cell| {
        for number in ["0", "1", "2"] {
            steps(cell, &["cell", "drain", number]);
            let again = complaint(cell, &["cell", "drain", number]);
            assert!(again.contains("was drained before"), "{again}");
            let other = complaint(cell, &["cell", "drain", "1"]);
            assert!(
                other.contains("no spare stands by") || other.contains("drained"),
                "{other}"
            );
            let spare = steps(cell, &["cell", "undrain", number]);
            assert_eq!(spare[0]["step"], "spare", "{spare:?}");
        }
    });
}

/// Gives an order that needs a spare, once one stands by.
fn drain_when_a_spare_stands_by(cell: &Cell, number: &str) {
    let begin = Instant::now();
    loop {
        let output = cell.run(&["cell", "drain", number]);
        if output.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("no spare stands by"), "{said}");
        assert!(begin.elapsed() < Duration::from_secs(30), "{said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A drained backend runs on a spare until it moves again, or dies: then it has a process of
/// its own, and another spare stands by.
#[test]
fn a_drained_backend_that_moves_or_dies_is_drained_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut args = vec!["--mode", "R=1", "--backends", "2", "--memory", "64MiB"];
    args.extend_from_slice(&["--spares", "1", "--restart", "always"]);
    let cell = Cell::up(dir.path(), &args);
    steps(&cell, &["cell", "drain", "1"]);
    let (code, _) = refusal(&cell, &["cell", "drain", "1"]);
    assert_eq!(code, "already-drained");
    steps(&cell, &["cell", "restart", "1"]);
    let (code, said) = refusal(&cell, &["cell", "undrain", "1"]);
    assert_eq!(code, "not-drained", "{said}");
    drain_when_a_spare_stands_by(&cell, "1");
    let (code, _) = refusal(&cell, &["cell", "drain", "1"]);
    assert_eq!(code, "already-drained");
    // One that has died is started again in its own place.
    let pid = pids(&cell)[1];
    kill(pid as u32, "KILL");
    await_new(&cell, 1, pid);
    let (code, said) = refusal(&cell, &["cell", "undrain", "1"]);
    assert_eq!(code, "not-drained", "{said}");
    drain_when_a_spare_stands_by(&cell, "1");
    assert_eq!(cell.stop(), 0);
}

fn limits(cell: &Cell) -> Vec<u64> {
    let status = cell.json(&["cell", "status", "--json"]);
    let backends = status["backends"].as_array().unwrap().iter();
    let limits = backends.map(|b| b["memory_limit_bytes"].as_u64().unwrap());
    limits.collect()
}

/// More than the limit that the new process is started with has room for.
#[test]
fn what_was_set_by_command_moves_with_the_backend() {
    const LIMIT: u64 = 160 << 20;
    const KEYS: usize = 6_400;
    let dir = tempfile::tempdir().unwrap();
    let mut args = vec!["--mode", "R=1", "--backends", "1", "--memory", "64MiB"];
    args.extend_from_slice(&["--spares", "1"]);
    let cell = Cell::up(dir.path(), &args);
    let set_limit = |limit: &str| {
        let changed = cell.run(&["cell", "memory", "--limit", limit]);
        assert!(changed.status.success(), "{changed:?}");
    };
    set_limit("160MiB");
    let mut client = client(&cell);
    let value = |number: usize| format!("value {number} ").repeat(1_200);
    for number in 0..KEYS {
        set(&mut client, &format!("key-{number}"), &value(number));
    }
    for order in [&["cell", "restart"][..], &["cell", "drain", "0"]] {
        steps(&cell, order);
        assert_eq!(limits(&cell), [LIMIT], "{order:?}");
        for number in 0..KEYS {
            let found = get(&mut client, &format!("key-{number}"));
            assert!(found == Some(value(number)), "{order:?}: key-{number}");
        }
    }
    // A lower one, too.
    set_limit("48MiB");
    steps(&cell, &["cell", "restart"]);
    assert_eq!(limits(&cell), [48 << 20]);
    assert_eq!(cell.stop(), 0);
}

/// A drained backend that the cell, resized, has no longer cannot be undrained.
#[test]
fn a_spare_stands_by_again_after_a_resize() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["--memory", "64MiB", "--spares", "1", "--backends", "4"];
    let cell = Cell::up(dir.path(), &options);
    steps(&cell, &["cell", "drain", "3"]);
    let said = complaint(&cell, &["cell", "drain", "0"]);
    assert!(said.contains("no spare stands by"), "{said}");
    let resized = cell.run(&["cell", "resize", "--backends", "3"]);
    assert!(resized.status.success(), "{resized:?}");
    drain_when_a_spare_stands_by(&cell, "0");
    steps(&cell, &["cell", "undrain", "0"]);
    assert_eq!(cell.stop(), 0);
}

#[test]
fn another_program_takes_over_backend_by_backend_and_what_is_done_is_kept() {
    let other = tempfile::tempdir().unwrap();
    let binary = other.path().join("trefoil");
    std::fs::copy(PROGRAM, &binary).unwrap();
    let binary = binary.display().to_string();
    nobody_notices("R=3.2", &[], |cell| {
        steps(cell, &["cell", "upgrade", "--binary", &binary]);
        let again = steps(cell, &["cell", "upgrade", "--binary", &binary]);
        assert_eq!(again.len(), 1, "{again:?}");
    });
}

fn runs(pid: u64) -> std::path::PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

/// The command is killed once the first backend has moved. What is under way then is
/// finished, and no more begins.
#[test]
fn an_upgrade_that_is_interrupted_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("other");
    std::fs::copy(PROGRAM, &binary).unwrap();
    let text = binary.display().to_string();
    let cell = Cell::up(&dir.path().join("cell"), &["--memory", "64MiB"]);
    let mut upgrade = Command::new(PROGRAM)
        .args(["cell", "upgrade", "--json", "--binary", &text])
        .args(["--cell", &cell.address])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(upgrade.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("\"moved\"")), "none moved");
    upgrade.kill().unwrap();
    upgrade.wait().unwrap();
    let begin = Instant::now();
    while cell.log().count(&["maintenance has stopped", "has gone"]) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = pids(&cell);
    let left: Vec<u64> = (0..3)
        .filter(|n| runs(before[*n as usize]) != binary)
        .collect();
    assert!((1..3).contains(&left.len()), "{left:?}");
    let steps = steps(&cell, &["cell", "upgrade", "--binary", &text]);
    let moved = steps.iter().filter(|step| step["step"] == "moved");
    let moved: Vec<u64> = moved
        .map(|step| step["backend"].as_u64().unwrap())
        .collect();
    assert_eq!(moved, left, "{steps:?}");
    let after = pids(&cell);
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_eq!(runs(*after), binary, "{number}");
        assert_eq!(before != after, left.contains(&(number as u64)), "{number}");
    }
    assert_eq!(cell.stop(), 0);
}

/// `trefoil cell spare`, ended with the test.
struct Spare(Child);

impl Spare {
    fn start(dir: &std::path::Path, store: &str) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["cell", "spare", "--memory", "64MiB", "--dead-after", "1s"])
            .args(["--store", store, "--dir"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says ready").unwrap();
        assert!(line.starts_with("ready "), "{line}");
        // It says more later, which nobody reads.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Spare(child)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_place_that_a_spare_of_another_command_has_is_left_out() {
    let home = tempfile::tempdir().unwrap();
    let etcd = EtcdProcess::start(home.path(), None).unwrap();
    let store = format!("etcd://{}/cells/mail", etcd.host());
    let dir = home.path().join("cell");
    let cell = Cell::up(&dir, &["--store", &store, "--memory", "64MiB"]);
    let spare = Spare::start(&home.path().join("spare"), &store);
    let spare_pid = u64::from(spare.0.id());
    let before = pids(&cell);
    cell.kill(1);
    let begin = Instant::now();
    loop {
        let status = cell.json(&["cell", "status", "--json"]);
        let backend = &status["backends"][1];
        if backend["pid"] == spare_pid && backend["state"] == "up" {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{status:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let other = home.path().join("other");
    std::fs::copy(PROGRAM, &other).unwrap();
    let (other, here) = (
        other.display().to_string(),
        format!("unix:{}", dir.display()),
    );
    let give = |order: &[&str]| {
        let output = crate::support::run(&[order, &["--json", "--cell", &here]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<serde_json::Value>>()
    };
    for order in [
        &["cell", "restart"][..],
        &["cell", "upgrade", "--binary", &other],
    ] {
        let steps = give(order);
        let of = |kind: &str| -> Vec<u64> {
            let steps = steps.iter().filter(|step| step["step"] == kind);
            steps
                .map(|step| step["backend"].as_u64().unwrap())
                .collect()
        };
        assert_eq!(
            (of("moved"), of("left")),
            (vec![0, 2], vec![1]),
            "{steps:?}"
        );
        let left = steps.iter().find(|step| step["step"] == "left").unwrap();
        let why = left["why"].as_str().unwrap();
        assert!(why.contains("was given to another process"), "{why}");
        assert_eq!(steps.last().unwrap()["step"], "done", "{steps:?}");
    }
    let after = pids(&cell);
    assert_eq!(after[1], spare_pid);
    assert!([0, 2].iter().all(|n| before[*n] != after[*n]));
    // Whoever names it is told before anything moves.
    for order in [
        &["cell", "restart", "0", "1"][..],
        &["cell", "restart", "1"],
    ] {
        let steps = give(order);
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert_eq!(steps[0]["code"], "not-here", "{steps:?}");
    }
    assert_eq!(pids(&cell), after);
}

#[test]
fn one_that_dies_after_an_upgrade_is_started_again_as_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("other");
    std::fs::copy(PROGRAM, &binary).unwrap();
    let text = binary.display().to_string();
    let cell = dir.path().join("cell");
    let cell = Cell::up(&cell, &["--memory", "64MiB", "--restart", "always"]);
    assert_ne!(runs(pids(&cell)[1]), binary);
    steps(&cell, &["cell", "upgrade", "--binary", &text]);
    let pid = pids(&cell)[1];
    assert_eq!(runs(pid), binary);
    kill(pid as u32, "KILL");
    await_new(&cell, 1, pid);
    assert_eq!(runs(pids(&cell)[1]), binary);
    let back = steps(&cell, &["cell", "upgrade", "--binary", PROGRAM]);
    let moved = back.iter().filter(|step| step["step"] == "moved").count();
    assert_eq!(moved, 3, "{back:?}");
    assert_eq!(cell.stop(), 0);
}

fn await_new(cell: &Cell, number: usize, before: u64) {
    let begin = Instant::now();
    loop {
        let status = cell.json(&["cell", "status", "--json"]);
        let backend = &status["backends"][number];
        let is_new = backend["pid"].as_u64().is_some_and(|pid| pid != before);
        if is_new && backend["state"] == "up" {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{status:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_cannot_be_done_is_said_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB"]);
    let before = pids(&cell);
    for (args, expected, expected_code) in [
        (
            &["cell", "restart", "7"][..],
            "no backend 7: the cell has 0 to 2",
            "no-such-backend",
        ),
        (&["cell", "drain", "1"], "no spare stands by", "no-spare"),
        (&["cell", "undrain", "1"], "is not drained", "not-drained"),
        (
            &["cell", "upgrade", "--binary", "/bin/true"],
            "is not Trefoil",
            "bad-program",
        ),
        (
            &["cell", "upgrade", "--binary", "/nowhere"],
            "No such file",
            "bad-program",
        ),
    ] {
        let (code, said) = refusal(&cell, args);
        assert!(said.contains(expected), "{args:?}: {said}");
        assert_eq!(code, expected_code, "{args:?}");
        assert_eq!(complaint(&cell, args), said);
    }
    // A cell that is not whole is left as it is.
    kill(before[2] as u32, "KILL");
    let child = std::thread::spawn({
        let address = cell.address.clone();
        move || crate::support::run(&["cell", "restart", "0", "--cell", &address])
    });
    std::thread::sleep(Duration::from_secs(2));
    assert!(!child.is_finished(), "it waits for the cell to be whole");
    assert_eq!(
        cell.json(&["cell", "status", "--json"])["backends"][0]["pid"],
        before[0]
    );
    assert_eq!(cell.stop(), 0);
    let output = child.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    // The only copy goes nowhere without somebody to take it.
    let dir = tempfile::tempdir().unwrap();
    let one = Cell::up(dir.path(), &["--mode", "R=1", "--memory", "64MiB"]);
    let before = pids(&one);
    let said = complaint(&one, &["cell", "drain", "0"]);
    let hints = ["no spare stands by", "--spares 1", "cell restart"];
    hints
        .iter()
        .for_each(|hint| assert!(said.contains(hint), "{hint}: {said}"));
    assert_eq!(pids(&one), before);
    assert_eq!(one.stop(), 0);
    // `serve` is nobody's to move.
    let dir = tempfile::tempdir().unwrap();
    let serve = Cell::serve(dir.path(), &[]);
    let (code, said) = refusal(&serve, &["cell", "restart"]);
    assert!(said.contains("no cell's directory"), "{said}");
    assert_eq!(code, "cell-up-unreachable");
}

#[test]
fn an_immutable_cell_is_not_moved() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("corpus.jsonl");
    std::fs::write(&file, "{\"key\":\"k\",\"value\":\"v\"}\n").unwrap();
    let file = file.display().to_string();
    let cell = dir.path().join("cell");
    let cell = Cell::up(
        &cell,
        &["--mode", "R=2", "--load", &file, "--memory", "64MiB"],
    );
    let (code, said) = refusal(&cell, &["cell", "restart"]);
    assert!(said.contains("immutable"), "{said}");
    assert_eq!(code, "immutable");
}

/// Steps of a handover by hand: a successor that goes away in the midst of it.
#[test]
fn a_successor_that_goes_silent_leaves_the_backend_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "1", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    let mut writer = client(&cell);
    set(&mut writer, "k", "before");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let config = DirectoryStore::open(dir.path())
        .unwrap()
        .load()
        .unwrap()
        .unwrap();
    let endpoint = trefoil_cell::endpoint(&config.backends[0].addresses[0]).unwrap();
    let step = |successor: u64, step: HandOverStep| {
        let request = HandOverRequest {
            backend: 0,
            life: config.life,
            successor,
            step: step.into(),
            layout_version: u32::from(trefoil_layout::limits::LAYOUT_VERSION),
            takes_plain: false,
        };
        runtime.block_on(async {
            let channel = endpoint.connect().await.unwrap();
            let credentials = trefoil_rpc::Credentials::none();
            trefoil_rpc::client(channel, credentials)
                .hand_over(request)
                .await
        })
    };
    let refused = step(5, HandOverStep::Freeze).unwrap_err();
    assert!(refused.message().contains("is over"), "{refused}");
    step(5, HandOverStep::Begin).unwrap();
    let second = step(6, HandOverStep::Begin).unwrap_err();
    assert!(second.message().contains("already"), "{second}");
    step(5, HandOverStep::Alive).unwrap();
    let unknown = step(6, HandOverStep::Alive).unwrap_err();
    assert!(unknown.message().contains("is over"), "{unknown}");
    let too_early = step(5, HandOverStep::Release).unwrap_err();
    assert!(too_early.message().contains("too long"), "{too_early}");
    let begin = Instant::now();
    let frozen = step(5, HandOverStep::Freeze).unwrap().into_inner();
    assert!(frozen.frozen_ms > 0);
    // Frozen: reads go on, a write waits until it is over.
    assert_eq!(get(&mut writer, "k").as_deref(), Some("before"));
    set(&mut writer, "k", "after");
    let frozen = Duration::from_millis(frozen.frozen_ms.into());
    assert!(begin.elapsed() >= frozen, "it was not frozen");
    assert_eq!(get(&mut writer, "k").as_deref(), Some("after"));
    let late = step(5, HandOverStep::Release).unwrap_err();
    assert!(late.message().contains("too long"), "{late}");
    step(5, HandOverStep::Abandon).unwrap();
    // And the next one may.
    drop(runtime);
    steps(&cell, &["cell", "restart"]);
    assert_eq!(get(&mut writer, "k").as_deref(), Some("after"));
    assert_eq!(cell.stop(), 0);
}

/// A second process of backend 0, as `cell up` starts one for a move.
struct Successor {
    child: Child,
    log: Log,
}

impl Successor {
    fn start(dir: &Path, more: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["cell", "backend", "--number", "0", "--take-over"])
            .args(["--memory", "64MiB", "--dir"])
            .arg(dir)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Log::default();
        log.follow(child.stderr.take().unwrap(), "successor");
        let successor = Successor { child, log };
        // From then on a signal does not just kill it.
        eventually("it listens for signals", || {
            let status = format!("/proc/{}/status", successor.child.id());
            let status = std::fs::read_to_string(status).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
            caught & 1 << (Signal::TERM.as_raw() - 1) != 0
        });
        successor
    }

    /// SIGTERM, and the code that it ends with.
    fn end(mut self) -> Option<i32> {
        assert!(matches!(self.child.try_wait(), Ok(None)), "it has ended");
        kill(self.child.id(), "TERM");
        let begin = Instant::now();
        let ended = self.child.wait().unwrap();
        eprintln!("it has ended after {:?}", begin.elapsed());
        ended.code()
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whatever a successor waits for, it ends when it is told to. The backend goes on with all
/// that it holds, unless it had let go already.
#[test]
fn a_successor_that_waits_hears_that_it_is_to_end() {
    const KEYS: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "1", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    let mut client = client(&cell);
    let value = |number: usize| format!("{number} ").repeat(4_000);
    for number in 0..KEYS {
        set(&mut client, &format!("key-{number}"), &value(number));
    }
    let holds_all = |client: &mut Client| {
        for number in 0..KEYS {
            assert_eq!(get(client, &format!("key-{number}")), Some(value(number)));
        }
    };
    // An answer that does not come.
    let hangs = Hanging::new(cell.pids[0]);
    assert_eq!(Successor::start(dir.path(), &[]).end(), Some(0));
    drop(hangs);
    // Its own pace.
    let copies = Successor::start(dir.path(), &["--recovery-rate", "64KiB"]);
    let begun = ["another process takes this backend over"];
    eventually("it copies", || cell.log().count(&begun) == 1);
    assert_eq!(copies.end(), Some(0));
    let given_up = ["the handover was given up"];
    eventually("the backend goes on", || cell.log().count(&given_up) == 1);
    holds_all(&mut client);
    set(&mut client, "written", "since");
    steps(&cell, &["cell", "restart"]);
    holds_all(&mut client);
    assert_eq!(get(&mut client, "written").as_deref(), Some("since"));
    // A place that somebody else has taken, once the backend has let go.
    let store = DirectoryStore::open(dir.path()).unwrap();
    let socket = store.fabric_socket(0).unwrap();
    std::fs::remove_file(&socket).unwrap();
    std::fs::create_dir(&socket).unwrap();
    let waits = Successor::start(dir.path(), &[]);
    let blocked = ["clients that come now are not served before this is mended"];
    eventually("it waits for its socket", || waits.log.count(&blocked) == 1);
    assert_eq!(waits.end(), Some(0));
    drop(store.claim(0).unwrap());
}
