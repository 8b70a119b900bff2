//! `bench scenario` and `bench all`.

use super::{need_two_cores, program};
use crate::args::{AllArgs, MaintenanceArgs, Scenario, ScenarioArgs};
use crate::failure::{Failure, Outcome, print_json, print_line};
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use trefoil_bench::scenario::{self, MaintenanceOptions, ScenarioError, ScenarioOptions};
use trefoil_bench::suite::{SuiteOptions, suite};

pub(super) fn scenario(args: &ScenarioArgs) -> Outcome {
    let mut options = ScenarioOptions::new(&program()?, args.quick);
    let has_names = matches!(args.name, Scenario::Alike | Scenario::Neighbours);
    if args.only.is_some() && !has_names {
        let why = "--only: this scenario's cases have no names";
        return Err(Failure::Usage(why.to_owned()));
    }
    if (args.kills.is_some() || args.overlap) && args.name != Scenario::Kills {
        let why = "--kills and --overlap are for the scenario kills";
        return Err(Failure::Usage(why.to_owned()));
    }
    options.only = args.only.clone();
    options.runs = runs(args, options.runs)?;
    if args.previous.is_some() != (args.name == Scenario::Upgrade) {
        let why = "--previous PATH: `upgrade` needs it, and no other scenario has it";
        return Err(Failure::Usage(why.to_owned()));
    }
    if let Some(previous) = args.previous.as_ref().filter(|path| !path.is_file()) {
        let why = format!(
            "--previous {}: there is no such program",
            previous.display()
        );
        return Err(Failure::Usage(why));
    }
    // `cell up` opens it, wherever that runs.
    options.previous = absolute(args.previous.as_deref())?;
    options.kills = args.kills.map(|count| count as usize);
    options.overlap = args.overlap;
    // A machine with one core has nothing to choose from.
    options.server_core = options.server_core.map(|_| args.server_core);
    options.client_core = options.client_core.map(|_| args.client_core);
    let progress = &mut |what: &str| eprintln!("{what}");
    match args.name {
        Scenario::Kill => show(args, scenario::kill(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Kills => show(args, scenario::kills(&options, progress), |report| {
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
        Scenario::FullKill => show(args, scenario::full_kill(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Alike => show(args, scenario::alike(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::StopStop => show(args, scenario::stop_stop(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Away => show(args, scenario::away(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Large => show(args, scenario::large(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Load => show(args, scenario::load(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Restarts => show(args, scenario::restarts(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Recovery => show(args, scenario::recovery(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Planned => show(args, scenario::planned(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Resize => show(args, scenario::resize(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Etcd => show(args, scenario::etcd(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Upgrade => show(args, scenario::upgrade(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Repair => show(args, scenario::repair(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Crowd => show(args, scenario::crowd(&options, progress), |report| {
            report.is_clean()
        }),
        Scenario::Cpu => show(args, scenario::cpu(&options, progress), |_| true),
        Scenario::Neighbours => neighbours(args, &options, progress),
    }
}

/// How often a scenario does what it reports the median of.
fn runs(args: &ScenarioArgs, usual: usize) -> Result<usize, Failure> {
    let (is_repeated, usual) = match args.name {
        Scenario::Kill | Scenario::Cpu | Scenario::Retries => (true, usual),
        Scenario::Planned | Scenario::Resize | Scenario::Recovery | Scenario::Etcd => {
            (true, if args.quick { 1 } else { 3 })
        }
        // It is not about latencies.
        Scenario::Upgrade => (true, 1),
        _ => (false, usual),
    };
    match args.runs {
        Some(_) if !is_repeated => Err(Failure::Usage(
            "--runs: this scenario reports no medians of runs".to_owned(),
        )),
        Some(count) => Ok(count as usize),
        None => Ok(usual),
    }
}

/// A table instead of a line for each figure.
fn neighbours(
    args: &ScenarioArgs,
    options: &ScenarioOptions,
    progress: &mut dyn FnMut(&str),
) -> Outcome {
    let report = scenario::neighbours(options, progress).map_err(Failure::of)?;
    if args.json {
        print_json(&report)?;
    } else {
        print_line(&report.table())?;
    }
    verdict(args.json, report.is_clean())
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
        let figures = json.as_object().into_iter().flatten();
        for (name, value) in figures.filter(|(name, _)| *name != "each") {
            print_figures(name, value)?;
        }
    }
    verdict(args.json, is_clean(&report))
}

/// The last line: whether everything holds that has to. Without it the measurement itself has
/// failed, which has the same exit code.
fn verdict(is_json: bool, is_clean: bool) -> Outcome {
    if !is_json {
        print_line(match is_clean {
            true => "verdict: everything holds",
            false => "verdict: not everything holds",
        })?;
    }
    Ok(match is_clean {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A line for each figure. What a list of cases found is named after the case;
/// the course of a run is for plots, and each run beside its median for `--json`.
fn print_figures(name: &str, value: &serde_json::Value) -> Result<(), Failure> {
    match value {
        serde_json::Value::Object(fields) => {
            for (field, value) in fields {
                if field != "timeline" && field != "each" {
                    print_figures(&format!("{name}.{field}"), value)?;
                }
            }
            Ok(())
        }
        serde_json::Value::Array(cases) => {
            for (at, case) in cases.iter().enumerate() {
                print_figures(&format!("{name}[{at}]"), case)?;
            }
            Ok(())
        }
        value => print_line(&format!("{name:<40} {value}")),
    }
}

/// A path as every process finds it.
fn absolute(path: Option<&std::path::Path>) -> Result<Option<std::path::PathBuf>, Failure> {
    let path = path.map(std::path::absolute).transpose();
    path.map_err(|error| Failure::doing("cannot find the previous release's program", error))
}

pub(super) fn maintenance(args: &MaintenanceArgs) -> Outcome {
    if args.seconds == Some(0) || args.keys == Some(0) {
        let why = "--seconds and --keys have to be above 0";
        return Err(Failure::Usage(why.to_owned()));
    }
    let mut scenario = ScenarioOptions::new(&program()?, args.quick);
    scenario.server_core = scenario.server_core.map(|_| args.server_core);
    scenario.client_core = scenario.client_core.map(|_| args.client_core);
    let mut options = MaintenanceOptions::new(scenario);
    options.calm = args.seconds.map_or(options.calm, Duration::from_secs);
    options.keys = args.keys.unwrap_or(options.keys);
    let report =
        scenario::maintenance(&options, &mut |what| eprintln!("{what}")).map_err(Failure::of)?;
    report.save(&args.out).map_err(Failure::of)?;
    match args.json {
        true => print_json(&report)?,
        false => print_line(&format!("{}\n{}", report.table(), report.events()))?,
    }
    eprintln!("table, CSV and plots are in {}", args.out.display());
    verdict(args.json, report.is_clean())
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
