//! Checks a history against the promise that the crate's first page states.
//!
//! Keys are independent, but for flushes and losses. For each key the writes are listed by
//! their marks, then time is swept once: what ended before an operation began is
//! the *floor* that it must not fall below. Sorting is what costs most.

mod counters;
mod floors;
mod kept;
mod key;
mod lives;
mod writes;

pub(crate) use kept::owed;

use crate::event::{Event, Kind, Outcome};
use std::collections::BTreeMap;
use std::fmt;

/// What a history may not show; see the crate's first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// A hit is what one write wrote.
    Intact,
    /// That write was begun.
    Known,
    /// It was not reported as not done.
    Denied,
    /// Not older than what was acknowledged before.
    Fresh,
    /// Not older than what was hit before.
    Monotone,
    /// The same for a value that was filled in after a miss.
    Fill,
    /// A CAS replaces exactly what it expects.
    Exact,
    /// Acknowledged mutations rise.
    Order,
    /// An increment counts once.
    Once,
    /// What was acknowledged is found ([`Promise::Kept`] only).
    Kept,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 10] = [
        Rule::Intact,
        Rule::Known,
        Rule::Denied,
        Rule::Fresh,
        Rule::Monotone,
        Rule::Fill,
        Rule::Exact,
        Rule::Order,
        Rule::Once,
        Rule::Kept,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Intact => "intact",
            Rule::Known => "known",
            Rule::Denied => "denied",
            Rule::Fresh => "fresh",
            Rule::Monotone => "monotone",
            Rule::Fill => "fill",
            Rule::Exact => "exact",
            Rule::Order => "order",
            Rule::Once => "once",
            Rule::Kept => "kept",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What was promised while a history was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promise {
    /// Two backends of a cohort were away at a time. What is read was written, whole, by
    /// somebody who was not told that it was not done: a value is never made up of
    /// others, and nobody promotes what one replica holds. How old it is, nobody says.
    Weakened,
    /// One failure at a time; values may leave for others.
    #[default]
    Fresh,
    /// The same, and nothing leaves: there is room for everything, and each failure was
    /// mended in whole before the next.
    Kept,
}

impl Promise {
    /// Whether it says this.
    pub const fn has(self, rule: Rule) -> bool {
        match self {
            Promise::Weakened => matches!(rule, Rule::Intact | Rule::Known | Rule::Denied),
            Promise::Fresh => !matches!(rule, Rule::Kept),
            Promise::Kept => true,
        }
    }
}

/// A broken promise: the operation that shows it, and what it contradicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// What was seen.
    pub seen: Event,
    /// What it contradicts, if that is one operation.
    pub against: Option<Event>,
    /// In words.
    pub what: String,
}

/// What a history contained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Broken promises, in the order of keys.
    pub violations: Vec<Violation>,
    /// What was seen and is against rules that were not promised.
    pub void: BTreeMap<Rule, usize>,
    /// How many operations of each kind ended how.
    pub counts: BTreeMap<(Kind, Outcome), u64>,
    /// Operations.
    pub operations: u64,
    /// Keys.
    pub keys: u64,
    /// Hits that were held against something that had ended before.
    pub comparisons: u64,
    /// GETs that had to find a value by *kept*, where that is promised.
    pub owed: u64,
}

impl Findings {
    /// Violations of a rule.
    pub fn violations_of(&self, rule: Rule) -> usize {
        self.violations.iter().filter(|v| v.rule == rule).count()
    }
}

/// Checks a history of one failure at a time; the events may come in any order.
pub fn check(events: &[Event]) -> Findings {
    check_for(events, Promise::Fresh)
}

/// Checks a history against what was promised.
pub fn check_for(events: &[Event], promise: Promise) -> Findings {
    let mut findings = Findings {
        operations: events.len() as u64,
        ..Findings::default()
    };
    let mut by_key: Vec<&Event> = Vec::with_capacity(events.len());
    let mut flushes: Vec<&Event> = Vec::new();
    let mut losses: Vec<&Event> = Vec::new();
    for event in events {
        *findings
            .counts
            .entry((event.kind, event.outcome))
            .or_default() += 1;
        match event.kind {
            Kind::Flush => flushes.push(event),
            Kind::Loss => losses.push(event),
            _ => by_key.push(event),
        }
    }
    by_key.sort_unstable_by_key(|event| (event.key, event.begin_ns, event.client, event.number));
    let all_flushes = flushes.clone();
    flushes.retain(|flush| flush.is_acknowledged());
    let lives = lives::Lives::of(&losses);
    for group in by_key.chunk_by(|a, b| a.key == b.key) {
        findings.keys += 1;
        key::check_key(group, &flushes, &lives, &mut findings);
        if promise.has(Rule::Kept) && losses.is_empty() {
            kept::check_kept(group, &all_flushes, &mut findings);
        }
    }
    let (broken, void) = (std::mem::take(&mut findings.violations).into_iter())
        .partition::<Vec<_>, _>(|violation| promise.has(violation.rule));
    for violation in void {
        *findings.void.entry(violation.rule).or_default() += 1;
    }
    findings.violations = broken;
    findings
}
