//! An immutable cell gets another corpus while clients read all the time: nobody goes back,
//! nothing is missed, and whatever dies meanwhile, the old one or the new one is there in
//! whole.

mod deaths;
mod readers;
mod refusals;
mod steps;

use crate::support::{Cell, text};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, Options};

/// How long a restart, and the loading of little, may take here.
const PATIENCE: Duration = Duration::from_secs(60);
/// Keys of every corpus.
const KEYS: usize = 5000;

/// What the corpus of a generation holds for a key.
fn value(generation: u32, key: usize) -> String {
    format!("{generation}:{key}:{}", "x".repeat(100))
}

/// Which corpus a value is of. It has to be what that corpus holds for this key.
fn generation(key: usize, found: &[u8]) -> Result<u32, String> {
    let text = std::str::from_utf8(found).map_err(|e| e.to_string())?;
    let generation = text
        .split(':')
        .next()
        .and_then(|number| number.parse().ok());
    match generation {
        Some(generation) if value(generation, key) == text => Ok(generation),
        _ => Err(format!("k{key} holds {text:?}")),
    }
}

/// Writes the corpus of a generation; its path.
fn corpus(dir: &Path, generation: u32) -> String {
    let path = dir.join(format!("corpus-{generation}.jsonl"));
    let line = |key| {
        format!(
            "{{\"key\":\"k{key}\",\"value\":\"{}\"}}\n",
            value(generation, key)
        )
    };
    std::fs::write(&path, (0..KEYS).map(line).collect::<String>()).unwrap();
    path.display().to_string()
}

/// A cell that serves generation 1.
fn start(dir: &Path, backends: u32, more: &[&str]) -> Cell {
    let (file, backends) = (corpus(dir, 1), backends.to_string());
    let mut args = vec!["--mode", "R=2", "--backends", &backends, "--load", &file];
    if !more.contains(&"--memory") {
        args.extend_from_slice(&["--memory", "64MiB"]);
    }
    args.extend_from_slice(&["--restart", "always"]);
    args.extend_from_slice(more);
    Cell::up(&dir.join("cell"), &args)
}

fn client(cell: &Cell, options: Options) -> Client {
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    connected.client(options)
}

/// The generation of one key, as a client finds it.
fn read(client: &mut Client, key: usize) -> Result<u32, String> {
    match client.get(format!("k{key}").as_bytes()) {
        Ok(Lookup::Hit(hit)) => generation(key, hit.value),
        Ok(Lookup::Miss(reason)) => Err(format!("k{key} is missed: {reason:?}")),
        Err(error) => Err(format!("k{key}: {error}")),
    }
}

/// Every key, which all have to be of one generation.
fn read_all(client: &mut Client) -> u32 {
    let first = read(client, 0).unwrap();
    for key in 0..KEYS {
        assert_eq!(read(client, key), Ok(first));
    }
    first
}

/// It says what it knows when no backend is up, too.
fn status(cell: &Cell) -> Value {
    let output = cell.run(&["cell", "status", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

/// Waits until every backend serves the corpus that the configuration names; that status.
fn await_whole(cell: &Cell) -> Value {
    let begin = Instant::now();
    loop {
        let status = status(cell);
        let serves = |backend: &Value| {
            let has_all = backend["items"].as_u64().is_some_and(|items| items > 0);
            backend["state"] == "up" && backend["corpus"] == status["corpus"] && has_all
        };
        let backends = status["backends"].as_array();
        if backends.is_some_and(|all| !all.is_empty() && all.iter().all(serves)) {
            return status;
        }
        assert!(begin.elapsed() < PATIENCE, "{status:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process of a backend, when it has one.
fn pid(cell: &Cell, number: usize) -> u32 {
    let begin = Instant::now();
    loop {
        let status = status(cell);
        let pid = status["backends"][number]["pid"].as_u64();
        if let Some(pid) = pid.filter(|pid| *pid != 0) {
            return pid as u32;
        }
        assert!(begin.elapsed() < PATIENCE, "{status:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn reload(cell: &Cell, file: &str) -> Result<String, String> {
    let output = cell.run(&["cell", "reload", "--load", file]);
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}
