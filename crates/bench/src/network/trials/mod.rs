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
mod wan;

use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::{NetworkBenchError, Secrets};
use crate::hosts::Network;

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
}

impl Trial {
    /// All, in the table's order.
    pub const ALL: [Trial; 8] = [
        Trial::Faults,
        Trial::Wan,
        Trial::Revoked,
        Trial::Idle,
        Trial::Engines,
        Trial::Slowed,
        Trial::Incast,
        Trial::Kills,
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
        }
    }

    /// The one that this host cannot carry out says why; any other failure is an error.
    pub(super) fn run(self, ground: &Ground<'_>) -> Result<Vec<Finding>, NetworkBenchError> {
        // Its hosts end with it.
        let mut network = Network::create()?;
        match self {
            Trial::Faults => faults::faults(ground, &mut network),
            Trial::Wan => wan::wan(ground, &mut network),
            Trial::Revoked => revoked::revoked(ground, &mut network),
            Trial::Idle => engines::idle(ground, &mut network),
            Trial::Engines => engines::scaling(ground, &mut network),
            Trial::Slowed => slowed::slowed(ground, &mut network),
            Trial::Incast => incast::incast(ground, &mut network),
            Trial::Kills => kills::kills(ground, &mut network),
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
        }
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
    /// Why nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

impl TrialReport {
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.trial.title());
        if let Some(why) = &self.skipped {
            let _ = writeln!(text, "  skipped: {why}");
        }
        for finding in &self.findings {
            let _ = writeln!(text, "{}", finding.line());
        }
        text
    }
}
