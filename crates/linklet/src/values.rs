//! The values as the protocol sees them: marshalled, and only when they move.

use crate::fresh::Sent;
use crate::lifetime::Over;
use crate::marshal::{Marshal, MarshalError, marshal, unmarshal};
use crate::stats::Counters;
use crate::store::Store;
use crate::table::{Found as FoundValue, Key, Room};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use trefoil_freshness_core::table::Stamp;
use trefoil_linklet_core::{
    Entry, Limit, NotStored, Scan, Table as Rules, Ticket, VALUE_BYTES_MAX, Values,
};
use trefoil_sharder::{KeyPoint, Slice};

/// Entries looked at under one lock.
const SCAN_COUNT: usize = 256;

/// A commit that waits for its replicas.
pub(crate) struct Staged<V> {
    pub(crate) key: Bytes,
    /// The new value; `None` removes the key.
    pub(crate) value: Option<Kept<V>>,
    /// Why it is removed, if it is over.
    pub(crate) over: Option<Over>,
}

impl<V> Clone for Staged<V> {
    fn clone(&self) -> Self {
        Staged {
            key: self.key.clone(),
            value: self.value.clone(),
            over: self.over,
        }
    }
}

/// A value that is kept aside until its replicas have confirmed.
pub(crate) struct Kept<V> {
    pub(crate) value: Arc<V>,
    pub(crate) stamp: Stamp,
    /// The history that the stamp belongs to.
    pub(crate) history: u64,
    /// What it replaces was out of date when it was made.
    pub(crate) over_stale: bool,
    /// A refresh brought it: what was told of the key since says whether it is
    /// to be seen, for it is the database that knows better.
    pub(crate) refreshed: bool,
}

impl<V> Clone for Kept<V> {
    fn clone(&self) -> Self {
        Kept {
            value: Arc::clone(&self.value),
            ..*self
        }
    }
}

/// Bytes behind a marshalled value: the history of the database's log that the
/// entry's version is a position in (u64, little-endian; 0 for none).
const HISTORY_BYTES: usize = 8;

/// A value as it goes to another server.
pub(crate) fn stamped<V: 'static>(
    history: u64,
    marshaller: &dyn Marshal<V>,
    key: &[u8],
    value: &V,
) -> Result<Bytes, MarshalError> {
    let bytes = marshal(marshaller, key, value)?;
    Ok(with_history(history, bytes))
}

fn with_history(history: u64, mut bytes: Vec<u8>) -> Bytes {
    bytes.extend_from_slice(&history.to_le_bytes());
    Bytes::from(bytes)
}

/// The values of one life of the server.
pub(crate) struct Objects<V> {
    pub(crate) store: Arc<Store<V>>,
    pub(crate) staged: HashMap<Ticket, Staged<V>>,
    /// The rules that were published last.
    rules: Arc<Rules>,
}

/// A value as it is in the table, to be marshalled outside its lock.
struct Found<V> {
    point: u64,
    key: Arc<[u8]>,
    value: FoundValue<V>,
    stamp: Stamp,
    /// Out of date, or ended: not sent.
    hidden: bool,
}

impl<V: 'static> Objects<V> {
    pub(crate) fn new(store: Arc<Store<V>>) -> Self {
        Objects {
            store,
            staged: HashMap::new(),
            rules: Arc::new(Rules::nothing()),
        }
    }

    /// A commit has come to nothing: what it was to replace is as before.
    pub(crate) fn unstage(&mut self, ticket: Ticket) {
        if let Some(staged) = self.staged.remove(&ticket) {
            let mut visit = self.store.table.visit(self.store.key(&staged.key));
            if let Some(entry) = visit.peek() {
                entry.pinned = false;
                entry.leaving = false;
            }
        }
    }

    /// `sent` was read before the value was found: no change up to there had been
    /// told of this key when it was.
    fn entry(&self, found: &Found<V>, sent: Sent) -> Entry {
        let store = &self.store;
        let value = match &found.value {
            FoundValue::Here(value) => {
                stamped(sent.history, &*store.marshaller, &found.key, &**value)
            }
            // Marshalled already. There is no way to wait here but for the disk itself.
            FoundValue::There(record) => match record.read(&found.key) {
                Ok(bytes) => Ok(with_history(sent.history, Vec::from(bytes))),
                Err(error) => {
                    store.unread(&found.key, &error);
                    Err(MarshalError::new(error.to_string()))
                }
            },
        };
        let value = value.and_then(|bytes| {
            let count = found.key.len() + bytes.len();
            let why = || MarshalError::new(format!("{count} bytes are longer than any may be"));
            (count <= VALUE_BYTES_MAX).then_some(bytes).ok_or_else(why)
        });
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
            version: found.stamp.position.max(sent.reached),
            value: value.ok(),
        }
    }

    /// A value from elsewhere, with room for it; none where it was lost on the
    /// way, which its server has said.
    fn arrived<'a>(&'a self, entry: &'a Entry) -> Result<Option<Arrived<'a, V>>, NotStored> {
        let Some(bytes) = &entry.value else {
            return Ok(None);
        };
        let store = &*self.store;
        let key = store.key(&entry.key);
        let mut history = 0;
        let value = match bytes.split_last_chunk::<HISTORY_BYTES>() {
            _ if key.point() != entry.point => {
                Err("it was hashed in another way: the servers of a corpus have to agree".into())
            }
            None => Err("it is shorter than any".to_owned()),
            Some((bytes, of)) => {
                history = u64::from_le_bytes(*of);
                unmarshal(&*store.marshaller, &entry.key, bytes).map_err(|error| error.to_string())
            }
        };
        let value = match value {
            Ok(value) => Arc::new(value),
            Err(error) => {
                // With strong copies it is sent again and again.
                if let Some(count) = store.unreadable.tell(Instant::now()) {
                    tracing::error!(
                        key = %String::from_utf8_lossy(&entry.key),
                        %error,
                        count,
                        "a value that arrived cannot be used"
                    );
                }
                return Err(NotStored::Unreadable);
            }
        };
        let room = store
            .reserve(key, store.weight(&entry.key, &value))
            .map_err(|_| NotStored::NoRoom)?;
        Ok(Some(Arrived {
            key,
            value,
            history,
            room,
        }))
    }
}

/// A value from elsewhere.
struct Arrived<'a, V> {
    key: Key<'a>,
    value: Arc<V>,
    /// The history that its version is a position in.
    history: u64,
    room: Room<'a, V>,
}

impl<V: 'static> Arrived<'_, V> {
    /// None if it is not known to be fresh: under the lock of its part.
    fn stamp(&self, store: &Store<V>, version: u64) -> Option<Stamp> {
        store.fresh.receive(self.key.hash, self.history, version)
    }
}

/// Has the kernel read at once what of a batch is on disk, and goes along.
fn prefetch<V>(batch: &[Found<V>], bytes_max: usize) {
    let mut bytes = 0;
    for found in batch.iter().filter(|found| !found.hidden) {
        if let FoundValue::There(record) = &found.value {
            record.prefetch();
            bytes += record.len();
        }
        if bytes > bytes_max as u64 {
            return;
        }
    }
}

fn found<V>(entry: &crate::table::Entry<V>) -> Found<V> {
    Found {
        point: entry.hash.place,
        key: Arc::clone(&entry.key),
        value: entry.value.found(),
        stamp: entry.stamp,
        hidden: entry.is_hidden(),
    }
}

impl<V: Send + Sync + 'static> Values for Objects<V> {
    fn publish(&mut self, table: Arc<Rules>) {
        let objects = &self.store.table;
        if objects.lifetimes().idle.is_some() {
            // Whoever was their owner may have let others use them till now. Where this
            // server was it, and its lease had run out, nobody could use them.
            let now = objects.lifetimes().use_ms();
            let has_lapsed = |until| self.store.clock() >= until;
            let anew = match self.rules.serve_until().is_some_and(has_lapsed) {
                true => table.owned_anew(&Rules::nothing()),
                false => table.owned_anew(&self.rules),
            };
            for slice in anew {
                objects.mark_slice(slice, |entry| entry.used_ms = now);
            }
        }
        objects.publish(&table);
        self.rules = table;
    }

    fn scan(&mut self, slice: Slice, limit: Limit) -> Scan {
        let sent = self.store.fresh.sent();
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut rest = slice;
        loop {
            let count_max = limit
                .entries
                .saturating_sub(entries.len())
                .clamp(1, SCAN_COUNT);
            let (batch, mut last) = self.store.table.scan(rest, count_max, found);
            prefetch(&batch, limit.bytes.saturating_sub(bytes));
            let mut batch = batch.into_iter().peekable();
            let mut full = false;
            while let Some(next) = batch.next() {
                if !next.hidden {
                    let entry = self.entry(&next, sent);
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
        let sent = self.store.fresh.sent();
        let key = self.store.key(key);
        debug_assert_eq!(key.point(), point, "hashed as in the request");
        let found = self.store.table.visit(key).peek().map(|e| found(e))?;
        (!found.hidden).then(|| self.entry(&found, sent))
    }

    fn store(&mut self, entry: Entry) -> Result<(), NotStored> {
        let Some(arrived) = self.arrived(&entry)? else {
            return Ok(());
        };
        let store = &self.store;
        let mut visit = store.table.visit(arrived.key);
        // A change may have been told here while the value was on its way, or be
        // unknown here. Without a loader nothing could bring the value back, and
        // only a change that was told counts.
        let stamp = arrived.stamp(store, entry.version).or_else(|| {
            let unknown = !store.has_loader && arrived.history != store.fresh.history();
            unknown.then_some(Stamp::UNKNOWN)
        });
        let old = match stamp {
            Some(stamp) => visit.put(arrived.value, stamp, arrived.room),
            None => visit.remove(),
        };
        drop(visit);
        if stamp.is_none() && !store.has_loader {
            let named = (entry.point, entry.key.clone());
            store.leave(|errands| errands.dropped.push(named));
        }
        drop(old);
        Counters::one(&store.counters.received);
        Ok(())
    }

    /// A copy is confirmed, so it is kept, whatever was told here. If it may be
    /// out of date the owner hears so, too, and withdraws it by a commit. Until
    /// then it is hidden where a loader can bring it back.
    fn store_copy(&mut self, entry: Entry) -> Result<(), NotStored> {
        let Some(arrived) = self.arrived(&entry)? else {
            return Ok(());
        };
        let store = &self.store;
        let mut visit = store.table.visit(arrived.key);
        let stamp = arrived.stamp(store, entry.version);
        let hidden = stamp.is_none() && store.has_loader;
        let stamp = stamp.unwrap_or(Stamp::UNKNOWN);
        let old = visit.put(arrived.value, stamp, arrived.room);
        if let Some(entry) = visit.peek().filter(|_| hidden) {
            entry.stale = true;
        }
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

    fn forget_but(&mut self, slice: Slice, stays: &dyn Fn(KeyPoint, &[u8]) -> bool) {
        self.store.table.remove_slice(slice, |entry, _| {
            !stays(KeyPoint(entry.hash.place), &entry.key)
        });
    }

    fn settle(&mut self, ticket: Ticket) {
        let Some(staged) = self.staged.remove(&ticket) else {
            return;
        };
        let store = &self.store;
        let key: Key<'_> = store.key(&staged.key);
        let old = match staged.value {
            Some(Kept {
                value,
                stamp,
                history,
                over_stale,
                refreshed,
            }) => {
                let weight = store.weight(&staged.key, &value);
                let room = store.reserve_promised(weight);
                let mut visit = store.table.visit(key);
                // Made of a value that is out of date by now, it is, too. Without a
                // loader what the application has put in counts, but for what a
                // refresh brought the database knows better.
                let told = refreshed && history == store.fresh.history();
                let fresh = match visit.peek().map(|entry| entry.stale) {
                    Some(false) => true,
                    Some(true) if !over_stale => false,
                    _ if store.has_loader || told => store.fresh.is_fresh(key.hash, history, stamp),
                    _ => true,
                };
                let old = visit.put(value, stamp, room);
                // A change was told while the replicas confirmed: it is about to be
                // withdrawn, and is not seen until then.
                if let Some(entry) = visit.peek().filter(|_| !fresh) {
                    entry.stale = true;
                    let named = (key.point(), staged.key.clone());
                    drop(visit);
                    store.leave(|errands| errands.withdrawn.push(named));
                }
                old
            }
            None => {
                let old = store.table.visit(key).remove();
                if let (Some(_), Some(over)) = (&old, staged.over) {
                    store.left(&staged.key, over.into());
                }
                old
            }
        };
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainMarshal;
    use crate::event::events;
    use crate::lifetime::Lifetimes;
    use crate::store::StoreOptions;
    use std::collections::BTreeSet;
    use std::time::Duration;
    use trefoil_layout::hash::KeyHasher;
    use trefoil_linklet_core::{Config, Core, Replication};
    use trefoil_sharder::{Assignment, AssignmentVersion, ServerId};

    /// Nobody could use an object while its owner had no lease.
    #[test]
    fn time_without_a_lease_makes_nothing_idle() {
        const IDLE: Duration = Duration::from_secs(1);
        let (events, _heard) = events();
        let store = Arc::new(Store::<Vec<u8>>::new(StoreOptions {
            memory: 1 << 20,
            hasher: KeyHasher::default(),
            replication: Replication::Strong,
            marshaller: Box::new(PlainMarshal),
            has_loader: false,
            lifetimes: Lifetimes::new(None, Some(IDLE)),
            events,
            notices: false,
            stale_max: None,
            spill: None,
        }));
        let mut objects = Objects::new(Arc::clone(&store));
        let config = Config {
            copies_min: 1,
            ..Config::new(Replication::Strong)
        };
        let me = ServerId(1);
        let mut core = Core::new(me, config).expect("a good configuration");
        let map = Assignment::even(AssignmentVersion::first_of(1), &[me], 1, 1);
        let (now, lease) = (store.clock(), IDLE / 4);
        core.lease(now, &mut objects, now + lease);
        core.learn(now, &mut objects, &map, &BTreeSet::from([me]));
        let key = store.key(b"key");
        let room = store.reserve(key, 100).expect("room");
        let mut visit = store.table.visit(key);
        visit.put(Arc::new(vec![1]), Stamp::UNKNOWN, room);
        drop(visit);
        let is_over = || store.table.visit(key).over();
        assert_eq!(is_over(), None);
        std::thread::sleep(IDLE + Duration::from_millis(50));
        assert_eq!(is_over(), Some(Over::Idle), "but for the lease");
        let now = store.clock();
        core.lease(now, &mut objects, now + Duration::from_secs(60));
        assert_eq!(is_over(), None, "as if used when the lease came");
        // With a lease time passes.
        std::thread::sleep(IDLE + Duration::from_millis(50));
        let now = store.clock();
        core.lease(now, &mut objects, now + Duration::from_secs(90));
        assert_eq!(is_over(), Some(Over::Idle));
    }
}
