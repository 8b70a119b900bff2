//! What was measured: medians over the runs, for people and for scripts.

use crate::LoadOptions;
use crate::wanted::{self, Wanted};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Half of the requests took no longer.
    pub p50_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
}

impl Latency {
    /// Out of a histogram.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Latency {
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
        }
    }

    /// Figure by figure, the middle of all runs.
    pub fn median(runs: &[Latency]) -> Self {
        let middle = |figure: fn(&Latency) -> u64| {
            let mut all: Vec<u64> = runs.iter().map(figure).collect();
            all.sort_unstable();
            all.get(all.len() / 2).copied().unwrap_or(0)
        };
        Latency {
            p50_ns: middle(|of| of.p50_ns),
            p99_ns: middle(|of| of.p99_ns),
            p999_ns: middle(|of| of.p999_ns),
        }
    }
}

/// A nilext SET on one host.
#[derive(Clone, Debug, Serialize)]
pub struct CommitRow {
    /// What commits.
    pub what: String,
    /// Bytes of the value.
    pub value_len: usize,
    /// Whether the server spins, or sleeps.
    pub server: &'static str,
    /// Medians.
    pub latency: Latency,
    /// Every run.
    pub runs: Vec<Latency>,
}

/// A SET from another host, one at a time.
#[derive(Clone, Debug, Serialize)]
pub struct OffHostRow {
    /// What was done.
    pub what: String,
    /// Bytes of the value.
    pub value_len: usize,
    /// Medians.
    pub latency: Latency,
    /// Of the medians, to the bare echo's; 0 without one.
    pub to_echo: f64,
    /// What was wanted.
    pub wanted: Option<Wanted>,
    /// Every run.
    pub runs: Vec<Latency>,
}

/// What other SETs from another host are compared to.
pub const ECHO: &str = "bare echo";
/// Rows of SETs that are done when they are acknowledged begin so.
pub const NILEXT: &str = "nilext SET";
/// That to a server that sleeps, to which memcached's is compared.
pub const NILEXT_ASLEEP: &str = "nilext SET, server asleep";
/// memcached's.
pub const MEMCACHED: &str = "SET of memcached, client spins";

/// One workload on one system.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadRow {
    /// Number of Twitter's cluster.
    pub cluster: u32,
    /// Who acknowledges, and when.
    pub system: &'static str,
    /// Median of the runs' peaks, in requests a second.
    pub peak_per_s: f64,
    /// Of the requests that were due, at 90 % of the system's own peak, the part that was
    /// done in time.
    pub kept_up: f64,
    /// All requests, at 90 % of the system's own peak, in slices in which the host has not
    /// stopped the machine.
    pub at_peak: Latency,
    /// The same in all slices.
    pub at_peak_with_pauses: Latency,
    /// All requests, at 90 % of the lowest peak of the three, in slices without pauses.
    pub at_equal_rate: Latency,
    /// Slices at the peak, over all runs.
    pub slices: usize,
    /// Those of them in which the host has stopped the machine.
    pub paused: usize,
    /// Its longest pause in them, in microseconds.
    pub pause_max_us: u64,
    /// The paper's median at peak throughput, over a network, in microseconds.
    pub paper_p50_us: f64,
    /// Of the paper's medians, this system's to the ordered queue's.
    pub paper_ratio: f64,
    /// Of the medians at peak, this system's to the ordered queue's.
    pub ratio: f64,
    /// What was wanted of that.
    pub wanted: Option<Wanted>,
}

/// Clients with or without a connection of their own.
#[derive(Clone, Debug, Serialize)]
pub struct SharedRow {
    /// How they are connected.
    pub what: String,
    /// Threads.
    pub clients: usize,
    /// Lanes at the server.
    pub connections: usize,
    /// Medians of commits a second.
    pub commits_per_s: f64,
    /// To the first row.
    pub ratio: f64,
}

/// One measurement of durable SETs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DurableRun {
    /// Until it was acknowledged.
    pub latency: Latency,
    /// Acknowledged a second.
    pub per_s: f64,
}

/// Durable SETs by one way of flushing.
#[derive(Clone, Debug, Serialize)]
pub struct DurableRow {
    /// What was written.
    pub what: String,
    /// How it was flushed.
    pub flush: String,
    /// Medians.
    pub median: DurableRun,
    /// Every run.
    pub runs: Vec<DurableRun>,
}

/// One measurement of RocksDB with persistent puts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RocksRun {
    /// Requests a second: what is done with many under way, or less, if the system cannot
    /// keep up with 90 % of that as Poisson arrivals.
    pub peak_per_s: f64,
    /// Puts acknowledged a second, with many requests under way.
    pub puts_per_s: f64,
    /// All requests, at 90 % of the system's own peak. Without a queue: with as many under
    /// way as there are threads.
    pub at_peak: Latency,
    /// All requests, at 90 % of the lowest peak of the systems with a queue.
    pub at_equal_rate: Option<Latency>,
}

/// RocksDB with persistent puts, by one way to make them so.
#[derive(Clone, Debug, Serialize)]
pub struct RocksRow {
    /// Which way.
    pub system: String,
    /// Puts in a hundred requests.
    pub puts_percent: u64,
    /// Medians.
    pub median: RocksRun,
    /// Of the medians at the own peak, the durable queue's to this one's: below 1, the queue
    /// is faster.
    pub ratio_at_peak: f64,
    /// The same at the equal rate.
    pub ratio_at_equal_rate: Option<f64>,
    /// Of the puts acknowledged a second, the durable queue's to this one's.
    pub ratio_puts: f64,
    /// What was wanted of the medians at the equal rate.
    pub wanted: Option<Wanted>,
    /// Every run.
    pub runs: Vec<RocksRun>,
}

impl RocksRow {
    fn finish(&mut self) {
        let latencies = |figure: fn(&RocksRun) -> Option<Latency>| {
            let all: Vec<Latency> = self.runs.iter().filter_map(figure).collect();
            (!all.is_empty()).then(|| Latency::median(&all))
        };
        self.median = RocksRun {
            peak_per_s: median(self.runs.iter().map(|run| run.peak_per_s)),
            puts_per_s: median(self.runs.iter().map(|run| run.puts_per_s)),
            at_peak: latencies(|run| Some(run.at_peak)).unwrap_or_default(),
            at_equal_rate: latencies(|run| run.at_equal_rate),
        };
    }

    fn compare(&mut self, queue: RocksRun) {
        let part = |ours: u64, theirs: u64| ours as f64 / theirs.max(1) as f64;
        self.ratio_at_peak = part(queue.at_peak.p50_ns, self.median.at_peak.p50_ns);
        let both = queue.at_equal_rate.zip(self.median.at_equal_rate);
        self.ratio_at_equal_rate = both.map(|(ours, theirs)| part(ours.p50_ns, theirs.p50_ns));
        self.ratio_puts = queue.puts_per_s / self.median.puts_per_s.max(1.0);
    }
}

/// What RocksDB is behind in the row that others are compared to.
pub(crate) const DURABLE_QUEUE: &str = "durable queue";
/// It runs to completion.
pub(crate) const SYNC_EACH: &str = "own log, a sync each";
/// The CPU acknowledges, and executes afterwards.
pub(crate) const FLUSH_EACH: &str = "DeferredExec, a flush each";

/// All figures of one invocation.
#[derive(Clone, Debug, Serialize)]
pub struct OrderedReport {
    /// Rounds.
    pub runs: usize,
    /// Length of one measurement.
    pub seconds: f64,
    /// Commits on one host.
    pub commits: Vec<CommitRow>,
    /// SETs from another host.
    pub off_host: Vec<OffHostRow>,
    /// By what they went.
    pub off_host_note: Option<String>,
    /// Workloads.
    pub workloads: Vec<WorkloadRow>,
    /// Workloads from another host, all systems by the same engine.
    pub off_host_workloads: Vec<WorkloadRow>,
    /// The same, the alternatives in one thread without an engine.
    pub one_thread_workloads: Vec<WorkloadRow>,
    /// Delegation.
    pub shared: Vec<SharedRow>,
    /// Durable SETs.
    pub durable: Vec<DurableRow>,
    /// RocksDB with persistent puts.
    pub rocks: Vec<RocksRow>,
    /// Why there are no such rows.
    pub rocks_note: Option<String>,
    #[serde(skip)]
    raw_workloads: BTreeMap<WorkloadPlace, Vec<WorkloadRun>>,
    #[serde(skip)]
    raw_shared: BTreeMap<usize, Vec<f64>>,
}

/// A run of a workload; what the figures mean is said in [`WorkloadRow`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkloadRun {
    pub(crate) peak_per_s: f64,
    pub(crate) kept_up: f64,
    pub(crate) at_peak: Latency,
    pub(crate) at_peak_with_pauses: Latency,
    pub(crate) at_equal_rate: Latency,
    pub(crate) slices: usize,
    pub(crate) paused: usize,
    pub(crate) pause_max_us: u64,
}

/// How clients of workloads are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// By shared memory.
    Near,
    /// From another host by an engine beside the server.
    Engine,
    /// From another host; the alternatives to one thread that has the socket and the store.
    OneThread,
}

/// By which way, which cluster, which system.
pub(crate) type WorkloadPlace = (Way, u32, usize);

/// The systems, in the order of the paper's columns.
pub(crate) const SYSTEMS: [&str; 3] = ["eRPC-like", "DeferredExec", "ordered queue"];

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

impl OrderedReport {
    /// Without rows yet.
    pub fn new(options: &LoadOptions) -> Self {
        OrderedReport {
            runs: options.runs,
            seconds: options.seconds,
            commits: Vec::new(),
            off_host: Vec::new(),
            off_host_note: None,
            workloads: Vec::new(),
            off_host_workloads: Vec::new(),
            one_thread_workloads: Vec::new(),
            shared: Vec::new(),
            durable: Vec::new(),
            rocks: Vec::new(),
            rocks_note: None,
            raw_workloads: BTreeMap::new(),
            raw_shared: BTreeMap::new(),
        }
    }

    /// Adds a run of one row; [`OrderedReport::finish`] is to follow.
    pub fn add_commit(&mut self, what: &str, value_len: usize, is_awake: bool, run: Latency) {
        let server = if is_awake { "awake" } else { "asleep" };
        let is_row = |row: &&mut CommitRow| {
            row.what == what && row.value_len == value_len && row.server == server
        };
        match self.commits.iter_mut().find(is_row) {
            Some(row) => row.runs.push(run),
            None => self.commits.push(CommitRow {
                what: what.to_owned(),
                value_len,
                server,
                latency: run,
                runs: vec![run],
            }),
        }
    }

    /// Adds a run of a SET from another host.
    pub fn add_off_host(&mut self, what: &str, value_len: usize, run: Latency) {
        let is_row = |row: &&mut OffHostRow| row.what == what && row.value_len == value_len;
        match self.off_host.iter_mut().find(is_row) {
            Some(row) => row.runs.push(run),
            None => self.off_host.push(OffHostRow {
                what: what.to_owned(),
                value_len,
                latency: run,
                to_echo: 0.0,
                wanted: None,
                runs: vec![run],
            }),
        }
    }

    fn finish_off_host(&mut self) {
        for row in &mut self.off_host {
            row.latency = Latency::median(&row.runs);
        }
        let echoes = self.off_host.iter().filter(|row| row.what == ECHO);
        let echoes: Vec<_> = echoes
            .map(|row| (row.value_len, row.latency.p50_ns))
            .collect();
        for row in &mut self.off_host {
            let echo = echoes.iter().find(|(len, _)| *len == row.value_len);
            row.to_echo = echo.map_or(0.0, |(_, p50_ns)| {
                row.latency.p50_ns as f64 / (*p50_ns).max(1) as f64
            });
        }
        wanted::of_off_host(&mut self.off_host);
    }

    pub(crate) fn add_workload(&mut self, place: WorkloadPlace, run: WorkloadRun) {
        self.raw_workloads.entry(place).or_default().push(run);
    }

    pub(crate) fn add_shared(&mut self, what: &str, sizes: (usize, usize), commits_per_s: f64) {
        let at = match self.shared.iter().position(|row| row.what == what) {
            Some(at) => at,
            None => {
                self.shared.push(SharedRow {
                    what: what.to_owned(),
                    clients: sizes.0,
                    connections: sizes.1,
                    commits_per_s,
                    ratio: 1.0,
                });
                self.shared.len() - 1
            }
        };
        self.raw_shared.entry(at).or_default().push(commits_per_s);
    }

    pub(crate) fn add_durable(&mut self, what: &str, flush: &str, run: DurableRun) {
        let is_row = |row: &&mut DurableRow| row.what == what && row.flush == flush;
        match self.durable.iter_mut().find(is_row) {
            Some(row) => row.runs.push(run),
            None => self.durable.push(DurableRow {
                what: what.to_owned(),
                flush: flush.to_owned(),
                median: run,
                runs: vec![run],
            }),
        }
    }

    /// Why RocksDB is not measured.
    pub(crate) fn say_of_rocks(&mut self, note: String) {
        self.rocks_note = Some(note);
    }

    pub(crate) fn add_rocks(&mut self, system: &str, puts: f64, run: RocksRun) {
        let puts_percent = (puts * 100.0).round() as u64;
        let is_row = |row: &&mut RocksRow| row.system == system && row.puts_percent == puts_percent;
        match self.rocks.iter_mut().find(is_row) {
            Some(row) => row.runs.push(run),
            None => self.rocks.push(RocksRow {
                system: system.to_owned(),
                puts_percent,
                median: run,
                ratio_at_peak: 1.0,
                ratio_at_equal_rate: None,
                ratio_puts: 1.0,
                wanted: None,
                runs: vec![run],
            }),
        }
    }

    fn finish_rocks(&mut self) {
        for row in &mut self.rocks {
            row.finish();
        }
        let is_queue = |row: &&RocksRow| row.system == DURABLE_QUEUE;
        let queues = self.rocks.iter().filter(is_queue);
        let queues: Vec<_> = queues.map(|row| (row.puts_percent, row.median)).collect();
        for row in &mut self.rocks {
            let of_mix = queues.iter().find(|(puts, _)| *puts == row.puts_percent);
            if let Some((_, queue)) = of_mix {
                row.compare(*queue);
            }
        }
        wanted::of_rocks(&mut self.rocks);
    }

    /// Makes medians of what was added.
    pub fn finish(&mut self) {
        for row in &mut self.commits {
            row.latency = Latency::median(&row.runs);
        }
        for row in &mut self.durable {
            let latencies: Vec<_> = row.runs.iter().map(|run| run.latency).collect();
            row.median = DurableRun {
                latency: Latency::median(&latencies),
                per_s: median(row.runs.iter().map(|run| run.per_s)),
            };
        }
        self.finish_rocks();
        self.finish_off_host();
        self.workloads.clear();
        self.off_host_workloads.clear();
        self.one_thread_workloads.clear();
        let papers = crate::Cluster::all().unwrap_or_default();
        for (&(way, cluster, system), runs) in &self.raw_workloads {
            let latencies = |figure: fn(&WorkloadRun) -> Latency| {
                Latency::median(&runs.iter().map(figure).collect::<Vec<_>>())
            };
            let of_paper = papers.iter().find(|of| of.number == cluster);
            let paper_us = of_paper.map_or([0.0; 3], |of| of.paper_us);
            let rows = match way {
                Way::Near => &mut self.workloads,
                Way::Engine => &mut self.off_host_workloads,
                Way::OneThread => &mut self.one_thread_workloads,
            };
            rows.push(WorkloadRow {
                cluster,
                system: SYSTEMS[system],
                peak_per_s: median(runs.iter().map(|run| run.peak_per_s)),
                kept_up: median(runs.iter().map(|run| run.kept_up)),
                at_peak: latencies(|run| run.at_peak),
                at_peak_with_pauses: latencies(|run| run.at_peak_with_pauses),
                at_equal_rate: latencies(|run| run.at_equal_rate),
                slices: runs.iter().map(|run| run.slices).sum(),
                paused: runs.iter().map(|run| run.paused).sum(),
                pause_max_us: runs.iter().map(|run| run.pause_max_us).max().unwrap_or(0),
                paper_p50_us: paper_us[system],
                paper_ratio: paper_us[system] / paper_us[2],
                ratio: 1.0,
                wanted: None,
            });
        }
        let ways = [
            &mut self.workloads,
            &mut self.off_host_workloads,
            &mut self.one_thread_workloads,
        ];
        for three in ways
            .into_iter()
            .flat_map(|rows| rows.chunks_mut(SYSTEMS.len()))
        {
            let ours = three.last().map_or(1, |row| row.at_peak.p50_ns.max(1));
            for row in three.iter_mut() {
                row.ratio = row.at_peak.p50_ns as f64 / ours as f64;
            }
            wanted::of_workloads(three);
        }
        for (at, row) in self.shared.iter_mut().enumerate() {
            row.commits_per_s = median(self.raw_shared[&at].iter().copied());
        }
        let first = self.shared.first().map_or(1.0, |row| row.commits_per_s);
        for row in &mut self.shared {
            row.ratio = row.commits_per_s / first;
        }
    }

    /// For scripts.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        if !self.commits.is_empty() {
            let _ = writeln!(
                text,
                "{:<34} {:>7} {:>7} {:>10} {:>10} {:>10}",
                "SET on one host", "bytes", "server", "p50 ns", "p99 ns", "p99.9 ns"
            );
        }
        for row in &self.commits {
            let Latency {
                p50_ns,
                p99_ns,
                p999_ns,
            } = row.latency;
            let _ = writeln!(
                text,
                "{:<34} {:>7} {:>7} {p50_ns:>10} {p99_ns:>10} {p999_ns:>10}",
                row.what, row.value_len, row.server
            );
        }
        self.put_off_host(&mut text);
        put_workloads(&mut text, "over shared memory", &self.workloads);
        let by = self.off_host_note.as_deref().unwrap_or_default();
        let engine = format!("by one engine, {by}");
        put_workloads(&mut text, &engine, &self.off_host_workloads);
        let thread = format!("by one thread without an engine (not the queue), {by}");
        put_workloads(&mut text, &thread, &self.one_thread_workloads);
        if !self.shared.is_empty() {
            let _ = writeln!(
                text,
                "\n{:<34} {:>8} {:>12} {:>12} {:>8}",
                "clients", "count", "connections", "commits/s", "ratio"
            );
        }
        for row in &self.shared {
            let _ = writeln!(
                text,
                "{:<34} {:>8} {:>12} {:>12.0} {:>8.2}",
                row.what, row.clients, row.connections, row.commits_per_s, row.ratio
            );
        }
        if !self.durable.is_empty() {
            let _ = writeln!(
                text,
                "\n{:<30} {:<22} {:>10} {:>10} {:>12}",
                "in a file", "flushed by", "p50 ns", "p99 ns", "acknowledged/s"
            );
        }
        for row in &self.durable {
            let _ = writeln!(
                text,
                "{:<30} {:<22} {:>10} {:>10} {:>12.0}",
                row.what,
                row.flush,
                row.median.latency.p50_ns,
                row.median.latency.p99_ns,
                row.median.per_s
            );
        }
        self.put_rocks(&mut text);
        text
    }

    fn put_off_host(&self, text: &mut String) {
        if !self.off_host.is_empty() {
            let by = self.off_host_note.as_deref().unwrap_or_default();
            let what = format!("SET from another host, {by}");
            let _ = writeln!(
                text,
                "\n{what:<58} {:>7} {:>10} {:>10} {:>10} {:>8}",
                "bytes", "p50 ns", "p99 ns", "p99.9 ns", "× echo"
            );
        }
        for row in &self.off_host {
            let Latency {
                p50_ns,
                p99_ns,
                p999_ns,
            } = row.latency;
            let _ = writeln!(
                text,
                "{:<58} {:>7} {p50_ns:>10} {p99_ns:>10} {p999_ns:>10} {:>8.2}{}",
                row.what,
                row.value_len,
                row.to_echo,
                said(row.wanted)
            );
        }
    }

    fn put_rocks(&self, text: &mut String) {
        if let Some(note) = &self.rocks_note {
            let _ = writeln!(text, "\nRocksDB with persistent puts: {note}");
        }
        if !self.rocks.is_empty() {
            let _ = writeln!(
                text,
                "\n{:<32} {:>6} {:>9} {:>9} {:>6} {:>9} {:>9} {:>6} {:>9} {:>9} {:>6}",
                "RocksDB, 91 B, persistent puts",
                "puts %",
                "peak /s",
                "puts/s",
                "ours ×",
                "p50 ns",
                "p99 ns",
                "ours ×",
                "equal p50",
                "p99 ns",
                "ours ×"
            );
        }
        for row in &self.rocks {
            let RocksRun {
                peak_per_s,
                puts_per_s,
                at_peak,
                at_equal_rate,
            } = row.median;
            let _ = write!(
                text,
                "{:<32} {:>6} {peak_per_s:>9.0} {puts_per_s:>9.0} {:>6.2} {:>9} {:>9} {:>6.2}",
                row.system,
                row.puts_percent,
                row.ratio_puts,
                at_peak.p50_ns,
                at_peak.p99_ns,
                row.ratio_at_peak
            );
            let _ = match at_equal_rate.zip(row.ratio_at_equal_rate) {
                Some((equal, ratio)) => write!(
                    text,
                    " {:>9} {:>9} {ratio:>6.2}",
                    equal.p50_ns, equal.p99_ns
                ),
                None => write!(text, " {:>9} {:>9} {:>6}", "-", "-", "-"),
            };
            let _ = writeln!(text, "{}", said(row.wanted));
        }
    }
}

/// Behind a row.
fn said(wanted: Option<Wanted>) -> String {
    wanted.map_or(String::new(), |wanted| format!("  {wanted}"))
}

fn put_workloads(text: &mut String, by: &str, rows: &[WorkloadRow]) {
    if !rows.is_empty() {
        let _ = writeln!(text, "\nWorkloads {by}");
        let _ = writeln!(
            text,
            "{:<7} {:<14} {:>9} {:>8} {:>9} {:>7} {:>11} {:>9} {:>8} {:>12} {:>9} {:>8}",
            "cluster",
            "system",
            "peak /s",
            "p50 ns",
            "p99 ns",
            "× ours",
            "paused p50",
            "paused",
            "most µs",
            "equal p50 ns",
            "paper µs",
            "× theirs"
        );
    }
    for row in rows {
        let _ = writeln!(
            text,
            "{:<7} {:<14} {:>9.0} {:>8} {:>9} {:>7.2} {:>11} {:>9} {:>8} {:>12} {:>9} {:>8.2}{}",
            row.cluster,
            row.system,
            row.peak_per_s,
            row.at_peak.p50_ns,
            row.at_peak.p99_ns,
            row.ratio,
            row.at_peak_with_pauses.p50_ns,
            format!("{}/{}", row.paused, row.slices),
            row.pause_max_us,
            row.at_equal_rate.p50_ns,
            row.paper_p50_us,
            row.paper_ratio,
            said(row.wanted)
        );
    }
}
