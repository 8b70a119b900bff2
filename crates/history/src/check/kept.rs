//! Nothing is lost, where nothing may leave: memory has room for everything, and whatever
//! was away had learned everything before the next was away.
//!
//! A miss shows a lost write if the last mutation that can have had an effect by then is
//! one write that was acknowledged before the GET began. What overlaps it, or may take
//! effect at any later time, or a flush, explains a miss; then nothing is said.

use super::{Findings, Rule, Violation};
use crate::event::{Event, Kind, NEVER, Outcome};

/// Checks one key; flushes are all, acknowledged or not.
pub(super) fn check_kept(events: &[&Event], flushes: &[&Event], findings: &mut Findings) {
    let mutations: Vec<&Event> = (events.iter())
        .filter(|event| event.kind != Kind::Get)
        .copied()
        .collect();
    // Of all mutations before each, when the last of them had no effect any more.
    let mut quiet_ns = Vec::with_capacity(mutations.len());
    let mut last_ns = None;
    for mutation in &mutations {
        quiet_ns.push(last_ns);
        last_ns = last_ns.max(Some(over_ns(mutation)));
    }
    for miss in events {
        let is_miss = matches!(miss.outcome, Outcome::Absent | Outcome::Inquorate);
        if miss.kind != Kind::Get || !is_miss {
            continue;
        }
        let begun = mutations.partition_point(|mutation| mutation.begin_ns <= miss.end_ns);
        let Some(at) = begun.checked_sub(1) else {
            continue;
        };
        let write = mutations[at];
        let stores = write.is_write() || write.kind == Kind::Increment;
        let is_there = stores && write.is_acknowledged() && write.end_ns < miss.begin_ns;
        let is_flushed = |flush: &&Event| {
            flush.begin_ns <= miss.end_ns && over_ns(flush) >= write.order_begin_ns()
        };
        if !is_there || quiet_ns[at] >= Some(write.begin_ns) || flushes.iter().any(is_flushed) {
            continue;
        }
        findings.violations.push(Violation {
            rule: Rule::Kept,
            seen: **miss,
            against: Some(*write),
            what: "what had been acknowledged before it began is not found".to_owned(),
        });
    }
}

/// When it has no effect any more that it has not had.
fn over_ns(event: &Event) -> u64 {
    match event.outcome {
        Outcome::Stored | Outcome::Denied => event.end_ns,
        _ => NEVER,
    }
}
