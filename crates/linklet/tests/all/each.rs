//! Going through what a server owns.

use crate::cluster::{Cluster, name};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet::{Error, Replication};

const COUNT: u64 = 3_000;

type Part = Vec<(Arc<[u8]>, Arc<Vec<u8>>)>;

#[tokio::test(flavor = "multi_thread")]
async fn every_object_is_handed_out_once_by_its_owner() {
    for replication in [Replication::None, Replication::Strong] {
        let cluster = Cluster::of(3, replication).await;
        for n in 0..COUNT {
            cluster.put(&name(n), &n.to_le_bytes()).await.unwrap();
        }
        // The assigner may move slices meanwhile; then nothing follows.
        let seen = loop {
            cluster.settle().await;
            let version = cluster.watcher.view().borrow().version();
            let seen = each_of_all(&cluster).await;
            if cluster.watcher.view().borrow().version() == version {
                break seen;
            }
        };
        let mut all: Vec<(Vec<u8>, Vec<u8>)> = (0..COUNT)
            .map(|n| (name(n), n.to_le_bytes().to_vec()))
            .collect();
        all.sort_unstable();
        assert!(seen == all, "{} of {COUNT}", seen.len());
    }
}

/// What all servers hand out, in the order of the keys.
async fn each_of_all(cluster: &Cluster) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    for linklet in cluster.linklets.values() {
        let mut parts = linklet.each_owned();
        while let Some(part) = parts.next().await.unwrap() {
            assert!(part.len() <= 300, "{} at once", part.len());
            // The protocol goes on, and so does everybody who changes keys.
            let (key, value) = &part[0];
            cluster.put(key, value).await.unwrap();
            seen.extend(
                part.into_iter()
                    .map(|(key, value)| (key.to_vec(), value.to_vec())),
            );
        }
    }
    seen.sort_unstable();
    seen
}

/// What comes and goes meanwhile is handed out once or not at all, and what stays
/// is handed out.
#[tokio::test(flavor = "multi_thread")]
async fn what_stays_is_handed_out_while_others_move() {
    let mut cluster = Cluster::of(1, Replication::None).await;
    for n in 0..COUNT {
        cluster.put(&name(n), b"x").await.unwrap();
    }
    let first = cluster.linklets.values().next().unwrap().clone();
    let mut parts = first.each_owned();
    let mut seen = BTreeMap::new();
    let mut keep = |part: Part| {
        for (key, _) in part {
            assert!(seen.insert(key.to_vec(), ()).is_none(), "twice");
        }
        seen.len()
    };
    keep(parts.next().await.unwrap().unwrap());
    let second = cluster.join(|builder| builder).await;
    while cluster.linklets[&second].owned().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.settle().await;
    let mut count = 0;
    while let Some(part) = parts.next().await.unwrap() {
        count = keep(part);
    }
    let owned = first.owned();
    let stayed = |key: &Vec<u8>| owned.iter().any(|slice| slice.contains(first.point(key)));
    let stayed: Vec<Vec<u8>> = (0..COUNT).map(name).filter(stayed).collect();
    assert!(!stayed.is_empty() && stayed.len() < COUNT as usize);
    assert!(stayed.iter().all(|key| seen.contains_key(key)));
    assert!(count < COUNT as usize, "what has gone is not here");

    let mut parts = first.each_owned();
    assert!(parts.next().await.unwrap().is_some());
    first.leave().await;
    let end = loop {
        match parts.next().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Err(Error::NotMember)), "{end:?}");
}
