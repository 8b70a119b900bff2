//! One backend of the process: a store, the configuration it serves and the
//! one way in for every request, whatever carried it.

use crate::clock;
use crate::hot::Hot;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use trefoil_cell::{CONFIG_ID_CHANGING, CellConfig, Placement};
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::{AnswerSink, ClientId, Service};
use trefoil_layout::control::{self, ControlShape};
use trefoil_layout::message::{Request, TOUCH_SLOT_COUNT_MAX};
use trefoil_layout::op::{Ack, Found, ItemUse, LookupAnswer, Mutation, Outcome, Rejection};
use trefoil_region::WordBuffer;
use trefoil_store::{ReloadError, Store};

/// A backend.
pub(crate) struct Member {
    pub(crate) number: u32,
    pub(crate) store: Store,
    pub(crate) hot: Hot,
    placement: Placement,
    /// Configuration that requests must name; [`CONFIG_ID_CHANGING`] while the
    /// corpus is being replaced.
    config_id: AtomicU32,
    /// One reload at a time, from its begin to its end.
    reloading: AtomicBool,
}

impl Member {
    /// Backend `number` of the cell, around its store.
    pub(crate) fn new(number: u32, config: &CellConfig, store: Store) -> Self {
        Member {
            number,
            store,
            hot: Hot::new(u64::from(number)),
            placement: config.placement(),
            config_id: AtomicU32::new(config.config_id),
            reloading: AtomicBool::new(false),
        }
    }

    /// What its control region says.
    pub(crate) fn shape(&self) -> ControlShape {
        ControlShape {
            partition_count: self.store.partition_count(),
            incarnation: self.store.config().incarnation,
        }
    }

    /// The shard's epoch. It is raised by recovery, which does not exist yet.
    pub(crate) fn epoch(&self) -> u32 {
        self.store.config().epoch
    }

    /// The configuration that requests must name.
    pub(crate) fn config_id(&self) -> u32 {
        self.config_id.load(Ordering::Acquire)
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

    /// Executes a mutation. `config_id` is what the client works under, where
    /// the request carries it.
    pub(crate) fn mutate(&self, config_id: Option<u32>, mutation: &Mutation<'_>) -> Ack {
        if !self.is_mine(config_id, mutation.entry.key) {
            return Ack {
                epoch: self.epoch(),
                outcome: Outcome::Rejected(Rejection::WrongShard),
            };
        }
        self.store.mutate(clock::now(), mutation)
    }

    /// Executes a lookup; the data lies in `into`.
    pub(crate) fn lookup<'b>(
        &self,
        config_id: Option<u32>,
        key: &[u8],
        into: &'b mut WordBuffer,
    ) -> LookupAnswer<'b> {
        if !self.is_mine(config_id, key) {
            return LookupAnswer {
                epoch: self.epoch(),
                found: Found::Rejected(Rejection::WrongShard),
            };
        }
        self.store.lookup(clock::now(), key, into)
    }

    /// How an item was used.
    pub(crate) fn item_use(&self, config_id: Option<u32>, key: &[u8]) -> Option<ItemUse> {
        self.is_mine(config_id, key)
            .then(|| self.store.item_use(clock::now(), key))
            .flatten()
    }

    /// Takes a report of touches.
    pub(crate) fn touch(&self, partition: usize, window_id: u64, slots: &[u32]) {
        self.store.touch(partition, window_id, slots);
        self.hot.touched(&self.store, partition, window_id, slots);
    }

    /// Whether requests for this key belong here under the client's configuration.
    fn is_mine(&self, config_id: Option<u32>, key: &[u8]) -> bool {
        let current = self.config_id();
        current != CONFIG_ID_CHANGING && config_id.is_none_or(|id| id == current) && self.holds(key)
    }

    /// Whether this backend is of the key's cohort.
    pub(crate) fn holds(&self, key: &[u8]) -> bool {
        self.placement.is_total() || {
            let hash = self.store.config().hasher.hash(key);
            self.placement.cohort(hash).contains(self.number)
        }
    }

    /// The key's shard: the first backend of its cohort.
    pub(crate) fn shard_of(&self, key: &[u8]) -> u32 {
        let hash = self.store.config().hasher.hash(key);
        self.placement.cohort(hash).as_slice()[0]
    }

    /// Takes the right to reload; `false` if somebody else has it.
    pub(crate) fn begin_reloading(&self) -> bool {
        !self.reloading.swap(true, Ordering::AcqRel)
    }

    /// Gives it back.
    pub(crate) fn end_reloading(&self) {
        self.reloading.store(false, Ordering::Release);
    }

    /// Serves the same corpus under another config id. Requests that name the
    /// old one are refused from now on, and its readers look for the new one.
    pub(crate) fn change_config(&self, config_id: u32) {
        self.config_id.store(config_id, Ordering::Release);
        self.store.set_config_id(config_id);
    }

    /// Puts the corpus that was loaded beside in the place of the one that is
    /// served, under `config_id`. In between buckets carry an id that no client
    /// expects: whatever a client reads under one config id is of one corpus.
    pub(crate) fn change_corpus(&self, config_id: u32) -> Result<(), ReloadError> {
        let before = self.config_id.swap(CONFIG_ID_CHANGING, Ordering::AcqRel);
        self.store.set_config_id(CONFIG_ID_CHANGING);
        let finished = self.store.finish_reload();
        let serves = if finished.is_ok() { config_id } else { before };
        self.store.set_config_id(serves);
        self.config_id.store(serves, Ordering::Release);
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
    fn execute(&self, _client: ClientId, request: Request<'_>, answer: &mut AnswerSink<'_>) {
        match request {
            Request::Mutate(mutation) => {
                self.hot
                    .message(mutation.entry.key, mutation.entry.value.len());
                answer.ack(self.mutate(None, &mutation));
            }
            Request::Lookup { key } => answer.lookup(|into| {
                let found = self.lookup(None, key, into);
                self.hot.message(key, found_len(&found));
                found
            }),
            Request::Touch {
                partition,
                window_id,
                slots,
            } => {
                let mut numbers = [0; TOUCH_SLOT_COUNT_MAX];
                let numbers = slots.copy_to(&mut numbers);
                self.touch(usize::from(partition), window_id, numbers);
            }
            Request::Use { key } => answer.item_use(self.item_use(None, key)),
            Request::Ping => answer.pong(),
        }
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
