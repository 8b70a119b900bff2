//! Latency percentiles, side by side.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::canvas::{FONT_FAMILY, PALETTE, Plot, decades, legend};
use super::table::nanoseconds;
use crate::load::Latency;

const PERCENTILES: [&str; 3] = ["p50", "p99", "p99.9"];

/// One group of bars per system, on a logarithmic scale: between a memory read
/// and a network round trip lie two decades.
#[derive(Debug, Clone)]
pub struct LatencyBars {
    title: String,
    systems: Vec<(String, Latency)>,
}

impl LatencyBars {
    /// No systems yet.
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            systems: Vec::new(),
        }
    }

    /// Adds a system.
    pub fn system(&mut self, name: &str, latency: Latency) -> &mut Self {
        self.systems.push((name.to_owned(), latency));
        self
    }
}

fn percentiles(latency: &Latency) -> [u64; 3] {
    [latency.p50_ns, latency.p99_ns, latency.p999_ns]
}

impl Plot for LatencyBars {
    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let all = self
            .systems
            .iter()
            .flat_map(|(_, latency)| percentiles(latency));
        let range = decades(all.map(|ns| ns as f64));
        let floor = range.start;
        let groups = self.systems.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT_FAMILY, 22))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(80)
            .build_cartesian_2d(0f64..groups, range.log_scale())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc("latency")
            .y_label_formatter(&|ns| nanoseconds(*ns as u64))
            .label_style((FONT_FAMILY, 15))
            .draw()?;

        let above = Pos::new(HPos::Center, VPos::Bottom);
        for (i, name) in PERCENTILES.iter().enumerate() {
            let color = PALETTE[i];
            let bars = self
                .systems
                .iter()
                .enumerate()
                .map(|(group, (_, latency))| {
                    let ns = percentiles(latency)[i].max(1) as f64;
                    let left = group as f64 + 0.14 + 0.24 * i as f64;
                    Rectangle::new([(left, floor), (left + 0.22, ns)], color.filled())
                });
            chart.draw_series(bars)?.label(*name).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled())
            });
            let labels = self
                .systems
                .iter()
                .enumerate()
                .map(|(group, (_, latency))| {
                    let ns = percentiles(latency)[i].max(1);
                    let style = TextStyle::from((FONT_FAMILY, 12)).pos(above);
                    let at = group as f64 + 0.25 + 0.24 * i as f64;
                    Text::new(nanoseconds(ns), (at, ns as f64 * 1.03), style)
                });
            chart.draw_series(labels)?;
        }
        let (_, bottom) = chart.backend_coord(&(0.0, floor));
        for (group, (name, _)) in self.systems.iter().enumerate() {
            let (x, _) = chart.backend_coord(&(group as f64 + 0.5, floor));
            let below = TextStyle::from((FONT_FAMILY, 16)).pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(name.clone(), (x, bottom + 8), below))?;
        }
        legend(&mut chart, SeriesLabelPosition::UpperLeft)
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::drawn;
    use super::*;

    #[test]
    fn systems_and_figures_are_on_the_plot() {
        let latency = |p50_ns| Latency {
            count: 1,
            mean_ns: p50_ns,
            p50_ns,
            p99_ns: p50_ns * 2,
            p999_ns: p50_ns * 4,
            max_ns: p50_ns * 9,
        };
        let mut bars = LatencyBars::new("GET, 1 KiB");
        bars.system("trefoil", latency(612))
            .system("memcached", latency(22_000));
        let (svg, ink) = drawn(&bars);
        for text in [
            "GET, 1 KiB",
            "trefoil",
            "memcached",
            "612 ns",
            "22.0 µs",
            "p99.9",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(ink > 0.05, "{ink}");
    }

    #[test]
    fn no_system_and_no_latency_still_draw() {
        drawn(&LatencyBars::new(""));
        drawn(LatencyBars::new("dead").system("a", Latency::default()));
    }
}
