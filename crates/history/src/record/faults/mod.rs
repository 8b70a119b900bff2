//! What goes wrong in a round, drawn by its seed.
//!
//! A fault is a variant of [`Fault`], a line in [`part_of`] that says what it takes away,
//! a weight, and a function that begins it: in [`begin`], from a file of its own.
//!
//! **The rule that bounds overlap.** Of each [`Part`] one thing is away at a time, and it
//! is back before the next: of backends, that is what the promise holds under (one
//! failure at a time in a cohort). A backend that was killed is back when it votes, one
//! that hung when its lease is renewed, one that moves when the cell is whole again.
//! While the cell is resized, of which all backends are part, the others go wrong as
//! always: a backend that dies before the change has it given up, one that dies after it is
//! a backend of the new cell that has died. Every other resize is spared that, or few would
//! come to their end.
//! etcd goes wrong during every other replacement only, for a like reason: with etcd away
//! nobody's place is given away.
//! With `--overlap N` up to N backends are away at a time; what holds then, says
//! [`Promise::Weakened`](crate::check::Promise).

mod clients;
mod disk;
mod etcd;
mod kill;
mod limits;
mod moves;
mod network;
mod replace;
mod resize;
mod stop;

pub(super) use disk::SmallDisk;
pub(super) use network::Network;
pub(super) use replace::Spares;

use super::RecordError;
use super::figures::FaultFigures;
use super::plan::{Fault, RoundPlan};
use super::round::Round;
use crate::event::Event;
use rand::RngExt as _;
use rand::distr::{Distribution as _, weighted::WeightedIndex};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Between two faults, in a round of so many operations, and in one of so many seconds.
const PAUSE_MS: std::ops::Range<u64> = 20..400;
const PAUSE_CHAOS_MS: std::ops::Range<u64> = 50..900;
/// How long anything may be away, and any order be under way: a backend that dies again and
/// again is started after half a minute, and recovers on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
/// Faults that are orders, which are refused while something else is in their way.
const ORDERS: [Fault; 4] = [Fault::Move, Fault::Drain, Fault::Upgrade, Fault::Resize];

/// What a fault takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A backend: at most so many of these at a time as the round says.
    Backend,
    /// The number of backends.
    Size,
    /// What keeps the configuration.
    Store,
    /// The way from clients to servers.
    Network,
    /// Nothing that has to come back.
    Nothing,
}

/// What each fault takes away.
pub(super) const fn part_of(fault: Fault) -> Part {
    match fault {
        Fault::Kill
        | Fault::Stop
        | Fault::Move
        | Fault::Upgrade
        | Fault::Drain
        | Fault::Replace => Part::Backend,
        Fault::EtcdKill | Fault::EtcdStop | Fault::DiskFull => Part::Store,
        Fault::Network => Part::Network,
        Fault::Resize => Part::Size,
        Fault::Restart
        | Fault::Skew
        | Fault::Flush
        | Fault::ClientKill
        | Fault::GatewayRestart
        | Fault::Memory => Part::Nothing,
    }
}

/// How often each is drawn, beside the others.
const fn weight_of(fault: Fault) -> u32 {
    match fault {
        // The cell is empty afterwards.
        Fault::Flush => 1,
        // All backends move.
        Fault::Upgrade => 1,
        Fault::Kill | Fault::Replace => 4,
        _ => 3,
    }
}

/// What came of beginning a fault.
pub(super) enum Begun {
    /// It cannot be done at the moment.
    No,
    /// It was ordered, and refused.
    Refused,
    /// It is done.
    Done,
    /// It goes on.
    Goes(Box<dyn Ongoing>),
}

/// How far a fault is that goes on for a while.
pub(super) enum Course {
    Goes,
    /// What it took is back.
    Done,
    /// The same: a backend that was killed has recovered.
    Recovered,
    /// It was an order, and came to nothing, as it may.
    Refused,
}

/// A fault that goes on for a while.
pub(super) trait Ongoing {
    /// Goes on with it. A text says what should not have happened.
    fn look(&mut self, round: &mut Round<'_>) -> Result<Course, String>;

    /// The backend that it takes, if it is one.
    fn backend(&self) -> Option<usize> {
        None
    }

    /// That backend stands still: who asks it waits.
    fn hangs(&self) -> bool {
        false
    }

    /// It stays away for the rest of the round: nobody waits for it.
    fn is_for_good(&self) -> bool {
        false
    }

    /// Who this backend is changes by it, or it does not answer.
    fn concerns(&self, backend: usize) -> bool {
        self.backend() == Some(backend)
    }

    /// The loss of the only copy that it was, if it was one.
    fn loss(&self) -> Option<Event> {
        None
    }
}

/// Begins a fault.
fn begin(fault: Fault, round: &mut Round<'_>) -> Result<Begun, RecordError> {
    match fault {
        Fault::Kill => kill::begin(round),
        Fault::Stop => stop::begin(round),
        Fault::Move => moves::begin_restart(round),
        Fault::Upgrade => moves::begin_upgrade(round),
        Fault::Drain => moves::begin_drain(round),
        Fault::EtcdKill => etcd::begin_kill(round),
        Fault::EtcdStop => etcd::begin_stop(round),
        Fault::DiskFull => disk::begin(round),
        Fault::Network => network::begin(round),
        Fault::Resize => resize::begin(round),
        Fault::Replace => replace::begin(round),
        Fault::ClientKill => clients::kill_client(round),
        Fault::GatewayRestart => clients::restart_gateway(round),
        Fault::Flush => limits::flush(round),
        Fault::Memory => limits::memory(round),
        // Part of how the round is started.
        Fault::Restart | Fault::Skew => Ok(Begun::No),
    }
}

struct Away {
    fault: Fault,
    since: Instant,
    what: Box<dyn Ongoing>,
}

pub(super) struct Faults {
    enabled: Vec<Fault>,
    weights: Option<WeightedIndex<u32>>,
    overlap: usize,
    pause_ms: std::ops::Range<u64>,
    next: Instant,
    away: Vec<Away>,
    figures: BTreeMap<Fault, FaultFigures>,
    /// Most backends that were away at a time.
    away_max: usize,
    /// What was not over in [`PATIENCE`].
    unfinished: u64,
    /// Orders that were given once more after everything else.
    made_up: BTreeSet<Fault>,
    /// Losses that are over.
    losses: Vec<Event>,
    /// Backends that were killed and voted again.
    recoveries: u64,
    /// What should not have happened.
    troubles: Vec<String>,
}

impl Faults {
    pub(super) fn new(plan: &RoundPlan) -> Self {
        let mut enabled = plan.faults.clone();
        enabled.retain(|fault| !matches!(fault, Fault::Skew | Fault::Restart));
        let figures = enabled
            .iter()
            .map(|fault| (*fault, FaultFigures::default()));
        let mut figures: BTreeMap<Fault, FaultFigures> = figures.collect();
        if plan.faults.contains(&Fault::Skew) {
            let once = FaultFigures {
                drawn: 1,
                begun: 1,
                done: 1,
                refused: 0,
            };
            figures.insert(Fault::Skew, once);
        }
        Faults {
            weights: WeightedIndex::new(enabled.iter().map(|fault| weight_of(*fault))).ok(),
            enabled,
            overlap: plan.overlap,
            pause_ms: match plan.seconds {
                Some(_) => PAUSE_CHAOS_MS,
                None => PAUSE_MS,
            },
            next: Instant::now() + Duration::from_millis(200),
            away: Vec::new(),
            figures,
            away_max: 0,
            unfinished: 0,
            made_up: BTreeSet::new(),
            losses: Vec::new(),
            recoveries: 0,
            troubles: Vec::new(),
        }
    }

    /// How often each fault was done that may be.
    pub(super) fn figures(&self) -> BTreeMap<Fault, FaultFigures> {
        let mut all = self.figures.clone();
        // Nothing of it is to come back.
        for away in self.away.iter().filter(|away| away.what.is_for_good()) {
            all.entry(away.fault).or_default().done += 1;
        }
        all
    }

    /// Most backends that were away at a time.
    pub(super) fn away_max(&self) -> usize {
        self.away_max
    }

    /// Whether who this backend is may be changing, or it may not answer.
    pub(super) fn concerns(&self, backend: usize) -> bool {
        self.away.iter().any(|away| away.what.concerns(backend))
    }

    /// Losses of the only copy.
    pub(super) fn losses(&self) -> Vec<Event> {
        let under_way = self.away.iter().filter_map(|away| away.what.loss());
        self.losses.iter().copied().chain(under_way).collect()
    }

    /// How many backends have lost their memory and voted again.
    pub(super) fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// What should not have happened.
    pub(super) fn troubles(&self) -> &[String] {
        &self.troubles
    }

    fn away_of(&self, part: Part) -> usize {
        let of_part = |away: &&Away| part_of(away.fault) == part;
        self.away.iter().filter(of_part).count()
    }

    /// Whether nothing is left to wait for.
    pub(super) fn is_calm(&self) -> bool {
        self.away.iter().all(|away| away.what.is_for_good())
    }

    /// What was not over in [`PATIENCE`], a trouble each.
    pub(super) fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Goes on with what is under way.
    pub(super) fn go_on(&mut self, round: &mut Round<'_>) {
        let mut at = 0;
        while at < self.away.len() {
            let away = &mut self.away[at];
            let name = away.fault.name();
            let figures = self.figures.entry(away.fault).or_default();
            match away.what.look(round) {
                Ok(Course::Goes) if away.since.elapsed() > PATIENCE && !away.what.is_for_good() => {
                    let seconds = PATIENCE.as_secs();
                    let trouble = format!("{name}: it is not over within {seconds} s");
                    self.troubles.push(trouble);
                    self.unfinished += 1;
                }
                Ok(Course::Goes) => {
                    at += 1;
                    continue;
                }
                Ok(Course::Done) => figures.done += 1,
                Ok(Course::Recovered) => {
                    figures.done += 1;
                    self.recoveries += 1;
                }
                Ok(Course::Refused) => figures.refused += 1,
                Err(trouble) => self.troubles.push(format!("{name}: {trouble}")),
            }
            let away = self.away.swap_remove(at);
            self.losses.extend(away.what.loss());
        }
        let was_away = round.store_is_away;
        round.store_is_away = self.away_of(Part::Store) > 0;
        if was_away || round.store_is_away {
            round.store_was_away = Some(Instant::now());
        }
        round.backends_away = self.away_of(Part::Backend);
        round.is_resizing = self.away_of(Part::Size) > 0;
        round.is_resizing_alone &= round.is_resizing;
        let replaced = |away: &Away| away.fault == Fault::Replace;
        round.is_replacing_alone &= self.away.iter().any(replaced);
        let backends = self.away.iter().filter_map(|away| away.what.backend());
        round.away = backends.collect();
        round.is_any_stopped = self.away.iter().any(|away| away.what.hangs());
    }

    /// Called often; does something now and then.
    pub(super) fn step(&mut self, round: &mut Round<'_>) -> Result<(), RecordError> {
        self.go_on(round);
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + Duration::from_millis(round.rng.random_range(self.pause_ms.clone()));
        let Some(weights) = &self.weights else {
            return Ok(());
        };
        let fault = self.enabled[weights.sample(&mut round.rng)];
        let part = part_of(fault);
        let room = match part {
            Part::Backend if round.is_resizing_alone => 0,
            Part::Backend => self.overlap,
            Part::Store if round.is_replacing_alone => 0,
            Part::Size | Part::Store | Part::Network => 1,
            Part::Nothing => usize::MAX,
        };
        if self.away_of(part) >= room {
            return Ok(());
        }
        if part == Part::Backend && self.away_of(part) == 0 && !round.is_resizing {
            self.troubles.extend(round.deaths(|_| false));
        }
        self.begin(fault, round)
    }

    /// Nothing else goes wrong any more: orders that something was always in the way of are
    /// carried out now, one after the other, each once, while clients work. Whether one comes
    /// to its end amid the rest depends on how busy the machine is.
    pub(super) fn make_up(&mut self, round: &mut Round<'_>) -> Result<(), RecordError> {
        for fault in ORDERS {
            let figures = self.figures.get(&fault);
            let is_due = figures.is_some_and(|figures| figures.begun > 0 && figures.done == 0);
            if is_due && self.made_up.insert(fault) {
                return self.begin(fault, round);
            }
        }
        Ok(())
    }

    fn begin(&mut self, fault: Fault, round: &mut Round<'_>) -> Result<(), RecordError> {
        let begun = begin(fault, round)?;
        let figures = self.figures.entry(fault).or_default();
        figures.drawn += 1;
        if matches!(begun, Begun::No) {
            return Ok(());
        }
        figures.begun += 1;
        match begun {
            Begun::No => {}
            Begun::Refused => figures.refused += 1,
            Begun::Done => figures.done += 1,
            Begun::Goes(what) => self.away.push(Away {
                fault,
                since: Instant::now(),
                what,
            }),
        }
        self.away_max = self.away_max.max(self.away_of(Part::Backend));
        Ok(())
    }
}

/// It fails only if the process is gone already.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}
