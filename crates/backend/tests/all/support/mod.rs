//! A cell in this process, and clients of it.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use trefoil_backend::{ListenOptions, Listeners, Server, ServerOptions, StartError};
use trefoil_cell::{BackendConfig, CellConfig, ConfigStore, EmbeddedStore, Mode};
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Ack, Action, Found, Mutation};
use trefoil_layout::{KeyHasher, TopologyId, Version};
use trefoil_rpc::{Client, v1};

pub(crate) const LIFE: u64 = 0xfeed_0000_0000_0001;
pub(crate) const CONFIG_ID: u32 = 3;

pub(crate) const TOPOLOGY: TopologyId = TopologyId {
    life: LIFE,
    config_id: CONFIG_ID,
};

pub(crate) struct Setup {
    pub(crate) home: TempDir,
    pub(crate) store: Arc<EmbeddedStore>,
    pub(crate) options: ServerOptions,
    pub(crate) listen: ListenOptions,
    pub(crate) value_len_max: u64,
    name: String,
    mode: Mode,
    backend_count: u32,
}

impl Setup {
    pub(crate) fn new(mode: Mode, backend_count: u32) -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = Arc::new(EmbeddedStore::new());
        let members = (0..backend_count).collect();
        let mut options = ServerOptions::new(store.clone(), members);
        // Generous: the bound counts what parallel tests hold, too.
        options.memory_limit = 1 << 30;
        let any = "127.0.0.1:0".parse().unwrap();
        let listen = ListenOptions {
            tcp: Some(any),
            unix: Some(home.path().join("rpc")),
            fabric: Some(home.path().join("fabric")),
            metrics: Some(any),
            ..ListenOptions::default()
        };
        Setup {
            home,
            store,
            options,
            listen,
            value_len_max: 16 << 20,
            name: "test".to_owned(),
            mode,
            backend_count,
        }
    }

    /// Of a cell of this name.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    pub(crate) fn corpus(mut self, name: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.write(name, text);
        self.options.load = Some(path);
        self
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn start(self) -> Cell {
        self.try_start().unwrap()
    }

    pub(crate) fn try_start(self) -> Result<Cell, StartError> {
        let listeners = Listeners::bind(&self.listen)?;
        let backend = |number| BackendConfig {
            number,
            addresses: listeners.rpc_addresses(),
            fabric_socket: self.listen.fabric.clone(),
            place: None,
        };
        let config = CellConfig {
            life: LIFE,
            config_id: CONFIG_ID,
            cell: self.name,
            mode: self.mode,
            backends: (0..self.backend_count).map(backend).collect(),
            hash: KeyHasher::default(),
            value_len_max: self.value_len_max,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        self.store.compare_and_swap(None, &config).unwrap();
        let server = Server::start(self.options, listeners)?;
        Ok(Cell {
            home: self.home,
            config,
            store: self.store,
            server,
            runtime: Runtime::new().unwrap(),
        })
    }
}

pub(crate) struct Cell {
    pub(crate) home: TempDir,
    pub(crate) config: CellConfig,
    pub(crate) store: Arc<EmbeddedStore>,
    pub(crate) server: Server,
    pub(crate) runtime: Runtime,
}

impl Cell {
    pub(crate) fn fabric(&self) -> &Path {
        self.config.backends[0].fabric_socket.as_deref().unwrap()
    }

    /// A client over the Unix socket (0) or TCP (1).
    pub(crate) fn client_over(&self, address: usize) -> Client {
        let address = &self.config.backends[0].addresses[address];
        let endpoint = trefoil_cell::endpoint(address).unwrap();
        let channel = self.runtime.block_on(endpoint.connect()).unwrap();
        trefoil_rpc::client(channel, trefoil_cell::credentials(address))
    }

    pub(crate) fn client(&self) -> Caller<'_> {
        Caller {
            cell: self,
            client: self.client_over(0),
        }
    }
}

/// A blocking client.
pub(crate) struct Caller<'a> {
    pub(crate) cell: &'a Cell,
    pub(crate) client: Client,
}

impl Caller<'_> {
    pub(crate) fn mutate(&mut self, request: v1::MutateRequest) -> Result<Ack, tonic::Status> {
        let response = self.cell.runtime.block_on(self.client.mutate(request))?;
        Ok(trefoil_rpc::decode_ack(response.get_ref()).unwrap())
    }

    pub(crate) fn set(&mut self, backend: u32, key: &[u8], value: &[u8]) -> Ack {
        self.mutate(request(backend, Action::Set, key, value))
            .unwrap()
    }

    /// The value, if there is one.
    pub(crate) fn get(&mut self, backend: u32, config_id: u32, key: &[u8]) -> Option<Vec<u8>> {
        let request = v1::LookupRequest {
            backend,
            life: LIFE,
            config_id,
            key: bytes::Bytes::copy_from_slice(key),
            ..v1::LookupRequest::default()
        };
        let response = self.cell.runtime.block_on(self.client.lookup(request));
        let response = response.unwrap().into_inner();
        match trefoil_rpc::decode_lookup_answer(&response).unwrap().found {
            Found::Present { version, data } => {
                let tag = KeyHasher::default().hash(key).tag;
                let entry = DataEntry::validate(data, tag, version, key).unwrap();
                Some(entry.value.to_vec())
            }
            Found::Absent => None,
            Found::Rejected(rejection) => panic!("{rejection}"),
        }
    }

    pub(crate) fn stats(&mut self) -> v1::StatsResponse {
        let stats = self.client.stats(v1::StatsRequest {});
        self.cell.runtime.block_on(stats).unwrap().into_inner()
    }
}

pub(crate) fn request(backend: u32, action: Action, key: &[u8], value: &[u8]) -> v1::MutateRequest {
    let entry = DataEntry {
        key,
        value,
        ..DataEntry::default()
    };
    let mutation = Mutation {
        action,
        version: next_version(),
        entry,
    };
    trefoil_rpc::encode_mutation(backend, TOPOLOGY, &mutation)
}

pub(crate) fn next_version() -> Version {
    use std::sync::atomic::{AtomicU32, Ordering};
    static SEQUENCE: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
    Version::new(time.as_nanos() as u64, 77, sequence)
}
