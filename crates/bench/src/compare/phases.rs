//! The phases of a comparison. Each starts its own servers, so that no idle
//! corpus of another phase stands in the caches' way.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use trefoil_client::{Carrier, Cell, Options, SetOptions};

use super::report::{
    BatchFigures, BatchRates, CompareReport, GetFigures, RpcFigures, ScalingFigures, SetFigures,
};
use super::{CompareError, CompareOptions};
use crate::floor::{FloorCorpus, FloorOptions, FloorTarget, PageSize, futex_ping_pong};
use crate::load::{
    Arrivals, Bound, KeyCodec, Latency, LoadError, RequestSource, RunOptions, RunShared, Summary,
    SyntheticOptions, SyntheticSource, ValueLen, pin_current_thread, preload, run as run_load,
    run_clients,
};
use crate::median::Median;
use crate::peer::{Memcached, PeerKind, PeerOptions, PeerProcess, Redis, Transport, Waiting};
use crate::server::{Server, ServerOptions};
use crate::target::trefoil::Trefoil;
use crate::target::{GetOutcome, Item, SetOutcome, Target, TargetError};

const BATCH: usize = 100;
const BATCH_VALUE_LEN: usize = 100;
/// With what belongs to them some 190 MB, and a tenth of it.
const BATCH_KEYS_COUNT: u64 = 1_000_000;
const CACHED_KEYS_COUNT: u64 = 100_000;
/// Keys of the phases that only write.
const SMALL_KEYS_COUNT: u64 = 100_000;
/// How long a backend takes to fall asleep, with a margin.
const ASLEEP_AFTER: Duration = Duration::from_millis(5);
const ASLEEP_COUNT: usize = 300;
/// GETs per second of the open loop: what the peer can bear without queueing.
const OPEN_RATE: f64 = 20_000.0;
/// Threads beside one another.
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Keys that are asked for at once where only touching them matters.
const TOUCH_BATCH: u64 = 100;
const RPC_COUNT: usize = 3_000;
const PING_PONG_ROUNDS: u64 = 2_000;
/// Longer ones count as this long.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

type Progress<'a> = &'a mut dyn FnMut(&str);

pub(super) fn run(
    options: &CompareOptions,
    progress: Progress<'_>,
) -> Result<CompareReport, CompareError> {
    let core = options.client_core;
    pin_current_thread(core).map_err(|source| LoadError::Pin { core, source })?;
    let singles = singles(options, progress)?;
    let get_many = batches(options, progress)?;
    let scaling = scaling(options, progress)?;
    let processes = processes(options, progress)?;
    let rpc = rpc(options, progress)?;
    let (asleep, peer_asleep) = asleep(options, progress)?;
    let futex = futex_ping_pong(options.server_core, options.client_core, PING_PONG_ROUNDS)?;
    let mut set = singles.set;
    set.trefoil_r32_processes = processes;
    set.trefoil_asleep = asleep;
    set.memcached_asleep = peer_asleep;
    set.futex_ping_pong = futex;
    Ok(CompareReport {
        peer: singles.peer,
        page: singles.page,
        value_size: options.value_len,
        keys: keys_count(options),
        runs: options.runs,
        get: singles.get,
        set,
        get_many,
        rpc,
        server_cpu_us_per_get: singles.server_cpu_us_per_get,
        peer_cpu_us_per_get: singles.peer_cpu_us_per_get,
        settled_s: singles.settled_s,
        scaling,
        peer_congestion_control: singles.congestion,
    })
}

fn keys_count(options: &CompareOptions) -> u64 {
    options.corpus_len / options.value_len as u64
}

/// A client of the peer, whichever it is.
enum PeerTarget {
    Memcached(Memcached),
    Redis(Redis),
}

impl PeerTarget {
    fn connect(peer: &PeerProcess, waiting: Waiting) -> Result<Self, TargetError> {
        Ok(match peer.kind() {
            PeerKind::Memcached => Self::Memcached(Memcached::connect(peer.endpoint(), waiting)?),
            PeerKind::Redis | PeerKind::Valkey => {
                Self::Redis(Redis::connect(peer.endpoint(), waiting)?)
            }
        })
    }
}

impl Target for PeerTarget {
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError> {
        match self {
            Self::Memcached(client) => client.get(key),
            Self::Redis(client) => client.get(key),
        }
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, GetOutcome<'_>),
    ) -> Result<(), TargetError> {
        match self {
            Self::Memcached(client) => client.get_many(keys, each),
            Self::Redis(client) => client.get_many(keys, each),
        }
    }

    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError> {
        match self {
            Self::Memcached(client) => client.set(key, value, ttl),
            Self::Redis(client) => client.set(key, value, ttl),
        }
    }

    fn set_many(&mut self, items: &[Item<'_>]) -> Result<(), TargetError> {
        match self {
            Self::Memcached(client) => client.set_many(items),
            Self::Redis(client) => client.set_many(items),
        }
    }

    fn erase(&mut self, key: &[u8]) -> Result<SetOutcome, TargetError> {
        match self {
            Self::Memcached(client) => client.erase(key),
            Self::Redis(client) => client.erase(key),
        }
    }
}

/// GETs that memcached has executed; nothing of Redis.
fn gets_of(target: &mut PeerTarget) -> Result<Option<u64>, CompareError> {
    let PeerTarget::Memcached(client) = target else {
        return Ok(None);
    };
    let stats = client.stats()?;
    Ok(stats.get("cmd_get").and_then(|count| count.parse().ok()))
}

/// What one measurement asks for.
#[derive(Clone, Copy)]
struct Load {
    keys_count: u64,
    value_len: usize,
    gets: f64,
    batch: usize,
    seconds: f64,
    seed: u64,
    arrivals: Arrivals,
}

/// Measures one system; failures and wrong values end the comparison.
fn measure<T: Target>(system: &str, target: &mut T, load: Load) -> Result<Summary, CompareError> {
    let mut source = SyntheticSource::new(SyntheticOptions {
        keys_count: load.keys_count,
        value_len: ValueLen::Fixed(load.value_len),
        gets: load.gets,
        seed: load.seed,
        ..SyntheticOptions::default()
    })?;
    let options = RunOptions {
        arrivals: load.arrivals,
        batch: load.batch,
        warm_up: Bound::Time(Duration::from_secs_f64((load.seconds / 4.0).min(0.3))),
        bound: Bound::Time(Duration::from_secs_f64(load.seconds)),
        seed: load.seed,
        ..RunOptions::default()
    };
    let result = run_load(target, &mut source, &options, &RunShared::reading())?;
    let summary = Summary::of(&result);
    let bad = summary.failed + summary.wrong + summary.misses;
    if bad > 0 || summary.ops == 0 {
        return Err(CompareError::Failed {
            system: system.to_owned(),
            failed: bad,
            ops: summary.ops,
            reason: summary
                .first_error
                .unwrap_or_else(|| "misses or wrong values".to_owned()),
        });
    }
    Ok(summary)
}

fn measure_peer(target: &mut PeerTarget, load: Load) -> Result<Summary, CompareError> {
    match target {
        PeerTarget::Memcached(client) => measure("memcached", client, load),
        PeerTarget::Redis(client) => measure("redis", client, load),
    }
}

fn fill<T: Target>(target: &mut T, keys_count: u64, value_len: usize) -> Result<(), CompareError> {
    let codec = SyntheticSource::new(SyntheticOptions {
        keys_count,
        ..SyntheticOptions::default()
    })?;
    let codec = RequestSource::codec(&codec);
    let shared = RunShared::reading();
    preload(
        target,
        codec,
        0..keys_count,
        ValueLen::Fixed(value_len),
        &shared,
        &mut |_| {},
    )?;
    Ok(())
}

/// Reads every key once, unmeasured, of all systems alike. A virtual machine's first reads of a page
/// by a core that has not written it cost some 10 us each, whoever reads; the
/// floor's corpus is written by the core that reads it, a cell's is not.
fn read_all<T: Target>(
    target: &mut T,
    codec: KeyCodec,
    keys_count: u64,
) -> Result<(), CompareError> {
    let mut keys = vec![codec.buffer(); TOUCH_BATCH as usize];
    for first in (0..keys_count).step_by(TOUCH_BATCH as usize) {
        let count = TOUCH_BATCH.min(keys_count - first);
        for (number, key) in (first..first + count).zip(&mut keys) {
            codec.encode(number, key);
        }
        let batch: Vec<&[u8]> = keys[..count as usize].iter().map(Vec::as_slice).collect();
        target.get_many(&batch, &mut |_, _| {})?;
    }
    Ok(())
}

fn fill_peer(
    target: &mut PeerTarget,
    keys_count: u64,
    value_len: usize,
) -> Result<(), CompareError> {
    match target {
        PeerTarget::Memcached(client) => fill(client, keys_count, value_len),
        PeerTarget::Redis(client) => fill(client, keys_count, value_len),
    }
}

fn server(
    options: &CompareOptions,
    mode: &'static str,
    processes: bool,
    memory: u64,
) -> Result<Server, CompareError> {
    Ok(Server::start(&ServerOptions {
        processes,
        core: Some(options.server_core),
        more: vec![
            "--huge-pages".to_owned(),
            (options.page == PageSize::Huge).to_string(),
        ],
        ..ServerOptions::new(&options.program, mode, memory)
    })?)
}

fn peer(options: &CompareOptions, memory: u64) -> Result<PeerProcess, CompareError> {
    peer_over(options, memory, Transport::Tcp)
}

fn peer_over(
    options: &CompareOptions,
    memory: u64,
    transport: Transport,
) -> Result<PeerProcess, CompareError> {
    Ok(PeerProcess::start(PeerOptions {
        transport,
        core: Some(options.server_core),
        ..PeerOptions::new(options.peer, memory >> 20)
    })?)
}

fn client(server: &Server, carrier: Carrier) -> Result<Trefoil, CompareError> {
    let cell = Cell::connect(&server.address)?;
    Ok(Trefoil::new(cell.client(Options {
        carrier,
        ..Options::default()
    })))
}

/// Room for a corpus with everything that belongs to it.
fn memory_for(keys_count: u64, value_len: usize, copies: u64) -> u64 {
    (keys_count * (value_len as u64 + 256) * 5 / 4 + (192 << 20)) * copies
}

struct Singles {
    page: PageSize,
    get: GetFigures,
    set: SetFigures,
    server_cpu_us_per_get: f64,
    peer_cpu_us_per_get: Option<f64>,
    settled_s: f64,
    peer: String,
    congestion: Option<String>,
}

fn singles(options: &CompareOptions, progress: Progress<'_>) -> Result<Singles, CompareError> {
    let keys_count = keys_count(options);
    let value_len = options.value_len;
    progress("starting and filling the cells and the peer");
    let one = server(options, "R=1", false, memory_for(keys_count, value_len, 1))?;
    let three = server(
        options,
        "R=3.2",
        false,
        memory_for(keys_count, value_len, 3),
    )?;
    let memory = memory_for(keys_count, value_len, 1);
    let peer = peer(options, memory)?;
    let unix = peer_over(options, memory, Transport::Unix)?;
    let mut one_client = client(&one, Carrier::Auto)?;
    let mut three_client = client(&three, Carrier::Auto)?;
    let mut spinning = PeerTarget::connect(&peer, Waiting::Spinning)?;
    let mut blocking = PeerTarget::connect(&peer, Waiting::Blocking)?;
    let mut by_unix = PeerTarget::connect(&unix, Waiting::Spinning)?;
    fill_peer(&mut by_unix, keys_count, value_len)?;
    fill(&mut one_client, keys_count, value_len)?;
    fill(&mut three_client, keys_count, value_len)?;
    fill_peer(&mut spinning, keys_count, value_len)?;
    progress("waiting until the servers have tidied up");
    let settled = one.settle()? + three.settle()?;
    // The floor gets the pages that the cell has got.
    let page = match one.huge_pages()? {
        huge if huge > options.corpus_len / 2 => PageSize::Huge,
        _ => PageSize::Base,
    };
    let floor = FloorCorpus::create(FloorOptions {
        page,
        ..FloorOptions::new(options.corpus_len as usize, value_len)
    })?;
    let codec = SyntheticSource::new(SyntheticOptions {
        keys_count,
        ..SyntheticOptions::default()
    })?;
    let codec = RequestSource::codec(&codec);
    let mut floor = FloorTarget::new(&floor, codec);

    let mut runs = Runs::default();
    for number in 0..options.runs {
        progress(&format!(
            "run {} of {}: GET and SET",
            number + 1,
            options.runs
        ));
        let load = Load {
            keys_count,
            value_len,
            gets: 1.0,
            batch: 1,
            seconds: options.seconds,
            seed: number as u64 + 1,
            arrivals: Arrivals::Closed,
        };
        let writes = Load { gets: 0.0, ..load };
        let open = Load {
            arrivals: Arrivals::Poisson {
                ops_per_s: OPEN_RATE,
            },
            ..load
        };
        read_all(&mut spinning, codec, keys_count)?;
        read_all(&mut by_unix, codec, keys_count)?;
        read_all(&mut one_client, codec, keys_count)?;
        read_all(&mut three_client, codec, keys_count)?;
        runs.floor.push(measure("floor", &mut floor, load)?.get);
        let before = one.cpu_time()?;
        let counted = one_client.client().counters().hits;
        runs.get
            .push(measure("trefoil R=1", &mut one_client, load)?.get);
        let used = one.cpu_time()? - before;
        let gets = one_client.client().counters().hits - counted;
        runs.cpu_us
            .push(used.as_secs_f64() * 1e6 / gets.max(1) as f64);
        runs.get_r32
            .push(measure("trefoil R=3.2", &mut three_client, load)?.get);
        let (before, counted) = (peer.cpu_time()?, gets_of(&mut spinning)?);
        runs.get_peer.push(measure_peer(&mut spinning, load)?.get);
        let used = peer.cpu_time()? - before;
        if let (Some(before), Some(after)) = (counted, gets_of(&mut spinning)?) {
            let gets = after.saturating_sub(before).max(1);
            runs.peer_cpu_us
                .push(used.as_secs_f64() * 1e6 / gets as f64);
        }
        runs.get_unix.push(measure_peer(&mut by_unix, load)?.get);
        runs.get_open
            .push(measure("trefoil R=1, open loop", &mut one_client, open)?.get);
        runs.get_unix_open
            .push(measure_peer(&mut by_unix, open)?.get);
        runs.get_peer_blocking
            .push(measure_peer(&mut blocking, load)?.get);
        runs.set
            .push(measure("trefoil R=1", &mut one_client, writes)?.set);
        runs.set_r32
            .push(measure("trefoil R=3.2", &mut three_client, writes)?.set);
        runs.set_peer.push(measure_peer(&mut spinning, writes)?.set);
        runs.set_unix.push(measure_peer(&mut by_unix, writes)?.set);
    }
    Ok(Singles {
        page,
        get: runs.get_figures(),
        set: runs.set_figures(),
        server_cpu_us_per_get: middle(&runs.cpu_us),
        peer_cpu_us_per_get: f64::median(&runs.peer_cpu_us),
        settled_s: settled.as_secs_f64(),
        peer: peer.label(),
        congestion: peer.congestion().map(str::to_owned),
    })
}

#[derive(Default)]
struct Runs {
    floor: Vec<Latency>,
    get: Vec<Latency>,
    get_r32: Vec<Latency>,
    get_peer: Vec<Latency>,
    get_peer_blocking: Vec<Latency>,
    set: Vec<Latency>,
    set_r32: Vec<Latency>,
    set_peer: Vec<Latency>,
    get_unix: Vec<Latency>,
    get_open: Vec<Latency>,
    get_unix_open: Vec<Latency>,
    set_unix: Vec<Latency>,
    cpu_us: Vec<f64>,
    peer_cpu_us: Vec<f64>,
}

/// The median; there is at least one run.
fn middle<T: Median + Default>(runs: &[T]) -> T {
    T::median(runs).unwrap_or_default()
}

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

impl Runs {
    fn get_figures(&self) -> GetFigures {
        let trefoil = middle(&self.get);
        let trefoil_r32 = middle(&self.get_r32);
        let memcached = middle(&self.get_peer);
        let memcached_blocking = middle(&self.get_peer_blocking);
        let floor = middle(&self.floor);
        let memcached_unix = middle(&self.get_unix);
        GetFigures {
            ratio_p50_unix: ratio(memcached_unix.p50_ns, trefoil.p50_ns),
            memcached_unix,
            trefoil_open: middle(&self.get_open),
            memcached_unix_open: middle(&self.get_unix_open),
            open_rate: OPEN_RATE,
            ratio_p50: ratio(memcached.p50_ns, trefoil.p50_ns),
            ratio_p50_blocking: ratio(memcached_blocking.p50_ns, trefoil.p50_ns),
            floor_ratio_p50: ratio(trefoil.p50_ns, floor.p50_ns),
            tail_ratio: ratio(trefoil.p999_ns, trefoil.p50_ns),
            floor_tail_ratio: ratio(floor.p999_ns, floor.p50_ns),
            r32_ratio_p50: ratio(trefoil_r32.p50_ns, trefoil.p50_ns),
            trefoil,
            trefoil_r32,
            memcached,
            memcached_blocking,
            floor,
        }
    }

    fn set_figures(&self) -> SetFigures {
        let trefoil = middle(&self.set);
        let trefoil_r32 = middle(&self.set_r32);
        let memcached = middle(&self.set_peer);
        SetFigures {
            ratio_p50: ratio(trefoil.p50_ns, memcached.p50_ns),
            r32_ratio_p50: ratio(trefoil_r32.p50_ns, trefoil.p50_ns),
            trefoil,
            trefoil_r32,
            memcached,
            memcached_unix: middle(&self.set_unix),
            trefoil_r32_processes: Latency::default(),
            trefoil_asleep: Latency::default(),
            memcached_asleep: Latency::default(),
            futex_ping_pong: Latency::default(),
        }
    }
}

fn batches(options: &CompareOptions, progress: Progress<'_>) -> Result<BatchFigures, CompareError> {
    progress("filling with small values");
    let memory = memory_for(BATCH_KEYS_COUNT, BATCH_VALUE_LEN, 1);
    let cell = server(options, "R=1", false, memory)?;
    let peer = peer(options, memory)?;
    let mut ours = client(&cell, Carrier::Auto)?;
    let mut theirs = PeerTarget::connect(&peer, Waiting::Spinning)?;
    let mut blocking = PeerTarget::connect(&peer, Waiting::Blocking)?;
    let unix = peer_over(options, memory, Transport::Unix)?;
    let mut by_unix = PeerTarget::connect(&unix, Waiting::Spinning)?;
    fill(&mut ours, BATCH_KEYS_COUNT, BATCH_VALUE_LEN)?;
    cell.settle()?;
    fill_peer(&mut theirs, BATCH_KEYS_COUNT, BATCH_VALUE_LEN)?;
    fill_peer(&mut by_unix, BATCH_KEYS_COUNT, BATCH_VALUE_LEN)?;
    let [mut whole, mut cached] = [BATCH_KEYS_COUNT, CACHED_KEYS_COUNT].map(BatchRuns::of);
    for runs in [&mut whole, &mut cached] {
        for number in 0..options.runs {
            progress(&format!(
                "run {} of {}: lookups of {BATCH} of {} keys",
                number + 1,
                options.runs,
                runs.keys_count
            ));
            let load = Load {
                keys_count: runs.keys_count,
                value_len: BATCH_VALUE_LEN,
                gets: 1.0,
                batch: BATCH,
                seconds: options.seconds,
                seed: number as u64 + 1,
                arrivals: Arrivals::Closed,
            };
            runs.ours.push(measure("trefoil R=1", &mut ours, load)?);
            runs.theirs.push(measure_peer(&mut theirs, load)?);
            runs.blocking.push(measure_peer(&mut blocking, load)?);
            runs.unix.push(measure_peer(&mut by_unix, load)?);
        }
    }
    Ok(BatchFigures {
        batch: BATCH,
        value_size: BATCH_VALUE_LEN,
        rates: whole.rates(),
        cached: cached.rates(),
    })
}

/// Runs of batches over one corpus.
struct BatchRuns {
    keys_count: u64,
    ours: Vec<Summary>,
    theirs: Vec<Summary>,
    blocking: Vec<Summary>,
    unix: Vec<Summary>,
}

impl BatchRuns {
    fn of(keys_count: u64) -> Self {
        BatchRuns {
            keys_count,
            ours: Vec::new(),
            theirs: Vec::new(),
            blocking: Vec::new(),
            unix: Vec::new(),
        }
    }

    /// Keys per time inside the calls, all calls together with their stalls:
    /// composing and verifying are the load generator's, for all alike.
    fn rates(&self) -> BatchRates {
        let rate = |runs: &[Summary]| {
            let rates: Vec<f64> = runs
                .iter()
                .map(|run| BATCH as f64 * 1e9 / run.get.mean_ns.max(1) as f64)
                .collect();
            middle(&rates)
        };
        let all = [&self.ours, &self.theirs, &self.blocking, &self.unix];
        let [ours, theirs, blocking, unix] = all.map(|of| rate(of));
        BatchRates {
            keys: self.keys_count,
            trefoil_ops_per_s: ours,
            memcached_ops_per_s: theirs,
            memcached_blocking_ops_per_s: blocking,
            memcached_unix_ops_per_s: unix,
            ratio_unix: ours / unix,
            ratio: ours / theirs,
            ratio_blocking: ours / blocking,
        }
    }
}

fn processes(options: &CompareOptions, progress: Progress<'_>) -> Result<Latency, CompareError> {
    let memory = memory_for(SMALL_KEYS_COUNT, options.value_len, 1);
    let cell = server(options, "R=3.2", true, memory)?;
    let mut ours = client(&cell, Carrier::Auto)?;
    // As everywhere: SETs replace what is there.
    fill(&mut ours, SMALL_KEYS_COUNT, options.value_len)?;
    cell.settle()?;
    let mut runs = Vec::new();
    for number in 0..options.runs {
        progress(&format!(
            "run {} of {}: SET to three processes",
            number + 1,
            options.runs
        ));
        let load = Load {
            keys_count: SMALL_KEYS_COUNT,
            value_len: options.value_len,
            gets: 0.0,
            batch: 1,
            seconds: options.seconds,
            seed: number as u64 + 1,
            arrivals: Arrivals::Closed,
        };
        runs.push(measure("trefoil R=3.2 in processes", &mut ours, load)?.set);
    }
    Ok(middle(&runs))
}

/// GETs by more and more threads, each with a client of its own. Nobody is kept
/// on a core of its own: this is about all cores together.
fn scaling(
    options: &CompareOptions,
    progress: Progress<'_>,
) -> Result<Vec<ScalingFigures>, CompareError> {
    let memory = memory_for(SMALL_KEYS_COUNT, options.value_len, 1);
    let cell = Server::start(&ServerOptions::new(&options.program, "R=1", memory))?;
    let peer = PeerProcess::start(PeerOptions {
        transport: Transport::Unix,
        ..PeerOptions::new(options.peer, memory >> 20)
    })?;
    fill(
        &mut client(&cell, Carrier::Auto)?,
        SMALL_KEYS_COUNT,
        options.value_len,
    )?;
    let mut filling = PeerTarget::connect(&peer, Waiting::Spinning)?;
    fill_peer(&mut filling, SMALL_KEYS_COUNT, options.value_len)?;
    cell.settle()?;
    let mut figures = Vec::new();
    for threads in THREADS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for number in 0..options.runs {
            progress(&format!(
                "run {} of {}: GETs by {threads} threads",
                number + 1,
                options.runs
            ));
            let clients: Result<Vec<_>, _> =
                (0..threads).map(|_| client(&cell, Carrier::Auto)).collect();
            ours.push(together(options, clients?)?);
            let clients: Result<Vec<_>, _> = (0..threads)
                .map(|_| PeerTarget::connect(&peer, Waiting::Blocking))
                .collect();
            theirs.push(together(options, clients?)?);
        }
        figures.push(ScalingFigures {
            threads,
            trefoil_ops_per_s: middle(&ours),
            memcached_unix_ops_per_s: middle(&theirs),
        });
    }
    Ok(figures)
}

/// Operations per second of all clients.
fn together<T: Target + Send>(
    options: &CompareOptions,
    targets: Vec<T>,
) -> Result<f64, CompareError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // The calling thread has a core of its own; its children share all.
    let cores = cores.max(options.client_core.max(options.server_core) + 1);
    let mut clients = Vec::new();
    for (number, target) in targets.into_iter().enumerate() {
        let source = SyntheticSource::new(SyntheticOptions {
            keys_count: SMALL_KEYS_COUNT,
            value_len: ValueLen::Fixed(options.value_len),
            seed: number as u64 + 1,
            ..SyntheticOptions::default()
        })?;
        clients.push((target, source, Some(number % cores)));
    }
    let run_options = RunOptions {
        bound: Bound::Time(Duration::from_secs_f64(options.seconds)),
        ..RunOptions::default()
    };
    let result = run_clients(clients, &run_options, &RunShared::reading())?;
    Ok(Summary::of(&result).ops_per_s)
}

/// SET and an empty call through gRPC, in turn.
fn rpc(options: &CompareOptions, progress: Progress<'_>) -> Result<RpcFigures, CompareError> {
    progress("SET through gRPC");
    let memory = memory_for(SMALL_KEYS_COUNT, options.value_len, 1);
    let server = server(options, "R=1", false, memory)?;
    let cell = Cell::connect(&server.address)?;
    let mut by_rpc = cell.client(Options {
        carrier: Carrier::Rpc,
        ..Options::default()
    });
    let value = vec![7; options.value_len];
    let failed = |reason: String| CompareError::Failed {
        system: "trefoil by RPC".to_owned(),
        failed: 1,
        ops: 1,
        reason,
    };
    let (mut sets, mut pings) = (histogram(), histogram());
    for number in 0..RPC_COUNT {
        let key = (number as u64).to_le_bytes();
        let begin = Instant::now();
        cell.ping(0).map_err(failed)?;
        record(&mut pings, begin);
        let begin = Instant::now();
        by_rpc
            .set(&key, &value, SetOptions::default())
            .map_err(|e| failed(e.to_string()))?;
        record(&mut sets, begin);
    }
    let (set, empty) = (Latency::of(&sets), Latency::of(&pings));
    Ok(RpcFigures {
        ratio_p50: ratio(set.p50_ns, empty.p50_ns),
        set,
        empty,
    })
}

/// SETs so far apart that their servers sleep: ours, and the peer's by a client
/// that blocks, in turn.
fn asleep(
    options: &CompareOptions,
    progress: Progress<'_>,
) -> Result<(Latency, Latency), CompareError> {
    progress("SET to servers that sleep");
    let memory = memory_for(SMALL_KEYS_COUNT, options.value_len, 1);
    let cell = server(options, "R=1", false, memory)?;
    let peer = peer(options, memory)?;
    let mut ours = client(&cell, Carrier::Auto)?;
    let mut theirs = PeerTarget::connect(&peer, Waiting::Blocking)?;
    let (mut our_times, mut their_times) = (histogram(), histogram());
    let value = vec![7; options.value_len];
    for number in 0..ASLEEP_COUNT {
        let key = format!("asleep-{number}");
        let item = (key.as_bytes(), &value[..]);
        set_after_a_sleep(&mut ours, item, &mut our_times)?;
        match &mut theirs {
            PeerTarget::Memcached(client) => set_after_a_sleep(client, item, &mut their_times)?,
            PeerTarget::Redis(client) => set_after_a_sleep(client, item, &mut their_times)?,
        }
    }
    Ok((Latency::of(&our_times), Latency::of(&their_times)))
}

fn set_after_a_sleep<T: Target>(
    target: &mut T,
    (key, value): (&[u8], &[u8]),
    times: &mut Histogram<u64>,
) -> Result<(), CompareError> {
    std::thread::sleep(ASLEEP_AFTER);
    let begin = Instant::now();
    target.set(key, value, None)?;
    record(times, begin);
    Ok(())
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are valid")
}

fn record(histogram: &mut Histogram<u64>, begin: Instant) {
    let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    histogram.saturating_record(ns);
}
