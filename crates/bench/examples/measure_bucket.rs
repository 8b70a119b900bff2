//! What does a wider bucket cost a one-sided reader?
//!
//! `cargo run --release -p trefoil-bench --example measure_bucket [huge]`

use std::process::ExitCode;

use trefoil_bench::floor::{BucketRead, FloorCorpus, FloorError, FloorOptions, PageSize};
use trefoil_bench::load::mix64;
use trefoil_bench::measure::time_chained;

const CORPUS_LEN: usize = 1 << 30;

fn main() -> ExitCode {
    let page = match std::env::args().nth(1).as_deref() {
        Some("huge") => PageSize::Huge,
        _ => PageSize::Base,
    };
    match run(page) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(page: PageSize) -> Result<(), FloorError> {
    println!("ns per read, 1 GiB of values, {page:?} pages, random keys, chained, median of 21");
    println!(
        "{:>8} {:>9} {:>12} {:>12} {:>12}",
        "bucket", "value", "index MiB", "copy", "scan"
    );
    for value_len in [100, 1024] {
        for bucket_len in [64, 128, 256, 512] {
            let corpus = FloorCorpus::create(FloorOptions {
                bucket_len,
                page,
                ..FloorOptions::new(CORPUS_LEN, value_len)
            })?;
            let mut private = vec![0; value_len];
            let mut cost = |how| {
                let mut count = 0u64;
                time_chained(21, 50_000, |previous| {
                    count += 1;
                    let key = mix64(previous ^ count) as usize % corpus.keys_count();
                    corpus.read(key, how, &mut private).unwrap_or(0)
                })
                .median_ns
            };
            let (copy, scan) = (cost(BucketRead::Copy), cost(BucketRead::Scan));
            println!(
                "{bucket_len:>6} B {value_len:>7} B {:>12} {copy:>12.0} {scan:>12.0}",
                corpus.index_len() >> 20
            );
        }
    }
    Ok(())
}
