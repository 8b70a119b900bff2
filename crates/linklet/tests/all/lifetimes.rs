//! Objects that end: by their own account, or because nobody uses them.

use crate::cluster;
use crate::cluster::{CORPUS, Heard, until};
use crate::strong::Three;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;
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

/// Tries again where the machine has stood still for so long that nothing follows
/// from what was seen: a trial says so by `false`.
async fn unless_paused(trial: impl AsyncFn() -> bool) {
    for _ in 0..10 {
        if trial().await {
            return;
        }
    }
    panic!("this machine stands still all the time");
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
        unless_paused(async || ends_at_once(replication).await).await;
    }
}

async fn ends_at_once(replication: Replication) -> bool {
    let (linklet, heard) = start(ending().replication(replication)).await;
    let end = ends_in(Duration::from_millis(400));
    linklet.insert(b"brief", end.clone()).await.unwrap();
    linklet.insert(b"prolonged", end.clone()).await.unwrap();
    linklet
        .insert(b"endless", "no end".to_owned())
        .await
        .unwrap();
    let prolong = |text: &mut String| *text = ends_in(HOUR);
    let prolonged = linklet.update(b"prolonged", prolong).await.unwrap();
    let Some(held) = linklet.get(b"brief").await.unwrap() else {
        return false;
    };
    if prolonged.is_none() {
        return false;
    }
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
    let committed = linklet.commit(held).await;
    assert!(matches!(committed.unwrap_err().error, Error::Conflict));
    let updated = linklet.update(b"brief", prolong).await.unwrap();
    assert_eq!(updated, None, "it is over");
    until("it is taken out", || linklet.stats().entries == 2).await;
    assert_eq!(linklet.stats().ended, 1);
    let expected = [eviction(b"brief", EvictionReason::Ended)];
    until("it is told", || left(&heard) == expected).await;
    for key in [b"prolonged".as_slice(), b"endless"] {
        assert!(linklet.get(key).await.unwrap().is_some());
    }
    assert_eq!(heard.losses.lock().unwrap().len(), 0, "an end is no loss");
    // Another one in its place.
    linklet.insert(b"brief", ends_in(HOUR)).await.unwrap();
    sleep(Duration::from_millis(1_200)).await;
    assert!(linklet.get(b"brief").await.unwrap().is_some());
    true
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
    until("all are told", || left(&heard).len() as u64 == evictions).await;
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
    until("both are gone", || entries() == 0).await;
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
    unless_paused(an_end_waits).await;
}

async fn an_end_waits() -> bool {
    let mut fleet = Three::built(ending).await;
    let key = fleet.copied().await;
    let linklet = fleet.linklet.patient(Duration::from_secs(60));
    let span = Duration::from_secs(2);
    let inserting = Instant::now();
    linklet.insert(&key, ends_in(span)).await.unwrap();
    fleet.stop();
    let (changing, changed) = oneshot::channel();
    let prolonged = tokio::spawn({
        let (linklet, key) = (linklet.clone(), key.clone());
        async move {
            let prolong = |text: &mut String| {
                *text = ends_in(HOUR);
                changing.send(()).unwrap();
            };
            linklet.update(&key, prolong).await
        }
    });
    if changed.await.is_err() {
        return false;
    }
    // Once a replica is waited for, the change has begun.
    let brief = linklet.patient(Duration::from_millis(20));
    while !is_awaited(brief.update(&key, |_| ()).await) {
        if prolonged.is_finished() {
            return false;
        }
    }
    if inserting.elapsed() >= span {
        return false;
    }
    // Past its end, and past a sweep.
    sleep(span + Duration::from_millis(800)).await;
    let there = linklet.read(&key, |_| ()).await.unwrap();
    assert_eq!(there, Some(()), "the change had begun");
    fleet.go_on();
    assert_eq!(prolonged.await.unwrap().unwrap(), Some(()));
    sleep(Duration::from_millis(800)).await;
    let there = linklet.read(&key, |_| ()).await.unwrap();
    assert_eq!(there, Some(()), "what was acknowledged is lost");
    true
}

fn is_awaited<R>(done: Result<R, Error>) -> bool {
    matches!(done, Err(Error::Unsettled { by, .. }) if !by.is_empty())
}

/// A change that would begin after the end does not bring the object back.
#[tokio::test(flavor = "multi_thread")]
async fn what_ends_while_it_is_being_changed_has_ended() {
    for replication in MODES {
        unless_paused(async || ends_amid_a_change(replication).await).await;
    }
}

async fn ends_amid_a_change(replication: Replication) -> bool {
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
    if let Ok(None) = done {
        return false;
    }
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
    if done.as_ref().is_ok_and(|text| text == "new") {
        return false;
    }
    if replication == Replication::Strong {
        assert!(matches!(done, Err(Error::Conflict)), "{done:?}");
    }
    assert!(linklet.get(b"k").await.unwrap().is_none());
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_used_stays_and_what_is_idle_leaves() {
    for replication in MODES {
        unless_paused(async || stays_or_leaves(replication).await).await;
    }
}

async fn stays_or_leaves(replication: Replication) -> bool {
    let idle = Duration::from_secs(1);
    let builder = Linklet::builder(CORPUS, PlainMarshal).idle(idle);
    let (linklet, heard) = start(builder.replication(replication)).await;
    let began = Instant::now();
    for key in [b"used".as_slice(), b"changed", b"idle"] {
        linklet.insert(key, String::new()).await.unwrap();
    }
    let (mut uses, mut used) = (0, began);
    while began.elapsed() < 3 * idle {
        let using = Instant::now();
        let read = linklet.read(b"used", |_| ()).await.unwrap();
        let changed = linklet.update(b"changed", |_| ()).await.unwrap();
        if used.elapsed() >= idle {
            return false;
        }
        assert!(linklet.stats().idled == 0 || began.elapsed() >= idle);
        assert_eq!((read, changed), (Some(()), Some(())), "after {uses} uses");
        (uses, used) = (uses + 1, using);
        sleep(Duration::from_millis(100)).await;
    }
    // To ask for it would be a use.
    until("it leaves", || linklet.stats().idled >= 1).await;
    assert_eq!(linklet.get(b"idle").await.unwrap().map(|_| ()), None);
    let expected = eviction(b"idle", EvictionReason::Idle);
    until("it is told", || left(&heard).first() == Some(&expected)).await;
    until("the others leave", || linklet.stats().entries == 0).await;
    assert_eq!(linklet.stats().idled, 3);
    assert_eq!(heard.losses.lock().unwrap().len(), 0, "an end is no loss");
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_change_is_a_use() {
    for replication in MODES {
        unless_paused(async || is_used_while_it_changes(replication).await).await;
    }
}

async fn is_used_while_it_changes(replication: Replication) -> bool {
    let (linklet, _) = start(idling().replication(replication)).await;
    let inserting = Instant::now();
    linklet.insert(b"k", String::new()).await.unwrap();
    let mut began = inserting;
    let mut changed = inserting;
    let done = linklet.update_async(b"k", HOUR, async |text| {
        began = Instant::now();
        sleep(2 * IDLE).await;
        text.push('x');
        changed = Instant::now();
        Ok::<_, Error>(())
    });
    let done = done.await.unwrap();
    if began - inserting >= IDLE {
        return false;
    }
    assert_eq!(done, Some(()));
    let read = linklet.read(b"k", String::len).await.unwrap();
    if changed.elapsed() >= IDLE {
        return false;
    }
    assert_eq!(read, Some(1));
    true
}

const IDLE: Duration = Duration::from_secs(2);

fn idling() -> Builder<String> {
    Linklet::builder(CORPUS, PlainMarshal).idle(IDLE)
}

/// A copy does not know of uses elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_asked_where_objects_may_be_idle() {
    let fleet = Three::built(idling).await;
    let key = fleet.copied().await;
    // Nor of what is put in there.
    match fleet.other.read_copy(&key, String::len).await {
        Err(Error::NotMine(redirect)) => assert_eq!(redirect.to, fleet.linklet.server_id()),
        other => panic!("{other:?}"),
    }
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
    unless_paused(a_replica_hangs).await;
}

async fn a_replica_hangs() -> bool {
    let mut fleet = Three::built(idling).await;
    let key = fleet.copied().await;
    let silent = fleet.other.server_id().unwrap();
    let linklet = fleet.linklet.patient(Duration::from_secs(60));
    linklet.insert(&key, "x".to_owned()).await.unwrap();
    fleet.stop();
    let brief = fleet.linklet.patient(Duration::from_millis(500));
    let (began, mut used) = (Instant::now(), Instant::now());
    while began.elapsed() < Duration::from_secs(5) {
        let using = Instant::now();
        let there = brief.read(&key, |_| ()).await;
        if used.elapsed() >= IDLE {
            return false;
        }
        assert_eq!(there.unwrap(), Some(()));
        used = using;
        sleep(Duration::from_millis(50)).await;
    }
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
    until("the copy goes, too", || fleet.other.stats().entries == 0).await;
    assert_eq!(fleet.linklet.stats().idled, 1);
    true
}

/// Of uses at the former owner the next one does not know.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_over_begins_to_count_then() {
    unless_paused(who_takes_over).await;
}

async fn who_takes_over() -> bool {
    let fleet = Three::built(idling).await;
    let key = fleet.copied().await;
    let linklet = fleet.linklet.patient(Duration::from_secs(60));
    linklet.insert(&key, "x".to_owned()).await.unwrap();
    let began = Instant::now();
    // Its copy becomes older than that.
    while began.elapsed() < Duration::from_secs(3) {
        if linklet.read(&key, |_| ()).await.unwrap().is_none() {
            return false;
        }
        sleep(Duration::from_millis(50)).await;
    }
    linklet.leave().await;
    let point = linklet.point(&key);
    let next = [&fleet.other, &fleet.third];
    let owns = |other: &Linklet<String>| other.owned().iter().any(|slice| slice.contains(point));
    // The last time at which nobody had it.
    let mut owned = Instant::now();
    until("somebody has it", || {
        let looking = Instant::now();
        let has = next.iter().any(|other| owns(other));
        if !has {
            owned = looking;
        }
        has
    })
    .await;
    // Some sweeps.
    sleep(Duration::from_millis(1_300)).await;
    let owner = next.into_iter().find(|other| owns(other)).unwrap();
    let there = owner.read(&key, |_| ()).await.unwrap();
    if owned.elapsed() >= IDLE {
        return false;
    }
    assert_eq!(there, Some(()), "it was in use");
    true
}
