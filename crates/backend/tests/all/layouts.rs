//! Processes whose data entries have different layouts, as those of two releases may: what
//! one tells another they negotiate, and nobody guesses.

use crate::support::{LIFE, TOPOLOGY, next_version};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::Code;
use trefoil_backend::{ListenOptions, Listeners, Server, ServerOptions};
use trefoil_cell::{
    BackendConfig, BackendRegistry as _, CellConfig, ConfigStore as _, DirectoryStore, Mode,
    RpcAddress,
};
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::op::{Action, Found, Mutation, Outcome};
use trefoil_layout::{KeyHasher, Version};
use trefoil_rpc::v1::lookup_response;
use trefoil_rpc::{Client, v1};

const OTHER_LAYOUT: u8 = LAYOUT_VERSION + 1;
/// Longer than what is part of a page.
const LONG_LEN: usize = 200 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// A cell of processes of their own, as `cell up` starts it.
struct Cell {
    _home: TempDir,
    store: DirectoryStore,
    runtime: Runtime,
}

impl Cell {
    fn new(mode: Mode, backends: u32) -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = DirectoryStore::create(&home.path().join("cell")).unwrap();
        let backend = |number| BackendConfig {
            number,
            addresses: vec![store.rpc_socket(number).unwrap()],
            fabric_socket: None,
            place: None,
        };
        let config = CellConfig {
            life: LIFE,
            config_id: TOPOLOGY.config_id,
            cell: "test".to_owned(),
            mode,
            backends: (0..backends).map(backend).collect(),
            hash: KeyHasher::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        store.compare_and_swap(None, &config).unwrap();
        Cell {
            _home: home,
            store,
            runtime: Runtime::new().unwrap(),
        }
    }

    fn listen(&self, number: u32) -> ListenOptions {
        let RpcAddress::Unix(unix) = self.store.rpc_socket(number).unwrap() else {
            panic!("a cell of a directory listens in it");
        };
        ListenOptions {
            unix: Some(unix),
            ..ListenOptions::default()
        }
    }

    fn options(&self, number: u32, layout_version: u8) -> ServerOptions {
        ServerOptions {
            layout_version,
            ..ServerOptions::new(Arc::new(self.store.clone()), vec![number])
        }
    }

    fn start(&self, number: u32, layout_version: u8) -> Server {
        let options = ServerOptions {
            locks: vec![self.store.lock_backend(number).unwrap()],
            ..self.options(number, layout_version)
        };
        Server::start(options, Listeners::bind(&self.listen(number)).unwrap()).unwrap()
    }

    fn client(&self, number: u32) -> Client {
        let address = self.store.rpc_socket(number).unwrap();
        let endpoint = trefoil_cell::endpoint(&address).unwrap();
        let channel = self.runtime.block_on(endpoint.connect()).unwrap();
        trefoil_rpc::client(channel, trefoil_cell::credentials(&address))
    }

    fn set(&self, number: u32, key: &[u8], entry: DataEntry<'_>, version: Version) {
        let mutation = Mutation {
            action: Action::Set,
            version,
            entry: DataEntry { key, ..entry },
        };
        let request = trefoil_rpc::encode_mutation(number, TOPOLOGY, &mutation);
        let mut client = self.client(number);
        let answer = self.runtime.block_on(client.mutate(request)).unwrap();
        let ack = trefoil_rpc::decode_ack(answer.get_ref()).unwrap();
        assert_eq!(ack.outcome, Outcome::Applied);
    }

    fn look_up(
        &self,
        number: u32,
        key: &[u8],
        (layout_version, takes_plain): (u8, bool),
    ) -> Result<v1::LookupResponse, tonic::Status> {
        let request = v1::LookupRequest {
            backend: number,
            life: LIFE,
            config_id: TOPOLOGY.config_id,
            key: bytes::Bytes::copy_from_slice(key),
            layout_version: layout_version.into(),
            takes_plain,
        };
        let mut client = self.client(number);
        let answer = self.runtime.block_on(client.lookup(request));
        answer.map(tonic::Response::into_inner)
    }

    /// What a client of this release finds.
    fn get(&self, number: u32, layout_version: u8, key: &[u8]) -> Option<(Vec<u8>, Fields)> {
        let mut answer = self.look_up(number, key, (layout_version, true)).unwrap();
        let hasher = KeyHasher::default();
        trefoil_rpc::settle_answer(&mut answer, &hasher);
        match trefoil_rpc::decode_lookup_answer(&answer).unwrap().found {
            Found::Present { version, data } => {
                let tag = hasher.hash(key).tag;
                let entry = DataEntry::validate(data, tag, version, key).unwrap();
                Some((entry.value.to_vec(), fields(&entry)))
            }
            Found::Absent => None,
            Found::Rejected(rejection) => panic!("{rejection}"),
        }
    }
}

/// Expiry, both kinds of flags, CAS unique.
type Fields = (u64, u32, u8, Option<u64>);

fn fields(entry: &DataEntry<'_>) -> Fields {
    let DataEntry {
        expiry_ms,
        client_flags,
        item_flags,
        unique,
        ..
    } = *entry;
    (expiry_ms, client_flags, item_flags, unique)
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// With every field that an entry can have, and one that is long.
fn entry(number: usize, long: &[u8]) -> DataEntry<'_> {
    DataEntry {
        expiry_ms: if number.is_multiple_of(2) {
            0
        } else {
            9_000_000_000_000
        },
        client_flags: 0xffff_0000 + number as u32,
        unique: number.is_multiple_of(3).then_some(number as u64),
        value: match number {
            0 => long,
            _ => &long[..number],
        },
        ..DataEntry::default()
    }
}

#[test]
fn a_client_of_another_layout_is_told_plain_entries_or_nothing() {
    let cell = Cell::new(Mode::R1, 1);
    let _server = cell.start(0, LAYOUT_VERSION);
    let long = vec![b'v'; LONG_LEN];
    for number in [0, 5] {
        cell.set(0, &key(number), entry(number, &long), next_version());
        let refused = cell.look_up(0, &key(number), (OTHER_LAYOUT, false));
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(
            refused.message().contains("a release in between"),
            "{refused}"
        );
        let plain = cell.look_up(0, &key(number), (OTHER_LAYOUT, true)).unwrap();
        let Some(lookup_response::Found::Present(present)) = plain.found else {
            panic!("{number}: {:?}", plain.found);
        };
        assert!(present.data.is_empty());
        assert_eq!(present.plain.unwrap().value, entry(number, &long).value);
        let settled = cell.get(0, OTHER_LAYOUT, &key(number));
        assert_eq!(settled, cell.get(0, LAYOUT_VERSION, &key(number)));
        let as_it_lies = cell.look_up(0, &key(number), (0, false)).unwrap();
        let Some(lookup_response::Found::Present(present)) = as_it_lies.found else {
            panic!("{number}: {:?}", as_it_lies.found);
        };
        assert!(present.plain.is_none() && !present.data.is_empty());
    }
}

#[test]
fn a_backend_moves_to_a_process_of_another_layout() {
    const KEYS: usize = 200;
    let cell = Cell::new(Mode::R1, 1);
    let before = cell.start(0, LAYOUT_VERSION);
    let long = vec![b'v'; LONG_LEN];
    for number in 0..KEYS {
        cell.set(0, &key(number), entry(number, &long), next_version());
    }
    // One that takes entries only as they lie in its own memory.
    let request = v1::HandOverRequest {
        backend: 0,
        life: LIFE,
        successor: 5,
        step: v1::HandOverStep::Begin.into(),
        layout_version: OTHER_LAYOUT.into(),
        takes_plain: false,
    };
    let mut client = cell.client(0);
    let refused = cell
        .runtime
        .block_on(client.hand_over(request))
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.message().contains("a release in between"),
        "{refused}"
    );

    let claim = || cell.store.claim(0);
    let options = cell.options(0, OTHER_LAYOUT);
    let after = Server::take_over(options, &cell.listen(0), claim).unwrap();
    let member = &after.statistics().members[0];
    assert_eq!(member.items, KEYS as u64);
    let takeover = member.takeover.unwrap();
    assert_eq!(takeover.items, KEYS as u64);
    assert!(takeover.received_bytes > LONG_LEN as u64, "{takeover:?}");
    let told = before.statistics().members[0].copied_bytes;
    assert!(told > 0 && told < takeover.received_bytes, "{told}");
    drop(before);
    for number in 0..KEYS {
        let (value, of_it) = cell.get(0, OTHER_LAYOUT, &key(number)).unwrap();
        let entry = entry(number, &long);
        assert_eq!(
            (&value[..], of_it),
            (entry.value, fields(&entry)),
            "{number}"
        );
    }
}

#[test]
fn a_backend_recovers_from_others_of_another_layout() {
    const KEYS: usize = 100;
    let cell = Cell::new(Mode::R32, 3);
    let others = [0, 1].map(|number| cell.start(number, LAYOUT_VERSION));
    let lost = cell.start(2, LAYOUT_VERSION);
    let long = vec![b'v'; LONG_LEN];
    for number in 0..KEYS {
        let version = next_version();
        for backend in 0..3 {
            cell.set(backend, &key(number), entry(number, &long), version);
        }
    }
    drop(lost);
    let back = cell.start(2, OTHER_LAYOUT);
    let begin = Instant::now();
    loop {
        let recovery = back.statistics().members[0].recovery.clone().unwrap();
        if recovery.shards_left == 0 && recovery.done {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{recovery:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let told: u64 = others
        .iter()
        .map(|s| s.statistics().members[0].copied_bytes)
        .sum();
    assert!(told > 0);
    for number in 0..KEYS {
        let (value, of_it) = cell.get(2, OTHER_LAYOUT, &key(number)).unwrap();
        let entry = entry(number, &long);
        assert_eq!(
            (&value[..], of_it),
            (entry.value, fields(&entry)),
            "{number}"
        );
    }
}
