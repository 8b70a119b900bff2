//! `demo`: what the product is for, in a minute and a half. A replicated cell
//! and memcached replay the same real workload; a backend is killed half-way.

use crate::args::DemoArgs;
use crate::failure::{Failure, Outcome, print_line};
use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use trefoil_bench::load::{
    Bound, KeyCodec, Limited, Request, RequestSource, RunOptions, RunResult, RunShared, Share,
    Summary, pin_current_thread, run as run_load,
};
use trefoil_bench::peer::{Memcached, PeerKind, PeerOptions, PeerProcess, Waiting};
use trefoil_bench::server::{Server, ServerOptions};
use trefoil_bench::target::Target;
use trefoil_bench::target::trefoil::Trefoil;
use trefoil_bench::workload::{Cluster, ClusterSource, OLTP, Trace, TraceReader, TraceSource};
use trefoil_client::{Cell, Options};

/// Memory of each backend, and of memcached.
const MEMORY: u64 = 96 << 20;
const KEY_LEN: usize = 16;
/// Bytes cached for each block of the trace.
const VALUE_LEN: usize = 1024;
/// The cluster of Twitter's statistics that the second part imitates: small
/// values, 7 % writes (see the bench crate's data).
const TWITTER_CLUSTER: u32 = 19;
const TWITTER_KEYS_COUNT: u64 = 200_000;
/// Requests of the second part before and while it is measured: the same for
/// both systems, or their hit ratios could not be compared.
const TWITTER_WARM_UP_REQUESTS: u64 = 100_000;
const TWITTER_REQUESTS: u64 = 200_000;
/// How often progress is told in lines where there is no terminal for a bar.
const LINES_PER_RUN: u64 = 4;
/// The part of the trace after which a backend is killed.
const KILL_AFTER: f64 = 0.4;

/// One system's part of the table.
struct Row {
    workload: &'static str,
    system: String,
    summary: Summary,
    cpu_us_per_op: f64,
}

pub(crate) fn run(args: DemoArgs) -> Outcome {
    let trace = match &args.trace {
        Some(path) => TraceReader::open(path),
        None => TraceReader::new(OLTP),
    };
    let trace = trace.and_then(Trace::load).map_err(Failure::of)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (server_core, client_core) = if cores > 1 {
        (Some(0), Some(1))
    } else {
        (None, None)
    };

    print_line(
        "Starting a cell of three backends (each key in three copies, two must agree) and memcached …",
    )?;
    let program =
        std::env::current_exe().map_err(|e| Failure::doing("cannot find this program", e))?;
    let server = Server::start(&ServerOptions {
        processes: true,
        is_silent: true,
        core: server_core,
        ..ServerOptions::new(&program, "R=3.2", MEMORY)
    })
    .map_err(Failure::of)?;
    let peer = start_peer(server_core)?;
    if let Some(core) = client_core {
        pin_current_thread(core).map_err(Failure::of)?;
    }
    let cell = Cell::connect(&server.address).map_err(Failure::of)?;
    let mut ours = Trefoil::new(cell.client(Options::default()));
    let mut theirs = Memcached::connect(peer.endpoint(), Waiting::Spinning).map_err(Failure::of)?;
    print_line(&format!(
        "  cell {}, backend processes {:?}, {} each",
        server.address,
        server.pids,
        ByteSize::b(MEMORY)
    ))?;

    let peer_name = format!("{}, spinning client", peer.label());
    let mut rows = Vec::new();
    print_line(&format!(
        "\nReplaying {} references of the OLTP trace as a look-aside cache ({} distinct blocks, {VALUE_LEN} B each):",
        trace.references().len(),
        trace.objects_count()
    ))?;
    let whole = trace.references().len() as u64;
    let replay = || TraceSource::new(&trace, KEY_LEN, VALUE_LEN, Share::WHOLE);
    let to_end = RunOptions {
        fill_on_miss: true,
        warm_up: Bound::Ops(0),
        bound: Bound::Source,
        ..RunOptions::default()
    };
    let before = server_cpu(&server)?;
    let mut source = replay().map_err(Failure::of)?;
    let victim = server.pids[1];
    let kill = Kill {
        pid: victim,
        after: (whole as f64 * KILL_AFTER) as u64,
    };
    let result = watched(
        "trefoil  ",
        &mut ours,
        &mut source,
        &to_end,
        whole,
        Some(kill),
    )?;
    rows.push(row(
        "OLTP replay",
        "trefoil R=3.2, one backend killed",
        &result,
        server_cpu(&server)?.saturating_sub(before),
    ));
    let before = peer.cpu_time().map_err(Failure::of)?;
    let mut source = replay().map_err(Failure::of)?;
    let result = watched("memcached", &mut theirs, &mut source, &to_end, whole, None)?;
    rows.push(row(
        "OLTP replay",
        &peer_name,
        &result,
        peer.cpu_time().map_err(Failure::of)? - before,
    ));

    print_line(
        "\nA mix like one of Twitter's caches (cluster 19 of the March 2020 traces), one backend still dead:",
    )?;
    let cluster = Cluster::by_number(TWITTER_CLUSTER).map_err(Failure::of)?;
    let source = || ClusterSource::new(cluster.clone(), TWITTER_KEYS_COUNT, Share::WHOLE, 1);
    let mut requests = source().map_err(Failure::of)?;
    let warm_up = Limited::new(&mut requests, TWITTER_WARM_UP_REQUESTS);
    warm(&mut ours, warm_up, &to_end)?;
    let before = server_cpu(&server)?;
    let result = watched(
        "trefoil  ",
        &mut ours,
        &mut Limited::new(&mut requests, TWITTER_REQUESTS),
        &to_end,
        TWITTER_REQUESTS,
        None,
    )?;
    rows.push(row(
        "Twitter-like mix",
        "trefoil R=3.2, two of three",
        &result,
        server_cpu(&server)?.saturating_sub(before),
    ));
    // A fresh one: memcached would be slow to recut the memory that the first
    // part left it with, and miss more than it has to.
    drop((theirs, peer));
    let peer = start_peer(server_core)?;
    let mut theirs = Memcached::connect(peer.endpoint(), Waiting::Spinning).map_err(Failure::of)?;
    let mut requests = source().map_err(Failure::of)?;
    let warm_up = Limited::new(&mut requests, TWITTER_WARM_UP_REQUESTS);
    warm(&mut theirs, warm_up, &to_end)?;
    let before = peer.cpu_time().map_err(Failure::of)?;
    let result = watched(
        "memcached",
        &mut theirs,
        &mut Limited::new(&mut requests, TWITTER_REQUESTS),
        &to_end,
        TWITTER_REQUESTS,
        None,
    )?;
    rows.push(row(
        "Twitter-like mix",
        &peer_name,
        &result,
        peer.cpu_time().map_err(Failure::of)? - before,
    ));

    table(&rows)?;
    let failed: u64 = rows
        .iter()
        .map(|row| row.summary.failed + row.summary.wrong + row.summary.stale)
        .sum();
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn start_peer(core: Option<usize>) -> Result<PeerProcess, Failure> {
    PeerProcess::start(PeerOptions {
        core,
        ..PeerOptions::new(PeerKind::Memcached, MEMORY >> 20)
    })
    .map_err(Failure::of)
}

/// A backend to kill when the run has got so far.
struct Kill {
    pid: u32,
    /// Requests.
    after: u64,
}

/// CPU of the backends that live; what a dead one had used is lost with it.
fn server_cpu(server: &Server) -> Result<Duration, Failure> {
    let alive = server
        .pids
        .iter()
        .filter_map(|pid| trefoil_bench::peer::procfs::cpu_time(*pid).ok());
    Ok(alive.sum())
}

fn row(workload: &'static str, system: &str, result: &RunResult, cpu: Duration) -> Row {
    let summary = Summary::of(result);
    Row {
        workload,
        system: system.to_owned(),
        cpu_us_per_op: cpu.as_secs_f64() * 1e6 / summary.ops.max(1) as f64,
        summary,
    }
}

/// Fills a cache with what will be asked for.
fn warm<T: Target, S: RequestSource>(
    target: &mut T,
    mut source: S,
    options: &RunOptions,
) -> Result<(), Failure> {
    let shared = RunShared::writing(source.keys_count());
    let result = run_load(target, &mut source, options, &shared).map_err(Failure::of)?;
    match result.failed {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!(
            "{failed} operations of the warm-up failed: {}",
            result.first_error.unwrap_or_default()
        ))),
    }
}

/// Counts the requests that it passes on: fills after misses are no progress.
struct Counted<'a, S> {
    source: &'a mut S,
    requested: &'a AtomicU64,
}

impl<S: RequestSource> RequestSource for Counted<'_, S> {
    fn codec(&self) -> KeyCodec {
        self.source.codec()
    }

    fn keys_count(&self) -> u64 {
        self.source.keys_count()
    }

    fn is_finite(&self) -> bool {
        self.source.is_finite()
    }

    fn next_request(&mut self) -> Option<Request> {
        self.requested.fetch_add(1, Ordering::Relaxed);
        self.source.next_request()
    }
}

/// Runs a load with a progress bar beside it.
fn watched<T: Target, S: RequestSource>(
    name: &'static str,
    target: &mut T,
    source: &mut S,
    options: &RunOptions,
    whole: u64,
    kill: Option<Kill>,
) -> Result<RunResult, Failure> {
    let shared = RunShared::writing(source.keys_count());
    let (over, requested) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut source = Counted {
        source,
        requested: &requested,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| watch(name, &requested, &over, whole, kill));
        let result = run_load(target, &mut source, options, &shared).map_err(Failure::of);
        over.store(true, Ordering::Relaxed);
        result
    })
}

fn watch(
    name: &'static str,
    requested: &AtomicU64,
    over: &AtomicBool,
    whole: u64,
    mut kill: Option<Kill>,
) {
    let bar = ProgressBar::new(whole);
    let template = "  {prefix} [{bar:36}] {percent:>3} %  {per_sec}  {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let mut lines_told = 0;
    bar.set_prefix(name);
    while !over.load(Ordering::Relaxed) {
        let done = requested.load(Ordering::Relaxed);
        bar.set_position(done);
        if bar.is_hidden() && done * LINES_PER_RUN / whole.max(1) > lines_told {
            lines_told = done * LINES_PER_RUN / whole.max(1);
            eprintln!("  {name} {:>3} %", lines_told * 100 / LINES_PER_RUN);
        }
        if let Some(victim) = kill.take_if(|kill| done >= kill.after) {
            if let Some(pid) = rustix::process::Pid::from_raw(victim.pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            bar.set_message(format!("killed backend 1 (process {})", victim.pid));
            if bar.is_hidden() {
                eprintln!("  kill -9 of backend 1 (process {})", victim.pid);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bar.set_position(whole);
    bar.abandon();
}

fn table(rows: &[Row]) -> Result<(), Failure> {
    print_line("")?;
    print_line(&format!(
        "{:<17} {:<34} {:>9} {:>9} {:>10} {:>9} {:>10} {:>7} {:>7} {:>11}",
        "workload",
        "system",
        "GET p50",
        "GET p99",
        "GET p99.9",
        "SET p50",
        "hit ratio",
        "failed",
        "stale",
        "server CPU"
    ))?;
    for Row {
        workload,
        system,
        summary,
        cpu_us_per_op,
    } in rows
    {
        let us = |ns: u64| format!("{:.1} µs", ns as f64 / 1000.0);
        print_line(&format!(
            "{workload:<17} {system:<34} {:>9} {:>9} {:>10} {:>9} {:>8.1} % {:>7} {:>7} {:>8.2} µs",
            us(summary.get.p50_ns),
            us(summary.get.p99_ns),
            us(summary.get.p999_ns),
            us(summary.set.p50_ns),
            summary.hit_ratio() * 100.0,
            summary.failed + summary.wrong,
            summary.stale,
            cpu_us_per_op,
        ))?;
    }
    print_line(
        "\nserver CPU: per operation, of all server processes together; failed and stale have to be 0.",
    )
}
