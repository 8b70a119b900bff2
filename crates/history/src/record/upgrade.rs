//! Rolling upgrade and downgrade between two releases while clients of both are at work.
//!
//! The cell is begun by one of both, in turn from round to round, and that one's `cell up`
//! carries the orders out; each order is given by the other's program.

use super::RecordError;
use super::round::Round;
use super::worker::now_ns;
use crate::event::{Event, Kind, Outcome};
use serde::Serialize;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long an order may take, on a machine that does much else.
const ORDER_PATIENCE: Duration = Duration::from_secs(120);
/// Shares of a round in which the first order, and the one after the last, would begin.
const BEGIN: f64 = 0.2;
const END: f64 = 0.8;
/// The backend that moves to a spare.
const DRAINED: &str = "1";
/// So much lower the share of GETs that find something may be, for it goes up and down.
const HIT_RATIO_LESS_MAX: f64 = 0.02;
/// Of fewer GETs it says nothing: a round may be over soon after its last order.
const HIT_RATIO_GETS_MIN: u64 = 2_000;
/// Operations that failed, each by itself in the report.
const EXAMPLES_MAX: usize = 16;

/// The programs of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Programs<'a> {
    /// The release that runs here.
    pub present: &'a Path,
    /// The other one, if there are two.
    pub previous: Option<&'a Path>,
}

impl<'a> Programs<'a> {
    /// That of a release, or the only one.
    pub(super) fn of(self, release: Release) -> &'a Path {
        match (release, self.previous) {
            (Release::Previous, Some(previous)) => previous,
            _ => self.present,
        }
    }
}

/// One of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    Present,
    Previous,
}

impl Release {
    pub(super) fn other(self) -> Self {
        match self {
            Release::Present => Release::Previous,
            Release::Previous => Release::Present,
        }
    }

    /// The one that the cell of a round begins with.
    pub(super) fn first(seed: u64) -> Self {
        match seed % 2 {
            0 => Release::Present,
            _ => Release::Previous,
        }
    }
}

/// What is ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    arguments: Vec<String>,
    /// Whose program all backends run afterwards.
    leaves: Release,
}

/// The other release and back, each with a spare of its own taking a backend over.
fn orders(first: Release, programs: Programs<'_>) -> Vec<Order> {
    let mut orders = Vec::new();
    for leaves in [first.other(), first] {
        let binary = programs.of(leaves).display().to_string();
        for arguments in [
            vec!["upgrade", "--binary", &binary],
            vec!["drain", DRAINED],
            vec!["undrain", DRAINED],
        ] {
            let arguments = arguments.into_iter().map(str::to_owned).collect();
            orders.push(Order { arguments, leaves });
        }
    }
    orders
}

/// Orders under way in a round.
pub(super) struct Upgrades {
    programs: (PathBuf, PathBuf),
    first: Release,
    orders: Vec<Order>,
    next: usize,
    given: Option<(Child, Instant)>,
    /// When the first began, and the last ended.
    begin_ns: u64,
    end_ns: u64,
    took: Duration,
    trouble: Option<String>,
}

impl Upgrades {
    /// Nothing without a second release.
    pub(super) fn new(programs: Programs<'_>, first: Release) -> Option<Self> {
        let previous = programs.previous?;
        Some(Upgrades {
            programs: (programs.present.to_owned(), previous.to_owned()),
            first,
            orders: orders(first, programs),
            next: 0,
            given: None,
            begin_ns: 0,
            end_ns: 0,
            took: Duration::ZERO,
            trouble: None,
        })
    }

    fn programs(&self) -> Programs<'_> {
        Programs {
            present: &self.programs.0,
            previous: Some(&self.programs.1),
        }
    }

    pub(super) fn trouble(&self) -> Option<&String> {
        self.trouble.as_ref()
    }

    /// All are carried out, or one has failed.
    pub(super) fn is_over(&self) -> bool {
        self.given.is_none() && (self.next == self.orders.len() || self.trouble.is_some())
    }

    /// What came of it, if all were carried out.
    pub(super) fn done(&self) -> Option<Upgraded> {
        (self.is_over() && self.trouble.is_none()).then_some(Upgraded {
            orders: self.orders.len(),
            seconds: self.took.as_secs_f64(),
            begin_ns: self.begin_ns,
            end_ns: self.end_ns,
        })
    }

    /// Called often: gives the next order when its share of the round is done.
    pub(super) fn step(&mut self, round: &mut Round<'_>, done: f64) -> Result<(), RecordError> {
        if let Some((mut child, since)) = self.given.take() {
            let ended = child.try_wait();
            match ended.map_err(RecordError::doing("waiting for an order"))? {
                None if since.elapsed() > ORDER_PATIENCE => {
                    let _ = child.kill();
                    let _ = child.wait();
                    self.trouble = Some(format!("{}: no end", self.named()));
                }
                None => self.given = Some((child, since)),
                Some(status) => {
                    self.took += since.elapsed();
                    self.end_ns = now_ns();
                    let mut said = String::new();
                    if let Some(mut stderr) = child.stderr.take() {
                        let _ = stderr.read_to_string(&mut said);
                    }
                    match status.success() {
                        true => self.look_at_backends(round),
                        false => self.trouble = Some(format!("{}: {said}", self.named())),
                    }
                    self.next += 1;
                }
            }
            return Ok(());
        }
        let share = BEGIN + (END - BEGIN) * self.next as f64 / self.orders.len() as f64;
        if done < share || self.is_over() {
            return Ok(());
        }
        if self.next == 0 {
            self.begin_ns = now_ns();
        }
        // By either release's program, in turn.
        let by = match self.next % 2 {
            0 => self.first.other(),
            _ => self.first,
        };
        let child = Command::new(self.programs().of(by))
            .arg("cell")
            .args(&self.orders[self.next].arguments)
            .args(["--cell", round.address()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(RecordError::doing("giving an order"))?;
        self.given = Some((child, Instant::now()));
        Ok(())
    }

    fn named(&self) -> String {
        let words = self.orders.get(self.next).map(|order| &order.arguments);
        format!(
            "cell {}",
            words.map_or_else(String::new, |words| words.join(" "))
        )
    }

    /// Notes who the backends are, and whether they run what they should.
    fn look_at_backends(&mut self, round: &mut Round<'_>) {
        let expected = self.programs().of(self.orders[self.next].leaves).to_owned();
        for answer in round.cell.stats() {
            let number = answer.number as usize;
            let process = answer.stats.ok().and_then(|stats| stats.process);
            let (Some(process), Some(known)) = (process, round.pids.get_mut(number)) else {
                let why = format!("{}: backend {number} does not answer", self.named());
                self.trouble = Some(why);
                continue;
            };
            *known = process.pid;
            let runs = PathBuf::from(format!("/proc/{}/exe", process.pid));
            if !is_same(&runs, &expected) {
                let expected = expected.display();
                let why = format!("{}: backend {number} does not run {expected}", self.named());
                self.trouble = Some(why);
            }
        }
    }
}

impl Drop for Upgrades {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.given.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    identity(one).is_some() && identity(one) == identity(other)
}

/// What came of a round's orders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upgraded {
    orders: usize,
    seconds: f64,
    begin_ns: u64,
    end_ns: u64,
}

/// What clients noticed of the orders of all rounds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UpgradeFigures {
    /// Upgrades and downgrades of all backends, drains and undrains.
    pub orders: usize,
    /// Seconds that they took.
    pub seconds: f64,
    /// GETs before the first order of a round, and the share that found something.
    pub before: HitRatio,
    /// Between the first order's begin and the last one's end.
    pub during: HitRatio,
    /// After that.
    pub after: HitRatio,
    /// Operations that failed, or whose fate is unknown.
    pub failed: u64,
    /// The first of these.
    pub examples: Vec<String>,
}

/// GETs and what they found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HitRatio {
    /// GETs that did not fail.
    pub gets: u64,
    /// Of these, those that found a value.
    pub hits: u64,
}

impl HitRatio {
    fn share(self) -> f64 {
        self.hits as f64 / self.gets.max(1) as f64
    }

    fn text(self) -> String {
        format!("{:.2} % of {}", self.share() * 100.0, self.gets)
    }
}

impl UpgradeFigures {
    pub(super) fn add(&mut self, upgraded: Upgraded, events: &[Event]) {
        self.orders += upgraded.orders;
        self.seconds += upgraded.seconds;
        for event in events {
            if has_failed(event) {
                self.failed += 1;
                if self.examples.len() < EXAMPLES_MAX {
                    self.examples.push(example(event, &upgraded));
                }
            }
            if event.kind != Kind::Get || event.outcome == Outcome::Failed {
                continue;
            }
            let phase = if event.end_ns < upgraded.begin_ns {
                &mut self.before
            } else if event.begin_ns <= upgraded.end_ns {
                &mut self.during
            } else {
                &mut self.after
            };
            phase.gets += 1;
            phase.hits += u64::from(event.outcome == Outcome::Hit);
        }
    }

    /// Why clients have noticed something; nothing if they have not.
    pub(super) fn trouble(&self) -> Option<String> {
        if self.failed > 0 {
            let examples = self.examples.join("; ");
            let failed = self.failed;
            return Some(format!(
                "{failed} operations failed during upgrades: {examples}"
            ));
        }
        let least = self.before.share() - HIT_RATIO_LESS_MAX;
        let phases = [("during", self.during), ("after", self.after)];
        let less = phases
            .iter()
            .find(|(_, ratio)| ratio.gets >= HIT_RATIO_GETS_MIN && ratio.share() < least);
        less.map(|(name, ratio)| {
            format!(
                "fewer GETs found something {name} upgrades: {}, before {}",
                ratio.text(),
                self.before.text()
            )
        })
    }

    pub(super) fn text(&self) -> String {
        format!(
            "{} orders in {:.1} s, {} operations failed; hits before {}, during {}, after {}",
            self.orders,
            self.seconds,
            self.failed,
            self.before.text(),
            self.during.text(),
            self.after.text()
        )
    }
}

fn example(event: &Event, upgraded: &Upgraded) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    format!(
        "{:?} {:?} of client {}, {:.1} ms after the first order, took {:.1} ms",
        event.kind,
        event.outcome,
        event.client,
        ms(event.begin_ns.saturating_sub(upgraded.begin_ns)),
        ms(event.end_ns.saturating_sub(event.begin_ns)),
    )
}

/// A CAS that is refused has met another writer, as far as its client can tell.
fn has_failed(event: &Event) -> bool {
    match (event.kind, event.outcome) {
        // Its client was stopped at the round's end.
        _ if event.end_ns == crate::event::NEVER => false,
        (Kind::Get, outcome) => outcome == Outcome::Failed,
        (Kind::Flush | Kind::Loss, _) => false,
        (_, Outcome::Unknown) => true,
        (Kind::Set | Kind::Fill, outcome) => outcome == Outcome::Denied,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, outcome: Outcome, (begin_ns, end_ns): (u64, u64)) -> Event {
        Event {
            end_ns,
            outcome,
            ..Event::begun(1, 1, 1, kind, begin_ns)
        }
    }

    #[test]
    fn each_release_begins_cells_and_both_give_every_order_and_come_back() {
        let programs = Programs {
            present: Path::new("/new"),
            previous: Some(Path::new("/old")),
        };
        for (seed, to, back) in [(0, "/old", "/new"), (1, "/new", "/old")] {
            let first = Release::first(seed);
            assert_eq!(programs.of(first), Path::new(back));
            let orders = orders(first, programs);
            let words: Vec<String> = orders.iter().map(|o| o.arguments.join(" ")).collect();
            let expected = [
                format!("upgrade --binary {to}"),
                "drain 1".to_owned(),
                "undrain 1".to_owned(),
                format!("upgrade --binary {back}"),
                "drain 1".to_owned(),
                "undrain 1".to_owned(),
            ];
            assert_eq!(words, expected);
            assert_eq!(orders[5].leaves, first);
        }
        let alone = Programs {
            previous: None,
            ..programs
        };
        assert_eq!(alone.of(Release::Previous), Path::new("/new"));
        assert!(Upgrades::new(alone, Release::Present).is_none());
    }

    #[test]
    fn failures_and_lost_hits_are_noticed() {
        let upgraded = Upgraded {
            orders: 6,
            seconds: 1.5,
            begin_ns: 100,
            end_ns: 200,
        };
        let get = |outcome, at| event(Kind::Get, outcome, (at, at + 1));
        let hits = |at, count: usize| vec![get(Outcome::Hit, at); count];
        let mut events = [hits(10, 3_000), hits(150, 2_999), hits(300, 2_999)].concat();
        events.push(get(Outcome::Absent, 160));
        events.push(get(Outcome::Inquorate, 310));
        // Fates that an upgrade may have no part in.
        events.push(event(Kind::Cas, Outcome::Denied, (110, 120)));
        events.push(event(Kind::Erase, Outcome::Denied, (110, 120)));
        events.push(event(
            Kind::Set,
            Outcome::Unknown,
            (110, crate::event::NEVER),
        ));
        let mut figures = UpgradeFigures::default();
        figures.add(upgraded, &events);
        assert_eq!((figures.failed, figures.trouble()), (0, None));
        assert_eq!((figures.during.gets, figures.during.hits), (3_000, 2_999));
        for bad in [
            get(Outcome::Failed, 150),
            event(Kind::Set, Outcome::Denied, (110, 120)),
            event(Kind::Increment, Outcome::Unknown, (110, 120)),
        ] {
            let mut figures = figures.clone();
            figures.add(upgraded, &[bad]);
            let said = figures.trouble().unwrap();
            assert!(said.contains("1 operations failed"), "{said}");
        }
        // Of a few nothing can be said.
        let mut few = UpgradeFigures::default();
        few.add(upgraded, &[hits(10, 3_000), hits(300, 6)].concat());
        few.add(upgraded, &[get(Outcome::Absent, 300)]);
        assert_eq!(few.trouble(), None);
        figures.add(upgraded, &vec![get(Outcome::Absent, 300); 100]);
        let said = figures.trouble().unwrap();
        assert!(said.contains("after upgrades"), "{said}");
    }
}
