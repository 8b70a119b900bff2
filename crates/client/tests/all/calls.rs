//! Answers of calls that come late, or never.

use crate::fake::{Counted, Fake, Script};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tonic::{Code, Status};
use trefoil_cell::Mode;
use trefoil_client::{
    CarrierInUse, Cell, Client, Completion, FlushError, ListError, ListedAt, Lookup, Mutated,
    OpError, Options, SetOptions, Version,
};
use trefoil_layout::op::{Ack, Outcome};
use trefoil_rpc::{Listed, v1};

fn ack(outcome: Outcome) -> v1::MutateResponse {
    trefoil_rpc::encode_ack(&Ack { epoch: 1, outcome })
}

fn version(request: &v1::MutateRequest) -> Version {
    trefoil_rpc::decode_version(request.version.unwrap())
}

/// A value above `version`.
fn above(version: Version) -> Outcome {
    let bound = Version::new(version.time_ns + 1_000, 1, 1);
    Outcome::Superseded { bound }
}

/// Backend 2 has applied the first attempt and says so when the second has come;
/// the second it refuses. An answer to the first, taken for one to the second,
/// would make a quorum that does not exist.
#[test]
fn a_late_answer_to_an_earlier_attempt_is_not_taken_for_this_ones() {
    let second = Arc::new(Notify::new());
    let versions: Arc<Mutex<Vec<Version>>> = Arc::default();
    let script = Script::new(Mode::R32, {
        let versions = Arc::clone(&versions);
        move |request| {
            let version = version(&request);
            let attempt = {
                let mut versions = versions.lock().unwrap();
                if !versions.contains(&version) {
                    versions.push(version);
                }
                versions.iter().position(|v| *v == version).unwrap()
            };
            let second = Arc::clone(&second);
            Box::pin(async move {
                Ok(ack(match (attempt, request.backend) {
                    (0, 2) => {
                        second.notified().await;
                        Outcome::Applied
                    }
                    (0, _) => above(version),
                    (1, 2) => {
                        second.notify_one();
                        // The late answer comes first.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        above(version)
                    }
                    (1, 0) => Outcome::Applied,
                    (1, _) => {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        above(version)
                    }
                    _ => Outcome::Applied,
                }))
            })
        }
    });
    let fake = Fake::start(script);
    let mut client = Cell::connect(&fake.address)
        .unwrap()
        .client(Options::default());
    let stored = client.set(b"key", b"value", SetOptions::default()).unwrap();
    let versions = versions.lock().unwrap();
    assert_eq!(versions.len(), 3, "{stored:?}");
    assert_eq!(
        stored,
        Mutated::Stored {
            version: versions[2]
        }
    );
}

#[test]
fn the_third_copy_is_waited_for_before_the_last_owner_goes() {
    let arrived = Arc::new(AtomicUsize::new(0));
    let script = Script::new(Mode::R32, {
        let arrived = Arc::clone(&arrived);
        move |request| {
            let arrived = Arc::clone(&arrived);
            Box::pin(async move {
                if request.backend == 2 {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                arrived.fetch_add(1, Ordering::Relaxed);
                Ok(ack(Outcome::Applied))
            })
        }
    });
    let fake = Fake::start(script);
    let set = || {
        let cell = Cell::connect(&fake.address).unwrap();
        let mut client = cell.client(Options::default());
        client.set(b"key", b"value", SetOptions::default()).unwrap();
        (cell, client)
    };
    drop(set());
    assert_eq!(arrived.load(Ordering::Relaxed), 3);
    let (_cell, mut client) = set();
    assert!(client.finish(Duration::from_secs(5)));
    assert_eq!(arrived.load(Ordering::Relaxed), 6);
    // Where tasks run nobody may wait, and nothing may panic.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let other = std::thread::scope(|scope| scope.spawn(set).join().unwrap());
    runtime.block_on(async { drop(other) });
    let begin = Instant::now();
    while arrived.load(Ordering::Relaxed) < 9 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Nobody waits for a backend that hangs, and what is kept for it is bounded: what is
/// under way, and as much that was lost and goes on.
#[test]
fn a_replica_that_hangs_costs_a_bounded_number_of_calls() {
    let (hanging, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let script = Script::new(Mode::R32, {
        let most = Arc::clone(&most);
        move |request| {
            let (hanging, most) = (Arc::clone(&hanging), Arc::clone(&most));
            Box::pin(async move {
                if request.backend == 2 {
                    let counted = Counted::new(&hanging);
                    most.fetch_max(hanging.load(Ordering::SeqCst), Ordering::SeqCst);
                    std::future::pending::<()>().await;
                    drop(counted);
                }
                Ok(ack(Outcome::Applied))
            })
        }
    });
    let fake = Fake::start(script);
    let cell = Cell::connect(&fake.address).unwrap();
    let mut client = cell.client(patient());
    const COUNT: usize = 3 * CALL_COUNT_MAX;
    submit(&mut client, COUNT);
    poll_stored(&mut client, COUNT);
    // The server hears of calls that have ended a little later.
    let (most, bound) = (most.load(Ordering::SeqCst), 2 * CALL_COUNT_MAX);
    assert!((1..=bound + bound / 8).contains(&most), "{most}");
    assert!(!client.finish(Duration::ZERO));
}

/// As a long value on a slow link does: the backend answers greetings meanwhile, so it
/// is not silent, and the one call is enough.
#[test]
fn an_answer_that_takes_long_is_waited_for_while_its_backend_is_there() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut script = Script::new(Mode::R1, |_| unreachable!("nothing is written"));
    script.on_lookup = Box::new({
        let asked = Arc::clone(&asked);
        move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                Ok(v1::LookupResponse {
                    epoch: 1,
                    found: Some(v1::lookup_response::Found::Absent(v1::Absent {})),
                    stamp: 0,
                })
            })
        }
    });
    let fake = Fake::start(script);
    let mut client = Cell::connect(&fake.address).unwrap().client(Options {
        deadline: Duration::from_secs(60),
        ..Options::default()
    });
    let get = client.get(b"key");
    assert!(matches!(get, Ok(Lookup::Miss(_))), "{get:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// A backend that refuses this caller runs, and serves what was to be flushed.
#[test]
fn a_backend_that_refuses_a_flush_is_not_passed_over() {
    for code in [Code::PermissionDenied, Code::Unauthenticated] {
        let mut script = Script::new(Mode::R32, |_| unreachable!("nothing is written"));
        script.on_flush = Box::new(move |request| match request.backend {
            1 => Err(Status::new(code, "not you")),
            _ => Ok(v1::FlushResponse {
                flush_floor: request.floor,
                ..Default::default()
            }),
        });
        let fake = Fake::start(script);
        let flushed = Cell::connect(&fake.address).unwrap().flush(1);
        assert!(
            matches!(flushed, Err(FlushError::Unreachable { number: 1, .. })),
            "{flushed:?}"
        );
    }
}

/// What refuses to list is there, and may hold what nobody else has told of.
#[test]
fn a_backend_that_refuses_to_list_is_not_taken_for_one_that_is_down() {
    let listing = |refusing: &'static [u32], code: Code| {
        let mut script = Script::new(Mode::R32, |_| unreachable!("nothing is written"));
        script.on_list = Box::new(move |request| match refusing.contains(&request.backend) {
            true => Err(Status::new(code, "not you")),
            false => Ok(v1::ListResponse {
                items: vec![v1::ListedItem {
                    key: b"key".as_slice().into(),
                    ..Default::default()
                }],
                cursor: 0,
                partition_count: 1,
                ..Default::default()
            }),
        });
        let fake = Fake::start(script);
        let mut keys = 0;
        let cell = Cell::connect(&fake.address).unwrap();
        cell.list(0, 10, &mut |_| keys += 1).map(|_| keys)
    };
    for code in [
        Code::PermissionDenied,
        Code::Unauthenticated,
        Code::NotFound,
        Code::InvalidArgument,
        Code::FailedPrecondition,
        Code::Internal,
        // It is shutting down.
        Code::Unavailable,
    ] {
        // Two that agree are enough.
        assert_eq!(listing(&[1], code), Ok(1));
        for refusing in [&[0, 1], &[1, 2], &[0, 2]] {
            let listed = listing(refusing, code);
            assert!(
                matches!(&listed, Err(ListError::Backend { reason, .. }) if reason == "not you"),
                "{listed:?}"
            );
        }
    }
}

/// One that has lost its memory comes to the end of its shard at once. What the others
/// hold is listed all the same, a page at a time, and nothing twice.
#[test]
fn a_replica_without_items_does_not_end_a_listing() {
    /// Items that a backend tells of at once, and so many pages of them.
    const PAGE: usize = 64;
    const PAGES: usize = 10;
    for (empty, old) in [(0, 1), (1, 1), (2, 0), (0, 3)] {
        let mut script = Script::new(Mode::R32, |_| unreachable!("nothing is written"));
        script.on_list = Box::new(move |request| {
            let is_empty = request.backend == empty;
            let count = if is_empty { 0 } else { PAGE * PAGES };
            // In the order of their places, as every backend lists them.
            let hasher = trefoil_layout::KeyHasher::default();
            let mut all: Vec<(u64, Vec<u8>)> = (0..count)
                .map(|number| format!("{} {number}", request.shard).into_bytes())
                .map(|key| (hasher.hash(&key).listed_at(1), key))
                .collect();
            all.sort_unstable();
            let begin = all.partition_point(|(at, _)| *at < request.cursor);
            let end = (begin + PAGE.min(request.count as usize)).min(all.len());
            let of_page = &all[begin..end];
            let cursor = all.get(end).map_or(0, |(at, _)| *at);
            let mut page = v1::ListResponse {
                cursor,
                partition_count: 1,
                ..Default::default()
            };
            // One is of an earlier release.
            for (_, key) in of_page {
                match request.backend == old {
                    true => page.items.push(v1::ListedItem {
                        key: key.clone().into(),
                        ..Default::default()
                    }),
                    false => packed(&mut page, key),
                }
            }
            Ok(page)
        });
        let fake = Fake::start(script);
        let cell = Cell::connect(&fake.address).unwrap();
        let (mut cursor, mut keys) = (0, Vec::new());
        loop {
            let begin = keys.len();
            let mut last = 0;
            let mut add = |listed: ListedAt<'_>| {
                assert!(listed.cursor >= last, "in the order of their places");
                last = listed.cursor;
                keys.push(listed.item.key.to_vec());
            };
            cursor = cell.list(cursor, 10, &mut add).unwrap();
            assert!(keys.len() - begin <= PAGE, "a page is bounded");
            if cursor == 0 {
                break;
            }
        }
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count, "none is listed twice");
        assert_eq!(count, 3 * PAGES * PAGE);
    }
}

fn packed(page: &mut v1::ListResponse, key: &[u8]) {
    let mut bytes = page.packed.to_vec();
    let item = Listed {
        key,
        version: Version::new(1, 2, 3),
        value_len: 1,
        entry_len: 64,
        expiry_ms: 0,
        client_flags: 0,
        item_flags: 0,
        unique: None,
    };
    trefoil_rpc::encode_listed(&item, &mut bytes);
    page.packed = bytes.into();
}

/// A page that is no page is the fault of who sent it.
#[test]
fn half_a_record_is_an_error_that_names_the_backend() {
    let mut script = Script::new(Mode::R32, |_| unreachable!("nothing is written"));
    script.on_list = Box::new(move |request| {
        let mut page = v1::ListResponse {
            partition_count: 1,
            ..Default::default()
        };
        packed(&mut page, b"key");
        if request.backend == 2 {
            page.packed.truncate(20);
        }
        Ok(page)
    });
    let fake = Fake::start(script);
    let cell = Cell::connect(&fake.address).unwrap();
    let listed = cell.list(0, 10, &mut |_| {});
    assert!(
        matches!(&listed, Err(ListError::Backend { number: 2, reason }) if reason.contains("packed")),
        "{listed:?}"
    );
}

/// A server that answers writes when its gate is open.
fn gated() -> (Fake, Gate) {
    let (script, gate) = gated_script();
    (Fake::start(script), gate)
}

fn gated_script() -> (Script, Gate) {
    let gate = Gate {
        open: Arc::new(tokio::sync::watch::Sender::new(false)),
        keys: Arc::default(),
        waiting: Arc::default(),
    };
    let script = Script::new(Mode::R1, {
        let gate = gate.clone();
        move |request| {
            let gate = gate.clone();
            Box::pin(async move {
                let _counted = Counted::new(&gate.waiting);
                gate.keys.lock().unwrap().push(request.key.to_vec());
                gate.passed().await;
                Ok(ack(Outcome::Applied))
            })
        }
    });
    (script, gate)
}

#[derive(Clone)]
struct Gate {
    open: Arc<tokio::sync::watch::Sender<bool>>,
    /// Those of the writes that have arrived.
    keys: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Those that wait for the gate and were not cancelled.
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    async fn passed(&self) {
        let _ = self.open.subscribe().wait_for(|is_open| *is_open).await;
    }

    fn open(&self) {
        self.open.send_replace(true);
    }

    fn arrived(&self) -> usize {
        self.keys.lock().unwrap().len()
    }

    fn wait_for(&self, count: usize) {
        let begin = Instant::now();
        while self.arrived() < count {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// So many calls may be under way to one backend.
const CALL_COUNT_MAX: usize = 512;

fn patient() -> Options {
    Options {
        deadline: Duration::from_secs(60),
        ..Options::default()
    }
}

fn submit(client: &mut Client, count: usize) {
    for number in 0..count {
        let key = number.to_string();
        client.submit_set(key.as_bytes(), b"value", SetOptions::default(), 0);
    }
}

fn poll_stored(client: &mut Client, count: usize) {
    let (begin, mut stored) = (Instant::now(), 0);
    while stored < count {
        assert!(begin.elapsed() < Duration::from_secs(60), "{stored}");
        client.poll(&mut |_, completion| {
            let is_stored = matches!(completion, Completion::Mutated(Ok(Mutated::Stored { .. })));
            assert!(is_stored, "{completion:?}");
            stored += 1;
        });
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A backend that lives, and more to do for it than may be under way.
#[test]
fn writes_wait_for_room_among_the_calls_under_way() {
    const COUNT: usize = 3 * CALL_COUNT_MAX;
    let (fake, gate) = gated();
    let mut client = Cell::connect(&fake.address).unwrap().client(patient());
    submit(&mut client, COUNT);
    gate.wait_for(CALL_COUNT_MAX);
    gate.open();
    poll_stored(&mut client, COUNT);
}

/// The account is one for all clients of a process: what one gives back another
/// hears of, which owes nothing itself and sleeps.
#[test]
fn a_client_waits_for_what_others_have_under_way() {
    let (fake, gate) = gated();
    let cell = Cell::connect(&fake.address).unwrap();
    let (mut greedy, mut other) = (cell.client(patient()), cell.client(patient()));
    submit(&mut greedy, CALL_COUNT_MAX);
    gate.wait_for(CALL_COUNT_MAX);
    let waits = std::thread::spawn(move || {
        let stored = other.set(b"other", b"value", SetOptions::default());
        assert!(matches!(stored, Ok(Mutated::Stored { .. })), "{stored:?}");
    });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(gate.arrived(), CALL_COUNT_MAX);
    gate.open();
    waits.join().unwrap();
    poll_stored(&mut greedy, CALL_COUNT_MAX);
}

/// What found no room until its deadline was not sent, never will be, and its caller
/// is told so.
#[test]
fn what_finds_no_room_in_time_was_certainly_not_sent() {
    let (fake, gate) = gated();
    let cell = Cell::connect(&fake.address).unwrap();
    let mut greedy = cell.client(patient());
    submit(&mut greedy, CALL_COUNT_MAX);
    gate.wait_for(CALL_COUNT_MAX);
    const DEADLINE: Duration = Duration::from_millis(300);
    let mut other = cell.client(Options {
        deadline: DEADLINE,
        ..Options::default()
    });
    let begin = Instant::now();
    let failed = other.set(b"other", b"value", SetOptions::default());
    assert!(matches!(failed, Err(OpError::Failed(_))), "{failed:?}");
    assert!(begin.elapsed() >= DEADLINE, "{:?}", begin.elapsed());
    gate.open();
    poll_stored(&mut greedy, CALL_COUNT_MAX);
    // What its client does next does not send it either.
    other.poll(&mut |_, other| panic!("{other:?}"));
    assert!(other.finish(Duration::from_secs(60)));
    let keys = gate.keys.lock().unwrap();
    assert!(!keys.iter().any(|key| key == b"other"));
}

/// A backend that does not even answer greetings is given up. What it was sent goes on
/// for a while, and keeps nobody waiting meanwhile.
#[test]
fn calls_that_are_lost_give_their_places_back() {
    let (mut script, gate) = gated_script();
    script.on_ping = Box::new({
        let gate = gate.clone();
        move || {
            let gate = gate.clone();
            Box::pin(async move {
                gate.passed().await;
                Ok(v1::PingResponse {})
            })
        }
    });
    let fake = Fake::start(script);
    let cell = Cell::connect(&fake.address).unwrap();
    let (mut greedy, mut other) = (cell.client(patient()), cell.client(patient()));
    submit(&mut greedy, CALL_COUNT_MAX);
    gate.wait_for(CALL_COUNT_MAX);
    let begin = Instant::now();
    while greedy.carriers()[0].carrier != CarrierInUse::Down {
        assert!(begin.elapsed() < Duration::from_secs(60));
        greedy.poll(&mut |_, other| panic!("{other:?}"));
        std::thread::sleep(Duration::from_millis(1));
    }
    submit(&mut other, 1);
    while gate.arrived() == CALL_COUNT_MAX {
        assert!(begin.elapsed() < Duration::from_secs(60));
        other.poll(&mut |_, other| panic!("{other:?}"));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(gate.waiting.load(Ordering::SeqCst), CALL_COUNT_MAX + 1);
    gate.open();
    poll_stored(&mut greedy, CALL_COUNT_MAX);
    poll_stored(&mut other, 1);
}

/// Its places are taken by calls of a client that is no more, so nobody hears its
/// silence in calls of his own.
#[test]
fn a_backend_that_answers_nobody_is_left_by_who_has_no_call_under_way() {
    let (mut script, gate) = gated_script();
    script.on_ping = Box::new(|| Box::pin(std::future::pending()));
    let fake = Fake::start(script);
    let cell = Cell::connect(&fake.address).unwrap();
    let (mut greedy, mut other) = (cell.client(patient()), cell.client(patient()));
    submit(&mut greedy, CALL_COUNT_MAX);
    gate.wait_for(CALL_COUNT_MAX);
    drop(greedy);
    submit(&mut other, 1);
    let begin = Instant::now();
    while other.carriers()[0].carrier != CarrierInUse::Down {
        assert!(begin.elapsed() < Duration::from_secs(60));
        other.poll(&mut |_, _| {});
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(gate.arrived(), CALL_COUNT_MAX, "it was never sent");
}
