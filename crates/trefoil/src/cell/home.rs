//! Where the cell of `cell up` is: its sockets and locks in a directory, its
//! configuration there, too, or in etcd.

use crate::cell::spread::Spread;
use crate::failure::Failure;
use std::path::Path;
use std::sync::Arc;
use trefoil_backend::OwnPlace;
use trefoil_cell::{
    BackendConfig, BackendRegistry, CellAddress, CellConfig, ConfigStoreError, DirectoryStore,
    EtcdAddress, EtcdSettings, EtcdStore, RpcAddress,
};
use trefoil_tls::Tls;

/// See the module.
#[derive(Clone)]
pub(super) struct Home {
    directory: DirectoryStore,
    /// `None`: the directory's.
    etcd: Option<EtcdStore>,
    /// Of a cell on several hosts.
    spread: Option<Arc<Spread>>,
}

impl Home {
    /// For a cell that begins.
    pub(super) fn create(dir: &Path, store: Option<&str>) -> Result<Self, Failure> {
        let directory = DirectoryStore::create(dir).map_err(Failure::of)?;
        Home::of(directory, store)
    }

    /// For a backend of one that is there.
    pub(super) fn open(dir: &Path, store: Option<&str>) -> Result<Self, Failure> {
        let directory = match store {
            None => DirectoryStore::open(dir),
            // It has a directory as soon as it has sockets.
            Some(_) => DirectoryStore::create(dir),
        };
        Home::of(directory.map_err(Failure::of)?, store)
    }

    fn of(directory: DirectoryStore, store: Option<&str>) -> Result<Self, Failure> {
        let etcd = match store {
            None => None,
            Some(text) => {
                let store = etcd(text)?;
                Some(store.in_directory(directory.clone()).map_err(Failure::of)?)
            }
        };
        Ok(Home {
            directory,
            etcd,
            spread: None,
        })
    }

    /// The same for a cell on several hosts, some of whose backends are here.
    pub(super) fn on_several_hosts(mut self, spread: Option<Spread>) -> Result<Self, Failure> {
        let Some(spread) = spread else {
            return Ok(self);
        };
        let Some(etcd) = self.etcd.take() else {
            return Err(Failure::Usage(
                "a cell on several hosts has its configuration in etcd: give --store etcd://host:port/path".into(),
            ));
        };
        self.spread = Some(Arc::new(spread));
        let here = self.backends_here().map_err(Failure::of)?;
        self.etcd = Some(etcd.with_backends_here(here));
        Ok(self)
    }

    /// What of a cell on several hosts is here.
    pub(super) fn spread(&self) -> Option<&Spread> {
        self.spread.as_deref()
    }

    /// What is spoken with servers over TCP, if it is TLS.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.spread.as_ref()?.tls.as_ref()
    }

    /// The cell in etcd, if it is there.
    pub(super) fn etcd(&self) -> Option<&EtcdStore> {
        self.etcd.as_ref()
    }

    /// Backends of a cell on several hosts that are here, as the configuration has to name
    /// them.
    pub(super) fn backends_here(&self) -> Result<Vec<BackendConfig>, ConfigStoreError> {
        let sites = self.spread.iter().flat_map(|spread| &spread.sites);
        let backend = |(&number, site): (&u32, &crate::cell::spread::Site)| {
            Ok(BackendConfig {
                number,
                addresses: vec![site.advertised.clone()],
                fabric_socket: Some(self.directory.fabric_socket(number)?),
                place: Some(EtcdStore::place_in(&self.directory, number)?),
            })
        };
        sites.map(backend).collect()
    }

    /// Where the configuration has to name backend `number` for a process of this directory,
    /// if others have places to give away: only a store on other machines has.
    pub(super) fn own_place(&self, number: u32) -> Result<Option<OwnPlace>, ConfigStoreError> {
        match self.etcd {
            None => Ok(None),
            Some(_) => self.place_of(number).map(Some),
        }
    }

    fn place_of(&self, number: u32) -> Result<OwnPlace, ConfigStoreError> {
        let site = self.spread.as_ref().and_then(|s| s.sites.get(&number));
        Ok(match site {
            None => OwnPlace {
                address: self.directory.rpc_socket(number)?,
                name: None,
            },
            Some(site) => OwnPlace {
                address: site.advertised.clone(),
                name: Some(EtcdStore::place_in(&self.directory, number)?),
            },
        })
    }

    /// The Unix sockets of backends of a cell on several hosts that are here.
    pub(super) fn sockets_here(&self) -> Result<Vec<(u32, RpcAddress)>, ConfigStoreError> {
        let numbers = self.spread.iter().flat_map(|spread| spread.sites.keys());
        let socket = |&number| Ok((number, self.directory.rpc_socket(number)?));
        numbers.map(socket).collect()
    }

    /// Who holds the configuration, and knows the backends.
    pub(super) fn registry(&self) -> Arc<dyn BackendRegistry> {
        match &self.etcd {
            None => Arc::new(self.directory.clone()),
            Some(etcd) => Arc::new(etcd.clone()),
        }
    }

    /// Where sockets and locks are.
    pub(super) fn directory(&self) -> &DirectoryStore {
        &self.directory
    }

    /// So many backends, as the configuration names them.
    pub(super) fn backends(&self, count: u32) -> Result<Vec<BackendConfig>, ConfigStoreError> {
        let backend = |number| {
            Ok(BackendConfig {
                number,
                addresses: vec![self.directory.rpc_socket(number)?],
                fabric_socket: Some(self.directory.fabric_socket(number)?),
                place: None,
            })
        };
        (0..count).map(backend).collect()
    }

    /// Where the process is that has a backend's place, if that is none of this directory.
    pub(super) fn other_holder(&self, config: &CellConfig, number: u32) -> Option<String> {
        let place = config.backend(number)?;
        let own = self.place_of(number).ok()?;
        let texts: Vec<String> = place.addresses.iter().map(ToString::to_string).collect();
        (!own.is(place)).then(|| texts.join(", "))
    }

    /// As clients name the cell.
    pub(super) fn address(&self) -> String {
        match &self.etcd {
            None => CellAddress::Path(self.directory.directory().to_owned()).to_string(),
            Some(etcd) => etcd.address().to_string(),
        }
    }

    /// Lets other users reach the sockets, or no longer.
    pub(super) fn let_others_look(&self, allowed: bool) -> Result<(), Failure> {
        let changed = match &self.etcd {
            None => self.directory.let_others_look(allowed),
            Some(_) => self.directory.let_others_pass(allowed),
        };
        changed.map_err(Failure::of)
    }
}

/// The cell in etcd that somebody has named.
pub(super) fn etcd(text: &str) -> Result<EtcdStore, Failure> {
    let address: EtcdAddress = text
        .parse()
        .map_err(|error| Failure::Usage(format!("--store: {error}")))?;
    let settings = EtcdSettings::from_environment().map_err(Failure::of)?;
    EtcdStore::open(&address, &settings).map_err(Failure::of)
}
