//! Looks at a cell's processes while a load goes on: how many bytes backends have copied
//! and repaired, and how much CPU each process has used.
//!
//! All figures grow over the whole run, also where one process takes another's place.
//! What a process used between the last look at it and its end is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trefoil_client::{BackendStats, Cell};

use crate::peer::procfs;

/// Between two looks.
pub(super) const PERIOD: Duration = Duration::from_millis(100);
/// A backend that does not answer in time is told of by what it said before.
const PATIENCE: Duration = Duration::from_millis(80);
/// The process that starts and moves the others.
const SUPERVISOR: &str = "cell up";
/// One that is no backend (yet).
const SPARE: &str = "spare";

/// What one look has found, from the run's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Look {
    pub(super) at: Duration,
    pub(super) copied_bytes: u64,
    pub(super) repaired_bytes: u64,
    /// By process, as people know it.
    pub(super) cpu: BTreeMap<String, Duration>,
}

/// Looks until it is told to stop, and once more.
pub(super) fn watch(
    cell: &Cell,
    supervisor: u32,
    origin: Instant,
    is_over: &AtomicBool,
) -> Vec<Look> {
    let mut sums = Sums::default();
    let mut looks = Vec::new();
    loop {
        let is_last = is_over.load(Ordering::Relaxed);
        let said = said(cell.stats_soon(PATIENCE));
        let mut used = BTreeMap::new();
        for pid in procfs::children(supervisor).into_iter().chain([supervisor]) {
            if let Ok(time) = procfs::cpu_time(pid) {
                used.insert(pid, time);
            }
        }
        looks.push(sums.add(origin.elapsed(), supervisor, &said, &used));
        if is_last {
            return looks;
        }
        std::thread::sleep(PERIOD);
    }
}

/// What a backend's process says of itself.
#[derive(Debug, Clone, Copy, Default)]
struct Said {
    number: u32,
    pid: u32,
    copied_bytes: u64,
    repaired_bytes: u64,
    /// What it had received when it became the backend.
    received_bytes: Option<u64>,
}

fn said(answers: Vec<BackendStats>) -> Vec<Said> {
    let of_answer = |answer: BackendStats| {
        let stats = answer.stats.ok()?;
        let member = stats.members.into_iter().next()?;
        Some(Said {
            number: answer.number,
            pid: stats.process?.pid,
            copied_bytes: member.copied_bytes,
            repaired_bytes: member.repair.map_or(0, |repair| repair.bytes),
            received_bytes: member.takeover.map(|takeover| takeover.received_bytes),
        })
    };
    answers.into_iter().filter_map(of_answer).collect()
}

/// Sums over processes that come and go.
#[derive(Debug, Default)]
struct Sums {
    copied_bytes: u64,
    repaired_bytes: u64,
    /// The process of each backend.
    pids: BTreeMap<u32, u32>,
    /// Copied and repaired by each process, when it was looked at last.
    known: BTreeMap<u32, (u64, u64)>,
    cpu: BTreeMap<String, Duration>,
    used: BTreeMap<u32, Duration>,
}

impl Sums {
    fn add(
        &mut self,
        at: Duration,
        supervisor: u32,
        said: &[Said],
        used: &BTreeMap<u32, Duration>,
    ) -> Look {
        let is_first = self.pids.is_empty();
        // Of a dead one its last answer is known.
        for one in said.iter().filter(|one| used.contains_key(&one.pid)) {
            let before = self.pids.insert(one.number, one.pid);
            let predecessor = before.filter(|pid| *pid != one.pid);
            if let (Some(predecessor), Some(received)) = (predecessor, one.received_bytes) {
                // What the one before told its successor after the last look at it.
                let told = self.known.get(&predecessor).map_or(0, |known| known.0);
                self.copied_bytes += received.saturating_sub(told);
            }
            let now = (one.copied_bytes, one.repaired_bytes);
            // What was before the first look is not of this run.
            let of_new = if is_first { now } else { (0, 0) };
            let (copied, repaired) = self.known.insert(one.pid, now).unwrap_or(of_new);
            self.copied_bytes += now.0.saturating_sub(copied);
            self.repaired_bytes += now.1.saturating_sub(repaired);
        }
        let numbers: BTreeMap<u32, u32> = self.pids.iter().map(|(n, pid)| (*pid, *n)).collect();
        for (pid, time) in used {
            let name = match numbers.get(pid) {
                _ if *pid == supervisor => SUPERVISOR.to_owned(),
                Some(number) => format!("backend {number}"),
                None => SPARE.to_owned(),
            };
            let of_new = if self.used.is_empty() || is_first {
                *time
            } else {
                Duration::ZERO
            };
            let known = self.used.get(pid).copied().unwrap_or(of_new);
            *self.cpu.entry(name).or_default() += time.saturating_sub(known);
        }
        // A process's number may be given to another one.
        let gone: BTreeSet<u32> = (self.used.keys().copied())
            .filter(|pid| !used.contains_key(pid))
            .collect();
        self.known.retain(|pid, _| !gone.contains(pid));
        self.used = used.clone();
        Look {
            at,
            copied_bytes: self.copied_bytes,
            repaired_bytes: self.repaired_bytes,
            cpu: self.cpu.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: u32 = 10;

    fn one(number: u32, pid: u32, copied_bytes: u64, received_bytes: Option<u64>) -> Said {
        Said {
            number,
            pid,
            copied_bytes,
            repaired_bytes: copied_bytes,
            received_bytes,
        }
    }

    fn used(of: &[(u32, u64)]) -> BTreeMap<u32, Duration> {
        let time = |(pid, ms): &(u32, u64)| (*pid, Duration::from_millis(*ms));
        of.iter().map(time).collect()
    }

    #[test]
    fn sums_grow_when_a_process_takes_anothers_place() {
        let mut sums = Sums::default();
        let mut look =
            |said: &[Said], of: &[(u32, u64)]| sums.add(Duration::ZERO, CELL, said, &used(of));
        // What was before the run does not count.
        let first = look(
            &[one(0, 11, 500, None), one(1, 12, 70, None)],
            &[(10, 5), (11, 100), (12, 100), (13, 9)],
        );
        assert_eq!((first.copied_bytes, first.repaired_bytes), (0, 0));
        assert_eq!(first.cpu["backend 0"], Duration::ZERO);
        let moving = look(
            &[one(0, 11, 500, None), one(1, 12, 170, None)],
            &[(10, 6), (11, 110), (12, 130), (13, 39)],
        );
        assert_eq!(moving.copied_bytes, 100);
        assert_eq!(moving.cpu["spare"], Duration::from_millis(30));
        // 13 is backend 1 now: 12 had told it 30 more before it went. Another spare.
        let moved = look(
            &[one(0, 11, 500, None), one(1, 13, 0, Some(200))],
            &[(10, 6), (11, 110), (13, 49), (14, 3)],
        );
        assert_eq!(moved.copied_bytes, 130);
        assert_eq!(moved.cpu["backend 1"], Duration::from_millis(40));
        assert_eq!(moved.cpu["spare"], Duration::from_millis(33));
        assert_eq!(moved.cpu["cell up"], Duration::from_millis(1));
        let after = look(&[one(1, 13, 4, Some(200))], &[(13, 50)]);
        assert_eq!(after.copied_bytes, 134);
        // 13 was killed.
        let killed = look(&[one(1, 13, 4, Some(200))], &[(10, 6)]);
        assert_eq!((killed.copied_bytes, killed.repaired_bytes), (134, 104));
        let back = look(&[one(1, 15, 0, None)], &[(10, 6), (15, 1)]);
        assert_eq!(back.copied_bytes, 134);
    }
}
