//! The ways to look a key up by way of engines, held against each other: what they cost, what
//! becomes of long values beside a flow that fills the link, and of batches in which few items
//! are much longer than the others.

use hdrhistogram::Histogram;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Cell, Client, Lookup, LookupStrategy, Mutated, Options, SetOptions};

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

/// What engines have counted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asked {
    scans: f64,
    reads: f64,
    bytes_out: f64,
}

impl Asked {
    /// Of all engines of a cell so far.
    fn of(cell: &Cell) -> Result<Asked, NetworkBenchError> {
        let engines = cell.engines();
        if let Some(Err(error)) = engines
            .iter()
            .map(|engine| &engine.counters)
            .find(|of| of.is_err())
        {
            return Err(cell_error(format!(
                "an engine does not say what it has counted: {error}"
            )));
        }
        let sum = |name| engines.iter().map(|engine| engine.count(name)).sum::<u64>() as f64;
        Ok(Asked {
            scans: sum("scans"),
            reads: sum("reads"),
            bytes_out: sum("bytes_out"),
        })
    }

    /// For each of so many lookups since then.
    fn each_since(self, before: Asked, lookups: usize) -> Asked {
        let each = |after: f64, before: f64| (after - before) / lookups.max(1) as f64;
        Asked {
            scans: each(self.scans, before.scans),
            reads: each(self.reads, before.reads),
            bytes_out: each(self.bytes_out, before.bytes_out),
        }
    }
}

/// What was asked for each lookup is what this strategy asks for; a few may differ, because
/// something was torn, or an engine late. A row that says one thing and has measured another
/// is worse than none.
fn check(
    strategy: LookupStrategy,
    asked: Asked,
    value_len: usize,
) -> Result<(), NetworkBenchError> {
    const FEW: f64 = 0.1;
    const NEARLY: f64 = 0.9;
    let Asked {
        scans,
        reads,
        bytes_out,
    } = asked;
    let is_so = match strategy {
        // It may choose either.
        LookupStrategy::Auto => scans >= NEARLY,
        LookupStrategy::Scar => scans >= NEARLY && reads <= FEW,
        LookupStrategy::ScarAll => {
            // The value comes twice.
            scans >= 2.0 * NEARLY && reads <= FEW && bytes_out >= 2.0 * NEARLY * value_len as f64
        }
        LookupStrategy::TwoReads => scans >= NEARLY && reads >= NEARLY,
        LookupStrategy::Rpc => scans + reads <= FEW,
    };
    match is_so {
        true => Ok(()),
        false => Err(cell_error(format!(
            "lookups by {} were none: each took {scans:.2} scans and {reads:.2} reads of engines, \
             which sent {bytes_out:.0} bytes for it",
            strategy.name()
        ))),
    }
}

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
                let (single, batch, asked) = client_host.enter(|| {
                    let tls = Some(site.tls.clone());
                    let cell = connect_to(&site.address, tls)?;
                    let mut client = cell.client(Options {
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
                    let before = Asked::of(&cell)?;
                    let single = cost(length, 1, cpu, |number| {
                        get(&mut client, &keys[number % keys.len()])
                    })?;
                    let asked = Asked::of(&cell)?.each_since(before, single.count);
                    check(strategy, asked, value_len)?;
                    let many: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                    let batch = cost(length, BATCH_COUNT, cpu, |number| {
                        let begin = number * BATCH_COUNT % many.len();
                        get_all(&mut client, &many[begin..begin + BATCH_COUNT])
                    })?;
                    Ok::<_, NetworkBenchError>((single, batch, asked))
                })??;
                let name = strategy.name();
                let x = value_len as f64;
                let mut finding = Finding::new(format!("{mode}, {value_len} B, {name}"))
                    .with("p50 us", single.p50_us)
                    .with("scans", asked.scans)
                    .with("reads", asked.reads)
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
    /// How many there were, those included that were not measured.
    count: usize,
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
    const WARM_UPS: usize = 20;
    (0..WARM_UPS).try_for_each(&mut work)?;
    let before = cpu()?;
    let (latency, count) = timed(length, &mut work)?;
    let after = cpu()?;
    let each = |after: Duration, before: Duration| {
        after.saturating_sub(before).as_secs_f64() * 1e6 / (count * keys_each).max(1) as f64
    };
    Ok(Cost {
        count: WARM_UPS + count,
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
/// Lookups that are not measured.
const WARM_UPS: usize = 3;
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
        let (cell, mut client) = host.enter(|| {
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
            Ok::<_, NetworkBenchError>((cell, client))
        })??;
        wire.set(Quality {
            delay: NEAR,
            rate: Some(RATE),
            ..Quality::default()
        });
        for load in LOADS_PERCENT {
            let before = host.enter(|| Asked::of(&cell))??;
            let (latency, count) = beside(&source, to, load, || {
                host.enter(|| {
                    let mut work = |number: usize| get(&mut client, &keys[number % keys.len()]);
                    (0..WARM_UPS).try_for_each(&mut work)?;
                    timed(ground.length, &mut work)
                })?
            })?;
            let asked = host.enter(|| Asked::of(&cell))??;
            let asked = asked.each_since(before, count + WARM_UPS);
            check(strategy, asked, LONG_LEN)?;
            let ms = |ns: u64| ns as f64 / 1e6;
            let (p50, p99) = (ms(latency.p50_ns), ms(latency.p99_ns));
            all.push((strategy, load, p50));
            let name = strategy.name();
            findings.push(
                Finding::new(format!("{load} % of the link by the flow, {name}"))
                    .with("GETs", latency.count as f64)
                    .with("scans each", asked.scans)
                    .with("reads each", asked.reads)
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
        ("one in 50 of 64 KiB, the others of 100 B", Some(50)),
        ("one of 64 KiB, the others of 100 B", Some(MIXED_KEYS)),
        ("all of 100 B", None),
    ];
    for (what, long_each) in kinds {
        let key = |number| format!("{long_each:?}:{number}").into_bytes();
        let keys: Vec<Vec<u8>> = (0..MIXED_KEYS).map(key).collect();
        let many: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut p50 = Vec::new();
        for strategy in [SCAR, TWO_READS, AUTO] {
            wire.set(Quality::default());
            let (latency, asked) = host.enter(|| {
                let cell = connect_to(&site.address, tls.clone())?;
                let mut client = cell.client(Options {
                    engine: Some(site.engine),
                    strategy,
                    deadline: Duration::from_secs(10),
                    ..Options::default()
                });
                await_engine(&mut client)?;
                for (number, key) in keys.iter().enumerate() {
                    let is_long = long_each.is_some_and(|each| number.is_multiple_of(each));
                    set(&mut client, key, if is_long { LONG_LEN } else { SHORT_LEN })?;
                }
                wire.set(Quality {
                    delay: FAR,
                    ..Quality::default()
                });
                let before = Asked::of(&cell)?;
                let mut work = |_| get_all(&mut client, &many);
                (0..WARM_UPS).try_for_each(&mut work)?;
                let (latency, count) = timed(ground.length, &mut work)?;
                let lookups = (WARM_UPS + count) * many.len();
                let asked = Asked::of(&cell)?.each_since(before, lookups);
                check(strategy, asked, SHORT_LEN)?;
                Ok::<_, NetworkBenchError>((latency, asked))
            })??;
            let ms = latency.p50_ns as f64 / 1e6;
            let round_trips = latency.p50_ns as f64 / (2 * FAR).as_nanos() as f64;
            p50.push(ms);
            findings.push(
                Finding::new(format!("get_many of 1000, {what}, {}", strategy.name()))
                    .with("p50 ms", ms)
                    .with("round trips", round_trips)
                    .with("scans for a key", asked.scans)
                    .with("reads for a key", asked.reads),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_whose_lookups_went_another_way_than_it_says_is_none() {
        let asked = |scans, reads, values: f64| Asked {
            scans,
            reads,
            bytes_out: values * 1000.0,
        };
        let ways = [
            (LookupStrategy::Scar, asked(2.0, 0.0, 1.1)),
            (LookupStrategy::ScarAll, asked(2.0, 0.0, 2.1)),
            (LookupStrategy::TwoReads, asked(2.0, 1.0, 1.1)),
            (LookupStrategy::Rpc, asked(0.0, 0.0, 0.0)),
        ];
        for (strategy, _) in ways {
            for (other, asked) in ways {
                let checked = check(strategy, asked, 1000);
                // One that has the value twice has it once as well: that is `scar` all the same.
                let is_alike = (strategy, other) == (LookupStrategy::Scar, LookupStrategy::ScarAll);
                assert_eq!(
                    checked.is_ok(),
                    strategy == other || is_alike,
                    "{strategy:?} {other:?}"
                );
            }
        }
        assert!(check(AUTO, asked(2.0, 0.3, 1.1), 1000).is_ok());
        assert!(check(AUTO, asked(0.0, 0.0, 0.0), 1000).is_err());
    }
}
