//! Reads by the process that owns the store: under the lock, without a copy in
//! between.

use super::Partition;
use crate::config::Now;
use crate::policy::Policy;
use crate::read::Access;
use crate::shared::Shared;
use trefoil_layout::op::{Mutation, Outcome};
use trefoil_layout::words::Words;
use trefoil_layout::{KeyHash, Pointer, Version};
use trefoil_region::SharedWords;

/// Bytes of a data entry that are fetched ahead; behind them the processor's
/// own prefetcher has understood.
const PREFETCH_LEN_MAX: usize = 1024;

/// An item where it lies, lent under its partition's lock.
#[derive(Clone, Copy)]
pub struct StoredItem<'a> {
    /// The mutation that wrote it.
    pub version: Version,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// CAS unique that its writer supplied.
    pub unique: Option<u64>,
    /// It was read since it was written, as far as this process has seen or
    /// clients have reported.
    pub hit_before: bool,
    /// When it was last read, by this process or as clients have reported, in
    /// seconds since the Unix epoch; see [`crate::Store::keep_last_use`].
    pub last_use_s: Option<u32>,
    /// Bytes that its data entry takes in memory.
    pub entry_len: usize,
    words: SharedWords<'a>,
    skip: usize,
    key_len: usize,
    value_len: usize,
}

impl StoredItem<'_> {
    /// Bytes of its value.
    #[inline]
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Whether its time is over.
    pub(super) fn is_expired(&self, now: Now) -> bool {
        self.expiry_ms != 0 && self.expiry_ms <= now.host_ms()
    }

    /// Appends its data entry as it lies there, checksum included.
    pub fn append_entry(&self, out: &mut Vec<u8>) {
        self.words.append_to(0, self.skip + self.value_len, out);
    }

    /// Appends its key.
    pub fn append_key(&self, out: &mut Vec<u8>) {
        self.words
            .append_to(self.skip - self.key_len, self.key_len, out);
    }

    /// Appends its value.
    #[inline]
    pub fn append_value(&self, out: &mut Vec<u8>) {
        self.words.append_to(self.skip, self.value_len, out);
    }
}

impl std::fmt::Debug for StoredItem<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredItem")
            .field("version", &self.version)
            .field("value_len", &self.value_len)
            .finish_non_exhaustive()
    }
}

impl Partition {
    /// The item of `key`, if there is one.
    #[inline]
    pub(crate) fn read<'s>(
        &mut self,
        shared: &'s Shared,
        now: Now,
        hash: KeyHash,
        key: &[u8],
        access: Access,
    ) -> Option<StoredItem<'s>> {
        self.write_what_is_unwritten(shared);
        let found = self.find(shared, hash);
        let (number, entry) = self.without_dead(shared, now, found)?;
        if !Self::is_key(shared, entry.pointer, key) {
            return None;
        }
        let item = self.stored_item(shared, number, entry.version, entry.pointer);
        if access == Access::Use {
            self.policy.note(number);
            let now_s = (now.unix_ms() / 1000) as u32;
            let slot_count = self.table.index.slot_count();
            self.last_use.note(number, now_s, slot_count);
        }
        Some(item)
    }

    /// The item in slot `number`, whose index entry was read just now.
    pub(super) fn stored_item<'s>(
        &self,
        shared: &'s Shared,
        number: u32,
        version: Version,
        pointer: Pointer,
    ) -> StoredItem<'s> {
        let head = Self::head_at(shared, pointer.offset());
        let words = shared
            .data()
            .slice(pointer.offset(), pointer.len())
            .expect("pointers lie inside the data region");
        StoredItem {
            version,
            expiry_ms: head.expiry_ms,
            client_flags: head.client_flags,
            item_flags: head.item_flags,
            unique: head.unique_word().map(|at| words.load(at)),
            hit_before: self.policy.was_accessed(number),
            last_use_s: self.last_use.get(number),
            entry_len: pointer.len(),
            words,
            skip: head.key_at + head.key_len,
            key_len: head.key_len,
            value_len: head.value_len,
        }
    }

    /// Fetches the bucket and the eviction metadata of a key.
    #[inline]
    pub(crate) fn prefetch_bucket(&self, shared: &Shared, hash: KeyHash) {
        let home = self.table.index.home(hash);
        let bucket = self.table.index.bucket(&shared.regions.index, home);
        bucket.prefetch(1);
        let slot = trefoil_layout::bucket::slot_word(hash.home_slot());
        if let Some(slot) = bucket.slice(slot as u64 * 8, 8) {
            slot.prefetch(1);
        }
        self.policy
            .prefetch(self.table.index.number(home, hash.home_slot()));
    }

    /// Fetches the data entry of a key, whose bucket has been fetched.
    #[inline]
    pub(crate) fn prefetch_data(&self, shared: &Shared, hash: KeyHash) {
        if let Some((_, entry)) = self.find(shared, hash)
            && let Some(words) = shared
                .data()
                .slice(entry.pointer.offset(), entry.pointer.len())
        {
            words.prefetch(PREFETCH_LEN_MAX);
        }
    }

    /// Removes the item iff exactly `expected` is there; the erasure's version
    /// is remembered like any other's.
    pub(crate) fn erase_if(
        &mut self,
        shared: &Shared,
        now: Now,
        hash: KeyHash,
        expected: Version,
        mutation: &Mutation<'_>,
    ) -> Outcome {
        self.write_what_is_unwritten(shared);
        let found = self.find(shared, hash);
        let found = self.without_dead(shared, now, found);
        let bound = self.bound(hash, found);
        let present = found.map(|(_, entry)| entry.version);
        if present != Some(expected) || mutation.version <= bound {
            return Outcome::Mismatch { present, bound };
        }
        // As in every mutation: a fill of before stays away.
        self.raise_key_stamp(shared, hash);
        self.erase(shared, hash, found, mutation);
        Outcome::Applied
    }

    /// Keeps the time of every read from now on.
    pub(crate) fn keep_last_use(&mut self) {
        self.last_use.keep();
    }
}
