//! Many seeds over all cores; a failure names its seed and how to replay it.
//!
//! `SHARDER_SEEDS=1000` runs more of them, `SHARDER_FROM=77 SHARDER_SEEDS=1`
//! just that one, and `SHARDER_VERBOSE=1` prints every plan of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `usual` seeds, or as many as the environment says; the results in the
/// order of the seeds.
pub fn run<T: Send>(
    test: &str,
    usual: u64,
    run: impl Fn(u64) -> Result<T, String> + Sync,
) -> Vec<T> {
    let from = variable("SHARDER_FROM").unwrap_or(0);
    let end = from + variable("SHARDER_SEEDS").unwrap_or(usual);
    let next = AtomicU64::new(from);
    let results = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let result = run(seed);
                    results
                        .lock()
                        .expect("no seed panics while it holds this")
                        .push((seed, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("all are done");
    results.sort_by_key(|(seed, _)| *seed);
    let failed: Vec<String> = results
        .iter()
        .filter_map(|(seed, result)| {
            let error = result.as_ref().err()?;
            Some(format!(
                "seed {seed}: {error}\n  SHARDER_FROM={seed} SHARDER_SEEDS=1 cargo test --release -p trefoil-sharder -- {test}"
            ))
        })
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {} seeds failed\n{}",
        failed.len(),
        results.len(),
        failed.join("\n")
    );
    results
        .into_iter()
        .filter_map(|(_, result)| result.ok())
        .collect()
}
