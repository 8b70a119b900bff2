//! Hit ratio over cache size.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{FONT_FAMILY, PALETTE, Plot, legend, line};

/// One policy, or one implementation of it.
#[derive(Debug, Clone, PartialEq)]
pub struct HitRatioSeries {
    /// Its name.
    pub name: String,
    /// Capacity in objects, and hit ratio from 0 to 1; ascending.
    pub points: Vec<(u64, f64)>,
    /// A reference: marks without a line, to lie on somebody else's line.
    pub is_reference: bool,
}

/// Curves of several policies.
#[derive(Debug, Clone)]
pub struct HitRatioCurves {
    /// Above the plot.
    pub title: String,
    /// The curves.
    pub series: Vec<HitRatioSeries>,
}

impl Plot for HitRatioCurves {
    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let objects_max = points().map(|(objects, _)| *objects).max().unwrap_or(1);
        let percents = || points().map(|(_, ratio)| ratio * 100.0);
        let low = percents().fold(100.0, f64::min).clamp(0.0, 100.0);
        let high = percents().fold(0.0, f64::max).clamp(0.0, 100.0);
        let (low, high) = ((low / 10.0).floor() * 10.0, (high / 10.0).ceil() * 10.0);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT_FAMILY, 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(
                0f64..objects_max as f64 * 1.03,
                low.min(high - 10.0)..high.max(low + 10.0),
            )?;
        chart
            .configure_mesh()
            .x_desc("capacity, objects")
            .y_desc("hit ratio, %")
            .x_label_formatter(&|objects| format!("{objects:.0}"))
            .y_label_formatter(&|percent| format!("{percent:.0}"))
            .light_line_style(WHITE)
            .label_style((FONT_FAMILY, 15))
            .draw()?;
        for (series, color) in self.series.iter().zip(PALETTE.into_iter().cycle()) {
            let points = || {
                let points = series.points.iter();
                points.map(|(objects, ratio)| (*objects as f64, ratio * 100.0))
            };
            if series.is_reference {
                chart
                    .draw_series(points().map(|at| Cross::new(at, 6, color.stroke_width(2))))?
                    .label(&series.name)
                    .legend(move |(x, y)| Cross::new((x + 8, y), 5, color.stroke_width(2)));
            } else {
                line(&mut chart, &series.name, points(), color)?;
            }
        }
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::drawn;
    use super::*;

    #[test]
    fn curves_and_references_are_on_the_plot() {
        let series = |name: &str, is_reference| HitRatioSeries {
            name: name.into(),
            points: vec![(1000, 0.3283), (5000, 0.5365), (15000, 0.6463)],
            is_reference,
        };
        let curves = HitRatioCurves {
            title: "OLTP".into(),
            series: vec![series("LRU", false), series("LRU, reference", true)],
        };
        let (svg, _) = drawn(&curves);
        for text in ["OLTP", "LRU, reference", "hit ratio", "10000"] {
            assert!(svg.contains(text), "{text}");
        }
        drawn(&HitRatioCurves {
            title: String::new(),
            series: Vec::new(),
        });
    }
}
