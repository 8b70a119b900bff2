//! A cell in this process.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::net::SocketAddr;
use std::sync::Arc;
use tempfile::TempDir;
use trefoil_backend::{ListenOptions, Listeners, LocalStore, Server, ServerOptions};
use trefoil_cell::{
    BackendConfig, CellAddress, CellConfig, ConfigStore as _, EmbeddedStore, Mode, RpcAddress,
};
use trefoil_client::Cell;
use trefoil_gateway::keyspace::{CellKeyspace, CellOptions, LocalKeyspace, Patient, cell_keyspace};
use trefoil_layout::{KeyHasher, Version};

/// A running cell; ends with the test.
pub struct TestCell {
    server: Option<Server>,
    pub address: String,
    _home: TempDir,
}

impl TestCell {
    /// All backends of a cell, as one server.
    pub fn start(mode: Mode) -> TestCell {
        TestCell::start_but(mode, mode.copy_count() as u32, None)
    }

    /// The same with the last backend missing: at its address somebody else takes
    /// connections, and never answers.
    pub fn start_with_silence(mode: Mode, silent: SocketAddr) -> TestCell {
        TestCell::start_but(mode, mode.copy_count() as u32, Some(silent))
    }

    /// A cell of one copy and two backends of which the second is silent.
    pub fn start_half_silent(silent: SocketAddr) -> TestCell {
        TestCell::start_but(Mode::R1, 2, Some(silent))
    }

    fn start_but(mode: Mode, count: u32, silent: Option<SocketAddr>) -> TestCell {
        let home = tempfile::tempdir().unwrap();
        let listen = ListenOptions {
            unix: Some(home.path().join("rpc")),
            fabric: Some(home.path().join("fabric")),
            ..ListenOptions::default()
        };
        let listeners = Listeners::bind(&listen).unwrap();
        let served = count - u32::from(silent.is_some());
        let backend = |number| match silent {
            Some(silent) if number == served => BackendConfig {
                number,
                addresses: vec![RpcAddress::Tcp {
                    host: silent.ip().to_string(),
                    port: silent.port(),
                }],
                fabric_socket: None,
                place: None,
            },
            _ => BackendConfig {
                number,
                addresses: listeners.rpc_addresses(),
                fabric_socket: listen.fabric.clone(),
                place: None,
            },
        };
        let config = CellConfig {
            life: 1,
            config_id: 1,
            cell: "test".to_owned(),
            mode,
            backends: (0..count).map(backend).collect(),
            hash: KeyHasher::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        let store = Arc::new(EmbeddedStore::new());
        store.compare_and_swap(None, &config).unwrap();
        let mut options = ServerOptions::new(store, (0..served).collect());
        options.huge_pages = false;
        let address = CellAddress::Servers(listeners.rpc_addresses()).to_string();
        TestCell {
            server: Some(Server::start(options, listeners).unwrap()),
            address,
            _home: home,
        }
    }

    pub fn local_store(&self) -> LocalStore {
        let local = self.server.as_ref().and_then(Server::local);
        local.expect("the only backend of its cell")
    }

    pub fn local(&self) -> LocalKeyspace {
        LocalKeyspace::new(self.local_store())
    }

    pub fn client(&self) -> Cell {
        Cell::connect(&self.address).unwrap()
    }

    /// For an event loop.
    pub fn pending_keyspace(&self) -> CellKeyspace {
        cell_keyspace(self.client(), CellOptions::default())
    }

    /// For a test that waits.
    pub fn keyspace(&self) -> Patient<CellKeyspace> {
        Patient::new(self.pending_keyspace())
    }

    /// Ends the server while its keyspaces live on.
    pub fn stop(&mut self) {
        self.server = None;
    }
}
