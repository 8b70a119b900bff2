//! RESP where there is nothing to compare with: authentication, faults of the
//! cell, limits, long inputs and outputs, lists of keys.

use crate::rig::Rig;
use std::collections::BTreeSet;
use trefoil_gateway_core::keyspace::{Access, Fault, Keyspace as _};
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::{Session as _, Wants};
use trefoil_gateway_core::world::{Command, Ending, Introduction, Isolation};
use trefoil_layout::op::Rejection;

const TOO_LONG: &str = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";

fn rig() -> Rig<RespSession> {
    Rig::new(RespSession::new())
}

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

/// Executes a line of words.
fn ask(rig: &mut Rig<RespSession>, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    String::from_utf8(rig.feed(&command(&words))).expect("text")
}

#[test]
fn the_slow_log() {
    let mut rig = rig();
    assert_eq!(ask(&mut rig, "SLOWLOG LEN"), ":0\r\n");
    assert_eq!(ask(&mut rig, "SLOWLOG GET"), "*0\r\n");
    rig.notes.slow = (0..12).rev().collect();
    assert_eq!(ask(&mut rig, "SLOWLOG LEN"), ":12\r\n");
    let one = "*6\r\n:11\r\n:5\r\n:7\r\n*2\r\n$3\r\nget\r\n$8\r\nsome key\r\n\
               $11\r\n127.0.0.1:9\r\n$0\r\n\r\n";
    assert_eq!(ask(&mut rig, "SLOWLOG GET 1"), format!("*1\r\n{one}"));
    assert_eq!(ask(&mut rig, "SLOWLOG GET 0"), "*0\r\n");
    assert!(ask(&mut rig, "SLOWLOG GET").starts_with(&format!("*10\r\n{one}")));
    assert!(ask(&mut rig, "SLOWLOG GET -1").starts_with(&format!("*12\r\n{one}")));
    assert_eq!(ask(&mut rig, "SLOWLOG RESET"), "+OK\r\n");
    assert_eq!(ask(&mut rig, "SLOWLOG LEN"), ":0\r\n");
}

#[test]
fn nothing_goes_before_authentication() {
    let mut rig = rig();
    rig.settings.authentication = true;
    let noauth = "-NOAUTH Authentication required.\r\n";
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    let cases = [
        ("GET a", noauth),
        ("MGET a b", noauth),
        ("PING", noauth),
        ("INFO", noauth),
        (
            "GET",
            "-ERR wrong number of arguments for 'get' command\r\n",
        ),
        (
            "nosuch",
            "-ERR unknown command 'nosuch', with args beginning with: \r\n",
        ),
        ("AUTH wrong", wrong),
        ("AUTH me wrong", wrong),
        ("HELLO 3 AUTH me wrong", wrong),
        ("GET a", noauth),
        ("RESET", "+RESET\r\n"),
        ("AUTH secret", "+OK\r\n"),
        ("GET a", "$-1\r\n"),
        ("AUTH me wrong", wrong),
        ("GET a", "$-1\r\n"),
        ("RESET", "+RESET\r\n"),
        ("GET a", noauth),
        ("AUTH me secret", "+OK\r\n"),
        ("GET a", "$-1\r\n"),
    ];
    for (line, expected) in cases {
        assert_eq!(ask(&mut rig, line), expected, "{line}");
    }
    rig.reconnect(RespSession::new());
    assert!(ask(&mut rig, "HELLO 3").starts_with("-NOAUTH HELLO must"));
    assert!(ask(&mut rig, "HELLO 3 AUTH me secret SETNAME x").starts_with("%7\r\n"));
    assert_eq!(ask(&mut rig, "CLIENT GETNAME"), "$1\r\nx\r\n");
    assert_eq!(ask(&mut rig, "GET a"), "_\r\n");
}

/// Strangers cannot make the server keep much.
#[test]
fn strangers_send_little() {
    for (bytes, error) in [
        (
            "*11\r\n",
            "-ERR Protocol error: unauthenticated multibulk length\r\n",
        ),
        (
            "*2\r\n$4\r\nAUTH\r\n$16385\r\n",
            "-ERR Protocol error: unauthenticated bulk length\r\n",
        ),
    ] {
        let mut rig = rig();
        rig.settings.authentication = true;
        assert_eq!(rig.feed(bytes.as_bytes()), error.as_bytes());
        assert!(rig.is_closed());
    }
}

#[test]
fn faults_are_never_misses() {
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    let cases = [
        (
            Fault::Inquorate,
            "-TRYAGAIN no quorum of replicas agrees on this key\r\n",
        ),
        (
            Fault::Contended,
            "-TRYAGAIN too many writers of this key\r\n",
        ),
        (Fault::Unavailable("gone".into()), "-ERR gone\r\n"),
        (
            Fault::Indeterminate,
            "-ERR the outcome is unknown: a replica did not answer in time\r\n",
        ),
        (
            Fault::Unsupported("this"),
            "-ERR this is not available here\r\n",
        ),
        (Fault::Rejected(Rejection::NoMemory), oom),
        (Fault::Rejected(Rejection::ValueTooLong), TOO_LONG),
        (
            Fault::Rejected(Rejection::Recovering),
            "-TRYAGAIN the backend is recovering\r\n",
        ),
    ];
    let lines = [
        "GET a",
        "SET a 1",
        "SET a 1 NX",
        "SET a 1 GET",
        "SETNX a 1",
        "GETSET a 1",
        "MSET a 1 b 2",
        "DEL a b",
        "EXISTS a b",
        "TOUCH a",
        "EXPIRE a 10",
        "PERSIST a",
        "TTL a",
        "TYPE a",
        "STRLEN a",
        "GETRANGE a 0 1",
        "APPEND a x",
        "SETRANGE a 1 x",
        "INCR a",
        "GETDEL a",
        "GETEX a EX 10",
        "GETEX a",
        "SCAN 0",
        "DBSIZE",
        "FLUSHALL",
    ];
    for (fault, expected) in cases {
        for line in lines {
            let mut rig = rig();
            rig.keyspace.fault = Some(fault.clone());
            assert_eq!(ask(&mut rig, line), expected, "{line}");
        }
        let mut rig = rig();
        rig.keyspace.fault = Some(fault);
        let both = format!("*2\r\n{expected}{expected}");
        assert_eq!(ask(&mut rig, "MGET a b"), both);
    }
}

#[test]
fn values_over_the_limit_are_skipped() {
    let mut rig = rig();
    // The cell's limit: that of memcached's clients is not theirs.
    rig.settings.item_len_max = 10;
    let limit = 1 << 20;
    rig.keyspace.inner.value_len_max = Some(limit);
    let largest = vec![b'v'; limit];
    let too_large = vec![b'v'; limit + 1];
    let huge = vec![b'v'; 8 << 20];
    assert_eq!(
        rig.feed(&command(&[b"SET".as_slice(), b"k", &largest])),
        b"+OK\r\n"
    );
    for value in [&too_large, &huge] {
        for words in [
            vec![b"SET".as_slice(), b"k", value],
            vec![b"SETEX", b"k", b"100", value],
            vec![b"SET", b"k", value, b"EX", b"10"],
            vec![b"GETSET", b"k", value],
            vec![b"APPEND", b"k", value],
            vec![b"MSET", b"j", b"1", b"k", value, b"l", b"2"],
        ] {
            let mut bytes = command(&words);
            bytes.extend(command(&["STRLEN", "k"]));
            let mut found = Vec::new();
            for part in bytes.chunks(100_000) {
                found.extend(rig.feed(part));
                let kept_max = limit + 200_000;
                assert!(rig.pending_len() < kept_max, "bounded memory");
            }
            let expected = format!("{TOO_LONG}:{limit}\r\n");
            assert_eq!(String::from_utf8_lossy(&found), expected);
        }
    }
    assert!(rig.asked_max <= limit + 65_536 + 20_000);
    // The others of an MSET were stored.
    assert_eq!(ask(&mut rig, "MGET j l"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(ask(&mut rig, "APPEND k x"), TOO_LONG);
    assert_eq!(ask(&mut rig, "SETRANGE k 1048576 x"), TOO_LONG);
}

#[test]
fn keys_over_the_limit() {
    let mut rig = rig();
    let longest = "k".repeat(65_536);
    let too_long = "k".repeat(65_537);
    assert_eq!(ask(&mut rig, &format!("SET {longest} 1")), "+OK\r\n");
    assert_eq!(ask(&mut rig, &format!("GET {longest}")), "$1\r\n1\r\n");
    let key_error = "-ERR the key is longer than 65536 bytes\r\n";
    for (line, expected) in [
        ("GET", "$-1\r\n"),
        ("STRLEN", ":0\r\n"),
        ("TTL", ":-2\r\n"),
        ("DEL", ":0\r\n"),
        ("MGET", "*1\r\n$-1\r\n"),
        ("EXISTS", ":0\r\n"),
        ("GETDEL", "$-1\r\n"),
        ("PERSIST", ":0\r\n"),
        ("INCR", key_error),
    ] {
        assert_eq!(
            ask(&mut rig, &format!("{line} {too_long}")),
            expected,
            "{line}"
        );
    }
    for (line, rest) in [("SET", "1"), ("MSET", "1"), ("APPEND", "1"), ("SETNX", "1")] {
        let found = ask(&mut rig, &format!("{line} {too_long} {rest}"));
        assert_eq!(found, key_error, "{line}");
    }
    let empty = "-ERR the key is empty\r\n";
    for line in ["SET  1", "MSET  1", "INCR ", "APPEND  x"] {
        assert_eq!(ask(&mut rig, line), empty, "{line}");
    }
    assert_eq!(ask(&mut rig, "GET "), "$-1\r\n");
}

#[test]
fn a_large_value_is_asked_for_at_once() {
    let mut rig = rig();
    let bytes = command(&[b"SET".as_slice(), b"key", &[b'v'; 500_000]]);
    rig.feed(&bytes[..40]);
    assert_eq!(rig.wants, Wants::Input(bytes.len()));
    assert_eq!(rig.feed(&bytes[40..]), b"+OK\r\n");
    assert_eq!(rig.wants, Wants::Input(0));
}

/// A command of any number of keys takes no more room than one of few.
#[test]
fn many_keys_go_as_they_come() {
    let mut rig = rig();
    rig.out_len_max = 4096;
    rig.feed(&command(&["SET", "key7", &"v".repeat(1000)]));
    for (name, per_key) in [("MGET", "key7"), ("EXISTS", "key7"), ("DEL", "nosuch")] {
        let count = 100_000;
        let mut bytes = format!("*{}\r\n${}\r\n{name}\r\n", count + 1, name.len()).into_bytes();
        for _ in 0..count {
            bytes.extend(format!("${}\r\n{per_key}\r\n", per_key.len()).into_bytes());
        }
        let mut found_len = 0;
        for part in bytes.chunks(777) {
            found_len += rig.feed(part).len();
            assert!(rig.pending_len() < 100, "{name}");
        }
        let expected_len = match name {
            "MGET" => "*100000\r\n".len() + count * ("$1000\r\n\r\n".len() + 1000),
            "EXISTS" => ":100000\r\n".len(),
            _ => ":0\r\n".len(),
        };
        assert_eq!(found_len, expected_len, "{name}");
    }
}

#[test]
fn too_many_arguments_are_refused_and_skipped() {
    let mut rig = rig();
    let mut words = vec!["SET"; 3];
    words.extend(["NX"; 2000]);
    let found = rig.feed(&[command(&words), command(&["PING"])].concat());
    let expected =
        "-ERR more than 1024 arguments to a command that does not take many keys\r\n+PONG\r\n";
    assert_eq!(String::from_utf8_lossy(&found), expected);
    let words = vec!["GET"; 3000];
    let found = rig.feed(&[command(&words), command(&["PING"])].concat());
    let expected = "-ERR wrong number of arguments for 'get' command\r\n+PONG\r\n";
    assert_eq!(String::from_utf8_lossy(&found), expected);
    let words = vec!["nosuch"; 3000];
    let found = rig.feed(&[command(&words), command(&["PING"])].concat());
    assert!(
        found.starts_with(b"-ERR unknown command 'nosuch', with args beginning with: 'nosuch' ")
    );
    assert!(found.ends_with(b"\r\n+PONG\r\n"));
}

/// Arguments of an array, as bulk strings.
fn bulks(answer: &str) -> Vec<String> {
    let mut lines = answer.split("\r\n");
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with('$') {
            found.extend(lines.next().map(str::to_owned));
        }
    }
    found
}

#[test]
fn scan_lists_every_key() {
    let mut rig = rig();
    let keys: BTreeSet<String> = (0..500).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        ask(&mut rig, &format!("SET {key} 1"));
    }
    for options in [
        "",
        " COUNT 1",
        " COUNT 7",
        " COUNT 100000",
        " MATCH key-* COUNT 33",
    ] {
        let mut found = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let answer = ask(&mut rig, &format!("SCAN {cursor}{options}"));
            let mut bulks = bulks(&answer).into_iter();
            cursor = bulks.next().expect("a cursor");
            found.extend(bulks);
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found, keys, "{options}");
    }
    let answer = ask(&mut rig, "SCAN 0 COUNT 1000 MATCH key-49?");
    assert_eq!(bulks(&answer).len(), 11, "{answer}");
    let long = "*a".repeat(600);
    let answer = ask(&mut rig, &format!("SCAN 0 MATCH {long}"));
    assert_eq!(answer, "-ERR the pattern is longer than 1024 bytes\r\n");
    assert_eq!(ask(&mut rig, "DBSIZE"), ":500\r\n");
}

#[test]
fn commands_are_named_so_often() {
    let mut rig = rig();
    for subcommand in ["INFO", "DOCS"] {
        let most = format!("COMMAND {subcommand}{}", " client".repeat(256));
        assert!(ask(&mut rig, &most).starts_with('*'));
        assert_eq!(
            ask(&mut rig, &format!("{most} get")),
            "-ERR COMMAND tells of at most 256 commands at once\r\n"
        );
    }
    // Those within others are an array, which is a set where there are none.
    ask(&mut rig, "HELLO 3");
    let memory = ask(&mut rig, "COMMAND INFO memory");
    assert!(memory.contains("~0\r\n~0\r\n*2\r\n*10\r\n$11\r\nmemory|help\r\n"));
    assert!(ask(&mut rig, "COMMAND INFO get").ends_with("~0\r\n"));
}

/// Whole answers in a form that clients parse; the contents are ours.
#[test]
fn reports_are_whole() {
    let mut rig = rig();
    ask(&mut rig, "SET a 1");
    let info = ask(&mut rig, "INFO");
    for line in [
        "# Server\r\n",
        "redis_version:7.0.15\r\n",
        "process_id:1\r\n",
        "uptime_in_seconds:2\r\n",
        "role:master\r\n",
        "db0:keys=1,",
    ] {
        assert!(info.contains(line), "{line:?} in {info}");
    }
    assert_eq!(
        ask(&mut rig, "INFO keyspace"),
        "$44\r\n# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n\r\n"
    );
    let config = ask(&mut rig, "CONFIG GET max*");
    assert_eq!(
        bulks(&config),
        [
            "maxclients",
            "1024",
            "maxmemory",
            "0",
            "maxmemory-policy",
            "allkeys-lru"
        ]
    );
    for (idle_timeout, shown) in [(None, "0"), (Some(90), "90")] {
        rig.settings.idle_timeout = idle_timeout.map(std::time::Duration::from_secs);
        let config = ask(&mut rig, "CONFIG GET timeout");
        assert_eq!(bulks(&config), ["timeout", shown]);
    }
    assert_eq!(ask(&mut rig, "COMMAND COUNT"), ":71\r\n");
    let names = bulks(&ask(&mut rig, "COMMAND LIST"));
    let (within, commands): (Vec<&String>, Vec<&String>) =
        names.iter().partition(|name| name.contains('|'));
    assert_eq!(commands.len(), 71);
    assert!(within.iter().any(|name| *name == "client|id"));
    assert!(ask(&mut rig, "COMMAND").starts_with("*71\r\n*10\r\n"));
    assert!(ask(&mut rig, "COMMAND INFO get x").ends_with("$-1\r\n"));
    assert_eq!(
        bulks(&ask(&mut rig, "COMMAND DOCS get")),
        [
            "get",
            "summary",
            "Reads a value",
            "since",
            "1.0.0",
            "group",
            "string"
        ]
    );
    assert!(ask(&mut rig, "CLIENT INFO").contains("id=7 addr="));
    assert_eq!(ask(&mut rig, "CLIENT ID"), ":7\r\n");
    assert_eq!(ask(&mut rig, "CLIENT SETINFO lib-name redis-py"), "+OK\r\n");
    assert_eq!(
        ask(&mut rig, "CLIENT SETINFO foo x"),
        "-ERR Unrecognized option 'foo'\r\n"
    );
    let now_ms = rig.keyspace.inner.now_ms;
    assert_eq!(
        bulks(&ask(&mut rig, "TIME"))[0],
        (now_ms / 1000).to_string()
    );
    ask(&mut rig, "CONFIG RESETSTAT");
    assert_eq!(rig.notes.resets, 1);
}

#[test]
fn commands_are_told_of() {
    let mut rig = rig();
    for line in [
        "SET a 1",
        "GET a",
        "GET b",
        "SETNX a 1",
        "SET b 1 XX",
        "MGET a b",
        "INCR a",
        "DECR a",
        "EXPIRE a 10",
        "GETEX a EX 20",
        "DEL a b",
        "FLUSHALL",
    ] {
        ask(&mut rig, line);
    }
    let told: Vec<(Command, Ending)> = rig.notes.done.iter().map(|d| (d.0, d.1)).collect();
    let expected = [
        (Command::Set, Ending::Hit),
        (Command::Get, Ending::Hit),
        (Command::Get, Ending::Miss),
        (Command::Set, Ending::Refused),
        (Command::Set, Ending::Miss),
        (Command::Get, Ending::Hit),
        (Command::Get, Ending::Miss),
        (Command::Incr, Ending::Hit),
        (Command::Decr, Ending::Hit),
        (Command::Touch, Ending::Hit),
        (Command::GetAndTouch, Ending::Hit),
        (Command::Delete, Ending::Hit),
        (Command::Delete, Ending::Miss),
        (Command::Flush, Ending::Hit),
    ];
    assert_eq!(told, expected);
}

/// A line of many words is executed as its other form would be, and waits for
/// the output in between.
#[test]
fn a_long_line_waits_for_the_output() {
    let mut rig = rig();
    ask(&mut rig, &format!("SET a {}", "v".repeat(100)));
    let line = format!("MGET{}\r\nPING\r\n", " a".repeat(10_000));
    let whole = rig.feed(line.as_bytes());
    assert!(whole.ends_with(b"+PONG\r\n"));
    rig.out_len_max = 1;
    assert_eq!(rig.feed(line.as_bytes()), whole);
}

const EXECABORT: &str = "-EXECABORT Transaction refused, nothing was applied: ";

/// Before a replicated cell: what is atomic, what is not, and what is refused.
#[test]
fn transactions_of_several_keys_are_refused_where_that_is_asked_for() {
    let mut rig = rig();
    rig.keyspace.is_alone = false;
    let exec = |rig: &mut Rig<RespSession>, lines: &[&str]| {
        for line in lines {
            ask(rig, line);
        }
        ask(rig, "EXEC")
    };
    // One key, and several without a watch.
    let one = exec(&mut rig, &["WATCH a", "MULTI", "SET a 1", "INCR a"]);
    assert_eq!(one, "*2\r\n+OK\r\n:2\r\n");
    let several = exec(&mut rig, &["MULTI", "SET a 1", "MSET b 1 c 1"]);
    assert_eq!(several, "*2\r\n+OK\r\n+OK\r\n");
    let stale = exec(&mut rig, &["WATCH a", "SET a 1", "MULTI", "SET a 2"]);
    assert_eq!(stale, "*-1\r\n");
    // Several under a watch.
    for lines in [
        ["WATCH a", "MULTI", "SET b 2"],
        ["WATCH a b", "MULTI", "SET a 2"],
        ["WATCH a b", "MULTI", "PING"],
        ["WATCH a", "MULTI", "FLUSHALL"],
    ] {
        let refused = exec(&mut rig, &lines);
        assert!(refused.starts_with(EXECABORT), "{lines:?}: {refused}");
    }
    assert_eq!(
        ask(&mut rig, "MGET a b c"),
        "*3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n"
    );
    assert!(ask(&mut rig, "INFO server").contains("trefoil_transaction_keys:one\r\n"));
    rig.settings.transactions = Isolation::Strict;
    let refused = exec(&mut rig, &["MULTI", "SET a 3", "SET b 3"]);
    assert!(refused.starts_with(EXECABORT), "{refused}");
    let one = exec(&mut rig, &["MULTI", "SET a 3", "PING", "MGET a a"]);
    assert_eq!(one, "*3\r\n+OK\r\n+PONG\r\n*2\r\n$1\r\n3\r\n$1\r\n3\r\n");
    assert_eq!(ask(&mut rig, "GET b"), "$1\r\n1\r\n");
    assert!(ask(&mut rig, "INFO server").contains("trefoil_transactions:strict\r\n"));
}

/// Where the store is in this process a transaction is one step, but for a long one.
#[test]
fn a_transaction_is_one_step_as_long_as_it_is_short() {
    let mut rig = rig();
    let pairs: Vec<String> = (0..3000).map(|number| format!("k{number} v")).collect();
    let mset = format!("MSET {}", pairs.join(" "));
    rig.keyspace.isolations = 0;
    rig.out_len_max = 1;
    for (mset, isolations, holds) in [(mset.as_str(), 0, 1), ("MSET k1 v k2 v", 1, 0)] {
        (rig.keyspace.isolations, rig.keyspace.holds) = (0, 0);
        rig.feed(&command(&["MULTI"]));
        ask(&mut rig, mset);
        ask(&mut rig, "MGET k1 k2");
        assert_eq!(
            ask(&mut rig, "EXEC"),
            "*2\r\n+OK\r\n*2\r\n$1\r\nv\r\n$1\r\nv\r\n"
        );
        let done = (rig.keyspace.isolations, rig.keyspace.holds);
        assert_eq!(done, (isolations, holds), "{mset:.80}");
    }
    rig.settings.transactions = Isolation::Strict;
    rig.feed(&command(&["MULTI"]));
    ask(&mut rig, &mset);
    ask(&mut rig, &mset);
    let refused = ask(&mut rig, "EXEC");
    assert!(refused.starts_with(EXECABORT), "{refused}");
    rig.settings.transactions = Isolation::Relaxed;
    rig.feed(&command(&["MULTI"]));
    ask(&mut rig, &mset);
    ask(&mut rig, &mset);
    assert_eq!(ask(&mut rig, "EXEC"), "*2\r\n+OK\r\n+OK\r\n");
}

/// What a connection may have queued is bounded, and said.
#[test]
fn a_transaction_that_is_too_long_is_refused() {
    let mut rig = rig();
    ask(&mut rig, "MULTI");
    let value = "v".repeat(1 << 20);
    let mut answers: Vec<String> = (0..40)
        .map(|_| ask(&mut rig, &format!("SET a {value}")))
        .collect();
    answers.dedup();
    assert_eq!(
        answers.len(),
        3,
        "queued, refused once, and nothing kept of what follows"
    );
    assert!(
        answers[1].starts_with("-ERR a transaction has at most"),
        "{}",
        answers[1]
    );
    assert!(rig.session.kept() < 1 << 20);
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    assert_eq!(ask(&mut rig, "EXEC"), aborted);
    // The same within a command of many keys.
    ask(&mut rig, "MULTI");
    let many = format!("MSET a {}", vec![value.as_str(); 39].join(" k "));
    let refused = ask(&mut rig, &many);
    assert!(
        refused.starts_with("-ERR a transaction has at most"),
        "{refused:.80}"
    );
    assert_eq!(refused.lines().count(), 1);
    assert_eq!(ask(&mut rig, "EXEC"), aborted);
    assert_eq!(ask(&mut rig, "GET a"), "$-1\r\n");
}

/// A key that could not be read is not taken for unchanged.
#[test]
fn a_watch_that_failed_stops_the_transaction() {
    let mut rig = rig();
    rig.keyspace.fault = Some(Fault::Inquorate);
    assert!(ask(&mut rig, "WATCH a").starts_with("-TRYAGAIN"));
    rig.keyspace.fault = None;
    ask(&mut rig, "MULTI");
    ask(&mut rig, "SET a 1");
    assert_eq!(ask(&mut rig, "EXEC"), "*-1\r\n");
    ask(&mut rig, "MULTI");
    ask(&mut rig, "SET a 1");
    rig.keyspace.fault = Some(Fault::Inquorate);
    assert!(ask(&mut rig, "EXEC").starts_with("-TRYAGAIN"));
    rig.keyspace.fault = None;
    assert_eq!(ask(&mut rig, "EXEC"), "-ERR EXEC without MULTI\r\n");
}

fn exec(rig: &mut Rig<RespSession>, lines: &[&str]) -> String {
    for line in lines {
        ask(rig, line);
    }
    ask(rig, "EXEC")
}

/// Commands of one key are executed at once, and so come to an end soon.
#[test]
fn a_transaction_of_one_key_is_bounded() {
    let mut rig = rig();
    rig.keyspace.is_alone = false;
    let store = format!("SET k {}", "v".repeat(1 << 20));
    let read = format!("MGET{}", " k".repeat(200));
    let refused = exec(&mut rig, &["MULTI", "SET k x", &store, &read]);
    assert!(refused.starts_with(EXECABORT), "{refused:.80}");
    assert_eq!(ask(&mut rig, "EXISTS k"), ":0\r\n");
    // No long answer, but long values.
    let writes = ["SETRANGE k 16777215 x"; 20];
    let refused = exec(&mut rig, &[&["MULTI"], &writes[..]].concat());
    assert!(refused.starts_with(EXECABORT), "{refused:.80}");
    assert_eq!(ask(&mut rig, "EXISTS k"), ":0\r\n");
    // What is within the bounds is executed.
    let whole = exec(&mut rig, &["MULTI", &store, "GET k", "STRLEN k"]);
    assert!(whole.ends_with(":1048576\r\n"));
}

/// Under WATCH or strictness all of a transaction is executed at a stretch, or none.
#[test]
fn a_transaction_that_is_held_is_never_cut() {
    let mut rig = rig();
    let value = "v".repeat(1 << 20);
    ask(&mut rig, &format!("MSET a {value} b 1"));
    let reads = format!("MGET{}", " a".repeat(20));
    // One that goes on after the stretch sees what others do then.
    rig.out_len_max = 1;
    for is_strict in [false, true] {
        let watch = if is_strict { "PING" } else { "WATCH a" };
        if is_strict {
            rig.settings.transactions = Isolation::Strict;
        }
        for line in [watch, "MULTI", &reads, "SET b 2"] {
            ask(&mut rig, line);
        }
        let holds = rig.keyspace.holds;
        let whole = ask(&mut rig, "EXEC");
        assert!(whole.starts_with("*2\r\n*20\r\n"), "{whole:.80}");
        assert_eq!(rig.keyspace.holds, holds + 1);
        assert!(!rig.keyspace.is_held);
        let reads = [reads.as_str(); 4];
        let lines = [&[watch, "MULTI"], &reads[..], &["SET b 3"]].concat();
        let refused = exec(&mut rig, &lines);
        assert!(refused.starts_with(EXECABORT), "{refused:.80}");
        assert_eq!(ask(&mut rig, "GET b"), "$1\r\n2\r\n");
    }
    // Too many operations under WATCH.
    rig.settings.transactions = Isolation::Relaxed;
    let many = format!("EXISTS{}", " a".repeat(5000));
    let refused = exec(&mut rig, &["WATCH a", "MULTI", "SET b 3", &many]);
    assert!(refused.starts_with(EXECABORT), "{refused:.80}");
    assert_eq!(ask(&mut rig, "GET b"), "$1\r\n2\r\n");
}

/// A stretch ends within a command of many keys, too.
#[test]
fn a_stretch_ends_within_a_long_answer() {
    let mut rig = rig();
    rig.out_len_max = 1;
    ask(&mut rig, &format!("MSET a {} b 1", "v".repeat(4 << 20)));
    let reads = format!("MGET{}", " a".repeat(20));
    let whole = exec(&mut rig, &["MULTI", &reads, "GET b"]);
    assert!(whole.len() > 80 << 20 && whole.ends_with("$1\r\n1\r\n"));
    assert!(rig.drives > 10, "{} drives", rig.drives);
}

#[test]
fn a_list_of_keys_is_part_of_its_stretch() {
    let mut rig = rig();
    ask(&mut rig, "MSET a 1 b 2");
    rig.out_len_max = 1;
    let listed = exec(&mut rig, &["MULTI", "GET a", "GET b", "KEYS *"]);
    assert!(listed.ends_with("*2\r\n$1\r\na\r\n$1\r\nb\r\n"), "{listed}");
    assert_eq!(rig.drives, 1);
}

#[test]
fn what_a_transaction_reads_is_used() {
    let mut rig = rig();
    let seen = |rig: &mut Rig<RespSession>| {
        let mut hit_before = false;
        let keyspace = &mut rig.keyspace;
        keyspace
            .get(b"a", Access::Peek, &mut |item| {
                hit_before = item.is_some_and(|item| item.seen.hit_before);
            })
            .unwrap();
        hit_before
    };
    ask(&mut rig, "SET a 1");
    exec(&mut rig, &["MULTI", "EXISTS a"]);
    assert!(!seen(&mut rig));
    assert_eq!(exec(&mut rig, &["MULTI", "GET a"]), "*1\r\n$1\r\n1\r\n");
    assert!(seen(&mut rig));
}

#[test]
fn a_key_that_does_not_fit_is_no_fault_of_its_transaction() {
    let mut rig = rig();
    let answers = exec(&mut rig, &["MULTI", "GET ", "STRLEN "]);
    assert_eq!(answers, "*2\r\n$-1\r\n:0\r\n");
    let long = format!("GET {}", "k".repeat(70_000));
    assert_eq!(exec(&mut rig, &["MULTI", &long]), "*1\r\n$-1\r\n");
}

/// The limit is said in the place of a command of many keys, too.
#[test]
fn the_last_command_of_many_keys_is_refused_in_its_place() {
    let mut rig = rig();
    ask(&mut rig, "MULTI");
    let ping = command(&["PING"]);
    for _ in 0..1 << 16 {
        assert_eq!(rig.feed(&ping), b"+QUEUED\r\n");
    }
    let refused = ask(&mut rig, "MGET a b");
    assert!(refused.starts_with("-ERR a transaction has"), "{refused}");
    assert_eq!(refused.lines().count(), 1);
}

#[test]
fn a_list_of_keys_that_does_not_fit_is_an_error() {
    let mut rig = rig();
    rig.settings.answer_len_max = 20;
    ask(&mut rig, "MSET a 1 b 2");
    assert_eq!(ask(&mut rig, "KEYS *"), "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    ask(&mut rig, "SET c 3");
    let refused = ask(&mut rig, "KEYS *");
    assert!(
        refused.starts_with("-ERR the answer is longer than 20 bytes"),
        "{refused}"
    );
}

/// What is refused before it is whole is one command, which may be one that is not to be
/// answered.
#[test]
fn what_is_refused_unfinished_may_be_muted() {
    let set = command(&["SET", "k", "a long value"]);
    let (begun, rest) = set.split_at(set.len() - 5);
    for (choice, expected, then) in [
        ("ON", "-OOM", "+PONG\r\n"),
        ("SKIP", "", "+PONG\r\n"),
        ("OFF", "", ""),
    ] {
        let mut rig = rig();
        rig.feed(&command(&["CLIENT", "REPLY", choice]));
        assert!(rig.feed(begun).is_empty());
        let mut out = Vec::new();
        assert!(rig.session.refuse_unfinished(begun, &mut out));
        let out = String::from_utf8(out).expect("text");
        assert!(out.starts_with(expected), "{choice}: {out}");
        assert_eq!(out.is_empty(), expected.is_empty(), "{choice}: {out}");
        // The server has dropped what had come.
        let session = std::mem::take(&mut rig.session);
        rig.reconnect(session);
        assert!(rig.feed(rest).is_empty());
        assert_eq!(rig.feed(&command(&["PING"])), then.as_bytes(), "{choice}");
    }
}

/// Whoever has authenticated is listed as such, whatever else is wrong with the command.
#[test]
fn whoever_has_authenticated_is_listed() {
    let mut rig = rig();
    rig.settings.authentication = true;
    let hello = ["HELLO", "3", "AUTH", "writer", "secret", "SETNAME", "a b"];
    assert!(rig.feed(&command(&hello)).starts_with(b"-ERR Client names"));
    let user = |rig: &Rig<RespSession>| rig.notes.introduced[&7].user.clone();
    assert_eq!(user(&rig), "writer");
    let hello = ["HELLO", "3", "SETNAME", "ann", "NOSUCH"];
    assert!(rig.feed(&command(&hello)).starts_with(b"-ERR Syntax"));
    assert_eq!(rig.notes.introduced[&7].name, "ann");
    assert_eq!(user(&rig), "writer");
    assert_eq!(rig.feed(&command(&["AUTH", "me", "secret"])), b"+OK\r\n");
    assert_eq!(user(&rig), "me");
    // Memcached's clients, too.
    let mut rig = Rig::new(MemcacheSession::new());
    rig.settings.authentication = true;
    rig.feed(b"set x 0 0 12\r\nreader wrong\r\n");
    assert!(rig.notes.introduced.is_empty());
    assert_eq!(
        rig.feed(b"set x 0 0 13\r\nreader secret\r\n"),
        b"STORED\r\n"
    );
    assert_eq!(rig.notes.introduced[&7].user, "reader");
    let mut rig = Rig::new(MemcacheSession::new());
    rig.settings.authentication = true;
    for (password, user) in [("secret", "reader"), ("wrong", "")] {
        let message = format!("\0reader\0{password}");
        let mut frame = vec![
            0x80,
            0x21,
            0,
            5,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            5 + message.len() as u8,
        ];
        frame.resize(24, 0);
        frame.extend_from_slice(b"PLAIN");
        frame.extend_from_slice(message.as_bytes());
        assert!(!rig.feed(&frame).is_empty());
        assert_eq!(rig.notes.introduced[&7].user, user);
    }
}

/// Users whose names have other letters, and those that are in the file no more, are found
/// by their connections.
#[test]
fn users_are_found_by_their_connections() {
    let mut rig = rig();
    rig.notes.users = vec![b"j\xc3\xb6rg".to_vec(), b"idle".to_vec()];
    for (number, user) in [(7, ""), (8, "j??rg"), (9, "gone")] {
        let said = Introduction {
            user: user.to_owned(),
            ..Introduction::default()
        };
        rig.notes.introduced.insert(number, said);
    }
    for (user, answer) in [
        (&b"j\xc3\xb6rg"[..], ":1\r\n"),
        (b"gone", ":1\r\n"),
        (b"idle", ":0\r\n"),
        (b"nobody", "-ERR No such user 'nobody'\r\n"),
    ] {
        let kill = command(&[&b"CLIENT"[..], b"KILL", b"USER", user]);
        assert_eq!(rig.feed(&kill), answer.as_bytes());
    }
    assert_eq!(rig.notes.ended, [8, 9]);
}

/// Who ends the own connection is answered, and no more of it is executed than the
/// transaction that it is in.
#[test]
fn nothing_is_executed_after_the_own_end() {
    let kill = ["CLIENT", "KILL", "ID", "7", "SKIPME", "no"];
    let mut rig = rig();
    rig.notes.introduced.insert(7, Introduction::default());
    rig.notes.introduced.insert(8, Introduction::default());
    let other = ["CLIENT", "KILL", "ID", "8"];
    let all = [command(&other), command(&kill), command(&["SET", "a", "1"])].concat();
    assert_eq!(rig.feed(&all), b":1\r\n:1\r\n");
    assert!(rig.is_closed());
    assert_eq!(rig.notes.ended, [8, 7]);
    rig.reconnect(RespSession::new());
    assert_eq!(rig.feed(&command(&["EXISTS", "a"])), b":0\r\n");
    let all = [
        command(&["MULTI"]),
        command(&kill),
        command(&["SET", "b", "1"]),
        command(&["EXEC"]),
        command(&["SET", "c", "1"]),
    ];
    let answers = rig.feed(&all.concat());
    assert!(answers.ends_with(b"*2\r\n:1\r\n+OK\r\n"));
    assert!(rig.is_closed());
    rig.reconnect(RespSession::new());
    assert_eq!(rig.feed(&command(&["EXISTS", "b"])), b":1\r\n");
    assert_eq!(rig.feed(&command(&["EXISTS", "c"])), b":0\r\n");
}

/// A transaction that nobody wants answered has no head either, though its last command
/// wants the answers back.
#[test]
fn a_muted_transaction_has_no_head() {
    let mut rig = rig();
    for words in [
        &["CLIENT", "REPLY", "OFF"][..],
        &["MULTI"],
        &["DBSIZE"],
        &["CLIENT", "REPLY", "ON"],
    ] {
        assert!(rig.feed(&command(words)).is_empty());
    }
    assert_eq!(rig.feed(&command(&["EXEC"])), b"+OK\r\n");
    assert_eq!(rig.keyspace.isolations, 1);
    assert_eq!(rig.feed(&command(&["PING"])), b"+PONG\r\n");
}

/// It is not kept elsewhere first, to be copied at a stretch when it is whole.
#[test]
fn a_long_value_of_a_transaction_is_queued_as_it_comes() {
    let mut rig = Rig::new(RespSession::new());
    let value: String = (0..200_000)
        .map(|at| char::from(b'a' + (at % 26) as u8))
        .collect();
    let set = format!(
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n",
        value.len()
    );
    assert_eq!(rig.feed(b"MULTI\r\n"), b"+OK\r\n");
    for round in 0..2 {
        let pieces: Vec<&[u8]> = set.as_bytes().chunks(1000).collect();
        let (last, pieces) = pieces.split_last().unwrap();
        for piece in pieces {
            assert_eq!(rig.feed(piece), b"", "{round}");
            assert!(rig.pending_len() <= 1000, "{}", rig.pending_len());
        }
        assert_eq!(rig.feed(last), b"+QUEUED\r\n");
    }
    // What is refused is refused when it is whole, and spoils the transaction.
    assert_eq!(rig.feed(b"STRLEN k\r\n"), b"+QUEUED\r\n");
    assert_eq!(rig.feed(b"EXEC\r\n"), b"*3\r\n+OK\r\n+OK\r\n:200000\r\n");
    let got = rig.feed(b"GET k\r\n");
    assert_eq!(got, format!("${}\r\n{value}\r\n", value.len()).as_bytes());
    rig.feed(b"MULTI\r\n");
    let wrong = set.replace("*3", "*4").replace("SET", "GET");
    let answer = rig.feed(format!("{wrong}$1\r\nx\r\n").as_bytes());
    assert!(answer.starts_with(b"-ERR wrong number"), "{answer:?}");
    assert!(rig.feed(b"EXEC\r\n").starts_with(b"-EXECABORT"));
}
