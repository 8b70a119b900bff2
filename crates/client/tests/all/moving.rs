//! A backend that moves to another process while a client goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_backend::{ListenOptions, Listeners, RECOVERY_RATE_MIN, Server, ServerOptions};
use trefoil_cell::{
    BackendConfig, BackendRegistry as _, CellConfig, ConfigStore as _, DirectoryStore, Mode,
};
use trefoil_client::{Cell, Client, Lookup, Options, SetOptions};
use trefoil_layout::{KeyHasher, Version};

const KEYS: usize = 40;
const VALUE_LEN: usize = 100_000;
/// So many go through message rings, at once.
const SHORT_LEN: usize = 100;
/// Longer than anything here takes, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cell of one backend.
struct Moving {
    home: TempDir,
    store: DirectoryStore,
    server: Server,
    address: String,
}

impl Moving {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = DirectoryStore::create(home.path()).unwrap();
        let listeners = Listeners::bind(&listen(home.path(), &store)).unwrap();
        let addresses = listeners.rpc_addresses();
        let address = addresses[0].to_string();
        let config = CellConfig {
            life: 1,
            config_id: 1,
            cell: "test".to_owned(),
            mode: Mode::R1,
            backends: vec![BackendConfig {
                number: 0,
                addresses,
                fabric_socket: Some(store.fabric_socket(0).unwrap()),
                place: None,
            }],
            hash: KeyHasher::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        store.compare_and_swap(None, &config).unwrap();
        let options = ServerOptions {
            locks: vec![store.claim(0).unwrap()],
            ..options(&store)
        };
        let server = Server::start(options, listeners).unwrap();
        Moving {
            home,
            store,
            server,
            address,
        }
    }

    fn fabric_socket(&self) -> PathBuf {
        self.store.fabric_socket(0).unwrap()
    }
}

fn options(store: &DirectoryStore) -> ServerOptions {
    ServerOptions {
        // Generous: the bound counts what parallel tests hold, too.
        memory_limit: 1 << 30,
        // The move takes four seconds.
        recovery_rate: Some(16 * RECOVERY_RATE_MIN),
        ..ServerOptions::new(Arc::new(store.clone()), vec![0])
    }
}

fn listen(home: &Path, store: &DirectoryStore) -> ListenOptions {
    ListenOptions {
        unix: Some(home.join("rpc.sock")),
        fabric: Some(store.fabric_socket(0).unwrap()),
        ..ListenOptions::default()
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn set(client: &mut Client, number: usize, len: usize) {
    let value = vec![number as u8; len];
    client
        .set(&key(number), &value, SetOptions::default())
        .unwrap();
}

fn has(client: &mut Client, number: usize, len: usize) {
    match client.get(&key(number)).unwrap() {
        Lookup::Hit(hit) => assert_eq!(hit.value, vec![number as u8; len]),
        other => panic!("key {number}: {other:?}"),
    }
}

/// A second after the move has begun nobody can connect to the successor any more: only a
/// client that has done so before goes on when the predecessor has gone. Nor can the successor
/// take its place for a while, and it serves those clients meanwhile.
#[test]
fn a_client_is_connected_to_the_successor_before_that_is_the_backend() {
    let cell = Moving::start();
    let options_of_client = Options {
        deadline: PATIENCE,
        ..Options::default()
    };
    let mut client = Cell::connect(&cell.address)
        .unwrap()
        .client(options_of_client);
    (0..KEYS).for_each(|number| set(&mut client, number, VALUE_LEN));

    let place = cell.fabric_socket();
    let next = trefoil_fabric::shm::successor_path(&place);
    let hidden = cell.home.path().join("hidden");
    let has_gone = Arc::new(AtomicBool::new(false));
    let successor = {
        let (store, has_gone) = (cell.store.clone(), Arc::clone(&has_gone));
        let listen = listen(cell.home.path(), &cell.store);
        std::thread::spawn(move || {
            Server::take_over(options(&store), &listen, || {
                has_gone.store(true, Ordering::SeqCst);
                store.claim(0)
            })
        })
    };
    let begin = Instant::now();
    let mut go_on_until = |is_enough: &dyn Fn() -> bool| {
        while !is_enough() {
            assert!(begin.elapsed() < PATIENCE, "it does not come");
            set(&mut client, KEYS, SHORT_LEN);
        }
    };
    go_on_until(&|| next.exists());
    let seen = Instant::now();
    go_on_until(&|| seen.elapsed() >= Duration::from_secs(1));
    std::fs::rename(&next, &hidden).unwrap();
    assert!(!has_gone.load(Ordering::SeqCst), "it was too fast");
    go_on_until(&|| has_gone.load(Ordering::SeqCst));
    (0..KEYS).for_each(|number| has(&mut client, number, VALUE_LEN));
    set(&mut client, 0, SHORT_LEN);
    has(&mut client, 0, SHORT_LEN);
    assert!(!successor.is_finished(), "its socket is not there");
    std::fs::rename(&hidden, &next).unwrap();
    let server = successor.join().unwrap().unwrap();
    // Those who come later find it in its place.
    let mut late = Cell::connect(&cell.address)
        .unwrap()
        .client(Options::default());
    has(&mut late, 0, SHORT_LEN);
    has(&mut late, 1, VALUE_LEN);
    assert!(place.exists() && !next.exists());
    drop(cell.server);
    drop(server);
}
