//! Anything over anything.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{FONT_FAMILY, PALETTE, Plot, legend, line};

/// Lines over one axis.
#[derive(Debug, Clone, PartialEq)]
pub struct LinesPlot {
    /// Above the plot.
    pub title: String,
    /// What is to the right, with its unit.
    pub x: String,
    /// What is upwards, with its unit; from 0 on.
    pub y: String,
    /// Each with its name and its points, ascending.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Plot for LinesPlot {
    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        // Of nothing a plot is drawn, too.
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max).max(1e-9);
        let (x_max, y_max) = (most(|(x, _)| *x), most(|(_, y)| *y));
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT_FAMILY, 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0f64..x_max * 1.03, 0f64..y_max * 1.08)?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .light_line_style(WHITE)
            .label_style((FONT_FAMILY, 15))
            .draw()?;
        for ((name, points), color) in self.lines.iter().zip(PALETTE.into_iter().cycle()) {
            line(&mut chart, name, points.iter().copied(), color)?;
        }
        legend(&mut chart, SeriesLabelPosition::UpperLeft)
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::drawn;
    use super::*;

    #[test]
    fn lines_and_their_axes_are_on_the_plot() {
        let plot = LinesPlot {
            title: "64 KiB beside a flow".into(),
            x: "load, %".into(),
            y: "p50, ms".into(),
            lines: vec![
                ("scar".into(), vec![(0.0, 3.0), (80.0, 20.0)]),
                ("2xr".into(), vec![(0.0, 3.5), (80.0, 12.0)]),
            ],
        };
        let (svg, _) = drawn(&plot);
        for text in ["64 KiB beside a flow", "load, %", "p50, ms", "scar", "2xr"] {
            assert!(svg.contains(text), "{text}");
        }
        drawn(&LinesPlot {
            lines: Vec::new(),
            ..plot
        });
    }
}
