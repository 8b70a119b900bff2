//! The configuration of a cell in etcd, for its clients.
//!
//! etcd says where the cell is. What the backends serve is what counts, so they are
//! asked, too: whoever knows something newer is believed, and an etcd that says
//! something older, or something else of the same id, was restored from a backup. A new client refuses to begin with that;
//! one that is there already goes on with what the backends say, and without etcd it
//! does so, too.

#[cfg(feature = "etcd")]
pub(crate) use with::EtcdSource;
#[cfg(not(feature = "etcd"))]
pub(crate) use without::EtcdSource;

#[cfg(feature = "etcd")]
mod with {
    use crate::error::ConnectError;
    use crate::rpc::Rpc;
    use crate::served::{Served, Unanswered, ask_all};
    use std::ops::ControlFlow;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};
    use trefoil_cell::{
        BackendConfig, CellConfig, ConfigStore as _, ConfigStoreError, EtcdAddress, EtcdSettings,
        EtcdStore, RpcAddress,
    };
    use trefoil_layout::TopologyId;

    /// How long a backend may take to say what it serves.
    const ASK_PATIENCE: Duration = Duration::from_millis(500);
    /// After etcd was found away, backends are asked first for so long.
    const AWAY: Duration = Duration::from_secs(5);

    /// See the module.
    pub(crate) struct EtcdSource {
        store: EtcdStore,
        /// When etcd did not answer last.
        away: Mutex<Option<Instant>>,
        /// Why it was not believed last.
        told: Mutex<String>,
    }

    impl EtcdSource {
        pub(crate) fn open(address: &EtcdAddress) -> Result<Self, ConnectError> {
            let settings = EtcdSettings::from_environment()?;
            Ok(EtcdSource {
                store: EtcdStore::open(address, &settings)?,
                away: Mutex::default(),
                told: Mutex::default(),
            })
        }

        /// For a client that knows nothing yet.
        pub(crate) fn first(&self, rpc: &Rpc) -> Result<CellConfig, ConnectError> {
            let config = self.load()?;
            let served = match first_answer(rpc, &config) {
                Ok(served) => served,
                Err(None) => return Ok(config),
                Err(Some(refused)) => return Err(self.refused(refused)),
            };
            if !config.is_overruled_by(&served) {
                return Ok(config);
            }
            // Backends follow etcd: it may have been changed between the two looks.
            let again = self.load()?;
            if !again.is_overruled_by(&served) {
                return Ok(again);
            }
            Err(self.older(&again, &served).into())
        }

        /// For one that knows `known`; never anything older.
        pub(crate) fn next(
            &self,
            rpc: &Rpc,
            known: &CellConfig,
        ) -> Result<CellConfig, ConnectError> {
            let mut failure = None;
            if !self.is_away() {
                match self.load_after(known) {
                    Ok(config) if config.topology_id() != known.topology_id() => {
                        return Ok(config);
                    }
                    Ok(_) => {}
                    Err(error) => failure = Some(error),
                }
            }
            // An etcd that had lost everything may hold a cell that began anew since: then
            // its backends serve just that.
            let anew = match failure {
                Some(ConfigStoreError::Older { .. }) => self.anew(known),
                _ => None,
            };
            let mut served = None;
            // Whoever hangs is waited for only while nobody knows anything newer.
            let newer = ask_all(rpc, addresses(known), ASK_PATIENCE, |answer| {
                let Ok(Served { config, .. }) = answer else {
                    return ControlFlow::Continue(());
                };
                let is_newer = known.is_older_than(&config);
                if is_newer || anew == Some(config.topology_id()) {
                    return ControlFlow::Break((config, is_newer));
                }
                if config.topology_id() == known.topology_id() {
                    served = Some(config);
                }
                ControlFlow::Continue(())
            });
            if let Some((config, is_newer)) = newer {
                if !is_newer {
                    self.store.believe(&config);
                }
                return Ok(config);
            }
            match (served, failure) {
                (Some(served), _) => Ok(served),
                (None, Some(failure)) => Err(failure.into()),
                // Nobody serves what is known: only etcd can tell of another place.
                (None, None) => Ok(self.load_after(known)?),
            }
        }

        /// What etcd holds of another life than `known`, however low its id.
        fn anew(&self, known: &CellConfig) -> Option<TopologyId> {
            let held = self.store.look().ok()??;
            (held.config.life != known.life).then(|| held.config.topology_id())
        }

        fn load(&self) -> Result<CellConfig, ConfigStoreError> {
            let none = || ConfigStoreError::NoCellInEtcd(self.store.address().to_string());
            self.store.load()?.ok_or_else(none)
        }

        fn load_after(&self, known: &CellConfig) -> Result<CellConfig, ConfigStoreError> {
            let loaded = self.load();
            let is_away = loaded.as_ref().is_err_and(ConfigStoreError::is_outage);
            *lock(&self.away) = is_away.then(Instant::now);
            let loaded = match loaded {
                Ok(config) if config.is_overruled_by(known) => Err(self.older(&config, known)),
                loaded => loaded,
            };
            if let Err(
                error @ (ConfigStoreError::Older { .. } | ConfigStoreError::TwoOfOneId { .. }),
            ) = &loaded
            {
                let text = error.to_string();
                let mut told = lock(&self.told);
                if *told != text {
                    tracing::error!(%error, "the cell's configuration store is not believed");
                    *told = text;
                }
            }
            loaded
        }

        fn older(&self, found: &CellConfig, known: &CellConfig) -> ConfigStoreError {
            ConfigStoreError::overruled(self.store.address().to_string(), Some(found), known)
        }

        /// No backend lets this process in.
        fn refused(&self, refused: Unanswered) -> ConnectError {
            let address = self.store.address().to_string();
            match refused.handshake {
                Some(source) => ConnectError::Handshake { address, source },
                None => ConnectError::Unreachable {
                    address,
                    reason: refused.why,
                    is_refusal: true,
                },
            }
        }

        fn is_away(&self) -> bool {
            lock(&self.away).is_some_and(|since| since.elapsed() < AWAY)
        }
    }

    /// What the first backend that answers serves. An error says that none does, and, if one
    /// has refused, why.
    fn first_answer(rpc: &Rpc, config: &CellConfig) -> Result<CellConfig, Option<Unanswered>> {
        let mut refused = None;
        let served = ask_all(rpc, addresses(config), ASK_PATIENCE, |answer| {
            match answer {
                Ok(served) => return ControlFlow::Break(served.config),
                Err(why) if why.handshake.is_some() || why.is_refusal => refused = Some(why),
                Err(_) => {}
            }
            ControlFlow::Continue(())
        });
        served.ok_or(refused)
    }

    /// Where each backend is asked.
    fn addresses(config: &CellConfig) -> impl Iterator<Item = RpcAddress> {
        let first = |backend: &BackendConfig| backend.addresses.first().cloned();
        config.backends.iter().filter_map(first)
    }

    fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
        mutex
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(not(feature = "etcd"))]
mod without {
    use crate::error::ConnectError;
    use crate::rpc::Rpc;
    use trefoil_cell::{CellConfig, EtcdAddress};

    /// There is none.
    pub(crate) enum EtcdSource {}

    impl EtcdSource {
        pub(crate) fn open(address: &EtcdAddress) -> Result<Self, ConnectError> {
            Err(ConnectError::EtcdLeftOut(address.to_string()))
        }

        pub(crate) fn first(&self, _: &Rpc) -> Result<CellConfig, ConnectError> {
            match *self {}
        }

        pub(crate) fn next(&self, _: &Rpc, _: &CellConfig) -> Result<CellConfig, ConnectError> {
            match *self {}
        }
    }
}
