//! A successor that hears no answer to its *release*.

use super::HandoverError;
use crate::member::Member;
use crate::{ListenOptions, Listeners, Server, ServerOptions, StartError};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_cell::{
    BackendConfig, BackendRegistry as _, CellConfig, ConfigStore as _, ConfigStoreError,
    DirectoryStore, Mode, RpcAddress,
};
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_layout::{KeyHasher, Version};
use trefoil_rpc::v1::HandOverStep;

const KEYS: u64 = 100;

/// What happens to the bytes of a connection between both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loses {
    /// What the predecessor says once it has let go.
    Answer,
    /// The release.
    Request,
}

/// A cell of one backend, which is reached through something that loses what is said.
struct Cell {
    dir: TempDir,
    store: DirectoryStore,
    predecessor: Server,
    /// Told when something was lost.
    lost: mpsc::Receiver<()>,
}

impl Cell {
    fn new(loses: Loses) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = DirectoryStore::create(dir.path()).unwrap();
        let between = dir.path().join("between.sock");
        let config = CellConfig {
            life: 11,
            config_id: 1,
            cell: "test".to_owned(),
            mode: Mode::R1,
            backends: vec![BackendConfig {
                number: 0,
                addresses: vec![RpcAddress::Unix(between.clone())],
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
        let listeners = Listeners::bind(&listen(dir.path(), &store, "before.sock")).unwrap();
        let predecessor = Server::start(options, listeners).unwrap();
        let member = Arc::clone(&predecessor.state().members[0]);
        for number in 0..KEYS {
            let key = format!("key {number}");
            let mutation = Mutation {
                action: Action::Set,
                version: Version::new(number + 1, 7, 0),
                entry: DataEntry {
                    key: key.as_bytes(),
                    value: b"value",
                    ..DataEntry::default()
                },
            };
            let ack = member.mutate(member.topology(), &mutation);
            assert_eq!(ack.outcome, Outcome::Applied);
        }
        let (tell, lost) = mpsc::channel();
        let listener = UnixListener::bind(&between).unwrap();
        let to = dir.path().join("before.sock");
        std::thread::spawn(move || pass_on(&listener, &to, loses, &member, &tell));
        Cell {
            dir,
            store,
            predecessor,
            lost,
        }
    }

    /// Another process takes the backend over.
    fn take_over(&self) -> impl FnOnce() -> Result<Server, StartError> + Send + 'static {
        let store = self.store.clone();
        let listen = listen(self.dir.path(), &store, "after.sock");
        move || Server::take_over(options(&store), &listen, || store.claim(0))
    }
}

fn options(store: &DirectoryStore) -> ServerOptions {
    ServerOptions {
        // Generous: the bound counts what parallel tests hold, too.
        memory_limit: 1 << 30,
        ..ServerOptions::new(Arc::new(store.clone()), vec![0])
    }
}

fn listen(dir: &Path, store: &DirectoryStore, name: &str) -> ListenOptions {
    ListenOptions {
        unix: Some(dir.join(name)),
        fabric: Some(store.fabric_socket(0).unwrap()),
        ..ListenOptions::default()
    }
}

fn pass_on(
    listener: &UnixListener,
    to: &PathBuf,
    loses: Loses,
    member: &Arc<Member>,
    tell: &mpsc::Sender<()>,
) {
    for client in listener.incoming().map_while(Result::ok) {
        // Nobody is there any more.
        let Ok(server) = UnixStream::connect(to) else {
            continue;
        };
        for loses_here in [Loses::Request, Loses::Answer] {
            let (client, server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (from, into) = match loses_here {
                Loses::Request => (client, server),
                Loses::Answer => (server, client),
            };
            let (member, tell) = (Arc::clone(member), tell.clone());
            let is_lost = move |said: &[u8]| {
                loses == loses_here
                    && match loses {
                        Loses::Request => is_release(said),
                        Loses::Answer => member.lease_left().is_zero(),
                    }
            };
            std::thread::spawn(move || copy(from, into, is_lost, &tell));
        }
    }
}

/// Whether these bytes hold a [`HandOverRequest`](v1::HandOverRequest) with that step, as it
/// goes over the wire: behind the successor's eight bytes.
fn is_release(said: &[u8]) -> bool {
    const SUCCESSOR: u8 = 3 << 3 | 1;
    const STEP: u8 = 4 << 3;
    let step = HandOverStep::Release as u8;
    let mut windows = said.windows(11);
    windows.any(|bytes| bytes[0] == SUCCESSOR && bytes[9..] == [STEP, step])
}

/// Until something is lost: then the connection has ended, both ways.
fn copy(
    mut from: UnixStream,
    mut into: UnixStream,
    is_lost: impl Fn(&[u8]) -> bool,
    tell: &mpsc::Sender<()>,
) {
    let mut buffer = [0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if is_lost(&buffer[..len]) {
            let _ = tell.send(());
            break;
        }
        if into.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    for end in [from, into] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// Who is about to take the backend's place, as clients are told.
fn announced(server: &Server) -> u64 {
    let member = &server.state().members[0];
    trefoil_layout::control::successor(&member.store.regions().control.words())
}

fn assert_undecided(taken: Result<Server, StartError>) {
    match taken {
        Err(StartError::Handover(HandoverError::Undecided { number: 0, .. })) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_release_whose_answer_is_lost_loses_nothing() {
    let cell = Cell::new(Loses::Answer);
    let successor = (cell.take_over())().unwrap();
    assert!(cell.lost.try_recv().is_ok(), "the answer came");
    assert!(cell.predecessor.state().members[0].lease_left().is_zero());
    assert!(cell.predecessor.state().has_retired());
    assert_ne!(announced(&cell.predecessor), 0);
    assert_eq!(announced(&successor), 0);
    assert_eq!(successor.statistics().members[0].items, KEYS);
    // It is the backend, and nobody else.
    let claimed = cell.store.claim(0);
    assert!(matches!(
        claimed,
        Err(ConfigStoreError::BackendLocked { number: 0, .. })
    ));
    // What the former process does at its end is nothing to it.
    drop(cell.predecessor);
    assert!(!successor.state().members[0].lease_left().is_zero());
}

#[test]
fn one_that_was_not_told_to_go_goes_on() {
    let cell = Cell::new(Loses::Request);
    assert_undecided((cell.take_over())());
    assert!(cell.lost.try_recv().is_ok(), "it was told");
    let state = cell.predecessor.state();
    assert!(!state.has_retired());
    let begin = Instant::now();
    while state.members[0].giving.is_frozen() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it stays frozen");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(cell.predecessor.statistics().members[0].items, KEYS);
    assert_eq!(announced(&cell.predecessor), 0, "nobody comes");
}

/// Its lock is free, and it may have taken mutations that the successor does not know.
#[test]
fn the_place_of_one_that_has_died_without_letting_go_is_not_taken() {
    let cell = Cell::new(Loses::Request);
    let successor = std::thread::spawn(cell.take_over());
    cell.lost.recv().unwrap();
    drop(cell.predecessor);
    assert_undecided(successor.join().unwrap());
    assert!(cell.store.claim(0).is_ok());
}
