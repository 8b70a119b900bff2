//! Which entry makes room: the one not used for longest, of a sample.
//!
//! A sample needs no list that every read would have to reorder, and none of
//! the ghosts that better policies keep; of sixteen candidates the oldest is
//! nearly always among the oldest sixteenth. An entry used only once, when it
//! came in, ages twice as fast as one that was asked for again: a scan over
//! cold keys does not wash out the warm ones.

use super::part::{Entry, Part};
use super::{Key, lock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use trefoil_layout::hash::KeyHash;
use trefoil_linklet_core::Status;
use trefoil_sharder::KeyPoint;

/// Entries looked at for one victim.
const SAMPLE_COUNT: usize = 16;
/// Of one part, so that a sample reaches over several.
const SAMPLE_PER_PART: usize = 4;

/// Random numbers that threads share without care: a lost step only repeats a
/// number.
#[derive(Debug)]
pub(super) struct Dice(AtomicU64);

impl Default for Dice {
    fn default() -> Self {
        Dice(AtomicU64::new(0x9e37_79b9_7f4a_7c15))
    }
}

impl Dice {
    /// Xorshift (Marsaglia, 2003).
    fn roll(&self) -> u64 {
        let mut state = self.0.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.store(state, Ordering::Relaxed);
        state
    }
}

/// The oldest entry seen so far.
struct Candidate {
    age: u64,
    part: usize,
    key: Arc<[u8]>,
    hash: KeyHash,
}

impl Candidate {
    fn key(&self) -> Key<'_> {
        Key {
            bytes: &self.key,
            hash: self.hash,
        }
    }
}

/// Takes one entry out; `None` if there is none that may go.
pub(super) fn one<V>(parts: &[Mutex<Part<V>>], dice: &Dice, now: u32) -> Option<Entry<V>> {
    loop {
        let may_go = |part: &Part<V>, entry: &Entry<V>| {
            evictable(part.rules.status(KeyPoint(entry.hash.place)))
        };
        let victim = choose(parts, dice, now, may_go)?;
        let mut part = lock(&parts[victim.part]);
        // It may have been taken, or withdrawn from this server, meanwhile;
        // then any other will do.
        if evictable(part.rules.status(victim.key().point()))
            && let Some(entry) = part.take(victim.key())
        {
            return Some(entry);
        }
    }
}

/// What `take` makes of an entry that may go; `None` only if there is none at all.
pub(super) fn oldest<V, R>(
    parts: &[Mutex<Part<V>>],
    dice: &Dice,
    now: u32,
    may_go: impl Fn(&Entry<V>) -> bool,
    take: impl Fn(&Entry<V>) -> Option<R>,
) -> Option<R> {
    while let Some(victim) = choose(parts, dice, now, |_, entry| may_go(entry)) {
        let part = lock(&parts[victim.part]);
        let taken = part.find(victim.key()).filter(|entry| may_go(entry));
        if let Some(taken) = taken.and_then(&take) {
            return Some(taken);
        }
    }
    // Where few of very many may go, a sample may have missed them.
    let mut all = parts.iter();
    all.find_map(|part| {
        lock(part)
            .entries()
            .find(|entry| may_go(entry))
            .and_then(&take)
    })
}

fn choose<V>(
    parts: &[Mutex<Part<V>>],
    dice: &Dice,
    now: u32,
    may_go: impl Fn(&Part<V>, &Entry<V>) -> bool,
) -> Option<Candidate> {
    let start = dice.roll() as usize % parts.len();
    let mut seen = 0;
    let mut oldest: Option<Candidate> = None;
    for step in 0..parts.len() {
        let index = (start + step) % parts.len();
        let part = lock(&parts[index]);
        let len = part.len();
        if len == 0 {
            continue;
        }
        let first = dice.roll() as usize % len;
        for i in 0..SAMPLE_PER_PART.min(len) {
            let entry = part.at((first + i) % len);
            if !may_go(&part, entry) {
                continue;
            }
            let idle = u64::from(now.wrapping_sub(entry.used_at));
            let age = if entry.reused { idle } else { 2 * idle + 1 };
            if oldest.as_ref().is_none_or(|oldest| age > oldest.age) {
                oldest = Some(Candidate {
                    age,
                    part: index,
                    key: Arc::clone(&entry.key),
                    hash: entry.hash,
                });
            }
            seen += 1;
        }
        if seen >= SAMPLE_COUNT {
            break;
        }
    }
    oldest
}

/// Whether the rules leave a key to this server's threads. A copy is not: its
/// owner relies on it, and has room of its own to make.
fn evictable(status: Status) -> bool {
    matches!(status, Status::Owned { .. })
}
