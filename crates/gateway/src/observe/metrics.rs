//! Prometheus: [`METRICS`] lists every metric of a front door, and what is
//! exported is made from that list.

use super::block::{COMMANDS, ENDINGS, FAULTS, Sums};
use super::histogram::Durations;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use trefoil_gateway_core::world::Settings;

/// Bounds of the exported histogram: every power of two of nanoseconds from
/// half a microsecond to a second. The counts are exact at those.
const BOUNDS_NS: [u64; 22] = {
    let mut bounds = [0; 22];
    let mut index = 0;
    while index < bounds.len() {
        bounds[index] = 1 << (9 + index);
        index += 1;
    }
    bounds
};

/// One metric. A counter's samples carry `_total` behind its name, a
/// histogram's `_bucket`, `_sum` and `_count`.
#[derive(Clone, Copy, Debug)]
pub struct MetricInfo {
    /// Name, without what its samples carry behind it.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Labels beside `cell`.
    pub labels: &'static [&'static str],
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Counter(fn(&Sums) -> Samples),
    Gauge(fn(&Sums, &Settings) -> u64),
    /// A gauge of nanoseconds, exported in seconds.
    Seconds(fn(&Sums) -> u64),
    /// How long something took.
    Histogram(fn(&Sums) -> &Durations),
    /// How long commands took, by command.
    Durations,
}

/// Values by the values of their labels.
type Samples = Vec<(Vec<&'static str>, u64)>;

fn by<const N: usize>(values: [(&'static str, u64); N]) -> Samples {
    values.map(|(label, value)| (vec![label], value)).into()
}

const fn metric(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    source: Source,
) -> MetricInfo {
    MetricInfo {
        name,
        help,
        labels,
        source,
    }
}

use Source::{Counter, Gauge, Histogram, Seconds};

/// Every metric of a front door.
#[rustfmt::skip]
pub const METRICS: [MetricInfo; 15] = [
    metric("trefoil_gateway_commands", "Commands on items", &["command", "ending"], Counter(|sums| {
        let pairs = COMMANDS.iter().flat_map(|command| ENDINGS.iter().map(move |ending| (command, ending)));
        pairs.map(|(c, e)| (vec![c.1, e.1], sums.of(c.0, e.0))).collect()
    })),
    metric("trefoil_gateway_command_seconds", "Time that commands took, waiting for the event loop and for the cell included, without the network", &["command"], Source::Durations),
    metric("trefoil_gateway_wait_seconds", "Time from when an event loop learnt that a connection is ready until its turn", &[],
        Histogram(|sums| &sums.waited)),
    metric("trefoil_gateway_round_seconds", "Rounds of event loops: what becomes ready meanwhile is not noticed", &[],
        Histogram(|sums| &sums.rounds)),
    metric("trefoil_gateway_round_seconds_max", "The longest round of an event loop", &[], Seconds(|sums| sums.round_ns_max)),
    metric("trefoil_gateway_parked", "Commands that wait for the cell while others are served", &[],
        Gauge(|sums, _| sums.parked.saturating_sub(sums.resumed))),
    metric("trefoil_gateway_slow_commands", "Commands beyond the slow log's threshold", &[],
        Counter(|sums| vec![(Vec::new(), sums.slow)])),
    metric("trefoil_gateway_faults", "Operations on the cell without a result", &["kind"], Counter(|sums| {
        FAULTS.iter().zip(&sums.faults).map(|(kind, count)| (vec![*kind], *count)).collect()
    })),
    metric("trefoil_gateway_commits", "SETs that were to be acknowledged before they are executed (--commit acknowledged): those that were, and those that were executed instead", &["by"], Counter(|sums| by([
        ("acknowledged", sums.commits.acknowledged), ("executed", sums.commits.executed),
    ]))),
    metric("trefoil_gateway_bytes", "Bytes from and to clients", &["direction"], Counter(|sums| by([
        ("read", sums.bytes_read), ("written", sums.bytes_written),
    ]))),
    metric("trefoil_gateway_connections", "Connections open", &[], Gauge(|sums, _| sums.connections())),
    metric("trefoil_gateway_connections_limit", "Connections that may be open", &[], Gauge(|_, settings| settings.connections_max as u64)),
    metric("trefoil_gateway_connection_events", "What has become of connections", &["event"], Counter(|sums| by([
        ("opened", sums.opened), ("refused", sums.refused),
        ("timed_out", sums.timed_out), ("overflowed", sums.overflowed),
    ]))),
    metric("trefoil_gateway_authentications", "Names and passwords that clients gave", &["result"], Counter(|sums| by([
        ("known", sums.authenticated), ("unknown", sums.unauthenticated),
    ]))),
    metric("trefoil_gateway_threads", "Event loops", &[], Gauge(|_, settings| settings.thread_count as u64)),
];

/// Adds all of them.
pub(super) fn encode(
    sums: &Sums,
    settings: &Settings,
    cell: &str,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    for metric in &METRICS {
        let kind = match metric.source {
            Counter(_) => MetricType::Counter,
            Gauge(_) | Seconds(_) => MetricType::Gauge,
            Histogram(_) | Source::Durations => MetricType::Histogram,
        };
        let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
        match metric.source {
            Counter(samples) => {
                for (values, value) in samples(sums) {
                    let labels = labels(metric, cell, values);
                    ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
                }
            }
            Gauge(value) => {
                let labels = labels(metric, cell, Vec::new());
                let value = value(sums, settings) as i64;
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
            Seconds(value) => {
                let labels = labels(metric, cell, Vec::new());
                let seconds = value(sums) as f64 / 1e9;
                ConstGauge::new(seconds).encode(family.encode_family(&labels)?)?;
            }
            Histogram(took) => {
                let labels = labels(metric, cell, Vec::new());
                histogram(took(sums), family.encode_family(&labels)?)?;
            }
            Source::Durations => {
                for ((_, command), took) in COMMANDS.iter().zip(&sums.took) {
                    let labels = labels(metric, cell, vec![command]);
                    histogram(took, family.encode_family(&labels)?)?;
                }
            }
        }
    }
    Ok(())
}

fn labels<'a>(
    metric: &MetricInfo,
    cell: &'a str,
    values: Vec<&'a str>,
) -> Vec<(&'static str, &'a str)> {
    let mut labels = vec![("cell", cell)];
    labels.extend(metric.labels.iter().copied().zip(values));
    labels
}

fn histogram(took: &Durations, mut sample: MetricEncoder<'_>) -> fmt::Result {
    let counts = took.between(&BOUNDS_NS);
    let bounds = BOUNDS_NS.iter().map(|ns| *ns as f64 / 1e9);
    let buckets: Vec<(f64, u64)> = bounds.chain([f64::INFINITY]).zip(counts).collect();
    let sum_s = took.sum_ns as f64 / 1e9;
    // None of the samples carries an example.
    sample.encode_histogram::<NoLabelSet>(sum_s, took.count(), &buckets, None)
}
