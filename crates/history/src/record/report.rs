//! Many rounds, and what came of them.

use super::RecordError;
use super::means;
use super::plan::{CarrierKind, Fault, RoundPlan, Wish};
use super::round::{Recorded, run};
use super::upgrade::UpgradeFigures;
use crate::check::{Findings, Promise, Rule, Violation, check_for};
use crate::damage::damage;
use crate::event::{Event, Kind, Outcome};
use crate::text::show_event;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Damages done to each round's history, to see that they are noticed.
const DAMAGES: usize = 10;
/// Violations shown of a round.
const SHOWN_MAX: usize = 3;
/// Lines of a key's history shown around a violation.
const LINES_MAX: usize = 60;

/// What all rounds together were.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HistoriesReport {
    /// Rounds.
    pub rounds: usize,
    /// Operations.
    pub operations: u64,
    /// Hits that were held against something older.
    pub comparisons: u64,
    /// Broken promises, by rule.
    pub violations: BTreeMap<Rule, usize>,
    /// What went wrong beside: processes that died or hung.
    pub troubles: Vec<String>,
    /// Operations by how the client reached the cell.
    pub carriers: BTreeMap<CarrierKind, u64>,
    /// How operations ended.
    pub outcomes: BTreeMap<String, u64>,
    /// What went wrong on purpose.
    pub faults: BTreeMap<Fault, u64>,
    /// Faults that were wished for and that this machine cannot do, with the reason.
    pub skipped: Vec<String>,
    /// Backends that were killed and voted again.
    pub recoveries: u64,
    /// How often the cell got another number of backends.
    pub resized: u64,
    /// Orders that were refused: the configuration could not be changed meanwhile, the
    /// successor was too slow, or a backend went away while the cell was resized.
    pub refused: u64,
    /// Orders that were being carried out when their round was over.
    pub unfinished: u64,
    /// Values that had to leave for others: memory was full.
    pub evictions: u64,
    /// Rounds after which the doctor was asked, and found nothing wrong.
    pub healthy: usize,
    /// Keys on which replicas differed then, because memory was full.
    pub healthy_dirty: u64,
    /// What was seen against rules that were not promised, because more than one backend
    /// was away at a time.
    pub void: BTreeMap<Rule, usize>,
    /// What came of another release's taking over and giving back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrades: Option<UpgradeFigures>,
    /// Histories broken on purpose, and how many of them the check noticed.
    pub damages: usize,
    /// See `damages`.
    pub damages_noticed: usize,
    /// Seconds spent recording.
    pub recording_s: f64,
    /// Seconds spent checking.
    pub checking_s: f64,
    /// Each violation shown, with its key's history and how to run it again.
    pub shown: Vec<String>,
}

impl HistoriesReport {
    /// The promise was kept, and the check would have noticed if not.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
            && self.troubles.is_empty()
            && self.damages == self.damages_noticed
            && self.operations > 0
    }

    /// Broken promises of all rules.
    pub fn violations_count(&self) -> usize {
        self.violations.values().sum()
    }

    fn add(&mut self, plan: &RoundPlan, recorded: Recorded) {
        let begin = std::time::Instant::now();
        let promise = plan.promise();
        let findings = check_for(&recorded.events, promise);
        self.checking_s += begin.elapsed().as_secs_f64();
        self.recording_s += recorded.seconds;
        self.rounds += 1;
        self.operations += findings.operations;
        self.comparisons += findings.comparisons;
        for event in &recorded.events {
            if let Some(carrier) = recorded.carriers.get(&event.client) {
                *self.carriers.entry(*carrier).or_default() += 1;
            }
        }
        for ((kind, outcome), count) in &findings.counts {
            let name = format!("{} {}", kind.name(), outcome.name());
            *self.outcomes.entry(name).or_default() += count;
        }
        self.recoveries += recorded.recoveries;
        self.resized += u64::from(recorded.resized);
        self.refused += recorded.refused;
        self.unfinished += recorded.unfinished;
        self.evictions += recorded.evictions;
        self.healthy += usize::from(recorded.healthy.is_some());
        self.healthy_dirty += recorded.healthy.unwrap_or_default();
        for (rule, count) in &findings.void {
            *self.void.entry(*rule).or_default() += count;
        }
        if let Some(upgraded) = recorded.upgraded {
            let mut figures = UpgradeFigures::default();
            figures.add(upgraded, &recorded.events);
            let troubles = figures.trouble();
            let all = self.upgrades.get_or_insert_default();
            all.add(upgraded, &recorded.events);
            self.troubles
                .extend(troubles.map(|trouble| format!("{trouble} ({})", plan.command())));
        }
        for (fault, count) in &recorded.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        for trouble in recorded.troubles {
            self.troubles
                .push(format!("{trouble} ({})", plan.command()));
        }
        for violation in &findings.violations {
            *self.violations.entry(violation.rule).or_default() += 1;
        }
        if findings.violations.is_empty() && promise != Promise::Weakened {
            let damaged = damage(&recorded.events, DAMAGES, plan.seed);
            self.damages += damaged.count();
            self.damages_noticed += damaged.noticed();
        }
        self.show(plan, &recorded.events, &findings);
    }

    /// The first violation of each rule, for people.
    fn show(&mut self, plan: &RoundPlan, events: &[Event], findings: &Findings) {
        let mut rules = Vec::new();
        for violation in &findings.violations {
            if rules.len() < SHOWN_MAX && !rules.contains(&violation.rule) {
                rules.push(violation.rule);
                self.shown.push(show(violation, events, plan));
            }
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for shown in &self.shown {
            let _ = writeln!(text, "{shown}");
        }
        for trouble in &self.troubles {
            let _ = writeln!(text, "trouble: {trouble}");
        }
        let list = |pairs: Vec<(String, u64)>| {
            let pairs: Vec<String> = (pairs.into_iter())
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            pairs.join(", ")
        };
        let outcomes = self.outcomes.iter().map(|(name, n)| (name.clone(), *n));
        let carriers = self.carriers.iter().map(|(name, n)| (name.to_string(), *n));
        let faults = self.faults.iter().map(|(name, n)| (name.to_string(), *n));
        let broken = self
            .violations
            .iter()
            .map(|(name, n)| (name.to_string(), *n as u64));
        let _ = writeln!(text, "operations  {}", list(outcomes.collect()));
        let _ = writeln!(text, "carriers    {}", list(carriers.collect()));
        let (recoveries, resized) = (self.recoveries, self.resized);
        let (refused, unfinished) = (self.refused, self.unfinished);
        let faults = list(faults.collect());
        let _ = writeln!(
            text,
            "faults      {faults}; {recoveries} recoveries, {resized} times resized, {refused} orders refused, {unfinished} unfinished"
        );
        if let Some(upgrades) = &self.upgrades {
            let _ = writeln!(text, "upgrades    {}", upgrades.text());
        }
        for skipped in &self.skipped {
            let _ = writeln!(text, "SKIPPED     {skipped}");
        }
        if !self.void.is_empty() {
            let void = self
                .void
                .iter()
                .map(|(rule, n)| (rule.to_string(), *n as u64));
            let void = list(void.collect());
            let _ = writeln!(text, "void        {void}: two backends were away at a time");
        }
        let _ = writeln!(text, "memory      {} values had to leave", self.evictions);
        let _ = writeln!(
            text,
            "doctor      found nothing wrong after {} rounds; full memory leaves {} keys different",
            self.healthy, self.healthy_dirty
        );
        let _ = writeln!(
            text,
            "checked     {} hits held against something older; {} of {} damages to good histories noticed",
            self.comparisons, self.damages_noticed, self.damages
        );
        let _ = writeln!(
            text,
            "time        {:.1} s recording, {:.1} s checking",
            self.recording_s, self.checking_s
        );
        let _ = write!(
            text,
            "{} operations in {} rounds: {} violations",
            self.operations,
            self.rounds,
            self.violations_count()
        );
        if !self.violations.is_empty() {
            let _ = write!(text, " ({})", list(broken.collect()));
        }
        text
    }
}

/// Runs the rounds that are wished for; `progress` is told of each.
pub fn histories(
    program: &Path,
    wish: &Wish,
    progress: &mut dyn FnMut(&str),
) -> Result<HistoriesReport, RecordError> {
    let mut report = HistoriesReport::default();
    let mut rounds = wish.rounds();
    report.skipped = means::without_what_cannot_be_done(&mut rounds);
    for skipped in &report.skipped {
        progress(&format!("SKIPPED: {skipped}"));
    }
    for (at, plan) in rounds.iter().enumerate() {
        progress(&format!(
            "round {} of {}: {}",
            at + 1,
            rounds.len(),
            plan.command()
        ));
        let recorded = run(program, plan)?;
        report.add(plan, recorded);
    }
    Ok(report)
}

fn show(violation: &Violation, events: &[Event], plan: &RoundPlan) -> String {
    let seen = &violation.seen;
    let from_ns = violation.against.map_or(seen.begin_ns, |against| {
        against.order_begin_ns().min(seen.begin_ns)
    });
    let is_part = |event: &Event| {
        let of_write = event.mark.origin() == seen.mark.origin() && event.kind != Kind::Get;
        event.kind.is_of_all() && event.end_ns >= from_ns
            || event.key == seen.key
                && event.begin_ns <= seen.end_ns
                && (event.end_ns >= from_ns || of_write)
                && (event.outcome != Outcome::Denied || event.is_write())
    };
    let mut lines: Vec<&Event> = events.iter().filter(|event| is_part(event)).collect();
    lines.sort_unstable_by_key(|event| event.begin_ns);
    let origin_ns = lines.first().map_or(0, |event| event.begin_ns);
    let mut text = format!("violation of {}: {}\n", violation.rule, violation.what);
    let _ = writeln!(text, "  seen     {}", show_event(seen, origin_ns));
    if let Some(against) = &violation.against {
        let _ = writeln!(text, "  against  {}", show_event(against, origin_ns));
    }
    let skipped = lines.len().saturating_sub(LINES_MAX);
    let _ = writeln!(
        text,
        "  history of key {} around it ({} operations, {skipped} left out), in ns:",
        seen.key,
        lines.len()
    );
    // Both ends matter: the write, and the hit.
    let half = LINES_MAX / 2;
    for (at, event) in lines.iter().enumerate() {
        if skipped == 0 || at < half || at >= lines.len() - half {
            let _ = writeln!(text, "    {}", show_event(event, origin_ns));
        }
    }
    let _ = write!(text, "  again: {}", plan.command());
    text
}
