//! The report as a page, and the machine that it is about.

use std::fmt::Write as _;

use serde::Serialize;

use super::SuiteReport;

/// Where a report was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Cores that may be used.
    pub cores: usize,
    /// Model of the processor.
    pub processor: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Load average when it began: above 0.5 somebody else was at work.
    pub load_average: String,
}

impl Machine {
    /// This machine, now. What the system does not tell is "unknown".
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let known = |text: Option<&str>| text.map_or("unknown", str::trim).to_owned();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let kernel = read("/proc/sys/kernel/osrelease");
        let load = read("/proc/loadavg");
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: known(model.and_then(|line| line.split(':').nth(1))),
            kernel: known(kernel.lines().next()),
            load_average: known(load.split_whitespace().next()),
        }
    }
}

/// A table cell must not end its row.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

pub(super) fn markdown(report: &SuiteReport) -> String {
    let machine = &report.machine;
    let mut page = format!(
        "# Figures\n\n{} cores, {}, Linux {}; load average at the beginning {}.\n\n",
        machine.cores, machine.processor, machine.kernel, machine.load_average
    );
    if report.quick {
        page +=
            "A quick run: it shows that everything can be measured; its figures mean little.\n\n";
    }
    page += "| what | target | measured | met | command |\n|---|---|---|---|---|\n";
    for figure in &report.figures {
        let met = match figure.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "–",
        };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {met} | `{}` |",
            cell(&figure.what),
            cell(&figure.target),
            cell(&figure.measured),
            cell(&figure.command)
        );
    }
    let plots = [
        ("get-latency", "GET latency"),
        ("set-latency", "SET latency"),
        ("kill", "a backend killed"),
        ("hit-ratio", "hit ratios"),
    ];
    page.push('\n');
    for (stem, title) in plots {
        let _ = writeln!(page, "![{title}]({stem}.svg)");
    }
    page += "\nEverything that was measured stands in `report.json`.\n";
    page
}

#[cfg(test)]
mod tests {
    use super::super::Figure;
    use super::*;

    #[test]
    fn rows_say_whether_a_target_is_met() {
        let figure = |what: &str, met| Figure {
            what: what.to_owned(),
            target: "≤ 1".to_owned(),
            measured: "a|b".to_owned(),
            met,
            command: "trefoil bench".to_owned(),
        };
        let mut report = SuiteReport {
            machine: Machine::this(),
            quick: true,
            figures: vec![figure("GET", Some(true)), figure("SET", None)],
            parts: serde_json::Map::new(),
            failures: Vec::new(),
        };
        assert!(report.is_met());
        let page = markdown(&report);
        assert!(
            page.contains("| GET | ≤ 1 | a\\|b | yes | `trefoil bench` |"),
            "{page}"
        );
        assert!(page.contains("quick"));
        report.figures.push(figure("lost", Some(false)));
        assert!(!report.is_met());
        assert!(markdown(&report).contains("| **no** |"));
        assert!(report.machine.cores > 0);
    }
}
