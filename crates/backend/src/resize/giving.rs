//! The side of the backends that are.

use crate::clock;
use crate::flush::FlushError;
use crate::follow::Trouble;
use crate::member::Member;
use crate::service::copy::{self, is_plain};
use crate::state::State;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tonic::Status;
use trefoil_cell::{BACKEND_COUNT_MAX, CellConfig, ConfigStoreError};
use trefoil_layout::{Placement, ShardMap, Version};
use trefoil_recovery::{Notes, Ranges, ShardState, shard_states};
use trefoil_rpc::v1::{self, ResizeStep};

/// How long backends of a cell that is resized take no mutation at most, at a time. Clients
/// try again within their deadlines.
pub const FROZEN_MAX: Duration = Duration::from_millis(500);
/// Ranges of changed places of a shard whose values are told with them: those of a moment.
const TOLD_AT_ONCE_MAX: usize = 256;
/// A taker, or who changes the cell, that has not been heard of for so long has gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long clients that are connected hear that nothing is taken here any more, before
/// they are hung up on.
const LINGER: Duration = Duration::from_millis(30);
/// The same of one that has found out by itself: whoever changes the cell is about to ask.
const HEED_LINGER: Duration = Duration::from_millis(400);
/// Between two attempts to find out whether the cell was resized, while its configuration
/// store is away.
const BREAK_OFF_PAUSE: Duration = Duration::from_millis(100);

/// The resize that a backend takes part in, if it does.
#[derive(Debug, Default)]
pub(crate) struct Giving {
    part: Mutex<Option<Part>>,
}

#[derive(Debug)]
struct Part {
    /// What the resize is called.
    resize: u64,
    /// When any of its processes was heard of.
    heard: Instant,
    /// Backends that the cell is to have.
    backends: u32,
    /// What has changed, for each process that copies from here; and how far it has come.
    notes: Notes,
    takers: BTreeMap<u32, v1::ResizeTaker>,
    /// Attempts up to this one are over, or under way.
    attempt: u32,
    phase: Phase,
    /// It was given up while it was not known whether the cell was resized.
    abandoned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// No mutation is taken before then.
    Frozen {
        until: Instant,
    },
    /// It is not known whether the cell was resized.
    BreaksOff,
    Retired,
}

impl Giving {
    fn lock(&self) -> MutexGuard<'_, Option<Part>> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the backend takes part in a resize.
    pub(crate) fn is_under_way(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether no mutation is taken at present.
    pub(crate) fn is_frozen(&self) -> bool {
        let part = self.lock();
        part.as_ref().is_some_and(|part| part.phase != Phase::Open)
    }

    /// For people, and metrics.
    pub(crate) fn stats(&self) -> Option<v1::ResizeStats> {
        let part = self.lock();
        let of = part.as_ref()?;
        Some(v1::ResizeStats {
            backends: of.backends,
            takers: of.takers.values().copied().collect(),
            frozen: of.phase != Phase::Open,
        })
    }

    /// Goes on as before if whoever changes the cell does not.
    pub(crate) fn look(state: &Arc<State>, member: &Arc<Member>, now: Instant) {
        let mut part = member.resizing.lock();
        let Some(of) = part.as_mut() else { return };
        match of.phase {
            Phase::Frozen { until } if now >= until => {
                of.phase = Phase::BreaksOff;
                drop(part);
                let (state, thread_member) = (Arc::clone(state), Arc::clone(member));
                let spawned = std::thread::Builder::new()
                    .name("trefoil-breakoff".to_owned())
                    .spawn(move || break_off(&state, &thread_member));
                if let Err(error) = spawned {
                    tracing::error!(%error, "no thread to break a resize off with");
                    // It is tried again.
                    if let Some(of) = member.resizing.lock().as_mut() {
                        of.phase = Phase::Frozen { until };
                    }
                }
            }
            Phase::Open if now.saturating_duration_since(of.heard) >= SILENCE_MAX => {
                *part = None;
                go_on(member);
                tracing::warn!(
                    backend = member.number,
                    "nothing is heard of the resize of this cell any more: it goes on as it is"
                );
            }
            _ => {}
        }
    }
}

/// Takes mutations again.
fn thaw(member: &Member) {
    for shard in 0..member.store.shard_count() {
        member.store.freeze(shard, false);
    }
}

/// The same, and notes them no longer.
fn go_on(member: &Member) {
    thaw(member);
    for shard in 0..member.store.shard_count() {
        member.store.watch_changes(shard, false);
    }
}

impl Part {
    /// Whether this attempt may have the backend take no mutation.
    fn may_freeze(&self, member: &Member, attempt: u32) -> Result<(), Status> {
        if attempt <= self.attempt || self.phase != Phase::Open {
            return Err(Status::aborted("this attempt is over"));
        }
        // That passes: it is asked again.
        hindrance(member).map_or(Ok(()), |why| Err(Status::aborted(why)))
    }
}

/// What was committed goes along. It is waited for without the lock, which the lease's thread
/// takes; and before the time begins in which nothing is taken.
fn end_queue(member: &Member, request: &v1::ResizeRequest) -> Result<(), Status> {
    {
        let mut part = member.resizing.lock();
        let Some(of) = part.as_mut().filter(|of| of.resize == request.resize) else {
            return Ok(());
        };
        of.heard = Instant::now();
        of.may_freeze(member, request.attempt)?;
    }
    match member.end_queue() {
        true => Ok(()),
        false => Err(Status::aborted("the queue of this backend is hindered")),
    }
}

/// One step of a resize, as it is asked for.
pub(crate) fn step(
    state: &Arc<State>,
    member: &Arc<Member>,
    request: &v1::ResizeRequest,
) -> Result<v1::ResizeResponse, Status> {
    let step = request.step();
    if request.resize == 0 || step == ResizeStep::Unspecified {
        return Err(Status::invalid_argument("no resize, or no step"));
    }
    if matches!(step, ResizeStep::Begin | ResizeStep::Freeze)
        && let Some(why) = state.hindered_by_config()
    {
        return Err(Status::failed_precondition(why.to_string()));
    }
    if step == ResizeStep::Freeze {
        end_queue(member, request)?;
    }
    let now = Instant::now();
    let mut part = member.resizing.lock();
    if step == ResizeStep::Begin {
        // `cell up` starts the new processes, with the program that the old ones run.
        is_plain(request.layout_version, false, state.layout_version)?;
        return begin(state, member, request, &mut part, now);
    }
    let of = part.as_mut().filter(|of| of.resize == request.resize);
    let of = of.ok_or_else(|| {
        Status::failed_precondition("the resize is over: it took too long, or was given up")
    })?;
    of.heard = now;
    match step {
        ResizeStep::Changes => {
            let states = shard_states(&member.store);
            of.notes.note(&states);
            let changes = of.notes.take(request.taker);
            let changes = changes.ok_or_else(|| Status::failed_precondition("no such taker"))?;
            let backends = of.backends;
            // Values take their time, and leases are renewed meanwhile.
            drop(part);
            let pages = match request.values {
                true => pages(state, member, (request, backends), &changes)?,
                false => Vec::new(),
            };
            Ok(v1::ResizeResponse {
                pages,
                ..response(states, changes, Duration::ZERO)
            })
        }
        ResizeStep::Alive => {
            let taker = of.takers.get_mut(&request.taker);
            if let (Some(taker), Some(progress)) = (taker, &request.progress) {
                *taker = v1::ResizeTaker {
                    backend: request.taker,
                    ..*progress
                };
            }
            Ok(v1::ResizeResponse::default())
        }
        ResizeStep::Freeze => {
            of.may_freeze(member, request.attempt)?;
            of.attempt = request.attempt;
            of.phase = Phase::Frozen {
                until: now + FROZEN_MAX,
            };
            for shard in 0..member.store.shard_count() {
                member.store.freeze(shard, true);
            }
            let states = shard_states(&member.store);
            of.notes.note(&states);
            Ok(response(states, Vec::new(), FROZEN_MAX))
        }
        ResizeStep::Thaw => {
            of.attempt = of.attempt.max(request.attempt);
            if matches!(of.phase, Phase::Frozen { .. }) {
                of.phase = Phase::Open;
                thaw(member);
            }
            Ok(v1::ResizeResponse::default())
        }
        ResizeStep::Retire => {
            // The configuration store may take its time, and leases are renewed meanwhile.
            drop(part);
            retire_as_told(state, request)
        }
        _ => {
            match of.phase {
                Phase::Open | Phase::Frozen { .. } => {
                    *part = None;
                    go_on(member);
                    tracing::info!(backend = member.number, "the resize was given up");
                }
                // Its thread ends it.
                Phase::BreaksOff => of.abandoned = true,
                Phase::Retired => {}
            }
            Ok(v1::ResizeResponse::default())
        }
    }
}

fn begin(
    state: &Arc<State>,
    member: &Member,
    request: &v1::ResizeRequest,
    part: &mut Option<Part>,
    now: Instant,
) -> Result<v1::ResizeResponse, Status> {
    let refuse = |why: &str| Err(Status::failed_precondition(why));
    let config = state.config();
    if state.members.len() > 1 || state.doors().locks.is_empty() {
        return refuse("its process is a whole cell: only cells of `cell up` are resized");
    }
    if config.mode.is_immutable() {
        return refuse("an immutable cell is started anew with its file to be resized");
    }
    if (request.backends as usize) < config.mode.copy_count()
        || request.backends as usize == config.backends.len()
        || request.taker >= request.backends
        || request.backends as usize > BACKEND_COUNT_MAX
    {
        return Err(Status::invalid_argument("no cell is of this size"));
    }
    if let Some(why) = hindrance(member) {
        return Err(Status::failed_precondition(why));
    }
    if member.giving.is_under_way() {
        return refuse("it is moving to another process");
    }
    if part.as_ref().is_some_and(|of| of.resize != request.resize) {
        return refuse("another resize is under way: abort it, or wait for its end");
    }
    let of = part.get_or_insert_with(|| {
        for shard in 0..member.store.shard_count() {
            member.store.watch_changes(shard, true);
        }
        let (backends, backend) = (request.backends, member.number);
        tracing::info!(backend, backends, "the cell is being resized");
        Part {
            resize: request.resize,
            heard: now,
            backends: request.backends,
            notes: Notes::default(),
            takers: BTreeMap::new(),
            attempt: 0,
            phase: Phase::Open,
            abandoned: false,
        }
    });
    of.heard = now;
    let states = shard_states(&member.store);
    of.notes.note(&states);
    of.notes.begin(request.taker, states.len());
    let none = vec![Vec::new(); states.len()];
    let taker = v1::ResizeTaker {
        backend: request.taker,
        ..v1::ResizeTaker::default()
    };
    of.takers.insert(request.taker, taker);
    Ok(v1::ResizeResponse {
        memory_limit_bytes: state.bound.limit(),
        unix_ns: clock::now().unix_ns,
        ..response(states, none, Duration::ZERO)
    })
}

/// What stands at the places that have changed, for a taker that would ask for it next: few
/// calls are what the last step is to cost. They are noted as told, so whatever changes from
/// now on is noted again.
fn pages(
    state: &State,
    member: &Member,
    (request, backends): (&v1::ResizeRequest, u32),
    changes: &[Ranges],
) -> Result<Vec<v1::CopyItemsResponse>, Status> {
    let old = state.config().placement();
    let taker = ShardMap::new(Placement::new(old.copy_count(), backends), request.taker);
    let sources = trefoil_recovery::sources(old, taker);
    let source = sources.iter().find(|of| of.backend == member.number);
    let wanted = source.map_or(&[][..], |of| &of.locals);
    let page = |(shard, changes): (usize, &Ranges)| {
        if changes.is_empty() || changes.len() > TOLD_AT_ONCE_MAX || !wanted.contains(&shard) {
            return Ok(v1::CopyItemsResponse::default());
        }
        let asked = v1::CopyItemsRequest {
            ranges: changes.iter().map(encode_range).collect(),
            values: true,
            layout_version: request.layout_version,
            placed: request.placed,
            of_backends: backends,
            of_shard: taker.shard(shard),
            ..v1::CopyItemsRequest::default()
        };
        copy::items(member, shard, &asked, state.layout_version)
    };
    changes.iter().enumerate().map(page).collect()
}

fn encode_range(range: &Range<u64>) -> v1::PlaceRange {
    v1::PlaceRange {
        from: range.start,
        until: range.end,
    }
}

/// Why nothing can be copied from here just now.
fn hindrance(member: &Member) -> Option<&'static str> {
    let mut shards = 0..member.store.shard_count();
    let recovers = shards.any(|shard| member.store.is_recovering(shard));
    recovers.then_some("it has not recovered yet: wait until it has")
}

/// Whoever changes the cell says that it is another one now: this is so if its
/// configuration says so, too. When this is answered, nobody believes this process any more.
fn retire_as_told(
    state: &State,
    request: &v1::ResizeRequest,
) -> Result<v1::ResizeResponse, Status> {
    let told = request.config.as_ref();
    let told = told.ok_or_else(|| Status::invalid_argument("no configuration"))?;
    let told = trefoil_cell::decode_config(told)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    if !state.has_retired() {
        let config = state.config();
        // Whoever asks tries again.
        let unknown = |why: String| Status::unavailable(format!("what is in force: {why}"));
        let stored = state.in_force();
        let stored = stored.map_err(|error| unknown(error.to_string()))?;
        let is_it = config.differs_by_resize(&stored)
            && stored.backends == told.backends
            && stored.config_id >= told.config_id;
        if is_it {
            retire(state, stored, LINGER);
            return Ok(v1::ResizeResponse::default());
        }
        // Unless it has found out by itself in this very moment.
        if !state.has_retired() {
            return Err(Status::failed_precondition(
                "the configuration in force does not say so",
            ));
        }
    }
    linger(state, LINGER);
    Ok(v1::ResizeResponse::default())
}

/// The cell has another size: this process is no backend of it.
fn retire(state: &State, config: CellConfig, time: Duration) {
    let adopting = state.adopting();
    let is_first = state.retire(&adopting);
    // Only now: whoever is told that it has retired takes its lease to be over.
    for member in &state.members {
        if let Some(of) = member.resizing.lock().as_mut() {
            of.phase = Phase::Retired;
        }
    }
    if is_first {
        let (config_id, backends) = (config.config_id, config.backends.len());
        state.set_config(config);
        tracing::info!(
            config_id,
            backends,
            "the cell was resized: other processes are its backends now"
        );
    }
    drop(adopting);
    linger(state, time);
}

/// The process ends when so much time has passed.
fn linger(state: &State, time: Duration) {
    let retirement = Arc::clone(&state.retirement);
    std::thread::spawn(move || {
        std::thread::sleep(time);
        retirement.notify_one();
    });
}

/// Nothing was heard in time: goes on, once nobody can resize the cell any more, or
/// retires, if somebody has.
fn break_off(state: &Arc<State>, member: &Arc<Member>) {
    let backend = member.number;
    let mut trouble = Trouble::default();
    loop {
        match decide(state) {
            Ok(None) => break,
            Ok(Some(resized)) => return retire(state, resized, HEED_LINGER),
            Err(error) => {
                if trouble.is_news(error.to_string(), Instant::now()) {
                    tracing::warn!(
                        backend, %error,
                        "whether the cell was resized is not known: no mutation is taken until it is"
                    );
                }
            }
        }
        if state.is_stopping() {
            return;
        }
        std::thread::sleep(BREAK_OFF_PAUSE);
    }
    let mut part = member.resizing.lock();
    match part.as_mut().filter(|of| !of.abandoned) {
        Some(of) => {
            of.phase = Phase::Open;
            thaw(member);
        }
        None => {
            *part = None;
            go_on(member);
        }
    }
    tracing::info!(
        backend,
        "the last step of the resize took too long: mutations are taken again"
    );
}

/// Whether the cell was resized, and to what; if not, from now on nobody succeeds who has
/// looked at the configuration before. (Whoever changes the cell looks before it has
/// anybody freeze. So another's swap is not enough, which may be older than that look.)
fn decide(state: &State) -> Result<Option<CellConfig>, FlushError> {
    loop {
        let stored = state.in_force()?;
        if state.config().differs_by_resize(&stored) {
            return Ok(Some(stored));
        }
        let next = stored
            .flushed(Version::ZERO)
            .ok_or(FlushError::NoConfigId)?;
        let expected = Some(stored.topology_id());
        match state.config_store.compare_and_swap(expected, &next) {
            Ok(()) => {
                state.catch_up()?;
                return Ok(None);
            }
            Err(ConfigStoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The cell is of another size than what this process serves: it retires, if it is a
/// backend (one that is to be a backend of the new cell is none yet).
pub(crate) fn heed(state: &State, resized: CellConfig) {
    if state.doors().locks.is_empty() {
        return;
    }
    retire(state, resized, HEED_LINGER);
}

fn response(shards: Vec<ShardState>, changes: Vec<Ranges>, frozen: Duration) -> v1::ResizeResponse {
    let mut changes = changes.into_iter();
    let shard = |shard: ShardState| v1::HandOverShard {
        epoch: shard.epoch,
        bound_max: Some(trefoil_rpc::encode_version(shard.bound_max)),
        bucket_count: shard.bucket_count,
        changes: changes
            .next()
            .unwrap_or_default()
            .iter()
            .map(encode_range)
            .collect(),
    };
    v1::ResizeResponse {
        shards: shards.into_iter().map(shard).collect(),
        frozen_ms: frozen.as_millis() as u32,
        ..v1::ResizeResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ListenOptions, Listeners, Server, ServerOptions};
    use tempfile::TempDir;
    use trefoil_cell::{
        BackendConfig, BackendRegistry as _, ConfigStore as _, DirectoryStore, Mode,
    };
    use trefoil_layout::KeyHasher;
    use trefoil_layout::data::DataEntry;
    use trefoil_layout::limits::LAYOUT_VERSION;
    use trefoil_layout::op::{Action, Mutation, Outcome};

    const RESIZE: u64 = 7;

    /// A cell of one backend, in this process, that is about to have two.
    struct Cell {
        dir: TempDir,
        store: DirectoryStore,
        config: CellConfig,
        server: Server,
    }

    impl Cell {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = DirectoryStore::create(dir.path()).unwrap();
            let config = CellConfig {
                life: 11,
                config_id: 1,
                cell: "test".to_owned(),
                mode: Mode::R1,
                backends: vec![backend(&store, 0)],
                hash: KeyHasher::default(),
                value_len_max: 1 << 20,
                eviction: "lru".to_owned(),
                flush_floor: Version::ZERO,
                corpus: None,
            };
            store.compare_and_swap(None, &config).unwrap();
            let trefoil_cell::RpcAddress::Unix(unix) = store.rpc_socket(0).unwrap() else {
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
                ..ServerOptions::new(Arc::new(store.clone()), vec![0])
            };
            let cell = Cell {
                server: Server::start(options, listeners.unwrap()).unwrap(),
                dir,
                store,
                config,
            };
            cell.step(ResizeStep::Begin, None).unwrap();
            cell
        }

        fn state(&self) -> &Arc<State> {
            self.server.state()
        }

        fn member(&self) -> &Arc<Member> {
            &self.state().members[0]
        }

        fn step(
            &self,
            step: ResizeStep,
            config: Option<&CellConfig>,
        ) -> Result<v1::ResizeResponse, Status> {
            let request = v1::ResizeRequest {
                config: config.map(trefoil_cell::encode_config),
                ..self.request(step)
            };
            super::step(self.state(), self.member(), &request)
        }

        fn request(&self, step: ResizeStep) -> v1::ResizeRequest {
            v1::ResizeRequest {
                life: self.config.life,
                resize: RESIZE,
                step: step.into(),
                layout_version: LAYOUT_VERSION.into(),
                backends: 2,
                attempt: 1,
                ..v1::ResizeRequest::default()
            }
        }

        fn set(&self, key: &[u8], value: &[u8]) {
            let mutation = Mutation {
                action: Action::Set,
                version: Version::new(clock::now().unix_ns, 7, 7),
                entry: DataEntry {
                    key,
                    value,
                    ..DataEntry::default()
                },
            };
            let ack = self.member().mutate(self.member().topology(), &mutation);
            assert_eq!(ack.outcome, Outcome::Applied);
        }

        fn resized(&self) -> CellConfig {
            let backends = (0..2).map(|number| backend(&self.store, number));
            self.config.resized(backends.collect()).unwrap()
        }

        /// Serves a third configuration, after a flush and one that was written anew.
        fn at_third(&self) -> CellConfig {
            let second = self.config.flushed(Version::new(5, 5, 5)).unwrap();
            let third = second.anew().unwrap();
            self.swap(&self.config, &second);
            self.swap(&second, &third);
            self.state().catch_up().unwrap();
            assert_eq!(self.state().config().config_id, 3);
            third
        }

        /// Puts a file with this configuration in the place of the cell's, as who copies it
        /// back by hand does.
        fn put(&self, config: &CellConfig) {
            let elsewhere = tempfile::tempdir().unwrap();
            let store = DirectoryStore::create(elsewhere.path()).unwrap();
            store.compare_and_swap(None, config).unwrap();
            let [from, to] = [elsewhere.path(), self.dir.path()].map(|dir| dir.join("cell.json"));
            std::fs::copy(from, to).unwrap();
        }

        fn swap(&self, from: &CellConfig, to: &CellConfig) {
            let swapped = self.store.compare_and_swap(Some(from.topology_id()), to);
            swapped.unwrap();
        }

        /// Nobody believes it any more, and its place is free.
        fn is_gone(&self) -> bool {
            let doors = self.state().doors();
            doors.retired
                && doors.locks.is_empty()
                && self.member().lease_left().is_zero()
                && self.member().config_id() == trefoil_cell::CONFIG_ID_CHANGING
        }
    }

    fn backend(store: &DirectoryStore, number: u32) -> BackendConfig {
        BackendConfig {
            number,
            addresses: vec![store.rpc_socket(number).unwrap()],
            fabric_socket: None,
            place: None,
        }
    }

    #[test]
    fn who_confirms_that_it_has_retired_has_ended_its_lease() {
        let cell = Cell::new();
        let resized = cell.resized();
        cell.step(ResizeStep::Freeze, None).unwrap();
        cell.swap(&cell.config, &resized);
        // It has heard of it, or finds out by itself in this very moment.
        assert!(cell.step(ResizeStep::Retire, Some(&resized)).is_ok());
        assert!(cell.is_gone());
        assert_eq!(cell.state().config().backends.len(), 2);
        // Asked again, because the answer was lost.
        assert!(cell.step(ResizeStep::Retire, Some(&resized)).is_ok());
    }

    /// Few calls are what the last step is to cost: what few places hold is told with them,
    /// to who will hold it.
    #[test]
    fn what_has_changed_is_told_with_the_values_where_it_is_little() {
        let cell = Cell::new();
        let changes = |taker, values| {
            let request = v1::ResizeRequest {
                taker,
                values,
                ..cell.request(ResizeStep::Changes)
            };
            super::step(cell.state(), cell.member(), &request).unwrap()
        };
        let begin = |taker| {
            let request = v1::ResizeRequest {
                taker,
                ..cell.request(ResizeStep::Begin)
            };
            super::step(cell.state(), cell.member(), &request).unwrap();
        };
        begin(0);
        begin(1);
        let (placement, hasher) = (Placement::new(1, 2), &cell.config.hash);
        let first = |key: &[u8]| placement.first(hasher.hash(key));
        let keys: Vec<Vec<u8>> = (0..20u8).map(|n| vec![b'k', n]).collect();
        for key in &keys {
            cell.set(key, b"value");
        }
        for taker in [0, 1] {
            let told = changes(taker, true);
            let [page] = &told.pages[..] else {
                panic!("a page for each shard: {told:?}");
            };
            let last = told.shards[0].changes.last().unwrap();
            assert_eq!(page.next, last.until);
            let mut wanted: Vec<&[u8]> = Vec::new();
            wanted.extend(keys.iter().map(Vec::as_slice).filter(|k| first(k) == taker));
            assert!(!wanted.is_empty() && wanted.len() < keys.len());
            let found = page.items.iter().map(|item| {
                let entry = DataEntry::decode(&item.data).unwrap();
                entry.key.to_vec()
            });
            let mut found: Vec<Vec<u8>> = found.collect();
            found.sort_unstable();
            assert_eq!(found, wanted);
            // Nothing has changed since.
            let told = changes(taker, true);
            assert!(told.shards[0].changes.is_empty() && told.pages[0].next == 0);
        }
        // Who does not ask is told no values, and who asks late of too much.
        cell.set(&keys[0], b"other");
        assert!(changes(0, false).pages.is_empty());
        for n in 0..2_000u32 {
            cell.set(&n.to_le_bytes(), b"value");
        }
        let told = changes(0, true);
        assert!(told.shards[0].changes.len() > TOLD_AT_ONCE_MAX);
        assert_eq!(told.pages[0], v1::CopyItemsResponse::default());
    }

    /// It was about to, by itself, and had not done so yet.
    #[test]
    fn who_is_about_to_retire_by_itself_confirms_no_more_than_is_done() {
        let cell = Cell::new();
        let resized = cell.resized();
        cell.swap(&cell.config, &resized);
        if let Some(of) = cell.member().resizing.lock().as_mut() {
            of.phase = Phase::Retired;
        }
        assert!(cell.step(ResizeStep::Retire, Some(&resized)).is_ok());
        assert!(cell.is_gone());
    }

    #[test]
    fn who_has_retired_serves_under_no_configuration_that_comes_later() {
        let cell = Cell::new();
        let resized = cell.resized();
        cell.swap(&cell.config, &resized);
        cell.step(ResizeStep::Retire, Some(&resized)).unwrap();
        // The new cell is flushed before the old process has ended.
        let flushed = resized.flushed(Version::new(5, 5, 5)).unwrap();
        cell.swap(&resized, &flushed);
        cell.state().catch_up().unwrap();
        assert!(cell.is_gone());
        crate::lease::renew(cell.state());
        assert!(cell.is_gone());
    }

    /// The life of the cell before, too: its file may be what a backup had.
    #[test]
    fn an_older_configuration_that_was_put_back_ends_nobody_and_takes_nothing_back() {
        let cell = Cell::new();
        let (first, third) = (cell.config.clone(), cell.at_third());
        let two = (0..2).map(|number| backend(&cell.store, number));
        let of_two = CellConfig {
            backends: two.collect(),
            ..first.clone()
        };
        let former = CellConfig {
            life: 10,
            ..of_two.clone()
        };
        let state = cell.state();
        for older in [&of_two, &former, &first] {
            cell.put(older);
            let refused = state.catch_up().unwrap_err();
            assert!(
                matches!(
                    refused,
                    FlushError::PutBack {
                        found: 1,
                        served: 3
                    }
                ),
                "{refused}"
            );
            let said = refused.to_string();
            assert!(
                said.contains("put the newer configuration in place"),
                "{said}"
            );
            assert!(matches!(decide(state), Err(FlushError::PutBack { .. })));
            let flushed = state.raise_flush_floor(Version::new(6, 6, 6));
            assert!(matches!(flushed, Err(FlushError::PutBack { .. })));
            let told = cell.step(ResizeStep::Retire, Some(older)).unwrap_err();
            assert_eq!(told.code(), tonic::Code::Unavailable);
            // Nobody begins to copy by it.
            let begun = cell.step(ResizeStep::Begin, None).unwrap_err();
            assert!(begun.message().contains("was put back"), "{begun}");
            assert!(!state.has_retired());
            assert_eq!(cell.store.load().unwrap().as_ref(), Some(older));
            assert_eq!(state.config().config_id, 3);
        }
        // The newer one is in place again.
        cell.put(&third);
        state.catch_up().unwrap();
        let flushed = state.raise_flush_floor(Version::new(6, 6, 6)).unwrap();
        assert_eq!(flushed.config_id, 4);
        cell.step(ResizeStep::Begin, None).unwrap();
    }

    /// It has not heard whether the cell was resized when the file is put back: no mutation
    /// is taken until that is known, and it does not end.
    #[test]
    fn who_is_frozen_over_an_older_configuration_waits_for_the_newer_one() {
        let cell = Cell::new();
        let (first, third) = (cell.config.clone(), cell.at_third());
        cell.step(ResizeStep::Freeze, None).unwrap();
        cell.put(&first);
        let (state, member) = (Arc::clone(cell.state()), Arc::clone(cell.member()));
        if let Some(of) = member.resizing.lock().as_mut() {
            of.phase = Phase::BreaksOff;
        }
        let breaks_off = std::thread::spawn(move || break_off(&state, &member));
        std::thread::sleep(3 * BREAK_OFF_PAUSE);
        assert!(!breaks_off.is_finished());
        assert!(cell.member().resizing.is_frozen() && !cell.state().has_retired());
        cell.put(&third);
        breaks_off.join().unwrap();
        assert!(!cell.member().resizing.is_frozen() && !cell.state().has_retired());
        assert_eq!(cell.state().config().config_id, 4);
    }

    #[test]
    fn a_configuration_that_is_not_in_force_retires_nobody() {
        let cell = Cell::new();
        let resized = cell.resized();
        let refused = |config: &CellConfig| {
            let refused = cell.step(ResizeStep::Retire, Some(config)).unwrap_err();
            assert!(!cell.state().has_retired());
            refused.code()
        };
        // Nobody has put it in force.
        assert_eq!(refused(&resized), tonic::Code::FailedPrecondition);
        // Nobody knows what is.
        let path = cell.dir.path().join("cell.json");
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, "{").unwrap();
        assert_eq!(refused(&resized), tonic::Code::Unavailable);
        std::fs::write(&path, text).unwrap();
        // Another one is, of this size or not.
        let flushed = cell.config.flushed(Version::ZERO).unwrap();
        cell.swap(&cell.config, &flushed);
        assert_eq!(refused(&resized), tonic::Code::FailedPrecondition);
        let three = (0..3).map(|number| backend(&cell.store, number));
        let three = flushed.resized(three.collect()).unwrap();
        let adopting = cell.state().adopting();
        cell.swap(&flushed, &three);
        assert_eq!(refused(&resized), tonic::Code::FailedPrecondition);
        drop(adopting);
    }
}
