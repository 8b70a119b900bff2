//! Many large values at once: none is refused while something can be evicted,
//! what survives is what was stored, and the process stays within its limit all
//! the time. The limit is measured on a whole process, so each case has a server
//! process of its own; the clients are this one.

#[path = "all/support/mod.rs"]
mod support;

use crate::support::{CONFIG_ID, LIFE, Setup, request};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use trefoil_backend::Server;
use trefoil_cell::Mode;
use trefoil_layout::KeyHasher;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Found, Outcome, Rejection};
use trefoil_rpc::{Client, Credentials, v1};

const MIB: usize = 1 << 20;
const CLIENTS: u32 = 6;
const SETS_OF_CLIENT: u32 = 12;
/// Tells a process that it is a server: mode, backends, bytes of memory.
const SERVER_OF: &str = "TREFOIL_TEST_LARGE_VALUES";

#[derive(Clone, Copy)]
struct Case {
    mode: Mode,
    backends: u32,
    limit: u64,
}

#[test]
fn large_values_are_stored_within_the_limit() {
    if let Ok(of) = std::env::var(SERVER_OF) {
        return be_the_server(&of);
    }
    for (mode, backends, limit) in [
        (Mode::R1, 1, 64 << 20),
        (Mode::R1, 1, 256 << 20),
        (Mode::R1, 3, 64 << 20),
        (Mode::R32, 3, 64 << 20),
        (Mode::R32, 3, 256 << 20),
    ] {
        run(Case {
            mode,
            backends,
            limit,
        });
    }
}

/// Shares that were lent are equal again after a while, but not at the cost of
/// what they were lent for. What no quorum of copies could hold is refused at
/// each, not stored and lost.
#[test]
fn a_value_longer_than_an_equal_share_stays() {
    let len = 20 * MIB;
    for (mode, expected) in [
        (Mode::R1, Outcome::Applied),
        (Mode::R32, Outcome::Rejected(Rejection::NoMemory)),
    ] {
        let case = Case {
            mode,
            backends: 3,
            limit: 64 << 20,
        };
        let server = ServerProcess::start(case);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let channel = connect(&server.socket).await;
            let mut stored = Vec::new();
            for backend in 0..case.backends {
                let request = request(backend, Action::Set, b"long", &vec![7; len]);
                let answer = channel.clone().mutate(request).await.unwrap();
                let outcome = trefoil_rpc::decode_ack(answer.get_ref()).unwrap().outcome;
                if outcome != Outcome::Rejected(Rejection::WrongShard) {
                    assert_eq!(outcome, expected, "{mode}: backend {backend}");
                    stored.extend((outcome == Outcome::Applied).then_some(backend));
                }
            }
            // Shares are looked at four times a second.
            tokio::time::sleep(Duration::from_millis(1500)).await;
            for backend in stored {
                let found = fetch(&channel, backend, "long").await;
                assert!(found.is_some_and(|value| value == vec![7; len]), "{mode}");
            }
        });
    }
}

/// Those who ask for long values and never read them take the turns of others for a
/// while, not for ever.
#[test]
fn answers_that_nobody_reads_are_given_up() {
    let case = Case {
        mode: Mode::R1,
        backends: 1,
        limit: 128 << 20,
    };
    let server = ServerProcess::start(case);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let channel = connect(&server.socket).await;
        let value = vec![7; 15 * MIB];
        let set = request(0, Action::Set, b"long", &value);
        channel.clone().mutate(set).await.unwrap();
        // More than all turns at once.
        let mut unread = Vec::new();
        for _ in 0..3 {
            let mut client = connect(&server.socket).await;
            let mut call = Box::pin(async move { client.lookup(lookup(0, "long")).await });
            // Begun, and never gone on with.
            let once = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context)));
            assert!(once.await.is_pending());
            unread.push(call);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(fetch(&channel, 0, "long").await == Some(value));
        drop(unread);
    });
}

/// Stores and reads back with several clients; then the server says what it
/// held at most.
fn run(case: Case) {
    let name = format!("{} in {} MiB", case.mode, case.limit >> 20);
    let mut server = ServerProcess::start(case);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let found = runtime.block_on(use_from_several_clients(case, &server.socket));
    let report = server.finish();
    println!("{name}: {found} values found again, {report}");
    let peak: u64 = report.split(' ').next().unwrap().parse().unwrap();
    assert!(peak <= case.limit, "{name}: {report}");
    assert!(found > 0, "{name}: nothing was found again");
}

struct ServerProcess {
    child: Child,
    /// Closed to end it.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    socket: String,
}

impl ServerProcess {
    fn start(case: Case) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "large_values_are_stored_within_the_limit",
                "--exact",
                "--nocapture",
            ])
            .env(
                SERVER_OF,
                format!("{} {} {}", case.mode, case.backends, case.limit),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        // What the test harness says comes first; with one core, on the same line.
        let socket = loop {
            line.clear();
            let read = stdout.read_line(&mut line).unwrap();
            assert!(read > 0, "the server did not start");
            if let Some((_, socket)) = line.trim().split_once("socket ") {
                break socket.to_owned();
            }
        };
        ServerProcess {
            child,
            stdin,
            stdout,
            socket,
        }
    }

    /// Ends it; what it reports.
    fn finish(&mut self) -> String {
        drop(self.stdin.take());
        let mut report = String::new();
        self.stdout.read_to_string(&mut report).unwrap();
        assert!(self.child.wait().unwrap().success());
        let (_, report) = report.split_once("peak ").unwrap();
        report.to_owned()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until its input ends, measuring all the time.
fn be_the_server(of: &str) {
    let mut fields = of.split(' ');
    let mode: Mode = fields.next().unwrap().parse().unwrap();
    let backends = fields.next().unwrap().parse().unwrap();
    let mut setup = Setup::new(mode, backends);
    setup.value_len_max = 24 << 20;
    setup.options.memory_limit = fields.next().unwrap().parse().unwrap();
    let cell = setup.start();
    println!("socket {}", cell.home.path().join("rpc").display());
    let ended = AtomicBool::new(false);
    let (peak, held) = std::thread::scope(|scope| {
        let measured = scope.spawn(|| measure(&cell.server, &ended));
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        ended.store(true, Ordering::Relaxed);
        measured.join().unwrap()
    });
    println!("peak {peak} bytes resident\n{held}");
}

/// What the process held at most, and what for.
fn measure(server: &Server, ended: &AtomicBool) -> (u64, String) {
    let objects = memory_objects();
    let (mut peak, mut told, mut held) = (0, 0, String::new());
    while !ended.load(Ordering::Relaxed) {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let field = |name| status_bytes(&status, name);
        // Pages of a memory object exist before this process has touched them.
        let shared = blocks_len(&objects).max(field("RssShmem:"));
        let sum = field("RssAnon:") + field("RssFile:") + shared;
        // The system's own maximum misses nothing between two looks.
        peak = peak.max(sum).max(field("VmHWM:"));
        if sum > told + MIB as u64 / 2 {
            told = sum;
            held = describe(server, &status, shared);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    (peak, held)
}

fn status_bytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Descriptors of this process's memory objects, one of each.
fn memory_objects() -> Vec<PathBuf> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_object = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"))
    };
    let mut seen = HashSet::new();
    all.map(|entry| entry.path())
        .filter(|path| is_object(path))
        .filter(|path| seen.insert(std::fs::metadata(path).unwrap().ino()))
        .collect()
}

fn blocks_len(objects: &[PathBuf]) -> u64 {
    let len =
        |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
    objects.iter().map(len).sum()
}

/// The accounts beside what the system says, in KiB.
fn describe(server: &Server, status: &str, objects: u64) -> String {
    let mut text = String::from("at that moment, in KiB:");
    for name in ["RssAnon:", "RssFile:", "RssShmem:"] {
        let _ = write!(text, " {name} {}", status_bytes(status, name) >> 10);
    }
    let _ = write!(text, " memory objects: {}", objects >> 10);
    let statistics = server.statistics();
    for member in &statistics.members {
        let resident = member.resident.unwrap_or_default();
        let _ = write!(
            text,
            "\n  backend {}: limit {}, {} items of {}, {resident:?}",
            member.backend,
            member.memory_limit_bytes >> 10,
            member.items,
            member.entry_bytes >> 10,
        );
    }
    let process = statistics.process.unwrap_or_default();
    let _ = write!(
        text,
        "\n  baseline {}, reserve {}\n  largest mappings:",
        process.baseline_bytes >> 10,
        process.reserve_bytes >> 10
    );
    for (len, what) in mappings().into_iter().take(16) {
        let _ = write!(text, " {}={}", what, len >> 10);
    }
    text
}

/// Resident bytes of private mappings, the largest first.
fn mappings() -> Vec<(u64, String)> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut all = Vec::new();
    let mut what = String::new();
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kib: u64 = rest
                .split_ascii_whitespace()
                .next()
                .map_or(0, |k| k.parse().unwrap_or(0));
            if !what.contains("memfd") {
                all.push((kib << 10, std::mem::take(&mut what)));
            }
        } else if line
            .split_ascii_whitespace()
            .next()
            .is_some_and(|first| first.contains('-'))
        {
            let mut fields = line.split_ascii_whitespace();
            let range = fields.next().unwrap_or_default();
            what = fields
                .nth(4)
                .map_or_else(|| format!("anon@{range}"), ToOwned::to_owned);
        }
    }
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

/// The code that serves the first requests becomes resident with them. Not optimised, as
/// in tests, that is more than the reserve is for, if large values come in the same
/// quarter of a second; so it is measured before they come.
async fn page_in_the_program(case: Case, socket: &str) {
    let channel = connect(socket).await;
    for backend in 0..case.backends {
        let request = request(backend, Action::Set, b"first", &[1; 64 << 10]);
        channel.clone().mutate(request).await.unwrap();
        fetch(&channel, backend, "first").await;
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
}

/// Sets values at every backend from several connections, while others read.
/// How many of them are found again at the end.
async fn use_from_several_clients(case: Case, socket: &str) -> usize {
    page_in_the_program(case, socket).await;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let channel = connect(socket).await;
        clients.spawn(async move {
            for number in 0..SETS_OF_CLIENT {
                set_everywhere(case, &channel, client, number).await;
                if number % 3 == 2 {
                    look_up(&channel, 0, client, number).await;
                }
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let channel = connect(socket).await;
    let mut found = 0;
    for client in 0..CLIENTS {
        for number in 0..SETS_OF_CLIENT {
            for backend in 0..case.backends {
                found += usize::from(look_up(&channel, backend, client, number).await);
            }
        }
    }
    found
}

async fn connect(socket: &str) -> Client {
    let endpoint = trefoil_rpc::endpoint_unix(socket.as_ref()).unwrap();
    let channel = endpoint.connect().await.unwrap();
    trefoil_rpc::client(channel, Credentials::none())
}

fn key_of(client: u32, number: u32) -> String {
    format!("{client}-{number}")
}

/// No two are alike, nor two parts of one.
fn value_of(client: u32, number: u32) -> Vec<u8> {
    let len = (1 + (client * 7 + number * 11) as usize % 15) * MIB;
    let seed = u64::from(client * 1000 + number);
    let mut value = Vec::with_capacity(len);
    let words = (0..len as u64 / 8).map(|at| (at ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.for_each(|word| value.extend_from_slice(&word.to_le_bytes()));
    value
}

async fn set_everywhere(case: Case, channel: &Client, client: u32, number: u32) {
    let key = key_of(client, number);
    let value = value_of(client, number);
    let mut calls = tokio::task::JoinSet::new();
    for backend in 0..case.backends {
        let (mut caller, key, value) = (channel.clone(), key.clone(), value.clone());
        calls.spawn(async move {
            // What the others evict meanwhile raises the bound.
            loop {
                let request = request(backend, Action::Set, key.as_bytes(), &value);
                let answer = caller.mutate(request).await.unwrap();
                let ack = trefoil_rpc::decode_ack(answer.get_ref()).unwrap();
                if !matches!(ack.outcome, Outcome::Superseded { .. }) {
                    return ack.outcome;
                }
            }
        });
    }
    let mut copies = 0;
    while let Some(outcome) = calls.join_next().await {
        match outcome.unwrap() {
            Outcome::Applied => copies += 1,
            // Without copies, each key belongs to one backend.
            Outcome::Rejected(Rejection::WrongShard) => {}
            other => {
                let statistics = channel.clone().stats(v1::StatsRequest {}).await;
                let members = statistics.unwrap().into_inner().members;
                let held = members.iter().map(|member| {
                    (
                        member.memory_limit_bytes,
                        member.entry_bytes,
                        member.resident,
                    )
                });
                let held: Vec<_> = held.collect();
                panic!("{key}: {} bytes: {other:?}: {held:?}", value.len());
            }
        }
    }
    assert_eq!(copies, case.mode.copy_count(), "{key}");
}

/// Whether the value is there; if so, it is the one that was stored.
async fn look_up(channel: &Client, backend: u32, client: u32, number: u32) -> bool {
    let key = key_of(client, number);
    let found = fetch(channel, backend, &key).await;
    let right = found
        .as_ref()
        .is_none_or(|value| *value == value_of(client, number));
    assert!(right, "{key} is another value");
    found.is_some()
}

fn lookup(backend: u32, key: &str) -> v1::LookupRequest {
    v1::LookupRequest {
        backend,
        life: LIFE,
        config_id: CONFIG_ID,
        key: key.to_owned().into(),
        ..v1::LookupRequest::default()
    }
}

async fn fetch(channel: &Client, backend: u32, key: &str) -> Option<Vec<u8>> {
    let answer = channel.clone().lookup(lookup(backend, key)).await;
    let answer = answer.unwrap().into_inner();
    match trefoil_rpc::decode_lookup_answer(&answer).unwrap().found {
        Found::Present { version, data } => {
            let tag = KeyHasher::default().hash(key.as_bytes()).tag;
            let entry = DataEntry::validate(data, tag, version, key.as_bytes()).unwrap();
            Some(entry.value.to_vec())
        }
        Found::Absent | Found::Rejected(Rejection::WrongShard) => None,
        Found::Rejected(rejection) => panic!("{key}: {rejection}"),
    }
}
