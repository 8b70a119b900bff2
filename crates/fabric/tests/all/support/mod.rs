//! A small backend behind a target, and a client that does not keep the rules.
#![allow(dead_code)]

use rustix::cmsg_space;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::collections::HashMap;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_client_core::touch::TouchBatch;
use trefoil_fabric::port::Waited;
use trefoil_fabric::shm::{
    ConnectError, ConnectOptions, Connection, Export, Statistics, Target, TargetOptions,
};
use trefoil_fabric::{AnswerSink, ClientId, Service, Token};
use trefoil_layout::bucket::{self, BUCKET_LEN, BucketHeader};
use trefoil_layout::control::{self, CONTROL_LEN, ControlShape, IndexWindow};
use trefoil_layout::data::DataEntry;
use trefoil_layout::hello::{Hello, REPLY_LEN, Reply};
use trefoil_layout::message::{Answer, Request};
use trefoil_layout::op::{Ack, Action, Found, LookupAnswer, Mutation, Outcome};
use trefoil_layout::ring::Geometry;
use trefoil_layout::topology::CONFIG_ID_CHANGING;
use trefoil_layout::{HashKind, IndexEntry, KeyHash, KeyHasher, Pointer, TopologyId, Version};
use trefoil_region::{HugePages, Mapping, MemoryObject};

pub(crate) const BACKEND: u32 = 3;
pub(crate) const LIFE: u64 = 0xabcd_ef01_2345_6789;
pub(crate) const CONFIG: u32 = 7;
pub(crate) const EPOCH: u32 = 5;
pub(crate) const INCARNATION: u64 = 0xfeed;
pub(crate) const PARTITIONS: usize = 4;
pub(crate) const BUCKETS: u64 = 16;
pub(crate) const DATA_LEN: u64 = 1 << 20;

/// A key that makes the service panic.
pub(crate) const PANIC_KEY: &[u8] = b"panic";

/// A report of these slots.
pub(crate) fn report(slots: &[u32]) -> TouchBatch<'_> {
    TouchBatch {
        window_id: 2,
        slots,
        names: &[],
    }
}

/// Keeps what is set, counts what is touched.
#[derive(Default)]
pub(crate) struct Backend {
    pub(crate) map: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    pub(crate) executed: AtomicUsize,
    pub(crate) touched: AtomicUsize,
    pub(crate) touched_sum: AtomicU64,
    pub(crate) charged: AtomicI64,
    pub(crate) charge_limit: AtomicI64,
    /// It has left its place, or is about to.
    pub(crate) is_changing: AtomicBool,
}

impl Service for Backend {
    fn execute(
        &self,
        _client: ClientId,
        config_id: u32,
        request: Request<'_>,
        answer: &mut AnswerSink<'_>,
    ) {
        let is_touch = matches!(request, Request::Touch { .. });
        assert_eq!(config_id, if is_touch { 0 } else { CONFIG });
        self.executed.fetch_add(1, Ordering::Relaxed);
        match request {
            Request::Mutate(mutation) => {
                assert_ne!(mutation.entry.key, PANIC_KEY);
                let (key, value) = (mutation.entry.key, mutation.entry.value);
                self.map.lock().unwrap().insert(key.into(), value.into());
                let outcome = Outcome::Applied;
                answer.ack(Ack {
                    epoch: EPOCH,
                    outcome,
                });
            }
            Request::Lookup { key } => answer.lookup(|buffer| {
                let map = self.map.lock().unwrap();
                let found = match map.get(key) {
                    None => Found::Absent,
                    Some(value) => {
                        buffer.prepare(value.len());
                        buffer.bytes_mut().copy_from_slice(value);
                        Found::Present {
                            version: Version::new(1, 2, 3),
                            data: buffer.bytes(),
                        }
                    }
                };
                LookupAnswer {
                    epoch: EPOCH,
                    found,
                }
            }),
            Request::Use { .. } => answer.item_use(None),
            Request::Touch { slots, names, .. } => {
                let sum: u64 = slots.iter().chain(names.iter()).map(u64::from).sum();
                self.touched_sum.fetch_add(sum, Ordering::Relaxed);
                let count = slots.count() + names.count();
                self.touched.fetch_add(count, Ordering::Relaxed);
            }
            Request::Ping => unreachable!("pings are answered by the fabric"),
        }
    }

    fn topology(&self) -> TopologyId {
        TopologyId {
            life: LIFE,
            config_id: match self.is_changing.load(Ordering::Relaxed) {
                true => CONFIG_ID_CHANGING,
                false => CONFIG,
            },
        }
    }

    fn charge(&self, bytes: u64) -> bool {
        let limit = self.charge_limit.load(Ordering::Relaxed);
        let charged = self.charged.load(Ordering::Relaxed) + bytes as i64;
        if limit != 0 && charged > limit {
            return false;
        }
        self.charged.store(charged, Ordering::Relaxed);
        true
    }

    fn release(&self, bytes: u64) {
        self.charged.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}

/// A target with one backend, in a directory of its own.
pub(crate) struct Server {
    pub(crate) directory: TempDir,
    pub(crate) backend: Arc<Backend>,
    pub(crate) target: Option<Target>,
    pub(crate) control: Mapping,
    pub(crate) index: Mapping,
    pub(crate) data: Mapping,
    pub(crate) options: TargetOptions,
}

pub(crate) fn hasher() -> KeyHasher {
    KeyHasher {
        kind: HashKind::Xxh3,
        seed: [11, 12],
    }
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut TargetOptions)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut options = TargetOptions::new(directory.path().join("shm.sock"));
        change(&mut options);
        let region = |name, len| {
            let object = MemoryObject::create(name, len, len, HugePages::Off).unwrap();
            object.populate(0..len).unwrap();
            let mapping = Mapping::owner(&object).unwrap();
            (object, mapping)
        };
        let (control_object, control) = region("control", CONTROL_LEN as u64);
        let index_len = PARTITIONS as u64 * IndexWindow::bytes(BUCKETS);
        let (index_object, index) = region("index", index_len);
        let (data_object, data) = region("data", DATA_LEN);
        let shape = ControlShape {
            partition_count: PARTITIONS,
            shard_count: 1,
            incarnation: INCARNATION,
        };
        let words = control.words();
        for partition in 0..PARTITIONS {
            let window = IndexWindow {
                window_id: 2,
                offset: partition as u64 * IndexWindow::bytes(BUCKETS),
                bucket_count: BUCKETS,
                epoch: EPOCH,
            };
            control::set_index_window(&words, partition, window);
        }
        for offset in (0..index_len).step_by(BUCKET_LEN) {
            let bucket = index.words().slice(offset, BUCKET_LEN).unwrap();
            bucket::set_header(&bucket, BucketHeader::new(CONFIG, EPOCH));
        }
        control::set_data_window(&words, DATA_LEN / 2);
        control::initialise(&words, shape, CONFIG);
        let backend = Arc::new(Backend::default());
        let service: Arc<dyn Service> = Arc::clone(&backend) as _;
        let objects = [&control_object, &index_object, &data_object];
        let export = Export::new(BACKEND, hasher(), shape, objects, service).unwrap();
        let target = Target::start(options.clone(), vec![export]).unwrap();
        Server {
            directory,
            backend,
            target: Some(target),
            control,
            index,
            data,
            options,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.options.path.clone()
    }

    pub(crate) fn connect(&self) -> Connection {
        self.try_connect(&ConnectOptions::default()).unwrap()
    }

    pub(crate) fn try_connect(&self, options: &ConnectOptions) -> Result<Connection, ConnectError> {
        Connection::connect(&self.path(), BACKEND, options)
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.target.as_ref().unwrap().progress().is_asleep
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.target.as_ref().unwrap().statistics()
    }

    /// Puts a data entry at `offset` and an index entry that points at it.
    pub(crate) fn install(&self, key: &[u8], value: &[u8], offset: u64) -> (KeyHash, Pointer) {
        let hash = hasher().hash(key);
        let version = Version::new(9, 9, 9);
        let entry = DataEntry {
            key,
            value,
            ..DataEntry::default()
        };
        let mut bytes = vec![0; entry.encoded_len().next_multiple_of(8)];
        entry.encode(&mut bytes, hash.tag, version);
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().unwrap()))
            .collect();
        let room = self.data.words().slice(offset, bytes.len()).unwrap();
        room.copy_in(&words);
        let pointer = Pointer::new(offset, entry.encoded_len()).unwrap();
        let index_entry = IndexEntry {
            tag: hash.tag,
            version,
            pointer,
        };
        let at = hash.sub_partition(PARTITIONS) as u64 * IndexWindow::bytes(BUCKETS)
            + hash.bucket(BUCKETS) * BUCKET_LEN as u64;
        let bucket = self.index.words().slice(at, BUCKET_LEN).unwrap();
        bucket::insert(&bucket, hash.home_slot(), index_entry);
        (hash, pointer)
    }
}

pub(crate) fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Mutate(Mutation {
        action: Action::Set,
        version: Version::new(1, 2, 3),
        entry: DataEntry {
            key,
            value,
            ..DataEntry::default()
        },
    })
}

/// Sends and hands the answer to `on`.
pub(crate) fn ask<T>(
    connection: &mut Connection,
    request: &Request<'_>,
    mut on: impl FnMut(Answer<'_>) -> T,
) -> T {
    let id = connection.send_next(CONFIG, request).unwrap();
    answer_of(connection, id, &mut on)
}

pub(crate) fn answer_of<T>(
    connection: &mut Connection,
    id: Token,
    on: &mut impl FnMut(Answer<'_>) -> T,
) -> T {
    let mut result = None;
    while result.is_none() {
        assert_eq!(connection.wait(Duration::from_secs(10)), Waited::Ready);
        connection
            .poll(|answered, answer| {
                assert_eq!(answered, id);
                result = Some(on(answer));
            })
            .unwrap();
    }
    result.unwrap()
}

/// Sets and checks the acknowledgement.
pub(crate) fn must_set(connection: &mut Connection, key: &[u8], value: &[u8]) {
    let outcome = ask(connection, &set(key, value), |answer| match answer {
        Answer::Ack(ack) => ack.outcome,
        other => panic!("{other:?}"),
    });
    assert_eq!(outcome, Outcome::Applied);
}

/// Looks up by message.
pub(crate) fn must_get(connection: &mut Connection, key: &[u8]) -> Option<Vec<u8>> {
    ask(
        connection,
        &Request::Lookup { key },
        |answer| match answer {
            Answer::Lookup(LookupAnswer { found, .. }) => match found {
                Found::Present { data, .. } => Some(data.to_vec()),
                _ => None,
            },
            other => panic!("{other:?}"),
        },
    )
}

/// Waits for something that happens in the background.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A client that got rings properly and then does what it likes with them.
pub(crate) struct Rogue {
    pub(crate) socket: UnixStream,
    pub(crate) rings: Mapping,
    pub(crate) geometry: Geometry,
}

impl Rogue {
    pub(crate) fn connect(server: &Server) -> Self {
        let mut socket = UnixStream::connect(server.path()).unwrap();
        let hello = Hello {
            backend: BACKEND,
            wants_rings: true,
            knows_marks: false,
            wants_lane: false,
        };
        socket.write_all(&hello.encode()).unwrap();
        let mut bytes = [0; REPLY_LEN];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
        .unwrap();
        assert_eq!(received.bytes, REPLY_LEN);
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let Reply::Granted(granted) = Reply::parse(&bytes).unwrap() else {
            panic!();
        };
        let geometry = granted.rings.unwrap();
        let rings = Mapping::reader_writer(&descriptors[3], geometry.object_len()).unwrap();
        Rogue {
            socket,
            rings,
            geometry,
        }
    }

    pub(crate) fn ring_bell(&self) {
        let _ = (&self.socket).write_all(&[1]);
    }
}
