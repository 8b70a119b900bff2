//! What was measured, as a table and as JSON.

use super::{Timed, TrialReport};
use crate::report::{ReportError, SavedPlot, save};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// One way to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// A bare echo of as many bytes as a SCAR's, both sides spinning.
    Echo,
    /// The same over UDP, of as many bytes as a sealed SCAR's.
    EchoUdp,
    /// GET at R=1 by SCAR, both sides spinning.
    Scar,
    /// The same over TLS.
    ScarTls,
    /// The same over UDP, sealed.
    ScarUdp,
    /// GET at R=3.2 by SCAR, both sides spinning.
    ScarQuorum,
    /// GET at R=1 by SCAR, of an engine that spins for 50 us and then sleeps.
    ScarSleeping,
    /// memcached, by a client that spins.
    Memcached,
    /// memcached, by a client that blocks.
    MemcachedBlocking,
    /// `get_many` at R=1 by SCAR.
    ScarMany,
    /// memcached's multiget.
    MemcachedMany,
    /// A bare echo of as many bytes as such a batch's; it sleeps while nothing comes.
    EchoMany,
    /// 50 connections, one GET at a time on each, by SCAR.
    Crowd,
    /// 50 clients, one GET at a time each, by SCAR over UDP, sealed.
    CrowdUdp,
    /// 50 connections to a bare echo of as many bytes; it sleeps while nothing comes.
    CrowdEcho,
    /// The same of memcached.
    CrowdMemcached,
    /// 50 connections, 32 GETs under way on each, by SCAR.
    CrowdDeep,
    /// The same of memcached.
    CrowdDeepMemcached,
}

impl Case {
    /// All, in the table's order.
    pub const ALL: [Case; 18] = [
        Case::Echo,
        Case::EchoUdp,
        Case::Scar,
        Case::ScarTls,
        Case::ScarUdp,
        Case::ScarQuorum,
        Case::ScarSleeping,
        Case::Memcached,
        Case::MemcachedBlocking,
        Case::ScarMany,
        Case::MemcachedMany,
        Case::EchoMany,
        Case::Crowd,
        Case::CrowdUdp,
        Case::CrowdEcho,
        Case::CrowdMemcached,
        Case::CrowdDeep,
        Case::CrowdDeepMemcached,
    ];

    /// Whether this stands in its title.
    pub fn has(self, word: &str) -> bool {
        self.title().contains(word)
    }

    fn title(self) -> &'static str {
        match self {
            Case::Echo => "bare echo, both spinning",
            Case::EchoUdp => "bare echo over UDP, both spinning",
            Case::Scar => "SCAR R=1, both spinning",
            Case::ScarTls => "SCAR R=1, TLS 1.3",
            Case::ScarUdp => "SCAR R=1, UDP, AES-128-GCM",
            Case::ScarQuorum => "SCAR R=3.2",
            Case::ScarSleeping => "SCAR R=1, engine as by default",
            Case::Memcached => "memcached, client spinning",
            Case::MemcachedBlocking => "memcached, client blocking",
            Case::ScarMany => "get_many of 100, SCAR R=1",
            Case::MemcachedMany => "multiget of 100, memcached",
            Case::EchoMany => "bare echo of a batch's bytes",
            Case::Crowd => "50 connections, SCAR R=1",
            Case::CrowdUdp => "50 connections, SCAR R=1, UDP",
            Case::CrowdEcho => "50 connections, bare echo",
            Case::CrowdMemcached => "50 connections, memcached",
            Case::CrowdDeep => "50 connections x 32, SCAR R=1",
            Case::CrowdDeepMemcached => "50 connections x 32, memcached",
        }
    }
}

/// What one run of a case has given.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Row {
    /// Half of the calls took at most so long, in microseconds.
    pub p50_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// Operations a second; of batches, keys.
    pub per_second: f64,
    /// CPU that the server has used for one, in microseconds; none where it spins.
    pub server_cpu_us: Option<f64>,
    /// Whether the engine was in use to the end; none where there is no engine. Otherwise
    /// the figures may be those of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_by_engine: Option<bool>,
}

impl Row {
    pub(super) fn of(timed: &Timed, cpu: Option<Duration>) -> Self {
        let per_operation = |cpu: Duration| cpu.as_secs_f64() * 1e6 / timed.operations as f64;
        Row {
            p50_us: timed.latency.p50_ns as f64 / 1e3,
            p99_us: timed.latency.p99_ns as f64 / 1e3,
            per_second: timed.operations as f64 / timed.elapsed.as_secs_f64(),
            server_cpu_us: cpu.map(per_operation),
            is_by_engine: None,
        }
    }

    pub(super) fn by_engine(self, is_so: bool) -> Self {
        Row {
            is_by_engine: Some(is_so),
            ..self
        }
    }
}

/// All rounds of all cases, and all trials.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    cases: Vec<CaseRows>,
    /// Of the medians.
    ratios: Vec<Ratio>,
    trials: Vec<TrialReport>,
}

/// Two cases beside each other, and what was wanted.
#[derive(Debug, Serialize)]
struct Ratio {
    value_len: usize,
    what: &'static str,
    value: f64,
    target: Target,
    /// None where nothing is wanted.
    is_met: Option<bool>,
}

/// What a ratio is held against.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// Nothing: it shows what there is to gain.
    Nothing,
}

impl Target {
    fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Target::AtMost(most) => Some(value <= most),
            Target::AtLeast(least) => Some(value >= least),
            Target::Nothing => None,
        }
    }
}

/// Of what a ratio is.
#[derive(Debug, Clone, Copy)]
enum By {
    P50,
    ServerCpu,
}

/// All ratios: what, of which case to which, by what, and what is wanted.
const RATIOS: [(&str, Case, Case, By, Target); 14] = [
    (
        "p50 of SCAR to the echo's",
        Case::Scar,
        Case::Echo,
        By::P50,
        Target::AtMost(1.3),
    ),
    (
        "p50 of SCAR over UDP, sealed, to the echo's over UDP",
        Case::ScarUdp,
        Case::EchoUdp,
        By::P50,
        Target::AtMost(1.3),
    ),
    (
        "p50 with TLS to without",
        Case::ScarTls,
        Case::Scar,
        By::P50,
        Target::AtMost(1.3),
    ),
    (
        "p50 over UDP, sealed, to TCP without TLS",
        Case::ScarUdp,
        Case::Scar,
        By::P50,
        Target::AtMost(1.3),
    ),
    (
        "p50 at R=3.2 to R=1",
        Case::ScarQuorum,
        Case::Scar,
        By::P50,
        Target::AtMost(1.4),
    ),
    (
        "p50 of memcached, spinning, to SCAR's",
        Case::Memcached,
        Case::Scar,
        By::P50,
        Target::AtLeast(2.5),
    ),
    (
        "p50 of memcached, blocking, to SCAR's",
        Case::MemcachedBlocking,
        Case::Scar,
        By::P50,
        Target::AtLeast(1.5),
    ),
    (
        "server CPU of memcached to the engine's, one at a time",
        Case::Memcached,
        Case::ScarSleeping,
        By::ServerCpu,
        Target::AtLeast(1.5),
    ),
    (
        "server CPU of memcached to the engine's, batches of 100",
        Case::MemcachedMany,
        Case::ScarMany,
        By::ServerCpu,
        Target::AtLeast(5.0),
    ),
    (
        "server CPU of memcached to a bare echo's, batches of 100",
        Case::MemcachedMany,
        Case::EchoMany,
        By::ServerCpu,
        Target::Nothing,
    ),
    (
        "server CPU of memcached to a bare echo's, 50 connections",
        Case::CrowdMemcached,
        Case::CrowdEcho,
        By::ServerCpu,
        Target::Nothing,
    ),
    (
        "server CPU of memcached to the engine's over UDP, 50 connections",
        Case::CrowdMemcached,
        Case::CrowdUdp,
        By::ServerCpu,
        Target::AtLeast(1.5),
    ),
    (
        "server CPU of memcached to the engine's, 50 connections",
        Case::CrowdMemcached,
        Case::Crowd,
        By::ServerCpu,
        Target::AtLeast(1.5),
    ),
    (
        "server CPU of memcached to the engine's, 50 connections x 32",
        Case::CrowdDeepMemcached,
        Case::CrowdDeep,
        By::ServerCpu,
        Target::AtLeast(3.0),
    ),
];

#[derive(Debug, Serialize)]
struct CaseRows {
    value_len: usize,
    case: Case,
    median: Row,
    rounds: Vec<Row>,
}

impl Report {
    pub(super) fn add(&mut self, value_len: usize, case: Case, row: Row) {
        let is_same = |of: &&mut CaseRows| (of.value_len, of.case) == (value_len, case);
        let of = self.cases.iter_mut().find(is_same);
        match of {
            Some(of) => {
                of.rounds.push(row);
                of.median = median_of(&of.rounds);
            }
            None => self.cases.push(CaseRows {
                value_len,
                case,
                median: row,
                rounds: vec![row],
            }),
        }
        self.ratios = self.all_ratios();
    }

    pub(super) fn tried(&mut self, trial: TrialReport) {
        self.trials.push(trial);
    }

    /// Whether a trial did not come to its end, for another reason than what the host lacks.
    pub fn has_failed(&self) -> bool {
        self.trials.iter().any(|trial| trial.failed.is_some())
    }

    fn median(&self, value_len: usize, case: Case) -> Option<&Row> {
        let of = |of: &&CaseRows| (of.value_len, of.case) == (value_len, case);
        self.cases.iter().find(of).map(|of| &of.median)
    }

    /// Draws what its trials have to draw into a directory; what was written.
    pub fn draw(&self, into: &Path) -> Result<Vec<SavedPlot>, ReportError> {
        let plots = self.trials.iter().flat_map(TrialReport::plots);
        plots
            .map(|(stem, plot)| save(&plot, &into.join(stem)))
            .collect()
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut value_len = 0;
        for of in &self.cases {
            if of.value_len != value_len {
                value_len = of.value_len;
                let head = format!("values of {value_len} B");
                let _ = writeln!(
                    text,
                    "{head:<34} {:>9} {:>9} {:>12} {:>14}",
                    "p50 us", "p99 us", "per second", "server CPU us"
                );
            }
            let Row {
                p50_us,
                p99_us,
                per_second,
                server_cpu_us,
                is_by_engine,
            } = of.median;
            let note = match is_by_engine {
                Some(false) => "  not by the engine to the end",
                Some(true) | None => "",
            };
            let cpu = server_cpu_us.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.2}"));
            let _ = writeln!(
                text,
                "{:<34} {p50_us:>9.1} {p99_us:>9.1} {per_second:>12.0} {cpu:>14}{note}",
                of.case.title()
            );
        }
        for ratio in &self.ratios {
            let wanted = match ratio.target {
                Target::AtMost(most) => format!("wanted <= {most}"),
                Target::AtLeast(least) => format!("wanted >= {least}"),
                Target::Nothing => "what sockets allow".to_owned(),
            };
            let met = match ratio.is_met {
                Some(true) => ": met",
                Some(false) => ": NOT MET",
                None => "",
            };
            let _ = writeln!(
                text,
                "{} B, {}: {:.2} ({wanted}{met})",
                ratio.value_len, ratio.what, ratio.value
            );
        }
        for trial in &self.trials {
            text += &trial.text();
        }
        text
    }

    fn all_ratios(&self) -> Vec<Ratio> {
        let mut value_lens: Vec<usize> = self.cases.iter().map(|of| of.value_len).collect();
        value_lens.dedup();
        let mut ratios = Vec::new();
        for value_len in value_lens {
            for (what, of, to, by, target) in RATIOS {
                let figure = |case| {
                    let row = self.median(value_len, case)?;
                    match by {
                        By::P50 => Some(row.p50_us),
                        By::ServerCpu => row.server_cpu_us,
                    }
                };
                if let (Some(of), Some(to)) = (figure(of), figure(to)) {
                    let value = of / to;
                    ratios.push(Ratio {
                        value_len,
                        what,
                        value,
                        target,
                        is_met: target.is_met(value),
                    });
                }
            }
        }
        ratios
    }
}

fn median_of(rows: &[Row]) -> Row {
    let median = |of: fn(&Row) -> f64| {
        let mut all: Vec<f64> = rows.iter().map(of).collect();
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Row {
        p50_us: median(|row| row.p50_us),
        p99_us: median(|row| row.p99_us),
        per_second: median(|row| row.per_second),
        server_cpu_us: rows[0]
            .server_cpu_us
            .map(|_| median(|row| row.server_cpu_us.unwrap_or_default())),
        // In every round.
        is_by_engine: rows.iter().filter_map(|row| row.is_by_engine).min(),
    }
}
