//! Changes whose closures wait.

use crate::cluster::CORPUS;
use crate::strong::Three;
use bytes::Bytes;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::freshness::event::{Progress, Sink};
use trefoil_linklet::freshness::position::{History, Place};
use trefoil_linklet::{Builder, Error, Linklet, Loaded, LoaderError, PlainMarshal, Replication};

const LIMIT: Duration = Duration::from_secs(20);
const MODES: [Replication; 3] = [
    Replication::None,
    Replication::Eventual,
    Replication::Strong,
];

async fn start(
    replication: Replication,
    build: impl FnOnce(Builder<String>) -> Builder<String>,
) -> Linklet<String> {
    let builder = Linklet::builder(CORPUS, PlainMarshal).replication(replication);
    let linklet = build(builder.copies(1))
        .listen(LocalCoordinator::new(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    linklet.settled().await;
    linklet.insert(b"k", String::new()).await.unwrap();
    linklet
}

async fn seen(linklet: &Linklet<String>) -> Option<String> {
    linklet.read(b"k", String::clone).await.unwrap()
}

/// Polls until this holds; it must not be done before.
async fn until<F: Future>(mut future: std::pin::Pin<&mut F>, holds: impl Fn() -> bool) {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(_) => panic!("it is done"),
        Poll::Pending if holds() => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_after_the_other_and_each_sees_the_one_before() {
    const COUNT: usize = 20;
    for replication in MODES {
        let linklet = start(replication, |builder| builder).await;
        let inside = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..COUNT)
            .map(|_| {
                let (linklet, inside) = (linklet.clone(), Arc::clone(&inside));
                tokio::spawn(async move {
                    let change = async |text: &mut String| {
                        let others = inside.fetch_add(1, Ordering::SeqCst);
                        sleep(Duration::from_millis(5)).await;
                        text.push('x');
                        inside.fetch_sub(1, Ordering::SeqCst);
                        Ok::<_, Error>((others, text.len()))
                    };
                    linklet.update_async(b"k", LIMIT, change).await
                })
            })
            .collect();
        let mut lengths = Vec::new();
        for task in tasks {
            let (others, length) = task.await.unwrap().unwrap().unwrap();
            assert_eq!(others, 0, "somebody else was changing it");
            lengths.push(length);
        }
        lengths.sort_unstable();
        assert_eq!(lengths, (1..=COUNT).collect::<Vec<_>>());
        assert_eq!(seen(&linklet).await.unwrap().len(), COUNT);
        let absent = linklet
            .update_async(b"absent", LIMIT, async |_| -> Result<(), Error> {
                panic!("there is nothing to change")
            })
            .await;
        assert_eq!(absent.unwrap(), None);
    }
}

/// What a gRPC handler needs: a future that may go to another thread, with a
/// closure that borrows from the request.
fn handled<'a>(
    linklet: &'a Linklet<String>,
    said: &'a str,
) -> std::pin::Pin<Box<dyn Future<Output = Result<usize, tonic::Status>> + Send + 'a>> {
    Box::pin(async move {
        let change = async |text: &mut String| {
            sleep(Duration::from_millis(1)).await;
            text.push_str(said);
            Ok::<_, tonic::Status>(text.len())
        };
        let length = linklet.update_async(b"k", LIMIT, change).await?;
        length.ok_or_else(|| tonic::Status::not_found("no such key"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn closures_may_borrow_from_a_request() {
    let linklet = start(Replication::Strong, |builder| builder).await;
    let task = tokio::spawn(async move { handled(&linklet, &"x".repeat(7)).await });
    assert_eq!(task.await.unwrap().unwrap(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_keys_and_readers_do_not_wait() {
    for replication in MODES {
        let linklet = start(replication, |builder| builder).await;
        linklet.insert(b"other", String::new()).await.unwrap();
        let (began, go_on) = (AtomicBool::new(false), Notify::new());
        let mut slow = pin!(linklet.update_async(b"k", LIMIT, async |text| {
            text.push('a');
            began.store(true, Ordering::SeqCst);
            go_on.notified().await;
            Ok::<_, Error>(())
        }));
        until(slow.as_mut(), || began.load(Ordering::SeqCst)).await;
        let quick = linklet.update_async(b"other", LIMIT, async |text| {
            text.push('b');
            Ok::<_, Error>(())
        });
        assert_eq!(quick.await.unwrap(), Some(()));
        assert_eq!(
            seen(&linklet).await.as_deref(),
            Some(""),
            "not before the end"
        );
        let brief = linklet.patient(Duration::from_millis(50));
        let second = brief.update_async(b"k", LIMIT, async |_| -> Result<(), Error> {
            panic!("it is not its turn")
        });
        let refused = second.await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
        go_on.notify_one();
        slow.await.unwrap();
        assert_eq!(seen(&linklet).await.as_deref(), Some("a"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_leaves_nothing() {
    for replication in MODES {
        let linklet = start(replication, |builder| builder).await;
        let endless = async |text: &mut String| {
            text.push('a');
            pending::<()>().await;
            Ok::<_, Error>(())
        };
        let limit = Duration::from_millis(30);
        let overran = linklet.update_async(b"k", limit, endless).await;
        assert!(matches!(overran, Err(Error::Overran { .. })), "{overran:?}");
        let began = AtomicBool::new(false);
        {
            let mut dropped = pin!(linklet.update_async(b"k", LIMIT, async |text| {
                text.push('b');
                began.store(true, Ordering::SeqCst);
                pending::<Result<(), Error>>().await
            }));
            until(dropped.as_mut(), || began.load(Ordering::SeqCst)).await;
        }
        let refused = linklet.update_async(b"k", LIMIT, async |text| {
            text.push('c');
            Err::<(), _>(tonic::Status::not_found("no such thing"))
        });
        assert_eq!(refused.await.unwrap_err().code(), tonic::Code::NotFound);
        let panicked = {
            let linklet = linklet.clone();
            tokio::spawn(async move {
                let change = async |text: &mut String| -> Result<(), Error> {
                    text.push('d');
                    panic!("half changed")
                };
                linklet.update_async(b"k", LIMIT, change).await
            })
        };
        assert!(panicked.await.unwrap_err().is_panic());
        assert_eq!(seen(&linklet).await.as_deref(), Some(""));
        // And nobody has the turn any more.
        linklet.update(b"k", |text| text.push('e')).await.unwrap();
        assert_eq!(seen(&linklet).await.as_deref(), Some("e"));
    }
}

/// What came between is not overwritten; with copies it has to wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_came_between_counts() {
    for replication in MODES {
        let linklet = start(replication, |builder| builder).await;
        let brief = linklet.patient(Duration::from_millis(50));
        let between = linklet
            .update_async(b"k", LIMIT, async |text| {
                text.push('a');
                Ok::<_, Error>(brief.update(b"k", |text| text.push('b')).await)
            })
            .await;
        let text = seen(&linklet).await;
        if replication == Replication::Strong {
            let refused = between.unwrap().unwrap();
            assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
            assert_eq!(text.as_deref(), Some("a"));
        } else {
            assert!(matches!(between, Err(Error::Conflict)), "{between:?}");
            assert_eq!(text.as_deref(), Some("b"));
        }
    }
}

const K: Bytes = Bytes::from_static(b"k");

fn follow(sink: &mut impl Sink) {
    let history = History("log".to_owned());
    sink.begun(&Place {
        history,
        position: 10,
    });
    sink.progress(Progress {
        position: 10,
        as_of: None,
    });
}

/// The value that was looked at is out of date when it is to be committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_database_that_came_between_counts() {
    for replication in MODES {
        let linklet = start(replication, |builder| builder).await;
        let mut sink = linklet.sink();
        follow(&mut sink);
        linklet.insert(b"k", String::new()).await.unwrap();
        let done = linklet
            .update_async(b"k", LIMIT, async |text| {
                text.push('a');
                sink.invalidate(&K, 20);
                Ok::<_, Error>(())
            })
            .await;
        assert!(matches!(done, Err(Error::Conflict)), "{done:?}");
        assert_eq!(seen(&linklet).await, None);
    }
}

/// A value that was loaded is good, whoever keeps others from keeping it.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_is_served_while_its_key_is_being_changed() {
    let load = async |_: Vec<u8>| Ok::<_, LoaderError>(Some(Loaded::from("loaded".to_owned())));
    let load = move |key| load(key);
    let linklet = start(Replication::Strong, |builder| builder.loader(load)).await;
    let mut sink = linklet.sink();
    follow(&mut sink);
    linklet.insert(b"k", String::new()).await.unwrap();
    let brief = linklet.patient(Duration::from_millis(50));
    let done = linklet
        .update_async(b"k", LIMIT, async |_| {
            sink.invalidate(&K, 20);
            sink.progress(Progress {
                position: 20,
                as_of: None,
            });
            brief.read_or_load(b"k", String::clone).await
        })
        .await;
    // That change comes to nothing, but its closure has seen the value.
    assert!(matches!(done, Err(Error::Conflict)), "{done:?}");
    assert_eq!(linklet.stats().loads, 1);
    let read = linklet.read_or_load(b"k", String::clone).await.unwrap();
    assert_eq!(read.as_deref(), Some("loaded"));
}

/// Two copies are wanted, and one server is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_closure_does_not_run_without_enough_copies() {
    let fleet = Three::built(|| Linklet::builder(CORPUS, PlainMarshal)).await;
    let key = fleet.copied().await;
    let runs = AtomicUsize::new(0);
    let brief = fleet.linklet.patient(Duration::from_millis(300));
    let change = async |text: &mut String| {
        runs.fetch_add(1, Ordering::SeqCst);
        text.push('x');
        Ok::<_, Error>(())
    };
    fleet
        .linklet
        .update_async(&key, LIMIT, change)
        .await
        .unwrap()
        .expect("the key is there");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    fleet.other.leave().await;
    fleet.third.leave().await;
    let refused = loop {
        let before = runs.load(Ordering::SeqCst);
        match brief.update_async(&key, LIMIT, change).await {
            // They are not known to be gone yet.
            Ok(Some(())) => assert_eq!(runs.load(Ordering::SeqCst), before + 1),
            Err(Error::Indeterminate(_) | Error::Unsettled { .. }) => {}
            refused => break (refused, runs.load(Ordering::SeqCst) - before),
        }
    };
    assert!(
        matches!(refused, (Err(Error::TooFewCopies { have: 1, need: 2 }), 0)),
        "{refused:?}"
    );
    let there = brief.read(&key, String::is_empty).await.unwrap();
    assert_eq!(there, Some(false), "the key is there");
}

/// No replica could keep it, and the key would wait for one that can.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_longer_than_all_memory_is_refused_and_holds_nothing_up() {
    for replication in MODES {
        let linklet = start(replication, |builder| builder.memory(64 << 10)).await;
        let long = linklet.update_async(b"k", LIMIT, async |text: &mut String| {
            *text = "x".repeat(128 << 10);
            Ok::<_, Error>(())
        });
        let refused = long.await;
        assert!(matches!(refused, Err(Error::NoRoom { .. })), "{refused:?}");
        if replication == Replication::Strong {
            let update = linklet.update(b"k", |text| *text = "x".repeat(128 << 10));
            let refused = update.await;
            assert!(matches!(refused, Err(Error::NoRoom { .. })), "{refused:?}");
        }
        let added = linklet.update(b"k", |text| text.push('y')).await;
        assert_eq!(added.unwrap(), Some(()), "{replication:?}");
        assert_eq!(seen(&linklet).await.as_deref(), Some("y"));
    }
}
