//! Strong copies and no database: what was acknowledged is not given up for want of room,
//! here or where it is to be.

use crate::cluster::{CORPUS, Cluster, coordinator, name};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_linklet::{Error, Linklet, Listener, Marshal, MarshalError, Replication};

const VALUE: [u8; 1_000] = [7; 1_000];

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_what_is_new_and_keeps_what_it_has() {
    let mut cluster = Cluster::with(coordinator(2), 0, Replication::Strong).await;
    for _ in 0..2 {
        cluster.join(|builder| builder.memory(60_000)).await;
    }
    cluster.settle().await;
    let mut stored = Vec::new();
    for n in 0..100 {
        match cluster.put(&name(n), &VALUE).await {
            Ok(()) => stored.push(n),
            Err(Error::NoRoom { .. }) => {}
            Err(other) => panic!("{n}: {other}"),
        }
    }
    assert!((30..70).contains(&stored.len()), "{}", stored.len());
    for &n in &stored {
        let value = cluster.get(&name(n)).await.unwrap();
        assert_eq!(value.as_deref(), Some(&VALUE[..]), "{n}");
        // What is no larger takes the place of what is there.
        cluster.put(&name(n), &[8; 1_000]).await.unwrap();
    }
    for linklet in cluster.linklets.values() {
        let stats = linklet.stats();
        assert_eq!(stats.evictions, 0);
        assert!(stats.bytes <= stats.bytes_max, "{stats:?}");
    }
    let act = |linklet: Linklet<Vec<u8>>| async move { linklet.remove(&name(0)).await };
    assert!(cluster.call(&name(0), act).await.unwrap());
    cluster.put(&name(1_000), &VALUE).await.unwrap();
    assert_eq!(cluster.losses(), []);
}

/// One of another release, which cannot read what the others send, until it can.
struct Other(Arc<AtomicBool>);

impl Marshal<Vec<u8>> for Other {
    fn marshal(&self, _: &[u8], value: &Vec<u8>, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        out.extend_from_slice(value);
        Ok(())
    }

    fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<Vec<u8>, MarshalError> {
        match self.0.load(Ordering::Relaxed) {
            true => Ok(bytes.to_vec()),
            false => Err(MarshalError::new("another release's form")),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_newcomer_cannot_store_stays_where_it_is() {
    const KEYS: u64 = 200;
    let mut cluster = Cluster::of(2, Replication::Strong).await;
    for n in 0..KEYS {
        cluster.put(&name(n), &n.to_le_bytes()).await.unwrap();
    }
    let reads = Arc::new(AtomicBool::new(false));
    let third = Linklet::builder(CORPUS, Other(Arc::clone(&reads)))
        .replication(Replication::Strong)
        .listener(Arc::clone(&cluster.heard) as Arc<dyn Listener>)
        .listen(cluster.coordinator.clone(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let id = third.server_id().unwrap();
    cluster.linklets.insert(id, third.clone());
    let deadline = Instant::now() + Duration::from_secs(20);
    while third.stats().moves_refused == 0 {
        assert!(Instant::now() < deadline, "nothing is moved to it");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let page = third.metrics();
    assert!(
        page.contains("trefoil_linklet_moves_refused_total"),
        "{page}"
    );
    for round in 0..3 {
        for n in 0..KEYS {
            let value = cluster.get(&name(n)).await;
            let value = value.unwrap_or_else(|error| panic!("{round}, {n}: {error}"));
            assert_eq!(value, Some(n.to_le_bytes().to_vec()), "{round}, {n}");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    reads.store(true, Ordering::Relaxed);
    cluster.settle().await;
    for n in 0..KEYS {
        let value = cluster.get(&name(n)).await.unwrap();
        assert_eq!(value, Some(n.to_le_bytes().to_vec()), "{n}");
    }
    assert_eq!(cluster.losses(), []);
}
