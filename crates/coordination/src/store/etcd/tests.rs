//! The promises of a store, over a real etcd.

#[path = "../../../tests/all/support/etcd.rs"]
mod process;

use super::EtcdStore;
use super::corpus::EtcdCorpus;
use crate::store::{CorpusState, Writer};
use crate::view::ServerInfo;
use crate::wire::MemberRecord;
use process::{Etcd, PATIENCE};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use trefoil_etcd::EtcdAccess;
use trefoil_sharder::coordination::{CandidateId, Reply, Request, StoreError};
use trefoil_sharder::{Assignment, AssignmentVersion, Capacity, Freeze, ServerId};

const LEASE: Duration = Duration::from_secs(2);

fn corpus(etcd: &Etcd, candidate: u64) -> EtcdCorpus {
    let store = EtcdStore::new(&[etcd.host()], "p", &EtcdAccess::default()).unwrap();
    let writer = Writer {
        candidate: CandidateId(candidate),
        address: format!("assigner{candidate}:1"),
    };
    EtcdCorpus::open(&store, "c", writer)
}

fn map(generation: u64) -> Assignment {
    let version = AssignmentVersion {
        incarnation: 1,
        generation,
    };
    let servers: Vec<_> = (1..=1 + generation % 5).map(ServerId).collect();
    Assignment::even(version, &servers, 4, 1)
}

fn swap(term: u64, expected: Option<u64>, next: u64) -> Request {
    Request::Swap {
        term,
        expected: expected.map(|generation| map(generation).version()),
        next: map(next),
    }
}

async fn campaign(corpus: &EtcdCorpus, candidate: u64) -> Result<Reply, StoreError> {
    let request = Request::Campaign {
        candidate: CandidateId(candidate),
        lease: LEASE,
    };
    corpus.request(request).await
}

fn member(id: u64) -> MemberRecord {
    let capacity = Capacity { cpu: 1.0, bytes: 1 };
    MemberRecord {
        id: ServerId(id),
        life: id,
        info: ServerInfo::new(format!("s{id}:1"), capacity),
    }
}

#[tokio::test]
async fn a_swap_needs_the_version_in_force_a_newer_one_and_the_present_term() {
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    let (a, b) = (corpus(&etcd, 1), corpus(&etcd, 2));
    assert_eq!(campaign(&a, 1).await, Ok(Reply::Elected { term: 1 }));
    assert_eq!(
        campaign(&a, 1).await,
        Ok(Reply::Elected { term: 1 }),
        "leads on"
    );
    let following = Reply::Following {
        leader: CandidateId(1),
        term: 1,
    };
    assert_eq!(campaign(&b, 2).await, Ok(following));
    assert_eq!(a.request(Request::Load).await, Ok(Reply::Loaded(None)));
    let version = |generation| map(generation).version();
    assert_eq!(
        a.request(swap(1, None, 3)).await,
        Ok(Reply::Swapped(version(3)))
    );
    assert_eq!(
        a.request(swap(1, None, 4)).await,
        Err(StoreError::Conflict {
            expected: None,
            found: Some(version(3))
        })
    );
    assert_eq!(
        a.request(swap(1, Some(3), 2)).await,
        Err(StoreError::NotNewer {
            current: version(3),
            next: version(2)
        })
    );
    assert!(matches!(
        b.request(swap(1, Some(3), 4)).await,
        Err(StoreError::NotLeader { term: 1, .. })
    ));
    assert_eq!(
        a.request(Request::Load).await,
        Ok(Reply::Loaded(Some(map(3))))
    );
}

#[tokio::test]
async fn a_former_leader_writes_nothing_however_sure_of_itself() {
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    let (a, b) = (corpus(&etcd, 1), corpus(&etcd, 2));
    assert_eq!(campaign(&a, 1).await, Ok(Reply::Elected { term: 1 }));
    a.put_member(1, &member(5)).await.unwrap();
    // It falls silent; etcd ends its lease.
    let since = Instant::now();
    let elected = loop {
        match campaign(&b, 2).await {
            Ok(Reply::Following { .. }) if since.elapsed() < PATIENCE => {
                tokio::time::sleep(LEASE / 20).await;
            }
            other => break other,
        }
    };
    assert_eq!(elected, Ok(Reply::Elected { term: 2 }));
    assert!(matches!(
        a.request(swap(1, None, 1)).await,
        Err(StoreError::NotLeader { term: 1, .. })
    ));
    for refused in [
        a.put_member(1, &member(6)).await,
        a.remove_member(1, ServerId(5)).await,
        a.set_freeze(1, Freeze::All).await,
    ] {
        assert!(
            matches!(refused, Err(StoreError::NotLeader { .. })),
            "{refused:?}"
        );
    }
    let roll = b.roll().await.unwrap();
    assert_eq!((roll.members, roll.freeze), (vec![member(5)], Freeze::Off));
    // Who resigns makes room at once.
    let resign = Request::Resign {
        candidate: CandidateId(2),
        term: 2,
    };
    assert_eq!(b.request(resign).await, Ok(Reply::Resigned));
    assert_eq!(campaign(&a, 1).await, Ok(Reply::Elected { term: 3 }));
}

#[tokio::test]
async fn everything_is_followed_through_a_compaction_and_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(folder.path());
    let (a, b) = (corpus(&etcd, 1), corpus(&etcd, 2));
    let mut seen = b.watch();
    assert_eq!(campaign(&a, 1).await, Ok(Reply::Elected { term: 1 }));
    a.put_member(1, &member(5)).await.unwrap();
    a.request(swap(1, None, 1)).await.unwrap();
    let first = |state: &Arc<CorpusState>| state.version() == Some(map(1).version());
    let state = timeout(PATIENCE, seen.wait_for(first)).await;
    let state = state.expect("b is told").unwrap().clone();
    assert_eq!(
        state.servers.len(),
        1,
        "members come before what names them"
    );
    assert_eq!(state.leader.as_ref().unwrap().address, "assigner1:1");
    for next in 2..=9 {
        a.request(swap(1, Some(next - 1), next)).await.unwrap();
    }
    etcd.compact();
    etcd.kill();
    etcd.run();
    // The lease is still there after a restart, and so is the term.
    let since = Instant::now();
    let term = loop {
        match campaign(&a, 1).await {
            Ok(Reply::Elected { term }) => break term,
            other => {
                assert!(!matches!(other, Ok(Reply::Following { .. })), "{other:?}");
                assert!(since.elapsed() < PATIENCE, "{other:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    a.request(swap(term, Some(9), 10)).await.unwrap();
    a.remove_member(term, ServerId(5)).await.unwrap();
    let last = |state: &Arc<CorpusState>| {
        state.version() == Some(map(10).version()) && state.servers.is_empty()
    };
    let state = timeout(PATIENCE, seen.wait_for(last)).await;
    state.expect("b is told of it all").unwrap();
}
