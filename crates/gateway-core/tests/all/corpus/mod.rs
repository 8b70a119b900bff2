//! What is said to redis-server and to us, to be answered alike: of a keyspace in memory here,
//! and of the store and of cells by the tests of `trefoil-gateway`.

#![allow(dead_code, reason = "each crate's tests use their part of it")]

pub(crate) mod random;

use random::Random;

/// One command a line, words by blanks. Some tests give each line twice, so no answer may
/// hang on a millisecond: what GT sets is a date.
pub(crate) const COMMANDS: &str = include_str!("commands.txt");
/// The same, of several keys as one.
pub(crate) const TOGETHER: &str = include_str!("together.txt");

/// The lines of these.
pub(crate) fn lines(texts: &[&'static str]) -> Vec<&'static str> {
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter(|line| !line.is_empty()).collect()
}

/// The words of a line of the script.
pub(crate) fn words(line: &str) -> Vec<Vec<u8>> {
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

/// Scenes of transactions; each ends with none open.
pub(crate) const TRANSACTIONS: &[&str] = &[
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
    "SET a 1|MULTI|RENAME a b|GET b|RENAMENX b b|EXEC|MGET a b",
    "SET a 1|DEL c d e f|WATCH a|MULTI|RENAME a c|COPY c d|MSETNX e 1 f 2|EXEC|MGET a c d e f",
    "SET a 1|WATCH a|RENAME a b|MULTI|GET b|EXEC",
    "SET a 1|WATCH b|COPY a b REPLACE|MULTI|GET b|EXEC",
    "SET a 1|WATCH a|RENAME a a|MULTI|RENAME a a|MSETNX a 1|COPY a a|EXEC",
    "DEL a|WATCH a|MULTI|MSETNX a 1 a 2|RENAME a a|EXEC|GET a",
    "SET a 1|MULTI|COPY a b REPLACE|COPY a b|RENAME none a|EXEC|DEL b",
    "MULTI|RENAME a|EXEC",
    "MULTI|QUIT",
];

/// Scenes in which answers are left out; each ends with all of them wanted.
pub(crate) const MUTED: &[&str] = &[
    "CLIENT REPLY OFF|SET a 1|GET a|CLIENT REPLY ON|GET a",
    "CLIENT REPLY SKIP|SET a 2|GET a",
    "CLIENT REPLY SKIP|CLIENT REPLY SKIP|GET a|GET a",
    "CLIENT REPLY SKIP|MGET a b c|GET a",
    "CLIENT REPLY SKIP|nosuch|GET a",
    "CLIENT REPLY SKIP|SET a|GET a",
    "CLIENT REPLY SKIP|KEYS a|GET a",
    "CLIENT REPLY SKIP|CLIENT REPLY foo|GET a",
    "CLIENT REPLY SKIP|CLIENT REPLY ON|GET a",
    "CLIENT REPLY SKIP|CLIENT REPLY OFF|GET a|CLIENT REPLY ON",
    "CLIENT REPLY OFF|CLIENT REPLY SKIP|GET a|CLIENT REPLY ON|GET a",
    "CLIENT REPLY OFF|MGET a a|nosuch|GET|KEYS *|MULTI|SET a 3|EXEC|CLIENT REPLY ON|GET a",
    "CLIENT REPLY SKIP|MULTI|SET a 4|EXEC|GET a",
    "MULTI|SET a 5|CLIENT REPLY SKIP|EXEC|GET a|GET a",
    "MULTI|CLIENT REPLY SKIP|SET a 1|SET b 2|EXEC|GET a|GET a",
    "MULTI|SET a 1|CLIENT REPLY OFF|GET a|EXEC|GET a|CLIENT REPLY ON|GET a",
    "CLIENT REPLY OFF|RESET|GET a",
    "CLIENT REPLY OFF|EVAL x y|CLIENT REPLY ON",
    "CLIENT REPLY SKIP|MULTI|DISCARD|GET a",
];

/// A command in the usual form.
pub(crate) fn command<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
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
pub(crate) fn alike(one: &[u8], other: &[u8]) -> bool {
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

/// A command of a few keys, more or less legal.
pub(crate) fn random_words(random: &mut Random) -> Vec<Vec<u8>> {
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
    let mut words = match random.below(23) {
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
        20 => vec![
            one_of(random, &["RENAME", "RENAMENX", "COPY"]),
            key(random),
            key(random),
        ],
        21 => vec![word("COPY"), key(random), key(random), word("REPLACE")],
        22 => vec![
            word("MSETNX"),
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
