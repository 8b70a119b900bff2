//! Objects that end: by their own account, or because nobody uses them.

use crate::cluster;
use crate::cluster::{CORPUS, Heard};
use crate::strong::Three;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::{
    Builder, Error, Eviction, EvictionReason, Linklet, Listener, PlainMarshal, Replication,
};

const MODES: [Replication; 3] = [
    Replication::None,
    Replication::Eventual,
    Replication::Strong,
];
const HOUR: Duration = Duration::from_secs(3_600);

/// An object that ends so long from now.
fn ends_in(span: Duration) -> String {
    let end = SystemTime::now() + span;
    end.duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis()
        .to_string()
}

fn end_of(text: &str) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_millis(text.parse().ok()?))
}

fn ending() -> Builder<String> {
    Linklet::builder(CORPUS, PlainMarshal).expires(|_, text: &String| end_of(text))
}

async fn start(builder: Builder<String>) -> (Linklet<String>, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let linklet = builder
        .notices(true)
        .listener(Arc::clone(&heard) as Arc<dyn Listener>)
        .copies(1)
        .listen(LocalCoordinator::new(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    linklet.settled().await;
    (linklet, heard)
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "not true: {what}"
        );
        sleep(Duration::from_millis(20)).await;
    }
}

fn left(heard: &Heard) -> Vec<Eviction> {
    heard.evictions.lock().unwrap().clone()
}

fn eviction(key: &[u8], reason: EvictionReason) -> Eviction {
    Eviction {
        key: key.to_vec(),
        reason,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_is_absent_at_once_and_leaves() {
    for replication in MODES {
        let (linklet, heard) = start(ending().replication(replication)).await;
        let end = ends_in(Duration::from_millis(400));
        linklet.insert(b"brief", end.clone()).await.unwrap();
        linklet.insert(b"prolonged", end.clone()).await.unwrap();
        linklet
            .insert(b"endless", "no end".to_owned())
            .await
            .unwrap();
        let held = linklet.get(b"brief").await.unwrap();
        let prolong = |text: &mut String| *text = ends_in(HOUR);
        linklet.update(b"prolonged", prolong).await.unwrap();
        let end = end_of(&end).unwrap();
        loop {
            let before = SystemTime::now();
            let there = linklet.read(b"brief", |_| ()).await.unwrap().is_some();
            assert!(there || SystemTime::now() >= end, "too early");
            assert!(!there || before < end, "too late");
            if !there {
                break;
            }
        }
        let committed = linklet.commit(held.expect("it was there")).await;
        assert!(matches!(committed.unwrap_err().error, Error::Conflict));
        let updated = linklet.update(b"brief", prolong).await.unwrap();
        assert_eq!(updated, None, "it is over");
        eventually("it is taken out", || linklet.stats().entries == 2).await;
        assert_eq!(linklet.stats().ended, 1);
        let expected = [eviction(b"brief", EvictionReason::Ended)];
        eventually("it is told", || left(&heard) == expected).await;
        for key in [b"prolonged".as_slice(), b"endless"] {
            assert!(linklet.get(key).await.unwrap().is_some());
        }
        assert_eq!(heard.losses.lock().unwrap().len(), 0, "an end is no loss");
        // Another one in its place.
        linklet.insert(b"brief", ends_in(HOUR)).await.unwrap();
        sleep(Duration::from_millis(1_200)).await;
        assert!(linklet.get(b"brief").await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_room_is_told_to_those_who_want_to_know() {
    let builder = Linklet::builder(CORPUS, PlainMarshal).memory(20_000);
    let (linklet, heard) = start(builder).await;
    for n in 0..100 {
        linklet
            .insert(&cluster::name(n), "x".repeat(1_000))
            .await
            .unwrap();
    }
    let evictions = linklet.stats().evictions;
    assert!(evictions > 50);
    eventually("all are told", || left(&heard).len() as u64 == evictions).await;
    for gone in left(&heard) {
        assert_eq!(gone.reason, EvictionReason::Memory);
        assert!(linklet.get(&gone.key).await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_what_has_ended_go_too() {
    let fleet = Three::built(ending).await;
    let key = fleet.copied().await;
    let all = [&fleet.linklet, &fleet.other, &fleet.third];
    let entries = || {
        all.map(|linklet| linklet.stats().entries)
            .iter()
            .sum::<u64>()
    };
    let longer = fleet.linklet.patient(Duration::from_secs(60));
    longer
        .insert(&key, ends_in(Duration::from_secs(1)))
        .await
        .unwrap();
    assert_eq!(entries(), 2, "here and there");
    eventually("both are gone", || entries() == 0).await;
    let counts = all.map(|linklet| linklet.stats().ended);
    assert_eq!(
        counts.iter().sum::<u64>(),
        1,
        "{counts:?}: one object has ended"
    );
}

/// A change that begins before the end counts, however long the replicas take: it
/// is not lost, and nobody has seen the key absent in between.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_waits_for_a_change_that_has_begun() {
    let mut fleet = Three::built(ending).await;
    let key = fleet.copied().await;
    let linklet = fleet.linklet.patient(Duration::from_secs(60));
    let span = Duration::from_secs(2);
    linklet.insert(&key, ends_in(span)).await.unwrap();
    let inserted = Instant::now();
    fleet.stop();
    let prolong = |text: &mut String| *text = ends_in(HOUR);
    let mut prolonged = pin!(linklet.update(&key, prolong));
    poll_fn(|context| match prolonged.as_mut().poll(context) {
        Poll::Pending => Poll::Ready(()),
        Poll::Ready(done) => panic!("done: {done:?}"),
    })
    .await;
    assert!(
        inserted.elapsed() < span,
        "the machine is too slow for this"
    );
    // Past its end, and past a sweep.
    sleep(span + Duration::from_millis(800)).await;
    let there = linklet.read(&key, |_| ()).await.unwrap();
    assert_eq!(there, Some(()), "the change had begun");
    fleet.go_on();
    assert_eq!(prolonged.await.unwrap(), Some(()));
    sleep(Duration::from_millis(800)).await;
    let there = linklet.read(&key, |_| ()).await.unwrap();
    assert_eq!(there, Some(()), "what was acknowledged is lost");
}

/// A change that would begin after the end does not bring the object back.
#[tokio::test(flavor = "multi_thread")]
async fn what_ends_while_it_is_being_changed_has_ended() {
    for replication in MODES {
        let (linklet, _) = start(ending().replication(replication)).await;
        let end = ends_in(Duration::from_millis(600));
        linklet.insert(b"k", end.clone()).await.unwrap();
        let change = async |text: &mut String| {
            *text = ends_in(HOUR);
            while SystemTime::now() < end_of(&end).unwrap() {
                sleep(Duration::from_millis(5)).await;
            }
            Ok::<_, Error>(())
        };
        let done = linklet.update_async(b"k", HOUR, change).await;
        assert!(matches!(done, Err(Error::Conflict)), "{done:?}");
        assert!(linklet.get(b"k").await.unwrap().is_none());
        // A closure that does not wait, but takes as long.
        let end = ends_in(Duration::from_millis(200));
        linklet.insert(b"k", end.clone()).await.unwrap();
        let done = linklet
            .upsert(
                b"k",
                || "new".to_owned(),
                |text| {
                    while SystemTime::now() < end_of(&end).unwrap() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    text.clone()
                },
            )
            .await;
        if replication == Replication::Strong {
            assert!(matches!(done, Err(Error::Conflict)), "{done:?}");
        }
        assert!(linklet.get(b"k").await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_used_stays_and_what_is_idle_leaves() {
    for replication in MODES {
        let idle = Duration::from_secs(1);
        let builder = Linklet::builder(CORPUS, PlainMarshal).idle(idle);
        let (linklet, heard) = start(builder.replication(replication)).await;
        let began = Instant::now();
        for key in [b"used".as_slice(), b"changed", b"idle"] {
            linklet.insert(key, String::new()).await.unwrap();
        }
        let mut uses = 0;
        while began.elapsed() < 3 * idle {
            let used = Instant::now();
            let read = linklet.read(b"used", |_| ()).await.unwrap();
            let changed = linklet.update(b"changed", |_| ()).await.unwrap();
            assert!(linklet.stats().idled == 0 || began.elapsed() >= idle);
            assert_eq!((read, changed), (Some(()), Some(())), "after {uses} uses");
            uses += 1;
            sleep(Duration::from_millis(100)).await;
            assert!(used.elapsed() < idle, "the machine is too slow for this");
        }
        assert_eq!(linklet.get(b"idle").await.unwrap().map(|_| ()), None);
        let expected = [eviction(b"idle", EvictionReason::Idle)];
        assert_eq!(left(&heard), expected);
        eventually("the others leave", || linklet.stats().entries == 0).await;
        assert_eq!(linklet.stats().idled, 3);
        assert_eq!(heard.losses.lock().unwrap().len(), 0, "an end is no loss");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_change_is_a_use() {
    for replication in MODES {
        let idle = Duration::from_millis(500);
        let builder = Linklet::builder(CORPUS, PlainMarshal).idle(idle);
        let (linklet, _) = start(builder.replication(replication)).await;
        linklet.insert(b"k", String::new()).await.unwrap();
        let done = linklet.update_async(b"k", HOUR, async |text| {
            sleep(Duration::from_secs(2)).await;
            text.push('x');
            Ok::<_, Error>(())
        });
        assert_eq!(done.await.unwrap(), Some(()));
        assert_eq!(linklet.read(b"k", String::len).await.unwrap(), Some(1));
    }
}

fn idling() -> Builder<String> {
    Linklet::builder(CORPUS, PlainMarshal).idle(Duration::from_secs(2))
}

/// A copy does not know of uses elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_asked_where_objects_may_be_idle() {
    let fleet = Three::built(idling).await;
    let key = fleet.copied().await;
    fleet.linklet.insert(&key, "x".to_owned()).await.unwrap();
    for _ in 0..20 {
        for answer in [
            fleet.other.read(&key, String::len).await,
            fleet.other.read_copy(&key, String::len).await,
        ] {
            match answer {
                Err(Error::NotMine(redirect)) => {
                    assert_eq!(redirect.to, fleet.linklet.server_id());
                }
                other => panic!("{other:?}"),
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// While a replica says nothing what is used stays, and of what is idle nobody is
/// told before it is gone everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_use_is_removed_while_a_replica_hangs() {
    let mut fleet = Three::built(idling).await;
    let key = fleet.copied().await;
    let silent = fleet.other.server_id().unwrap();
    let linklet = fleet.linklet.patient(Duration::from_secs(60));
    linklet.insert(&key, "x".to_owned()).await.unwrap();
    fleet.stop();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        let there = linklet.read(&key, |_| ()).await.unwrap();
        assert_eq!(there, Some(()));
        sleep(Duration::from_millis(50)).await;
    }
    let brief = fleet.linklet.patient(Duration::from_millis(100));
    let by = loop {
        // Each look that finds it is a use.
        sleep(Duration::from_millis(3_500)).await;
        match brief.read(&key, |_| ()).await {
            Ok(Some(())) => assert!(began.elapsed() < HOUR / 60, "it never leaves"),
            Err(Error::Unsettled { by, .. }) => break by,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(by, [silent]);
    fleet.go_on();
    let there = linklet.read(&key, |_| ()).await.unwrap();
    assert_eq!(
        there, None,
        "it was to be removed, and nobody has used it since"
    );
    eventually("the copy goes, too", || fleet.other.stats().entries == 0).await;
    assert_eq!(fleet.linklet.stats().idled, 1);
}

/// Of uses at the former owner the next one does not know.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_over_begins_to_count_then() {
    let fleet = Three::built(idling).await;
    let key = fleet.copied().await;
    let linklet = fleet.linklet.patient(Duration::from_secs(60));
    linklet.insert(&key, "x".to_owned()).await.unwrap();
    let began = Instant::now();
    // Its copy becomes older than that.
    while began.elapsed() < Duration::from_secs(3) {
        linklet.read(&key, |_| ()).await.unwrap().expect("in use");
        sleep(Duration::from_millis(50)).await;
    }
    linklet.leave().await;
    let point = linklet.point(&key);
    let next = [&fleet.other, &fleet.third];
    let owns = |other: &Linklet<String>| other.owned().iter().any(|slice| slice.contains(point));
    eventually("somebody has it", || next.iter().any(|other| owns(other))).await;
    let owned = Instant::now();
    // Some sweeps.
    sleep(Duration::from_millis(1_300)).await;
    let owner = next.into_iter().find(|other| owns(other)).unwrap();
    let there = owner.read(&key, |_| ()).await.unwrap();
    assert!(
        owned.elapsed() < Duration::from_secs(2),
        "the machine is too slow for this"
    );
    assert_eq!(there, Some(()), "it was in use");
}
