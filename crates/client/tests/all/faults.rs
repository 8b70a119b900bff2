//! What befalls a client: forks, backends that hang or end, callers in a hurry or
//! without any.

use crate::fake::{Fake, Script};
use crate::real::Real;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use trefoil_cell::{Mode, RpcAddress};
use trefoil_client::{
    Carrier, CarrierInUse, Cell, Client, Expected, Lookup, Mutated, OpError, Options, SetOptions,
    UNREACHABLE,
};
use trefoil_layout::op::{Ack, Outcome, Rejection};
use trefoil_rpc::v1;

/// Tries of what a busy machine may spoil.
const ROUNDS: usize = 10;

fn options() -> Options {
    Options {
        // Machines on which tests run may stand still.
        deadline: Duration::from_secs(20),
        ..Options::default()
    }
}

fn applied() -> v1::MutateResponse {
    trefoil_rpc::encode_ack(&Ack {
        epoch: 1,
        outcome: Outcome::Applied,
    })
}

fn is_refused<T>(result: &Result<T, OpError>) -> bool {
    matches!(result, Err(OpError::Failed(why)) if why.contains("forked"))
}

fn is_refused_at_once<T>(future: impl Future<Output = Result<T, OpError>>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        Poll::Ready(result) => is_refused(&result),
        Poll::Pending => false,
    }
}

/// Reads report touches through the rings, so a child must not even read.
#[test]
fn a_forks_child_neither_reads_nor_writes_with_its_parents_client() {
    let real = Real::start(Mode::R32);
    let mut client = Cell::connect(&real.address).unwrap().client(options());
    let tasks = Cell::connect(&real.address)
        .unwrap()
        .async_client(options());
    client.set(b"key", b"value", SetOptions::default()).unwrap();
    // SAFETY: the child uses this thread's client only, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut many = 0;
        client.get_many(&["key", "key"], |_, found| {
            many += usize::from(is_refused(&found));
        });
        let is_right = is_refused(&client.get(b"key"))
            && is_refused(&client.peek(b"key"))
            && is_refused(&client.look(b"key"))
            && client.get_now(b"key", true).is_some_and(|f| is_refused(&f))
            && is_refused(&client.set(b"key", b"other", SetOptions::default()))
            && is_refused(&client.item_uses(b"key", Duration::from_secs(1)))
            && many == 2;
        client.submit_get(b"key", 1);
        let completed = client.poll(&mut |_, _| {});
        let is_right = is_right
            && is_refused_at_once(tasks.get(b"key"))
            && is_refused_at_once(tasks.set(b"key", b"other", SetOptions::default()));
        drop(tasks);
        client.flush_touches();
        client.settle(Duration::MAX);
        drop(client);
        // SAFETY: ends the process.
        unsafe { libc::_exit(if is_right && completed == 1 { 7 } else { 1 }) };
    }
    assert!(child > 0, "no process left");
    let mut status = 0;
    // SAFETY: waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
    for _ in 0..1_000 {
        assert!(matches!(client.get(b"key"), Ok(Lookup::Hit(hit)) if hit.value == b"value"));
    }
    let set = client.set(b"key", b"again", SetOptions::default());
    assert!(matches!(set, Ok(Mutated::Stored { .. })), "{set:?}");
}

/// A client's clock was an hour ahead, and is set right: what it issued meanwhile is
/// stored nowhere, so it need not lie above that for an hour.
#[test]
fn a_clock_that_was_ahead_and_is_set_back_writes_again() {
    const HOUR_MS: i64 = 3_600_000;
    for mode in [Mode::R1, Mode::R32] {
        let real = Real::start(mode);
        let mut client = Cell::connect(&real.address).unwrap().client(options());
        let set =
            |client: &mut Client, value: &[u8]| client.set(b"key", value, SetOptions::default());
        set(&mut client, b"before").unwrap();
        client.set_clock_offset_ms(HOUR_MS);
        for _ in 0..3 {
            let refused = set(&mut client, b"ahead");
            let Err(OpError::Rejected(Rejection::ClockAhead)) = refused else {
                panic!("{refused:?}");
            };
        }
        let ahead = client.last_version();
        client.set_clock_offset_ms(0);
        let stored = set(&mut client, b"after");
        let Ok(Mutated::Stored { version }) = stored else {
            panic!("{stored:?}");
        };
        assert!(version < ahead && version.origin != ahead.origin);
        let present = Expected::Version(version);
        let swapped = client.cas(b"key", present, b"last", SetOptions::default());
        assert!(matches!(swapped, Ok(Mutated::Stored { .. })), "{swapped:?}");
        assert!(matches!(client.get(b"key"), Ok(Lookup::Hit(hit)) if hit.value == b"last"));
    }
}

/// What a client sleeps on is quiet where there is nothing to do, also after a
/// blocking call has taken the answers of what was submitted.
#[test]
fn a_descriptor_that_nobody_rings_is_not_readable() {
    let real = Real::start(Mode::R32);
    let mut client = Cell::connect(&real.address).unwrap().client(options());
    client.descriptor().unwrap();
    client.submit_set(b"key", b"value", SetOptions::default(), 1);
    if client.arm() {
        // The backends answer, and ring.
        std::thread::sleep(Duration::from_millis(50));
    }
    client.set(b"key", b"other", SetOptions::default()).unwrap();
    let mut completed = 0;
    let begin = Instant::now();
    loop {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "it goes on ringing"
        );
        completed += client.poll(&mut |_, _| {});
        if client.arm() && completed == 1 && !is_readable(&mut client, 100) {
            return;
        }
    }
}

fn is_readable(client: &mut Client, patience_ms: u64) -> bool {
    let timeout = Timespec::try_from(Duration::from_millis(patience_ms)).unwrap();
    let descriptor = client.descriptor().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
}

#[test]
fn a_call_that_waits_sleeps_beside_what_has_completed() {
    const HANGS: Duration = Duration::from_millis(400);
    let fake = Fake::start(Script::new(Mode::R1, |request| {
        Box::pin(async move {
            if request.key.as_ref() == b"slow" {
                tokio::time::sleep(HANGS).await;
            }
            Ok(applied())
        })
    }));
    let mut client = Cell::connect(&fake.address).unwrap().client(options());
    client.submit_set(b"quick", b"value", SetOptions::default(), 1);
    let cpu = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (begin, used) = (Instant::now(), cpu());
    client
        .set(b"slow", b"value", SetOptions::default())
        .unwrap();
    let (took, used) = (begin.elapsed(), cpu() - used);
    assert!(took >= HANGS && used < HANGS / 2, "{used:?} of {took:?}");
    assert_eq!(client.poll(&mut |_, _| {}), 1);
}

/// A replica that takes calls and does not answer counts as down before the
/// caller's patience ends, to the CAS and to its look at what the others hold.
#[test]
fn a_replica_that_hangs_does_not_cost_a_cas_its_deadline() {
    let hangs = |backend: u32| async move {
        if backend == 0 {
            std::future::pending::<()>().await;
        }
    };
    let mut script = Script::new(Mode::R32, move |request| {
        Box::pin(async move {
            hangs(request.backend).await;
            Ok(applied())
        })
    });
    script.on_lookup = Box::new(move |request| {
        Box::pin(async move {
            hangs(request.backend).await;
            Ok(v1::LookupResponse {
                epoch: 1,
                found: Some(v1::lookup_response::Found::Absent(v1::Absent {})),
                stamp: 0,
            })
        })
    });
    let fake = Fake::start(script);
    let mut client = Cell::connect(&fake.address).unwrap().client(options());
    let begin = Instant::now();
    let done = client.cas(b"key", Expected::Absent, b"value", SetOptions::default());
    assert!(matches!(done, Ok(Mutated::Stored { .. })), "{done:?}");
    assert!(begin.elapsed() < options().deadline / 2);
}

#[test]
fn patience_may_be_endless() {
    let real = Real::start(Mode::R32);
    for carrier in [Carrier::Auto, Carrier::Rpc] {
        let mut client = Cell::connect(&real.address).unwrap().client(Options {
            carrier,
            deadline: Duration::MAX,
            ..Options::default()
        });
        client.set(b"key", b"value", SetOptions::default()).unwrap();
        assert!(client.item_uses(b"key", Duration::MAX).is_ok());
        assert!(client.finish(Duration::MAX));
    }
}

/// A client that owes and asks nothing lets go of the memory of a backend that has
/// ended.
#[test]
fn the_memory_of_a_dead_backend_does_not_stay_mapped() {
    let real = Real::start(Mode::R1);
    let mut client = Cell::connect(&real.address).unwrap().client(options());
    client.set(b"key", b"value", SetOptions::default()).unwrap();
    assert_eq!(client.carriers()[0].carrier, CarrierInUse::Shared);
    drop(real);
    let begin = Instant::now();
    while client.carriers()[0].carrier != CarrierInUse::Down {
        assert!(begin.elapsed() < Duration::from_secs(60));
        client.poll(&mut |_, _| {});
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whoever stands in connection with a backend knows better, says so, and fails for its
/// own reasons.
#[test]
fn what_one_client_does_not_reach_is_not_away_for_all() {
    let real = Real::start(Mode::R1);
    let cell = Cell::connect(&real.address).unwrap();
    let mut connected = cell.client(Options {
        deadline: Duration::ZERO,
        ..options()
    });
    assert_eq!(connected.carriers()[0].carrier, CarrierInUse::Shared);
    let aside = real.fabric.with_extension("aside");
    std::fs::rename(&real.fabric, &aside).unwrap();
    let fails_to_connect = || {
        let late = cell.client(options());
        assert_eq!(late.carriers()[0].carrier, CarrierInUse::Down);
        assert!(cell.is_unreachable());
    };
    // Where the backend gets no turn, its lease may be over at that moment.
    let begin = Instant::now();
    loop {
        fails_to_connect();
        let failed = connected.set(b"key", b"value", SetOptions::default());
        if matches!(&failed, Err(OpError::Failed(why)) if why != UNREACHABLE)
            && !cell.is_unreachable()
        {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{failed:?}");
    }
    fails_to_connect();
    let begin = Instant::now();
    while cell.is_unreachable() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        connected.poll(&mut |_, _| {});
        std::thread::sleep(Duration::from_millis(10));
    }
    std::fs::rename(&aside, &real.fabric).unwrap();
}

/// The first of the servers that an address names hangs: it is asked once, and whoever has
/// answered last is asked first from then on.
#[test]
fn a_server_that_hangs_is_not_asked_each_time() {
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fake = Fake::start(Script::new(Mode::R1, |_| Box::pin(async { Ok(applied()) })));
    let first = hangs.local_addr().unwrap();
    let address = format!("trefoil://{first},{}", fake.address);
    let cell = Cell::connect(&address).unwrap();
    for _ in 0..2 {
        cell.learn().unwrap();
    }
    hangs.set_nonblocking(true).unwrap();
    let asked = std::iter::from_fn(|| hangs.accept().ok()).count();
    assert_eq!(asked, 1);
}

/// Many clients of one process look for the configuration while it is being loaded: that is
/// one more load, not one for each.
#[test]
fn those_who_look_at_the_same_time_load_once() {
    const CLIENTS: usize = 16;
    let loads = Arc::new(AtomicUsize::new(0));
    let held = Arc::new(tokio::sync::Semaphore::new(1));
    let mut script = Script::new(Mode::R1, |_| Box::pin(async { Ok(applied()) }));
    let (counted, gate) = (Arc::clone(&loads), Arc::clone(&held));
    script.on_config = Box::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            drop(gate.acquire().await);
            Ok(())
        })
    });
    let fake = Fake::start(script);
    let cell = Cell::connect(&fake.address).unwrap();
    let load_count = || {
        loads.store(0, Ordering::SeqCst);
        let hold = held.try_acquire().unwrap();
        std::thread::scope(|scope| {
            let learn = || cell.learn().map(drop);
            let looks: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(learn)).collect();
            // All have begun to wait by then, unless the machine is busy.
            std::thread::sleep(Duration::from_millis(200));
            drop(hold);
            for look in looks {
                look.join().unwrap().unwrap();
            }
        });
        loads.load(Ordering::SeqCst)
    };
    assert!((0..ROUNDS).any(|_| load_count() <= 2));
}

/// The socket of a server on this host comes after a client has gone to its TCP address.
/// Before, another cell's server is at that path.
#[test]
fn a_socket_that_comes_later_takes_the_calls() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rpc");
    let far = Fake::start_with(
        Script::new(Mode::R1, |_| Box::pin(async { Ok(applied()) })),
        |config| {
            let socket = RpcAddress::Unix(path.clone());
            config.backends[0].addresses.insert(0, socket);
        },
    );
    let mut client = Cell::connect(&far.address).unwrap().client(options());
    let count_at = |life| {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let script = Script::new(Mode::R1, move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(applied()) })
        });
        (Fake::at_socket(&path, life, script), calls)
    };
    let mut set = || {
        let set = client.set(b"key", b"value", SetOptions::default());
        assert!(matches!(set, Ok(Mutated::Stored { .. })), "{set:?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    set();
    let (stranger, calls) = count_at(2);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1_500) {
        set();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    drop(stranger);
    std::fs::remove_file(&path).unwrap();
    let (_near, calls) = count_at(1);
    let begin = Instant::now();
    while calls.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "it stays on TCP");
        set();
    }
}
