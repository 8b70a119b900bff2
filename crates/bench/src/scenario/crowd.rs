//! Many at a time: connections that do nothing or nonsense beside some that
//! behave, operations of one async client, and client processes.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use trefoil_client::{Cell, Mutated, OpError, Options, OwnedLookup, SetOptions};

use super::{Mix, Progress, ScenarioError, ScenarioOptions};
use crate::load::{Bound, LoadError, Popularity, RequestSource as _, RunShared, Summary, ValueLen};
use crate::load::{preload, run_clients};
use crate::peer::{Endpoint, Memcached, Waiting, procfs};
use crate::server::{Server, ServerOptions};

const MEMORY: u64 = 256 << 20;
const BEHAVING: usize = 10;
const HOSTILE: usize = 1_000;
const CONCURRENT: usize = 10_000;
const PROCESSES: usize = 200;
/// What must be shown: p99 of those that behave, by that without the others.
const P99_MAX: f64 = 1.5;

/// What came of all three.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CrowdReport {
    /// Connections that do nothing or nonsense.
    pub hostile_connections: usize,
    /// p99 of ten that behave, without the others (closed loop).
    pub alone_p99_ns: u64,
    /// The same beside the others.
    pub crowded_p99_ns: u64,
    /// The second by the first.
    pub p99: f64,
    /// Operations of those that behave that failed.
    pub behaving_failed: u64,
    /// Operations of one async client under way at a time, SETs and GETs.
    pub concurrent: usize,
    /// Of these, that failed.
    pub concurrent_failed: u64,
    /// The first message.
    pub concurrent_first_error: Option<String>,
    /// From the beginning of all until the end of each, p99, in milliseconds.
    pub concurrent_p99_ms: f64,
    /// Until the last.
    pub concurrent_all_ms: f64,
    /// Bytes that the client's process grew by meanwhile.
    pub concurrent_grown_bytes: u64,
    /// Futures dropped under way, after which as many operations worked.
    pub dropped: usize,
    /// Of these, that failed.
    pub after_dropping_failed: u64,
    /// Client processes at a time.
    pub processes: usize,
    /// Of these, that failed or had an operation that failed.
    pub processes_failed: usize,
    /// What the first of them said.
    pub processes_first_error: Option<String>,
}

impl CrowdReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        self.p99 <= P99_MAX
            && self.behaving_failed + self.concurrent_failed + self.after_dropping_failed == 0
            && self.processes_failed == 0
    }
}

/// Many connections, operations and processes.
pub fn crowd(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<CrowdReport, ScenarioError> {
    let mut report = CrowdReport {
        hostile_connections: HOSTILE,
        processes: options.scaled(PROCESSES, PROCESSES / 4),
        concurrent: CONCURRENT,
        dropped: CONCURRENT / 10,
        ..CrowdReport::default()
    };
    connections(options, &mut report, progress)?;
    progress("crowd: one async client");
    let server = Server::start(&ServerOptions {
        processes: true,
        ..options.server("R=3.2", MEMORY)
    })?;
    concurrent(&server, &mut report)?;
    progress("crowd: client processes");
    processes(options, &server, &mut report)?;
    Ok(report)
}

/// Ten that behave, first alone, then beside a thousand that do not.
fn connections(
    options: &ScenarioOptions,
    report: &mut CrowdReport,
    progress: Progress<'_>,
) -> Result<(), ScenarioError> {
    let server = Server::start(&ServerOptions {
        doors: true,
        ..options.server("R=1", MEMORY)
    })?;
    let no_door = || ScenarioError::Course("serve has no memcached door".to_owned());
    let address = server.memcached.ok_or_else(no_door)?;
    let length = Duration::from_secs(options.scaled(5, 2));
    progress("crowd: ten connections that behave");
    let alone = behave(options, address, length)?;
    progress("crowd: beside a thousand that do not");
    let is_over = Arc::new(AtomicBool::new(false));
    let others: Vec<TcpStream> = (0..HOSTILE)
        .map(|number| misbehave(address, number))
        .collect::<Result<_, _>>()
        .map_err(|e| ScenarioError::Course(format!("a connection that misbehaves: {e}")))?;
    let dribbler = {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || dribble(others, &is_over))
    };
    let crowded = behave(options, address, length);
    is_over.store(true, Ordering::Relaxed);
    let _ = dribbler.join();
    let crowded = crowded?;
    report.alone_p99_ns = alone.p99_ns;
    report.crowded_p99_ns = crowded.p99_ns;
    report.p99 = crowded.p99_ns as f64 / alone.p99_ns.max(1) as f64;
    report.behaving_failed = alone.failed + crowded.failed + crowded.wrong + alone.wrong;
    Ok(())
}

fn behave(
    options: &ScenarioOptions,
    address: SocketAddr,
    length: Duration,
) -> Result<Summary, ScenarioError> {
    let mix = Mix {
        keys_count: 1_000,
        value_len: 1_000,
        popularity: Popularity::Uniform,
        gets: 0.9,
        ops_per_s: None,
    };
    let endpoint = Endpoint::Tcp(address);
    let shared = RunShared::reading();
    let mut clients = Vec::new();
    for seed in 0..BEHAVING as u64 {
        let client = Memcached::connect(&endpoint, Waiting::Blocking)
            .map_err(|e| ScenarioError::Course(format!("connecting: {e}")))?;
        clients.push((client, mix.source(seed)?, options.client_core));
    }
    if let Some((client, source, _)) = clients.first_mut() {
        let len = ValueLen::Fixed(mix.value_len);
        preload(
            client,
            source.codec(),
            0..mix.keys_count,
            len,
            &shared,
            &mut |_| {},
        )?;
    }
    let run_options = mix.options(Duration::from_millis(300), Bound::Time(length), 1, 1);
    let result = run_clients(clients, &run_options, &shared)?;
    Ok(Summary::of(&result))
}

/// One in two says nothing; the others leave half a request, or nonsense.
fn misbehave(address: SocketAddr, number: usize) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nonblocking(true)?;
    let said = match number % 6 {
        0 => stream.write(b"set half 0 0 900000\r\nand no more"),
        1 => stream.write(b"get "),
        2 => stream.write(&[0xff; 900]),
        _ => Ok(0),
    };
    // Being refused is fine.
    let _ = said;
    Ok(stream)
}

/// One byte each, again and again, until it is over.
fn dribble(mut streams: Vec<TcpStream>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        for stream in streams.iter_mut().step_by(6) {
            let _ = stream.write(b"x");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// All operations at once, then some futures dropped, then again.
fn concurrent(server: &Server, report: &mut CrowdReport) -> Result<(), ScenarioError> {
    let cell = Cell::connect(&server.address)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(ScenarioError::Directory)?;
    let client = Arc::new(cell.async_client(Options {
        deadline: Duration::from_secs(20),
        ..Options::default()
    }));
    let own = || procfs::memory(std::process::id()).map_or(0, |memory| memory.rss);
    let before = own();
    let failed = |error: &OpError, report: &mut CrowdReport| {
        report.concurrent_failed += 1;
        report
            .concurrent_first_error
            .get_or_insert_with(|| error.to_string());
    };
    let mut took = Histogram::<u64>::new(3).map_err(|_| LoadError::Panicked)?;
    let outcomes = runtime.block_on(async {
        let begin = Instant::now();
        let tasks: Vec<_> = (0..CONCURRENT)
            .map(|number| {
                let client = Arc::clone(&client);
                tokio::spawn(async move {
                    let outcome = operation(&client, number).await;
                    (outcome, begin.elapsed())
                })
            })
            .collect();
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await);
        }
        outcomes
    });
    for outcome in outcomes {
        let (outcome, elapsed) = outcome.map_err(|_| LoadError::Panicked)?;
        let _ = took.record(elapsed.as_micros() as u64);
        if let Err(error) = outcome {
            failed(&error, report);
        }
    }
    report.concurrent_p99_ms = took.value_at_quantile(0.99) as f64 / 1e3;
    report.concurrent_all_ms = took.max() as f64 / 1e3;
    report.concurrent_grown_bytes = own().saturating_sub(before);
    // Dropped at random: some before they begin, some under way.
    let after = runtime.block_on(async {
        for number in 0..report.dropped {
            let patience = Duration::from_micros((number % 50) as u64 * 4);
            let _ = tokio::time::timeout(patience, operation(&client, number)).await;
        }
        let mut failed = 0;
        for number in 0..report.dropped {
            failed += u64::from(operation(&client, number).await.is_err());
        }
        failed
    });
    report.after_dropping_failed = after;
    drop(client);
    drop(runtime);
    Ok(())
}

async fn operation(client: &trefoil_client::AsyncClient, number: usize) -> Result<(), OpError> {
    let key = ((number / 2) as u64).to_le_bytes();
    if number.is_multiple_of(2) {
        let stored = client.set(&key, &[7; 100], SetOptions::default()).await?;
        let is_stored = matches!(stored, Mutated::Stored { .. });
        return match is_stored {
            true => Ok(()),
            false => Err(OpError::Failed(format!("a SET was {stored:?}"))),
        };
    }
    match client.get(&key).await? {
        OwnedLookup::Hit(hit) if hit.value == [7; 100] => Ok(()),
        OwnedLookup::Hit(_) => Err(OpError::Failed("a wrong value".to_owned())),
        OwnedLookup::Miss(_) => Ok(()),
    }
}

/// Many processes with a client each, all at once.
fn processes(
    options: &ScenarioOptions,
    server: &Server,
    report: &mut CrowdReport,
) -> Result<(), ScenarioError> {
    let children: Vec<_> = (0..report.processes)
        .map(|_| {
            Command::new(&options.program)
                .args(["bench", "mix", "--cell", &server.address, "--no-fill"])
                .args(["--keys", "1000", "--value-size", "100", "--rate", "20"])
                .args(["--seconds", "3", "--json"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
        })
        .collect();
    for child in children {
        let output = child
            .and_then(std::process::Child::wait_with_output)
            .map_err(|e| ScenarioError::Course(format!("a client process: {e}")))?;
        let summary: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        let is_fine = output.status.success()
            && summary
                .as_ref()
                .is_some_and(|s| s["failed"] == 0 && s["indeterminate"] == 0);
        if !is_fine {
            report.processes_failed += 1;
            let said = match summary {
                Some(summary) => summary["first_error"].to_string(),
                None => String::from_utf8_lossy(&output.stderr).into_owned(),
            };
            report.processes_first_error.get_or_insert(said);
        }
    }
    Ok(())
}
