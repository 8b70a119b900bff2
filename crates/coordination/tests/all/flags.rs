//! Assigners that were started with other flags than those before them: an
//! assigner's mistake is never a reason to drop what a server holds.

use crate::support::etcd::Etcd;
use crate::support::{PATIENCE, assigned_to, eventually, fast, report, server, until};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_coordination::{
    AssignerClient, AssignerServer, BootInstant, NodeOptions, Refusal, ServerInfo, Session,
    SessionEnd, Status, StoreAddress, View, Watcher,
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

/// The one before had granted longer leases: whoever cannot reach the new one
/// may still serve by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_lease_of_the_assigner_before_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = StoreAddress::File(folder.path().join("state"));
    let long = NodeOptions {
        lease: Duration::from_secs(5),
        ..fast()
    };
    let short = NodeOptions {
        lease: Duration::from_millis(300),
        ..fast()
    };
    let assigner = AssignerServer::start(any(), &store, long).await.unwrap();
    let former = Session::join(&assigner.address().to_string(), "mail", server(1))
        .await
        .unwrap();
    let id = former.server_id();
    assigned_to(former.view(), &[id]).await;
    drop(assigner);
    // At another address, of which the former server knows nothing.
    let heir = again(any(), &store, short.clone()).await;
    let newcomer = Session::join(&heir.address().to_string(), "mail", server(2))
        .await
        .unwrap();
    assigned_to(newcomer.view(), &[newcomer.server_id()]).await;
    assert!(
        BootInstant::now() > former.lease_end(),
        "its slices went to another one while it held its lease"
    );
    // Once that is over the store says so: the next one waits no longer.
    eventually("the store says how long leases are", || {
        let state = std::fs::read(folder.path().join("state")).unwrap();
        // Field 6 of the corpus: 300.
        state.windows(3).any(|bytes| bytes == [0x30, 0xac, 0x02])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assigner_that_has_forgotten_everything_goes_on_from_what_servers_know() {
    let memory = StoreAddress::Memory;
    let assigner = AssignerServer::start(any(), &memory, fast()).await.unwrap();
    let address = assigner.address();
    let text = address.to_string();
    let one = Session::join(&text, "mail", server(1)).await.unwrap();
    let two = Session::join(&text, "mail", server(2)).await.unwrap();
    let ids = [one.server_id(), two.server_id()];
    let watcher = Watcher::open(&text, "mail").await.unwrap();
    let before = assigned_to(watcher.view(), &ids).await;
    let lease_end = [&one, &two].map(Session::lease_end);
    drop(assigner);
    // With shorter leases than those that may be in force.
    let shorter = NodeOptions {
        lease: Duration::from_millis(500),
        gather: Duration::ZERO,
        ..fast()
    };
    let assigner = again(address, &memory, shorter).await;
    // Who remembers nothing may well be the first to come.
    let three = Session::join(&text, "mail", server(3)).await.unwrap();
    let after = until(three.view(), "a map", |view| view.is_assigned()).await;
    assert!(lease_end.iter().all(|&end| BootInstant::now() > end));
    let incarnation = after.assignment.version().incarnation;
    assert!(incarnation > before.assignment.version().incarnation);
    assert_eq!(
        after.assignment.slices(),
        before.assignment.slices(),
        "nothing moves because of it"
    );
    for session in [&one, &two, &three] {
        until(session.status(), "all is well again", |status| {
            *status == Status::Connected
        })
        .await;
        eventually("it holds a lease", || session.holds_lease()).await;
    }
    until(watcher.view(), "callers are told", |view| {
        view.assignment.version().incarnation == incarnation
    })
    .await;
    drop(assigner);
}

/// A second assigner with a memory of its own is no heir of the first, which
/// may be alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assigner_elsewhere_that_knows_nothing_waits_for_a_persons_word() {
    let memory = StoreAddress::Memory;
    let first = AssignerServer::start(any(), &memory, fast()).await.unwrap();
    let second = AssignerServer::start(any(), &memory, fast()).await.unwrap();
    let both = format!("{},{}", first.address(), second.address());
    let session = Session::join(&both, "mail", server(1)).await.unwrap();
    // The session's watch may have gone to the second one, which knows nothing.
    let watcher = Watcher::open(&first.address().to_string(), "mail")
        .await
        .unwrap();
    let before = assigned_to(watcher.view(), &[session.server_id()]).await;
    session.learn(before.assignment.clone());
    drop(first);
    until(session.status(), "it is told", |status| {
        matches!(status, Status::Behind { store: None, .. })
    })
    .await;
    tokio::time::sleep(fast().lease * 3).await;
    assert_eq!(session.view().borrow().assignment, before.assignment);
    assert!(!session.holds_lease());
    let client = AssignerClient::new(second.address().to_string().parse().unwrap());
    let (_, document) = client.status().await.pop().unwrap();
    let document: serde_json::Value = serde_json::from_str(&document.unwrap()).unwrap();
    let because = document["corpora"][0]["frozen_because"].as_str().unwrap();
    assert!(
        because.contains("trefoil assigner begin-incarnation"),
        "{document}"
    );
    client.begin_incarnation("mail").await.unwrap();
    let version = before.assignment.version();
    until(session.view(), "a second incarnation", |view| {
        view.assignment.version().incarnation > version.incarnation
    })
    .await;
    eventually("a lease again", || session.holds_lease()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_have_as_many_replicas_as_servers_ask_for() {
    let assigner = AssignerServer::start(any(), &StoreAddress::Memory, only(&["mail"]))
        .await
        .unwrap();
    let address = assigner.address().to_string();
    let asking = |port| ServerInfo {
        copies_min: 2,
        ..server(port)
    };
    let mut sessions = Vec::new();
    for port in 1..=3 {
        sessions.push(Session::join(&address, "mail", asking(port)).await.unwrap());
    }
    let view = sessions[0].view();
    let copied = |view: &Arc<View>| {
        let slices = view.assignment.slices();
        view.is_assigned() && slices.iter().all(|slice| slice.servers.len() == 2)
    };
    until(view.clone(), "two replicas of each", copied).await;
    // After a death, too, without anybody's doing.
    let dead = sessions.pop().unwrap();
    let gone = dead.server_id();
    drop(dead);
    let mut sequence = 0;
    let since = Instant::now();
    while !copied(&view.borrow()) || !view.borrow().is_gone(gone) {
        assert!(since.elapsed() < PATIENCE, "{:?}", view.borrow());
        sequence += 1;
        for session in &sessions {
            session.report(report(session, &view.borrow(), sequence));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Nothing in the store may mean that it has forgotten a server that holds a
/// lease, and does not find the new assigner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_deal_waits_for_leases_that_may_exist() {
    let long = NodeOptions {
        lease: Duration::from_secs(3),
        gather: Duration::ZERO,
        ..fast()
    };
    let memory = StoreAddress::Memory;
    let assigner = AssignerServer::start(any(), &memory, long.clone())
        .await
        .unwrap();
    let former = Session::join(&assigner.address().to_string(), "mail", server(1))
        .await
        .unwrap();
    assigned_to(former.view(), &[former.server_id()]).await;
    drop(assigner);
    let heir = AssignerServer::start(any(), &memory, long).await.unwrap();
    let newcomer = Session::join(&heir.address().to_string(), "mail", server(2))
        .await
        .unwrap();
    assigned_to(newcomer.view(), &[newcomer.server_id()]).await;
    assert!(BootInstant::now() > former.lease_end());
}

/// It was away for longer than its lease when everything was dealt anew: it
/// must not come back with what it holds.
async fn who_comes_back_joins_anew(clock_set_back: bool) {
    let memory = StoreAddress::Memory;
    let assigner = AssignerServer::start(any(), &memory, fast()).await.unwrap();
    let address = assigner.address();
    let former = Session::join(&address.to_string(), "mail", server(1))
        .await
        .unwrap();
    let watcher = Watcher::open(&address.to_string(), "mail").await.unwrap();
    let view = assigned_to(watcher.view(), &[former.server_id()]).await;
    // It has heard of later ones, too.
    let had = view.assignment.version();
    let later = trefoil_sharder::AssignmentVersion {
        incarnation: had.incarnation + if clock_set_back { 3_600_000 } else { 0 },
        generation: 1_000,
    };
    former.learn(view.assignment.clone().renumbered(later));
    drop(assigner);
    // At another port at first, where the former one does not find it, under
    // the address that it knows.
    let moved = NodeOptions {
        address: address.to_string(),
        ..fast()
    };
    let heir = AssignerServer::start(any(), &memory, moved).await.unwrap();
    let newcomer = Session::join(&heir.address().to_string(), "mail", server(2))
        .await
        .unwrap();
    let view = assigned_to(newcomer.view(), &[newcomer.server_id()]).await;
    let dealt = view.assignment.version();
    assert!(
        dealt.is_deal() && (dealt < later) == clock_set_back,
        "{dealt}"
    );
    assert!(BootInstant::now() > former.lease_end());
    forward(address, heir.address()).await;
    let end = tokio::time::timeout(PATIENCE, former.ended()).await;
    assert_eq!(end.expect("it is told"), SessionEnd::Expired);
    assert!(newcomer.holds_lease());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_after_a_new_deal_joins_anew() {
    who_comes_back_joins_anew(false).await;
}

/// The machine's clock was set back by an hour before the assigner was started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_after_a_new_deal_by_an_older_clock_joins_anew() {
    who_comes_back_joins_anew(true).await;
}

/// Connections to one address go on to another one.
async fn forward(from: SocketAddr, to: SocketAddr) {
    let since = Instant::now();
    let listener = loop {
        match tokio::net::TcpListener::bind(from).await {
            Ok(listener) => break listener,
            Err(error) => assert!(since.elapsed() < PATIENCE, "{from}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    tokio::spawn(async move {
        while let Ok((mut inside, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut outside) = tokio::net::TcpStream::connect(to).await {
                    let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                }
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_in_etcd_is_told_until_it_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    let store: StoreAddress = etcd.address().parse().unwrap();
    let assigner = AssignerServer::start(any(), &store, fast()).await.unwrap();
    let text = assigner.address().to_string();
    let one = Session::join(&text, "mail", server(1)).await.unwrap();
    assigned_to(one.view(), &[one.server_id()]).await;
    let nonsense = "trefoil/mail/members/00000000000000ff";
    etcd.put(nonsense, "no member");
    let because = async || {
        let client = AssignerClient::new(text.parse().unwrap());
        let (_, document) = client.status().await.pop().unwrap();
        let document: serde_json::Value = serde_json::from_str(&document.unwrap()).unwrap();
        let because = document["corpora"][0]["frozen_because"].as_str();
        because.unwrap_or_default().to_owned()
    };
    let since = Instant::now();
    while !because().await.contains("a member that is none") {
        assert!(since.elapsed() < PATIENCE, "{}", because().await);
    }
    assert!(one.holds_lease() && one.view().borrow().is_assigned());
    etcd.delete(nonsense);
    let since = Instant::now();
    while because().await.contains("a member that is none") {
        assert!(since.elapsed() < PATIENCE, "{}", because().await);
    }
}
