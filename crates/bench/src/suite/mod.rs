//! Every figure that the documentation quotes, in one run: what was promised,
//! what was measured, and the command that measures it alone.
//!
//! Parts run one after the other, each in a thread of its own (a part pins its
//! thread), and the report is written anew after each: what has been measured is
//! not lost when a later part fails or is interrupted.

mod document;
mod figures;
mod parts;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::report::ReportError;

pub use document::Machine;

/// What to measure, and where the results go.
#[derive(Debug, Clone)]
pub struct SuiteOptions {
    /// Path of the trefoil program.
    pub program: PathBuf,
    /// Folder for report and plots; made if it is not there.
    pub out: PathBuf,
    /// Small and short: shows that everything works, not how well.
    pub is_quick: bool,
}

/// One promise and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// What was promised; empty where a figure is only reported.
    pub target: String,
    /// What was found, in words.
    pub measured: String,
    /// Whether it is as promised; nothing where nothing was promised, or where
    /// another command decides.
    pub met: Option<bool>,
    /// The command that measures it alone.
    pub command: String,
}

/// All figures, and each part's own report under its name.
#[derive(Debug, Clone, Serialize)]
pub struct SuiteReport {
    /// Where it ran.
    pub machine: Machine,
    /// Whether it was a quick run, whose figures mean little.
    pub quick: bool,
    /// Promise by promise.
    pub figures: Vec<Figure>,
    /// The parts' reports.
    pub parts: serde_json::Map<String, serde_json::Value>,
    /// Parts that could not be measured, and why.
    pub failures: Vec<String>,
}

impl SuiteReport {
    /// Whether everything was measured and nothing is worse than promised.
    pub fn is_met(&self) -> bool {
        self.failures.is_empty() && self.figures.iter().all(|figure| figure.met != Some(false))
    }

    /// The report for people, in Markdown.
    pub fn markdown(&self) -> String {
        document::markdown(self)
    }
}

/// A part's report as JSON and its figures.
type PartResult = Result<(serde_json::Value, Vec<Figure>), String>;
/// Measures one part.
type Part = fn(&SuiteOptions, &mut dyn FnMut(&str)) -> PartResult;

/// Measures everything and writes `report.md`, `report.json` and plots.
pub fn suite(
    options: &SuiteOptions,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<SuiteReport, ReportError> {
    std::fs::create_dir_all(&options.out).map_err(|source| ReportError::Write {
        path: options.out.display().to_string(),
        source,
    })?;
    let mut report = SuiteReport {
        machine: Machine::this(),
        quick: options.is_quick,
        figures: Vec::new(),
        parts: serde_json::Map::new(),
        failures: Vec::new(),
    };
    for (name, command, part) in parts::ALL {
        progress(name);
        let result = std::thread::scope(|scope| {
            let thread = scope.spawn(|| part(options, progress));
            thread
                .join()
                .unwrap_or_else(|_| Err("it panicked".to_owned()))
        });
        match result {
            Ok((json, figures)) => {
                report.parts.insert(name.to_owned(), json);
                report.figures.extend(figures);
            }
            Err(reason) => {
                report.figures.push(Figure {
                    what: name.to_owned(),
                    target: "can be measured".to_owned(),
                    measured: reason.clone(),
                    met: Some(false),
                    command: command.to_owned(),
                });
                report.failures.push(format!("{name}: {reason}"));
            }
        }
        write(&report, &options.out)?;
    }
    report.figures.extend(figures::elsewhere());
    write(&report, &options.out)?;
    Ok(report)
}

fn write(report: &SuiteReport, out: &Path) -> Result<(), ReportError> {
    crate::report::write_json(&out.join("report.json"), report)?;
    let path = out.join("report.md");
    std::fs::write(&path, report.markdown()).map_err(|source| ReportError::Write {
        path: path.display().to_string(),
        source,
    })
}
