//! The figures of `trefoil bench ordered` without a build of the whole program, and so
//! without today's SET: `cargo run --release -p trefoil-ordered-load --example measure
//! [RUNS [SECONDS [commits,workloads,shared,durable,rocksdb]]]`.

use trefoil_ordered_load::{LoadOptions, measure};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut options = LoadOptions::default();
    if let Some(runs) = arguments.next() {
        options.runs = runs.parse().expect("a number of runs");
    }
    if let Some(seconds) = arguments.next() {
        options.seconds = seconds.parse().expect("seconds");
    }
    if let Some(parts) = arguments.next() {
        let has = |part: &str| parts.split(',').any(|word| word == part);
        options.commits = has("commits");
        options.workloads = has("workloads");
        options.shared = has("shared");
        options.durable = has("durable");
        options.rocks = has("rocksdb");
    }
    let report = measure(&options, &mut |_, _| Ok(()), &mut |what| {
        eprintln!("{what}")
    })
    .expect("figures");
    println!("{}", report.table());
    println!("{}", report.json());
}
