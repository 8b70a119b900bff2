//! Copies for somebody who found that nobody has the authority: sent in chunks, in
//! turns ([`bulk`](crate::bulk)). A server may be asked for all that it has copies of;
//! to marshal that at once would stall it, and keep it in memory twice.

use super::Giver;
use crate::core::Core;
use crate::link::Haste;
use crate::message::{Chunk, ChunkKind, Message};
use crate::ranges::{RangeSet, in_order};
use crate::values::{self, Limit, Values};
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

/// What one claimant is still to be sent.
#[derive(Debug)]
pub(super) struct Recovery {
    claim: u64,
    rest: RangeSet,
}

impl Giver {
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

    /// Whether somebody is to be sent copies.
    pub(crate) fn recovers(&self) -> bool {
        !self.recoveries.is_empty()
    }

    /// Who is to be sent copies.
    pub(crate) fn recovering(&self) -> impl Iterator<Item = ServerId> {
        self.recoveries.keys().copied()
    }

    /// The next range for a claimant.
    fn next_recovered(&self, to: ServerId) -> Option<Slice> {
        let recovery = self.recoveries.get(&to)?;
        let (slice, ()) = recovery.rest.iter().next()?;
        Some(slice)
    }

    /// This is not to be sent any more; by which claim it was.
    fn end_recovery(&mut self, to: ServerId, part: Slice) -> Option<u64> {
        let recovery = self.recoveries.get_mut(&to)?;
        recovery.rest.remove(part);
        Some(recovery.claim)
    }
}

impl Core {
    /// Sends one chunk of what was asked for; `false` if nothing is left. What was
    /// dropped meanwhile is said not to be here.
    pub(crate) fn recover_next(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        to: ServerId,
    ) -> bool {
        while let Some(slice) = self.giver.next_recovered(to) {
            let Some(&gap) = self.copies.here().gaps(slice).first() else {
                self.recover_part(now, values, to, slice);
                return true;
            };
            if let Some(claim) = self.giver.end_recovery(to, gap) {
                let ranges = vec![gap];
                self.say(now, to, Message::Gone { claim, ranges });
            }
        }
        self.giver.recoveries.remove(&to);
        false
    }

    fn recover_part(&mut self, now: Duration, values: &mut dyn Values, to: ServerId, slice: Slice) {
        let limit = Limit {
            bytes: self.config.chunk_bytes,
            entries: self.config.chunk_entries,
        };
        let scan = values::scan(values, slice, limit);
        let last: KeyPoint = scan.last.clamp(slice.start(), slice.last());
        let part = Slice::spanning(slice.start(), last);
        self.giver.end_recovery(to, part);
        let chunk = Chunk {
            id: self.giver.next_chunk(),
            kind: ChunkKind::Recovered,
            ranges: vec![part],
            entries: scan.entries,
            holders: Vec::new(),
            unsettled: self.copies.dirty_within(part),
        };
        self.say_with(now, to, Haste::Bulk, Message::Chunk(chunk));
    }
}
