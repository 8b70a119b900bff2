//! A relay for Prometheus: [`METRICS`] lists every metric; [`SAMPLER_METRICS`] those of
//! a [`Sampler`](crate::Sampler).

use crate::hub::{Hub, HubStatus};
use crate::notify::{NotifyStatus, NotifyWatch};
use crate::relay::{RelayStatus, RelayWatch};
use hdrhistogram::Histogram;
use std::sync::Arc;
use trefoil_endpoint::{MetricInfo, Process, Samples};

const NONE: &[&str] = &[];

const BUILD: MetricInfo = MetricInfo::gauge(
    "trefoil_relay_build_info",
    &["version"],
    "1, with the release that runs",
);
const CONNECTED: MetricInfo = MetricInfo::gauge(
    "trefoil_relay_connected",
    NONE,
    "1 while it follows the database's stream of changes",
);
const POSITION: MetricInfo = MetricInfo::gauge(
    "trefoil_relay_position_bytes",
    NONE,
    "Place in the database's log up to which everything was told",
);
const ACKNOWLEDGED: MetricInfo = MetricInfo::gauge(
    "trefoil_relay_acknowledged_bytes",
    NONE,
    "Place up to which the database may forget: what lies before is on its disk",
);
const BEGUN: MetricInfo = MetricInfo::counter(
    "trefoil_relay_streams_begun",
    NONE,
    "Times that the stream began",
);
const TRANSACTIONS: MetricInfo =
    MetricInfo::counter("trefoil_relay_transactions", NONE, "Transactions told");
const ROWS: MetricInfo = MetricInfo::counter(
    "trefoil_relay_rows",
    &["mapped"],
    "Rows that changed, by whether their table has a --map",
);
const NOTIFICATIONS: MetricInfo = MetricInfo::counter(
    "trefoil_relay_notifications",
    NONE,
    "With --notify: notifications of changes told",
);
const GAPS: MetricInfo = MetricInfo::counter(
    "trefoil_relay_gaps",
    NONE,
    "Gaps that changes made: a truncate, say",
);
const DELAY: MetricInfo = MetricInfo::gauge(
    "trefoil_relay_delay_seconds",
    &["quantile"],
    "Time from the beginning of a heartbeat in the database until it was told, since the start: what delivery takes at the most",
);
const SUBSCRIBERS: MetricInfo =
    MetricInfo::gauge("trefoil_relay_subscribers", NONE, "Subscribers now");
const LATE: MetricInfo = MetricInfo::counter(
    "trefoil_relay_subscribers_late",
    &["why"],
    "Subscribers that got a gap: slower than the log is long (overrun), or back too late (forgotten); and those that were dropped because they neither pinged nor acknowledged (silent)",
);
const LOG: MetricInfo = MetricInfo::gauge(
    "trefoil_relay_log_bytes",
    NONE,
    "Memory of the last changes, for subscribers who are behind or away",
);
const LOG_MAX: MetricInfo = MetricInfo::gauge(
    "trefoil_relay_log_limit_bytes",
    NONE,
    "Its bound (--memory)",
);

/// Every metric of a relay.
pub const METRICS: [MetricInfo; 14] = [
    BUILD,
    CONNECTED,
    POSITION,
    ACKNOWLEDGED,
    BEGUN,
    TRANSACTIONS,
    ROWS,
    NOTIFICATIONS,
    GAPS,
    DELAY,
    SUBSCRIBERS,
    LATE,
    LOG,
    LOG_MAX,
];

pub(crate) const COMPARISONS: MetricInfo = MetricInfo::counter(
    "trefoil_sampler_comparisons",
    &["name", "found"],
    "Comparisons of what is kept with the database, by what they found: the same; nothing that is kept any more (gone); a row that changed meanwhile (changing); not told within the bound (late); a database that cannot be read (failed); something else, though everything had been told (stale), which is a broken promise",
);
pub(crate) const STALENESS: MetricInfo = MetricInfo::gauge(
    "trefoil_sampler_staleness_seconds",
    &["name", "quantile"],
    "How old what is kept may have been whenever the sampler looked, since the start",
);

/// Every metric of a sampler.
pub const SAMPLER_METRICS: [MetricInfo; 2] = [COMPARISONS, STALENESS];

/// Quantiles that are told, with their names.
pub(crate) const QUANTILES: [(&str, f64); 4] =
    [("0.5", 0.5), ("0.99", 0.99), ("0.999", 0.999), ("1", 1.0)];

/// What follows the database.
pub(crate) enum Followed {
    Log(RelayWatch),
    Notify(NotifyWatch),
}

/// A relay and its subscribers, as they tell of themselves.
pub(crate) struct RelayProcess {
    followed: Followed,
    hub: Hub,
}

impl RelayProcess {
    pub(crate) fn shared(followed: Followed, hub: Hub) -> Arc<dyn Process> {
        Arc::new(RelayProcess { followed, hub })
    }
}

impl Process for RelayProcess {
    fn collect(&self, samples: &mut Samples) -> std::fmt::Result {
        samples.put(&BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        match &self.followed {
            Followed::Log(relay) => {
                of_relay(&relay.status(), samples);
                of_delays(&relay.delays(), samples);
            }
            Followed::Notify(relay) => {
                of_notify(&relay.status(), samples);
                of_delays(&relay.delays(), samples);
            }
        }
        of_hub(&self.hub.status(), samples);
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        let (connected, trouble) = match &self.followed {
            Followed::Log(relay) => {
                let status = relay.status();
                (status.connected, status.trouble)
            }
            Followed::Notify(relay) => {
                let status = relay.status();
                (status.connected, status.trouble)
            }
        };
        match (connected, trouble) {
            (true, _) => Ok(()),
            (false, None) => Err("it does not follow the database yet".to_owned()),
            (false, Some(why)) => Err(format!("it does not follow the database: {why}")),
        }
    }
}

fn of_delays(delays: &Histogram<u64>, samples: &mut Samples) {
    if delays.is_empty() {
        return;
    }
    for (name, quantile) in QUANTILES {
        let seconds = delays.value_at_quantile(quantile) as f64 / 1e6;
        samples.put(&DELAY, &[name], seconds);
    }
}

/// What the database acknowledges, transactions and rows have no meaning here.
fn of_notify(status: &NotifyStatus, samples: &mut Samples) {
    let mut put = |info, value: f64| samples.put(info, &[], value);
    put(&CONNECTED, f64::from(u8::from(status.connected)));
    put(&POSITION, status.position as f64);
    put(&BEGUN, status.begun as f64);
    put(&NOTIFICATIONS, status.notifications as f64);
    put(&GAPS, status.gaps as f64);
}

fn of_relay(status: &RelayStatus, samples: &mut Samples) {
    let mut put = |info, value: f64| samples.put(info, &[], value);
    put(&CONNECTED, f64::from(u8::from(status.connected)));
    put(&POSITION, status.position as f64);
    put(&ACKNOWLEDGED, status.acknowledged as f64);
    put(&BEGUN, status.begun as f64);
    put(&TRANSACTIONS, status.changes.transactions as f64);
    put(&GAPS, status.changes.gaps as f64);
    samples.put(&ROWS, &["yes"], status.changes.rows as f64);
    samples.put(&ROWS, &["no"], status.changes.unmapped as f64);
}

fn of_hub(status: &HubStatus, samples: &mut Samples) {
    samples.put(&SUBSCRIBERS, &[], status.subscribers as f64);
    samples.put(&LATE, &["overrun"], status.overruns as f64);
    samples.put(&LATE, &["forgotten"], status.forgotten as f64);
    samples.put(&LATE, &["silent"], status.silent as f64);
    samples.put(&LOG, &[], status.log_bytes as f64);
    samples.put(&LOG_MAX, &[], status.log_bytes_max as f64);
}
