//! Runs many seeds and prints what they did and how fast:
//! `cargo run --release -p trefoil-sim --example sim_speed -- FIRST COUNT THREADS`.

use std::time::Instant;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |default| match numbers.next() {
        Some(Ok(number)) => number,
        _ => default,
    };
    let (first, count, threads) = (next(0), next(20_000), next(1));
    let start = Instant::now();
    let report = trefoil_sim::run_many(first, count, threads as usize, &|_| {});
    let seconds = start.elapsed().as_secs_f64();
    for (name, count) in report.stats.iter() {
        println!("{name:32} {count}");
    }
    for violation in &report.violations {
        println!("{violation}");
    }
    println!("{:.0} seeds/s", report.stats.seeds as f64 / seconds);
}
