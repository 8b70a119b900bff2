//! A run in slots of equal length: what clients saw, what backends copied, what
//! processes used.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::super::steady::{Ended, Verdict};
use super::phase::percentiles;
use super::watch::Look;

/// Length of a slot: some 4,000 GETs, so that four of them lie beyond p99.9.
pub(super) const SLOT: Duration = Duration::from_millis(200);
const SLOT_MS: u64 = SLOT.as_millis() as u64;

/// One slot of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Slot {
    /// From the run's start.
    pub start_ms: u64,
    /// GETs and SETs that ended in it.
    pub gets: u64,
    /// See `gets`.
    pub sets: u64,
    /// Of these, operations that failed.
    pub failed: u64,
    /// GETs that found nothing, or an old value.
    pub misses: u64,
    /// See `misses`.
    pub stale: u64,
    /// Operations that were tried more than once.
    pub retried: u64,
    /// Of GETs, from when they were due: median, 99th and 99.9th percentile.
    pub get_ns: [u64; 3],
    /// The same of SETs.
    pub set_ns: [u64; 3],
    /// Bytes of answers to those who copied from a backend: a successor, others that
    /// recovered.
    pub copied_bytes: u64,
    /// Bytes of the calls of scans and repairs.
    pub repaired_bytes: u64,
    /// Share of a core that the client spent in operations.
    pub client_cores: f64,
    /// Cores that each process of the cell used.
    pub server_cores: BTreeMap<String, f64>,
}

/// All whole slots of a run of such a length; the rest is left out.
pub(super) fn slots(ended: &[Ended], looks: &[Look], length: Duration) -> Vec<Slot> {
    let count = (length.as_millis() as u64 / SLOT_MS) as usize;
    let mut slots: Vec<Slot> = (0..count as u64)
        .map(|number| Slot {
            start_ms: number * SLOT_MS,
            ..Slot::default()
        })
        .collect();
    let place = |at: Duration| (at.as_millis() as u64 / SLOT_MS) as usize;
    let mut times = vec![(Vec::new(), Vec::new()); count];
    for one in ended {
        let number = place(one.at);
        let (Some(slot), Some((gets, sets))) = (slots.get_mut(number), times.get_mut(number))
        else {
            continue;
        };
        let took = one.took.as_nanos() as u64;
        match one.is_set {
            true => sets.push(took),
            false => gets.push(took),
        }
        slot.retried += one.retried;
        slot.failed += u64::from(matches!(one.verdict, Verdict::Failed | Verdict::Wrong));
        slot.misses += u64::from(matches!(one.verdict, Verdict::Missed(_)));
        slot.stale += u64::from(one.verdict == Verdict::Stale);
        slot.client_cores += one.inside.as_secs_f64() / SLOT.as_secs_f64();
    }
    for (slot, (mut gets, mut sets)) in slots.iter_mut().zip(times) {
        gets.sort_unstable();
        sets.sort_unstable();
        (slot.gets, slot.sets) = (gets.len() as u64, sets.len() as u64);
        (slot.get_ns, slot.set_ns) = (percentiles(&gets), percentiles(&sets));
    }
    // Every process has a figure in every slot, so that lines begin and end at 0.
    let names: Vec<&String> = looks.iter().flat_map(|look| look.cpu.keys()).collect();
    for slot in &mut slots {
        slot.server_cores = names.iter().map(|&name| (name.clone(), 0.0)).collect();
    }
    for pair in looks.windows(2) {
        let [before, after] = pair else { continue };
        // What happened between two looks stands where it was seen: never before its cause.
        let Some(slot) = slots.get_mut(place(after.at)) else {
            continue;
        };
        slot.copied_bytes += after.copied_bytes.saturating_sub(before.copied_bytes);
        slot.repaired_bytes += after.repaired_bytes.saturating_sub(before.repaired_bytes);
        for (name, used) in &after.cpu {
            let known = before.cpu.get(name).copied().unwrap_or_default();
            let cores = used.saturating_sub(known).as_secs_f64() / SLOT.as_secs_f64();
            *slot.server_cores.entry(name.clone()).or_default() += cores;
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_client::MissReason;

    #[test]
    fn slots_have_what_ended_in_them_and_what_was_used_meanwhile() {
        let one = |at_ms, is_set, verdict| Ended {
            at: Duration::from_millis(at_ms),
            is_set,
            took: Duration::from_micros(at_ms),
            inside: Duration::from_millis(20),
            retried: 1,
            verdict,
        };
        let ended = [
            one(1, false, Verdict::Fine),
            one(199, true, Verdict::Failed),
            one(450, false, Verdict::Missed(MissReason::Absent)),
            one(650, false, Verdict::Fine),
        ];
        let look = |at_ms, copied_bytes, cpu: &[(&str, u64)]| Look {
            at: Duration::from_millis(at_ms),
            copied_bytes,
            repaired_bytes: copied_bytes / 10,
            cpu: (cpu.iter())
                .map(|(name, ms)| ((*name).to_owned(), Duration::from_millis(*ms)))
                .collect(),
        };
        let looks = [
            look(0, 0, &[("backend 0", 50)]),
            look(100, 10, &[("backend 0", 70)]),
            look(210, 30, &[("backend 0", 80), ("spare", 5)]),
            look(420, 300, &[("backend 0", 90), ("spare", 25)]),
        ];
        // The last, half slot is left out.
        let slots = slots(&ended, &looks, Duration::from_millis(700));
        assert_eq!(slots.len(), 3);
        let counts = |slot: &Slot| (slot.gets, slot.sets, slot.failed, slot.misses, slot.retried);
        assert_eq!(counts(&slots[0]), (1, 1, 1, 0, 2));
        assert_eq!(counts(&slots[1]), (0, 0, 0, 0, 0));
        assert_eq!(counts(&slots[2]), (1, 0, 0, 1, 1));
        assert_eq!(slots[0].set_ns, [199_000; 3]);
        assert_eq!(slots[1].get_ns, [0; 3]);
        assert_eq!(slots[0].copied_bytes, 10);
        assert_eq!((slots[1].copied_bytes, slots[1].repaired_bytes), (20, 2));
        assert_eq!((slots[2].copied_bytes, slots[2].repaired_bytes), (270, 27));
        assert!((slots[0].client_cores - 0.2).abs() < 1e-9);
        assert!((slots[0].server_cores["backend 0"] - 0.1).abs() < 1e-9);
        assert!((slots[1].server_cores["spare"] - 0.025).abs() < 1e-9);
        assert_eq!(slots[0].server_cores["spare"], 0.0);
    }
}
