//! Taking what comes: the authority with values, or copies that were asked for.

use crate::Replication;
use crate::core::Core;
use crate::loss::{Extent, LossReason};
use crate::message::{Chunk, ChunkKind, Entry, Message};
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeSet, common, in_order};
use crate::values::{NotStored, Values};
use crate::wire::Wire;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

/// What became of the entries of a chunk that could not be stored.
struct Stored {
    /// They are not taken.
    refused: BTreeMap<KeyPoint, NotStored>,
    /// They are lost if their points are taken.
    lost: Vec<(LossReason, KeyPoint, Bytes)>,
}

impl Core {
    pub(crate) fn hear_chunk(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        chunk: Chunk,
    ) {
        let inside = |point: KeyPoint| {
            let at = chunk.ranges.partition_point(|slice| slice.last() < point);
            chunk
                .ranges
                .get(at)
                .is_some_and(|slice| slice.contains(point))
        };
        let sound =
            in_order(&chunk.ranges) && chunk.entries.iter().all(|entry| inside(entry.point));
        let expected = sound
            && match chunk.kind {
                ChunkKind::Authority => {
                    chunk
                        .ranges
                        .iter()
                        .all(|&slice| self.receiver.wanted.covers(slice))
                        || (mutants::is(Mutant::PromiseForgotten)
                            && !chunk
                                .ranges
                                .iter()
                                .any(|&slice| self.authority.owned().touches(slice)))
                }
                ChunkKind::Recovered => self.receiver.expects(from, &chunk.ranges),
            };
        let id = chunk.id;
        let Some(version) = self.known.version().filter(|_| expected) else {
            if chunk.kind == ChunkKind::Authority {
                self.say(now, from, Message::NotTaken { chunk: id });
            }
            return;
        };
        if mutants::is(Mutant::PromiseForgotten) {
            chunk
                .ranges
                .iter()
                .for_each(|&slice| self.receiver.wanted.add(slice));
        }
        let mut intact = RangeSet::of(chunk.ranges.iter().copied());
        let Stored { refused, lost } = self.store_chunk(values, chunk.entries, &mut intact);
        let in_part = chunk.kind == ChunkKind::Authority && !refused.is_empty();
        if in_part && !self.peers.knows(from, Wire::IN_PART) {
            self.leave_whole(now, values, from, id, &chunk.ranges, &refused);
            return;
        }
        for (reason, point, key) in lost {
            // What stays is not lost, nor is what lies at the same point.
            if !refused.contains_key(&point) {
                values.remove(point, &key);
                self.lose(reason, Extent::All, Vec::new(), vec![(point, key)]);
            }
        }
        let mut taken = RangeSet::of(chunk.ranges.iter().copied());
        taken.remove_all(refused.keys().map(|&point| Slice::of_point(point)));
        let ranges = taken.slices();
        let claim = self.receiver.claim.as_ref();
        let version = claim.map_or(version, |claim| claim.version);
        match chunk.kind {
            ChunkKind::Authority => {
                if !mutants::is(Mutant::HoldersForgotten) {
                    for (server, held) in chunk.holders {
                        if self.died_before(from, server) {
                            continue;
                        }
                        if let Some(Some(newest)) = self.known.answer_of(from) {
                            self.note_lived(server, newest);
                        }
                        for slice in common(&held, &taken) {
                            self.adopt_holder(server, slice);
                        }
                    }
                }
                self.take(version, &ranges);
                // Eventual: what the former owner had not told all copies.
                self.followers.note_touched(chunk.unsettled);
                if refused.is_empty() {
                    self.receiver.unstored.note_taken(from);
                    self.say(now, from, Message::Taken { chunk: id });
                    return;
                }
                let [(_, unreadable), (_, no_room)] = self.leave_unstored(from, &refused);
                let message = Message::TakenInPart {
                    chunk: id,
                    unreadable,
                    no_room,
                };
                self.say(now, from, message);
            }
            ChunkKind::Recovered => {
                if self.config.replication == Replication::Eventual {
                    for slice in intact.slices() {
                        self.lose_range(slice, Extent::LastCommits);
                    }
                }
                self.adopt_holders(&ranges);
                for &slice in &ranges {
                    self.copies.clean(slice);
                }
                self.receiver.unstored.stored(now, &ranges);
                self.take(version, &ranges);
                self.leave_unrecovered(now, from, &refused);
                let mut unsettled = chunk.unsettled;
                let left = unsettled.extract_if(.., |(point, _)| refused.contains_key(point));
                // Of what was stored all the same: a copy that is not to be read.
                self.copies.soil_here(left, from);
                self.proposals.unsettle(unsettled);
                self.repropose(now, values);
            }
        }
    }

    /// Stores what has come, instead of what is there. Strong: of what cannot be stored the
    /// copies stay if there are any. Else it is lost by name, and taken out of `intact`.
    fn store_chunk(
        &mut self,
        values: &mut dyn Values,
        entries: Vec<Entry>,
        intact: &mut RangeSet,
    ) -> Stored {
        let refuses =
            self.config.replication == Replication::Strong && !mutants::is(Mutant::UnstoredLost);
        let mut names: BTreeMap<KeyPoint, Vec<Bytes>> = BTreeMap::new();
        for entry in entries.iter().filter(|_| refuses) {
            names
                .entry(entry.point)
                .or_default()
                .push(entry.key.clone());
        }
        for slice in intact.slices() {
            values.forget_but(slice, &|point, key| {
                let named = names.get(&point);
                named.is_some_and(|names| names.iter().any(|name| name[..] == *key))
                    && !mutants::is(Mutant::UnstoredCopyForgotten)
            });
        }
        let mut refused = BTreeMap::new();
        let mut lost = Vec::new();
        for entry in entries {
            let (point, key) = (entry.point, entry.key.clone());
            let reason = if entry.value.is_none() {
                LossReason::MarshalFailed
            } else {
                match entry.storable().and_then(|entry| values.store(entry)) {
                    Ok(()) => continue,
                    Err(why) if refuses => {
                        refused.insert(point, why);
                        continue;
                    }
                    Err(NotStored::Unreadable) => LossReason::Unreadable,
                    Err(NotStored::NoRoom) => LossReason::NoRoom,
                }
            };
            // Reported once: by name, not with its range.
            intact.remove(Slice::of_point(point));
            lost.push((reason, point, key));
        }
        for &point in refused
            .keys()
            .filter(|&&point| !self.copies.here().has(point))
        {
            values.forget(Slice::of_point(point));
        }
        Stored { refused, lost }
    }

    /// Whether a server that has copies according to a giver was dead before this
    /// server could know it: it would be waited for until the next list of the
    /// living. Copies are made at servers that a map names, so it was alive by an
    /// assignment that the giver knew of when it gave: the giver has said which is the
    /// newest of these, with its answer to a claim or just before the chunk.
    fn died_before(&self, giver: ServerId, holder: ServerId) -> bool {
        let answer = self.known.answer_of(giver);
        holder != self.me
            && !self.peers.is_alive(holder)
            && answer.is_some_and(|newest| newest <= self.known.version())
    }
}
