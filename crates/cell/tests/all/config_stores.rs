//! Every configuration store keeps the same promises.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;
use trefoil_cell::*;
use trefoil_layout::{HashKind, KeyHasher, TopologyId, Version};

pub(crate) const LIFE: u64 = 0x1234_5678_9abc_def0;

pub(crate) fn id(config_id: u32) -> Option<TopologyId> {
    Some(TopologyId {
        life: LIFE,
        config_id,
    })
}

pub(crate) fn config(config_id: u32) -> CellConfig {
    let backend = |number| BackendConfig {
        number,
        addresses: vec![
            format!("127.0.0.1:{}", 7411 + number).parse().unwrap(),
            "unix:/run/trefoil/rpc".parse().unwrap(),
        ],
        fabric_socket: (number > 0).then(|| "/run/trefoil/fabric".into()),
        place: None,
    };
    CellConfig {
        life: LIFE,
        config_id,
        cell: "test".to_owned(),
        mode: Mode::R32,
        backends: (0..3).map(backend).collect(),
        hash: KeyHasher {
            kind: HashKind::Sip13,
            seed: [u64::MAX, 1],
        },
        value_len_max: 1 << 20,
        eviction: "lru".to_owned(),
        flush_floor: Version::new(7, 8, 9),
        corpus: None,
    }
}

/// One cell in a store of some kind; what is open of it, others may have opened, too.
pub(crate) trait Place {
    /// The same cell, as another process sees it.
    fn open(&self) -> Arc<dyn BackendRegistry>;
}

/// A cell in the memory of this process: everybody has the same store.
struct InMemory(Arc<EmbeddedStore>);

impl Place for InMemory {
    fn open(&self) -> Arc<dyn BackendRegistry> {
        Arc::clone(&self.0) as _
    }
}

/// A cell in a directory.
struct InDirectory(tempfile::TempDir);

impl Place for InDirectory {
    fn open(&self) -> Arc<dyn BackendRegistry> {
        Arc::new(DirectoryStore::create(&self.0.path().join("a/b")).unwrap())
    }
}

/// A module of tests for each kind of store: all keep all promises.
macro_rules! conformance {
    ($($kind:ident: $place:expr;)*) => {$(
        mod $kind {
            #[test]
            fn keeps_its_promises() {
                super::keeps_its_promises(&$place);
            }

            #[test]
            fn has_one_winner() {
                super::has_one_winner(&$place);
            }

            #[test]
            fn wakes_all_who_wait() {
                super::wakes_all_who_wait(&$place);
            }

            #[test]
            fn counts_incarnations_in_each_life() {
                super::counts_incarnations_in_each_life(&$place);
            }

            #[test]
            fn loses_no_count() {
                super::loses_no_count(&$place);
            }

            #[test]
            fn lets_a_backend_be_once() {
                super::lets_a_backend_be_once(&$place);
            }
        }
    )*};
}

conformance! {
    embedded: super::InMemory(std::sync::Arc::new(trefoil_cell::EmbeddedStore::new()));
    directory: super::InDirectory(tempfile::tempdir().unwrap());
}

#[cfg(feature = "etcd")]
conformance! {
    etcd: crate::etcd_store::InEtcd::start();
}

fn keeps_its_promises(place: &dyn Place) {
    let store = place.open();
    assert_eq!(store.load().unwrap(), None);
    let soon = Duration::from_millis(30);
    assert_eq!(store.wait_for_change(None, soon).unwrap(), None);

    store.compare_and_swap(None, &config(1)).unwrap();
    assert_eq!(store.load().unwrap(), Some(config(1)));
    assert_eq!(store.wait_for_change(None, soon).unwrap(), Some(config(1)));
    assert_eq!(store.wait_for_change(id(1), soon).unwrap(), None);

    assert!(matches!(
        store.compare_and_swap(None, &config(2)),
        Err(ConfigStoreError::Conflict {
            expected: None,
            found
        }) if found == id(1)
    ));
    assert!(matches!(
        store.compare_and_swap(id(1), &config(1)),
        Err(ConfigStoreError::NotHigher { .. })
    ));
    assert!(matches!(
        store.compare_and_swap(id(1), &config(0)),
        Err(ConfigStoreError::Invalid(ConfigError::ConfigIdZero))
    ));
    assert_eq!(store.load().unwrap(), Some(config(1)));

    let waiter = {
        let store = place.open();
        std::thread::spawn(move || store.wait_for_change(id(1), Duration::from_secs(10)))
    };
    store.compare_and_swap(id(1), &config(5)).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), Some(config(5)));

    // Another life of the cell is another configuration, whatever its id.
    let anew = CellConfig {
        life: LIFE + 1,
        ..config(6)
    };
    let of_another_life = Some(TopologyId {
        life: LIFE + 1,
        config_id: 5,
    });
    assert!(matches!(
        store.compare_and_swap(of_another_life, &anew),
        Err(ConfigStoreError::Conflict { .. })
    ));
    store.compare_and_swap(id(5), &anew).unwrap();
    let seen = store.wait_for_change(id(6), soon).unwrap();
    assert_eq!(seen, Some(anew), "the id is the same, the life is not");
}

/// Of several writers with one expectation exactly one wins, each time.
fn has_one_winner(place: &dyn Place) {
    let stores: Vec<_> = (0..4).map(|_| place.open()).collect();
    stores[0].compare_and_swap(None, &config(1)).unwrap();
    for round in 1..6 {
        let wins: usize = std::thread::scope(|scope| {
            let attempt = |store: &Arc<dyn BackendRegistry>| {
                let store = Arc::clone(store);
                scope.spawn(move || {
                    store
                        .compare_and_swap(id(round), &config(round + 1))
                        .is_ok()
                })
            };
            let attempts: Vec<_> = stores.iter().map(attempt).collect();
            attempts
                .into_iter()
                .map(|a| usize::from(a.join().unwrap()))
                .sum()
        });
        assert_eq!(wins, 1);
    }
}

/// Everybody who waits learns of the last configuration, whatever came before it.
fn wakes_all_who_wait(place: &dyn Place) {
    const LAST: u32 = 20;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let store = place.open();
            scope.spawn(move || {
                let mut known = None;
                while known != id(LAST) {
                    let seen = store
                        .wait_for_change(known, Duration::from_secs(20))
                        .unwrap();
                    let seen = seen.expect("it changes").topology_id();
                    assert!(
                        known.is_none_or(|known| known.is_followed_by(seen)),
                        "{known:?}, then {seen:?}"
                    );
                    known = Some(seen);
                }
            });
        }
        let store = place.open();
        store.compare_and_swap(None, &config(1)).unwrap();
        for next in 2..=LAST {
            store.compare_and_swap(id(next - 1), &config(next)).unwrap();
            // What a process has written it does not take for a change.
            let soon = Duration::from_millis(1);
            assert_eq!(store.wait_for_change(id(next), soon).unwrap(), None);
        }
    });
}

/// A backend that comes back in the same life of its cell has forgotten what
/// it acknowledged, and must be able to tell.
fn counts_incarnations_in_each_life(place: &dyn Place) {
    let store = place.open();
    let put = |life| {
        let current = store.load().unwrap().as_ref().map(CellConfig::topology_id);
        let next = CellConfig {
            life,
            ..config(current.map_or(1, |current| current.config_id + 1))
        };
        store.compare_and_swap(current, &next).unwrap();
    };
    let live = |number, life| place.open().claim(number).unwrap().begin_incarnation(life);
    let count = |number, life| live(number, life).unwrap();
    assert!(live(0, 1).unwrap_err().is_no_cell());
    put(1);
    assert_eq!([count(0, 1), count(0, 1), count(0, 1)], [1, 2, 3]);
    assert_eq!(count(2, 1), 1);
    // Another configuration of the same life.
    put(1);
    assert_eq!([count(0, 1), count(2, 1)], [4, 2]);
    assert_eq!(store.incarnations().unwrap(), [(0, 4), (2, 2)].into());
    put(2);
    assert!(store.incarnations().unwrap().is_empty());
    assert_eq!([count(0, 2), count(0, 2)], [1, 2]);
    let anew = live(0, 1).unwrap_err();
    assert!(matches!(anew, ConfigStoreError::StartedAnew { number: 0 }));
    // A process that became the backend and never served does not count.
    drop(place.open().claim(0).unwrap());
    assert_eq!(count(0, 2), 3);
    assert_eq!(store.load().unwrap().unwrap().life, 2);
}

/// Counts and configurations change at the same time.
fn loses_no_count(place: &dyn Place) {
    const BACKENDS: u32 = 3;
    const STARTS: u32 = 8;
    let store = place.open();
    store.compare_and_swap(None, &config(1)).unwrap();
    std::thread::scope(|scope| {
        for number in 0..BACKENDS {
            let store = place.open();
            scope.spawn(move || {
                for start in 1..=STARTS {
                    let lock = store.claim(number).unwrap();
                    assert_eq!(lock.begin_incarnation(LIFE).unwrap(), start);
                }
            });
        }
        for next in 2..10 {
            store.compare_and_swap(id(next - 1), &config(next)).unwrap();
        }
    });
    let counts = (0..BACKENDS).map(|number| (number, STARTS)).collect();
    assert_eq!(store.incarnations().unwrap(), counts);
    assert_eq!(store.load().unwrap(), Some(config(9)));
}

fn lets_a_backend_be_once(place: &dyn Place) {
    let store = place.open();
    assert!(store.claimed().unwrap().is_empty());
    let lock = store.claim(2).unwrap();
    assert_eq!(lock.number(), 2);
    let other = store.claim(1).unwrap();
    let process = Some(std::process::id());
    let claimed = |number| Claimed { number, process };
    assert_eq!(store.claimed().unwrap(), [claimed(1), claimed(2)]);
    let refused = place.open().claim(2).unwrap_err();
    let pid = format!("process {}", std::process::id());
    assert!(refused.to_string().contains(&pid), "{refused}");
    drop(lock);
    assert_eq!(store.claimed().unwrap(), [claimed(1)]);
    let again = place.open().claim(2).unwrap();
    assert_eq!(store.claimed().unwrap(), [claimed(1), claimed(2)]);
    drop((again, other));
    assert!(store.claimed().unwrap().is_empty());
}

#[test]
fn a_directory_is_its_users_alone_and_holds_no_litter() {
    let home = tempfile::tempdir().unwrap();
    let store = DirectoryStore::create(&home.path().join("a/b")).unwrap();
    for next in 1..4 {
        let known = store.load().unwrap().map(|config| config.topology_id());
        store.compare_and_swap(known, &config(next)).unwrap();
    }
    let mode = home.path().join("a/b").metadata().unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o700);
    let left: Vec<_> = std::fs::read_dir(home.path().join("a/b"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(
        left.len(),
        2,
        "only the configuration and its lock: {left:?}"
    );
}

#[test]
fn a_backend_runs_once() {
    let home = tempfile::tempdir().unwrap();
    let store = DirectoryStore::create(home.path()).unwrap();
    let lock = store.lock_backend(2).unwrap();
    assert_eq!(lock.number(), 2);
    store.lock_backend(1).unwrap();
    let error = store.lock_backend(2).unwrap_err().to_string();
    let pid = format!("already running as process {}", std::process::id());
    assert!(error.contains(&pid), "{error}");
    drop(lock);
    store.lock_backend(2).unwrap();
}

#[test]
fn a_backend_waits_for_its_predecessors_last_moments() {
    let home = tempfile::tempdir().unwrap();
    let store = DirectoryStore::create(home.path()).unwrap();
    let lock = store.lock_backend(0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(40));
            drop(lock);
        });
        store.lock_backend(0).unwrap();
    });
}

/// Whoever cleans up behind a dead process forgets nothing.
#[test]
fn counts_do_not_stand_in_the_files_of_locks() {
    let home = tempfile::tempdir().unwrap();
    let store = DirectoryStore::create(home.path()).unwrap();
    let count = || {
        let lock = store.lock_backend(0).unwrap();
        lock.begin_incarnation(LIFE).unwrap()
    };
    store.compare_and_swap(None, &config(1)).unwrap();
    assert_eq!(count(), 1);
    let lock = home.path().join("backend-0.lock");
    std::fs::write(&lock, "nonsense").unwrap();
    assert_eq!(count(), 2);
    std::fs::remove_file(&lock).unwrap();
    assert_eq!(count(), 3);
}

#[test]
fn a_broken_file_and_an_empty_directory_are_named() {
    let home = tempfile::tempdir().unwrap();
    let missing = DirectoryStore::open(home.path()).unwrap_err().to_string();
    assert!(missing.contains("holds no cell"), "{missing}");
    let store = DirectoryStore::create(home.path()).unwrap();
    let path = home.path().join("cell.json");
    let mut half = serde_json::to_vec(&config(1)).unwrap();
    half.truncate(100);
    let invalid = serde_json::to_vec(&config(0)).unwrap();
    for bytes in [&half[..], &invalid, b"", b"[]", b"\xff\xfe"] {
        std::fs::write(&path, bytes).unwrap();
        let error = store.load().unwrap_err().to_string();
        assert!(
            error.contains("cell.json holds no valid configuration"),
            "{error}"
        );
    }
}

/// What a crash has left is replaced, and what a link names is not written.
#[test]
fn the_next_configuration_is_written_to_a_file_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    let store = DirectoryStore::create(&home.path().join("cell")).unwrap();
    let other = home.path().join("other");
    std::fs::write(&other, "precious").unwrap();
    let next = store.directory().join("cell.next");
    std::os::unix::fs::symlink(&other, &next).unwrap();
    store.compare_and_swap(None, &config(1)).unwrap();
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    assert_eq!(store.load().unwrap().unwrap(), config(1));
    std::fs::write(&next, "half a fi").unwrap();
    let known = config(1).topology_id();
    store.compare_and_swap(Some(known), &config(2)).unwrap();
    assert_eq!(store.load().unwrap().unwrap(), config(2));
    assert!(!next.exists());
}

/// A server of another user's directory would write where that user says.
#[test]
fn a_server_takes_no_other_users_directory() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give a directory away");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("cell");
    let store = DirectoryStore::create(&dir).unwrap();
    store.compare_and_swap(None, &config(1)).unwrap();
    DirectoryStore::open(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(NOBODY), None).unwrap();
    let error = DirectoryStore::open(&dir).unwrap_err().to_string();
    assert!(error.contains("belongs to user 65534"), "{error}");
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = DirectoryStore::create(&file.join("cell")).unwrap_err();
    assert!(error.to_string().contains("file/cell"), "{error}");
}

#[test]
fn a_full_disk_is_explained() {
    let full = std::io::Error::from_raw_os_error(28);
    let error = FileError {
        what: "write",
        path: "/cell/cell.next".into(),
        source: full,
    };
    let text = error.to_string();
    assert!(
        text.contains("/cell/cell.next") && text.contains("free some space"),
        "{text}"
    );
}

#[test]
fn long_directories_leave_no_room_for_sockets() {
    let home = tempfile::tempdir().unwrap();
    let store = DirectoryStore::create(&home.path().join("d".repeat(100))).unwrap();
    let error = store.rpc_socket(0).unwrap_err().to_string();
    assert!(error.contains("shorter directory"), "{error}");
}

#[test]
fn configurations_survive_json_and_the_wire() {
    let original = config(7);
    let text = serde_json::to_string(&original).unwrap();
    assert!(
        text.contains("\"R=3.2\"") && text.contains("\"sip13\""),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<CellConfig>(&text).unwrap(), original);
    assert_eq!(decode_config(&encode_config(&original)).unwrap(), original);

    let with_corpus = CellConfig {
        mode: Mode::R2,
        corpus: Some(CorpusId {
            digest: CorpusDigest(u128::MAX - 5),
            len: 1 << 40,
            first: Version::new(7, 1, 0),
            path: Some("/srv/corpus.csv".to_owned()),
        }),
        ..original.clone()
    };
    assert_eq!(
        decode_config(&encode_config(&with_corpus)).unwrap(),
        with_corpus
    );
    let of_mutable = CellConfig {
        mode: Mode::R32,
        ..with_corpus
    };
    let refused = decode_config(&encode_config(&of_mutable)).unwrap_err();
    assert!(
        refused.to_string().contains("only an immutable one"),
        "{refused}"
    );

    let mut message = encode_config(&original);
    message.backends[1].addresses[0] = "nowhere".to_owned();
    assert!(matches!(
        decode_config(&message),
        Err(WireError::Address(_))
    ));
    message = encode_config(&original);
    message.mode = "R=4".to_owned();
    assert!(matches!(decode_config(&message), Err(WireError::Mode(_))));
    message = encode_config(&original);
    message.hash = None;
    assert!(matches!(
        decode_config(&message),
        Err(WireError::Contract(_))
    ));
}

#[test]
fn every_mistake_in_a_configuration_is_named() {
    type Damage = fn(&mut CellConfig);
    let cases: [(&str, Damage); 11] = [
        ("config id is 0", |c| c.config_id = 0),
        ("reserved", |c| c.config_id = CONFIG_ID_CHANGING),
        ("name", |c| c.cell.clear()),
        ("name", |c| c.cell = "a b".to_owned()),
        (
            "R=3.2 needs at least 3 backends, the configuration has 2",
            |c| {
                c.backends.truncate(2);
            },
        ),
        ("R=2 needs at least 2 backends", |c| {
            c.mode = Mode::R2;
            c.backends.truncate(1);
        }),
        ("R=1 needs at least 1", |c| {
            c.mode = Mode::R1;
            c.backends.clear();
        }),
        ("number 2 stands where 1 belongs", |c| c.backends.swap(1, 2)),
        ("backend 2 has no address", |c| {
            c.backends[2].addresses.clear()
        }),
        ("longest value", |c| c.value_len_max = 1 << 40),
        ("eviction", |c| c.eviction.clear()),
    ];
    config(1).validate().unwrap();
    for (hint, damage) in cases {
        let mut damaged = config(1);
        damage(&mut damaged);
        let error = damaged.validate().unwrap_err().to_string();
        assert!(error.contains(hint), "{hint}: {error}");
    }
}
