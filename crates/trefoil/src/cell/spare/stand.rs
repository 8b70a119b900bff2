//! Standing by, and taking a place.
//!
//! Every step may be hindered by something that passes, and is tried again then
//! ([`ConfigStoreError::may_pass`]). What may have changed meanwhile is looked at again:
//!
//! 1. The place: before every registration as the backend, in the same transaction
//!    ([`EtcdStore::claim_place`]), when the server takes the configuration, and by the
//!    server for as long as it runs. Where it is another's, this process stands by again,
//!    under another name and at other sockets, which nobody has ever known as a backend's.
//! 2. What etcd holds: it must not be older than what this process has seen, nor than what
//!    backends serve and how often they have begun, nor than what this directory remembers
//!    of the backend's starts.

use super::patience::Patience;
use crate::cell::spread::Spread;
use crate::cell::{anew, backend};
use crate::failure::Failure;
use crate::settings::StoreSettings;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trefoil_backend::{
    ListenOptions, Listeners, OwnPlace, Server, ServerOptions, StartError, UserPolicy,
};
use trefoil_cell::control::Spare;
use trefoil_cell::{
    CellConfig, ConfigStore as _, ConfigStoreError, DirectoryStore, EtcdStore, RpcAddress,
    SpareRegistration,
};
use trefoil_tls::Tls;

/// How long one wait for the configuration takes at most.
const WAIT: Duration = Duration::from_secs(1);
/// Digits of the name that its sockets have: paths of sockets are short.
const SOCKET_NAME_LEN: usize = 8;

/// The number by which its address is kept, whatever backend it is to be.
pub(super) const SPARE: u32 = 0;

/// What a spare is started with.
pub(super) struct Stand {
    pub(super) store: EtcdStore,
    pub(super) directory: DirectoryStore,
    /// Where other hosts reach it, if they do.
    pub(super) site: Option<Spread>,
    pub(super) settings: StoreSettings,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) users: UserPolicy,
}

/// It is known as a spare.
pub(super) struct Registered {
    pub(super) spare: Spare,
    _registration: SpareRegistration,
}

/// Which backend it is; or why it ends.
pub(super) type Given = Result<(u32, Server), Failure>;

/// Why it is not the backend yet.
enum Hindrance {
    /// It will never be: the place is another's.
    Lost(String),
    /// This may pass.
    Passes(String),
    /// This does not.
    Stays(Failure),
}

impl From<ConfigStoreError> for Hindrance {
    fn from(error: ConfigStoreError) -> Self {
        match error {
            ConfigStoreError::PlaceTaken { .. } => Hindrance::Lost(error.to_string()),
            error if error.may_pass() => Hindrance::Passes(error.to_string()),
            error => Hindrance::Stays(Failure::of(error)),
        }
    }
}

impl From<StartError> for Hindrance {
    fn from(error: StartError) -> Self {
        let may_pass = |error: &StartError| {
            let store = error.of_config_store();
            store.is_some_and(ConfigStoreError::may_pass)
        };
        match error {
            error if error.is_place_taken() => Hindrance::Lost(error.to_string()),
            error if may_pass(&error) => Hindrance::Passes(error.to_string()),
            error => Hindrance::Stays(crate::serve::start_failure(error)),
        }
    }
}

impl Stand {
    /// Says that this process stands by, under a name that it never had before.
    pub(super) fn register(&self) -> Result<Registered, ConfigStoreError> {
        backend::check_peers(
            &self.store,
            &self.store.address().to_string(),
            &[],
            self.tls(),
        )?;
        let mut spare = self.store.spare();
        let name = &spare.name[..SOCKET_NAME_LEN.min(spare.name.len())];
        let (address, fabric) = self.directory.spare_sockets(name)?;
        spare.addresses = vec![address];
        if let Some(site) = self.site.as_ref().and_then(|site| site.sites.get(&SPARE)) {
            spare.addresses = vec![site.advertised.clone()];
            // Another process may be a spare at that address later.
            spare.place = Some(spare.name.clone());
        }
        spare.fabric_socket = Some(fabric);
        spare.memory = self.settings.memory;
        let registration = self.store.register_spare(&spare)?;
        Ok(Registered {
            spare,
            _registration: registration,
        })
    }

    fn tls(&self) -> Option<&Tls> {
        self.site.as_ref()?.tls.as_ref()
    }

    /// Waits until this process is a backend.
    pub(super) fn await_place(&self, registered: &Mutex<Option<Registered>>) -> Given {
        let mut patience = Patience::default();
        loop {
            let spare = self.stand_by(registered, &mut patience)?;
            let number = self.await_number(&spare, &mut patience);
            tracing::info!(backend = number, "this spare was given a place");
            if let Some(server) = self.begin(number, &spare, registered, &mut patience)? {
                return Ok((number, server));
            }
            drop(lock(registered).take());
        }
    }

    /// Registers, if this process is not known as a spare.
    fn stand_by(
        &self,
        registered: &Mutex<Option<Registered>>,
        patience: &mut Patience,
    ) -> Result<Spare, Failure> {
        loop {
            if let Some(registered) = &*lock(registered) {
                return Ok(registered.spare.clone());
            }
            match self.register() {
                Ok(anew) => *lock(registered) = Some(anew),
                Err(error) if error.may_pass() => self.wait(&error, patience),
                Err(error) => return Err(Failure::of(error)),
            }
        }
    }

    /// Waits until the configuration gives this spare a place.
    fn await_number(&self, spare: &Spare, patience: &mut Patience) -> u32 {
        let mut known = None;
        loop {
            match self.store.wait_for_change(known, WAIT) {
                Ok(config) => {
                    patience.end();
                    let Some(config) = config else { continue };
                    if let Some(number) = place_of(&config, spare) {
                        return number;
                    }
                    known = Some(config.topology_id());
                }
                Err(error) => self.wait(&error, patience),
            }
        }
    }

    fn wait(&self, error: &ConfigStoreError, patience: &mut Patience) {
        if !anew::follow(&self.store, error, self.tls()) {
            patience.wait(&error.to_string());
        }
    }

    /// Becomes the backend; nothing if its place is another's by now.
    fn begin(
        &self,
        number: u32,
        spare: &Spare,
        registered: &Mutex<Option<Registered>>,
        patience: &mut Patience,
    ) -> Result<Option<Server>, Failure> {
        loop {
            match self.try_begin(number, spare, registered) {
                Ok(server) => {
                    patience.end();
                    return Ok(Some(server));
                }
                Err(Hindrance::Passes(why)) => patience.wait(&why),
                Err(Hindrance::Lost(why)) => {
                    tracing::warn!(backend = number, why, "this process stands by again");
                    return Ok(None);
                }
                Err(Hindrance::Stays(failure)) => return Err(failure),
            }
        }
    }

    fn try_begin(
        &self,
        number: u32,
        spare: &Spare,
        registered: &Mutex<Option<Registered>>,
    ) -> Result<Server, Hindrance> {
        let store = &self.store;
        let place = store.claim_place(number, spare, &self.directory)?;
        backend::check_peers(store, &store.address().to_string(), &[number], self.tls())?;
        let none = || ConfigStoreError::NoCellInEtcd(store.address().to_string());
        let config = store.load()?.ok_or_else(none)?;
        // The server begins another one. So it is never the first: whoever takes a dead
        // backend's place has something to learn, even if nobody has counted.
        place.begin_incarnation(config.life)?;
        // It is the backend by now.
        drop(lock(registered).take());
        let name = &spare.name[..SOCKET_NAME_LEN.min(spare.name.len())];
        let (socket, _) = self.directory.spare_sockets(name)?;
        let listen = ListenOptions {
            unix: unix_path(&socket),
            fabric: spare.fabric_socket.clone(),
            metrics: self.metrics,
            users: self.users.clone(),
            ..ListenOptions::default()
        };
        let listen = match &self.site {
            None => listen,
            Some(site) => site.listen(SPARE, listen),
        };
        let listeners = Listeners::bind(&listen).map_err(StartError::from)?;
        let options = ServerOptions {
            memory_limit: self.settings.memory,
            partition_count: self.settings.partition_count,
            huge_pages: self.settings.huge_pages,
            repair: self.settings.repair,
            recovery_rate: self.settings.recovery_rate,
            locks: vec![place],
            place: spare.addresses.first().map(|address| OwnPlace {
                address: address.clone(),
                name: spare.place.clone(),
            }),
            local: self.site.as_ref().map(|_| socket),
            ..ServerOptions::new(Arc::new(store.clone()), vec![number])
        };
        Ok(Server::start(options, listeners)?)
    }
}

/// The backend whose place this process has.
fn place_of(config: &CellConfig, spare: &Spare) -> Option<u32> {
    let mut backends = config.backends.iter();
    let place = backends.find(|backend| spare.is(backend));
    place.map(|backend| backend.number)
}

fn unix_path(address: &RpcAddress) -> Option<PathBuf> {
    match address {
        RpcAddress::Unix(path) => Some(path.clone()),
        RpcAddress::Tcp { .. } => None,
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
