//! What the operations, the protocol's driver and the freshness hooks share.

use crate::damped::Damped;
use crate::event::{Event, Events, Eviction, EvictionReason, StateLoss, StateLossReason};
use crate::facts::Facts;
use crate::flight::Flights;
use crate::fresh::Fresh;
use crate::lifetime::{Lifetimes, Over};
use crate::linklet::Landed;
use crate::load::Meters;
use crate::marshal::{Marshal, weigh};
use crate::spill::{ReadBack, Record, Spill};
use crate::stats::{Counters, Stats};
use crate::table::{Entry, Key, Table};
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use trefoil_coordination::BootInstant;
use trefoil_freshness_core::table::Stamp;
use trefoil_layout::hash::KeyHasher;
use trefoil_linklet_core::{Extent, Replication, Status};
use trefoil_sharder::KeyPoint;

/// Keys by name.
pub(crate) type Keys = Vec<(KeyPoint, Bytes)>;

/// What threads leave for the driver, which tells the protocol and the
/// application.
pub(crate) struct Errands<V> {
    /// Committed where copies follow by themselves.
    pub(crate) touched: Keys,
    /// Evicted where copies have to be told and confirm.
    pub(crate) withdrawn: Keys,
    /// Refreshed where copies have to confirm.
    pub(crate) refreshed: Vec<(Bytes, Arc<V>, Stamp)>,
    /// Lost for good, by reason.
    pub(crate) evicted: Keys,
    pub(crate) unreadable: Keys,
    pub(crate) dropped: Keys,
    pub(crate) panicked: Keys,
    /// For listeners that want to know what leaves.
    pub(crate) left: Vec<Eviction>,
}

impl<V> Default for Errands<V> {
    fn default() -> Self {
        Errands {
            touched: Keys::new(),
            withdrawn: Keys::new(),
            refreshed: Vec::new(),
            evicted: Keys::new(),
            unreadable: Keys::new(),
            dropped: Keys::new(),
            panicked: Keys::new(),
            left: Vec::new(),
        }
    }
}

pub(crate) struct Store<V> {
    pub(crate) table: Table<V>,
    pub(crate) hasher: KeyHasher,
    pub(crate) replication: Replication,
    pub(crate) marshaller: Box<dyn Marshal<V>>,
    pub(crate) has_loader: bool,
    pub(crate) fresh: Fresh,
    pub(crate) flights: Flights<Landed<V>>,
    pub(crate) meters: Meters,
    pub(crate) counters: Counters,
    pub(crate) events: Events,
    /// Values that arrived and cannot be used.
    pub(crate) unreadable: Damped,
    /// What there is no memory for, where the application has asked for that.
    pub(crate) spill: Option<Spill>,
    /// Values on their way from disk.
    pub(crate) reads: Flights<ReadBack<V>>,
    /// Listeners want to know of every object that leaves.
    notices: bool,
    pub(crate) errand: Notify,
    pub(crate) facts: Facts,
    /// When the driver has turned last, in milliseconds by [`Store::clock`].
    turned_ms: AtomicU64,
    /// The last loss: when, and what.
    last_loss: Mutex<Option<(Duration, String)>>,
    errands: Mutex<Errands<V>>,
    origin: BootInstant,
}

/// What a store is made of.
pub(crate) struct StoreOptions<V> {
    pub(crate) memory: u64,
    pub(crate) hasher: KeyHasher,
    pub(crate) replication: Replication,
    pub(crate) marshaller: Box<dyn Marshal<V>>,
    pub(crate) has_loader: bool,
    pub(crate) lifetimes: Lifetimes<V>,
    pub(crate) events: Events,
    pub(crate) notices: bool,
    pub(crate) stale_max: Option<Duration>,
    pub(crate) spill: Option<Spill>,
}

impl<V: 'static> Store<V> {
    pub(crate) fn new(options: StoreOptions<V>) -> Self {
        Store {
            table: Table::new(options.memory, options.lifetimes),
            hasher: options.hasher,
            replication: options.replication,
            marshaller: options.marshaller,
            has_loader: options.has_loader,
            fresh: Fresh::new(options.stale_max),
            flights: Flights::default(),
            meters: Meters::new(Instant::now()),
            counters: Counters::default(),
            events: options.events,
            unreadable: Damped::default(),
            spill: options.spill,
            reads: Flights::default(),
            notices: options.notices,
            errand: Notify::new(),
            facts: Facts::default(),
            turned_ms: AtomicU64::new(0),
            last_loss: Mutex::default(),
            errands: Mutex::default(),
            origin: BootInstant::now(),
        }
    }

    /// The clock that the protocol goes by: that of the lease, which does not
    /// stand still while the machine is suspended.
    #[inline]
    pub(crate) fn clock(&self) -> Duration {
        self.origin.elapsed()
    }

    /// A moment on that clock.
    pub(crate) fn at(&self, instant: BootInstant) -> Duration {
        instant.saturating_duration_since(self.origin)
    }

    #[inline]
    pub(crate) fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key {
            bytes,
            hash: self.hasher.hash(bytes),
        }
    }

    /// What a value counts as.
    pub(crate) fn weight(&self, key: &[u8], value: &V) -> u64 {
        Table::<V>::weight(key, weigh(&*self.marshaller, value))
    }

    /// An entry had to make room.
    pub(crate) fn evicted(&self, entry: &Entry<V>) {
        Counters::one(&self.counters.evictions);
        // What ends is no loss.
        let ended = entry.has_ended();
        if !entry.stale {
            self.notice(
                &entry.key,
                match ended {
                    true => EvictionReason::Ended,
                    false => EvictionReason::Memory,
                },
            );
        }
        self.let_go(entry, |errands| &mut errands.evicted);
    }

    /// What is on disk of an entry cannot be read: it goes, if it is this server's to let go,
    /// and is still that one. A copy stays: its owner has the value, and relies on it, and
    /// whoever owns it next finds out.
    pub(crate) fn unreadable(&self, key: Key<'_>, record: &Arc<Record>) -> bool {
        let mut visit = self.table.visit(key);
        let is_owned = matches!(visit.status(), Status::Owned { .. });
        let is_same = visit.peek().is_some_and(|entry| {
            let away = entry.value.away();
            away.is_some_and(|away| Arc::ptr_eq(away, record))
        });
        let entry = (is_owned && is_same).then(|| visit.remove()).flatten();
        drop(visit);
        if let Some(entry) = &entry {
            self.let_go(entry, |errands| &mut errands.unreadable);
        }
        entry.is_some()
    }

    /// Tells copies of an entry that is gone, and the application if it cannot be had again.
    fn let_go(&self, entry: &Entry<V>, lost: impl FnOnce(&mut Errands<V>) -> &mut Keys) {
        if entry.stale || (self.has_loader && self.replication == Replication::None) {
            return;
        }
        let key = (
            KeyPoint(entry.hash.place),
            Bytes::copy_from_slice(&entry.key),
        );
        let mut errands = self.errands();
        match self.replication {
            Replication::None => {}
            Replication::Eventual => errands.touched.push(key.clone()),
            Replication::Strong => errands.withdrawn.push(key.clone()),
        }
        if !self.has_loader && !entry.has_ended() {
            lost(&mut errands).push(key);
        }
        drop(errands);
        self.errand.notify_one();
    }

    /// An entry that was over has been taken out here, where copies follow by
    /// themselves.
    pub(crate) fn ended(&self, entry: &Entry<V>, over: Over) {
        if self.replication == Replication::Eventual {
            let key = Bytes::copy_from_slice(&entry.key);
            self.leave(|errands| errands.touched.push((KeyPoint(entry.hash.place), key)));
        }
        self.left(&entry.key, over.into());
    }

    /// An object has left because it was over.
    pub(crate) fn left(&self, key: &[u8], reason: EvictionReason) {
        Counters::one(match reason {
            EvictionReason::Idle => &self.counters.idled,
            EvictionReason::Memory | EvictionReason::Ended => &self.counters.ended,
        });
        self.notice(key, reason);
    }

    fn notice(&self, key: &[u8], reason: EvictionReason) {
        if self.notices {
            let key = key.to_vec();
            self.leave(|errands| errands.left.push(Eviction { key, reason }));
        }
    }

    /// Leaves something for the driver to do.
    pub(crate) fn leave(&self, errand: impl FnOnce(&mut Errands<V>)) {
        errand(&mut self.errands());
        self.errand.notify_one();
    }

    /// What has been left so far.
    pub(crate) fn take_errands(&self) -> Errands<V> {
        std::mem::take(&mut *self.errands())
    }

    fn errands(&self) -> MutexGuard<'_, Errands<V>> {
        self.errands.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Tells the application that keys are lost.
    pub(crate) fn lose(&self, reason: StateLossReason, keys: Keys) {
        if !keys.is_empty() {
            let keys = keys
                .into_iter()
                .map(|(point, key)| (point, key.to_vec()))
                .collect();
            self.tell(Event::StateLoss(StateLoss {
                reason,
                extent: Extent::All,
                version: None,
                ranges: Vec::new(),
                keys,
            }));
        }
    }

    pub(crate) fn tell(&self, event: Event) {
        let counters = &self.counters;
        match &event {
            Event::StateLoss(loss) => {
                Counters::one(&counters.losses);
                Counters::add(&counters.lost_ranges, loss.ranges.len());
                Counters::add(&counters.lost_keys, loss.keys.len());
                *self.last_loss() = Some((self.clock(), loss.to_string()));
            }
            Event::Gained(slices) => Counters::add(&counters.slices_gained, slices.len()),
            Event::Lost(slices) => Counters::add(&counters.slices_lost, slices.len()),
            Event::Evicted(_) | Event::Drained | Event::Rejoined(_) | Event::NotUnderstood(..) => {}
        }
        self.events.tell(event);
    }

    /// When something was lost last, and what.
    pub(crate) fn last_loss(&self) -> MutexGuard<'_, Option<(Duration, String)>> {
        self.last_loss.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The driver gets on.
    pub(crate) fn turned(&self) {
        let ms = u64::try_from(self.clock().as_millis()).unwrap_or(u64::MAX);
        self.turned_ms.store(ms, Ordering::Relaxed);
    }

    /// For how long it has not been seen to.
    pub(crate) fn stood_still(&self) -> Duration {
        let turned = Duration::from_millis(self.turned_ms.load(Ordering::Relaxed));
        self.clock().saturating_sub(turned)
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            entries: self.table.len(),
            bytes: self.table.bytes(),
            bytes_max: self.table.bound(),
            loading: self.flights.len() as u64,
            ..Stats::default()
        };
        if let Some(spill) = &self.spill {
            spill.fill(&mut stats);
            stats.spilled = self.table.away();
        }
        self.counters.fill(&mut stats);
        stats
    }
}
