//! `bench scenario` and `bench all`.

use super::{need_two_cores, program};
use crate::args::{AllArgs, Scenario, ScenarioArgs};
use crate::failure::{Failure, Outcome, print_json, print_line};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;
use trefoil_bench::scenario::{self, ScenarioError, ScenarioOptions};
use trefoil_bench::suite::{SuiteOptions, suite};

pub(super) fn scenario(args: &ScenarioArgs) -> Outcome {
    let options = ScenarioOptions::new(&program()?, args.quick);
    let progress = &mut |what: &str| eprintln!("{what}");
    match args.name {
        Scenario::Kill => show(args, scenario::kill(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Takeover => show(args, scenario::takeover(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Retries => show(args, scenario::retries(&options, progress), |report| {
            report.uniform.bad + report.zipf.bad == 0
        }),
        Scenario::Reshape => show(args, scenario::reshape(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Cpu => show(args, scenario::cpu(&options, progress), |_| true),
    }
}

/// Prints a report; exit code 1 if something happened that never may.
fn show<R: Serialize>(
    args: &ScenarioArgs,
    report: Result<R, ScenarioError>,
    is_clean: fn(&R) -> bool,
) -> Outcome {
    let report = report.map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        let json = serde_json::to_value(&report).map_err(Failure::of)?;
        for (name, value) in json.as_object().into_iter().flatten() {
            // The course of a run is for plots.
            if !value.is_array() {
                print_line(&format!("{name:<28} {value}"))?;
            }
        }
    }
    Ok(if is_clean(&report) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

pub(super) fn all(args: AllArgs) -> Outcome {
    need_two_cores()?;
    let options = SuiteOptions {
        program: program()?,
        out: args.out,
        is_quick: args.quick,
    };
    let begin = Instant::now();
    let report = suite(&options, &mut |what| {
        eprintln!("{:>5} s  {what}", begin.elapsed().as_secs());
    })
    .map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.markdown())?;
    }
    eprintln!("report and plots are in {}", options.out.display());
    // A missed target is a result; a part without one is a failure.
    for failure in &report.failures {
        eprintln!("trefoil: {failure}");
    }
    Ok(if report.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
