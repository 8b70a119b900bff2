//! Value sizes that shift under a full cache: 100 B, 4 KiB, and 100 B again.
//!
//! Each phase asks for keys of its own, by Zipf's law, so everything that the
//! phase before left in memory is dead weight of the wrong size: an allocator
//! that does not move memory between sizes would keep it. Beside each phase
//! stands a fresh cache of the same memory that saw the same requests.

use crate::load::{KeyChooser, LoadError, Popularity};
use crate::look_aside::{LookAside, LookAsideError, Shape, Touches};
use serde::Serialize;
use trefoil_store::PolicyKind;

/// Bytes of a value, phase by phase.
pub const VALUE_LENS: [usize; 3] = [100, 4096, 100];

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct SizeShiftOptions {
    /// Who is evicted.
    pub policy: PolicyKind,
    /// How accesses reach the policy.
    pub touches: Touches,
    /// Memory of the store, in bytes.
    pub memory_limit: u64,
    /// Keys of each phase.
    pub keys_count: u64,
    /// Requests of each phase. The first half lets the cache turn over, the
    /// second is measured.
    pub requests: u64,
    /// Zipf exponent.
    pub theta: f64,
    /// Of the requests.
    pub seed: u64,
}

impl Default for SizeShiftOptions {
    fn default() -> Self {
        SizeShiftOptions {
            policy: PolicyKind::default(),
            touches: Touches::Batched,
            memory_limit: 16 << 20,
            keys_count: 240_000,
            requests: 2_000_000,
            theta: 0.9,
            seed: 1,
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum SizeShiftError {
    /// Keys or exponent make no workload.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] LookAsideError),
}

/// One phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SizeShiftPhase {
    /// Bytes of its values.
    pub value_len: usize,
    /// Hits per request in the second half, 0 to 1.
    pub hit_ratio: f64,
    /// The same in a cache that has seen nothing before.
    pub fresh_hit_ratio: f64,
    /// What the shift costs, in percentage points; negative if it gains.
    pub loss_points: f64,
    /// Writes that the store refused for lack of memory.
    pub refused: u64,
    /// Items present at the end.
    pub items: u64,
    /// The same in the fresh cache.
    pub fresh_items: u64,
}

/// All phases.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeShiftReport {
    /// Name of the policy.
    pub policy: String,
    /// How accesses reached it.
    pub touches: Touches,
    /// Memory of the store, in bytes.
    pub memory_limit: u64,
    /// In order.
    pub phases: Vec<SizeShiftPhase>,
    /// Refused writes of all phases.
    pub refused: u64,
    /// The worst phase's loss, in percentage points.
    pub loss_points_max: f64,
}

/// Runs all phases through one store, and each through a fresh one. `progress`
/// is told the requests done, of `5 * requests`, now and then.
pub fn size_shift(
    options: &SizeShiftOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<SizeShiftReport, SizeShiftError> {
    let new_cache = || {
        LookAside::new(Shape {
            policy: options.policy,
            touches: options.touches,
            memory_limit: options.memory_limit,
            objects_max: None,
        })
    };
    let mut done = 0;
    let mut run = |cache: &mut LookAside, phase: usize| {
        let result = run_phase(options, cache, phase, &mut |more| progress(done + more));
        done += options.requests;
        result
    };
    let mut cache = new_cache()?;
    let mut phases = Vec::new();
    for (phase, value_len) in VALUE_LENS.into_iter().enumerate() {
        let refused_before = cache.refused();
        let hit_ratio = run(&mut cache, phase)?;
        let items = cache.store().stats().items;
        // Nothing has shifted yet in the first phase.
        let (fresh_hit_ratio, fresh_items) = if phase == 0 {
            (hit_ratio, items)
        } else {
            let mut fresh = new_cache()?;
            (run(&mut fresh, phase)?, fresh.store().stats().items)
        };
        phases.push(SizeShiftPhase {
            value_len,
            hit_ratio,
            fresh_hit_ratio,
            loss_points: (fresh_hit_ratio - hit_ratio) * 100.0,
            refused: cache.refused() - refused_before,
            items,
            fresh_items,
        });
    }
    let losses = phases.iter().map(|phase| phase.loss_points);
    Ok(SizeShiftReport {
        policy: options.policy.to_string(),
        touches: options.touches,
        memory_limit: options.memory_limit,
        refused: cache.refused(),
        loss_points_max: losses.fold(f64::MIN, f64::max),
        phases,
    })
}

/// Hits per request of the phase's second half.
fn run_phase(
    options: &SizeShiftOptions,
    cache: &mut LookAside,
    phase: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<f64, SizeShiftError> {
    let popularity = Popularity::Zipf {
        theta: options.theta,
    };
    let seed = options.seed + phase as u64;
    let mut chooser = KeyChooser::new(popularity, options.keys_count, seed)?;
    let value = vec![phase as u8; VALUE_LENS[phase]];
    let mut key = *b"phase 0 ........";
    key[6] += phase as u8;
    let first = options.requests / 2;
    let mut hits = 0;
    for at in 0..options.requests {
        if at % (1 << 14) == 0 {
            progress(at);
        }
        key[8..].copy_from_slice(&chooser.next_key().to_le_bytes());
        let is_hit = cache.request(&key, &value)?;
        hits += u64::from(is_hit && at >= first);
    }
    Ok(hits as f64 / (options.requests - first).max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_the_sizes_of_what_is_written() {
        for policy in PolicyKind::ALL {
            let options = SizeShiftOptions {
                policy,
                memory_limit: 8 << 20,
                keys_count: 100_000,
                requests: 300_000,
                ..SizeShiftOptions::default()
            };
            let report = size_shift(&options, &mut |_| {}).unwrap();
            assert_eq!(report.refused, 0, "{report:?}");
            // ARC and S3-FIFO hold on to what was popular: they need longer
            // phases than a test has, even if the size stays the same.
            if [PolicyKind::Lru, PolicyKind::default()].contains(&policy) {
                assert!(report.loss_points_max <= 2.0, "{report:?}");
            }
        }
    }
}
