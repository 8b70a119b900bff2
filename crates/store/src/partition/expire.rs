//! Background expiry: a crawler that looks at a bounded number of slots at a
//! time, and at none while nothing can have expired.

use super::{Cause, Partition};
use crate::config::Now;
use crate::policy::{Policy, SPACE};
use crate::shared::Shared;

/// Slots whose data is fetched ahead.
const BATCH: u32 = 32;
/// A pass begins no sooner than this after the one before ended, in milliseconds.
const PASS_PAUSE_MS: u64 = 1000;

/// Where the crawler is and when it is needed.
#[derive(Debug, Default)]
pub(super) struct Crawl {
    /// The earliest expiry that any entry has may be this one; 0 is none.
    due_ms: u64,
    /// The earliest expiry seen or written during this pass; 0 is none.
    seen_ms: u64,
    /// The next slot of a pass that is under way.
    cursor: Option<u32>,
    /// When the last pass ended, by the time that never goes back.
    ended_ms: u64,
    /// An entry of the side table, which a pass comes to last, has moved to a
    /// slot that the pass may have left behind.
    missed: bool,
    /// A flush has left entries behind that this pass, or the next, removes.
    pub(super) flushing: bool,
}

fn earlier(a: u64, b: u64) -> u64 {
    match (a, b) {
        (0, other) | (other, 0) => other,
        (a, b) => a.min(b),
    }
}

impl Crawl {
    /// An entry with this expiry was written.
    #[inline]
    pub(super) fn note(&mut self, expiry_ms: u64) {
        if expiry_ms != 0 {
            self.due_ms = earlier(self.due_ms, expiry_ms);
            self.seen_ms = earlier(self.seen_ms, expiry_ms);
        }
    }

    /// Entries became invisible at once: a pass begins anew.
    pub(super) fn flush(&mut self) {
        self.cursor = Some(0);
        self.flushing = true;
    }

    /// An entry has moved out of the side table.
    pub(super) fn moved_in(&mut self) {
        self.missed |= self.is_under_way();
    }

    /// Whether a pass has begun and not ended.
    pub(super) fn is_under_way(&self) -> bool {
        self.cursor.is_some()
    }

    /// The slots got other numbers: a pass that was under way begins anew.
    pub(super) fn restart(&mut self) {
        if self.cursor.is_some() {
            self.cursor = Some(0);
        }
    }
}

impl Partition {
    /// Removes an expired entry.
    pub(super) fn expire(&mut self, shared: &Shared, number: u32) {
        self.policy.remove(number);
        self.discard(shared, number, Cause::Expired);
    }

    /// Looks at up to `slot_count` slots; returns how many entries it removed.
    pub(crate) fn crawl(&mut self, shared: &Shared, now: Now, slot_count: u32) -> u64 {
        self.write_what_is_unwritten(shared);
        // The pause between passes must not last for as long as the clock was set back.
        let (now_ms, passed_ms) = (now.host_ms(), now.unix_ms());
        self.now_s = (passed_ms / 1000) as u32;
        let Some(first) = self.crawl.cursor.or_else(|| {
            let due = self.crawl.due_ms != 0 && self.crawl.due_ms <= now_ms;
            (due && passed_ms >= self.crawl.ended_ms + PASS_PAUSE_MS).then_some(0)
        }) else {
            return 0;
        };
        if first == 0 {
            self.crawl.seen_ms = 0;
        }
        let space = self.table.index.space;
        let last = self.table.end() & !SPACE;
        let end = last.min(first.saturating_add(slot_count));
        let mut expired = 0;
        let mut batch = first;
        while batch < end {
            let batch_end = end.min(batch + BATCH);
            for number in batch..batch_end {
                let entry = self.entry_at(shared, space | number);
                if entry.tag != 0
                    && let Some(head) = shared.data().slice(entry.pointer.offset(), 64)
                {
                    head.prefetch(64);
                }
            }
            for number in batch..batch_end {
                let number = self.newest_number(space | number);
                let entry = self.entry_at(shared, number);
                if entry.tag == 0 {
                    continue;
                }
                if self.is_flushed(entry.version) {
                    self.policy.remove(number);
                    self.discard(shared, number, Cause::Flushed);
                    expired += 1;
                    continue;
                }
                let head = Self::head_at(shared, entry.pointer.offset());
                if head.is_expired(now_ms) {
                    self.expire(shared, number);
                    expired += 1;
                } else if head.expiry_ms != 0 {
                    self.crawl.seen_ms = earlier(self.crawl.seen_ms, head.expiry_ms);
                }
            }
            batch = batch_end;
        }
        if end == last {
            let missed = std::mem::take(&mut self.crawl.missed);
            self.crawl.cursor = (missed && self.crawl.flushing).then_some(0);
            self.crawl.flushing &= missed;
            self.crawl.due_ms = match missed {
                true => earlier(self.crawl.seen_ms, now_ms),
                false => self.crawl.seen_ms,
            };
            self.crawl.ended_ms = passed_ms;
        } else {
            self.crawl.cursor = Some(end);
        }
        expired
    }
}
