//! The rules of one key.

use super::counters::check_counters;
use super::floors::{Floor, Floors};
use super::lives::Lives;
use super::writes::Writes;
use super::{Findings, Rule, Violation};
use crate::event::{Event, Kind, Mark, Outcome};
use std::collections::HashMap;
use trefoil_layout::Version;

/// Checks all events of one key, which come in the order of their beginning.
pub(super) fn check_key<'a>(
    events: &[&'a Event],
    flushes: &[&'a Event],
    lives: &Lives,
    findings: &mut Findings,
) {
    let writes = Writes::of(events);
    let mut floors = Floors::of(events, &writes, flushes, lives);
    let mut versions = HashMap::new();
    for event in events {
        let floor = floors.at(event.begin_ns);
        match (event.kind, event.outcome) {
            (Kind::Get, Outcome::Hit) => {
                check_hit(event, &writes, findings);
                check_age(
                    event,
                    event.mark,
                    event.version,
                    &writes,
                    floor,
                    lives,
                    findings,
                );
                check_version(event, &mut versions, findings);
            }
            (_, Outcome::Corrupt) => findings.violations.push(Violation {
                rule: Rule::Intact,
                seen: **event,
                against: None,
                what: "bytes that nobody wrote for this key".to_owned(),
            }),
            (Kind::Get, _) => {}
            (_, Outcome::Stored) => {
                check_order(event, floor, lives, findings);
                check_version(event, &mut versions, findings);
                if event.kind == Kind::Cas && event.expected != Mark::NONE {
                    // A CAS that was stored has read what it replaced.
                    let (mark, version) = (event.expected, event.expected_version);
                    check_age(event, mark, version, &writes, floor, lives, findings);
                }
            }
            _ => {}
        }
    }
    check_exact(events, &writes, lives, findings);
    check_counters(events, &writes, findings);
}

/// A hit is on a write that was begun, is not denied, and has its length.
fn check_hit(hit: &Event, writes: &Writes<'_>, findings: &mut Findings) {
    let mut broken = |rule, against, what: &str| {
        findings.violations.push(Violation {
            rule,
            seen: *hit,
            against,
            what: what.to_owned(),
        });
    };
    let origin = writes.get(hit.mark.origin());
    let (Some(write), Some(_)) = (writes.get(hit.mark), origin) else {
        return broken(Rule::Known, None, "a value that nobody wrote");
    };
    let is_counter = hit.mark.count > 0 || write.event.len == 0;
    if write.event.begin_ns > hit.end_ns {
        broken(Rule::Known, Some(*write.event), "a value from the future");
    }
    if write.event.outcome == Outcome::Denied {
        let what = "a value whose write was reported as not done";
        broken(Rule::Denied, Some(*write.event), what);
    }
    if !is_counter && write.event.len != hit.len {
        broken(
            Rule::Intact,
            Some(*write.event),
            "a value of another length",
        );
    }
}

/// Versions are unique: one of them never stands for two values.
fn check_version<'a>(
    event: &'a Event,
    versions: &mut HashMap<Version, &'a Event>,
    findings: &mut Findings,
) {
    if event.version.is_zero() {
        return;
    }
    let other = *versions.entry(event.version).or_insert(event);
    let is_erased = |event: &Event| event.kind == Kind::Erase;
    if other.mark != event.mark || is_erased(other) != is_erased(event) {
        findings.violations.push(Violation {
            rule: Rule::Intact,
            seen: *event,
            against: Some(*other),
            what: "one version of two values".to_owned(),
        });
    }
}

/// What was read is no older than anything that had ended when the reader began.
fn check_age(
    reader: &Event,
    mark: Mark,
    version: Version,
    writes: &Writes<'_>,
    floor: &Floor<'_>,
    lives: &Lives,
    findings: &mut Findings,
) {
    let Some(write) = writes.get(mark) else {
        return;
    };
    if floor.is_empty() {
        return;
    }
    findings.comparisons += 1;
    let version = match version.is_zero() {
        true => write.version,
        false => version,
    };
    let seen = Event { mark, ..*reader };
    let by_version = floor.above_version(lives.of_seen(&write, &seen), version);
    let newer = by_version
        .or_else(|| floor.after(write.order_end_ns))
        // A fill that is stored after a flush was not there to be flushed.
        .or_else(|| floor.flushed(write.stored_by_ns(mark)));
    let Some(newer) = newer else {
        return;
    };
    let rule = match (reader.kind, newer.kind, write.event.kind) {
        (_, _, Kind::Fill) if by_version.is_none() => Rule::Fill,
        (Kind::Cas, _, _) => Rule::Exact,
        (_, Kind::Get, _) => Rule::Monotone,
        _ => Rule::Fresh,
    };
    let how = match by_version {
        Some(_) => "of a lower version than",
        None => "that had been written before",
    };
    let what = match newer.kind {
        Kind::Get => "what had been hit",
        _ => "what had been acknowledged",
    };
    let role = match reader.kind {
        Kind::Cas => "a CAS replaced a value",
        _ => "a hit on a value",
    };
    findings.violations.push(Violation {
        rule,
        seen: *reader,
        against: Some(*newer),
        what: format!("{role} {how} {what} before it began"),
    });
}

/// What is acknowledged lies above all that had been acknowledged or hit. A fill
/// is as old as its miss.
fn check_order(event: &Event, floor: &Floor<'_>, lives: &Lives, findings: &mut Findings) {
    if event.kind == Kind::Fill {
        return;
    }
    if let Some(newer) = floor.above_version(lives.of_mutation(event), event.version) {
        findings.violations.push(Violation {
            rule: Rule::Order,
            seen: *event,
            against: Some(*newer),
            what: "acknowledged at a lower version than what had been acknowledged or hit \
                   before it began"
                .to_owned(),
        });
    }
}

/// Nothing that was acknowledged or seen stands between a CAS and what it
/// replaced, and nothing is replaced twice.
fn check_exact(events: &[&Event], writes: &Writes<'_>, lives: &Lives, findings: &mut Findings) {
    let cas = |event: &&&Event| {
        event.kind == Kind::Cas && event.is_acknowledged() && event.expected != Mark::NONE
    };
    if events.iter().filter(cas).count() == 0 {
        return;
    }
    let holds = |event: &&&Event| {
        let shows = matches!(
            (event.kind, event.outcome),
            (Kind::Get, Outcome::Hit) | (_, Outcome::Stored)
        );
        shows && !event.version.is_zero()
    };
    let mut held: Vec<(usize, Version, &Event)> = Vec::new();
    for event in events.iter().filter(holds) {
        let life = match event.outcome {
            Outcome::Stored => lives.of_mutation(event),
            _ => (writes.get(event.mark)).and_then(|write| lives.of_seen(&write, event)),
        };
        held.extend(life.map(|life| (life, event.version, *event)));
    }
    held.sort_unstable_by_key(|(life, version, _)| (*life, *version));
    let mut replaced: HashMap<Mark, &Event> = HashMap::new();
    for event in events.iter().filter(cas) {
        let mut broken = |other: &Event, what: &str| {
            findings.violations.push(Violation {
                rule: Rule::Exact,
                seen: **event,
                against: Some(*other),
                what: what.to_owned(),
            });
        };
        let expected = event.expected_version;
        if let Some(own_life) = lives.of_mutation(event)
            && !expected.is_zero()
            && !event.version.is_zero()
        {
            let below = held.partition_point(|(life, version, _)| {
                (*life, *version) < (own_life, event.version)
            });
            if let Some((life, version, between)) = below.checked_sub(1).map(|at| held[at])
                && life == own_life
                && version > expected
            {
                let what = "a CAS replaced a value although a newer one was acknowledged or hit";
                broken(between, what);
            }
        }
        if let Some(other) = replaced.insert(event.expected, event) {
            let same = match (expected.is_zero(), other.expected_version.is_zero()) {
                (false, false) => expected == other.expected_version,
                // Acknowledged before either began, it has one version only.
                _ => writes.get(event.expected).is_some_and(|write| {
                    write.event.is_acknowledged()
                        && write.order_end_ns < event.begin_ns.min(other.begin_ns)
                }),
            };
            if same {
                broken(other, "two CAS replaced the same value");
            }
        }
    }
}
