//! Metrics of several parts of a process as one page: each metric is described
//! once, however many parts have it.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;

/// What kind of a figure a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows while the process lives. Its samples carry `_total` behind
    /// the name.
    Counter,
    /// It comes and goes.
    Gauge,
}

/// A metric of a part of a process.
#[derive(Clone, Copy, Debug)]
pub struct MetricInfo {
    /// Name, without `_total`.
    pub name: &'static str,
    /// What kind of a figure it is.
    pub kind: Kind,
    /// What it says.
    pub help: &'static str,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
}

impl MetricInfo {
    /// A counter.
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        let kind = Kind::Counter;
        MetricInfo {
            name,
            kind,
            help,
            labels,
        }
    }

    /// A gauge.
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        let kind = Kind::Gauge;
        MetricInfo {
            name,
            kind,
            help,
            labels,
        }
    }

    /// The name that its samples have.
    pub fn sample_name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            Kind::Gauge => self.name.to_owned(),
        }
    }
}

/// Figures by metric.
#[derive(Debug, Default)]
pub struct Samples {
    families: BTreeMap<&'static str, Family>,
}

#[derive(Debug)]
struct Family {
    info: MetricInfo,
    /// Values of labels, and the figure.
    samples: Vec<(Vec<String>, f64)>,
}

impl Samples {
    /// Adds a figure, with a value for each of the metric's labels.
    pub fn put(&mut self, info: &MetricInfo, labels: &[&str], value: f64) {
        debug_assert_eq!(info.labels.len(), labels.len(), "{}", info.name);
        let family = self.families.entry(info.name).or_insert_with(|| Family {
            info: *info,
            samples: Vec::new(),
        });
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        family.samples.push((labels, value));
    }

    /// The page, in the OpenMetrics format.
    ///
    /// # Errors
    /// None that is known of.
    pub fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.families.values() {
            let info = &family.info;
            let kind = match info.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(info.name, info.help, None, kind)?;
            for (labels, value) in &family.samples {
                encode_one(&mut metric, info, labels, *value)?;
            }
        }
        Ok(())
    }
}

fn encode_one(
    metric: &mut MetricEncoder<'_>,
    info: &MetricInfo,
    values: &[String],
    value: f64,
) -> fmt::Result {
    let values = values.iter().map(String::as_str);
    let labels: Vec<(&str, &str)> = info.labels.iter().copied().zip(values).collect();
    let sample = metric.encode_family(&labels)?;
    match info.kind {
        Kind::Counter => ConstCounter::new(value).encode(sample),
        Kind::Gauge => ConstGauge::new(value).encode(sample),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition;

    const MOVES: MetricInfo = MetricInfo::counter("moves", &["corpus"], "Moves");
    const BYTES: MetricInfo = MetricInfo::gauge("held_bytes", &["corpus", "server"], "Bytes");

    #[test]
    fn a_metric_of_several_parts_is_described_once() {
        let mut samples = Samples::default();
        samples.put(&MOVES, &["a"], 3.0);
        samples.put(&BYTES, &["a", "1"], 0.5);
        samples.put(&MOVES, &["b\"\\\n"], 4.0);
        let (_, text) = exposition("", samples.text().unwrap());
        assert_eq!(
            text,
            "\
# HELP held_bytes Bytes
# TYPE held_bytes gauge
held_bytes{corpus=\"a\",server=\"1\"} 0.5
# HELP moves_total Moves
# TYPE moves_total counter
moves_total{corpus=\"a\"} 3.0
moves_total{corpus=\"b\\\"\\\\\\n\"} 4.0
"
        );
        assert_eq!(MOVES.sample_name(), "moves_total");
    }
}
