//! Batches whose answers come from three hosts at once over one narrow link, with the window
//! that follows the delay, and without.

use hdrhistogram::Histogram;
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, Mutated, Options, SetOptions};

use super::super::{NetworkBenchError, await_engine, cell_error, connect_to, goes_by_engine};
use super::cluster::Cluster;
use super::{Finding, Findings, Ground};
use crate::hosts::{Network, Quality, Rate};
use crate::load::Latency;

const BATCH_COUNT: usize = 300;
const VALUE_LEN: usize = 2048;
/// The client's link: 200 Mbit/s, with room for 64 KiB, as a port of a cheap switch.
const RATE: Rate = Rate {
    bytes_per_s: 25_000_000,
    queue_len: 64 << 10,
};
const DELAY: Duration = Duration::from_micros(200);
/// What a batch's answers take of the link at least: one replica sends each value.
const BYTES_MIN: f64 = (BATCH_COUNT * VALUE_LEN) as f64;
const COLLAPSE: f64 = 0.5;

pub(super) fn incast(
    ground: &Ground<'_>,
    network: &mut Network,
    findings: &mut Findings,
) -> Result<(), NetworkBenchError> {
    let (host, wire) = network.host_by_wire("client")?;
    let cluster = Cluster::build(ground, network)?;
    let keys: Vec<Vec<u8>> = (0..BATCH_COUNT)
        .map(|number| format!("key-of-a-batch:{number}").into_bytes())
        .collect();
    let ways = [
        ("UDP, the window follows the delay", true, true),
        ("UDP, a window of fixed size", true, false),
        ("TCP", false, true),
    ];
    let mut p99_ns = Vec::new();
    let mut is_sound = true;
    for (what, engine_datagrams, is_paced) in ways {
        wire.set(Quality::default());
        let (batches, lost, is_by_engine) = host.enter(|| {
            let tls = Some(cluster.tls.clone());
            let cell = connect_to(&cluster.address, tls)?;
            let mut client = cell.client(Options {
                engine_datagrams,
                engine_paced: is_paced,
                deadline: Duration::from_secs(10),
                ..Options::default()
            });
            await_engine(&mut client)?;
            fill(&mut client, &keys)?;
            wire.set(Quality {
                delay: DELAY,
                rate: Some(RATE),
                ..Quality::default()
            });
            let before = wire.counts().overflowed;
            let batches = batches(&mut client, &keys, ground.length * 2)?;
            let lost = wire.counts().overflowed - before;
            Ok::<_, NetworkBenchError>((batches, lost, goes_by_engine(&mut client)))
        })??;
        let ms = |ns: u64| ns as f64 / 1e6;
        let per_s = batches.count as f64 / batches.took.as_secs_f64();
        let share = per_s * BYTES_MIN / RATE.bytes_per_s as f64;
        if p99_ns.is_empty() {
            is_sound = share >= COLLAPSE && batches.failed == 0 && is_by_engine;
        }
        p99_ns.push(batches.latency.p99_ns);
        findings.push(
            Finding::new(what)
                .with("batches", batches.count as f64)
                .with("keys that failed", batches.failed as f64)
                .with("p50 ms", ms(batches.latency.p50_ns))
                .with("p99 ms", ms(batches.latency.p99_ns))
                .with("share of the link", share)
                .with("frames that found the queue full", lost as f64),
        );
    }
    let with = p99_ns[0] as f64 / p99_ns[1].max(1) as f64;
    findings.push(
        Finding::new("the window that follows the delay, to the fixed one")
            .with("p99", with)
            .wanted(
                "p99 <= 0.5 times that of the fixed window; no collapse (half of the link is \
                 answers)",
                with <= 0.5 && is_sound,
            ),
    );
    Ok(())
}

struct Batches {
    count: u64,
    failed: u64,
    latency: Latency,
    took: Duration,
}

fn fill(client: &mut Client, keys: &[Vec<u8>]) -> Result<(), NetworkBenchError> {
    for key in keys {
        match client.set(key, &[b'v'; VALUE_LEN], SetOptions::default()) {
            Ok(Mutated::Stored { .. } | Mutated::Superseded { .. }) => {}
            other => return Err(cell_error(format!("{other:?}"))),
        }
    }
    Ok(())
}

fn batches(
    client: &mut Client,
    keys: &[Vec<u8>],
    length: Duration,
) -> Result<Batches, NetworkBenchError> {
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)
        .unwrap_or_else(|error| unreachable!("constant histogram bounds: {error}"));
    let (mut count, mut failed, begin) = (0, 0, Instant::now());
    while begin.elapsed() < length {
        let begin = Instant::now();
        let mut hits = 0;
        client.get_many(&keys, |_, found| {
            hits += usize::from(matches!(found, Ok(Lookup::Hit(_))));
        });
        latencies.saturating_record(begin.elapsed().as_nanos() as u64);
        count += 1;
        failed += (keys.len() - hits) as u64;
    }
    Ok(Batches {
        count,
        failed,
        latency: Latency::of(&latencies),
        took: begin.elapsed(),
    })
}
