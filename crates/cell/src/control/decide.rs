//! The decisions.

use super::hindrance::{Hindrance, Unusable};
use super::view::{Health, Key, Plan, Registered, Replacement, Spare, View};
use crate::address::RpcAddress;
use crate::config::CellConfig;
use crate::mode::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a registration has to be gone. A backend's lease has ended by then (10 s), and
/// its own supervisor has had the time to start it again (pauses grow to 30 s).
pub const DEAD_AFTER_DEFAULT: Duration = Duration::from_secs(60);
/// Shorter times than this are no longer about backends that are dead.
pub const DEAD_AFTER_MIN: Duration = Duration::from_secs(1);
/// Replacements that are remembered.
const REPLACEMENTS_KEPT: usize = 16;

/// What an operator chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a registration has to be gone before the backend counts as dead.
    pub dead_after: Duration,
    /// Replace backends whose data is lost by it (`R=1`).
    pub replace_lost: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            dead_after: DEAD_AFTER_DEFAULT,
            replace_lost: false,
        }
    }
}

/// See the module above. Time is passed in, from any beginning.
#[derive(Clone, Debug)]
pub struct Controller {
    rules: Rules,
    /// Since when nobody was seen as these backends.
    gone: BTreeMap<u32, Gone>,
    looked_at: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Gone {
    since: Duration,
    /// Whose place it was: another one begins to count anew.
    place: Vec<RpcAddress>,
    life: u64,
}

impl Controller {
    /// One that has seen nothing yet.
    pub fn new(rules: Rules) -> Self {
        Controller {
            rules,
            gone: BTreeMap::new(),
            looked_at: None,
        }
    }

    /// The store does not answer: who was gone may be back.
    pub fn away(&mut self) {
        self.gone.clear();
        self.looked_at = None;
    }

    /// Takes what the store held at `now`, a moment of this host that was noted *before*
    /// the store was asked. Who does not lead looks, too: so it need not begin to count
    /// when it does. Returns the backends that count as dead.
    pub fn look(&mut self, now: Duration, view: &View) -> Vec<u32> {
        let unwatched = self.looked_at.map(|at| now.saturating_sub(at));
        if unwatched.is_some_and(|unwatched| unwatched > self.rules.dead_after / 2) {
            self.away();
        }
        self.looked_at = Some(now);
        let config = &view.config;
        let is_registered = |number: &u32| view.backends.contains_key(number);
        self.gone.retain(|number, gone| {
            let place = config.backend(*number).map(|backend| &backend.addresses);
            !is_registered(number) && gone.life == config.life && place == Some(&gone.place)
        });
        for backend in &config.backends {
            if !is_registered(&backend.number) {
                self.gone.entry(backend.number).or_insert_with(|| Gone {
                    since: now,
                    place: backend.addresses.clone(),
                    life: config.life,
                });
            }
        }
        let is_due = |gone: &Gone| now.saturating_sub(gone.since) >= self.rules.dead_after;
        let due = self.gone.iter().filter(|(_, gone)| is_due(gone));
        due.map(|(number, _)| *number).collect()
    }

    /// Backends that nobody is, and for how long that was seen.
    pub fn gone(&self, now: Duration) -> impl Iterator<Item = (u32, Duration)> {
        let gone = self.gone.iter();
        gone.map(move |(number, gone)| (*number, now.saturating_sub(gone.since)))
    }

    /// What to do about those that are due, of the view that was looked at last: replace
    /// one of them, or what hinders that. `health` is what the backends have said since
    /// then; of whom it says nothing, nothing was heard. Only for the leader: without its
    /// key nothing is written.
    pub fn decide(
        &self,
        view: &View,
        due: &[u32],
        health: &BTreeMap<u32, Health>,
        unix_ms: u64,
    ) -> Result<Option<Plan>, Vec<Hindrance>> {
        let mut hindrances = Vec::new();
        for &number in due {
            match self.plan(view, number, health, unix_ms) {
                Ok(plan) => return Ok(Some(plan)),
                Err(hindrance) => hindrances.push(hindrance),
            }
        }
        match hindrances.is_empty() {
            true => Ok(None),
            false => Err(hindrances),
        }
    }

    fn plan(
        &self,
        view: &View,
        backend: u32,
        health: &BTreeMap<u32, Health>,
        unix_ms: u64,
    ) -> Result<Plan, Hindrance> {
        let config = &view.config;
        let of = |number: u32| health.get(&number).copied().unwrap_or(Health::Silent);
        if config.mode.is_immutable() {
            let mode = config.mode;
            return Err(Hindrance::Immutable { backend, mode });
        }
        if of(backend) != Health::Silent {
            return Err(Hindrance::Answers { backend });
        }
        for mate in mates(config, backend) {
            let health = of(mate);
            if health != Health::Votes {
                return Err(Hindrance::Mate {
                    backend,
                    mate,
                    health,
                });
            }
        }
        let layouts = layouts(view, backend)?;
        if let Some(other) = last_replaced(view)
            && other != backend
            && of(other) != Health::Votes
        {
            return Err(Hindrance::UnderWay { backend, other });
        }
        let is_loss = config.mode == Mode::R1;
        if is_loss && !self.rules.replace_lost {
            return Err(Hindrance::WouldLose { backend });
        }
        let spare = pick(view, backend, &layouts)
            .map_err(|unusable| Hindrance::NoSpare { backend, unusable })?;
        let next = config
            .with_backend(spare.as_backend(backend))
            .ok_or(Hindrance::NoConfigId { backend })?;
        let from = config.backend(backend).map(|b| b.addresses.clone());
        let mut replacements = view.replacements.clone();
        replacements.push(Replacement {
            backend,
            config_id: next.config_id,
            at_ms: unix_ms,
            from: from.unwrap_or_default(),
            to: spare.addresses.clone(),
            process: spare.process,
            host: spare.host.clone(),
            is_loss,
        });
        let surplus = replacements.len().saturating_sub(REPLACEMENTS_KEPT);
        replacements.drain(..surplus);
        let keys = [
            Key::Config,
            Key::Leader,
            Key::Replacements,
            // Nobody is it: 0.
            Key::Backend(backend),
            Key::Spare(spare.name.clone()),
        ];
        Ok(Plan {
            conditions: keys.map(|key| (key.clone(), view.revision(&key))).into(),
            config: next,
            incarnations: view.incarnations.clone(),
            replacements,
        })
    }
}

/// Those that hold copies of what a backend holds.
fn mates(config: &CellConfig, backend: u32) -> BTreeSet<u32> {
    let placement = config.placement();
    let shards = 0..config.backends.len() as u32;
    let cohorts = shards.map(|shard| placement.cohort_of_shard(shard));
    cohorts
        .filter(|cohort| cohort.as_slice().contains(&backend))
        .flat_map(|cohort| cohort.as_slice().to_vec())
        .filter(|mate| *mate != backend)
        .collect()
}

/// Layouts of the backends that live. One of an older release would not follow.
fn layouts(view: &View, backend: u32) -> Result<BTreeSet<u16>, Hindrance> {
    let layout = |(&mate, registered): (&u32, &Registered)| {
        let older = Hindrance::OlderRelease { backend, mate };
        registered.layout.ok_or(older)
    };
    view.backends.iter().map(layout).collect()
}

/// The backend that was replaced last, while the spare that came has its place.
fn last_replaced(view: &View) -> Option<u32> {
    let last = view.replacements.last()?;
    let place = view.config.backend(last.backend)?;
    (place.addresses == last.to).then_some(last.backend)
}

/// A spare that can take a backend's place: the first on a host where none of those is that
/// hold copies of what it held; else the first of all.
fn pick<'v>(
    view: &'v View,
    backend: u32,
    layouts: &BTreeSet<u16>,
) -> Result<&'v Spare, Vec<Unusable>> {
    let mut unusable = Vec::new();
    let mut usable = Vec::new();
    let backends = &view.config.backends;
    for spare in &view.spares {
        // It has a place, and is about to say so.
        if backends.iter().any(|place| spare.is(place)) {
            continue;
        }
        let (process, host) = (spare.process, spare.host.clone());
        if !spare.is_for(&view.config) {
            unusable.push(Unusable::Kind { process, host });
            continue;
        }
        if let Some(&cell) = layouts.iter().find(|layout| **layout != spare.layout) {
            let layout = spare.layout;
            unusable.push(Unusable::Layout {
                process,
                host,
                layout,
                cell,
            });
            continue;
        }
        let is_unix = |address: &RpcAddress| matches!(address, RpcAddress::Unix(_));
        let is_elsewhere = |registered: &Registered| registered.boot != spare.boot;
        if spare.addresses.iter().all(is_unix) && view.backends.values().any(is_elsewhere) {
            unusable.push(Unusable::Host { process, host });
            continue;
        }
        usable.push(spare);
    }
    let mates = mates(&view.config, backend);
    let hosts: BTreeSet<&str> = mates
        .iter()
        .filter_map(|mate| view.backends.get(mate))
        .map(|mate| mate.boot.as_str())
        .collect();
    let is_apart = |spare: &&&Spare| !hosts.contains(spare.boot.as_str());
    let apart = usable.iter().find(is_apart);
    apart.or(usable.first()).copied().ok_or(unusable)
}
