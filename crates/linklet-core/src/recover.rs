//! Copies for somebody who found that nobody has the authority: sent in chunks, in
//! turns ([`bulk`](crate::bulk)). A server may be asked for all that it has copies of;
//! to marshal that at once would stall it, and keep it in memory twice.

use crate::core::Core;
use crate::link::Haste;
use crate::message::{Chunk, ChunkKind, Message};
use crate::ranges::{RangeSet, in_order};
use crate::values::{self, Limit, Values};
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

/// What one claimant is still to be sent.
#[derive(Debug)]
pub(crate) struct Recovery {
    claim: u64,
    rest: RangeSet,
}

impl Core {
    /// Somebody asks for copies.
    pub(crate) fn hear_recover(&mut self, from: ServerId, claim: u64, ranges: &[Slice]) {
        if !in_order(ranges) || self.claims.get(&from).is_none_or(|c| c.id != claim) {
            // A newer claim of the same server is on its way, or was answered.
            return;
        }
        let recovery = self.recoveries.entry(from).or_insert_with(|| Recovery {
            claim,
            rest: RangeSet::default(),
        });
        if recovery.claim != claim {
            *recovery = Recovery {
                claim,
                rest: RangeSet::default(),
            };
        }
        ranges.iter().for_each(|&slice| recovery.rest.add(slice));
    }

    /// Sends one chunk of what was asked for; `false` if nothing is left. What was
    /// dropped meanwhile is said not to be here.
    pub(crate) fn recover_next(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        to: ServerId,
    ) -> bool {
        while let Some(slice) = self.next_recovered(to) {
            let Some(&gap) = self.copies.gaps(slice).first() else {
                self.recover_part(now, values, to, slice);
                return true;
            };
            if let Some(recovery) = self.recoveries.get_mut(&to) {
                recovery.rest.remove(gap);
                let (claim, ranges) = (recovery.claim, vec![gap]);
                self.say(now, to, Message::Gone { claim, ranges });
            }
        }
        self.recoveries.remove(&to);
        false
    }

    /// The next range for a claimant, if its claim is still the newest of it.
    fn next_recovered(&self, to: ServerId) -> Option<Slice> {
        let recovery = self.recoveries.get(&to)?;
        let (slice, ()) = recovery.rest.iter().next()?;
        Some(slice)
    }

    fn recover_part(&mut self, now: Duration, values: &mut dyn Values, to: ServerId, slice: Slice) {
        let limit = Limit {
            bytes: self.config.chunk_bytes,
            entries: self.config.chunk_entries,
        };
        let scan = values::scan(values, slice, limit);
        let last: KeyPoint = scan.last.clamp(slice.start(), slice.last());
        let part = Slice::spanning(slice.start(), last);
        if let Some(recovery) = self.recoveries.get_mut(&to) {
            recovery.rest.remove(part);
        }
        self.chunks += 1;
        let chunk = Chunk {
            id: self.chunks,
            kind: ChunkKind::Recovered,
            ranges: vec![part],
            entries: scan.entries,
            holders: Vec::new(),
            unsettled: self.dirty_within(part),
        };
        self.say_with(now, to, Haste::Bulk, Message::Chunk(chunk));
    }
}
