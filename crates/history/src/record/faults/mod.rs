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
use super::plan::{Fault, RoundPlan};
use super::round::Round;
use crate::event::Event;
use rand::RngExt as _;
use rand::distr::{Distribution as _, weighted::WeightedIndex};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two faults, in a round of so many operations, and in one of so many seconds.
const PAUSE_MS: std::ops::Range<u64> = 20..400;
const PAUSE_CHAOS_MS: std::ops::Range<u64> = 50..900;
/// How long anything may be away: a backend that dies again and again is started after
/// half a minute, and recovers on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

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
    /// It is done.
    Done,
    /// It goes on.
    Goes(Box<dyn Ongoing>),
}

/// A fault that goes on for a while.
pub(super) trait Ongoing {
    /// Goes on with it; `true` once what it took is back. A text says what should not
    /// have happened.
    fn is_over(&mut self, round: &mut Round<'_>) -> Result<bool, String>;

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

    /// It has bounds of its own: nobody waits for it longer than the round lasts.
    fn is_bounded(&self) -> bool {
        false
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
    counts: BTreeMap<Fault, u64>,
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
        let skew = plan.faults.contains(&Fault::Skew);
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
            counts: skew.then_some((Fault::Skew, 1)).into_iter().collect(),
            losses: Vec::new(),
            recoveries: 0,
            troubles: Vec::new(),
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<Fault, u64> {
        self.counts.clone()
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
        let is_left = |away: &Away| away.what.is_for_good() || away.what.is_bounded();
        self.away.iter().all(is_left)
    }

    /// Orders that are still being carried out.
    pub(super) fn unfinished(&self) -> u64 {
        let unfinished = self.away.iter().filter(|away| away.what.is_bounded());
        unfinished.count() as u64
    }

    /// Goes on with what is under way.
    pub(super) fn go_on(&mut self, round: &mut Round<'_>) {
        let mut at = 0;
        while at < self.away.len() {
            let away = &mut self.away[at];
            let name = away.fault.name();
            match away.what.is_over(round) {
                Ok(false)
                    if away.since.elapsed() > PATIENCE
                        && !away.what.is_for_good()
                        && !away.what.is_bounded() =>
                {
                    let seconds = PATIENCE.as_secs();
                    let trouble = format!("{name}: what it took is not back within {seconds} s");
                    self.troubles.push(trouble);
                }
                Ok(false) => {
                    at += 1;
                    continue;
                }
                Ok(true) => {
                    let is_death = matches!(away.fault, Fault::Kill | Fault::Replace);
                    self.recoveries += u64::from(is_death);
                }
                Err(trouble) => self.troubles.push(format!("{name}: {trouble}")),
            }
            let away = self.away.swap_remove(at);
            self.losses.extend(away.what.loss());
        }
        round.store_is_away = self.away_of(Part::Store) > 0;
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
            self.troubles.extend(round.deaths());
        }
        match begin(fault, round)? {
            Begun::No => return Ok(()),
            Begun::Done => {}
            Begun::Goes(what) => self.away.push(Away {
                fault,
                since: now,
                what,
            }),
        }
        *self.counts.entry(fault).or_default() += 1;
        Ok(())
    }
}

/// It fails only if the process is gone already.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}
