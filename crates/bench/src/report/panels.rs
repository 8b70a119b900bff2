//! Several quantities over the same time, one above the other, with marks through all of
//! them where something was done to the system.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::TimelineEvent;
use super::canvas::{ALARM, FONT_FAMILY, PALETTE, Plot, decades};

const WIDTH: u32 = 1100;
const TITLE_HEIGHT: u32 = 44;
const PANEL_HEIGHT: u32 = 200;
/// The lowest one carries the seconds.
const SECONDS_HEIGHT: u32 = 40;
/// Labels of marks, one below the other, lest neighbours overlap.
const LABEL_LINES: usize = 4;
const LABEL_HEIGHT: i32 = 16;

/// How values lie on the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// In decades; what is not positive is left out.
    Logarithmic,
    /// From 0.
    Linear,
}

/// One quantity, or a few of one unit.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Beside the axis.
    pub what: String,
    /// See there.
    pub scale: Scale,
    /// How a value is written.
    pub unit: fn(f64) -> String,
    /// Names, and seconds and values.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Panels over one time.
#[derive(Debug, Clone)]
pub struct PanelsPlot {
    /// Above all.
    pub title: String,
    /// From the top down.
    pub panels: Vec<Panel>,
    /// The marks.
    pub events: Vec<TimelineEvent>,
}

impl PanelsPlot {
    fn end_s(&self) -> f64 {
        let series = self.panels.iter().flat_map(|panel| &panel.series);
        let times = series.flat_map(|(_, points)| points.iter().map(|(s, _)| *s));
        let marks = self.events.iter().map(|event| event.at_ms as f64 / 1e3);
        times.chain(marks).fold(1.0, f64::max)
    }

    fn draw_panel<DB: DrawingBackend, Y>(
        &self,
        area: &DrawingArea<DB, Shift>,
        panel: &Panel,
        (y, bottom, top): (Y, f64, f64),
        place: Place,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let seconds_height = if place.is_last { SECONDS_HEIGHT } else { 8 };
        let mut chart = ChartBuilder::on(area)
            .margin_left(12)
            .margin_right(16)
            .margin_top(4)
            .x_label_area_size(seconds_height)
            .y_label_area_size(96)
            .build_cartesian_2d(0f64..self.end_s(), y)?;
        let written = |value: &f64| (panel.unit)(*value);
        let mut mesh = chart.configure_mesh();
        mesh.y_desc(&panel.what)
            .y_labels(6)
            .y_label_formatter(&written)
            .light_line_style(WHITE)
            .label_style((FONT_FAMILY, 13));
        if place.is_last {
            mesh.x_desc("seconds");
        } else {
            mesh.x_labels(0);
        }
        mesh.draw()?;
        for event in &self.events {
            let at = event.at_ms as f64 / 1e3;
            let line = PathElement::new([(at, bottom), (at, top)], ALARM.mix(0.6).stroke_width(1));
            chart.draw_series(std::iter::once(line))?;
        }
        for ((name, points), color) in panel.series.iter().zip(PALETTE.into_iter().cycle()) {
            let is_log = panel.scale == Scale::Logarithmic;
            for stretch in points.split(|(_, value)| is_log && *value <= 0.0) {
                let stretch = stretch.iter().copied();
                chart.draw_series(LineSeries::new(stretch, color.stroke_width(2)))?;
            }
            chart
                .draw_series(std::iter::empty::<PathElement<(f64, f64)>>())?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 14, y)], color.stroke_width(3))
                });
        }
        if place.is_first {
            for (number, event) in self.events.iter().enumerate() {
                let at = event.at_ms as f64 / 1e3;
                let style = TextStyle::from((FONT_FAMILY, 14))
                    .color(&ALARM)
                    .pos(Pos::new(HPos::Left, VPos::Top));
                let down = (number % LABEL_LINES) as i32 * LABEL_HEIGHT;
                let label =
                    EmptyElement::at((at, top)) + Text::new(event.label.clone(), (4, down), style);
                chart.draw_series(std::iter::once(label))?;
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .label_font((FONT_FAMILY, 13))
            .draw()
    }
}

#[derive(Clone, Copy)]
struct Place {
    is_first: bool,
    is_last: bool,
}

impl Plot for PanelsPlot {
    fn size(&self) -> (u32, u32) {
        let panels = self.panels.len() as u32 * PANEL_HEIGHT;
        (WIDTH, TITLE_HEIGHT + panels + SECONDS_HEIGHT)
    }

    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let mut rest = area.titled(&self.title, (FONT_FAMILY, 22))?;
        let count = self.panels.len();
        for (number, panel) in self.panels.iter().enumerate() {
            let place = Place {
                is_first: number == 0,
                is_last: number + 1 == count,
            };
            let (own, below) = match place.is_last {
                true => (rest.clone(), rest.clone()),
                false => rest.split_vertically(PANEL_HEIGHT as i32),
            };
            let values = panel.series.iter().flat_map(|(_, points)| points);
            let values = values.map(|(_, value)| *value);
            match panel.scale {
                Scale::Logarithmic => {
                    let range = decades(values);
                    let (bottom, top) = (range.start, range.end);
                    self.draw_panel(&own, panel, (range.log_scale(), bottom, top), place)?;
                }
                Scale::Linear => {
                    let top = values.fold(0.0, f64::max) * 1.1;
                    let top = if top > 0.0 { top } else { 1.0 };
                    self.draw_panel(&own, panel, (0.0..top, 0.0, top), place)?;
                }
            }
            rest = below;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::drawn;
    use super::*;

    #[test]
    fn panels_share_their_marks_and_a_gap_breaks_a_line() {
        let points = |gap: bool| {
            let value = |at: u32| if gap && at == 20 { 0.0 } else { 1000.0 };
            (0..50)
                .map(|at| (f64::from(at) / 10.0, value(at)))
                .collect()
        };
        let panel = |what: &str, scale, gap| Panel {
            what: what.to_owned(),
            scale,
            unit: |value| format!("{value:.0} u"),
            series: vec![(format!("{what} line"), points(gap))],
        };
        let plot = PanelsPlot {
            title: "Moves".to_owned(),
            panels: vec![
                panel("latency", Scale::Logarithmic, true),
                panel("rate", Scale::Linear, false),
            ],
            events: vec![TimelineEvent {
                at_ms: 2_000,
                label: "drain".to_owned(),
            }],
        };
        let (svg, ink) = drawn(&plot);
        for text in [
            "Moves",
            "latency line",
            "rate line",
            "drain",
            "seconds",
            " u",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(ink > 0.01, "{ink}");
        // The mark in both, the line with the gap twice, the other once.
        assert!(svg.matches("<polyline").count() >= 5);
        let (empty, _) = drawn(&PanelsPlot {
            panels: vec![panel("nothing", Scale::Logarithmic, false)],
            events: Vec::new(),
            ..plot
        });
        assert!(!empty.contains("drain"));
    }
}
