//! `bench ordered`.

use super::{need_two_cores, program};
use crate::args::{OrderedBenchArgs, OrderedPart};
use crate::failure::{Failure, Outcome, print_json, print_line};
use std::process::ExitCode;
use trefoil_bench::ordered::{draw, ordered};
use trefoil_ordered_load::LoadOptions;

pub(super) fn run(args: &OrderedBenchArgs) -> Outcome {
    if args.seconds <= 0.0 || !args.seconds.is_finite() {
        return Err(Failure::Usage("--seconds has to be above 0".into()));
    }
    need_two_cores()?;
    if let Some(out) = &args.out {
        // Before minutes are spent.
        std::fs::create_dir_all(out)
            .map_err(|e| Failure::doing(format!("cannot make {}", out.display()), e))?;
    }
    let has = |part| args.only.is_empty() || args.only.contains(&part);
    let options = LoadOptions {
        runs: args.runs,
        seconds: args.seconds,
        client_core: args.client_core,
        server_core: args.server_core,
        commits: has(OrderedPart::Commits),
        workloads: has(OrderedPart::Workloads),
        off_host: has(OrderedPart::OffHost),
        off_host_workloads: has(OrderedPart::OffHostWorkloads),
        one_thread: has(OrderedPart::OneThread),
        shared: has(OrderedPart::Shared),
        durable: has(OrderedPart::Durable),
        rocks: has(OrderedPart::Rocksdb),
        library: args.library.clone(),
        folder: args.folder.clone().unwrap_or_else(std::env::temp_dir),
    };
    let report =
        ordered(&program()?, &options, &mut |what| eprintln!("{what}")).map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.table())?;
    }
    // What was measured is told by then, whatever becomes of the plots.
    if let Some(out) = &args.out {
        draw(&report, out).map_err(Failure::of)?;
    }
    Ok(ExitCode::SUCCESS)
}
