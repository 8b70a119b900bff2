//! Statistics as a message: what `Stats` answers and what the metrics show.

use crate::clock;
use crate::corpus::Standing;
use crate::lease::LEASE;
use crate::member::Member;
use crate::process::Cpu;
use crate::state::State;
use std::sync::atomic::{AtomicU64, Ordering};
use trefoil_hot::HotKey;
use trefoil_layout::size_class::{ClassCount, ClassCounts};
use trefoil_rpc::v1;
use trefoil_store::{Counts, MutationKind, OutcomeCounts};
use trefoil_tls::CertStatus;

/// Of the process and of every member, now.
pub(crate) fn statistics(state: &State) -> v1::StatsResponse {
    let metrics_address = state.metrics_address.get();
    v1::StatsResponse {
        process: Some(process(state)),
        members: state.members.iter().map(|m| member_stats(m)).collect(),
        gateway: state.reporter().map(|reporter| reporter.statistics()),
        metrics_address: metrics_address.map_or_else(String::new, ToString::to_string),
    }
}

/// Keys in one answer, by each of the two orders.
const TOP_COUNT_MAX: usize = 256;

/// The keys that are asked for most.
pub(crate) fn top_keys(state: &State, count: usize) -> v1::TopKeysResponse {
    let count = count.min(TOP_COUNT_MAX);
    let backends = state.members.iter().map(|member| v1::BackendKeys {
        backend: member.number,
        keys: hot_keys(member.hot.top(count)),
    });
    let gateway = state.reporter().map(|reporter| reporter.hot_keys(count));
    v1::TopKeysResponse {
        backends: backends.collect(),
        gateway: hot_keys(gateway.unwrap_or_default()),
    }
}

fn hot_keys(keys: Vec<HotKey>) -> Vec<v1::HotKey> {
    let message = |key: HotKey| v1::HotKey {
        key: key.key.into(),
        key_len: key.key_len,
        hash: key.hash,
        ops_per_s: key.ops_per_s,
        bytes_per_s: key.bytes_per_s,
    };
    keys.into_iter().map(message).collect()
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
        resident_bytes: state.resident_bytes(),
        memory_limit_bytes: state.bound.limit(),
        baseline_bytes: state.bound.baseline(),
        reserve_bytes: state.bound.reserve(),
        rpc_mutations: get(&counters.rpc_mutations),
        rpc_lookups: get(&counters.rpc_lookups),
        rpc_touches: get(&counters.rpc_touches),
        lease_renewals: get(&counters.lease_renewals),
        lease_renewals_late: get(&counters.lease_renewals_late),
        unix_ns: clock::host().unix_ns,
        fabric_messages: fabric.messages,
        fabric_clients: fabric.rings_open,
        config_store_away: state.store_away.load(Ordering::Relaxed),
        config_store_refused: state.store_refused.load(Ordering::Relaxed),
        registered_elsewhere: state.usurper().unwrap_or_default(),
        certificate: state.tls.get().map(|tls| certificate(&tls.status())),
    }
}

fn certificate(status: &CertStatus) -> v1::CertificateStats {
    v1::CertificateStats {
        left_s: status.left_s,
        refused: status.is_refused,
        handshakes: status.handshakes,
        handshakes_failed: status.handshakes_failed,
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
            flushed: counts.flushed,
        }),
        side_table_items: stats.side_table_items,
        tombstones: stats.tombstones,
        index_reshapes: counts.index_reshapes,
        slab_moves: counts.slab_moves,
        lookup_hits: counts.lookup_hits,
        lookup_misses: counts.lookup_misses,
        touches: counts.touches,
        mutations: mutations(counts),
        lease_left_ms: member.lease_left().as_millis() as u64,
        lease_ms: LEASE.as_millis() as u64,
        size_classes: size_classes(&stats.classes),
        resize: member.resizing.stats(),
        recovery: match &member.standing {
            Some(standing) => standing.recovery(),
            None => member.recovery.as_ref().map(|progress| v1::RecoveryStats {
                skipped: counts.copies_skipped,
                ..progress.stats()
            }),
        },
        corpus: member.standing.as_ref().and_then(Standing::corpus),
        repair: member.repair.as_ref().map(|tally| tally.stats()),
        copied_bytes: member.copied_bytes.load(Ordering::Relaxed),
        takeover: member.takeover.get().map(|takeover| takeover.stats()),
    }
}

fn size_classes(classes: &ClassCounts) -> Vec<v1::SizeClassStats> {
    let used = classes
        .iter()
        .filter(|(_, count)| **count != ClassCount::default());
    let message = |(number, count): (usize, &ClassCount)| v1::SizeClassStats {
        number: number as u32,
        items: count.items,
        entry_bytes: count.entry_bytes,
        evicted: count.evicted,
        expired: count.expired,
        no_memory: count.no_memory,
    };
    used.map(message).collect()
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
