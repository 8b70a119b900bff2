//! A cell of real backends in this process.

use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use trefoil_backend::{ListenOptions, Listeners, Server, ServerOptions};
use trefoil_cell::{BackendConfig, CellConfig, ConfigStore, EmbeddedStore, Mode};
use trefoil_layout::{KeyHasher, Version};

/// A running cell; all backends are one process: this one.
pub(crate) struct Real {
    pub(crate) address: String,
    /// Where its shared memory is handed over.
    pub(crate) fabric: PathBuf,
    _home: TempDir,
    server: Server,
}

impl Real {
    pub(crate) fn start(mode: Mode) -> Real {
        let home = tempfile::tempdir().unwrap();
        let fabric = home.path().join("fabric");
        Self::start_in(home, mode, fabric)
    }

    /// With rings for so many connections at all backends together.
    pub(crate) fn start_for(mode: Mode, ring_count: usize) -> Real {
        let home = tempfile::tempdir().unwrap();
        let fabric = home.path().join("fabric");
        Self::start_with(home, mode, |_| fabric.clone(), (ring_count, false))
    }

    /// The same, with a configuration that names another socket than the real one.
    pub(crate) fn start_in(home: TempDir, mode: Mode, named: PathBuf) -> Real {
        Self::start_where(home, mode, |_| named.clone())
    }

    /// The same, with another one for each backend.
    pub(crate) fn start_where(home: TempDir, mode: Mode, named: impl Fn(u32) -> PathBuf) -> Real {
        Self::start_with(home, mode, named, (32, false))
    }

    /// Whose clients may commit before it executes.
    pub(crate) fn start_with_queue(mode: Mode) -> Real {
        let home = tempfile::tempdir().unwrap();
        let fabric = home.path().join("fabric");
        Self::start_with(home, mode, |_| fabric.clone(), (32, true))
    }

    /// The same cell with so many backends, at the same addresses: what clients find who know
    /// the former configuration alone. It begins empty.
    pub(crate) fn resized_with_queue(self, backend_count: u32) -> Real {
        let Real {
            address,
            fabric,
            _home: home,
            server,
        } = self;
        drop(server);
        let config = (2, backend_count);
        Self::start_at(
            &address,
            home,
            Mode::R1,
            |_| fabric.clone(),
            (32, true),
            config,
        )
    }

    /// The same, with so many rings, and with queues or without.
    pub(crate) fn start_with(
        home: TempDir,
        mode: Mode,
        named: impl Fn(u32) -> PathBuf,
        options: (usize, bool),
    ) -> Real {
        let config = (1, mode.copy_count() as u32);
        Self::start_at("127.0.0.1:0", home, mode, named, options, config)
    }

    fn start_at(
        address: &str,
        home: TempDir,
        mode: Mode,
        named: impl Fn(u32) -> PathBuf,
        (ring_count, queue): (usize, bool),
        (config_id, backend_count): (u32, u32),
    ) -> Real {
        let address = address.parse().unwrap();
        let fabric = home.path().join("fabric");
        let listen = ListenOptions {
            tcp: Some(address),
            unix: None,
            fabric: Some(fabric.clone()),
            metrics: None,
            ..ListenOptions::default()
        };
        let listeners = Listeners::bind(&listen).unwrap();
        let store = Arc::new(EmbeddedStore::new());
        let mut options = ServerOptions::new(store.clone(), (0..backend_count).collect());
        // Generous: the bound counts what parallel tests hold, too.
        options.memory_limit = 1 << 30;
        options.fabric.client_count_max = Some(ring_count);
        options.queue = queue;
        let addresses = listeners.rpc_addresses();
        let backend = |number| BackendConfig {
            number,
            addresses: addresses.clone(),
            fabric_socket: Some(named(number)),
            place: None,
        };
        let config = CellConfig {
            life: 1,
            config_id,
            cell: "test".to_owned(),
            mode,
            backends: (0..backend_count).map(backend).collect(),
            hash: KeyHasher::default(),
            value_len_max: 16 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        store.compare_and_swap(None, &config).unwrap();
        let server = Server::start(options, listeners).unwrap();
        Real {
            address: addresses[0].to_string(),
            fabric,
            _home: home,
            server,
        }
    }
}

impl Real {
    /// Clients that hold rings now.
    pub(crate) fn clients(&self) -> u64 {
        self.server.statistics().process.unwrap().fabric_clients
    }
}
