//! Moves slices with 300,000 objects of 1 KB between two servers while they
//! are read and written, and says what the callers notice: failed requests,
//! lost values, latency before and during the move. With copies (`eventual` or
//! `strong`) there are three servers, and each object is in two of them.
//!
//! `cargo run --release -p trefoil-linklet --example move-under-load --
//! [--json] [OBJECTS [RUNS [CHUNK_KIB [none|eventual|strong]]]]`
//!
//! It judges itself: the last lines have the median over the runs and the sums of what
//! must be 0, beside what is wanted, and the exit code is 1 if something else was found.
//! With `--json` one more line has the same.
//!
//! Servers and callers share one process and loopback gRPC; a request is a
//! call into the server's linklet, so latencies are those of the store alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet};
use trefoil_coordination::{LocalCoordinator, NodeOptions, Watcher};
use trefoil_linklet::{
    Config, Error, Linklet, Listener, PlainMarshal, Replication, StateLoss, Stats,
};
use trefoil_sharder::BalanceConfig;

const BYTES: usize = 1000;
/// Requests per second, open loop.
const RATE: u64 = 4_000;
/// What the servers spend on moving.
const MOVE_BYTES_PER_SECOND: u64 = 32 << 20;
/// Nothing has moved for so long: it is quiet.
const SETTLE: Duration = Duration::from_secs(2);
/// One request in a hundred may take so many times as long as before the move.
const P99_TIMES_MAX: f64 = 2.0;
/// How long the load runs before the move.
const QUIET: Duration = Duration::from_secs(4);

#[derive(Default)]
struct Losses(AtomicU64);

impl Listener for Losses {
    fn state_loss(&self, loss: &StateLoss) {
        eprintln!("lost: {loss:?}");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Servers {
    linklets: Vec<Linklet<Vec<u8>>>,
    watcher: Watcher,
}

fn name(n: u64) -> Vec<u8> {
    format!("object {n}").into_bytes()
}

impl Servers {
    /// Puts an object in where it belongs.
    async fn insert(&self, n: u64) -> Result<(), Error> {
        loop {
            for linklet in &self.linklets {
                match linklet.insert(&name(n), vec![0u8; BYTES]).await {
                    Err(Error::NotMine(_)) => {}
                    done => return done.map(drop),
                }
            }
        }
    }

    /// Reads or changes an object where it is; follows one redirect.
    async fn request(&self, n: u64, write: bool) -> Result<bool, Error> {
        let key = name(n);
        let view = Arc::clone(&self.watcher.view().borrow());
        let point = self.linklets[0].point(&key);
        let owner = view.assignment.slice_of(point).servers.first().copied();
        let find = |id| {
            self.linklets
                .iter()
                .find(|linklet| linklet.server_id() == id)
        };
        let act = |linklet: Linklet<Vec<u8>>| async move {
            match write {
                true => {
                    linklet
                        .update(&key, |value| value[0] = value[0].wrapping_add(1))
                        .await
                }
                false => {
                    linklet
                        .read(&key, |value| assert!(value.len() == BYTES))
                        .await
                }
            }
            .map(|found| found.is_some())
        };
        let linklet = find(owner).ok_or(Error::NotMember)?;
        match act.clone()(linklet.knowing(view.version())).await {
            Err(Error::NotMine(redirect)) => {
                let to = find(redirect.to).ok_or(Error::NotMember)?;
                act(to.redirected(redirect.version)).await
            }
            answer => answer,
        }
    }
}

#[derive(Default)]
struct Phase {
    latencies_us: Vec<u64>,
    failed: u64,
    absent: u64,
}

impl Phase {
    fn count(&mut self, done: Result<(Result<bool, Error>, Duration), JoinError>) {
        let (done, took) = done.expect("requests do not panic");
        match done {
            Ok(true) => {}
            Ok(false) => self.absent += 1,
            Err(error) => {
                eprintln!("failed: {error}");
                self.failed += 1;
            }
        }
        self.latencies_us.push(took.as_micros() as u64);
    }
}

/// Requests become due whatever has become of those before: each runs in a task of its
/// own, and its latency counts from when it was due.
async fn load(servers: Arc<Servers>, objects: u64, stop: Arc<AtomicBool>) -> Phase {
    let pause = Duration::from_secs(1) / RATE as u32;
    let mut due = Instant::now() + pause;
    let mut random = 1u64;
    let mut under_way = JoinSet::new();
    let mut phase = Phase::default();
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep_until(due.into()).await;
        // Timers are coarse: all that has become due meanwhile.
        while due <= Instant::now() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (servers, random) = (Arc::clone(&servers), random);
            under_way.spawn(async move {
                let done = servers.request(random % objects, random >> 61 == 0).await;
                (done, due.elapsed())
            });
            due += pause;
        }
        while let Some(done) = under_way.try_join_next() {
            phase.count(done);
        }
    }
    while let Some(done) = under_way.join_next().await {
        phase.count(done);
    }
    phase.latencies_us.sort_unstable();
    phase
}

fn show(what: &str, phase: &Phase) -> u64 {
    let at = |part: f64| {
        let index = (phase.latencies_us.len() as f64 * part) as usize;
        phase.latencies_us.get(index).copied().unwrap_or(0)
    };
    println!(
        "{what:<12} {:>7} requests  p50 {:>6} µs  p99 {:>6} µs  p99.9 {:>6} µs  failed {}  absent {}",
        phase.latencies_us.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        phase.failed,
        phase.absent
    );
    at(0.99)
}

/// What one run has shown.
struct Figures {
    before_us: u64,
    during_us: u64,
    failed: u64,
    lost: u64,
    moved: u64,
    seconds: f64,
}

async fn run(objects: u64, config: &Config) -> Result<Figures, Box<dyn std::error::Error>> {
    // Everything may move in one round: what is shown is the move, not the
    // assigner's budget for it.
    let options = NodeOptions {
        balance: BalanceConfig {
            churn_max: 1.0,
            ..BalanceConfig::default()
        },
        ..NodeOptions::default()
    };
    let coordinator = LocalCoordinator::with(options)?;
    let losses = Arc::new(Losses::default());
    let start = || {
        Linklet::builder("move-under-load", PlainMarshal)
            .memory(1 << 30)
            .listener(Arc::clone(&losses) as Arc<dyn Listener>)
            .protocol(config.clone())
            .listen(
                coordinator.clone(),
                "127.0.0.1:0".parse().expect("an address"),
            )
    };
    let first = start().await?;
    let mut others = Vec::new();
    if config.replication != Replication::None {
        others.push(start().await?);
    }
    first.settled().await;
    let watcher = coordinator.watcher("move-under-load").await?;
    let servers = Servers {
        linklets: others.iter().chain([&first]).cloned().collect(),
        watcher: coordinator.watcher("move-under-load").await?,
    };
    for n in 0..objects {
        servers.insert(n).await?;
    }
    others.push(start().await?);
    let received = || {
        let stats = others.iter().map(Linklet::stats);
        stats.map(|Stats { received, .. }| received).sum::<u64>()
    };
    let servers = Arc::new(Servers {
        linklets: others.iter().chain([&first]).cloned().collect(),
        watcher,
    });

    // The assigner may give the newcomer a share at once: that is not the move
    // that is looked at.
    let mut before = None;
    while before.replace(received()) != Some(received()) {
        tokio::time::sleep(SETTLE).await;
    }

    let stop = Arc::new(AtomicBool::new(false));
    let quiet = tokio::spawn(load(Arc::clone(&servers), objects, Arc::clone(&stop)));
    tokio::time::sleep(QUIET).await;
    stop.store(true, Ordering::Relaxed);
    let quiet = quiet.await?;
    let before_us = show("before", &quiet);

    let stop = Arc::new(AtomicBool::new(false));
    let moved_before = received();
    let busy = tokio::spawn(load(Arc::clone(&servers), objects, Arc::clone(&stop)));
    let began = Instant::now();
    let drained = first.drain().await;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let busy = busy.await?;
    let during_us = show("during", &busy);
    let moved = received() - moved_before;
    println!("{drained:?}: {moved} of {objects} objects of {BYTES} B moved in {took:.1?}");
    let mut missing = 0;
    for n in 0..objects {
        missing += u64::from(!servers.request(n, false).await?);
    }
    Ok(Figures {
        before_us,
        during_us,
        failed: quiet.failed + busy.failed,
        moved,
        lost: missing + quiet.absent + busy.absent + losses.0.load(Ordering::Relaxed),
        seconds: took.as_secs_f64(),
    })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[tokio::main]
async fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
    let (options, arguments): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|word| word.starts_with("--"));
    let is_json = match &options[..] {
        [] => false,
        [json] if json == "--json" => true,
        other => return Err(format!("no such options: {other:?}").into()),
    };
    let mut arguments = arguments.into_iter();
    let objects = arguments.next().map_or(Ok(300_000), |n| n.parse())?;
    let runs: usize = arguments.next().map_or(Ok(5), |n| n.parse())?;
    let mut config = Config {
        bytes_per_second: MOVE_BYTES_PER_SECOND,
        ..Config::default()
    };
    if let Some(chunk) = arguments.next() {
        config.chunk_bytes = chunk.parse::<usize>()? << 10;
    }
    config.replication = match arguments.next().as_deref() {
        None | Some("none") => Replication::None,
        Some("eventual") => Replication::Eventual,
        Some("strong") => Replication::Strong,
        Some(other) => return Err(format!("no such mode: {other}").into()),
    };
    let mut all = Vec::new();
    for _ in 0..runs.max(1) {
        all.push(run(objects, &config).await?);
    }
    let of = |figure: fn(&Figures) -> f64| median(all.iter().map(figure).collect());
    println!();
    println!("medians of {} runs:", all.len());
    println!(
        "  p99 before      {:>8.0} µs",
        of(|run| run.before_us as f64)
    );
    println!(
        "  p99 during      {:>8.0} µs",
        of(|run| run.during_us as f64)
    );
    let times = of(|run| run.during_us as f64 / run.before_us.max(1) as f64);
    println!("  during/before   {times:>8.2}      wanted: at most {P99_TIMES_MAX}");
    println!("  the move took   {:>8.2} s", of(|run| run.seconds));
    let sum = |figure: fn(&Figures) -> u64| all.iter().map(figure).sum::<u64>();
    let (failed, lost) = (sum(|run| run.failed), sum(|run| run.lost));
    println!("failed requests   {failed:>8}      wanted: 0");
    println!("lost values       {lost:>8}      wanted: 0");
    let mut broken = Vec::new();
    if failed > 0 {
        broken.push(format!("{failed} requests failed"));
    }
    if lost > 0 {
        broken.push(format!("{lost} values were lost"));
    }
    let moved = all.iter().map(|run| run.moved).min().unwrap_or(0);
    println!(
        "moved, at least   {moved:>8}      wanted: at least {}",
        objects / 2
    );
    if moved < objects / 2 {
        broken.push(format!("only {moved} of {objects} objects were moved"));
    }
    if times > P99_TIMES_MAX {
        broken.push(format!("p99 is {times:.2} times that before the move"));
    }
    let holds = broken.is_empty();
    if is_json {
        let runs = all.iter().map(|run| {
            format!(
                r#"{{"before_us":{},"during_us":{},"failed":{},"lost":{},"seconds":{:.3}}}"#,
                run.before_us, run.during_us, run.failed, run.lost, run.seconds
            )
        });
        let runs: Vec<String> = runs.collect();
        println!(
            r#"{{"runs":[{}],"p99_times":{times:.3},"failed":{failed},"lost":{lost},"holds":{holds}}}"#,
            runs.join(",")
        );
    }
    Ok(if holds {
        println!("verdict: everything holds");
        std::process::ExitCode::SUCCESS
    } else {
        println!("verdict: does not hold: {}", broken.join("; "));
        std::process::ExitCode::FAILURE
    })
}
