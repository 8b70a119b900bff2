//! The load generator, hit ratios and the simulator through the command line:
//! that they work at all, and print what scripts rely on.

use crate::support::{Cell, parse, run, text};
use serde_json::Value;
use std::path::Path;

/// Fields of `bench get|set|mix --json` that others script against.
fn assert_summary(json: &Value) {
    for name in [
        "ops", "failed", "misses", "stale", "p50_ns", "p99_ns", "p999_ns",
    ] {
        assert!(json[name].is_u64(), "{name}: {json:#}");
    }
    assert!(json["ops_per_s"].is_f64(), "{json:#}");
    assert!(json["retries"].is_object(), "{json:#}");
    assert!(json["ops"].as_u64().unwrap() > 0, "{json:#}");
    for name in ["failed", "stale", "wrong"] {
        assert_eq!(json[name], 0, "{name}: {json:#}");
    }
    let ns = |name: &str| json[name].as_u64().unwrap();
    assert!(ns("p50_ns") > 0 && ns("p50_ns") <= ns("p99_ns"), "{json:#}");
    assert!(ns("p99_ns") <= ns("p999_ns"), "{json:#}");
}

#[test]
fn get_set_and_mix_print_what_scripts_rely_on() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--mode", "R=3.2", "--memory", "128MiB"]);
    let load = |kind: &str, more: &[&str]| {
        let mut args = vec!["bench", kind, "--keys", "2000", "--value-size", "100"];
        args.extend_from_slice(&["--seconds", "0.3", "--json"]);
        args.extend_from_slice(more);
        let json = cell.json(&args);
        assert_summary(&json);
        json
    };
    assert_eq!(load("set", &[])["hits"], 0);
    let gets = load("get", &[]);
    assert_eq!(gets["misses"], 0, "{gets:#}");
    let batches = load("get", &["--batch", "20", "--no-fill"]);
    assert_eq!(batches["misses"], 0, "{batches:#}");
    let mix = load("mix", &["--rate", "3000", "--zipf", "0.99"]);
    assert_eq!(mix["misses"], 0, "{mix:#}");
    assert!(mix["ops_per_s"].as_f64().unwrap() < 4_500.0, "{mix:#}");
}

#[test]
fn loads_that_make_no_sense_are_usage_errors() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--memory", "64MiB"]);
    for wrong in [
        &["--seconds", "0"][..],
        &["--keys", "0"],
        &["--batch", "0"],
        &["--rate", "-1"],
        &["--zipf", "x"],
        &["--nonsense"],
    ] {
        let mut args = vec!["bench", "get"];
        args.extend_from_slice(wrong);
        let output = cell.run(&args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {said}");
        assert!(!said.is_empty(), "{wrong:?}");
    }
}

#[test]
fn hit_ratios_of_the_oltp_trace_equal_the_reference() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/data/OLTP.lis.zst");
    let json = parse(&run(&[
        "bench",
        "hit-ratio",
        "--trace",
        trace.to_str().unwrap(),
        "--policy",
        "lru",
        "--objects",
        "1000,5000",
        "--json",
    ]));
    let results = json["results"].as_array().unwrap();
    for (result, (objects, percent)) in results.iter().zip([(1000, 32.83), (5000, 53.65)]) {
        assert_eq!(result["objects"], objects);
        let found = result["hit_ratio"].as_f64().unwrap() * 100.0;
        assert!((found - percent).abs() <= 0.01, "{objects}: {found}");
    }
    assert_eq!(results.len(), 2);
}

#[test]
fn traces_that_are_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.lis");
    std::fs::write(&path, "1 3 0 0\nnot a line\n").unwrap();
    let trace = path.to_str().unwrap();
    for trace in [trace, "/nowhere/trace.lis"] {
        let args = ["bench", "hit-ratio", "--trace", trace, "--policy", "lru"];
        let output = run(&[&args[..], &["--objects", "10"]].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(!text(&output.stderr).is_empty());
    }
}

#[cfg(feature = "sim")]
#[test]
fn seeds_are_simulated_and_one_is_replayed() {
    let output = run(&["sim", "--seeds", "200"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("0 violations"), "{said}");
    let replay = run(&["sim", "--seed", "7"]);
    assert!(text(&replay.stdout).contains("seed 7"));
}

#[cfg(feature = "linked")]
#[test]
fn comparisons_of_the_linked_store_that_make_no_sense_are_usage_errors() {
    for wrong in [
        &["--variant", "abacus"][..],
        &["--size", "5"],
        &["--size", "1000", "--used", "0"],
        &["--used", "50"],
        &["--servers", "0"],
        &["--rate", "0"],
    ] {
        let output = run(&[&["bench", "linked"], wrong].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {said}");
        assert!(!said.is_empty(), "{wrong:?}");
    }
}

/// Three backends of a full cell are killed in turn, each recovered before the next; then
/// two at a time, once, which has to show in the same count.
#[test]
fn what_is_lost_when_backends_of_a_full_cell_are_killed_is_counted() {
    let kills = |more: &[&str]| {
        let mut args = vec!["bench", "scenario", "kills", "--quick", "--json"];
        args.extend_from_slice(more);
        // What must be shown needs a machine of its own: its exit code does not count.
        let output = run(&args);
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)))
    };
    let in_turn = kills(&["--kills", "3"]);
    let sum = |json: &Value, name: &str| -> u64 {
        let stretches = ["before", "during", "after", "swept"];
        stretches
            .iter()
            .map(|s| json[s][name].as_u64().unwrap())
            .sum()
    };
    for name in ["stale", "wrong", "lost_just_written"] {
        assert_eq!(sum(&in_turn, name), 0, "{name}: {in_turn:#}");
    }
    // One is dead, and the other two had no turn for as long as an operation may take: a
    // machine that others use. It is rare, and nothing else fails.
    let unanswered = sum(&in_turn, "failed_unanswered");
    assert_eq!(sum(&in_turn, "failed"), unanswered, "{in_turn:#}");
    assert!(unanswered < 20, "{in_turn:#}");
    // Two replicas held it, and no two answered in time: a machine that others use.
    let lost = sum(&in_turn, "lost") - sum(&in_turn, "lost_inquorate");
    assert_eq!(lost, 0, "{in_turn:#}");
    assert!(sum(&in_turn, "owed") > 10_000, "{in_turn:#}");
    assert!(sum(&in_turn, "owed_just_written") > 1_000, "{in_turn:#}");
    // The cell is full: keys are missed, and filled in.
    assert!(sum(&in_turn, "fills") > 1_000, "{in_turn:#}");
    let recoveries = in_turn["recoveries"].as_array().unwrap();
    assert_eq!(recoveries.len(), 3);
    for recovery in recoveries {
        assert_eq!(recovery["shards_lost"], 0, "{in_turn:#}");
        assert!(recovery["items"].as_u64() > Some(10_000), "{in_turn:#}");
    }
    let at_once = kills(&["--overlap", "--kills", "1"]);
    assert!(sum(&at_once, "lost") > 100, "{at_once:#}");
}

/// Values of chaos that are half as much again as fits: few and long, or to write them all
/// first would take longer than the chaos.
const FULL: [&str; 4] = ["--keys", "16000", "--value-len", "2000..5000"];

/// How often faults were done, by what `histories --json` says.
fn done(json: &Value, faults: &[&str]) -> u64 {
    let of = |fault: &&str| json["faults"][fault]["done"].as_u64();
    faults.iter().filter_map(of).sum()
}

/// Two minutes of it are a stage of `make test`; here, that a run is what its options say,
/// and that the doctor finds nothing wrong afterwards.
#[test]
fn a_short_chaos_does_what_it_is_told_and_finds_nothing() {
    let faults = "kill,restart,move,client-kill,memory";
    let args = [
        "histories",
        "--chaos",
        "--seconds",
        "8",
        "--clients",
        "4",
        "--faults",
        faults,
        "--json",
    ];
    let output = run(&[&args[..], &FULL].concat());
    let json = parse(&output);
    assert!(output.status.success(), "{json:#}");
    assert_eq!(json["rounds"], 1, "{json:#}");
    assert!(json["comparisons"].as_u64() > Some(1000), "{json:#}");
    assert_eq!(json["healthy"], 1, "{json:#}");
    assert!(json["evictions"].as_u64() > Some(1000), "{json:#}");
    // One of a backend, and one beside it: which, the dice say.
    assert!(done(&json, &["kill", "move"]) > 0, "{json:#}");
    assert!(done(&json, &["client-kill", "memory"]) > 0, "{json:#}");
    assert_eq!(json["recoveries"], done(&json, &["kill"]), "{json:#}");
    assert_eq!(json["away_max"], 1, "{json:#}");
    for unwished in ["stop", "drain", "etcd-kill", "network"] {
        assert!(json["faults"][unwished].is_null(), "{json:#}");
    }
}

/// A dead backend that nobody starts again: a spare takes its place. At full memory, where
/// misses are allowed: beside others on the machine a GET may say *inquorate* meanwhile.
#[test]
fn in_a_short_chaos_a_spare_takes_a_dead_backends_place() {
    let args = [
        "histories",
        "--chaos",
        "--seconds",
        "6",
        "--clients",
        "4",
        "--faults",
        "replace,client-kill",
        "--json",
    ];
    let output = run(&[&args[..], &FULL].concat());
    let json = parse(&output);
    assert!(output.status.success(), "{json:#}");
    assert!(done(&json, &["replace"]) > 0, "{json:#}");
    assert_eq!(json["recoveries"], done(&json, &["replace"]), "{json:#}");
    assert_eq!(json["healthy"], 1, "{json:#}");
    assert!(json["evictions"].as_u64() > Some(1000), "{json:#}");
}

/// Two of three replicas may lose their memory: freshness is void, and no value may be made
/// up, or be one whose write was said not to be done.
#[test]
fn with_two_backends_away_at_a_time_no_value_is_made_up() {
    let output = run(&[
        "histories",
        "--chaos",
        "--overlap",
        "2",
        "--seconds",
        "10",
        "--keys",
        "4000",
        "--clients",
        "4",
        "--faults",
        "kill,restart",
        "--json",
    ]);
    let json = parse(&output);
    assert!(output.status.success(), "{json:#}");
    assert_eq!(json["away_max"], 2, "{json:#}");
    assert!(done(&json, &["kill"]) >= 2, "{json:#}");
    assert!(json["damages"].as_u64() > Some(0), "{json:#}");
}

/// The only copies move about, and nothing that was acknowledged may be missed.
#[test]
fn moves_and_drains_of_the_only_copies_lose_nothing() {
    let output = run(&[
        "histories",
        "--seconds",
        "8",
        "--rounds",
        "1",
        "--mode",
        "R=1",
        "--keys",
        "2000",
        "--value-len",
        "100..1000",
        "--memory",
        "64MiB",
        "--clients",
        "4",
        "--faults",
        "move,drain,upgrade",
        "--json",
    ]);
    let json = parse(&output);
    assert!(output.status.success(), "{json:#}");
    assert!(done(&json, &["move", "drain", "upgrade"]) > 0, "{json:#}");
    assert_eq!(json["unfinished"], 0, "{json:#}");
    // How many GETs would have shown a loss.
    assert!(json["owed"].as_u64() > Some(1000), "{json:#}");
    let lost_hits = &json["damages_by_kind"]["lost-hit"];
    assert!(lost_hits.as_u64() > Some(0), "{json:#}");
}

#[test]
fn faults_that_a_mode_cannot_bear_are_usage_errors() {
    let output = run(&["histories", "--mode", "R=1", "--faults", "replace"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("begins empty"), "{said}");
}

/// Every kind of neighbour, in front of `serve` and of a gateway: all are answered as they
/// should be. How fast is for a machine of its own.
#[test]
fn gets_beside_every_kind_of_neighbour_are_answered() {
    let args = ["bench", "scenario", "neighbours", "--quick", "--json"];
    let output = run(&args);
    let json = serde_json::from_slice::<Value>(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
    let doors = json["doors"].as_array().unwrap();
    for (door, (cases, items)) in doors.iter().zip([(31, 2500), (34, 2500)]) {
        let all = door["cases"].as_array().unwrap();
        assert_eq!(all.len(), cases, "{door:#}");
        for case in all {
            let may_miss = case["empties"] == true;
            for gets in [&case["alone"], &case["beside"]] {
                assert!(gets["count"].as_u64() > Some(0), "{case:#}");
                assert_eq!(gets["failed"], 0, "{case:#}");
                assert!(may_miss || gets["misses"] == 0, "{case:#}");
            }
            assert!(case["rounds"].as_u64() > Some(0), "{case:#}");
            assert!(case["may_fail"] == true || case["errors"] == 0, "{case:#}");
        }
        // Nothing is left out of a list of all items, by whatever command.
        let listed = door["enumerations"].as_array().unwrap();
        assert_eq!(listed.len(), 5, "{door:#}");
        for list in listed {
            assert_eq!(list["items"], items, "{list:#}");
        }
    }
    assert_eq!(doors.len(), 2, "{json:#}");
    let beside = |name: &str| {
        let cases = doors[1]["cases"].as_array().unwrap();
        cases.iter().find(|case| case["name"] == name).cloned()
    };
    // What is meant to fail does, or the others would show nothing.
    let incr = beside("incr, no quorum").unwrap();
    assert!(incr["errors"].as_u64() > Some(0), "{incr:#}");
}

#[test]
fn the_ordered_queue_is_measured_beside_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let mut args = vec!["bench", "ordered", "--runs", "1", "--seconds", "0.03"];
    args.extend_from_slice(&["--folder", folder]);
    args.push("--json");
    let output = run(&args);
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("needs two cores"));
        return;
    }
    let report = parse(&output);
    let rows = |part: &str| report[part].as_array().unwrap().clone();
    let commits = rows("commits");
    let of = |what: &str| commits.iter().filter(|row| row["what"] == what).count();
    for what in [
        "bare loop",
        "nilext SET, ordered queue",
        "executed SET, ordered queue",
        "SET of a cell today, R=1",
        "SET of a cell with a queue, executed",
        "SET of a cell with a queue, acknowledged",
        "GET of it after a SET that is acknowledged",
    ] {
        assert_eq!(of(what), 4, "{what}: {report:#}");
    }
    for row in commits {
        assert!(row["latency"]["p50_ns"].as_u64().unwrap() > 0, "{row:#}");
    }
    let workloads = rows("workloads");
    assert_eq!(workloads.len(), 12, "four workloads on three systems");
    for row in workloads {
        assert!(row["peak_per_s"].as_f64().unwrap() > 0.0, "{row:#}");
        assert!(row["paper_p50_us"].as_f64().unwrap() > 3.0, "{row:#}");
        let count = |field: &str| row[field].as_u64().unwrap();
        assert!(
            count("slices") > 0 && count("paused") <= count("slices"),
            "{row:#}"
        );
    }
    let shared = rows("shared");
    assert_eq!(shared[1]["clients"], 200);
    assert_eq!(shared[1]["connections"], 4);
    assert_eq!(rows("durable").len(), 6);
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "its files go with it");
}
