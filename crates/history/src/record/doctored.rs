//! What the doctor says of a cell of three copies when everything is over: all faults, all
//! clients, and repair has had its time.
//!
//! Two things are no fault. At full memory each replica evicts by itself, so a replica may
//! lack what the others hold, or hold what they lack; and a backend that was started after
//! the memory limit was changed has another one than the rest.

use super::plan::{Fault, RoundPlan};
use std::path::Path;
use std::time::{Duration, Instant};
use trefoil_bench::doctor::{Finding, doctor};

/// How long repair may take: scans begin each second, and look twice.
const PATIENCE: Duration = Duration::from_secs(45);
/// Between two looks of the doctor.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether it makes sense to ask: less is promised, somebody is dead for good, or the
/// backends are of a release that may not know the questions.
pub(super) fn is_asked(plan: &RoundPlan) -> bool {
    let has = |fault| plan.faults.contains(&fault);
    let is_whole = !has(Fault::Kill) || has(Fault::Restart);
    plan.mode == "R=3.2" && plan.overlap <= 1 && plan.previous.is_none() && is_whole
}

/// What the doctor has read of a cell in which nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Healthy {
    /// Keys of which all replicas agree.
    pub clean: u64,
    /// Keys on which they differ because memory is full.
    pub dirty: u64,
}

/// Asks until nothing is wrong that should not be. A text says what is wrong in the end.
pub(super) fn examine(program: &Path, address: &str, plan: &RoundPlan) -> Result<Healthy, String> {
    let begin = Instant::now();
    loop {
        let wrong = match doctor(program, address) {
            Ok(diagnosis) => {
                let clean = diagnosis.clean_keys;
                let (excused, wrong): (Vec<Finding>, Vec<Finding>) = diagnosis
                    .findings
                    .into_iter()
                    .partition(|finding| is_excused(finding, plan));
                if wrong.is_empty() {
                    let dirty = excused.iter().filter_map(|finding| finding.keys).sum();
                    return Ok(Healthy { clean, dirty });
                }
                let said = wrong
                    .iter()
                    .map(|one| format!("{}: {}", one.kind, one.what));
                said.collect::<Vec<_>>().join("; ")
            }
            Err(error) => error.to_string(),
        };
        if begin.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            return Err(format!("{seconds} s after the end the doctor says {wrong}"));
        }
        std::thread::sleep(PAUSE);
    }
}

fn is_excused(finding: &Finding, plan: &RoundPlan) -> bool {
    let is_resized = plan.faults.contains(&Fault::Memory);
    match (finding.kind.as_str(), finding.how.as_deref()) {
        ("dirty", Some("lacks" | "holds")) => !plan.fits() || is_resized,
        ("memory_skew" | "memory", _) => is_resized,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Wish;
    use super::*;

    #[test]
    fn only_full_memory_and_changed_limits_are_excused() {
        let plan = |chaos, faults: &[Fault]| {
            let wish = Wish {
                chaos,
                keys: (!chaos).then_some(100),
                value_len: (!chaos).then(|| "100..1000".parse().unwrap()),
                memory: (!chaos).then_some(64 << 20),
                mode: Some("R=3.2".to_owned()),
                faults: Some(faults.to_vec()),
                ..Wish::default()
            };
            wish.rounds().remove(0)
        };
        let finding = |kind: &str, how: Option<&str>| Finding {
            kind: kind.to_owned(),
            how: how.map(str::to_owned),
            ..Finding::default()
        };
        let lacks = finding("dirty", Some("lacks"));
        let older = finding("dirty", Some("older"));
        let skew = finding("memory_skew", None);
        let full = plan(true, &[Fault::Move]);
        assert!(is_excused(&lacks, &full) && !is_excused(&older, &full));
        assert!(!is_excused(&skew, &full) && !is_excused(&finding("inquorate", None), &full));
        let roomy = plan(false, &[Fault::Move]);
        assert!(!is_excused(&lacks, &roomy));
        assert!(is_excused(&skew, &plan(false, &[Fault::Memory])));
        assert!(is_asked(&full) && !is_asked(&plan(true, &[Fault::Kill])));
        assert!(is_asked(&plan(true, &[Fault::Kill, Fault::Restart])));
    }
}
