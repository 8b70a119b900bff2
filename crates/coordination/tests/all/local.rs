//! Sessions and watchers over an assigner in this process.

use crate::support::{PATIENCE, assigned_to, eventually, fast, report, server, until};
use std::time::{Duration, Instant};
use trefoil_coordination::{
    BootInstant, CoordinationError, LocalCoordinator, NodeOptions, Refusal, Session, SessionEnd,
    Status,
};
use trefoil_sharder::{Freeze, MemberState, ServerId};

fn coordinator() -> LocalCoordinator {
    LocalCoordinator::with(fast()).unwrap()
}

async fn ended(session: &Session) -> SessionEnd {
    let end = tokio::time::timeout(PATIENCE, session.ended()).await;
    end.expect("the session ends")
}

#[tokio::test]
async fn servers_that_come_together_are_dealt_even_shares() {
    let coordinator = coordinator();
    let mut sessions = Vec::new();
    for port in 1..=4 {
        sessions.push(coordinator.join("mail", server(port)).await.unwrap());
    }
    let ids: Vec<ServerId> = sessions.iter().map(|session| session.server_id()).collect();
    let watcher = coordinator.watcher("mail").await.unwrap();
    let view = assigned_to(watcher.view(), &ids).await;
    assert!(view.assignment.version().is_deal(), "one deal, no moves");
    assert_eq!(view.servers.len(), 4);
    for id in ids {
        let slices = view.assignment.slices();
        let count = slices.iter().filter(|slice| slice.servers == [id]).count();
        assert_eq!(count, 8, "{id}");
        assert!(!view.is_gone(id));
    }
    assert!(sessions.iter().all(|session| session.holds_lease()));
}

#[tokio::test]
async fn a_server_that_falls_silent_is_replaced_after_its_lease() {
    let coordinator = coordinator();
    let stays = coordinator.join("mail", server(1)).await.unwrap();
    let dies = coordinator.join("mail", server(2)).await.unwrap();
    let dead = dies.server_id();
    assigned_to(stays.view(), &[stays.server_id(), dead]).await;
    let lease_end = dies.lease_end();
    let died = Instant::now();
    drop(dies);
    let seen = until(stays.view(), "the dead one is gone", |view| {
        view.is_gone(dead)
    })
    .await;
    assert!(
        BootInstant::now() > lease_end,
        "its lease had ended by its own clock before anybody was told"
    );
    assert!(seen.servers.len() == 1);
    assigned_to(stays.view(), &[stays.server_id()]).await;
    assert!(
        died.elapsed() < Duration::from_secs(3),
        "{:?}",
        died.elapsed()
    );
}

#[tokio::test]
async fn who_leaves_is_replaced_at_once() {
    let coordinator = LocalCoordinator::with(NodeOptions {
        lease: Duration::from_secs(60),
        ..fast()
    })
    .unwrap();
    let stays = coordinator.join("mail", server(1)).await.unwrap();
    let leaves = coordinator.join("mail", server(2)).await.unwrap();
    assigned_to(stays.view(), &[stays.server_id(), leaves.server_id()]).await;
    leaves.leave().await.unwrap();
    assert!(!leaves.holds_lease());
    assert_eq!(ended(&leaves).await, SessionEnd::Left);
    assigned_to(stays.view(), &[stays.server_id()]).await;
}

#[tokio::test]
async fn who_drains_gives_everything_and_stays_a_member() {
    let coordinator = coordinator();
    let stays = coordinator.join("mail", server(1)).await.unwrap();
    let drains = coordinator.join("mail", server(2)).await.unwrap();
    let (one, two) = (stays.server_id(), drains.server_id());
    let view = assigned_to(stays.view(), &[one, two]).await;
    drains.set_state(MemberState::Draining);
    for sequence in 1..200 {
        let view = stays.view().borrow().clone();
        for session in [&stays, &drains] {
            session.report(report(session, &view, sequence));
        }
        if view
            .assignment
            .slices()
            .iter()
            .all(|slice| slice.servers == [one])
        {
            assert_eq!(view.servers[&two].state, MemberState::Draining);
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!(
        "it still has slices; at first {}",
        view.assignment.version()
    );
}

#[tokio::test]
async fn an_assigner_that_is_away_freezes_the_map_and_kills_nobody() {
    let coordinator = coordinator();
    let one = coordinator.join("mail", server(1)).await.unwrap();
    let two = coordinator.join("mail", server(2)).await.unwrap();
    let ids = [one.server_id(), two.server_id()];
    let before = assigned_to(one.view(), &ids).await;
    coordinator.cut_off(true);
    until(one.status(), "it hears of the outage", |status| {
        matches!(status, Status::Unreachable { .. })
    })
    .await;
    // Longer than a lease.
    tokio::time::sleep(fast().lease * 3).await;
    assert!(!one.holds_lease(), "it cannot be sure any more");
    assert_eq!(one.view().borrow().assignment, before.assignment);
    coordinator.cut_off(false);
    until(one.status(), "it is connected again", |status| {
        *status == Status::Connected
    })
    .await;
    eventually("both hold leases again", || {
        one.holds_lease() && two.holds_lease()
    })
    .await;
    tokio::time::sleep(fast().lease).await;
    assert_eq!(one.view().borrow().assignment, before.assignment);
}

#[tokio::test]
async fn two_lives_of_one_server_end_with_the_newer_one() {
    let coordinator = coordinator();
    let former = coordinator.join("mail", server(1)).await.unwrap();
    assigned_to(former.view(), &[former.server_id()]).await;
    let lease_end = former.lease_end();
    let newer = coordinator.join("mail", server(1)).await.unwrap();
    let by = newer.server_id();
    assert_eq!(ended(&former).await, SessionEnd::Superseded { by });
    assert!(!former.holds_lease());
    assigned_to(newer.view(), &[by]).await;
    assert!(BootInstant::now() > lease_end, "nobody served beside it");
}

#[tokio::test]
async fn unknown_corpora_and_impossible_servers_are_refused() {
    let coordinator = LocalCoordinator::with(NodeOptions {
        corpora: [("mail".to_owned(), fast().balance)].into(),
        closed: true,
        ..fast()
    })
    .unwrap();
    let refusal = |error: CoordinationError| match error {
        CoordinationError::Refused { refusal, .. } => refusal,
        other => panic!("{other}"),
    };
    let unknown = Refusal::UnknownCorpus {
        known: "mail".to_owned(),
    };
    let error = coordinator.join("male", server(1)).await.unwrap_err();
    assert_eq!(refusal(error), unknown);
    let error = coordinator.watcher("male").await.unwrap_err();
    assert_eq!(refusal(error), unknown);
    let error = coordinator.watcher("no/name").await.unwrap_err();
    assert!(matches!(refusal(error), Refusal::Invalid(_)));
}

#[tokio::test]
async fn the_switch_keeps_a_dead_servers_slices() {
    let coordinator = coordinator();
    let one = coordinator.join("mail", server(1)).await.unwrap();
    let two = coordinator.join("mail", server(2)).await.unwrap();
    let before = assigned_to(one.view(), &[one.server_id(), two.server_id()]).await;
    coordinator.set_freeze("mail", Freeze::All).await.unwrap();
    let dead = two.server_id();
    drop(two);
    let view = one.view();
    until(view.clone(), "the dead one is gone", |view| {
        view.is_gone(dead)
    })
    .await;
    tokio::time::sleep(fast().step_every * 4).await;
    assert_eq!(view.borrow().assignment, before.assignment);
    coordinator.set_freeze("mail", Freeze::Off).await.unwrap();
    assigned_to(one.view(), &[one.server_id()]).await;
}
