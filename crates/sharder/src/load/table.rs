//! The believed load of every slice of the assignment in force.
//!
//! How fast a report is believed depends on how many requests stand behind it, beside how
//! many behind what was believed before: at ten requests a second, one second says next to
//! nothing about which of two servers has more to do.
//!
//! A report counts for a slice if its sender went by an assignment that has
//! exactly this slice with exactly these servers. For the moment after a
//! change the load is therefore what was believed before: a slice takes its
//! load along when it moves, and its parts share it when it is cut.

use super::estimate::Estimate;
use crate::assignment::Assignment;
use crate::config::BalanceConfig;
use crate::key::{KeyPoint, Slice};
use crate::report::{Load, ServerReport};
use crate::server::ServerId;
use crate::version::AssignmentVersion;
use std::collections::BTreeMap;
use std::time::Duration;

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It was new.
    New,
    /// This one or a later one was there already.
    Repeated,
    /// Its sender goes by an assignment newer than the one here.
    Ahead(AssignmentVersion),
}

/// What one replica said last.
#[derive(Clone, Debug, Default)]
struct Said {
    load: Load,
    hot: Vec<(KeyPoint, Load)>,
}

#[derive(Clone, Debug)]
struct Tracked {
    slice: Slice,
    servers: Vec<ServerId>,
    /// The version since which it has been cut and served like this.
    since: AssignmentVersion,
    /// Beside `servers`.
    said: Vec<Option<Said>>,
    news: bool,
    updated: Duration,
    estimate: Estimate,
}

#[derive(Clone, Copy, Debug)]
struct Reporter {
    sequence: u64,
    heard: Duration,
}

/// Estimates beside the slices of one assignment, and who was heard when.
#[derive(Clone, Debug)]
pub(crate) struct LoadTable {
    version: AssignmentVersion,
    tracked: Vec<Tracked>,
    reporters: BTreeMap<ServerId, Reporter>,
    evidence: Evidence,
}

/// Requests of an average server that stand behind what is believed.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    /// Before the last settlement; they fade.
    before: f64,
    /// In the last one.
    last: f64,
    /// Whether those who have CPU to report count requests.
    is_counted: bool,
    /// Reports since then.
    reports: usize,
    /// When that was.
    settled: Duration,
}

impl LoadTable {
    pub(crate) fn new(assignment: &Assignment, now: Duration) -> Self {
        let version = assignment.version();
        let tracked = assignment
            .slices()
            .iter()
            .map(|assigned| Tracked {
                slice: assigned.slice,
                servers: assigned.servers.clone(),
                // Older versions may have cut it otherwise; nothing is known
                // of them here.
                since: version,
                said: vec![None; assigned.servers.len()],
                news: false,
                updated: now,
                estimate: Estimate::default(),
            })
            .collect();
        LoadTable {
            version,
            tracked,
            reporters: BTreeMap::new(),
            evidence: Evidence {
                settled: now,
                ..Evidence::default()
            },
        }
    }

    /// Goes over to a newer assignment.
    pub(crate) fn adopt(&mut self, assignment: &Assignment) {
        let version = assignment.version();
        let old = std::mem::take(&mut self.tracked);
        let mut first = 0;
        self.tracked = assignment
            .slices()
            .iter()
            .map(|assigned| {
                let slice = assigned.slice;
                while old[first].slice.last() < slice.start() {
                    first += 1;
                }
                let before = &old[first];
                if before.slice == slice && before.servers == assigned.servers {
                    return before.clone();
                }
                let mut estimate: Option<Estimate> = None;
                let mut updated = Duration::MAX;
                for from in &old[first..] {
                    let Some(part) = from.slice.intersection(slice) else {
                        break;
                    };
                    let part = from.estimate.part(from.slice, part);
                    updated = updated.min(from.updated);
                    estimate = Some(match estimate {
                        Some(sum) => sum.joined(&part),
                        None => part,
                    });
                }
                Tracked {
                    slice,
                    servers: assigned.servers.clone(),
                    since: version,
                    said: vec![None; assigned.servers.len()],
                    news: false,
                    updated,
                    estimate: estimate.unwrap_or_default(),
                }
            })
            .collect();
        self.version = version;
    }

    /// Takes a validated report in.
    pub(crate) fn hear(&mut self, report: &ServerReport, now: Duration) -> Heard {
        match self.reporters.get(&report.server) {
            Some(last) if report.sequence <= last.sequence => return Heard::Repeated,
            _ => {}
        }
        self.reporters.insert(
            report.server,
            Reporter {
                sequence: report.sequence,
                heard: now,
            },
        );
        if report.version > self.version {
            return Heard::Ahead(report.version);
        }
        self.evidence.reports += 1;
        let mut hot = report.hot_keys.clone();
        hot.sort_by_key(|key| key.point);
        hot.dedup_by_key(|key| key.point);
        for said in &report.slices {
            let at = self
                .tracked
                .partition_point(|tracked| tracked.slice.start() < said.slice.start());
            let Some(tracked) = self.tracked.get_mut(at) else {
                continue;
            };
            if tracked.slice != said.slice || report.version < tracked.since {
                continue;
            }
            let Some(replica) = tracked.servers.iter().position(|&id| id == report.server) else {
                continue;
            };
            let from = hot.partition_point(|key| key.point < said.slice.start());
            let inside = hot[from..]
                .iter()
                .take_while(|key| said.slice.contains(key.point) && !said.slice.is_point())
                .map(|key| (key.point, key.load))
                .collect();
            tracked.said[replica] = Some(Said {
                load: said.load,
                hot: inside,
            });
            tracked.news = true;
        }
        Heard::New
    }

    /// Lets the estimates follow what was heard since the last time.
    pub(crate) fn settle(&mut self, now: Duration, config: &BalanceConfig) {
        let news: Vec<usize> = (0..self.tracked.len())
            .filter(|&at| std::mem::take(&mut self.tracked[at].news))
            .collect();
        if news.is_empty() {
            return;
        }
        let heard: Vec<(Load, Vec<(KeyPoint, Load)>)> =
            news.iter().map(|&at| self.tracked[at].heard()).collect();
        let all = heard
            .iter()
            .fold(Load::default(), |sum, (total, _)| sum.plus(*total));
        let servers = self.evidence.reports.max(1) as f64;
        // Who counts no requests is believed by time alone.
        let rate = (all.requests > 0.0 || all.cpu_of_one(1) == 0.0).then(|| all.requests / servers);
        for (at, (total, hot)) in news.into_iter().zip(heard) {
            let tracked = &mut self.tracked[at];
            let age = now.saturating_sub(tracked.updated);
            let fast = weight(age, config.half_life);
            let believed = match rate {
                None => fast,
                Some(rate) => {
                    let count = rate * age.as_secs_f64();
                    let whole = self.evidence.before + count;
                    let part = if whole > 0.0 { count / whole } else { 0.0 };
                    part.clamp(weight(age, config.half_life_max).min(fast), fast)
                }
            };
            tracked.estimate.learn(total, &hot, believed);
            tracked.updated = now;
        }
        self.evidence.note(rate, now, config);
    }

    /// How many requests of an average server stand behind the estimates; `None` if they
    /// are not counted.
    pub(crate) fn evidence(&self) -> Option<f64> {
        let Evidence { before, last, .. } = self.evidence;
        self.evidence.is_counted.then_some(before + last)
    }

    /// How long a server has been silent; `None` if it was never heard.
    pub(crate) fn silence(&self, server: ServerId, now: Duration) -> Option<Duration> {
        self.reporters
            .get(&server)
            .map(|reporter| now.saturating_sub(reporter.heard))
    }

    /// The estimates, beside the slices of the assignment.
    pub(crate) fn estimates(&self) -> impl Iterator<Item = &Estimate> {
        self.tracked.iter().map(|tracked| &tracked.estimate)
    }

    /// Forgets servers that are gone.
    pub(crate) fn retain(&mut self, is_member: impl Fn(ServerId) -> bool) {
        self.reporters.retain(|&id, _| is_member(id));
    }
}

impl Tracked {
    /// What its servers have said last, together.
    fn heard(&self) -> (Load, Vec<(KeyPoint, Load)>) {
        let heard: Vec<&Said> = self.said.iter().flatten().collect();
        let count = heard.len().max(1) as f64;
        // Requests spread evenly over replicas: who has not spoken yet is
        // taken for an average one.
        let scale = self.servers.len() as f64 / count;
        let mut total = Load::default();
        let mut points: BTreeMap<KeyPoint, Load> = BTreeMap::new();
        for said in &heard {
            add_replica(&mut total, said.load, scale, count);
            for (point, load) in &said.hot {
                add_replica(points.entry(*point).or_default(), *load, scale, count);
            }
        }
        (total, points.into_iter().collect())
    }
}

impl Evidence {
    /// A settlement has ended, with so many requests a second for each server.
    fn note(&mut self, rate: Option<f64>, now: Duration, config: &BalanceConfig) {
        let age = now.saturating_sub(self.settled);
        let fades = 1.0 - weight(age, config.half_life_max);
        self.before = ((self.before + self.last) * fades).min(config.evidence_max);
        self.last = rate.unwrap_or(0.0) * age.as_secs_f64();
        self.is_counted = rate.is_some();
        self.settled = now;
        self.reports = 0;
    }
}

/// What part of a change is believed after this long.
fn weight(age: Duration, half_life: Duration) -> f64 {
    match half_life.is_zero() {
        true => 1.0,
        false => 1.0 - (-(age.as_secs_f64() / half_life.as_secs_f64())).exp2(),
    }
}

/// Adds one replica's word: shared load is summed, what each carries is
/// averaged, of sizes the largest is taken (a replica still filling up is no
/// sign that the values are smaller).
fn add_replica(sum: &mut Load, said: Load, scale: f64, count: f64) {
    sum.cpu_shared += said.cpu_shared * scale;
    sum.requests += said.requests * scale;
    sum.cpu_each += said.cpu_each / count;
    sum.bytes = sum.bytes.max(said.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{HotKey, SliceLoad};

    const SECOND: Duration = Duration::from_secs(1);

    fn cpu(cpu_shared: f64) -> Load {
        Load {
            cpu_shared,
            ..Load::default()
        }
    }

    fn report(assignment: &Assignment, server: u64, sequence: u64, each: f64) -> ServerReport {
        let server = ServerId(server);
        ServerReport {
            server,
            sequence,
            version: assignment.version(),
            slices: assignment
                .slices()
                .iter()
                .filter(|assigned| assigned.servers.contains(&server))
                .map(|assigned| SliceLoad {
                    slice: assigned.slice,
                    load: cpu(each),
                })
                .collect(),
            hot_keys: Vec::new(),
            unstored: Vec::new(),
        }
    }

    fn by(half_life: Duration) -> BalanceConfig {
        BalanceConfig {
            half_life,
            ..BalanceConfig::default()
        }
    }

    fn totals(table: &LoadTable) -> Vec<f64> {
        table
            .estimates()
            .map(|estimate| estimate.total.cpu_shared)
            .collect()
    }

    fn start(servers: &[u64], replicas: usize) -> (Assignment, LoadTable) {
        let servers: Vec<_> = servers.iter().map(|&id| ServerId(id)).collect();
        let assignment = Assignment::even(AssignmentVersion::first_of(1), &servers, 1, replicas);
        let table = LoadTable::new(&assignment, Duration::ZERO);
        (assignment, table)
    }

    #[test]
    fn repeated_and_overtaken_reports_change_nothing() {
        let (assignment, mut table) = start(&[1, 2], 1);
        assert_eq!(
            table.hear(&report(&assignment, 1, 5, 3.0), SECOND),
            Heard::New
        );
        for sequence in [5, 4] {
            assert_eq!(
                table.hear(&report(&assignment, 1, sequence, 9.0), SECOND),
                Heard::Repeated
            );
        }
        table.settle(SECOND, &by(SECOND));
        assert_eq!(totals(&table), [3.0, 0.0]);
    }

    #[test]
    fn half_of_a_change_is_believed_after_the_half_life() {
        let (assignment, mut table) = start(&[1], 1);
        table.hear(&report(&assignment, 1, 1, 4.0), SECOND);
        table.settle(SECOND, &by(SECOND));
        table.hear(&report(&assignment, 1, 2, 8.0), SECOND * 2);
        table.settle(SECOND * 2, &by(SECOND));
        assert_eq!(totals(&table), [6.0]);
    }

    #[test]
    fn replicas_add_up_even_if_one_is_silent() {
        let (assignment, mut table) = start(&[1, 2], 2);
        table.hear(&report(&assignment, 1, 1, 4.0), SECOND);
        table.settle(SECOND, &by(SECOND));
        assert_eq!(totals(&table), [8.0, 8.0], "the other is taken to be alike");
        table.hear(&report(&assignment, 2, 1, 2.0), SECOND * 2);
        table.settle(SECOND * 2, &by(Duration::ZERO));
        assert_eq!(totals(&table), [6.0, 6.0]);
    }

    #[test]
    fn a_report_about_slices_that_were_cut_since_is_not_misread() {
        let (before, mut table) = start(&[1, 2], 1);
        let hot = HotKey {
            point: KeyPoint(10),
            load: cpu(6.0),
        };
        let mut first = report(&before, 1, 1, 8.0);
        first.hot_keys.push(hot);
        table.hear(&first, SECOND);
        table.settle(SECOND, &by(SECOND));
        // The first slice is cut, its second half given to server 2.
        let mut slices = before.slices().to_vec();
        let (left, right) = slices[0].slice.split_before(KeyPoint(1 << 62)).unwrap();
        slices[0].slice = left;
        slices.insert(
            1,
            crate::assignment::AssignedSlice {
                slice: right,
                servers: vec![ServerId(2)],
            },
        );
        let after = Assignment::new(before.version().next(), slices).unwrap();
        table.adopt(&after);
        assert_eq!(totals(&table), [7.0, 1.0, 0.0]);
        table.hear(&report(&before, 1, 2, 99.0), SECOND * 2);
        table.settle(SECOND * 2, &by(SECOND));
        assert_eq!(totals(&table), [7.0, 1.0, 0.0], "of the former cut");
        table.hear(&report(&after, 1, 3, 9.0), SECOND * 2);
        table.settle(SECOND * 2, &by(SECOND));
        assert_eq!(totals(&table), [8.0, 1.0, 0.0]);
    }

    /// Server 1 still had all of it when it reported: taken for half, it would
    /// be doubled.
    #[test]
    fn a_report_of_before_a_replica_came_is_not_taken_for_a_share() {
        let (before, mut table) = start(&[1], 1);
        table.hear(&report(&before, 1, 1, 8.0), SECOND);
        table.settle(SECOND, &by(SECOND));
        let mut slices = before.slices().to_vec();
        slices[0].servers.push(ServerId(2));
        let after = Assignment::new(before.version().next(), slices).unwrap();
        table.adopt(&after);
        table.hear(&report(&before, 1, 2, 8.0), SECOND * 2);
        table.settle(SECOND * 2, &by(Duration::ZERO));
        assert_eq!(totals(&table), [8.0]);
        table.hear(&report(&after, 1, 3, 5.0), SECOND * 3);
        table.settle(SECOND * 3, &by(Duration::ZERO));
        assert_eq!(totals(&table), [10.0]);
    }

    #[test]
    fn somebody_ahead_is_noticed() {
        let (assignment, mut table) = start(&[1], 1);
        let ahead = assignment.clone().renumbered(assignment.version().next());
        assert_eq!(
            table.hear(&report(&ahead, 1, 1, 9.0), SECOND),
            Heard::Ahead(ahead.version())
        );
        table.settle(SECOND, &by(SECOND));
        assert_eq!(totals(&table), [0.0]);
    }
}
