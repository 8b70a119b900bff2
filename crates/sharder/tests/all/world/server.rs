//! Servers that report what they measure: counts are noisy, clocks drift.

use super::load::Keys;
use super::rng::Rng;
use std::collections::BTreeMap;
use trefoil_sharder::{
    Assignment, Capacity, HotKey, KnownAssignment, Load, Member, MemberState, ServerId,
    ServerReport, SliceLoad,
};

/// Hot keys in a report.
const HOT_KEYS: usize = 24;

#[derive(Clone, Debug)]
pub struct Server {
    pub id: ServerId,
    pub capacity: Capacity,
    pub state: MemberState,
    pub known: KnownAssignment,
    /// Its clock runs this much faster than time.
    pub drift: f64,
    sequence: u64,
}

impl Server {
    pub fn new(id: u64, capacity: Capacity) -> Self {
        Server {
            id: ServerId(id),
            capacity,
            state: MemberState::Serving,
            known: KnownAssignment::none(),
            drift: 1.0,
            sequence: 0,
        }
    }

    pub fn member(&self) -> Member {
        Member {
            id: self.id,
            capacity: self.capacity,
            state: self.state,
        }
    }
}

/// Every server's report of the last second, each by the assignment that it
/// knows.
pub fn report_all(servers: &mut [Server], keys: &Keys, rng: &mut Rng) -> Vec<ServerReport> {
    servers
        .iter_mut()
        .filter_map(|server| {
            let assignment = server.known.current().cloned()?;
            server.sequence += 1;
            let own: Vec<_> = assignment
                .slices()
                .iter()
                .filter(|assigned| assigned.servers.contains(&server.id))
                .collect();
            let slices = own
                .iter()
                .map(|assigned| SliceLoad {
                    slice: assigned.slice,
                    load: measure(
                        keys.load(assigned.slice),
                        assigned.servers.len(),
                        server.drift,
                        rng,
                    ),
                })
                .collect();
            Some(ServerReport {
                server: server.id,
                sequence: server.sequence,
                version: assignment.version(),
                slices,
                hot_keys: hot_keys(server, &assignment, keys, rng),
                unstored: Vec::new(),
            })
        })
        .collect()
}

fn hot_keys(server: &Server, assignment: &Assignment, keys: &Keys, rng: &mut Rng) -> Vec<HotKey> {
    keys.heaviest()
        .filter_map(|key| {
            let assigned = assignment.slice_of(keys.point(key));
            assigned.servers.contains(&server.id).then(|| HotKey {
                point: keys.point(key),
                load: measure(keys.load_of(key), assigned.servers.len(), server.drift, rng),
            })
        })
        .take(HOT_KEYS)
        .collect()
}

/// One replica's count over a second: as noisy as independent requests are.
fn measure(load: Load, replicas: usize, drift: f64, rng: &mut Rng) -> Load {
    let own = load.requests / replicas as f64;
    let noise = if own > 0.0 {
        (1.0 + rng.normal() / own.sqrt()).max(0.0)
    } else {
        0.0
    };
    let factor = noise / drift;
    Load {
        cpu_shared: load.cpu_shared / replicas as f64 * factor,
        cpu_each: load.cpu_each * factor,
        requests: own * factor,
        bytes: load.bytes,
    }
}

/// The largest of all utilisations by their mean.
pub fn imbalance(servers: &[Server], assignment: &Assignment, keys: &Keys) -> f64 {
    let used = utilisation(servers, assignment, keys);
    let capacity: f64 = servers.iter().map(|server| server.capacity.cpu).sum();
    let spent: f64 = servers
        .iter()
        .zip(&used)
        .map(|(server, used)| used * server.capacity.cpu)
        .sum();
    used.iter().copied().fold(0.0, f64::max) / (spent / capacity)
}

/// Part of every server's CPU that is spent.
pub fn utilisation(servers: &[Server], assignment: &Assignment, keys: &Keys) -> Vec<f64> {
    let ids: Vec<ServerId> = servers.iter().map(|server| server.id).collect();
    let capacity: BTreeMap<ServerId, f64> = servers
        .iter()
        .map(|server| (server.id, server.capacity.cpu))
        .collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    let cpu = keys.cpu_of(assignment, &sorted);
    ids.iter()
        .map(|id| {
            let at = sorted.binary_search(id).expect("it is there");
            cpu[at] / capacity[id]
        })
        .collect()
}
