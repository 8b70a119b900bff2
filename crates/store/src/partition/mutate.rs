//! The rules of one mutation (DESIGN section 4, numbers as there), and the
//! lookup by message.
//!
//! The bound of a key is the version present, else its tombstone's, else the
//! floor, and never less than the flush floor. An entry whose time is over, or
//! that was flushed, is present as far as its version goes and absent to lookups
//! and to CAS, which remove it.
//!
//! A mutation that needs room evicts *after* it was decided: in the order that
//! counts it happened first, so the floor that its own evictions raise does not
//! concern it. One that needs more room than one hold of the lock makes is decided
//! anew under the next, as if it came only then.

use super::room::Effort;
use super::{Cause, Giver, NoRoom, Partition};
use crate::config::Now;
use crate::mutants::{self, Mutant};
use crate::policy::{Policy, Recency};
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use trefoil_layout::control;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Expected, Mutation, Outcome};
use trefoil_layout::{IndexEntry, KeyHash, Pointer, Version};
use trefoil_region::WordBuffer;

/// Bytes of the destination that are fetched while an entry is encoded.
const PREFETCH_LEN_MAX: usize = 2048;
/// Longer entries are written in parts of this many bytes.
const PART_LEN: usize = 16 << 10;

/// What a lookup by message found; the data is in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A value of this version.
    Present(Version),
    /// None.
    Absent,
}

impl Partition {
    /// The bound of a key of which `found` stands.
    pub(super) fn bound(&self, hash: KeyHash, found: Option<(u32, IndexEntry)>) -> Version {
        let known = match found {
            Some((_, entry)) => entry.version,
            None => self.tombstones.version(hash).unwrap_or(self.floor),
        };
        known.max(self.flush_floor)
    }

    /// The bound of a key.
    pub(crate) fn bound_of(&self, shared: &Shared, hash: KeyHash) -> Version {
        self.bound(hash, self.find(shared, hash))
    }

    /// The version of what stands under a hash.
    pub(crate) fn held(&self, shared: &Shared, hash: KeyHash) -> Option<Version> {
        self.find(shared, hash).map(|(_, entry)| entry.version)
    }

    /// Executes a mutation that has passed the checks of its form.
    pub(crate) fn mutate(
        &mut self,
        shared: &Shared,
        now: Now,
        hash: KeyHash,
        mutation: &Mutation<'_>,
        effort: &mut Effort,
    ) -> Result<Outcome, NoRoom> {
        self.write_what_is_unwritten(shared);
        // The key most likely stands near its home slot: its eviction metadata
        // comes nearer while the bucket is read.
        self.policy.prefetch(
            self.table
                .index
                .number(self.table.index.home(hash), hash.home_slot()),
        );
        let mut found = self.find(shared, hash);
        if let Some((number, entry)) = found {
            self.policy.prefetch(number);
            if let Some(head) = shared.data().slice(entry.pointer.offset(), 64) {
                head.prefetch(64);
            }
        }
        match mutation.action {
            Action::Set | Action::Erase | Action::Fill { .. } => {
                let bound = self.bound(hash, found);
                match mutation.action {
                    Action::Fill { stamp } => {
                        // A copy of a message that was applied.
                        if let Some((number, entry)) = found
                            && entry.version == mutation.version
                        {
                            self.policy.access(number);
                            return Ok(Outcome::Applied);
                        }
                        if stamp != self.key_stamp(shared, hash)
                            && !mutants::is(Mutant::FillUnchecked)
                        {
                            let present = found.map(|(_, entry)| entry.version);
                            return Ok(Outcome::Mismatch { present, bound });
                        }
                    }
                    // Superseded or not: a fill of before stays away.
                    _ => self.raise_key_stamp(shared, hash),
                }
                let superseded = mutation.version < bound || self.is_flushed(mutation.version);
                if superseded && !mutants::is(Mutant::BoundIgnored) {
                    return Ok(Outcome::Superseded { bound });
                }
                if mutation.action == Action::Erase {
                    self.erase(shared, hash, found, mutation);
                } else {
                    if let Some((number, entry)) = found
                        && entry.version == mutation.version
                    {
                        self.policy.access(number);
                        return Ok(Outcome::Applied);
                    }
                    self.install(shared, now, (hash, found), mutation, None, effort)?;
                    let is_fill = matches!(mutation.action, Action::Fill { .. });
                    if is_fill && !mutants::is(Mutant::FillUncounted) {
                        // One of a miss before this one's would replace it.
                        self.raise_key_stamp(shared, hash);
                    }
                }
            }
            Action::Cas(expected) => {
                found = self.without_dead(shared, now, found);
                let bound = self.bound(hash, found);
                let present = found.map(|(_, entry)| entry.version);
                let applies = match expected {
                    Expected::Absent => present.is_none() && mutation.version >= bound,
                    Expected::Version(version) => {
                        (present == Some(version)
                            || (present.is_some() && mutants::is(Mutant::CasNotExact)))
                            && mutation.version > bound
                    }
                };
                if !applies {
                    return Ok(Outcome::Mismatch { present, bound });
                }
                self.raise_key_stamp(shared, hash);
                self.install(shared, now, (hash, found), mutation, None, effort)?;
            }
        }
        Ok(Outcome::Applied)
    }

    /// Stores what a recovering shard's peers hold, unless something newer of the very key
    /// is known. The floor does not count: it stands for what is not known of other keys
    /// ([`crate::Store::keep_writes`]), and what evictions add to it here, while nobody is
    /// answered, was acknowledged by nobody.
    pub(crate) fn import(
        &mut self,
        shared: &Shared,
        now: Now,
        hash: KeyHash,
        mutation: &Mutation<'_>,
        recency: Recency,
        effort: &mut Effort,
    ) -> Result<Outcome, NoRoom> {
        self.write_what_is_unwritten(shared);
        let found = self.find(shared, hash);
        let known = match found {
            Some((_, entry)) => Some(entry.version),
            None => self.tombstones.version(hash),
        };
        let bound = known.unwrap_or_default().max(self.flush_floor);
        if mutation.version < bound || self.is_flushed(mutation.version) {
            return Ok(Outcome::Superseded { bound });
        }
        if mutation.action == Action::Erase {
            self.erase(shared, hash, found, mutation);
        } else if found.is_none_or(|(_, entry)| entry.version != mutation.version) {
            let place = (hash, found);
            if !self.is_dispensable(shared, hash, mutation.version) {
                // It may have been one under the hold before.
                effort.dispensable = None;
                self.install(shared, now, place, mutation, Some(recency), effort)?;
                return Ok(Outcome::Applied);
            }
            effort.dispensable = Some(recency);
            let evicted_before = std::mem::take(&mut self.evicts_for_copies);
            match self.install(shared, now, place, mutation, Some(recency), effort) {
                Ok(()) if self.evicts_for_copies => {
                    shared.copies_evict.store(true, Ordering::Relaxed);
                }
                Ok(()) => {}
                Err(no_room) if no_room.from == Giver::Nobody => {
                    self.evicts_for_copies = true;
                    shared.copies_evict.store(true, Ordering::Relaxed);
                    self.counts.copies_skipped += 1;
                    return Ok(Outcome::Superseded { bound: self.floor });
                }
                // It is decided anew under the next hold of the lock.
                Err(no_room) => {
                    self.evicts_for_copies |= evicted_before;
                    return Err(no_room);
                }
            }
        }
        Ok(Outcome::Applied)
    }

    /// Whether a copy at this version may be left out, if it would be the first to leave:
    /// nothing at all is known here of the key, and the floor is no lower than the version.
    ///
    /// Then leaving it out is the same as installing and evicting it. An eviction takes the
    /// entry away and raises the floor to its version, so the key's bound would be the floor;
    /// it is the floor now, which is as high already. No bound falls or rises, and nobody
    /// was answered meanwhile: the shard has no vote until it has recovered. What is *above*
    /// the floor was written since the copy began and is installed in any case, for a floor
    /// raised by it would hide other late writes from the repair that follows. An older value
    /// of the key, or its tombstone, would stay if this were left out, and is a lower bound.
    fn is_dispensable(&self, shared: &Shared, hash: KeyHash, version: Version) -> bool {
        self.keeps_writes
            && self.is_recovering()
            && version <= self.floor
            && self.find(shared, hash).is_none()
            && self.tombstones.version(hash).is_none()
    }

    /// See [`crate::Store::skips_copy`].
    pub(crate) fn skips_copy(
        &mut self,
        shared: &Shared,
        hash: KeyHash,
        version: Version,
        recency: Recency,
    ) -> bool {
        let skips = self.evicts_for_copies
            && self.policy.would_leave_first(recency)
            && self.is_dispensable(shared, hash, version);
        self.counts.copies_skipped += u64::from(skips);
        skips
    }

    /// Takes away what stands of a key at this version, and leaves no trace.
    pub(super) fn forget(&mut self, shared: &Shared, hash: KeyHash, version: Version) {
        if let Some((number, entry)) = self.find(shared, hash)
            && entry.version == version
        {
            self.policy.remove(number);
            self.detach(shared, number);
            self.free_data(shared, entry.pointer);
        }
    }

    /// See [`control::stamp`].
    pub(crate) fn key_stamp(&self, shared: &Shared, hash: KeyHash) -> u64 {
        let words = shared.regions.control.words();
        control::stamp(&words, self.number, shared.config.partition_count, hash)
    }

    /// A mutation of the key was taken: a fill of before stays away, and whoever copies
    /// the partition looks again.
    pub(super) fn raise_key_stamp(&mut self, shared: &Shared, hash: KeyHash) {
        if let Some(changed) = &mut self.changed {
            changed.note(hash);
        }
        let words = shared.regions.control.words();
        control::raise_stamp(&words, self.number, shared.config.partition_count, hash);
    }

    /// Before anybody can see what has this version.
    fn note_version(&mut self, shared: &Shared, version: Version) {
        self.newest = self.newest.max(version);
        self.tell_newest(shared, version);
    }

    /// Committing clients nominate above this ([`control::newest_ns`]).
    pub(super) fn tell_newest(&self, shared: &Shared, version: Version) {
        let words = shared.regions.control.words();
        control::raise_newest_ns(&words, self.number, version.time_ns);
    }

    pub(super) fn erase(
        &mut self,
        shared: &Shared,
        hash: KeyHash,
        found: Option<(u32, IndexEntry)>,
        mutation: &Mutation<'_>,
    ) {
        self.note_version(shared, mutation.version);
        if let Some((number, entry)) = found {
            if !Self::is_key(shared, entry.pointer, mutation.entry.key) {
                self.raise_floor(entry.version, Mutant::EvictionForgotten);
                self.removed(Cause::SameTag, entry.pointer.len());
            }
            self.policy.remove(number);
            self.detach(shared, number);
            self.free_data(shared, entry.pointer);
        }
        if let Some(forgotten) = self.tombstones.remember(hash, mutation.version) {
            self.raise_floor(forgotten, Mutant::TombstoneForgottenSilently);
        }
    }

    /// Puts the mutation's value in place of what stands, if anything. A copy of what
    /// another replica holds has been used like there.
    fn install(
        &mut self,
        shared: &Shared,
        now: Now,
        (hash, found): (KeyHash, Option<(u32, IndexEntry)>),
        mutation: &Mutation<'_>,
        copied: Option<Recency>,
        effort: &mut Effort,
    ) -> Result<(), NoRoom> {
        if found.is_none() {
            self.policy.prepare(hash.tag);
            while self.has_all_objects() {
                let leaves_first = |recency| self.policy.would_leave_first(recency);
                if effort.dispensable.is_some_and(leaves_first) {
                    return Err(NoRoom {
                        bytes: 0,
                        from: Giver::Nobody,
                    });
                }
                self.evicts_for_copies |= effort.dispensable.is_some();
                if !self.evict(shared) {
                    break;
                }
            }
        }
        let len = mutation.entry.encoded_len();
        let changes = self.changes;
        let offset = self.allocate(shared, len, effort)?;
        // Making room may have moved or evicted what was found.
        let found = if self.changes == changes {
            found
        } else {
            self.find(shared, hash)
        };
        let pointer = Pointer::new(offset, len).expect("the allocator keeps to the region");
        self.write(shared, offset, &mutation.entry, hash.tag, mutation.version);
        self.crawl.note(mutation.entry.expiry_ms);
        self.note_version(shared, mutation.version);
        match found {
            Some((number, old)) => {
                let same_key = Self::is_key(shared, old.pointer, mutation.entry.key);
                let expired = Self::head_at(shared, old.pointer.offset()).is_expired(now.host_ms());
                self.overwrite(shared, (number, hash), mutation.version, pointer);
                if !same_key {
                    self.raise_floor(old.version, Mutant::EvictionForgotten);
                    self.removed(Cause::SameTag, old.pointer.len());
                } else if expired {
                    self.removed(Cause::Expired, old.pointer.len());
                }
                self.entry_len += pointer.len() as u64;
                self.entry_len -= old.pointer.len() as u64;
                self.classes.came(pointer.len());
                self.classes.went(old.pointer.len());
                self.uncount_flushed(old.version);
                match copied {
                    Some(recency) => self.policy.overwritten_by_copy(number, recency),
                    None => self.policy.overwritten(number),
                }
                self.last_use.forget(number);
                self.free_data(shared, old.pointer);
            }
            None => {
                let entry = IndexEntry {
                    tag: hash.tag,
                    version: mutation.version,
                    pointer,
                };
                self.insert(shared, hash, entry, copied);
                self.tombstones.drop_key(hash);
            }
        }
        Ok(())
    }

    /// Writes a complete data entry.
    fn write(
        &mut self,
        shared: &Shared,
        offset: u64,
        entry: &DataEntry<'_>,
        tag: u64,
        version: Version,
    ) {
        let len = entry.encoded_len();
        let into = shared
            .data()
            .slice(offset, len.next_multiple_of(8))
            .expect("the allocator keeps to the region");
        if len > PART_LEN && !mutants::any() {
            // A second copy of a large value would be a large part of a small
            // store's memory.
            self.scratch.prepare(PART_LEN);
            let buffer = self.scratch.bytes_mut();
            entry.encode_in_parts(buffer, tag, version, &mut |at, part| {
                into.copy_in_bytes(at / 8, part);
            });
            // It would be charged now, beyond what room was made for, and what is
            // given back for it may be the very value.
            self.scratch = WordBuffer::default();
            self.scratch_len = 0;
            return;
        }
        into.prefetch(len.min(PREFETCH_LEN_MAX));
        let words = self.scratch.prepare(len.next_multiple_of(8));
        // Nothing of an earlier entry stays in the last word.
        if let Some(last) = words.last_mut() {
            *last = 0;
        }
        let (tag, version) = if mutants::is(Mutant::ChecksumUnbound) {
            (0, Version::ZERO)
        } else {
            (tag, version)
        };
        entry.encode(self.scratch.bytes_mut(), tag, version);
        #[cfg(feature = "mutants")]
        if mutants::is(Mutant::PublishedBeforeData) {
            self.unwritten = Some((offset, self.scratch.words().to_vec()));
            return;
        }
        into.copy_in(self.scratch.words());
        self.trim_scratch(shared);
    }

    /// See [`Mutant::PublishedBeforeData`].
    #[inline(always)]
    pub(super) fn write_what_is_unwritten(&mut self, shared: &Shared) {
        #[cfg(feature = "mutants")]
        if let Some((offset, words)) = self.unwritten.take()
            && let Some(into) = shared.data().slice(offset, words.len() * 8)
        {
            into.copy_in(&words);
        }
        #[cfg(not(feature = "mutants"))]
        let _ = shared;
    }

    /// Copies the data entry of `key` into `into`.
    pub(crate) fn lookup(
        &mut self,
        shared: &Shared,
        now: Now,
        hash: KeyHash,
        key: &[u8],
        into: &mut WordBuffer,
        is_use: bool,
    ) -> Found {
        self.write_what_is_unwritten(shared);
        let found = self.find(shared, hash);
        let Some((number, entry)) = self.without_dead(shared, now, found) else {
            return Found::Absent;
        };
        let pointer = entry.pointer;
        if !Self::is_key(shared, pointer, key) {
            return Found::Absent;
        }
        if is_use {
            self.policy.access(number);
        }
        let data = shared
            .data()
            .slice(pointer.offset(), pointer.len())
            .expect("pointers lie inside the data region");
        into.fill_from(data);
        Found::Present(entry.version)
    }
}
