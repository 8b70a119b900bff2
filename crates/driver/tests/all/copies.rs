//! What becomes of the third copy when two have been enough.

use crate::world::{Client, Connects, KEY};
use trefoil_cell::Mode;
use trefoil_layout::Version;
use trefoil_layout::op::{Outcome as Answer, Rejection};

/// Longer than what is told of waits for company.
const PAUSE_MS: u64 = 600;

fn client() -> Client {
    Client::new(Mode::R32, &[Connects::Near; 3])
}

#[test]
fn a_third_that_refuses_it_when_the_operation_is_over_is_told_of() {
    let bound = Version::new(9, 1, 0);
    for (answer, is_dirty) in [
        (Answer::Applied, false),
        (Answer::Rejected(Rejection::Recovering), false),
        (Answer::Rejected(Rejection::NoMemory), true),
        (Answer::Rejected(Rejection::ClockAhead), true),
        // One that stands still in a resize goes on without it.
        (Answer::Rejected(Rejection::UnknownConfig), true),
        (Answer::Superseded { bound }, true),
    ] {
        let mut client = client();
        let third = std::rc::Rc::clone(&client.world.backends[2]);
        third.is_quiet.set(true);
        client.set(KEY);
        // Its place is another one's by then.
        client.set(b"other");
        assert_eq!(client.told(), []);
        third.answers.set(answer);
        third.is_quiet.set(false);
        client.pass(PAUSE_MS);
        let mut told = client.told();
        told.sort_by_key(|hash| hash.place);
        let mut expected = vec![client.hash(KEY), client.hash(b"other")];
        expected.sort_by_key(|hash| hash.place);
        expected.retain(|_| is_dirty);
        assert_eq!(told, expected, "{answer:?}");
    }
}

/// An engine that has no room for it, or no ring any more.
#[test]
fn a_third_that_was_not_handed_on_when_the_operation_is_over_is_called() {
    for (answer, is_dirty) in [
        (Answer::Applied, false),
        (Answer::Rejected(Rejection::NoMemory), true),
    ] {
        let mut client = client();
        let third = std::rc::Rc::clone(&client.world.backends[2]);
        third.is_indirect.set(true);
        third.is_quiet.set(true);
        client.set(KEY);
        // It keeps its place until then.
        client.set(b"other");
        third.is_refused.set(true);
        third.answers.set(answer);
        third.is_quiet.set(false);
        client.pass(PAUSE_MS);
        assert_eq!(third.called.get(), 2, "{answer:?}");
        let told = client.told();
        assert_eq!(told.len(), if is_dirty { 2 } else { 0 }, "{answer:?}");
        assert_eq!(client.under_way(), 0);
    }
}

/// One that has ended while nobody asked it for anything: that says nothing of the backend.
#[test]
fn what_finds_an_engine_gone_is_called() {
    let mut client = client();
    for backend in &client.world.backends {
        backend.is_indirect.set(true);
        backend.dies();
    }
    client.begin_cas();
    client.pass(10);
    client.is_stored();
    for backend in &client.world.backends {
        assert!(backend.called.get() > 0);
    }
    client.pass(PAUSE_MS);
    assert_eq!(client.told(), []);
}

/// That ends, or loses its connection.
#[test]
fn a_third_whose_answer_is_lost_on_the_way_is_told_of() {
    let mut client = client();
    let third = std::rc::Rc::clone(&client.world.backends[2]);
    third.is_indirect.set(true);
    third.is_quiet.set(true);
    client.set(KEY);
    assert_eq!(client.under_way(), 1);
    third.dies();
    client.pass(PAUSE_MS);
    assert_eq!(client.told(), [client.hash(KEY)]);
    assert_eq!(client.under_way(), 0);
}

#[test]
fn what_a_third_refuses_in_time_is_told_of() {
    for (answer, is_dirty) in [
        (Answer::Rejected(Rejection::Recovering), false),
        (Answer::Rejected(Rejection::UnknownConfig), true),
    ] {
        let mut client = client();
        client.world.backends[0].answers.set(answer);
        client.set(KEY);
        assert_eq!(client.told().len(), usize::from(is_dirty), "{answer:?}");
    }
}

/// What was told a moment ago does not keep the next ones for ever.
#[test]
fn the_last_ones_are_told_of_without_another_one() {
    let mut client = client();
    client.world.backends[2]
        .answers
        .set(Answer::Rejected(Rejection::NoMemory));
    for number in 0..200 {
        client.begin_set_of(format!("key-{number}").as_bytes());
        client.pass(0);
    }
    client.pass(1);
    client.world.backends[2].answers.set(Answer::Applied);
    let first = client.told().len();
    assert!(client.next_work_ms() <= 500, "it wakes for them");
    client.pass(PAUSE_MS);
    assert_eq!(first + client.told().len(), 200);
}

/// A client that has not looked for long writes into the ring of a process that is gone.
#[test]
fn what_goes_down_with_a_process_is_told_of_at_once_and_again_when_it_is_back() {
    let mut client = client();
    let third = std::rc::Rc::clone(&client.world.backends[2]);
    third.is_quiet.set(true);
    client.set(KEY);
    third.dies();
    third.is_quiet.set(false);
    client.pass(1);
    // It may have been back for long.
    assert_eq!(client.told(), [client.hash(KEY)]);
    // A third that is known to be down is not repaired before it is back.
    client.pass(2_000);
    client.set(b"other");
    client.pass(2_000);
    assert_eq!(client.told(), []);
    third.connects.set(Connects::Near);
    client.tend();
    client.pass(PAUSE_MS);
    assert_eq!(client.told(), [client.hash(KEY), client.hash(b"other")]);
    client.pass(2_000);
    assert_eq!(client.told(), []);
}

/// The same where the first message finds out.
#[test]
fn what_finds_a_process_gone_is_told_of() {
    let mut client = client();
    client.world.backends[1].dies();
    client.set(KEY);
    assert_eq!(client.told(), [client.hash(KEY)]);
}

#[test]
fn of_what_a_backend_has_missed_the_latest_is_kept() {
    let mut client = client();
    let third = std::rc::Rc::clone(&client.world.backends[2]);
    third.dies();
    client.set(b"first");
    client.pass(2_000);
    client.told();
    let key = |number: u32| format!("key-{number}").into_bytes();
    for number in 0..3_000 {
        client.set(&key(number));
    }
    assert_eq!(client.told(), []);
    third.connects.set(Connects::Near);
    client.pass(2_000);
    client.tend();
    client.pass(5_000);
    let told = client.told();
    let latest: Vec<_> = (3_000 - 1_024..3_000)
        .map(|number| client.hash(&key(number)))
        .collect();
    assert_eq!(told, latest);
    let messages = client.world.suspects.borrow();
    assert!(messages.is_empty());
}

#[test]
fn a_cas_is_no_exception() {
    // The third is asked for nothing but to take what is stored, and refuses.
    let mut cas = client();
    let third = std::rc::Rc::clone(&cas.world.backends[2]);
    third.is_quiet.set(true);
    cas.begin_cas();
    cas.pass(5);
    cas.is_stored();
    assert_eq!(cas.told(), []);
    third.answers.set(Answer::Rejected(Rejection::NoMemory));
    third.is_quiet.set(false);
    cas.pass(1);
    assert_eq!(cas.told(), [cas.hash(KEY)]);
    // It was down, and is back.
    let mut cas = client();
    let third = std::rc::Rc::clone(&cas.world.backends[2]);
    third.dies();
    cas.set(b"other");
    cas.pass(2_000);
    cas.told();
    cas.begin_cas();
    cas.pass(5);
    cas.is_stored();
    third.connects.set(Connects::Near);
    cas.pass(2_000);
    cas.tend();
    cas.pass(PAUSE_MS);
    assert_eq!(cas.told(), [cas.hash(b"other"), cas.hash(KEY)]);
}

/// What is on its way to the processes before them is answered by nobody.
#[test]
fn what_is_open_when_a_cell_is_resized_is_told_of() {
    let mut client = client();
    client.world.backends[2].is_quiet.set(true);
    client.set(KEY);
    client.is_resized();
    client.pass(1);
    assert_eq!(client.told(), [client.hash(KEY)]);
}

#[test]
fn one_copy_lacks_nothing() {
    let mut client = Client::new(Mode::R1, &[Connects::Near]);
    client.set(KEY);
    client.pass(PAUSE_MS);
    assert_eq!(client.told(), []);
}
