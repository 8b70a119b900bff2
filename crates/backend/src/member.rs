//! One backend of the process: a store, the configuration it serves and the
//! one way in for every request, whatever carried it.

use crate::behind::Behind;
use crate::clock;
use crate::corpus::{Standing, Turn};
use crate::handover::{Giving, Takeover};
use crate::hot::Hot;
use crate::lending::Lending;
use crate::queue::CellQueue;
use crate::recovery::Progress;
use crate::repair::Tally;
use crate::resize;
use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering as Memory};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use trefoil_cell::{CONFIG_ID_CHANGING, CellConfig, CorpusId};
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::{AnswerSink, ClientId, Lane, NoLane, Service, SharedMarks};
use trefoil_layout::TopologyId;
use trefoil_layout::control::{self, ControlShape};
use trefoil_layout::epoch;
use trefoil_layout::message::{Request, TOUCH_COUNT_MAX};
use trefoil_layout::op::{Ack, Action, Found, ItemUse, LookupAnswer, Mutation, Outcome, Rejection};
use trefoil_region::WordBuffer;
use trefoil_store::{Access, ReloadError, Store, StoredItem};

/// A backend.
pub(crate) struct Member {
    pub(crate) number: u32,
    pub(crate) store: Store,
    pub(crate) hot: Hot,
    /// Somebody has used it since [`Self::was_used`] was asked.
    used: AtomicBool,
    /// The cell's life whose data this is.
    life: u64,
    /// Configuration that requests must name; [`CONFIG_ID_CHANGING`] while the
    /// corpus is being replaced.
    config_id: AtomicU32,
    /// It is to take another process's place, and has not yet: whatever id stands above.
    closed: AtomicBool,
    /// Who loads another corpus.
    pub(crate) corpus_turn: Turn,
    behind: Arc<Behind>,
    lending: Arc<Lending>,
    /// Of one that has lost its memory.
    pub(crate) recovery: Option<Progress>,
    /// Whether its number moves to another process.
    pub(crate) giving: Giving,
    /// How it came here from another process, if it did.
    pub(crate) takeover: OnceLock<Takeover>,
    /// Bytes of answers to those who copy from it.
    pub(crate) copied_bytes: AtomicU64,
    /// Whether its cell gets another size.
    pub(crate) resizing: resize::Giving,
    /// Of one that repairs the shard of which it is the first.
    pub(crate) repair: Option<Tally>,
    /// Of one of an immutable cell.
    pub(crate) standing: Option<Standing>,
    /// Of one whose clients may commit before it executes.
    pub(crate) queue: OnceLock<CellQueue>,
}

impl Member {
    /// Backend `number` of the cell, around its store. One that recovers serves nobody
    /// until it has.
    pub(crate) fn new(
        number: u32,
        config: &CellConfig,
        store: Store,
        behind: Arc<Behind>,
        lending: Arc<Lending>,
        recovers: bool,
        repair: Option<Tally>,
    ) -> Self {
        let shards = 0..store.shard_count();
        if recovers {
            shards
                .clone()
                .for_each(|shard| store.set_recovering(shard, true));
        }
        Member {
            number,
            store,
            hot: Hot::new(u64::from(number)),
            used: AtomicBool::new(false),
            life: config.life,
            config_id: AtomicU32::new(config.config_id),
            closed: AtomicBool::new(false),
            corpus_turn: Turn::default(),
            behind,
            lending,
            recovery: recovers.then(|| Progress::new(shards.len())),
            giving: Giving::default(),
            takeover: OnceLock::new(),
            copied_bytes: AtomicU64::new(0),
            resizing: resize::Giving::default(),
            repair,
            standing: config.mode.is_immutable().then(Standing::default),
            queue: OnceLock::new(),
        }
    }

    /// It has nothing whole to serve: it votes for nothing until it has.
    pub(crate) fn lacks_corpus(&self) {
        let shards = 0..self.store.shard_count();
        if let Some(standing) = &self.standing {
            standing.lacks(shards.len());
        }
        shards.for_each(|shard| self.store.set_recovering(shard, true));
    }

    /// It serves this one, whole; `None`: nobody has said which it is.
    pub(crate) fn has_corpus(&self, corpus: Option<CorpusId>) {
        let Some(standing) = &self.standing else {
            return;
        };
        if standing.is_lacking() {
            let shards = 0..self.store.shard_count();
            shards.for_each(|shard| self.store.set_recovering(shard, false));
        }
        standing.has(corpus);
    }

    /// What its control region says.
    pub(crate) fn shape(&self) -> ControlShape {
        ControlShape {
            partition_count: self.store.partition_count(),
            shard_count: self.store.shard_count(),
            incarnation: self.store.config().incarnation,
        }
    }

    /// The highest epoch of its shards: what is reported of the whole backend.
    /// Answers carry that of their key's shard.
    pub(crate) fn epoch(&self) -> u32 {
        let shards = 0..self.store.shard_count();
        let epochs = shards.map(|shard| self.store.epoch(shard));
        epochs.max().unwrap_or_default()
    }

    /// The configuration that requests must name.
    pub(crate) fn config_id(&self) -> u32 {
        match self.closed.load(Memory::Acquire) {
            true => CONFIG_ID_CHANGING,
            false => self.config_id.load(Memory::Acquire),
        }
    }

    /// What requests are compared with.
    pub(crate) fn topology(&self) -> TopologyId {
        TopologyId {
            life: self.life,
            config_id: self.config_id(),
        }
    }

    /// Executes nothing more: another process does, or is about to.
    pub(crate) fn end_service(&self) {
        self.config_id.store(CONFIG_ID_CHANGING, Memory::Release);
    }

    /// Executes nothing until [`Self::begin_service`], whatever configuration is taken on
    /// meanwhile.
    pub(crate) fn keep_closed(&self) {
        self.closed.store(true, Memory::Release);
    }

    /// Executes from now on.
    pub(crate) fn begin_service(&self) {
        self.closed.store(false, Memory::Release);
    }

    /// Tells clients on this host that another process is about to take its place, which calls
    /// itself so; 0: nobody is any more.
    pub(crate) fn announce_successor(&self, token: u64) {
        control::set_successor(&self.store.regions().control.words(), token);
    }

    /// Extends the lease in the control region.
    pub(crate) fn renew_lease(&self, end_ns: u64) {
        let words = self.store.regions().control.words();
        control::set_lease_end_ns(&words, end_ns);
    }

    /// What is left of the lease in the control region.
    pub(crate) fn lease_left(&self) -> Duration {
        let end_ns = control::lease_end_ns(&self.store.regions().control.words());
        Duration::from_nanos(end_ns.saturating_sub(monotonic_ns()))
    }

    /// Whether clients may read its memory: not while it waits for its predecessor.
    pub(crate) fn is_read(&self) -> bool {
        !self.lease_left().is_zero()
    }

    /// Whether somebody has used it since this was last asked, as far as it knows: readers
    /// report what they have read, by and by.
    pub(crate) fn was_used(&self) -> bool {
        self.used.swap(false, Memory::Relaxed)
    }

    /// Notes that somebody uses it.
    fn note_use(&self) {
        // Mostly it is noted already, and the line stays where it is.
        if !self.used.load(Memory::Relaxed) {
            self.used.store(true, Memory::Relaxed);
        }
    }

    /// Has what was committed to this key executed: whatever looks at it now is behind that.
    #[inline]
    fn settle(&self, key: &[u8]) -> Result<(), Rejection> {
        let Some(queue) = self.queue.get() else {
            return Ok(());
        };
        let hash = self.store.config().hasher.hash(key);
        // In a moment it may be.
        queue
            .settle(hash.tag)
            .then_some(())
            .ok_or(Rejection::UnknownConfig)
    }

    /// The same for all keys. `false`: the queue is hindered, and nothing is known.
    pub(crate) fn settle_all(&self) -> bool {
        self.queue.get().is_none_or(CellQueue::settle_all)
    }

    /// Executes what was committed, and takes nothing more by the queue. `false`: it is
    /// hindered.
    pub(crate) fn end_queue(&self) -> bool {
        self.queue.get().is_none_or(CellQueue::end)
    }

    /// Executes a mutation by a client that works under `topology`.
    pub(crate) fn mutate(&self, topology: TopologyId, mutation: &Mutation<'_>) -> Ack {
        self.note_use();
        let execute = || self.mutate_behind(topology, mutation);
        match self.queue.get() {
            Some(queue) if matches!(mutation.action, Action::Cas(_) | Action::Fill { .. }) => {
                let hash = self.store.config().hasher.hash(mutation.entry.key);
                queue.conditionally(hash.tag, execute)
            }
            _ => execute(),
        }
    }

    /// The same behind whatever was committed to its key.
    fn mutate_behind(&self, topology: TopologyId, mutation: &Mutation<'_>) -> Ack {
        let checked = self.check(topology);
        if let Err(rejection) = checked.and_then(|()| self.settle(mutation.entry.key)) {
            return Ack {
                epoch: epoch::NONE,
                outcome: Outcome::Rejected(rejection),
            };
        }
        // Nobody gives anything up for a key that is not stored here.
        let entry_len = mutation.entry.encoded_len();
        let lends = Lending::is_for(entry_len) && self.holds(mutation.entry.key);
        let _turn = lends.then(|| self.lending.make_fit(self, entry_len));
        self.store.mutate(clock::now(), mutation)
    }

    /// Executes a lookup; the data lies in `into`.
    pub(crate) fn lookup<'b>(
        &self,
        topology: TopologyId,
        key: &[u8],
        into: &'b mut WordBuffer,
        access: Access,
    ) -> LookupAnswer<'b> {
        self.note_use();
        let checked = self.check(topology);
        if let Err(rejection) = checked.and_then(|()| self.settle(key)) {
            return LookupAnswer {
                epoch: epoch::NONE,
                found: Found::Rejected(rejection),
            };
        }
        let answer = match access {
            Access::Use => self.store.lookup(clock::now(), key, into),
            Access::Peek => self.store.peek(clock::now(), key, into),
        };
        // Another corpus may have taken the place of the one that is meant: who does not
        // know of it must not see it, or the next read of another copy would lead back.
        match self.check(topology) {
            Err(rejection) if self.standing.is_some() => LookupAnswer {
                epoch: epoch::NONE,
                found: Found::Rejected(rejection),
            },
            _ => answer,
        }
    }

    /// Bytes of the data entry that `key` has now; 0 if it has none.
    pub(crate) fn entry_len(&self, key: &[u8]) -> usize {
        // Who looks it up next finds out if that is hindered.
        let _ = self.settle(key);
        let len = |item: Option<&StoredItem<'_>>| item.map_or(0, |item| item.entry_len);
        let read = self.store.read(clock::now(), key, Access::Peek, len);
        read.unwrap_or(0)
    }

    /// What a fill that begins now must find again.
    pub(crate) fn stamp(&self, key: &[u8]) -> u64 {
        let _ = self.settle(key);
        self.store.stamp(key)
    }

    /// How an item was used.
    pub(crate) fn item_use(&self, topology: TopologyId, key: &[u8]) -> Option<ItemUse> {
        self.check(topology)
            .and_then(|()| self.settle(key))
            .ok()
            .and_then(|()| self.store.item_use(clock::now(), key))
    }

    /// Takes a report of touches.
    pub(crate) fn touch(&self, partition: usize, window_id: u64, slots: &[u32]) {
        self.note_use();
        self.store.touch(partition, window_id, slots);
        self.hot.touched(&self.store, partition, window_id, slots);
    }

    /// The same of items whose slots the reader has not seen: looked up here.
    pub(crate) fn touch_by_name(&self, partition: usize, window_id: u64, names: &[u32]) {
        for names in names.chunks(TOUCH_COUNT_MAX) {
            let mut room = [0; TOUCH_COUNT_MAX];
            let slots = self.store.slots_of(partition, window_id, names, &mut room);
            self.touch(partition, window_id, slots);
        }
    }

    /// Whether a request that was made under `topology` is executed here; whether
    /// its key belongs here, the store knows. It is compared before anything is
    /// done: what is refused left no trace.
    fn check(&self, topology: TopologyId) -> Result<(), Rejection> {
        if topology.life != self.life {
            return Err(Rejection::OtherLife);
        }
        let current = self.config_id();
        if current == CONFIG_ID_CHANGING {
            // In a moment it is another one.
            return Err(Rejection::UnknownConfig);
        }
        match topology.config_id.cmp(&current) {
            Ordering::Less => Err(Rejection::StaleConfig),
            Ordering::Greater => {
                self.behind.notice();
                Err(Rejection::UnknownConfig)
            }
            Ordering::Equal => Ok(()),
        }
    }

    /// Whether this backend is of the key's cohort.
    pub(crate) fn holds(&self, key: &[u8]) -> bool {
        let config = self.store.config();
        config.shards.local(config.hasher.hash(key)).is_some()
    }

    /// Serves the same corpus under another config id. Requests that name the
    /// old one are refused from now on, and its readers look for the new one.
    pub(crate) fn change_config(&self, config_id: u32) {
        self.config_id.store(config_id, Memory::Release);
        self.store.set_config_id(config_id);
    }

    /// Puts the corpus that was loaded beside in the place of the one that is
    /// served, under `config_id`. In between buckets carry an id that no client
    /// expects: whatever a client reads under one config id is of one corpus.
    pub(crate) fn change_corpus(&self, config_id: u32) -> Result<(), ReloadError> {
        let before = self.config_id.swap(CONFIG_ID_CHANGING, Memory::AcqRel);
        self.store.set_config_id(CONFIG_ID_CHANGING);
        let finished = self.store.finish_reload();
        let serves = if finished.is_ok() { config_id } else { before };
        self.store.set_config_id(serves);
        self.config_id.store(serves, Memory::Release);
        finished
    }
}

/// Bytes that an answer to a lookup carries.
pub(crate) fn found_len(answer: &LookupAnswer<'_>) -> usize {
    match answer.found {
        Found::Present { data, .. } => data.len(),
        _ => 0,
    }
}

impl Service for Member {
    fn execute(
        &self,
        _client: ClientId,
        config_id: u32,
        request: Request<'_>,
        answer: &mut AnswerSink<'_>,
    ) {
        let topology = TopologyId {
            life: self.life,
            config_id,
        };
        match request {
            Request::Mutate(mutation) => {
                self.hot
                    .message(mutation.entry.key, mutation.entry.value.len());
                answer.ack(self.mutate(topology, &mutation));
            }
            Request::Lookup { key } => answer.lookup(|into| {
                let found = self.lookup(topology, key, into, Access::Use);
                self.hot.message(key, found_len(&found));
                found
            }),
            Request::Touch {
                partition,
                window_id,
                slots,
                names,
            } => {
                let partition = usize::from(partition);
                let mut numbers = [0; TOUCH_COUNT_MAX];
                self.touch(partition, window_id, slots.copy_to(&mut numbers));
                if names.count() > 0 {
                    self.touch_by_name(partition, window_id, names.copy_to(&mut numbers));
                }
            }
            Request::Use { key } => answer.item_use(self.item_use(topology, key)),
            Request::Ping => answer.pong(),
        }
    }

    fn topology(&self) -> TopologyId {
        Member::topology(self)
    }

    fn marks(&self) -> Option<SharedMarks<'_>> {
        self.queue.get().map(CellQueue::marks)
    }

    fn admit(&self) -> Result<Lane, NoLane> {
        self.queue.get().ok_or(NoLane::NoQueue)?.admit()
    }

    fn charge(&self, bytes: u64) -> bool {
        self.store.charge(bytes)
    }

    fn release(&self, bytes: u64) {
        self.store.release(bytes);
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("number", &self.number)
            .field("config_id", &self.config_id)
            .finish_non_exhaustive()
    }
}
