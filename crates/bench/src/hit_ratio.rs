//! `bench hit-ratio`: how often a block trace hits in a look-aside cache of so
//! many objects, through the real store.

use crate::look_aside::{LookAside, LookAsideError, Shape, Touches};
use crate::workload::Trace;
use serde::Serialize;
use trefoil_store::PolicyKind;

/// Key, value, heads, index and eviction metadata of one object here are far
/// less: memory never binds, the capacity in objects does.
const OBJECT_LEN_MAX: u64 = 512;
/// The least memory of a store, on top.
const MEMORY_MIN: u64 = 32 << 20;
/// More objects than any trace here has.
const OBJECTS_MAX: u64 = 1 << 28;
const VALUE: [u8; 8] = *b"a block.";

/// Hit ratios of the OLTP trace in percent, from libCacheSim 0.3.5, by policy
/// and capacity in objects: what exact touches have to come to.
pub const OLTP_REFERENCE: [(PolicyKind, [(u64, f64); 5]); 3] = [
    (
        PolicyKind::Lru,
        [
            (1000, 32.83),
            (2000, 42.47),
            (5000, 53.65),
            (10_000, 60.70),
            (15_000, 64.63),
        ],
    ),
    (
        PolicyKind::Arc,
        [
            (1000, 38.95),
            (2000, 46.08),
            (5000, 55.25),
            (10_000, 61.87),
            (15_000, 65.40),
        ],
    ),
    (
        PolicyKind::S3Fifo,
        [
            (1000, 40.86),
            (2000, 47.03),
            (5000, 55.75),
            (10_000, 62.69),
            (15_000, 65.98),
        ],
    ),
];

/// What to run.
#[derive(Clone, Debug)]
pub struct HitRatioOptions {
    /// Who is evicted.
    pub policy: PolicyKind,
    /// How accesses reach the policy.
    pub touches: Touches,
    /// Capacities, in objects; one run each.
    pub objects: Vec<u64>,
}

/// Why there is no hit ratio.
#[derive(Debug, thiserror::Error)]
pub enum HitRatioError {
    /// A capacity that makes no cache.
    #[error("a cache of {0} objects was asked for; 1 to {OBJECTS_MAX} are possible")]
    Objects(u64),
    /// Not even one access.
    #[error("the trace is empty")]
    Empty,
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] LookAsideError),
}

/// What a trace did at one capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HitRatioResult {
    /// Capacity.
    pub objects: u64,
    /// Hits per reference, 0 to 1.
    pub hit_ratio: f64,
    /// Hits.
    pub hits: u64,
    /// Items that were evicted for the index's sake rather than the policy's.
    pub evicted_associativity: u64,
}

/// What a trace did at all capacities.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HitRatioReport {
    /// Name of the policy.
    pub policy: String,
    /// How accesses reached it.
    pub touches: Touches,
    /// References in the trace.
    pub references: u64,
    /// Distinct objects in the trace.
    pub distinct: u64,
    /// By capacity, in the order asked for.
    pub results: Vec<HitRatioResult>,
}

/// Replays `trace` once for each capacity. `progress` is told the references
/// done, of all runs together, now and then.
pub fn hit_ratio(
    trace: &Trace,
    options: &HitRatioOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<HitRatioReport, HitRatioError> {
    if trace.references().is_empty() {
        return Err(HitRatioError::Empty);
    }
    let unfit = |&&objects: &&u64| objects == 0 || objects > OBJECTS_MAX;
    if let Some(&objects) = options.objects.iter().find(unfit) {
        return Err(HitRatioError::Objects(objects));
    }
    let references = trace.references().len() as u64;
    let mut results = Vec::with_capacity(options.objects.len());
    for (run, &objects) in options.objects.iter().enumerate() {
        let done = run as u64 * references;
        let progress = &mut |more| progress(done + more);
        results.push(replay(trace, options, objects, progress)?);
    }
    Ok(HitRatioReport {
        policy: options.policy.to_string(),
        touches: options.touches,
        references,
        distinct: trace.objects_count(),
        results,
    })
}

fn replay(
    trace: &Trace,
    options: &HitRatioOptions,
    objects: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<HitRatioResult, HitRatioError> {
    let mut cache = LookAside::new(Shape {
        policy: options.policy,
        touches: options.touches,
        memory_limit: MEMORY_MIN + objects.min(trace.objects_count()) * OBJECT_LEN_MAX,
        objects_max: Some(objects),
    })?;
    let mut hits = 0;
    for (at, &object) in trace.references().iter().enumerate() {
        if at % (1 << 14) == 0 {
            progress(at as u64);
        }
        hits += u64::from(cache.request(&u64::from(object).to_le_bytes(), &VALUE)?);
    }
    Ok(HitRatioResult {
        objects,
        hit_ratio: hits as f64 / trace.references().len() as f64,
        hits,
        evicted_associativity: cache.store().stats().counts.evicted_associativity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{OLTP, TraceReader};

    fn oltp() -> Trace {
        Trace::load(TraceReader::new(OLTP).expect("carried")).expect("sound")
    }

    fn run(trace: &Trace, policy: PolicyKind, touches: Touches, objects: u64) -> f64 {
        let options = HitRatioOptions {
            policy,
            touches,
            objects: vec![objects],
        };
        let report = hit_ratio(trace, &options, &mut |_| {}).unwrap();
        report.results[0].hit_ratio * 100.0
    }

    fn at_5000() -> impl Iterator<Item = (PolicyKind, f64)> {
        OLTP_REFERENCE
            .map(|(policy, row)| (policy, row[2].1))
            .into_iter()
    }

    #[test]
    fn the_real_store_hits_as_often_as_the_reference_simulator() {
        let trace = oltp();
        for (policy, expected) in at_5000() {
            let exact = run(&trace, policy, Touches::Exact, 5000);
            assert!((exact - expected).abs() <= 0.01, "{policy}: {exact:.3}");
        }
    }

    #[test]
    fn partitions_and_batches_cost_less_than_a_point() {
        let trace = oltp();
        for (policy, expected) in at_5000() {
            let batched = run(&trace, policy, Touches::Batched, 5000);
            assert!(batched > expected - 1.0, "{policy}: {batched:.3}");
        }
        // 125 objects in a partition: a full batch of touches would come too late.
        let batched = run(&trace, PolicyKind::Lru, Touches::Batched, 1000);
        assert!(batched > 32.83 - 1.0, "{batched:.3}");
    }

    #[test]
    fn what_makes_no_cache_is_named() {
        let trace = Trace::load(TraceReader::new(&b"1 3 0 0\n1 3 0 1\n"[..]).unwrap()).unwrap();
        let mut options = HitRatioOptions {
            policy: PolicyKind::Lru,
            touches: Touches::Exact,
            objects: vec![3, 0],
        };
        let error = hit_ratio(&trace, &options, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("0 objects"), "{error}");
        options.objects.pop();
        let report = hit_ratio(&trace, &options, &mut |_| {}).unwrap();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["policy"], "lru");
        assert_eq!(json["touches"], "exact");
        assert_eq!(json["results"][0]["objects"], 3);
        assert_eq!(json["results"][0]["hit_ratio"], 0.5);
        let empty = Trace::load(TraceReader::new(&b""[..]).unwrap()).unwrap();
        assert!(hit_ratio(&empty, &options, &mut |_| {}).is_err());
    }
}
