//! The store as the process that owns it uses it: reads without a message, a
//! conditional erase, the flush floor.

use crate::config::Now;
use crate::partition::StoredItem;
use crate::stats::MutationKind;
use crate::store::{Store, of_no_shard};
use std::sync::atomic::Ordering;
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::KEY_LEN_MAX;
use trefoil_layout::op::{Ack, Action, ItemUse, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHash, Version, control};

/// Keys between two steps of the same key in [`Store::read_many`].
const DISTANCE: usize = 6;
/// Keys under way.
const WINDOW: usize = 2 * DISTANCE;

/// Whether a read counts as a use of the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The eviction policy learns of it.
    Use,
    /// It does not.
    Peek,
}

/// What [`Store::read_many`] calls with each key's index and item; `false` ends
/// it.
pub type EachRead<'e> = dyn FnMut(usize, Result<Option<&StoredItem<'_>>, Rejection>) -> bool + 'e;

/// A key of which something will be asked soon: see [`Store::foresee`].
#[derive(Clone, Copy, Debug)]
pub struct Foreseen {
    hash: KeyHash,
    number: usize,
}

impl Store {
    /// Begins to fetch into the cache what is looked at first when `key` is asked for.
    /// Nothing but speed depends on it: nobody is waited for.
    #[inline]
    pub fn foresee(&self, key: &[u8]) -> Option<Foreseen> {
        let (hash, number) = self.place(key).ok()?;
        let slot = self.partitions[number].try_enter()?;
        slot.live.prefetch_bucket(&self.shared, hash);
        Some(Foreseen { hash, number })
    }

    /// And what is looked at next, once that is there.
    #[inline]
    pub fn foresee_item(&self, foreseen: Foreseen) {
        if let Some(slot) = self.partitions[foreseen.number].try_enter() {
            slot.live.prefetch_data(&self.shared, foreseen.hash);
        }
    }

    /// Lends the item of `key` to `with`, under its partition's lock, which
    /// `with` must not keep for long nor enter again.
    #[inline]
    pub fn read<R>(
        &self,
        now: Now,
        key: &[u8],
        access: Access,
        with: impl FnOnce(Option<&StoredItem<'_>>) -> R,
    ) -> Result<R, Rejection> {
        self.check_key(key)?;
        let (hash, number) = self.place(key)?;
        self.read_placed(now, key, hash, number, access, with)
    }

    #[inline]
    fn read_placed<R>(
        &self,
        now: Now,
        key: &[u8],
        hash: KeyHash,
        number: usize,
        access: Access,
        with: impl FnOnce(Option<&StoredItem<'_>>) -> R,
    ) -> Result<R, Rejection> {
        let mut slot = self.partitions[number].enter();
        if slot.live.is_recovering() {
            return Err(Rejection::Recovering);
        }
        let item = slot.live.read(&self.shared, now, hash, key, access);
        Ok(with(item.as_ref()))
    }

    /// [`Store::read`] for each key in order, with the memory latencies of
    /// different keys overlapped. Stops early when `each` returns `false`.
    pub fn read_many(&self, now: Now, keys: &[&[u8]], access: Access, each: &mut EachRead<'_>) {
        let mut places = [Ok((KeyHash::default(), 0usize)); WINDOW];
        for step in 0..keys.len() + WINDOW {
            // The place that is taken anew is the one read in this step.
            if let Some(done) = step.checked_sub(WINDOW) {
                let key = keys[done];
                let place = self.check_key(key).and(places[done % WINDOW]);
                let wants_more = place.and_then(|(hash, number)| {
                    self.read_placed(now, key, hash, number, access, |item| each(done, Ok(item)))
                });
                if !wants_more.unwrap_or_else(|rejection| each(done, Err(rejection))) {
                    return;
                }
            }
            if let Some(index) = step.checked_sub(DISTANCE).filter(|at| *at < keys.len())
                && let Ok((hash, number)) = places[index % WINDOW]
            {
                // Whoever holds the lock is not waited for only to be early.
                if let Some(slot) = self.partitions[number].try_enter() {
                    slot.live.prefetch_data(&self.shared, hash);
                }
            }
            if let Some(key) = keys.get(step) {
                places[step % WINDOW] = self.place(key);
                if let Ok((hash, number)) = places[step % WINDOW]
                    && let Some(slot) = self.partitions[number].try_enter()
                {
                    slot.live.prefetch_bucket(&self.shared, hash);
                }
            }
        }
    }

    /// How `key`'s item was used, by reads here and by those that clients have
    /// reported. Times are kept from the first question on, at four bytes for
    /// each slot.
    pub fn item_use(&self, now: Now, key: &[u8]) -> Option<ItemUse> {
        if !self.keeps_last_use.swap(true, Ordering::Relaxed) {
            self.keep_last_use();
        }
        let item_use = |stored: Option<&StoredItem<'_>>| {
            stored.map(|stored| ItemUse {
                version: stored.version,
                hit_before: stored.hit_before,
                last_use_s: stored.last_use_s.unwrap_or(0),
            })
        };
        self.read(now, key, Access::Peek, item_use).ok().flatten()
    }

    /// Removes `key`'s item iff exactly `expected` is there.
    pub fn erase_if(&self, now: Now, key: &[u8], expected: Version, version: Version) -> Ack {
        let mutation = Mutation {
            action: Action::Erase,
            version,
            entry: DataEntry {
                key,
                ..DataEntry::default()
            },
        };
        let refused = if self.shared.config.immutable {
            Err(Rejection::Immutable)
        } else {
            self.check_key(key)
                .and_then(|()| self.check_form(&mutation))
                .and_then(|()| Self::check_clock(now, &mutation))
        };
        let (hash, number) = match self.place(key) {
            Ok(place) => place,
            Err(rejection) => return of_no_shard(rejection),
        };
        let mut slot = self.partitions[number].enter();
        let outcome = match refused {
            Err(rejection) => Outcome::Rejected(rejection),
            Ok(()) if slot.live.is_recovering() => Outcome::Rejected(Rejection::Recovering),
            Ok(()) if slot.live.is_frozen() => Outcome::Rejected(Rejection::UnknownConfig),
            Ok(()) => slot
                .live
                .erase_if(&self.shared, now, hash, expected, &mutation),
        };
        let kind = MutationKind::Erase;
        let retired = slot.live.after_mutation(&self.shared, kind, &outcome);
        let epoch = slot.live.epoch();
        drop(slot);
        if let Some(retired) = retired {
            retired.release(&self.shared);
        }
        Ack { epoch, outcome }
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Rejection> {
        if key.is_empty() {
            return Err(Rejection::KeyEmpty);
        }
        if key.len() > KEY_LEN_MAX {
            return Err(Rejection::KeyTooLong);
        }
        if self.is_revoked() {
            return Err(Rejection::WrongShard);
        }
        Ok(())
    }

    /// Keeps the time of every read from now on, as this process sees it or
    /// clients report it, at four bytes for each slot.
    pub fn keep_last_use(&self) {
        for cell in &self.partitions {
            cell.enter().live.keep_last_use();
        }
    }

    /// Makes everything at or below `floor` invisible to lookups by message, to
    /// this process and to CAS, supersedes mutations at or below it, and tells
    /// one-sided readers. Those who have read a bucket already learn of it by the
    /// next [`Store::set_config_id`]. A lower floor than the present one changes
    /// nothing.
    pub fn raise_flush_floor(&self, floor: Version) {
        for cell in &self.partitions {
            cell.enter().live.flush(&self.shared, floor);
        }
        let words = self.shared.regions.control.words();
        if floor > control::flush_floor(&words) {
            control::set_flush_floor(&words, floor);
        }
    }

    /// The highest version that was ever applied here.
    pub fn newest(&self) -> Version {
        let newest = |cell: &crate::store::Cell| cell.enter().live.newest();
        self.partitions.iter().map(newest).max().unwrap_or_default()
    }
}
