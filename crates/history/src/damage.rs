//! Breaks good histories, to see that the check notices: whoever finds nothing
//! has to be able to find something.

use crate::check::{Promise, Rule, check_for, owed};
use crate::event::{Event, Kind, Mark, NEVER, Outcome};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::{BTreeMap, HashSet};
use trefoil_layout::Version;

/// A way of breaking a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamageKind {
    /// A GET returns a value that had been replaced before it began.
    StaleHit,
    /// A write is taken out of the history; its value is hit all the same.
    VanishedWrite,
    /// A write whose value is hit is reported as not done.
    DeniedWrite,
    /// A GET returns bytes of nobody's.
    TornHit,
    /// Two GETs return each other's values.
    SwappedHits,
    /// A second CAS replaces the same value.
    DoubledCas,
    /// Two increments are told the same result.
    LostIncrement,
    /// An increment counts several times.
    RepeatedIncrement,
    /// A value that replaced another turns out to be a fill computed before.
    LateFill,
    /// A mutation is acknowledged at a version below an earlier one's.
    FallenVersion,
    /// A GET that had to find a value finds none; only where nothing may leave.
    LostHit,
}

impl DamageKind {
    /// Every kind.
    pub const ALL: [DamageKind; 11] = [
        DamageKind::StaleHit,
        DamageKind::VanishedWrite,
        DamageKind::DeniedWrite,
        DamageKind::TornHit,
        DamageKind::SwappedHits,
        DamageKind::DoubledCas,
        DamageKind::LostIncrement,
        DamageKind::RepeatedIncrement,
        DamageKind::LateFill,
        DamageKind::FallenVersion,
        DamageKind::LostHit,
    ];

    /// The rules of which at least one has to notice it.
    pub fn rules(self) -> &'static [Rule] {
        use Rule::{Denied, Exact, Fill, Fresh, Intact, Kept, Known, Monotone, Once, Order};
        match self {
            DamageKind::StaleHit => &[Fresh, Monotone, Fill],
            DamageKind::VanishedWrite => &[Known],
            DamageKind::DeniedWrite => &[Denied],
            DamageKind::TornHit => &[Intact],
            DamageKind::SwappedHits => &[Intact, Known, Fresh, Monotone, Fill],
            DamageKind::DoubledCas => &[Exact],
            DamageKind::LostIncrement | DamageKind::RepeatedIncrement => &[Once],
            DamageKind::LateFill => &[Fill],
            DamageKind::FallenVersion => &[Order],
            DamageKind::LostHit => &[Kept],
        }
    }

    /// Whether it breaks anything that was promised.
    pub fn is_against(self, promise: Promise) -> bool {
        self.rules().iter().any(|rule| promise.has(*rule))
    }
}

/// What came of breaking a history in many places, one at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// For each kind: how often it was done, and how often noticed.
    pub done: BTreeMap<DamageKind, (usize, usize)>,
}

impl Damage {
    /// Damages of all kinds.
    pub fn count(&self) -> usize {
        self.done.values().map(|(done, _)| done).sum()
    }

    /// Those that were noticed.
    pub fn noticed(&self) -> usize {
        self.done.values().map(|(_, noticed)| noticed).sum()
    }
}

/// Events of one key that a damage looks at: enough for every rule, and few
/// enough to check again for each damage.
const EVENTS_MAX: usize = 2_000;

/// Breaks a history without violations in up to `count` places, one at a time,
/// and checks each against what was promised. Flushes are left out, and what came after
/// a loss: what is damaged across one need not be noticed.
pub fn damage(events: &[Event], count: usize, seed: u64, promise: Promise) -> Damage {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut sorted: Vec<Event> = events.to_vec();
    let losses = sorted.iter().filter(|event| event.kind == Kind::Loss);
    let lost_ns = losses.map(|loss| loss.begin_ns).min().unwrap_or(NEVER);
    sorted.retain(|event| !event.kind.is_of_all() && event.begin_ns < lost_ns);
    sorted.sort_unstable_by_key(|event| (event.key, event.begin_ns));
    let keys: Vec<&[Event]> = sorted.chunk_by(|a, b| a.key == b.key).collect();
    let mut report = Damage::default();
    let kinds: Vec<DamageKind> = (DamageKind::ALL.into_iter())
        .filter(|kind| kind.is_against(promise))
        .collect();
    let tries = count * 20;
    for at in 0..tries {
        if report.count() >= count || keys.is_empty() {
            break;
        }
        let kind = kinds[at % kinds.len()];
        let Some(key) = keys.choose(&mut rng) else {
            break;
        };
        let mut history = part_of(key, &mut rng);
        if !check_for(&history, promise).violations.is_empty() {
            continue;
        }
        if break_one(&mut history, kind, &mut rng).is_none() {
            continue;
        }
        let found = check_for(&history, promise).violations;
        let noticed = found.iter().any(|v| kind.rules().contains(&v.rule));
        let (done, caught) = report.done.entry(kind).or_default();
        *done += 1;
        *caught += usize::from(noticed);
    }
    report
}

/// Some of a key's events, one after another, without hits on values whose write
/// is not among them.
fn part_of(key: &[Event], rng: &mut SmallRng) -> Vec<Event> {
    let len = key.len().min(EVENTS_MAX);
    let first = rng.random_range(0..=key.len() - len);
    let part = &key[first..first + len];
    let written: HashSet<Mark> = (part.iter())
        .filter(|event| event.is_write() || event.kind == Kind::Increment)
        .map(|event| event.mark)
        .collect();
    let is_known = |mark: Mark| {
        mark == Mark::NONE || written.contains(&mark) && written.contains(&mark.origin())
    };
    (part.iter())
        .filter(|event| is_known(event.mark))
        .copied()
        .collect()
}

fn is_hit(event: &Event) -> bool {
    event.kind == Kind::Get && event.outcome == Outcome::Hit
}

/// Positions of the events that fit.
fn positions(history: &[Event], fits: impl Fn(&Event) -> bool) -> Vec<usize> {
    (0..history.len())
        .filter(|at| fits(&history[*at]))
        .collect()
}

/// Does one damage of this kind, if the history has a place for it.
fn break_one(history: &mut Vec<Event>, kind: DamageKind, rng: &mut SmallRng) -> Option<()> {
    let stored_write = |event: &Event| event.is_write() && event.is_acknowledged();
    let find_write = |history: &[Event], mark: Mark| {
        history
            .iter()
            .position(|event| event.is_write() && event.mark == mark)
    };
    match kind {
        DamageKind::StaleHit => {
            let hit = *positions(history, is_hit).choose(rng)?;
            let begin_ns = history[hit].begin_ns;
            let newer = positions(history, |event| {
                stored_write(event) && event.kind != Kind::Fill && event.end_ns < begin_ns
            });
            let newer = history[*newer.choose(rng)?];
            let older = positions(history, |event| {
                stored_write(event) && event.order_end_ns() < newer.begin_ns
            });
            let older = history[*older.choose(rng)?];
            let event = &mut history[hit];
            (event.mark, event.len) = (older.mark, older.len);
            event.version = match event.version.is_zero() {
                true => Version::ZERO,
                false => older.version,
            };
        }
        DamageKind::VanishedWrite => {
            let hit = history[*positions(history, is_hit).choose(rng)?];
            let write = find_write(history, hit.mark.origin())?;
            history.remove(write);
        }
        DamageKind::DeniedWrite => {
            let hits = positions(history, |event| is_hit(event) && event.mark.count == 0);
            let hit = history[*hits.choose(rng)?];
            let write = find_write(history, hit.mark)?;
            history[write].outcome = Outcome::Denied;
        }
        DamageKind::TornHit => {
            let hit = *positions(history, is_hit).choose(rng)?;
            history[hit].outcome = Outcome::Corrupt;
        }
        DamageKind::SwappedHits => {
            let known = positions(history, |event| is_hit(event) && !event.version.is_zero());
            let one = *known.choose(rng)?;
            // With the version left as it was, somebody else tells what it was of.
            let others = positions(history, |event| {
                (is_hit(event) || stored_write(event)) && event.version == history[one].version
            });
            others.iter().find(|at| **at != one)?;
            let different = positions(history, |event| {
                is_hit(event) && event.mark != history[one].mark
            });
            history[one].mark = history[*different.choose(rng)?].mark;
        }
        DamageKind::DoubledCas => {
            let cases = positions(history, |event| {
                event.kind == Kind::Cas && event.is_acknowledged() && event.expected != Mark::NONE
            });
            let cas = history[*cases.choose(rng)?];
            find_write(history, cas.expected)
                .filter(|at| history[*at].order_end_ns() < cas.begin_ns)?;
            let later = positions(history, |event| {
                event.kind == Kind::Set && event.is_acknowledged() && event.begin_ns > cas.end_ns
            });
            let event = &mut history[*later.choose(rng)?];
            event.kind = Kind::Cas;
            event.expected = cas.expected;
            event.expected_version = match event.version.is_zero() {
                true => Version::ZERO,
                false => cas.expected_version,
            };
        }
        DamageKind::LostIncrement | DamageKind::RepeatedIncrement => {
            let increments = positions(history, |event| {
                event.kind == Kind::Increment && event.is_acknowledged()
            });
            let one = *increments.choose(rng)?;
            if kind == DamageKind::RepeatedIncrement {
                history[one].mark.count += increments.len() as u32 + 1_000_000;
                return Some(());
            }
            let others = positions(history, |event| {
                event.kind == Kind::Increment
                    && event.is_acknowledged()
                    && event.mark.origin() == history[one].mark.origin()
                    && event.mark != history[one].mark
            });
            history[one].mark = history[*others.choose(rng)?].mark;
        }
        DamageKind::LateFill => {
            let hits = positions(history, |event| is_hit(event) && event.mark.count == 0);
            let hit = history[*hits.choose(rng)?];
            let write = find_write(history, hit.mark)?;
            let between = positions(history, |event| {
                stored_write(event)
                    && event.kind != Kind::Fill
                    && event.mark != hit.mark
                    && event.end_ns < history[write].begin_ns
                    && event.begin_ns > 10
            });
            let newer = history[*between.choose(rng)?];
            if newer.end_ns >= hit.begin_ns {
                return None;
            }
            let event = &mut history[write];
            event.kind = Kind::Fill;
            event.expected = Mark::NONE;
            event.miss_begin_ns = newer.begin_ns - 2;
            event.miss_end_ns = newer.begin_ns - 1;
        }
        DamageKind::FallenVersion => {
            let known = |event: &Event| {
                stored_write(event) && event.kind == Kind::Set && !event.version.is_zero()
            };
            let one = history[*positions(history, known).choose(rng)?];
            let later = positions(history, |event| known(event) && event.begin_ns > one.end_ns);
            let event = &mut history[*later.choose(rng)?];
            event.version = Version {
                time_ns: one
                    .version
                    .time_ns
                    .saturating_sub(rng.random_range(1..1_000)),
                ..one.version
            };
        }
        DamageKind::LostHit => {
            let events: Vec<&Event> = history.iter().collect();
            let gets = owed(&events, &[]).into_iter().map(|(get, _)| get);
            let hits: Vec<(u32, u32)> = (gets.filter(|get| is_hit(get)))
                .map(|hit| (hit.client, hit.number))
                .collect();
            let lost = *hits.choose(rng)?;
            let event = (history.iter_mut()).find(|event| (event.client, event.number) == lost)?;
            (event.outcome, event.mark, event.len) = (Outcome::Absent, Mark::NONE, 0);
            event.version = Version::ZERO;
        }
    }
    Some(())
}
