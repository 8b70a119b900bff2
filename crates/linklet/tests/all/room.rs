//! Strong copies and no database: what was acknowledged is not given up for want of room,
//! here or where it is to be.

use crate::cluster;
use crate::cluster::{CORPUS, Cluster, coordinator, name};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use trefoil_linklet::{
    Error, Linklet, Listener, Marshal, MarshalError, Replication, VALUE_BYTES_MAX,
};

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
    let deadline = Instant::now() + Duration::from_secs(60);
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

/// The next owner could not store keys, and hears nothing any more: when they are sent to it
/// once more nobody knows where they are, and who asks is told so.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_what_was_sent_to_a_server_that_hangs_is_told_so() {
    // So many that some of them are given to it.
    const KEYS: u64 = 200;
    const PATIENCE: Duration = Duration::from_millis(50);
    let cluster = Cluster::of(2, Replication::Strong).await;
    for n in 0..KEYS {
        cluster.put(&name(n), &[1]).await.unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let third = Linklet::builder(CORPUS, Other(Arc::default()))
        .replication(Replication::Strong)
        .join(cluster.coordinator.clone(), address.to_string())
        .await
        .unwrap();
    let serving = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let service = third.service();
    serving.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let server = Server::builder().add_service(service.into_server());
        let incoming = TcpIncoming::from(listener);
        server.serve_with_incoming(incoming).await
    });
    let id = third.server_id().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    // It has answered all that it was sent: before that it is sent nothing again.
    let (mut refused, mut quiet) = (0, 0);
    while refused == 0 || quiet < 20 {
        assert!(Instant::now() < deadline, "nothing is moved to it");
        tokio::time::sleep(Duration::from_millis(10)).await;
        let before = std::mem::replace(&mut refused, third.stats().moves_refused);
        quiet = if refused == before { quiet + 1 } else { 0 };
    }
    serving.shutdown_background();
    // Who has sent it knows, whatever the map says by now. Pauses before it is sent again
    // have doubled meanwhile, up to half a minute.
    let deadline = Instant::now() + Duration::from_secs(60);
    let former: Vec<_> = cluster.linklets.values().cloned().collect();
    let mut told = None;
    'asked: while told.is_none() {
        assert!(Instant::now() < deadline, "nobody is told");
        for (n, linklet) in (0..KEYS).flat_map(|n| former.iter().map(move |f| (n, f))) {
            let linklet = linklet.patient(PATIENCE);
            if let Err(Error::Sent { to, waited }) = linklet.insert(&name(n), vec![2]).await {
                told = Some((to, waited));
                continue 'asked;
            }
        }
    }
    assert_eq!(told, Some((id, PATIENCE)));
    assert_eq!(cluster.losses(), []);
}

/// Marshals to as many bytes as the value says, and weighs nothing.
struct Long;

impl Marshal<usize> for Long {
    fn marshal(&self, _: &[u8], value: &usize, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        *out = vec![0; *value];
        Ok(())
    }

    fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<usize, MarshalError> {
        Ok(bytes.len())
    }
}

/// What no other server could take is refused where it is put, and what is there stays; the
/// keys after it are copied as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_too_long_is_refused_where_it_is_put() {
    cluster::log();
    let coordinator = coordinator(2);
    let mut linklets = Vec::new();
    for _ in 0..2 {
        let linklet = Linklet::builder(CORPUS, Long)
            .replication(Replication::Strong)
            .listen(coordinator.clone(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        linklets.push(linklet);
    }
    for linklet in &linklets {
        linklet.settled().await;
    }
    let put = async |value: usize| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            for linklet in &linklets {
                match linklet.insert(b"key", value).await {
                    Err(Error::NotMine(_) | Error::TooFewCopies { .. } | Error::Moving { .. }) => {}
                    done => return done,
                }
            }
            assert!(Instant::now() < deadline, "nobody takes it");
        }
    };
    put(7).await.unwrap();
    let error = put(VALUE_BYTES_MAX).await.unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("201326592 at most"), "{said}");
    let update = linklets[0].update(b"key", |value| *value = VALUE_BYTES_MAX);
    let error = match update.await {
        Err(Error::NotMine(_)) => {
            let update = linklets[1].update(b"key", |value| *value = VALUE_BYTES_MAX);
            update.await.unwrap_err()
        }
        other => other.unwrap_err(),
    };
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    for linklet in &linklets {
        if let Ok(value) = linklet.read(b"key", |value| *value).await {
            assert_eq!(value, Some(7));
        }
    }
    put(8).await.unwrap();
}

/// Where nothing is marshalled when it is put, what it weighs counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_weighs_too_much_is_refused_where_it_is_put() {
    struct Heavy;
    impl Marshal<u64> for Heavy {
        fn marshal(&self, _: &[u8], value: &u64, out: &mut Vec<u8>) -> Result<(), MarshalError> {
            out.extend(value.to_le_bytes());
            Ok(())
        }

        fn unmarshal(&self, _: &[u8], _: &[u8]) -> Result<u64, MarshalError> {
            Ok(0)
        }

        fn weigh(&self, value: &u64) -> usize {
            *value as usize
        }
    }
    let linklet = Linklet::builder(CORPUS, Heavy)
        .memory(1 << 30)
        .listen(coordinator(1), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    linklet.settled().await;
    let heavy = VALUE_BYTES_MAX as u64 + 1;
    linklet.insert(b"key", 7).await.unwrap();
    let error = linklet.insert(b"key", heavy).await.unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    let error = linklet.upsert(b"key", || heavy, |value| *value = heavy);
    let error = error.await.unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
    assert_eq!(linklet.read(b"key", |value| *value).await.unwrap(), Some(7));
}
