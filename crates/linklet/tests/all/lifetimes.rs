//! Objects that end by themselves, changes that wait while they are made, and going
//! through what a server owns.

use crate::cluster::{CORPUS, Cluster, coordinator, name};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use trefoil_linklet::{Builder, Error, Linklet, Listener, PlainMarshal, Replication};

/// Hears of what has ended.
#[derive(Default)]
struct Ended(Mutex<Vec<Vec<u8>>>);

impl Listener for Ended {
    fn expired(&self, keys: &[Vec<u8>]) {
        self.0.lock().unwrap().extend_from_slice(keys);
    }
}

impl Ended {
    fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys = self.0.lock().unwrap().clone();
        keys.sort();
        keys
    }
}

/// An object of eight bytes that say when it ends.
fn ending(from_now: Duration) -> Vec<u8> {
    let end = (SystemTime::now() + from_now).duration_since(UNIX_EPOCH);
    let millis = end.unwrap().as_millis() as u64;
    millis.to_le_bytes().to_vec()
}

fn end(value: &[u8]) -> Option<SystemTime> {
    let millis = u64::from_le_bytes(value.try_into().ok()?);
    Some(UNIX_EPOCH + Duration::from_millis(millis))
}

const HOUR: Duration = Duration::from_secs(3_600);
const SOON: Duration = Duration::from_millis(600);

async fn eventually(mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(15), "it never does");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn alone(build: impl FnOnce(Builder<Vec<u8>>) -> Builder<Vec<u8>>) -> Linklet<Vec<u8>> {
    let builder = build(Linklet::builder(CORPUS, PlainMarshal));
    let listen = "127.0.0.1:0".parse().unwrap();
    let linklet = builder.listen(coordinator(1), listen).await.unwrap();
    linklet.settled().await;
    linklet
}

async fn objects_end_at_their_time(replication: Replication) {
    let ended = Arc::new(Ended::default());
    let mut cluster = Cluster::with(coordinator(2), 0, replication).await;
    for _ in 0..2 {
        let listener = Arc::clone(&ended) as Arc<dyn Listener>;
        let build =
            |builder: Builder<Vec<u8>>| builder.expires(|value| end(value)).listener(listener);
        cluster.join(build).await;
    }
    cluster.settle().await;
    for n in 0..20 {
        let after = if n % 2 == 0 { HOUR } else { SOON };
        cluster.put(&name(n), &ending(after)).await.unwrap();
    }
    tokio::time::sleep(SOON + Duration::from_millis(1)).await;
    // At once, swept or not.
    for n in 0..20 {
        let there = cluster.get(&name(n)).await.unwrap().is_some();
        assert_eq!(there, n % 2 == 0, "{n}");
    }
    let mut expected: Vec<Vec<u8>> = (0..10).map(|n| name(2 * n + 1)).collect();
    expected.sort();
    eventually(|| ended.keys() == expected).await;
    // From the replicas, too.
    let entries = || -> u64 { cluster.linklets.values().map(|l| l.stats().entries).sum() };
    eventually(|| entries() == 20).await;
    // Another one in the place of one that has ended.
    cluster.put(&name(1), &ending(HOUR)).await.unwrap();
    assert!(cluster.get(&name(1)).await.unwrap().is_some());
    assert_eq!(cluster.losses(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_end_at_their_time_with_strong_copies() {
    objects_end_at_their_time(Replication::Strong).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_end_at_their_time_with_copies_that_follow() {
    objects_end_at_their_time(Replication::Eventual).await;
}

/// What has ended and was not swept yet is absent for changes, too.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_is_not_changed_but_made_anew() {
    for replication in [Replication::None, Replication::Strong] {
        let build = |builder: Builder<Vec<u8>>| builder.replication(replication).copies(1);
        let linklet = alone(|builder| build(builder).expires(|value| end(value))).await;
        linklet.insert(b"k", ending(Duration::ZERO)).await.unwrap();
        let changed = linklet.update(b"k", |_| ()).await.unwrap();
        assert_eq!(changed, None);
        linklet.insert(b"k", ending(Duration::ZERO)).await.unwrap();
        assert!(!linklet.remove(b"k").await.unwrap());
        let made = linklet.upsert(b"k", || ending(HOUR), |value| value.clone());
        assert!(end(&made.await.unwrap()) > Some(SystemTime::now()));
        assert!(linklet.get(b"k").await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_uses_ends() {
    let ended = Arc::new(Ended::default());
    let listener = Arc::clone(&ended) as Arc<dyn Listener>;
    // Long beside a busy machine's pauses.
    let idle = Duration::from_secs(5);
    let linklet = alone(|builder| builder.idle(idle).listener(listener)).await;
    linklet.insert(b"used", b"1".to_vec()).await.unwrap();
    linklet.insert(b"unused", b"2".to_vec()).await.unwrap();
    let since = Instant::now();
    while ended.keys().is_empty() {
        assert!(since.elapsed() < Duration::from_secs(30), "it never ends");
        let used = linklet.read(b"used", Vec::clone).await.unwrap();
        assert_eq!(used.as_deref(), Some(&b"1"[..]));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(since.elapsed() > idle - Duration::from_secs(1));
    assert_eq!(ended.keys(), [b"unused".to_vec()]);
    assert_eq!(linklet.read(b"unused", Vec::len).await.unwrap(), None);
    assert_eq!(linklet.stats().entries, 1);
    assert_eq!(linklet.stats().expired, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_servers_together_have_everything_once() {
    let cluster = Cluster::of(3, Replication::Strong).await;
    for n in 0..600_u64 {
        cluster.put(&name(n), &n.to_le_bytes()).await.unwrap();
    }
    let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for linklet in cluster.linklets.values() {
        let before = found.len();
        linklet.each_owned(|key, value| {
            let twice = found.insert(key.to_vec(), value.clone());
            assert_eq!(twice, None, "{}", String::from_utf8_lossy(key));
        });
        assert!(found.len() > before, "each has some");
    }
    assert_eq!(found.len(), 600);
    for n in 0..600_u64 {
        assert_eq!(found[&name(n)], n.to_le_bytes());
    }
}

/// Adds one, and waits for something in between.
async fn add_slowly(linklet: &Linklet<Vec<u8>>, gate: &Semaphore) -> Result<Option<u8>, Error> {
    let add = |mut value: Vec<u8>| async move {
        let _ = gate.acquire().await;
        tokio::task::yield_now().await;
        value[0] += 1;
        let now = value[0];
        (value, now)
    };
    linklet.update_async(b"k", add).await
}

async fn one_after_the_other(replication: Replication) {
    let build = |builder: Builder<Vec<u8>>| builder.replication(replication).copies(1);
    let linklet = alone(build).await;
    let gate = Arc::new(Semaphore::new(0));
    assert_eq!(add_slowly(&linklet, &gate).await.unwrap(), None, "absent");
    linklet.insert(b"k", vec![0]).await.unwrap();
    let mut adding = Vec::new();
    for _ in 0..20 {
        let (linklet, gate) = (linklet.clone(), Arc::clone(&gate));
        adding.push(tokio::spawn(
            async move { add_slowly(&linklet, &gate).await },
        ));
    }
    // One that is under way ends with its call.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let given_up = adding.swap_remove(0);
    given_up.abort();
    assert!(given_up.await.is_err());
    let brief = linklet.patient(Duration::from_millis(50));
    let busy = add_slowly(&brief, &gate).await;
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    let unseen = linklet.read(b"k", |value| value[0]).await.unwrap();
    assert_eq!(unseen, Some(0), "nothing is seen before it is through");
    gate.add_permits(1_000);
    let mut seen = Vec::new();
    for adding in adding {
        seen.push(adding.await.unwrap().unwrap().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(
        seen,
        (1..=19).collect::<Vec<u8>>(),
        "each sees the one before"
    );
    // Somebody else changes the key meanwhile.
    let other = linklet.clone();
    let overtaken = linklet.update_async(b"k", |value: Vec<u8>| async move {
        let set = other.update(b"k", |value| value[0] = 100);
        assert_eq!(set.await.unwrap(), Some(()));
        (value, ())
    });
    let overtaken = overtaken.await;
    assert!(matches!(overtaken, Err(Error::Conflict)), "{overtaken:?}");
    let now = linklet.read(b"k", |value| value[0]).await.unwrap();
    assert_eq!(now, Some(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_wait_are_made_one_after_the_other() {
    one_after_the_other(Replication::None).await;
    one_after_the_other(Replication::Strong).await;
}
