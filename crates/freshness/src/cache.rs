//! A small cache of the database's rows that is kept fresh: the shortest way
//! to use a relay, and the reference for how to use [`FreshTable`].

use crate::event::{Gap, Progress, Sink};
use crate::position::Place;
use crate::table::{FillToken, FreshTable, Refused, Stamp, Sweep, Verdict, key_hash};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Bounds of a [`FreshCache`].
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Values kept at most.
    pub capacity: usize,
    /// Memory for positions, see [`FreshTable::new`].
    pub slots: usize,
    /// Nothing is served from the cache while it may be older than this. None:
    /// whatever the age.
    pub stale_max: Option<Duration>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions {
            capacity: 100_000,
            slots: crate::table::SLOTS_DEFAULT,
            stale_max: None,
        }
    }
}

/// What a cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Served from memory.
    pub hits: u64,
    /// Loaded.
    pub misses: u64,
    /// Of those, loaded only because what was kept might have been too old.
    pub too_old: u64,
    /// Loaded values that were served but not kept: the key changed meanwhile.
    pub refused: u64,
    /// Values dropped by invalidations.
    pub invalidated: u64,
    /// Values replaced by refreshes.
    pub refreshed: u64,
    /// Gaps and interruptions that made values go.
    pub sweeps: u64,
    /// Values dropped by them.
    pub swept: u64,
}

/// A bounded map of keys to values of the database. Cheap to clone.
pub struct FreshCache<V> {
    shared: Arc<Shared<V>>,
}

struct Shared<V> {
    state: Mutex<State<V>>,
    moved: watch::Sender<u64>,
    options: CacheOptions,
}

struct State<V> {
    table: FreshTable,
    values: HashMap<Bytes, Kept<V>>,
    /// Keys in the order of storing, for eviction; some may be gone.
    order: VecDeque<Bytes>,
    counts: CacheCounts,
}

struct Kept<V> {
    value: Arc<V>,
    stamp: Stamp,
    /// Asked for since eviction last looked.
    touched: bool,
}

impl<V> Clone for FreshCache<V> {
    fn clone(&self) -> Self {
        FreshCache {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<V: Send + Sync + 'static> FreshCache<V> {
    /// An empty cache, which keeps nothing until its sink is told of progress.
    pub fn new(options: CacheOptions) -> Self {
        let state = State {
            table: FreshTable::new(options.slots),
            values: HashMap::new(),
            order: VecDeque::new(),
            counts: CacheCounts::default(),
        };
        FreshCache {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                moved: watch::Sender::new(0),
                options,
            }),
        }
    }

    /// What a relay tells. `read` makes a value of a refresh's bytes; where it
    /// gives none, or panics, the key is dropped.
    pub fn sink(
        &self,
        read: impl Fn(&Bytes, &Bytes) -> Option<V> + Send + 'static,
    ) -> CacheSink<V> {
        CacheSink {
            cache: self.clone(),
            read: Box::new(read),
        }
    }

    /// What is kept of a key, unless it may be too old.
    pub fn get(&self, key: &[u8]) -> Option<Arc<V>> {
        self.look(key, 0)
    }

    /// What is kept of a key, else what `load` reads from the database, which
    /// must be the server that the relay follows, not a replica of it.
    ///
    /// # Errors
    /// Those of `load`.
    pub async fn get_or_load<E>(
        &self,
        key: &Bytes,
        load: impl AsyncFnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        let token = self.state().table.token();
        self.fill(key, token, load).await
    }

    /// The same, for a reader who knows of a commit at `position`: it is
    /// contained in the answer. Waits up to `patience` for the stream to get
    /// there, then loads.
    ///
    /// # Errors
    /// Those of `load`.
    pub async fn get_at_least<E>(
        &self,
        key: &Bytes,
        position: u64,
        patience: Duration,
        load: impl AsyncFnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        let mut moved = self.shared.moved.subscribe();
        if let Some(value) = self.look(key, position) {
            return Ok(value);
        }
        let kept = self.state().values.contains_key(key);
        if kept {
            let there = moved.wait_for(|progress| *progress >= position);
            let _ = tokio::time::timeout(patience, there).await;
            if let Some(value) = self.look(key, position) {
                return Ok(value);
            }
        }
        let token = self.state().table.token().after(position);
        self.fill(key, token, load).await
    }

    /// Waits until everything up to a position has been told.
    pub async fn reached(&self, position: u64) {
        let mut moved = self.shared.moved.subscribe();
        // The sender lives as long as `self`.
        let _ = moved.wait_for(|progress| *progress >= position).await;
    }

    /// How old what is kept may be; none if nothing is known.
    pub fn staleness(&self) -> Option<Duration> {
        self.state().table.staleness(Instant::now())
    }

    /// Everything up to here has been told.
    pub fn position(&self) -> u64 {
        self.state().table.position()
    }

    /// Where to go on after an interruption.
    pub fn place(&self) -> Option<Place> {
        self.state().table.place()
    }

    /// What was done so far.
    pub fn counts(&self) -> CacheCounts {
        self.state().counts
    }

    /// Values that are kept.
    pub fn len(&self) -> usize {
        self.state().values.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A key that is kept; different numbers give different ones.
    pub fn any_key(&self, number: usize) -> Option<Bytes> {
        let state = self.state();
        let at = number.checked_rem(state.order.len())?;
        let later = state.order.iter().skip(at);
        let mut keys = later.chain(&state.order);
        keys.find(|key| state.values.contains_key(*key)).cloned()
    }

    /// What is kept and contains the commits up to a position.
    fn look(&self, key: &[u8], position: u64) -> Option<Arc<V>> {
        let mut state = self.state();
        let state = &mut *state;
        let kept = state.values.get_mut(key)?;
        if let Some(max) = self.shared.options.stale_max {
            let staleness = state.table.staleness(Instant::now());
            if staleness.is_none_or(|staleness| staleness > max) {
                state.counts.too_old += 1;
                return None;
            }
        }
        if kept.stamp.position < position && !state.table.reached(position) {
            return None;
        }
        kept.touched = true;
        state.counts.hits += 1;
        Some(Arc::clone(&kept.value))
    }

    async fn fill<E>(
        &self,
        key: &Bytes,
        token: FillToken,
        load: impl AsyncFnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        let value = Arc::new(load().await?);
        let mut state = self.state();
        state.counts.misses += 1;
        match state.table.admit(key_hash(key), token, Instant::now()) {
            Ok(stamp) => state.store(key, &value, stamp, self.shared.options.capacity),
            Err(Refused::Changed | Refused::Gap | Refused::NotFollowing) => {
                state.counts.refused += 1;
            }
        }
        Ok(value)
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        // No call of foreign code happens under the lock, so what a panicking
        // thread left behind is whole.
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> State<V> {
    fn store(&mut self, key: &Bytes, value: &Arc<V>, stamp: Stamp, capacity: usize) {
        let kept = Kept {
            value: Arc::clone(value),
            stamp,
            touched: false,
        };
        if self.values.insert(key.clone(), kept).is_none() {
            self.order.push_back(key.clone());
        }
        while self.values.len() > capacity || self.order.len() > 2 * capacity + 16 {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            match self.values.get_mut(&oldest) {
                Some(kept) if kept.touched => {
                    kept.touched = false;
                    self.order.push_back(oldest);
                }
                Some(_) => drop(self.values.remove(&oldest)),
                None => {}
            }
        }
    }

    fn sweep(&mut self, sweep: Sweep) {
        let Sweep::Drop { scope, before } = sweep else {
            return;
        };
        let count = self.values.len();
        let stays =
            |key: &Bytes, kept: &Kept<V>| kept.stamp.position >= before || !scope.covers(key);
        self.values.retain(|key, kept| stays(key, kept));
        self.counts.sweeps += 1;
        self.counts.swept += (count - self.values.len()) as u64;
    }
}

/// Makes a value of a key and a refresh's bytes.
type ReadOf<V> = dyn Fn(&Bytes, &Bytes) -> Option<V> + Send;

/// Keeps a [`FreshCache`] fresh.
pub struct CacheSink<V> {
    cache: FreshCache<V>,
    read: Box<ReadOf<V>>,
}

impl<V: Send + Sync + 'static> Sink for CacheSink<V> {
    fn begun(&mut self, place: &Place) {
        let mut state = self.cache.state();
        let sweep = state.table.begun(place);
        state.sweep(sweep);
    }

    fn invalidate(&mut self, key: &Bytes, position: u64) {
        let mut state = self.cache.state();
        if state.table.invalidate(key_hash(key), position) == Verdict::Drop
            && state.values.remove(key).is_some()
        {
            state.counts.invalidated += 1;
        }
    }

    fn refresh(&mut self, key: &Bytes, value: &Bytes, position: u64) {
        // One row that cannot be read is not to end the stream of all.
        let value = catch_unwind(AssertUnwindSafe(|| (self.read)(key, value))).unwrap_or(None);
        let mut state = self.cache.state();
        let state = &mut *state;
        let kept = state.values.get_mut(key);
        let stamp = kept.as_ref().map(|kept| kept.stamp);
        match (state.table.refresh(key_hash(key), position, stamp), kept) {
            (Verdict::Replace(stamp), Some(kept)) if value.is_some() => {
                if let Some(value) = value {
                    kept.value = Arc::new(value);
                    kept.stamp = stamp;
                    state.counts.refreshed += 1;
                }
            }
            (Verdict::Keep, _) | (_, None) => {}
            (Verdict::Drop | Verdict::Replace(_), Some(_)) => {
                state.values.remove(key);
                state.counts.invalidated += 1;
            }
        }
    }

    fn gap(&mut self, gap: &Gap) {
        let mut state = self.cache.state();
        let sweep = state.table.gap(gap);
        state.sweep(sweep);
    }

    fn progress(&mut self, progress: Progress) {
        let position = {
            let mut state = self.cache.state();
            state.table.progress(progress);
            state.table.position()
        };
        self.cache.shared.moved.send_replace(position);
    }

    fn taken(&self) -> u64 {
        self.cache.position()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{GapReason, Scope};
    use crate::position::History;
    use std::convert::Infallible;

    /// A load that somebody's position of the log stands behind, and a TRUNCATE that
    /// is told with a lower one: that of the last heartbeat.
    #[tokio::test]
    async fn a_gap_by_notifications_takes_what_was_loaded_for_a_later_position() {
        let cache = FreshCache::<u8>::new(CacheOptions::default());
        let mut sink = cache.sink(|_, _| None);
        let history = History::notified("started/session");
        let place = |position| Place {
            history: history.clone(),
            position,
        };
        let progress = |position| Progress {
            position,
            as_of: None,
        };
        sink.begun(&place(100));
        sink.progress(progress(100));
        let key = Bytes::from_static(b"item/1");
        let load = async || Ok::<u8, Infallible>(1);
        let wait = Duration::ZERO;
        let Ok(read) = cache.get_at_least(&key, 500, wait, load).await;
        assert_eq!((*read, cache.get(&key).is_some()), (1, true));
        // One that has begun before the gap is refused after it.
        let other = Bytes::from_static(b"item/2");
        let overtaken = async || {
            sink.gap(&Gap {
                from: 0,
                to: place(101),
                reason: GapReason::Truncated,
                tables: vec!["public.item".into()],
                scope: Scope::Prefixes(vec![Bytes::from_static(b"item/")]),
            });
            Ok::<u8, Infallible>(2)
        };
        let Ok(_) = cache.get_at_least(&other, 500, wait, overtaken).await;
        assert!(cache.get(&key).is_none() && cache.get(&other).is_none());
    }
}
