//! The ordered queue's latencies, drawn.

use crate::load::Latency;
use crate::report::{LatencyBars, ReportError, SavedPlot, save};
use std::path::Path;
use trefoil_ordered_load::{Latency as Measured, OrderedReport};

/// Draws what was measured into a directory that is there; what was written.
///
/// A plot each for commits of one length at a server that is awake, or asleep; for SETs of one
/// length from another host; for a cluster's workload, each system at its own peak; and for
/// RocksDB by one mix of requests, all at the same rate.
pub fn draw(report: &OrderedReport, into: &Path) -> Result<Vec<SavedPlot>, ReportError> {
    let plots = plots(report);
    let plots = plots.iter();
    plots
        .map(|(stem, plot)| save(plot, &into.join(stem)))
        .collect()
}

/// The plots, in the order of the tables, by the names of their files.
fn plots(report: &OrderedReport) -> Vec<(String, LatencyBars)> {
    let mut plots: Vec<(String, LatencyBars)> = Vec::new();
    let mut add = |stem: String, title: String, system: &str, measured: Measured| {
        let at = match plots.iter().position(|(of, _)| *of == stem) {
            Some(at) => at,
            None => {
                plots.push((stem, LatencyBars::new(&title)));
                plots.len() - 1
            }
        };
        plots[at].1.system(system, latency(measured));
    };
    for row in &report.commits {
        let (len, server) = (row.value_len, row.server);
        let title = format!("{len} B on one host, server {server}");
        add(
            format!("commits-{len}-{server}"),
            title,
            &row.what,
            row.latency,
        );
    }
    for row in &report.off_host {
        let len = row.value_len;
        let title = format!("{len} B from another host");
        add(format!("off-host-{len}"), title, &row.what, row.latency);
    }
    let workloads = [
        ("workloads", "over shared memory", &report.workloads),
        (
            "off-host-workloads",
            "from another host, by one engine",
            &report.off_host_workloads,
        ),
        (
            "one-thread-workloads",
            "from another host, by one thread",
            &report.one_thread_workloads,
        ),
    ];
    for (stem, by, rows) in workloads {
        for row in rows {
            let title = format!("Cluster {} {by}, at the own peak", row.cluster);
            let stem = format!("{stem}-{}", row.cluster);
            add(stem, title, row.system, row.at_peak);
        }
    }
    for row in &report.rocks {
        let Some(measured) = row.median.at_equal_rate else {
            continue;
        };
        let puts = row.puts_percent;
        let title = format!("RocksDB, {puts} % persistent puts, at the same rate");
        add(format!("rocksdb-{puts}"), title, &row.system, measured);
    }
    plots
}

fn latency(measured: Measured) -> Latency {
    Latency {
        p50_ns: measured.p50_ns,
        p99_ns: measured.p99_ns,
        p999_ns: measured.p999_ns,
        ..Latency::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_ordered_load::LoadOptions;

    #[test]
    fn rows_that_are_compared_are_in_one_plot() {
        let mut report = OrderedReport::new(&LoadOptions::default());
        let latency = Measured {
            p50_ns: 300,
            p99_ns: 900,
            p999_ns: 4_000,
        };
        for what in ["bare loop", "nilext SET"] {
            report.add_commit(what, 100, true, latency);
            report.add_commit(what, 100, false, latency);
            report.add_off_host(what, 1024, latency);
        }
        report.finish();
        let stems: Vec<_> = plots(&report).into_iter().map(|(stem, _)| stem).collect();
        assert_eq!(
            stems,
            ["commits-100-awake", "commits-100-asleep", "off-host-1024"]
        );
        let into = tempfile::tempdir().unwrap();
        let drawn = draw(&report, into.path()).unwrap();
        for plot in &drawn {
            let svg = std::fs::read_to_string(&plot.svg).unwrap();
            assert!(svg.contains("nilext SET") && svg.contains("bare loop"));
            assert!(std::fs::metadata(&plot.png).unwrap().len() > 1_000);
        }
        assert_eq!(drawn.len(), 3);
    }
}
