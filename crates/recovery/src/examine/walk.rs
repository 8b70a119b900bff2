//! Which places were told by whom: all replicas of a shard, read side by side.

use super::seen::{Long, Name, Seen, SeenKeys};
use super::verdict::Copy;
use std::collections::VecDeque;
use std::ops::Range;

/// What one replica has told beyond what was compared.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// It is read no more.
    pub(super) is_lost: bool,
    /// A question to it is under way.
    pub(super) is_asked: bool,
    /// Everything before this place was told.
    pub(super) read_to: u64,
    pub(super) keys: SeenKeys,
    /// Of these, values that are to be looked up.
    pub(super) long: Vec<Long>,
}

impl Reader {
    /// Begins anew.
    pub(super) fn clear(&mut self) {
        self.read_to = 0;
        self.keys.clear();
        self.long.clear();
    }

    /// What the lookup of the last long value has brought: its data entry, if it still
    /// has that version.
    pub(super) fn looked_up(&mut self, found: Option<Seen>) {
        let Some(Long { name, key, .. }) = self.long.pop() else {
            return;
        };
        let found = found.unwrap_or_else(|| Seen {
            copy: Copy::Unread,
            expiry_ms: 0,
            key: Some(key.into()),
        });
        self.keys.insert(name, found);
    }

    fn take_before(&mut self, place: u64) -> SeenKeys {
        let rest = Name::first_at(place).map(|first| self.keys.split_off(&first));
        let rest = rest.unwrap_or_default();
        std::mem::replace(&mut self.keys, rest)
    }
}

/// Places that are left to be compared.
#[derive(Debug)]
pub(super) struct Walk {
    ranges: VecDeque<Range<u64>>,
}

/// Places that all have told, and what they told of them.
pub(super) struct Window {
    pub(super) places: Range<u64>,
    /// For each replica.
    pub(super) told: Vec<SeenKeys>,
}

impl Walk {
    /// Over ranges in ascending order.
    pub(super) fn over(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let ranges = ranges.into_iter().filter(|range| !range.is_empty());
        Walk {
            ranges: ranges.collect(),
        }
    }

    /// Places that are left.
    pub(super) fn left(&self) -> u64 {
        self.ranges
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// What a reader is to be asked for; `None` if it has told enough for now, or all
    /// is done.
    pub(super) fn next_of(&self, reader: &Reader) -> Option<Range<u64>> {
        let range = self.ranges.front()?;
        (reader.read_to <= range.start).then(|| range.clone())
    }

    /// The places that all living readers have told of, if there are any: they count as
    /// compared from then on.
    pub(super) fn advance(&mut self, readers: &mut [Reader]) -> Option<Window> {
        let range = self.ranges.front_mut()?;
        let living = || readers.iter().filter(|reader| !reader.is_lost);
        if living().any(|reader| !reader.long.is_empty()) {
            return None;
        }
        let end = living().map(|reader| reader.read_to).min()?.min(range.end);
        if end <= range.start {
            return None;
        }
        let places = range.start..end;
        range.start = end;
        if range.is_empty() {
            self.ranges.pop_front();
        }
        let told = readers.iter_mut().map(|reader| reader.take_before(end));
        Some(Window {
            places,
            told: told.collect(),
        })
    }
}
