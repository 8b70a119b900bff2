//! What each role may do.

use super::maker::{Authority, Odd, port};
use crate::support::{Cell, free_port, parse, run, text};
use std::path::Path;
use std::time::Duration;
use tonic::{Code, Status};
use trefoil_cell::RpcAddress;
use trefoil_rpc::{Client, v1};
use trefoil_tls::{CertFiles, CertUse, Tls};

/// Runs a command against a server with some certificates.
pub(super) fn with(cell: &Cell, certs: &str, args: &[&str]) -> std::process::Output {
    run(&[args, &["--cell", &cell.address, "--certs", certs]].concat())
}

#[test]
fn commands_do_what_their_role_may() {
    let authority = Authority::new();
    let cell = authority.serve(&authority.issue("server", "backend"), None);
    let client = authority.issue("app", "client");
    let backend = authority.issue("other", "backend");
    let admin = authority.issue("ops", "admin");
    for certs in [&client, &backend, &admin] {
        let version = parse(&with(&cell, certs, &["set", "k", "v", "--json"]));
        let version = version["version"].as_str().unwrap().to_owned();
        let cas = ["cas", "k", "w", "--version", &version];
        assert!(with(&cell, certs, &cas).status.success());
        let got = with(&cell, certs, &["get", "k"]);
        assert_eq!(text(&got.stdout), "w", "{}", text(&got.stderr));
        assert!(with(&cell, certs, &["erase", "k"]).status.success());
        let status = parse(&with(&cell, certs, &["cell", "status", "--json"]));
        assert_eq!(status["backends"][0]["state"], "up", "{status}");
    }
    for (certs, name, role) in [(&client, "app", "client"), (&backend, "other", "backend")] {
        for (call, args) in [
            (
                "SetMemoryLimit",
                &["cell", "memory", "--limit", "70MiB"][..],
            ),
            ("Flush", &["cell", "flush"]),
        ] {
            let output = with(&cell, certs, args);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            let words = format!(
                "{call} needs the role admin, and the certificate of \"{name}\" has the role {role}"
            );
            assert!(said.contains(&words), "{said}");
            assert!(said.contains("--role admin"), "{said}");
        }
    }
    let output = with(&cell, &admin, &["cell", "memory", "--limit", "70MiB"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = with(&cell, &admin, &["cell", "flush"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// On the server's own host, too, whoever comes with a certificate has its role. The
/// user who runs the server needs none.
#[test]
fn a_role_holds_beside_the_servers_socket() {
    let authority = Authority::new();
    let home = authority.home.path();
    let server = authority.issue("server", "backend");
    let cell = Cell::serve(home, &["--memory", "64MiB", "--certs", &server]);
    let client = authority.issue("app", "client");
    let output = with(&cell, &client, &["cell", "flush"]);
    let said = text(&output.stderr);
    assert!(said.contains("Flush needs the role admin"), "{said}");
    let socket = home.join("serve.sock").display().to_string();
    let output = run(&["cell", "flush", "--cell", &socket]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A host has a server of its own, at the same path as another host's, and is a client
/// of that.
#[test]
fn a_server_of_ones_own_is_not_taken_for_another_hosts() {
    let authority = Authority::new();
    let home = authority.home.path();
    let server = authority.issue("server", "backend");
    let listen = format!("0.0.0.0:{}", free_port());
    let usual = ["--memory", "64MiB", "--listen", &listen, "--certs", &server];
    let theirs = Cell::serve(home, &usual);
    super::maker::hide(home);
    super::maker::reveal(home);
    let ours = Cell::serve(home, &["--memory", "64MiB"]);
    // Any name that is not known to be this host.
    let address = format!("LOCALHOST:{}", port(&theirs));
    let client = authority.issue("app", "client");
    let theirs_by_name = ["--cell", &address, "--certs", &client];
    let output = run(&[&["set", "k", "v"][..], &theirs_by_name].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run(&[&["get", "k"][..], &theirs_by_name].concat());
    assert_eq!(text(&output.stdout), "v", "{}", text(&output.stderr));
    let socket = home.join("serve.sock").display().to_string();
    let output = run(&["get", "k", "--cell", &socket]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    drop((theirs, ours));
}

/// Calls by the contract, past everything that a client library checks.
pub(super) struct Raw {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Raw {
    pub(super) fn new(cell: &Cell, certs: &str) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let files = CertFiles::in_directory(Path::new(certs));
        let tls = Tls::read(&files, CertUse::Client).unwrap();
        let address: RpcAddress = format!("127.0.0.1:{}", port(cell)).parse().unwrap();
        let entered = runtime.enter();
        let client = trefoil_cell::rpc_client(&address, Some(&tls), Duration::from_secs(5));
        drop(entered);
        Raw {
            runtime,
            client: client.unwrap(),
        }
    }

    /// How each call of the contract ends.
    pub(super) fn all(&self) -> Vec<(&'static str, Result<(), Status>)> {
        let mut c = self.client.clone();
        self.runtime.block_on(async move {
            let mut ends = Vec::new();
            macro_rules! call {
                ($name:literal, $call:expr) => {
                    ends.push(($name, $call.await.map(|_| ())));
                };
            }
            call!("Ping", c.ping(v1::PingRequest::default()));
            call!("Hello", c.hello(v1::HelloRequest::default()));
            call!("Config", c.config(v1::ConfigRequest::default()));
            call!("Mutate", c.mutate(v1::MutateRequest::default()));
            call!("Lookup", c.lookup(v1::LookupRequest::default()));
            call!("Use", c.r#use(v1::UseRequest::default()));
            call!("Touch", c.touch(v1::TouchRequest::default()));
            call!("Stats", c.stats(v1::StatsRequest::default()));
            call!("TopKeys", c.top_keys(v1::TopKeysRequest::default()));
            call!("List", c.list(v1::ListRequest::default()));
            call!(
                "RaiseEpoch",
                c.raise_epoch(v1::RaiseEpochRequest::default())
            );
            call!("CopyItems", c.copy_items(v1::CopyItemsRequest::default()));
            let limit = v1::SetMemoryLimitRequest::default();
            call!("SetMemoryLimit", c.set_memory_limit(limit));
            call!("Flush", c.flush(v1::FlushRequest::default()));
            let nothing = tokio_stream::empty::<v1::ReloadRequest>();
            call!("Reload", c.reload(nothing));
            ends
        })
    }
}

#[test]
fn each_call_is_let_through_or_denied_as_the_table_says() {
    let authority = Authority::new();
    let cell = authority.serve(&authority.issue("server", "backend"), None);
    let nobody = authority.make(
        "nobody",
        &Odd {
            uris: &["urn:other:admin"],
            ..Odd::default()
        },
    );
    // This side would not even begin.
    let said = with(&cell, &nobody, &["get", "k"]);
    assert!(
        text(&said.stderr).contains("names no role"),
        "{}",
        text(&said.stderr)
    );
    let both = authority.make(
        "both",
        &Odd {
            uris: &["urn:trefoil:role:client", "urn:trefoil:role:admin"],
            ..Odd::default()
        },
    );
    for (certs, may) in [
        (authority.issue("app", "client"), 10),
        (authority.issue("other", "backend"), 12),
        (authority.issue("ops", "admin"), 15),
        (both, 15),
    ] {
        let ends = Raw::new(&cell, &certs).all();
        assert_eq!(ends.len(), 15);
        for (index, (call, end)) in ends.into_iter().enumerate() {
            // What is let through may still be nonsense.
            let denied = end
                .err()
                .filter(|status| status.code() == Code::PermissionDenied);
            assert_eq!(
                denied.is_none(),
                index < may,
                "{call} with {certs}: {denied:?}"
            );
            if let Some(status) = denied {
                let words = format!("{call} needs the role ");
                assert!(status.message().starts_with(&words), "{}", status.message());
            }
        }
    }
}
