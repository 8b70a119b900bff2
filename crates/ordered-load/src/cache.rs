//! Trefoil's own store behind a queue. A request: 1 (SET) or 0 (GET), the key's length, the
//! key, the value.

use crate::LoadError;
use std::time::{SystemTime, UNIX_EPOCH};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation};
use trefoil_ordered::{Answer, Request, Service};
use trefoil_region::HugePages;
use trefoil_store::{Access, Now, Regions, Store, StoreConfig};

const MEMORY: u64 = 256 << 20;
const SET: u8 = 1;
const GET: u8 = 0;
/// Where the key begins.
const KEY_FIRST: usize = 2;

/// Spells a request.
pub(crate) fn spell(into: &mut Vec<u8>, key: u64, key_len: usize, value: Option<&[u8]>) {
    into.clear();
    into.push(if value.is_some() { SET } else { GET });
    into.push(key_len as u8);
    let first = into.len();
    into.resize(first + key_len, b'k');
    into.extend_from_slice(value.unwrap_or_default());
    set_key(into, key);
}

/// Changes the key of a request that [`spell`] has spelled.
#[inline]
pub(crate) fn set_key(request: &mut [u8], key: u64) {
    request[KEY_FIRST..KEY_FIRST + 8].copy_from_slice(&key.to_le_bytes());
}

/// The store.
pub struct Cache {
    store: Store,
    now_ns: u64,
    sets: u64,
    value: Vec<u8>,
}

impl Cache {
    pub(crate) fn new() -> Result<Self, LoadError> {
        let regions = Regions::memfd("trefoil-ordered-load", MEMORY, HugePages::Off)?;
        let config = StoreConfig {
            partition_count: 1,
            memory_limit: MEMORY,
            ..StoreConfig::default()
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Cache {
            store: Store::new(config, regions)?,
            now_ns: now.map_or(0, |now| now.as_nanos() as u64),
            sets: 0,
            value: Vec::new(),
        })
    }

    /// Executes a request.
    #[inline]
    pub(crate) fn run(&mut self, request: &[u8], answer: &mut Answer) {
        let Some((&kind, rest)) = request.split_first() else {
            return;
        };
        let Some((&key_len, rest)) = rest.split_first() else {
            return;
        };
        let Some((key, value)) = rest.split_at_checked(usize::from(key_len)) else {
            return;
        };
        let now = Now::at(self.now_ns);
        if kind == SET {
            self.sets += 1;
            let mutation = Mutation {
                action: Action::Set,
                version: Version::new(self.now_ns + self.sets, 1, 0),
                entry: DataEntry {
                    key,
                    value,
                    ..DataEntry::default()
                },
            };
            self.store.mutate(now, &mutation);
            return;
        }
        // A value longer than an answer is cut: none of the workloads has one.
        self.value.clear();
        let value = &mut self.value;
        let _ = self.store.read(now, key, Access::Use, |item| {
            if let Some(item) = item {
                item.append_value(value);
            }
        });
        let _ = answer.put(&self.value);
    }
}

impl Service for Cache {
    #[inline]
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        self.run(request.payload, answer);
    }
}
