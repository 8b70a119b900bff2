//! `linked drain`, and what it leaves behind.

use super::fleet::{assigner, http, sessions, status, trefoil, until};
use rustix::process::Signal;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

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
    // Long enough that a slow machine costs nobody the membership.
    let assigner = assigner(&["--lease", "5s"]);
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
    assert!(error.contains("is no port for metrics"), "{error}");
}

/// Answers requests one after the other; `None` hangs up. What was asked.
fn answers(
    with: Vec<Option<(u16, &'static str)>>,
) -> (std::net::SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let answer = |answer: Option<(u16, &str)>| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            if let Some((status, text)) = answer {
                let answer = format!("HTTP/1.1 {status} x\r\n\r\n{text}\n");
                stream.write_all(answer.as_bytes()).unwrap();
            }
            let head = String::from_utf8(head).unwrap();
            head.split(' ').next().unwrap().to_owned()
        };
        with.into_iter().map(answer).collect()
    });
    (at, thread)
}

#[test]
fn it_asks_once_looks_on_after_a_failed_look_and_says_what_was_lost() {
    let (at, asked) = answers(vec![
        Some((202, "3 slices are left")),
        None,
        None,
        Some((202, "3 slices are left")),
        Some((200, "drained: was no member any more")),
    ]);
    let (code, said, error) = drain(at, &[]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(said, "drained: was no member any more\n");
    assert_eq!(error.matches("3 slices are left").count(), 1, "{error}");
    let asked = asked.join().unwrap();
    assert_eq!(asked, ["POST", "GET", "GET", "GET", "GET"]);
}
