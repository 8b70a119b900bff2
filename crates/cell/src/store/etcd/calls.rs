//! What is asked of etcd for the configuration.

use super::follow::{Bell, follow};
use super::settings::EtcdSettings;
use crate::config::CellConfig;
use crate::etcd_address::EtcdAddress;
use crate::store::document::{Document, Incarnations, Unknown};
use crate::store::{ConfigStoreError, check_swap};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use trefoil_etcd::{EtcdClient, EtcdError, Stored, Transaction};
use trefoil_layout::TopologyId;

/// How long a change may take, with an etcd that comes and goes.
const CHANGE_PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts at a change, and two looks at an etcd that is away.
const PAUSE: Duration = Duration::from_millis(100);
/// Least time for a look, however little somebody wants to wait: what may come first is
/// a connection, and a password, which etcd takes its time to check.
const LOOK_PATIENCE_MIN: Duration = Duration::from_millis(500);

/// What etcd holds of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The configuration.
    pub config: CellConfig,
    /// How often each backend has begun.
    pub incarnations: Incarnations,
    change: Option<String>,
    /// What a newer release has written beside.
    pub(super) unknown: Unknown,
    /// When it was written: etcd's revision of that moment.
    pub(super) revision: i64,
}

/// What this process has seen of a cell: etcd must not hold anything older.
#[derive(Clone, Debug)]
pub(super) struct Known {
    config: CellConfig,
    /// The most starts of each backend that were counted in that life.
    incarnations: Incarnations,
}

impl Known {
    /// Takes what is newer.
    fn note(&mut self, config: &CellConfig, incarnations: &Incarnations) {
        if config.life != self.config.life {
            if !config.is_older_than(&self.config) {
                *self = Known {
                    config: config.clone(),
                    incarnations: incarnations.clone(),
                };
            }
            return;
        }
        if !config.is_overruled_by(&self.config) {
            self.config = config.clone();
        }
        for (&number, &count) in incarnations {
            let known = self.incarnations.entry(number).or_default();
            *known = count.max(*known);
        }
    }
}

/// One cell in etcd. Its futures run on the store's own runtime.
#[derive(Debug)]
pub(super) struct Calls {
    address: EtcdAddress,
    pub(super) client: Arc<EtcdClient>,
    key: String,
    /// What may be missing where a connection is closed without a word.
    hint: &'static str,
    /// The newest that this process has seen here.
    newest: Mutex<Option<Known>>,
    /// What was read last, and at which ring.
    read: Mutex<Option<(u64, Option<CellConfig>)>>,
    follower: OnceLock<Follower>,
}

#[derive(Debug)]
struct Follower {
    bell: watch::Receiver<Bell>,
    task: AbortHandle,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Calls {
    pub(super) fn new(
        address: &EtcdAddress,
        settings: &EtcdSettings,
    ) -> Result<Self, ConfigStoreError> {
        let access = &settings.access;
        let (of, members) = (access.clone(), address.members());
        let read = move || of.options(members.clone());
        let client = EtcdClient::new(access.files(), read);
        let client = client.map_err(|error| ConfigStoreError::Refused {
            address: address.to_string(),
            reason: error.to_string(),
        })?;
        Ok(Calls {
            key: format!("{}/config", address.path()),
            hint: access.hint(),
            address: address.clone(),
            client: Arc::new(client),
            newest: Mutex::default(),
            read: Mutex::default(),
            follower: OnceLock::new(),
        })
    }

    pub(super) fn address(&self) -> &EtcdAddress {
        &self.address
    }

    pub(super) fn unavailable(&self, reason: &str) -> ConfigStoreError {
        ConfigStoreError::Unavailable {
            address: self.address.to_string(),
            reason: reason.to_owned(),
        }
    }

    /// In the words of whoever uses a store.
    pub(super) fn translate(&self, error: EtcdError) -> ConfigStoreError {
        let address = self.address.to_string();
        let hint = if error.is_broken_off() { self.hint } else { "" };
        match error {
            EtcdError::Unavailable(_) | EtcdError::Exhausted(_) => ConfigStoreError::Unavailable {
                address,
                reason: format!("{error}{hint}"),
            },
            EtcdError::Refused(_) => ConfigStoreError::Refused {
                address,
                reason: format!(
                    "{error}; TREFOIL_ETCD_USER and TREFOIL_ETCD_PASSWORD_FILE name a user, who \
                     has to be allowed to read and write keys that begin with {}/",
                    self.address.path()
                ),
            },
            error => ConfigStoreError::Refused {
                address,
                reason: error.to_string(),
            },
        }
    }

    /// What is there, however old.
    pub(super) async fn look(&self) -> Result<Option<Held>, ConfigStoreError> {
        let found = self.client.get(&self.key).await;
        let found = found.map_err(|error| self.translate(error))?;
        let stored = found.stored.into_iter().next();
        stored.map(|stored| self.held(stored)).transpose()
    }

    /// What stands under the configuration's key.
    pub(super) fn held(&self, stored: Stored) -> Result<Held, ConfigStoreError> {
        let document =
            Document::parse(&stored.value).map_err(|reason| ConfigStoreError::Corrupt {
                path: format!("{} (key {})", self.address, self.key).into(),
                reason,
            })?;
        Ok(Held {
            config: document.config,
            incarnations: document.incarnations,
            change: document.change,
            unknown: document.unknown,
            revision: stored.revision,
        })
    }

    /// What is there, if it is not older than what was there before.
    pub(super) async fn read(&self) -> Result<Option<Held>, ConfigStoreError> {
        // Before looking: others of this process may write meanwhile.
        let known = self.newest();
        let held = self.look().await?;
        self.judge(known.as_ref(), held)
    }

    /// The newest that this process has seen.
    pub(super) fn newest(&self) -> Option<Known> {
        lock(&self.newest).clone()
    }

    /// The configuration's key.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// What was read after `known` was the newest, if it is not older than that.
    pub(super) fn judge(
        &self,
        known: Option<&Known>,
        held: Option<Held>,
    ) -> Result<Option<Held>, ConfigStoreError> {
        let found = held.as_ref().map(|held| &held.config);
        let address = || self.address.to_string();
        if let Some(known) = known
            && found.is_none_or(|found| found.is_overruled_by(&known.config))
        {
            let error = ConfigStoreError::overruled(address(), found, &known.config);
            return Err(error);
        }
        if let (Some(known), Some(held)) = (known, &held)
            && held.config.life == known.config.life
        {
            // The configuration may be the same, and starts forgotten.
            let counted = |number| held.incarnations.get(number).copied().unwrap_or(0);
            let mut counts = known.incarnations.iter();
            if let Some((&number, &known)) = counts.find(|(n, known)| counted(n) < **known) {
                return Err(ConfigStoreError::OlderCount {
                    address: address(),
                    number,
                    found: counted(&number),
                    known,
                });
            }
        }
        if let Some(held) = &held {
            self.note(&held.config, &held.incarnations);
        }
        Ok(held)
    }

    pub(super) fn believe(&self, config: &CellConfig) {
        *lock(&self.newest) = Some(Known {
            config: config.clone(),
            incarnations: Incarnations::new(),
        });
        *lock(&self.read) = None;
    }

    /// Remembers what is newest.
    fn note(&self, config: &CellConfig, incarnations: &Incarnations) {
        let mut newest = lock(&self.newest);
        let known = newest.get_or_insert_with(|| Known {
            config: config.clone(),
            incarnations: Incarnations::new(),
        });
        known.note(config, incarnations);
    }

    pub(super) async fn load(&self) -> Result<Option<CellConfig>, ConfigStoreError> {
        Ok(self.read().await?.map(|held| held.config))
    }

    pub(super) async fn compare_and_swap(
        &self,
        expected: Option<TopologyId>,
        next: CellConfig,
    ) -> Result<(), ConfigStoreError> {
        let change = name_of_change();
        let make = |held: Option<&Held>| {
            check_swap(held.map(|held| &held.config), expected, &next)?;
            let current = held.map(Held::document);
            Ok((Document::after(current.as_ref(), &next), ()))
        };
        self.change(&change, make).await
    }

    /// Counts one more incarnation of a backend; never less than `at_least` were
    /// counted before.
    pub(super) async fn begin_incarnation(
        &self,
        number: u32,
        life: u64,
        at_least: u32,
    ) -> Result<u32, ConfigStoreError> {
        let change = name_of_change();
        let make = |held: Option<&Held>| {
            let none = || ConfigStoreError::NoCellInEtcd(self.address.to_string());
            let mut document = held.ok_or_else(none)?.document();
            let known = at_least;
            let found = document.incarnations.get(&number).copied().unwrap_or(0);
            let count = document.begin_incarnation(number, life)?;
            if found < known {
                let address = self.address.to_string();
                return Err(ConfigStoreError::OlderCount {
                    address,
                    number,
                    found,
                    known,
                });
            }
            Ok((document, count))
        };
        self.change(&change, make).await
    }

    /// Reads, makes what follows, and writes it if what was read is still there; again,
    /// if it is not. An answer that is lost is looked for: `change` names the write.
    async fn change<T>(
        &self,
        change: &str,
        make: impl Fn(Option<&Held>) -> Result<(Document, T), ConfigStoreError>,
    ) -> Result<T, ConfigStoreError> {
        let deadline = Instant::now() + CHANGE_PATIENCE;
        let mut made = None;
        loop {
            let attempt = self.attempt(change, &make, &mut made).await;
            match attempt {
                Ok(true) => return made.ok_or_else(|| self.unavailable("nothing was made")),
                // Somebody else was first: look again, at once.
                Ok(false) if Instant::now() < deadline => {}
                Ok(false) => return Err(self.unavailable("it changes all the time")),
                Err(error) if error.is_outage() && Instant::now() + PAUSE < deadline => {
                    sleep(PAUSE).await;
                }
                Err(ConfigStoreError::Unavailable { address, reason }) if made.is_some() => {
                    return Err(ConfigStoreError::Undecided { address, reason });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether it is written.
    async fn attempt<T>(
        &self,
        change: &str,
        make: &impl Fn(Option<&Held>) -> Result<(Document, T), ConfigStoreError>,
        made: &mut Option<T>,
    ) -> Result<bool, ConfigStoreError> {
        let held = self.read().await?;
        if made.is_some() && held.as_ref().is_some_and(|held| held.is_of(change)) {
            // An attempt whose answer was lost.
            return Ok(true);
        }
        let (mut document, result) = make(held.as_ref())?;
        document.change = Some(change.to_owned());
        *made = Some(result);
        let revision = held.map_or(0, |held| held.revision);
        let is_written = self.put(revision, &document).await?;
        if is_written {
            self.note(&document.config, &document.incarnations);
        }
        Ok(is_written)
    }

    async fn put(&self, revision: i64, document: &Document) -> Result<bool, ConfigStoreError> {
        let bytes = document.to_bytes();
        let bytes = bytes.map_err(|error| self.unwritable(&error))?;
        let transaction = Transaction::new()
            .if_revision(&self.key, revision)
            .put(&self.key, bytes, None);
        self.write(transaction).await
    }

    async fn write(&self, transaction: Transaction) -> Result<bool, ConfigStoreError> {
        let written = self.client.transact(transaction).await;
        // Whatever came of it: what was read before is old.
        *lock(&self.read) = None;
        written.map_err(|error| self.translate(error))
    }

    /// Writes `config` and what comes with it; whether the conditions held.
    pub(super) async fn written(
        &self,
        transaction: Transaction,
        config: &CellConfig,
    ) -> Result<bool, ConfigStoreError> {
        let is_written = self.write(transaction).await?;
        if is_written {
            self.note(config, &Incarnations::new());
        }
        Ok(is_written)
    }

    pub(super) fn unwritable(&self, error: &serde_json::Error) -> ConfigStoreError {
        ConfigStoreError::Refused {
            address: self.address.to_string(),
            reason: format!("the configuration cannot be written as JSON: {error}"),
        }
    }

    pub(super) async fn restore(
        &self,
        found: Option<Held>,
        config: CellConfig,
        incarnations: Incarnations,
    ) -> Result<(), ConfigStoreError> {
        config.validate()?;
        let same_life = found
            .as_ref()
            .filter(|held| held.config.life == config.life);
        let document = Document {
            unknown: same_life.map_or_else(Unknown::default, |held| held.unknown.clone()),
            config,
            incarnations,
            change: Some(name_of_change()),
        };
        let revision = found.as_ref().map_or(0, |held| held.revision);
        if self.put(revision, &document).await? {
            self.note(&document.config, &document.incarnations);
            return Ok(());
        }
        Err(ConfigStoreError::Conflict {
            expected: found.map(|held| held.config.topology_id()),
            found: self.look().await?.map(|held| held.config.topology_id()),
        })
    }

    pub(super) async fn wait_for_change(
        &self,
        known: Option<TopologyId>,
        patience: Duration,
    ) -> Result<Option<CellConfig>, ConfigStoreError> {
        let deadline = Instant::now() + patience;
        let mut bell = self.bell();
        loop {
            let mark = *bell.borrow_and_update();
            let left = deadline.saturating_duration_since(Instant::now());
            let look = timeout(left.max(LOOK_PATIENCE_MIN), self.load_at(mark));
            let looked = look
                .await
                .unwrap_or_else(|_| Err(self.unavailable("etcd has not answered")));
            match looked {
                Ok(config) if config.as_ref().map(CellConfig::topology_id) != known => {
                    return Ok(config);
                }
                Err(error) if !error.is_outage() => return Err(error),
                _ => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return looked.map(|_| None);
            }
            let pause = match looked.is_ok() && mark.stands {
                true => left,
                false => left.min(PAUSE),
            };
            let _ = timeout(pause, bell.changed()).await;
        }
    }

    /// What is there; not asked for again while nothing can have happened since.
    async fn load_at(&self, mark: Bell) -> Result<Option<CellConfig>, ConfigStoreError> {
        if mark.stands
            && let Some((rings, config)) = lock(&self.read).clone()
            && rings == mark.rings
        {
            let newest = self.newest().map(|known| known.config);
            let is_old = |config: Option<&CellConfig>| {
                newest.as_ref().is_some_and(|newest| {
                    config.is_none_or(|config| config.is_overruled_by(newest))
                })
            };
            if !is_old(config.as_ref()) {
                return Ok(config);
            }
        }
        let config = self.load().await?;
        *lock(&self.read) = Some((mark.rings, config.clone()));
        Ok(config)
    }

    fn bell(&self) -> watch::Receiver<Bell> {
        let follower = self.follower.get_or_init(|| {
            let (sender, bell) = watch::channel(Bell::default());
            let follower = follow(Arc::clone(&self.client), self.key.clone(), sender);
            let task = tokio::spawn(follower).abort_handle();
            Follower { bell, task }
        });
        follower.bell.clone()
    }
}

impl Held {
    pub(super) fn document(&self) -> Document {
        Document {
            config: self.config.clone(),
            incarnations: self.incarnations.clone(),
            change: self.change.clone(),
            unknown: self.unknown.clone(),
        }
    }

    fn is_of(&self, change: &str) -> bool {
        self.change.as_deref() == Some(change)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unlike that of any other change.
pub(super) fn name_of_change() -> String {
    // The system's keys are drawn once a thread and then counted up.
    let draw = || {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        if let Ok(now) = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            hasher.write_u128(now.as_nanos());
        }
        hasher.finish()
    };
    format!("{:016x}{:016x}", draw(), draw())
}
