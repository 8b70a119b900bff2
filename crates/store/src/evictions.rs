//! Items that were evicted, told to those who watch. Nobody watches as a rule:
//! then an eviction costs the look at one flag.

use crate::shared::lock;
use crate::store::Store;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use trefoil_layout::Version;

/// Evictions that wait for somebody to take them; later ones are counted only.
const COUNT_MAX: usize = 4096;
/// Bytes of a key that are kept.
const KEY_KEPT_MAX: usize = 250;

/// An item that was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The first bytes of its key, 250 at most.
    pub key: Box<[u8]>,
    /// Bytes of the whole key.
    pub key_len: usize,
    /// Bytes of its value.
    pub value_len: usize,
    /// The mutation that wrote it.
    pub version: Version,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// It was read since it was written, as far as is known here.
    pub hit_before: bool,
    /// When it was last read, in seconds since the Unix epoch, where that is kept.
    pub last_use_s: Option<u32>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Evictions {
    is_watched: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    evicted: VecDeque<Evicted>,
    lost: u64,
}

impl Evictions {
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn tell(&self, key: &[u8], evicted: Evicted) {
        let mut waiting = lock(&self.waiting);
        if waiting.evicted.len() == COUNT_MAX {
            waiting.lost += 1;
            return;
        }
        waiting.evicted.push_back(Evicted {
            key: key[..key.len().min(KEY_KEPT_MAX)].into(),
            key_len: key.len(),
            ..evicted
        });
    }
}

impl Store {
    /// Whether evictions are kept from now on, for [`Store::take_evicted`].
    pub fn watch_evictions(&self, wanted: bool) {
        let evictions = &self.shared.evictions;
        evictions.is_watched.store(wanted, Ordering::Relaxed);
        if !wanted {
            *lock(&evictions.waiting) = Waiting::default();
        }
    }

    /// What was evicted since the last time, in order, and how many more there
    /// were than are kept.
    pub fn take_evicted(&self) -> (Vec<Evicted>, u64) {
        let mut waiting = lock(&self.shared.evictions.waiting);
        let lost = std::mem::take(&mut waiting.lost);
        (waiting.evicted.drain(..).collect(), lost)
    }
}
