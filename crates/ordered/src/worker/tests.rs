//! Who is woken for what, and ends, with both sides in one thread.

use super::*;
use crate::carrier::Carrier;
use crate::parted::PARTED_MAX;
use crate::producer::Refused;
use crate::queue::{NoAnswer, Queue};
use crate::service::{Answer, Request};
use trefoil_layout::words::{Words, WordsMut};

const LONG: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options {
        slot_count: 8,
        client_count_max: 2,
        ..Options::default()
    }
}

/// Answers with the number of requests so far.
#[derive(Default)]
struct Counter(Vec<Vec<u8>>);

impl Service for Counter {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        self.0.push(request.payload.to_vec());
        answer.put(&[self.0.len() as u8]).expect("a byte");
    }
}

fn both() -> (Worker, Queue) {
    let mut worker = Worker::new(3, options()).expect("memory");
    let queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    (worker, queue)
}

/// Whether a bell of the worker rings.
fn rings(worker: &Worker) -> bool {
    let mut count = 0;
    bell::wait(&worker.clients, Duration::ZERO, |_| count += 1);
    count > 0
}

fn run(worker: &mut Worker, service: &mut Counter) {
    while worker.merge.has_work() {
        worker.run_once(service);
    }
}

#[test]
fn a_nilext_commit_wakes_nobody_until_the_lane_is_half_full() {
    let (mut worker, mut queue) = both();
    worker.announce();
    for _ in 0..4 {
        queue.submit(b"set", true).expect("room");
        assert!(!rings(&worker));
    }
    queue.submit(b"set", true).expect("room");
    assert!(rings(&worker), "half full");
    worker.look_at_bells(Duration::ZERO);
    queue.submit(b"set", true).expect("room");
    assert!(!rings(&worker), "one bell a sleep");
}

#[test]
fn a_request_that_waits_for_its_answer_wakes_the_server() {
    let (mut worker, mut queue) = both();
    let mut service = Counter::default();
    worker.announce();
    let set = queue.submit(b"set", true).expect("room");
    let get = queue.submit(b"get", false).expect("room");
    assert!(rings(&worker));
    assert_eq!((set.position, get.position), (1, 2));
    let none = queue.answer(get, Duration::ZERO);
    assert_eq!(none, Err(NoAnswer::TimedOut(Duration::ZERO)));
    run(&mut worker, &mut service);
    assert_eq!(queue.answer(get, LONG), Ok(&[2][..]));
    assert_eq!(queue.answer(get, LONG), Err(NoAnswer::NotOwed));
    assert_eq!(queue.answer(set, LONG), Err(NoAnswer::NotOwed));
}

#[test]
fn a_full_lane_withholds_and_others_go_on() {
    let (mut worker, mut queue) = both();
    let mut other = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let third = worker.admit();
    assert!(matches!(third, Err(SetUpError::TooManyClients(2))));
    let mut service = Counter::default();
    for at in 0..8u8 {
        queue.submit(&[at], true).expect("room");
    }
    assert_eq!(queue.submit(&[99], true), Err(Refused::Full));
    let committed = other.submit(&[50], true).expect("a lane of its own");
    assert_eq!(
        committed.position, 9,
        "no ticket was taken for what was withheld"
    );
    run(&mut worker, &mut service);
    assert_eq!(queue.wait_for_room(LONG), Ok(()));
    queue.submit(&[8], true).expect("room");
    run(&mut worker, &mut service);
    let expected = [0, 1, 2, 3, 4, 5, 6, 7, 50, 8].map(|n| vec![n]);
    assert_eq!(service.0, expected);
}

#[test]
fn answers_that_are_not_taken_hold_their_slots() {
    let (mut worker, mut queue) = both();
    let mut service = Counter::default();
    let first = queue.submit(&[0], false).expect("room");
    for at in 1..8 {
        queue.submit(&[at], true).expect("room");
    }
    run(&mut worker, &mut service);
    assert_eq!(queue.submit(&[8], true), Err(Refused::Full));
    let short = Duration::from_millis(1);
    let timed_out = Err(NoAnswer::TimedOut(short));
    assert_eq!(
        queue.wait_for_room(short),
        timed_out,
        "it holds the next slot"
    );
    Carrier::forget(&mut queue, first);
    assert_eq!(queue.wait_for_room(short), Ok(()));
    queue.submit(&[8], true).expect("room");
}

#[test]
fn a_client_that_leaves_has_its_commits_executed() {
    let (mut worker, mut queue) = both();
    let mut service = Counter::default();
    queue.submit(b"last", true).expect("room");
    drop(queue);
    worker.look_at_bells(Duration::ZERO);
    assert_eq!(worker.client_count(), 1, "its request is not executed");
    run(&mut worker, &mut service);
    worker.look_at_bells(Duration::ZERO);
    assert_eq!(worker.client_count(), 0);
    assert_eq!(service.0, [b"last"]);
    let again = worker.admit().expect("memory");
    assert_eq!(again.terms.client_id, 2, "ids are not used again");
}

#[test]
fn an_orderly_end_executes_what_was_committed_and_refuses_the_rest() {
    let (worker, mut queue) = both();
    let mut service = Counter::default();
    let get = queue.submit(b"get", false).expect("room");
    queue.submit(b"set", true).expect("room");
    let counts = worker.finish(&mut service);
    assert_eq!(counts.executed, 2);
    assert_eq!(queue.submit(b"late", true), Err(Refused::Closed));
    assert_eq!(queue.answer(get, LONG), Ok(&[1][..]));
}

#[test]
fn a_server_that_is_gone_is_noticed_by_who_waits() {
    let (worker, mut queue) = both();
    let get = queue.submit(b"get", false).expect("room");
    drop(worker);
    assert_eq!(queue.answer(get, LONG), Err(NoAnswer::ServerGone));
}

#[test]
fn who_waits_shorter_than_it_looks_learns_that_the_server_is_gone_too() {
    let (worker, mut queue) = both();
    let get = queue.submit(b"get", false).expect("room");
    queue.set_spin(LONG);
    let short = Duration::from_millis(1);
    let timed_out = Err(NoAnswer::TimedOut(short));
    assert_eq!(queue.answer(get, short), timed_out, "not a look longer");
    drop(worker);
    for timeout in [short, Duration::ZERO] {
        assert_eq!(queue.answer(get, timeout), Err(NoAnswer::ServerGone));
    }
}

#[test]
fn requests_and_answers_have_a_longest_length() {
    let (mut worker, mut queue) = both();
    let len = crate::slot::PAYLOAD_LEN_MAX;
    let too_long = vec![7; len + 1];
    let refused = queue.submit(&too_long, true);
    assert_eq!(refused, Err(Refused::TooLong { len: len + 1 }));
    queue.submit(&too_long[1..], true).expect("a whole slot");
    let mut service = Counter::default();
    run(&mut worker, &mut service);
    assert_eq!(service.0, [&too_long[1..]]);
    let mut answer = Answer::default();
    assert_eq!(answer.put(&too_long[1..]), Ok(()));
    assert!(answer.put(b"x").is_err());
}

#[test]
fn a_place_of_the_dead_is_free_while_the_server_is_busy() {
    let (mut worker, mut queue) = both();
    let mut other = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let mut service = Counter::default();
    other.submit(b"set", true).expect("room");
    drop(other);
    let full = worker.admit();
    let is_full = matches!(full, Err(SetUpError::TooManyClients(2)));
    assert!(is_full, "its request is not executed");
    queue.submit(b"set", true).expect("room");
    worker.run_once(&mut service);
    worker.admit().expect("the place of the dead");
    assert_eq!(worker.client_count(), 2);
}

#[test]
fn the_client_of_a_broken_lane_is_told_and_its_place_is_free() {
    let (mut worker, _queue) = both();
    let invitation = worker.admit().expect("memory");
    let len = invitation.terms.object_len();
    let lane = Mapped(Mapping::reader_writer(&invitation.lane, len).expect("a lane"));
    let terms = invitation.terms;
    let mut hostile = Queue::join(invitation).expect("a queue");
    let get = hostile.submit(b"get", false).expect("room");
    // Another byte of the request than what its checksum is of.
    let payload = terms.slot(1) + crate::slot::HEAD_WORDS;
    lane.store(payload, !lane.load(payload));
    let mut service = Counter::default();
    run(&mut worker, &mut service);
    worker.look_around();
    assert_eq!((worker.counts().broken, service.0.len()), (1, 0));
    let answered = hostile.answer(get, Duration::from_secs(1));
    assert_eq!(answered, Err(NoAnswer::ServerGone));
    assert_eq!(hostile.submit(b"set", true), Err(Refused::Closed));
    assert_eq!(worker.client_count(), 1);
    worker.admit().expect("its place");
}

#[test]
fn what_is_executed_is_acknowledged_whoever_drives_the_queue() {
    let options = Options {
        commit_by: CommitBy::Acknowledgement,
        ..options()
    };
    let mut worker = Worker::new(3, options).expect("memory");
    let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
    let mut service = Counter::default();
    let set = queue.submit(b"set", true).expect("room");
    assert!(!queue.is_committed(set));
    run(&mut worker, &mut service);
    assert!(queue.is_committed(set));
    assert_eq!(queue.committed(set, Duration::from_secs(1)), Ok(()));
    let last = queue.submit(b"set", true).expect("room");
    worker.finish(&mut service);
    assert_eq!(queue.committed(last, Duration::from_secs(1)), Ok(()));
}

#[test]
fn no_client_can_keep_others_from_joining() {
    let mut worker = Worker::new(3, options()).expect("memory");
    let hostile = worker.admit().expect("memory");
    let order = Mapping::reader_writer(&hostile.order, order::OBJECT_LEN).expect("an order");
    let invitation = worker.admit().expect("memory");
    for at in 0..order::WORD_TICKET {
        Mapped(order.clone()).store(at, !0);
    }
    let mut queue = Queue::join(invitation).expect("a queue");
    let mut service = Counter::default();
    queue.submit(b"set", true).expect("room");
    run(&mut worker, &mut service);
    assert_eq!(service.0, [b"set"]);
}

#[test]
fn another_queue_s_memory_is_refused() {
    let mut worker = Worker::new(3, options()).expect("memory");
    let mut other = Worker::new(4, options()).expect("memory");
    let mut invitation = worker.admit().expect("memory");
    invitation.order = other.admit().expect("memory").order;
    assert!(matches!(Queue::join(invitation), Err(SetUpError::Foreign)));
    let mut invitation = worker.admit().expect("memory");
    invitation.terms.slot_count = 16;
    assert!(matches!(
        Queue::join(invitation),
        Err(SetUpError::Mapping(_))
    ));
    let none = Worker::new(
        3,
        Options {
            slot_count: 7,
            ..options()
        },
    );
    assert!(matches!(none, Err(SetUpError::SlotCount(7))));
}

const PRODUCER: ProducerId = [5, 6];

fn claim(producer: ProducerId, attempt: u64) -> ProducerClaim {
    ProducerClaim {
        producer,
        attempt,
        owner: [1, 1],
    }
}

/// A producer's lane by this attempt, and the number of its last request.
fn lane_of(worker: &mut Worker, attempt: u64) -> Result<(Queue, u64), SetUpError> {
    let (invitation, placed) = worker.admit_producer(claim(PRODUCER, attempt))?;
    Ok((Queue::join(invitation)?, placed))
}

#[test]
fn a_claim_that_comes_late_closes_no_later_lane() {
    let mut worker = Worker::new(3, options()).expect("memory");
    let mut service = Counter::default();
    let (mut first, placed) = lane_of(&mut worker, 0).expect("a lane");
    assert_eq!(placed, 0);
    first.submit(b"one", true).expect("room");
    // What it has sent is executed before it has another lane.
    let second = lane_of(&mut worker, 2);
    assert!(matches!(second, Err(SetUpError::Draining)));
    assert_eq!(first.submit(b"late", true), Err(Refused::Closed));
    // An earlier attempt has no lane from then on, whoever brings it.
    let late = lane_of(&mut worker, 1);
    assert!(matches!(late, Err(SetUpError::Superseded)));
    run(&mut worker, &mut service);
    let (mut second, placed) = lane_of(&mut worker, 2).expect("a lane");
    assert_eq!(placed, 1);
    for attempt in [1, 2] {
        let late = lane_of(&mut worker, attempt);
        assert!(matches!(late, Err(SetUpError::Superseded)), "{attempt}");
    }
    assert!(matches!(
        lane_of(&mut worker, 0),
        Err(SetUpError::Forgotten)
    ));
    second.set_next_request_id(2);
    second.submit(b"two", true).expect("its lane is open");
    run(&mut worker, &mut service);
    // Nor when it has no lane now.
    drop(second);
    worker.look_at_bells(Duration::ZERO);
    assert_eq!(worker.client_count(), 0);
    let late = lane_of(&mut worker, 2);
    assert!(matches!(late, Err(SetUpError::Superseded)));
    let (_, placed) = lane_of(&mut worker, 3).expect("a lane");
    assert_eq!(placed, 2);
}

#[test]
fn as_many_producers_without_a_lane_are_known_as_is_said() {
    let options = Options {
        slot_count: 2,
        ..options()
    };
    let mut worker = Worker::new(3, options).expect("memory");
    let mut service = Counter::default();
    let producer = |number: usize| [number as u64, 0];
    // Somebody else's is the first to leave.
    let others = ProducerClaim {
        owner: [2, 1],
        ..claim([0, 1], 0)
    };
    drop(worker.admit_producer(others).expect("a lane"));
    worker.look_at_bells(Duration::ZERO);
    for number in 0..PARTED_MAX {
        let (lane, _) = worker
            .admit_producer(claim(producer(number), 0))
            .expect("a lane");
        if number == 1 {
            let mut queue = Queue::join(lane).expect("a lane");
            queue.submit(b"set", true).expect("room");
            run(&mut worker, &mut service);
        } else {
            drop(lane);
        }
        // It leaves.
        worker.look_at_bells(Duration::ZERO);
        assert_eq!(worker.client_count(), 0);
    }
    // One too many has left: the first one of who has most.
    let first = worker.admit_producer(claim(producer(0), 1));
    assert!(matches!(first, Err(SetUpError::Forgotten)));
    let (lane, placed) = worker
        .admit_producer(claim(producer(1), 1))
        .expect("it is known");
    assert_eq!(placed, 1);
    let last = worker.admit_producer(claim(producer(PARTED_MAX - 1), 1));
    assert_eq!(last.expect("it is known").1, 0);
    drop(lane);
    worker.look_at_bells(Duration::ZERO);
    let others = ProducerClaim {
        attempt: 1,
        ..others
    };
    assert_eq!(worker.admit_producer(others).expect("it is known").1, 0);
}
