//! What a comparison found, under names that scripts rely on.

use std::path::Path;

use serde::Serialize;

use crate::floor::PageSize;
use crate::load::Latency;
use crate::report::{LatencyBars, ReportError, Table, nanoseconds, rate, ratio, save};

/// Everything that `trefoil bench compare --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct CompareReport {
    /// The peer's name and version.
    pub peer: String,
    /// Pages behind Trefoil's memory and behind the floor's.
    pub page: PageSize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Keys of the corpus.
    pub keys: u64,
    /// Runs of each system.
    pub runs: usize,
    /// Single lookups.
    pub get: GetFigures,
    /// Single writes.
    pub set: SetFigures,
    /// Lookups of 100 keys at once, 100-byte values.
    pub get_many: BatchFigures,
    /// By RPC.
    pub rpc: RpcFigures,
    /// CPU of the backend for each one-sided GET, touches included.
    pub server_cpu_us_per_get: f64,
    /// CPU of the peer for each GET by a client that spins; nothing where the
    /// peer does not count its GETs.
    pub peer_cpu_us_per_get: Option<f64>,
    /// How long the cells gathered huge pages after filling, in seconds. That
    /// was waited for: the stalls of gathering are in no figure here.
    pub settled_s: f64,
    /// GETs by several threads at once, each with a client of its own.
    pub scaling: Vec<ScalingFigures>,
    /// What the peer's side of TCP used; nothing if it could not be set.
    pub peer_congestion_control: Option<String>,
}

/// Single lookups. `memcached` stands for the peer, whichever it is.
#[derive(Debug, Clone, Serialize)]
pub struct GetFigures {
    /// One copy.
    pub trefoil: Latency,
    /// Three copies, quorum of two.
    pub trefoil_r32: Latency,
    /// The peer, asked by a client that spins.
    pub memcached: Latency,
    /// The peer, asked by an ordinary blocking client.
    pub memcached_blocking: Latency,
    /// The peer over its Unix socket, asked by a client that spins.
    pub memcached_unix: Latency,
    /// The bare loop.
    pub floor: Latency,
    /// One copy, GETs that arrive at a rate (`open_rate`), whether or not the one
    /// before is done; latency counts from then.
    pub trefoil_open: Latency,
    /// The peer over its Unix socket, the same.
    pub memcached_unix_open: Latency,
    /// GETs per second in the two above.
    pub open_rate: f64,
    /// The Unix socket's p50 by Trefoil's.
    pub ratio_p50_unix: f64,
    /// Peer's p50 by Trefoil's.
    pub ratio_p50: f64,
    /// Blocking peer's p50 by Trefoil's.
    pub ratio_p50_blocking: f64,
    /// Trefoil's p50 by the floor's.
    pub floor_ratio_p50: f64,
    /// Trefoil's p99.9 by its own p50.
    pub tail_ratio: f64,
    /// The bare loop's p99.9 by its own p50: what the machine's pauses alone do.
    pub floor_tail_ratio: f64,
    /// Three copies' p50 by one copy's.
    pub r32_ratio_p50: f64,
}

/// Single writes.
#[derive(Debug, Clone, Serialize)]
pub struct SetFigures {
    /// One copy, by message, backend awake.
    pub trefoil: Latency,
    /// Three copies in one process.
    pub trefoil_r32: Latency,
    /// Three copies in three processes on one core.
    pub trefoil_r32_processes: Latency,
    /// One copy, backend asleep.
    pub trefoil_asleep: Latency,
    /// The peer, asleep, asked by a client that blocks.
    pub memcached_asleep: Latency,
    /// A futex ping-pong between the two cores.
    pub futex_ping_pong: Latency,
    /// The peer, asked by a client that spins.
    pub memcached: Latency,
    /// The peer over its Unix socket, asked by a client that spins.
    pub memcached_unix: Latency,
    /// Trefoil's p50 by the peer's.
    pub ratio_p50: f64,
    /// Three copies' p50 (one process) by one copy's.
    pub r32_ratio_p50: f64,
}

/// Lookups of many keys at once.
#[derive(Debug, Clone, Serialize)]
pub struct BatchFigures {
    /// Keys of one batch.
    pub batch: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Over the whole corpus, more than the processor's caches hold.
    #[serde(flatten)]
    pub rates: BatchRates,
    /// Over a tenth of it, which they hold.
    pub cached: BatchRates,
}

/// GETs by several threads. Servers and clients share all cores.
#[derive(Debug, Clone, Serialize)]
pub struct ScalingFigures {
    /// Threads, each with a client.
    pub threads: usize,
    /// GETs per second of all together, one copy.
    pub trefoil_ops_per_s: f64,
    /// The same of the peer over its Unix socket, by blocking clients.
    pub memcached_unix_ops_per_s: f64,
}

/// One corpus's figures: keys per second of the time inside the calls, all
/// calls together.
#[derive(Debug, Clone, Serialize)]
pub struct BatchRates {
    /// Keys asked for, each as often as any other.
    pub keys: u64,
    /// Keys per second.
    pub trefoil_ops_per_s: f64,
    /// Keys per second, by a client that spins.
    pub memcached_ops_per_s: f64,
    /// Keys per second, by an ordinary blocking client.
    pub memcached_blocking_ops_per_s: f64,
    /// Keys per second over its Unix socket, by a client that spins.
    pub memcached_unix_ops_per_s: f64,
    /// Trefoil's by the peer's over its Unix socket.
    pub ratio_unix: f64,
    /// Trefoil's by the peer's with a client that spins.
    pub ratio: f64,
    /// Trefoil's by the peer's with a blocking client.
    pub ratio_blocking: f64,
}

/// Through gRPC.
#[derive(Debug, Clone, Serialize)]
pub struct RpcFigures {
    /// A SET.
    pub set: Latency,
    /// An empty call.
    pub empty: Latency,
    /// SET's p50 by the empty call's.
    pub ratio_p50: f64,
}

impl CompareReport {
    /// The figures for people.
    pub fn table(&self) -> String {
        let title = format!(
            "{} keys of {} B values, {} pages, medians of {} runs, beside {}; closed loop but where it says open: whoever waits asks nothing meanwhile",
            self.keys, self.value_size, self.page, self.runs, self.peer
        );
        let mut table = Table::new(
            &title,
            &["what", "p50", "p99", "p99.9", "to the peer", "more"],
        );
        let mut row = |what: &str, latency: &Latency, to_peer: String, more: String| {
            table.row([
                what.to_owned(),
                nanoseconds(latency.p50_ns),
                nanoseconds(latency.p99_ns),
                nanoseconds(latency.p999_ns),
                to_peer,
                more,
            ]);
        };
        let (get, set) = (&self.get, &self.set);
        let none = String::new;
        row(
            "GET floor (bare loop)",
            &get.floor,
            none(),
            format!("p99.9 {} own p50", ratio(get.floor_tail_ratio)),
        );
        row(
            "GET R=1",
            &get.trefoil,
            format!("{} lower p50", ratio(get.ratio_p50)),
            format!(
                "{} the floor's p50; p99.9 {} own p50",
                ratio(get.floor_ratio_p50),
                ratio(get.tail_ratio)
            ),
        );
        row(
            "GET R=3.2",
            &get.trefoil_r32,
            none(),
            format!("{} R=1", ratio(get.r32_ratio_p50)),
        );
        row(
            &format!("GET {}, spinning client", self.peer),
            &get.memcached,
            none(),
            none(),
        );
        row(
            &format!("GET {}, blocking client", self.peer),
            &get.memcached_blocking,
            none(),
            format!("{} Trefoil's p50", ratio(get.ratio_p50_blocking)),
        );
        row(
            &format!("GET {}, Unix socket, spinning client", self.peer),
            &get.memcached_unix,
            none(),
            format!("{} Trefoil's p50", ratio(get.ratio_p50_unix)),
        );
        row(
            &format!("GET R=1, open loop, {:.0}/s", get.open_rate),
            &get.trefoil_open,
            none(),
            none(),
        );
        row(
            &format!("GET {}, Unix socket, open loop, the same", self.peer),
            &get.memcached_unix_open,
            none(),
            none(),
        );
        row(
            "SET R=1",
            &set.trefoil,
            format!("{} of its p50", ratio(set.ratio_p50)),
            none(),
        );
        row(
            "SET R=3.2, one process",
            &set.trefoil_r32,
            none(),
            format!("{} R=1", ratio(set.r32_ratio_p50)),
        );
        row(
            "SET R=3.2, three processes",
            &set.trefoil_r32_processes,
            none(),
            none(),
        );
        row(
            &format!("SET {}, spinning client", self.peer),
            &set.memcached,
            none(),
            none(),
        );
        row(
            &format!("SET {}, Unix socket, spinning client", self.peer),
            &set.memcached_unix,
            none(),
            none(),
        );
        row(
            "SET R=1, backend asleep",
            &set.trefoil_asleep,
            none(),
            none(),
        );
        row(
            &format!("SET {}, asleep, blocking client", self.peer),
            &set.memcached_asleep,
            none(),
            none(),
        );
        row(
            "futex ping-pong, two cores",
            &set.futex_ping_pong,
            none(),
            none(),
        );
        row(
            "SET R=1 through gRPC",
            &self.rpc.set,
            none(),
            format!("{} an empty call", ratio(self.rpc.ratio_p50)),
        );
        row("empty gRPC call", &self.rpc.empty, none(), none());
        let many = &self.get_many;
        let rates = |rates: &BatchRates| {
            format!(
                "{}, {} {}: {}; {} over its Unix socket: {}; {} with a blocking client: {}",
                rate(rates.trefoil_ops_per_s),
                self.peer,
                rate(rates.memcached_ops_per_s),
                ratio(rates.ratio),
                rate(rates.memcached_unix_ops_per_s),
                ratio(rates.ratio_unix),
                rate(rates.memcached_blocking_ops_per_s),
                ratio(rates.ratio_blocking)
            )
        };
        let scaling: Vec<String> = (self.scaling.iter())
            .map(|figures| {
                format!(
                    "GETs by {} threads: {}, {} over its Unix socket {}\n",
                    figures.threads,
                    rate(figures.trefoil_ops_per_s),
                    self.peer,
                    rate(figures.memcached_unix_ops_per_s)
                )
            })
            .collect();
        let peer_cpu = self
            .peer_cpu_us_per_get
            .map_or_else(none, |cpu| format!(", of {} {cpu:.3} µs", self.peer));
        format!(
            "{table}\nGET of {} keys at once, {} B values, of {} keys: {}\nthe same of {} keys, which the caches hold: {}\n{}backend CPU per one-sided GET, touches included: {:.3} µs{peer_cpu}\nbefore measuring, {:.1} s of gathering huge pages were waited for; its stalls are in no figure above\n",
            many.batch,
            many.value_size,
            many.rates.keys,
            rates(&many.rates),
            many.cached.keys,
            rates(&many.cached),
            scaling.concat(),
            self.server_cpu_us_per_get,
            self.settled_s,
        )
    }

    /// Writes latency plots into `folder`.
    pub fn plot(&self, folder: &Path) -> Result<(), ReportError> {
        std::fs::create_dir_all(folder).map_err(|source| ReportError::Write {
            path: folder.display().to_string(),
            source,
        })?;
        let title = format!("GET, {} B values", self.value_size);
        let mut bars = LatencyBars::new(&title);
        bars.system("bare loop", self.get.floor)
            .system("trefoil R=1", self.get.trefoil)
            .system("trefoil R=3.2", self.get.trefoil_r32)
            .system(&self.peer, self.get.memcached)
            .system("its Unix socket", self.get.memcached_unix);
        save(&bars, &folder.join("get-latency"))?;
        let title = format!("SET, {} B values", self.value_size);
        let mut bars = LatencyBars::new(&title);
        bars.system("trefoil R=1", self.set.trefoil)
            .system("trefoil R=3.2", self.set.trefoil_r32)
            .system("three processes", self.set.trefoil_r32_processes)
            .system(&self.peer, self.set.memcached);
        save(&bars, &folder.join("set-latency"))?;
        Ok(())
    }
}
