//! Moves slices with 100,000 objects of 1 KB between two servers while they
//! are read and written, and says what the callers notice: failed requests,
//! lost values, latency before and during the move.
//!
//! `cargo run --release -p trefoil-linklet --example move-under-load [OBJECTS]`
//!
//! Servers and callers share one process and loopback gRPC; a request is a
//! call into the server's linklet, so latencies are those of the store alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_coordination::{LocalCoordinator, NodeOptions, Watcher};
use trefoil_linklet::{Error, Linklet, Listener, PlainMarshal, StateLoss};
use trefoil_sharder::BalanceConfig;

const BYTES: usize = 1000;
/// Requests per second of all callers together, open loop.
const RATE: u64 = 4_000;
const CALLERS: u64 = 8;

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

async fn load(servers: Arc<Servers>, objects: u64, stop: Arc<AtomicBool>) -> Phase {
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let (servers, stop) = (Arc::clone(&servers), Arc::clone(&stop));
        callers.push(tokio::spawn(async move {
            let mut phase = Phase::default();
            let pause = Duration::from_secs(1) * CALLERS as u32 / RATE as u32;
            let mut due = Instant::now() + pause * caller as u32 / CALLERS as u32;
            let mut random = caller + 1;
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep_until(due.into()).await;
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                match servers.request(random % objects, random >> 61 == 0).await {
                    Ok(true) => {}
                    Ok(false) => phase.absent += 1,
                    Err(error) => {
                        eprintln!("failed: {error}");
                        phase.failed += 1;
                    }
                }
                // From when it should have been sent.
                phase.latencies_us.push(due.elapsed().as_micros() as u64);
                due += pause;
            }
            phase
        }));
    }
    let mut all = Phase::default();
    for caller in callers {
        let phase = caller.await.expect("callers do not panic");
        all.latencies_us.extend(phase.latencies_us);
        all.failed += phase.failed;
        all.absent += phase.absent;
    }
    all.latencies_us.sort_unstable();
    all
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let objects: u64 = match std::env::args().nth(1) {
        Some(objects) => objects.parse()?,
        None => 100_000,
    };
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
            .move_bytes_per_second(32 << 20)
            .listen(
                coordinator.clone(),
                "127.0.0.1:0".parse().expect("an address"),
            )
    };
    let first = start().await?;
    first.settled().await;
    for n in 0..objects {
        first.insert(&name(n), vec![0u8; BYTES]).await?;
    }
    let second = start().await?;
    let servers = Arc::new(Servers {
        linklets: vec![first.clone(), second.clone()],
        watcher: coordinator.watcher("move-under-load").await?,
    });
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if second.stats().entries > 0 && second.stats().entries == second.stats().received {
            break;
        }
    }
    println!(
        "{objects} objects of {BYTES} B; {} of them on the second server already",
        second.stats().entries
    );

    let stop = Arc::new(AtomicBool::new(false));
    let quiet = tokio::spawn(load(Arc::clone(&servers), objects, Arc::clone(&stop)));
    tokio::time::sleep(Duration::from_secs(4)).await;
    stop.store(true, Ordering::Relaxed);
    let before = show("before", &quiet.await?);

    let stop = Arc::new(AtomicBool::new(false));
    let moved_before = second.stats().received;
    let busy = tokio::spawn(load(Arc::clone(&servers), objects, Arc::clone(&stop)));
    let began = Instant::now();
    let drained = first.drain().await;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let during = show("during", &busy.await?);
    println!(
        "{drained:?}: {} objects moved in {took:.1?}; p99 {:.1} times that before",
        second.stats().received - moved_before,
        during as f64 / before.max(1) as f64
    );
    let mut missing = 0;
    for n in 0..objects {
        missing += u64::from(!servers.request(n, false).await?);
    }
    println!(
        "lost: {missing} objects, {} reports",
        losses.0.load(Ordering::Relaxed)
    );
    Ok(())
}
