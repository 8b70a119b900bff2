//! SETs and ERASEs that are acknowledged before they are executed, beside everybody else.

use crate::fake::{Fake, Script};
use crate::real::Real;
use std::os::unix::net::UnixListener;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trefoil_cell::Mode;
use trefoil_client::{
    Carrier, Cell, Client, Commit, Expected, Lookup, Mutated, NotCommittable, OpError, Options,
    SetOptions,
};
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Connection};
use trefoil_layout::data::ITEM_FLAGS_ALLOWED;
use trefoil_layout::op::Rejection;

const KEYS: usize = 3;
/// Commits, and reads of each reader, that show something.
pub(crate) const COMMITS: u64 = 15_000;
const READS: u64 = 20;
/// What hangs, fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

macro_rules! with_one_copy_and_with_three {
    ($($name:ident,)*) => {
        mod one_copy {
            $(#[test]
            fn $name() {
                super::$name(super::Real::start_with_queue(super::Mode::R1));
            })*
        }
        mod three_copies {
            $(#[test]
            fn $name() {
                super::$name(super::Real::start_with_queue(super::Mode::R32));
            })*
        }
    };
}

with_one_copy_and_with_three! {
    no_get_misses_what_was_committed_before_it_began,
    what_began_later_wins_whatever_clocks_say,
    who_writes_by_another_way_comes_behind_what_was_committed,
    a_fill_gives_way_to_what_was_committed_since_its_miss,
    what_was_committed_before_a_flush_is_flushed,
    places_are_given_again,
    no_cas_is_above_a_commit_that_it_does_not_know,
}

pub(crate) fn client(cell: &Cell, carrier: Carrier, clock_offset_ms: i64) -> Client {
    cell.client(Options {
        carrier,
        clock_offset_ms,
        deadline: Duration::from_secs(20),
        ..Options::default()
    })
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_millis() as u64
}

fn commit(client: &mut Client, key: &[u8], value: &[u8]) -> Result<Mutated, OpError> {
    client.set_by(key, value, SetOptions::default(), Commit::Acknowledged)
}

fn must_commit(client: &mut Client, key: &[u8], value: &[u8]) {
    let done = commit(client, key, value);
    assert_eq!(done, Ok(Mutated::Committed));
}

pub(crate) fn value(client: &mut Client, key: &[u8]) -> Option<Vec<u8>> {
    match client.get(key).unwrap() {
        Lookup::Hit(hit) => Some(hit.value.to_vec()),
        Lookup::Miss(_) => None,
    }
}

fn no_get_misses_what_was_committed_before_it_began(real: Real) {
    let cell = Cell::connect(&real.address).unwrap();
    let mut writer = client(&cell, Carrier::Auto, 0);
    no_get_misses_a_commit_by(&cell, COMMITS, |key, value| commit(&mut writer, key, value));
}

/// A writer of hot keys, and readers past the queue and by calls, which know what it was told.
pub(crate) fn no_get_misses_a_commit_by(
    cell: &Cell,
    commits: u64,
    mut commit: impl FnMut(&[u8], &[u8]) -> Result<Mutated, OpError>,
) {
    let acknowledged: [AtomicU64; KEYS] = Default::default();
    let is_over = AtomicBool::new(false);
    let (is_over, acknowledged) = (&is_over, &acknowledged);
    let name = |key: usize| format!("key {key}").into_bytes();
    let done: [AtomicU64; 3] = Default::default();
    let done = &done;
    std::thread::scope(|scope| {
        let read = |carrier, place: usize| {
            let mut client = client(cell, carrier, 0);
            move || {
                let mut reads = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    let key = reads as usize % KEYS;
                    let before = acknowledged[key].load(Ordering::Acquire);
                    let found = value(&mut client, &name(key));
                    let found = found.map_or(0, |value| {
                        u64::from_le_bytes(value.try_into().expect("a number"))
                    });
                    assert!(
                        found >= before,
                        "key {key}: {found} hit, {before} committed"
                    );
                    reads += 1;
                    done[place].store(reads, Ordering::Relaxed);
                }
            }
        };
        let readers = [(Carrier::Auto, 0), (Carrier::Auto, 1), (Carrier::Rpc, 2)];
        let readers = readers.map(|(carrier, place)| scope.spawn(read(carrier, place)));
        let (mut committed, mut number) = (0, 0u64);
        let by = Instant::now() + PATIENCE;
        let has_read = |reads: &AtomicU64| reads.load(Ordering::Relaxed) > READS;
        while !done.iter().all(has_read) || committed < commits {
            assert!(Instant::now() < by, "{committed} committed, read {done:?}");
            number += 1;
            let key = number as usize % KEYS;
            match commit(&name(key), &number.to_le_bytes()) {
                Ok(Mutated::Committed) => committed += 1,
                // Its lane was full.
                Ok(Mutated::Stored { .. }) => {}
                // The backend had no turn for as long as a lease: nothing was acknowledged.
                Err(OpError::Indeterminate(_)) => continue,
                other => panic!("{other:?}"),
            }
            acknowledged[key].store(number, Ordering::Release);
            if number % 64 == 0 {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().expect("no panic"))
    });
}

/// A writer of a hot key, and others that count on top of what they find. Once a value is
/// acknowledged nobody reads what was counted on top of one before it.
fn no_cas_is_above_a_commit_that_it_does_not_know(real: Real) {
    let cell = Cell::connect(&real.address).unwrap();
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (acknowledged, is_over) = (&acknowledged, &is_over);
    let number_of = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().expect("a number"));
    let counted = AtomicU64::new(0);
    let counted = &counted;
    std::thread::scope(|scope| {
        let count = |carrier| {
            let mut client = client(&cell, carrier, 0);
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    let before = acknowledged.load(Ordering::Acquire);
                    let Lookup::Hit(hit) = client.get(b"key").unwrap() else {
                        continue;
                    };
                    let (mut value, version) = (hit.value.to_vec(), hit.version);
                    let number = number_of(&value);
                    assert!(number >= before, "{number} hit, {before} committed");
                    value[8] = value[8].wrapping_add(1);
                    let expected = Expected::Version(version);
                    let done = client.cas(b"key", expected, &value, SetOptions::default());
                    if matches!(done, Ok(Mutated::Stored { .. })) {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        let counters = [Carrier::Auto, Carrier::Auto, Carrier::Rpc].map(|c| scope.spawn(count(c)));
        let mut writer = client(&cell, Carrier::Auto, 0);
        let by = Instant::now() + PATIENCE;
        let (mut committed, mut number) = (0u64, 0u64);
        while committed < COMMITS / 10 || counted.load(Ordering::Relaxed) < 200 {
            let counted = counted.load(Ordering::Relaxed);
            assert!(
                Instant::now() < by,
                "{committed} committed, {counted} counted"
            );
            number += 1;
            let value = [&number.to_le_bytes()[..], &[0]].concat();
            match commit(&mut writer, b"key", &value) {
                Ok(Mutated::Committed) => committed += 1,
                Ok(Mutated::Stored { .. }) => {}
                // A CAS came between: nothing was acknowledged.
                Err(OpError::Indeterminate(_)) => continue,
                other => panic!("{other:?}"),
            }
            acknowledged.store(number, Ordering::Release);
            std::thread::sleep(Duration::from_micros(50));
        }
        is_over.store(true, Ordering::Relaxed);
        counters.map(|counter| counter.join().expect("no panic"))
    });
}

/// The order is that of what happened, whatever clocks say.
fn what_began_later_wins_whatever_clocks_say(real: Real) {
    let cell = Cell::connect(&real.address).unwrap();
    let mut ahead = client(&cell, Carrier::Auto, 5_000);
    let mut behind = client(&cell, Carrier::Auto, -5_000);
    let mut reader = client(&cell, Carrier::Auto, 0);
    for number in 0..200u32 {
        let mut steps: Vec<(&mut Client, Commit)> = vec![
            (&mut ahead, Commit::Acknowledged),
            (&mut behind, Commit::Acknowledged),
        ];
        if number % 2 == 0 {
            steps[0].1 = Commit::Executed;
        }
        if number % 3 == 0 {
            steps[1].1 = Commit::Executed;
        }
        if number % 5 == 0 {
            steps.reverse();
        }
        for (at, (client, by)) in steps.into_iter().enumerate() {
            let text = format!("{number}.{at}");
            let options = SetOptions::default();
            client.set_by(b"key", text.as_bytes(), options, by).unwrap();
            let found = value(&mut reader, b"key");
            assert_eq!(found, Some(text.into_bytes()), "{by:?}");
        }
        behind.erase_by(b"key", Commit::Acknowledged).unwrap();
        assert_eq!(value(&mut reader, b"key"), None);
        // One right after the other: neither is executed when the second one begins.
        commit(&mut ahead, b"key", b"first").unwrap();
        commit(&mut behind, b"key", b"second").unwrap();
        assert_eq!(value(&mut reader, b"key"), Some(b"second".to_vec()));
    }
}

fn who_writes_by_another_way_comes_behind_what_was_committed(real: Real) {
    let cell = Cell::connect(&real.address).unwrap();
    let mut writer = client(&cell, Carrier::Auto, 0);
    for carrier in [Carrier::Auto, Carrier::Rpc] {
        let mut other = client(&cell, carrier, -5_000);
        for number in 0..100u32 {
            let key = format!("{carrier:?} {number}").into_bytes();
            must_commit(&mut writer, &key, b"first");
            let absent = other.cas(&key, Expected::Absent, b"cas", SetOptions::default());
            assert!(matches!(absent, Ok(Mutated::Exists { .. })), "{absent:?}");
            assert_eq!(value(&mut other, b"nobody"), None);
            other.set(&key, b"second", SetOptions::default()).unwrap();
            assert_eq!(value(&mut writer, &key), Some(b"second".to_vec()));
        }
    }
}

/// A fill never replaces what was committed after its miss.
fn a_fill_gives_way_to_what_was_committed_since_its_miss(real: Real) {
    let cell = Cell::connect(&real.address).unwrap();
    let mut writer = client(&cell, Carrier::Auto, 0);
    let mut filler = client(&cell, Carrier::Auto, 5_000);
    for number in 0..200u32 {
        let key = number.to_le_bytes();
        let Lookup::Miss(miss) = filler.get(&key).unwrap() else {
            panic!("nobody wrote it");
        };
        must_commit(&mut writer, &key, b"committed");
        let filled = filler.fill(miss.fill, &key, b"filled", SetOptions::default());
        assert!(
            matches!(filled, Ok(Mutated::Superseded { .. })),
            "{filled:?}"
        );
        assert_eq!(value(&mut filler, &key), Some(b"committed".to_vec()));
    }
}

fn what_was_committed_before_a_flush_is_flushed(real: Real) {
    let cell = Cell::connect(&real.address).unwrap();
    let mut ahead = client(&cell, Carrier::Auto, 5_000);
    let mut behind = client(&cell, Carrier::Auto, -5_000);
    let mut reader = client(&cell, Carrier::Auto, 0);
    for _ in 0..20 {
        must_commit(&mut ahead, b"key", b"value");
        cell.flush(now_ms()).unwrap();
        assert_eq!(value(&mut reader, b"key"), None);
        must_commit(&mut behind, b"key", b"after");
        assert_eq!(value(&mut reader, b"key"), Some(b"after".to_vec()));
    }
}

#[test]
fn where_nothing_can_be_committed_it_is_said_or_executed() {
    let real = Real::start_with_queue(Mode::R1);
    let cell = Cell::connect(&real.address).unwrap();
    let mut writer = client(&cell, Carrier::Auto, 0);
    let long = [b'v'; 2_000];
    let stored = commit(&mut writer, b"long", &long);
    assert!(matches!(stored, Ok(Mutated::Stored { .. })), "{stored:?}");
    assert_eq!(value(&mut writer, b"long"), Some(long.to_vec()));
    must_commit(&mut writer, b"short", b"value");

    let unlooking = ConnectOptions {
        looks_at_marks: false,
        ..ConnectOptions::default()
    };
    let refused = Connection::connect(&real.fabric, 0, &unlooking);
    assert!(
        matches!(refused, Err(ConnectError::MarksNeeded { .. })),
        "{refused:?}"
    );
    drop(real);
    let late = commit(&mut writer, b"short", b"late");
    assert!(!matches!(late, Ok(Mutated::Committed)), "{late:?}");

    let plain = Real::start(Mode::R1);
    let cell = Cell::connect(&plain.address).unwrap();
    let refused = commit(&mut client(&cell, Carrier::Auto, 0), b"key", b"value");
    let none = NotCommittable::NoQueue(0);
    assert_eq!(refused, Err(OpError::NotCommittable(none)));
}

/// What a topology that is over would send to another backend is not acknowledged there.
#[test]
fn who_knows_a_former_configuration_commits_nothing_where_it_does_not_belong() {
    let real = Real::start_with_queue(Mode::R1);
    let cell = Cell::connect(&real.address).unwrap();
    let mut idle = client(&cell, Carrier::Auto, 0);
    assert_eq!(value(&mut idle, b"key"), None);
    let real = real.resized_with_queue(2);
    let today = Cell::connect(&real.address).unwrap();
    let mut reader = client(&today, Carrier::Auto, 0);
    let mut committed = 0;
    for number in 0..60u32 {
        let key = number.to_le_bytes();
        match commit(&mut idle, &key, b"value") {
            Ok(Mutated::Committed) => committed += 1,
            Ok(Mutated::Stored { .. }) => {}
            Err(OpError::Indeterminate(_) | OpError::Failed(_)) => continue,
            other => panic!("{other:?}"),
        }
        assert_eq!(
            value(&mut reader, &key),
            Some(b"value".to_vec()),
            "{number}"
        );
        // Both backends are asked for a place again meanwhile.
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(committed > 0, "it has no place, though it has learned");
}

/// More clients than there are places, one after another and at a time.
fn places_are_given_again(real: Real) {
    let cell = Cell::connect(&real.address).unwrap();
    for number in 0..70u32 {
        let mut writer = client(&cell, Carrier::Auto, 0);
        let key = number.to_le_bytes();
        // The one before may still be there for a moment.
        let done = commit(&mut writer, &key, b"value").unwrap();
        assert!(matches!(done, Mutated::Committed), "{done:?}");
        assert_eq!(value(&mut writer, &key), Some(b"value".to_vec()));
    }
    let mut many: Vec<Client> = (0..70).map(|_| client(&cell, Carrier::Auto, 0)).collect();
    let by = Instant::now() + PATIENCE;
    let mut committed = 0;
    // On a machine that stands still leases end, and with them some places.
    while committed < 64 {
        assert!(Instant::now() < by, "{committed} of 64 places are given");
        committed = 0;
        for (number, writer) in many.iter_mut().enumerate() {
            match commit(writer, b"key", &number.to_le_bytes()) {
                Ok(Mutated::Committed) => committed += 1,
                Ok(Mutated::Stored { .. }) => {}
                Err(OpError::Indeterminate(_)) => continue,
                other => panic!("{other:?}"),
            }
            let found = value(writer, b"key");
            assert_eq!(found, Some(number.to_le_bytes().to_vec()));
        }
        // Who has one keeps it until its next turn.
        assert!(committed <= 64, "{committed}");
    }
}

#[test]
fn of_more_clients_than_places_that_come_together_as_many_commit_as_there_are_places() {
    as_many_commit_as_there_are_places(|client, key| commit(client, key, b"value"));
}

/// More clients than a queue has places for come at once, with keys whose backends differ in
/// their order. As many as there are places for commit then, all at the same time.
pub(crate) fn as_many_commit_as_there_are_places(
    commit: impl Fn(&mut Client, &[u8]) -> Result<Mutated, OpError> + Sync,
) {
    const CLIENTS: usize = 84;
    const PLACES: usize = 64;
    let real = Real::start_with_queue(Mode::R32);
    let cell = Cell::connect(&real.address).unwrap();
    let commits: Vec<AtomicBool> = (0..CLIENTS).map(|_| AtomicBool::new(false)).collect();
    let (is_over, together) = (AtomicBool::new(false), Barrier::new(CLIENTS));
    let most = std::thread::scope(|scope| {
        for (number, commits) in commits.iter().enumerate() {
            let mut client = client(&cell, Carrier::Auto, 0);
            let (is_over, together, commit) = (&is_over, &together, &commit);
            scope.spawn(move || {
                together.wait();
                while !is_over.load(Ordering::Relaxed) {
                    let done = commit(&mut client, &number.to_le_bytes());
                    commits.store(done == Ok(Mutated::Committed), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        let by = Instant::now() + PATIENCE;
        let mut most = 0;
        while most < PLACES && Instant::now() < by {
            let committing = commits.iter().filter(|of| of.load(Ordering::Relaxed));
            most = most.max(committing.count());
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        most
    });
    assert_eq!(most, PLACES);
}

/// What no backend takes is refused by the client, however it is to be committed, and nothing
/// of it is sent.
#[test]
fn an_item_flag_that_nobody_knows_is_refused() {
    let real = Real::start_with_queue(Mode::R1);
    let cell = Cell::connect(&real.address).unwrap();
    let mut writer = client(&cell, Carrier::Auto, 0);
    must_commit(&mut writer, b"key", b"before");
    for by in [Commit::Acknowledged, Commit::Executed] {
        for bit in (0..8).filter(|bit| ITEM_FLAGS_ALLOWED & (1 << bit) == 0) {
            let options = SetOptions {
                item_flags: 1 << bit,
                ..SetOptions::default()
            };
            let refused = writer.set_by(b"key", b"never", options, by);
            assert_eq!(refused, Err(OpError::Rejected(Rejection::BadItem)), "{bit}");
        }
        assert_eq!(value(&mut writer, b"key"), Some(b"before".to_vec()));
        let options = SetOptions {
            item_flags: ITEM_FLAGS_ALLOWED,
            ..SetOptions::default()
        };
        assert!(writer.set_by(b"other", b"value", options, by).is_ok());
    }
}

/// Nobody answers at the backend's socket, and nobody executes: the one deadline of a SET is
/// for both.
#[test]
fn a_set_at_a_backend_that_hangs_ends_by_its_one_deadline() {
    /// Tries of what a busy machine may spoil.
    const ROUNDS: usize = 5;
    const DEADLINE: Duration = Duration::from_secs(2);
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("silent");
    let _silent = UnixListener::bind(&socket).unwrap();
    let script = Script::new(Mode::R1, |_| Box::pin(std::future::pending()));
    let fake = Fake::start_with(script, |config| {
        for backend in &mut config.backends {
            backend.fabric_socket = Some(socket.clone());
        }
    });
    let cell = Cell::connect(&fake.address).unwrap();
    let took: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let mut client = cell.client(Options {
                deadline: DEADLINE,
                ..Options::default()
            });
            let begin = Instant::now();
            let failed = commit(&mut client, b"key", b"value");
            assert!(failed.is_err(), "{failed:?}");
            begin.elapsed()
        })
        .collect();
    assert!(took.iter().any(|took| *took < DEADLINE * 5 / 4), "{took:?}");
}
