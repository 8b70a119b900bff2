//! Long transactions of several keys over the store of this process: they are executed in
//! pieces, and those who want the same keys wait meanwhile, nobody else.

use crate::cell::TestCell;
use crate::support::Nobody;
use std::time::{SystemTime, UNIX_EPOCH};
use trefoil_cell::Mode;
use trefoil_gateway::keyspace::{Gates, LocalKeyspace};
use trefoil_gateway_core::keyspace::{Keyspace as _, key_mark};
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::{DRIVE_WORK_MAX, Session as _, Wants};
use trefoil_gateway_core::world::{Isolation, Now, Progress, Release, Settings, World};

const KEYS: usize = 2_000;
const VALUE_LEN: usize = 100;

fn settings() -> Settings {
    Settings {
        item_len_max: 1 << 20,
        shutdown_allowed: false,
        authentication: false,
        admin_commands: true,
        release: Release::V1_6_18,
        connections_max: 10,
        idle_timeout: None,
        thread_count: 2,
        answer_len_max: 64 << 20,
        transactions: Isolation::Relaxed,
    }
}

/// A client of one of several event loops.
struct Client {
    session: RespSession,
    number: u64,
    input: Vec<u8>,
    /// Most work of one drive.
    most: u64,
}

impl Client {
    fn new(number: u64) -> Self {
        Client {
            session: RespSession::new(),
            number,
            input: Vec::new(),
            most: 0,
        }
    }

    fn say(&mut self, lines: &str) {
        self.input.extend_from_slice(lines.as_bytes());
    }

    /// One drive: the answers, and what it waits for.
    fn drive(&mut self, keyspace: &mut LocalKeyspace) -> (String, Wants) {
        let (settings, mut nobody) = (settings(), Nobody);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = Now {
            unix_ms: unix.as_millis() as u64,
            monotonic_ns: unix.as_nanos() as u64,
        };
        keyspace.enter(self.number, now.monotonic_ns);
        let work = keyspace.work();
        let mut world = World {
            keyspace,
            observer: &mut nobody,
            settings: &settings,
            now,
            next_now: now,
            progress: Progress::Begun,
            connection: self.number,
        };
        let mut out = Vec::new();
        let driven = self
            .session
            .drive(&self.input, &mut out, 64 << 10, &mut world);
        self.input.drain(..driven.consumed);
        keyspace.leave();
        self.most = self.most.max(keyspace.work() - work);
        (String::from_utf8(out).unwrap(), driven.wants)
    }

    /// Asks something that is answered at once.
    fn ask(&mut self, keyspace: &mut LocalKeyspace, line: &str) -> String {
        self.say(&format!("{line}\r\n"));
        let (answer, wants) = self.drive(keyspace);
        assert_eq!(wants, Wants::Input(0), "{line}");
        answer
    }

    /// Asks something that has to wait.
    fn ask_in_vain(&mut self, keyspace: &mut LocalKeyspace, line: &str) {
        self.say(&format!("{line}\r\n"));
        assert_eq!(
            self.drive(keyspace),
            (String::new(), Wants::Operation),
            "{line}"
        );
    }

    /// All that is answered until it has nothing to do, and in how many drives.
    fn finish(&mut self, keyspace: &mut LocalKeyspace) -> (String, usize) {
        let mut all = String::new();
        for drives in 1.. {
            let (answers, wants) = self.drive(keyspace);
            all += &answers;
            match wants {
                Wants::Turn | Wants::Output => {}
                wants => {
                    assert_eq!(wants, Wants::Input(0));
                    return (all, drives);
                }
            }
        }
        unreachable!()
    }

    /// Drives until others wait for it.
    fn begin(&mut self, keyspace: &mut LocalKeyspace) {
        while !self.session.is_holding() {
            let (_, wants) = self.drive(keyspace);
            assert!(matches!(wants, Wants::Turn | Wants::Output), "{wants:?}");
        }
    }
}

/// A transaction that stores this under all keys, and then reads the last one.
fn store_all(value: &str) -> String {
    let sets = (0..KEYS).map(|number| format!("SET k{number} {value}\r\n"));
    let sets: String = sets.collect();
    format!("MULTI\r\n{sets}GET k{}\r\nEXEC\r\n", KEYS - 1)
}

fn value(letter: char) -> String {
    letter.to_string().repeat(VALUE_LEN)
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

/// Two event loops over the same store.
fn loops(cell: &TestCell) -> [LocalKeyspace; 2] {
    let (local, gates) = (cell.local_store(), Gates::default());
    [0, 1].map(|_| LocalKeyspace::beside(local.clone(), &gates))
}

fn resumed(keyspace: &mut LocalKeyspace) -> Vec<u64> {
    let mut all = Vec::new();
    keyspace.poll(2, &mut |number| all.push(number));
    all.sort_unstable();
    all
}

#[test]
fn others_go_on_beside_a_long_transaction_unless_they_want_its_keys() {
    let cell = TestCell::start(Mode::R1);
    let [mut one, mut other] = loops(&cell);
    let mut client = Client::new(1);
    let [mut near, mut far, mut free] = [2, 3, 4].map(Client::new);
    assert_eq!(free.ask(&mut one, "SET x 1"), "+OK\r\n");
    assert_eq!(free.ask(&mut one, "SET watched 1"), "+OK\r\n");
    client.say("WATCH watched\r\n");
    client.say(&store_all(&value('a')));
    client.begin(&mut one);
    for turn in 0..5 {
        client.drive(&mut one);
        assert!(client.session.is_holding(), "{turn}");
        // On the same event loop, and on another one.
        assert_eq!(free.ask(&mut one, "GET x"), bulk("1"));
        assert_eq!(free.ask(&mut other, "INCR y"), format!(":{}\r\n", turn + 1));
    }
    near.ask_in_vain(&mut one, "GET k0");
    far.ask_in_vain(&mut other, "SET k5 b");
    let mut waiting: Vec<Client> = Vec::new();
    for (number, line) in [
        (10, "MGET k7 x"),
        (11, "DEL x1 k1999"),
        (12, "MSET x2 1 k3 1"),
        (13, "SET watched 2"),
        (14, "WATCH k0"),
        (15, "FLUSHALL"),
        (16, "DBSIZE"),
        (17, "COPY x x3"),
        (18, "MULTI\r\nGET x\r\nSET x4 1\r\nEXEC"),
    ] {
        let mut client = Client::new(number);
        client.say(&format!("{line}\r\n"));
        let (_, wants) = client.drive(&mut other);
        assert_eq!(wants, Wants::Operation, "{line}");
        waiting.push(client);
    }
    // Of a command of several keys nothing is done that would be done again.
    assert_eq!(free.ask(&mut one, "EXISTS x2 x3 x4"), ":0\r\n");
    assert!(resumed(&mut one).is_empty() && resumed(&mut other).is_empty());
    let (answers, drives) = client.finish(&mut one);
    let expected = format!("*{}\r\n", KEYS + 1) + &"+OK\r\n".repeat(KEYS) + &bulk(&value('a'));
    assert!(answers.ends_with(&expected));
    assert!(drives > 10, "{drives}");
    assert!(client.most < 2 * DRIVE_WORK_MAX, "{}", client.most);
    assert_eq!(resumed(&mut one), [2]);
    assert_eq!(resumed(&mut other), [3, 10, 11, 12, 13, 14, 15, 16, 17, 18]);
    assert_eq!(near.finish(&mut one).0, bulk(&value('a')));
    assert_eq!(far.finish(&mut other).0, "+OK\r\n");
    let answer = |client: &mut Client, other: &mut LocalKeyspace| client.finish(other).0;
    let mut answers = waiting.iter_mut().map(|client| answer(client, &mut other));
    // Its head has left before.
    let first = answers.next().unwrap();
    assert_eq!(first, bulk(&value('a')) + &bulk("1"));
    let rest: Vec<String> = answers.collect();
    assert_eq!(rest[0], ":1\r\n");
    assert_eq!(rest[4], "+OK\r\n");
    assert_eq!(rest[6], ":0\r\n", "everything is gone");
}

#[test]
fn a_long_transaction_whose_watched_key_has_changed_does_nothing() {
    let cell = TestCell::start(Mode::R1);
    let [mut one, mut other] = loops(&cell);
    let [mut client, mut rival] = [1, 2].map(Client::new);
    client.say("WATCH k3\r\n");
    let all = store_all(&value('a'));
    let (queued, exec) = all.split_at(all.len() - "EXEC\r\n".len());
    client.say(queued);
    client.finish(&mut one);
    assert_eq!(rival.ask(&mut other, "SET k3 other"), "+OK\r\n");
    client.say(exec);
    assert!(client.finish(&mut one).0.ends_with("*-1\r\n"));
    assert_eq!(rival.ask(&mut other, "EXISTS k0 k3 k1999"), ":1\r\n");
    assert_eq!(rival.ask(&mut other, "SET k0 other"), "+OK\r\n");
    // The next one is not under WATCH.
    client.say(&store_all(&value('b')));
    client.finish(&mut one);
    assert_eq!(rival.ask(&mut other, "GET k3"), bulk(&value('b')));
}

#[test]
fn the_second_of_two_long_transactions_waits_for_the_first() {
    let cell = TestCell::start(Mode::R1);
    let [mut one, mut other] = loops(&cell);
    let [mut first, mut second] = [1, 2].map(Client::new);
    first.say(&store_all(&value('a')));
    second.say(&store_all(&value('b')));
    first.begin(&mut one);
    let wants = loop {
        match second.drive(&mut other).1 {
            Wants::Turn | Wants::Output => {}
            wants => break wants,
        }
    };
    assert_eq!(wants, Wants::Operation);
    let last = |letter| bulk(&value(letter));
    assert!(first.finish(&mut one).0.ends_with(&last('a')));
    assert_eq!(resumed(&mut other), [2]);
    assert!(second.finish(&mut other).0.ends_with(&last('b')));
    // Its event loop's round is over.
    assert!(resumed(&mut other).is_empty());
    // One whose connection is gone for good keeps nobody waiting.
    first.say(&store_all(&value('c')));
    first.begin(&mut one);
    let mut third = Client::new(3);
    third.ask_in_vain(&mut other, "GET k0");
    one.forget(first.number);
    assert_eq!(resumed(&mut other), [3]);
    third.finish(&mut other);
    assert!(resumed(&mut other).is_empty());
    // So does one whose event loop has ended.
    let mut fourth = Client::new(4);
    fourth.say(&store_all(&value('d')));
    fourth.begin(&mut one);
    third.ask_in_vain(&mut other, "GET k0");
    drop(one);
    assert_eq!(resumed(&mut other), [3]);
}

/// All that is answered until it has to wait.
fn until_it_waits(client: &mut Client, keyspace: &mut LocalKeyspace) -> String {
    let mut all = String::new();
    loop {
        let (answers, wants) = client.drive(keyspace);
        all += &answers;
        if !matches!(wants, Wants::Turn | Wants::Output) {
            assert_eq!(wants, Wants::Operation);
            return all;
        }
    }
}

/// Two event loops, and a client of the first that sends three long transactions and does
/// not wait for answers: the first one is done, and while it was, one client of each loop
/// waited for its keys.
fn greedy(cell: &TestCell) -> ([LocalKeyspace; 2], [Client; 3]) {
    let [mut one, mut other] = loops(cell);
    let [mut greedy, mut near, mut far] = [1, 2, 3].map(Client::new);
    greedy.say(&store_all(&value('a')).repeat(3));
    greedy.begin(&mut one);
    near.ask_in_vain(&mut one, "GET k0");
    far.say(&store_all(&value('b')));
    until_it_waits(&mut far, &mut other);
    // The second one is not begun, though nobody holds keys.
    let answers = until_it_waits(&mut greedy, &mut one);
    assert!(answers.ends_with(&"+QUEUED\r\n".repeat(KEYS + 1)));
    assert_eq!((one.due_ns(), other.due_ns()), (Some(0), Some(0)));
    ([one, other], [greedy, near, far])
}

#[test]
fn long_transactions_let_others_have_their_turn_in_between() {
    let cell = TestCell::start(Mode::R1);
    let ([mut one, mut other], [mut greedy, mut near, mut far]) = greedy(&cell);
    // It began to wait later.
    assert_eq!(resumed(&mut one), [2]);
    until_it_waits(&mut greedy, &mut one);
    assert_eq!(near.finish(&mut one).0, bulk(&value('a')));
    until_it_waits(&mut greedy, &mut one);
    // The other loop has yet to give its client a turn.
    assert!(resumed(&mut one).is_empty());
    until_it_waits(&mut greedy, &mut one);
    assert_eq!(resumed(&mut other), [3]);
    far.begin(&mut other);
    for _ in 0..3 {
        assert!(resumed(&mut one).is_empty() && resumed(&mut other).is_empty());
    }
    assert_eq!((one.due_ns(), other.due_ns()), (None, None));
    assert!(far.finish(&mut other).0.ends_with(&bulk(&value('b'))));
    assert_eq!(resumed(&mut one), [1]);
    // Its loop owes a turn until the round is over, though nobody else waits.
    let mut answers = until_it_waits(&mut greedy, &mut one);
    assert_eq!(resumed(&mut one), [1]);
    answers += &greedy.finish(&mut one).0;
    let done = answers.matches(&bulk(&value('a'))).count();
    assert_eq!(done, 2, "the last two");
    for _ in 0..3 {
        assert!(resumed(&mut one).is_empty() && resumed(&mut other).is_empty());
    }
    assert_eq!((one.due_ns(), other.due_ns()), (None, None));
}

/// The next long transaction waits for those who are about to have their turn, but not for
/// one whose client takes no answers.
#[test]
fn who_has_no_turn_is_not_waited_for_long() {
    let cell = TestCell::start(Mode::R1);
    let ([mut one, mut other], [mut greedy, mut near, _]) = greedy(&cell);
    assert_eq!(resumed(&mut one), [2]);
    near.finish(&mut one);
    assert_eq!(resumed(&mut other), [3]);
    // Its loop has had others to serve.
    assert!(resumed(&mut other).is_empty() && resumed(&mut one).is_empty());
    until_it_waits(&mut greedy, &mut one);
    let until_ns = other.due_ns().unwrap();
    assert!(until_ns > 2);
    other.poll(until_ns, &mut |_| panic!("it was resumed"));
    assert_eq!(resumed(&mut one), [1]);
    greedy.begin(&mut one);
}

#[test]
fn a_loop_that_has_ended_owes_nobody_a_turn() {
    for ends_before in [false, true] {
        let cell = TestCell::start(Mode::R1);
        let [mut one, mut other] = loops(&cell);
        let [mut greedy, mut far] = [1, 3].map(Client::new);
        greedy.say(&store_all(&value('a')).repeat(2));
        greedy.begin(&mut one);
        far.ask_in_vain(&mut other, "GET k0");
        if ends_before {
            drop(other);
        } else {
            until_it_waits(&mut greedy, &mut one);
            drop(other);
            assert_eq!(resumed(&mut one), [1]);
        }
        let answers = greedy.finish(&mut one).0;
        assert!(answers.ends_with(&bulk(&value('a'))));
    }
}

/// What several commands store one after the other under a key is not added up.
#[test]
fn values_that_take_each_others_place_are_not_too_much() {
    let cell = TestCell::start(Mode::R1);
    let [mut one, _] = loops(&cell);
    let mut client = Client::new(1);
    let value = "v".repeat(1_000_000);
    let sets = (0..15).map(|number| {
        format!(
            "*3\r\n$3\r\nSET\r\n$2\r\nk{}\r\n{}",
            number % 8,
            bulk(&value)
        )
    });
    let sets: String = sets.collect();
    for round in 0..3 {
        client.say(&format!("WATCH w\r\nMULTI\r\n{sets}EXEC\r\n"));
        let (answers, _) = client.finish(&mut one);
        let expected = format!("*15\r\n{}", "+OK\r\n".repeat(15));
        assert!(answers.ends_with(&expected), "{round}: {answers}");
    }
}

/// A turn of one event loop begins while another one's client holds keys, and goes on
/// when it does no more: what is held then does not keep its own client out.
#[test]
fn who_holds_keys_does_not_wait_for_them() {
    let cell = TestCell::start(Mode::R1);
    let [mut one, mut other] = loops(&cell);
    let marks = || vec![key_mark(b"k")];
    one.enter(1, 1);
    assert!(one.hold(marks()).is_ok());
    one.leave();
    other.enter(2, 1);
    one.enter(1, 2);
    one.release();
    one.leave();
    assert!(other.hold(marks()).is_ok());
    assert!(other.ready_for(&mut [b"k".as_slice()].into_iter()).is_ok());
    other.release();
    other.leave();
}
