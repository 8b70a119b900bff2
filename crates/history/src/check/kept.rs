//! Nothing is lost, where nothing may leave: memory has room for everything, and whatever
//! was away had learned everything before the next was away.
//!
//! A value is *owed* to a GET if the last mutation that can have had an effect by then is
//! one write that was acknowledged before the GET began. What overlaps it, or may take
//! effect at any later time, or a flush, explains a miss; then nothing is said. Values of
//! histories have no expiry, so *expired* is a miss like any other, and *flushed* one if no
//! flush explains it.
//!
//! How many GETs were owed something is counted: a history in which none was shows nothing.

use super::{Findings, Rule, Violation};
use crate::event::{Event, Kind, NEVER, Outcome};

/// Checks one key; flushes are all, acknowledged or not.
pub(super) fn check_kept(events: &[&Event], flushes: &[&Event], findings: &mut Findings) {
    for (get, write) in owed(events, flushes) {
        findings.owed += 1;
        if !is_miss(get.outcome) {
            continue;
        }
        findings.violations.push(Violation {
            rule: Rule::Kept,
            seen: *get,
            against: Some(*write),
            what: "what had been acknowledged before it began is not found".to_owned(),
        });
    }
}

/// GETs of one key that were answered and had to find a value, each with the write of that
/// value.
pub(crate) fn owed<'a>(events: &[&'a Event], flushes: &[&Event]) -> Vec<(&'a Event, &'a Event)> {
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
    let write_owed = |get: &Event| {
        let begun = mutations.partition_point(|mutation| mutation.begin_ns <= get.end_ns);
        let at = begun.checked_sub(1)?;
        let write = mutations[at];
        let stores = write.is_write() || write.kind == Kind::Increment;
        let is_there = stores && write.is_acknowledged() && write.end_ns < get.begin_ns;
        let is_flushed = |flush: &&Event| {
            flush.begin_ns <= get.end_ns && over_ns(flush) >= write.order_begin_ns()
        };
        let is_explained = quiet_ns[at] >= Some(write.begin_ns) || flushes.iter().any(is_flushed);
        (is_there && !is_explained).then_some(write)
    };
    let gets = events.iter().copied().filter(|event| {
        event.kind == Kind::Get && (event.outcome == Outcome::Hit || is_miss(event.outcome))
    });
    gets.filter_map(|get| Some((get, write_owed(get)?)))
        .collect()
}

const fn is_miss(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Absent | Outcome::Expired | Outcome::Flushed | Outcome::Inquorate
    )
}

/// When it has no effect any more that it has not had.
fn over_ns(event: &Event) -> u64 {
    match event.outcome {
        Outcome::Stored | Outcome::Denied => event.end_ns,
        _ => NEVER,
    }
}
