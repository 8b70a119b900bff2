//! Statistics for Prometheus: [`METRICS`] lists every one of them, and what is
//! exported is made from that list.

use crate::reporter::MetricSource;
use crate::service::statistics;
use crate::state::State;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use trefoil_rpc::v1::{
    CertificateStats, MemberStats, ProcessStats, RecoveryStats, RepairStats, StatsResponse,
};
use trefoil_tls::CertStatus;

/// One metric. A counter's samples carry `_total` behind its name.
#[derive(Clone, Copy, Debug)]
pub struct MetricInfo {
    /// Name without `_total`.
    pub name: &'static str,
    /// Whether it only grows while the process lives.
    pub is_counter: bool,
    /// What it says.
    pub help: &'static str,
    /// Labels beside `cell`, and `backend` where there is one for each member.
    pub labels: &'static [&'static str],
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// One for the process; labels are fixed.
    Process(fn(&ProcessStats) -> Samples),
    /// One for each member.
    Member(fn(&MemberStats) -> Samples),
}

/// Values by the values of their labels.
type Samples = Vec<(Vec<String>, Value)>;

#[derive(Clone, Copy, Debug)]
enum Value {
    Count(u64),
    Seconds(f64),
}

fn one(value: u64) -> Samples {
    vec![(Vec::new(), Value::Count(value))]
}

fn by<const N: usize>(values: [(&str, u64); N]) -> Samples {
    let sample = |(label, value): (&str, u64)| (vec![label.to_owned()], Value::Count(value));
    values.map(sample).into()
}

const fn gauge(name: &'static str, help: &'static str, source: Source) -> MetricInfo {
    MetricInfo {
        name,
        is_counter: false,
        help,
        labels: &[],
        source,
    }
}

const fn counter(name: &'static str, help: &'static str, source: Source) -> MetricInfo {
    MetricInfo {
        is_counter: true,
        ..gauge(name, help, source)
    }
}

const fn labelled(info: MetricInfo, labels: &'static [&'static str]) -> MetricInfo {
    MetricInfo { labels, ..info }
}

use Source::{Member, Process};

/// Taken once: a start that moves with the clock would look like a restart.
fn start_time_s(process: &ProcessStats) -> f64 {
    static START: OnceLock<f64> = OnceLock::new();
    *START.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now.map_or(0, |now| now.as_millis() as u64);
        now_ms.saturating_sub(process.uptime_ms) as f64 / 1e3
    })
}

/// Of a backend that has lost nothing, zeros.
fn recovery(member: &MemberStats) -> RecoveryStats {
    member.recovery.clone().unwrap_or_default()
}

/// Of a backend that repairs nothing, zeros.
fn repair(member: &MemberStats) -> RepairStats {
    member.repair.clone().unwrap_or_default()
}

/// Names and helps of what every process says of its certificate.
const CERTIFICATE_LEFT: (&str, &str) = (
    "trefoil_certificate_left_seconds",
    "Until the certificate in use ends, where TLS is spoken; negative once it has",
);
const CERTIFICATE_REFUSED: (&str, &str) = (
    "trefoil_certificate_refused",
    "1 while the certificate's files were changed and cannot be used",
);

/// Exports how the certificate of a process is that is no backend.
pub fn encode_certificate(
    status: &CertStatus,
    cell: &str,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let labels = [("cell", cell)];
    let mut put = |(name, help), value: f64| {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(family.encode_family(&labels)?)
    };
    put(CERTIFICATE_LEFT, status.left_s as f64)?;
    put(CERTIFICATE_REFUSED, f64::from(u8::from(status.is_refused)))
}

/// Nothing where no TLS is spoken.
fn of_certificate(process: &ProcessStats, samples: fn(&CertificateStats) -> Samples) -> Samples {
    process
        .certificate
        .as_ref()
        .map(samples)
        .unwrap_or_default()
}

/// Every metric that a server exports.
#[rustfmt::skip]
pub const METRICS: [MetricInfo; 47] = [
    labelled(gauge("trefoil_build_info", "1, with the release that runs", Process(|_| {
        by([(env!("CARGO_PKG_VERSION"), 1)])
    })), &["version"]),
    gauge("trefoil_process_start_time_seconds", "When the process began to serve, since the Unix epoch", Process(|p| {
        vec![(Vec::new(), Value::Seconds(start_time_s(p)))]
    })),
    labelled(counter("trefoil_process_cpu_seconds", "CPU time of the process", Process(|p| {
        let seconds = |us: u64| Value::Seconds(us as f64 / 1e6);
        vec![
            (vec!["user".into()], seconds(p.cpu_user_us)),
            (vec!["system".into()], seconds(p.cpu_system_us)),
        ]
    })), &["mode"]),
    gauge("trefoil_process_resident_bytes", "Memory that the process holds, shared regions included",
        Process(|p| one(p.resident_bytes))),
    gauge("trefoil_process_memory_limit_bytes", "Bound on the process's memory", Process(|p| one(p.memory_limit_bytes))),
    gauge("trefoil_process_baseline_bytes", "Memory held before any store was filled", Process(|p| one(p.baseline_bytes))),
    gauge("trefoil_process_reserve_bytes", "Memory kept free for growth beside the stores", Process(|p| one(p.reserve_bytes))),
    gauge("trefoil_process_uptime_seconds", "Time since the start", Process(|p| {
        vec![(Vec::new(), Value::Seconds(p.uptime_ms as f64 / 1e3))]
    })),
    labelled(counter("trefoil_rpc_requests", "Data-plane calls through gRPC", Process(|p| by([
        ("mutate", p.rpc_mutations), ("lookup", p.rpc_lookups), ("touch", p.rpc_touches),
    ]))), &["method"]),
    counter("trefoil_lease_renewals", "Renewals of the lease that readers check", Process(|p| one(p.lease_renewals))),
    counter("trefoil_lease_renewals_late", "Renewals more than twice their period after the one before",
        Process(|p| one(p.lease_renewals_late))),
    labelled(gauge("trefoil_config_store_trouble", "1 while a configuration store on other machines does not answer, or is refused, or knows another process as this backend", Process(|p| by([
        ("away", p.config_store_away.into()), ("refused", p.config_store_refused.into()),
        ("usurped", (!p.registered_elsewhere.is_empty()).into()),
    ]))), &["kind"]),
    counter("trefoil_fabric_messages", "Messages through shared-memory rings", Process(|p| one(p.fabric_messages))),
    gauge("trefoil_fabric_clients", "Clients with message rings", Process(|p| one(p.fabric_clients))),
    gauge(CERTIFICATE_LEFT.0, CERTIFICATE_LEFT.1,
        Process(|p| of_certificate(p, |c| vec![(Vec::new(), Value::Seconds(c.left_s as f64))]))),
    gauge(CERTIFICATE_REFUSED.0, CERTIFICATE_REFUSED.1,
        Process(|p| of_certificate(p, |c| one(c.refused.into())))),
    labelled(counter("trefoil_tls_handshakes", "TLS handshakes with clients over TCP", Process(|p| {
        of_certificate(p, |c| by([("done", c.handshakes), ("failed", c.handshakes_failed)]))
    })), &["result"]),
    gauge("trefoil_lease_left_seconds", "What is left of the lease; readers stop at 0", Member(|m| {
        vec![(Vec::new(), Value::Seconds(m.lease_left_ms as f64 / 1e3))]
    })),
    gauge("trefoil_config_id", "Cell configuration that is served", Member(|m| one(m.config_id.into()))),
    gauge("trefoil_epoch", "The shard's epoch", Member(|m| one(m.epoch.into()))),
    gauge("trefoil_partitions", "Partitions of the backend", Member(|m| one(m.partition_count.into()))),
    gauge("trefoil_items", "Copies of items at the backend: at R=3.2 an item has three", Member(|m| one(m.items))),
    gauge("trefoil_entry_bytes", "Data entries: keys, values and their heads", Member(|m| one(m.entry_bytes))),
    gauge("trefoil_store_limit_bytes", "Share of the memory bound", Member(|m| one(m.memory_limit_bytes))),
    labelled(gauge("trefoil_store_resident_bytes", "Memory of the store by what it is for", Member(|m| {
        let r = m.resident.unwrap_or_default();
        by([("data", r.data), ("index", r.index), ("private", r.private), ("rings", r.rings)])
    })), &["kind"]),
    labelled(counter("trefoil_evictions", "Items that made room or expired", Member(|m| {
        let e = m.evictions.unwrap_or_default();
        by([
            ("capacity", e.capacity), ("associativity", e.associativity), ("expired", e.expired), ("flushed", e.flushed),
        ])
    })), &["cause"]),
    labelled(counter("trefoil_mutations", "Mutations executed", Member(|m| {
        m.mutations.iter().map(|c| (vec![c.kind.clone(), c.outcome.clone()], Value::Count(c.count))).collect()
    })), &["kind", "outcome"]),
    labelled(counter("trefoil_lookups", "Lookups by message; one-sided reads are not seen here", Member(|m| {
        by([("hit", m.lookup_hits), ("miss", m.lookup_misses)])
    })), &["result"]),
    counter("trefoil_touches", "Accesses that clients reported", Member(|m| one(m.touches))),
    gauge("trefoil_side_table_items", "Items reached by message only", Member(|m| one(m.side_table_items))),
    gauge("trefoil_tombstones", "Erased keys remembered", Member(|m| one(m.tombstones))),
    counter("trefoil_index_reshapes", "Indexes replaced by larger or smaller ones", Member(|m| one(m.index_reshapes))),
    gauge("trefoil_recovery_shards_left", "Shards that do not vote yet, after a restart without the cell", Member(|m| {
        one(recovery(m).shards_left.into())
    })),
    gauge("trefoil_recovery_shards_lost", "Shards that came back empty: two of three replicas had lost them", Member(|m| {
        one(recovery(m).shards_lost.into())
    })),
    counter("trefoil_recovery_items", "Values that a restarted backend learned from the others", Member(|m| {
        one(recovery(m).items + recovery(m).repaired)
    })),
    counter("trefoil_recovery_bytes", "Bytes of their data entries", Member(|m| one(recovery(m).bytes))),
    counter("trefoil_recovery_skipped", "Values that a full backend did not copy: they would have been the first to be evicted", Member(|m| one(recovery(m).skipped))),
    gauge("trefoil_resize_backends", "Backends that the cell is being resized to; 0 if it is not", Member(|m| {
        one(m.resize.as_ref().map_or(0, |resize| resize.backends.into()))
    })),
    gauge("trefoil_resize_permille", "What the new processes that copy from this backend have copied, in thousandths", Member(|m| {
        let takers = m.resize.as_ref().map_or(&[][..], |resize| &resize.takers);
        let sum: u64 = takers.iter().map(|taker| u64::from(taker.permille)).sum();
        one(sum / takers.len().max(1) as u64)
    })),
    counter("trefoil_copied_bytes", "Bytes of answers to those who copied from the backend: others that recovered, a successor", Member(|m| {
        one(m.copied_bytes)
    })),
    gauge("trefoil_repair_backlog", "Keys on which replicas were seen to differ, and that wait to be looked at again or repaired", Member(|m| {
        one(repair(m).backlog)
    })),
    labelled(counter("trefoil_repair_scans", "Scans of the shard that the backend repairs", Member(|m| {
        let r = repair(m);
        by([("through", r.scans), ("interrupted", r.interrupted)])
    })), &["result"]),
    labelled(counter("trefoil_repair_keys", "Keys on which replicas differed, by what was done", Member(|m| {
        let r = repair(m);
        by([
            ("installed", r.installed), ("erased", r.erased), ("renewed", r.renewed), ("evicted", r.evicted),
            ("full", r.full), ("left", r.left), ("in_use", r.changed),
        ])
    })), &["outcome"]),
    counter("trefoil_repair_bytes", "Bytes that scans and repairs have moved between backends", Member(|m| one(repair(m).bytes))),
    labelled(counter("trefoil_repair_named", "Keys that clients have named because replicas differed", Member(|m| {
        let r = repair(m);
        by([("taken", r.named), ("forgotten", r.forgotten)])
    })), &["result"]),
    gauge("trefoil_repair_unrepaired", "Keys that the last scan found dirty or without a quorum, and could not repair", Member(|m| {
        one(repair(m).scan_unrepaired)
    })),
    counter("trefoil_slab_moves", "Pages emptied to serve another size", Member(|m| one(m.slab_moves))),
];

/// All metrics as text.
pub(crate) fn render(state: &Arc<State>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot {
        cell: state.config().cell.clone(),
        stats: statistics(state),
    }));
    for source in state.metric_sources() {
        registry.register_collector(Box::new(Beside {
            cell: state.config().cell.clone(),
            source,
        }));
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// What another part of the process adds.
#[derive(Debug)]
struct Beside {
    cell: String,
    source: Arc<dyn MetricSource>,
}

impl Collector for Beside {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.source.encode(&self.cell, &mut encoder)
    }
}

/// The statistics of one moment.
#[derive(Debug)]
struct Snapshot {
    cell: String,
    stats: StatsResponse,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in &METRICS {
            let kind = match metric.is_counter {
                true => MetricType::Counter,
                false => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            match metric.source {
                Process(samples) => {
                    let samples = self.stats.process.as_ref().map(samples);
                    self.put(&mut family, metric, None, samples.unwrap_or_default())?;
                }
                Member(samples) => {
                    for member in &self.stats.members {
                        self.put(&mut family, metric, Some(member.backend), samples(member))?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Snapshot {
    fn put(
        &self,
        family: &mut MetricEncoder<'_>,
        metric: &MetricInfo,
        backend: Option<u32>,
        samples: Samples,
    ) -> Result<(), fmt::Error> {
        for (values, value) in samples {
            let mut labels = vec![("cell", self.cell.clone())];
            labels.extend(backend.map(|number| ("backend", number.to_string())));
            labels.extend(metric.labels.iter().copied().zip(values));
            let sample = family.encode_family(&labels)?;
            match (metric.is_counter, value) {
                (true, Value::Count(count)) => ConstCounter::new(count).encode(sample)?,
                (true, Value::Seconds(seconds)) => ConstCounter::new(seconds).encode(sample)?,
                (false, Value::Count(count)) => ConstGauge::new(count as i64).encode(sample)?,
                (false, Value::Seconds(seconds)) => ConstGauge::new(seconds).encode(sample)?,
            }
        }
        Ok(())
    }
}
