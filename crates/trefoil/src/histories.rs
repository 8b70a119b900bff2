//! `histories`: what clients of a real cell are told while things go wrong,
//! checked against the promise.

use crate::args::HistoriesArgs;
use crate::failure::{Failure, Outcome, print_json, print_line};
use std::process::ExitCode;
use trefoil_history::record::{CarrierKind, Fault, Wish, histories, run_worker};

pub(crate) fn run(args: HistoriesArgs) -> Outcome {
    if let Some(mode) = &args.mode
        && !matches!(mode.as_str(), "R=1" | "R=3.2")
    {
        return Err(Failure::Usage(format!("--mode {mode}: give R=1 or R=3.2")));
    }
    if args.keys == Some(0) || args.clients == Some(0) || args.rounds == Some(0) {
        let what = "--keys, --clients and --rounds have to be above 0";
        return Err(Failure::Usage(what.to_owned()));
    }
    if args.overlap == 0 || args.seconds.is_some_and(|s| !(s > 0.0 && s.is_finite())) {
        let what = "--overlap and --seconds have to be above 0";
        return Err(Failure::Usage(what.to_owned()));
    }
    if let Some(previous) = &args.previous
        && !previous.is_file()
    {
        let what = format!(
            "--previous {}: there is no such program",
            previous.display()
        );
        return Err(Failure::Usage(what));
    }
    let faults = args.faults.as_ref().map_or(&[][..], |faults| &faults.0);
    let beside = faults.iter().find(|fault| !fault.is_beside_upgrades());
    if let (Some(_), Some(fault)) = (&args.previous, beside) {
        let what = format!(
            "--previous: no operation may fail but by the upgrade, so --faults without {fault}"
        );
        return Err(Failure::Usage(what));
    }
    if args.mode.as_deref() == Some("R=1") && faults.contains(&Fault::Replace) {
        let what = "--faults replace: at R=1 a spare begins empty; give another --mode";
        return Err(Failure::Usage(what.to_owned()));
    }
    let carriers = args.carriers.as_deref().unwrap_or(&[]);
    if carriers.contains(&CarrierKind::Queue) && args.mode.is_none() {
        let what = "--carriers queue: say which cells are to have queues, by --mode R=1 or R=3.2";
        return Err(Failure::Usage(what.to_owned()));
    }
    let previous = args.previous.map(std::path::absolute).transpose();
    let previous =
        previous.map_err(|e| Failure::doing("cannot find the previous release's program", e))?;
    let program =
        std::env::current_exe().map_err(|e| Failure::doing("cannot find this program", e))?;
    let wish = Wish {
        chaos: args.chaos,
        seconds: args.seconds,
        overlap: args.overlap,
        operations: args.operations,
        seed: args.seed,
        rounds: args.rounds,
        keys: args.keys,
        value_len: args.value_len,
        memory: args.memory.map(|memory| memory.as_u64()),
        clients: args.clients,
        carriers: args.carriers,
        faults: args.faults.map(|faults| faults.0),
        mode: args.mode,
        previous,
    };
    trefoil_history::record::enclose(&wish).map_err(Failure::of)?;
    let report =
        histories(&program, &wish, &mut |what| eprintln!("{what}")).map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.text())?;
    }
    Ok(match report.is_clean() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// One client, whose plan comes on standard input.
pub(crate) fn worker() -> Outcome {
    run_worker().map_err(Failure::of)?;
    Ok(ExitCode::SUCCESS)
}
