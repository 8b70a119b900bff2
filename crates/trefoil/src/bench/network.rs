//! `bench network`.

use super::{need_two_cores, program};
use crate::args::NetworkArgs;
use crate::failure::{Failure, Outcome, print_json, print_line};
use std::process::ExitCode;
use trefoil_bench::network::{NetworkOptions, network};

pub(super) fn run(args: &NetworkArgs) -> Outcome {
    let is_possible = args.seconds > 0.0 && args.seconds.is_finite() && args.rounds > 0;
    if !is_possible || args.value_size.is_empty() {
        return Err(Failure::Usage(
            "--seconds and --rounds have to be above 0, and there has to be a --value-size".into(),
        ));
    }
    need_two_cores()?;
    if let Some(out) = &args.out {
        // Before minutes are spent.
        std::fs::create_dir_all(out)
            .map_err(|e| Failure::doing(format!("cannot make {}", out.display()), e))?;
    }
    let options = NetworkOptions {
        program: program()?,
        seconds: args.seconds,
        rounds: args.rounds,
        value_lens: args.value_size.clone(),
        only: args.only.clone(),
    };
    let report = network(&options, &mut |what| eprintln!("{what}")).map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.table())?;
    }
    // What was measured is told by then, whatever becomes of the plots.
    if let Some(out) = &args.out {
        report.draw(out).map_err(Failure::of)?;
    }
    Ok(match report.has_failed() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}
