//! The figures of `trefoil bench ordered --only off-host,off-host-workloads,one-thread`
//! without a build of the whole program: `cargo run --release -p trefoil-bench --example
//! off_host [RUNS [SECONDS [sets,workloads,one-thread]]]`.

use std::path::Path;
use trefoil_bench::ordered::ordered;
use trefoil_ordered_load::LoadOptions;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut options = LoadOptions {
        commits: false,
        workloads: false,
        shared: false,
        durable: false,
        rocks: false,
        ..LoadOptions::default()
    };
    if let Some(runs) = arguments.next() {
        options.runs = runs.parse().expect("a number of runs");
    }
    if let Some(seconds) = arguments.next() {
        options.seconds = seconds.parse().expect("seconds");
    }
    if let Some(parts) = arguments.next() {
        let has = |part: &str| parts.split(',').any(|word| word == part);
        options.off_host = has("sets");
        options.off_host_workloads = has("workloads");
        options.one_thread = has("one-thread");
    }
    // No server of the program takes part.
    let report = ordered(Path::new(""), &options, &mut |what| eprintln!("{what}"));
    let report = report.expect("figures");
    println!("{}", report.table());
    println!("{}", report.json());
}
