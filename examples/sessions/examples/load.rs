//! What requests wait for while servers of sessions are replaced, and while one dies:
//! `cargo run --release -p sessions --example load`, after
//! `cargo build --release -p sessions`.
//!
//! An assigner in this process, servers as processes of their own. Requests are due at
//! equal distances, whether or not earlier ones are answered, and their times count from
//! then. At the end every session has to have the last value that was acknowledged.

use clap::Parser;
use hdrhistogram::Histogram;
use sessions::Caller;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, sleep_until};
use trefoil_coordination::{AssignerServer, NodeOptions};

type Failure = Box<dyn Error + Send + Sync>;

/// One request in so many changes its session.
const CHANGES_EVERY: u64 = 5;
/// For an answer: longer than a lease and what follows it.
const PATIENCE: Duration = Duration::from_secs(60);
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
    /// Length of the undisturbed phases, and of the one in which a server dies
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// After which a dead server counts as dead, in seconds
    #[arg(long, default_value_t = 5)]
    lease: u64,
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

struct Load {
    caller: Caller,
    sessions: Vec<Known>,
    /// Of this phase, in microseconds.
    times: Mutex<Histogram<u64>>,
    failed: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    async fn request(&self, number: u64) {
        // Neighbours in time are far apart among the sessions.
        let index = number.wrapping_mul(7_919) as usize % self.sessions.len();
        let session = &self.sessions[index];
        let changes = number.is_multiple_of(CHANGES_EVERY)
            && !session.is_changing.swap(true, Ordering::Acquire);
        let result = match changes {
            true => self.change(index, number).await,
            false => self.caller.get(&name(index)).await.map(drop),
        };
        if result.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn change(&self, index: usize, value: u64) -> Result<(), tonic::Status> {
        let session = &self.sessions[index];
        let (id, text) = (name(index), value.to_string());
        let done = self.caller.put(&id, "n", &text).await;
        // One that has failed may still be carried out: nobody changes it from here on.
        if done.is_ok() {
            session.acknowledged.store(value, Ordering::Relaxed);
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
            tokio::spawn(async move {
                own.request(number).await;
                let us = due.elapsed().as_micros() as u64;
                let mut times = own.times.lock().unwrap_or_else(|e| e.into_inner());
                // It grows as it has to.
                let _ = times.record(us);
            });
        }
    }

    /// What was answered since the last call, as a line of the table.
    fn tell(&self, phase: &str) {
        let mut times = self.times.lock().unwrap_or_else(|e| e.into_inner());
        let ms = |share: f64| times.value_at_quantile(share) as f64 / 1e3;
        println!(
            "{phase:34} {:>9} {:>8} {:>9.2} {:>9.2} {:>9.2} {:>9.1}",
            times.len(),
            self.failed.swap(0, Ordering::Relaxed),
            ms(0.5),
            ms(0.99),
            ms(0.999),
            times.max() as f64 / 1e3,
        );
        times.reset();
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
        lease: Duration::from_secs(args.lease),
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
        times: Mutex::new(Histogram::new(DIGITS)?),
        failed: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let sending = tokio::spawn(Arc::clone(&load).run(args.rate));
    let phase = Duration::from_secs(args.seconds);
    // Connections are made, caches filled.
    sleep(Duration::from_secs(3)).await;
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
    load.times.lock().unwrap_or_else(|e| e.into_inner()).reset();
    sleep(phase).await;
    load.tell("undisturbed");
    let since = Instant::now();
    for _ in 0..args.servers {
        fleet.replace_oldest().await?;
    }
    let took_s = since.elapsed().as_secs_f64();
    load.tell(&format!("all replaced, one by one ({took_s:.1} s)"));
    sleep(phase).await;
    load.tell("undisturbed");
    fleet.servers.remove(0).kill().await?;
    let until_copied = Duration::from_secs(args.lease) + phase;
    sleep(until_copied).await;
    load.tell(&format!("one killed ({} s)", until_copied.as_secs()));
    fleet.start().await?;
    sleep(phase).await;
    load.tell("a new one in its place");
    load.is_over.store(true, Ordering::Relaxed);
    sending.await?;
    match load.lost().await {
        0 => println!("0 sessions lost, 0 with an old value"),
        lost => return Err(format!("{lost} sessions are gone, or have an old value").into()),
    }
    Ok(())
}
