//! RESP beside Debian's redis-server: the same commands, the same answers,
//! byte for byte but for times, where two seconds do not count.
//!
//! Left out of the comparison, because they differ on purpose (see the module
//! `resp`): values over the cell's limit, databases, keys over 65,536 bytes,
//! the empty key, expiries after the year 10889, contents of INFO, COMMAND,
//! CLIENT INFO and LIST, cursors of SCAN, more than 1,024 arguments, zero bytes
//! in a command line (Redis waits for ever).

use crate::corpus::random::Random;
use crate::corpus::{
    COMMANDS, MUTED, TOGETHER, TRANSACTIONS, alike, command, lines, random_words, words,
};
use crate::rig;
use crate::rig::Rig;
use crate::rig::server::{Connection, Server};
use trefoil_gateway_core::resp::RespSession;

struct Pair {
    server: Server,
    real: Connection,
    ours: Rig<RespSession>,
    marker: u64,
}

impl Pair {
    fn new() -> Self {
        let server = Server::start(
            "/usr/bin/redis-server",
            &[
                "--port",
                "{port}",
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                "/tmp",
            ],
        );
        let real = server.connect();
        Pair {
            server,
            real,
            ours: Rig::new(RespSession::new()),
            marker: 0,
        }
    }

    /// Sends the same to both sides; they have to answer the same.
    fn same(&mut self, bytes: &[u8], random: &mut Random, context: &str) {
        self.marker += 1;
        let mark = format!("marker-{}", self.marker);
        let last = format!("${}\r\n{mark}\r\n", mark.len()).into_bytes();
        let sent = [bytes, &command(&[b"ECHO", mark.as_bytes()])].concat();
        let (real, real_closed) = self.real.ask(&sent, &last);
        self.ours.keyspace.inner.now_ms = rig::now_ms();
        let mut ours = self.ours.feed_in_pieces(&sent, random);
        let our_closed = self.ours.is_closed();
        if !our_closed {
            assert!(
                ours.ends_with(&last),
                "{context}: no answer to the marker in {}",
                show(&ours)
            );
            ours.truncate(ours.len() - last.len());
        }
        assert!(
            alike(&real, &ours) && real_closed == our_closed,
            "{context}: {}\nredis (closed: {real_closed}): {}\nours  (closed: {our_closed}): {}",
            show(bytes),
            show(after(&real, &ours)),
            show(after(&ours, &real)),
        );
        if real_closed {
            self.real = self.server.connect();
            self.ours.reconnect(RespSession::new());
        }
    }
}

/// What stands after the common beginning, from a little before.
fn after<'a>(one: &'a [u8], other: &[u8]) -> &'a [u8] {
    let common = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    &one[common.saturating_sub(40)..]
}

fn show(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(1500)].escape_ascii().to_string()
}

#[test]
fn the_script_is_answered_as_redis_answers() {
    for hello in ["HELLO 2 SETNAME x", "HELLO 3 SETNAME x"] {
        let mut pair = Pair::new();
        let mut random = Random::new(2);
        let hello = command(&words(hello));
        // The number of the connection is not ours to compare.
        let _ = pair.real.ask(&hello, b"modules\r\n*0\r\n");
        pair.ours.feed(&hello);
        for line in lines(&[TOGETHER, COMMANDS]) {
            pair.same(&command(&words(line)), &mut random, line);
        }
    }
}

/// The same as lines, where words can be written so.
#[test]
fn the_script_in_lines_is_answered_as_redis_answers() {
    let mut pair = Pair::new();
    let mut random = Random::new(3);
    for line in lines(&[TOGETHER, COMMANDS]) {
        pair.same(format!("{line}\r\n").as_bytes(), &mut random, line);
        pair.same(format!("{line}\n").as_bytes(), &mut random, line);
    }
}

/// And all at once.
#[test]
fn the_script_in_one_piece_is_answered_as_redis_answers() {
    let mut pair = Pair::new();
    let mut random = Random::new(4);
    let all: Vec<u8> = lines(&[TOGETHER, COMMANDS])
        .iter()
        .flat_map(|line| command(&words(line)))
        .collect();
    pair.same(&all, &mut random, "all");
    pair.ours.out_len_max = 1;
    pair.same(&all, &mut random, "all, no room for answers");
}

#[test]
fn transactions_are_answered_as_redis_answers() {
    for hello in ["HELLO 2", "HELLO 3"] {
        let mut pair = Pair::new();
        let mut random = Random::new(7);
        let hello = command(&words(hello));
        let _ = pair.real.ask(&hello, b"modules\r\n*0\r\n");
        pair.ours.feed(&hello);
        for scene in TRANSACTIONS {
            let commands = scene.split('|').flat_map(|line| command(&words(line)));
            let commands: Vec<u8> = commands.collect();
            pair.same(&commands, &mut random, scene);
            let lines: Vec<String> = scene.split('|').map(|line| format!("{line}\r\n")).collect();
            pair.same(lines.concat().as_bytes(), &mut random, scene);
            pair.ours.out_len_max = 1;
            pair.same(&commands, &mut random, scene);
            pair.ours.out_len_max = 1 << 16;
        }
    }
}

#[test]
fn answers_are_left_out_where_redis_leaves_them_out() {
    let mut pair = Pair::new();
    let mut random = Random::new(9);
    for scene in MUTED {
        let commands: Vec<u8> = scene
            .split('|')
            .flat_map(|line| command(&words(line)))
            .collect();
        pair.same(&commands, &mut random, scene);
        let lines: Vec<String> = scene.split('|').map(|line| format!("{line}\r\n")).collect();
        pair.same(lines.concat().as_bytes(), &mut random, scene);
        pair.ours.out_len_max = 1;
        pair.same(&commands, &mut random, scene);
        pair.ours.out_len_max = 1 << 16;
    }
    // What cannot be understood ends the connection without a word; Redis says nothing,
    // either, and waits.
    let muted = [command(&["CLIENT", "REPLY", "OFF"]), b"*x\r\n".to_vec()].concat();
    assert_eq!(pair.ours.feed(&muted), b"");
    assert!(pair.ours.is_closed());
}

/// Commands of a few keys, as they come, in transactions.
#[test]
fn random_transactions_are_answered_as_redis_answers() {
    let mut pair = Pair::new();
    for seed in 1000..1300 {
        let mut random = Random::new(seed);
        for batch in 0..5 {
            let mut bytes = Vec::new();
            if random.below(2) == 0 {
                let key = format!("k{}", random.below(8));
                bytes.extend(command(&["WATCH", key.as_str()]));
            }
            for _ in 0..random.below(3) {
                bytes.extend(command(&random_words(&mut random)));
            }
            bytes.extend(command(&["MULTI"]));
            for _ in 0..random.below(8) {
                bytes.extend(command(&random_words(&mut random)));
            }
            bytes.extend(command(&[*random.pick(&["EXEC", "EXEC", "DISCARD"])]));
            pair.same(&bytes, &mut random, &format!("seed {seed}, batch {batch}"));
        }
    }
}

/// KEYS lists what SCAN lists, in no order.
#[test]
fn keys_are_those_of_redis() {
    let mut pair = Pair::new();
    let mut random = Random::new(8);
    let names: Vec<String> = (0..300)
        .map(|number| format!("{:03}k{number}", number * 7))
        .collect();
    for name in &names {
        pair.same(&command(&["SET", name, "x"]), &mut random, name);
    }
    for pattern in ["*", "0*", "*k1?", "[01]??k*", "none", "*k[^1]", "", "007k1"] {
        let sent = [command(&["KEYS", pattern]), command(&["ECHO", "end"])].concat();
        let (real, _) = pair.real.ask(&sent, b"$3\r\nend\r\n");
        pair.ours.out_len_max = 1;
        let mut ours = pair.ours.feed(&sent);
        ours.truncate(ours.len() - b"$3\r\nend\r\n".len());
        let sorted = |answer: &[u8]| {
            let mut lines: Vec<_> = answer
                .split(|byte| *byte == b'\n')
                .map(<[u8]>::to_vec)
                .collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&real), sorted(&ours), "{pattern}");
    }
    pair.same(&command(&["KEYS"]), &mut random, "KEYS");
}

#[test]
fn nonsense_is_answered_as_redis_answers() {
    let scenes: Vec<Vec<u8>> = vec![
        b"*1\r\n$-1\r\n".to_vec(),
        b"*1\r\n$600000000\r\n".to_vec(),
        b"*1\r\n$x\r\n".to_vec(),
        b"*1\r\n$\r\n".to_vec(),
        b"*1\r\n$01\r\n".to_vec(),
        b"*x\r\n".to_vec(),
        b"*\r\n".to_vec(),
        b"*2147483648\r\n".to_vec(),
        b"*99999999999999999999\r\n".to_vec(),
        b"*-1\r\n".to_vec(),
        b"*-99\r\n*0\r\n".to_vec(),
        b"*1\r\n!3\r\n".to_vec(),
        b"*2\r\n$3\r\nGET\r\n\r\n".to_vec(),
        b"*1\r\r\n$4\r\nPING\r\n".to_vec(),
        b"*1\r\n$4\r\nPINGxx".to_vec(),
        b"*3\r\n$3\r\nfoo\r\n$1\r\na\r\n$1\r\nb\r\n".to_vec(),
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n*1\r\n".to_vec(),
        b"\r\n\r\n   \r\n\n".to_vec(),
        b"\"abc\r\n".to_vec(),
        b"'abc\"\r\n".to_vec(),
        b"set \"a\"b c\r\n".to_vec(),
        b"set k \"\\x41\\n\\\"\" \r\nget k\r\n".to_vec(),
        b"set k 'a\\'b' \r\nget k\r\n".to_vec(),
        b"post / HTTP/1.1\r\n".to_vec(),
        b"hOsT: a\r\n".to_vec(),
        b"QUIT\r\nGET a\r\n".to_vec(),
        b"QUIT a b\r\n".to_vec(),
    ];
    let mut pair = Pair::new();
    let mut random = Random::new(5);
    for scene in scenes {
        pair.same(&scene, &mut random, "nonsense");
    }
}

#[test]
fn lines_without_end_are_answered_as_redis_answers() {
    let mut pair = Pair::new();
    for start in ["A", "*", "*1\r\n$"] {
        let bytes = [start.as_bytes(), &b"1".repeat(70_000)].concat();
        let (real, real_closed) = pair.server.connect().ask(&bytes, b"nothing else");
        pair.ours.reconnect(RespSession::new());
        let ours = pair.ours.feed(&bytes);
        assert!(real_closed && pair.ours.is_closed(), "{start}");
        assert_eq!(show(&real), show(&ours), "{start}");
    }
}

#[test]
fn many_keys_and_large_values() {
    let mut pair = Pair::new();
    let mut random = Random::new(6);
    let keys: Vec<String> = (0..5000).map(|number| format!("key-{number}")).collect();
    let mut pairs = vec!["MSET".to_owned()];
    for (index, key) in keys.iter().enumerate().filter(|(index, _)| index % 3 > 0) {
        pairs.extend([key.clone(), "v".repeat(index % 200)]);
    }
    pair.same(&command(&pairs), &mut random, "MSET");
    for name in ["MGET", "EXISTS", "TOUCH", "DEL", "UNLINK", "MGET"] {
        let mut words = vec![name.to_owned()];
        words.extend(keys.iter().cloned());
        pair.same(&command(&words), &mut random, name);
    }
    let big = vec![b'b'; 1_000_000];
    let set = command(&[b"SET".as_slice(), b"big", &big]);
    pair.same(&set, &mut random, "SET big");
    pair.ours.out_len_max = 1000;
    let get = command(&["MGET", "big", "none", "big", "big"]);
    pair.same(&get, &mut random, "MGET big");
    pair.same(&command(&["APPEND", "big", "x"]), &mut random, "APPEND big");
    pair.same(
        &command(&["GETRANGE", "big", "999998", "-1"]),
        &mut random,
        "GETRANGE big",
    );
}

#[test]
fn random_commands_are_answered_as_redis_answers() {
    let mut pair = Pair::new();
    for seed in 0..400 {
        let mut random = Random::new(seed);
        for batch in 0..10 {
            let count = 1 + random.below(8);
            let bytes: Vec<u8> = (0..count)
                .flat_map(|_| command(&random_words(&mut random)))
                .collect();
            pair.same(&bytes, &mut random, &format!("seed {seed}, batch {batch}"));
        }
    }
}
