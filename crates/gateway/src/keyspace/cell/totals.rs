//! Totals of all backends, each item counted once.

use std::time::{Duration, Instant};
use trefoil_client::Cell;
use trefoil_gateway_core::keyspace::{Fault, Totals};
use trefoil_rpc::v1::StatsResponse;

/// How long totals wait for backends that do not answer, what they have waited
/// before included.
const PATIENCE: Duration = Duration::from_millis(200);
/// Also where copies on their way were waited for first.
const PATIENCE_MIN: Duration = Duration::from_millis(100);
/// How long they wait once more if nobody has answered: on a busy machine all
/// may be late, and totals of nobody are zeros.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// One answer of each process: one that is several backends answers for each of them.
/// (Processes of several hosts may have the same number, but not the same backends.)
pub(super) fn per_process(answers: &[StatsResponse]) -> impl Iterator<Item = &StatsResponse> {
    let mut known = Vec::new();
    answers.iter().filter(move |stats| {
        let pid = stats.process.as_ref().map_or(0, |process| process.pid);
        let process = (pid, stats.members.first().map(|member| member.backend));
        let is_new = !known.contains(&process);
        if is_new {
            known.push(process);
        }
        is_new
    })
}

/// Totals of all backends that answer; they were asked for at `begun`.
pub(super) fn totals(cell: &Cell, begun: Instant) -> Result<Totals, Fault> {
    let mut totals = Totals::default();
    let mut stats = Vec::new();
    let mut answered = 0;
    let mut reason = None;
    let mut answers = cell.stats_soon(PATIENCE.saturating_sub(begun.elapsed()).max(PATIENCE_MIN));
    if answers.iter().all(|backend| backend.stats.is_err()) {
        answers = cell.stats_soon(LAST_PATIENCE);
    }
    for backend in answers {
        match backend.stats {
            Ok(of_backend) => stats.push(of_backend),
            Err(error) => reason = Some(error),
        }
    }
    for stats in per_process(&stats) {
        let process = stats.process.as_ref();
        totals.limit_bytes += process.map_or(0, |process| process.memory_limit_bytes);
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
        Some(reason) if stats.is_empty() => Err(Fault::Unavailable(reason)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_rpc::v1::{MemberStats, ProcessStats};

    #[test]
    fn each_process_counts_once() {
        let answer = |pid, backends: &[u32]| StatsResponse {
            process: Some(ProcessStats {
                pid,
                ..ProcessStats::default()
            }),
            members: backends
                .iter()
                .map(|&backend| MemberStats {
                    backend,
                    ..MemberStats::default()
                })
                .collect(),
            ..StatsResponse::default()
        };
        let count = |answers: &[StatsResponse]| per_process(answers).count();
        assert_eq!(count(&[]), 0);
        // One process that is two backends, and one beside it.
        assert_eq!(
            count(&[answer(1, &[0, 1]), answer(1, &[0, 1]), answer(2, &[2])]),
            2
        );
        // Two hosts.
        assert_eq!(count(&[answer(1, &[0]), answer(1, &[1])]), 2);
    }
}
