//! Assigners that were started with other flags than those before them: an
//! assigner's mistake is never a reason to drop what a server holds.

use crate::support::etcd::Etcd;
use crate::support::{PATIENCE, assigned_to, eventually, fast, server, until};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trefoil_coordination::{
    AssignerClient, AssignerServer, NodeOptions, Refusal, Session, Status, StoreAddress, Watcher,
};

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Serves only the corpora that are named.
fn only(names: &[&str]) -> NodeOptions {
    NodeOptions {
        corpora: names
            .iter()
            .map(|&name| (name.to_owned(), fast().balance))
            .collect(),
        closed: true,
        ..fast()
    }
}

/// Takes over a former assigner's port, which is given back shortly after.
async fn again(at: SocketAddr, store: &StoreAddress, options: NodeOptions) -> AssignerServer {
    let since = Instant::now();
    loop {
        match AssignerServer::start(at, store, options.clone()).await {
            Ok(assigner) => return assigner,
            Err(error) => assert!(since.elapsed() < PATIENCE, "it does not start: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_refused(status: &Status) -> bool {
    matches!(status, Status::Refused(Refusal::UnknownCorpus { known }) if known == "male")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corpus_that_was_left_out_ends_no_membership() {
    let folder = tempfile::tempdir().unwrap();
    let store = StoreAddress::File(folder.path().join("state"));
    let assigner = AssignerServer::start(any(), &store, only(&["mail"]))
        .await
        .unwrap();
    let address = assigner.address();
    let text = address.to_string();
    let one = Session::join(&text, "mail", server(1)).await.unwrap();
    let two = Session::join(&text, "mail", server(2)).await.unwrap();
    let ids = [one.server_id(), two.server_id()];
    let watcher = Watcher::open(&text, "mail").await.unwrap();
    let before = assigned_to(one.view(), &ids).await;
    drop(assigner);

    let wrong = again(address, &store, only(&["male"])).await;
    for session in [&one, &two] {
        until(session.status(), "it is told what is wrong", is_refused).await;
    }
    until(watcher.status(), "callers are told, too", is_refused).await;
    // Whoever was to give up would have done so by now.
    tokio::time::sleep(fast().lease * 2).await;
    for session in [&one, &two] {
        let status = session.status().borrow().clone();
        assert!(is_refused(&status), "{status:?}");
        assert_eq!(session.view().borrow().assignment, before.assignment);
    }
    // Whoever looks at the assigner sees it, too.
    let client = AssignerClient::new(text.parse().unwrap());
    let (_, document) = client.status().await.pop().unwrap();
    let document: serde_json::Value = serde_json::from_str(&document.unwrap()).unwrap();
    assert_eq!(document["turned_away"][0]["corpus"], "mail", "{document}");
    assert!(document["turned_away"][0]["requests"].as_u64().unwrap() > 0);
    // Who holds nothing is refused at once.
    assert!(Session::join(&text, "mail", server(3)).await.is_err());
    drop(wrong);

    let _right = again(address, &store, only(&["mail"])).await;
    for session in [&one, &two] {
        until(session.status(), "all is well again", |status| {
            *status == Status::Connected
        })
        .await;
        eventually("it holds a lease", || session.holds_lease()).await;
        assert_eq!(session.view().borrow().assignment, before.assignment);
    }
    // Both follow the map as before, and so do callers.
    let three = Session::join(&text, "mail", server(3)).await.unwrap();
    for view in [one.view(), two.view(), watcher.view()] {
        until(view, "they hear of the third", |view| {
            view.servers.contains_key(&three.server_id())
        })
        .await;
    }
}

/// A standby without the corpus must not speak for the one that leads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_without_the_corpus_sends_askers_to_the_one_that_leads() {
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    let store: StoreAddress = etcd.address().parse().unwrap();
    let right = AssignerServer::start(any(), &store, only(&["mail"]))
        .await
        .unwrap();
    let wrong = AssignerServer::start(any(), &store, only(&["male"]))
        .await
        .unwrap();
    let first = Session::join(&right.address().to_string(), "mail", server(1))
        .await
        .unwrap();
    assigned_to(first.view(), &[first.server_id()]).await;
    // The one that knows nothing of it is asked first.
    let both = format!("{},{}", wrong.address(), right.address());
    let second = Session::join(&both, "mail", server(2)).await.unwrap();
    assert!(second.holds_lease());
    // Even where it is the only one that is known.
    let third = Session::join(&wrong.address().to_string(), "mail", server(3))
        .await
        .unwrap();
    assert!(third.holds_lease());
}
