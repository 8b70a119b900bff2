//! The invariants of a partition, checked from end to end: for tests, and for
//! whoever doubts.

use super::Partition;
use super::reshape::Moving;
use super::table::Table;
use crate::index::bucket_and_slot;
use crate::policy::Policy;
use crate::shared::Shared;
use std::collections::HashSet;
use trefoil_layout::bucket;
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::{IndexEntry, KeyHash, control};
use trefoil_region::WordBuffer;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("partition {partition}: {what}")]
pub struct CheckError {
    /// Which partition.
    pub partition: usize,
    /// What was found.
    pub what: String,
}

impl Partition {
    /// Checks every invariant that one partition can see.
    pub(crate) fn check(&self, shared: &Shared) -> Result<(), CheckError> {
        let mut wrong = Vec::new();
        self.check_headers(shared, &self.table, &mut wrong);
        if let Some(filling) = self.filling() {
            self.check_headers(shared, &filling.next, &mut wrong);
            let mut twins = 0;
            filling
                .next
                .for_each_entry(&shared.regions.index, |_, _| twins += 1);
            if twins != filling.twin_count() {
                wrong.push(format!(
                    "{twins} entries in the next index that nobody knows"
                ));
            }
        }
        if self.stamping.is_some() {
            wrong.push("headers have been left as they were".to_owned());
        }
        let mut buffer = WordBuffer::default();
        let mut offsets = HashSet::new();
        let mut classes = self.classes;
        let (mut count, mut len, mut in_pages) = (0, 0, 0);
        self.for_each_entry(shared, |number, entry| {
            count += 1;
            len += entry.pointer.len() as u64;
            let class = classes.of_entry_mut(entry.pointer.len());
            class.items = class.items.wrapping_sub(1);
            class.entry_bytes = class.entry_bytes.wrapping_sub(entry.pointer.len() as u64);
            if !offsets.insert(entry.pointer.offset()) {
                wrong.push(format!("two entries point at {:?}", entry.pointer));
            }
            if entry.pointer.offset() < shared.regions.pages_len() {
                in_pages += 1;
                let used = self.slab.is_used(
                    &shared.classes,
                    &shared.page_table,
                    shared.page_len(),
                    entry.pointer.offset(),
                    entry.pointer.len() as u64,
                );
                if !used {
                    wrong.push(format!("{entry:?} points into a slot that is not in use"));
                }
            }
            if let Err(what) = self.check_entry(shared, number, entry, &mut buffer) {
                wrong.push(what);
            }
        });
        let mut equal = |what: &str, a: u64, b: u64| {
            if a != b {
                wrong.push(format!("{what}: {a} counted, {b} kept"));
            }
        };
        equal("items", count, self.item_count);
        equal("entry bytes", len, self.entry_len);
        for (class, left) in classes.iter() {
            equal(&format!("items of class {class}"), 0, left.items);
            equal(&format!("bytes of class {class}"), 0, left.entry_bytes);
        }
        equal("slots in use", in_pages, self.slab.used_slots());
        equal(
            "items of the policy",
            u64::from(self.policy.resident_count()),
            count,
        );
        if self.advertised {
            let window = control::index_window(&shared.regions.control.words(), self.number);
            if window != Some(self.table.index.window) {
                wrong.push(format!("advertised is {window:?}"));
            }
        }
        match wrong.into_iter().next() {
            None => Ok(()),
            Some(what) => Err(CheckError {
                partition: self.number,
                what,
            }),
        }
    }

    fn check_headers(&self, shared: &Shared, table: &Table, wrong: &mut Vec<String>) {
        let index = &table.index;
        let stamp = index.stamp;
        for number in 0..index.buckets_in_all() {
            let header = bucket::header(&index.bucket(&shared.regions.index, number));
            if header.config_id != stamp.config_id
                || header.epoch != stamp.epoch
                || header.recovering != stamp.recovering
                || header.layout_version != LAYOUT_VERSION
            {
                wrong.push(format!("bucket {number} has header {header:?}"));
            }
            let beside = table.side.of_home(number).next().is_some();
            if beside != header.overflowed {
                wrong.push(format!("bucket {number}: overflow flag against {beside}"));
            }
            let farthest = (1..=header.spill).rev().find(|far| {
                let at = number + u64::from(*far);
                (0..bucket::SLOT_COUNT).any(|slot| {
                    let slot = index.number(at, slot);
                    index.entry(&shared.regions.index, slot).tag != 0
                        && self.policy.displacement(slot) == *far
                })
            });
            if farthest.unwrap_or(0) != header.spill {
                wrong.push(format!("bucket {number} spills too far: {header:?}"));
            }
        }
    }

    /// What stands in the next index, and what still stands in the old one.
    fn check_twin(
        &self,
        shared: &Shared,
        number: u32,
        hash: KeyHash,
        entry: IndexEntry,
    ) -> Result<(), String> {
        let space = &shared.regions.index;
        match self.moving.as_deref() {
            Some(Moving::Filling(filling)) => {
                let twin = filling.twin(number);
                if twin.is_none() && filling.has_passed(number) {
                    return Err(format!("slot {number} has no twin"));
                }
                let same = |twin| {
                    filling.next.entry(space, twin) == entry
                        && filling.next.find(space, hash) == Some((twin, entry))
                };
                match twin {
                    Some(twin) if !same(twin) => {
                        Err(format!("slot {number} has another twin {twin}"))
                    }
                    _ => Ok(()),
                }
            }
            Some(Moving::Retiring(retiring)) => match retiring.stands(space, hash, entry) {
                true => Ok(()),
                false => Err(format!(
                    "the old index believes something else of {entry:?}"
                )),
            },
            _ => Ok(()),
        }
    }

    fn check_entry(
        &self,
        shared: &Shared,
        number: u32,
        entry: IndexEntry,
        buffer: &mut WordBuffer,
    ) -> Result<(), String> {
        let data = shared
            .data()
            .slice(entry.pointer.offset(), entry.pointer.len())
            .ok_or_else(|| format!("{entry:?} points outside the region"))?;
        buffer.fill_from(data);
        let key = DataEntry::decode(buffer.bytes())
            .ok_or_else(|| format!("{entry:?} points at bytes that are no entry"))?
            .key;
        DataEntry::validate(buffer.bytes(), entry.tag, entry.version, key)
            .map_err(|e| format!("{entry:?}: {e:?}"))?;
        let hash = shared.config.hasher.hash(key);
        let home = self.table.index.home(hash);
        self.check_twin(shared, number, hash, entry)?;
        match self.table.index.side_place(number) {
            None => {
                let far = u64::from(self.policy.displacement(number));
                let header = bucket::header(&self.table.index.bucket(&shared.regions.index, home));
                if bucket_and_slot(number).0 != home + far || far > u64::from(header.spill) {
                    return Err(format!(
                        "{entry:?} of home {home} stands in slot {number}, {far} from home, spill {}",
                        header.spill
                    ));
                }
            }
            Some(place) => {
                let known = self
                    .table
                    .side
                    .get(place)
                    .is_some_and(|side| side.home == home);
                if !known {
                    return Err(format!(
                        "side table: {entry:?} has another home than {home}"
                    ));
                }
            }
        }
        match self.table.find(&shared.regions.index, hash) {
            Some((found, _)) if found == number => Ok(()),
            other => Err(format!("slot {number} is found as {other:?}")),
        }
    }

    /// What the partition has charged: private bytes and bytes of its windows.
    pub(crate) fn charged(&self, shared: &Shared) -> (u64, u64) {
        (
            self.private_charged + self.reshape_private_charged(),
            super::reshape::window_len(shared, self.table.index.bucket_count())
                + self.reshape_window_charged(shared),
        )
    }
}
