//! How the backends of a host come into a cell on several hosts.
//!
//! ```text
//! no cell yet ─► every host says where it is ─► each reaches all others ─► one writes the
//!                                                                         configuration
//! a cell      ─► it names this host's backends, here ──────────────► they are started
//!                it names them here, before the host's boot ─► it names them anew ─┘
//!                it names them elsewhere ─► refused: that number is another host's
//! ```

use crate::args::UpArgs;
use crate::cell::backend;
use crate::cell::home::Home;
use crate::cell::rehearsal::{Rehearsal, Unreached};
use crate::cell::up;
use crate::failure::Failure;
use crate::settings::StoreSettings;
use crate::signals::Signals;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use trefoil_cell::{
    BackendConfig, CellConfig, ConfigStore as _, ConfigStoreError, EtcdStore, Founder,
    FounderRegistration, Founders, Mode,
};
use trefoil_layout::{KeyHasher, Version};
use trefoil_tls::Tls;

/// Between two looks at who else has come.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it is told who is waited for.
const TELL_PERIOD: Duration = Duration::from_secs(10);
/// How long one of the others may be out of reach.
const REACH_PATIENCE: Duration = Duration::from_secs(10);

/// What the cell is to be, if it begins.
pub(super) struct CellPlan {
    pub(super) mode: Mode,
    pub(super) backends: u32,
    /// Whether so many backends were asked for, and are no default.
    is_count_given: bool,
    name: String,
    settings: StoreSettings,
}

impl CellPlan {
    pub(super) fn of(args: &UpArgs, mode: Mode, backends: u32) -> Self {
        let name = args.name.clone();
        CellPlan {
            mode,
            backends,
            is_count_given: args.backends.is_some(),
            name: name.unwrap_or_else(|| up::NAME_DEFAULT.into()),
            settings: StoreSettings::from(&args.store),
        }
    }

    /// Refuses a cell that is there, and is not what was asked for.
    fn check(&self, config: &CellConfig) -> Result<(), Failure> {
        let (mode, count) = (self.mode, self.backends);
        let (found_mode, found) = (config.mode, config.backends.len() as u32);
        if found_mode != mode {
            return Err(Failure::Usage(format!(
                "--mode {mode}: the cell is {found_mode}; give --mode {found_mode}"
            )));
        }
        if self.is_count_given && count != found {
            return Err(Failure::Usage(format!(
                "--backends {count}: the cell has {found}; leave it out, or give {found}"
            )));
        }
        Ok(())
    }

    /// All of it, in words.
    fn text(&self) -> String {
        let (settings, name) = (&self.settings, &self.name);
        let (mode, backends) = (self.mode, self.backends);
        let eviction = settings.eviction.name();
        let (hash, value_max) = (settings.hash, settings.value_len_max);
        format!(
            "--mode {mode} --backends {backends} --name {name} --eviction {eviction} --hash {hash:?} --value-max {value_max}"
        )
    }

    fn config(&self, backends: Vec<BackendConfig>) -> CellConfig {
        CellConfig {
            life: crate::settings::random_life(),
            config_id: 1,
            cell: self.name.clone(),
            mode: self.mode,
            backends,
            hash: KeyHasher {
                kind: self.settings.hash,
                seed: crate::settings::random_seed(),
            },
            value_len_max: self.settings.value_len_max,
            eviction: self.settings.eviction.name().into(),
            flush_floor: Version::ZERO,
            corpus: None,
        }
    }
}

/// Brings this host's backends into the cell: its configuration, and those that it names
/// here; nothing if the process is to end before there is one.
pub(super) fn join(
    home: &Home,
    store: &EtcdStore,
    plan: &CellPlan,
    rehearsal: &Rehearsal,
) -> Result<Option<(CellConfig, Vec<u32>)>, Failure> {
    let own = home.backends_here().map_err(Failure::of)?;
    let config = match store.load().map_err(Failure::of)? {
        Some(config) => Some(config),
        None => Founding::new(store, &own, plan, rehearsal).wait()?,
    };
    let tls = home.tls();
    let went_on = config.map(|config| go_on(store, tls, &own, plan, config));
    went_on.transpose()
}

/// Takes the places that the configuration has for this host.
fn go_on(
    store: &EtcdStore,
    tls: Option<&Tls>,
    own: &[BackendConfig],
    plan: &CellPlan,
    mut config: CellConfig,
) -> Result<(CellConfig, Vec<u32>), Failure> {
    let address = store.address();
    if !config.is_spread() {
        return Err(Failure::Failed(format!(
            "the cell in {address} has its backends on one host: choose another path for one on several hosts, or start it there without --here"
        )));
    }
    // Before anything is written.
    plan.check(&config)?;
    let (mut here, mut elsewhere) = (Vec::new(), None);
    let mut is_compared = false;
    for backend in own {
        let number = backend.number;
        let Some(place) = config.backend(number) else {
            let last = config.backends.len() - 1;
            return Err(Failure::Usage(format!(
                "--here {number}: the cell in {address} has backends 0 to {last}"
            )));
        };
        if place == backend {
            here.push(number);
            continue;
        }
        if place.addresses != backend.addresses {
            let error = ConfigStoreError::PlaceElsewhere {
                address: address.to_string(),
                number,
                holder: shown(place),
                registered: store.registered_as(number),
                own: shown(backend),
            };
            // Those that are left are worth starting.
            if own.len() > 1 {
                tracing::warn!(backend = number, %error, "it is left out");
            }
            elsewhere.get_or_insert(error);
            continue;
        }
        if !is_compared {
            // Over an old backup of etcd it would be a second configuration of an id that is
            // in force: two, each with backends that follow it.
            let numbers: Vec<u32> = own.iter().map(|backend| backend.number).collect();
            let compared = backend::check_peers(store, &address.to_string(), &numbers, tls);
            compared.map_err(Failure::of)?;
            is_compared = true;
        }
        config = store.move_in(backend).map_err(Failure::of)?;
        here.push(number);
        tracing::info!(
            backend = number,
            config_id = config.config_id,
            "the configuration names this process now: the one of before is gone, and with it what it held"
        );
    }
    match elsewhere {
        Some(error) if here.is_empty() => Err(Failure::of(error)),
        _ => Ok((config, here)),
    }
}

fn shown(backend: &BackendConfig) -> String {
    let texts: Vec<String> = backend.addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// A cell that is to begin.
struct Founding<'f> {
    store: &'f EtcdStore,
    own: Vec<Founder>,
    plan: &'f CellPlan,
    rehearsal: &'f Rehearsal,
    /// What this process has said, by number.
    said: BTreeMap<u32, FounderRegistration>,
    agreed: BTreeMap<u32, FounderRegistration>,
    /// To whom it has agreed.
    names: Vec<String>,
    /// Since when one that has come is out of reach.
    unreached: Option<Instant>,
    told: Option<Instant>,
}

impl<'f> Founding<'f> {
    fn new(
        store: &'f EtcdStore,
        own: &[BackendConfig],
        plan: &'f CellPlan,
        rehearsal: &'f Rehearsal,
    ) -> Self {
        let text = plan.text();
        let founder = |backend: &BackendConfig| store.founder(backend.clone(), &text);
        Founding {
            store,
            own: own.iter().map(founder).collect(),
            plan,
            rehearsal,
            said: BTreeMap::new(),
            agreed: BTreeMap::new(),
            names: Vec::new(),
            unreached: None,
            told: None,
        }
    }

    /// Waits for the others; the configuration, whoever has written it.
    fn wait(mut self) -> Result<Option<CellConfig>, Failure> {
        let mut signals = Signals::new()?;
        loop {
            match self.turn() {
                Ok(Some(config)) => return Ok(Some(config)),
                Ok(None) => {}
                Err(Refused::Store(error)) if error.is_outage() => {
                    self.tell(|| tracing::warn!(%error, "the cell cannot begin yet"));
                }
                Err(Refused::Store(error)) => return Err(Failure::of(error)),
                Err(Refused::Failed(failure)) => return Err(failure),
            }
            if signals.pause(PAUSE) {
                return Ok(None);
            }
        }
    }

    fn turn(&mut self) -> Result<Option<CellConfig>, Refused> {
        if let Some(config) = self.store.load()? {
            return Ok(Some(config));
        }
        let founders = self.store.founders()?;
        self.check(&founders)?;
        let is_said = self.say(&founders)?;
        let count = self.plan.backends;
        let missing: Vec<String> = (0..count)
            .filter(|number| !founders.contains_key(number))
            .map(|number| number.to_string())
            .collect();
        if !missing.is_empty() || !is_said {
            let missing = missing.join(", ");
            self.tell(|| {
                tracing::info!(
                    backends = missing,
                    "the cell begins when its other hosts have come: start them, each with its --here"
                );
            });
            return Ok(None);
        }
        if !self.reaches_all(&founders)? {
            return Ok(None);
        }
        let names: Vec<String> = founders.values().map(|(f, _)| f.name.clone()).collect();
        self.agree(names)?;
        if founders.values().any(|(_, agreed)| *agreed != self.names) {
            return Ok(None);
        }
        let backends = founders.values().map(|(f, _)| f.backend.clone());
        let config = self.plan.config(backends.collect());
        match self.store.compare_and_swap(None, &config) {
            Ok(()) => Ok(Some(config)),
            // Another host was first.
            Err(ConfigStoreError::Conflict { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses to begin with hosts that mean another cell, or the same backend.
    fn check(&self, founders: &Founders) -> Result<(), ConfigStoreError> {
        let address = || self.store.address().to_string();
        let is_own = |founder: &Founder| self.own.iter().any(|own| own.name == founder.name);
        for own in &self.own {
            for (other, _) in founders.values().filter(|(f, _)| !is_own(f)) {
                // Of two that have come at once, one goes on.
                let number = own.backend.number;
                let is_first = self.said.contains_key(&number) && own.name < other.name;
                let is_same = other.backend.number == number;
                // A former process of this host goes with its lease: this one has its port.
                let is_here = other.backend.addresses == own.backend.addresses;
                let is_former = is_here && other.boot == own.boot;
                if is_first || is_former {
                    continue;
                }
                if is_same || is_here {
                    return Err(ConfigStoreError::NumberTaken {
                        address: address(),
                        number: other.backend.number,
                        process: other.process,
                        host: other.host.clone(),
                        at: shown(&other.backend),
                    });
                }
                if other.plan != own.plan {
                    return Err(ConfigStoreError::OtherPlan {
                        address: address(),
                        host: other.host.clone(),
                        theirs: other.plan.clone(),
                        ours: own.plan.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Says where this host's backends are; whether all of them are known.
    fn say(&mut self, founders: &Founders) -> Result<bool, ConfigStoreError> {
        let mut is_said = true;
        for own in &self.own {
            let number = own.backend.number;
            let known = founders.get(&number).map(|(founder, _)| &founder.name);
            if known == Some(&own.name) {
                continue;
            }
            is_said = false;
            if known.is_none() && !self.said.contains_key(&number) {
                let registered = self.store.register_founder(own)?;
                self.said.extend(registered.map(|r| (number, r)));
            }
        }
        Ok(is_said)
    }

    fn reaches_all(&mut self, founders: &Founders) -> Result<bool, Refused> {
        let names: Vec<&String> = founders.values().map(|(f, _)| &f.name).collect();
        if names.iter().copied().eq(&self.names) {
            return Ok(true);
        }
        for (other, _) in founders.values() {
            if self.own.iter().any(|own| own.name == other.name) {
                continue;
            }
            let Some(address) = other.backend.addresses.first() else {
                continue;
            };
            let why = match self.rehearsal.reach(address) {
                Ok(()) => continue,
                Err(why) => why,
            };
            let number = other.backend.number;
            let since = *self.unreached.get_or_insert_with(Instant::now);
            let is_final = matches!(why, Unreached::Handshake(_));
            if is_final || since.elapsed() >= REACH_PATIENCE {
                return Err(Refused::Failed(Failure::Failed(format!(
                    "backend {number} is to be at {address} (host {}), which cannot be used from here: {why}. Nothing has begun: mend that, and start this host again",
                    other.host
                ))));
            }
            self.tell(|| tracing::warn!(backend = number, %address, %why, "cannot be reached yet"));
            return Ok(false);
        }
        self.unreached = None;
        Ok(true)
    }

    fn agree(&mut self, names: Vec<String>) -> Result<(), ConfigStoreError> {
        if names != self.names {
            // What was said of others goes first.
            self.agreed.clear();
            self.names.clone_from(&names);
        }
        for own in &self.own {
            let number = own.backend.number;
            if !self.agreed.contains_key(&number) {
                let agreed = self.store.agree(number, &names)?;
                self.agreed.extend(agreed.map(|agreed| (number, agreed)));
            }
        }
        Ok(())
    }

    fn tell(&mut self, say: impl FnOnce()) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_PERIOD) {
            self.told = Some(Instant::now());
            say();
        }
    }
}

/// Why the cell does not begin at the moment, or with this host.
enum Refused {
    Store(ConfigStoreError),
    Failed(Failure),
}

impl From<ConfigStoreError> for Refused {
    fn from(error: ConfigStoreError) -> Self {
        Refused::Store(error)
    }
}
