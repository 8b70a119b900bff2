//! The real store and the real client's machines in one thread, used as a
//! look-aside cache: what a hit ratio is measured with. No server, no fabric,
//! no clock, so that every run of the same requests gives the same result.
//!
//! A lookup scans the shared index and copies the data entry as a client on the
//! same host does, goes by message where the index says so, and reports what it
//! touched as configured. A miss is filled by a SET.

use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use trefoil_client_core::data::{DataCheck, pointer_in_window};
use trefoil_client_core::get::{Get, GetOutcome, GetStep, Plan};
use trefoil_client_core::retry::Limits;
use trefoil_client_core::touch::TouchBuffer;
use trefoil_client_core::vote::{IndexVote, index_vote};
use trefoil_layout::bucket::BUCKET_LEN;
use trefoil_layout::control::{self, IndexWindow};
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHash, Pointer, Version};
use trefoil_region::{HugePages, WordBuffer};
use trefoil_store::{Now, PolicyKind, Regions, Store, StoreConfig, StoreError};

/// When the made-up clock starts: 2023-11-14.
const START_NS: u64 = 1_700_000_000_000_000_000;
/// What the made-up clock advances at each request.
const REQUEST_NS: u64 = 1_000;
/// Requests between two turns of the store's maintenance.
const MAINTAIN_EVERY: u64 = 256;
/// Steps of maintenance in one turn, while there is more to do.
const MAINTAIN_STEPS_MAX: usize = 16;
/// Partitions of a backend in the product's default configuration, with 1 GiB.
const PARTITION_COUNT_DEFAULT: usize = 8;

/// How accesses reach the eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Touches {
    /// One partition, every access reported at once: what a simulator assumes.
    #[default]
    Exact,
    /// The product's defaults: several partitions that share the capacity, and
    /// touches that a client collects for each of them.
    Batched,
}

impl Touches {
    fn partition_count(self) -> usize {
        match self {
            Touches::Exact => 1,
            Touches::Batched => PARTITION_COUNT_DEFAULT,
        }
    }
}

impl fmt::Display for Touches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Touches::Exact => "exact",
            Touches::Batched => "batched",
        })
    }
}

/// A way of touching that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no way of touching is called {0:?}; choose exact or batched")]
pub struct UnknownTouches(pub String);

impl FromStr for Touches {
    type Err = UnknownTouches;

    fn from_str(name: &str) -> Result<Self, UnknownTouches> {
        match name {
            "exact" => Ok(Touches::Exact),
            "batched" => Ok(Touches::Batched),
            _ => Err(UnknownTouches(name.to_owned())),
        }
    }
}

/// How a lookup ended that should have been a hit or a miss.
#[derive(Debug, thiserror::Error)]
pub enum LookAsideError {
    /// The store cannot be made with these sizes.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nobody else writes, so nothing may fail.
    #[error("a lookup ended as {0:?} although nobody else uses the store")]
    Lookup(GetOutcome),
    /// The machine asked for what shared memory never needs.
    #[error("a lookup came to {0:?} although nobody else uses the store")]
    Step(GetStep),
}

/// What the cache is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) policy: PolicyKind,
    pub(crate) touches: Touches,
    /// Resident bytes of the store.
    pub(crate) memory_limit: u64,
    /// Capacity in objects, if that is what should bind.
    pub(crate) objects_max: Option<u64>,
}

/// One client and one store.
pub(crate) struct LookAside {
    store: Store,
    touches: Touches,
    windows: Vec<IndexWindow>,
    buffers: Vec<TouchBuffer>,
    /// What the latest lookup read.
    data: WordBuffer,
    requests: u64,
    refused: u64,
}

impl LookAside {
    pub(crate) fn new(shape: Shape) -> Result<Self, LookAsideError> {
        let count = shape.touches.partition_count();
        let config = StoreConfig {
            partition_count: count,
            policy: shape.policy,
            memory_limit: shape.memory_limit,
            objects_max: shape.objects_max,
            ..StoreConfig::default()
        };
        let regions = Regions::memfd("bench", shape.memory_limit, HugePages::Off)?;
        let mut cache = LookAside {
            store: Store::new(config, regions)?,
            touches: shape.touches,
            windows: vec![IndexWindow::default(); count],
            buffers: vec![TouchBuffer::new(1); count],
            data: WordBuffer::default(),
            requests: 0,
            refused: 0,
        };
        (0..count).for_each(|partition| cache.refresh(partition));
        Ok(cache)
    }

    /// Asks for `key` and, if it is not there, stores `value` under it. Says
    /// whether it was a hit.
    pub(crate) fn request(&mut self, key: &[u8], value: &[u8]) -> Result<bool, LookAsideError> {
        self.requests += 1;
        if self.requests.is_multiple_of(MAINTAIN_EVERY) {
            let now = self.now();
            let _ = (0..MAINTAIN_STEPS_MAX).find(|_| !self.store.maintain(now).more);
        }
        let is_hit = self.get(key)?;
        if !is_hit {
            self.set(key, value);
        }
        Ok(is_hit)
    }

    /// Fills that the store refused although it could have evicted.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    fn now(&self) -> Now {
        Now::at(START_NS + self.requests * REQUEST_NS)
    }

    fn get(&mut self, key: &[u8]) -> Result<bool, LookAsideError> {
        let hash = self.store.config().hasher.hash(key);
        let partition = hash.sub_partition(self.windows.len());
        let now = self.now();
        let check = DataCheck {
            key,
            now_ms: now.unix_ms(),
            flush_floor: Version::ZERO,
        };
        let mut get = Get::<1>::new(&Plan::frugal(0), hash, Limits::until(u64::MAX), 0);
        loop {
            match get.poll(0) {
                GetStep::ReadIndex { replica } => {
                    get.handle_index(replica, self.vote(partition, hash));
                }
                GetStep::ReadData { replica, pointer } => match self.copy(pointer) {
                    Some(bytes) => get.handle_data(replica, bytes, &check),
                    None => get.handle_out_of_window(replica),
                },
                GetStep::Ask { replica, .. } => {
                    let answer = self.store.lookup(now, key, &mut self.data);
                    get.handle_answer(replica, &answer, &check);
                }
                GetStep::Refresh { replica, .. } => {
                    self.refresh(partition);
                    get.handle_refreshed(replica);
                }
                GetStep::Done(GetOutcome::Hit { .. }) => {
                    if let Some(slot) = get.touched_slot(0) {
                        self.touch(partition, slot);
                    }
                    return Ok(true);
                }
                GetStep::Done(GetOutcome::Miss { .. }) => return Ok(false),
                GetStep::Done(outcome) => return Err(LookAsideError::Lookup(outcome)),
                step => return Err(LookAsideError::Step(step)),
            }
        }
    }

    fn vote(&self, partition: usize, hash: KeyHash) -> IndexVote {
        let window = self.windows[partition];
        let config_id = self.store.config().config_id;
        let words = self.store.regions().index.words();
        index_vote(hash, config_id, window.bucket_count, |bucket| {
            words
                .slice(window.offset + bucket * BUCKET_LEN as u64, BUCKET_LEN)
                .expect("an advertised window lies inside the region")
        })
    }

    fn copy(&mut self, pointer: Pointer) -> Option<&[u8]> {
        let regions = self.store.regions();
        let window_len = control::data_window(&regions.control.words());
        if !pointer_in_window(pointer, window_len) {
            return None;
        }
        let words = regions
            .data
            .words()
            .slice(pointer.offset(), pointer.len())?;
        self.data.fill_from(words);
        Some(self.data.bytes())
    }

    fn touch(&mut self, partition: usize, slot: u32) {
        let window_id = self.windows[partition].window_id;
        match self.touches {
            Touches::Exact => self.store.access(partition, window_id, slot),
            Touches::Batched => {
                if let Some(batch) = self.buffers[partition].touch(window_id, slot) {
                    self.store.touch(partition, batch.window_id, batch.slots);
                }
            }
        }
    }

    fn refresh(&mut self, partition: usize) {
        let words = self.store.regions().control.words();
        if let Some(window) = control::index_window(&words, partition) {
            self.windows[partition] = window;
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        let now = self.now();
        let mutation = Mutation {
            action: Action::Set,
            version: Version::new(now.unix_ns, 1, 0),
            entry: DataEntry {
                key,
                value,
                ..DataEntry::default()
            },
        };
        if self.touches == Touches::Batched {
            let hash = self.store.config().hasher.hash(key);
            let partition = hash.sub_partition(self.windows.len());
            if let Some(batch) = self.buffers[partition].mutated() {
                self.store.touch(partition, batch.window_id, batch.slots);
            }
        }
        let outcome = self.store.mutate(now, &mutation).outcome;
        if outcome == Outcome::Rejected(Rejection::NoMemory) {
            self.refused += 1;
        }
    }
}
