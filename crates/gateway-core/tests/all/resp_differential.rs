//! RESP beside Debian's redis-server: the same commands, the same answers,
//! byte for byte but for times, where two seconds do not count.
//!
//! Left out of the comparison, because they differ on purpose (see the module
//! `resp`): values over the cell's limit, databases, keys over 65,536 bytes,
//! the empty key, expiries after the year 10889, contents of INFO, COMMAND,
//! CLIENT INFO and LIST, cursors of SCAN, more than 1,024 arguments, zero bytes
//! in a command line (Redis waits for ever).

use crate::rig;
use crate::rig::Rig;
use crate::rig::random::Random;
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

/// A command in the usual form.
fn command<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Whether two answers are the same but for times: large integers (of PTTL,
/// EXPIRETIME, TIME) may be apart by two seconds.
fn alike(one: &[u8], other: &[u8]) -> bool {
    let mut one_lines = one.split(|&byte| byte == b'\n');
    let mut other_lines = other.split(|&byte| byte == b'\n');
    loop {
        match (one_lines.next(), other_lines.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) if is_near(one, other) => {}
            _ => return false,
        }
    }
}

fn is_near(one: &[u8], other: &[u8]) -> bool {
    let time = |line: &[u8]| -> Option<i64> {
        let line = std::str::from_utf8(line).ok()?;
        line.strip_prefix(':')?.trim_end().parse().ok()
    };
    match (time(one), time(other)) {
        // Far from anything that is no time of this test's.
        (Some(one), Some(other)) => one > 90_000 && (one - other).abs() <= 2000,
        _ => false,
    }
}

/// One command a line, words by blanks; what is between `<` and `>` repeats. Some
/// tests give each line twice, so no answer may hang on a millisecond: what GT sets
/// is a date.
const SCRIPT: &str = r#"
PING
PING hello
PING a b
ECHO x
ECHO
GET a
SET a 1
GET a
GeT a
GET
GET a b
SET a
SET a 2 NX
SET b 2 NX
SET c 2 XX
SET a 3 XX
SET a 4 GET
SET none 4 GET XX
SET d 4 GET NX
SET d 5 NX GET
GET d
SET a 5 NX XX
SET a 5 EX
SET a 5 EX 0
SET a 5 EX -1
SET a 5 EX x
SET a 5 EX 9223372036854775807
SET a 5 EX 9223372036854775
SET a 5 PX 9223372036854775807
SET a 5 EX 10 PX 10
SET a 5 EX 10 KEEPTTL
SET a 5 KEEPTTL EX 10
SET a 5 EX 10 EX 100
TTL a
SET a 6 KEEPTTL
TTL a
SET a 6
TTL a
SET a 6 PX 100250
TTL a
PTTL a
SET a 6 EXAT 1
GET a
SET a 6 EXAT 99999999999
EXPIRETIME a
PEXPIRETIME a
TTL none
PTTL none
EXPIRETIME none
SET a 6 foo
SET a 6 PERSIST
SET a x EX 10 GET
SETNX a 1
SETNX e 1
SETNX e
SETEX a 100 v
SETEX a 0 v
SETEX a x v
SETEX a 100
PSETEX a 100250 v
PSETEX a -5 v
TTL a
GETSET a w
TTL a
GETSET none2 w
MSET a 1 b 2 c 3
MSET a 1 b
MSET
MSET a
MGET a b c none
MGET
MGET a
DEL a none b
DEL
DEL a a
UNLINK c none
MSET a 1 b 2
EXISTS a b none a
EXISTS
TOUCH a none
TYPE a
TYPE none
STRLEN a
STRLEN none
SET a hello
APPEND a -world
APPEND new x
GET a
STRLEN a
GETRANGE a 0 4
GETRANGE a -5 -1
GETRANGE a 4 1
GETRANGE a -1 -5
GETRANGE a 0 100
GETRANGE a 100 200
GETRANGE a x 1
GETRANGE none 0 1
GETRANGE a -100 -90
SUBSTR a 1 2
SETRANGE a 2 XX
GET a
SETRANGE gap 3 x
GET gap
SETRANGE none3 0 ""
SETRANGE a -1 x
SETRANGE a x x
SETRANGE a 536870912 x
SETRANGE a 100
GETDEL a
GETDEL a
INCRBYFLOAT f 0.1
INCRBYFLOAT f 0.2
SET f 3.0e2
INCRBYFLOAT f -3.5
INCRBYFLOAT f x
INCRBYFLOAT f 5e-1
INCRBYFLOAT f
GET f
SET f 10.50 PX 100000
INCRBYFLOAT f 1
SET f word
INCRBYFLOAT f 1
SET f 17
OBJECT ENCODING f
OBJECT REFCOUNT none
OBJECT IDLETIME none
OBJECT ENCODING none
OBJECT FREQ f
OBJECT NOSUCH f
SET f words
OBJECT ENCODING f
OBJECT REFCOUNT f
COMMAND GETKEYS MSET a 1 b 2
COMMAND GETKEYS GET
COMMAND GETKEYS PING
COMMAND GETKEYS NOSUCH a
COMMAND GETKEYS EVAL s 2 a b c
COMMAND GETKEYS EVAL s 0
COMMAND LIST FILTERBY PATTERN incrbyf*
COMMAND LIST FILTERBY NOSUCH x
CLIENT GETREDIR
CLIENT TRACKINGINFO
GETDEL
SET a 10
INCR a
INCR a b
DECR a
INCRBY a 5
DECRBY a 7
INCRBY a x
INCRBY a 9223372036854775807
DECRBY a -9223372036854775808
DECRBY a 9223372036854775807
SET a 9223372036854775807
INCR a
INCRBY a -1
SET a -9223372036854775808
DECR a
SET a 01
INCR a
SET a abc
INCR a
SET a ""
INCR a
SET a " 1"
INCR a
INCR fresh
DECR fresh2
SET t 1 EX 100
INCR t
TTL t
APPEND t 0
TTL t
EXPIRE a 100
TTL a
EXPIRE a 200 NX
EXPIRE a 200 XX
EXPIRE a 100 GT
PEXPIREAT a 9999999999999 GT
EXPIRE a 400 LT
EXPIRE a 250 LT
TTL a
EXPIRE a 250 xx lt
EXPIRE a 100 XX GT
EXPIRE none 100
EXPIRE a x
EXPIRE a 100 foo
EXPIRE a 100 NX GT
EXPIRE a 100 NX XX
EXPIRE a 100 GT LT
EXPIRE a 9223372036854775807
EXPIRE a -9223372036854775808
PEXPIRE a 9223372036854775807
EXPIREAT a 99999999999
TTL a
PEXPIREAT a 9999999999999
PEXPIRETIME a
PERSIST a
PERSIST a
PERSIST none
TTL a
EXPIRE a 100 GT
EXPIRE a 100 LT
EXPIRE a -1
GET a
SET a 1
PEXPIREAT a 1
GET a
SET a 1
GETEX a
GETEX a EX 100
TTL a
GETEX a PERSIST
TTL a
GETEX a PX 100250
TTL a
GETEX a EXAT 99999999999
EXPIRETIME a
GETEX a foo
GETEX a EX
GETEX a EX 0
GETEX a EX x
GETEX none EX x
GETEX none EX 10
GETEX a EX 10 PERSIST
GETEX a KEEPTTL
GETEX a PXAT 1
GET a
SELECT 0
SELECT x
SELECT -1
SELECT 16
SELECT 99999999999
AUTH x
AUTH default x
AUTH nobody x
AUTH a b c
AUTH
HELLO x
HELLO 1
HELLO 4
HELLO 3 foo
HELLO 3 AUTH a
HELLO 3 AUTH nobody x
HELLO 2 SETNAME "a b"
CLIENT
CLIENT FOO
CLIENT GETNAME
CLIENT SETNAME me
CLIENT GETNAME
CLIENT SETNAME "a b"
CLIENT SETNAME
CLIENT SETNAME ""
CLIENT GETNAME
CLIENT ID x
CLIENT NO-EVICT on
CLIENT NO-EVICT foo
CONFIG
CONFIG FOO
CONFIG GET
CONFIG GET maxmemory
CONFIG GET save
CONFIG GET appendonly
CONFIG GET nosuch
CONFIG RESETSTAT
COMMAND FOO
COMMAND COUNT x
COMMAND INFO nosuch
COMMAND DOCS nosuch
INFO nosuch
FLUSHALL foo
FLUSHALL SYNC foo
FLUSHDB ASYNC
DBSIZE
DBSIZE x
SLOWLOG
SLOWLOG FOO
SLOWLOG RESET
SLOWLOG LEN
SLOWLOG LEN x
SLOWLOG GET
SLOWLOG GET 3
SLOWLOG GET -1
SLOWLOG GET -2
SLOWLOG GET x
SLOWLOG GET 1 2
SET a 1
DBSIZE
FLUSHALL
GET a
FLUSHALL SYNC
FLUSHALL ASYNC
SCAN 0
SCAN x
SCAN 0 COUNT 0
SCAN 0 COUNT x
SCAN 0 MATCH
SCAN 0 foo
SET only 1
SCAN 0
SCAN 0 MATCH on* COUNT 100
SCAN 0 MATCH x*
SCAN 0 MATCH *
SCAN 0 TYPE string
SCAN 0 TYPE list
SCAN 0 COUNT 100 TYPE STRING MATCH o[m-o]ly
foo
foo a b
nosuch
foo "a\r\nb" "\x00c" "d\x00e"
"foo\r\nbar" a
INCRBYFLOATX a 1
TIME x
RESET x
SET a 1
RESET
GET a
"#;

/// The words of a line of the script.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    for part in line.split(' ') {
        words.push(match part {
            r#""""# => Vec::new(),
            r#""a\r\nb""# => b"a\r\nb".to_vec(),
            r#""foo\r\nbar""# => b"foo\r\nbar".to_vec(),
            r#""\x00c""# => b"\x00c".to_vec(),
            r#""d\x00e""# => b"d\x00e".to_vec(),
            part => part.as_bytes().to_vec(),
        });
    }
    words
}

fn script() -> Vec<&'static str> {
    SCRIPT.lines().filter(|line| !line.is_empty()).collect()
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
        for line in script() {
            pair.same(&command(&words(line)), &mut random, line);
        }
    }
}

/// The same as lines, where words can be written so.
#[test]
fn the_script_in_lines_is_answered_as_redis_answers() {
    let mut pair = Pair::new();
    let mut random = Random::new(3);
    for line in script() {
        pair.same(format!("{line}\r\n").as_bytes(), &mut random, line);
        pair.same(format!("{line}\n").as_bytes(), &mut random, line);
    }
}

/// And all at once.
#[test]
fn the_script_in_one_piece_is_answered_as_redis_answers() {
    let mut pair = Pair::new();
    let mut random = Random::new(4);
    let all: Vec<u8> = script()
        .iter()
        .flat_map(|line| command(&words(line)))
        .collect();
    pair.same(&all, &mut random, "all");
    pair.ours.out_len_max = 1;
    pair.same(&all, &mut random, "all, no room for answers");
}

/// Scenes of transactions; each ends with none open.
const TRANSACTIONS: &[&str] = &[
    "MULTI|EXEC",
    "EXEC|DISCARD|UNWATCH|EXEC x|UNWATCH x",
    "MULTI|SET a 1|INCR a|GET a|EXEC|GET a",
    "MULTI|SET a 1|SET b 2|GET a|GET b|MGET a b none|EXEC|MGET a b",
    "MULTI|MSET a 1 b 2 c 3|DEL a none|EXISTS a b|EXEC|MGET a b c",
    "MULTI|SET a x|INCR a|SET a 1|EXEC|GET a",
    "MULTI|SET a x|INCR a|SET b 1|EXEC|GET b",
    "MULTI|SET a 1|DISCARD|GET a",
    "MULTI|MULTI|SET a 2|EXEC",
    "MULTI|WATCH a|SET a 3|EXEC",
    "MULTI|SET a 4|SET a|EXEC|GET a",
    "MULTI|nosuch a|SET a 5|EXEC|GET a",
    "MULTI|WATCH|EXEC",
    "MULTI|MSET a|EXEC",
    "MULTI|DISCARD x|EXEC",
    "MULTI|EXEC x|EXEC",
    "MULTI|UNWATCH|EXEC",
    "MULTI|PING|ECHO hello|SELECT 0|SELECT x|EXEC",
    "MULTI|SET a 1|RESET|EXEC|GET a",
    "WATCH a|MULTI|SET a 6|EXEC|GET a",
    "WATCH a|SET a 7|MULTI|SET a 8|EXEC|GET a",
    "WATCH a b|SET b 7|MULTI|SET c 8|EXEC|GET c",
    "WATCH a b|MULTI|SET c 8|SET a 9|EXEC|MGET a b c",
    "WATCH none|SET none x|MULTI|SET a 10|EXEC|DEL none|GET a",
    "WATCH none|MULTI|SET a 10|EXEC|GET a",
    "WATCH a|SET a 11|UNWATCH|MULTI|SET a 12|EXEC|GET a",
    "WATCH a|MULTI|DISCARD|SET a 13|MULTI|SET a 14|EXEC|GET a",
    "WATCH a|MULTI|EXEC|SET a 15|MULTI|SET a 16|EXEC|GET a",
    "WATCH a|EXPIRE a 1000|MULTI|GET a|EXEC|TTL a",
    "WATCH a|SETNX a x|DEL none|MULTI|GET a|EXEC",
    "WATCH a|FLUSHALL|MULTI|GET a|EXEC|SET a 1",
    "WATCH none|FLUSHALL|MULTI|GET a|EXEC|SET a 1",
    "SET a 1|WATCH a|MULTI|GET none|EXEC",
    "MULTI|SET a 1 EX 1000|TTL a|PERSIST a|TTL a|SET a 1 PX 1000|PERSIST a|EXEC|TTL a",
    "MULTI|SET a 1|PEXPIREAT a 1|GET a|EXISTS a|EXEC|GET a",
    "SET a 1|MULTI|DEL a|SETNX a 2|GET a|EXEC|GET a",
    "SET a 1|MULTI|GETDEL a|GETSET a 2|APPEND a x|STRLEN a|GETRANGE a 0 0|GETEX a PERSIST|EXEC",
    "MULTI|DBSIZE|FLUSHALL|DBSIZE|EXEC",
    "MULTI|SET a 1|DEL a b|DBSIZE|EXEC",
    "MULTI|QUIT",
];

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

fn random_words(random: &mut Random) -> Vec<Vec<u8>> {
    let number = |random: &mut Random| {
        let numbers = [
            "0",
            "1",
            "-1",
            "7",
            "100",
            "9223372036854775807",
            "-9223372036854775808",
            "x",
            "",
            "01",
            "100000",
        ];
        random.pick(&numbers).as_bytes().to_vec()
    };
    let future = |random: &mut Random| {
        // Far enough that rounding does not depend on the moment.
        let times = ["100000", "100000000", "99999999999", "-1", "0", "x"];
        random.pick(&times).as_bytes().to_vec()
    };
    let key = |random: &mut Random| format!("k{}", random.below(8)).into_bytes();
    let value = |random: &mut Random| match random.below(5) {
        0 => number(random),
        1 => vec![b'v'; random.below(3000) as usize],
        2 => b"\r\n\x00".to_vec(),
        _ => random.below(1000).to_string().into_bytes(),
    };
    let word = |word: &str| word.as_bytes().to_vec();
    let one_of = |random: &mut Random, names: &[&str]| random.pick(names).as_bytes().to_vec();
    let mut words = match random.below(20) {
        0..=3 => vec![word("SET"), key(random), value(random)],
        4..=5 => vec![word("GET"), key(random)],
        6 => vec![
            one_of(
                random,
                &["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME", "PERSIST"],
            ),
            key(random),
        ],
        7 => vec![
            one_of(random, &["INCR", "DECR", "STRLEN", "TYPE", "GETDEL"]),
            key(random),
        ],
        8 => vec![
            one_of(random, &["INCRBY", "DECRBY"]),
            key(random),
            number(random),
        ],
        9 => vec![
            one_of(random, &["APPEND", "GETSET", "SETNX"]),
            key(random),
            value(random),
        ],
        10 => vec![word("SETEX"), key(random), future(random), value(random)],
        11 => vec![
            word("GETRANGE"),
            key(random),
            number(random),
            number(random),
        ],
        12 => vec![
            word("SETRANGE"),
            key(random),
            random.below(40).to_string().into_bytes(),
            value(random),
        ],
        13 => vec![
            one_of(random, &["MGET", "DEL", "EXISTS", "UNLINK", "TOUCH"]),
            key(random),
            key(random),
            key(random),
        ],
        14 => vec![
            word("MSET"),
            key(random),
            value(random),
            key(random),
            value(random),
        ],
        15..=16 => vec![
            one_of(random, &["EXPIRE", "PEXPIREAT", "EXPIREAT"]),
            key(random),
            future(random),
        ],
        17..=18 => vec![word("GETEX"), key(random)],
        _ => match random.below(12) {
            0 => vec![word("FLUSHALL")],
            1 => vec![word("DBSIZE"), key(random)],
            2 => vec![value(random), key(random), value(random)],
            _ => vec![word("PING"), value(random)],
        },
    };
    // Options, legal or not.
    if random.below(3) == 0 && !words.is_empty() {
        let is_multi = ["MGET", "MSET", "DEL", "EXISTS", "UNLINK", "TOUCH"]
            .iter()
            .any(|name| words[0] == name.as_bytes());
        for _ in 0..1 + random.below(2) {
            if is_multi {
                break;
            }
            let option = *random.pick(&[
                "NX", "XX", "GET", "KEEPTTL", "GT", "LT", "PERSIST", "EX", "PX", "EXAT", "PXAT",
            ]);
            words.push(word(option));
            if option.starts_with(['E', 'P']) && option != "PERSIST" {
                words.push(future(random));
            }
        }
    }
    words
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
