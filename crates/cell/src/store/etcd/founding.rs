//! Hosts that begin a cell together, and a host that goes on with a backend after its boot.
//!
//! | key below the address's path | value | written if |
//! |---|---|---|
//! | `founders/N` | who is to be backend N, and what the cell is to be; bound to its lease | nobody has that number |
//! | `agreed/N` | the founders that this one has seen and reached; bound to its lease | nobody has |
//! | `config` | the first configuration | there is none |
//!
//! A configuration names all of a cell's backends, and each host knows its own only. So each
//! says where it is, waits for the others, tries whether it reaches them, and says that it
//! agrees; any of them writes the configuration once all have agreed to the same founders.
//!
//! A host that was booted anew has lost what its backend held. Nobody else may have the
//! address meanwhile, but somebody may have had it before: [`EtcdStore::move_in`] names the
//! process anew, by one write under the condition that nobody is registered as the backend.

use super::EtcdStore;
use super::calls::Calls;
use super::keeper;
use super::leased::{self, Leased};
use crate::config::{BackendConfig, CellConfig};
use crate::store::ConfigStoreError;
use crate::store::document::Document;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use trefoil_etcd::Transaction;

const FOUNDERS: &str = "founders/";
const AGREED: &str = "agreed/";
/// How long a registration is waited for after its lease should have ended.
const GRACE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(200);

/// A backend of a cell that is to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founder {
    /// Unlike that of any other process.
    pub name: String,
    /// The process that starts the backend.
    pub process: u32,
    /// Its host's name.
    pub host: String,
    /// Its host's boot.
    pub boot: String,
    /// Where the backend is to be.
    pub backend: BackendConfig,
    /// What the cell is to be, in words: all have to say the same.
    pub plan: String,
}

/// A word of this process, for as long as this lives.
#[derive(Debug)]
pub struct FounderRegistration {
    _leased: Leased,
}

/// Founders by number, and the names of those that each has agreed to.
pub type Founders = BTreeMap<u32, (Founder, Vec<String>)>;

impl EtcdStore {
    /// What this process would register as a founder.
    pub fn founder(&self, backend: BackendConfig, plan: &str) -> Founder {
        Founder {
            name: leased::name(),
            process: std::process::id(),
            host: keeper::host(),
            boot: keeper::boot(),
            backend,
            plan: plan.to_owned(),
        }
    }

    /// Says where a backend is to be; nothing if somebody has its number.
    pub fn register_founder(
        &self,
        founder: &Founder,
    ) -> Result<Option<FounderRegistration>, ConfigStoreError> {
        let key = format!("{FOUNDERS}{}", founder.backend.number);
        self.say(&key, founder)
    }

    /// Says that this process has seen these founders, and reaches them.
    pub fn agree(
        &self,
        number: u32,
        names: &[String],
    ) -> Result<Option<FounderRegistration>, ConfigStoreError> {
        self.say(&format!("{AGREED}{number}"), &names)
    }

    fn say(
        &self,
        key: &str,
        value: &impl Serialize,
    ) -> Result<Option<FounderRegistration>, ConfigStoreError> {
        let wanted = self.wanted(key, value, true)?;
        let taken = self.take(wanted)?;
        Ok(taken.map(|leased| FounderRegistration { _leased: leased }))
    }

    /// All who have said where they are to be.
    pub fn founders(&self) -> Result<Founders, ConfigStoreError> {
        let calls = Arc::clone(&self.calls);
        self.wait(async move { founders(&calls).await })?
    }

    /// Has the configuration name this process as the backend, where it names the same
    /// addresses and another process: one of before the host's boot, or in another directory.
    /// Waits for the end of that one's lease; refused while it lives. The backend has begun
    /// before, whatever etcd remembers of it: it has something to learn from the others.
    pub fn move_in(&self, backend: &BackendConfig) -> Result<CellConfig, ConfigStoreError> {
        let (calls, backend, lease) = (Arc::clone(&self.calls), backend.clone(), self.lease);
        self.wait(async move { move_in(&calls, &backend, lease).await })?
    }

    /// Who is registered as a backend, for people.
    pub fn registered_as(&self, number: u32) -> Option<String> {
        let view = self.view().ok()??;
        let registered = view.backends.get(&number)?;
        let (process, host) = (registered.process, &registered.host);
        Some(format!("process {process} on host {host}"))
    }
}

async fn founders(calls: &Calls) -> Result<Founders, ConfigStoreError> {
    let path = calls.address().path();
    let of = |kind: &'static str| {
        let prefix = format!("{path}/{kind}");
        async move {
            let found = calls.client.get_prefix(&prefix).await;
            let found = found.map_err(|error| calls.translate(error))?;
            let number = |key: &[u8]| {
                let name = key.strip_prefix(prefix.as_bytes())?;
                std::str::from_utf8(name).ok()?.parse::<u32>().ok()
            };
            let stored = found.stored.into_iter();
            let stored = stored.filter_map(|s| Some((number(&s.key)?, s.value)));
            Ok::<Vec<(u32, Vec<u8>)>, ConfigStoreError>(stored.collect())
        }
    };
    let mut agreed: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (number, value) in of(AGREED).await? {
        agreed.extend(
            serde_json::from_slice(&value)
                .ok()
                .map(|names| (number, names)),
        );
    }
    let mut all = Founders::new();
    for (number, value) in of(FOUNDERS).await? {
        let founder = serde_json::from_slice::<Founder>(&value);
        // What nobody can read is no founder of this release.
        if let Ok(founder) = founder
            && founder.backend.number == number
        {
            all.insert(
                number,
                (founder, agreed.remove(&number).unwrap_or_default()),
            );
        }
    }
    Ok(all)
}

async fn move_in(
    calls: &Calls,
    backend: &BackendConfig,
    lease: Duration,
) -> Result<CellConfig, ConfigStoreError> {
    let number = backend.number;
    let key = format!("{}/backends/{number}", calls.address().path());
    let deadline = Instant::now() + lease + GRACE;
    loop {
        let error = match try_move_in(calls, backend, &key).await {
            Ok(Moved::In(config)) => return Ok(config),
            // Somebody has changed something meanwhile.
            Ok(Moved::Again) => continue,
            Ok(Moved::Registered(error)) => error,
            Err(error) if error.is_outage() => error,
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            return Err(error);
        }
        sleep(PAUSE).await;
    }
}

enum Moved {
    In(CellConfig),
    Again,
    Registered(ConfigStoreError),
}

async fn try_move_in(
    calls: &Calls,
    backend: &BackendConfig,
    key: &str,
) -> Result<Moved, ConfigStoreError> {
    let number = backend.number;
    let address = || calls.address().to_string();
    let held = calls.read().await?;
    let held = held.ok_or_else(|| ConfigStoreError::NoCellInEtcd(address()))?;
    match held.config.backend(number) {
        Some(place) if place == backend => return Ok(Moved::In(held.config)),
        Some(place) if place.addresses == backend.addresses => {}
        place => {
            let addresses = place.into_iter().flat_map(|place| &place.addresses);
            let texts: Vec<String> = addresses.map(ToString::to_string).collect();
            let holder = texts.join(", ");
            return Err(ConfigStoreError::PlaceTaken { number, holder });
        }
    }
    let found = calls.client.get(key).await;
    let found = found.map_err(|error| calls.translate(error))?;
    if let Some(stored) = found.stored.first() {
        let other = keeper::registered(&stored.value);
        return Ok(Moved::Registered(ConfigStoreError::Registered {
            address: address(),
            number,
            process: other.process,
            host: other.host,
        }));
    }
    let next = held.config.with_backend(backend.clone());
    let next = next.ok_or_else(|| ConfigStoreError::Refused {
        address: address(),
        reason: "the cell's config ids are used up: start the cell anew".to_owned(),
    })?;
    let mut document = Document {
        config: next.clone(),
        ..held.document()
    };
    document.change = None;
    document.incarnations.entry(number).or_insert(1);
    let bytes = document.to_bytes();
    let bytes = bytes.map_err(|error| calls.unwritable(&error))?;
    let transaction = Transaction::new()
        .if_revision(calls.key(), held.revision)
        .if_revision(key, 0)
        .put(calls.key(), bytes, None);
    match calls.written(transaction, &next).await? {
        true => Ok(Moved::In(next)),
        false => Ok(Moved::Again),
    }
}
