//! `trefoil doctor`, against real processes.

use crate::support::{Cell, Hanging, kill, reaches_all, run, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Mutated, Options, SetOptions};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation};
use trefoil_rpc::v1::mutate_response::Outcome;

fn connect(cell: &Cell) -> trefoil_client::Cell {
    trefoil_client::Cell::connect(&cell.address).unwrap()
}

fn client(cell: &Cell) -> Client {
    connect(cell).client(Options::default())
}

fn set(client: &mut Client, key: &str, value: &str) {
    let stored = client.set(key.as_bytes(), value.as_bytes(), SetOptions::default());
    assert!(
        matches!(stored, Ok(Mutated::Stored { .. })),
        "{key}: {stored:?}"
    );
}

// Cells here repair nothing (`--repair-interval 0s`): what differs is to be found.

/// Stores keys, at all replicas.
fn fill(cell: &Cell, count: usize) -> Vec<String> {
    let mut client = client(cell);
    let keys: Vec<String> = (0..count).map(|n| format!("key-{n}")).collect();
    // Again, if one of three was passed over.
    for _ in 0..10 {
        reaches_all(&mut client);
        for key in &keys {
            set(&mut client, key, &format!("the value of {key}"));
        }
        client.settle(Duration::from_secs(10));
        let status = cell.status();
        let mut backends = status["backends"].as_array().unwrap().iter();
        if backends.all(|backend| backend["items"].as_u64() >= Some(count as u64)) {
            break;
        }
    }
    keys
}

/// What is found again and again, for a while.
fn at_rest<T: PartialEq>(mut look: impl FnMut() -> T) -> T {
    let (mut found, mut looks) = (look(), 0);
    while looks < 8 {
        std::thread::sleep(Duration::from_millis(250));
        let again = look();
        looks = if again == found { looks + 1 } else { 0 };
        found = again;
    }
    found
}

/// A report, and whether the exit code fits it.
fn report(cell: &Cell, options: &[&str]) -> Value {
    let mut args = vec!["doctor", "--json"];
    args.extend_from_slice(options);
    read(&cell.run(&args))
}

fn read(output: &Output) -> Value {
    // No progress but on a terminal, and nothing to warn of.
    assert_eq!(text(&output.stderr), "");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let is_clean = report["clean"].as_bool().unwrap();
    assert_eq!(
        output.status.code(),
        Some(i32::from(!is_clean)),
        "{report:#}"
    );
    assert_eq!(is_clean, findings(&report).is_empty(), "{report:#}");
    report
}

/// Kinds of the findings, and the backends that they are about.
fn findings(report: &Value) -> Vec<(String, Option<u64>)> {
    let all = report["findings"].as_array().unwrap().iter();
    let finding = |finding: &Value| {
        assert!(!finding["what"].as_str().unwrap().is_empty(), "{finding}");
        assert!(!finding["do"].as_str().unwrap().is_empty(), "{finding}");
        let kind = finding["kind"].as_str().unwrap();
        (kind.to_owned(), finding["backend"].as_u64())
    };
    all.map(finding).collect()
}

fn of(kind: &str, backend: u64) -> (String, Option<u64>) {
    (kind.to_owned(), Some(backend))
}

/// How many keys were found in which state.
fn counted(report: &Value) -> BTreeMap<String, u64> {
    let keys = report["keys"].as_object().unwrap().iter();
    let counts = keys.map(|(state, count)| (state.clone(), count.as_u64().unwrap()));
    counts.filter(|(_, count)| *count > 0).collect()
}

fn counts(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let count = |(state, count): &(&str, u64)| ((*state).to_owned(), *count);
    all.iter().map(count).collect()
}

fn example_keys(report: &Value) -> BTreeSet<String> {
    let examples = report["examples"].as_array().unwrap().iter();
    let key = |example: &Value| example["key"].as_str().unwrap().to_owned();
    examples.map(key).collect()
}

#[test]
fn a_healthy_cell_is_clean_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &["--repair-interval", "0s", "--memory", "128MiB"],
    );
    const KEYS: usize = 20_000;
    fill(&cell, KEYS);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = client(&cell);
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let key = format!("key-{}", round * 7919 % KEYS);
                set(&mut writer, &key, &format!("round {round}"));
                set(&mut writer, "key-0", "the hottest of all");
                if round % 16 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        for options in [&[][..], &["--versions-only"]] {
            let report = report(&cell, options);
            assert_eq!(report["clean"], true, "{report:#}");
            assert_eq!(report["done"], 1.0);
            let keys = counted(&report);
            let clean = keys["clean"];
            let unsettled = keys.get("unsettled").copied().unwrap_or_default();
            assert_eq!(clean + unsettled, KEYS as u64, "{keys:?}");
            assert!(unsettled < 100, "{keys:?}");
            assert_eq!(report["backends"].as_array().unwrap().len(), 3);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Nothing that a script could rely on has another name.
    let report = report(&cell, &[]);
    let names: Vec<&String> = report.as_object().unwrap().keys().collect();
    let mut wanted = [
        "cell",
        "mode",
        "life",
        "config_id",
        "clean",
        "sample",
        "done",
        "values_read",
        "took_ms",
        "bytes_read",
        "keys",
        "findings",
        "examples",
        "backends",
        "engines",
    ];
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    let said = cell.run(&["doctor"]);
    assert!(text(&said.stdout).ends_with("all clean\n"), "{said:?}");
    assert_eq!(said.status.code(), Some(0));
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_cell_of_one_copy_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--mode", "R=1"]);
    fill(&cell, 500);
    let found = report(&cell, &[]);
    assert_eq!(counted(&found), counts(&[("clean", 500)]), "{found:#}");
    assert_eq!(found["mode"], "R=1");
    assert_eq!(cell.stop(), 0);
}

#[test]
fn three_copies_in_one_process_are_clean() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--mode", "R=3.2"]);
    fill(&cell, 500);
    let found = report(&cell, &[]);
    assert_eq!(counted(&found), counts(&[("clean", 500)]), "{found:#}");
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_corpus_in_two_copies_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = dir.path().join("corpus.csv");
    let lines = (0..500).map(|n| format!("key-{n},value {n}\n"));
    std::fs::write(&corpus, format!("key,value\n{}", lines.collect::<String>())).unwrap();
    let corpus = corpus.display().to_string();
    let options = ["--mode", "R=2", "--backends", "3", "--load", &corpus];
    let cell = Cell::up(&dir.path().join("cell"), &options);
    for options in [&[][..], &["--versions-only"]] {
        let report = report(&cell, options);
        assert_eq!(counted(&report), counts(&[("clean", 500)]), "{report:#}");
    }
    kill(cell.pids[1], "KILL");
    let report = report(&cell, &[]);
    assert_eq!(findings(&report), [of("down", 1)], "{report:#}");
    assert!(counted(&report)["short"] > 100, "{report:#}");
    assert_eq!(cell.stop(), 0);
}

#[test]
fn what_a_stopped_backend_has_missed_is_dirty_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &["--repair-interval", "0s", "--memory", "64MiB"],
    );
    let keys = fill(&cell, 2000);
    let mut missed = BTreeSet::new();
    {
        let _hanging = Hanging::new(cell.pids[1]);
        // Until its lease has ended it would be sent what it executes later.
        std::thread::sleep(Duration::from_secs(1));
        // Two of three are left: on a busy machine they may take their time.
        let mut client = trefoil_client::Cell::connect(&cell.address)
            .unwrap()
            .client(Options {
                deadline: Duration::from_secs(30),
                ..Options::default()
            });
        for key in keys.iter().take(150).chain([&"never seen".to_owned()]) {
            set(&mut client, key, "written meanwhile");
            missed.insert(key.clone());
        }
        assert!(matches!(
            client.erase(keys[1999].as_bytes()),
            Ok(Mutated::Stored { .. })
        ));
        missed.insert(keys[1999].clone());
        // One that hangs is told apart from one that is dead, and costs its patience only
        // once or twice.
        let begin = Instant::now();
        let report = report(&cell, &[]);
        assert_eq!(findings(&report), [of("silent", 1)], "{report:#}");
        assert_eq!(counted(&report), counts(&[("short", 2000)]));
        assert!(begin.elapsed() < Duration::from_secs(60), "{report:#}");
    }
    // A message that had waited in the socket of the one that hung is executed now.
    let dirty = at_rest(|| differing(&cell));
    assert!(dirty.is_subset(&missed), "{dirty:?}");
    assert!(dirty.len() >= 140, "{dirty:?}");
    let count = dirty.len() as u64;
    for options in [
        &["--examples", "1000"][..],
        &["--examples", "1000", "--versions-only"],
    ] {
        let report = report(&cell, options);
        let wanted = counts(&[("clean", 2001 - count), ("dirty", count)]);
        assert_eq!(counted(&report), wanted, "{report:#}");
        assert_eq!(example_keys(&report), dirty);
        assert!(findings(&report).iter().all(|f| *f == of("dirty", 1)));
        let findings = report["findings"].as_array().unwrap();
        let told = findings.iter().map(|f| f["keys"].as_u64().unwrap());
        assert_eq!(told.sum::<u64>(), count);
        assert!(findings.iter().any(|f| f["how"] == "older"), "{report:#}");
    }
    // Examples are bounded; figures are not.
    let few = report(&cell, &["--examples", "3"]);
    assert_eq!(example_keys(&few).len(), 3);
    assert_eq!(counted(&few)["dirty"], count);
    // As the findings say: written again, they are clean.
    let mut client = client(&cell);
    reaches_all(&mut client);
    for key in &missed {
        set(&mut client, key, "again");
    }
    client.settle(Duration::from_secs(10));
    let report = report(&cell, &[]);
    assert_eq!(counted(&report), counts(&[("clean", 2001)]), "{report:#}");
    assert_eq!(cell.stop(), 0);
}

/// Keys that not all three replicas hold alike, by another way.
fn differing(cell: &Cell) -> BTreeSet<String> {
    let cell = connect(cell);
    let mut copies: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    let mut cursor = 0;
    loop {
        let mut each = |_: u32, item: &trefoil_client::Listed<'_>| {
            let version = item.version;
            let key = String::from_utf8(item.key.to_vec()).unwrap();
            let version = format!("{version:?}").into_bytes();
            copies.entry(key).or_default().push(version);
        };
        cursor = cell.list_copies(cursor, 1000, &mut each).unwrap();
        if cursor == 0 {
            break;
        }
    }
    let differ = |versions: &Vec<Vec<u8>>| {
        versions.len() < 3 || versions.iter().any(|version| *version != versions[0])
    };
    let differing = copies.into_iter().filter(|(_, versions)| differ(versions));
    differing.map(|(key, _)| key).collect()
}

#[test]
fn a_dead_backend_is_told_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &["--repair-interval", "0s", "--memory", "64MiB"],
    );
    fill(&cell, 300);
    cell.kill(2);
    let down = report(&cell, &[]);
    assert_eq!(findings(&down), [of("down", 2)], "{down:#}");
    assert_eq!(counted(&down), counts(&[("short", 300)]));
    assert_eq!(down["backends"][2]["state"], "down");
    let said = cell.run(&["doctor"]);
    let lines = text(&said.stdout);
    assert!(lines.contains("down: backend 2 is down"), "{lines}");
    assert!(lines.contains("--restart never"), "{lines}");
    assert_eq!(said.status.code(), Some(1));
    // All of them.
    cell.kill(0);
    cell.kill(1);
    let down = report(&cell, &[]);
    assert_eq!(
        findings(&down),
        [of("down", 0), of("down", 1), of("down", 2)]
    );
    assert_eq!(counted(&down), counts(&[]));
    assert_eq!(down["done"], 0.0);
    cell.crash();
}

fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_nanos() as u64
}

/// One mutation at one replica only, as the network of an unlucky client leaves it.
fn mutate_at(cell: &Cell, number: u32, key: &str, time_ns: u64) {
    let config = connect(cell).config();
    let address = config.backend(number).unwrap().nearest_address().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let channel = trefoil_cell::endpoint(address).unwrap().connect_lazy();
    let mut client = trefoil_rpc::client(channel, trefoil_cell::credentials(address));
    let mutation = Mutation {
        action: Action::Set,
        version: Version::new(time_ns, 77, 0),
        entry: DataEntry {
            key: key.as_bytes(),
            value: b"at one replica",
            ..DataEntry::default()
        },
    };
    let request = trefoil_rpc::encode_mutation(number, config.topology_id(), &mutation);
    let answer = runtime
        .block_on(client.mutate(request))
        .unwrap()
        .into_inner();
    assert!(
        matches!(answer.outcome, Some(Outcome::Applied(_))),
        "{answer:?}"
    );
}

#[test]
fn keys_without_a_quorum_and_lone_copies_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &["--repair-interval", "0s", "--memory", "64MiB"],
    );
    fill(&cell, 200);
    let now = now_ns();
    for number in 0..3 {
        mutate_at(
            &cell,
            number,
            "three \u{1b}[31mversions",
            now + u64::from(number),
        );
    }
    mutate_at(&cell, 0, "two", now);
    mutate_at(&cell, 1, "two", now + 1);
    mutate_at(&cell, 2, "lone", now);
    mutate_at(&cell, 0, "key-7", now + 10);
    let found = report(&cell, &[]);
    let wanted = counts(&[("clean", 199), ("dirty", 2), ("inquorate", 2)]);
    assert_eq!(counted(&found), wanted, "{found:#}");
    assert_eq!(
        findings(&found),
        [
            ("inquorate".to_owned(), None),
            of("dirty", 0),
            of("dirty", 2)
        ]
    );
    let keys = example_keys(&found);
    let wanted = ["key-7", "lone", "three \\x1b[31mversions", "two"];
    assert_eq!(keys.iter().collect::<Vec<_>>(), wanted, "escaped");
    let said = text(&cell.run(&["doctor"]).stdout);
    assert!(!said.contains('\u{1b}'), "{said}");
    assert_eq!(cell.stop(), 0);
}

/// Overwrites bytes in the memory that a process shares, behind its back. Says how often
/// they were there.
fn damage(pid: u32, bytes: &[u8], with: &[u8]) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(target) = std::fs::read_link(&path) else {
            continue;
        };
        if !target.to_string_lossy().contains("memfd:trefoil") {
            continue;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path);
        count += file.map_or(0, |file| overwrite(&file, bytes, with));
    }
    count
}

fn overwrite(file: &File, bytes: &[u8], with: &[u8]) -> usize {
    use rustix::fs::{SeekFrom, seek};
    let mut count = 0;
    let mut at = 0;
    // The objects are sparse, and far larger than the host's memory.
    while let Ok(begin) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(begin)).unwrap();
        let mut data = vec![0; (end - begin) as usize];
        file.read_exact_at(&mut data, begin).unwrap();
        for place in 0..data.len().saturating_sub(bytes.len()) {
            if data[place..].starts_with(bytes) {
                file.write_all_at(with, begin + place as u64).unwrap();
                count += 1;
            }
        }
        at = end;
    }
    count
}

#[test]
fn a_damaged_value_is_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &["--repair-interval", "0s", "--memory", "64MiB"],
    );
    fill(&cell, 300);
    let mut client = client(&cell);
    let long = "a long one ".repeat(20_000);
    set(&mut client, "short victim", "mark of the short one");
    set(
        &mut client,
        "long victim",
        &format!("{long} mark of the long one"),
    );
    client.settle(Duration::from_secs(10));
    assert_eq!(counted(&report(&cell, &[])), counts(&[("clean", 302)]));
    let before = lookups(&cell);
    for (victim, mark) in [(2, "mark of the short one"), (0, "mark of the long one")] {
        let hurt = mark.replace("mark", "Mark");
        let count = damage(cell.pids[victim], mark.as_bytes(), hurt.as_bytes());
        assert!(count > 0, "{mark}");
    }
    let found = report(&cell, &[]);
    let wanted = counts(&[("clean", 300), ("corrupt", 2)]);
    assert_eq!(counted(&found), wanted, "{found:#}");
    assert_eq!(findings(&found), [of("corrupt", 0), of("corrupt", 2)]);
    let keys = example_keys(&found);
    assert_eq!(
        keys.iter().collect::<Vec<_>>(),
        ["long victim", "short victim"]
    );
    // Who looks leaves no trace: long values are looked up one by one.
    assert_eq!(lookups(&cell), before);
    // Whoever reads no values sees no damage, and says so.
    let blind = report(&cell, &["--versions-only"]);
    assert_eq!(counted(&blind), counts(&[("clean", 302)]));
    assert_eq!(blind["values_read"], false);
    assert!(blind["bytes_read"].as_u64() < found["bytes_read"].as_u64());
    assert_eq!(cell.stop(), 0);
}

/// Lookups by message and reported reads that the backends have counted.
fn lookups(cell: &Cell) -> Vec<(u64, u64)> {
    let status = cell.json(&["cell", "status", "--json"]);
    let backends = status["backends"].as_array().unwrap().iter();
    let count = |backend: &Value, name: &str| backend[name].as_u64().unwrap();
    let both = |backend: &Value| {
        (
            count(backend, "lookups_by_message"),
            count(backend, "touches"),
        )
    };
    backends.map(both).collect()
}

#[test]
fn a_look_can_be_short_slow_or_partial() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &["--repair-interval", "0s", "--memory", "64MiB"],
    );
    let mut client = client(&cell);
    for n in 0..4000 {
        set(&mut client, &format!("key-{n}"), &"v".repeat(500));
    }
    client.settle(Duration::from_secs(10));
    let sample = report(&cell, &["--sample", "10%"]);
    assert_eq!(sample["clean"], true, "{sample:#}");
    let clean = counted(&sample)["clean"];
    assert!((200..700).contains(&clean), "{clean} of about 400");
    // Two megabytes and more at each backend.
    let slow = report(&cell, &["--rate", "1MiB"]);
    assert_eq!(counted(&slow), counts(&[("clean", 4000)]), "{slow:#}");
    assert!(slow["took_ms"].as_u64().unwrap() > 1500, "{slow:#}");
    let cut = report(&cell, &["--rate", "64KiB", "--timeout", "2s"]);
    assert_eq!(findings(&cut), [("unfinished".to_owned(), None)], "{cut:#}");
    let done = cut["done"].as_f64().unwrap();
    assert!(done < 0.9, "{cut:#}");
    assert!(cut["took_ms"].as_u64().unwrap() < 12_000, "{cut:#}");
    let free = report(&cell, &["--rate", "0"]);
    assert_eq!(counted(&free), counts(&[("clean", 4000)]));
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_metrics_port_is_tried() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = format!("127.0.0.1:{}", crate::support::free_port());
    let cell = Cell::up(
        dir.path(),
        &[
            "--repair-interval",
            "0s",
            "--mode",
            "R=1",
            "--metrics",
            &metrics,
        ],
    );
    fill(&cell, 10);
    let found = report(&cell, &[]);
    assert_eq!(found["clean"], true, "{found:#}");
    assert_eq!(found["backends"][0]["metrics"], metrics.as_str());
    assert_eq!(found["backends"][0]["carrier"], "shared");
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_socket_that_is_gone_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &["--repair-interval", "0s", "--memory", "64MiB"],
    );
    fill(&cell, 10);
    let config = connect(&cell).config();
    let socket = config.backend(1).unwrap().fabric_socket.clone().unwrap();
    std::fs::remove_file(&socket).unwrap();
    let found = report(&cell, &[]);
    assert_eq!(findings(&found), [of("fabric", 1)], "{found:#}");
    assert_eq!(counted(&found), counts(&[("clean", 10)]));
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_wrong_address_and_wrong_options_are_told() {
    let address = format!("127.0.0.1:{}", crate::support::free_port());
    let nobody = run(&["doctor", "--cell", &address, "--json"]);
    assert_eq!(nobody.status.code(), Some(1));
    let said = text(&nobody.stderr);
    assert!(said.contains("cannot reach the cell"), "{said}");
    assert!(
        said.contains(&address) && said.contains("is it up?"),
        "{said}"
    );
    assert_eq!(text(&nobody.stdout), "");
    for options in [
        &["--sample", "0"][..],
        &["--sample", "101%"],
        &["--sample", "many"],
        &["--rate", "fast"],
        &["--timeout", "5 parsecs"],
        &["--repair"],
    ] {
        let args = [&["doctor"], options].concat();
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// What recovery leaves behind is clean, and nobody's epoch is behind.
#[test]
fn a_cell_that_has_recovered_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &[
            "--repair-interval",
            "0s",
            "--memory",
            "64MiB",
            "--restart",
            "always",
        ],
    );
    fill(&cell, 3000);
    cell.kill(0);
    let begin = Instant::now();
    loop {
        let found = report(&cell, &[]);
        let recovered = found["backends"][0]["pid"] != u64::from(cell.pids[0]);
        if recovered && found["clean"] == true {
            assert_eq!(counted(&found), counts(&[("clean", 3000)]), "{found:#}");
            break;
        }
        // On the way it is away, or recovers; no key is wrong.
        for (kind, backend) in findings(&found) {
            let passing = [
                "down",
                "silent",
                "unread",
                "recovering",
                "epoch_skew",
                "refuses",
            ];
            assert!(
                passing.contains(&kind.as_str()),
                "{kind} {backend:?}: {found:#}"
            );
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{found:#}");
    }
    assert_eq!(cell.stop(), 0);
}

/// What was flushed or has expired is nobody's finding; a configuration from before is.
#[test]
fn flushed_and_expired_items_are_no_findings_and_an_old_configuration_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &["--repair-interval", "0s", "--memory", "64MiB"],
    );
    mutate_at(&cell, 0, "one", now_ns());
    mutate_at(&cell, 1, "two", now_ns());
    assert_eq!(counted(&report(&cell, &[])), counts(&[("dirty", 2)]));
    let file = dir.path().join("cell.json");
    let old = std::fs::read(&file).unwrap();
    assert!(cell.run(&["cell", "flush"]).status.success());
    let found = report(&cell, &[]);
    assert_eq!(found["clean"], true, "{found:#}");
    assert_eq!(counted(&found), counts(&[]));
    let soon = SetOptions {
        ttl: Some(Duration::from_millis(1)),
        ..SetOptions::default()
    };
    let mut client = client(&cell);
    assert!(client.set(b"gone at once", b"v", soon).is_ok());
    std::thread::sleep(Duration::from_millis(50));
    let found = report(&cell, &[]);
    assert_eq!(counted(&found), counts(&[]), "{found:#}");
    assert_eq!(found["clean"], true, "{found:#}");
    std::fs::write(&file, old).unwrap();
    let found = report(&cell, &[]);
    assert_eq!(
        findings(&found),
        [("config_skew".to_owned(), None)],
        "{found:#}"
    );
    assert_eq!(cell.stop(), 0);
}
