//! What does not fit, whatever is moved: said by name, so that somebody can
//! add servers, shed load, or divide a key.

use super::draft::Draft;
use super::plan::{Metric, Overloaded};
use crate::key::Slice;

/// Slices named for one server.
const NAMED_MAX: usize = 8;

/// Judges the finished draft by absolute capacity.
pub(crate) fn find(draft: &Draft<'_>) -> Vec<Overloaded> {
    let mut found = Vec::new();
    for metric in [Metric::Cpu, Metric::Bytes] {
        let needed: f64 = (0..draft.servers.len())
            .map(|server| used(draft, server, metric))
            .sum();
        let capacity: f64 = (0..draft.servers.len())
            .map(|server| capacity(draft, server, metric))
            .sum();
        if needed > capacity && capacity > 0.0 {
            found.push(Overloaded::Cluster {
                metric,
                needed,
                capacity,
            });
        }
    }
    for slice in draft.slices.iter().filter(|slice| slice.slice.is_point()) {
        let smallest = slice
            .servers
            .iter()
            .filter_map(|&id| draft.server(id))
            .map(|server| capacity(draft, server, Metric::Cpu))
            .min_by(f64::total_cmp);
        let needed = slice.burden().cpu;
        if let Some(capacity) = smallest.filter(|&capacity| needed > capacity) {
            found.push(Overloaded::Key {
                point: slice.slice.start(),
                needed,
                capacity,
                replicas: slice.servers.len(),
            });
        }
    }
    for server in 0..draft.servers.len() {
        for metric in [Metric::Cpu, Metric::Bytes] {
            let (needed, capacity) = (used(draft, server, metric), capacity(draft, server, metric));
            if needed > capacity {
                found.push(Overloaded::Server {
                    server: draft.servers[server].member.id,
                    metric,
                    needed,
                    capacity,
                    does_not_fit: heaviest(draft, server, metric, needed - capacity),
                });
            }
        }
    }
    found
}

fn used(draft: &Draft<'_>, server: usize, metric: Metric) -> f64 {
    let burden = draft.servers[server].burden;
    match metric {
        Metric::Cpu => burden.cpu,
        Metric::Bytes => burden.bytes,
    }
}

fn capacity(draft: &Draft<'_>, server: usize, metric: Metric) -> f64 {
    let capacity = draft.servers[server].member.capacity;
    match metric {
        Metric::Cpu => capacity.cpu,
        Metric::Bytes => capacity.bytes as f64,
    }
}

/// The heaviest slices of a server that together make up `excess`.
fn heaviest(draft: &Draft<'_>, server: usize, metric: Metric, mut excess: f64) -> Vec<Slice> {
    let id = draft.servers[server].member.id;
    let mut slices: Vec<(f64, Slice)> = draft
        .slices
        .iter()
        .filter(|slice| slice.servers.contains(&id))
        .map(|slice| {
            let burden = slice.burden();
            let weight = match metric {
                Metric::Cpu => burden.cpu,
                Metric::Bytes => burden.bytes,
            };
            (weight, slice.slice)
        })
        .collect();
    slices.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    slices
        .into_iter()
        .take(NAMED_MAX)
        .take_while(|(weight, _)| {
            let needed = excess > 0.0;
            excess -= weight;
            needed
        })
        .map(|(_, slice)| slice)
        .collect()
}
