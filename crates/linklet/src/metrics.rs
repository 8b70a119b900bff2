//! What a linklet is like at the moment: for Prometheus, and for the assigner,
//! which shows it to people. [`METRICS`] lists every metric, and the page is made
//! from that list.

use crate::linklet::{Inner, Linklet};
use crate::stats::Stats;
use std::time::Duration;
use trefoil_coordination::{BootInstant, LastLoss, Vitals};
use trefoil_endpoint::{MetricInfo, Samples, exposition};
use trefoil_sharder::AssignmentVersion;

/// A linklet at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    corpus: String,
    stats: Stats,
    copies_min: usize,
    staleness: Option<Duration>,
    last_loss: Option<(Duration, String)>,
    version: Option<AssignmentVersion>,
    /// Slices that it owns, and those of them that have too few servers.
    owned: Option<(u64, u64)>,
    /// `None` while it is no member.
    member: Option<Member>,
}

#[derive(Debug)]
struct Member {
    lease: Duration,
    unconfirmed_bytes: usize,
    detours: usize,
    is_settled: bool,
    is_leaving: bool,
}

impl Snapshot {
    pub(crate) fn of<V: Send + Sync + 'static>(inner: &Inner<V>) -> Self {
        let store = &inner.store;
        let copies_min = inner.config.servers_wanted();
        // One lock after the other.
        let member = inner.life().as_ref().map(|life| Member {
            lease: life
                .session
                .lease_end()
                .saturating_duration_since(BootInstant::now()),
            unconfirmed_bytes: life.core().unconfirmed_bytes(),
            detours: life.detours(),
            is_settled: life.settled,
            is_leaving: life.is_leaving(),
        });
        let last_loss = store.last_loss().clone();
        Snapshot {
            corpus: inner.corpus.clone(),
            stats: store.stats(),
            copies_min,
            staleness: store.fresh.staleness(),
            last_loss: last_loss.map(|(at, what)| (store.clock().saturating_sub(at), what)),
            version: store.facts.version(),
            owned: owned(inner, copies_min),
            member,
        }
    }

    /// What the assigner is told.
    pub(crate) fn vitals(&self) -> Vitals {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let member = self.member.as_ref();
        let stats = &self.stats;
        Vitals {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            settled: member.is_some_and(|member| member.is_settled),
            entries: stats.entries,
            bytes: stats.bytes,
            slices_short: self.owned.map_or(0, |(_, short)| short),
            unconfirmed_bytes: member.map_or(0, |member| member.unconfirmed_bytes as u64),
            received: stats.received,
            sent: stats.sent,
            losses: stats.losses,
            last_loss: self.last_loss.as_ref().map(|(ago, what)| LastLoss {
                ago_ms: ms(*ago),
                what: what.clone(),
            }),
            copies_refused: stats.copies_refused,
            moves_refused: stats.moves_refused,
            commits_refused: stats.commits_refused,
            commits_indeterminate: stats.commits_indeterminate,
            staleness_ms: self.staleness.map(ms),
        }
    }

    pub(crate) fn collect(&self, samples: &mut Samples) {
        samples.put(&BUILD, &[&self.corpus, env!("CARGO_PKG_VERSION")], 1.0);
        for metric in &TABLE {
            if let Some(value) = (metric.value)(self) {
                samples.put(&metric.info, &[&self.corpus], value);
            }
        }
    }
}

fn owned<V>(inner: &Inner<V>, copies_min: usize) -> Option<(u64, u64)>
where
    V: Send + Sync + 'static,
{
    let facts = &inner.store.facts;
    let (me, view) = (facts.server()?, facts.view()?);
    let view = view.borrow();
    let mine = view.assignment.slices().iter();
    let mine = mine.filter(|slice| slice.servers.first() == Some(&me));
    Some(mine.fold((0, 0), |(owned, short), slice| {
        let alive = slice.servers.iter();
        let alive = alive.filter(|id| view.servers.contains_key(id)).count();
        (owned + 1, short + u64::from(alive < copies_min))
    }))
}

struct Metric {
    info: MetricInfo,
    /// `None` while it is not known: then it is left out.
    value: fn(&Snapshot) -> Option<f64>,
}

const CORPUS: &[&str] = &["corpus"];

const fn gauge(
    name: &'static str,
    value: fn(&Snapshot) -> Option<f64>,
    help: &'static str,
) -> Metric {
    let info = MetricInfo::gauge(name, CORPUS, help);
    Metric { info, value }
}

const fn counter(
    name: &'static str,
    value: fn(&Snapshot) -> Option<f64>,
    help: &'static str,
) -> Metric {
    let info = MetricInfo::counter(name, CORPUS, help);
    Metric { info, value }
}

/// What is always known.
macro_rules! of_stats {
    ($field:ident) => {
        |s| Some(s.stats.$field as f64)
    };
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

const BUILD: MetricInfo = MetricInfo::gauge(
    "trefoil_linklet_build_info",
    &["corpus", "version"],
    "1, with the release of the library",
);

#[rustfmt::skip]
const TABLE: [Metric; 56] = [
    gauge("trefoil_linklet_member", |s| Some(flag(s.member.is_some())), "1 while the server is a member of its corpus"),
    gauge("trefoil_linklet_settled", |s| s.member.as_ref().map(|m| flag(m.is_settled)), "1 while everything that is assigned to it is there"),
    gauge("trefoil_linklet_draining", |s| s.member.as_ref().map(|m| flag(m.is_leaving)), "1 once it gives everything away"),
    gauge("trefoil_linklet_lease_seconds", |s| s.member.as_ref().map(|m| m.lease.as_secs_f64()), "What is left of its lease"),
    gauge("trefoil_linklet_incarnation", |s| s.version.map(|v| v.incarnation as f64), "Incarnation of the map that it goes by"),
    gauge("trefoil_linklet_generation", |s| s.version.map(|v| v.generation as f64), "Generation of the map that it goes by"),
    gauge("trefoil_linklet_slices_owned", |s| s.owned.map(|(owned, _)| owned as f64), "Slices that it owns"),
    gauge("trefoil_linklet_slices_short", |s| s.owned.map(|(_, short)| short as f64), "Of these, those with fewer servers than the mode of replication needs"),
    gauge("trefoil_linklet_copies_min", |s| Some(s.copies_min as f64), "Servers that each key is to have"),
    gauge("trefoil_linklet_entries", of_stats!(entries), "Values, copies for other servers included"),
    gauge("trefoil_linklet_bytes", of_stats!(bytes), "Bytes that they count as"),
    gauge("trefoil_linklet_bytes_max", of_stats!(bytes_max), "Bound of these bytes (Builder::memory)"),
    gauge("trefoil_linklet_spilled", of_stats!(spilled), "Of the values, those that are on disk alone (Builder::spill)"),
    gauge("trefoil_linklet_spill_bytes", of_stats!(spill_bytes), "Bytes on disk of these"),
    gauge("trefoil_linklet_spill_disk_bytes", of_stats!(spill_disk_bytes), "Bytes of all files of spilled values"),
    gauge("trefoil_linklet_spill_bytes_max", of_stats!(spill_bytes_max), "Bound of these bytes; 0 if nothing is spilled"),
    gauge("trefoil_linklet_spill_segments", of_stats!(spill_segments), "Files of spilled values"),
    gauge("trefoil_linklet_loading", of_stats!(loading), "Loads under way"),
    gauge("trefoil_linklet_unconfirmed_bytes", |s| s.member.as_ref().map(|m| m.unconfirmed_bytes as f64), "Bytes sent to other servers and not confirmed yet"),
    gauge("trefoil_linklet_detours", |s| s.member.as_ref().map(|m| m.detours as f64), "Servers that it reaches through others only, though they are alive"),
    gauge("trefoil_linklet_staleness_seconds", |s| s.staleness.map(|age| age.as_secs_f64()), "How old what is kept of a database may be; absent while nobody tells of its changes"),
    counter("trefoil_linklet_hits", of_stats!(hits), "Gets with a loader that found the value in memory"),
    counter("trefoil_linklet_misses", of_stats!(misses), "Gets with a loader that had to load, or to wait for a load"),
    counter("trefoil_linklet_loads", of_stats!(loads), "Runs of the loader"),
    counter("trefoil_linklet_load_seconds", |s| Some(s.stats.load_us as f64 / 1e6), "Time that they took"),
    counter("trefoil_linklet_load_failures", of_stats!(load_failures), "Runs of the loader that failed"),
    counter("trefoil_linklet_loads_overtaken", of_stats!(loads_overtaken), "Loaded values that a change overtook before they could be stored"),
    counter("trefoil_linklet_evictions", of_stats!(evictions), "Values that had to make room"),
    counter("trefoil_linklet_ended", of_stats!(ended), "Values that have ended by their own account"),
    counter("trefoil_linklet_idled", of_stats!(idled), "Values that nobody has used for long"),
    counter("trefoil_linklet_invalidations", of_stats!(invalidations), "Values removed because their database rows changed"),
    counter("trefoil_linklet_asked", of_stats!(asked), "Requests that had to ask the protocol: their keys were being moved"),
    counter("trefoil_linklet_redirects", of_stats!(redirects), "Requests sent elsewhere"),
    counter("trefoil_linklet_received", of_stats!(received), "Values that came from other servers"),
    counter("trefoil_linklet_sent", of_stats!(sent), "Values marshalled for other servers"),
    counter("trefoil_linklet_slices_gained", of_stats!(slices_gained), "Slices that have become this server's"),
    counter("trefoil_linklet_slices_lost", of_stats!(slices_lost), "Slices that are not this server's any more, most of them moved"),
    counter("trefoil_linklet_copies_refused", of_stats!(copies_refused), "Copies that another server could not store"),
    counter("trefoil_linklet_moves_refused", of_stats!(moves_refused), "Values that their next owner could not store, each time that they were sent"),
    counter("trefoil_linklet_frames_dropped", of_stats!(frames_dropped), "Frames that could not be sent at once; they are repeated"),
    counter("trefoil_linklet_frames_passed", of_stats!(frames_passed), "Frames of other servers passed on to servers that those cannot reach"),
    counter("trefoil_linklet_streams_refused", of_stats!(streams_refused), "Streams of who is no member, or says to be this server itself"),
    counter("trefoil_linklet_commits", of_stats!(commits), "Strong commits acknowledged"),
    counter("trefoil_linklet_commit_seconds", |s| Some(s.stats.commit_us as f64 / 1e6), "Time that strong commits took, whatever came of them"),
    counter("trefoil_linklet_commits_thin", of_stats!(commits_thin), "Strong commits acknowledged with fewer copies than there should be"),
    counter("trefoil_linklet_commits_refused", of_stats!(commits_refused), "Strong commits refused for want of servers for their copies"),
    counter("trefoil_linklet_commits_indeterminate", of_stats!(commits_indeterminate), "Strong commits of which it is not known what became, and those that waited in vain for one"),
    counter("trefoil_linklet_spill_writes", of_stats!(spill_writes), "Values written to disk for want of memory"),
    counter("trefoil_linklet_spill_reads", of_stats!(spill_reads), "Values read back from disk for whoever asked for them"),
    counter("trefoil_linklet_spill_copies", of_stats!(spill_copies), "Values copied on disk, because little of their file was still needed"),
    counter("trefoil_linklet_spill_full", of_stats!(spill_full), "Times that nothing was spilled because the bound on disk was reached"),
    counter("trefoil_linklet_spill_write_failures", of_stats!(spill_write_failures), "Writes of spilled values that have failed"),
    counter("trefoil_linklet_spill_read_failures", of_stats!(spill_read_failures), "Spilled values that could not be read back"),
    counter("trefoil_linklet_losses", of_stats!(losses), "Losses told to the listeners"),
    counter("trefoil_linklet_lost_ranges", of_stats!(lost_ranges), "Key ranges in these"),
    counter("trefoil_linklet_lost_keys", of_stats!(lost_keys), "Keys in these by name"),
];

/// Every metric of a linklet.
pub const METRICS: [MetricInfo; TABLE.len() + 1] = {
    let mut all = [BUILD; TABLE.len() + 1];
    let mut index = 0;
    while index < TABLE.len() {
        all[index + 1] = TABLE[index].info;
        index += 1;
    }
    all
};

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Counters and gauges in Prometheus' text format, with the corpus as their
    /// label: to be appended to the page of an application that has one. Others
    /// serve it with [`Linklet::serve_metrics`]. What is not known is left out:
    /// `staleness_seconds` while nothing tells of the database's changes, the
    /// lease while there is no membership. `docs/linked-watching.md` lists all.
    ///
    /// Alert on `slices_short` (slices that this server owns and that have fewer
    /// servers than the mode of replication needs), on increases of `losses_total`,
    /// `commits_thin_total`, `commits_refused_total`, `commits_indeterminate_total`,
    /// `copies_refused_total` and `moves_refused_total`, and on `staleness_seconds`.
    pub fn metrics(&self) -> String {
        let mut samples = Samples::default();
        Snapshot::of(self.inner()).collect(&mut samples);
        // Writing into a string does not fail.
        let page = samples.text().unwrap_or_default();
        exposition("text/plain", page).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_a_metric() {
        let mut stats = Stats::default().counters();
        stats.iter_mut().for_each(|(name, _)| {
            // In seconds, as Prometheus has it.
            *name = match *name {
                "load_us" => "load_seconds",
                "commit_us" => "commit_seconds",
                name => name,
            };
        });
        for (name, _) in stats {
            let name = format!("trefoil_linklet_{name}_total");
            let known = METRICS.iter().any(|info| info.sample_name() == name);
            assert!(known, "{name} is in no metric");
        }
    }
}
