//! Who is which backend: a key that lives as long as its process extends a lease.

use super::calls::{Calls, name_of_change};
use super::runtime::OwnRuntime;
use super::witness::Witness;
use crate::address::RpcAddress;
use crate::config::BackendConfig;
use crate::control::Registered;
use crate::store::claim::{BackendLock, Claim, Claimed};
use crate::store::{ConfigStoreError, DirectoryStore};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use trefoil_etcd::{Stored, Transaction};
use trefoil_layout::limits::LAYOUT_VERSION;

/// A lease is extended so many times in its life.
const EXTENSIONS: u32 = 3;
/// How long somebody else's lease is waited for after it should have ended.
const GRACE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(200);
/// How long who serves in any case waits for its registration at first, so that who looks
/// then finds it.
const AT_LAST: Duration = Duration::from_millis(500);
/// How long the end of a registration may take; its lease ends it anyway.
const FAREWELL: Duration = Duration::from_millis(500);

/// Where a backend is, so that the lock on its number there tells whether another
/// process of the same place can still live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    host: String,
    /// The host's boot and the lock's file; or nobody else's.
    place: String,
}

impl Place {
    /// Of backend `number`, whose lock in `directory` is held.
    pub(super) fn of(
        directory: Option<&DirectoryStore>,
        number: u32,
    ) -> Result<Self, ConfigStoreError> {
        let host = host();
        let place = match directory {
            None => name_of_change(),
            Some(directory) => in_directory(directory, number)?,
        };
        Ok(Place { host, place })
    }

    /// Of a process that serves at addresses where no other ever does, or, of those that
    /// ever do, by a name of its own.
    pub(super) fn at(addresses: &[RpcAddress], name: Option<&str>) -> Self {
        let mut texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        texts.extend(name.map(str::to_owned));
        Place {
            host: host(),
            place: format!("{}:{}", boot(), texts.join(",")),
        }
    }
}

/// The place of backend `number` of this boot of this host, by its lock in `directory`: one
/// process at a time has it.
pub(super) fn in_directory(
    directory: &DirectoryStore,
    number: u32,
) -> Result<String, ConfigStoreError> {
    let (device, inode) = directory.lock_identity(number)?;
    Ok(format!("{}:{device}:{inode}", boot()))
}

/// The host's name, for people: nothing is decided by it.
pub(super) fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

/// The host's boot: unlike that of any other host.
pub(super) fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.map_or_else(|_| name_of_change(), |boot| boot.trim().to_owned())
}

/// Who has written the value of a registration's key. Of what nobody can read, as little
/// as that it is there.
pub(super) fn registered(value: &[u8]) -> Registered {
    let record: Option<Record> = serde_json::from_slice(value).ok();
    let process = record.as_ref().map_or(0, |record| record.process);
    Registered {
        process,
        layout: record.as_ref().and_then(|record| record.layout),
        boot: record.as_ref().map_or_else(String::new, |r| r.boot.clone()),
        host: record.map_or_else(String::new, |record| record.place.host),
    }
}

/// The value of a registration's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    process: u32,
    #[serde(flatten)]
    place: Place,
    /// Tells this registration from every other.
    name: String,
    /// Its host's boot; empty of releases before this one.
    #[serde(default)]
    boot: String,
    /// Layout of what it shares; none of those releases.
    #[serde(default)]
    layout: Option<u16>,
}

/// A process that is registered where another one wants to be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    process: u32,
    host: String,
}

impl Other {
    /// Who stands in the way of a process at `own`, by what stands under the registration's
    /// `key`. One that cannot be read may be a newer release's: it is not taken away, for its
    /// process lives as long as its lease. What goes with no lease is no registration.
    fn in_the_way(stored: &Stored, own: &Place, key: &str) -> Option<Self> {
        let Ok(record) = serde_json::from_slice::<Record>(&stored.value) else {
            return (stored.lease != 0).then(|| Other {
                process: 0,
                host: format!(
                    "(unknown: a process of another release has written {key}; if none lives, delete that key)"
                ),
            });
        };
        (record.place != *own).then_some(Other {
            process: record.process,
            host: record.place.host,
        })
    }
}

/// A registration that stands, and what extends it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    number: u32,
    key: String,
    record: Record,
    given: Option<Given>,
    /// Who else is registered in its stead.
    usurper: Usurper,
    lease: Duration,
    id: i64,
}

/// Where a process serves that is the backend only while the configuration says so: one that
/// was given the place of another, or is on one of several hosts. It registers, now and again,
/// only while the configuration names that. The others begin before the configuration does,
/// and outlive one that etcd has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) addresses: Vec<RpcAddress>,
    pub(super) place: Option<String>,
}

impl Given {
    pub(super) fn is(&self, backend: &BackendConfig) -> bool {
        self.addresses == backend.addresses && self.place == backend.place
    }
}

/// What is to be told of another process that is registered as the same backend.
#[derive(Clone, Debug, Default)]
struct Usurper(Arc<Mutex<Option<String>>>);

impl Usurper {
    fn set(&self, text: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn get(&self) -> Option<String> {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.clone()
    }
}

fn prefix(calls: &Calls) -> String {
    format!("{}/backends/", calls.address().path())
}

/// Registers this process as backend `number`. A process of another place whose lease
/// has not ended yet is waited for, and so is etcd, for as long.
pub(super) async fn register(
    calls: Arc<Calls>,
    number: u32,
    (place, given): (Place, Option<Given>),
    lease: Duration,
) -> Result<Kept, ConfigStoreError> {
    let mut kept = Kept::new(&calls, number, (place, given), lease);
    let deadline = Instant::now() + lease + GRACE;
    loop {
        let error = match kept.try_register(&calls).await {
            Ok(None) => return Ok(kept),
            Ok(Some(other)) => ConfigStoreError::Registered {
                address: calls.address().to_string(),
                number,
                process: other.process,
                host: other.host,
            },
            Err(error) if error.is_outage() => error,
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            return Err(error);
        }
        sleep(PAUSE).await;
    }
}

/// Registers this process as backend `number` if that takes no longer than a moment; else
/// whoever keeps the registration does it when it can. For a process whose lock and whose
/// order to begin say that it is the backend.
pub(super) async fn register_at_last(
    calls: Arc<Calls>,
    number: u32,
    place: (Place, Option<Given>),
    lease: Duration,
) -> Kept {
    let mut kept = Kept::new(&calls, number, place, lease);
    // Cut off, it may have registered: it is found to be of the same place.
    let _ = timeout(AT_LAST, kept.try_register(&calls)).await;
    kept
}

impl Kept {
    fn new(
        calls: &Calls,
        number: u32,
        (place, given): (Place, Option<Given>),
        lease: Duration,
    ) -> Self {
        Kept {
            number,
            key: format!("{}{number}", prefix(calls)),
            record: Record {
                process: std::process::id(),
                place,
                name: name_of_change(),
                boot: boot(),
                layout: Some(LAYOUT_VERSION.into()),
            },
            given,
            usurper: Usurper::default(),
            lease,
            id: 0,
        }
    }

    /// Registers, unless another one lives: that one, then.
    async fn try_register(&mut self, calls: &Calls) -> Result<Option<Other>, ConfigStoreError> {
        let found = calls.client.get(&self.key).await;
        let found = found.map_err(|error| calls.translate(error))?;
        let stored = found.stored.into_iter().next();
        let revision = stored.as_ref().map_or(0, |stored| stored.revision);
        let own = &self.record.place;
        let other = stored.and_then(|stored| Other::in_the_way(&stored, own, &self.key));
        if other.is_some() {
            return Ok(other);
        }
        let in_force = self.check_place(calls).await?;
        let id = calls.client.grant(self.lease).await;
        let id = id.map_err(|error| calls.translate(error))?;
        let bytes =
            serde_json::to_vec(&self.record).map_err(|error| ConfigStoreError::Refused {
                address: calls.address().to_string(),
                reason: format!("a registration cannot be written as JSON: {error}"),
            })?;
        let mut transaction = Transaction::new().if_revision(&self.key, revision);
        if let Some(in_force) = in_force {
            // Nobody gives the place away in between.
            transaction = transaction.if_revision(calls.key(), in_force);
        }
        let transaction = transaction.put(&self.key, bytes, Some(id));
        let written = calls.client.transact(transaction).await;
        if matches!(written, Ok(true)) {
            self.id = id;
            return Ok(None);
        }
        // Nobody would end it: there would be one more with each attempt.
        let _ = calls.client.revoke(id).await;
        match written {
            Ok(_) => Err(calls.unavailable("another registration came between")),
            Err(error) => Err(calls.translate(error)),
        }
    }

    /// Refuses to register where the place is another process's by now; when the
    /// configuration was written that says so, if it matters.
    async fn check_place(&self, calls: &Calls) -> Result<Option<i64>, ConfigStoreError> {
        let Some(given) = &self.given else {
            return Ok(None);
        };
        let none = || ConfigStoreError::NoCellInEtcd(calls.address().to_string());
        let held = calls.read().await?.ok_or_else(none)?;
        let number = self.number;
        let place = held.config.backend(number);
        if place.is_some_and(|place| given.is(place)) {
            return Ok(Some(held.revision));
        }
        let holder = match place {
            None => "nowhere: the cell has no backend of that number any more".to_owned(),
            Some(place) => {
                let texts = place.addresses.iter().map(ToString::to_string);
                texts.collect::<Vec<String>>().join(", ")
            }
        };
        Err(ConfigStoreError::PlaceTaken { number, holder })
    }

    /// Whether it still stands, after its lease was extended.
    async fn extend(&self, calls: &Calls) -> Result<bool, ConfigStoreError> {
        if self.id == 0 {
            return Ok(false);
        }
        let extended = calls.client.keep_alive(self.id).await;
        if !extended.map_err(|error| calls.translate(error))? {
            return Ok(false);
        }
        // The lease may outlive the key: an etcd with old data may have one without the
        // other.
        let found = calls.client.get(&self.key).await;
        let found = found.map_err(|error| calls.translate(error))?;
        let record = found.stored.first();
        let record = record.and_then(|stored| serde_json::from_slice::<Record>(&stored.value).ok());
        Ok(record.is_some_and(|record| record.name == self.record.name))
    }

    /// Extends the lease for as long as it is polled, and registers anew if it has ended and
    /// the place is not another's by then.
    async fn keep(mut self, calls: Arc<Calls>) {
        let mut trouble: Option<Instant> = None;
        loop {
            match self.id {
                // It does not stand yet.
                0 => sleep(PAUSE).await,
                _ => sleep(self.lease / EXTENSIONS).await,
            }
            let kept = match self.extend(&calls).await {
                Ok(true) => Ok(None),
                Ok(false) => self.try_register(&calls).await,
                Err(error) => Err(error),
            };
            let backend = self.number;
            match &kept {
                Ok(other) => self.usurper.set(other.as_ref().map(|other| {
                    let (process, host) = (other.process, &other.host);
                    format!(
                        "process {process} on host {host} is registered as backend {backend}, too: stop one of them"
                    )
                })),
                Err(error @ ConfigStoreError::PlaceTaken { .. }) => {
                    self.usurper.set(Some(error.to_string()));
                }
                // What was known stays.
                Err(_) => {}
            }
            match kept {
                Ok(None) => {
                    if let Some(since) = trouble.take() {
                        let seconds = since.elapsed().as_secs();
                        tracing::info!(backend, seconds, "registered in etcd again");
                    }
                }
                Ok(Some(other)) if trouble.is_none() => {
                    trouble = Some(Instant::now());
                    let (process, host) = (other.process, other.host);
                    tracing::error!(
                        backend,
                        process,
                        host,
                        "another process has registered as this backend: stop one of them"
                    );
                }
                Err(error @ ConfigStoreError::PlaceTaken { .. }) => {
                    tracing::error!(backend, %error, "this process does not register again");
                    return;
                }
                Err(error) if trouble.is_none() => {
                    trouble = Some(Instant::now());
                    tracing::warn!(
                        backend,
                        %error,
                        "cannot say to etcd that this backend lives; it serves on"
                    );
                }
                _ => {}
            }
        }
    }
}

/// Backends whose leases have not ended.
pub(super) async fn claimed(calls: &Calls) -> Result<Vec<Claimed>, ConfigStoreError> {
    let prefix = prefix(calls);
    let found = calls.client.get_prefix(&prefix).await;
    let found = found.map_err(|error| calls.translate(error))?;
    let claimed = |stored: trefoil_etcd::Stored| {
        let name = stored.key.strip_prefix(prefix.as_bytes())?;
        let number = std::str::from_utf8(name).ok()?.parse().ok()?;
        let record: Option<Record> = serde_json::from_slice(&stored.value).ok();
        let process = record.map(|record| record.process);
        Some(Claimed { number, process })
    };
    let mut claimed: Vec<Claimed> = found.stored.into_iter().filter_map(claimed).collect();
    claimed.sort_unstable_by_key(|claimed| claimed.number);
    Ok(claimed)
}

/// The right to be a backend, by what etcd and the directory say.
#[derive(Debug)]
pub(super) struct Registration {
    calls: Arc<Calls>,
    runtime: Arc<OwnRuntime>,
    key: String,
    /// The registration's.
    name: String,
    usurper: Usurper,
    keeper: AbortHandle,
    witness: Option<Witness>,
    /// Given up last.
    _local: Option<BackendLock>,
}

impl Registration {
    pub(super) fn new(
        calls: Arc<Calls>,
        runtime: Arc<OwnRuntime>,
        kept: Kept,
        witness: Option<Witness>,
        local: Option<BackendLock>,
    ) -> Self {
        let (key, name) = (kept.key.clone(), kept.record.name.clone());
        let usurper = kept.usurper.clone();
        let keeper = runtime.handle().spawn(kept.keep(Arc::clone(&calls)));
        Registration {
            calls,
            runtime,
            key,
            name,
            usurper,
            keeper: keeper.abort_handle(),
            witness,
            _local: local,
        }
    }
}

impl Claim for Registration {
    fn begin_incarnation(&self, number: u32, life: u64) -> Result<u32, ConfigStoreError> {
        let known = match &self.witness {
            Some(witness) => witness.count(life)?,
            None => 0,
        };
        let calls = Arc::clone(&self.calls);
        let begun = async move { calls.begin_incarnation(number, life, known).await };
        let count = self
            .runtime
            .wait(begun)
            .ok_or_else(|| self.calls.unavailable("its thread has ended"))??;
        if let Some(witness) = &self.witness {
            witness.note(life, count)?;
        }
        Ok(count)
    }

    fn usurper(&self) -> Option<String> {
        self.usurper.get()
    }
}

impl Drop for Registration {
    /// Others need not wait for the lease's end. Where etcd is away, they do.
    fn drop(&mut self) {
        self.keeper.abort();
        let calls = Arc::clone(&self.calls);
        let (key, name) = (self.key.clone(), self.name.clone());
        let farewell = async move { timeout(FAREWELL, forget(&calls, &key, &name)).await };
        let _ = self.runtime.wait(farewell);
    }
}

/// Takes a registration away, if it is still the one of that name.
async fn forget(calls: &Calls, key: &str, name: &str) {
    let Ok(found) = calls.client.get(key).await else {
        return;
    };
    let Some(stored) = found.stored.first() else {
        return;
    };
    let record: Option<Record> = serde_json::from_slice(&stored.value).ok();
    if record.is_some_and(|record| record.name == name) {
        let delete = Transaction::new()
            .if_revision(key, stored.revision)
            .delete(key);
        let _ = calls.client.transact(delete).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_of_another_release_is_in_the_way_and_the_own_place_is_not() {
        let at = |host: &str| {
            let (host, port) = (host.to_owned(), 7411);
            Place::at(&[RpcAddress::Tcp { host, port }], None)
        };
        let (own, elsewhere) = (at("10.0.0.1"), at("10.0.0.2"));
        let record = |place: &Place| Record {
            process: 4711,
            place: place.clone(),
            name: name_of_change(),
            boot: boot(),
            layout: Some(LAYOUT_VERSION.into()),
        };
        let value = |place| serde_json::to_vec(&record(place)).unwrap();
        let with = |value: &[u8], lease| {
            let stored = Stored {
                key: b"/cell/backends/1".to_vec(),
                value: value.to_vec(),
                revision: 5,
                lease,
            };
            Other::in_the_way(&stored, &own, "/cell/backends/1")
        };
        let of = |value: &[u8]| with(value, 7);
        // A process that went without a word, and was started anew.
        assert_eq!(of(&value(&own)), None);
        assert_eq!(of(&value(&elsewhere)).unwrap().process, 4711);
        // What a later release may say.
        let mut later: serde_json::Value = serde_json::from_slice(&value(&elsewhere)).unwrap();
        later["more"] = "of which nothing is known".into();
        let more = serde_json::to_vec(&later).unwrap();
        assert_eq!(of(&more).unwrap().process, 4711);
        later["process"] = "host-2/4711".into();
        for unreadable in [serde_json::to_vec(&later).unwrap(), b"\x01\x02".to_vec()] {
            let other = of(&unreadable).unwrap();
            assert!(other.host.contains("another release"), "{other:?}");
            assert!(other.host.contains("/cell/backends/1"), "{other:?}");
            assert_eq!(with(&unreadable, 0), None);
        }
    }
}
