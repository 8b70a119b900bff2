//! Serving a queue until it is told to stop.

use crate::cache::{self, Cache, CacheError};
use crate::folder::{Folder, FolderError};
use crate::listener::Listener;
use crate::rocks::{self, Rocks, RocksError};
use crate::welcome::ServiceKind;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_fabric::shm::{ListenError, UserPolicy};
use trefoil_journal::snapshot::SnapshotError;
use trefoil_journal::{FileDisk, Flush, file};
use trefoil_ordered::worker::Turn;
use trefoil_ordered::{
    DurableError, DurableService, DurableWorker, Invitation, Options, ProducerClaim, Service,
    SetUpError, Step, Worker,
};
use trefoil_rocksdb::{DbError, DbOptions};
use trefoil_softnic::engine::CLAIM_WITHIN;

/// Busy turns between two looks at the socket: a look is a call of the system.
const LOOK_TURNS: u32 = 256;
/// The longest between two looks, however long turns take: each may wait for a disk.
const LOOK_WITHIN: Duration = Duration::from_millis(5);
/// How long a server without clients sleeps until it looks whether it is to stop.
const ALONE: Duration = Duration::from_millis(50);
/// The longest nap: nobody is admitted meanwhile, and no signal heard.
const NAP_MAX: Duration = Duration::from_millis(100);

// Engines' claims are answered in time, with many naps between.
const _: () = assert!(NAP_MAX.as_millis() * 10 <= CLAIM_WITHIN.as_millis());

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where clients find it.
    pub socket: PathBuf,
    /// Who may be a client.
    pub users: UserPolicy,
    /// What keeps the values.
    pub service: ServiceKind,
    /// Where files are: of RocksDB, and of whatever is durable.
    pub folder: Option<PathBuf>,
    /// Whether an acknowledgement means persistent.
    pub is_durable: bool,
    /// Bytes of the journal of a durable queue, when it is made.
    pub journal_len: u64,
    /// How the journal is flushed.
    pub flush: Flush,
    /// Bytes of a cache.
    pub memory: u64,
    /// RocksDB's library, if it is not where the system has such.
    pub library: Option<PathBuf>,
    /// What RocksDB is told.
    pub rocksdb: DbOptions,
    /// Slots, clients, naps.
    pub queue: Options,
}

/// Why nothing is served, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What was asked for cannot be.
    #[error("{0}")]
    Impossible(&'static str),
    /// The folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The shared memory.
    #[error(transparent)]
    SetUp(#[from] SetUpError),
    /// Trefoil's store.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// RocksDB.
    #[error(transparent)]
    Rocks(#[from] RocksError),
    /// A durable cache.
    #[error(transparent)]
    DurableCache(#[from] DurableError<SnapshotError>),
    /// A durable RocksDB.
    #[error(transparent)]
    DurableRocks(#[from] DurableError<DbError>),
}

/// Serves until `stop` is set. `ready` is called when clients can come.
pub fn serve(
    options: &ServeOptions,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> Result<(), ServeError> {
    options.queue.check()?;
    let impossible = |words| Err(ServeError::Impossible(words));
    // New clients and the signal to end are looked for between two naps.
    if options.queue.nap > NAP_MAX {
        return impossible("a server naps for 100 ms at most: it answers nobody meanwhile");
    }
    if options.queue.client_count_max == 0 {
        return impossible("a queue needs a place for one client at least");
    }
    match (options.service, options.is_durable, &options.folder) {
        (ServiceKind::Cache, true, None) => return impossible("a durable queue needs --folder"),
        (ServiceKind::Rocksdb, _, None) => return impossible("RocksDB needs --folder"),
        (ServiceKind::Cache, false, Some(_)) => {
            return impossible(
                "a cache that is not durable keeps no files: --folder needs --durable",
            );
        }
        _ => {}
    }
    if options.service == ServiceKind::Cache && options.memory < cache::MEMORY_MIN {
        return impossible("a cache needs 4 MiB at least");
    }
    let folder = match &options.folder {
        Some(path) => Some(Folder::open(path, options.service, options.is_durable)?),
        None => None,
    };
    match (options.service, folder) {
        (ServiceKind::Cache, None) => {
            let service = Cache::new(options.memory)?;
            volatile(options, service, stop, ready)
        }
        (ServiceKind::Cache, Some(folder)) => {
            let service = Cache::load(options.memory, &folder.state())?;
            durable(options, &folder, cache::QUEUE, service, stop, ready)
        }
        (ServiceKind::Rocksdb, None) => impossible("RocksDB needs --folder"),
        (ServiceKind::Rocksdb, Some(folder)) => {
            let library = options.library.as_deref();
            let (path, db) = (folder.rocksdb(), options.rocksdb);
            let service = Rocks::open(library, &path, db, options.is_durable)?;
            match options.is_durable {
                true => durable(options, &folder, rocks::QUEUE, service, stop, ready),
                false => volatile(options, service, stop, ready),
            }
        }
    }
}

/// A service that may fail amid its work.
trait Failing {
    fn failure(&self) -> Option<ServeError>;
}

impl Failing for Cache {
    fn failure(&self) -> Option<ServeError> {
        None
    }
}

impl Failing for Rocks {
    fn failure(&self) -> Option<ServeError> {
        let error = Rocks::failure(self)?;
        Some(ServeError::Rocks(RocksError::Db(error.clone())))
    }
}

/// A lane for a client, or for a producer.
type Wanted = Option<ProducerClaim>;

/// A worker with its service.
trait Engine {
    fn admit(&mut self, wanted: Wanted) -> Result<(Invitation, u64), SetUpError>;
    fn client_count(&self) -> usize;
    fn run_once(&mut self) -> Result<Turn, ServeError>;
    fn rest(&mut self, turn: Turn, idle_since: &mut Option<Instant>);
}

struct Volatile<S> {
    worker: Worker,
    service: S,
}

impl<S: Service + Failing> Engine for Volatile<S> {
    fn admit(&mut self, wanted: Wanted) -> Result<(Invitation, u64), SetUpError> {
        match wanted {
            None => self.worker.admit().map(|invitation| (invitation, 0)),
            Some(claim) => self.worker.admit_producer(claim),
        }
    }

    fn client_count(&self) -> usize {
        self.worker.client_count()
    }

    fn run_once(&mut self) -> Result<Turn, ServeError> {
        let turn = self.worker.run_once(&mut self.service);
        match self.service.failure() {
            None => Ok(turn),
            Some(failure) => Err(failure),
        }
    }

    fn rest(&mut self, turn: Turn, idle_since: &mut Option<Instant>) {
        let last = match turn.executed {
            0 => turn.last,
            _ => Step::Executed,
        };
        self.worker.rest(last, idle_since);
    }
}

struct Durable<S> {
    worker: DurableWorker<FileDisk>,
    service: S,
}

impl<S: DurableService + Failing> Engine for Durable<S>
where
    ServeError: From<DurableError<S::Error>>,
{
    fn admit(&mut self, wanted: Wanted) -> Result<(Invitation, u64), SetUpError> {
        match wanted {
            None => self.worker.admit().map(|invitation| (invitation, 0)),
            Some(claim) => self.worker.admit_producer(claim),
        }
    }

    fn client_count(&self) -> usize {
        self.worker.worker().client_count()
    }

    fn run_once(&mut self) -> Result<Turn, ServeError> {
        let turn = self.worker.run_once(&mut self.service)?;
        match self.service.failure() {
            None => Ok(turn),
            Some(failure) => Err(failure),
        }
    }

    fn rest(&mut self, turn: Turn, idle_since: &mut Option<Instant>) {
        self.worker.rest(turn, idle_since);
    }
}

fn volatile(
    options: &ServeOptions,
    service: impl Service + Failing,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> Result<(), ServeError> {
    let mut listener = listen(options)?;
    // A client of an earlier life has that one's memory, and knows from its bell that nobody
    // serves it: epochs of queues without a journal need not differ for that, and do.
    let worker = Worker::new(random(), options.queue.clone())?;
    let mut engine = Volatile { worker, service };
    run(&mut listener, &mut engine, options, stop, ready)?;
    drop(listener);
    let Volatile {
        worker,
        mut service,
    } = engine;
    worker.finish(&mut service);
    match service.failure() {
        None => Ok(()),
        Some(failure) => Err(failure),
    }
}

fn durable<S: DurableService + Failing>(
    options: &ServeOptions,
    folder: &Folder,
    queue: u64,
    mut service: S,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> Result<(), ServeError>
where
    ServeError: From<DurableError<S::Error>>,
{
    let mut listener = listen(options)?;
    let journal = folder.journal();
    let (of, how) = ((queue, random()), (options.journal_len, options.flush));
    let worker = DurableWorker::open(options.queue.clone(), &mut service, |executed, replay| {
        file::open(&journal, of, how, executed, replay)
    })?;
    if let Some(failure) = service.failure() {
        return Err(failure);
    }
    let mut engine = Durable { worker, service };
    run(&mut listener, &mut engine, options, stop, ready)?;
    drop(listener);
    let Durable {
        worker,
        mut service,
    } = engine;
    worker.finish(&mut service)?;
    match service.failure() {
        None => Ok(()),
        Some(failure) => Err(failure),
    }
}

fn listen(options: &ServeOptions) -> Result<Listener, ListenError> {
    Listener::bind(
        &options.socket,
        options.users.clone(),
        (options.service, options.is_durable),
        options.queue.client_count_max,
    )
}

fn run(
    listener: &mut Listener,
    engine: &mut impl Engine,
    options: &ServeOptions,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> Result<(), ServeError> {
    ready();
    let mut idle_since: Option<Instant> = None;
    let mut turns = 0u32;
    let mut looked = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let turn = engine.run_once()?;
        turns = turns.wrapping_add(1);
        let is_asleep = idle_since.is_some_and(|since| since.elapsed() >= options.queue.spin);
        let is_due = turns.is_multiple_of(LOOK_TURNS) || looked.elapsed() >= LOOK_WITHIN;
        if is_asleep || is_due {
            listener.look(|wanted| engine.admit(wanted));
            looked = Instant::now();
        }
        match engine.client_count() {
            0 => {
                listener.wait(ALONE);
                listener.look(|wanted| engine.admit(wanted));
            }
            _ => engine.rest(turn, &mut idle_since),
        }
    }
    Ok(())
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, ClientError};
    use trefoil_ordered::{Answer, Refused, Request};

    /// Fails at its third request.
    struct Fails(u32);

    impl Service for Fails {
        fn execute(&mut self, _: Request<'_>, _: &mut Answer) {
            self.0 += 1;
        }
    }

    impl Failing for Fails {
        fn failure(&self) -> Option<ServeError> {
            (self.0 >= 3).then_some(ServeError::Impossible("a test's"))
        }
    }

    /// Nobody executes what is published behind the end.
    #[test]
    fn a_queue_that_ends_by_an_error_takes_nothing_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = ServeOptions {
            socket: folder.path().join("socket"),
            users: UserPolicy::SameUser,
            service: ServiceKind::Cache,
            folder: None,
            is_durable: false,
            journal_len: 0,
            flush: Flush::Direct,
            memory: 0,
            library: None,
            rocksdb: DbOptions::default(),
            queue: Options::default(),
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let mut client = None;
        let (stop, options) = (&AtomicBool::new(false), &options);
        let served = std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                volatile(options, Fails(0), stop, || ready.send(()).expect("a test"))
            });
            is_ready.recv().expect("a server");
            let client = client.insert(Client::connect(&options.socket).expect("a queue"));
            for _ in 0..3 {
                client.set(b"key", b"value").expect("committed");
            }
            server.join().expect("no panic")
        });
        assert!(
            matches!(served, Err(ServeError::Impossible(_))),
            "{served:?}"
        );
        let refused = client.expect("a client").set(b"key", b"late");
        assert_eq!(refused, Err(ClientError::Refused(Refused::Closed)));
    }
}
