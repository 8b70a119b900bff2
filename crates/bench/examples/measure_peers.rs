//! Real peers and the raw floor on this machine, with plots: what Trefoil has to
//! beat, measured without Trefoil.
//!
//! `cargo run --release -p trefoil-bench --example measure_peers [DIR]`

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use trefoil_bench::floor::{
    FloorCorpus, FloorOptions, FloorTarget, futex_ping_pong, ring_ping_pong,
};
use trefoil_bench::load::{
    Bound, RequestSource as _, RunOptions, RunShared, Summary, SyntheticOptions, SyntheticSource,
    ValueLen, pin_current_thread, preload, run,
};
use trefoil_bench::median::{Contender, interleave};
use trefoil_bench::peer::{
    Memcached, PeerKind, PeerOptions, PeerProcess, Redis, Transport, Waiting,
};
use trefoil_bench::report::{LatencyBars, Table, nanoseconds, rate, save};
use trefoil_bench::target::Target;

const CORPUS_LEN: usize = 1 << 30;
const ROUNDS: usize = 5;
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;

#[derive(Clone, Copy)]
struct Load {
    value_len: usize,
    gets: f64,
    batch: usize,
}

impl Load {
    fn source(self, seed: u64) -> Result<SyntheticSource, Box<dyn Error>> {
        Ok(SyntheticSource::new(SyntheticOptions {
            keys_count: (CORPUS_LEN / self.value_len).min(2_000_000) as u64,
            value_len: ValueLen::Fixed(self.value_len),
            gets: self.gets,
            seed,
            ..Default::default()
        })?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".into()));
    pin_current_thread(CLIENT_CORE)?;
    let get = Load {
        value_len: 1024,
        gets: 1.0,
        batch: 1,
    };
    let set = Load { gets: 0.0, ..get };
    let many = Load {
        value_len: 100,
        batch: 100,
        ..get
    };
    for (name, load) in [
        ("GET of 1 KiB", get),
        ("SET of 1 KiB", set),
        ("GET of 100 keys of 100 B at once", many),
    ] {
        let summaries = compare(load)?;
        let mut table = Table::new(
            &format!("\n{name}, medians of {ROUNDS} runs"),
            &["system", "p50", "p99", "p99.9", "keys per second"],
        );
        let mut bars = LatencyBars::new(name);
        for (system, summary) in &summaries {
            let latency = if load.gets > 0.0 {
                summary.get
            } else {
                summary.set
            };
            table.row([
                system.clone(),
                nanoseconds(latency.p50_ns),
                nanoseconds(latency.p99_ns),
                nanoseconds(latency.p999_ns),
                rate(summary.ops_per_s),
            ]);
            bars.system(system, latency);
            if summary.failed + summary.wrong > 0 {
                eprintln!("{system}: {summary:?}");
            }
        }
        println!("{table}");
        save(&bars, &dir.join(name.replace(' ', "-").to_lowercase()))?;
    }
    for (name, latency) in [
        ("futex", futex_ping_pong(CLIENT_CORE, SERVER_CORE, 20_000)?),
        ("ring", ring_ping_pong(CLIENT_CORE, SERVER_CORE, 200_000)?),
    ] {
        let (p50, p99) = (nanoseconds(latency.p50_ns), nanoseconds(latency.p99_ns));
        println!("{name} ping-pong between two cores: p50 {p50}, p99 {p99}");
    }
    Ok(())
}

fn compare(load: Load) -> Result<Vec<(String, Summary)>, Box<dyn Error>> {
    let start = |kind, transport| {
        PeerProcess::start(PeerOptions {
            transport,
            core: Some(SERVER_CORE),
            ..PeerOptions::new(kind, 3072)
        })
    };
    let tcp = start(PeerKind::Memcached, Transport::Tcp)?;
    let unix = start(PeerKind::Memcached, Transport::Unix)?;
    let redis = start(PeerKind::Redis, Transport::Tcp)?;
    let mut spinning = Memcached::connect(tcp.endpoint(), Waiting::Spinning)?;
    let mut blocking = Memcached::connect(tcp.endpoint(), Waiting::Blocking)?;
    let mut local = Memcached::connect(unix.endpoint(), Waiting::Spinning)?;
    let mut redis_client = Redis::connect(redis.endpoint(), Waiting::Spinning)?;
    fill(&mut spinning, load)?;
    fill(&mut local, load)?;
    fill(&mut redis_client, load)?;
    println!(
        "\nmemcached {}, redis {}, congestion control {}",
        tcp.version(),
        redis.version(),
        tcp.congestion().unwrap_or("the kernel's default"),
    );
    let corpus;
    let mut contenders = vec![
        Contender::new("memcached, spinning", |round| {
            measure(&mut spinning, load, round)
        }),
        Contender::new("memcached, blocking", |round| {
            measure(&mut blocking, load, round)
        }),
        Contender::new("memcached, Unix socket", |round| {
            measure(&mut local, load, round)
        }),
        Contender::new("redis, spinning", |round| {
            measure(&mut redis_client, load, round)
        }),
    ];
    if load.gets > 0.0 && load.batch == 1 {
        corpus = FloorCorpus::create(FloorOptions::new(CORPUS_LEN, load.value_len))?;
        let mut floor = FloorTarget::new(&corpus, load.source(1)?.codec());
        let measure = move |round| measure(&mut floor, load, round);
        contenders.insert(0, Contender::new("floor", measure));
    }
    interleave(&mut contenders, ROUNDS, &mut |_, _| {})
}

fn fill(target: &mut impl Target, load: Load) -> Result<(), Box<dyn Error>> {
    let source = load.source(1)?;
    let keys = 0..source.keys_count();
    let (value_len, shared) = (ValueLen::Fixed(load.value_len), RunShared::reading());
    preload(
        target,
        source.codec(),
        keys,
        value_len,
        &shared,
        &mut |_| {},
    )?;
    Ok(())
}

fn measure(target: &mut impl Target, load: Load, round: usize) -> Result<Summary, Box<dyn Error>> {
    let options = RunOptions {
        batch: load.batch,
        bound: Bound::Time(Duration::from_secs(1)),
        ..Default::default()
    };
    let mut source = load.source(round as u64)?;
    let result = run(target, &mut source, &options, &RunShared::reading())?;
    Ok(Summary::of(&result))
}
