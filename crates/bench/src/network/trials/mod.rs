//! What cannot be told by one figure beside another: what a client notices while something
//! goes wrong, or changes. Each trial says what it has found, what was wanted, and whether it
//! is so.

mod cluster;
mod engines;
mod faults;
mod incast;
mod kills;
mod load;
mod revoked;
mod slowed;
mod strategies;
mod wan;

use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::{NetworkBenchError, Secrets};
use crate::hosts::Network;
use crate::report::LinesPlot;

/// One trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// Loss, doubling, damage and reordering, by datagrams and by streams.
    Faults,
    /// A long way.
    Wan,
    /// A client that is revoked while it reads.
    Revoked,
    /// Engines with sessions and nothing to do.
    Idle,
    /// One engine, and two.
    Engines,
    /// One of three hosts that has become slow.
    Slowed,
    /// Batches that three hosts answer at once.
    Incast,
    /// An engine, a backend and a host's link, lost under load.
    Kills,
    /// What each way to look a key up costs.
    Costs,
    /// Long values beside a flow.
    BesideAFlow,
    /// Batches of items of very different lengths.
    Mixed,
}

impl Trial {
    /// All, in the table's order.
    pub const ALL: [Trial; 11] = [
        Trial::Faults,
        Trial::Wan,
        Trial::Revoked,
        Trial::Idle,
        Trial::Engines,
        Trial::Slowed,
        Trial::Incast,
        Trial::Kills,
        Trial::Costs,
        Trial::BesideAFlow,
        Trial::Mixed,
    ];

    /// Whether this stands in its title.
    pub fn has(self, word: &str) -> bool {
        self.title().contains(word)
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Trial::Faults => "faults of the wire: loss, doubling, damage, reordering",
            Trial::Wan => "WAN, 50 ms",
            Trial::Revoked => "revoked while reading",
            Trial::Idle => "idle engines",
            Trial::Engines => "engines 1 and 2",
            Trial::Slowed => "slowed: one of three hosts, tenfold",
            Trial::Incast => "incast: batches of 300 from three hosts, R=3.2",
            Trial::Kills => "kill -9 of an engine and a backend, link of a host down, R=3.2",
            Trial::Costs => "strategies: CPU of client and server by SCAR, 2xR and calls",
            Trial::BesideAFlow => "beside a flow: values of 64 KiB by SCAR and 2xR, R=3.2",
            Trial::Mixed => "mixed lengths in batches of 1000 by SCAR and 2xR, 10 ms",
        }
    }

    /// What it has found, and why it did not come to its end, if so: that ends no other one.
    pub(super) fn run(self, ground: &Ground<'_>) -> TrialReport {
        let mut findings = Findings::default();
        let ended = Network::create()
            .map_err(NetworkBenchError::from)
            .and_then(|mut network| self.carry_out(ground, &mut network, &mut findings));
        TrialReport::of(self, findings, ended)
    }

    /// Its hosts end with it.
    fn carry_out(
        self,
        ground: &Ground<'_>,
        network: &mut Network,
        findings: &mut Findings,
    ) -> Result<(), NetworkBenchError> {
        match self {
            Trial::Faults => faults::faults(ground, network, findings),
            Trial::Wan => wan::wan(ground, network, findings),
            Trial::Revoked => revoked::revoked(ground, network, findings),
            Trial::Idle => engines::idle(ground, network, findings),
            Trial::Engines => engines::scaling(ground, network, findings),
            Trial::Slowed => slowed::slowed(ground, network, findings),
            Trial::Incast => incast::incast(ground, network, findings),
            Trial::Kills => kills::kills(ground, network, findings),
            Trial::Costs => strategies::costs(ground, network, findings),
            Trial::BesideAFlow => strategies::beside_a_flow(ground, network, findings),
            Trial::Mixed => strategies::mixed(ground, network, findings),
        }
    }
}

/// What every trial is given.
pub(super) struct Ground<'a> {
    pub(super) program: &'a Path,
    /// How long each stretch of a trial takes.
    pub(super) length: Duration,
    pub(super) secrets: &'a Secrets,
}

/// What a trial has found so far. It is kept if the trial fails later.
type Findings = Vec<Finding>;

/// What a stretch of a trial has shown.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Under which circumstances.
    pub what: String,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// What was wanted; nothing of what is only shown for comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<&'static str>,
    /// Whether it is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_met: Option<bool>,
    /// What has to be known to read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What of it is drawn.
    #[serde(skip)]
    points: Vec<Point>,
}

/// A plot that trials draw points into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axes {
    /// Of its files' names.
    stem: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
}

/// One of its points.
#[derive(Debug, Clone)]
struct Point {
    axes: Axes,
    line: String,
    at: (f64, f64),
}

/// The plots of these findings, each with the stem of its files.
fn plots(findings: &[Finding]) -> Vec<(&'static str, LinesPlot)> {
    let mut plots: Vec<(&'static str, LinesPlot)> = Vec::new();
    for Point { axes, line, at } in findings.iter().flat_map(|finding| &finding.points) {
        if !plots.iter().any(|(stem, _)| *stem == axes.stem) {
            let plot = LinesPlot {
                title: axes.title.to_owned(),
                x: axes.x.to_owned(),
                y: axes.y.to_owned(),
                lines: Vec::new(),
            };
            plots.push((axes.stem, plot));
        }
        let plot = plots.iter_mut().find(|(stem, _)| *stem == axes.stem);
        let Some((_, LinesPlot { lines, .. })) = plot else {
            continue;
        };
        match lines.iter_mut().find(|(name, _)| name == line) {
            Some((_, points)) => points.push(*at),
            None => lines.push((line.clone(), vec![*at])),
        }
    }
    plots
}

/// One number.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Figure {
    /// Of what, with its unit.
    pub name: &'static str,
    /// How much.
    pub value: f64,
}

impl Finding {
    fn new(what: impl Into<String>) -> Self {
        Finding {
            what: what.into(),
            figures: Vec::new(),
            target: None,
            is_met: None,
            note: None,
            points: Vec::new(),
        }
    }

    fn plotted(mut self, axes: Axes, line: &str, x: f64, y: f64) -> Self {
        let (line, at) = (line.to_owned(), (x, y));
        self.points.push(Point { axes, line, at });
        self
    }

    fn with(mut self, name: &'static str, value: f64) -> Self {
        self.figures.push(Figure { name, value });
        self
    }

    fn wanted(mut self, target: &'static str, is_met: bool) -> Self {
        (self.target, self.is_met) = (Some(target), Some(is_met));
        self
    }

    fn noted(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    fn line(&self) -> String {
        let mut text = format!("  {}:", self.what);
        for Figure { name, value } in &self.figures {
            let _ = match value.fract() == 0.0 {
                true => write!(text, " {name} {value:.0},"),
                false => write!(text, " {name} {value:.2},"),
            };
        }
        text.pop();
        if let Some(target) = self.target {
            let said = match self.is_met {
                Some(true) => "met",
                _ => "NOT MET",
            };
            let _ = write!(text, "\n    wanted: {target}: {said}");
        }
        if let Some(note) = &self.note {
            let _ = write!(text, "\n    {note}");
        }
        text
    }
}

/// A trial and what came of it.
#[derive(Debug, Serialize)]
pub struct TrialReport {
    /// Which.
    pub trial: Trial,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What this host lacks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// What has ended it before its end, after these findings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl TrialReport {
    fn of(trial: Trial, findings: Findings, ended: Result<(), NetworkBenchError>) -> Self {
        let (mut skipped, mut failed) = (None, None);
        match ended {
            Ok(()) => {}
            Err(error) if error.is_of_this_host() => skipped = Some(error.to_string()),
            Err(error) => failed = Some(error.to_string()),
        }
        TrialReport {
            trial,
            findings,
            skipped,
            failed,
        }
    }

    pub(super) fn plots(&self) -> Vec<(&'static str, LinesPlot)> {
        plots(&self.findings)
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.trial.title());
        if let Some(why) = &self.skipped {
            let _ = writeln!(text, "  skipped: {why}");
        }
        for finding in &self.findings {
            let _ = writeln!(text, "{}", finding.line());
        }
        if let Some(why) = &self.failed {
            let _ = writeln!(text, "  FAILED: {why}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::io_error;
    use super::*;
    use crate::hosts::NetworkError;
    use std::io;

    #[test]
    fn points_of_one_plot_and_line_are_together() {
        let axes = |stem| Axes {
            stem,
            title: "title",
            x: "x",
            y: "y",
        };
        let finding =
            |stem, line: &str, x: f64| Finding::new("what").plotted(axes(stem), line, x, x * 2.0);
        let findings = [
            finding("one", "scar", 1.0),
            finding("two", "scar", 5.0),
            finding("one", "2xr", 1.0),
            finding("one", "scar", 2.0),
        ];
        let plots = plots(&findings);
        let stems: Vec<_> = plots.iter().map(|(stem, _)| *stem).collect();
        assert_eq!(stems, ["one", "two"]);
        let lines = [
            ("scar".to_owned(), vec![(1.0, 2.0), (2.0, 4.0)]),
            ("2xr".to_owned(), vec![(1.0, 2.0)]),
        ];
        assert_eq!(plots[0].1.lines, lines);
    }

    #[test]
    fn what_the_host_lacks_is_skipped_and_what_goes_wrong_has_failed() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let lacks = NetworkError::Device {
            name: "port1".into(),
            source: denied(),
        };
        let report = TrialReport::of(Trial::Wan, Vec::new(), Err(lacks.into()));
        assert!(
            report
                .text()
                .contains("  skipped: a device for a wire (port1)")
        );
        assert_eq!(report.failed, None);
        // What was found before is kept, and it is said what failed, and where.
        let found = vec![Finding::new("the first stretch").with("ms", 3.0)];
        let error = io_error("read /token")(denied());
        let report = TrialReport::of(Trial::Wan, found, Err(error));
        let said =
            "WAN, 50 ms\n  the first stretch: ms 3\n  FAILED: read /token: permission denied\n";
        assert_eq!(report.text(), said);
        assert_eq!(report.skipped, None);
    }
}
