//! A backend that comes back in the same life of its cell has forgotten what
//! it acknowledged: its epoch is its own, so that its votes pair with nobody's.

use crate::support::Setup;
use std::sync::Arc;
use trefoil_backend::{Listeners, Server, ServerOptions};
use trefoil_cell::{BackendConfig, CellConfig, ConfigStore as _, DirectoryStore, Mode};
use trefoil_layout::Version;

#[test]
fn a_second_life_has_an_epoch_of_its_own() {
    let setup = Setup::new(Mode::R32, 3);
    let store = DirectoryStore::create(&setup.home.path().join("cell")).unwrap();
    let backend = |number| BackendConfig {
        number,
        addresses: vec![store.rpc_socket(number).unwrap()],
        fabric_socket: Some(store.fabric_socket(number).unwrap()),
        place: None,
    };
    let mut config = CellConfig {
        life: 7,
        config_id: 1,
        cell: "test".to_owned(),
        mode: Mode::R32,
        backends: (0..3).map(backend).collect(),
        hash: Default::default(),
        value_len_max: 1 << 20,
        flush_floor: Version::ZERO,
        corpus: None,
        eviction: "lru".to_owned(),
    };
    let live = |number: u32| {
        let mut listen = setup.listen.clone();
        listen.metrics = None;
        listen.tcp = None;
        listen.unix = Some(setup.home.path().join(format!("rpc-{number}")));
        listen.fabric = None;
        let options = ServerOptions {
            locks: vec![store.lock_backend(number).unwrap()],
            ..ServerOptions::new(Arc::new(store.clone()), vec![number])
        };
        let server = Server::start(options, Listeners::bind(&listen).unwrap()).unwrap();
        let member = &server.statistics().members[0];
        (member.epoch, member.incarnation.clone())
    };
    store.compare_and_swap(None, &config).unwrap();
    let (first, second) = (live(1), live(1));
    assert_eq!(first.0, 1);
    assert_ne!(second.0, 1);
    assert_ne!(first.1, second.1);
    assert_eq!(live(2).0, 1);
    // Two that have lost their memory do not pair with one another either.
    assert!(![1, second.0].contains(&live(2).0));
    // A flush changes the configuration, not what a replica has forgotten.
    let flushed = config.flushed(Version::new(5, 6, 7)).unwrap();
    store
        .compare_and_swap(Some(config.topology_id()), &flushed)
        .unwrap();
    assert!(![1, second.0].contains(&live(1).0));
    // Another life of the cell begins empty everywhere.
    config = CellConfig {
        life: 8,
        config_id: 3,
        ..flushed.clone()
    };
    store
        .compare_and_swap(Some(flushed.topology_id()), &config)
        .unwrap();
    assert_eq!(live(1).0, 1);
}
