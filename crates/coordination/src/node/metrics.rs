//! An assigner for Prometheus: [`METRICS`] lists every metric, and the page is
//! made from the same document as `trefoil assigner status`.

use super::problems::PROBLEM_KINDS;
use super::status::{CorpusStatus, MemberStatus, NodeStatus};
use trefoil_endpoint::{MetricInfo, Samples};

const CORPUS: &[&str] = &["corpus"];
const SERVER: &[&str] = &["corpus", "server"];

const BUILD: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_build_info",
    &["version"],
    "1, with the release that runs",
);
const LEASE: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_lease_seconds",
    &[],
    "For how long a server is taken for alive after it was last heard",
);
const TURNED_AWAY: MetricInfo = MetricInfo::counter(
    "trefoil_assigner_turned_away",
    CORPUS,
    "Requests for a corpus that this assigner was not started with, and that nobody leads",
);
const LEADS: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_leads",
    CORPUS,
    "1 while this assigner leads the corpus",
);
const TERM: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_term",
    CORPUS,
    "The term of whoever leads; 0 if nobody does",
);
const INCARNATION: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_incarnation",
    CORPUS,
    "Incarnation of the map in force; 0 before the first",
);
const GENERATION: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_generation",
    CORPUS,
    "Generation of the map in force; 0 before the first",
);
const SLICES: MetricInfo =
    MetricInfo::gauge("trefoil_assigner_slices", CORPUS, "Slices of the map");
const SERVERS: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_servers",
    &["corpus", "state"],
    "Servers by what they are willing to do",
);
const FROZEN: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_frozen",
    CORPUS,
    "The switch for deployments: 0 off, 1 but for dead servers, 2 all",
);
const HELD_BACK: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_held_back",
    CORPUS,
    "1 while the map stays as it is though nobody wants it to: the store is away or behind, or nobody leads",
);
const PROBLEMS: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_problems",
    &["corpus", "kind"],
    "What somebody should see to; trefoil linked status says what to do",
);
const SERVER_SLICES: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_slices",
    SERVER,
    "Slices of a server, copies included",
);
const SERVER_KEYS: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_key_space_ratio",
    SERVER,
    "Its part of the key space, copies counted in full",
);
const SERVER_CPU: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_cpu_cores",
    SERVER,
    "CPU that it spends on requests, as it says",
);
const SERVER_CPU_MAX: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_cpu_limit_cores",
    SERVER,
    "CPU that it may spend (Builder::cpu)",
);
const SERVER_BYTES: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_resident_bytes",
    SERVER,
    "Bytes of its values, as it says",
);
const SERVER_BYTES_MAX: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_limit_bytes",
    SERVER,
    "Bytes that they may take (Builder::memory)",
);
const SERVER_REQUESTS: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_requests_per_second",
    SERVER,
    "Requests that it answers, as it says",
);
const SERVER_LOAD: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_load_ratio",
    SERVER,
    "Its load in fair shares, the larger of both metrics, as the balancer believes",
);
const SERVER_HEARD: MetricInfo = MetricInfo::gauge(
    "trefoil_assigner_server_heard_seconds",
    SERVER,
    "How long ago it was heard",
);

type Total = (MetricInfo, fn(&CorpusStatus) -> u64);

const TOTALS: [Total; 9] = [
    (
        MetricInfo::counter(
            "trefoil_assigner_elections",
            CORPUS,
            "Times that this assigner was elected",
        ),
        |corpus| corpus.totals.elections,
    ),
    (
        MetricInfo::counter(
            "trefoil_assigner_assignments",
            CORPUS,
            "Maps that it has put in force",
        ),
        |corpus| corpus.totals.assignments,
    ),
    (
        MetricInfo::counter(
            "trefoil_assigner_moves",
            CORPUS,
            "Slices moved or copied by them",
        ),
        |corpus| corpus.totals.moves,
    ),
    (
        MetricInfo::counter(
            "trefoil_assigner_moved_bytes",
            CORPUS,
            "Bytes that those were",
        ),
        |corpus| corpus.totals.moved_bytes,
    ),
    (
        MetricInfo::counter(
            "trefoil_assigner_lost_slices",
            CORPUS,
            "Slices whose values were lost because all who had them were dead",
        ),
        |corpus| corpus.totals.lost_slices,
    ),
    (
        MetricInfo::counter(
            "trefoil_assigner_reports",
            CORPUS,
            "Reports of servers heard",
        ),
        |corpus| corpus.totals.reports,
    ),
    (
        MetricInfo::counter(
            "trefoil_assigner_leases_expired",
            CORPUS,
            "Leases that ended without the server's having left",
        ),
        |corpus| corpus.totals.expired,
    ),
    (
        MetricInfo::counter(
            "trefoil_assigner_store_errors",
            CORPUS,
            "Requests to the coordination store that failed",
        ),
        |corpus| corpus.totals.store_errors,
    ),
    (
        MetricInfo::counter(
            "trefoil_assigner_recoveries",
            CORPUS,
            "Times that the map was taken over from servers because the store had forgotten it",
        ),
        |corpus| corpus.totals.recoveries,
    ),
];

/// Every metric of an assigner.
pub const METRICS: [MetricInfo; 30] = [
    BUILD,
    LEASE,
    TURNED_AWAY,
    LEADS,
    TERM,
    INCARNATION,
    GENERATION,
    SLICES,
    SERVERS,
    FROZEN,
    HELD_BACK,
    PROBLEMS,
    SERVER_SLICES,
    SERVER_KEYS,
    SERVER_CPU,
    SERVER_CPU_MAX,
    SERVER_BYTES,
    SERVER_BYTES_MAX,
    SERVER_REQUESTS,
    SERVER_LOAD,
    SERVER_HEARD,
    TOTALS[0].0,
    TOTALS[1].0,
    TOTALS[2].0,
    TOTALS[3].0,
    TOTALS[4].0,
    TOTALS[5].0,
    TOTALS[6].0,
    TOTALS[7].0,
    TOTALS[8].0,
];

/// States of servers, as [`MemberStatus::state`] names them.
const STATES: [&str; 3] = ["serving", "frozen", "draining"];

/// Adds all of them.
pub(crate) fn collect(status: &NodeStatus, samples: &mut Samples) {
    samples.put(&BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
    samples.put(&LEASE, &[], status.lease_ms as f64 / 1e3);
    for turned in &status.turned_away {
        samples.put(&TURNED_AWAY, &[&turned.corpus], turned.requests as f64);
    }
    for corpus in &status.corpora {
        of_corpus(corpus, samples);
        for member in &corpus.members {
            of_member(corpus, member, samples);
        }
    }
}

fn of_corpus(corpus: &CorpusStatus, samples: &mut Samples) {
    let name = corpus.corpus.as_str();
    let mut put = |info, value: f64| samples.put(info, &[name], value);
    put(&LEADS, f64::from(u8::from(corpus.leads)));
    put(&TERM, corpus.term as f64);
    let version = corpus.version.as_deref().and_then(|v| v.split_once('.'));
    let (incarnation, generation) = version.unwrap_or(("0", "0"));
    put(&INCARNATION, incarnation.parse().unwrap_or(0.0));
    put(&GENERATION, generation.parse().unwrap_or(0.0));
    put(&SLICES, corpus.slices as f64);
    put(
        &FROZEN,
        match corpus.freeze {
            "off" => 0.0,
            "only-dead" => 1.0,
            _ => 2.0,
        },
    );
    let held_back = corpus.frozen_because.is_some();
    put(&HELD_BACK, f64::from(u8::from(held_back)));
    for (info, total) in &TOTALS {
        put(info, total(corpus) as f64);
    }
    for state in STATES {
        let count = corpus.members.iter().filter(|m| m.state == state).count();
        samples.put(&SERVERS, &[name, state], count as f64);
    }
    for kind in PROBLEM_KINDS {
        let count = corpus.problems.iter().filter(|p| p.kind == kind).count();
        samples.put(&PROBLEMS, &[name, kind], count as f64);
    }
}

/// Loads are known to the one who leads; the others leave them out.
fn of_member(corpus: &CorpusStatus, member: &MemberStatus, samples: &mut Samples) {
    let id = member.id.to_string();
    let labels = [corpus.corpus.as_str(), &id];
    let mut put = |info, value: Option<f64>| {
        if let Some(value) = value {
            samples.put(info, &labels, value);
        }
    };
    put(&SERVER_SLICES, Some(member.slices as f64));
    put(&SERVER_KEYS, Some(member.key_space));
    put(&SERVER_CPU, member.cpu_used);
    put(&SERVER_CPU_MAX, Some(member.cpu));
    put(&SERVER_BYTES, member.bytes_used.map(|bytes| bytes as f64));
    put(&SERVER_BYTES_MAX, Some(member.bytes as f64));
    put(&SERVER_REQUESTS, member.requests);
    put(&SERVER_LOAD, member.load);
    put(&SERVER_HEARD, member.heard_ms.map(|ms| ms as f64 / 1e3));
}
