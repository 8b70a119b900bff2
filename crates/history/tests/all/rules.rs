//! The rules on small histories, good and broken, that people can read; and on
//! larger ones that were good until they were broken on purpose.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeSet;
use trefoil_history::check::{Promise, Rule, check, check_for};
use trefoil_history::{DamageKind, Event, Kind, Mark, Outcome, damage, parse_case};
use trefoil_layout::Version;

const CASES: &str = include_str!("rules.txt");

#[test]
fn every_case_shows_exactly_the_violations_that_it_names() {
    let mut broken = BTreeSet::new();
    let mut cases = 0;
    for case in CASES.split("\ncase ").skip(1) {
        let (name, body) = case.split_once('\n').unwrap();
        let (events, expected) = body
            .split_once("\nexpect ")
            .or_else(|| Some(("", body.strip_prefix("expect ")?)))
            .unwrap_or_else(|| panic!("{name}: expects nothing"));
        let mut expected: Vec<&str> = (expected.lines().next().unwrap_or_default())
            .split_whitespace()
            .filter(|word| *word != "nothing")
            .collect();
        let events = parse_case(events).unwrap_or_else(|e| panic!("{name}: {e}"));
        let promise = match name.split_once(" [") {
            Some((_, "kept]")) => Promise::Kept,
            Some((_, "weakened]")) => Promise::Weakened,
            _ => Promise::Fresh,
        };
        let found = check_for(&events, promise);
        let mut names: Vec<&str> = found.violations.iter().map(|v| v.rule.name()).collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{name}: {:#?}", found.violations);
        broken.extend(found.violations.iter().map(|v| v.rule));
        cases += 1;
    }
    assert!(cases > 40, "{cases}");
    let all: BTreeSet<Rule> = Rule::ALL.into_iter().collect();
    assert_eq!(broken, all, "a rule that no case breaks");
}

/// A cell that does everything right, one operation after another, each within
/// the time that its caller waits.
struct Perfect {
    rng: SmallRng,
    events: Vec<Event>,
    /// For each key: the value's mark, length and version.
    held: Vec<Option<(Mark, u32, Version)>>,
    clients: Vec<(u64, u32)>,
    now_ns: u64,
}

impl Perfect {
    fn history(seed: u64, operations: usize, keys: usize) -> Vec<Event> {
        let mut cell = Perfect {
            rng: SmallRng::seed_from_u64(seed),
            events: Vec::new(),
            held: vec![None; keys],
            clients: vec![(0, 0); 6],
            now_ns: 1_000,
        };
        for _ in 0..operations {
            cell.step();
        }
        cell.events
    }

    /// One operation takes effect now; it began before and ends after.
    fn step(&mut self) {
        self.now_ns += 100;
        let now = self.now_ns;
        let free: Vec<usize> = (0..self.clients.len())
            .filter(|at| self.clients[*at].0 < now)
            .collect();
        if free.is_empty() {
            return;
        }
        let client = free[self.rng.random_range(0..free.len())];
        let (free_since, number) = self.clients[client];
        let begin = now - self.rng.random_range(0..(now - free_since).min(400));
        let end = now + self.rng.random_range(1..400);
        let number = number + 1;
        self.clients[client] = (end, number);
        // Half of the clients are not told versions, as by the gateway.
        let knows = client.is_multiple_of(2);
        let id = client as u32 + 1;
        let mark = Mark::new(id, number);
        let version = Version::new(now, u64::from(id), number);
        let key = self.rng.random_range(0..self.held.len());
        let told = |version| if knows { version } else { Version::ZERO };
        let is_counter = key == 0;
        let held = self.held[key];
        let mut event = Event {
            end_ns: end,
            ..Event::begun(id, number, key as u32, Kind::Get, begin)
        };
        match (self.rng.random_range(0..100), held) {
            (0..20, _) if !is_counter => {
                let len = self.rng.random_range(24..500);
                event.kind = Kind::Set;
                (event.mark, event.len, event.version) = (mark, len, told(version));
                event.outcome = Outcome::Stored;
                self.held[key] = Some((mark, len, version));
            }
            (20..35, Some((old, _, old_version))) if !is_counter => {
                event.kind = Kind::Cas;
                (event.mark, event.len) = (mark, 100);
                (event.expected, event.expected_version) = (old, told(old_version));
                if self.rng.random_bool(0.7) {
                    event.outcome = Outcome::Stored;
                    event.version = told(version);
                    self.held[key] = Some((mark, 100, version));
                } else {
                    event.outcome = Outcome::Denied;
                }
            }
            (0..30, None) if is_counter => {
                event.kind = Kind::Cas;
                event.mark = mark;
                event.outcome = Outcome::Stored;
                self.held[key] = Some((mark, 0, version));
            }
            (0..50, Some((old, _, _))) if is_counter => {
                event.kind = Kind::Increment;
                event.mark = Mark {
                    count: old.count + 1,
                    ..old
                };
                event.outcome = Outcome::Stored;
                self.held[key] = Some((event.mark, 0, version));
            }
            (97.., _) => {
                event.kind = Kind::Erase;
                event.outcome = Outcome::Stored;
                event.version = told(version);
                self.held[key] = None;
            }
            (_, Some((mark, len, version))) => {
                event.outcome = Outcome::Hit;
                (event.mark, event.len, event.version) = (mark, len, told(version));
            }
            (_, None) => event.outcome = Outcome::Absent,
        }
        self.events.push(event);
    }
}

#[test]
fn good_histories_are_found_good_and_every_damage_is_noticed() {
    for promise in [Promise::Weakened, Promise::Fresh, Promise::Kept] {
        let mut done = BTreeSet::new();
        for seed in 0..20 {
            let history = Perfect::history(seed, 4_000, 6);
            let found = check_for(&history, promise);
            assert_eq!(found.violations, [], "seed {seed}");
            assert!(found.comparisons > 500, "{}", found.comparisons);
            let is_kept = promise == Promise::Kept;
            assert_eq!(found.owed > 500, is_kept, "{}", found.owed);
            let report = damage(&history, 60, seed, promise);
            for (kind, (count, noticed)) in &report.done {
                assert_eq!(count, noticed, "seed {seed}: {kind:?}");
            }
            done.extend(report.done.keys().copied());
        }
        let all = DamageKind::ALL.into_iter();
        let all: BTreeSet<DamageKind> = all.filter(|kind| kind.is_against(promise)).collect();
        assert_eq!(done, all, "a damage that was never done");
    }
}

/// What *kept* finds nothing against is worth no more than how often it could have.
#[test]
fn gets_that_had_to_find_something_are_counted_whatever_they_found() {
    let history = "0..10  1.1 set k1 -> stored @5
        20..30 2.1 get k1 -> hit 1.1 @5
        31..33 2.2 get k1 -> absent
        34..36 2.3 get k1 -> failed
        37..50 3.1 set k1 -> stored @7
        40..45 2.4 get k1 -> hit 1.1 @5
        60..70 2.5 get k2 -> absent";
    let history = parse_case(history).unwrap();
    let found = check_for(&history, Promise::Kept);
    assert_eq!((found.owed, found.violations_of(Rule::Kept)), (2, 1));
    assert_eq!(check(&history).owed, 0);
}

#[test]
fn a_million_operations_on_two_keys_are_checked_in_seconds() {
    let history = Perfect::history(7, 1_000_000, 2);
    let begin = std::time::Instant::now();
    let found = check(&history);
    assert_eq!(found.violations.len(), 0);
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}
