//! Clients that write nonsense, die, or both, beside one that works.

use crate::support::{BACKEND, CONFIG, Rogue, Server, eventually, must_get, must_set, set};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trefoil_fabric::shm::ConnectOptions;
use trefoil_layout::hello::{Hello, REPLY_LEN, Reply};
use trefoil_layout::message::{Request, RequestHead};
use trefoil_layout::ring::Producer;
use trefoil_layout::words::{Words, WordsMut};

const HEAD: RequestHead = RequestHead {
    id: 1,
    config_id: CONFIG,
};

#[test]
fn random_bytes_and_cursors_hurt_only_who_wrote_them() {
    let server = Server::start();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connect();
            let mut round = 0u32;
            while !done.load(Ordering::Relaxed) || round < 100 {
                let value = vec![round as u8; 1 + round as usize % 3000];
                must_set(&mut connection, b"honest", &value);
                assert_eq!(must_get(&mut connection, b"honest").unwrap(), value);
                round += 1;
            }
        });
        for seed in 0..60 {
            attack(&server, seed);
        }
        done.store(true, Ordering::Relaxed);
    });
    eventually("only the honest client is left, then nobody", || {
        server.statistics().rings_open == 0
    });
    assert!(server.statistics().rings_broken > 30);
    assert_eq!(server.backend.charged.load(Ordering::Relaxed), 0);
}

/// Writes random words all over the rings, for a while.
fn attack(server: &Server, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let rogue = Rogue::connect(server);
    let words = rogue.rings.words();
    let count = words.count();
    // Some start as honest clients with messages in flight.
    if seed.is_multiple_of(2) {
        let mut producer = Producer::requests(rogue.geometry);
        let request = set(b"rogue", &[1; 50]);
        let mut bytes = vec![0; request.encoded_len()];
        request.encode(HEAD, &mut bytes);
        let message: Vec<u64> = bytes
            .chunks(8)
            .map(|c| {
                let mut word = [0; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_le_bytes(word)
            })
            .collect();
        for _ in 0..random.random_range(1..50) {
            let _ = producer.push(&words, &message, bytes.len());
        }
    }
    for _ in 0..random.random_range(1..2000) {
        let at = match random.random_range(0..4) {
            // The header, the cursors most of all.
            0 => 16 * random.random_range(0..8),
            1 => random.random_range(0..512),
            // The first records.
            2 => 512 + random.random_range(0..64),
            _ => random.random_range(0..count),
        };
        let value = match random.random_range(0..5) {
            0 => random.random(),
            1 => random.random_range(0..1 << 20),
            2 => 8 * random.random_range(0..40_000),
            3 => u64::MAX - random.random_range(0..16),
            _ => words.load(at).wrapping_add(8),
        };
        words.store_release(at, value);
    }
    rogue.ring_bell();
    if seed.is_multiple_of(3) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_broken_ring_is_closed_although_its_client_stays() {
    let server = Server::start();
    let rogue = Rogue::connect(&server);
    eventually("the rogue is served", || {
        server.statistics().rings_open == 1
    });
    let words = rogue.rings.words();
    words.store_release(16, 12_345);
    rogue.ring_bell();
    eventually("its ring is closed", || server.statistics().rings_open == 0);
    assert_eq!(server.statistics().rings_broken, 1);
    assert_eq!(server.backend.charged.load(Ordering::Relaxed), 0);
    // It keeps its mapping, but the memory is gone: reads find zeros.
    assert_eq!(words.load(0), 0);
}

#[test]
fn messages_that_are_none_are_answered_as_malformed() {
    let server = Server::start();
    let rogue = Rogue::connect(&server);
    let words = rogue.rings.words();
    let mut producer = Producer::requests(rogue.geometry);
    producer.push(&words, &[7, 0xffff, 0], 24).unwrap();
    rogue.ring_bell();
    eventually("it is counted", || server.statistics().malformed == 1);
    assert_eq!(server.statistics().rings_broken, 0);
    // Too short to have an id: nobody to answer.
    producer.push(&words, &[7], 5).unwrap();
    rogue.ring_bell();
    eventually("its ring is closed", || {
        server.statistics().rings_broken == 1
    });
    assert_eq!(server.backend.executed.load(Ordering::Relaxed), 0);
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_message_leaves_nothing_visible() {
    let server = Server::start();
    for published in [false, true] {
        let rogue = Rogue::connect(&server);
        let words = rogue.rings.words();
        let request = set(b"torn", b"half of a value");
        let mut bytes = vec![0; request.encoded_len().next_multiple_of(8)];
        request.encode(HEAD, &mut bytes);
        // Length and half of the message.
        words.store(512, request.encoded_len() as u64);
        for (i, word) in bytes.chunks_exact(8).take(6).enumerate() {
            words.store(513 + i, u64::from_le_bytes(word.try_into().unwrap()));
        }
        if published {
            // A cursor over half a record is nonsense, not half a message.
            words.store_release(16, 8 + 48);
        }
        drop(rogue);
    }
    eventually("both are gone", || server.statistics().rings_open == 0);
    let mut connection = server.connect();
    assert_eq!(must_get(&mut connection, b"torn"), None);
    assert_eq!(server.backend.executed.load(Ordering::Relaxed), 1);
    assert_eq!(
        server.backend.charged.load(Ordering::Relaxed),
        connection_charge()
    );
}

fn connection_charge() -> i64 {
    trefoil_layout::ring::Geometry::default().object_len() as i64
}

/// Everybody has a turn: who has filled a ring has some messages executed, then others.
#[test]
fn a_client_that_floods_its_ring_does_not_keep_others_out() {
    use crate::support::answer_of;
    use trefoil_layout::message::Answer;
    use trefoil_layout::op::Found;
    const FLOOD: u32 = 200;
    let server = Server::start();
    let mut flooding = server.connect();
    let mut connection = server.connect();
    must_set(&mut connection, b"flood", &0u32.to_le_bytes());
    let executed = || server.backend.executed.load(Ordering::Relaxed);
    let before = executed();
    // The backend stands still in the first of them until all are in the rings.
    let still = server.backend.map.lock().unwrap();
    for number in 1..=FLOOD {
        let bytes = number.to_le_bytes();
        flooding.send_next(CONFIG, &set(b"flood", &bytes)).unwrap();
    }
    eventually("the first is being executed", || executed() > before);
    let lookup = Request::Lookup { key: b"flood" };
    let lookup = connection.send_next(CONFIG, &lookup).unwrap();
    drop(still);
    let mut seen = FLOOD;
    answer_of(&mut connection, lookup, &mut |answer| {
        if let Answer::Lookup(answer) = answer
            && let Found::Present { data, .. } = answer.found
        {
            seen = u32::from_le_bytes(data.try_into().unwrap());
        }
    });
    assert!(seen < FLOOD / 2, "{seen} of {FLOOD} came first");
}

#[test]
fn rings_that_nobody_uses_go_to_who_wants_some() {
    let server = Server::with(|options| {
        options.client_count_max = 3;
        options.silence_max = Duration::from_millis(50);
    });
    // One that works, and two that only greet.
    let mut first = server.connect();
    must_set(&mut first, b"key", b"value");
    let _silent = [server.connect(), server.connect()];
    eventually("all are known", || server.statistics().rings_open == 3);
    std::thread::sleep(Duration::from_millis(60));
    let mut others = Vec::new();
    eventually("both have gone", || {
        let mut other = server.connect();
        if other.channel().is_some() {
            must_set(&mut other, b"other", b"value");
            others.push(other);
        }
        others.len() == 2
    });
    // Those who have used theirs keep them.
    std::thread::sleep(Duration::from_millis(60));
    assert!(server.connect().channel().is_none());
    assert_eq!(must_get(&mut first, b"key").unwrap(), b"value");
    for other in &mut others {
        assert_eq!(must_get(other, b"other").unwrap(), b"value");
    }
}

#[test]
fn nobody_waits_behind_one_who_waits_for_rings() {
    let patience = Duration::from_secs(600);
    let server = Server::with(|options| {
        options.client_count_max = 1;
        options.rings_patience = patience;
    });
    let mut first = server.connect();
    must_set(&mut first, b"key", b"value");
    // All of its hello is there before anybody else comes.
    let mut waiting = UnixStream::connect(server.path()).unwrap();
    let hello = Hello {
        backend: BACKEND,
        wants_rings: true,
        knows_marks: false,
        wants_lane: false,
    };
    waiting.write_all(&hello.encode()).unwrap();
    let mut reply = [0; REPLY_LEN];
    let mut answered = || recv(&waiting, &mut reply, RecvFlags::DONTWAIT).map(|(_, count)| count);
    let reader = ConnectOptions {
        rings: false,
        timeout: patience,
        ..ConnectOptions::default()
    };
    for _ in 0..20 {
        server.try_connect(&reader).unwrap();
    }
    assert_eq!(answered(), Err(Errno::AGAIN));
    drop(first);
    eventually("it has its rings", || answered() == Ok(REPLY_LEN));
    let Ok(Reply::Granted(granted)) = Reply::parse(&reply) else {
        panic!("{reply:?}");
    };
    assert!(granted.rings.is_some());
    assert_eq!(server.statistics().rings_refused, 0);
}
