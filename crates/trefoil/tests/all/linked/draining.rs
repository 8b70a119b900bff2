//! `linked drain`, and what it leaves behind.

use super::fleet::{assigner, http, sessions, status, trefoil, until};
use rustix::process::Signal;

fn drain(at: std::net::SocketAddr, more: &[&str]) -> (Option<i32>, String, String) {
    let at = at.to_string();
    let output = trefoil(&[&["linked", "drain", "--at", &at][..], more].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_server_gives_everything_away_before_it_is_stopped() {
    let assigner = assigner(&["--lease", "1s"]);
    let at = assigner.at("address").to_string();
    let (mut leaving, leaves) = sessions(&at, &[]);
    let (_staying, stays) = sessions(&at, &[]);
    for metrics in [leaves, stays] {
        until(
            || http(metrics, "GET /readyz"),
            |(status, _)| *status == 200,
        );
    }
    assert_eq!(http(leaves, "GET /drain").0, 409);
    let (code, said, _) = drain(leaves, &[]);
    assert_eq!((code, said.as_str()), (Some(0), "drained\n"));
    let (ready, why) = http(leaves, "GET /readyz");
    assert_eq!(ready, 503);
    assert!(why.contains("gives everything"), "{why}");
    let now = status(&at);
    let servers = now["corpora"][0]["servers"].as_array().unwrap();
    let drained = servers.iter().find(|server| server["state"] == "draining");
    assert_eq!(drained.expect("it is a member still")["slices"], 0);
    assert_eq!(http(leaves, "GET /drain"), (200, "drained".to_owned()));
    leaving.signal(Signal::TERM);
    assert!(leaving.ended_well());

    // The last one has nobody to give to.
    let (code, _, error) = drain(stays, &["--timeout", "1s"]);
    assert_eq!(code, Some(1));
    assert!(
        error.contains("slices and") && error.contains("not drained in time"),
        "{error}"
    );
}

#[test]
fn an_assigner_stops_leading() {
    let assigner = assigner(&["--corpus", "mail"]);
    let at = assigner.at("address").to_string();
    until(
        || status(&at),
        |now| now["corpora"][0]["leader"] == at.as_str(),
    );
    let metrics = assigner.at("metrics");
    assert_eq!(drain(metrics, &[]).0, Some(0));
    assert_eq!(http(metrics, "GET /readyz").0, 503);
    until(|| status(&at), |now| now["corpora"][0]["leader"] == "");
}

#[test]
fn what_is_no_process_to_drain_is_said() {
    let port = crate::support::free_port();
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let (code, _, error) = drain(nobody, &[]);
    assert_eq!(code, Some(1));
    assert!(error.contains("nothing answers at"), "{error}");
    let assigner = assigner(&[]);
    let (code, _, error) = drain(assigner.at("address"), &[]);
    assert_eq!(code, Some(1));
    assert!(
        error.contains("HTTP") || error.contains("nothing answers"),
        "{error}"
    );
}
