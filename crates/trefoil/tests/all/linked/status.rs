//! `linked status` and `linked top` of real processes.

use super::fleet::{Running, assigner, kinds, sessions, status, trefoil, until};
use crate::support::PROGRAM;
use crate::support::etcd::guarded_etcd;
use serde_json::Value;
use std::process::Command;
use trefoil_endpoint::Drain;
use trefoil_linklet::{Linklet, PlainMarshal};
use trefoil_ports::EtcdProcess;

fn corpus<'a>(status: &'a Value, name: &str) -> &'a Value {
    let corpora = status["corpora"].as_array().unwrap();
    corpora
        .iter()
        .find(|corpus| corpus["corpus"] == name)
        .unwrap()
}

/// All servers have slices, and have said how they are.
fn is_known(status: &Value, servers: usize) -> bool {
    let known = corpus(status, "sessions")["servers"].as_array().unwrap();
    let is_well = |server: &Value| {
        server["slices"].as_u64() > Some(0)
            && server["cpu"].is_number()
            && server["load"].is_number()
            && server["settled"] == true
            && server["slices_short"] == 0
    };
    known.len() == servers && known.iter().all(is_well)
}

fn text(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = trefoil(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn slices_owners_loads_and_what_a_death_does() {
    let assigner = assigner(&["--lease", "1s"]);
    let at = assigner.at("address").to_string();
    let mut servers: Vec<Running> = (0..3).map(|_| sessions(&at, &[]).0).collect();
    let well = until(
        || status(&at),
        |now| {
            let is_known = !now["corpora"].as_array().unwrap().is_empty() && is_known(now, 3);
            is_known && kinds(now).is_empty()
        },
    );
    let sessions = corpus(&well, "sessions");
    assert_eq!(sessions["leader"], at.as_str());
    let shares: f64 = (0..3)
        .map(|n| sessions["servers"][n]["key_space"].as_f64().unwrap())
        .sum();
    // Each key is at two.
    assert!((shares - 2.0).abs() < 1e-6, "{shares}");
    assert!(
        !sessions["hottest"].as_array().unwrap().is_empty(),
        "{sessions}"
    );

    let (code, shown, _) = text(&["linked", "status", "--assigner", &at]);
    assert_eq!(code, Some(0));
    for expected in [
        "corpus sessions · led by",
        "requests/s",
        "owner, copies",
        "nothing to see to",
        servers[0].ready.split(' ').next().unwrap(),
    ] {
        assert!(shown.contains(expected), "no {expected:?} in {shown}");
    }
    let (code, top, _) = text(&[
        "linked",
        "top",
        "--once",
        "--interval",
        "300ms",
        "--assigner",
        &at,
    ]);
    assert_eq!(code, Some(0));
    assert!(top.contains("moves/s") && top.contains("out/s"), "{top}");
    let (code, _, error) = text(&["linked", "top", "--assigner", &at]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--once"), "{error}");

    servers[0].kill();
    let moved = until(
        || status(&at),
        |now| is_known(now, 2) && corpus(now, "sessions")["totals"]["expired"].as_u64() >= Some(1),
    );
    let totals = &corpus(&moved, "sessions")["totals"];
    assert!(totals["moves"].as_u64() > Some(0), "{totals}");
    let changes = corpus(&moved, "sessions")["changes"].as_array().unwrap();
    assert!(!changes.is_empty());
    let (_, raw, _) = text(&[
        "linked",
        "top",
        "--json",
        "--once",
        "--interval",
        "300ms",
        "--assigner",
        &at,
    ]);
    let report: Value = serde_json::from_str(&raw).unwrap();
    let seconds = report["seconds"].as_f64().expect("between two readings");
    assert!(seconds >= 0.3, "{raw}");

    // The other has no place for its copies: that is said, and what to do.
    servers[1].kill();
    let alone = until(
        || status(&at),
        |now| kinds(now).iter().any(|kind| kind == "too-few-copies"),
    );
    let advice = alone["problems"][0]["advice"].as_str().unwrap();
    assert!(!advice.is_empty());
    let (_, shown, _) = text(&["linked", "status", "--assigner", &at]);
    assert!(
        shown.contains("! sessions: ") && shown.contains("add servers"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn losses_and_a_freeze_are_said() {
    let assigner = assigner(&["--lease", "1s"]);
    let at = assigner.at("address").to_string();
    let join = async || {
        let builder = Linklet::builder("plain", PlainMarshal);
        let joined = builder.listen(at.as_str(), "127.0.0.1:0".parse().unwrap());
        joined.await.unwrap()
    };
    let (one, other): (Linklet<String>, _) = (join().await, join().await);
    one.settled().await;
    other.settled().await;
    // Without copies, and without giving anything away.
    one.leave().await;
    let lost = Drain::Lost("was no member any more".to_owned());
    assert_eq!(one.process().drained(), Some(lost));
    let address = at.clone();
    let told = tokio::task::spawn_blocking(move || {
        let lost = until(|| status(&address), |now| kinds(now) == ["loss"]);
        let frozen = trefoil(&["assigner", "freeze", "--assigner", &address]);
        assert!(frozen.status.success());
        let frozen = until(|| status(&address), |now| kinds(now).len() == 2);
        (lost, frozen)
    });
    let (lost, frozen) = told.await.unwrap();
    let what = lost["problems"][0]["what"].as_str().unwrap();
    assert!(
        what.contains("ranges") && what.contains("their owner"),
        "{what}"
    );
    assert_eq!(corpus(&lost, "plain")["servers"][0]["losses"], 1);
    assert_eq!(kinds(&frozen), ["frozen", "loss"]);
    assert_eq!(other.stats().losses, 1);
}

#[test]
fn wrong_addresses_and_dead_parts_are_named() {
    let port = crate::support::free_port();
    let nobody = format!("127.0.0.1:{port}");
    let (code, _, error) = text(&["linked", "status", "--assigner", &nobody]);
    assert_eq!(code, Some(1));
    assert!(
        error.contains(&nobody) && error.contains("Is `trefoil assigner` running there?"),
        "{error}"
    );
    for (address, expected) in [
        ("host", "has no port"),
        ("http://h:1", "is not served"),
        ("etcd://h:1", "a prefix is missing"),
    ] {
        let (code, _, error) = text(&["linked", "top", "--once", "--assigner", address]);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    // One of two is dead: the store is shown, and the dead one is a problem.
    let alive = assigner(&["--corpus", "mail"]);
    let both = format!("{nobody},{}", alive.at("address"));
    let seen = status(&both);
    assert_eq!(kinds(&seen), ["assigner"]);
    assert_eq!(seen["assigners"][0]["answers"], false);
    assert_eq!(seen["assigners"][1]["leads"][0], "mail");
    // Something else answers.
    let metrics = alive.at("metrics").to_string();
    let (code, _, error) = text(&["linked", "status", "--assigner", &metrics]);
    assert_eq!(code, Some(1));
    assert!(error.contains(&metrics), "{error}");
}

#[test]
fn assigners_are_found_in_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let mut etcd = EtcdProcess::start(dir.path(), None).unwrap();
    let store = format!("etcd://{}/linked", etcd.host());
    let (code, _, error) = text(&["linked", "status", "--assigner", &store]);
    assert_eq!(code, Some(1));
    assert!(
        error.contains("is one running with this --store?"),
        "{error}"
    );
    let leader = assigner(&["--store", &store, "--corpus", "mail"]);
    let at = leader.at("address").to_string();
    let found = until(
        || trefoil(&["linked", "status", "--json", "--assigner", &store]),
        |output| output.status.success(),
    );
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["assigners"][0]["address"], at.as_str());
    assert_eq!(found["assigners"][0]["store"], store.as_str());
    etcd.kill();
    let held = until(|| status(&at), |now| !kinds(now).is_empty());
    assert!(
        ["store", "leader"].contains(&kinds(&held)[0].as_str()),
        "{held}"
    );
    let (code, _, error) = text(&["linked", "status", "--assigner", &store]);
    assert_eq!(code, Some(1));
    assert!(error.contains(&store), "{error}");
}

/// With certificates and a password, like cells.
#[test]
fn assigners_come_into_etcd_by_the_environment() {
    let home = tempfile::tempdir().unwrap();
    let (etcd, access) = guarded_etcd(home.path(), "assigners", "linked/");
    let store = format!("etcd://{}/linked", etcd.host());
    let leader = Running::start_by(
        Command::new(PROGRAM)
            .args(["assigner", "--listen", "127.0.0.1:0", "--corpus", "mail"])
            .args(["--store", &store])
            .envs(access.all()),
    );
    let look = |without: &str| {
        Command::new(PROGRAM)
            .args(["linked", "status", "--json", "--assigner", &store])
            .envs(access.without(without))
            .output()
            .unwrap()
    };
    let found = until(|| look(""), |output| output.status.success());
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let at = leader.at("address").to_string();
    assert_eq!(found["assigners"][0]["address"], at.as_str());
    for (without, hint) in [
        ("TREFOIL_ETCD_CERT", "TREFOIL_ETCD_KEY is set"),
        ("TREFOIL_ETCD_USER", "TREFOIL_ETCD_PASSWORD_FILE is set"),
        ("TREFOIL_ETCD_CA", "set both"),
    ] {
        let output = look(without);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(error.contains(hint), "{without}: {error}");
    }
}
