//! What requests wait for while servers of sessions are replaced, and while one dies:
//! `cargo run --release -p sessions --example load`, after
//! `cargo build --release -p sessions`.
//!
//! An assigner in this process, servers as processes of their own. Requests are due at
//! equal distances, whether or not earlier ones are answered, and their times count from
//! then. No read may find an older value than was acknowledged before it, and at the end
//! every session has to have the last one.

use clap::Parser;
use hdrhistogram::Histogram;
use sessions::Caller;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, sleep_until};
use trefoil_coordination::{AssignerServer, NodeOptions};

type Failure = Box<dyn Error + Send + Sync>;

/// One request in so many changes its session.
const CHANGES_EVERY: u64 = 5;
/// For an answer: longer than a lease and what follows it.
const PATIENCE: Duration = Duration::from_secs(60);
/// One request in a hundred may take so many times as long as it does undisturbed.
const P99_TIMES_MAX: f64 = 2.0;
/// Times are kept to three digits.
const DIGITS: u8 = 3;

/// Measures sessions while servers are replaced, and while one dies
#[derive(Parser, Debug)]
struct Args {
    /// Servers
    #[arg(long, default_value_t = 5)]
    servers: usize,
    /// Sessions
    #[arg(long, default_value_t = 20_000)]
    sessions: usize,
    /// Requests in a second, one in five of which changes a session
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
    /// Length of the phase in which a server dies, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Length of the undisturbed phase before, in seconds
    #[arg(long, default_value_t = 20)]
    quiet: u64,
    /// After which a dead server counts as dead, in milliseconds
    #[arg(long, default_value_t = 1_000)]
    lease_ms: u64,
    /// One more line, machine-readable
    #[arg(long)]
    json: bool,
}

/// Processes that serve.
struct Fleet {
    assigner: String,
    program: PathBuf,
    servers: Vec<Child>,
}

impl Fleet {
    async fn start(&mut self) -> Result<(), Failure> {
        let mut child = Command::new(&self.program)
            .args(["--assigner", &self.assigner])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        let output = child.stdout.take().ok_or("no output")?;
        let line = BufReader::new(output).lines().next_line().await?;
        match line {
            Some(line) if line.starts_with("ready ") => {}
            other => return Err(format!("a server said {other:?} instead of `ready`").into()),
        }
        self.servers.push(child);
        Ok(())
    }

    /// The oldest gives everything away and ends; a new one takes its place.
    async fn replace_oldest(&mut self) -> Result<(), Failure> {
        let mut old = self.servers.remove(0);
        let id = old.id().ok_or("a server is gone")?;
        let id = rustix::process::Pid::from_raw(id.cast_signed()).ok_or("no such process")?;
        rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        let end = old.wait().await?;
        if !end.success() {
            return Err(format!("a server that was asked to end: {end}").into());
        }
        self.start().await
    }
}

/// One session, and what was acknowledged of it.
#[derive(Default)]
struct Known {
    /// Somebody changes it: one at a time, so that the last value is known.
    is_changing: AtomicBool,
    acknowledged: AtomicU64,
}

/// What became of the requests that were due in one phase.
struct Phase {
    name: String,
    began: tokio::time::Instant,
    /// In microseconds.
    times: Histogram<u64>,
    failed: u64,
}

impl Phase {
    fn tell(&self) {
        let ms = |share: f64| self.times.value_at_quantile(share) as f64 / 1e3;
        println!(
            "{:34} {:>9} {:>8} {:>9.2} {:>9.2} {:>9.2} {:>9.1}",
            self.name,
            self.times.len(),
            self.failed,
            ms(0.5),
            ms(0.99),
            ms(0.999),
            self.times.max() as f64 / 1e3,
        );
    }
}

struct Load {
    caller: Caller,
    sessions: Vec<Known>,
    /// The last one is the present one.
    phases: Mutex<Vec<Phase>>,
    /// Requests that are not answered.
    open: AtomicU64,
    /// Reads of a value that was older than the one acknowledged before.
    stale: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    async fn request(&self, number: u64) -> Result<(), tonic::Status> {
        // Neighbours in time are far apart among the sessions.
        let index = number.wrapping_mul(7_919) as usize % self.sessions.len();
        let session = &self.sessions[index];
        // Spread anew for each number: a session is both read and changed.
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let changes = spread.is_multiple_of(CHANGES_EVERY)
            && !session.is_changing.swap(true, Ordering::Acquire);
        match changes {
            true => self.change(index).await,
            false => self.read(index).await,
        }
    }

    /// What was acknowledged before it was asked for has to be there.
    async fn read(&self, index: usize) -> Result<(), tonic::Status> {
        let acknowledged = self.sessions[index].acknowledged.load(Ordering::Acquire);
        let found = self.caller.get(&name(index)).await?;
        let value = found.values.get("n").map_or(Ok(0), |text| text.parse());
        if !value.is_ok_and(|value: u64| value >= acknowledged) {
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts it up.
    async fn change(&self, index: usize) -> Result<(), tonic::Status> {
        let session = &self.sessions[index];
        let value = session.acknowledged.load(Ordering::Relaxed) + 1;
        let (id, text) = (name(index), value.to_string());
        let done = self.caller.put(&id, "n", &text).await;
        // One that has failed may still be carried out: nobody changes it from here on.
        if done.is_ok() {
            session.acknowledged.store(value, Ordering::Release);
            session.is_changing.store(false, Ordering::Release);
        }
        done.map(drop)
    }

    /// Sends requests until the end.
    async fn run(self: Arc<Self>, rate: u64) {
        let began = tokio::time::Instant::now();
        for number in 1.. {
            let due = began + Duration::from_nanos(number * 1_000_000_000 / rate);
            sleep_until(due).await;
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let own = Arc::clone(&self);
            // It counts where it was due, however late it is sent or answered.
            let phase = own.phases().iter().rposition(|phase| phase.began <= due);
            let phase = phase.unwrap_or(0);
            own.open.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let done = own.request(number).await;
                let us = due.elapsed().as_micros() as u64;
                if let Some(phase) = own.phases().get_mut(phase) {
                    // It grows as it has to.
                    let _ = phase.times.record(us);
                    phase.failed += u64::from(done.is_err());
                }
                own.open.fetch_sub(1, Ordering::Release);
            });
        }
    }

    fn phases(&self) -> MutexGuard<'_, Vec<Phase>> {
        self.phases.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn begin(&self, name: impl Into<String>) -> Result<(), Failure> {
        self.phases().push(Phase {
            name: name.into(),
            began: tokio::time::Instant::now(),
            times: Histogram::new(DIGITS)?,
            failed: 0,
        });
        Ok(())
    }

    /// Stops, and waits until all is answered.
    async fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        while self.open.load(Ordering::Acquire) > 0 {
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The worst phase, beside the undisturbed one.
    fn times_max(&self) -> f64 {
        match &self.phases()[1..] {
            [quiet, disturbed @ ..] => {
                let times = disturbed.iter().map(|phase| times_p99(quiet, phase));
                times.fold(0.0, f64::max)
            }
            [] => 0.0,
        }
    }

    /// All phases but the first, as JSON.
    fn document(&self) -> String {
        let phase = |phase: &Phase| {
            let us = |share: f64| phase.times.value_at_quantile(share);
            format!(
                r#"{{"name":"{}","requests":{},"failed":{},"p50_us":{},"p99_us":{},"p99_9_us":{},"max_us":{}}}"#,
                phase.name,
                phase.times.len(),
                phase.failed,
                us(0.5),
                us(0.99),
                us(0.999),
                phase.times.max()
            )
        };
        let phases: Vec<String> = self.phases()[1..].iter().map(phase).collect();
        phases.join(",")
    }

    /// The table: how many requests have failed.
    fn tell(&self) -> u64 {
        let phases = self.phases();
        let told = &phases[1..];
        for phase in told {
            phase.tell();
        }
        if let [quiet, disturbed @ ..] = told {
            for phase in disturbed {
                let times = times_p99(quiet, phase);
                println!(
                    "p99, {}: {times:.2} times the undisturbed one (wanted: at most {P99_TIMES_MAX})",
                    phase.name
                );
            }
        }
        told.iter().map(|phase| phase.failed).sum()
    }

    /// Sessions that are gone, or have another value than was acknowledged last.
    async fn lost(&self) -> usize {
        let mut lost = 0;
        for (index, session) in self.sessions.iter().enumerate() {
            let value = session.acknowledged.load(Ordering::Relaxed);
            let expected = (value > 0).then(|| value.to_string());
            let is_there = match self.caller.get(&name(index)).await {
                Ok(found) => {
                    let is_open = session.is_changing.load(Ordering::Acquire);
                    is_open || found.values.get("n") == expected.as_ref()
                }
                Err(_) => false,
            };
            lost += usize::from(!is_there);
        }
        lost
    }
}

/// How much longer one request in a hundred takes than in the undisturbed phase.
fn times_p99(quiet: &Phase, phase: &Phase) -> f64 {
    let p99 = |phase: &Phase| phase.times.value_at_quantile(0.99) as f64;
    p99(phase) / p99(quiet).max(1.0)
}

fn name(index: usize) -> String {
    format!("session {index}")
}

/// The server's program: cargo puts it beside the folder of this one.
fn program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).ok_or("no folder")?;
    let program = folder.join("sessions");
    match program.exists() {
        true => Ok(program),
        false => Err(format!(
            "{} is missing: cargo build --release -p sessions",
            program.display()
        )
        .into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    if args.servers < 3 || args.sessions == 0 || args.rate == 0 {
        return Err("give at least 3 servers, a session, and a request in a second".into());
    }
    let node = NodeOptions {
        lease: Duration::from_millis(args.lease_ms),
        ..NodeOptions::default()
    };
    let store = "embedded".parse()?;
    let assigner = AssignerServer::start("127.0.0.1:0".parse()?, &store, node).await?;
    let mut fleet = Fleet {
        assigner: assigner.address().to_string(),
        program: program()?,
        servers: Vec::new(),
    };
    for _ in 0..args.servers {
        fleet.start().await?;
    }
    let caller = Caller::connect(&fleet.assigner, PATIENCE).await?;
    for index in 0..args.sessions {
        caller.begin(&name(index), "somebody").await?;
    }
    let load = Arc::new(Load {
        caller,
        sessions: (0..args.sessions).map(|_| Known::default()).collect(),
        phases: Mutex::default(),
        open: AtomicU64::new(0),
        stale: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    // Connections are made, caches filled: not told.
    load.begin("warm")?;
    let sending = tokio::spawn(Arc::clone(&load).run(args.rate));
    sleep(Duration::from_secs(3)).await;
    load.begin("undisturbed")?;
    sleep(Duration::from_secs(args.quiet)).await;
    load.begin("all replaced, one by one")?;
    for _ in 0..args.servers {
        fleet.replace_oldest().await?;
    }
    // The last one has its share.
    sleep(Duration::from_secs(3)).await;
    load.begin("one killed")?;
    fleet.servers.remove(0).kill().await?;
    sleep(Duration::from_secs(args.seconds)).await;
    load.end().await;
    sending.await?;
    println!(
        "{:34} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9}",
        format!("{} servers, {}/s", args.servers, args.rate),
        "requests",
        "failed",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms"
    );
    let failed = load.tell();
    let lost = load.lost().await;
    let stale = load.stale.load(Ordering::Relaxed);
    let times = load.times_max();
    println!(
        "{lost} sessions lost or with an old value, {stale} old values read, {failed} requests \
         failed (wanted: 0 of each)"
    );
    let wrong = lost as u64 + stale + failed;
    let holds = wrong == 0 && times <= P99_TIMES_MAX;
    if args.json {
        println!(
            r#"{{"phases":[{}],"lost":{lost},"stale":{stale},"failed":{failed},"p99_times_max":{times:.3},"holds":{holds}}}"#,
            load.document()
        );
    }
    match (wrong, holds) {
        (_, true) => {
            println!("verdict: everything holds");
            Ok(())
        }
        (0, false) => Err(format!(
            "verdict: does not hold: p99 is {times:.2} times the undisturbed one, and may be {P99_TIMES_MAX}"
        )
        .into()),
        _ => Err("verdict: does not hold: a request was not answered, or a session was not as it should be".into()),
    }
}
