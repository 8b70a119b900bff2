//! Any scripts, functions and transactions, by seed, over the real engine and the real
//! store: each is answered by one whole answer, nothing panics, what fails stores nothing,
//! and memory stays within its bounds. `TREFOIL_NOISE_SEEDS` says how many programs.

use crate::cell::TestCell;
use crate::redis::corpus::random::Random;
use crate::redis::corpus::{command, random_words};
use crate::support::{self, connect};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use trefoil_cell::Mode;
use trefoil_gateway::keyspace::{Gates, LocalKeyspace};
use trefoil_gateway::server::{Doors, Gateway, Protocol};

/// Two event loops over the store of this process.
fn open(cell: &TestCell) -> Gateway {
    let mut options = support::options();
    options.doors[0].protocol = Protocol::Redis;
    options.thread_count = 2;
    let doors = Doors::open(&options).unwrap();
    let (local, gates) = (cell.local_store(), Gates::default());
    let keyspace = |_| LocalKeyspace::beside(local.clone(), &gates);
    Gateway::start(options, doors, keyspace, |_| support::Nobody).unwrap()
}

fn stream(gateway: &Gateway) -> TcpStream {
    let stream = connect(gateway).stream.into_inner();
    // Whoever is not answered at all fails here.
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    stream
}

/// Length of the answer at the front of these bytes, in the second version of the protocol,
/// if it is whole. Panics if it is none.
fn answer_len(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&bytes[1..end]).unwrap_or("x");
    let line = line.trim_end_matches('\r');
    let after = end + 1;
    match bytes[0] {
        b'+' | b'-' => Some(after),
        b':' => line.parse::<i64>().map(|_| after).ok(),
        b'$' if line == "-1" => Some(after),
        b'$' => {
            let len: usize = line.parse().expect("a length");
            (bytes.len() >= after + len + 2).then_some(after + len + 2)
        }
        b'*' if line == "-1" => Some(after),
        b'*' => {
            let count: usize = line.parse().expect("a count");
            (0..count).try_fold(after, |at, _| {
                let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
                Some(at + answer_len(rest)?)
            })
        }
        _ => panic!("no answer: {}", bytes.escape_ascii()),
    }
}

/// Sends commands at once; their answers.
fn ask(stream: &mut TcpStream, commands: &[Vec<u8>]) -> Vec<Vec<u8>> {
    stream.write_all(&commands.concat()).unwrap();
    let (mut bytes, mut buffer, mut answers) = (Vec::new(), vec![0; 1 << 16], Vec::new());
    while answers.len() < commands.len() {
        match answer_len(&bytes).filter(|_| !bytes.is_empty()) {
            Some(len) => answers.push(bytes.drain(..len).collect()),
            None => {
                let len = match stream.read(&mut buffer) {
                    // The machine stood still.
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    read => read.unwrap(),
                };
                assert!(len > 0, "closed after {}", bytes.escape_ascii());
                bytes.extend_from_slice(&buffer[..len]);
            }
        }
    }
    assert!(
        bytes.is_empty(),
        "more than was asked for: {}",
        bytes.escape_ascii()
    );
    answers
}

/// Programs that nobody has written.
struct Writer<'a> {
    random: &'a mut Random,
    /// Statements that may still be written.
    left: u32,
}

impl Writer<'_> {
    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        let picked: &&str = self.random.pick(from);
        picked
    }

    fn number(&mut self) -> String {
        let fixed = [
            "0", "1", "-1", "2.5", "7", "100", "1e9", "-1e300", "0/0", "1/0", "2^31", "2^53", "3",
        ];
        match self.random.below(3) {
            0 => self.random.below(1000).to_string(),
            _ => self.pick(&fixed).to_owned(),
        }
    }

    fn text(&mut self) -> String {
        let fixed = [
            "''",
            "'a'",
            "'12'",
            "'x\\0y'",
            "'\\255'",
            "key",
            "other",
            "'%d+'",
            "'(a*)*b'",
            "'[{\"a\":1},2.5,null]'",
            "s",
            "s",
            "string.rep('ab', 500)",
        ];
        self.pick(&fixed).to_owned()
    }

    fn expression(&mut self, depth: u32) -> String {
        if depth == 0 {
            return match self.random.below(4) {
                0 => self.number(),
                1 => "t".to_owned(),
                2 => self
                    .pick(&["nil", "true", "false", "n", "cjson.null", "f"])
                    .to_owned(),
                _ => self.text(),
            };
        }
        let (one, two) = (self.expression(depth - 1), self.expression(depth - 1));
        match self.random.below(14) {
            0 => format!("({one} .. {two})"),
            1 => format!("({one} + {two})"),
            2 => format!("({one} == {two})"),
            3 => format!("{{{one}, {two}, a = {one}}}"),
            4 => format!("tostring({one})"),
            5 => format!("#{}", self.text()),
            6 => format!(
                "string.{}({one}, {two})",
                self.pick(&[
                    "rep", "find", "match", "gsub", "format", "sub", "byte", "upper", "char",
                    "len",
                ])
            ),
            7 => format!(
                "table.{}({one}, {two})",
                self.pick(&["concat", "insert", "remove", "sort", "getn", "maxn",])
            ),
            8 => format!("cjson.{}({one})", self.pick(&["encode", "decode"])),
            9 => format!(
                "bit.{}({one}, {two})",
                self.pick(&["band", "lshift", "tohex", "bnot"])
            ),
            10 => format!(
                "math.{}({one}, {two})",
                self.pick(&["floor", "max", "random", "fmod"])
            ),
            11 => format!("select({one}, {two}, {one})"),
            12 => format!("({one} and {two} or {one})"),
            _ => format!(
                "redis.{}({})",
                self.pick(&["call", "pcall", "pcall"]),
                self.words()
            ),
        }
    }

    /// Those of a command: its own words, most of them about the key.
    fn words(&mut self) -> String {
        let mut words = vec![format!(
            "'{}'",
            self.pick(&[
                "GET",
                "SET",
                "INCR",
                "APPEND",
                "DEL",
                "EXPIRE",
                "SETRANGE",
                "GETDEL",
                "MSET",
                "MGET",
                "PTTL",
                "RENAME",
                "MSETNX",
                "COPY",
                "INCRBYFLOAT",
                "GETEX",
                "TYPE",
                "PING",
                "FLUSHALL",
                "EVAL",
                "FCALL",
                "HSET",
                "nosuch",
                "MULTI",
                "KEYS",
                "CLIENT",
            ])
        )];
        words.push(
            self.pick(&["key", "key", "key", "key", "key", "other"])
                .to_owned(),
        );
        for _ in 0..self.random.below(3) {
            let word = match self.random.below(3) {
                0 => self.number(),
                1 => self.text(),
                _ => self.expression(1),
            };
            words.push(word);
        }
        words.join(", ")
    }

    fn block(&mut self, depth: u32) -> String {
        let mut block = String::new();
        for _ in 0..1 + self.random.below(4) {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            block += &self.statement(depth);
            block.push('\n');
        }
        block
    }

    fn statement(&mut self, depth: u32) -> String {
        let value = self.expression(2);
        if depth == 0 {
            return format!("n = {value}");
        }
        match self.random.below(16) {
            0 | 1 => format!("redis.call({})", self.words()),
            2 => format!("redis.pcall({})", self.words()),
            3 => format!("n = {value}"),
            4 => format!("t[#t + 1] = {value}"),
            5 => format!("s = s .. tostring({value})"),
            6 => format!(
                "if {value} then {} else {} end",
                self.block(depth - 1),
                self.block(depth - 1)
            ),
            7 => {
                let count = self.pick(&["3", "10", "50"]);
                format!("for i = 1, {count} do {} end", self.block(depth - 1))
            }
            8 | 9 => format!("pcall(function() {} end)", self.block(depth - 1)),
            10 => format!(
                "local f = function(a) {} end f({value})",
                self.block(depth - 1)
            ),
            11 => format!(
                "for k, v in pairs({{{value}}}) do n = v {} end",
                self.block(depth - 1)
            ),
            12 => format!("error({value})"),
            13 => format!("t = {{t, s, {value}}}"),
            // Rarely what never ends, or takes all memory there is.
            14 if self.random.below(20) == 0 => self
                .pick(&[
                    "while true do end",
                    "while true do pcall(function() while true do end end) end",
                    "while true do s = s .. s .. 'x' end",
                    "while true do t = {t, {}} end",
                    "while true do redis.call('append', key, s) end",
                    "local function g(x) return g(x .. 'x') .. 'y' end g('z')",
                    "setmetatable(_G, nil) string.rep = nil redis.call = nil pcall = error",
                ])
                .to_owned(),
            14 => "s = string.rep(s, 3)".to_owned(),
            _ => format!("if n == {value} then return end"),
        }
    }

    /// What a script or a function does. It answers `fine`, or fails.
    fn body(&mut self) -> String {
        let block = self.block(3);
        format!(
            "local s, n, t = 'abc', 1, {{}}\nlocal f = function() end\n\
             local function body()\n{block}\nend\nbody()\nreturn 'fine'"
        )
    }

    fn script(&mut self) -> String {
        let body = self.body();
        format!("local key, other = KEYS[1], ARGV[1]\n{body}")
    }

    fn library(&mut self, number: u64) -> String {
        let body = self.body();
        let flags = self.pick(&["{}", "{'no-writes'}", "{'allow-oom'}", "{'nosuch'}"]);
        let more = match self.random.below(4) {
            0 => self.block(1),
            _ => String::new(),
        };
        format!(
            "#!lua name=l{number}\nlocal s, n, t, f, key, other = '', 0, {{}}\n{more}\n\
             redis.register_function{{function_name='f{number}', flags={flags}, \
             callback=function(keys, args)\nlocal key, other = keys[1], args[1]\n{body}\nend}}"
        )
    }
}

/// Programs that are written, unless the environment says otherwise.
const PROGRAMS: u64 = 250;

fn programs() -> u64 {
    let wanted = std::env::var("TREFOIL_NOISE_SEEDS");
    wanted.map_or(PROGRAMS, |wanted| wanted.parse().expect("a number"))
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// Beyond what one script may have (in Lua, of words and of answers: 32 MiB each, in two
/// threads for each of two event loops), the test's own.
const GROWTH_MAX: u64 = 4 * 3 * (32 << 20) + (128 << 20);

#[test]
fn what_fails_stores_nothing_and_everybody_is_answered() {
    let cell = TestCell::start(Mode::R1);
    let gateway = open(&cell);
    let mut stream = stream(&gateway);
    let before = resident_bytes();
    let (mut fine, mut failed) = (0, 0);
    for seed in 0..programs() {
        let mut random = Random::new(seed);
        let is_function = random.below(4) == 0;
        let mut writer = Writer {
            random: &mut random,
            left: 25,
        };
        let program = match is_function {
            true => writer.library(seed),
            false => writer.script(),
        };
        let name = format!("f{seed}");
        let commands = [
            command(&["SET", "k", "12"]),
            match is_function {
                true => command(&["FUNCTION", "LOAD", "REPLACE", &program]),
                false => command(&["EVAL_RO", &program, "1", "k", "o"]),
            },
            command(&["GET", "k"]),
            match is_function {
                true => command(&["FCALL", &name, "1", "k", "o"]),
                false => command(&["EVAL", &program, "1", "k", "o"]),
            },
            command(&["GET", "k"]),
            command(&["EXISTS", "o"]),
            command(&["SET", "k", "12"]),
        ];
        let answers = ask(&mut stream, &commands);
        let shown = || {
            let all: Vec<_> = answers
                .iter()
                .map(|answer| answer.escape_ascii().to_string())
                .collect();
            format!("seed {seed}: {all:#?}\n{program}")
        };
        let set = b"$2\r\n12\r\n";
        // Neither a library that is loaded nor a script that only reads changes anything.
        assert!(answers[2] == set, "{}", shown());
        assert!(answers[5] == b":0\r\n", "{}", shown());
        for answer in [&answers[1], &answers[3]] {
            let text = String::from_utf8_lossy(answer);
            assert!(!text.contains("broke off"), "{}", shown());
        }
        match answers[3][0] {
            b'-' => {
                failed += 1;
                assert!(answers[4] == set, "{}", shown());
            }
            _ => {
                fine += 1;
                assert!(answers[3] == b"$4\r\nfine\r\n", "{}", shown());
            }
        }
    }
    // Both kinds are met.
    assert!(fine > 20 && failed > 20, "{fine} fine, {failed} failed");
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more");
}

/// Commands, transactions, scripts and functions of several clients on the same keys.
#[test]
fn several_clients_do_all_of_it() {
    let cell = TestCell::start(Mode::R1);
    let gateway = open(&cell);
    let before = resident_bytes();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let mut stream = stream(&gateway);
            scope.spawn(move || {
                for round in 0..40 {
                    let mut random = Random::new(9000 + client * 1000 + round);
                    let commands = noise(&mut random);
                    for answer in ask(&mut stream, &commands) {
                        let text = String::from_utf8_lossy(&answer);
                        assert!(!text.contains("broke off"), "{text}");
                    }
                }
            });
        }
    });
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more");
}

fn noise(random: &mut Random) -> Vec<Vec<u8>> {
    let mut commands = Vec::new();
    for _ in 0..1 + random.below(12) {
        let key = format!("k{}", random.below(4));
        let number = random.below(8);
        let mut writer = Writer {
            random: &mut *random,
            left: 6,
        };
        let words: Vec<Vec<u8>> = match writer.random.below(12) {
            0 => vec![b"MULTI".to_vec()],
            1 => vec![b"EXEC".to_vec()],
            2 => vec![b"DISCARD".to_vec()],
            3 => vec![b"WATCH".to_vec(), key.into_bytes()],
            4 => ["EVAL", &writer.script(), "1", &key, "o"]
                .map(Into::into)
                .to_vec(),
            5 => ["FUNCTION", "LOAD", "REPLACE", &writer.library(number)]
                .map(Into::into)
                .to_vec(),
            6 => ["FCALL", &format!("f{number}"), "1", &key]
                .map(Into::into)
                .to_vec(),
            7 => ["FUNCTION", "DELETE", &format!("l{number}")]
                .map(Into::into)
                .to_vec(),
            _ => random_words(writer.random),
        };
        commands.push(command(&words));
    }
    // Whatever is open ends.
    commands.push(command(&["RESET"]));
    commands
}
