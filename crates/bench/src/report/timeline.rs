//! Latency over time, with marks where something was done to the system.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::canvas::{ALARM, FONT_FAMILY, PALETTE, Plot, decades, legend};
use super::table::nanoseconds;
use crate::load::Timeline;

/// A moment worth a mark, such as "backend killed".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineEvent {
    /// Milliseconds from the run's start.
    pub at_ms: u64,
    /// What happened.
    pub label: String,
}

/// One system's run.
#[derive(Debug, Clone)]
pub struct TimelineSeries {
    /// Whose.
    pub name: String,
    /// How it went.
    pub timeline: Timeline,
}

/// The 99th percentile of each slot as a line, failed operations as crosses.
#[derive(Debug, Clone)]
pub struct TimelinePlot {
    /// Above the plot.
    pub title: String,
    /// The lines.
    pub series: Vec<TimelineSeries>,
    /// The marks.
    pub events: Vec<TimelineEvent>,
}

impl Plot for TimelinePlot {
    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let slots = || self.series.iter().flat_map(|series| &series.timeline.slots);
        let range = decades(slots().map(|slot| slot.p99_ns as f64));
        let (bottom, top) = (range.start, range.end);
        let end_s = slots()
            .map(|slot| slot.start_ms + 100)
            .max()
            .unwrap_or(1000) as f64
            / 1e3;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT_FAMILY, 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(80)
            .build_cartesian_2d(0f64..end_s, range.log_scale())?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .y_desc("p99 latency of each tenth of a second")
            .y_label_formatter(&|ns| nanoseconds(*ns as u64))
            .light_line_style(WHITE)
            .label_style((FONT_FAMILY, 15))
            .draw()?;

        for (series, color) in self.series.iter().zip(PALETTE.into_iter().cycle()) {
            let slots = &series.timeline.slots;
            // A slot in which nothing succeeded has no latency: the line breaks.
            for stretch in slots.split(|slot| slot.p99_ns == 0) {
                let points = stretch
                    .iter()
                    .map(|slot| (slot.start_ms as f64 / 1e3 + 0.05, slot.p99_ns as f64));
                chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
            }
            chart
                .draw_series(std::iter::empty::<PathElement<(f64, f64)>>())?
                .label(&series.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], color.stroke_width(3))
                });
        }
        if slots().any(|slot| slot.failed > 0) {
            let crosses = slots().filter(|slot| slot.failed > 0).map(|slot| {
                let at = (slot.start_ms as f64 / 1e3 + 0.05, bottom * 1.15);
                Cross::new(at, 5, ALARM.stroke_width(2))
            });
            chart
                .draw_series(crosses)?
                .label("failed operations")
                .legend(|(x, y)| Cross::new((x + 8, y), 5, ALARM.stroke_width(2)));
        }
        for event in &self.events {
            let at = event.at_ms as f64 / 1e3;
            let line = PathElement::new([(at, bottom), (at, top)], ALARM.stroke_width(1));
            let style = TextStyle::from((FONT_FAMILY, 15))
                .color(&ALARM)
                .pos(Pos::new(HPos::Left, VPos::Top));
            chart.draw_series(std::iter::once(line))?;
            let label = Text::new(format!(" {}", event.label), (at, top), style);
            chart.draw_series(std::iter::once(label))?;
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::drawn;
    use super::*;
    use crate::load::TimelineSlot;

    #[test]
    fn the_kill_and_the_failures_are_on_the_plot() {
        let slots = (0..50u64).map(|i| TimelineSlot {
            start_ms: i * 100,
            ops: 1000,
            failed: u64::from(i == 21),
            p99_ns: if (20..24).contains(&i) { 0 } else { 2_000 },
        });
        let mut plot = TimelinePlot {
            title: "R=3.2 under 95/5".into(),
            series: vec![TimelineSeries {
                name: "trefoil".into(),
                timeline: Timeline {
                    slots: slots.collect(),
                },
            }],
            events: vec![TimelineEvent {
                at_ms: 2_000,
                label: "backend killed".into(),
            }],
        };
        let (svg, _) = drawn(&plot);
        for text in ["backend killed", "failed operations", "trefoil"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(
            svg.matches("<polyline").count() >= 2,
            "the line breaks at the gap"
        );
        plot.series[0].timeline.slots.clear();
        let (svg, _) = drawn(&plot);
        assert!(!svg.contains("failed operations"));
    }
}
