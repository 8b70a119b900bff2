//! Increments count exactly once.
//!
//! A counter begins with an `add`, whose mark its values keep, and goes up by
//! one with each increment. It may vanish (evicted, erased) and begin anew.

use super::writes::Writes;
use super::{Findings, Rule, Violation};
use crate::event::{Event, Kind, Mark, Outcome};
use std::collections::HashMap;

/// Checks the counters that one key has held.
pub(super) fn check_counters(events: &[&Event], writes: &Writes<'_>, findings: &mut Findings) {
    let increments = |outcome| {
        let of = move |event: &&&Event| event.kind == Kind::Increment && event.outcome == outcome;
        events.iter().filter(of).copied()
    };
    if !(events.iter()).any(|event| event.kind == Kind::Increment || event.mark.count > 0) {
        return;
    }
    let mut broken = |seen: &Event, against: Option<&Event>, what: &str| {
        findings.violations.push(Violation {
            rule: Rule::Once,
            seen: *seen,
            against: against.copied(),
            what: what.to_owned(),
        });
    };
    // No two were told the same result.
    let mut results: HashMap<Mark, &Event> = HashMap::new();
    for event in increments(Outcome::Stored) {
        if writes.get(event.mark.origin()).is_none() {
            broken(event, None, "an increment of a counter that nobody began");
        }
        if let Some(other) = results.insert(event.mark, event) {
            broken(
                event,
                Some(other),
                "two increments with one result: one is lost",
            );
        }
    }
    check_rising(events, &mut broken);
    check_not_more(events, &mut broken);
}

type Broken<'a> = dyn FnMut(&Event, Option<&Event>, &str) + 'a;

/// Of one counter, what ends before another begins has a lower count.
fn check_rising(events: &[&Event], broken: &mut Broken<'_>) {
    let shows = |event: &&&Event| {
        let shown = matches!(
            (event.kind, event.outcome),
            (Kind::Increment, Outcome::Stored) | (Kind::Get, Outcome::Hit)
        );
        shown && event.mark != Mark::NONE
    };
    let begun: Vec<&Event> = events.iter().filter(shows).copied().collect();
    let mut ended = begun.clone();
    ended.sort_unstable_by_key(|event| event.end_ns);
    let mut ended = ended.into_iter().peekable();
    let mut highest: HashMap<Mark, &Event> = HashMap::new();
    for event in begun {
        while let Some(done) = ended.next_if(|done| done.end_ns < event.begin_ns) {
            let known = highest.entry(done.mark.origin()).or_insert(done);
            if done.mark.count > known.mark.count {
                *known = done;
            }
        }
        let Some(floor) = highest.get(&event.mark.origin()) else {
            continue;
        };
        let is_lower = match event.kind {
            Kind::Increment => event.mark.count <= floor.mark.count,
            _ => event.mark.count < floor.mark.count,
        };
        if is_lower {
            let what = "a counter that had been higher before: an increment is lost";
            broken(event, Some(floor), what);
        }
    }
}

/// A count is no higher than the increments that can have been done by then.
fn check_not_more(events: &[&Event], broken: &mut Broken<'_>) {
    // Increments without a known result may have been of any counter.
    let unknown: Vec<u64> = (events.iter())
        .filter(|event| event.kind == Kind::Increment && event.outcome == Outcome::Unknown)
        .map(|event| event.begin_ns)
        .collect();
    let mut of_counter: HashMap<Mark, Vec<u64>> = HashMap::new();
    for event in events {
        if event.kind == Kind::Increment && event.outcome == Outcome::Stored {
            let begins = of_counter.entry(event.mark.origin()).or_default();
            begins.push(event.begin_ns);
        }
    }
    for event in events {
        let is_shown = matches!(
            (event.kind, event.outcome),
            (Kind::Increment, Outcome::Stored) | (Kind::Get, Outcome::Hit)
        );
        if !is_shown || event.mark.count == 0 {
            continue;
        }
        // Both lists are in the order of beginning, as the events are.
        let begun_by = |begins: &[u64]| begins.partition_point(|b| *b < event.end_ns);
        let own = of_counter.get(&event.mark.origin());
        let most = own.map_or(0, |begins| begun_by(begins)) + begun_by(&unknown);
        if event.mark.count as usize > most {
            broken(event, None, "a count above all increments that were begun");
        }
    }
}
