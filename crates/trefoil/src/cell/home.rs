//! Where the cell of `cell up` is: its sockets and locks in a directory, its
//! configuration there, too, or in etcd.

use crate::failure::Failure;
use std::path::Path;
use std::sync::Arc;
use trefoil_cell::{
    BackendRegistry, CellAddress, CellConfig, DirectoryStore, EtcdAddress, EtcdSettings, EtcdStore,
};

/// See the module.
#[derive(Clone)]
pub(super) struct Home {
    directory: DirectoryStore,
    /// `None`: the directory's.
    etcd: Option<EtcdStore>,
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
        Ok(Home { directory, etcd })
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

    /// Where the process is that has a backend's place, if that is none of this directory.
    pub(super) fn other_holder(&self, config: &CellConfig, number: u32) -> Option<String> {
        let addresses = &config.backend(number)?.addresses;
        let own = self.directory.rpc_socket(number).ok()?;
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        (!addresses.contains(&own)).then(|| texts.join(", "))
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
