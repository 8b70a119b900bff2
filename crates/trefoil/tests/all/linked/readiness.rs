//! Readiness and liveness of real processes while something is away.

use super::fleet::{Running, assigner, http, sessions, status, until};
use crate::support::{PROGRAM, free_port};
use rustix::process::Signal;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use trefoil_freshness::Database;
use trefoil_freshness::throwaway::Throwaway;
use trefoil_ports::EtcdProcess;

#[test]
fn a_server_is_ready_when_all_has_arrived_and_not_without_its_lease() {
    let assigner = assigner(&["--lease", "1s"]);
    let at = assigner.at("address").to_string();
    let (one, metrics) = sessions(&at, &[]);
    until(
        || http(metrics, "GET /readyz"),
        |(status, _)| *status == 200,
    );
    assert_eq!(http(metrics, "GET /livez"), (200, "alive".to_owned()));
    // With strong copies nothing is served without a lease.
    assigner.signal(Signal::STOP);
    let (_, why) = until(
        || http(metrics, "GET /readyz"),
        |(status, _)| *status == 503,
    );
    assert!(why.contains("sessions") && why.contains("lease"), "{why}");
    assert_eq!(
        http(metrics, "GET /livez").0,
        200,
        "it is no fault of the server's"
    );
    assigner.signal(Signal::CONT);
    until(
        || http(metrics, "GET /readyz"),
        |(status, _)| *status == 200,
    );
    drop(one);
}

#[test]
fn an_assigner_is_ready_when_its_store_has_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut etcd = EtcdProcess::start(dir.path(), None).unwrap();
    let store = format!("etcd://{}/linked", etcd.host());
    etcd.kill();
    let assigner = assigner(&["--store", &store]);
    let metrics = assigner.at("metrics");
    let (status, why) = http(metrics, "GET /readyz");
    assert_eq!(status, 503);
    assert!(why.contains(&store), "{why}");
    assert_eq!(http(metrics, "GET /livez").0, 200);
    etcd.run().unwrap();
    until(
        || http(metrics, "GET /readyz"),
        |(status, _)| *status == 200,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_is_ready_while_it_follows() {
    let server = Throwaway::start().unwrap();
    let address = server.address("postgres");
    let database: Database = address.parse().unwrap();
    let connection = database.connect().await.unwrap();
    let sql =
        "CREATE TABLE item (id bigint PRIMARY KEY); CREATE PUBLICATION changes FOR TABLE item";
    connection.client.batch_execute(sql).await.unwrap();
    let looked = tokio::task::spawn_blocking(move || {
        let mut relay = vec!["relay", "--postgres", &address, "--listen", "127.0.0.1:0"];
        relay.extend(["--publication", "changes", "--map", "item=item/{id}"]);
        relay.extend(["--metrics", "127.0.0.1:0"]);
        let mut relay = Running::start(PROGRAM, &relay);
        let metrics = relay.at("metrics");
        until(
            || http(metrics, "GET /readyz"),
            |(status, _)| *status == 200,
        );
        assert_eq!(http(metrics, "POST /drain").0, 404);
        server.crash().unwrap();
        let (_, why) = until(
            || http(metrics, "GET /readyz"),
            |(status, _)| *status == 503,
        );
        assert!(why.contains("does not follow the database"), "{why}");
        assert_eq!(http(metrics, "GET /livez").0, 200);
        server.launch().unwrap();
        until(
            || http(metrics, "GET /readyz"),
            |(status, _)| *status == 200,
        );
        relay.signal(Signal::TERM);
        assert!(relay.ended_well());
    });
    looked.await.unwrap();
}

#[test]
fn a_relay_that_waits_for_its_database_is_alive_and_not_ready() {
    // Takes connections, and says nothing.
    let database = TcpListener::bind("127.0.0.1:0").unwrap();
    let postgres = format!("postgres://a@{}/a", database.local_addr().unwrap());
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let at = metrics.to_string();
    let mut relay = vec!["relay", "--postgres", &postgres, "--listen", "127.0.0.1:0"];
    relay.extend(["--publication", "changes", "--map", "item=item/{id}"]);
    relay.extend(["--metrics", &at]);
    let _relay = Running::begin(PROGRAM, &relay);
    until(|| TcpStream::connect(metrics).is_ok(), |is_there| *is_there);
    assert_eq!(http(metrics, "GET /livez").0, 200);
    let (status, why) = http(metrics, "GET /readyz");
    assert_eq!(status, 503);
    assert!(why.contains("has not reached the database"), "{why}");
}

#[test]
fn a_server_whose_port_for_metrics_is_taken_does_not_join() {
    let assigner = assigner(&[]);
    let at = assigner.at("address").to_string();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    let program = PathBuf::from(PROGRAM).with_file_name("sessions");
    let arguments = ["--assigner", &at, "--metrics", &metrics];
    assert!(!Running::begin(program, &arguments).ended_well());
    let now = status(&at);
    assert!(now["corpora"].as_array().unwrap().is_empty(), "{now}");
}
