//! Trefoil's own store behind a queue: bounded memory that evicts. A durable one keeps its
//! content in a file, which is replaced as a whole at each checkpoint.
//!
//! The file's state: an entry after the other, each the key's length (two bytes), the
//! value's (two), key and value. Which of them was used last is not kept.

use crate::request::{KEY_LEN_MAX, Request, VALUE_LEN_MAX};
use crate::table::{self, Table};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use trefoil_journal::snapshot::{self, SnapshotError};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_ordered::{Answer, DurableService, Service};
use trefoil_region::HugePages;
use trefoil_store::{Access, Now, Position, Regions, Store, StoreConfig, StoreError};

/// Least memory of a cache, in bytes.
pub const MEMORY_MIN: u64 = 4 << 20;
/// Whose state a file is.
pub const QUEUE: u64 = u64::from_le_bytes(*b"tfqcache");
/// Entries of a page of a listing.
const PAGE: usize = 1024;
/// Bytes of both lengths.
const LENS: usize = 4;

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Its memory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its file.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Its file, though whole, is no list of entries.
    #[error("the state {0} is not that of a cache of this version")]
    Foreign(PathBuf),
}

struct Values {
    store: Store,
    /// The time of the last version: it goes on by one, so nothing is ever superseded.
    clock_ns: u64,
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Values")
            .field("clock_ns", &self.clock_ns)
            .finish_non_exhaustive()
    }
}

impl Values {
    fn mutate(&mut self, action: Action, key: &[u8], value: &[u8]) -> Outcome {
        self.clock_ns += 1;
        let mutation = Mutation {
            action,
            version: Version::new(self.clock_ns, 1, 0),
            entry: DataEntry {
                key,
                value,
                ..DataEntry::default()
            },
        };
        self.store.mutate(Now::at(self.clock_ns), &mutation).outcome
    }
}

impl Table for Values {
    type Error = Infallible;

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Infallible> {
        into.clear();
        let now = Now::at(self.clock_ns);
        let found = self.store.read(now, key, Access::Use, |item| {
            item.map(|item| item.append_value(into)).is_some()
        });
        Ok(found.unwrap_or(false))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Infallible> {
        if self.mutate(Action::Set, key, value) != Outcome::Applied {
            // No room for it: it is evicted at once, and what was there before must not
            // be taken for it.
            self.mutate(Action::Erase, key, &[]);
        }
        Ok(())
    }

    fn erase(&mut self, key: &[u8]) -> Result<(), Infallible> {
        self.mutate(Action::Erase, key, &[]);
        Ok(())
    }
}

/// The service.
#[derive(Debug)]
pub struct Cache {
    values: Values,
    scratch: Vec<u8>,
    file: Option<PathBuf>,
    persistent: u64,
}

impl Cache {
    /// An empty one of so many bytes.
    pub fn new(memory: u64) -> Result<Self, CacheError> {
        let regions = Regions::memfd("trefoil-queue", memory, HugePages::Off)?;
        let config = StoreConfig {
            partition_count: 1,
            memory_limit: memory,
            ..StoreConfig::default()
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Cache {
            values: Values {
                store: Store::new(config, regions)?,
                clock_ns: now.map_or(0, |now| now.as_nanos() as u64),
            },
            scratch: Vec::new(),
            file: None,
            persistent: 0,
        })
    }

    /// One whose content is in this file, if there is one, and at each checkpoint.
    pub fn load(memory: u64, file: &Path) -> Result<Self, CacheError> {
        let mut cache = Cache::new(memory)?;
        if let Some((position, state)) = snapshot::load(file, QUEUE)? {
            let mut rest = &state[..];
            while !rest.is_empty() {
                let (key, value, behind) =
                    split_entry(rest).ok_or_else(|| CacheError::Foreign(file.to_owned()))?;
                let Ok(()) = cache.values.put(key, value);
                rest = behind;
            }
            cache.persistent = position;
        }
        cache.file = Some(file.to_owned());
        Ok(cache)
    }

    /// All entries.
    fn state(&self) -> Vec<u8> {
        let mut state = Vec::new();
        let now = Now::at(self.values.clock_ns);
        let mut from = Some(Position::default());
        while let Some(position) = from {
            let store = &self.values.store;
            from = store.list(now, 0, (position, None), PAGE, &mut |listed| {
                let value_len = listed.item.value_len();
                state.extend_from_slice(&(listed.key.len() as u16).to_le_bytes());
                state.extend_from_slice(&(value_len as u16).to_le_bytes());
                state.extend_from_slice(listed.key);
                listed.item.append_value(&mut state);
            });
        }
        state
    }
}

fn split_entry(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&[k, l, v, w], rest) = bytes.split_first_chunk::<LENS>()?;
    let (key_len, value_len) = (u16::from_le_bytes([k, l]), u16::from_le_bytes([v, w]));
    let (key, rest) = rest.split_at_checked(usize::from(key_len))?;
    let (value, rest) = rest.split_at_checked(usize::from(value_len))?;
    let fits = !key.is_empty() && key.len() <= KEY_LEN_MAX && value.len() <= VALUE_LEN_MAX;
    fits.then_some((key, value, rest))
}
const _: () = assert!(VALUE_LEN_MAX <= u16::MAX as usize);

impl Service for Cache {
    #[inline]
    fn execute(&mut self, request: trefoil_ordered::Request<'_>, answer: &mut Answer) {
        let Ok(()) = table::execute(&mut self.values, request.payload, &mut self.scratch, answer);
    }
}

impl DurableService for Cache {
    type Error = SnapshotError;

    fn persistent_position(&self) -> u64 {
        self.persistent
    }

    fn checkpoint(&mut self, position: u64) -> Result<(), SnapshotError> {
        if let Some(file) = &self.file {
            snapshot::store(file, QUEUE, position, &self.state())?;
        }
        self.persistent = position;
        Ok(())
    }

    fn is_read(&self, payload: &[u8]) -> bool {
        Request::decode(payload).map_or(true, |request| request.is_read())
    }
}
