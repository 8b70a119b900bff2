//! Quick forms of the scenarios whose full forms show what a release has to show. What
//! counts here is what was lost, failed, missed or old: latencies need a machine of their
//! own.

use crate::support::{run, text};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};

/// Of so many operations one may fail or find no quorum: where others use the machine, two
/// backends at a time may be kept from their turn for longer than a lease.
const STARVED_ONE_IN: u64 = 1000;
/// Then so many keys may be with two of three only, until they are repaired.
const STARVED_KEYS_MAX: u64 = 20;

/// A scenario's report. Its exit code does not count: it knows of latencies, too. One at a
/// time: each has a core for its load, and one for its servers.
fn report(words: &[&str]) -> Value {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = run(&[&["bench"], words, &["--quick", "--json"]].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", text(&output.stderr)))
}

fn scenario(name: &str) -> Value {
    report(&["scenario", name])
}

/// A load during which nothing may have happened.
fn assert_kept(course: &Value, json: &Value) {
    let count = |name: &str| course[name].as_u64().unwrap();
    assert!(count("operations") > 1000, "{json:#}");
    assert_eq!(count("stale"), 0, "{json:#}");
    let amiss = count("failed") + count("misses");
    assert!(
        amiss <= count("operations") / STARVED_ONE_IN,
        "{amiss} failed or were missed: {json:#}"
    );
}

/// Every key was found in the end, with its last value.
fn assert_read_back(found: &Value, json: &Value) {
    assert!(found["checked"].as_u64() > Some(1000), "{json:#}");
    for name in ["lost", "stale"] {
        assert_eq!(found[name], 0, "{name}: {json:#}");
    }
}

/// The load's own loop was looked at.
fn assert_watched(course: &Value, json: &Value) {
    let own = &course["loop"];
    assert!(own["late_max_ns"].as_u64() > Some(0), "{json:#}");
    assert!(own["bare_max_ns"].as_u64() > Some(0), "{json:#}");
    assert!(own["looked_share"].as_f64() > Some(0.0), "{json:#}");
}

fn assert_of_both_modes(json: &Value) {
    for mode in ["three", "one"] {
        let figures = &json[mode];
        for course in ["before", "during"] {
            assert_kept(&figures[course], json);
            assert_watched(&figures[course], json);
        }
        assert_read_back(figures, json);
        assert_eq!(
            figures["each"].as_array().map(Vec::len),
            Some(1),
            "{json:#}"
        );
    }
}

#[test]
fn nothing_is_lost_while_every_backend_moves() {
    assert_of_both_modes(&scenario("planned"));
}

#[test]
fn nothing_is_lost_while_a_cell_is_resized() {
    assert_of_both_modes(&scenario("resize"));
}

#[test]
fn a_backend_recovers_the_doctor_finds_all_clean_and_the_next_may_die() {
    let json = scenario("recovery");
    assert_kept(&json["before"], &json);
    assert_kept(&json["during"], &json);
    // What a starved machine has kept from one of the three, the doctor has to see: nothing
    // else may be lost with the next backend.
    let findings = json["doctor"]["findings"].as_array().unwrap();
    let told: u64 = findings
        .iter()
        .map(|f| f["keys"].as_u64().unwrap_or(0))
        .sum();
    let is_of_keys = |f: &Value| f["keys"].as_u64() > Some(0);
    assert!(findings.iter().all(is_of_keys), "{json:#}");
    assert_eq!(json["doctor"]["is_clean"], told == 0, "{json:#}");
    let lost = json["lost"].as_u64().unwrap();
    assert!(lost <= told && told <= STARVED_KEYS_MAX, "{json:#}");
    assert!(
        json["doctor"]["clean_keys"].as_u64() > Some(49_000),
        "{json:#}"
    );
    // It votes first, and has everything some seconds later.
    assert!(
        json["votes_s"].as_f64() < json["back_s"].as_f64(),
        "{json:#}"
    );
    assert_eq!(json["each"][0]["shards_lost"], 0, "{json:#}");
    assert_eq!(json["stale"], 0, "{json:#}");
}

#[test]
fn nobody_notices_that_etcd_is_dead() {
    let json = scenario("etcd");
    for course in ["alive", "dead"] {
        assert_kept(&json[course], &json);
        assert!(json[course]["set_p50_ns"].as_u64() > Some(0), "{json:#}");
    }
    assert!(json["resumed_s_max"].as_f64() > Some(0.0), "{json:#}");
    assert_read_back(&json, &json);
}

#[test]
fn what_a_backend_missed_is_given_back() {
    let json = scenario("repair");
    assert!(json["missed"].as_u64() >= Some(500), "{json:#}");
    assert!(json["repaired"].as_u64() > Some(0), "{json:#}");
    for name in ["left", "lost"] {
        assert_eq!(json[name], 0, "{name}: {json:#}");
    }
}

#[test]
fn maintenance_is_drawn_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().display().to_string();
    let json = report(&["maintenance", "--out", &out]);
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3, "{json:#}");
    for run in runs {
        assert_kept(&run["load"], &run["load"]);
        for name in ["lost", "stale"] {
            assert_eq!(run[name], 0, "{name}: {:#}", run["missing"]);
        }
        let name = run["name"].as_str().unwrap();
        for ending in ["csv", "svg", "png"] {
            let file = dir.path().join(format!("maintenance-{name}.{ending}"));
            assert!(file.is_file(), "{}", file.display());
        }
    }
}
