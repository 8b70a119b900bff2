//! Statistics as a message: what `Stats` answers and what the metrics show.

use crate::member::Member;
use crate::process::{Cpu, Resident};
use crate::state::State;
use std::sync::atomic::{AtomicU64, Ordering};
use trefoil_rpc::v1;
use trefoil_store::{Counts, MutationKind, OutcomeCounts};

/// Of the process and of every member, now.
pub(crate) fn statistics(state: &State) -> v1::StatsResponse {
    v1::StatsResponse {
        process: Some(process(state)),
        members: state.members.iter().map(|m| member_stats(m)).collect(),
    }
}

fn process(state: &State) -> v1::ProcessStats {
    let cpu = Cpu::now();
    let fabric = state.fabric_statistics();
    let counters = &state.counters;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    v1::ProcessStats {
        pid: std::process::id(),
        uptime_ms: state.started.elapsed().as_millis() as u64,
        cpu_user_us: cpu.user_us,
        cpu_system_us: cpu.system_us,
        resident_bytes: Resident::now().total(),
        memory_limit_bytes: state.bound.limit(),
        baseline_bytes: state.bound.baseline(),
        reserve_bytes: state.bound.reserve(),
        rpc_mutations: get(&counters.rpc_mutations),
        rpc_lookups: get(&counters.rpc_lookups),
        rpc_touches: get(&counters.rpc_touches),
        lease_renewals: get(&counters.lease_renewals),
        fabric_messages: fabric.messages,
        fabric_clients: fabric.rings_open,
    }
}

fn member_stats(member: &Member) -> v1::MemberStats {
    let stats = member.store.stats();
    let (resident, counts) = (&stats.resident, &stats.counts);
    v1::MemberStats {
        backend: member.number,
        config_id: member.config_id(),
        epoch: member.epoch(),
        incarnation: format!("{:016x}", member.shape().incarnation),
        partition_count: member.store.partition_count() as u32,
        memory_limit_bytes: stats.memory_limit,
        items: stats.items,
        entry_bytes: stats.entry_bytes,
        resident: Some(v1::ResidentBytes {
            total: resident.total(),
            data: resident.pages + resident.runs,
            index: resident.index,
            private: resident.private,
            rings: resident.extra,
        }),
        evictions: Some(v1::Evictions {
            capacity: counts.evicted_capacity,
            associativity: counts.evicted_associativity,
            expired: counts.expired,
        }),
        side_table_items: stats.side_table_items,
        tombstones: stats.tombstones,
        index_reshapes: counts.index_reshapes,
        slab_moves: counts.slab_moves,
        lookup_hits: counts.lookup_hits,
        lookup_misses: counts.lookup_misses,
        touches: counts.touches,
        mutations: mutations(counts),
    }
}

fn mutations(counts: &Counts) -> Vec<v1::MutationCount> {
    let of_kind = |kind: MutationKind| {
        let OutcomeCounts {
            applied,
            superseded,
            mismatch,
            rejected,
            ..
        } = counts.of(kind);
        let outcomes = [
            ("applied", applied),
            ("superseded", superseded),
            ("mismatch", mismatch),
            ("rejected", rejected),
        ];
        outcomes.map(|(outcome, count)| v1::MutationCount {
            kind: kind_name(kind).to_owned(),
            outcome: outcome.to_owned(),
            count,
        })
    };
    MutationKind::ALL.into_iter().flat_map(of_kind).collect()
}

fn kind_name(kind: MutationKind) -> &'static str {
    match kind {
        MutationKind::Set => "set",
        MutationKind::Erase => "erase",
        MutationKind::Cas => "cas",
        MutationKind::Load => "load",
    }
}
