//! A bound on how old what is served may be: nothing is served from memory of
//! which it is not known that it was fresh within that time.

use crate::cluster::{CORPUS, coordinator};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::freshness::event::{Progress, Sink};
use trefoil_linklet::freshness::position::{History, Place};
use trefoil_linklet::{Builder, Error, Linklet, Loaded, LoaderError, PlainMarshal, Replication};

/// Longer than any test.
const MAX: Duration = Duration::from_secs(3_600);

fn place(position: u64) -> Place {
    Place {
        history: History("a/1".to_owned()),
        position,
    }
}

/// Everything up to there was told, and is fresh now; or nobody knows how old it is.
fn progress(sink: &mut impl Sink, position: u64, is_fresh: bool) {
    sink.progress(Progress {
        position,
        as_of: is_fresh.then(Instant::now),
    });
}

fn is_late<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    match result {
        Err(Error::Stale { max, .. }) => {
            assert_eq!(max, MAX);
            true
        }
        Ok(_) => false,
        Err(other) => panic!("{other}"),
    }
}

/// A database of one row, which may be away, and whose reads wait for permits.
struct Rows {
    value: AtomicU64,
    away: AtomicBool,
    permits: Semaphore,
}

impl Rows {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Rows {
            value: AtomicU64::new(1),
            away: AtomicBool::new(false),
            permits: Semaphore::new(permits),
        })
    }
}

fn builder(replication: Replication) -> Builder<String> {
    Linklet::builder(CORPUS, PlainMarshal)
        .replication(replication)
        .copies(1)
        .stale_max(MAX)
}

fn loading(rows: &Arc<Rows>, builder: Builder<String>) -> Builder<String> {
    let rows = Arc::clone(rows);
    builder.loader(move |_: Vec<u8>| {
        let rows = Arc::clone(&rows);
        async move {
            rows.permits.acquire().await.expect("open").forget();
            match rows.away.load(Ordering::SeqCst) {
                true => Err(LoaderError::new("the database is away")),
                false => Ok(Some(Loaded::from(
                    rows.value.load(Ordering::SeqCst).to_string(),
                ))),
            }
        }
    })
}

async fn start(builder: Builder<String>) -> Linklet<String> {
    let address = "127.0.0.1:0".parse().unwrap();
    let linklet = builder
        .listen(LocalCoordinator::new(), address)
        .await
        .unwrap();
    linklet.settled().await;
    linklet
}

async fn loaded(linklet: &Linklet<String>) -> String {
    let found = linklet.read_or_load(b"k", String::clone).await;
    found.unwrap().expect("it is there")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_older_is_loaded_anew_and_kept_by_nobody() {
    for replication in [
        Replication::None,
        Replication::Eventual,
        Replication::Strong,
    ] {
        let rows = Rows::new(100);
        let linklet = start(loading(&rows, builder(replication))).await;
        let mut sink = linklet.sink();
        let loads = || linklet.stats().loads;
        // Nothing was told yet.
        assert_eq!(loaded(&linklet).await, "1");
        assert_eq!(loaded(&linklet).await, "1");
        assert_eq!(loads(), 2, "{replication:?}");
        assert_eq!(linklet.read(b"k", String::clone).await.unwrap(), None);

        sink.begun(&place(10));
        progress(&mut sink, 10, true);
        assert_eq!(loaded(&linklet).await, "1");
        assert_eq!(loaded(&linklet).await, "1");
        assert_eq!(loads(), 3, "{replication:?}");
        assert!(linklet.read(b"k", String::clone).await.unwrap().is_some());
    }
}

/// The same object, before and after it is known that it is fresh.
#[tokio::test(flavor = "multi_thread")]
async fn until_the_relay_is_heard_what_is_kept_is_not_shown() {
    let rows = Rows::new(100);
    let linklet = start(loading(&rows, builder(Replication::None))).await;
    let mut sink = linklet.sink();
    sink.begun(&place(10));
    progress(&mut sink, 10, false);
    linklet.insert(b"k", "kept".to_owned()).await.unwrap();
    rows.value.store(7, Ordering::SeqCst);
    for round in 1..=3 {
        assert_eq!(loaded(&linklet).await, "7");
        let held = linklet.get_or_load(b"k").await.unwrap().unwrap();
        assert_eq!(*held, "7");
        // What was loaded has not been put in, so it cannot be committed over what is there.
        assert!(linklet.commit(held).await.is_err());
        assert_eq!(linklet.stats().loads, 2 * round);
    }
    let mine = linklet.get_at_least(b"k", &place(5)).await.unwrap();
    assert_eq!(*mine.unwrap(), "7");

    assert!(is_late(linklet.read(b"k", String::clone).await));
    assert!(is_late(linklet.read_copy(b"k", String::clone).await));
    assert!(is_late(linklet.get(b"k").await));
    assert!(is_late(linklet.update(b"k", |text| text.push('!')).await));
    let upserted = linklet.upsert(b"k", String::new, |text| text.push('!'));
    assert!(is_late(upserted.await));
    let changed = linklet.update_async(b"k", MAX, async |text| {
        text.push('!');
        Ok::<_, Error>(())
    });
    assert!(is_late(changed.await));
    assert!(is_late(linklet.each_owned().next().await.map(|_| ())));
    let error = linklet.read(b"k", String::clone).await.unwrap_err();
    assert!(error.to_string().contains("read_or_load"), "{error}");
    let status = tonic::Status::from(error);
    assert_eq!(status.code(), tonic::Code::Unavailable);
    // What is not there is not there.
    assert_eq!(linklet.read(b"other", String::len).await.unwrap(), None);

    // The database is away, too.
    rows.away.store(true, Ordering::SeqCst);
    let failed = linklet.read_or_load(b"k", String::clone).await;
    assert!(matches!(failed, Err(Error::Load(_))), "{failed:?}");

    // No news of the key: what is kept was fresh all the time.
    progress(&mut sink, 11, true);
    assert_eq!(loaded(&linklet).await, "kept");
    let kept = linklet.read(b"k", String::clone).await.unwrap();
    assert_eq!(kept.as_deref(), Some("kept"));
    assert_eq!(
        linklet.update(b"k", |text| text.len()).await.unwrap(),
        Some(4)
    );

    // And what was changed meanwhile goes before it is shown.
    rows.away.store(false, Ordering::SeqCst);
    sink.invalidate(&Bytes::from_static(b"k"), 12);
    progress(&mut sink, 12, true);
    assert_eq!(loaded(&linklet).await, "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_for_a_load_share_it() {
    let rows = Rows::new(0);
    let linklet = start(loading(&rows, builder(Replication::None))).await;
    let asking: Vec<_> = (0..10)
        .map(|_| {
            let linklet = linklet.clone();
            tokio::spawn(async move { loaded(&linklet).await })
        })
        .collect();
    // All of them have missed; one of them loads.
    while linklet.stats().misses < 10 {
        tokio::task::yield_now().await;
    }
    rows.permits.add_permits(100);
    for one in asking {
        assert_eq!(one.await.unwrap(), "1");
    }
    let loads = linklet.stats().loads;
    assert!(loads < 10, "{loads}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_loader_it_is_refused_and_comes_back() {
    let linklet = start(builder(Replication::None)).await;
    linklet.insert(b"k", "kept".to_owned()).await.unwrap();
    assert!(is_late(linklet.read(b"k", String::clone).await));
    assert!(is_late(linklet.read_or_load(b"k", String::clone).await));
    assert!(linklet.remove(b"k").await.unwrap(), "it looks at nothing");
    let mut sink = linklet.sink();
    sink.begun(&place(10));
    progress(&mut sink, 10, true);
    linklet.insert(b"k", "new".to_owned()).await.unwrap();
    assert_eq!(loaded(&linklet).await, "new");
}

/// Copies answer by what their own server was told.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_refused_by_the_server_that_has_not_heard() {
    let coordinator = coordinator(2);
    let mut linklets = Vec::new();
    for _ in 0..2 {
        let address = "127.0.0.1:0".parse().unwrap();
        let joined = builder(Replication::Eventual)
            .listen(coordinator.clone(), address)
            .await
            .unwrap();
        linklets.push(joined);
    }
    for linklet in &linklets {
        linklet.settled().await;
        let mut sink = linklet.sink();
        sink.begun(&place(10));
        progress(&mut sink, 10, false);
    }
    let is_owner = |linklet: &Linklet<String>| {
        let point = linklet.point(b"k");
        linklet.owned().iter().any(|slice| slice.contains(point))
    };
    let owner = linklets.iter().position(is_owner).expect("one owns it");
    linklets[owner].insert(b"k", "v".to_owned()).await.unwrap();
    let copy = &linklets[1 - owner];
    let refused = async || match copy.read_copy(b"k", String::clone).await {
        // It has not come yet.
        Ok(None) | Err(Error::NotMine(_)) => false,
        found => is_late(found) || panic!("it is served"),
    };
    let since = Instant::now();
    while !refused().await {
        assert!(since.elapsed() < Duration::from_secs(30), "no copy comes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    progress(&mut copy.sink(), 11, true);
    let found = copy.read_copy(b"k", String::clone).await.unwrap();
    assert_eq!(found.as_deref(), Some("v"));
    // The owner has not heard yet.
    let of_owner = linklets[owner].read(b"k", String::clone).await;
    assert!(is_late(of_owner));
}
