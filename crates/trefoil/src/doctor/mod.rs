//! `doctor`: looks a cell over, and says what is wrong and what to do about it.
//!
//! Nothing is changed, and nothing is kept busy: pages are bounded, one at a time is asked
//! of a backend, and so many bytes in a second.
//!
//! | module | what it does |
//! |---|---|
//! | `census` | what all backends say of themselves at one moment |
//! | `health` | what is wrong with them, by two such moments |
//! | `keys` | what the replicas of all shards hold, compared ([`trefoil_recovery::examine`]) |
//! | `differences` | what came of that, as findings |
//! | `engines` | what is wrong with engines, likewise |
//! | `replica` | one backend, asked by messages |
//! | `pace` | so many bytes in a second |
//! | `finding`, `report` | what is said |

mod census;
mod differences;
mod engines;
mod finding;
mod health;
mod keys;
mod pace;
mod replica;
mod report;

use crate::args::DoctorArgs;
use crate::cell::places;
use crate::failure::{Failure, Outcome, print_json};
use census::Census;
use finding::Finding;
use keys::{Keys, Look, Looked};
use report::{Report, Shown};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks at the backends at least: what is over by then is no finding.
const LASTING: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &DoctorArgs) -> Outcome {
    let begin = Instant::now();
    let cell = crate::connect::cell(&args.address)?;
    let config = cell.config();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::doing("cannot start the runtime for calls", error))?;
    let look = Look {
        sample: args.sample,
        bytes_per_s: args.rate.as_u64(),
        pause: args.pause,
        values: !args.versions_only,
        example_count: args.examples,
        end: args.timeout.map(|timeout| begin + timeout),
    };
    let before = Census::take(&cell, &runtime);
    let engines_before = cell.engines();
    let looked =
        runtime.block_on(async { Keys::new(&config, cell.tls(), &before, look).run().await });
    std::thread::sleep(LASTING.saturating_sub(before.at.elapsed()));
    // As it is now: it may have been flushed meanwhile.
    let cell = crate::connect::cell(&args.address).unwrap_or(cell);
    let after = Census::take(&cell, &runtime);
    let engines_after = cell.engines();
    let mut findings = health::lasting(&before, &after);
    findings.extend(differences::findings(&looked, config.mode, &findings));
    findings.extend(engines::findings(&engines_before, &engines_after));
    findings.extend(interrupted(&looked, &before, &after));
    findings.extend(unreplaced(&args.address.cell));
    let report = Report {
        cell: config.cell.clone(),
        mode: config.mode.to_string(),
        life: format!("{:016x}", config.life),
        config_id: config.config_id,
        clean: findings.is_empty(),
        sample: args.sample,
        done: looked.fraction,
        values_read: look.values,
        took_ms: begin.elapsed().as_millis() as u64,
        bytes_read: looked.bytes,
        keys: report::Keys::of(&looked),
        findings,
        examples: looked.examples.iter().map(Shown::of).collect(),
        backends: report::backends(&after),
        engines: engines_after.iter().map(engines::Engine::of).collect(),
    };
    match args.json {
        true => print_json(&report)?,
        false => report::print(&report)?,
    }
    Ok(match report.clean {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// What keeps a spare from taking a dead backend's place.
fn unreplaced(address: &str) -> Vec<Finding> {
    let Some(Ok(places)) = places::of(address) else {
        // That etcd is away, backends say.
        return Vec::new();
    };
    let finding = |what: String| {
        Finding::new(
            "unreplaced",
            what,
            "Start a process with `trefoil cell spare` on the host of the backends: it brings a \
             controller along, whose log says what else there is",
        )
    };
    places::troubles(&places).into_iter().map(finding).collect()
}

/// What became of the look itself: it ran out of time, or its cell is another one by now.
fn interrupted(looked: &Looked, before: &Census, after: &Census) -> Vec<Finding> {
    let mut all = Vec::new();
    if looked.is_cut_short {
        let percent = 100.0 * looked.fraction;
        all.push(Finding::new(
            "unfinished",
            format!("the time was over when {percent:.0} % of the keys had been looked at"),
            "Give more time by --timeout, a higher --rate, a smaller --sample, or \
             --versions-only",
        ));
    }
    if before.config.life != after.config.life {
        all.push(Finding::new(
            "unfinished",
            "the cell was started anew while it was looked at",
            "Run the doctor again",
        ));
    }
    all
}
