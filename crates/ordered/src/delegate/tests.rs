//! A delegate between a server and a client, all in one thread: ends, and who is woken.

use super::*;
use crate::lane;
use crate::queue::NoAnswer;
use crate::service::{Request, Service};
use crate::words::Mapped;
use trefoil_layout::words::{Words, WordsMut};
use trefoil_region::Mapping;

const PATIENCE: Duration = Duration::from_secs(30);

/// Answers with the number of requests so far.
#[derive(Default)]
struct Counter(u8);

impl Service for Counter {
    fn execute(&mut self, _: Request<'_>, answer: &mut Answer) {
        self.0 += 1;
        answer.put(&[self.0]).expect("a byte");
    }
}

struct Chain {
    server: Worker,
    /// The delegate's lane at the server.
    behind: Mapped,
    delegate: Delegate,
    /// The client's lane at the delegate.
    lane: Mapped,
    client: Queue,
}

fn lane_of(invitation: &Invitation) -> Mapped {
    let len = invitation.terms.object_len();
    Mapped(Mapping::reader_writer(&invitation.lane, len).expect("a lane"))
}

/// A long lane behind, and a short one before.
fn chain() -> Chain {
    let mut server = Worker::new(1, Options::default()).expect("memory");
    let invitation = server.admit().expect("memory");
    let behind = lane_of(&invitation);
    let options = Options {
        slot_count: 16,
        ..Options::default()
    };
    let queue = Queue::join(invitation).expect("a queue");
    let mut delegate = Delegate::new(2, options, queue).expect("memory");
    let invitation = delegate.admit().expect("memory");
    Chain {
        server,
        behind,
        delegate,
        lane: lane_of(&invitation),
        client: Queue::join(invitation).expect("a queue"),
    }
}

#[test]
fn what_a_server_did_last_is_passed_on() {
    let mut chain = chain();
    let get = chain.client.submit(b"get", false).expect("room");
    chain.delegate.run_once().expect("a server");
    chain.server.finish(&mut Counter::default());
    let late = chain.client.submit(b"late", true).expect("room");
    assert_eq!(chain.delegate.run_once(), Err(DelegateError::ServerGone));
    assert_eq!(chain.client.answer(get, PATIENCE), Ok(&[1][..]));
    drop(chain.delegate);
    let committed = chain.client.committed(late, PATIENCE);
    assert_eq!(committed, Err(NoAnswer::ServerGone));
}

#[test]
fn what_a_queue_that_refuses_has_taken_is_waited_for() {
    let mut chain = chain();
    let get = chain.client.submit(b"get", false).expect("room");
    chain.delegate.run_once().expect("a server");
    chain.server.close();
    chain.client.submit(b"late", true).expect("room");
    chain.delegate.run_once().expect("one request is under way");
    chain.server.run_once(&mut Counter::default());
    let ended = Err(DelegateError::Refused(Refused::Closed));
    assert_eq!(chain.delegate.run_once(), ended);
    assert_eq!(chain.client.answer(get, PATIENCE), Ok(&[1][..]));
}

#[test]
fn a_delegate_whose_own_lane_is_broken_ends() {
    let mut chain = chain();
    chain.client.submit(b"set", true).expect("room");
    chain.delegate.run_once().expect("a server");
    let payload = lane::WORD_SLOTS + lane::SLOT_WORDS + crate::slot::HEAD_WORDS;
    chain.behind.store(payload, !chain.behind.load(payload));
    chain.server.run_once(&mut Counter::default());
    assert_eq!(chain.server.counts().broken, 1);
    let ended = (0..=LOOK_TURNS).find_map(|_| chain.delegate.run_once().err());
    assert_eq!(ended, Some(DelegateError::ServerGone));
}

/// Bells that the server has heard.
fn heard(chain: &mut Chain) -> u64 {
    chain.server.look_at_bells(Duration::ZERO);
    chain.server.bells_heard()
}

#[test]
fn a_server_is_woken_for_a_lane_that_is_more_than_half_forwarded() {
    let mut chain = chain();
    chain.server.announce();
    for _ in 0..8 {
        chain.client.submit(b"set", true).expect("room");
    }
    for _ in 0..3 {
        chain.delegate.run_once().expect("a server");
    }
    assert_eq!(heard(&mut chain), 0, "half of it");
    chain.client.submit(b"set", true).expect("room");
    for _ in 0..3 {
        chain.delegate.run_once().expect("a server");
    }
    assert_eq!(heard(&mut chain), 1);
}

#[test]
fn a_server_is_woken_for_a_client_that_waits() {
    let mut chain = chain();
    chain.server.announce();
    chain.client.submit(b"set", true).expect("room");
    chain.delegate.run_once().expect("a server");
    lane::set_waiting(&chain.lane, 1);
    for _ in 0..3 {
        chain.delegate.run_once().expect("a server");
    }
    assert_eq!(heard(&mut chain), 1);
}
