//! A real etcd and assigners in processes of their own, killed and restored
//! while sessions and watchers go on.

#[path = "all/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::etcd::Etcd;
use support::processes::{AssignerProcess, leader, serve_if_ordered, status};
use support::{assigned_to, eventually, fast, replaced, server, until};
use trefoil_coordination::{AssignerClient, JoinOptions, Session, Status, Watcher};
use trefoil_sharder::ServerId;

const CORPUS: &str = "mail";

/// Not a test: what the processes of the others run.
#[test]
fn assigner_process() {
    serve_if_ordered();
}

struct Installation {
    _folder: tempfile::TempDir,
    etcd: Etcd,
    assigners: Vec<AssignerProcess>,
}

impl Installation {
    fn start(assigners: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(folder.path());
        let start = |_| AssignerProcess::start("assigner_process", &etcd.address());
        let assigners = (0..assigners).map(start).collect();
        Installation {
            _folder: folder,
            etcd,
            assigners,
        }
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        self.assigners
            .iter()
            .map(AssignerProcess::address)
            .collect()
    }

    fn address(&self) -> String {
        let hosts: Vec<String> = self.hosts().iter().map(SocketAddr::to_string).collect();
        format!("trefoil-assigner://{}", hosts.join(","))
    }

    async fn join(&self, count: u16) -> Vec<Session> {
        let address = self.address();
        let mut sessions = Vec::new();
        for port in 1..=count {
            sessions.push(join(&address, port).await);
        }
        sessions
    }
}

async fn join(address: &str, port: u16) -> Session {
    let options = JoinOptions {
        timeout: support::PATIENCE,
        ..JoinOptions::default()
    };
    Session::join_with(address, CORPUS, server(port), options)
        .await
        .unwrap()
}

fn is_behind(status: &Status) -> bool {
    matches!(status, Status::Behind { .. })
}

fn ids(sessions: &[Session]) -> Vec<ServerId> {
    sessions.iter().map(Session::server_id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assigner_that_is_killed_is_succeeded_and_nothing_moves() {
    let mut installation = Installation::start(2);
    let mut sessions = installation.join(3).await;
    let watcher = Watcher::open(&installation.address(), CORPUS)
        .await
        .unwrap();
    let before = assigned_to(watcher.view(), &ids(&sessions)).await;

    let hosts = installation.hosts();
    let killed = leader(&hosts, CORPUS).await;
    installation.assigners.remove(killed).kill();
    let heir = [hosts[1 - killed]];
    leader(&heir, CORPUS).await;
    let found = status(heir[0], CORPUS).await.unwrap();
    assert_eq!(found["term"], 2, "{found}");
    eventually("all hold leases again", || {
        sessions.iter().all(Session::holds_lease)
    })
    .await;
    // Whoever was to be taken for dead would be by now.
    tokio::time::sleep(fast().lease + fast().step_every * 2).await;
    assert_eq!(watcher.view().borrow().assignment, before.assignment);
    assert_eq!(watcher.view().borrow().servers.len(), 3);

    drop(sessions.pop());
    assigned_to(watcher.view(), &ids(&sessions)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_etcd_is_dead_the_map_stays_and_afterwards_life_goes_on() {
    let mut installation = Installation::start(1);
    let mut sessions = installation.join(3).await;
    let watcher = Watcher::open(&installation.address(), CORPUS)
        .await
        .unwrap();
    let before = assigned_to(watcher.view(), &ids(&sessions)).await;

    installation.etcd.kill();
    until(sessions[0].status(), "it hears of the outage", |status| {
        matches!(status, Status::Unreachable { .. })
    })
    .await;
    // Dies unnoticed.
    drop(sessions.pop());
    tokio::time::sleep(fast().lease * 2).await;
    assert_eq!(watcher.view().borrow().assignment, before.assignment);
    assert_eq!(
        *watcher.status().borrow(),
        Status::Connected,
        "it is still told"
    );

    installation.etcd.run();
    until(sessions[0].status(), "it is connected again", |status| {
        *status == Status::Connected
    })
    .await;
    let after = assigned_to(watcher.view(), &ids(&sessions)).await;
    assert!(after.assignment.version() > before.assignment.version());
    for (old, new) in before
        .assignment
        .slices()
        .iter()
        .zip(after.assignment.slices())
    {
        if sessions.iter().any(|one| old.servers == [one.server_id()]) {
            assert_eq!(old, new, "only the dead one's slices went elsewhere");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_with_old_data_is_found_out_and_freezes_the_map() {
    let mut installation = Installation::start(1);
    let mut sessions = installation.join(2).await;
    assigned_to(sessions[0].view(), &ids(&sessions)).await;
    let copy = installation._folder.path().join("copy");
    installation.etcd.save(&copy);

    // What the copy does not know: another server, and the death of one.
    sessions.push(join(&installation.address(), 3).await);
    let dead = sessions.remove(0);
    let gone = dead.server_id();
    drop(dead);
    replaced(sessions[0].view(), gone).await;
    // What an assigner does by the copy alone comes to no such version.
    let client = AssignerClient::new(installation.address().parse().unwrap());
    client.begin_incarnation(CORPUS).await.unwrap();
    let view = until(sessions[0].view(), "a second incarnation", |view| {
        view.assignment.version().incarnation == 2
    })
    .await;
    let seen = view.assignment.version();

    installation.etcd.kill();
    installation.etcd.restore(&copy);
    installation.etcd.run();
    // An assigner that remembers nothing is no better off.
    installation.assigners.clear();
    let fresh = AssignerProcess::start("assigner_process", &installation.etcd.address());
    let watcher_address = fresh.address().to_string();
    let watcher = Watcher::open(&watcher_address, CORPUS).await.unwrap();
    let rejoined = join(&watcher_address, 9).await;
    assert_eq!(
        rejoined.learn(view.assignment.clone()),
        trefoil_sharder::Learned::Adopted
    );

    match until(rejoined.status(), "it is told", is_behind).await {
        Status::Behind { store, seen: named } => {
            assert!(store < Some(named) && named == seen, "{store:?} {named}");
        }
        other => panic!("{other:?}"),
    }
    let frozen = watcher.view().borrow().assignment.clone();
    tokio::time::sleep(fast().lease * 2).await;
    assert_eq!(
        watcher.view().borrow().assignment,
        frozen,
        "nothing is published"
    );
    assert!(
        !rejoined.holds_lease(),
        "no lease by a store that is behind"
    );
    let found = status(fresh.address(), CORPUS).await.unwrap();
    let because = found["frozen_because"].as_str().unwrap_or_default();
    assert!(because.contains("restored from an old copy"), "{found}");

    // Somebody has looked into it.
    let client = AssignerClient::new(watcher_address.parse().unwrap());
    client.begin_incarnation(CORPUS).await.unwrap();
    until(rejoined.view(), "a new incarnation", |view| {
        view.assignment.version().incarnation == seen.incarnation + 1
    })
    .await;
    until(rejoined.status(), "it is connected again", |status| {
        *status == Status::Connected
    })
    .await;
    eventually("a lease again", || rejoined.holds_lease()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_live_through_a_restore_are_told_and_keep_their_map() {
    let mut installation = Installation::start(1);
    let sessions = installation.join(2).await;
    assigned_to(sessions[0].view(), &ids(&sessions)).await;
    let copy = installation._folder.path().join("copy");
    installation.etcd.save(&copy);
    let mut all = sessions.clone();
    all.push(join(&installation.address(), 3).await);
    drop(sessions);
    let dead = all.remove(0);
    let gone = dead.server_id();
    drop(dead);
    let view = replaced(all[0].view(), gone).await;

    installation.etcd.kill();
    installation.etcd.restore(&copy);
    installation.etcd.run();
    for session in &all {
        until(session.status(), "it is told", is_behind).await;
    }
    tokio::time::sleep(fast().lease * 2).await;
    for session in &all {
        assert_eq!(session.view().borrow().assignment, view.assignment);
        assert!(!matches!(*session.status().borrow(), Status::Ended(_)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assigner_that_stops_in_order_is_succeeded_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    let store = etcd.address().parse().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let first = trefoil_coordination::AssignerServer::start(any, &store, fast())
        .await
        .unwrap();
    let hosts = [first.address()];
    let session = join(&hosts[0].to_string(), 1).await;
    leader(&hosts, CORPUS).await;
    let second = trefoil_coordination::AssignerServer::start(any, &store, fast())
        .await
        .unwrap();
    // It learns of the corpus from etcd.
    eventually("it follows", || {
        etcd.has(&format!("trefoil/{CORPUS}/leader"))
    })
    .await;
    let since = Instant::now();
    first.shutdown().await;
    leader(&[second.address()], CORPUS).await;
    assert!(
        since.elapsed() < Duration::from_millis(1_500),
        "{:?}",
        since.elapsed()
    );
    drop(session);
    second.shutdown().await;
}
