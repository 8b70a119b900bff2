//! Totals of all backends, each item counted once.

use std::time::{Duration, Instant};
use trefoil_client::Cell;
use trefoil_gateway_core::keyspace::{Fault, Totals};

/// How long totals wait for backends that do not answer, what they have waited
/// before included.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long they wait once more if nobody has answered: on a busy machine all
/// may be late, and totals of nobody are zeros.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Totals of all backends that answer; they were asked for at `begun`.
pub(super) fn totals(cell: &Cell, begun: Instant) -> Result<Totals, Fault> {
    let mut totals = Totals::default();
    let mut processes = Vec::new();
    let mut answered = 0;
    let mut reason = None;
    let mut answers = cell.stats_soon(PATIENCE.saturating_sub(begun.elapsed()));
    if answers.iter().all(|backend| backend.stats.is_err()) {
        answers = cell.stats_soon(LAST_PATIENCE);
    }
    for backend in answers {
        let stats = match backend.stats {
            Ok(stats) => stats,
            Err(error) => {
                reason = Some(error);
                continue;
            }
        };
        let process = stats.process.unwrap_or_default();
        // A process that is several backends answers for each of them.
        if processes.contains(&process.pid) {
            continue;
        }
        processes.push(process.pid);
        totals.limit_bytes += process.memory_limit_bytes;
        answered += stats.members.len() as u64;
        for member in &stats.members {
            let evictions = member.evictions.unwrap_or_default();
            totals.items += member.items;
            totals.entry_bytes += member.entry_bytes;
            totals.used_bytes += member.resident.map_or(0, |resident| resident.total);
            totals.evictions += evictions.capacity + evictions.associativity;
            totals.expired += evictions.expired;
            let applied = member
                .mutations
                .iter()
                .filter(|of| of.outcome == "applied" && matches!(of.kind.as_str(), "set" | "cas"));
            totals.stored += applied.map(|of| of.count).sum::<u64>();
            for class in &member.size_classes {
                if let Some(sum) = totals.classes.get_mut(class.number as usize) {
                    sum.items += class.items;
                    sum.entry_bytes += class.entry_bytes;
                    sum.evicted += class.evicted;
                    sum.expired += class.expired;
                    sum.no_memory += class.no_memory;
                }
            }
        }
    }
    match reason {
        Some(reason) if processes.is_empty() => Err(Fault::Unavailable(reason)),
        _ => {
            // Every item is counted once, however many copies there are.
            // A backend that does not answer is taken to hold as much as the others.
            let config = cell.config();
            let (all, copies) = (
                config.backends.len() as u64,
                config.mode.copy_count() as u64,
            );
            let once = |sum: &mut u64| *sum = (*sum * all).div_ceil(answered.max(1) * copies);
            for sum in [
                &mut totals.items,
                &mut totals.entry_bytes,
                &mut totals.stored,
            ] {
                once(sum);
            }
            for class in totals.classes.iter_mut() {
                for sum in [
                    &mut class.items,
                    &mut class.entry_bytes,
                    &mut class.evicted,
                    &mut class.expired,
                    &mut class.no_memory,
                ] {
                    once(sum);
                }
            }
            Ok(totals)
        }
    }
}
