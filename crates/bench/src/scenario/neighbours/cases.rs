//! What the other client does, over and over.

use std::io;
use std::time::Instant;

use super::random;
use super::wire::{Said, Wire, command};
use crate::gateway::Dialect;

/// How much each case asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Items that are there.
    pub(super) items: usize,
    /// Keys of one command.
    pub(super) many: usize,
    /// Values of [`BIG_LEN`] that one transaction reads or writes.
    pub(super) big: usize,
}

/// Bytes of each item's value.
pub(super) const VALUE_LEN: usize = 100;
/// Bytes of a large value.
const BIG_LEN: usize = 1_000_000;
/// Commands of a transaction on one key, and keys of one that is held.
const QUEUED: usize = 4_000;
/// Milliseconds of processor time that a script is meant to take.
const SCRIPT_MS: f64 = 100.0;
/// Memory limits that are set in turn, in MiB.
const LIMITS: [usize; 2] = [900, 1000];

/// Where a case makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    Both,
    Serve,
    Gateway,
}

/// What is wrong with the cell meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// Two backends of six are dead.
    TwoDead,
    /// One of three stands still from the case's beginning to its end.
    Stopped,
}

/// One command of the neighbour, and what it came to.
pub(super) type Round = Box<dyn FnMut(&mut Wire) -> io::Result<Said> + Send>;

/// See the module.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) dialect: Dialect,
    pub(super) on: On,
    pub(super) trouble: Trouble,
    /// Its answers may be errors.
    pub(super) may_fail: bool,
    /// It removes what others have stored.
    pub(super) empties: bool,
    pub(super) round: Round,
}

/// The key of an item that is there.
pub(super) fn key(number: usize) -> String {
    format!("key:{number:08}")
}

fn own_key(number: usize) -> String {
    format!("own:{number:08}")
}

fn memcached(name: &'static str, round: Round) -> Case {
    Case {
        name,
        dialect: Dialect::Memcached,
        on: On::Both,
        trouble: Trouble::None,
        may_fail: false,
        empties: false,
        round,
    }
}

fn redis(name: &'static str, round: Round) -> Case {
    Case {
        dialect: Dialect::Redis,
        ..memcached(name, round)
    }
}

/// The same request each time.
fn same(request: impl Into<Vec<u8>>) -> Round {
    let request = request.into();
    Box::new(move |wire| wire.ask(&request))
}

/// The same requests in one write each time, with so many answers.
fn same_many(requests: Vec<u8>, answers: usize) -> Round {
    Box::new(move |wire| wire.ask_many(&requests, answers))
}

fn words(all: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    let all: Vec<&[u8]> = all.iter().map(|word| word.as_bytes()).collect();
    command(&all, &mut out);
    out
}

/// A command of many keys: `name`, then each of `keys`, each with `value` behind it.
fn many(name: &str, keys: impl Iterator<Item = String>, value: Option<&[u8]>) -> Vec<u8> {
    let keys: Vec<String> = keys.collect();
    let mut all = vec![name.as_bytes()];
    for key in &keys {
        all.push(key.as_bytes());
        all.extend(value);
    }
    let mut out = Vec::new();
    command(&all, &mut out);
    out
}

/// `MULTI`, so many commands, `EXEC`; with the answers' number.
fn transaction(count: usize, each: &mut dyn FnMut(usize, &mut Vec<u8>)) -> (Vec<u8>, usize) {
    let mut out = words(&["MULTI"]);
    for number in 0..count {
        each(number, &mut out);
    }
    out.extend(words(&["EXEC"]));
    (out, count + 2)
}

fn exec(count: usize, each: &mut dyn FnMut(usize, &mut Vec<u8>)) -> Round {
    let (requests, answers) = transaction(count, each);
    same_many(requests, answers)
}

/// The same under WATCH.
fn exec_watched(watched: &str, count: usize, each: &mut dyn FnMut(usize, &mut Vec<u8>)) -> Round {
    let (requests, answers) = transaction(count, each);
    let mut all = words(&["WATCH", watched]);
    all.extend(requests);
    same_many(all, answers + 1)
}

/// The cursor of each round is what the one before was answered.
fn scan() -> Round {
    let mut cursor = "0".to_owned();
    Box::new(move |wire| {
        let said = wire.ask(&words(&["SCAN", &cursor, "COUNT", "1000"]))?;
        cursor = String::from_utf8_lossy(&said.first).into_owned();
        if said.errors > 0 {
            cursor = "0".to_owned();
        }
        Ok(said)
    })
}

/// As `memcdump` does it: one class after the other, most of them empty.
pub(super) fn all_classes(wire: &mut Wire) -> io::Result<Said> {
    let mut all = Said::default();
    for class in 0..64 {
        let said = wire.ask(format!("stats cachedump {class} 0\r\n").as_bytes())?;
        all.add(said);
    }
    Ok(all)
}

/// A script that takes about [`SCRIPT_MS`], by a first one that shows how fast they are.
fn script() -> Round {
    let text = "local x = 0 for i = 1, tonumber(ARGV[1]) do x = x + i % 7 end return x";
    let run = move |wire: &mut Wire, count: u64| {
        wire.ask(&words(&[
            "EVAL",
            text,
            "1",
            "own:script",
            &count.to_string(),
        ]))
    };
    let mut count = 0;
    Box::new(move |wire| {
        if count == 0 {
            const FIRST: u64 = 200_000;
            let begin = Instant::now();
            run(wire, FIRST)?;
            let ms = begin.elapsed().as_secs_f64() * 1e3;
            count = (FIRST as f64 * SCRIPT_MS / ms.max(0.1)) as u64;
        }
        run(wire, count)
    })
}

/// Several requests in turn.
fn in_turn(requests: Vec<Vec<u8>>) -> Round {
    let mut next = 0;
    Box::new(move |wire| {
        let request = &requests[next % requests.len()];
        next += 1;
        wire.ask(request)
    })
}

/// All cases before a cell that is well, in an order in which the last ones do not
/// disturb those before.
pub(super) fn cases(extent: Extent) -> Vec<Case> {
    let there = |count: usize| (0..count.min(extent.items)).map(key);
    let value = vec![b'v'; VALUE_LEN];
    let big = vec![b'b'; BIG_LEN];
    let line = |begin: &str| {
        let keys: Vec<String> = there(extent.many).collect();
        format!("{begin} {}\r\n", keys.join(" "))
    };
    let mut cases = vec![
        memcached("lru_crawler metadump", same("lru_crawler metadump all\r\n")),
        memcached("lru_crawler mgdump", same("lru_crawler mgdump hash\r\n")),
        memcached("stats cachedump, all classes", Box::new(all_classes)),
        memcached("stats", same("stats\r\n")),
        memcached("stats items", same("stats items\r\n")),
        memcached("stats slabs", same("stats slabs\r\n")),
        memcached("get of many keys", same(line("get"))),
        memcached("gat of many keys", same(line("gat 1000"))),
        redis("SCAN COUNT 1000", scan()),
        redis("KEYS *", same(words(&["KEYS", "*"]))),
        redis("DBSIZE", same(words(&["DBSIZE"]))),
        redis("INFO", same(words(&["INFO"]))),
        redis("COMMAND DOCS", same(words(&["COMMAND", "DOCS"]))),
        redis("HELLO 3", same(words(&["HELLO", "3"]))),
        redis(
            "MGET of many keys",
            same(many("MGET", there(extent.many), None)),
        ),
        redis(
            "EXISTS of many keys",
            same(many("EXISTS", there(extent.many), None)),
        ),
        redis("MSET and UNLINK of many keys", {
            let own = || (0..extent.many).map(own_key);
            in_turn(vec![
                many("MSET", own(), Some(&value)),
                many("UNLINK", own(), None),
            ])
        }),
        memcached("set of large values", {
            let set = |number: usize| {
                let head = format!("set {} 0 0 {BIG_LEN}\r\n", own_key(number));
                [head.as_bytes(), &big, b"\r\n"].concat()
            };
            in_turn((0..8).map(set).collect())
        }),
        memcached("get of large values", {
            let get = |number: usize| format!("get {}\r\n", own_key(number)).into_bytes();
            in_turn((0..8).map(get).collect())
        }),
        redis("a pipeline of many GETs", {
            let count = 10 * extent.many;
            let mut out = Vec::new();
            for number in 0..count {
                let key = key(number % extent.items);
                command(&[b"GET", key.as_bytes()], &mut out);
            }
            same_many(out, count)
        }),
        redis("a script of 100 ms", script()),
        Case {
            may_fail: true,
            ..redis("scripts at random", random::scripts())
        },
        Case {
            may_fail: true,
            ..redis("transactions at random", random::transactions())
        },
        redis("EXEC of many keys", {
            exec(extent.many, &mut |number, out| {
                command(&[b"SET", own_key(number).as_bytes(), &value], out);
            })
        }),
        redis("EXEC of one key, counted up", {
            exec(QUEUED.min(extent.many), &mut |_, out| {
                command(&[b"INCR", b"own:counter"], out);
            })
        }),
        redis("EXEC of one large key, read", {
            let mut round = exec(extent.big, &mut |_, out| {
                command(&[b"GET", b"own:big"], out);
            });
            let mut is_stored = false;
            let store = {
                let mut out = Vec::new();
                command(&[b"SET", b"own:big", &big], &mut out);
                out
            };
            Box::new(move |wire: &mut Wire| {
                if !std::mem::replace(&mut is_stored, true) {
                    wire.ask(&store)?;
                }
                round(wire)
            })
        }),
        redis("EXEC of one large key, appended to", {
            let mut first = Vec::new();
            command(&[b"SET", b"own:long", &big], &mut first);
            exec(extent.big, &mut |number, out| match number {
                0 => out.extend_from_slice(&first),
                _ => command(&[b"APPEND", b"own:long", b"x"], out),
            })
        }),
        Case {
            on: On::Serve,
            ..redis("EXEC of many keys under WATCH", {
                let count = QUEUED.min(extent.many);
                exec_watched("own:watched", count, &mut |number, out| {
                    command(&[b"SET", own_key(number).as_bytes(), &value], out);
                })
            })
        },
        Case {
            on: On::Serve,
            ..redis("EXEC of large keys under WATCH", {
                exec_watched("own:watched", extent.big / 4, &mut |number, out| {
                    let key = own_key(number % 8);
                    command(&[b"SET", key.as_bytes(), &big], out);
                })
            })
        },
        memcached("cache_memlimit", {
            let limit = |mib: usize| format!("cache_memlimit {mib}\r\n").into_bytes();
            in_turn(LIMITS.map(limit).to_vec())
        }),
        Case {
            on: On::Gateway,
            trouble: Trouble::Stopped,
            may_fail: true,
            ..memcached("set, a backend stands still", {
                let requests = (0..100).map(|number| {
                    let key = own_key(number);
                    let value = "v".repeat(VALUE_LEN);
                    format!("set {key} 0 0 {VALUE_LEN}\r\n{value}\r\n").into_bytes()
                });
                in_turn(requests.collect())
            })
        },
    ];
    cases.push(Case {
        empties: true,
        ..memcached("flush_all", same("flush_all\r\n"))
    });
    cases
}

/// Cases before a cell in which nobody serves these keys.
pub(super) fn without_quorum(keys: &[String]) -> Vec<Case> {
    let of = |name, requests: Vec<Vec<u8>>| Case {
        on: On::Gateway,
        trouble: Trouble::TwoDead,
        may_fail: true,
        ..memcached(name, in_turn(requests))
    };
    let all = |make: &dyn Fn(&String) -> String| {
        keys.iter()
            .map(|key| make(key).into_bytes())
            .collect::<Vec<_>>()
    };
    let line = format!("get {}\r\n", keys.join(" "));
    vec![
        of("get, no quorum", all(&|key| format!("get {key}\r\n"))),
        of("incr, no quorum", all(&|key| format!("incr {key} 1\r\n"))),
        of("set, no quorum", {
            all(&|key| format!("set {key} 0 0 1\r\n1\r\n"))
        }),
        of("get of many keys, no quorum", vec![line.into_bytes()]),
    ]
}
