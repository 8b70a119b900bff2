//! An assigner whose store takes its time.

use super::{Node, NodeOptions};
use crate::error::Refusal;
use crate::link::{Grant, Registration};
use crate::store::{Store, StoreAddress};
use crate::view::ServerInfo;
use crate::wire::MemberRecord;
use std::pin::pin;
use std::time::{Duration, Instant};
use trefoil_etcd::EtcdAccess;
use trefoil_sharder::{Capacity, ServerId};

fn registration(id: u64, again: bool) -> Registration {
    let capacity = Capacity { cpu: 1.0, bytes: 1 };
    Registration {
        record: MemberRecord {
            id: ServerId(id),
            life: id * 10,
            info: ServerInfo::new(format!("a:{id}"), capacity),
        },
        known: None,
        again,
        granted: None,
        told: None,
    }
}

async fn register(node: &Node, id: u64, again: bool) -> Result<Grant, Refusal> {
    node.register("mail", registration(id, again)).await
}

/// An assigner that leads, and the file of its store.
async fn leading(folder: &tempfile::TempDir) -> (Node, Store) {
    let address = StoreAddress::File(folder.path().join("state"));
    let store = Store::open(&address, &EtcdAccess::default()).unwrap();
    let node = Node::start(store.clone(), NodeOptions::default()).unwrap();
    let since = Instant::now();
    while let Err(refusal) = register(&node, 1, false).await {
        assert!(since.elapsed() < Duration::from_secs(60), "{refusal}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (node, store)
}

/// Nobody has heard yet that it is a member, and nobody that it is none.
#[tokio::test]
async fn who_asks_again_while_it_is_written_down_is_not_told_that_it_was_struck_off() {
    let folder = tempfile::tempdir().unwrap();
    let (node, store) = leading(&folder).await;
    let Store::Embedded(file) = &store else {
        panic!("it was opened as a file");
    };
    let held = file.hold_writes().await;
    let mut first = pin!(register(&node, 2, false));
    tokio::select! {
        biased;
        written = &mut first => panic!("it waits for the file: {written:?}"),
        asked = register(&node, 2, true) => {
            let Err(Refusal::Store(why)) = asked else {
                panic!("{asked:?}");
            };
            assert!(why.contains("is being written"), "{why}");
        }
    }
    drop(held);
    assert!(first.await.is_ok());
    assert!(register(&node, 2, true).await.is_ok());
}

/// Its record reaches the store after it has left: it is struck off, not kept for a lease.
#[tokio::test]
async fn who_leaves_while_it_is_written_down_is_no_member() {
    let folder = tempfile::tempdir().unwrap();
    let (node, store) = leading(&folder).await;
    let Store::Embedded(file) = &store else {
        panic!("it was opened as a file");
    };
    let held = file.hold_writes().await;
    let mut first = pin!(register(&node, 2, false));
    tokio::select! {
        biased;
        written = &mut first => panic!("it waits for the file: {written:?}"),
        left = node.leave("mail", ServerId(2), 20) => left.unwrap(),
    }
    drop(held);
    assert_eq!(first.await, Err(Refusal::Expired));
    assert_eq!(register(&node, 2, false).await, Err(Refusal::Expired));
}
