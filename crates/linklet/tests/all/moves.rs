//! Values move with their keys: servers that join, servers that drain, and a
//! rollout over all of them, under load.

use crate::cluster;
use crate::cluster::{CORPUS, Cluster, name};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use trefoil_linklet::{Drained, Error, Linklet, Loaded, LoaderError, Replication};

/// A value that shows whose it is.
fn value(n: u64, bytes: usize) -> Vec<u8> {
    let mut value = n.to_le_bytes().to_vec();
    value.resize(bytes, n as u8);
    value
}

async fn fill(cluster: &Cluster, keys: u64, bytes: usize) {
    for n in 0..keys {
        cluster.put(&name(n), &value(n, bytes)).await.unwrap();
    }
}

async fn check(cluster: &Cluster, keys: u64, bytes: usize) {
    for n in 0..keys {
        let found = cluster.get(&name(n)).await.unwrap();
        assert!(found == Some(value(n, bytes)), "key {n}: {found:?}");
    }
}

async fn drain_one(replication: Replication) {
    let mut cluster = Cluster::of(3, replication).await;
    fill(&cluster, 900, 8).await;
    let (&id, leaving) = cluster.linklets.iter().next().unwrap();
    let leaving = leaving.clone();
    assert!(leaving.stats().entries > 150);
    assert_eq!(leaving.drain().await, Drained::Empty);
    assert_eq!(leaving.owned(), []);
    leaving.leave().await;
    cluster.linklets.remove(&id);
    drop(leaving);
    cluster.settle().await;
    check(&cluster, 900, 8).await;
    assert_eq!(cluster.losses(), [], "{replication:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_server_leaves_nothing_behind() {
    tokio::join!(
        drain_one(Replication::None),
        drain_one(Replication::Eventual),
        drain_one(Replication::Strong),
    );
}

/// Everything that two servers have moves while it is read and written.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_and_no_value_is_lost_while_slices_move() {
    const KEYS: u64 = 10_000;
    let mut cluster = Cluster::of(2, Replication::None).await;
    fill(&cluster, KEYS, 1024).await;
    cluster
        .join(|builder| builder.move_bytes_per_second(8 << 20))
        .await;
    let leaving: Vec<_> = cluster.linklets.keys().copied().take(1).collect();
    let cluster = Arc::new(cluster);
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for caller in 0..2u64 {
        let (cluster, stop) = (Arc::clone(&cluster), Arc::clone(&stop));
        callers.push(tokio::spawn(async move {
            let mut written = vec![0u64; KEYS as usize];
            let mut random = caller + 1;
            let mut requests = 0u64;
            while !stop.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Each caller writes keys of its own.
                let n = (random % KEYS) & !1 | caller;
                if random >> 60 < 4 {
                    let next = written[n as usize] + 1;
                    let update = |linklet: Linklet<Vec<u8>>| async move {
                        linklet
                            .update(&name(n), |value| {
                                value[8..16].copy_from_slice(&next.to_le_bytes())
                            })
                            .await
                    };
                    let found = cluster.call(&name(n), update).await.unwrap();
                    assert!(found.is_some(), "key {n} is lost");
                    written[n as usize] = next;
                } else {
                    let found = cluster
                        .get(&name(n))
                        .await
                        .unwrap()
                        .expect("no key is lost");
                    if written[n as usize] > 0 {
                        assert_eq!(found[8..16], written[n as usize].to_le_bytes(), "key {n}");
                    }
                }
                requests += 1;
                // Keys that are here never make a task wait.
                tokio::task::yield_now().await;
            }
            requests
        }));
    }
    for id in leaving {
        assert_eq!(cluster.linklets[&id].drain().await, Drained::Empty);
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }
    assert_eq!(cluster.losses(), []);
    cluster.settle().await;
    for n in 0..KEYS {
        assert!(
            cluster.get(&name(n)).await.unwrap().is_some(),
            "key {n} is lost"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_keeps_the_cache_warm() {
    const KEYS: u64 = 2_000;
    let loads = Arc::new(AtomicU64::new(0));
    let coordinator = cluster::coordinator(1);
    let start = || {
        let counted = Arc::clone(&loads);
        let load = move |key: Vec<u8>| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move { Ok::<_, LoaderError>(Some(Loaded::from(key))) }
        };
        Linklet::builder(CORPUS, trefoil_linklet::PlainMarshal)
            .loader(load)
            .listen(coordinator.clone(), "127.0.0.1:0".parse().unwrap())
    };
    let mut cluster = Cluster::with(coordinator.clone(), 0, Replication::None).await;
    for _ in 0..5 {
        let linklet = start().await.unwrap();
        cluster
            .linklets
            .insert(linklet.server_id().unwrap(), linklet);
    }
    cluster.settle().await;
    let read = |linklet: Linklet<Vec<u8>>, n: u64| async move {
        linklet
            .read_or_load(&name(n), |value| assert_eq!(*value, name(n)))
            .await
    };
    for n in 0..KEYS {
        cluster
            .call(&name(n), |linklet| read(linklet, n))
            .await
            .unwrap();
    }
    assert_eq!(loads.load(Ordering::Relaxed), KEYS);

    let old: Vec<_> = cluster.linklets.keys().copied().collect();
    let (mut requests, mut n) = (0u64, 0);
    for id in old {
        let new = start().await.unwrap();
        cluster.linklets.insert(new.server_id().unwrap(), new);
        let leaving = cluster.linklets[&id].clone();
        let mut drained = tokio::spawn({
            let leaving = leaving.clone();
            async move { leaving.drain().await }
        });
        loop {
            n = (n + 7919) % KEYS;
            cluster
                .call(&name(n), |linklet| read(linklet, n))
                .await
                .unwrap();
            requests += 1;
            if requests % 16 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if drained.is_finished() {
                break;
            }
        }
        assert_eq!((&mut drained).await.unwrap(), Drained::Empty);
        leaving.leave().await;
        cluster.linklets.remove(&id);
    }
    let misses = loads.load(Ordering::Relaxed) - KEYS;
    assert!(requests > 500, "{requests}");
    assert!(misses * 100 <= requests, "{misses} misses of {requests}");
    println!(
        "a rollout over 5 servers: hit ratio {:.3} %, {misses} misses of {requests} requests",
        100.0 * (1.0 - misses as f64 / requests as f64)
    );
    assert!(
        cluster
            .linklets
            .values()
            .all(|linklet| linklet.stats().evictions == 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_redirected_to_who_has_the_key() {
    let cluster = Cluster::of(2, Replication::None).await;
    let owner = cluster.owner(b"k").unwrap().server_id();
    let other = cluster
        .linklets
        .values()
        .find(|l| l.server_id() != owner)
        .unwrap();
    match other.insert(b"k", vec![1]).await {
        Err(Error::NotMine(redirect)) => {
            assert_eq!(redirect.to, owner);
            assert!(redirect.address.unwrap().starts_with("127.0.0.1:"));
            assert_eq!(redirect.version, other.version());
            assert!(redirect.assignment.is_some(), "the caller knew none");
        }
        other => panic!("{other:?}"),
    }
    // One that was redirected before is not sent on while there is time.
    let again = other
        .redirected(other.version())
        .patient(Duration::from_millis(50));
    let before = std::time::Instant::now();
    assert!(matches!(
        again.read(b"k", |_| ()).await,
        Err(Error::NotMine(_))
    ));
    assert!(before.elapsed() >= Duration::from_millis(30));
}
