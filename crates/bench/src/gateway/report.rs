//! Figures of a comparison, as a table and for scripts.

use super::Dialect;
use crate::median::Median;
use crate::report::{Table, nanoseconds, rate, ratio};
use serde::Serialize;

/// Figures of one run, or medians of several.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Items a second.
    pub ops_per_s: f64,
    /// Nanoseconds from a send to the last byte of its answers.
    pub p50_ns: u64,
    /// The same.
    pub p99_ns: u64,
    /// CPU of all server processes for each item.
    pub server_cpu_ns_per_op: f64,
    /// Items for each second of that: throughput per core.
    pub ops_per_cpu_s: f64,
}

impl Median for Figures {
    fn median(runs: &[Self]) -> Option<Self> {
        let float =
            |figure: fn(&Self) -> f64| f64::median(&runs.iter().map(figure).collect::<Vec<_>>());
        let int =
            |figure: fn(&Self) -> u64| u64::median(&runs.iter().map(figure).collect::<Vec<_>>());
        Some(Figures {
            ops_per_s: float(|run| run.ops_per_s)?,
            p50_ns: int(|run| run.p50_ns)?,
            p99_ns: int(|run| run.p99_ns)?,
            server_cpu_ns_per_op: float(|run| run.server_cpu_ns_per_op)?,
            ops_per_cpu_s: float(|run| run.ops_per_cpu_s)?,
        })
    }
}

/// One system in one case.
#[derive(Debug, Clone, Serialize)]
pub struct SystemReport {
    /// Name and version.
    pub system: String,
    /// Medians.
    pub median: Figures,
    /// Of the medians, to those of the peer: throughput, and throughput per
    /// core.
    pub ops_ratio: f64,
    /// See there.
    pub ops_per_cpu_ratio: f64,
    /// The same of latencies: below 1 is faster.
    pub p50_ratio: f64,
    /// See there.
    pub p99_ratio: f64,
    /// Every run.
    pub runs: Vec<Figures>,
}

/// One case: the peer first.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// Its name.
    pub case: String,
    /// All systems.
    pub systems: Vec<SystemReport>,
}

/// All cases.
#[derive(Debug, Clone, Serialize)]
pub struct GatewayReport {
    /// Protocol.
    pub dialect: Dialect,
    /// Runs of each case and system.
    pub runs: usize,
    /// Length of each.
    pub seconds: f64,
    /// In the order measured.
    pub cases: Vec<CaseReport>,
}

impl GatewayReport {
    pub(super) fn new(dialect: Dialect, runs: usize, seconds: f64) -> Self {
        GatewayReport {
            dialect,
            runs,
            seconds,
            cases: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        case: &str,
        systems: impl Iterator<Item = (String, Vec<Figures>)>,
    ) {
        let mut peer = None;
        let mut reports = Vec::new();
        for (system, runs) in systems {
            let Some(median) = Figures::median(&runs) else {
                continue;
            };
            let peer = *peer.get_or_insert(median);
            reports.push(SystemReport {
                system,
                median,
                ops_ratio: median.ops_per_s / peer.ops_per_s,
                ops_per_cpu_ratio: median.ops_per_cpu_s / peer.ops_per_cpu_s,
                p50_ratio: median.p50_ns as f64 / peer.p50_ns.max(1) as f64,
                p99_ratio: median.p99_ns as f64 / peer.p99_ns.max(1) as f64,
                runs,
            });
        }
        self.cases.push(CaseReport {
            case: case.to_owned(),
            systems: reports,
        });
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for case in &self.cases {
            let heads = [
                "system",
                "ops/s",
                "×",
                "ops per CPU s",
                "×",
                "CPU/op",
                "p50",
                "×",
                "p99",
                "×",
            ];
            let mut table = Table::new(&case.case, &heads);
            for system in &case.systems {
                let median = &system.median;
                table.row([
                    system.system.clone(),
                    rate(median.ops_per_s),
                    ratio(system.ops_ratio),
                    rate(median.ops_per_cpu_s),
                    ratio(system.ops_per_cpu_ratio),
                    nanoseconds(median.server_cpu_ns_per_op as u64),
                    nanoseconds(median.p50_ns),
                    ratio(system.p50_ratio),
                    nanoseconds(median.p99_ns),
                    ratio(system.p99_ratio),
                ]);
            }
            text += &table.to_string();
            text.push('\n');
        }
        text + "× to the first line of each table; medians of alternating runs\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_peer() {
        let figures = |ops_per_s, p50_ns| Figures {
            ops_per_s,
            p50_ns,
            p99_ns: 2 * p50_ns,
            server_cpu_ns_per_op: 1e9 / ops_per_s,
            ops_per_cpu_s: ops_per_s,
        };
        let mut report = GatewayReport::new(Dialect::Memcached, 3, 1.0);
        let peer = vec![figures(100.0, 10), figures(90.0, 11), figures(500.0, 9)];
        let ours = vec![figures(200.0, 5)];
        let systems = [("peer".to_owned(), peer), ("ours".to_owned(), ours)];
        report.add("get", systems.into_iter());
        let ours = &report.cases[0].systems[1];
        assert_eq!((ours.ops_ratio, ours.p50_ratio), (2.0, 0.5));
        assert_eq!(ours.ops_per_cpu_ratio, 2.0);
        assert!(report.table().contains("2.00×"));
    }
}
