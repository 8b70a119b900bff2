//! A cell gets 5, 4 and 3 backends again, at R=3.2 and at R=1, while a load goes on.

use std::time::Instant;

use serde::Serialize;

use super::planned::{PlannedFigures, figures, order};
use super::{Progress, ScenarioError, ScenarioOptions};

/// From three, one after the other.
const SIZES: [u32; 3] = [5, 4, 3];
/// What must be shown: p99 of GETs at most so many times what it was.
const P99_FACTOR: u64 = 2;

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct ResizeReport {
    /// R=3.2.
    pub three: PlannedFigures,
    /// R=1.
    pub one: PlannedFigures,
}

impl ResizeReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        [&self.three, &self.one].into_iter().all(|figures| {
            let (before, during) = (&figures.before, &figures.during);
            let is_fast = |of: fn(&super::Course) -> u64| of(during) <= P99_FACTOR * of(before);
            figures.is_kept()
                && is_fast(|course| course.get_p99_ns)
                && is_fast(|course| course.set_p99_ns)
        })
    }
}

/// Resizes in both modes.
pub fn resize(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<ResizeReport, ScenarioError> {
    options.pin()?;
    let change = |address: &str| {
        let begin = Instant::now();
        for size in SIZES {
            let size = size.to_string();
            order(&options.program, address, &["resize", "--backends", &size])?;
        }
        Ok(begin.elapsed().as_secs_f64())
    };
    let mut figures = |mode| figures(options, (mode, "0"), "resize", progress, &change);
    Ok(ResizeReport {
        three: figures("R=3.2")?,
        one: figures("R=1")?,
    })
}
