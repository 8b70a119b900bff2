//! The bound on the process's memory. One test, because the bound is measured
//! on the whole process.

#[path = "all/support/mod.rs"]
mod support;

use crate::support::{Caller, Setup};
use std::io::Write as _;
use std::time::{Duration, Instant};
use tonic::Code;
use trefoil_cell::Mode;
use trefoil_layout::op::Outcome;
use trefoil_rpc::v1;

const MIB: u64 = 1 << 20;

fn set_limit(
    caller: &mut Caller<'_>,
    bytes: u64,
) -> Result<v1::SetMemoryLimitResponse, tonic::Status> {
    let call = caller
        .client
        .set_memory_limit(v1::SetMemoryLimitRequest { bytes });
    caller.cell.runtime.block_on(call).map(|r| r.into_inner())
}

/// Sets `count` values of `len` bytes; every one is accepted.
fn fill(caller: &mut Caller<'_>, name: &str, count: u32, len: usize) {
    let value = vec![1; len];
    for number in 0..count {
        let key = format!("{name}-{number}");
        let outcome = caller.set(0, key.as_bytes(), &value).outcome;
        assert_eq!(outcome, Outcome::Applied, "{key}");
    }
}

fn resident(caller: &mut Caller<'_>) -> u64 {
    caller.stats().process.unwrap().resident_bytes
}

#[test]
fn the_process_stays_under_its_limit_and_follows_it() {
    a_corpus_that_does_not_fit_is_refused();
    let mut setup = Setup::new(Mode::R1, 1);
    setup.options.memory_limit = 64 * MIB;
    let cell = setup.start();
    let mut caller = cell.client();
    let refused = set_limit(&mut caller, MIB).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("too small"), "{refused}");
    let refused = set_limit(&mut caller, 1 << 60).unwrap_err();
    assert!(refused.message().contains("this machine"), "{refused}");

    // Far more than fits, in values of very different lengths.
    for (name, count, len) in [("a", 6000, 10_000), ("b", 8000, 2000), ("c", 60, 3 << 20)] {
        fill(&mut caller, name, count, len);
        let held = resident(&mut caller);
        assert!(held <= 64 * MIB, "{name}: {held}");
    }

    // More room is used at once, less is given back soon.
    let answer = set_limit(&mut caller, 192 * MIB).unwrap();
    assert_eq!(answer.previous_bytes, 64 * MIB);
    fill(&mut caller, "d", 5000, 28_000);
    let full = caller.stats();
    let held = full.process.unwrap().resident_bytes;
    assert!((120 * MIB..=192 * MIB).contains(&held), "{held}");
    set_limit(&mut caller, 96 * MIB).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while resident(&mut caller) > 96 * MIB {
        assert!(Instant::now() < deadline, "{:?}", caller.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
    let stats = caller.stats();
    assert!(
        stats.members[0].items > 2000,
        "only what had to go went: {stats:?}"
    );
}

fn a_corpus_that_does_not_fit_is_refused() {
    let mut setup = Setup::new(Mode::R2, 2);
    setup.options.memory_limit = 40 * MIB;
    let path = setup.write("corpus.csv", "key,value\n");
    let file = std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap();
    let mut file = std::io::BufWriter::new(file);
    for number in 0..40_000 {
        writeln!(file, "{number},{number:01000}").unwrap();
    }
    file.flush().unwrap();
    setup.options.load = Some(path);
    let error = setup.try_start().err().unwrap().to_string();
    assert!(error.contains("raise the limit"), "{error}");
}
