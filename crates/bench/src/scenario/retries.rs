//! How often a GET has to be tried again while others write: 95/5 at a fixed
//! rate by several clients over a million keys, R=3.2, uniform and by Zipf's law.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{Mix, Progress, ScenarioError, ScenarioOptions, connect};
use crate::load::{Bound, Popularity, RunShared, Summary};
use crate::server::Server;

const VALUE_LEN: usize = 1024;
/// A client alone never reads while it writes.
const CLIENTS_COUNT: usize = 4;
const OPS_PER_S: f64 = 20_000.0;
const ZIPF_THETA: f64 = 0.99;
const WARM_UP: Duration = Duration::from_millis(300);
/// Three copies with everything that belongs to them.
const MEMORY_PER_KEY: u64 = 3 * (VALUE_LEN as u64 + 320) * 5 / 4;
const MEMORY_MIN: u64 = 512 << 20;
/// Retries of writes are counted under names that begin so.
const MUTATIONS: &str = "mutation_";

/// Retries under both popularities.
#[derive(Debug, Clone, Serialize)]
pub struct RetriesReport {
    /// Keys of the corpus.
    pub keys: u64,
    /// Bytes of a value.
    pub value_size: usize,
    /// Operations per second of all clients together, Poisson.
    pub rate: f64,
    /// Clients, each of which reads all keys and writes some of them.
    pub clients: usize,
    /// All keys alike.
    pub uniform: RetryFigures,
    /// Zipf 0.99.
    pub zipf: RetryFigures,
}

/// Retries of GETs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RetryFigures {
    /// How many GETs.
    pub gets: u64,
    /// Their retries, by cause.
    pub retries: BTreeMap<String, u64>,
    /// Retries of writes, by cause.
    pub mutation_retries: BTreeMap<String, u64>,
    /// Retries of GETs per GET.
    pub per_get: f64,
    /// Operations that failed, were stale or wrong, or missed.
    pub bad: u64,
}

impl RetryFigures {
    fn of(runs: &[Summary]) -> Self {
        let mut figures = Self::default();
        for run in runs {
            figures.gets += run.get.count;
            figures.bad += run.failed + run.stale + run.wrong + run.misses;
            for (cause, count) in run.retries.iter().filter(|(_, count)| **count > 0) {
                let (causes, cause) = match cause.strip_prefix(MUTATIONS) {
                    Some(cause) => (&mut figures.mutation_retries, cause),
                    None => (&mut figures.retries, cause.as_str()),
                };
                *causes.entry(cause.to_owned()).or_default() += count;
            }
        }
        let retries: u64 = figures.retries.values().sum();
        figures.per_get = retries as f64 / figures.gets.max(1) as f64;
        figures
    }
}

/// Counts retries.
pub fn retries(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<RetriesReport, ScenarioError> {
    options.pin()?;
    let uniform = Mix {
        keys_count: options.scaled(1_000_000, 20_000),
        value_len: VALUE_LEN,
        popularity: Popularity::Uniform,
        gets: 0.95,
        ops_per_s: Some(OPS_PER_S),
    };
    let memory = MEMORY_MIN.max(uniform.keys_count * MEMORY_PER_KEY);
    progress("retries: filling");
    let server = Server::start(&options.server("R=3.2", memory))?;
    let mut target = connect(&server)?;
    let shared = RunShared::writing(uniform.keys_count);
    uniform.preload(&mut target, &shared)?;
    let zipf = Mix {
        popularity: Popularity::Zipf { theta: ZIPF_THETA },
        ..uniform
    };
    let seconds = Duration::from_secs(options.scaled(5, 1));
    let mut figures = Vec::new();
    for (name, mix) in [("uniform", uniform), ("Zipf 0.99", zipf)] {
        let mut runs = Vec::new();
        for number in 0..options.runs.max(1) {
            let of = options.runs.max(1);
            progress(&format!("retries: {name}, run {} of {of}", number + 1));
            // What earlier runs wrote has other sequences: each judges its own.
            let shared = RunShared::writing(mix.keys_count);
            let bound = Bound::Time(seconds);
            let seed = number as u64 + 1;
            let targets = (0..CLIENTS_COUNT)
                .map(|_| connect(&server))
                .collect::<Result<Vec<_>, _>>()?;
            let core = options.client_core;
            let result =
                mix.run_beside_one_another(targets, core, &shared, WARM_UP, bound, seed)?;
            runs.push(Summary::of(&result));
        }
        figures.push(RetryFigures::of(&runs));
    }
    let zipf = figures.pop().unwrap_or_default();
    let uniform_figures = figures.pop().unwrap_or_default();
    Ok(RetriesReport {
        keys: uniform.keys_count,
        value_size: VALUE_LEN,
        rate: OPS_PER_S,
        clients: CLIENTS_COUNT,
        uniform: uniform_figures,
        zipf,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Latency;

    #[test]
    fn retries_of_writes_are_not_retries_of_lookups() {
        let run = Summary {
            retries: BTreeMap::from([
                ("torn".to_owned(), 3),
                ("epoch".to_owned(), 0),
                ("mutation_superseded".to_owned(), 50),
            ]),
            get: Latency {
                count: 500,
                ..Latency::default()
            },
            misses: 1,
            ..Summary::default()
        };
        let figures = RetryFigures::of(&[run.clone(), run]);
        assert_eq!((figures.gets, figures.bad), (1000, 2));
        assert_eq!(figures.retries, BTreeMap::from([("torn".to_owned(), 6)]));
        assert_eq!(figures.mutation_retries["superseded"], 100);
        assert_eq!(figures.per_get, 0.006);
        assert_eq!(RetryFigures::of(&[]).per_get, 0.0);
    }
}
