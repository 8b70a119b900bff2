//! Who may raise an epoch: nobody while the process is frozen, and nobody under another
//! configuration.

use super::*;
use crate::{ListenOptions, Listeners, Server, ServerOptions};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use trefoil_cell::{
    BackendConfig, BackendRegistry as _, CellConfig, ConfigStore as _, DirectoryStore, Mode,
    RpcAddress,
};
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::message::{self, RequestHead};
use trefoil_layout::op::{Action, Mutation};
use trefoil_layout::{KeyHasher, Version, epoch};
use trefoil_ordered::Queue;
use trefoil_rpc::v1::{HandOverStep, ResizeStep};
use trefoil_store::{Access, StoredItem};

/// The only shard.
const SHARD: usize = 0;
const SUCCESSOR: u64 = 5;
const RESIZE: u64 = 7;

/// A cell of one backend, in this process.
pub(crate) struct Cell {
    _dir: TempDir,
    store: DirectoryStore,
    config: CellConfig,
    server: Server,
    runtime: Runtime,
}

impl Cell {
    pub(crate) fn new() -> Self {
        Self::start(false)
    }

    fn start(queue: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = DirectoryStore::create(dir.path()).unwrap();
        let config = CellConfig {
            life: 11,
            config_id: 1,
            cell: "test".to_owned(),
            mode: Mode::R1,
            backends: vec![BackendConfig {
                number: 0,
                addresses: vec![store.rpc_socket(0).unwrap()],
                fabric_socket: None,
                place: None,
            }],
            hash: KeyHasher::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        store.compare_and_swap(None, &config).unwrap();
        let RpcAddress::Unix(unix) = store.rpc_socket(0).unwrap() else {
            panic!("a directory's backends have sockets there");
        };
        let listeners = Listeners::bind(&ListenOptions {
            unix: Some(unix),
            ..ListenOptions::default()
        });
        let options = ServerOptions {
            // Generous: the bound counts what parallel tests hold, too.
            memory_limit: 1 << 30,
            locks: vec![store.claim(0).unwrap()],
            queue,
            ..ServerOptions::new(Arc::new(store.clone()), vec![0])
        };
        Cell {
            server: Server::start(options, listeners.unwrap()).unwrap(),
            runtime: Runtime::new().unwrap(),
            _dir: dir,
            store,
            config,
        }
    }

    fn state(&self) -> &Arc<State> {
        self.server.state()
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.state().members[0]
    }

    fn epoch(&self) -> u32 {
        self.member().store.epoch(SHARD)
    }

    /// The one that a recovery would raise it to.
    fn next(&self) -> u32 {
        epoch::shared_above(self.epoch()).unwrap()
    }

    /// Somebody who recovers under `config_id` calls.
    fn raise(&self, epoch: u32, config_id: u32) -> Result<u32, tonic::Code> {
        let request = v1::RaiseEpochRequest {
            shard: Some(v1::ShardName {
                life: self.config.life,
                ..v1::ShardName::default()
            }),
            epoch,
            config_id,
        };
        let service = RpcService::new(Arc::clone(self.state()));
        let raised = self
            .runtime
            .block_on(service.raise_epoch(Request::new(request)));
        raised
            .map(|answer| answer.into_inner().epoch)
            .map_err(|status| status.code())
    }

    fn hand_over(&self, step: HandOverStep) {
        let request = v1::HandOverRequest {
            life: self.config.life,
            successor: SUCCESSOR,
            step: step.into(),
            layout_version: LAYOUT_VERSION.into(),
            ..v1::HandOverRequest::default()
        };
        handover::step(self.state(), self.member(), &request).unwrap();
    }

    fn resize(&self, step: ResizeStep, attempt: u32) -> Result<v1::ResizeResponse, Status> {
        let request = v1::ResizeRequest {
            life: self.config.life,
            resize: RESIZE,
            step: step.into(),
            layout_version: LAYOUT_VERSION.into(),
            backends: 2,
            attempt,
            ..v1::ResizeRequest::default()
        };
        resize::step(self.state(), self.member(), &request)
    }

    fn is_frozen(&self) -> bool {
        self.member().giving.is_frozen() || self.member().resizing.is_frozen()
    }

    /// What comes of `raise`, which freezes the process, if that was not over before it
    /// was: a machine that stands still may outlast a freeze.
    fn frozen<T>(&self, is_resize: bool, raise: impl Fn(&dyn Fn()) -> T) -> T {
        for attempt in 1.. {
            match is_resize {
                true => drop(self.resize(ResizeStep::Thaw, 2 * attempt)),
                false => {
                    self.hand_over(HandOverStep::Abandon);
                    self.hand_over(HandOverStep::Begin);
                }
            }
            let result = raise(&|| match is_resize {
                true => drop(self.resize(ResizeStep::Freeze, 2 * attempt + 1)),
                false => self.hand_over(HandOverStep::Freeze),
            });
            if self.is_frozen() {
                return result;
            }
        }
        unreachable!("attempts are not used up")
    }
}

#[test]
fn a_frozen_process_lets_nobody_raise_its_epoch() {
    for is_resize in [true, false] {
        let cell = Cell::new();
        match is_resize {
            true => drop(cell.resize(ResizeStep::Begin, 0).unwrap()),
            false => cell.hand_over(HandOverStep::Begin),
        }
        let next = cell.next();
        assert_eq!(cell.raise(next, 0), Ok(next), "it is not frozen yet");
        let refused = Err(tonic::Code::Aborted);
        let (raised, is_as_before) = cell.frozen(is_resize, |freeze| {
            let (before, next) = (cell.epoch(), cell.next());
            freeze();
            (cell.raise(next, 0), cell.epoch() == before)
        });
        assert_eq!((raised, is_as_before), (refused, true), "{is_resize}");
        // Frozen while it was raised: who asked must not go by it.
        let raised = cell.frozen(is_resize, |freeze| {
            assert!(!cell.is_frozen());
            let next = cell.next();
            let raised = copy::raise_epoch_by(cell.member(), SHARD, next, |store| {
                freeze();
                trefoil_recovery::standing(store, SHARD, next)
            });
            raised
                .map(|answer| answer.epoch)
                .map_err(|status| status.code())
        });
        assert_eq!(raised, refused, "{is_resize}");
    }
}

#[test]
fn who_recovers_under_another_configuration_raises_no_epoch() {
    let refused = Err(tonic::Code::FailedPrecondition);
    let cell = Cell::new();
    let before = cell.epoch();
    let flushed = cell.config.flushed(Version::ZERO).unwrap();
    assert_eq!(flushed.config_id, 2);
    // It may be a newer one than is in force, or this process cannot see it.
    assert_eq!(cell.raise(cell.next(), 2), refused);
    assert_eq!(cell.epoch(), before);
    // To ask raises nothing.
    assert_eq!(cell.raise(0, 2), Ok(before));
    let next = cell.next();
    assert_eq!(cell.raise(next, 1), Ok(next));
    // One that is newer, and in force, is followed.
    let swapped = cell
        .store
        .compare_and_swap(Some(cell.config.topology_id()), &flushed);
    swapped.unwrap();
    let next = cell.next();
    assert_eq!(cell.raise(next, 2), Ok(next));
    assert_eq!(cell.member().config_id(), 2);
    // Who recovers under the former one may be in a place that is another's by now.
    assert_eq!(cell.raise(cell.next(), 1), refused);
    assert_eq!(cell.epoch(), next);
    // A release that does not say.
    let next = cell.next();
    assert_eq!(cell.raise(next, 0), Ok(next));
}

/// Whoever copies under the raised epoch finds what was committed under the former one, though
/// the queue's thread slept.
#[test]
fn what_was_committed_is_executed_before_a_raised_epoch_is_told() {
    let cell = Cell::start(true);
    let queue = cell.member().queue.get().unwrap();
    let lane = queue.admit().map_err(drop).unwrap();
    let joined = Queue::join_lane(lane.order, lane.lane, UnixStream::from(lane.bell));
    let mut client = joined.unwrap();
    for number in 0..30u64 {
        let key = number.to_le_bytes();
        let request = message::Request::Mutate(Mutation {
            action: Action::Set,
            version: Version {
                time_ns: crate::clock::now().unix_ns,
                origin: 1 + number,
            },
            entry: DataEntry {
                key: &key,
                value: b"value",
                ..DataEntry::default()
            },
        });
        let mut bytes = vec![0; request.encoded_len()];
        let config_id = cell.config.config_id;
        request.encode(RequestHead { id: 0, config_id }, &mut bytes);
        // It naps for milliseconds.
        std::thread::sleep(Duration::from_millis(10));
        client.submit(&bytes, true).unwrap();
        let next = cell.next();
        assert_eq!(cell.raise(next, 0), Ok(next));
        let store = &cell.member().store;
        let is_there = |item: Option<&StoredItem<'_>>| item.is_some();
        let found = store.read(crate::clock::now(), &key, Access::Peek, is_there);
        assert_eq!(found, Ok(true), "{number}");
    }
}
