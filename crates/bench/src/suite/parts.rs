//! The parts of a suite: each measures with the module that its own command
//! uses, and draws its plot.

use std::fmt::Display;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Figure, Part, PartResult, SuiteOptions, figures};
use crate::PolicyKind;
use crate::compare::{CompareOptions, compare};
use crate::floor::PageSize;
use crate::hit_ratio::{HitRatioOptions, HitRatioReport, OLTP_REFERENCE, hit_ratio};
use crate::look_aside::Touches;
use crate::memory::{MemoryOptions, measure_memory};
use crate::peer::PeerKind;
use crate::report::{HitRatioCurves, HitRatioSeries, save};
use crate::scenario::{self, ScenarioOptions};
use crate::size_shift::{SizeShiftOptions, size_shift};
use crate::workload::{OLTP, Trace, TraceReader};

type Progress<'a> = &'a mut dyn FnMut(&str);

/// Name, the command that measures it alone, and what measures it.
pub(super) const ALL: [(&str, &str, Part); 9] = [
    ("compare", figures::COMPARE, compared),
    ("memory", figures::MEMORY, memory),
    ("size_shift", figures::SIZE_SHIFT, sizes_shifted),
    ("hit_ratio", figures::HIT_RATIO, hit_ratios),
    ("kill", figures::KILL, killed),
    ("takeover", figures::TAKEOVER, taken_over),
    ("retries", figures::RETRIES, retried),
    ("reshape", figures::RESHAPE, reshaped),
    ("sim", figures::SIMULATOR, simulated),
];

fn words(error: impl Display) -> String {
    error.to_string()
}

fn part(report: &impl Serialize, figures: Vec<Figure>) -> PartResult {
    Ok((serde_json::to_value(report).map_err(words)?, figures))
}

fn compared(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let quick = options.is_quick;
    let compare_options = CompareOptions {
        corpus_len: if quick { 32 << 20 } else { 1 << 30 },
        runs: if quick { 1 } else { 5 },
        seconds: if quick { 0.2 } else { 1.0 },
        ..CompareOptions::new(&options.program, PeerKind::Memcached, PageSize::Huge)
    };
    let report = compare(&compare_options, progress).map_err(words)?;
    report.plot(&options.out).map_err(words)?;
    part(&report, figures::compare(&report))
}

fn memory(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let memory_options = MemoryOptions {
        items: if options.is_quick { 200_000 } else { 5_000_000 },
        key_len: 36,
        value_len: 224,
        peer: PeerKind::Memcached,
    };
    let report = measure_memory(&options.program, memory_options, progress).map_err(words)?;
    part(&report, figures::memory(&report))
}

fn sizes_shifted(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let mut reports = Vec::new();
    for policy in PolicyKind::ALL {
        progress(&format!("shifting value sizes, {policy}"));
        let mut shift = SizeShiftOptions {
            policy,
            ..SizeShiftOptions::default()
        };
        if options.is_quick {
            shift.requests /= 10;
            shift.keys_count /= 3;
            shift.memory_limit /= 2;
        }
        reports.push(size_shift(&shift, &mut |_| {}).map_err(words)?);
    }
    part(&reports, figures::size_shift(&reports))
}

fn hit_ratios(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let trace = TraceReader::new(OLTP)
        .and_then(Trace::load)
        .map_err(words)?;
    let mut reports = Vec::new();
    for (policy, reference) in OLTP_REFERENCE {
        let objects = reference.iter().map(|(objects, _)| *objects);
        let objects: Vec<u64> = match options.is_quick {
            true => objects.step_by(4).collect(),
            false => objects.collect(),
        };
        for touches in [Touches::Exact, Touches::Batched] {
            progress(&format!("hit ratios, {policy}, {touches} touches"));
            let options = HitRatioOptions {
                policy,
                touches,
                objects: objects.clone(),
            };
            reports.push(hit_ratio(&trace, &options, &mut |_| {}).map_err(words)?);
        }
    }
    save(&curves(&reports), &options.out.join("hit-ratio")).map_err(words)?;
    part(&reports, figures::hit_ratio(&reports))
}

/// A line and the reference's marks for each policy.
fn curves(reports: &[HitRatioReport]) -> HitRatioCurves {
    let mut series = Vec::new();
    for report in reports.iter().filter(|r| r.touches == Touches::Exact) {
        let points = report.results.iter().map(|r| (r.objects, r.hit_ratio));
        series.push(HitRatioSeries {
            name: report.policy.clone(),
            points: points.collect(),
            is_reference: false,
        });
    }
    for (policy, reference) in OLTP_REFERENCE {
        let points = reference.map(|(objects, percent)| (objects, percent / 100.0));
        series.push(HitRatioSeries {
            name: format!("{policy}, libCacheSim 0.3.5"),
            points: points.to_vec(),
            is_reference: true,
        });
    }
    HitRatioCurves {
        title: "OLTP trace, exact touches".to_owned(),
        series,
    }
}

fn scenario_options(options: &SuiteOptions) -> ScenarioOptions {
    ScenarioOptions::new(&options.program, options.is_quick)
}

fn killed(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let report = scenario::kill(&scenario_options(options), progress).map_err(words)?;
    save(&report.plot(), &options.out.join("kill")).map_err(words)?;
    part(&report, figures::kill(&report))
}

fn taken_over(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let report = scenario::takeover(&scenario_options(options), progress).map_err(words)?;
    part(&report, figures::takeover(&report))
}

fn retried(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let report = scenario::retries(&scenario_options(options), progress).map_err(words)?;
    part(&report, figures::retries(&report))
}

fn reshaped(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let report = scenario::reshape(&scenario_options(options), progress).map_err(words)?;
    part(&report, figures::reshape(&report))
}

/// Through the program: the simulator is no part of this crate.
fn simulated(options: &SuiteOptions, progress: Progress<'_>) -> PartResult {
    let seeds: u64 = if options.is_quick { 200 } else { 100_000 };
    progress(&format!("simulating {seeds} seeds"));
    let begin = Instant::now();
    let output = Command::new(&options.program)
        .args(["sim", "--seed", "1", "--seeds", &seeds.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(words)?;
    let seconds = begin.elapsed().as_secs_f64();
    let said: Value = String::from_utf8_lossy(&output.stdout).lines().collect();
    let report = json!({
        "seeds": seeds,
        "clean": output.status.success(),
        "seconds": seconds,
        "output": said,
    });
    part(
        &report,
        figures::simulator(seeds, output.status.success(), seconds),
    )
}
