//! A cell gets another number of backends while clients are at work, and nobody notices.

use crate::maintenance::{client, complaint, get, pids, refusal, set, steps};
use crate::support::{Cell, Hanging, kill};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tonic::Status;
use tonic::transport::Endpoint;
use trefoil_backend::LEASE;
use trefoil_cell::{
    BackendConfig, BackendRegistry as _, CellConfig, ConfigStore as _, DirectoryStore,
};
use trefoil_client::{Client, Lookup, Mutated, OpError, SetOptions};
use trefoil_layout::op::Expected;
use trefoil_rpc::v1::{ResizeRequest, ResizeResponse, ResizeStep};

/// Three copies, and who dies is started again.
const THREE: [&str; 8] = [
    "--mode",
    "R=3.2",
    "--backends",
    "3",
    "--memory",
    "64MiB",
    "--restart",
    "always",
];
const PATIENCE: Duration = Duration::from_secs(120);

fn value(number: usize) -> String {
    format!("value {number} ").repeat(1 + number % 40)
}

fn fill(client: &mut Client, keys: usize) {
    for number in 0..keys {
        set(client, &format!("key-{number}"), &value(number));
    }
    set(client, "long", &"long ".repeat(100_000));
}

fn backends(cell: &Cell) -> usize {
    let status = cell.json(&["cell", "status", "--json"]);
    status["backends"].as_array().unwrap().len()
}

/// Whether the backends hold so many items together, and all are up.
fn hold(cell: &Cell, count: u64) -> bool {
    let status = cell.json(&["cell", "status", "--json"]);
    let backends = status["backends"].as_array().unwrap();
    let items = backends.iter().filter_map(|b| b["items"].as_u64());
    items.sum::<u64>() == count && backends.iter().all(|b| b["state"] == "up")
}

fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Clients of all kinds at work while `order` is carried out; what they and new ones find
/// afterwards.
fn nobody_notices(cell: &Cell, keys: usize, copies: u64, order: impl Fn(&Cell)) {
    let mut keeper = client(cell);
    fill(&mut keeper, keys);
    // On a busy machine a client may have begun before it had reached all backends.
    await_that("all replicas hold everything", || {
        hold(cell, (keys as u64 + 1) * copies) || {
            fill(&mut keeper, keys);
            false
        }
    });
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = client(cell);
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
            let mut client = client(cell);
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number = (number + 7919) % keys;
                let found = get(&mut client, &format!("key-{number}"));
                assert_eq!(found, Some(value(number)));
            }
        });
        let counter = scope.spawn(|| {
            let mut client = client(cell);
            let mut counted = 0;
            while !stop.load(Ordering::Relaxed) {
                counted = count(&mut client, counted);
            }
            counted
        });
        let watch = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| order(cell)));
        let status = cell.run(&["cell", "status"]);
        eprintln!("{}", String::from_utf8_lossy(&status.stdout));
        stop.store(true, Ordering::Relaxed);
        let written = writer.join();
        let read = reader.join();
        let counted = counter.join();
        watch.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        read.unwrap();
        let (written, counted) = (written.unwrap(), counted.unwrap());
        assert!(counted > 10 && written > 10, "{counted} {written}");
        written
    });
    // Everything is there, by a client that has seen nothing of it, too.
    for mut client in [keeper, client(cell)] {
        for number in 0..keys {
            let found = get(&mut client, &format!("key-{number}"));
            assert_eq!(found, Some(value(number)));
        }
        for round in written.saturating_sub(300)..written {
            let key = format!("moving-{}", round % 300);
            assert_eq!(get(&mut client, &key), Some(round.to_string()));
        }
        assert_eq!(get(&mut client, "long").unwrap().len(), 500_000);
    }
}

/// One more than `counted`, by CAS. One that was sent in the very moment of the change may
/// not know its end: then what is there says it.
fn count(client: &mut Client, counted: u64) -> u64 {
    let key = b"counter";
    let (expected, before) = match client.get(key).unwrap() {
        Lookup::Hit(hit) => {
            let text = std::str::from_utf8(hit.value).unwrap();
            (Expected::Version(hit.version), text.parse().unwrap())
        }
        Lookup::Miss(miss) => {
            assert_eq!(counted, 0, "{}", miss.reason);
            (Expected::Absent, 0)
        }
    };
    assert_eq!(before, counted, "nobody else counts here");
    let next = (counted + 1).to_string();
    match client.cas(key, expected, next.as_bytes(), SetOptions::default()) {
        Ok(Mutated::Stored { .. }) => counted + 1,
        Err(OpError::Indeterminate(why)) => {
            eprintln!("{why}");
            let found = get(client, "counter").unwrap().parse().unwrap();
            assert!([counted, counted + 1].contains(&found), "{found}");
            found
        }
        other => {
            let by = client.carriers();
            // Lost, or refused in vain: what is there says which.
            let there = get(client, "counter");
            panic!("{other:?}, expected {expected:?}, there is {there:?} now; {by:?}")
        }
    }
}

fn resize(cell: &Cell, backends: &str) -> Vec<serde_json::Value> {
    let steps = steps(cell, &["cell", "resize", "--backends", backends]);
    assert_eq!(steps.last().unwrap()["step"], "done", "{steps:?}");
    steps
}

#[test]
fn one_copy_gets_more_backends_and_fewer_and_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "1", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    nobody_notices(&cell, 5_000, 1, |cell| {
        for count in [3, 2] {
            let before = pids(cell);
            resize(cell, &count.to_string());
            assert_eq!(backends(cell), count);
            let after = pids(cell);
            assert!(after.iter().all(|pid| !before.contains(pid)));
        }
    });
    assert_eq!(cell.stop(), 0);
}

#[test]
fn three_copies_get_more_backends_and_fewer_and_keep_everything() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &THREE);
    nobody_notices(&cell, 5_000, 3, |cell| {
        for count in [5, 4, 3] {
            let steps = resize(cell, &count.to_string());
            let told = steps.iter().find(|step| step["step"] == "progress");
            assert_eq!(told.unwrap()["backends"], count, "{steps:?}");
            assert_eq!(backends(cell), count);
        }
    });
    // What moves and dies after it goes on as before.
    let before = pids(&cell);
    steps(&cell, &["cell", "restart", "1"]);
    kill(before[2] as u32, "KILL");
    await_that("the killed one has recovered", || {
        let status = cell.json(&["cell", "status", "--json"]);
        let killed = &status["backends"][2];
        killed["state"] == "up" && killed["pid"].as_u64() != Some(before[2])
    });
    let mut late = client(&cell);
    for number in 0..5_000 {
        let found = get(&mut late, &format!("key-{number}"));
        assert_eq!(found, Some(value(number)));
    }
    assert_eq!(cell.stop(), 0);
}

/// `cell resize` at work, and what it prints.
struct Resizing {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Resizing {
    fn begin(cell: &Cell, backends: &str) -> Self {
        let mut child = Command::new(crate::support::PROGRAM)
            .args(["cell", "resize", "--json", "--backends", backends])
            .args(["--cell", &cell.address])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Resizing { child, lines }
    }

    fn await_phase(&mut self, phase: &str) -> serde_json::Value {
        loop {
            let line = self.lines.next().expect("it goes on").unwrap();
            let step: serde_json::Value = serde_json::from_str(&line).unwrap();
            if step["phase"] == phase {
                return step;
            }
        }
    }

    /// What it says at its end, and its exit code.
    fn end(mut self) -> (Option<i32>, String) {
        for line in self.lines.by_ref() {
            drop(line.unwrap());
        }
        let output = self.child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    }
}

#[test]
fn it_pauses_goes_on_and_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &THREE);
    nobody_notices(&cell, 20_000, 3, |cell| {
        let before = pids(cell);
        let mut resizing = Resizing::begin(cell, "4");
        resizing.await_phase("copying");
        steps(cell, &["cell", "resize", "--pause"]);
        resizing.await_phase("paused");
        let again = complaint(cell, &["cell", "resize", "--pause"]);
        assert!(again.contains("pauses already"), "{again}");
        // Backends know of it once the new processes, which are just being started, ask.
        await_that("status tells of it", || {
            let shown = cell.run(&["cell", "status"]);
            String::from_utf8_lossy(&shown.stdout).contains("is being resized to 4")
        });
        for order in [
            &["cell", "restart"][..],
            &["cell", "resize", "--backends", "5"],
        ] {
            let said = complaint(cell, order);
            assert!(said.contains("is being resized to 4 backends"), "{said}");
        }
        steps(cell, &["cell", "resize", "--continue"]);
        resizing.await_phase("copying");
        steps(cell, &["cell", "resize", "--pause"]);
        steps(cell, &["cell", "resize", "--abort"]);
        let (code, said) = resizing.end();
        assert_eq!(code, Some(1));
        assert!(said.contains("the cell is as it was"), "{said}");
        assert_eq!(pids(cell), before);
        let none = complaint(cell, &["cell", "resize", "--abort"]);
        assert!(none.contains("no resize is under way"), "{none}");
        // And another one may begin at once.
        resize(cell, "4");
    });
    assert_eq!(cell.stop(), 0);
}

/// Processes of `cell up` that are to be backends.
fn joiners(cell: &Cell) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_string_lossy().parse::<u32>();
        let Ok(pid) = pid else { continue };
        let Ok(args) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let args: Vec<&[u8]> = args.split(|byte| *byte == 0).collect();
        let is_here = args.iter().any(|arg| {
            let dir = cell.address.strip_prefix("unix:").unwrap_or(&cell.address);
            *arg == dir.as_bytes()
        });
        if is_here && args.contains(&&b"--join"[..]) {
            found.push(pid);
        }
    }
    found
}

fn oom_score_adj(pid: u32) -> String {
    let value = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
    value.unwrap().trim().to_owned()
}

/// Of those that serve and those that are to, the kernel ends the latter when memory runs out;
/// until they serve.
#[test]
fn who_does_not_serve_yet_is_the_first_to_go() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "--mode",
        "R=1",
        "--backends",
        "2",
        "--memory",
        "64MiB",
        "--spares",
        "1",
    ];
    let cell = Cell::up(dir.path(), &args);
    let usual = oom_score_adj(cell.pids[0]);
    let mut resizing = Resizing::begin(&cell, "3");
    resizing.await_phase("copying");
    steps(&cell, &["cell", "resize", "--pause"]);
    resizing.await_phase("paused");
    let joiners = joiners(&cell);
    assert_eq!(joiners.len(), 3);
    for joiner in &joiners {
        await_that("it has put itself first", || {
            oom_score_adj(*joiner) == "500"
        });
    }
    steps(&cell, &["cell", "resize", "--continue"]);
    assert_eq!(resizing.end().0, Some(0));
    let serve = |cell: &Cell| {
        for pid in pids(cell) {
            assert_eq!(oom_score_adj(pid as u32), usual);
        }
    };
    serve(&cell);
    // A spare, and a process in the place of another.
    steps(&cell, &["cell", "drain", "1"]);
    steps(&cell, &["cell", "restart", "0"]);
    serve(&cell);
    assert_eq!(cell.stop(), 0);
}

#[test]
fn who_dies_before_the_change_leaves_the_cell_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &THREE);
    nobody_notices(&cell, 20_000, 3, |cell| {
        // A new one.
        let before = pids(cell);
        let mut resizing = Resizing::begin(cell, "5");
        resizing.await_phase("copying");
        steps(cell, &["cell", "resize", "--pause"]);
        resizing.await_phase("paused");
        let joiners = joiners(cell);
        assert_eq!(joiners.len(), 5);
        kill(joiners[3], "KILL");
        let (code, said) = resizing.end();
        assert_eq!(code, Some(1));
        assert!(said.contains("the cell is as it was"), "{said}");
        assert_eq!(pids(cell), before);
        // An old one.
        let mut resizing = Resizing::begin(cell, "5");
        resizing.await_phase("copying");
        steps(cell, &["cell", "resize", "--pause"]);
        resizing.await_phase("paused");
        kill(before[1] as u32, "KILL");
        await_that("it was started again", || {
            let status = cell.json(&["cell", "status", "--json"]);
            let killed = &status["backends"][1];
            killed["state"] == "up" && killed["pid"].as_u64() != Some(before[1])
        });
        let (code, said) = resizing.end();
        assert_eq!(code, Some(1));
        assert!(said.contains("the cell is as it was"), "{said}");
        assert_eq!(backends(cell), 3);
        resize(cell, "4");
    });
    assert_eq!(cell.stop(), 0);
}

/// One that stands still is not whole: nothing begins before it goes on.
#[test]
fn a_cell_one_of_which_hangs_is_not_resized_until_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "2", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    let mut keeper = client(&cell);
    fill(&mut keeper, 2_000);
    let hung = Hanging::new(cell.pids[0]);
    let mut resizing = Resizing::begin(&cell, "3");
    std::thread::sleep(Duration::from_millis(300));
    assert!(joiners(&cell).is_empty());
    drop(hung);
    resizing.await_phase("copying");
    let (code, said) = resizing.end();
    assert_eq!((code, said.as_str()), (Some(0), ""));
    for number in 0..2_000 {
        let found = get(&mut keeper, &format!("key-{number}"));
        assert_eq!(found, Some(value(number)));
    }
    assert_eq!(cell.stop(), 0);
}

/// Nobody swaps the configuration while this is held.
fn hold_config(dir: &Path) -> std::fs::File {
    let file = std::fs::File::options();
    let file = file
        .clone()
        .read(true)
        .write(true)
        .open(dir.join("cell.lock"));
    let file = file.unwrap();
    file.lock().unwrap();
    file
}

/// It hangs once everything is copied, and before it is told to go. It is not heard of any
/// more: so it is killed, and what it would say when it goes on nobody hears.
#[test]
fn one_that_hangs_at_the_change_never_serves_again() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "2", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    let mut keeper = client(&cell);
    fill(&mut keeper, 2_000);
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let is_frozen = || {
        let stats = connected.stats().into_iter().map(|answer| answer.stats);
        stats.into_iter().flatten().any(|stats| {
            let mut members = stats.members.iter();
            members.any(|member| member.resize.as_ref().is_some_and(|resize| resize.frozen))
        })
    };
    let is_killed = || cell.log().count(&["does not retire; it is killed"]) > 0;
    let old = cell.pids[0];
    let resizing = Resizing::begin(&cell, "3");
    let begin = Instant::now();
    // On a busy machine the rest is not copied when it begins to hang: then they all go on,
    // and it is tried again.
    loop {
        assert!(begin.elapsed() < PATIENCE, "too slow, each time");
        let held = hold_config(dir.path());
        await_that("they are frozen", is_frozen);
        std::thread::sleep(Duration::from_millis(100));
        let hung = Hanging::new(old);
        drop(held);
        let hangs = Instant::now();
        while hangs.elapsed() < Duration::from_secs(2) && !is_killed() {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(hung);
        if is_killed() {
            break;
        }
    }
    let (code, said) = resizing.end();
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let is_gone = || std::fs::read(format!("/proc/{old}/cmdline")).is_err();
    await_that("it has ended", is_gone);
    let after = pids(&cell);
    assert_eq!(after.len(), 3);
    assert!(!after.contains(&u64::from(old)), "{after:?}");
    let mut late = client(&cell);
    set(&mut late, "key-0", "written since");
    for client in [&mut keeper, &mut late] {
        assert_eq!(get(client, "key-0").as_deref(), Some("written since"));
        for number in 1..2_000 {
            let found = get(client, &format!("key-{number}"));
            assert_eq!(found, Some(value(number)));
        }
    }
    assert_eq!(cell.stop(), 0);
}

/// The largest limit of those that are copied from.
#[test]
fn what_was_set_by_command_holds_in_the_cell_of_the_new_size() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "1", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    let mut keeper = client(&cell);
    let text = |number: usize| format!("value {number} ").repeat(1_200);
    for (count, limit, keys) in [(2, "160MiB", 6_400), (1, "192MiB", 6_400), (3, "48MiB", 0)] {
        let changed = cell.run(&["cell", "memory", "--limit", limit]);
        assert!(changed.status.success(), "{changed:?}");
        for number in 0..keys {
            set(&mut keeper, &format!("key-{number}"), &text(number));
        }
        resize(&cell, &count.to_string());
        let status = cell.json(&["cell", "status", "--json"]);
        let backends = status["backends"].as_array().unwrap();
        let expected: bytesize::ByteSize = limit.parse().unwrap();
        for backend in backends {
            let found = backend["memory_limit_bytes"].as_u64();
            assert_eq!(found, Some(expected.as_u64()), "{status:#}");
        }
        for number in 0..keys {
            let found = get(&mut keeper, &format!("key-{number}"));
            assert!(
                found == Some(text(number)),
                "{count} backends: key-{number}"
            );
        }
    }
    assert_eq!(cell.stop(), 0);
}

/// Where nobody else is left who was told, too.
#[test]
fn what_was_set_by_command_holds_after_a_death() {
    for (mode, backends) in [("R=1", 1), ("R=3.2", 3)] {
        let dir = tempfile::tempdir().unwrap();
        let backends = backends.to_string();
        let args = ["--mode", mode, "--backends", &backends, "--memory", "64MiB"];
        let cell = Cell::up(dir.path(), &[&args[..], &["--restart", "always"]].concat());
        let limits = |cell: &Cell| {
            // With the only backend dead it fails.
            let said = cell.run(&["cell", "status", "--json"]).stdout;
            let status: serde_json::Value = serde_json::from_slice(&said).unwrap_or_default();
            let backends = status["backends"].as_array().cloned().unwrap_or_default();
            let of = |b: &serde_json::Value| (b["pid"].as_u64(), b["memory_limit_bytes"].as_u64());
            let mut limits: Vec<_> = backends.iter().map(of).collect();
            limits.resize(usize::max(limits.len(), 1), (None, None));
            limits
        };
        for limit in ["160MiB", "96MiB"] {
            let changed = cell.run(&["cell", "memory", "--limit", limit]);
            assert!(changed.status.success(), "{changed:?}");
            let before = limits(&cell)[0].0;
            kill(before.unwrap() as u32, "KILL");
            let expected: bytesize::ByteSize = limit.parse().unwrap();
            await_that("it is there again, with that limit", || {
                let (pid, found) = limits(&cell)[0];
                let is_new = pid.is_some() && pid != before;
                assert!(!is_new || found == Some(expected.as_u64()), "{found:?}");
                is_new
            });
            await_that("the cell is whole", || {
                let status = cell.status();
                let mut backends = status["backends"].as_array().unwrap().iter();
                backends.all(|b| b["state"] == "up")
            });
        }
        // By the settings, which say the same as before: nothing changes.
        kill(cell.pid(), "HUP");
        std::thread::sleep(Duration::from_millis(300));
        assert!(limits(&cell).iter().all(|of| of.1 == Some(96 << 20)));
        assert_eq!(cell.stop(), 0);
        // Anew, the settings count.
        let cell = Cell::up(dir.path(), &args);
        assert!(limits(&cell).iter().all(|of| of.1 == Some(64 << 20)));
        assert_eq!(cell.stop(), 0);
    }
}

/// Whoever changes a cell, by hand.
struct ByHand {
    runtime: tokio::runtime::Runtime,
    store: DirectoryStore,
    /// The cell as it was at first.
    config: CellConfig,
    /// Of each of its backends.
    endpoints: Vec<Endpoint>,
    /// Backends that the cell is to have.
    backends: u32,
}

impl ByHand {
    fn new(dir: &Path, backends: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let store = DirectoryStore::open(dir).unwrap();
        let config = store.load().unwrap().unwrap();
        let endpoint = |of: &BackendConfig| trefoil_cell::endpoint(&of.addresses[0]).unwrap();
        ByHand {
            runtime: runtime.unwrap(),
            endpoints: config.backends.iter().map(endpoint).collect(),
            store,
            config,
            backends,
        }
    }

    fn step_of(
        &self,
        backend: u32,
        resize: u64,
        step: ResizeStep,
        attempt: u32,
    ) -> Result<ResizeResponse, Status> {
        let request = ResizeRequest {
            backend,
            life: self.config.life,
            resize,
            step: step.into(),
            attempt,
            backends: self.backends,
            layout_version: u32::from(trefoil_layout::limits::LAYOUT_VERSION),
            ..ResizeRequest::default()
        };
        let answer = self.runtime.block_on(async {
            let channel = self.endpoints[backend as usize].connect().await.unwrap();
            let credentials = trefoil_rpc::Credentials::none();
            trefoil_rpc::client(channel, credentials)
                .resize(request)
                .await
        });
        answer.map(tonic::Response::into_inner)
    }

    /// Of backend 0.
    fn step(&self, resize: u64, step: ResizeStep, attempt: u32) -> Result<ResizeResponse, Status> {
        self.step_of(0, resize, step, attempt)
    }

    /// The cell of the other size, after what is in force.
    fn next(&self, base: &CellConfig) -> CellConfig {
        let backend = |number| BackendConfig {
            number,
            addresses: vec![self.store.rpc_socket(number).unwrap()],
            fabric_socket: Some(self.store.fabric_socket(number).unwrap()),
            place: None,
        };
        base.resized((0..self.backends).map(backend).collect())
            .unwrap()
    }

    /// Starts a process that is to be a backend of it.
    fn joiner(&self, dir: &Path, resize: u64, number: u32) -> Joiner {
        let mut child = Command::new(crate::support::PROGRAM)
            .args(["cell", "backend", "--memory", "64MiB", "--join", "--dir"])
            .arg(dir)
            .args(["--number", &number.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut joiner = Joiner {
            words: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        };
        let (old, new) = (&self.config, self.next(&self.config));
        joiner.tell(&serde_json::json!({ "resize": resize, "old": old, "new": new }));
        joiner
    }
}

/// A process that is to be a backend, and what it says.
struct Joiner {
    child: Child,
    words: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Joiner {
    fn tell(&mut self, word: &serde_json::Value) {
        writeln!(self.words, "{word}").unwrap();
    }

    /// What it says next, of what is not its progress.
    fn hear(&mut self) -> serde_json::Value {
        loop {
            let line = self.lines.next().expect("it lives").unwrap();
            let said: serde_json::Value = serde_json::from_str(&line).unwrap();
            if said["said"] != "progress" {
                return said;
            }
        }
    }

    fn await_said(&mut self, what: &str, attempt: u32) {
        let said = self.hear();
        assert_eq!(
            (said["said"].as_str(), said["attempt"].as_u64()),
            (Some(what), Some(attempt.into())),
            "{said}"
        );
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is to be a backend tells those that it has asked that it lives, and no
/// others: who has not been asked knows of no resize, and would say that it is over.
#[test]
fn who_has_not_been_asked_yet_is_told_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "3", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    let hand = ByHand::new(dir.path(), 4);
    let mut joiner = hand.joiner(dir.path(), 5, 3);
    // It asks two at a time.
    let hung = [Hanging::new(cell.pids[0]), Hanging::new(cell.pids[1])];
    joiner.tell(&serde_json::json!({ "word": "copy" }));
    for _ in 0..25 {
        assert!(joiner.child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(hung);
    joiner.await_said("near", 0);
    drop(joiner);
    assert_eq!(cell.stop(), 0);
}

/// Once the configuration is swapped nobody of the new cell needs the old one: its backends
/// may die, and hang, and the new ones hear what they are told all the same.
#[test]
fn who_has_everything_does_not_need_those_who_hang_or_die() {
    const RESIZE: u64 = 5;
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "2", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    let mut keeper = client(&cell);
    fill(&mut keeper, 2_000);
    let hand = ByHand::new(dir.path(), 3);
    let mut joiners: Vec<Joiner> = (0..3).map(|n| hand.joiner(dir.path(), RESIZE, n)).collect();
    for joiner in &mut joiners {
        joiner.tell(&serde_json::json!({ "word": "copy" }));
        joiner.await_said("near", 0);
    }
    // On a busy machine those who are frozen break off before the swap.
    let mut attempt = 0;
    loop {
        attempt += 1;
        assert!(attempt < 100, "too slow, each time");
        for joiner in &mut joiners {
            joiner.tell(&serde_json::json!({ "word": "near", "attempt": attempt }));
            joiner.await_said("near", attempt);
        }
        let base = hand.store.load().unwrap().unwrap();
        let freeze = |backend| hand.step_of(backend, RESIZE, ResizeStep::Freeze, attempt);
        let frozen = [freeze(0), freeze(1)];
        if let [Ok(one), Ok(_)] = &frozen {
            let epoch = one.shards[0].epoch;
            for joiner in &mut joiners {
                joiner.tell(
                    &serde_json::json!({ "word": "last", "attempt": attempt, "epoch": epoch }),
                );
            }
            for joiner in &mut joiners {
                joiner.await_said("done", attempt);
            }
            let (expected, next) = (base.topology_id(), hand.next(&base));
            if hand.store.compare_and_swap(Some(expected), &next).is_ok() {
                break;
            }
        }
        for backend in 0..2 {
            hand.step_of(backend, RESIZE, ResizeStep::Thaw, attempt)
                .unwrap();
        }
        for joiner in &mut joiners {
            joiner.tell(&serde_json::json!({ "word": "again" }));
        }
    }
    // One dies, the other hangs; the new ones go on being there. For a while: they would
    // have told the old ones each second that they live.
    let hung = cell.pids[1];
    kill(hung, "STOP");
    kill(cell.pids[0], "KILL");
    for _ in 0..30 {
        for joiner in &mut joiners {
            assert!(joiner.child.try_wait().unwrap().is_none(), "it has ended");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    kill(hung, "KILL");
    await_that("their locks are free", || {
        hand.store.claimed().unwrap().is_empty()
    });
    std::thread::sleep(LEASE);
    for joiner in &mut joiners {
        joiner.tell(&serde_json::json!({ "word": "begin" }));
    }
    for joiner in &mut joiners {
        assert_eq!(joiner.hear()["said"], "serves");
    }
    let mut late = client(&cell);
    for client in [&mut keeper, &mut late] {
        for number in 0..2_000 {
            let found = get(client, &format!("key-{number}"));
            assert_eq!(found, Some(value(number)));
        }
    }
}

/// Steps by hand: whoever changes the cell goes away in the midst of the last one.
#[test]
fn who_freezes_and_hears_nothing_more_goes_on_and_no_older_swap_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--backends", "1", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    let mut writer = client(&cell);
    set(&mut writer, "k", "before");
    let hand = ByHand::new(dir.path(), 2);
    let (store, config) = (&hand.store, &hand.config);
    let step = |resize, step, attempt| hand.step(resize, step, attempt);
    let refused = step(5, ResizeStep::Freeze, 1).unwrap_err();
    assert!(refused.message().contains("is over"), "{refused}");
    step(5, ResizeStep::Begin, 0).unwrap();
    let second = step(6, ResizeStep::Begin, 0).unwrap_err();
    assert!(second.message().contains("another resize"), "{second}");
    let begin = Instant::now();
    let frozen = step(5, ResizeStep::Freeze, 1).unwrap();
    assert!(frozen.frozen_ms > 0);
    // Frozen: reads go on, a write waits until it is over.
    assert_eq!(get(&mut writer, "k").as_deref(), Some("before"));
    set(&mut writer, "k", "after");
    let frozen = Duration::from_millis(frozen.frozen_ms.into());
    assert!(begin.elapsed() >= frozen, "it was not frozen");
    assert_eq!(get(&mut writer, "k").as_deref(), Some("after"));
    // Who looked before the freeze swaps in vain.
    let swapped = store.compare_and_swap(Some(config.topology_id()), &hand.next(config));
    assert!(swapped.is_err(), "{swapped:?}");
    // What comes late of an attempt that is over has no effect.
    let late = step(5, ResizeStep::Freeze, 1).unwrap_err();
    assert!(late.message().contains("is over"), "{late}");
    // One that thaws in time needs no swap.
    let id = store.load().unwrap().unwrap().config_id;
    step(5, ResizeStep::Freeze, 2).unwrap();
    step(5, ResizeStep::Thaw, 2).unwrap();
    set(&mut writer, "k", "thawed");
    assert_eq!(store.load().unwrap().unwrap().config_id, id);
    step(5, ResizeStep::Abandon, 0).unwrap();
    // And the next one may.
    drop(hand);
    resize(&cell, "2");
    assert_eq!(get(&mut writer, "k").as_deref(), Some("thawed"));
    assert_eq!(cell.stop(), 0);
}

/// More than fits, all the time: what is found is what was written last, or nothing.
#[test]
fn a_full_cell_is_resized_and_nothing_old_comes_back() {
    const KEYS: usize = 40_000;
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=3.2", "--backends", "3", "--memory", "32MiB"];
    let cell = Cell::up(dir.path(), &args);
    let text = |number: usize, round: usize| format!("{number} {round} ").repeat(120);
    let mut filler = client(&cell);
    for number in 0..KEYS {
        set(&mut filler, &format!("key-{number}"), &text(number, 0));
    }
    // Of processes that a resize has started, it depends on who writes how much until it is
    // looked at.
    let status = cell.json(&["cell", "status", "--json"]);
    let backends = status["backends"].as_array().unwrap();
    let evicted = |b: &serde_json::Value| b["evictions_capacity"].as_u64().unwrap();
    assert!(
        backends.iter().all(|b| evicted(b) > 0),
        "it is full: {status:#}"
    );
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = client(&cell);
            let mut rounds = vec![0; KEYS];
            let (mut number, mut hits, mut looks) = (0, 0, 0);
            while !stop.load(Ordering::Relaxed) {
                number = (number + 7919) % KEYS;
                let key = format!("key-{number}");
                if number.is_multiple_of(4) {
                    rounds[number] += 1;
                    set(&mut client, &key, &text(number, rounds[number]));
                }
                if let Lookup::Hit(hit) = client.get(key.as_bytes()).unwrap() {
                    let expected = text(number, rounds[number]);
                    assert!(hit.value == expected.as_bytes(), "{key} is an old one");
                    hits += 1;
                }
                looks += 1;
            }
            (hits, looks)
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for count in ["4", "3"] {
                resize(&cell, count);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let (hits, looks) = writer.join().unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A third of the keys fit, and most of those are still there.
        assert!(hits > looks / 8, "{hits} of {looks}");
    });
    assert_eq!(cell.stop(), 0);
}

#[test]
fn what_cannot_be_resized_is_said_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB"]);
    let before = pids(&cell);
    let resize = |count| ["cell", "resize", "--backends", count];
    for (count, expected, expected_code) in [
        ("2", "R=3.2 keeps 3 copies of each key", "too-few-backends"),
        ("0", "choose 3 or more", "too-few-backends"),
        ("3", "has 3 backends already", "same-size"),
        ("5000", "choose 3 to 256", "too-many-backends"),
    ] {
        let (code, said) = refusal(&cell, &resize(count));
        assert!(said.contains(expected), "{count}: {said}");
        assert_eq!(code, expected_code, "{count}");
    }
    for order in ["--abort", "--pause", "--continue"] {
        let (code, said) = refusal(&cell, &["cell", "resize", order]);
        assert!(said.contains("no resize is under way"), "{said}");
        assert_eq!(code, "no-resize");
    }
    for usage in [
        &["cell", "resize"][..],
        &["cell", "resize", "--backends", "4", "--abort"],
        &["cell", "resize", "--backends", "many"],
    ] {
        assert_eq!(cell.run(usage).status.code(), Some(2), "{usage:?}");
    }
    assert_eq!(pids(&cell), before);
    assert_eq!(cell.stop(), 0);
    // An immutable one.
    let file = dir.path().join("corpus.jsonl");
    std::fs::write(&file, "{\"key\":\"k\",\"value\":\"v\"}\n").unwrap();
    let file = file.display().to_string();
    let immutable = dir.path().join("immutable");
    let args = ["--mode", "R=2", "--load", &file, "--memory", "64MiB"];
    let cell = Cell::up(&immutable, &args);
    let said = complaint(&cell, &resize("3"));
    assert!(said.contains("start it with another --backends"), "{said}");
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_cell_comes_back_with_the_size_that_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--mode", "R=1", "--memory", "64MiB"];
    let cell = Cell::up(dir.path(), &args);
    resize(&cell, "2");
    let config = DirectoryStore::open(dir.path()).unwrap().load().unwrap();
    assert_eq!(config.unwrap().backends.len(), 2);
    assert_eq!(cell.stop(), 0);
    let cell = Cell::up(dir.path(), &args);
    assert_eq!(backends(&cell), 2);
    assert_eq!(cell.stop(), 0);
}
