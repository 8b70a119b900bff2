//! Making room before a value comes in.

use super::{Entry, Table, evict};
use std::sync::atomic::Ordering;

/// Bytes reserved for a value; given back unless the value comes in.
pub(crate) struct Room<'a, V> {
    pub(super) table: &'a Table<V>,
    pub(super) weight: u64,
}

/// A value for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// Its bytes.
    pub(crate) weight: u64,
    /// The bound.
    pub(crate) bound: u64,
}

impl<V> Drop for Room<'_, V> {
    fn drop(&mut self) {
        self.table
            .reserved
            .fetch_sub(self.weight, Ordering::Relaxed);
    }
}

impl<V> Table<V> {
    /// Reserves bytes, evicting until they fit. What had to go is handed to
    /// `evicted`. Not to be called during a visit.
    pub(crate) fn reserve(
        &self,
        weight: u64,
        mut evicted: impl FnMut(Entry<V>),
    ) -> Result<Room<'_, V>, NoRoom> {
        let refused = NoRoom {
            weight,
            bound: self.bound,
        };
        if weight > self.bound {
            return Err(refused);
        }
        let mut exhausted = false;
        loop {
            let reserved = self.reserved.load(Ordering::Relaxed);
            // Where all that is there may not be evicted, one value is let in
            // above the bound: the new one for the old one of the same key.
            if reserved + weight <= self.bound || (exhausted && reserved <= self.bound) {
                let swap = self.reserved.compare_exchange_weak(
                    reserved,
                    reserved + weight,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if swap.is_ok() {
                    return Ok(Room {
                        table: self,
                        weight,
                    });
                }
                continue;
            }
            if exhausted {
                return Err(refused);
            }
            match self.evict() {
                Some(entry) => evicted(entry),
                None => exhausted = true,
            }
        }
    }

    /// Whether there is room for a value, in the place of one of so many bytes, without
    /// evicting: there always is for one that is no larger.
    pub(crate) fn fits(&self, weight: u64, old: u64) -> bool {
        fits(
            self.reserved.load(Ordering::Relaxed),
            weight,
            old,
            self.bound,
        )
    }

    /// Reserves bytes for a value in the place of one of so many bytes, without evicting.
    pub(crate) fn reserve_free(&self, weight: u64, old: u64) -> Result<Room<'_, V>, NoRoom> {
        let bound = self.bound;
        let reserve = |reserved| fits(reserved, weight, old, bound).then(|| reserved + weight);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.reserved.fetch_update(set, get, reserve) {
            Ok(_) => Ok(Room {
                table: self,
                weight,
            }),
            Err(_) => Err(NoRoom { weight, bound }),
        }
    }

    /// Reserves bytes whatever the bound: for what has been promised.
    pub(crate) fn reserve_promised(
        &self,
        weight: u64,
        evicted: impl FnMut(Entry<V>),
    ) -> Room<'_, V> {
        self.reserve(weight, evicted).unwrap_or_else(|_| {
            self.reserved.fetch_add(weight, Ordering::Relaxed);
            Room {
                table: self,
                weight,
            }
        })
    }

    /// Reserves bytes whatever the bound, and evicts nothing: call [`Table::trim`] after
    /// it, where that is allowed.
    pub(crate) fn room_to_trim(&self, weight: u64) -> Room<'_, V> {
        self.reserved.fetch_add(weight, Ordering::Relaxed);
        Room {
            table: self,
            weight,
        }
    }

    /// Evicts until the bound holds again, after values have grown in place.
    pub(crate) fn trim(&self, mut evicted: impl FnMut(Entry<V>)) {
        while self.bytes() > self.bound {
            match self.evict() {
                Some(entry) => evicted(entry),
                None => return,
            }
        }
    }

    fn evict(&self) -> Option<Entry<V>> {
        let taken = evict::one(&self.parts, &self.dice, self.tick.load(Ordering::Relaxed))?;
        self.gone(&taken);
        Some(taken)
    }
}

fn fits(reserved: u64, weight: u64, old: u64, bound: u64) -> bool {
    weight <= old || reserved + weight <= bound + old
}
