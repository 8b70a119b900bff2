//! RESP over the store of this process and over a replicated cell, beside Debian's
//! redis-server: what `trefoil-gateway-core` says to a keyspace in memory, and more.
//!
//! Left out, because answers differ on purpose: DBSIZE, which counts what was removed until
//! it is cleared away; cursors of SCAN; memory limits; the slow log, which depends on the
//! machine. A transaction or a command that a replicated cell refuses is looked at as such,
//! and both begin anew. So they do where the cell has not answered in time, because the
//! machine stood still; that is the exception.

#[path = "../../../gateway-core/tests/all/corpus/mod.rs"]
pub(crate) mod corpus;

use crate::cell::TestCell;
use crate::support::{self, connect};
use corpus::random::Random;
use corpus::{COMMANDS, MUTED, TOGETHER, TRANSACTIONS, alike, command, lines, random_words, words};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use trefoil_cell::Mode;
use trefoil_gateway::keyspace::{CellOptions, Gates, LocalKeyspace, cell_keyspace};
use trefoil_gateway::server::{Doors, Gateway, Protocol};
use trefoil_gateway_core::keyspace::Keyspace;
use trefoil_ports::ServerProcess;

/// Beginnings of commands whose answers are not compared: see the module.
const LEFT_OUT: &[&str] = &["DBSIZE", "SCAN 0", "CONFIG GET maxmemory", "SLOWLOG"];
/// What a replicated cell says to what it cannot do as one.
const REFUSALS: &[&str] = &[
    "-EXECABORT Transaction refused, nothing was applied:",
    " of different keys is not here",
];

/// What it says where its backends have not had their turn.
const FAULTS: &[&str] = &[
    "-TRYAGAIN ",
    "-ERR no replica answered",
    "-ERR the outcome is unknown",
];

fn open<K: Keyspace + Send + 'static>(loops: usize, keyspace: impl Fn() -> K) -> Gateway {
    let mut options = support::options();
    options.doors[0].protocol = Protocol::Redis;
    options.thread_count = loops;
    let doors = Doors::open(&options).unwrap();
    Gateway::start(options, doors, |_| keyspace(), |_| support::Nobody).unwrap()
}

struct Pair<'a> {
    gateway: &'a Gateway,
    server: ServerProcess,
    ours: TcpStream,
    real: TcpStream,
    marker: u64,
    /// What was refused so far.
    refused: usize,
    /// What was not answered in time, where that may be.
    late: usize,
    may_be_late: bool,
}

/// Sends these bytes, and reads until the answers end with `last` or the connection does.
fn say(stream: &mut TcpStream, bytes: &[u8], last: &[u8]) -> (Vec<u8>, bool) {
    // Whoever closes early may reset the connection meanwhile.
    let _ = stream.write_all(bytes);
    let (mut answers, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        if answers.ends_with(last) {
            answers.truncate(answers.len() - last.len());
            return (answers, false);
        }
        match stream.read(&mut buffer) {
            Ok(0) => return (answers, true),
            Ok(len) => answers.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (answers, true),
            // The machine stood still.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error} after {}", answers.escape_ascii()),
        }
    }
}

impl<'a> Pair<'a> {
    fn new(gateway: &'a Gateway) -> Self {
        let server = ServerProcess::start(|port| {
            let mut command = std::process::Command::new("/usr/bin/redis-server");
            let port = port.to_string();
            command.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
            command.args(["--dir", "/tmp"]);
            command.stdin(std::process::Stdio::null());
            command.stdout(std::process::Stdio::null());
            command
        });
        let server = server.expect("Debian's package is installed");
        let (ours, real) = Pair::streams(gateway, &server);
        Pair {
            gateway,
            server,
            ours,
            real,
            marker: 0,
            refused: 0,
            late: 0,
            may_be_late: false,
        }
    }

    fn streams(gateway: &Gateway, server: &ServerProcess) -> (TcpStream, TcpStream) {
        let ours = connect(gateway).stream.into_inner();
        let real = TcpStream::connect(server.address()).unwrap();
        for stream in [&ours, &real] {
            stream.set_nodelay(true).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
        }
        (ours, real)
    }

    /// Sends the same to both; they have to answer the same, unless `may_refuse`.
    fn same(&mut self, bytes: &[u8], may_refuse: bool, context: &str) {
        self.marker += 1;
        let mark = format!("marker-{}", self.marker);
        let last = format!("${}\r\n{mark}\r\n", mark.len()).into_bytes();
        let sent = [bytes, &command(&["ECHO", &mark])].concat();
        let (ours, our_end) = say(&mut self.ours, &sent, &last);
        let (real, real_end) = say(&mut self.real, &sent, &last);
        let text = String::from_utf8_lossy(&ours);
        let is_refused = REFUSALS.iter().any(|words| text.contains(words));
        if may_refuse && is_refused {
            self.refused += 1;
            return self.begin_anew();
        }
        if self.may_be_late && FAULTS.iter().any(|words| text.contains(words)) {
            self.late += 1;
            return self.begin_anew();
        }
        assert!(
            alike(&ours, &real) && our_end == real_end,
            "{context}: {}\nours  (closed: {our_end}): {}\nredis (closed: {real_end}): {}",
            bytes.escape_ascii(),
            ours.escape_ascii(),
            real.escape_ascii(),
        );
        if our_end {
            (self.ours, self.real) = Pair::streams(self.gateway, &self.server);
        }
    }

    /// Both are empty from now on.
    fn begin_anew(&mut self) {
        let reset = [command(&["RESET"]), command(&["FLUSHALL"])].concat();
        let sent = [reset, command(&["ECHO", "anew"])].concat();
        for stream in [&mut self.ours, &mut self.real] {
            let mut is_empty = || {
                let (answers, _) = say(stream, &sent, b"$4\r\nanew\r\n");
                answers == b"+RESET\r\n+OK\r\n"
            };
            assert!((0..100).any(|_| is_empty()), "no FLUSHALL was done");
        }
    }

    fn commands(&mut self, texts: &[&'static str]) {
        for line in lines(texts) {
            if !LEFT_OUT.iter().any(|words| line.starts_with(words)) {
                self.same(&command(&words(line)), false, line);
            }
        }
    }

    fn scenes(&mut self, scenes: &[&str], may_refuse: bool) {
        for scene in scenes.iter().filter(|scene| !scene.contains("DBSIZE")) {
            let commands = scene.split('|').flat_map(|line| command(&words(line)));
            self.same(&commands.collect::<Vec<u8>>(), may_refuse, scene);
            self.begin_anew();
        }
    }

    /// Commands as they come, alone and in transactions.
    fn random(&mut self, seeds: std::ops::Range<u64>, may_refuse: bool) {
        for seed in seeds {
            let mut random = Random::new(seed);
            for batch in 0..6 {
                let mut bytes = Vec::new();
                let is_transaction = batch % 2 == 1;
                if is_transaction && random.below(2) == 0 {
                    let key = format!("k{}", random.below(8));
                    // One that was absent, is stored and removed again has not changed.
                    bytes.extend(command(&["SET", key.as_str(), "watched"]));
                    bytes.extend(command(&["WATCH", key.as_str()]));
                }
                for _ in 0..random.below(8) {
                    bytes.extend(command(&random_words(&mut random)));
                }
                if is_transaction {
                    bytes.extend(command(&["MULTI"]));
                    for _ in 0..random.below(6) {
                        bytes.extend(command(&random_words(&mut random)));
                    }
                    bytes.extend(command(&[*random.pick(&["EXEC", "EXEC", "DISCARD"])]));
                }
                self.same(&bytes, may_refuse, &format!("seed {seed}, batch {batch}"));
            }
        }
    }
}

#[test]
fn the_store_answers_as_redis_answers() {
    let cell = TestCell::start(Mode::R1);
    let (local, gates) = (cell.local_store(), Gates::default());
    let gateway = open(2, || LocalKeyspace::beside(local.clone(), &gates));
    let mut pair = Pair::new(&gateway);
    pair.commands(&[TOGETHER, COMMANDS]);
    pair.scenes(TRANSACTIONS, false);
    pair.scenes(MUTED, false);
    pair.random(5000..5120, false);
    assert_eq!(pair.refused, 0);
}

#[test]
fn a_replicated_cell_answers_as_redis_answers() {
    let running = TestCell::start(Mode::R32);
    let cell = running.client();
    let gateway = open(2, || cell_keyspace(cell.clone(), CellOptions::default()));
    let mut pair = Pair::new(&gateway);
    pair.may_be_late = true;
    pair.commands(&[COMMANDS]);
    pair.scenes(TRANSACTIONS, true);
    let refused = pair.refused;
    // Those of several keys under WATCH, or with a command that is about several as one.
    assert!((1..=12).contains(&refused), "{refused} refused");
    pair.scenes(MUTED, false);
    pair.random(6000..6040, true);
    let refused = pair.refused - refused;
    // Of 240 batches: a third or so.
    assert!((1..=160).contains(&refused), "{refused} refused");
    let (late, all) = (pair.late, pair.marker as usize);
    assert!(
        late * 10 <= all,
        "{late} of {all} were not answered in time"
    );
}
