//! Making room: by eviction, or by spilling.
//!
//! Without a spill, and while it is paused (the disk is full, or writing fails), others are
//! evicted, or what comes is refused, as [`Store::evicts`] says. With one the writer begins
//! when less than a sixteenth of the bound is free, and goes on until an eighth is. Who
//! finds no room all the same, because values come faster than they can be written,
//!
//! * waits for the writer where it can ([`Store::room`]), for as long as its patience lasts;
//! * goes on above the bound where it cannot, because the protocol's lock is held: for
//!   values from other servers by an eighth of the bound at most, beyond which it writes
//!   itself, however long that takes; for a commit that its replicas have confirmed by that.
//!
//! What was read from disk is kept in memory only where there is room at once.

use super::writer::{Outcome, Site, Step};
use super::{FAILED_FOR, FAILED_FOR_MAX, FULL_FOR, NOTHING_FOR, Spill, Unreadable};
use crate::marshal::unmarshal;
use crate::stats::Counters;
use crate::store::Store;
use crate::table::{Brought, Key, NoRoom, Room, Table};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;
use trefoil_linklet_core::Replication;

/// The task that spills while more memory is used than should be.
pub(crate) async fn write<V: Send + Sync + 'static>(store: Arc<Store<V>>) {
    let Some(spill) = &store.spill else { return };
    loop {
        spill.ledger.wake.notified().await;
        let worker = Arc::clone(&store);
        // Files are written by threads that may wait for them.
        if let Err(error) = tokio::task::spawn_blocking(move || worker.spill_down()).await {
            tracing::error!(%error, "spilling was broken off");
        }
    }
}

impl<V: 'static> Store<V> {
    /// Whether values make room for others by going. In strong mode only those that can be
    /// loaded again: what was acknowledged stays.
    fn evicts(&self) -> bool {
        self.has_loader || self.replication != Replication::Strong
    }

    /// What the value of a key counts as now.
    fn weight_now(&self, key: Key<'_>) -> u64 {
        self.table.visit(key).peek().map_or(0, |entry| entry.weight)
    }

    /// The spill, while it works.
    fn spilling(&self) -> Option<&Spill> {
        let spill = self.spill.as_ref()?;
        spill.pause(self.clock()).is_none().then_some(spill)
    }

    /// Whether there is, or can be made, room for a value of a key: waits for the writer.
    pub(crate) async fn has_room(&self, key: Key<'_>, weight: u64, patience: Duration) -> bool {
        if weight > self.table.bound() {
            return false;
        }
        if self.spill.is_none() && self.evicts() {
            return true;
        }
        let fits = || {
            let fits = self.table.fits(weight, self.weight_now(key));
            fits.then_some(())
        };
        self.spilled_for(weight, patience, fits).await.is_some() || self.evicts()
    }

    /// Makes room for a value of a key, and waits for the writer. Not to be called during a
    /// visit.
    pub(crate) async fn room(
        &self,
        key: Key<'_>,
        weight: u64,
        patience: Duration,
    ) -> Result<Room<'_, V>, NoRoom> {
        if self.spill.is_some() && weight <= self.table.bound() {
            let reserve = || self.reserve_free(key, weight);
            if let Some(room) = self.spilled_for(weight, patience, reserve).await {
                self.nudge();
                return Ok(room);
            }
        }
        self.reserve_without(key, weight)
    }

    /// Waits until this is something, while the writer frees memory; `None` if it does not.
    async fn spilled_for<R>(
        &self,
        weight: u64,
        patience: Duration,
        ready: impl Fn() -> Option<R>,
    ) -> Option<R> {
        if let Some(ready) = ready() {
            return Some(ready);
        }
        self.spill.as_ref()?;
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let spill = self.spilling()?;
            // Before the look: what is freed after it wakes.
            let mut freed = pin!(spill.freed.notified());
            freed.as_mut().enable();
            if let Some(ready) = ready() {
                return Some(ready);
            }
            self.ask(spill, weight);
            timeout_at(deadline, freed).await.ok()?;
        }
    }

    /// Waits, after values have grown in place, until the bound holds again, or makes room
    /// without the writer.
    pub(crate) async fn trim(&self, patience: Duration) {
        let bound = self.table.bound();
        if self.table.bytes() <= bound {
            return self.nudge();
        }
        let holds = || (self.table.bytes() <= bound).then_some(());
        if self.spilled_for(0, patience, holds).await.is_none() && self.evicts() {
            self.table.trim(|entry| self.evicted(&entry));
        }
    }

    /// Makes room for a value of a key where nobody may wait. Not to be called during a
    /// visit.
    pub(crate) fn reserve(&self, key: Key<'_>, weight: u64) -> Result<Room<'_, V>, NoRoom> {
        let bound = self.table.bound();
        while weight <= bound
            && let Some(spill) = self.spilling()
        {
            if let Some(room) = self.reserve_free(key, weight) {
                self.nudge();
                return Ok(room);
            }
            self.ask(spill, weight);
            if self.table.bytes() + weight <= bound + bound / 8 {
                return Ok(self.table.room_to_trim(weight));
            }
            let over = self.table.bytes() + weight - bound;
            self.spill_step(spill, over);
        }
        self.reserve_without(key, weight)
    }

    /// Likewise, whatever the bound: for what has been promised.
    pub(crate) fn reserve_promised(&self, weight: u64) -> Room<'_, V> {
        if self.spilling().is_some() || !self.evicts() {
            let room = self.table.room_to_trim(weight);
            self.nudge();
            return room;
        }
        let evicted = |entry| self.evicted(&entry);
        self.table.reserve_promised(weight, evicted)
    }

    fn reserve_free(&self, key: Key<'_>, weight: u64) -> Option<Room<'_, V>> {
        let free = self.table.reserve_free(weight, 0);
        let room = free.or_else(|_| self.table.reserve_free(weight, self.weight_now(key)));
        room.ok()
    }

    /// Makes room as if nothing could be spilled.
    fn reserve_without(&self, key: Key<'_>, weight: u64) -> Result<Room<'_, V>, NoRoom> {
        match self.evicts() {
            true => self.table.reserve(weight, |entry| self.evicted(&entry)),
            false => self.table.reserve_free(weight, self.weight_now(key)),
        }
    }

    /// Has the writer begin, if it is time.
    fn nudge(&self) {
        if let Some(spill) = &self.spill
            && self.table.bytes() > high(self.table.bound())
        {
            spill.ledger.wake.notify_one();
        }
    }

    /// Somebody waits for so many bytes.
    fn ask(&self, spill: &Spill, weight: u64) {
        spill.demand.fetch_max(weight.max(1), Ordering::Relaxed);
        spill.ledger.wake.notify_one();
    }

    /// Spills until there is enough room, or until that does not go on: who needs room next
    /// begins it again.
    fn spill_down(&self) {
        let Some(spill) = &self.spill else { return };
        let bound = self.table.bound();
        let asked = || spill.demand.load(Ordering::Relaxed);
        spill.writer().close();
        if self.table.bytes() <= high(bound) && asked() == 0 {
            return;
        }
        while spill.pause(self.clock()).is_none() {
            let free = asked().max(bound / 8).min(bound);
            let over = self.table.bytes().saturating_sub(bound - free);
            if over == 0 {
                spill.demand.store(0, Ordering::Relaxed);
                break;
            }
            self.spill_step(spill, over);
        }
        // Who has come since looks once more, and asks again.
        spill.freed.notify_waiters();
    }

    /// A part of what frees so many bytes.
    fn spill_step(&self, spill: &Spill, over: u64) {
        let began = Instant::now();
        let site = Site {
            table: &self.table,
            marshaller: &*self.marshaller,
            hasher: &self.hasher,
        };
        let step = spill.writer().step(&site, over);
        let counters = &self.counters;
        match step {
            Ok(Step {
                written,
                copied,
                outcome,
                ..
            }) => {
                Counters::add(&counters.spill_writes, written);
                Counters::add(&counters.spill_copies, copied);
                spill.failed.store(0, Ordering::Relaxed);
                match outcome {
                    Outcome::Goes => {}
                    Outcome::NothingToSpill => {
                        spill.set_pause(self.clock(), NOTHING_FOR.max(10 * began.elapsed()));
                    }
                    Outcome::DiskFull => {
                        Counters::one(&counters.spill_full);
                        spill.set_pause(self.clock(), FULL_FOR);
                    }
                }
            }
            Err(error) => {
                Counters::one(&counters.spill_write_failures);
                let before = spill.failed.fetch_add(1, Ordering::Relaxed);
                let pause = FAILED_FOR * (1u32 << before.min(6));
                spill.set_pause(self.clock(), pause.min(FAILED_FOR_MAX));
                if let Some(count) = spill.failures.tell(Instant::now()) {
                    tracing::error!(%error, count, "values cannot be spilled to disk");
                }
            }
        }
        spill.freed.notify_waiters();
    }

    /// Reads a value back; takes as long as the disk takes.
    pub(crate) fn read_back(
        &self,
        key: &[u8],
        record: &super::Record,
    ) -> Result<Arc<V>, Unreadable> {
        Counters::one(&self.counters.spill_reads);
        let bytes = record.read(key);
        let value = bytes.and_then(|bytes| {
            let value = unmarshal(&*self.marshaller, key, &bytes);
            value.map(Arc::new).map_err(Unreadable::Marshal)
        });
        value.inspect_err(|error| self.unread(key, error))
    }

    /// Counts and says that something on disk cannot be used.
    pub(crate) fn unread(&self, key: &[u8], error: &Unreadable) {
        Counters::one(&self.counters.spill_read_failures);
        let Some(spill) = &self.spill else { return };
        if let Some(count) = spill.unreadable.tell(Instant::now()) {
            tracing::error!(
                key = %String::from_utf8_lossy(key),
                %error,
                count,
                "a spilled value cannot be read back"
            );
        }
    }

    /// Keeps what was read in memory, if there is room.
    pub(crate) fn keep(&self, key: Key<'_>, brought: &Brought<V>) {
        let weight = self.weight(key.bytes, &brought.value) + Table::<V>::weight_of_place();
        match self.table.reserve_free(weight, 0) {
            Ok(room) => {
                self.table.visit(key).bring_back(brought, room);
                self.nudge();
            }
            Err(_) => {
                if let Some(spill) = self.spilling() {
                    self.ask(spill, weight);
                }
            }
        }
    }
}

/// Bytes from which on the writer works.
fn high(bound: u64) -> u64 {
    bound - bound / 16
}
