//! `bench`: the command line of `trefoil-bench`.

mod gateway;
#[cfg(feature = "linked")]
mod linked;
mod network;
mod ordered;
mod suite;

use crate::args::{
    BenchCommand, ChurnArgs, CompareArgs, HitRatioArgs, LoadArgs, MemoryArgs, Pages, Peer, Touches,
};
use crate::failure::{Failure, Outcome, print_json, print_line};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use trefoil_bench::churn::ChurnCase;
use trefoil_bench::compare::{CompareOptions, compare};
use trefoil_bench::floor::PageSize;
use trefoil_bench::hit_ratio::{self, HitRatioOptions};
use trefoil_bench::load::{
    Arrivals, Bound, Popularity, RunOptions, RunShared, Summary, SyntheticOptions, SyntheticSource,
    ValueLen, pin_current_thread, preload, run as run_load,
};
use trefoil_bench::look_aside;
use trefoil_bench::peer::PeerKind;
use trefoil_bench::size_shift::{self, SizeShiftOptions};
use trefoil_bench::target::trefoil::Trefoil;
use trefoil_bench::workload::{Trace, TraceReader};
use trefoil_client::Options;

/// Bytes of the load generator's keys.
const KEY_LEN: usize = 16;

pub(crate) fn run(command: BenchCommand) -> Outcome {
    match command {
        BenchCommand::Get(args) => load(&args, 1.0),
        BenchCommand::Set(args) => load(&args, 0.0),
        BenchCommand::Mix(args) => load(&args, args.get_share),
        BenchCommand::Compare(args) => compared(&args),
        BenchCommand::Memory(args) => memory(&args),
        BenchCommand::Churn(args) => churn(&args),
        BenchCommand::HitRatio(args) => hit_ratio(&args),
        BenchCommand::SizeShift { json } => size_shift(json),
        BenchCommand::Gateway(args) => gateway::run(&args),
        BenchCommand::Network(args) => network::run(&args),
        #[cfg(feature = "linked")]
        BenchCommand::Linked(args) => linked::run(&args),
        #[cfg(not(feature = "linked"))]
        BenchCommand::Linked(_) => crate::left_out("linked"),
        BenchCommand::Ordered(args) => ordered::run(&args),
        BenchCommand::Scenario(args) => suite::scenario(&args),
        BenchCommand::Maintenance(args) => suite::maintenance(&args),
        BenchCommand::All(args) => suite::all(args),
    }
}

fn load(args: &LoadArgs, gets: f64) -> Outcome {
    if args.seconds <= 0.0 || !args.seconds.is_finite() {
        return Err(Failure::Usage("--seconds has to be above 0".into()));
    }
    if let Some(core) = args.core {
        pin_current_thread(core)
            .map_err(|e| Failure::doing(format!("cannot use core {core}"), e))?;
    }
    let cell = crate::connect::cell(&args.address)?;
    let mut target = Trefoil::new(cell.client(Options {
        engine: args.by.engine,
        engine_datagrams: args.by.engine_udp,
        engine_messages: args.by.engine_messages.is_on(),
        strategy: args.by.strategy,
        ..Options::default()
    }));
    let popularity = match args.zipf {
        Some(theta) => Popularity::Zipf { theta },
        None => Popularity::Uniform,
    };
    let mut source = SyntheticSource::new(SyntheticOptions {
        keys_count: args.keys,
        key_len: KEY_LEN,
        value_len: ValueLen::Fixed(args.value_size),
        popularity,
        gets,
        ..SyntheticOptions::default()
    })
    .map_err(|e| Failure::Usage(e.to_string()))?;
    let shared = if gets < 1.0 {
        RunShared::writing(args.keys)
    } else {
        RunShared::reading()
    };
    if gets > 0.0 && !args.no_fill {
        let codec = trefoil_bench::load::RequestSource::codec(&source);
        let len = ValueLen::Fixed(args.value_size);
        preload(&mut target, codec, 0..args.keys, len, &shared, &mut |_| {})
            .map_err(Failure::of)?;
    }
    target.client().reset_counters();
    let arrivals = match args.rate {
        Some(rate) => Arrivals::Poisson { ops_per_s: rate },
        None => Arrivals::Closed,
    };
    let options = RunOptions {
        arrivals,
        batch: args.batch,
        warm_up: Bound::Time(Duration::from_millis(200)),
        bound: Bound::Time(Duration::from_secs_f64(args.seconds)),
        ..RunOptions::default()
    };
    let result = run_load(&mut target, &mut source, &options, &shared)
        .map_err(|e| Failure::Usage(e.to_string()))?;
    let mut summary = Summary::of(&result);
    // A value that is not the key's is the worst of failures.
    summary.failed += summary.wrong;
    if args.json {
        print_json(&summary)?;
    } else {
        print_summary(&summary)?;
    }
    Ok(if summary.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print_summary(summary: &Summary) -> Result<(), Failure> {
    print_line(&format!(
        "{} operations, {:.0}/s; {} misses, {} failed, {} stale, {} wrong",
        summary.ops,
        summary.ops_per_s,
        summary.misses,
        summary.failed,
        summary.stale,
        summary.wrong
    ))?;
    for (name, latency) in [("get", &summary.get), ("set", &summary.set)] {
        if latency.count > 0 {
            print_line(&format!(
                "{name}  p50 {} ns  p99 {} ns  p99.9 {} ns",
                latency.p50_ns, latency.p99_ns, latency.p999_ns
            ))?;
        }
    }
    let retries: Vec<String> = summary
        .retries
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(cause, n)| format!("{cause} {n}"))
        .collect();
    if !retries.is_empty() {
        print_line(&format!("retries: {}", retries.join(", ")))?;
    }
    match &summary.first_error {
        Some(error) => print_line(&format!("first error: {error}")),
        None => Ok(()),
    }
}

fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::doing("cannot find this program", e))
}

fn peer(peer: Peer) -> PeerKind {
    match peer {
        Peer::Memcached => PeerKind::Memcached,
        Peer::Redis => PeerKind::Redis,
        Peer::Valkey => PeerKind::Valkey,
    }
}

fn need_two_cores() -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match cores {
        0 | 1 => Err(Failure::Failed(
            "a comparison needs two cores: one for the servers, one for the load".into(),
        )),
        _ => Ok(()),
    }
}

fn compared(args: &CompareArgs) -> Outcome {
    need_two_cores()?;
    let page = match args.pages {
        Pages::Base => PageSize::Base,
        Pages::Huge => PageSize::Huge,
    };
    let options = CompareOptions {
        value_len: args.value_size,
        corpus_len: args.corpus.as_u64(),
        runs: args.runs,
        seconds: args.seconds,
        server_core: args.server_core,
        client_core: args.client_core,
        ..CompareOptions::new(&program()?, peer(args.peer), page)
    };
    // Before minutes of measuring, not after them.
    if let Some(folder) = &args.plots {
        std::fs::create_dir_all(folder)
            .map_err(|e| Failure::doing(format!("cannot make {}", folder.display()), e))?;
    }
    let report = compare(&options, &mut |what| eprintln!("{what}")).map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.table())?;
    }
    if let Some(folder) = &args.plots {
        report.plot(folder).map_err(Failure::of)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn memory(args: &MemoryArgs) -> Outcome {
    let options = trefoil_bench::memory::MemoryOptions {
        items: args.items,
        key_len: args.key_size,
        value_len: args.value_size,
        peer: peer(args.peer),
    };
    let report = trefoil_bench::memory::measure_memory(&program()?, options, &mut |what| {
        eprintln!("{what}")
    })
    .map_err(Failure::of)?;
    if args.json {
        return print_json(&report).map(|()| ExitCode::SUCCESS);
    }
    print_line(&format!(
        "{} items, {} B keys, {} B values: overhead per item trefoil {:.1} B, {} {:.1} B, ratio {:.2}",
        report.items,
        report.key_size,
        report.value_size,
        report.trefoil.overhead_bytes_per_item,
        report.peer,
        report.memcached.overhead_bytes_per_item,
        report.ratio
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What `bench churn` runs unless told otherwise: lengths of values, and clusters with
/// values from 101 bytes to 20 KB, many writes, many deletes, and few of both.
const CHURN_VALUE_LENS: [usize; 5] = [100, 300, 1000, 2000, 5000];
const CHURN_CLUSTERS: [u32; 6] = [12, 14, 19, 29, 37, 40];

fn churn(args: &ChurnArgs) -> Outcome {
    if args.value_size.contains(&0) || args.memory.as_u64() < 32 << 20 {
        return Err(Failure::Usage(
            "--value-size has to be above 0, --memory at least 32MiB".into(),
        ));
    }
    let (mut value_lens, mut clusters) = (args.value_size.clone(), args.cluster.clone());
    if value_lens.is_empty() && clusters.is_empty() {
        value_lens = CHURN_VALUE_LENS.to_vec();
        clusters = CHURN_CLUSTERS.to_vec();
    }
    let options = trefoil_bench::churn::ChurnOptions {
        memory: args.memory.as_u64(),
        key_len: args.key_size,
        value_lens,
        clusters,
    };
    // A line as soon as a case has ended: a run takes minutes.
    let mut printed = Ok(());
    let mut ended = |case: &ChurnCase, peer: &str| {
        if !args.json && printed.is_ok() {
            printed = print_line(&churn_line(case, peer));
        }
    };
    let mut progress = |what: &str| eprintln!("{what}");
    let report = trefoil_bench::churn::churn(&program()?, &options, &mut progress, &mut ended)
        .map_err(Failure::of)?;
    printed?;
    if args.json {
        print_json(&report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn churn_line(case: &ChurnCase, peer: &str) -> String {
    let cluster = case.cluster;
    let name = cluster.map_or_else(String::new, |number| format!("cluster {number}, "));
    let refused = match case.refused {
        0 => String::new(),
        count => format!("; {peer} refused {count} values for want of memory, sent again"),
    };
    format!(
        "{name}{:>6} B values: resident bytes per item trefoil {:.1}, {peer} {:.1}; items per resident byte {:.3}; hit ratio {:.2} % and {:.2} %{refused}",
        case.value_size,
        case.trefoil.resident_bytes_per_item,
        case.memcached.resident_bytes_per_item,
        case.ratio,
        case.trefoil.hit_ratio * 100.0,
        case.memcached.hit_ratio * 100.0
    )
}

fn policy(eviction: crate::args::Eviction) -> Result<trefoil_bench::PolicyKind, Failure> {
    eviction.name().parse().map_err(Failure::of)
}

fn hit_ratio(args: &HitRatioArgs) -> Outcome {
    let trace = TraceReader::open(&args.trace)
        .and_then(Trace::load)
        .map_err(Failure::of)?;
    let options = HitRatioOptions {
        policy: policy(args.policy)?,
        touches: match args.touches {
            Touches::Exact => look_aside::Touches::Exact,
            Touches::Batched => look_aside::Touches::Batched,
        },
        objects: args.objects.clone(),
    };
    let report = hit_ratio::hit_ratio(&trace, &options, &mut |_| {}).map_err(Failure::of)?;
    if args.json {
        return print_json(&report).map(|()| ExitCode::SUCCESS);
    }
    for result in &report.results {
        print_line(&format!(
            "{:>9} objects  {:6.2} %",
            result.objects,
            result.hit_ratio * 100.0
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn size_shift(json: bool) -> Outcome {
    let report =
        size_shift::size_shift(&SizeShiftOptions::default(), &mut |_| {}).map_err(Failure::of)?;
    if json {
        return print_json(&report).map(|()| ExitCode::SUCCESS);
    }
    for phase in &report.phases {
        print_line(&format!(
            "{:>5} B values: hit ratio {:.2} %, in a fresh cache {:.2} %, {} writes refused",
            phase.value_len,
            phase.hit_ratio * 100.0,
            phase.fresh_hit_ratio * 100.0,
            phase.refused
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
