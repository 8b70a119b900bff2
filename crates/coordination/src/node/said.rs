//! What servers have said last, for people: the balancer has its own opinion of
//! their loads, smoothed and per slice.

use crate::viewcell::Servers;
use crate::vitals::{Report, Vitals};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use trefoil_sharder::{ServerId, SliceLoad};

/// Slices of each server that are kept, of each order.
const SLICES_MAX: usize = 8;

/// What one server has said last.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// By the assigner's clock.
    pub(super) at: Duration,
    /// CPU-seconds per second that it spends.
    pub(super) cpu: f64,
    /// Requests per second.
    pub(super) requests: f64,
    /// Bytes that its values take.
    pub(super) bytes: f64,
    /// Those that cost it most.
    pub(super) hottest: Vec<SliceLoad>,
    pub(super) vitals: Option<Vitals>,
}

/// What all have said.
#[derive(Debug, Default)]
pub(super) struct Heard {
    by_server: BTreeMap<ServerId, Said>,
    /// Of whom it keeps something.
    members: Servers,
}

/// The CPU that a server itself spends on a slice.
fn cpu(slice: &SliceLoad) -> f64 {
    slice.load.cpu_shared + slice.load.cpu_each
}

impl Heard {
    /// Hears a member. Forgets those that are none any more when the list is another
    /// one: that is rare, and reports are not.
    pub(super) fn hear(&mut self, now: Duration, report: &Report, members: &Servers) {
        if !Arc::ptr_eq(members, &self.members) {
            self.members = Arc::clone(members);
            self.by_server
                .retain(|server, _| members.contains_key(server));
        }
        let load = &report.load;
        if !members.contains_key(&load.server) {
            return;
        }
        let said = Said {
            at: now,
            cpu: load.slices.iter().map(cpu).sum(),
            requests: load.slices.iter().map(|slice| slice.load.requests).sum(),
            bytes: load.slices.iter().map(|slice| slice.load.bytes).sum(),
            hottest: hottest(&load.slices),
            vitals: report.vitals.clone(),
        };
        self.by_server.insert(load.server, said);
    }

    pub(super) fn of(&self, server: ServerId) -> Option<&Said> {
        self.by_server.get(&server)
    }
}

/// Those with the most CPU, and those with the most bytes.
fn hottest(slices: &[SliceLoad]) -> Vec<SliceLoad> {
    let mut sorted: Vec<SliceLoad> = slices.to_vec();
    sorted.sort_by(|a, b| cpu(b).total_cmp(&cpu(a)));
    let mut hottest: Vec<SliceLoad> = sorted.iter().take(SLICES_MAX).copied().collect();
    sorted.sort_by(|a, b| b.load.bytes.total_cmp(&a.load.bytes));
    for slice in sorted.iter().take(SLICES_MAX) {
        if hottest.iter().all(|known| known.slice != slice.slice) {
            hottest.push(*slice);
        }
    }
    hottest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ServerInfo;
    use trefoil_sharder::{AssignmentVersion, Capacity, KeyPoint, Load, ServerReport, Slice};

    fn report(server: u64) -> Report {
        // The higher the slice, the more CPU; the lower, the more bytes.
        let slice = |n: u64| SliceLoad {
            slice: Slice::spanning(KeyPoint(n * 10), KeyPoint(n * 10 + 9)),
            load: Load {
                cpu_shared: n as f64,
                cpu_each: 1.0,
                requests: 2.0,
                bytes: 1e6 - n as f64,
            },
        };
        Report {
            load: ServerReport {
                server: ServerId(server),
                sequence: 1,
                version: AssignmentVersion::first_of(1),
                slices: (0..30).map(slice).collect(),
                hot_keys: Vec::new(),
                unstored: Vec::new(),
            },
            vitals: None,
        }
    }

    #[test]
    fn sums_the_hottest_and_members_only() {
        let mut heard = Heard::default();
        let second = Duration::from_secs(1);
        let members = |ids: &[u64]| -> Servers {
            let info = || ServerInfo::new("127.0.0.1:1", Capacity { cpu: 1.0, bytes: 1 });
            Arc::new(ids.iter().map(|&id| (ServerId(id), info())).collect())
        };
        heard.hear(second, &report(1), &members(&[1]));
        let said = heard.of(ServerId(1)).unwrap();
        assert_eq!(said.cpu, (0..30).sum::<u64>() as f64 + 30.0);
        assert_eq!((said.requests, said.at), (60.0, second));
        let starts: Vec<u64> = said.hottest.iter().map(|s| s.slice.start().0).collect();
        assert_eq!(starts[..2], [290, 280]);
        assert_eq!(starts[8..10], [0, 10]);
        assert_eq!(starts.len(), 2 * SLICES_MAX);
        // The first has gone when the second speaks; a stranger is not kept.
        let second_only = members(&[2]);
        heard.hear(second * 2, &report(2), &second_only);
        heard.hear(second * 2, &report(3), &second_only);
        let known = [1, 2, 3].map(|id| heard.of(ServerId(id)).is_some());
        assert_eq!(known, [false, true, false]);
    }
}
