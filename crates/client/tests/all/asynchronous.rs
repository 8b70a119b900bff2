//! The async client: many tasks, dropped futures, no runtime in particular.

use crate::fake::{Fake, Script};
use crate::real::Real;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use trefoil_cell::Mode;
use trefoil_client::{Carrier, Cell, Expected, Mutated, OpError, Options, OwnedLookup, SetOptions};
use trefoil_layout::op::{Ack, Outcome};

/// The least of executors: one future, on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
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
    // One client's rings at each of three backends, and no more; so many places, and
    // some for third copies that wait for room.
    assert_eq!(real.clients(), 3);
    assert!(client.places() <= 1_024, "{}", client.places());
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
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A mutation that was begun goes to all replicas although its future is gone: also
/// what it has to send only then, because the first attempt was too low.
#[test]
fn a_dropped_mutation_that_was_begun_reaches_every_replica() {
    let first = Arc::new(Mutex::new(None));
    let reached = Arc::new(Mutex::new(Vec::new()));
    let goes = Arc::new(AtomicBool::new(false));
    let script = Script::new(Mode::R32, {
        let (first, reached, goes) = (first.clone(), reached.clone(), goes.clone());
        move |request| {
            let (first, reached, goes) = (first.clone(), reached.clone(), goes.clone());
            Box::pin(async move {
                let version = trefoil_rpc::decode_version(request.version.unwrap());
                let first = *first.lock().unwrap().get_or_insert(version);
                let outcome = if version == first {
                    while !goes.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Outcome::Superseded { bound: version }
                } else {
                    reached.lock().unwrap().push(request.backend);
                    Outcome::Applied
                };
                Ok(trefoil_rpc::encode_ack(&Ack { epoch: 1, outcome }))
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
        while first.lock().unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(reached.lock().unwrap().is_empty());
    goes.store(true, Ordering::SeqCst);
    block_on(client.finish());
    let mut reached = reached.lock().unwrap().clone();
    reached.sort();
    assert_eq!(reached, [0, 1, 2]);
    assert_eq!(client.in_flight(), 0);
}

/// Futures that are dropped at any time, thousands at once, leave neither places nor
/// rings behind, and nobody else waits for ever.
#[test]
fn dropping_at_random_leaks_nothing_and_hangs_nobody() {
    const TASKS: u64 = 10_000;
    let real = Real::start(Mode::R32);
    let client = Cell::connect(&real.address).unwrap().async_client(Options {
        // Lookups wait for the thread, too.
        carrier: Carrier::Message,
        ..options()
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let (ended, dropped) = runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..TASKS {
            let client = client.clone();
            // Spread as dice would.
            let dice = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            tasks.push(tokio::spawn(async move {
                let key = format!("key-{}", number % 100);
                let operation = async {
                    match dice % 2 {
                        0 => client.get(key.as_bytes()).await.map(|_| ()),
                        _ => {
                            let value = vec![1; 10 + dice as usize % 3_000];
                            let options = SetOptions::default();
                            client
                                .set(key.as_bytes(), &value, options)
                                .await
                                .map(|_| ())
                        }
                    }
                };
                if dice % 3 > 0 {
                    operation.await.unwrap();
                    return true;
                }
                let patience = Duration::from_micros(dice % 50_000);
                tokio::time::timeout(patience, operation).await.is_ok()
            }));
        }
        let mut ended = 0;
        for task in tasks {
            ended += u64::from(task.await.unwrap());
        }
        (ended, TASKS - ended)
    });
    assert!(ended > TASKS / 2 && dropped > 0, "{ended} {dropped}");
    block_on(client.finish());
    assert_eq!((client.in_flight(), real.clients()), (0, 3));
    assert!(client.places() <= 1_024, "{}", client.places());
    println!(
        "{ended} ended, {dropped} dropped, {} places",
        client.places()
    );
}

/// With one replica down, lookups still end where they are called.
#[test]
fn a_dead_backend_sends_no_lookup_to_the_thread() {
    let home = tempfile::tempdir().unwrap();
    let (fabric, nowhere) = (home.path().join("fabric"), home.path().join("nowhere"));
    let real = Real::start_where(home, Mode::R32, |number| match number {
        1 => nowhere.clone(),
        _ => fabric.clone(),
    });
    let client = Cell::connect(&real.address)
        .unwrap()
        .async_client(options());
    block_on(client.set(b"key", b"value", SetOptions::default())).unwrap();
    for _ in 0..1_000 {
        let mut get = std::pin::pin!(client.get(b"key"));
        let mut context = Context::from_waker(Waker::noop());
        let polled = get.as_mut().poll(&mut context);
        assert!(
            matches!(&polled, Poll::Ready(Ok(OwnedLookup::Hit(hit))) if hit.value == b"value"),
            "{polled:?}"
        );
    }
}

/// A thread that panics (here: over a caller's waker) leaves nobody waiting.
#[test]
fn a_panic_of_the_thread_fails_what_is_pending() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let reached = Arc::new(AtomicUsize::new(0));
    let script = Script::new(Mode::R1, {
        let reached = Arc::clone(&reached);
        move |request| {
            let reached = Arc::clone(&reached);
            Box::pin(async move {
                reached.fetch_add(1, Ordering::SeqCst);
                if request.key.as_ref() == b"slow" {
                    std::future::pending::<()>().await;
                }
                Ok(trefoil_rpc::encode_ack(&Ack {
                    epoch: 1,
                    outcome: Outcome::Applied,
                }))
            })
        }
    });
    let fake = Fake::start(script);
    let client = Cell::connect(&fake.address)
        .unwrap()
        .async_client(options());
    let mut slow = Box::pin(client.set(b"slow", b"value", SetOptions::default()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(slow.as_mut().poll(&mut context).is_pending());
    while reached.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let waker = Waker::from(Arc::new(Panics));
    let mut quick = Box::pin(client.set(b"quick", b"value", SetOptions::default()));
    assert!(
        quick
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let ended = block_on(slow);
    assert!(
        matches!(&ended, Err(OpError::Indeterminate(why)) if why.contains("panic")),
        "{ended:?}"
    );
    let late = block_on(client.set(b"late", b"value", SetOptions::default()));
    assert!(matches!(late, Err(OpError::Failed(_))), "{late:?}");
    block_on(client.finish());
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

/// Rounds in which a machine that stands still must not do so for a second.
const ROUNDS: usize = 10;

/// The backend's process hangs, and the client's thread waits for its greeting for a
/// second: what waits in the queue ends by its own deadline nevertheless.
#[test]
fn deadlines_hold_while_a_greeting_is_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let named = home.path().join("named");
    let _hangs = std::os::unix::net::UnixListener::bind(&named).unwrap();
    let real = Real::start_in(home, Mode::R1, named);
    let ends_in_time = || {
        let cell = Cell::connect(&real.address).unwrap();
        let begin = Instant::now();
        let client = cell.async_client(Options {
            deadline: Duration::from_millis(50),
            ..Options::default()
        });
        let set = block_on(client.set(b"key", b"value", SetOptions::default()));
        let is_in_time = begin.elapsed() < Duration::from_millis(800);
        matches!(set, Err(OpError::Failed(_))) && is_in_time
    };
    assert!((0..ROUNDS).any(|_| ends_in_time()));
}

/// The same while somebody waits for a third copy, which never arrives.
#[test]
fn deadlines_hold_while_what_was_sent_is_waited_for() {
    let applied = || {
        Ok(trefoil_rpc::encode_ack(&Ack {
            epoch: 1,
            outcome: Outcome::Applied,
        }))
    };
    let fake = Fake::start(Script::new(Mode::R32, move |request| {
        Box::pin(async move {
            if request.backend == 2 {
                std::future::pending::<()>().await;
            }
            applied()
        })
    }));
    let cell = Cell::connect(&fake.address).unwrap();
    let ends_in_time = || {
        let client = cell.async_client(Options {
            deadline: Duration::from_millis(500),
            ..Options::default()
        });
        let set = block_on(client.set(b"key", b"value", SetOptions::default()));
        if !matches!(set, Ok(Mutated::Stored { .. })) {
            return false;
        }
        let mut finish = std::pin::pin!(client.finish());
        let mut context = Context::from_waker(Waker::noop());
        let is_waiting = finish.as_mut().poll(&mut context).is_pending();
        let late = block_on(client.set(b"key", b"late", SetOptions::default()));
        let is_late = matches!(late, Err(OpError::Failed(_)));
        is_waiting && is_late && finish.as_mut().poll(&mut context).is_pending()
    };
    assert!((0..ROUNDS).any(|_| ends_in_time()));
}

/// One of three hangs: the other two are a quorum, from the first operation on.
#[test]
fn a_replica_that_hangs_is_not_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("fabric");
    let _hangs = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let script = Script::new(Mode::R32, |_| {
        Box::pin(async {
            Ok(trefoil_rpc::encode_ack(&Ack {
                epoch: 1,
                outcome: Outcome::Applied,
            }))
        })
    });
    let fake = Fake::start_with(script, |config| {
        config.backends[2].fabric_socket = Some(socket);
    });
    let is_stored_in_time = || {
        // What one client learns of it others are not to know.
        let cell = Cell::connect(&fake.address).unwrap();
        let client = cell.async_client(Options {
            deadline: Duration::from_millis(900),
            ..Options::default()
        });
        let set = block_on(client.set(b"key", b"value", SetOptions::default()));
        matches!(set, Ok(Mutated::Stored { .. }))
    };
    assert!((0..ROUNDS).any(|_| is_stored_in_time()));
}
