//! How soon each broken rule of the whole client shows: seeds until it is noticed, from
//! ten beginnings far apart. `crates/sim/tests/all/whole_mutants.rs` allows each of them
//! far more.
//!
//! `cargo run --profile tested -p trefoil-sim --example mutants [NAME]`

use std::time::Instant;
use trefoil_sim::mutants::WHOLE;

/// Beginnings, what is between two of them, and where it is given up.
const BEGINNINGS: u64 = 10;
const APART: u64 = 1_000_000;
const SEEDS_MAX: u64 = 20_000;

fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    println!("{:>40} {:>6} {:>8}  seeds", "rule", "most", "ms/seed");
    for case in WHOLE {
        let name = format!("{:?}", case.rule);
        if !name.contains(&only) {
            continue;
        }
        let began = Instant::now();
        let seeds: Vec<u64> = (0..BEGINNINGS)
            .map(|number| {
                let noticed = case.seeds_until_noticed(number * APART, SEEDS_MAX);
                noticed.map_or(u64::MAX, |(seeds, _)| seeds)
            })
            .collect();
        let run: u64 = seeds.iter().map(|seeds| (*seeds).min(SEEDS_MAX)).sum();
        let each = began.elapsed().as_secs_f64() * 1e3 / run as f64;
        let most = seeds.iter().max().copied().unwrap_or_default();
        println!("{name:>40} {most:>6} {each:>8.2}  {seeds:?}");
    }
}
