//! How much faster, at every percentile: the curves of the second paper's
//! figure 3.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{FONT_FAMILY, PALETTE, Plot, legend};

/// More than this much slower is drawn as this much.
const PERCENT_MIN: f64 = -50.0;

/// One case.
#[derive(Debug, Clone, PartialEq)]
pub struct ReductionSeries {
    /// Its name.
    pub name: String,
    /// Percentile and percent by which latency there is less; ascending.
    pub points: Vec<(f64, f64)>,
}

/// Curves of several cases.
#[derive(Debug, Clone)]
pub struct ReductionCurves {
    /// Above the plot.
    pub title: String,
    /// The curves.
    pub series: Vec<ReductionSeries>,
}

impl Plot for ReductionCurves {
    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let shown = |percent: f64| percent.clamp(PERCENT_MIN, 100.0);
        let all = self.series.iter().flat_map(|series| &series.points);
        let low = all.map(|(_, percent)| shown(*percent)).fold(0.0, f64::min);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT_FAMILY, 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0f64..100f64, (low / 10.0).floor() * 10.0..100.0)?;
        chart
            .configure_mesh()
            .x_desc("percentile of latency")
            .y_desc("less, %")
            .x_label_formatter(&|percentile| format!("{percentile:.0}"))
            .y_label_formatter(&|percent| format!("{percent:.0}"))
            .light_line_style(WHITE)
            .label_style((FONT_FAMILY, 15))
            .draw()?;
        for (series, color) in self.series.iter().zip(PALETTE.into_iter().cycle()) {
            let points = series
                .points
                .iter()
                .map(|(at, percent)| (*at, shown(*percent)));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(&series.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], color.stroke_width(3))
                });
        }
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::drawn;
    use super::*;

    #[test]
    fn every_case_is_named() {
        let series = |name: &str, percent| ReductionSeries {
            name: name.into(),
            points: vec![(1.0, percent), (50.0, percent), (99.0, -400.0)],
        };
        let curves = ReductionCurves {
            title: "linked".into(),
            series: vec![series("100 B", 29.0), series("1 MB", 57.0)],
        };
        let (svg, _) = drawn(&curves);
        for text in ["linked", "100 B", "1 MB", "percentile"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
