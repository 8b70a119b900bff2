//! One assigner over gRPC, with the usual thresholds and a file.

use crate::support::path::Path;
use crate::support::{PATIENCE, assigned_to, eventually, fast, server, until};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_coordination::{
    AssignerClient, AssignerServer, BootInstant, CoordinationError, NodeOptions, Refusal, Session,
    Status, StoreAddress, View, Watcher,
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

/// A bad link of the assigner's is no death of everybody: they come back as who they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assigner_that_is_cut_off_strikes_nobody_off() {
    let assigner = AssignerServer::start(any(), &StoreAddress::Memory, fast())
        .await
        .unwrap();
    let path = Path::to(assigner.address()).await;
    let address = path.address.to_string();
    let mut sessions = Vec::new();
    for port in 1..=3 {
        sessions.push(Session::join(&address, "mail", server(port)).await.unwrap());
    }
    let ids: Vec<_> = sessions.iter().map(Session::server_id).collect();
    let before = assigned_to(sessions[0].view(), &ids).await;
    path.cut();
    for session in &sessions {
        let status = session.status();
        until(status, "it hears nothing", |status| {
            matches!(status, Status::Unreachable { .. })
        })
        .await;
    }
    // Beyond all leases.
    tokio::time::sleep(fast().lease * 2).await;
    assert!(sessions.iter().all(|s| s.lease_end() < BootInstant::now()));
    path.mend();
    for session in &sessions {
        let what = "it has its lease again, under its former name";
        eventually(what, || session.lease_end() > BootInstant::now()).await;
    }
    let view = assigned_to(sessions[0].view(), &ids).await;
    assert_eq!(view.assignment.slices(), before.assignment.slices());
}

/// A firewall that was restarted knows nothing of connections, and lets new ones through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_nothing_passes_over_is_made_anew_within_a_lease() {
    let options = NodeOptions {
        lease: Duration::from_secs(4),
        ..fast()
    };
    let assigner = AssignerServer::start(any(), &StoreAddress::Memory, options)
        .await
        .unwrap();
    let path = Path::to(assigner.address()).await;
    let address = path.address.to_string();
    let one = Session::join(&address, "mail", server(1)).await.unwrap();
    // Heard by another way: what is seen is not that the assigner is cut off.
    let direct = assigner.address().to_string();
    let two = Session::join(&direct, "mail", server(2)).await.unwrap();
    let ids = [one.server_id(), two.server_id()];
    assigned_to(one.view(), &ids).await;
    path.forget();
    let swallowed_at = BootInstant::now();
    eventually("its lease is renewed", || {
        assert!(!matches!(*one.status().borrow(), Status::Ended(_)));
        one.lease_end() > swallowed_at + Duration::from_secs(6)
    })
    .await;
    // And it hears what changes.
    let three = Session::join(&direct, "mail", server(3)).await.unwrap();
    let is_known = |view: &Arc<View>| view.servers.contains_key(&three.server_id());
    until(one.view(), "it hears of a newcomer", is_known).await;
}

/// Its registration was written, nobody told it, and it was struck off: nobody listens any
/// more to a server of that id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_struck_off_before_it_knew_that_it_was_a_member_joins_under_another_id() {
    let assigner = AssignerServer::start(any(), &StoreAddress::Memory, fast())
        .await
        .unwrap();
    let direct = assigner.address().to_string();
    let stays = Session::join(&direct, "mail", server(1)).await.unwrap();
    let path = Path::to(assigner.address()).await;
    path.lose_answers();
    let address = path.address.to_string();
    let joining = tokio::spawn(async move {
        let options = trefoil_coordination::JoinOptions {
            timeout: PATIENCE,
            ..Default::default()
        };
        Session::join_with(&address, "mail", server(2), options).await
    });
    let is_written = |view: &Arc<View>| view.servers.len() == 2;
    let view = until(stays.view(), "it is written down", is_written).await;
    let mut ids = view.servers.keys().copied();
    let former = ids.find(|id| *id != stays.server_id()).unwrap();
    path.cut();
    let is_struck_off = |view: &Arc<View>| !view.servers.contains_key(&former);
    until(stays.view(), "it is struck off", is_struck_off).await;
    path.mend();
    let joined = joining.await.unwrap().unwrap();
    assert_ne!(joined.server_id(), former, "everybody holds that for dead");
    let is_member = |view: &Arc<View>| view.servers.contains_key(&joined.server_id());
    let view = until(joined.view(), "it is a member", is_member).await;
    assert!(joined.holds_lease() && !view.servers.contains_key(&former));
}
