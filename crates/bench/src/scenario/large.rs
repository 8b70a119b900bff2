//! Values of megabytes: none is refused while something can be evicted, and
//! memory stays within its bound meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use trefoil_client::{Cell, Lookup, OpError, Options, SetOptions};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::load::LoadError;
use crate::peer::procfs;
use crate::server::{Server, ServerOptions};

const CLIENTS: u64 = 6;
const KEYS: u64 = 40;
const LENS: [usize; 3] = [1 << 20, 8 << 20, 15 << 20];
const MEMORY: [u64; 2] = [64 << 20, 256 << 20];
const SAMPLE_PERIOD: Duration = Duration::from_millis(5);

/// What came of one length in one memory.
#[derive(Debug, Clone, Serialize)]
pub struct LargeFigures {
    /// `R=1` or `R=3.2`.
    pub mode: &'static str,
    /// Bytes of the bound of each backend.
    pub memory: u64,
    /// Bytes of a value.
    pub value_len: usize,
    /// SETs.
    pub sets: u64,
    /// Of these, refused or failed.
    pub refused: u64,
    /// Of these, of unknown fate.
    pub unknown: u64,
    /// The first message.
    pub first_error: Option<String>,
    /// GETs that found another value than was written.
    pub wrong: u64,
    /// Bytes resident in the backend that had most, at the worst moment.
    pub resident_max: u64,
    /// The same by the bound.
    pub resident_by_memory: f64,
    /// SETs per second.
    pub sets_per_s: f64,
}

/// All lengths in all memories.
#[derive(Debug, Clone, Serialize)]
pub struct LargeReport {
    /// One after another, each with a fresh cell.
    pub figures: Vec<LargeFigures>,
}

impl LargeReport {
    /// Nothing refused, nothing wrong, memory within its bound.
    pub fn is_clean(&self) -> bool {
        self.figures.iter().all(|figures| {
            figures.refused + figures.unknown + figures.wrong == 0
                && figures.resident_max <= figures.memory
        })
    }
}

/// Writes and reads large values.
pub fn large(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<LargeReport, ScenarioError> {
    let mut figures = Vec::new();
    for mode in ["R=1", "R=3.2"] {
        for memory in MEMORY {
            for value_len in LENS {
                progress(&format!(
                    "large: {mode}, {} MiB, values of {} MiB",
                    memory >> 20,
                    value_len >> 20
                ));
                figures.push(run(options, mode, memory, value_len)?);
            }
        }
    }
    Ok(LargeReport { figures })
}

fn run(
    options: &ScenarioOptions,
    mode: &'static str,
    memory: u64,
    value_len: usize,
) -> Result<LargeFigures, ScenarioError> {
    let server = Server::start(&ServerOptions {
        processes: true,
        is_silent: true,
        core: None,
        ..options.server(mode, memory)
    })?;
    let sets_each = options.scaled(40, 8);
    let resident_max = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let begin = Instant::now();
    let cell = Cell::connect(&server.address)?;
    let outcomes: Result<Vec<Outcomes>, ScenarioError> = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for pid in &server.pids {
                    let resident = procfs::resident(*pid).unwrap_or(0);
                    resident_max.fetch_max(resident, Ordering::Relaxed);
                }
                std::thread::sleep(SAMPLE_PERIOD);
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let cell = cell.clone();
                scope.spawn(move || client(&cell, number, value_len, sets_each))
            })
            .collect();
        let outcomes = clients
            .into_iter()
            .map(|client| client.join().map_err(|_| LoadError::Panicked.into()))
            .collect();
        is_over.store(true, Ordering::Relaxed);
        let _ = sampler.join();
        outcomes
    });
    let outcomes = outcomes?;
    let sum = |figure: fn(&Outcomes) -> u64| outcomes.iter().map(figure).sum::<u64>();
    let resident_max = resident_max.into_inner();
    let sets = sum(|o| o.sets);
    Ok(LargeFigures {
        mode,
        memory,
        value_len,
        sets,
        refused: sum(|o| o.refused),
        unknown: sum(|o| o.unknown),
        first_error: outcomes.iter().find_map(|o| o.first_error.clone()),
        wrong: sum(|o| o.wrong),
        resident_max,
        resident_by_memory: resident_max as f64 / memory as f64,
        sets_per_s: sets as f64 / begin.elapsed().as_secs_f64(),
    })
}

#[derive(Default)]
struct Outcomes {
    sets: u64,
    refused: u64,
    unknown: u64,
    wrong: u64,
    first_error: Option<String>,
}

/// Writes values whose every word names their key and their writer's count, and
/// reads what others wrote.
fn client(cell: &Cell, number: u64, value_len: usize, sets: u64) -> Outcomes {
    let mut client = cell.client(Options {
        // Many megabytes take their time where others send as many.
        deadline: Duration::from_secs(20),
        ..Options::default()
    });
    let mut rng = SmallRng::seed_from_u64(number);
    let mut outcomes = Outcomes::default();
    let mut value = vec![0; value_len];
    for count in 0..sets {
        let key = rng.random_range(0..KEYS);
        let word = (key << 48 | number << 32 | count).to_le_bytes();
        value
            .chunks_exact_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&word));
        outcomes.sets += 1;
        match client.set(&key.to_le_bytes(), &value, SetOptions::default()) {
            Ok(_) => {}
            Err(error) => {
                match error {
                    OpError::Indeterminate(_) => outcomes.unknown += 1,
                    _ => outcomes.refused += 1,
                }
                outcomes.first_error.get_or_insert(error.to_string());
            }
        }
        let key = rng.random_range(0..KEYS);
        if let Ok(Lookup::Hit(hit)) = client.get(&key.to_le_bytes()) {
            let first = hit.value.get(..8);
            let is_one = hit.value.len() == value_len
                && first.is_some_and(|first| first[6..] == (key as u16).to_le_bytes())
                && hit.value.chunks_exact(8).all(|chunk| Some(chunk) == first);
            outcomes.wrong += u64::from(!is_one);
        }
    }
    outcomes
}
