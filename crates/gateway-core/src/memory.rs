//! A keyspace in a hash map: no cell, no eviction, one owner. The model that
//! tests run protocols against and compare real cells with.

use crate::keyspace::{
    Access, Decide, Decision, HOME_WORK, Halt, Item, Keyspace, ListedItem, NewItem, Seen, Totals,
    Updated,
};
use std::collections::BTreeMap;
use trefoil_layout::Version;
use trefoil_layout::data::encoded_len;

#[derive(Clone, Debug)]
struct Stored {
    value: Vec<u8>,
    version: Version,
    client_flags: u32,
    item_flags: u8,
    expiry_ms: u64,
    unique: Option<u64>,
    hit_before: bool,
    used_ms: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct MemoryKeyspace {
    items: BTreeMap<Vec<u8>, Stored>,
    sequence: u64,
    totals: Totals,
    scratch: Vec<u8>,
    work: u64,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Longest value; 16 MiB if not given.
    pub value_len_max: Option<usize>,
}

impl MemoryKeyspace {
    /// An empty one at this time.
    pub fn new(now_ms: u64) -> Self {
        MemoryKeyspace {
            now_ms,
            ..MemoryKeyspace::default()
        }
    }

    fn live(&mut self, key: &[u8]) -> Option<&mut Stored> {
        let now_ms = self.now_ms;
        if let Some(stored) = self.items.get(key)
            && stored.expiry_ms != 0
            && stored.expiry_ms <= now_ms
        {
            self.items.remove(key);
            self.totals.expired += 1;
        }
        self.items.get_mut(key)
    }

    fn put(&mut self, key: &[u8], item: &NewItem<'_>) -> Version {
        self.sequence += 1;
        self.work += item.value.len() as u64;
        let version = Version::new(self.now_ms * 1_000_000 + self.sequence, 1, 0);
        let stored = Stored {
            value: item.value.to_vec(),
            version,
            client_flags: item.client_flags,
            item_flags: item.item_flags,
            expiry_ms: item.expiry_ms,
            unique: item.unique,
            hit_before: false,
            used_ms: self.now_ms,
        };
        self.items.insert(key.to_vec(), stored);
        self.totals.stored += 1;
        version
    }
}

fn as_item(stored: &Stored, now_ms: u64) -> Item<'_> {
    Item {
        value: &stored.value,
        version: stored.version,
        client_flags: stored.client_flags,
        item_flags: stored.item_flags,
        expiry_ms: stored.expiry_ms,
        unique: stored.unique,
        seen: seen(stored, now_ms),
    }
}

fn seen(stored: &Stored, now_ms: u64) -> Seen {
    Seen {
        hit_before: stored.hit_before,
        idle_s: (now_ms.saturating_sub(stored.used_ms) / 1000) as u32,
    }
}

impl crate::keyspace::ValueSource for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl Keyspace for MemoryKeyspace {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        let now_ms = self.now_ms;
        let Some(stored) = self.live(key) else {
            with(None);
            return Ok(());
        };
        let len = stored.value.len() as u64;
        with(Some(&as_item(stored, now_ms)));
        if access == Access::Use {
            stored.hit_before = true;
            stored.used_ms = now_ms;
        }
        self.work += len;
        Ok(())
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        Ok(self.put(key, item))
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        let now_ms = self.now_ms;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let before = self.live(key).cloned();
        self.work += before
            .as_ref()
            .map_or(0, |stored| stored.value.len() as u64);
        let item = before.as_ref().map(|stored| as_item(stored, now_ms));
        let updated = match decide(item.as_ref(), &mut scratch) {
            Decision::Keep => Updated::Kept,
            Decision::Store(item) => Updated::Stored(self.put(key, &item)),
            Decision::Erase => {
                self.items.remove(key);
                Updated::Erased
            }
        };
        self.scratch = scratch;
        Ok(updated)
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        self.items
            .retain(|_, stored| stored.version.time_ns / 1_000_000 > at_ms);
        Ok(())
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        let now_ms = self.now_ms;
        let all = self.items.len() as u64;
        self.work += count as u64 * HOME_WORK;
        for (key, stored) in self.items.iter().skip(cursor as usize).take(count) {
            each(&ListedItem {
                key,
                value_len: stored.value.len(),
                entry_len: encoded_len(key.len(), stored.value.len()),
                version: stored.version,
                unique: stored.unique,
                client_flags: stored.client_flags,
                expiry_ms: stored.expiry_ms,
                seen: seen(stored, now_ms),
            });
        }
        let next = cursor + count as u64;
        Ok(if next < all { next } else { 0 })
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        self.totals.items = self.items.len() as u64;
        Ok(self.totals)
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        self.totals.limit_bytes = bytes;
        Ok(())
    }

    fn value_len_max(&self) -> usize {
        self.value_len_max.unwrap_or(16 << 20)
    }

    fn work(&self) -> u64 {
        self.work
    }

    fn charge(&mut self, work: u64) {
        self.work += work;
    }

    fn isolates(&self) -> bool {
        // It has one owner.
        true
    }
}
