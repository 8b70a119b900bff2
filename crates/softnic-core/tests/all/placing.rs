//! Placing requests: connections that break at any byte, sessions that live on after their
//! client has left them, engines that die, full lanes, slow servers. Each request is executed
//! once, in its client's order, and what was reported as committed is executed.

use crate::world::random;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use std::cell::RefCell;
use std::rc::Rc;
use trefoil_softnic_core::limits::REQUEST_LEN_MAX;
use trefoil_softnic_core::placing::{Lane, NotSent, Placer, Placing, Sender, Taken};
use trefoil_softnic_core::wire::placing::{CLAIM_LEN, CLAIMED_LEN, PLACING_VERSION, Return};
use trefoil_softnic_core::wire::{
    Answered, Claim, ClaimStatus, Claimed, Frame, HEAD_LEN, LaneEnd, Place, Placed,
};

const SLOTS: u32 = 8;
const EPOCH: u64 = 77;

/// A lane, as its server knows it.
#[derive(Debug, Default)]
struct Kept {
    /// Requests in it, in order.
    placed: Vec<(u64, Vec<u8>)>,
    acknowledged: usize,
    executed: usize,
    is_closed: bool,
    /// Of the last request of all former lanes.
    base: u64,
}

/// A queue's server with one producer.
#[derive(Debug, Default)]
struct Server {
    lanes: Vec<Kept>,
    log: Vec<(u64, Vec<u8>)>,
    server_commits: bool,
}

impl Server {
    /// A lane for the producer, whose former one is empty then.
    fn claim(&mut self, returns: bool) -> Result<(usize, u64), ClaimStatus> {
        if let Some(last) = self.lanes.last_mut() {
            assert!(returns);
            last.is_closed = true;
            if last.executed < last.placed.len() {
                return Err(ClaimStatus::Draining);
            }
        }
        let base = self.lanes.last().map_or(0, |last| {
            last.placed.last().map_or(last.base, |(number, _)| *number)
        });
        self.lanes.push(Kept {
            base,
            ..Kept::default()
        });
        Ok((self.lanes.len() - 1, base))
    }

    /// Executes some of what is there.
    fn run(&mut self, most: usize) {
        for lane in &mut self.lanes {
            lane.acknowledged = lane.placed.len();
            let upto = lane.placed.len().min(lane.executed.saturating_add(most));
            self.log
                .extend_from_slice(&lane.placed[lane.executed..upto]);
            lane.executed = upto;
        }
    }
}

struct FakeLane {
    server: Rc<RefCell<Server>>,
    at: usize,
}

impl FakeLane {
    fn number(&self, count: impl Fn(&Kept) -> usize) -> u64 {
        let server = self.server.borrow();
        let lane = &server.lanes[self.at];
        match count(lane) {
            0 => lane.base,
            count => lane.placed[count - 1].0,
        }
    }
}

impl Lane for FakeLane {
    fn place(&mut self, number: u64, request: &[u8], _: bool) -> Placing {
        let mut server = self.server.borrow_mut();
        let lane = &mut server.lanes[self.at];
        if lane.is_closed {
            return Placing::Over(LaneEnd::Closed);
        }
        if lane.placed.len() - lane.executed >= SLOTS as usize {
            return Placing::NoRoom;
        }
        lane.placed.push((number, request.to_vec()));
        Placing::Placed
    }

    fn committed(&mut self) -> u64 {
        let server_commits = self.server.borrow().server_commits;
        self.number(|lane| match server_commits {
            true => lane.acknowledged,
            false => lane.placed.len(),
        })
    }

    fn executed(&mut self) -> u64 {
        self.number(|lane| lane.executed)
    }

    fn take_answer(&mut self, number: u64, into: &mut Vec<u8>) {
        into.extend_from_slice(&number.to_le_bytes());
    }
}

/// One connection, both ends' buffers, and the engine's session. The client may have left it.
struct Connection {
    placer: Placer<FakeLane>,
    to_engine: Vec<u8>,
    input: Vec<u8>,
    to_client: Vec<u8>,
    is_over: bool,
}

impl Connection {
    fn new(server: &Rc<RefCell<Server>>, at: usize, placed: u64) -> Self {
        let lane = FakeLane {
            server: Rc::clone(server),
            at,
        };
        Connection {
            placer: Placer::new(lane, SLOTS, placed),
            to_engine: Vec::new(),
            input: Vec::new(),
            to_client: Vec::new(),
            is_over: false,
        }
    }

    /// Some bytes reach the engine.
    fn arrive(&mut self, random: &mut SmallRng) {
        let count = match random.random_range(0..3) {
            0 => random.random_range(0..40),
            _ => self.to_engine.len(),
        };
        let count = count.min(self.to_engine.len());
        self.input.extend(self.to_engine.drain(..count));
        if self.is_over {
            return;
        }
        let handled = self.placer.handle(&self.input, &mut self.to_client);
        let handled = handled.expect("an honest client");
        self.input.drain(..handled.used);
        self.is_over = handled.is_over;
    }

    /// The engine looks into the lane.
    fn look(&mut self) {
        if !self.is_over {
            self.placer.look(&mut self.to_client);
        }
    }
}

fn claimed(server_commits: bool, placed: u64) -> Claimed {
    Claimed {
        server_commits,
        slot_count: SLOTS,
        epoch: EPOCH,
        placed,
        about: 0,
    }
}

fn request(number: u64) -> Vec<u8> {
    vec![number as u8; (number * 31 % 200) as usize]
}

/// What a run has met.
#[derive(Debug, Default)]
struct Met {
    breaks: u64,
    lost_answers: u64,
    full: u64,
    ghosts: u64,
    draining: u64,
}

fn run(seed: u64, met: &mut Met) {
    const REQUESTS: u64 = 60;
    let mut random = random(seed);
    let server_commits = random.random();
    let server = Rc::new(RefCell::new(Server {
        server_commits,
        ..Server::default()
    }));
    let (at, placed) = server.borrow_mut().claim(false).expect("a lane");
    let mut sender = Sender::new(&claimed(server_commits, placed));
    let mut connection = Some(Connection::new(&server, at, placed));
    let mut received = Vec::new();
    // Sessions that the client has left.
    let mut ghosts: Vec<Connection> = Vec::new();
    let mut owed: Vec<u64> = Vec::new();
    let breaks = random.random_range(0..12);
    let (mut steps, mut sent, mut broken) = (0, 0, 0);
    while sender.committed() < REQUESTS || !owed.is_empty() {
        steps += 1;
        assert!(steps < 200_000, "seed {seed}: it does not end");
        match random.random_range(0..12) {
            0..3 => {
                let nilext = random.random_range(0..4) > 0;
                let number = sent + 1;
                if number <= REQUESTS {
                    match sender.submit(&request(number), nilext) {
                        Ok(given) => {
                            assert_eq!(given, number);
                            sent = number;
                            if !nilext {
                                owed.push(number);
                            }
                        }
                        Err(NotSent::Full) => met.full += 1,
                        Err(why) => panic!("seed {seed}: {why:?}"),
                    }
                }
            }
            3..5 => {
                if let Some(connection) = &mut connection {
                    let len = sender.output().len();
                    let count = random.random_range(0..len + 1);
                    connection.to_engine.extend(&sender.output()[..count]);
                    sender.sent(count);
                }
            }
            5..7 => {
                if let Some(connection) = &mut connection {
                    connection.arrive(&mut random);
                }
            }
            7 => server.borrow_mut().run(random.random_range(0..4)),
            8 => {
                if let Some(connection) = &mut connection {
                    connection.look();
                }
            }
            9 => {
                if let Some(connection) = &mut connection {
                    let len = connection.to_client.len();
                    let count = random.random_range(0..len + 1);
                    received.extend(connection.to_client.drain(..count));
                    let done = sender.handle(&received).expect("an honest engine");
                    received.drain(..done);
                    // What is reported as executed is, and what is committed will be.
                    let server = server.borrow();
                    assert!(server.log.len() as u64 >= sender.executed());
                    let kept: usize = server.lanes.iter().map(|lane| lane.placed.len()).sum();
                    assert!(kept as u64 >= sender.committed());
                }
            }
            10 => {
                let answered = owed.first().map(|first| {
                    let mut into = Vec::new();
                    (*first, sender.take_answer(*first, &mut into), into)
                });
                match answered {
                    Some((first, Taken::Answer, into)) => {
                        assert_eq!(into, first.to_le_bytes());
                        owed.remove(0);
                    }
                    Some((_, Taken::Lost, _)) => {
                        met.lost_answers += 1;
                        owed.remove(0);
                    }
                    Some((first, Taken::NotOwed, _)) => panic!("seed {seed}: {first} is owed"),
                    Some((_, Taken::NotYet, _)) | None => {}
                }
            }
            _ => match connection.take() {
                Some(old) if broken < breaks && random.random_range(0..20) == 0 => {
                    broken += 1;
                    met.breaks += 1;
                    received.clear();
                    // It dies with its engine, or does not know that its client has left.
                    if random.random() {
                        met.ghosts += 1;
                        ghosts.push(old);
                    }
                }
                Some(old) => connection = Some(old),
                None => {
                    let given = server.borrow_mut().claim(true);
                    match given {
                        Ok((at, placed)) => {
                            assert!(sender.resume(&claimed(server_commits, placed)));
                            connection = Some(Connection::new(&server, at, placed));
                        }
                        Err(_) => met.draining += 1,
                    }
                }
            },
        }
        for ghost in &mut ghosts {
            if random.random_range(0..8) == 0 {
                ghost.arrive(&mut random);
            }
        }
    }
    server.borrow_mut().run(usize::MAX);
    let log = server.borrow().log.clone();
    let expected: Vec<_> = (1..=REQUESTS).map(|n| (n, request(n))).collect();
    assert_eq!(log, expected, "seed {seed}: each once, and in order");
}

#[test]
fn each_request_once_and_in_order_whatever_breaks() {
    let mut met = Met::default();
    for seed in 0..4000 {
        run(seed, &mut met);
    }
    println!("{met:?}");
    let all = [
        met.breaks,
        met.lost_answers,
        met.full,
        met.ghosts,
        met.draining,
    ];
    assert!(all.iter().all(|count| *count > 100), "{met:?}");
}

fn place(number: u64, request: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let place = Place {
        number,
        nilext: true,
        request,
    };
    place.encode(&mut out);
    out
}

fn placer() -> (Rc<RefCell<Server>>, Placer<FakeLane>) {
    let server = Rc::new(RefCell::new(Server::default()));
    let (at, placed) = server.borrow_mut().claim(false).expect("a lane");
    let lane = FakeLane {
        server: Rc::clone(&server),
        at,
    };
    (server, Placer::new(lane, SLOTS, placed))
}

/// The last PLACED of what was said.
fn told(said: &[u8]) -> Placed {
    let mut rest = said;
    let mut last = Placed::default();
    while let Some(frame) = Frame::first(rest, 1 << 20).expect("frames") {
        if let Ok(placed) = Placed::decode(frame.body) {
            last = placed;
        }
        rest = &rest[frame.total_len()..];
    }
    last
}

#[test]
fn a_request_that_is_too_long_is_refused_with_a_word_and_nothing_behind_it_is_placed() {
    for len in [REQUEST_LEN_MAX + 1, REQUEST_LEN_MAX + 9, 8000] {
        let (server, mut placer) = placer();
        let mut input = place(1, b"one");
        input.extend(place(2, &vec![7; len]));
        input.extend(place(3, b"three"));
        let mut out = Vec::new();
        let handled = placer.handle(&input, &mut out).expect("a word");
        assert!(handled.is_over, "{len}");
        let told = told(&out);
        assert_eq!((told.committed, told.end), (1, Some(LaneEnd::TooLong)));
        assert_eq!(server.borrow().lanes[0].placed.len(), 1);
    }
}

#[test]
fn a_full_lane_withholds_and_goes_on() {
    let (server, mut placer) = placer();
    let input: Vec<u8> = (1..=20).flat_map(|number| place(number, b"x")).collect();
    let mut out = Vec::new();
    let handled = placer.handle(&input, &mut out).expect("frames");
    assert!(handled.is_withheld);
    assert_eq!(told(&out).committed, u64::from(SLOTS));
    let one = place(1, b"x").len();
    assert_eq!(handled.used, SLOTS as usize * one);
    assert!(placer.is_waiting());
    server.borrow_mut().run(3);
    let mut out = Vec::new();
    assert!(placer.look(&mut out));
    assert_eq!(told(&out).executed, 3, "the client is at its bound");
    let handled = placer
        .handle(&input[handled.used..], &mut out)
        .expect("frames");
    assert_eq!((handled.used, handled.is_withheld), (3 * one, true));
}

#[test]
fn numbers_have_no_gap() {
    for number in [0, 2, u64::MAX] {
        let (server, mut placer) = placer();
        let bad = placer.handle(&place(number, b"x"), &mut Vec::new());
        assert!(bad.is_err(), "{number}");
        assert!(server.borrow().lanes[0].placed.is_empty());
    }
    let (_, mut placer) = placer();
    let twice = [place(1, b"x"), place(1, b"x")].concat();
    assert!(placer.handle(&twice, &mut Vec::new()).is_err());
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// What of these bytes is to be placed, by the tables of `wire/placing.rs` alone: whole and
/// sound frames, up to the first that is none.
fn sound(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    const PLACE: u8 = 12;
    let mut placed = Vec::new();
    let mut rest = bytes;
    while rest.len() >= 24 {
        let body_len = (word(rest, 0) as u32) as usize;
        let head_is_sound = rest[4..8] == [PLACE, 0, 1, 0];
        let number = word(rest, 8);
        let (len, flags) = (word(rest, 16) as u32 as usize, word(rest, 16) >> 32);
        let is_sound = head_is_sound
            && number == placed.len() as u64 + 1
            && flags <= 1
            && len <= REQUEST_LEN_MAX
            && body_len == 16 + len.next_multiple_of(8)
            && rest.len() >= 8 + body_len
            && rest[24 + len..8 + body_len].iter().all(|byte| *byte == 0);
        if !is_sound {
            break;
        }
        placed.push((number, rest[24..24 + len].to_vec()));
        rest = &rest[8 + body_len..];
    }
    placed
}

/// Whatever comes: no panic, what is kept is bounded, and what is placed is what was sound.
#[test]
fn nonsense_is_not_placed_and_hurts_nobody() {
    let mut random = random(3);
    let good: Vec<u8> = (1..=6)
        .flat_map(|number| place(number, &request(number)))
        .collect();
    for _ in 0..4000 {
        let (server, mut placer) = placer();
        let mut bad = good.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bad.len());
            bad[at] = random.random();
        }
        let mut held = Vec::new();
        for piece in bad.chunks(random.random_range(1..300)) {
            held.extend_from_slice(piece);
            match placer.handle(&held, &mut Vec::new()) {
                Ok(handled) if handled.is_over => break,
                Ok(handled) => drop(held.drain(..handled.used)),
                Err(_) => break,
            }
            assert!(held.len() < 2048, "less than one frame");
        }
        assert_eq!(server.borrow().lanes[0].placed, sound(&bad));
    }
    // The client's side: acknowledgements that cannot be.
    for bytes in (0..4000).map(|_| {
        let mut bytes = Vec::new();
        Placed {
            committed: random.random_range(0..5),
            executed: random.random_range(0..5),
            end: None,
        }
        .encode(&mut bytes);
        let answer = &[1; 9][..];
        Answered { number: 1, answer }.encode(&mut bytes);
        let at = random.random_range(0..bytes.len());
        bytes[at] = random.random();
        bytes
    }) {
        let mut sender = Sender::new(&claimed(false, 0));
        for number in 1..=3 {
            sender.submit(&request(number), false).expect("room");
        }
        sender.sent(sender.output().len());
        let _ = sender.handle(&bytes);
        // The first frame, by the table: an acknowledgement that can be counts, no other does.
        let (committed, executed) = (word(&bytes, 8), word(&bytes, 16));
        let is_sound = bytes[..8] == [24, 0, 0, 0, 13, 0, 1, 0]
            && executed <= committed
            && committed <= 3
            && word(&bytes, 24) <= 4;
        let expected = if is_sound {
            (committed, executed)
        } else {
            (0, 0)
        };
        assert_eq!(
            (sender.committed(), sender.executed()),
            expected,
            "{bytes:?}"
        );
    }
}

#[test]
fn claims_are_read_as_they_were_spelled() {
    let back = Return {
        epoch: 9,
        attempt: 4,
    };
    for returns in [None, Some(back)] {
        let claim = Claim {
            version: PLACING_VERSION,
            queue: 3,
            producer: [1, 2],
            returns,
        };
        let mut out = Vec::new();
        claim.encode(&mut out);
        assert_eq!(out.len(), HEAD_LEN + CLAIM_LEN);
        assert_eq!(Claim::decode(&out[HEAD_LEN..]), Ok(claim));
        out[HEAD_LEN + 40] = 1;
        assert!(Claim::decode(&out[HEAD_LEN..]).is_err(), "reserved");
        // What another version means by that nobody knows here.
        out[HEAD_LEN] = 9;
        assert_eq!(Claim::decode(&out[HEAD_LEN..]).map(|of| of.version), Ok(9));
    }
    for result in [Ok(claimed(true, 5)), Err(ClaimStatus::Draining)] {
        let mut out = Vec::new();
        Claimed::encode(&result, &mut out);
        assert_eq!(out.len(), HEAD_LEN + CLAIMED_LEN);
        assert_eq!(Claimed::decode(&out[HEAD_LEN..]), Ok(result));
        out[HEAD_LEN + 47] = 1;
        assert!(Claimed::decode(&out[HEAD_LEN..]).is_err(), "reserved");
    }
}
