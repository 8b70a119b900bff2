//! Cells whose configuration is in etcd, while etcd dies, hangs, loses its data and
//! comes back with old data.

use crate::support::etcd::{guarded_etcd, write_private};
use crate::support::{Cell, Hanging, PROGRAM, free_port, parse, run, text};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, MissReason, Mutated, Options, SetOptions};
use trefoil_ports::EtcdProcess;

const PATIENCE: Duration = Duration::from_secs(40);
/// `make soak` gives more.
const OUTAGE_S: &str = "TREFOIL_TEST_OUTAGE_S";

/// An etcd, and room for cells.
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

    fn dir(&self) -> PathBuf {
        self.home.path().join("cell")
    }

    fn up(&self, more: &[&str]) -> Cell {
        let address = self.address();
        let mut args = vec!["--store", &address, "--memory", "64MiB"];
        args.extend_from_slice(more);
        let cell = Cell::up(&self.dir(), &args);
        assert_eq!(cell.address, address);
        cell
    }

    fn restart_etcd(&mut self) {
        self.etcd.kill();
        self.etcd.run().unwrap();
    }

    fn backup(&self) -> PathBuf {
        let file = self.home.path().join("backup");
        self.etcd.save(&file).unwrap();
        file
    }

    fn restore(&mut self, backup: &Path) {
        self.etcd.kill();
        self.etcd.restore(backup).unwrap();
        self.etcd.run().unwrap();
    }

    fn lose_everything(&mut self) {
        self.etcd.kill();
        self.etcd.lose_data().unwrap();
        self.etcd.run().unwrap();
    }

    /// What etcd holds.
    fn held(&self) -> Value {
        let text = self
            .etcd
            .ctl(&["get", "--print-value-only", "cells/mail/config"])
            .unwrap();
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    fn registered(&self) -> Vec<String> {
        let listed = self
            .etcd
            .ctl(&["get", "--prefix", "--keys-only", "cells/mail/backends/"])
            .unwrap();
        listed.split_whitespace().map(str::to_owned).collect()
    }

    /// The backends by themselves, whatever etcd says.
    fn socket(&self, number: usize) -> String {
        format!("unix:{}/backend-{number}.sock", self.dir().display())
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
    // A busy machine may take its time; nobody waits for etcd, which is away for longer.
    connected.client(Options {
        deadline: Duration::from_secs(20),
        ..Options::default()
    })
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn failed(output: &Output, hints: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for hint in hints {
        assert!(said.contains(hint), "{hint}: {said}");
    }
}

/// How long GETs took, and when they ended.
type Took = Vec<(Instant, Duration)>;

/// p50, p99 and p99.9 of the GETs that ended within a time, for people to read.
fn percentiles(took: &Took, from: Instant, to: Instant) -> String {
    let within = took.iter().filter(|(end, _)| (from..to).contains(end));
    let mut sorted: Vec<Duration> = within.map(|(_, took)| *took).collect();
    sorted.sort_unstable();
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
    let count = sorted.len();
    format!(
        "{count} GETs, p50 {:?}, p99 {:?}, p99.9 {:?}",
        at(0.5),
        at(0.99),
        at(0.999)
    )
}

/// Stores and reads until told to stop; every operation has to succeed and every value
/// to be found. Returns how many there were, the longest, and those that read.
fn load(client: &mut Client, name: &str, stop: &AtomicBool) -> (u64, Duration, Took) {
    let (mut count, mut longest) = (0, Duration::ZERO);
    let mut gets = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (key, value) = (format!("{name}-{}", count % 1000), format!("value {count}"));
        let begin = Instant::now();
        let stored = client.set(key.as_bytes(), value.as_bytes(), SetOptions::default());
        assert!(
            matches!(stored, Ok(Mutated::Stored { .. })),
            "{key}: {stored:?}"
        );
        longest = longest.max(begin.elapsed());
        for _ in 0..4 {
            let begin = Instant::now();
            loop {
                match client.get(key.as_bytes()) {
                    Ok(Lookup::Hit(hit)) => break assert_eq!(hit.value, value.as_bytes(), "{key}"),
                    // One of three is dead, and a second one has had no turn for longer than
                    // a lease: it is there again in a moment, and has the value.
                    Ok(Lookup::Miss(miss))
                        if miss.reason == MissReason::Inquorate
                            && begin.elapsed() < Duration::from_secs(30) => {}
                    other => panic!("{key}: {other:?}"),
                }
            }
            let took = begin.elapsed();
            longest = longest.max(took);
            gets.push((begin + took, took));
        }
        count += 5;
    }
    (count, longest, gets)
}

#[test]
fn a_cell_is_run_by_its_address_in_etcd() {
    let place = Place::new();
    let cell = place.up(&["--restart", "always"]);
    assert_eq!(place.held()["config_id"], 1);
    assert!(!place.dir().join("cell.json").exists());
    let keys = [0, 1, 2].map(|number| format!("cells/mail/backends/{number}"));
    assert_eq!(place.registered(), keys);
    let stored = cell.run(&["set", "a", "value"]);
    assert!(stored.status.success(), "{}", text(&stored.stderr));
    assert_eq!(text(&cell.run(&["get", "a"]).stdout).trim_end(), "value");
    let status = cell.json(&["cell", "status", "--json"]);
    assert_eq!(status["config_id"], 1, "{status:#}");

    // Another configuration: told by whoever flushes, and by the watch.
    let flushed = cell.json(&["cell", "flush", "--json"]);
    assert_eq!(
        (&flushed["config_id"], &flushed["backends_down"]),
        (&2.into(), &0.into())
    );
    assert_eq!(place.held()["config_id"], 2);
    assert_eq!(cell.run(&["get", "a"]).status.code(), Some(1));

    // A backend that comes back has begun twice, recovers and votes.
    let mut reader = client(&cell.address);
    let kept = reader.set(b"kept", b"on", SetOptions::default());
    assert!(matches!(kept, Ok(Mutated::Stored { .. })));
    cell.kill(1);
    eventually("backend 1 comes back", || {
        let status = cell.json(&["cell", "status", "--json"]);
        let backend = &status["backends"][1];
        let is_new = backend["pid"].as_u64() != Some(cell.pids[1].into());
        (is_new && backend["state"] == "up").then_some(())
    });
    let counts = &place.held()["incarnations"];
    assert_eq!(
        (&counts["0"], &counts["1"]),
        (&1.into(), &2.into()),
        "{counts}"
    );
    assert!(matches!(reader.get(b"kept"), Ok(Lookup::Hit(_))));

    assert_eq!(cell.stop(), 0);
    assert!(place.registered().is_empty(), "they have said good-bye");
    // Anew, in the same place: another life, a higher id.
    let cell = place.up(&[]);
    assert_eq!(place.held()["config_id"], 3);
    assert_eq!(cell.run(&["get", "kept"]).status.code(), Some(1));
}

/// A gateway and a native client at work while etcd is killed, or hangs; then a change.
#[test]
fn without_etcd_nothing_fails_and_nothing_waits() {
    let outage = std::env::var(OUTAGE_S).ok();
    let outage = outage.map_or(6, |seconds| seconds.parse().unwrap());
    let outage = Duration::from_secs(outage);
    let mut place = Place::new();
    let cell = place.up(&["--restart", "always"]);
    let gateway = Gateway::start(&cell.address);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Ends(&stop);
        let worker = |name: &'static str| {
            let (address, stop) = (&cell.address, &stop);
            scope.spawn(move || load(&mut client(address), name, stop))
        };
        let workers = [worker("one"), worker("other")];
        let at_the_door = scope.spawn(|| {
            let mut connection = gateway.connect();
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                let key = format!("door-{}", count % 1000);
                assert_eq!(connection.ask(&format!("set {key} 0 0 1\r\n1")), "STORED");
                assert_eq!(connection.ask(&format!("mg {key} v")), "VA 1");
                assert_eq!(connection.line(), "1");
                count += 2;
            }
            count
        });
        std::thread::sleep(Duration::from_millis(500));
        let begin = Instant::now();
        std::thread::sleep(Duration::from_secs(2));
        let dead = Instant::now();
        place.etcd.kill();
        std::thread::sleep(outage / 2);
        // A new client cannot find the cell, and is told why; nothing can be changed.
        failed(
            &cell.run(&["get", "one-1"]),
            &["etcd cannot be reached", "refused"],
        );
        let flush = run(&["cell", "flush", "--cell", &place.socket(0)]);
        failed(&flush, &["etcd cannot be reached"]);
        let status = parse(&run(&[
            "cell",
            "status",
            "--json",
            "--cell",
            &place.socket(0),
        ]));
        assert_eq!(status["backends"][1]["config_store"], "away", "{status:#}");
        // Nor does it need etcd that a backend dies: the others answer.
        let killed = Instant::now();
        cell.kill(2);
        std::thread::sleep(outage / 2);
        place.etcd.run().unwrap();
        let hangs = Instant::now();
        {
            let _hanging = Hanging::new(place.etcd.pid().unwrap());
            std::thread::sleep(outage / 2);
        }
        let end = Instant::now();
        // It comes back when etcd is there.
        eventually("backend 2 comes back", || {
            let output = cell.run(&["cell", "status", "--json"]);
            let status: Value = serde_json::from_slice(&output.stdout).ok()?;
            let mut backends = status["backends"].as_array()?.iter();
            backends.all(|b| b["state"] == "up").then_some(())
        });
        drop(ends);
        for worker in workers {
            let (count, longest, gets) = worker.join().unwrap();
            eprintln!("{count} operations, none failed, the longest took {longest:?}");
            for (what, from, to) in [
                ("with etcd", begin, dead),
                ("etcd dead", dead, killed),
                ("and a backend", killed, hangs),
                ("etcd hangs", hangs, end),
            ] {
                eprintln!("  {what}: {}", percentiles(&gets, from, to));
            }
            assert!(count > 1000, "{count}");
            // A lease, and what a busy machine adds; nobody waits until etcd is back.
            assert!(longest < outage / 2, "{longest:?}");
        }
        let count = at_the_door.join().unwrap();
        eprintln!("{count} commands at the door");
        assert!(count > 100, "{count}");
    });
    // Configuration changes go on.
    let flushed = cell.json(&["cell", "flush", "--json"]);
    assert_eq!(flushed["backends_flushed"], 3, "{flushed}");
    assert_eq!(cell.run(&["get", "one-1"]).status.code(), Some(1));
    eventually("the backends are registered", || {
        (place.registered().len() == 3).then_some(())
    });
    assert_eq!(cell.stop(), 0);
}

#[test]
fn an_old_backup_is_refused_loudly_and_mended() {
    let mut place = Place::new();
    let cell = place.up(&["--restart", "always"]);
    let backup = place.backup();
    let mut reader = client(&cell.address);
    let mut set = |key: &str| {
        let stored = reader.set(key.as_bytes(), b"value", SetOptions::default());
        assert!(matches!(stored, Ok(Mutated::Stored { .. })), "{stored:?}");
    };
    set("flushed");
    for _ in 0..3 {
        cell.json(&["cell", "flush", "--json"]);
    }
    set("kept");
    assert_eq!(place.held()["config_id"], 4);
    place.restore(&backup);
    assert_eq!(place.held()["config_id"], 1);

    // Data is served on. Whoever is new, wants a change, or is a backend that starts,
    // refuses what etcd says, and says what to do.
    let command = format!("trefoil cell restore-config --store {}", place.address());
    let hints = ["config id 1", "config id 4", "old backup", &command];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Ends(&stop);
        let worker = scope.spawn(|| load(&mut reader, "working", &stop));
        failed(&cell.run(&["get", "kept"]), &hints);
        let flush = run(&["cell", "flush", "--cell", &place.socket(0)]);
        failed(&flush, &hints);
        cell.kill(2);
        // Long enough for several attempts.
        std::thread::sleep(Duration::from_secs(5));
        let dead = run(&["get", "kept", "--cell", &place.socket(2)]);
        assert_eq!(dead.status.code(), Some(1), "backend 2 serves what is old");
        assert_eq!(place.held()["config_id"], 1, "nobody has gone on from it");
        let status = parse(&run(&[
            "cell",
            "status",
            "--json",
            "--cell",
            &place.socket(0),
        ]));
        assert_eq!(status["config_id"], 4, "{status:#}");
        for number in [0, 1] {
            let backend = &status["backends"][number];
            assert_eq!(backend["config_store"], "refused", "{status:#}");
        }

        // The dead one cannot be asked.
        let address = place.address();
        let mend = ["cell", "restore-config", "--store", &address, "--json"];
        failed(&run(&mend), &["backend 2 does not answer", "--accept-loss"]);
        assert_eq!(place.held()["config_id"], 1);
        let mended = parse(&run(&[&mend[..], &["--accept-loss"]].concat()));
        assert_eq!(mended["config_id_found"], 1, "{mended:#}");
        assert_eq!(mended["config_id_served"], 4, "{mended:#}");
        assert_eq!(mended["backends_following"], serde_json::json!([0, 1]));
        assert_eq!(mended["backends_passed_over"], serde_json::json!([2]));
        let id = mended["config_id"].as_u64().unwrap();
        assert!(id > 4, "{mended:#}");
        assert_eq!(place.held()["config_id"], id);

        eventually("backend 2 comes back and recovers", || {
            let status = cell.json(&["cell", "status", "--json"]);
            let mut backends = status["backends"].as_array()?.iter();
            let is_well = backends
                .all(|backend| backend["state"] == "up" && backend["config_store"].is_null());
            (is_well && status["config_id"] == id).then_some(())
        });
        drop(ends);
        let (count, longest, _) = worker.join().unwrap();
        eprintln!("{count} operations, none failed, the longest took {longest:?}");
    });
    let kept = cell.run(&["get", "kept"]);
    assert_eq!(text(&kept.stdout).trim_end(), "value", "{kept:?}");
    assert_eq!(cell.run(&["get", "flushed"]).status.code(), Some(1));
    let flushed = cell.json(&["cell", "flush", "--json"]);
    assert_eq!(flushed["backends_flushed"], 3, "{flushed}");
    // Now there is nothing to do.
    let address = place.address();
    let again = run(&["cell", "restore-config", "--store", &address]);
    let said = text(&again.stdout);
    assert!(
        again.status.success() && said.contains("nothing to mend"),
        "{said}"
    );
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_lost_etcd_is_rebuilt_from_what_backends_know() {
    let mut place = Place::new();
    let cell = place.up(&["--restart", "always"]);
    cell.json(&["cell", "flush", "--json"]);
    let mut reader = client(&cell.address);
    let stored = reader.set(b"kept", b"value", SetOptions::default());
    assert!(matches!(stored, Ok(Mutated::Stored { .. })));
    let before = place.held();
    place.lose_everything();
    failed(&cell.run(&["get", "kept"]), &["holds no cell"]);
    let address = place.address();
    let mend = ["cell", "restore-config", "--store", &address];
    let output = run(&mend);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("--from"), "{output:?}");
    let dir = place.dir().display().to_string();
    let output = run(&[&mend[..], &["--from", &dir]].concat());
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert!(
        said.contains("config id 3 written (etcd held nothing"),
        "{said}"
    );
    assert!(said.contains("followed by backends 0, 1, 2"), "{said}");
    let after = place.held();
    assert_eq!(after["incarnations"], before["incarnations"]);
    assert_eq!(after["flush_floor"], before["flush_floor"]);
    assert_eq!(text(&cell.run(&["get", "kept"]).stdout).trim_end(), "value");
    let begin = Instant::now();
    while place.registered().len() < 3 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    // Whoever dies now comes back, and knows that it has forgotten.
    cell.kill(0);
    eventually("backend 0 comes back", || {
        let status = cell.json(&["cell", "status", "--json"]);
        let mut backends = status["backends"].as_array()?.iter();
        backends
            .all(|backend| backend["state"] == "up")
            .then_some(())
    });
    assert_eq!(place.held()["incarnations"]["0"], 2);
    assert!(matches!(reader.get(b"kept"), Ok(Lookup::Hit(_))));
    assert_eq!(cell.stop(), 0);
}

/// A client that stays learns of a cell that begins anew, also in an etcd that has
/// forgotten everything before.
#[test]
fn clients_follow_into_another_life() {
    let mut place = Place::new();
    let mut cell = place.up(&[]);
    cell.json(&["cell", "flush", "--json"]);
    let mut stays = client(&cell.address);
    for has_lost in [false, true] {
        let stored = stays.set(b"of-before", b"1", SetOptions::default());
        assert!(matches!(stored, Ok(Mutated::Stored { .. })));
        assert_eq!(cell.stop(), 0);
        match has_lost {
            true => place.lose_everything(),
            false => place.restart_etcd(),
        }
        cell = place.up(&[]);
        eventually("the client follows", || {
            let stored = stays.set(b"now", b"2", SetOptions::default());
            matches!(stored, Ok(Mutated::Stored { .. })).then_some(())
        });
        assert!(matches!(stays.get(b"of-before"), Ok(Lookup::Miss(_))));
    }
}

/// Each backend takes the new corpus and its id; the watch that tells of the id, too,
/// leaves that to the reload. What a lost etcd gets back is the id of that corpus.
#[test]
fn an_immutable_cell_is_reloaded_and_restored() {
    let mut place = Place::new();
    let (old, new) = (corpus(&place, "old"), corpus(&place, "new"));
    let cell = place.up(&["--mode", "R=2", "--backends", "3", "--load", &old]);
    let get = || text(&cell.run(&["get", "k7"]).stdout).trim_end().to_owned();
    assert_eq!(get(), "old");
    let reloaded = cell.run(&["cell", "reload", "--load", &new]);
    assert!(reloaded.status.success(), "{}", text(&reloaded.stderr));
    assert_eq!(
        (get().as_str(), &place.held()["config_id"]),
        ("new", &2.into())
    );
    place.lose_everything();
    let (address, dir) = (place.address(), place.dir().display().to_string());
    let mended = run(&[
        "cell",
        "restore-config",
        "--store",
        &address,
        "--from",
        &dir,
    ]);
    assert!(mended.status.success(), "{}", text(&mended.stderr));
    assert_eq!(
        (get().as_str(), &place.held()["config_id"]),
        ("new", &2.into())
    );
    assert_eq!(cell.stop(), 0);
}

/// etcd is dead when the backends are told to serve the new corpus, which they have loaded:
/// they serve the old one until etcd says what is in force. One of them dies meanwhile.
#[test]
fn a_reload_waits_for_an_etcd_that_is_away() {
    let mut place = Place::new();
    let (old, new) = (corpus(&place, "old"), corpus(&place, "new"));
    let cell = place.up(&["--mode", "R=2", "--load", &old, "--restart", "always"]);
    let mut reader = client(&cell.address);
    let mut get = || match reader.get(b"k7") {
        Ok(Lookup::Hit(hit)) => text(hit.value),
        other => panic!("{other:?}"),
    };
    assert_eq!(get(), "old");
    place.etcd.kill();
    let mut reload = Command::new(PROGRAM)
        .args(["cell", "reload", "--load", &new, "--cell", &place.socket(0)])
        .env_remove("TREFOIL_CELL")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("they wait for etcd", || {
        let waits = "whether the new corpus is in force cannot be found out yet";
        assert_eq!(reload.try_wait().unwrap(), None);
        (cell.log().count(&[waits]) > 0).then_some(())
    });
    assert_eq!(get(), "old");
    // It comes back with etcd, and has whatever is in force then.
    cell.kill(1);
    assert_eq!(get(), "old");
    place.etcd.run().unwrap();
    let output = reload.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.held()["config_id"], 2);
    assert_eq!(get(), "new");
    eventually("backend 1 has it, too", || {
        let status = cell.run(&["cell", "status", "--json"]);
        let status: Value = serde_json::from_slice(&status.stdout).ok()?;
        let backend = &status["backends"][1];
        let is_whole = backend["state"] == "up" && backend["items"] == 1000;
        (is_whole && backend["corpus"] == status["corpus"]).then_some(())
    });
    // Of an old backup nobody reloads.
    let backup = place.backup();
    let again = cell.run(&["cell", "reload", "--load", &old]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    place.restore(&backup);
    let newer = corpus(&place, "newer");
    let refused = run(&[
        "cell",
        "reload",
        "--load",
        &newer,
        "--cell",
        &place.socket(0),
    ]);
    failed(&refused, &["not"]);
    assert_eq!(get(), "old");
    assert_eq!(place.held()["config_id"], 2);
}

/// A file of a thousand keys, all with this value.
fn corpus(place: &Place, value: &str) -> String {
    let path = place.home.path().join(format!("{value}.jsonl"));
    let line = |number: usize| format!("{{\"key\":\"k{number}\",\"value\":\"{value}\"}}\n");
    std::fs::write(&path, (0..1000).map(line).collect::<String>()).unwrap();
    path.display().to_string()
}

#[test]
fn two_cells_do_not_share_a_place_in_etcd() {
    let place = Place::new();
    let cell = place.up(&[]);
    let other = place.home.path().join("other").display().to_string();
    let address = place.address();
    let up = run(&["cell", "up", "--dir", &other, "--store", &address]);
    failed(&up, &["backend 0 is registered", "stop it first"]);
    assert_eq!(place.held()["config_id"], 1);
    let same = place.dir().display().to_string();
    let up = run(&["cell", "up", "--dir", &same, "--store", &address]);
    failed(&up, &["backend 0 is already running"]);
    assert_eq!(cell.stop(), 0);
    // One in the directory alone is another one, and keeps those in etcd out.
    let cell = Cell::up(&place.dir(), &["--memory", "64MiB"]);
    assert_eq!(cell.stop(), 0);
    let up = run(&["cell", "up", "--dir", &same, "--store", &address]);
    failed(&up, &["holds a cell of its own"]);
}

#[test]
fn mistakes_are_named() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().display().to_string();
    for (store, code, hint) in [
        ("zookeeper://h:1/c", 2, "write etcd://host:port"),
        ("etcd://127.0.0.1:1", 2, "path is missing"),
        ("etcd://10.255.0.1:2379/c", 1, "TREFOIL_ETCD_CA"),
        ("etcd://127.0.0.1:1/c", 1, "etcd cannot be reached"),
    ] {
        let up = run(&["cell", "up", "--dir", &dir, "--store", store]);
        let said = text(&up.stderr);
        assert_eq!(up.status.code(), Some(code), "{store}: {said}");
        assert!(said.contains(hint), "{store}: {said}");
    }
    let get = run(&["get", "a", "--cell", "etcd://h/c"]);
    assert_eq!(get.status.code(), Some(2));
    assert!(text(&get.stderr).contains("write h:2379"));
    let place = Place::new();
    failed(
        &run(&["get", "a", "--cell", &place.address()]),
        &["holds no cell"],
    );
}

/// Certificates on both sides, and a user with a password who may touch the cell's keys
/// only.
#[test]
fn certificates_and_passwords_go_by_the_environment() {
    let home = tempfile::tempdir().unwrap();
    let (mut etcd, access) = guarded_etcd(home.path(), "cells", "mail/");
    let address = format!("etcd://{}/mail", etcd.host());
    let dir = home.path().join("cell");
    let cell = Cell::start_by(
        Command::new(PROGRAM)
            .args(["cell", "up", "--memory", "64MiB", "--dir"])
            .arg(&dir)
            .args(["--store", &address])
            .envs(access.all()),
    );
    let command = |args: &[&str], without: &str| {
        Command::new(PROGRAM)
            .args(args)
            .args(["--cell", &address])
            .env_remove("TREFOIL_CELL")
            .envs(access.without(without))
            .output()
            .unwrap()
    };
    assert!(command(&["set", "a", "value"], "").status.success());
    assert_eq!(text(&command(&["get", "a"], "").stdout).trim_end(), "value");
    etcd.kill();
    etcd.run().unwrap();
    let flushed = parse(&command(&["cell", "flush", "--json"], ""));
    assert_eq!(flushed["backends_flushed"], 3, "{flushed}");
    failed(
        &command(&["get", "a"], "TREFOIL_ETCD_KEY"),
        &["TREFOIL_ETCD_KEY is not"],
    );
    failed(
        &command(&["get", "a"], "TREFOIL_ETCD_USER"),
        &["TREFOIL_ETCD_USER is not"],
    );
    let wrong = write_private(&home.path().join("password"), "open-barley\n");
    assert!(access.all().any(|(_, given)| given == wrong));
    failed(&command(&["get", "a"], ""), &["authentication failed"]);
    assert_eq!(cell.stop(), 0);
}

/// A gateway to a cell, ended with the test.
struct Gateway {
    child: Child,
    port: u16,
}

impl Gateway {
    fn start(cell: &str) -> Self {
        let port = free_port();
        let mut child = Command::new(PROGRAM)
            .args(["gateway", "--cell", cell, "--metrics", "off"])
            .args(["--memcached", &format!("127.0.0.1:{port}")])
            .env_remove("TREFOIL_CELL")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready "), "{line}");
        Gateway { child, port }
    }

    fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(BufReader::new(stream))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Says a line; the first line of the answer.
    fn ask(&mut self, request: &str) -> String {
        let request = format!("{request}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "it hung up");
        line.trim_end().to_owned()
    }
}
