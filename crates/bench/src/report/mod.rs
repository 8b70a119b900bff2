//! Results for people and for scripts: aligned tables, JSON, and plots as SVG and
//! PNG.

mod bars;
mod canvas;
mod curves;
mod json;
mod lines;
mod panels;
mod reductions;
mod table;
mod timeline;

use std::io;

pub use bars::LatencyBars;
pub use canvas::{Plot, SavedPlot, save};
pub use curves::{HitRatioCurves, HitRatioSeries};
pub use json::write_json;
pub use lines::LinesPlot;
pub use panels::{Panel, PanelsPlot, Scale};
pub use reductions::{ReductionCurves, ReductionSeries};
pub use table::{Table, bytes, nanoseconds, rate, ratio};
pub use timeline::{TimelineEvent, TimelinePlot, TimelineSeries};

/// Why a result could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Which file.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The plot could not be drawn.
    #[error("cannot draw {path}: {problem}")]
    Draw {
        /// Which file it was for.
        path: String,
        /// What the plotting library said.
        problem: String,
    },
    /// The result has no JSON.
    #[error("cannot write {path} as JSON: {source}")]
    Json {
        /// Which file.
        path: String,
        /// What is wrong.
        source: serde_json::Error,
    },
}
