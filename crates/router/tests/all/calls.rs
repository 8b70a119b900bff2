//! Calls through a router, over gRPC on loopback.

use crate::support::{Answer, TestServer, ask};
use std::time::{Duration, Instant};
use tonic::{Code, Status};
use trefoil_coordination::{LocalCoordinator, NodeOptions, ServerInfo, Session};
use trefoil_router::{Access, CallError, CallOptions, Redirect, RouteError, Router};
use trefoil_sharder::{Assignment, BalanceConfig, Capacity, ServerId};

const KEY: &[u8] = b"a key";

/// Two servers, two sessions, one router.
struct World {
    coordinator: LocalCoordinator,
    servers: Vec<TestServer>,
    sessions: Vec<Session>,
    router: Router,
}

fn options(replicas: usize) -> NodeOptions {
    NodeOptions {
        lease: Duration::from_millis(800),
        step_every: Duration::from_millis(100),
        gather: Duration::from_millis(800),
        slices_per_server: 4,
        balance: BalanceConfig {
            replicas_min: replicas,
            replicas_max: replicas,
            ..BalanceConfig::default()
        },
        ..NodeOptions::default()
    }
}

impl World {
    async fn new(replicas: usize) -> Self {
        let coordinator = LocalCoordinator::with(options(replicas)).unwrap();
        let servers = vec![
            TestServer::start("first").await,
            TestServer::start("second").await,
        ];
        let mut sessions = Vec::new();
        for server in &servers {
            let capacity = Capacity {
                cpu: 1.0,
                bytes: 1 << 30,
            };
            let info = ServerInfo::new(server.address.to_string(), capacity);
            sessions.push(coordinator.join("c", info).await.unwrap());
        }
        let router = Router::new(coordinator.watcher("c").await.unwrap());
        let mut view = router.view();
        view.wait_for(|view| view.is_assigned() && view.servers.len() == 2)
            .await
            .unwrap();
        while router.version().is_none() {
            tokio::task::yield_now().await;
        }
        World {
            coordinator,
            servers,
            sessions,
            router,
        }
    }

    /// Who has the key, and who does not.
    fn places(&self) -> (usize, usize) {
        let owner = self.router.route(KEY).unwrap().server();
        let place = usize::from(self.sessions[1].server_id() == owner);
        (place, 1 - place)
    }
}

#[tokio::test]
async fn a_call_reaches_the_server_that_has_the_key_and_says_where_it_lies() {
    let world = World::new(1).await;
    let (owner, other) = world.places();
    let name = world.router.call(KEY, ask).await.unwrap();
    assert_eq!(name, ["first", "second"][owner]);
    assert_eq!(world.servers[other].asked(), 0);
    let routed = world.servers[owner].shared.routed.lock().unwrap().unwrap();
    assert_eq!(routed.point, world.router.point(KEY));
    assert_eq!(routed.version, world.router.version());
    assert!(!routed.redirected);
}

#[tokio::test]
async fn a_redirect_is_followed_once_and_its_map_learned() {
    let world = World::new(1).await;
    let (owner, other) = world.places();
    let view = world.router.view().borrow().clone();
    let newer = view.assignment.version().next();
    // Everything is the other one's now, and the router does not know.
    let to = world.sessions[other].server_id();
    let moved = Assignment::even(newer, &[to], 4, 1);
    world.servers[owner].answers(Answer::Redirect(Redirect {
        to: Some(to),
        address: None,
        version: Some(newer),
        assignment: Some(moved),
    }));
    assert_eq!(
        world.router.call(KEY, ask).await.unwrap(),
        ["first", "second"][other]
    );
    let routed = world.servers[other].shared.routed.lock().unwrap().unwrap();
    assert!(routed.redirected);
    assert_eq!(routed.version, Some(newer));
    let page = world.router.metrics();
    for line in [
        "trefoil_router_calls_total{corpus=\"c\",outcome=\"answered\"} 1.0",
        "trefoil_router_redirects_total{corpus=\"c\"} 1.0",
        "trefoil_router_servers{corpus=\"c\"} 2.0",
        "trefoil_router_outstanding{corpus=\"c\"} 0.0",
    ] {
        assert!(page.contains(line), "no {line} in {page}");
    }
    // The next call goes there at once.
    world.router.call(KEY, ask).await.unwrap();
    assert_eq!(
        (world.servers[owner].asked(), world.servers[other].asked()),
        (1, 2)
    );
}

#[tokio::test]
async fn the_newest_version_named_sticks_though_its_map_is_not_here() {
    let world = World::new(1).await;
    let (owner, other) = world.places();
    let newer = world.router.version().unwrap().next().next();
    world.servers[owner].answers(Answer::Redirect(Redirect {
        to: Some(world.sessions[other].server_id()),
        version: Some(newer),
        ..Redirect::default()
    }));
    world.router.call(KEY, ask).await.unwrap();
    world.servers[owner].answers(Answer::Name);
    world.router.call(KEY, ask).await.unwrap();
    let routed = world.servers[owner].shared.routed.lock().unwrap().unwrap();
    assert_eq!(routed.version, Some(newer));
    assert!(world.router.version() < Some(newer));
}

#[tokio::test]
async fn a_server_that_the_router_does_not_know_is_reached_by_its_address() {
    let world = World::new(1).await;
    let (owner, _) = world.places();
    let newcomer = TestServer::start("newcomer").await;
    world.servers[owner].answers(Answer::Redirect(Redirect {
        to: Some(ServerId(99)),
        address: Some(newcomer.address.to_string()),
        version: world.router.version().map(|version| version.next()),
        assignment: None,
    }));
    assert_eq!(world.router.call(KEY, ask).await.unwrap(), "newcomer");
}

#[tokio::test]
async fn two_servers_that_point_at_each_other_are_asked_once_each() {
    let world = World::new(1).await;
    for (place, server) in world.servers.iter().enumerate() {
        server.answers(Answer::Redirect(Redirect {
            to: Some(world.sessions[1 - place].server_id()),
            ..Redirect::default()
        }));
    }
    let error = world.router.call(KEY, ask).await.unwrap_err();
    assert!(
        matches!(error, CallError::RedirectedTwice { .. }),
        "{error}"
    );
    let asked: Vec<u32> = world.servers.iter().map(TestServer::asked).collect();
    assert_eq!(asked, [1, 1]);
}

/// Neither a server that hangs nor one that is asked again and again.
#[tokio::test]
async fn a_call_takes_no_longer_than_its_caller_has() {
    let world = World::new(1).await;
    let limit = Duration::from_millis(200);
    let hangs = |_, _| std::future::pending::<Result<String, Status>>();
    for options in [
        CallOptions::default(),
        CallOptions::repeatable(Duration::from_secs(3_600)),
    ] {
        let call = world.router.call_with(KEY, options.within(limit), hangs);
        let error = tokio::time::timeout(Duration::from_secs(60), call).await;
        let error = error.expect("it is given up").unwrap_err();
        assert_eq!(error.status().unwrap().code(), Code::DeadlineExceeded);
    }
    let (owner, _) = world.places();
    world.servers[owner].answers(Answer::Fails(Status::unavailable("not now")));
    let options = CallOptions::repeatable(Duration::from_secs(3_600)).within(limit);
    let call = world.router.call_with(KEY, options, ask);
    let error = tokio::time::timeout(Duration::from_secs(60), call).await;
    let error = error.expect("it is given up").unwrap_err();
    assert_eq!(error.status().unwrap().code(), Code::Unavailable);
    assert!(world.servers[owner].asked() > 1);
}

#[tokio::test]
async fn a_servers_own_error_is_handed_on_and_not_repeated() {
    let world = World::new(1).await;
    let (owner, _) = world.places();
    world.servers[owner].answers(Answer::Fails(Status::not_found("no such thing")));
    let repeatable = CallOptions::repeatable(Duration::from_secs(5));
    let error = world
        .router
        .call_with(KEY, repeatable, ask)
        .await
        .unwrap_err();
    assert_eq!(error.status().unwrap().code(), Code::NotFound);
    assert_eq!(world.servers[owner].asked(), 1);
    world.servers[owner].answers(Answer::Fails(Status::internal("broken")));
    world.router.call(KEY, ask).await.unwrap_err();
    // One that its caller drops while it is under way.
    let hangs = world
        .router
        .call(KEY, |_, _| std::future::pending::<Result<(), Status>>());
    let dropped = tokio::time::timeout(Duration::from_millis(10), hangs).await;
    assert!(dropped.is_err());
    let page = world.router.metrics();
    for line in [
        "outcome=\"refused\"} 1.0",
        "outcome=\"error\"} 1.0",
        "outcome=\"abandoned\"} 1.0",
    ] {
        assert!(page.contains(line), "no {line} in {page}");
    }
}

#[tokio::test]
async fn a_dead_server_fails_a_write_at_once_and_a_repeatable_call_waits() {
    let mut world = World::new(1).await;
    let (owner, other) = world.places();
    drop(world.servers.remove(owner));
    drop(world.sessions.remove(owner));
    let since = Instant::now();
    let error = world.router.call(KEY, ask).await.unwrap_err();
    assert_eq!(error.status().unwrap().code(), Code::Unavailable, "{error}");
    let repeatable = CallOptions::repeatable(Duration::from_secs(10));
    let name = world.router.call_with(KEY, repeatable, ask).await.unwrap();
    assert_eq!(name, ["first", "second"][other]);
    assert!(
        since.elapsed() < Duration::from_secs(5),
        "{:?}",
        since.elapsed()
    );
}

#[tokio::test]
async fn reads_spread_over_replicas_and_avoid_the_one_that_fails() {
    let world = World::new(2).await;
    let mut view = world.router.view();
    view.wait_for(|view| {
        view.assignment
            .slices()
            .iter()
            .all(|slice| slice.servers.len() == 2)
    })
    .await
    .unwrap();
    let read = CallOptions::read(Duration::from_secs(5));
    for _ in 0..40 {
        world.router.call_with(KEY, read, ask).await.unwrap();
    }
    assert!(world.servers.iter().all(|server| server.asked() > 0));
    world.servers[0].answers(Answer::Fails(Status::unavailable("stalls")));
    let before = world.servers[0].asked();
    for _ in 0..40 {
        let name = world.router.call_with(KEY, read, ask).await.unwrap();
        assert_eq!(name, "second");
    }
    assert!(world.servers[0].asked() - before < 10);
    let target = world
        .router
        .route_point(world.router.point(KEY), Access::Primary)
        .unwrap();
    let primary = world
        .router
        .view()
        .borrow()
        .assignment
        .slice_of(target.point())
        .servers[0];
    assert_eq!(target.server(), primary);
}

#[tokio::test]
async fn before_anybody_has_joined_there_is_nobody_to_ask() {
    let coordinator = LocalCoordinator::with(options(1)).unwrap();
    let router = Router::new(coordinator.watcher("c").await.unwrap());
    let error = router.call(KEY, ask).await.unwrap_err();
    assert!(matches!(
        error,
        CallError::Route(RouteError::Unassigned { .. })
    ));
    assert!(
        error
            .to_string()
            .contains("no server has joined corpus \"c\" yet")
    );
}

#[tokio::test]
async fn requests_that_fan_out_are_parted_by_server() {
    let world = World::new(1).await;
    let keys: Vec<String> = (0..100).map(|i| format!("key {i}")).collect();
    let parts = world.router.partition(&keys).unwrap();
    assert_eq!(parts.len(), 2);
    let mut places: Vec<usize> = parts
        .iter()
        .flat_map(|(_, places)| places.clone())
        .collect();
    places.sort_unstable();
    assert_eq!(places, (0..100).collect::<Vec<_>>());
    for (target, places) in &parts {
        for &place in places {
            let alone = world.router.route(keys[place].as_bytes()).unwrap();
            assert_eq!(alone.server(), target.server());
        }
    }
    drop(world.coordinator);
}
