//! What goes in one chunk.

use crate::message::Entry;
use crate::values::{self, Limit, Values};
use bytes::Bytes;
use trefoil_sharder::{KeyPoint, Slice};

/// Ranges, with all values in them.
#[derive(Default)]
pub(crate) struct Part {
    /// Disjoint, ascending.
    pub(crate) sent: Vec<Slice>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) bytes: usize,
}

impl Part {
    pub(crate) fn has(&self, point: KeyPoint) -> bool {
        self.sent.last().is_some_and(|last| point <= last.last())
    }

    /// Adds the beginning of a range that lies behind all that is here: a point at
    /// least, and no more once there is as much as this.
    pub(crate) fn scan(&mut self, values: &mut dyn Values, mut slice: Slice, limit: Limit) {
        let (bytes_before, count_before) = (self.bytes, self.entries.len());
        loop {
            let (bytes, count) = (self.bytes - bytes_before, self.entries.len() - count_before);
            let rest = Limit {
                bytes: limit.bytes.saturating_sub(bytes),
                entries: limit.entries.saturating_sub(count),
            };
            if count > 0 && (rest.bytes == 0 || rest.entries == 0) {
                return;
            }
            let scan = values::scan(values, slice, rest);
            let last = scan.last.clamp(slice.start(), slice.last());
            for entry in &scan.entries {
                self.bytes += entry.key.len() + entry.value.as_ref().map_or(0, Bytes::len);
            }
            self.entries.extend(scan.entries);
            self.sent.push(Slice::spanning(slice.start(), last));
            match slice.split_before(KeyPoint(last.0.saturating_add(1))) {
                Some((_, rest)) if last < slice.last() => slice = rest,
                _ => return,
            }
        }
    }
}
