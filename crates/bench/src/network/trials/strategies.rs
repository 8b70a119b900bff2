//! The ways to look a key up by way of engines, held against each other: what they cost, what
//! becomes of long values beside a flow that fills the link, and of batches in which few items
//! are much longer than the others.

use hdrhistogram::Histogram;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, LookupStrategy, Mutated, Options, SetOptions};

use super::super::{NetworkBenchError, await_engine, cell_error, connect_to, io_error};
use super::cluster::Cluster;
use super::{Axes, Finding, Findings, Ground};
use crate::hosts::{Host, Network, Quality, Rate};
use crate::load::Latency;
use crate::peer::procfs;

/// Those that may be chosen among; the last chooses.
const SCAR: LookupStrategy = LookupStrategy::Scar;
const TWO_READS: LookupStrategy = LookupStrategy::TwoReads;
const AUTO: LookupStrategy = LookupStrategy::Auto;
/// What chooses may take so much more than the better one: what differs from run to run.
const NOISE: f64 = 1.15;

const COST_LENS: [usize; 4] = [100, 1024, 4096, 16 << 10];
const COST_KEYS: usize = 500;
const BATCH_COUNT: usize = 100;

const CLIENT_CPU: Axes = Axes {
    stem: "lookup-client-cpu",
    title: "CPU of the client for a GET, by strategy (R=3.2)",
    x: "value, bytes",
    y: "CPU, us",
};
const SERVER_CPU: Axes = Axes {
    stem: "lookup-server-cpu",
    title: "CPU of engine and backends for a GET, by strategy (R=3.2)",
    x: "value, bytes",
    y: "CPU, us",
};

/// Figures 6 and 7 of the paper.
pub(super) fn costs(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let client_host = network.host("client")?;
    for (mode, host) in [("R=1", "server1"), ("R=3.2", "server3")] {
        let server = network.host(host)?;
        let site = ground.site_of(mode, &server)?;
        for value_len in COST_LENS {
            let key = |number| format!("key-{value_len}:{number}").into_bytes();
            let keys: Vec<Vec<u8>> = (0..COST_KEYS).map(key).collect();
            for strategy in LookupStrategy::ALL {
                if mode == "R=1" && strategy == LookupStrategy::ScarAll {
                    continue;
                }
                let (single, batch) = client_host.enter(|| {
                    let tls = Some(site.tls.clone());
                    let mut client = connect_to(&site.address, tls)?.client(Options {
                        engine: Some(site.engine),
                        strategy,
                        deadline: Duration::from_secs(5),
                        ..Options::default()
                    });
                    await_engine(&mut client)?;
                    for key in &keys {
                        set(&mut client, key, value_len)?;
                    }
                    let cpu = || -> Result<_, NetworkBenchError> {
                        Ok((procfs::cpu_time(std::process::id())?, site.cpu_time()?))
                    };
                    let length = ground.length / 2;
                    let single = cost(length, 1, cpu, |number| {
                        get(&mut client, &keys[number % keys.len()])
                    })?;
                    let many: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                    let batch = cost(length, BATCH_COUNT, cpu, |number| {
                        let begin = number * BATCH_COUNT % many.len();
                        get_all(&mut client, &many[begin..begin + BATCH_COUNT])
                    })?;
                    Ok::<_, NetworkBenchError>((single, batch))
                })??;
                let name = strategy.name();
                let x = value_len as f64;
                let mut finding = Finding::new(format!("{mode}, {value_len} B, {name}"))
                    .with("p50 us", single.p50_us)
                    .with("client CPU us", single.client_us)
                    .with("server CPU us", single.server_us)
                    .with(
                        "in batches of 100: client CPU us for a key",
                        batch.client_us,
                    )
                    .with("server CPU us for a key", batch.server_us);
                if mode == "R=3.2" {
                    finding = finding
                        .plotted(CLIENT_CPU, name, x, single.client_us)
                        .plotted(SERVER_CPU, name, x, single.server_us);
                }
                findings.push(finding);
            }
        }
    }
    findings.push(Finding::new("of all").noted(
        "the server's CPU is that of backends and engine, TLS included, by ticks of 10 ms. \
         Messages through the rings of a backend (MSG) do not leave a host, and have no row",
    ));
    Ok(())
}

/// What one lookup, or one key of a batch, takes.
struct Cost {
    p50_us: f64,
    client_us: f64,
    server_us: f64,
}

fn cost(
    length: Duration,
    keys_each: usize,
    cpu: impl Fn() -> Result<(Duration, Duration), NetworkBenchError>,
    mut work: impl FnMut(usize) -> Result<(), NetworkBenchError>,
) -> Result<Cost, NetworkBenchError> {
    (0..20).try_for_each(&mut work)?;
    let before = cpu()?;
    let (latency, count) = timed(length, &mut work)?;
    let after = cpu()?;
    let each = |after: Duration, before: Duration| {
        after.saturating_sub(before).as_secs_f64() * 1e6 / (count * keys_each).max(1) as f64
    };
    Ok(Cost {
        p50_us: latency.p50_ns as f64 / 1e3,
        client_us: each(after.0, before.0),
        server_us: each(after.1, before.1),
    })
}

fn timed(
    length: Duration,
    work: &mut impl FnMut(usize) -> Result<(), NetworkBenchError>,
) -> Result<(Latency, usize), NetworkBenchError> {
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)
        .unwrap_or_else(|error| unreachable!("constant histogram bounds: {error}"));
    let (begin, mut count) = (Instant::now(), 0);
    while begin.elapsed() < length {
        let begin = Instant::now();
        work(count)?;
        latencies.saturating_record(begin.elapsed().as_nanos() as u64);
        count += 1;
    }
    Ok((Latency::of(&latencies), count))
}

const LONG_LEN: usize = 64 << 10;
const LONG_KEYS: usize = 20;
/// The client's link: 200 Mbit/s, with room for a value and a half.
const RATE: Rate = Rate {
    bytes_per_s: 25_000_000,
    queue_len: 96 << 10,
};
const NEAR: Duration = Duration::from_micros(200);
/// Of the link, by the flow beside the lookups.
const LOADS_PERCENT: [u64; 5] = [0, 20, 40, 60, 80];
const FLOW_PORT: u16 = 7999;
const FLOW_LEN: usize = 1400;

const BESIDE: Axes = Axes {
    stem: "lookup-beside-a-flow",
    title: "GET of 64 KiB at R=3.2 beside a flow, 200 Mbit/s",
    x: "load of the link by the flow, %",
    y: "p50, ms",
};

/// Figure 12 of the paper.
pub(super) fn beside_a_flow(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let (host, wire) = network.host_by_wire("client")?;
    let source = network.host("source")?;
    let cluster = Cluster::build(ground, network)?;
    let key = |number| format!("long:{number}").into_bytes();
    let keys: Vec<Vec<u8>> = (0..LONG_KEYS).map(key).collect();
    let sink = host.enter(|| UdpSocket::bind((host.address, FLOW_PORT)))?;
    let sink = sink.map_err(io_error("open a socket for the flow"))?;
    let to = sink.local_addr().map_err(io_error("look at a socket"))?;
    let mut all: Vec<(LookupStrategy, u64, f64)> = Vec::new();
    let strategies = [SCAR, LookupStrategy::ScarAll, TWO_READS, AUTO];
    for strategy in strategies {
        wire.set(Quality::default());
        let mut client = host.enter(|| {
            let cell = connect_to(&cluster.address, Some(cluster.tls.clone()))?;
            let mut client = cell.client(Options {
                strategy,
                deadline: Duration::from_secs(10),
                ..Options::default()
            });
            await_engine(&mut client)?;
            for key in &keys {
                set(&mut client, key, LONG_LEN)?;
            }
            Ok::<_, NetworkBenchError>(client)
        })??;
        wire.set(Quality {
            delay: NEAR,
            rate: Some(RATE),
            ..Quality::default()
        });
        for load in LOADS_PERCENT {
            let latency = beside(&source, to, load, || {
                host.enter(|| {
                    let mut work = |number: usize| get(&mut client, &keys[number % keys.len()]);
                    (0..3).try_for_each(&mut work)?;
                    Ok::<_, NetworkBenchError>(timed(ground.length, &mut work)?.0)
                })?
            })?;
            let ms = |ns: u64| ns as f64 / 1e6;
            let (p50, p99) = (ms(latency.p50_ns), ms(latency.p99_ns));
            all.push((strategy, load, p50));
            let name = strategy.name();
            findings.push(
                Finding::new(format!("{load} % of the link by the flow, {name}"))
                    .with("GETs", latency.count as f64)
                    .with("p50 ms", p50)
                    .with("p99 ms", p99)
                    .plotted(BESIDE, name, load as f64, p50),
            );
        }
    }
    let p50 = |strategy, load| {
        let mut all = all.iter().filter(|of| (of.0, of.1) == (strategy, load));
        all.next().map_or(f64::NAN, |of| of.2)
    };
    for (one, what) in [
        (
            LookupStrategy::ScarAll,
            "data from each that is asked (the paper's SCAR)",
        ),
        (SCAR, "data from one, the other's vote"),
    ] {
        let mut loads = LOADS_PERCENT.into_iter();
        let from = loads.find(|load| p50(TWO_READS, *load) < p50(one, *load));
        let note = match from {
            Some(load) => format!("2xR is faster from {load} % on"),
            None => "2xR is never faster".to_owned(),
        };
        findings.push(Finding::new(format!("crossover of 2xR and {what}")).noted(note));
    }
    let worst = LOADS_PERCENT.into_iter().map(|load| {
        let better = p50(SCAR, load).min(p50(TWO_READS, load));
        p50(AUTO, load) / better
    });
    let worst = worst.fold(0.0, f64::max);
    findings.push(
        Finding::new("what chooses, to the better of SCAR and 2xR")
            .with("p50 at the worst load", worst)
            .wanted(
                "p50 <= 1.15 times the better one's at each load",
                worst <= NOISE,
            ),
    );
    Ok(())
}

/// Does something while a flow takes so much of the client's link.
fn beside<R>(
    source: &Host,
    to: SocketAddr,
    percent: u64,
    work: impl FnOnce() -> Result<R, NetworkBenchError>,
) -> Result<R, NetworkBenchError> {
    let socket = source.enter(|| UdpSocket::bind((source.address, 0)))?;
    let socket = socket.map_err(io_error("open a socket for the flow"))?;
    let per_s = RATE.bytes_per_s * percent / 100;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flow = scope.spawn(|| {
            let (begin, mut sent) = (Instant::now(), 0u64);
            let datagram = [0; FLOW_LEN];
            while !is_over.load(Ordering::Relaxed) && per_s > 0 {
                let due = (begin.elapsed().as_secs_f64() * per_s as f64) as u64;
                while sent < due {
                    // What does not leave is not of the flow.
                    let _ = socket.send_to(&datagram, to);
                    sent += FLOW_LEN as u64;
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        let _ = flow.join();
        done
    })
}

const MIXED_KEYS: usize = 1000;
/// One key in so many is long.
const LONG_EACH: usize = 50;
const FAR: Duration = Duration::from_millis(5);
const SHORT_LEN: usize = 100;

/// Where the window of solicited bytes is what a batch waits for, and where it is not.
pub(super) fn mixed(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let server = network.host("server")?;
    let (host, wire) = network.host_by_wire("client")?;
    let site = ground.site(&server)?;
    let tls = Some(site.tls.clone());
    let kinds = [
        ("one in 50 of 64 KiB, the others of 100 B", LONG_EACH),
        ("all of 100 B", usize::MAX),
    ];
    for (what, long_each) in kinds {
        let key = |number| format!("{long_each}:{number}").into_bytes();
        let keys: Vec<Vec<u8>> = (0..MIXED_KEYS).map(key).collect();
        let many: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut p50 = Vec::new();
        for strategy in [SCAR, TWO_READS, AUTO] {
            wire.set(Quality::default());
            let latency = host.enter(|| {
                let mut client = connect_to(&site.address, tls.clone())?.client(Options {
                    engine: Some(site.engine),
                    strategy,
                    deadline: Duration::from_secs(10),
                    ..Options::default()
                });
                await_engine(&mut client)?;
                for (number, key) in keys.iter().enumerate() {
                    let is_long = number.is_multiple_of(long_each);
                    set(&mut client, key, if is_long { LONG_LEN } else { SHORT_LEN })?;
                }
                wire.set(Quality {
                    delay: FAR,
                    ..Quality::default()
                });
                let mut work = |_| get_all(&mut client, &many);
                (0..2).try_for_each(&mut work)?;
                Ok::<_, NetworkBenchError>(timed(ground.length, &mut work)?.0)
            })??;
            let ms = latency.p50_ns as f64 / 1e6;
            let round_trips = latency.p50_ns as f64 / (2 * FAR).as_nanos() as f64;
            p50.push(ms);
            findings.push(
                Finding::new(format!("get_many of 1000, {what}, {}", strategy.name()))
                    .with("p50 ms", ms)
                    .with("round trips", round_trips),
            );
        }
        let to_better = p50[2] / p50[0].min(p50[1]);
        findings.push(
            Finding::new(format!("{what}: what chooses, to the better one"))
                .with("p50", to_better)
                .wanted("p50 <= 1.15 times the better one's", to_better <= NOISE),
        );
    }
    Ok(())
}

fn set(client: &mut Client, key: &[u8], len: usize) -> Result<(), NetworkBenchError> {
    match client.set(key, &vec![b'v'; len], SetOptions::default()) {
        Ok(Mutated::Stored { .. } | Mutated::Superseded { .. }) => Ok(()),
        other => Err(cell_error(format!("{other:?}"))),
    }
}

fn get(client: &mut Client, key: &[u8]) -> Result<(), NetworkBenchError> {
    match client.get(key) {
        Ok(Lookup::Hit(_)) => Ok(()),
        other => Err(cell_error(format!("{other:?}"))),
    }
}

fn get_all(client: &mut Client, keys: &[&[u8]]) -> Result<(), NetworkBenchError> {
    let mut hits = 0;
    client.get_many(keys, |_, found| {
        hits += usize::from(matches!(found, Ok(Lookup::Hit(_))));
    });
    match hits == keys.len() {
        true => Ok(()),
        false => Err(cell_error(format!("{hits} of {} keys", keys.len()))),
    }
}
