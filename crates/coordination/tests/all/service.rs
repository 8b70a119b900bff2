//! One assigner over gRPC, with the usual thresholds and a file.

use crate::support::{PATIENCE, assigned_to, eventually, fast, server, until};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trefoil_coordination::{
    AssignerClient, AssignerServer, BootInstant, CoordinationError, NodeOptions, Refusal, Session,
    Status, StoreAddress, Watcher,
};
use trefoil_endpoint::Drain;
use trefoil_sharder::Freeze;

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_servers_slices_are_owned_again_within_five_seconds() {
    let assigner = AssignerServer::start(any(), &StoreAddress::Memory, NodeOptions::default())
        .await
        .unwrap();
    let address = assigner.address().to_string();
    let mut sessions = Vec::new();
    for port in 1..=5 {
        sessions.push(Session::join(&address, "mail", server(port)).await.unwrap());
    }
    let ids =
        |sessions: &[Session]| -> Vec<_> { sessions.iter().map(Session::server_id).collect() };
    let watcher = Watcher::open(&address, "mail").await.unwrap();
    assigned_to(watcher.view(), &ids(&sessions)).await;
    let dies = sessions.pop().unwrap();
    let sure_until = dies.lease_end();
    let died = Instant::now();
    drop(dies);
    assigned_to(watcher.view(), &ids(&sessions)).await;
    let took = died.elapsed();
    assert!(BootInstant::now() > sure_until);
    assert!(took < Duration::from_secs(5), "{took:?}");
    println!("owned again after {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assigner_that_restarts_with_its_file_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let store = StoreAddress::File(folder.path().join("state"));
    let assigner = AssignerServer::start(any(), &store, fast()).await.unwrap();
    let address = assigner.address();
    let text = address.to_string();
    let one = Session::join(&text, "mail", server(1)).await.unwrap();
    let two = Session::join(&text, "mail", server(2)).await.unwrap();
    let ids = [one.server_id(), two.server_id()];
    let before = assigned_to(one.view(), &ids).await;
    let client = AssignerClient::new(text.parse().unwrap());
    let frozen = client.set_freeze("", Freeze::OnlyDead).await.unwrap();
    assert_eq!(frozen, ["mail"]);

    drop(assigner);
    until(one.status(), "it hears of the death", |status| {
        matches!(status, Status::Unreachable { .. })
    })
    .await;
    assert_eq!(one.view().borrow().assignment, before.assignment);
    let since = Instant::now();
    let assigner = loop {
        // The port and the file are given back shortly after.
        match AssignerServer::start(address, &store, fast()).await {
            Ok(assigner) => break assigner,
            Err(error) => assert!(since.elapsed() < PATIENCE, "it does not start: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    until(one.status(), "it is connected again", |status| {
        *status == Status::Connected
    })
    .await;
    eventually("both hold leases", || {
        one.holds_lease() && two.holds_lease()
    })
    .await;
    tokio::time::sleep(fast().lease).await;
    assert_eq!(one.view().borrow().assignment, before.assignment);
    let (_, document) = client.status().await.pop().unwrap();
    let document: serde_json::Value = serde_json::from_str(&document.unwrap()).unwrap();
    let corpus = &document["corpora"][0];
    assert_eq!(corpus["freeze"], "only-dead", "{document}");
    assert_eq!(corpus["slices"], 16, "{document}");
    assert_eq!(corpus["members"].as_array().unwrap().len(), 2);
    assert_eq!(corpus["members"][0]["slices"], 8);
    drop(assigner);
}

#[tokio::test]
async fn nobody_there_and_nothing_sensible_are_told_apart() {
    let error = Watcher::open("nonsense", "mail").await.unwrap_err();
    assert!(
        matches!(error, CoordinationError::Address { .. }),
        "{error}"
    );
    let options = trefoil_coordination::JoinOptions {
        timeout: Duration::from_millis(300),
        ..Default::default()
    };
    // Nobody listens at port 1.
    let error = Session::join_with("127.0.0.1:1", "mail", server(1), options)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no assigner answers at 127.0.0.1:1"),
        "{error}"
    );
    let assigner = AssignerServer::start(any(), &StoreAddress::Memory, fast())
        .await
        .unwrap();
    let address = assigner.address().to_string();
    let mut nowhere = server(1);
    nowhere.address.clear();
    let error = Session::join(&address, "mail", nowhere).await.unwrap_err();
    assert!(
        matches!(&error, CoordinationError::Refused { refusal: Refusal::Invalid(reason), .. } if reason.contains("address")),
        "{error}"
    );
    let taken = AssignerServer::start(assigner.address(), &StoreAddress::Memory, fast()).await;
    assert!(matches!(taken, Err(CoordinationError::Listen { .. })));
}

// One thread: what is spawned has no turn before the next await.
#[tokio::test]
async fn a_drain_has_begun_once_it_is_asked_for_and_nothing_is_led_after_it() {
    let assigner = AssignerServer::start(any(), &StoreAddress::Memory, fast())
        .await
        .unwrap();
    let process = assigner.process();
    assert_eq!(process.drained(), Some(Drain::NotBegun));
    process.drain();
    assert_ne!(process.drained(), Some(Drain::NotBegun));
    process.drain();
    eventually("it leads nothing", || {
        process.drained() == Some(Drain::Done)
    })
    .await;
    // A corpus that nobody has asked for before.
    let client = AssignerClient::new(assigner.address().to_string().parse().unwrap());
    let refused = client.begin_incarnation("late").await;
    assert!(matches!(
        refused,
        Err(CoordinationError::Refused {
            refusal: Refusal::NotLeading { .. },
            ..
        })
    ));
    tokio::time::sleep(fast().leader_lease * 2).await;
    let (_, document) = client.status().await.pop().unwrap();
    let document: serde_json::Value = serde_json::from_str(&document.unwrap()).unwrap();
    let corpus = &document["corpora"][0];
    assert_eq!(
        (&corpus["corpus"], &corpus["leader"]),
        (&"late".into(), &"".into()),
        "{document}"
    );
}
