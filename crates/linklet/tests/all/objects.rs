//! What an application does with its objects on one server, and what it is
//! told when something goes wrong.

use crate::cluster;
use crate::cluster::{CORPUS, Heard};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::freshness::event::{Gap, GapReason, Progress, Scope, Sink};
use trefoil_linklet::freshness::position::{History, Place};
use trefoil_linklet::{
    Builder, Drained, Error, Linklet, Listener, Loaded, LoaderError, LossReason, Marshal,
    MarshalError, PlainMarshal, Replication, StartError, StateLoss, StateLossReason,
};

async fn start<V: Send + Sync + 'static>(builder: Builder<V>) -> Linklet<V> {
    let coordinator = LocalCoordinator::new();
    let address = "127.0.0.1:0".parse().unwrap();
    let linklet = builder.listen(coordinator, address).await.unwrap();
    linklet.settled().await;
    linklet
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it does not come true");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_handed_out_and_put_back() {
    let linklet = start(Linklet::builder(CORPUS, PlainMarshal)).await;
    assert!(linklet.get(b"k").await.unwrap().is_none());
    linklet.insert(b"k", "one".to_owned()).await.unwrap();
    let mut held = linklet.get(b"k").await.unwrap().unwrap();
    held.edit().push_str(" two");
    let seen = linklet.read(b"k", String::clone).await.unwrap();
    assert_eq!(seen.as_deref(), Some("one"), "not before the commit");
    let stale = linklet.get(b"k").await.unwrap().unwrap();
    assert!(linklet.is_current(&stale));
    let token = linklet.commit(held).await.unwrap().token;
    assert_eq!(Some(token), linklet.version());
    assert_eq!(*stale, "one", "what was handed out stays as it was");
    assert!(!linklet.is_current(&stale));
    let refused = linklet.commit(stale).await.unwrap_err();
    assert!(matches!(refused.error, Error::Conflict));
    assert_eq!(*refused.held, "one", "the object comes back");

    let length = linklet.update(b"k", |text| {
        text.push('!');
        text.len()
    });
    assert_eq!(length.await.unwrap(), Some(8));
    assert_eq!(
        linklet
            .update(b"absent", |text| text.clear())
            .await
            .unwrap(),
        None
    );
    let made = linklet.upsert(b"new", String::new, |text| {
        text.push('x');
        text.clone()
    });
    assert_eq!(made.await.unwrap(), "x");
    assert!(linklet.remove(b"k").await.unwrap());
    assert!(!linklet.remove(b"k").await.unwrap());
    assert_eq!(linklet.stats().entries, 1);
    linklet.leave().await;
    let gone = linklet.read(b"new", String::len).await;
    assert!(
        matches!(gone, Err(Error::NotMember | Error::NotMine(_))),
        "{gone:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_misses_load_once() {
    let (loads, open) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
    let (counted, gate) = (Arc::clone(&loads), Arc::clone(&open));
    let load = move |key: Vec<u8>| {
        let n = counted.fetch_add(1, Ordering::Relaxed);
        let gate = Arc::clone(&gate);
        async move {
            let _pass = gate.acquire().await;
            match key.as_slice() {
                b"none" => Ok(None),
                b"broken" => Err(LoaderError::new("the database is away")),
                _ => Ok(Some(Loaded::from(format!("load {n}")))),
            }
        }
    };
    let linklet = start(Linklet::builder(CORPUS, PlainMarshal).loader(load)).await;
    let asking: Vec<_> = (0..50)
        .map(|_| {
            let linklet = linklet.clone();
            tokio::spawn(async move { linklet.read_or_load(b"k", String::clone).await.unwrap() })
        })
        .collect();
    eventually(|| linklet.stats().misses == 50).await;
    open.add_permits(1_000);
    for asked in asking {
        assert_eq!(asked.await.unwrap().as_deref(), Some("load 0"));
    }
    assert_eq!(
        (loads.load(Ordering::Relaxed), linklet.stats().loads),
        (1, 1)
    );
    assert!(linklet.get_or_load(b"none").await.unwrap().is_none());
    assert!(linklet.get_or_load(b"none").await.unwrap().is_none());
    assert_eq!(
        linklet.stats().loads,
        3,
        "what is not there is not remembered"
    );
    let error = linklet.get_or_load(b"broken").await.unwrap_err();
    assert_eq!(error.to_string(), "loading failed: the database is away");
    let mut held = linklet.get_or_load(b"k").await.unwrap().unwrap();
    held.edit().push_str(" edited");
    linklet.commit(held).await.unwrap();
}

/// Who loads, who waits for it, and who comes later.
#[tokio::test(flavor = "multi_thread")]
async fn a_loader_that_hangs_holds_nobody_for_ever() {
    let loads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&loads);
    let load = move |_: Vec<u8>| {
        let n = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            if n == 0 {
                std::future::pending::<()>().await;
            }
            Ok(Some(Loaded::from(format!("load {n}"))))
        }
    };
    let limit = Duration::from_millis(500);
    let builder = Linklet::builder(CORPUS, PlainMarshal).load_within(limit);
    let linklet = start(builder.loader(load)).await;
    let asking: Vec<_> = (0..20)
        .map(|_| {
            let linklet = linklet.clone();
            tokio::spawn(async move { linklet.read_or_load(b"k", String::clone).await })
        })
        .collect();
    let mut refused = 0;
    for asked in asking {
        let answer = tokio::time::timeout(Duration::from_secs(60), asked).await;
        match answer.expect("nobody is held").unwrap() {
            Err(Error::LoadOverran { limit: told }) => {
                assert_eq!(told, limit);
                refused += 1;
            }
            // It came when the first load was over.
            answer => assert_eq!(answer.unwrap().as_deref(), Some("load 1")),
        }
    }
    assert!(refused > 0);
    let later = linklet.read_or_load(b"k", String::clone).await.unwrap();
    assert_eq!(later.as_deref(), Some("load 1"));
    assert_eq!(linklet.stats().load_failures, 1);
}

/// A load that was begun before an invalidation is not stored, whichever comes
/// first; afterwards everybody sees what came later.
#[tokio::test(flavor = "multi_thread")]
async fn loads_and_invalidations_do_not_race() {
    let database = Arc::new(AtomicU64::new(1));
    let (began, go_on) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (rows, began_in, gate) = (
        Arc::clone(&database),
        Arc::clone(&began),
        Arc::clone(&go_on),
    );
    let load = move |_: Vec<u8>| {
        let read = rows.load(Ordering::SeqCst);
        let gate = Arc::clone(&gate);
        began_in.notify_one();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok::<_, LoaderError>(Some(Loaded::from(read.to_string())))
        }
    };
    let linklet = start(Linklet::builder(CORPUS, PlainMarshal).loader(load)).await;
    let mut sink = linklet.sink();
    begin(&mut sink, "a/1", 10);
    let asking = {
        let linklet = linklet.clone();
        tokio::spawn(async move { linklet.read_or_load(b"k", String::clone).await })
    };
    began.notified().await;
    database.store(2, Ordering::SeqCst);
    sink.invalidate(&K, 20);
    progress(&mut sink, 20);
    go_on.add_permits(2);
    assert_eq!(asking.await.unwrap().unwrap().as_deref(), Some("2"));
    assert_eq!(linklet.stats().loads_overtaken, 1);

    // After the fact it is simply removed; older news do nothing.
    sink.invalidate(&K, 19);
    assert_eq!(
        linklet.read(b"k", String::clone).await.unwrap().as_deref(),
        Some("2")
    );
    progress(&mut sink, 21);
    sink.refresh(&K, &Bytes::from_static(b"3"), 30);
    sink.refresh(&K, &Bytes::from_static(b"old"), 25);
    assert_eq!(
        linklet.read(b"k", String::clone).await.unwrap().as_deref(),
        Some("3")
    );
    assert_eq!(linklet.get(b"k").await.unwrap().unwrap().position(), 30);
    sink.invalidate(&K, 40);
    assert_eq!(linklet.read(b"k", String::clone).await.unwrap(), None);
    progress(&mut sink, 40);

    // Read your writes: not what was loaded before, though nobody has told of
    // the change yet.
    go_on.add_permits(1);
    assert!(linklet.get_or_load(b"k").await.unwrap().is_some());
    database.store(5, Ordering::SeqCst);
    go_on.add_permits(1);
    let mine = linklet
        .get_at_least(b"k", &place("a/1", 50))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((mine.as_str(), mine.position()), ("5", 50));

    // A gap: whatever is older is loaded anew.
    let gap = |to, scope| Gap {
        from: 0,
        to: place("a/1", to),
        reason: GapReason::Truncated,
        tables: Vec::new(),
        scope,
    };
    let there = async || linklet.read(b"k", String::len).await.unwrap().is_some();
    let prefix = |prefix| Scope::Prefixes(vec![Bytes::from_static(prefix)]);
    sink.gap(&gap(50, prefix(b"k")));
    assert!(there().await, "it contains all that");
    sink.gap(&gap(60, prefix(b"other")));
    assert!(there().await);
    sink.gap(&gap(70, prefix(b"k")));
    assert!(!there().await);
}

const K: Bytes = Bytes::from_static(b"k");

fn place(history: &str, position: u64) -> Place {
    Place {
        history: History(history.to_owned()),
        position,
    }
}

fn progress(sink: &mut impl Sink, position: u64) {
    sink.progress(Progress {
        position,
        as_of: Some(Instant::now()),
    });
}

fn begin(sink: &mut impl Sink, history: &str, position: u64) {
    sink.begun(&place(history, position));
    progress(sink, position);
}

/// A linklet whose loads read this.
async fn of(database: &Arc<AtomicU64>) -> Linklet<String> {
    counting(database, Replication::None).await
}

async fn counting(database: &Arc<AtomicU64>, replication: Replication) -> Linklet<String> {
    let rows = Arc::clone(database);
    let load = move |_: Vec<u8>| {
        let read = rows.load(Ordering::SeqCst);
        async move { Ok::<_, LoaderError>(Some(Loaded::from(read.to_string()))) }
    };
    let builder = Linklet::builder(CORPUS, PlainMarshal).replication(replication);
    start(builder.loader(load)).await
}

/// A commit is in the log, and can be told, before others see it: a load that
/// begins in between reads the row from before the change. It is not kept.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_a_told_change_was_visible_is_not_kept() {
    let database = Arc::new(AtomicU64::new(1));
    let linklet = of(&database).await;
    let mut sink = linklet.sink();
    begin(&mut sink, "a/1", 10);
    sink.invalidate(&K, 20);
    let old = linklet.read_or_load(b"k", String::clone).await.unwrap();
    assert_eq!(old.as_deref(), Some("1"), "as the database has it");
    database.store(2, Ordering::SeqCst);
    progress(&mut sink, 20);
    let new = linklet.read_or_load(b"k", String::clone).await.unwrap();
    assert_eq!(new.as_deref(), Some("2"));
    let held = linklet.get_or_load(b"k").await.unwrap().unwrap();
    assert_eq!(held.position(), 20);
    assert!(linklet.is_current(&held), "this one is kept");
}

/// The database has failed over to a log that goes on from a lower position.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_lower_positions_is_followed() {
    let database = Arc::new(AtomicU64::new(1));
    let linklet = of(&database).await;
    let mut sink = linklet.sink();
    begin(&mut sink, "a/1", 1_000);
    let read = async || linklet.read_or_load(b"k", String::clone).await.unwrap();
    assert_eq!(read().await.as_deref(), Some("1"));
    database.store(2, Ordering::SeqCst);
    begin(&mut sink, "a/2", 100);
    assert_eq!(read().await.as_deref(), Some("2"), "of another history");
    assert_eq!(linklet.place(), Some(place("a/2", 100)));
    database.store(3, Ordering::SeqCst);
    sink.invalidate(&K, 110);
    progress(&mut sink, 110);
    assert_eq!(read().await.as_deref(), Some("3"));
    let held = linklet
        .get_at_least(b"k", &place("a/2", 105))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(held.as_str(), "3");
    let loads = linklet.stats().loads;
    assert_eq!(read().await.as_deref(), Some("3"));
    assert_eq!(linklet.stats().loads, loads, "it is kept");
}

/// Numbers of different histories say nothing about each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_of_another_history_is_compared_with_nothing() {
    let database = Arc::new(AtomicU64::new(1));
    let linklet = of(&database).await;
    let mut sink = linklet.sink();
    begin(&mut sink, "a/1", 1_000);
    assert!(linklet.get_or_load(b"k").await.unwrap().is_some());
    // This server has not heard of the failover; the caller has written after it.
    database.store(2, Ordering::SeqCst);
    let after = place("a/2", 100);
    let mine = linklet.get_at_least(b"k", &after).await.unwrap().unwrap();
    assert_eq!(
        mine.as_str(),
        "2",
        "not what is kept, though 1000 is more than 100"
    );
    begin(&mut sink, "a/2", 100);
    database.store(3, Ordering::SeqCst);
    let before = place("a/1", 900);
    let held = linklet.get_at_least(b"k", &before).await.unwrap().unwrap();
    assert_eq!((held.as_str(), held.position()), ("3", 100), "not 900");
    let next = linklet.get_at_least(b"k", &place("a/2", 100)).await;
    assert_eq!(next.unwrap().unwrap().as_str(), "3");

    // Without a loader: who waits for what never comes is told why.
    let kept = start(Linklet::builder(CORPUS, PlainMarshal)).await;
    let mut sink = kept.sink();
    begin(&mut sink, "a/2", 1_000);
    kept.insert(b"k", "1".to_owned()).await.unwrap();
    let brief = kept.patient(Duration::from_millis(20));
    let refused = brief.get_at_least(b"k", &before).await;
    let followed = Some(History("a/2".to_owned()));
    assert!(
        matches!(&refused, Err(Error::OtherHistory { asked, followed: at })
            if *asked == before.history && *at == followed),
        "{refused:?}"
    );
    let there = kept.get_at_least(b"k", &place("a/2", 1_000)).await;
    assert_eq!(there.unwrap().unwrap().as_str(), "1");
    // A history that is not followed yet is waited for.
    let later = kept.clone();
    let waiting = tokio::spawn(async move {
        let place = place("a/3", 5);
        later.get_at_least(b"k", &place).await
    });
    begin(&mut sink, "a/3", 5);
    assert!(waiting.await.unwrap().is_ok());
}

/// While the relay is away nothing that is loaded is kept: nobody would tell of
/// its changes.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_during_an_interruption() {
    let database = Arc::new(AtomicU64::new(1));
    let linklet = of(&database).await;
    let mut sink = linklet.sink();
    begin(&mut sink, "a/1", 10);
    sink.gap(&Gap {
        from: 10,
        to: place("a/1", 20),
        reason: GapReason::Disconnected,
        tables: Vec::new(),
        scope: Scope::All,
    });
    for n in 2..5 {
        database.store(n, Ordering::SeqCst);
        let read = linklet.read_or_load(b"k", String::clone).await.unwrap();
        assert_eq!(read, Some(n.to_string()));
    }
    progress(&mut sink, 20);
    linklet.get_or_load(b"k").await.unwrap().unwrap();
    database.store(9, Ordering::SeqCst);
    let kept = linklet.read_or_load(b"k", String::clone).await.unwrap();
    assert_eq!(kept.as_deref(), Some("4"));
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_bounded_and_what_is_evicted_is_reported() {
    let heard = Arc::new(Heard::default());
    let builder = Linklet::builder(CORPUS, PlainMarshal)
        .memory(1 << 20)
        .listener(Arc::clone(&heard) as Arc<dyn Listener>);
    let linklet = start(builder).await;
    for n in 0..1_000u64 {
        linklet
            .insert(&n.to_le_bytes(), vec![0u8; 4096])
            .await
            .unwrap();
        assert!(linklet.stats().bytes <= 1 << 20);
    }
    let stats = linklet.stats();
    assert_eq!(stats.entries + stats.evictions, 1_000);
    assert!(stats.entries > 200, "{stats:?}");
    let told = |heard: &Heard| -> u64 {
        let losses = heard.losses.lock().unwrap();
        let evicted = |loss: &&StateLoss| loss.reason == StateLossReason::Evicted;
        losses
            .iter()
            .filter(evicted)
            .map(|loss| loss.keys.len() as u64)
            .sum()
    };
    eventually(|| told(&heard) == stats.evictions).await;
    let large = linklet.insert(b"large", vec![0u8; 2 << 20]).await;
    assert!(
        matches!(
            large,
            Err(Error::NoRoom {
                bound: 0x10_0000,
                ..
            })
        ),
        "{large:?}"
    );
    // Values that grow in place, too.
    for n in 900..1_000u64 {
        let grow = |value: &mut Vec<u8>| value.resize(40_000, 1);
        linklet.update(&n.to_le_bytes(), grow).await.unwrap();
        assert!(linklet.stats().bytes <= 1 << 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_update_costs_its_value_only() {
    let heard = Arc::new(Heard::default());
    let builder =
        Linklet::builder(CORPUS, PlainMarshal).listener(Arc::clone(&heard) as Arc<dyn Listener>);
    let linklet = start(builder).await;
    linklet.insert(b"k", "half".to_owned()).await.unwrap();
    linklet.insert(b"other", "whole".to_owned()).await.unwrap();
    let task = {
        let linklet = linklet.clone();
        tokio::spawn(async move {
            let change = |text: &mut String| {
                text.clear();
                panic!("in the middle");
            };
            linklet.update(b"k", change).await
        })
    };
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(linklet.read(b"k", String::len).await.unwrap(), None);
    assert_eq!(linklet.read(b"other", String::len).await.unwrap(), Some(5));
    eventually(|| !heard.losses.lock().unwrap().is_empty()).await;
    let losses = heard.losses.lock().unwrap().clone();
    assert_eq!(losses[0].reason, StateLossReason::UpdatePanicked);
    assert_eq!(losses[0].keys[0].1, b"k");
}

struct Picky;

impl Marshal<String> for Picky {
    fn marshal(&self, key: &[u8], value: &String, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        match key {
            b"fails" => Err(MarshalError::new("not this one")),
            b"panics" => panic!("nor this one"),
            _ => PlainMarshal.marshal(key, value, out),
        }
    }

    fn unmarshal(&self, key: &[u8], bytes: &[u8]) -> Result<String, MarshalError> {
        if key == b"unreadable" {
            return Err(MarshalError::new("what is this?"));
        }
        PlainMarshal.unmarshal(key, bytes)
    }
}

/// One bad value does not stop the others from moving, and is named.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_cannot_be_moved_are_reported_by_name() {
    let heard = Arc::new(Heard::default());
    let coordinator = cluster::coordinator(1);
    let build =
        || Linklet::builder(CORPUS, Picky).listener(Arc::clone(&heard) as Arc<dyn Listener>);
    let address = || "127.0.0.1:0".parse().unwrap();
    let first = build()
        .listen(coordinator.clone(), address())
        .await
        .unwrap();
    first.settled().await;
    let bad = ["fails", "panics", "unreadable"];
    for key in bad.into_iter().chain(["a", "b", "c", "d"]) {
        first.insert(key.as_bytes(), key.to_owned()).await.unwrap();
    }
    let second = build().listen(coordinator, address()).await.unwrap();
    assert_eq!(first.drain().await, Drained::Empty);
    for key in ["a", "b", "c", "d"] {
        let value = second.read(key.as_bytes(), String::clone).await.unwrap();
        assert_eq!(value.as_deref(), Some(key));
    }
    for key in bad {
        assert_eq!(
            second.read(key.as_bytes(), String::len).await.unwrap(),
            None
        );
    }
    let named = || {
        let losses = heard.losses.lock().unwrap();
        let mut named: Vec<(String, bool)> = losses
            .iter()
            .flat_map(|loss| {
                let marshal = loss.reason == StateLossReason::Protocol(LossReason::MarshalFailed);
                loss.keys
                    .iter()
                    .map(move |(_, key)| (String::from_utf8(key.clone()).unwrap(), marshal))
            })
            .collect();
        named.sort();
        named
    };
    let expected = bad.map(|key| (key.to_owned(), key != "unreadable"));
    eventually(|| named().len() >= 3).await;
    assert_eq!(named(), expected, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn strong_commits_that_cannot_be_copied_are_refused() {
    let strong = Linklet::builder(CORPUS, Picky).replication(Replication::Strong);
    // It is alone: what is refused is the value, not the want of copies.
    let linklet = start(strong.copies(1)).await;
    for key in [&b"fails"[..], b"panics"] {
        let refused = linklet.insert(key, String::new()).await;
        assert!(matches!(refused, Err(Error::Marshal(_))), "{refused:?}");
        assert_eq!(linklet.read(key, String::len).await.unwrap(), None);
    }
    linklet.insert(b"k", "1".to_owned()).await.unwrap();
    let add = |text: &mut String| *text = (text.parse::<u64>().unwrap() + 1).to_string();
    let adding: Vec<_> = (0..20)
        .map(|_| {
            let linklet = linklet.clone();
            tokio::spawn(async move { linklet.update(b"k", add).await.unwrap().unwrap() })
        })
        .collect();
    for added in adding {
        added.await.unwrap();
    }
    assert_eq!(
        linklet.read(b"k", String::clone).await.unwrap().as_deref(),
        Some("21")
    );
    let mut sink = linklet.sink();
    begin(&mut sink, "a/1", 1);
    sink.invalidate(&K, 7);
    assert_eq!(linklet.read(b"k", String::len).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_started_says_why() {
    let builder = || Linklet::<String>::builder(CORPUS, PlainMarshal);
    let exposed = builder()
        .listen("127.0.0.1:1", "0.0.0.0:0".parse().unwrap())
        .await;
    let text = exposed.unwrap_err().to_string();
    assert!(text.contains("sent in the clear"), "{text}");
    let config = trefoil_linklet::Config {
        chunk_entries: 0,
        ..trefoil_linklet::Config::default()
    };
    let refused = builder()
        .protocol(config)
        .listen(LocalCoordinator::new(), "127.0.0.1:0".parse().unwrap())
        .await;
    assert!(matches!(refused, Err(StartError::Config(_))));
    let nameless = Linklet::<String>::builder("a corpus?", PlainMarshal)
        .listen(LocalCoordinator::new(), "127.0.0.1:0".parse().unwrap())
        .await;
    assert!(matches!(nameless, Err(StartError::Coordination(_))));
}

/// One row that cannot be read costs its key, and not the stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_panics_drops_its_key_alone() {
    let database = Arc::new(AtomicU64::new(1));
    let linklet = of(&database).await;
    let mut sink = linklet.sink_reading(|key, bytes| {
        assert_ne!(key, b"k", "a row that nobody has thought of");
        String::from_utf8(bytes.to_vec()).ok()
    });
    begin(&mut sink, "a/1", 10);
    for key in [b"k", b"l"] {
        let loaded = linklet.read_or_load(key, String::clone).await.unwrap();
        assert_eq!(loaded.as_deref(), Some("1"));
    }
    // What was loaded later than this might be newer than a refresh.
    progress(&mut sink, 11);
    sink.refresh(&K, &Bytes::from_static(b"2"), 20);
    sink.refresh(&Bytes::from_static(b"l"), &Bytes::from_static(b"2"), 21);
    progress(&mut sink, 21);
    let there = async |key| linklet.read(key, String::clone).await.unwrap();
    assert_eq!(there(b"k").await, None);
    assert_eq!(there(b"l").await.as_deref(), Some("2"));
    sink.invalidate(&Bytes::from_static(b"l"), 30);
    assert_eq!(there(b"l").await, None);
}

/// A server hears of its own changes, too: what it has already costs no load. What
/// others have changed does, and a load that was begun before either is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_here_already_costs_no_load() {
    for replication in [Replication::None, Replication::Eventual] {
        let database = Arc::new(AtomicU64::new(1));
        let linklet = counting(&database, replication).await;
        let number = |text: &[u8]| str::from_utf8(text).unwrap().parse::<u64>().unwrap();
        let mut sink =
            linklet.sink_comparing(move |value, told| number(value.as_bytes()) >= number(told));
        let told = |number: u64| Bytes::from(number.to_string());
        begin(&mut sink, "a/1", 10);
        let mut held = linklet.get_or_load(b"k").await.unwrap().expect("a row");
        database.store(2, Ordering::SeqCst);
        held.replace("2".to_owned());
        linklet.commit(held).await.unwrap();
        sink.refresh(&K, &told(2), 20);
        let there = async || linklet.read(b"k", String::clone).await.unwrap();
        assert_eq!(there().await.as_deref(), Some("2"));
        assert_eq!(linklet.get(b"k").await.unwrap().unwrap().position(), 20);
        // An older one of these comes late: what is there is not put back.
        sink.refresh(&K, &told(1), 15);
        progress(&mut sink, 20);
        assert_eq!(there().await.as_deref(), Some("2"));
        assert_eq!(linklet.stats().loads, 1, "{replication:?}");

        // Somebody else's.
        database.store(3, Ordering::SeqCst);
        sink.refresh(&K, &told(3), 30);
        assert_eq!(there().await, None);
        progress(&mut sink, 30);
        let loaded = linklet.read_or_load(b"k", String::clone).await.unwrap();
        assert_eq!(loaded.as_deref(), Some("3"));
        assert_eq!(linklet.stats().loads, 2);
        // Deleted; and a mark that nobody can read.
        sink.invalidate(&K, 40);
        assert_eq!(there().await, None);
        progress(&mut sink, 40);
        linklet.read_or_load(b"k", String::clone).await.unwrap();
        sink.refresh(&K, &Bytes::from_static(b"?"), 50);
        assert_eq!(there().await, None);
    }
}
