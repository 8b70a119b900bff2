//! Files that cannot be loaded, memory that does not hold both, and files that are gone:
//! the old corpus stays whole, and what to do is said.

use super::{KEYS, PATIENCE, await_whole, client, corpus, pid, read_all, reload, start, status};
use crate::support::{Cell, kill, text};
use serde_json::Value;
use std::path::Path;
use std::time::Instant;
use trefoil_client::Options;

/// A corpus of so many items, of which each value has a kilobyte.
fn large(dir: &Path, name: &str, count: usize) -> String {
    let path = dir.join(name);
    let value = "y".repeat(1000);
    let line = |n| format!("{{\"key\":\"large-{n}\",\"value\":\"{value}\"}}\n");
    std::fs::write(&path, (0..count).map(line).collect::<String>()).unwrap();
    path.display().to_string()
}

/// Items of the backends, and what was evicted.
fn held(cell: &Cell) -> Vec<(u64, u64)> {
    let status = status(cell);
    let backends = status["backends"].as_array().unwrap().iter();
    let number = |backend: &Value, field: &str| backend[field].as_u64().unwrap();
    backends
        .map(|b| {
            (
                number(b, "items"),
                number(b, "evictions_capacity") + number(b, "evictions_associativity"),
            )
        })
        .collect()
}

#[test]
fn what_cannot_be_loaded_leaves_the_old_corpus_whole() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 2, &[]);
    let before = (held(&cell), status(&cell)["corpus"].clone());
    assert_eq!(before.0, [(KEYS as u64, 0); 2]);
    let good = std::fs::read_to_string(corpus(dir.path(), 2)).unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let cut = &good[..good.len() - 20];
    let gone = dir.path().join("gone.jsonl").display().to_string();
    let folder = dir.path().display().to_string();
    let cases = [
        (gone, "cannot read"),
        (folder, "cannot read"),
        (file("cut.jsonl", cut), "line 5000"),
        (file("bad.jsonl", &format!("{good}nonsense\n")), "line 5001"),
        (
            file("bad.csv", "clef,valeur\na,b\n"),
            "the header names no column \"key\"",
        ),
        // Twice what the limit allows, and what would fit alone.
        (large(dir.path(), "huge.jsonl", 100_000), "raise the limit"),
    ];
    for (path, hint) in &cases {
        let why = reload(&cell, path).unwrap_err();
        assert!(why.contains(hint), "{path}: {why}");
        assert!(why.contains("the old"), "{path}: {why}");
        assert_eq!(
            (held(&cell), status(&cell)["corpus"].clone()),
            before,
            "{path}"
        );
    }
    assert_eq!(read_all(&mut client(&cell, Options::default())), 1);
    // To drop the old one first does not help what is too large by itself, or damaged:
    // that is found out before anything is dropped.
    for (path, _) in &cases {
        let output = cell.run(&["cell", "reload", "--clear-first", "--load", path]);
        assert_eq!(output.status.code(), Some(1), "{path}");
        assert!(
            text(&output.stderr).contains("the old"),
            "{path}: {}",
            text(&output.stderr)
        );
        assert_eq!(
            (held(&cell), status(&cell)["corpus"].clone()),
            before,
            "{path}"
        );
    }
    // Most of the memory: another one like that does not fit beside it.
    reload(&cell, &large(dir.path(), "one.jsonl", 33_000)).unwrap();
    let before = (held(&cell), status(&cell)["corpus"].clone());
    assert_eq!(before.0, [(33_000, 0); 2]);
    let other = large(dir.path(), "other.jsonl", 34_000);
    let why = reload(&cell, &other).unwrap_err();
    assert!(why.contains("--clear-first"), "{why}");
    assert!(why.contains("Nothing was dropped"), "{why}");
    assert_eq!((held(&cell), status(&cell)["corpus"].clone()), before);
    let output = cell.run(&["cell", "reload", "--clear-first", "--load", &other]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(held(&cell), [(34_000, 0); 2]);
    // To a smaller one, beside the one that fills most of the memory.
    reload(&cell, &corpus(dir.path(), 2)).unwrap();
    assert_eq!(held(&cell), [(KEYS as u64, 0); 2]);
    assert_eq!(read_all(&mut client(&cell, Options::default())), 2);
    assert_eq!(cell.stop(), 0);
}

/// Both replicas are killed, so that only the file is left; and that is gone, then another
/// one, then there again.
#[test]
fn without_a_replica_the_very_file_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 2, &[]);
    let second = corpus(dir.path(), 2);
    reload(&cell, &second).unwrap();
    let content = std::fs::read(&second).unwrap();
    std::fs::remove_file(&second).unwrap();
    kill_both(&cell);
    await_wait(&cell, "No such file");
    // As long as the first one, and as the second: not what was loaded.
    std::fs::copy(corpus(dir.path(), 1), &second).unwrap();
    await_wait(&cell, "it is not the file that was loaded");
    let report = cell.run(&["doctor", "--json"]);
    assert_eq!(report.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let recovering = findings.iter().filter(|f| f["kind"] == "recovering");
    assert_eq!(recovering.count(), 2, "{report:#}");
    std::fs::write(&second, &content).unwrap();
    await_whole(&cell);
    assert_eq!(read_all(&mut client(&cell, Options::default())), 2);
    // Where the file never comes back, another corpus does.
    std::fs::remove_file(&second).unwrap();
    kill_both(&cell);
    await_wait(&cell, "No such file");
    reload(&cell, &corpus(dir.path(), 3)).unwrap();
    await_whole(&cell);
    assert_eq!(read_all(&mut client(&cell, Options::default())), 3);
    assert_eq!(cell.stop(), 0);
}

fn kill_both(cell: &Cell) {
    let pids = [0, 1].map(|number| pid(cell, number));
    pids.iter().for_each(|pid| kill(*pid, "KILL"));
    let begin = Instant::now();
    while [0, 1]
        .iter()
        .any(|number| pids.contains(&pid(cell, *number)))
    {
        assert!(begin.elapsed() < PATIENCE);
    }
}

/// Waits until both say that they wait for this.
fn await_wait(cell: &Cell, why: &str) {
    let begin = Instant::now();
    loop {
        let status = status(cell);
        let waits = |backend: &Value| {
            let said = backend["recovery"]["waits_for"]
                .as_str()
                .unwrap_or_default();
            backend["state"] == "recovering" && said.contains(why)
        };
        if status["backends"].as_array().unwrap().iter().all(waits) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{status:#}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
