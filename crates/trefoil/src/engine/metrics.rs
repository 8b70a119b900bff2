//! An engine's counters for Prometheus: each thread that reads is one `engine`, by its
//! number; those that let clients in and map backends are `set-up`.

use super::Service;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use trefoil_backend::MetricSource;
use trefoil_softnic::Count;

/// Of an engine, as long as it runs: nothing is told of one that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Weak<Service>);

impl Metrics {
    pub(crate) fn of(service: &Arc<Service>) -> Self {
        Metrics(Arc::downgrade(service))
    }
}

impl MetricSource for Metrics {
    fn encode(&self, cell: &str, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(service) = self.0.upgrade() else {
            return Ok(());
        };
        let engine = service.engine();
        let mut counted: BTreeMap<&str, Vec<(String, Count)>> = BTreeMap::new();
        let set_up = engine.counted_by_set_up();
        for count in set_up.of_set_up().filter(|count| count.name != "pid") {
            let of = counted.entry(count.name).or_default();
            of.push(("set-up".to_owned(), count));
        }
        for (number, own) in engine.counted_by_engine().enumerate() {
            for count in own.of_engine() {
                let of = counted.entry(count.name).or_default();
                of.push((number.to_string(), count));
            }
        }
        for (name, by_engine) in &counted {
            let Some((_, first)) = by_engine.first() else {
                continue;
            };
            let kind = match first.is_gauge {
                true => MetricType::Gauge,
                false => MetricType::Counter,
            };
            // Prometheus' names say "total" once.
            let name = format!("trefoil_engine_{}", name.trim_end_matches("_total"));
            let help = first.meaning.trim_end_matches('.');
            let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
            for (engine, Count { value, .. }) in by_engine {
                let labels = [("cell", cell), ("engine", engine.as_str())];
                let sample = family.encode_family(&labels)?;
                match first.is_gauge {
                    true => ConstGauge::new(*value as i64).encode(sample)?,
                    false => ConstCounter::new(*value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

/// The same as the whole page of a process.
pub(super) fn text(metrics: &Metrics, cell: &str) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page {
        cell: cell.to_owned(),
        metrics: metrics.clone(),
    }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Page {
    cell: String,
    metrics: Metrics,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.metrics.encode(&self.cell, &mut encoder)
    }
}
