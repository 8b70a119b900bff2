//! What a controller and spares read and write ([`crate::control`]).
//!
//! | key below the address's path | value | written if |
//! |---|---|---|
//! | `spares/NAME` | a process that stands by; bound to its lease | nobody has that name |
//! | `controller` | who decides; bound to its lease | nobody does |
//! | `replacements` | the last places that have changed hands | with the configuration, in one transaction |
//!
//! An election is one write under the condition that the key is not there. Whoever has
//! won names its revision in everything that it writes from then on.

use super::EtcdStore;
use super::calls::Calls;
use super::keeper;
use super::leased::{self, Leased, Wanted};
use crate::address::RpcAddress;
use crate::config::BackendConfig;
use crate::control::{Key, Leader, Plan, Replacement, Spare, View};
use crate::store::ConfigStoreError;
use crate::store::document::Document;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use trefoil_etcd::Transaction;
use trefoil_layout::limits::LAYOUT_VERSION;

const CONFIG: &str = "config";
const CONTROLLER: &str = "controller";
const REPLACEMENTS: &str = "replacements";
const BACKENDS: &str = "backends/";
const SPARES: &str = "spares/";

/// The value of the key `replacements`.
#[derive(Serialize, Deserialize)]
struct Replaced {
    /// The cell's life, 16 hexadecimal digits.
    life: String,
    replacements: Vec<Replacement>,
}

/// The right to decide, for as long as it stands; given up when dropped. It may have
/// ended without this process knowing: what is written names it, and is refused then.
#[derive(Debug)]
pub struct Leadership {
    name: String,
    leased: Leased,
}

impl Leadership {
    /// Whether `view` shows this process as the leader.
    pub fn is_of(&self, view: &View) -> bool {
        view.leader
            .as_ref()
            .is_some_and(|leader| leader.name == self.name)
    }

    /// Whether it is known to have ended.
    pub fn is_over(&self) -> bool {
        self.leased.is_over()
    }
}

/// A process's word that it stands by, for as long as this lives.
#[derive(Debug)]
pub struct SpareRegistration {
    _leased: Leased,
}

impl EtcdStore {
    /// All that etcd holds of the cell, at one moment; `None` where there is no cell.
    pub fn view(&self) -> Result<Option<View>, ConfigStoreError> {
        let calls = Arc::clone(&self.calls);
        self.wait(async move { view(&calls).await })?
    }

    /// Becomes the one who decides, if nobody is.
    pub fn campaign(&self) -> Result<Option<Leadership>, ConfigStoreError> {
        let leader = Leader {
            name: leased::name(),
            process: std::process::id(),
            host: keeper::host(),
        };
        let wanted = self.wanted(CONTROLLER, &leader, false)?;
        let leased = self.take(wanted)?;
        let name = leader.name;
        Ok(leased.map(|leased| Leadership { name, leased }))
    }

    /// Says that a process stands by. Refused for one that could not take a place: of another
    /// kind than the cell, of another layout than the backends that live, or, where their
    /// sockets are Unix sockets, of another host.
    pub fn register_spare(&self, spare: &Spare) -> Result<SpareRegistration, ConfigStoreError> {
        let view = self.view()?;
        let address = || self.address().to_string();
        let view = view.ok_or_else(|| ConfigStoreError::NoCellInEtcd(address()))?;
        if !spare.is_for(&view.config) {
            return Err(ConfigStoreError::OtherKind {
                address: address(),
                is_spread: view.config.is_spread(),
            });
        }
        for (&number, backend) in &view.backends {
            if let Some(theirs) = backend.layout.filter(|layout| *layout != spare.layout) {
                return Err(ConfigStoreError::OtherLayout {
                    address: address(),
                    number,
                    theirs,
                    ours: spare.layout,
                });
            }
            let is_elsewhere = !backend.boot.is_empty() && backend.boot != spare.boot;
            let is_local = |backend: &BackendConfig| backend.addresses.iter().all(is_unix);
            let is_reached = spare.addresses.iter().any(|address| !is_unix(address))
                && !view.config.backend(number).is_some_and(is_local);
            if is_elsewhere && !is_reached {
                return Err(ConfigStoreError::OtherHost {
                    address: address(),
                    number,
                    host: backend.host.clone(),
                });
            }
        }
        let wanted = self.wanted(&format!("{SPARES}{}", spare.name), spare, true)?;
        let taken = self.take(wanted)?;
        let taken = taken.ok_or_else(|| ConfigStoreError::Refused {
            address: address(),
            reason: format!("another process has registered as spare {}", spare.name),
        })?;
        Ok(SpareRegistration { _leased: taken })
    }

    /// What this process would register as a spare: its name, its host, its layout.
    /// Addresses and memory are to be filled in.
    pub fn spare(&self) -> Spare {
        Spare {
            name: leased::name(),
            process: std::process::id(),
            host: keeper::host(),
            boot: keeper::boot(),
            layout: LAYOUT_VERSION.into(),
            memory: 0,
            addresses: Vec::new(),
            fabric_socket: None,
            place: None,
        }
    }

    /// Carries a plan out, if everything that it was made from still stands; whether it
    /// did. An error leaves open whether it was carried out: the next view tells.
    pub fn replace(&self, plan: &Plan) -> Result<bool, ConfigStoreError> {
        let (calls, plan) = (Arc::clone(&self.calls), plan.clone());
        self.wait(async move { replace(&calls, &plan).await })?
    }

    pub(super) fn wanted(
        &self,
        key: &str,
        value: &impl Serialize,
        is_renewed: bool,
    ) -> Result<Wanted, ConfigStoreError> {
        Ok(Wanted {
            key: format!("{}/{key}", self.address().path()),
            value: to_json(&self.calls, value)?,
            lease: self.lease,
            is_renewed,
        })
    }

    pub(super) fn take(&self, wanted: Wanted) -> Result<Option<Leased>, ConfigStoreError> {
        let (calls, asked) = (Arc::clone(&self.calls), wanted.clone());
        let taken = self.wait(async move { leased::take(&calls, &asked).await })??;
        let keep = |id| {
            let (calls, runtime) = (Arc::clone(&self.calls), Arc::clone(&self.runtime));
            Leased::keep(calls, runtime, wanted, id)
        };
        Ok(taken.map(keep))
    }
}

fn is_unix(address: &RpcAddress) -> bool {
    matches!(address, RpcAddress::Unix(_))
}

fn to_json(calls: &Calls, value: &impl Serialize) -> Result<Vec<u8>, ConfigStoreError> {
    serde_json::to_vec(value).map_err(|error| ConfigStoreError::Refused {
        address: calls.address().to_string(),
        reason: format!("it cannot be written as JSON: {error}"),
    })
}

async fn view(calls: &Calls) -> Result<Option<View>, ConfigStoreError> {
    let prefix = format!("{}/", calls.address().path());
    // Before looking: others of this process may write meanwhile.
    let known = calls.newest();
    let found = calls.client.get_prefix(&prefix).await;
    let found = found.map_err(|error| calls.translate(error))?;
    let (mut backends, mut spares, mut revisions) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    let (mut held, mut leader, mut replaced) = (None, None, None::<Replaced>);
    for stored in found.stored {
        let (value, revision) = (&stored.value, stored.revision);
        let name = stored.key.strip_prefix(prefix.as_bytes());
        let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else {
            continue;
        };
        // What nobody can read was not written by anybody who lives, but its key is there.
        let key = if name == CONFIG {
            held = Some(calls.held(stored)?);
            Key::Config
        } else if name == CONTROLLER {
            leader = serde_json::from_slice::<Leader>(value).ok();
            Key::Leader
        } else if name == REPLACEMENTS {
            replaced = serde_json::from_slice(value).ok();
            Key::Replacements
        } else if let Some(number) = name.strip_prefix(BACKENDS) {
            let Ok(number) = number.parse() else { continue };
            backends.insert(number, keeper::registered(value));
            Key::Backend(number)
        } else if let Some(name) = name.strip_prefix(SPARES) {
            let spare = serde_json::from_slice::<Spare>(value).ok();
            spares.extend(spare.filter(|spare| spare.name == name));
            Key::Spare(name.to_owned())
        } else {
            continue;
        };
        revisions.insert(key, revision);
    }
    let Some(held) = calls.judge(known.as_ref(), held)? else {
        return Ok(None);
    };
    let life = format!("{:016x}", held.config.life);
    let replaced = replaced.filter(|replaced| replaced.life == life);
    Ok(Some(View {
        config: held.config,
        incarnations: held.incarnations,
        backends,
        spares,
        leader,
        replacements: replaced.map_or_else(Vec::new, |replaced| replaced.replacements),
        revisions,
    }))
}

async fn replace(calls: &Calls, plan: &Plan) -> Result<bool, ConfigStoreError> {
    plan.config.validate()?;
    let path = calls.address().path();
    let name = |key: &Key| match key {
        Key::Config => format!("{path}/{CONFIG}"),
        Key::Leader => format!("{path}/{CONTROLLER}"),
        Key::Replacements => format!("{path}/{REPLACEMENTS}"),
        Key::Backend(number) => format!("{path}/{BACKENDS}{number}"),
        Key::Spare(spare) => format!("{path}/{SPARES}{spare}"),
    };
    let mut transaction = Transaction::new();
    for (key, revision) in &plan.conditions {
        transaction = transaction.if_revision(&name(key), *revision);
    }
    // Fields that a newer release has added stay. If they are of a later configuration than
    // the plan's, its condition fails.
    let held = calls.look().await?;
    let same_life = held.filter(|held| held.config.life == plan.config.life);
    let document = Document {
        config: plan.config.clone(),
        incarnations: plan.incarnations.clone(),
        change: None,
        unknown: same_life.map(|held| held.unknown).unwrap_or_default(),
    };
    let config = document.to_bytes();
    let config = config.map_err(|error| calls.unwritable(&error))?;
    let replaced = Replaced {
        life: format!("{:016x}", plan.config.life),
        replacements: plan.replacements.clone(),
    };
    let replaced = to_json(calls, &replaced)?;
    let transaction = transaction.put(&name(&Key::Config), config, None).put(
        &name(&Key::Replacements),
        replaced,
        None,
    );
    calls.written(transaction, &plan.config).await
}
