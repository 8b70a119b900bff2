//! Whose value goes to disk.

use super::evict;
use super::value::RECORD_BYTES;
use super::{ENTRY_OVERHEAD, Entry, Key, Table};
use crate::spill::Record;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trefoil_layout::hash::KeyHash;

/// Bytes of memory that sending a value away has to free.
const GAIN_MIN: u64 = 64;

/// An entry whose value is to go to disk.
pub(crate) struct Victim<V> {
    pub(crate) key: Arc<[u8]>,
    pub(crate) hash: KeyHash,
    pub(crate) value: Arc<V>,
    /// Where it is already, unchanged.
    pub(crate) record: Option<Arc<Record>>,
    /// Bytes of memory that this frees.
    pub(crate) gain: u64,
}

impl<V> Victim<V> {
    pub(crate) fn key(&self) -> Key<'_> {
        Key {
            bytes: &self.key,
            hash: self.hash,
        }
    }
}

/// Values that have been chosen and are not away yet, by where they are in memory: each is
/// held meanwhile, so no other one can be there.
#[derive(Debug, Default)]
pub(crate) struct Sent(HashSet<usize>);

impl Sent {
    fn has<V>(&self, value: &Arc<V>) -> bool {
        self.0.contains(&at(value))
    }
}

fn at<V>(value: &Arc<V>) -> usize {
    Arc::as_ptr(value) as usize
}

impl<V> Table<V> {
    /// What an entry counts as whose value is on disk.
    pub(crate) fn weight_away(key: &[u8]) -> u64 {
        (key.len() + ENTRY_OVERHEAD) as u64 + RECORD_BYTES
    }

    /// What is added where the value is in memory and on disk.
    pub(crate) fn weight_of_place() -> u64 {
        RECORD_BYTES
    }

    /// The entry whose value is to go to disk next: the one not used for longest, of a
    /// sample. `written`: only one that needs no writing. Copies for others go, too: where
    /// a value is changes nothing of what it is worth.
    pub(crate) fn victim(&self, sent: &mut Sent, written: bool) -> Option<Victim<V>> {
        let may_go = |entry: &Entry<V>| {
            let gain = entry.weight.saturating_sub(Self::weight_away(&entry.key));
            let held = entry.pinned || entry.leaving || entry.stays || entry.is_hidden();
            let here = entry.value.here().is_some_and(|value| !sent.has(value));
            let known = entry.value.record().is_some();
            here && !held && gain >= GAIN_MIN && (known || !written)
        };
        let now = self.tick.load(Ordering::Relaxed);
        let take = |entry: &Entry<V>| {
            Some(Victim {
                key: Arc::clone(&entry.key),
                hash: entry.hash,
                value: Arc::clone(entry.value.here()?),
                record: entry.value.record().map(Arc::clone),
                gain: entry.weight.saturating_sub(Self::weight_away(&entry.key)),
            })
        };
        let victim = evict::oldest(&self.parts, &self.dice, now, may_go, take)?;
        sent.0.insert(at(&victim.value));
        Some(victim)
    }
}
