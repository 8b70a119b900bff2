//! SETs and ERASEs that are submitted, or those of tasks, and acknowledged before they are
//! executed.

use crate::asynchronous::block_on;
use crate::committing::{
    COMMITS, PATIENCE, as_many_commit_as_there_are_places, client, no_get_misses_a_commit_by, value,
};
use crate::real::Real;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_cell::Mode;
use trefoil_client::{
    AsyncClient, Carrier, Cell, Client, Commit, Completion, Expected, Mutated, NotCommittable,
    OpError, Options, OwnedLookup, SetOptions,
};
use trefoil_layout::hello::{HELLO_LEN, Hello, Reply, Status};

type Done = Result<Mutated, OpError>;

const MODES: [Mode; 2] = [Mode::R1, Mode::R32];

/// What the only operation under way comes to.
fn polled(client: &mut Client) -> Done {
    let by = Instant::now() + PATIENCE;
    let mut done = None;
    loop {
        client.poll(&mut |token, completion| match completion {
            Completion::Mutated(mutated) if token == 7 => done = Some(mutated),
            other => panic!("{other:?}"),
        });
        if let Some(done) = done {
            return done;
        }
        assert!(Instant::now() < by, "it does not end");
        std::thread::yield_now();
    }
}

fn submitted(client: &mut Client, key: &[u8], value: &[u8], by: Commit) -> Done {
    client.submit_set_by(key, value, SetOptions::default(), by, 7);
    polled(client)
}

/// Until it commits. What comes before that is executed.
fn until_it_commits(mut mutate: impl FnMut() -> Done) {
    let by = Instant::now() + PATIENCE;
    loop {
        match mutate().unwrap() {
            Mutated::Committed => return,
            Mutated::Stored { .. } => assert!(Instant::now() < by, "it commits nothing"),
            other => panic!("{other:?}"),
        }
    }
}

fn tasks(cell: &Cell) -> AsyncClient {
    cell.async_client(Options {
        deadline: Duration::from_secs(20),
        ..Options::default()
    })
}

fn value_by_tasks(client: &AsyncClient, key: &[u8]) -> Option<Vec<u8>> {
    match block_on(client.get(key)).unwrap() {
        OwnedLookup::Hit(hit) => Some(hit.value),
        OwnedLookup::Miss(_) => None,
    }
}

#[test]
fn what_is_submitted_commits_by_choice_of_the_client_and_of_each_call() {
    for mode in MODES {
        let real = Real::start_with_queue(mode);
        let cell = Cell::connect(&real.address).unwrap();
        let mut writer = client(&cell, Carrier::Auto, 0);
        let mut reader = client(&cell, Carrier::Auto, 0);
        let options = SetOptions::default();
        until_it_commits(|| submitted(&mut writer, b"key", b"first", Commit::Acknowledged));
        assert_eq!(value(&mut reader, b"key"), Some(b"first".to_vec()));
        let executed = submitted(&mut writer, b"key", b"second", Commit::Executed);
        assert!(
            matches!(executed, Ok(Mutated::Stored { .. })),
            "{executed:?}"
        );
        assert_eq!(value(&mut reader, b"key"), Some(b"second".to_vec()));
        writer.submit_set(b"key", b"third", options, 7);
        let executed = polled(&mut writer);
        assert!(
            matches!(executed, Ok(Mutated::Stored { .. })),
            "{executed:?}"
        );

        writer.set_commit(Commit::Acknowledged);
        until_it_commits(|| {
            writer.submit_set(b"key", b"fourth", options, 7);
            polled(&mut writer)
        });
        assert_eq!(value(&mut reader, b"key"), Some(b"fourth".to_vec()));
        until_it_commits(|| {
            writer.submit_erase(b"key", 7);
            polled(&mut writer)
        });
        assert_eq!(value(&mut reader, b"key"), None);
        writer.submit_erase_by(b"key", Commit::Executed, 7);
        let executed = polled(&mut writer);
        assert!(
            matches!(executed, Ok(Mutated::Stored { .. })),
            "{executed:?}"
        );
        // What reads before it writes is executed, and knows what was committed.
        until_it_commits(|| submitted(&mut writer, b"key", b"fifth", Commit::Acknowledged));
        writer.submit_cas(b"key", Expected::Absent, b"sixth", options, 7);
        let exists = polled(&mut writer);
        assert!(matches!(exists, Ok(Mutated::Exists { .. })), "{exists:?}");
        let long = submitted(&mut writer, b"key", &[7; 2_000], Commit::Acknowledged);
        assert!(matches!(long, Ok(Mutated::Stored { .. })), "{long:?}");
    }
}

/// It is known where it is submitted, and nobody polls for it.
#[test]
fn a_commit_has_no_completion_where_its_outcome_is_handed_out_at_once() {
    for mode in MODES {
        let real = Real::start_with_queue(mode);
        let cell = Cell::connect(&real.address).unwrap();
        let mut writer = client(&cell, Carrier::Auto, 0);
        let options = SetOptions::default();
        let by = Commit::Acknowledged;
        until_it_commits(
            || match writer.set_or_submit(b"key", b"value", options, by, 7) {
                Some(done) => {
                    assert_eq!(writer.in_flight(), 0);
                    writer.poll(&mut |_, other| panic!("{other:?}"));
                    done
                }
                None => polled(&mut writer),
            },
        );
        until_it_commits(|| match writer.erase_or_submit(b"key", by, 7) {
            Some(done) => done,
            None => polled(&mut writer),
        });
        let refused = writer.set_or_submit(b"", b"value", options, by, 7);
        assert!(
            matches!(refused, Some(Err(OpError::Rejected(_)))),
            "{refused:?}"
        );
        // One that nobody wants to hear of.
        until_it_commits(|| submitted(&mut writer, b"key", b"value", by));
        writer.submit_set_by(b"key", b"last", options, by, 7);
        writer.abandon(7);
        writer.poll(&mut |_, other| panic!("{other:?}"));
        assert_eq!(value(&mut writer, b"key"), Some(b"last".to_vec()));
    }
}

#[test]
fn those_of_tasks_commit_by_choice_of_the_clone_and_of_each_call() {
    for mode in MODES {
        let real = Real::start_with_queue(mode);
        let cell = Cell::connect(&real.address).unwrap();
        let executing = tasks(&cell);
        let committing = executing.clone().with_commit(Commit::Acknowledged);
        let mut reader = client(&cell, Carrier::Auto, 0);
        let options = SetOptions::default();
        until_it_commits(|| block_on(committing.set(b"key", b"first", options)));
        assert_eq!(value_by_tasks(&executing, b"key"), Some(b"first".to_vec()));
        assert_eq!(value(&mut reader, b"key"), Some(b"first".to_vec()));
        let executed = block_on(executing.set(b"key", b"second", options));
        assert!(
            matches!(executed, Ok(Mutated::Stored { .. })),
            "{executed:?}"
        );
        let by = Commit::Executed;
        let executed = block_on(committing.set_by(b"key", b"third", options, by));
        assert!(
            matches!(executed, Ok(Mutated::Stored { .. })),
            "{executed:?}"
        );
        assert_eq!(value_by_tasks(&committing, b"key"), Some(b"third".to_vec()));
        until_it_commits(|| block_on(committing.erase(b"key")));
        assert_eq!(value_by_tasks(&executing, b"key"), None);
        let by = Commit::Acknowledged;
        until_it_commits(|| block_on(executing.set_by(b"key", b"fourth", options, by)));
        assert_eq!(value(&mut reader, b"key"), Some(b"fourth".to_vec()));
        until_it_commits(|| block_on(executing.erase_by(b"key", by)));
        assert_eq!(value(&mut reader, b"key"), None);
        let executed = block_on(executing.erase(b"key"));
        assert!(
            matches!(executed, Ok(Mutated::Stored { .. })),
            "{executed:?}"
        );
    }
}

#[test]
fn no_get_misses_what_was_committed_by_submission() {
    for mode in MODES {
        let real = Real::start_with_queue(mode);
        let cell = Cell::connect(&real.address).unwrap();
        let mut writer = client(&cell, Carrier::Auto, 0);
        no_get_misses_a_commit_by(&cell, COMMITS, |key, value| {
            submitted(&mut writer, key, value, Commit::Acknowledged)
        });
    }
}

/// Nor one of its own tasks, which read in place.
#[test]
fn no_get_misses_what_was_committed_by_a_task() {
    for mode in MODES {
        let real = Real::start_with_queue(mode);
        let cell = Cell::connect(&real.address).unwrap();
        let writer = tasks(&cell).with_commit(Commit::Acknowledged);
        let mut number = 0u64;
        // Each takes its turns between threads.
        no_get_misses_a_commit_by(&cell, COMMITS / 10, |key, value| {
            let done = block_on(writer.set(key, value, SetOptions::default()));
            number += 1;
            if done.is_ok() && number.is_multiple_of(8) {
                assert_eq!(value_by_tasks(&writer, key).as_deref(), Some(value));
            }
            done
        });
    }
}

#[test]
fn of_more_clients_that_submit_than_places_as_many_commit_as_there_are_places() {
    as_many_commit_as_there_are_places(|client, key| {
        submitted(client, key, b"value", Commit::Acknowledged)
    });
}

/// Executed until it is known, and from then on refused.
#[test]
fn where_there_is_no_queue_it_is_said() {
    for mode in MODES {
        let real = Real::start(mode);
        let cell = Cell::connect(&real.address).unwrap();
        let mut writer = client(&cell, Carrier::Auto, 0);
        let waiting = tasks(&cell).with_commit(Commit::Acknowledged);
        let options = SetOptions::default();
        let refused = Err(OpError::NotCommittable(NotCommittable::NoQueue(0)));
        let is_said = |mut mutate: Box<dyn FnMut() -> Done + '_>| {
            let by = Instant::now() + PATIENCE;
            loop {
                match mutate() {
                    Ok(Mutated::Stored { .. }) => assert!(Instant::now() < by, "it is not said"),
                    said => return assert_eq!(said, refused),
                }
            }
        };
        is_said(Box::new(|| {
            submitted(&mut writer, b"key", b"value", Commit::Acknowledged)
        }));
        is_said(Box::new(|| {
            block_on(waiting.set(b"key", b"value", options))
        }));
        let executed = submitted(&mut writer, b"key", b"value", Commit::Executed);
        assert!(
            matches!(executed, Ok(Mutated::Stored { .. })),
            "{executed:?}"
        );
    }
}

/// A backend answers who asks for a place when the submission has returned, and not before: who
/// waited for it would have given up by then.
#[test]
fn what_is_submitted_waits_for_no_greeting() {
    /// Tries of what a machine that stands still spoils.
    const ROUNDS: usize = 5;
    let home = tempfile::tempdir().unwrap();
    let slow = home.path().join("slow");
    let listener = UnixListener::bind(&slow).unwrap();
    let real = Real::start_with(home, Mode::R1, |_| slow.clone(), (32, true));
    let cell = Cell::connect(&real.address).unwrap();
    let (returned, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (returned, is_over) = (&returned, &is_over);
    let answer = |mut stream: UnixStream| -> Option<bool> {
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).ok()?;
        if Hello::parse(&hello).is_ok_and(|hello| hello.wants_lane) {
            stream
                .set_read_timeout(Some(Duration::from_millis(1)))
                .ok()?;
            while !returned.load(Ordering::SeqCst) && !is_over.load(Ordering::SeqCst) {
                if matches!(stream.read(&mut [0]), Ok(0)) {
                    // It has given up.
                    return Some(false);
                }
            }
            let _ = stream.write_all(&Reply::Refused(Status::NoLane).encode());
            return Some(true);
        }
        let _ = stream.write_all(&Reply::Refused(Status::Unavailable).encode());
        None
    };
    let rounds = std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                if let Some(has_waited) = stream.ok().and_then(answer) {
                    let _ = tell.send(has_waited);
                }
            }
        });
        let rounds: Vec<bool> = (0..ROUNDS)
            .map(|_| {
                returned.store(false, Ordering::SeqCst);
                let mut writer = client(&cell, Carrier::Auto, 0);
                let options = SetOptions::default();
                writer.submit_set_by(b"key", b"value", options, Commit::Acknowledged, 7);
                returned.store(true, Ordering::SeqCst);
                let executed = polled(&mut writer);
                assert!(
                    matches!(executed, Ok(Mutated::Stored { .. })),
                    "{executed:?}"
                );
                told.recv_timeout(PATIENCE).expect("it was asked")
            })
            .collect();
        is_over.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&slow);
        rounds
    });
    assert!(rounds.contains(&true), "it gave up before it returned");
}
