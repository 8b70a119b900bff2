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
    println!("copy, scan: how the bucket is read; +prefetch: value's lines asked for at once");
    println!(
        "{:>8} {:>9} {:>10} {:>8} {:>8} {:>15} {:>15}",
        "bucket", "value", "index MiB", "copy", "scan", "copy+prefetch", "scan+prefetch"
    );
    for value_len in [100, 1024] {
        for bucket_len in [64, 128, 256, 512] {
            let mut cells = Vec::new();
            let mut index_len = 0;
            for prefetch in [false, true] {
                let corpus = FloorCorpus::create(FloorOptions {
                    bucket_len,
                    page,
                    prefetch,
                    ..FloorOptions::new(CORPUS_LEN, value_len)
                })?;
                index_len = corpus.index_len();
                cells.extend([BucketRead::Copy, BucketRead::Scan].map(|how| cost(&corpus, how)));
            }
            println!(
                "{bucket_len:>6} B {value_len:>7} B {:>10} {:>8.0} {:>8.0} {:>15.0} {:>15.0}",
                index_len >> 20,
                cells[0],
                cells[1],
                cells[2],
                cells[3]
            );
        }
    }
    Ok(())
}

fn cost(corpus: &FloorCorpus, how: BucketRead) -> f64 {
    let mut private = vec![0; corpus.value_len()];
    let mut count = 0u64;
    let timing = time_chained(21, 50_000, |previous| {
        count += 1;
        let key = mix64(previous ^ count) as usize % corpus.keys_count();
        corpus.read(key, how, &mut private).unwrap_or(0)
    });
    timing.median_ns
}
