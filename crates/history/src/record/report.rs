//! Many rounds, and what came of them.

use super::RecordError;
use super::demands::{Due, Seen, unmet};
use super::doctored;
use super::figures::{CarrierFigures, FaultFigures, count_by_carrier};
use super::means;
use super::plan::{CarrierKind, Fault, RoundPlan, Wish};
use super::round::{Recorded, run};
use super::upgrade::UpgradeFigures;
use crate::check::{Findings, Promise, Rule, Violation, check_for};
use crate::damage::{DamageKind, damage};
use crate::event::{Event, Kind, Outcome};
use crate::text::show_event;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Damages done to each round's history, to see that they are noticed: one of each kind, if
/// there is room for it.
const DAMAGES: usize = DamageKind::ALL.len();
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
    pub carriers: BTreeMap<CarrierKind, CarrierFigures>,
    /// How operations ended.
    pub outcomes: BTreeMap<String, u64>,
    /// What went wrong on purpose.
    pub faults: BTreeMap<Fault, FaultFigures>,
    /// Faults that were wished for and that this machine cannot do, with the reason.
    pub skipped: Vec<String>,
    /// Faults that were wished for and whose programs are missing.
    pub missing: Vec<String>,
    /// Most backends that were away at a time.
    pub away_max: usize,
    /// Backends that were killed and voted again.
    pub recoveries: u64,
    /// How often the cell got another number of backends.
    pub resized: u64,
    /// Orders and recoveries that were given up, a trouble each.
    pub unfinished: u64,
    /// Values that had to leave for others: memory was full.
    pub evictions: u64,
    /// Rounds after which the doctor was asked, and found nothing wrong.
    pub healthy: usize,
    /// Keys on which replicas differed then, because memory was full.
    pub healthy_dirty: u64,
    /// Keys on which they agreed.
    pub healthy_clean: u64,
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
    /// Of these, by kind: how many were done.
    pub damages_by_kind: BTreeMap<DamageKind, usize>,
    /// GETs that had to find a value by *kept*: each could have shown a lost write.
    pub owed: u64,
    /// What has to be shown by a run of this length, and was not.
    pub unmet: Vec<String>,
    #[serde(skip)]
    due: Due,
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
            && self.missing.is_empty()
            && self.unmet.is_empty()
    }

    /// What has to be shown by now, and is not.
    fn unmet(&self) -> Vec<String> {
        let damages_lost = self.damages_by_kind.get(&DamageKind::LostHit);
        let seen = Seen {
            operations: self.operations,
            comparisons: self.comparisons,
            faults: &self.faults,
            carriers: &self.carriers,
            recoveries: self.recoveries,
            healthy: self.healthy,
            healthy_keys: self.healthy_clean + self.healthy_dirty,
            evictions: self.evictions,
            owed: self.owed,
            damages: self.damages,
            damages_lost: damages_lost.copied().unwrap_or_default(),
        };
        unmet(&self.due, &seen)
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
        self.owed += findings.owed;
        count_by_carrier(&mut self.carriers, &recorded.events, &recorded.carriers);
        for ((kind, outcome), count) in &findings.counts {
            let name = format!("{} {}", kind.name(), outcome.name());
            *self.outcomes.entry(name).or_default() += count;
        }
        self.recoveries += recorded.recoveries;
        self.resized += u64::from(recorded.resized);
        self.unfinished += recorded.unfinished;
        self.evictions += recorded.evictions;
        self.healthy += usize::from(recorded.healthy.is_some());
        if let Some(healthy) = recorded.healthy {
            self.healthy_dirty += healthy.dirty;
            self.healthy_clean += healthy.clean;
        }
        self.away_max = self.away_max.max(recorded.away_max);
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
        for (fault, figures) in &recorded.faults {
            self.faults.entry(*fault).or_default().add(*figures);
        }
        // Whoever had trouble was not asked.
        let is_doctor_due = doctored::is_asked(plan) && recorded.troubles.is_empty();
        self.due.doctor += usize::from(is_doctor_due);
        self.due.kept += usize::from(promise == Promise::Kept);
        self.due.full += usize::from(plan.is_full());
        self.due.kills += kills_to_recover(plan, &recorded.faults);
        for trouble in recorded.troubles {
            self.troubles
                .push(format!("{trouble} ({})", plan.command()));
        }
        for violation in &findings.violations {
            *self.violations.entry(violation.rule).or_default() += 1;
        }
        if findings.violations.is_empty() {
            self.due.damage += 1;
            let damaged = damage(&recorded.events, DAMAGES, plan.seed, promise);
            self.damages += damaged.count();
            self.damages_noticed += damaged.noticed();
            for (kind, (done, _)) in &damaged.done {
                *self.damages_by_kind.entry(*kind).or_default() += done;
            }
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
        let carriers = self.carriers.iter();
        let carriers = carriers.map(|(name, figures)| format!("{name} {}", figures.text()));
        let carriers: Vec<String> = carriers.collect();
        let faults = self.faults.iter();
        let faults = faults.map(|(name, figures)| format!("{name} {}", figures.text()));
        let faults: Vec<String> = faults.collect();
        let broken = self
            .violations
            .iter()
            .map(|(name, n)| (name.to_string(), *n as u64));
        let _ = writeln!(text, "operations  {}", list(outcomes.collect()));
        let _ = writeln!(text, "carriers    {}", carriers.join(", "));
        let (recoveries, resized) = (self.recoveries, self.resized);
        let (unfinished, away_max) = (self.unfinished, self.away_max);
        let faults = faults.join(", ");
        let _ = writeln!(
            text,
            "faults      {faults}; {recoveries} recoveries, {resized} times resized, {away_max} backends away at most, {unfinished} unfinished"
        );
        if let Some(upgrades) = &self.upgrades {
            let _ = writeln!(text, "upgrades    {}", upgrades.text());
        }
        for skipped in &self.skipped {
            let _ = writeln!(text, "SKIPPED     {skipped}");
        }
        for missing in &self.missing {
            let _ = writeln!(text, "MISSING     {missing}");
        }
        for unmet in &self.unmet {
            let _ = writeln!(text, "NOT SHOWN   {unmet}");
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
            "doctor      found nothing wrong after {} rounds, of {} keys; full memory leaves {} keys different",
            self.healthy, self.healthy_clean, self.healthy_dirty
        );
        let _ = writeln!(
            text,
            "checked     {} hits held against something older, {} GETs against what may not be lost; {} of {} damages to good histories noticed",
            self.comparisons, self.owed, self.damages_noticed, self.damages
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
    let left_out = means::without_what_cannot_be_done(&mut rounds);
    report.skipped = left_out.skipped;
    report.missing = left_out.missing;
    for skipped in &report.skipped {
        progress(&format!("SKIPPED: {skipped}"));
    }
    for missing in &report.missing {
        progress(&format!("MISSING: {missing}"));
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
    report.unmet = report.unmet();
    Ok(report)
}

/// Kills after which a backend, or a spare in its place, has to recover from the others.
fn kills_to_recover(plan: &RoundPlan, faults: &BTreeMap<Fault, FaultFigures>) -> u64 {
    let done = |fault| faults.get(&fault).map_or(0, |figures| figures.done);
    let are_started_again = plan.mode == "R=3.2" && plan.faults.contains(&Fault::Restart);
    let kills = if are_started_again {
        done(Fault::Kill)
    } else {
        0
    };
    kills + done(Fault::Replace)
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
