//! The values as the protocol sees them: marshalled, and only when they move.

use crate::marshal::{marshal, unmarshal};
use crate::stats::Counters;
use crate::store::Store;
use crate::table::Key;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use trefoil_linklet_core::{Entry, Limit, NotStored, Scan, Table as Rules, Ticket, Values};
use trefoil_sharder::{KeyPoint, Slice};

/// Entries looked at under one lock.
const SCAN_COUNT: usize = 256;

/// A commit that waits for its replicas.
pub(crate) struct Staged<V> {
    pub(crate) key: Bytes,
    /// The new value, with its position; `None` removes the key.
    pub(crate) value: Option<(Arc<V>, u64)>,
}

/// The values of one life of the server.
pub(crate) struct Objects<V> {
    pub(crate) store: Arc<Store<V>>,
    pub(crate) staged: HashMap<Ticket, Staged<V>>,
}

/// A value as it is in the table, to be marshalled outside its lock.
struct Found<V> {
    point: u64,
    key: Arc<[u8]>,
    value: Arc<V>,
    position: u64,
    stale: bool,
}

impl<V: 'static> Objects<V> {
    /// `progress` was read before the value was found: no change up to it had
    /// been announced of this key when it was.
    fn entry(&self, found: &Found<V>, progress: u64) -> Entry {
        let value = marshal(&*self.store.marshaller, &found.key, &*found.value);
        if let Err(error) = &value {
            tracing::error!(
                key = %String::from_utf8_lossy(&found.key),
                %error,
                "a value cannot be marshalled and is lost with its move"
            );
        }
        Counters::one(&self.store.counters.sent);
        Entry {
            point: KeyPoint(found.point),
            key: Bytes::copy_from_slice(&found.key),
            version: found.position.max(progress),
            value: value.ok().map(Bytes::from),
        }
    }
}

fn found<V>(entry: &crate::table::Entry<V>) -> Found<V> {
    Found {
        point: entry.hash.place,
        key: Arc::clone(&entry.key),
        value: Arc::clone(&entry.value),
        position: entry.position,
        stale: entry.stale,
    }
}

impl<V: Send + Sync + 'static> Values for Objects<V> {
    fn publish(&mut self, table: Arc<Rules>) {
        self.store.table.publish(&table);
    }

    fn scan(&mut self, slice: Slice, limit: Limit) -> Scan {
        let progress = self.store.fresh.progress();
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut rest = slice;
        loop {
            let count_max = limit
                .entries
                .saturating_sub(entries.len())
                .clamp(1, SCAN_COUNT);
            let (batch, mut last) = self.store.table.scan(rest, count_max, found);
            let mut batch = batch.into_iter().peekable();
            let mut full = false;
            while let Some(next) = batch.next() {
                if !next.stale {
                    let entry = self.entry(&next, progress);
                    bytes += entry.key.len() + entry.value.as_ref().map_or(0, Bytes::len);
                    entries.push(entry);
                }
                full = bytes >= limit.bytes || entries.len() >= limit.entries;
                let torn = batch.peek().is_some_and(|more| more.point == next.point);
                if full && !torn && batch.peek().is_some() {
                    last = KeyPoint(next.point);
                    break;
                }
            }
            let next = last.0.checked_add(1).filter(|&next| next <= slice.last().0);
            match next {
                Some(next) if !full => rest = Slice::spanning(KeyPoint(next), slice.last()),
                _ => return Scan { entries, last },
            }
        }
    }

    fn get(&mut self, point: KeyPoint, key: &Bytes) -> Option<Entry> {
        let progress = self.store.fresh.progress();
        let key = self.store.key(key);
        debug_assert_eq!(key.point(), point, "hashed as in the request");
        let found = self.store.table.visit(key).peek().map(|e| found(e))?;
        (!found.stale).then(|| self.entry(&found, progress))
    }

    fn store(&mut self, entry: Entry) -> Result<(), NotStored> {
        let Some(bytes) = &entry.value else {
            return Ok(());
        };
        let store = &self.store;
        let key = store.key(&entry.key);
        let value = if key.point() == entry.point {
            unmarshal(&*store.marshaller, &entry.key, bytes).map_err(|error| error.to_string())
        } else {
            Err("it was hashed in another way: the servers of a corpus have to agree".to_owned())
        };
        let value = match value {
            Ok(value) => Arc::new(value),
            Err(error) => {
                tracing::error!(
                    key = %String::from_utf8_lossy(&entry.key),
                    %error,
                    "a value that arrived cannot be used"
                );
                return Err(NotStored::Unreadable);
            }
        };
        let room = store
            .reserve(store.weight(&entry.key, &value))
            .map_err(|_| NotStored::NoRoom)?;
        let mut visit = store.table.visit(key);
        // A change that was announced here while the value was on its way.
        let old = if store.fresh.admits(key.hash, entry.version) {
            visit.put(value, entry.version, room)
        } else {
            visit.remove()
        };
        drop(visit);
        drop(old);
        Counters::one(&store.counters.received);
        Ok(())
    }

    fn remove(&mut self, _point: KeyPoint, key: &Bytes) {
        let key = self.store.key(key);
        self.store.table.visit(key).remove();
    }

    fn forget(&mut self, slice: Slice) {
        self.store.table.remove_slice(slice, |_, _| true);
    }

    fn settle(&mut self, ticket: Ticket) {
        let Some(staged) = self.staged.remove(&ticket) else {
            return;
        };
        let store = &self.store;
        let key: Key<'_> = store.key(&staged.key);
        let old = match staged.value {
            Some((value, position)) => {
                let weight = store.weight(&staged.key, &value);
                let room = store
                    .table
                    .reserve_promised(weight, |entry| store.evicted(&entry));
                store.table.visit(key).put(value, position, room)
            }
            None => store.table.visit(key).remove(),
        };
        drop(old);
    }
}
