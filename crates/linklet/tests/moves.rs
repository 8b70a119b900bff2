//! Values move with their keys: servers that join, and servers that drain.

mod cluster;

use cluster::{Cluster, name};
use trefoil_linklet::{Drained, Replication};

async fn filled(count: usize, replication: Replication, keys: u64) -> Cluster {
    let cluster = Cluster::of(count, replication).await;
    for n in 0..keys {
        cluster.put(&name(n), &n.to_le_bytes()).await.unwrap();
    }
    cluster
}

async fn check(cluster: &Cluster, keys: u64) {
    for n in 0..keys {
        let value = cluster.get(&name(n)).await.unwrap();
        assert_eq!(value.as_deref(), Some(&n.to_le_bytes()[..]), "key {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_server_leaves_nothing_behind() {
    for replication in [
        Replication::None,
        Replication::Eventual,
        Replication::Strong,
    ] {
        let mut cluster = filled(3, replication, 3_000).await;
        let (&id, leaving) = cluster.linklets.iter().next().unwrap();
        let leaving = leaving.clone();
        assert!(leaving.stats().entries > 500);
        assert_eq!(leaving.drain().await, Drained::Empty);
        assert_eq!(leaving.owned(), []);
        leaving.leave().await;
        cluster.linklets.remove(&id);
        drop(leaving);
        cluster.settle().await;
        check(&cluster, 3_000).await;
        assert_eq!(cluster.losses(), [], "{replication:?}");
    }
}
