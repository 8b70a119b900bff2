//! The async client: many tasks, dropped futures, no runtime in particular.

use crate::fake::{Fake, Script};
use crate::real::Real;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use trefoil_cell::Mode;
use trefoil_client::{Cell, Expected, Mutated, Options, OwnedLookup, SetOptions};

/// The least of executors: one future, on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Thread(std::thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(30)),
        }
    }
}

fn options() -> Options {
    Options {
        // Machines on which tests run may stand still.
        deadline: Duration::from_secs(20),
        ..Options::default()
    }
}

#[test]
fn every_operation_without_any_runtime() {
    for mode in [Mode::R1, Mode::R32] {
        let real = Real::start(mode);
        let client = Cell::connect(&real.address)
            .unwrap()
            .async_client(options());
        block_on(async {
            let options = SetOptions {
                client_flags: 7,
                unique: Some(9),
                ..SetOptions::default()
            };
            let stored = client.set(b"key", b"value", options).await.unwrap();
            let Mutated::Stored { version } = stored else {
                panic!("{stored:?}");
            };
            let OwnedLookup::Hit(hit) = client.get(b"key").await.unwrap() else {
                panic!("no hit");
            };
            assert_eq!(
                (hit.value.as_slice(), hit.version),
                (&b"value"[..], version)
            );
            assert_eq!(
                (hit.client_flags, hit.unique, hit.item_flags),
                (7, Some(9), 0)
            );
            let expected = Expected::Version(version);
            let swapped = client
                .cas(b"key", expected, b"other", SetOptions::default())
                .await
                .unwrap();
            assert!(matches!(swapped, Mutated::Stored { .. }), "{swapped:?}");
            client.erase(b"key").await.unwrap();
            let OwnedLookup::Miss(miss) = client.get(b"key").await.unwrap() else {
                panic!("it was erased");
            };
            let filled = client
                .fill(miss.fill, b"key", b"filled", SetOptions::default())
                .await
                .unwrap();
            assert!(matches!(filled, Mutated::Stored { .. }), "{filled:?}");
            let found = client.get_many(&["key", "nothing", ""]).await;
            assert!(matches!(&found[0], Ok(OwnedLookup::Hit(hit)) if hit.value == b"filled"));
            assert!(matches!(found[1], Ok(OwnedLookup::Miss(_))));
            assert!(found[2].is_err());
            client.finish().await;
        });
    }
}

/// 10,000 operations at once, by one set of rings and one thread.
#[test]
fn ten_thousand_tasks_share_one_client() {
    const TASKS: usize = 10_000;
    let real = Real::start(Mode::R32);
    let cell = Cell::connect(&real.address).unwrap();
    let client = cell.async_client(options());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let latencies = runtime.block_on(async {
        let mut tasks = Vec::with_capacity(TASKS);
        for number in 0..TASKS {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                let key = format!("key-{}", number % 1_000);
                let begin = Instant::now();
                if number % 2 == 0 {
                    let stored = client
                        .set(key.as_bytes(), &[7; 100], SetOptions::default())
                        .await;
                    assert!(matches!(stored, Ok(Mutated::Stored { .. })), "{stored:?}");
                } else {
                    client.get(key.as_bytes()).await.unwrap();
                }
                begin.elapsed()
            }));
        }
        let mut latencies = Vec::with_capacity(TASKS);
        for task in tasks {
            latencies.push(task.await.unwrap());
        }
        latencies.sort();
        latencies
    });
    println!(
        "{TASKS} tasks: p50 {:?}, p99 {:?}, last {:?}",
        latencies[TASKS / 2],
        latencies[TASKS * 99 / 100],
        latencies[TASKS - 1]
    );
    // One client's rings at each of three backends, and no more.
    assert_eq!(real.clients(), 3);
}

/// Polls a few times, then drops.
fn poll_and_drop<F: Future>(future: F, polls: usize) {
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if future.as_mut().poll(&mut context).is_ready() {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn dropped_futures_leave_nothing_behind() {
    let real = Real::start(Mode::R32);
    let cell = Cell::connect(&real.address).unwrap();
    let client = cell.async_client(options());
    for number in 0..5_000usize {
        let key = format!("key-{}", number % 50);
        match number % 3 {
            0 => poll_and_drop(client.get(key.as_bytes()), number % 4),
            1 => {
                let value = vec![1; number % 3_000];
                let set = client.set(key.as_bytes(), &value, SetOptions::default());
                poll_and_drop(set, number % 4);
            }
            _ => poll_and_drop(client.erase(key.as_bytes()), number % 4),
        }
    }
    block_on(client.finish());
    assert_eq!(client.in_flight(), 0);
    // And it works as before.
    let stored = block_on(client.set(b"key", b"value", SetOptions::default()));
    assert!(matches!(stored, Ok(Mutated::Stored { .. })), "{stored:?}");
    assert!(matches!(
        block_on(client.get(b"key")),
        Ok(OwnedLookup::Hit(_))
    ));
    // The last user gone, the thread gives the rings back.
    drop(client);
    let begin = Instant::now();
    while real.clients() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A mutation that was begun goes to all replicas although its future is gone.
#[test]
fn a_dropped_mutation_that_was_begun_reaches_every_replica() {
    let reached = Arc::new(AtomicUsize::new(0));
    let goes = Arc::new(AtomicBool::new(false));
    let script = Script::new(Mode::R32, {
        let (reached, goes) = (Arc::clone(&reached), Arc::clone(&goes));
        move |request| {
            let (reached, goes) = (Arc::clone(&reached), Arc::clone(&goes));
            Box::pin(async move {
                reached.fetch_add(1, Ordering::SeqCst);
                assert!(request.backend < 3);
                while !goes.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(trefoil_rpc::encode_ack(&trefoil_layout::op::Ack {
                    epoch: 1,
                    outcome: trefoil_layout::op::Outcome::Applied,
                }))
            })
        }
    });
    let fake = Fake::start(script);
    let cell = Cell::connect(&fake.address).unwrap();
    let client = cell.async_client(options());
    {
        let mut set = Box::pin(client.set(b"key", b"value", SetOptions::default()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(set.as_mut().poll(&mut context).is_pending());
        let begin = Instant::now();
        while reached.load(Ordering::SeqCst) == 0 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    goes.store(true, Ordering::SeqCst);
    block_on(client.finish());
    assert_eq!(reached.load(Ordering::SeqCst), 3);
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn dropping_everything_inside_a_runtime_does_not_panic() {
    let real = Real::start(Mode::R1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let address = real.address.clone();
    let cell = Cell::connect(&address).unwrap();
    runtime.block_on(async move {
        let options = Options {
            carrier: trefoil_client::Carrier::Rpc,
            ..options()
        };
        let client = cell.async_client(options);
        client
            .set(b"key", b"value", SetOptions::default())
            .await
            .unwrap();
        assert!(matches!(client.get(b"key").await, Ok(OwnedLookup::Hit(_))));
        drop(client);
        drop(cell);
    });
}
