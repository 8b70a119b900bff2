//! Servers that die and servers that sleep through their lease, as processes.
//!
//! More runs: `TREFOIL_SOAK_RUNS=200 cargo test --release -p trefoil-linklet
//! --test chaos -- --nocapture`.

mod fleet;

use fleet::{Answer, Caller, Fleet};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_millis(2_500);
/// Short, so that sleeping through it takes no time; long enough for a busy
/// machine.
const LEASE_SHORT: Duration = Duration::from_millis(900);
const KEYS_EACH: u64 = 40;

/// What a caller knows of one of his keys, which nobody else writes.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The last write that was acknowledged.
    acknowledged: u64,
    /// The last write that was tried.
    tried: u64,
}

struct Findings {
    known: Vec<(String, Known)>,
    /// The longest time in which no request for a key succeeded.
    silent_max: Duration,
    /// Reads that showed something older than had been acknowledged.
    stale: usize,
}

/// Writes and reads until it is told to stop.
async fn work(mut caller: Caller, name: usize, stop: Arc<AtomicBool>) -> Findings {
    let mut findings = Findings {
        known: (0..KEYS_EACH)
            .map(|n| (format!("{name}-{n}"), Known::default()))
            .collect(),
        silent_max: Duration::ZERO,
        stale: 0,
    };
    while !stop.load(Ordering::Relaxed) {
        for (key, known) in &mut findings.known {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let began = Instant::now();
            loop {
                known.tried += 1;
                let put = format!("put {key} {}", known.tried);
                if caller.once(key, &put).await == Answer::Done {
                    known.acknowledged = known.tried;
                    break;
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                sleep(Duration::from_millis(10)).await;
            }
            findings.silent_max = findings.silent_max.max(began.elapsed());
            match caller.once(key, &format!("get {key}")).await {
                Answer::Value(value) if value >= known.acknowledged => {}
                Answer::Value(_) | Answer::Absent => findings.stale += 1,
                _ => {}
            }
        }
    }
    findings
}

/// Has callers work while one of five servers is killed; what they found.
async fn kill_one(replication: &'static str) -> (Fleet, Vec<Findings>) {
    let mut fleet = Fleet::of(5, replication, LEASE).await;
    let mut caller = fleet.caller();
    for n in 0..20 {
        let key = format!("warm-{n}");
        let done = caller.until_answered(&key, &format!("put {key} 1")).await;
        assert_eq!(done, Answer::Done);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let working: Vec<_> = (0..3)
        .map(|name| tokio::spawn(work(fleet.caller(), name, Arc::clone(&stop))))
        .collect();
    sleep(Duration::from_millis(1_500)).await;
    let victim = fleet.nodes.remove(1);
    victim.signal(Signal::KILL);
    sleep(Duration::from_secs(6)).await;
    stop.store(true, Ordering::Relaxed);
    let mut findings = Vec::new();
    for worker in working {
        findings.push(worker.await.unwrap());
    }
    (fleet, findings)
}

#[tokio::test(flavor = "multi_thread")]
async fn strong_a_killed_server_loses_nothing() {
    let (fleet, findings) = kill_one("strong").await;
    let mut caller = fleet.caller();
    for found in &findings {
        assert_eq!(found.stale, 0, "stale reads");
        println!("strong: owned again within {:?}", found.silent_max);
        assert!(
            found.silent_max < Duration::from_secs(5),
            "{:?}",
            found.silent_max
        );
        for (key, known) in &found.known {
            match caller.until_answered(key, &format!("get {key}")).await {
                Answer::Value(value) => {
                    assert!(value >= known.acknowledged, "{key}: {value}, {known:?}");
                    assert!(value <= known.tried, "{key}: {value}, {known:?}");
                }
                other => assert_eq!(known.acknowledged, 0, "{key}: {other:?}"),
            }
        }
    }
    let said = fleet.said.lock().unwrap();
    assert!(said.losses.is_empty(), "{:?}", said.losses);
}

/// What is older than acknowledged has been reported, in exactly one report;
/// and no range is in two.
async fn losses_are_reported_once(replication: &'static str) {
    let (fleet, findings) = kill_one(replication).await;
    let mut caller = fleet.caller();
    let losses = fleet.said.lock().unwrap().losses.clone();
    let ranges: Vec<_> = losses.iter().flat_map(|loss| &loss.ranges).collect();
    assert!(
        !ranges.is_empty(),
        "a fifth of the key space had an owner who died"
    );
    for (i, range) in ranges.iter().enumerate() {
        let twice = ranges[..i]
            .iter()
            .find(|other| other.intersection(**range).is_some());
        assert_eq!(twice, None, "{range} is reported twice");
    }
    let lost: f64 = ranges.iter().map(|range| range.fraction()).sum();
    assert!((0.1..0.35).contains(&lost), "{lost} of the key space");
    println!(
        "{replication}: {:.1} % of the key space reported",
        lost * 100.0
    );
    for found in &findings {
        println!("{replication}: owned again within {:?}", found.silent_max);
        assert!(
            found.silent_max < Duration::from_secs(5),
            "{:?}",
            found.silent_max
        );
        for (key, known) in &found.known {
            let now = match caller.until_answered(key, &format!("get {key}")).await {
                Answer::Value(value) => value,
                _ => 0,
            };
            let reports = losses.iter().filter(|loss| loss.covers(key)).count();
            assert!(reports <= 1, "{key} is in {reports} reports");
            if now < known.acknowledged {
                assert_eq!(reports, 1, "{key}: {now} after {known:?}: {losses:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eventual_what_a_killed_server_loses_is_reported_once() {
    losses_are_reported_once("eventual").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn none_what_a_killed_server_loses_is_reported_once() {
    losses_are_reported_once("none").await;
}

/// An owner that is stopped past its lease and goes on finds requests waiting
/// for it: it may neither show what it had nor change it.
#[tokio::test(flavor = "multi_thread")]
async fn strong_a_server_that_slept_through_its_lease_serves_nothing() {
    let runs: u64 = std::env::var("TREFOIL_SOAK_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(2);
    let fleet = Fleet::of(3, "strong", LEASE_SHORT).await;
    let mut caller = fleet.caller();
    for run in 0..runs {
        let key = format!("key {run}").replace(' ', "-");
        let put = |n: u64| format!("put {key} {n}");
        assert_eq!(caller.until_answered(&key, &put(1)).await, Answer::Done);
        let owner = fleet.owner(&key).unwrap();
        let mut asleep = Caller::connect(&fleet.said, owner).await.unwrap();
        let port = fleet.said.lock().unwrap().ports[&owner];
        let node = fleet
            .nodes
            .iter()
            .find(|node| fleet.said.lock().unwrap().ports.get(&node.id) == Some(&port));
        let node = node.unwrap();
        node.stop().await;
        let waiting = format!("get {key}\nput {key} 9\nadd {key}\n");
        asleep
            .get_mut()
            .write_all(waiting.as_bytes())
            .await
            .unwrap();
        // Somebody else takes over.
        assert_eq!(
            caller.until_answered(&key, &put(7)).await,
            Answer::Done,
            "run {run}"
        );
        assert_eq!(
            caller.until_answered(&key, &put(8)).await,
            Answer::Done,
            "run {run}"
        );
        node.signal(Signal::CONT);
        // It may have joined anew by the time it answers, and be served the
        // key: then it has what was committed meanwhile.
        let mut expected = 8;
        for asked in ["get", "put", "add"] {
            let mut line = String::new();
            let answered = timeout(Duration::from_secs(10), asleep.read_line(&mut line)).await;
            assert!(answered.is_ok(), "run {run}: no answer");
            let answer = Answer::of(line.trim_end());
            match (asked, &answer) {
                ("put", Answer::Done) => expected = 9,
                ("add", Answer::Value(_)) => expected += 1,
                (_, Answer::Redirect(..) | Answer::Error(_)) => continue,
                _ => {}
            }
            let shown = match &answer {
                Answer::Value(value) => *value,
                Answer::Done => expected,
                other => panic!("run {run}: {asked}: {other:?} by a former owner"),
            };
            assert_eq!(shown, expected, "run {run}: {asked} by a former owner");
        }
        let now = caller.until_answered(&key, &format!("get {key}")).await;
        if now != Answer::Value(expected) {
            // On a machine that is busy enough another server may have slept past so
            // short a lease meanwhile, and nobody is left who knows: then it is reported.
            assert_eq!(now, Answer::Absent, "run {run}");
            let reported = || {
                let said = fleet.said.lock().unwrap();
                said.losses.iter().any(|loss| loss.covers(&key))
            };
            let deadline = Instant::now() + Duration::from_secs(60);
            while !reported() && Instant::now() < deadline {
                sleep(Duration::from_millis(20)).await;
            }
            assert!(reported(), "run {run}: {key} is gone, and nobody said so");
        }
        // It joins anew before the next one is put to sleep.
        let before = fleet.said.lock().unwrap().ports.len();
        let deadline = Instant::now() + Duration::from_secs(60);
        while fleet.said.lock().unwrap().ports.len() == before && Instant::now() < deadline {
            let rejoined = {
                let said = fleet.said.lock().unwrap();
                said.ports
                    .iter()
                    .filter(|(_, known)| **known == port)
                    .count()
                    > 1
            };
            if rejoined {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
    println!("{runs} runs: nothing stale, nothing twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains() {
    let mut fleet = Fleet::of(3, "none", LEASE).await;
    let mut caller = fleet.caller();
    for n in 0..300 {
        let key = format!("k{n}");
        let done = caller.until_answered(&key, &format!("put {key} {n}")).await;
        assert_eq!(done, Answer::Done);
    }
    let leaving = fleet.nodes.remove(0);
    leaving.signal(Signal::TERM);
    let deadline = Instant::now() + Duration::from_secs(60);
    while fleet.said.lock().unwrap().drained == 0 {
        assert!(Instant::now() < deadline, "it does not come to an end");
        sleep(Duration::from_millis(50)).await;
    }
    for n in 0..300 {
        let key = format!("k{n}");
        let value = caller.until_answered(&key, &format!("get {key}")).await;
        assert_eq!(value, Answer::Value(n), "{key}");
    }
    assert!(fleet.said.lock().unwrap().losses.is_empty());
}
