//! An engine that reads by more threads under load, and by fewer when it is over.

use super::certificates::Certs;
use super::{Engine, PATIENCE, await_engine, get_all, metric, said_by_metrics, set, up, value};
use crate::support::{Cell, free_port};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Options};

/// Enough to keep one thread of an engine busy.
const CLIENTS: usize = 20;

/// Somewhat less than a client's patience with its engine: one that has waited for so long may
/// have given its session up.
const LONG: Duration = Duration::from_millis(400);

fn len(at: usize) -> usize {
    100 + at
}

/// Waits until the metrics say so.
fn until(metrics: SocketAddr, is_so: impl Fn(&str) -> bool) -> String {
    let begin = Instant::now();
    loop {
        let said = said_by_metrics(metrics);
        if is_so(&said) {
            return said;
        }
        assert!(begin.elapsed() < PATIENCE, "{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Load adds a thread and calm takes it away, while everybody who reads is served by the
/// session that they have.
fn load_comes_and_goes(
    connect: &(dyn Fn(usize) -> Client + Sync),
    metrics: SocketAddr,
    by_datagrams: bool,
) {
    let keys: Vec<String> = (0..200).map(|at| format!("key {at}")).collect();
    let mut first = connect(0);
    for (at, key) in keys.iter().enumerate() {
        set(&mut first, key, &value(key, 1, len(at)));
    }
    let count = |said: &str, name: &str| metric(said, name, "set-up");
    let said = said_by_metrics(metrics);
    assert_eq!(
        (count(&said, "engines"), count(&said, "engines_max")),
        (1, 2)
    );
    assert_eq!(
        metric(&said, "backends_mapped", "1"),
        1,
        "one that is parked is prepared"
    );
    let mut clients: Vec<Client> = (1..CLIENTS).map(connect).collect();
    clients.push(first);
    let (is_loaded, is_over) = (AtomicBool::new(true), AtomicBool::new(false));
    let [batches, long_batches] = [(); 2].map(|()| AtomicU64::new(0));
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let let_in = count(&said_by_metrics(metrics), "sessions_total");
    std::thread::scope(|scope| {
        for mut client in clients {
            let (keys, is_loaded, is_over) = (&keys, &is_loaded, &is_over);
            let (batches, long_batches) = (&batches, &long_batches);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let begin = Instant::now();
                    get_all(&mut client, keys, len);
                    let is_long = begin.elapsed() >= LONG;
                    long_batches.fetch_add(is_long.into(), Ordering::SeqCst);
                    batches.fetch_add(1, Ordering::SeqCst);
                    if !is_loaded.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(500));
                    }
                }
                await_engine(&mut client);
            });
        }
        let _ends = Ends(&is_over);
        let out = until(metrics, |said| count(said, "scaled_out_total") == 1);
        assert_eq!(count(&out, "engines"), 2, "{out}");
        // The second one has a share of what there is.
        let works = if by_datagrams {
            "datagrams_in_total"
        } else {
            "scans_total"
        };
        until(metrics, |said| metric(said, works, "1") > 100);
        is_loaded.store(false, Ordering::SeqCst);
        let calm = until(metrics, |said| count(said, "scaled_in_total") == 1);
        assert_eq!(count(&calm, "engines"), 1, "{calm}");
        // Everybody is with the first one again, and is served.
        let open = |said: &str| ["0", "1"].map(|engine| metric(said, "sessions_open", engine));
        let left = until(metrics, |said| open(said) == [CLIENTS as u64, 0]);
        let mut parked = metric(&left, works, "1");
        let (mut from, begin) = (batches.load(Ordering::SeqCst), Instant::now());
        loop {
            assert!(begin.elapsed() < PATIENCE, "{parked} by the parked one");
            std::thread::sleep(Duration::from_millis(20));
            if batches.load(Ordering::SeqCst) < from + 3 * CLIENTS as u64 {
                continue;
            }
            let still = metric(&said_by_metrics(metrics), works, "1");
            if still == parked {
                break;
            }
            // What had come to its socket already is its own.
            assert!(by_datagrams, "{still} after {parked}");
            (parked, from) = (still, batches.load(Ordering::SeqCst));
        }
    });
    // A session that moves is the same one. Who waits for half a second, as where this machine
    // stands still, gives it up.
    let said = said_by_metrics(metrics);
    let again = count(&said, "sessions_total") - let_in;
    let long = long_batches.load(Ordering::SeqCst);
    assert!(
        again <= long,
        "{again} have come again, and {long} batches were long: {said}"
    );
    let moves = ["0", "1"].map(|engine| metric(&said, "sessions_moved_total", engine));
    assert!(moves.iter().sum::<u64>() > 0, "{said}");
}

fn metrics_and_listen() -> [SocketAddr; 2] {
    [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())))
}

#[test]
fn load_adds_a_thread_and_calm_takes_it_away() {
    let (_dir, cell) = up("R=1");
    let [metrics, listen] = metrics_and_listen();
    let more = ["--engines", "1..2", "--metrics", &metrics.to_string()];
    let engine = Engine::start_with(&cell, listen, &more);
    load_comes_and_goes(&|_| engine.client(&cell), metrics, false);
    let counted = engine.stop();
    assert!(counted["sessions_moved"] >= 2, "{counted:?}");
}

/// Datagrams follow the number of threads that read, too. Half of the clients ask by their
/// streams: those who wait for datagrams take the core that they would keep busy.
#[test]
fn load_by_datagrams_adds_a_thread_and_calm_takes_it_away() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let [metrics, listen] = metrics_and_listen();
    let (at, of_server) = (metrics.to_string(), certs.of_server());
    let more = ["--engines", "1..2", "--metrics", &at, "--certs", &of_server];
    let engine = Engine::start_with(&cell, listen, &more);
    let connect = |number: usize| {
        let options = Options {
            engine_datagrams: number % 2 == 1,
            ..engine.options()
        };
        certs.client(&cell, options)
    };
    load_comes_and_goes(&connect, metrics, true);
    let counted = engine.stop();
    assert_eq!(counted["malformed"], 0);
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    for (engines, why) in [
        ("0", "choose 1 to"),
        ("0..2", "choose 1 to"),
        ("3..2", "as in 1..4"),
        ("1..65", "choose 1 to 64"),
        ("some", "the fewest and the most: 1..4"),
    ] {
        let output =
            crate::support::run(&["engine", "--cell", "unix:/nowhere", "--engines", engines]);
        let said = crate::support::text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{engines}: {said}");
    }
}

#[test]
fn cell_up_passes_both_numbers_on() {
    let dir = tempfile::tempdir().unwrap();
    let [metrics, listen] = metrics_and_listen().map(|at| at.to_string());
    let file = dir.path().join("cell.toml");
    let text = format!("engine = '{listen}'\nengine_metrics = '{metrics}'\nengines = '1..3'\n");
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let mut args = vec!["--memory", "64MiB", "--mode", "R=1", "--backends", "1"];
    args.extend(["--config", &file]);
    let _cell = Cell::up(&dir.path().join("cell"), &args);
    let said = said_by_metrics(metrics.parse().unwrap());
    let counts = ["engines", "engines_max"].map(|name| metric(&said, name, "set-up"));
    assert_eq!(counts, [1, 3], "{said}");
}
