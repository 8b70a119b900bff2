//! Moving entries, so that whole pages become free while readers go on.
//!
//! An entry is copied first and its index entry pointed at the copy then. A
//! reader that still reads the old place finds the same bytes or, once the
//! page is used again, a checksum that fails.

use super::Partition;
use crate::budget::Cap;
use crate::shared::Shared;
use crate::slab::Emptying;
use std::ops::Range;
use trefoil_layout::Pointer;
use trefoil_layout::words::{Words, WordsMut};
use trefoil_region::SharedWords;

/// Bytes of an entry that are fetched ahead of moving it: head and key.
const PREFETCH_LEN: usize = 128;
/// Entries that are fetched and then moved together.
const BATCH: usize = 64;

fn copy(from: SharedWords<'_>, to: SharedWords<'_>) {
    for word in 0..from.count() {
        to.store(word, from.load(word));
    }
}

impl Partition {
    /// Empties a page by moving what it holds into other pages of its class or
    /// of near ones, if they have the slots. The page is then nobody's.
    pub(super) fn empty_some_page(&mut self, shared: &Shared) -> Option<u32> {
        let emptying = self.slab.begin_emptying(&shared.classes)?;
        Some(self.empty_page(shared, emptying))
    }

    fn empty_page(&mut self, shared: &Shared, emptying: Emptying) -> u32 {
        loop {
            let mut in_use = std::mem::take(&mut self.in_use);
            let page_len = shared.page_len();
            self.slab
                .slots_in_use(&shared.classes, page_len, &emptying, BATCH, &mut in_use);
            self.move_out(shared, &emptying, &in_use);
            let was_last = in_use.len() < BATCH;
            self.in_use = in_use;
            if was_last {
                break;
            }
        }
        self.counts.slab_moves += 1;
        self.changes += 1;
        self.slab.end_emptying(&shared.classes, emptying)
    }

    /// Moves the entries at some offsets out of a page.
    fn move_out(&mut self, shared: &Shared, emptying: &Emptying, in_use: &[u64]) {
        let page_len = shared.page_len();
        let mut moves = std::mem::take(&mut self.moves);
        moves.clear();
        for offset in in_use {
            if let Some(words) = shared.data().slice(*offset, PREFETCH_LEN) {
                words.prefetch(PREFETCH_LEN);
            }
        }
        for offset in in_use {
            let hash = self.hash_at(shared, *offset);
            let home = self.table.index.home(hash);
            let bucket = self.table.index.bucket(&shared.regions.index, home);
            bucket.prefetch(trefoil_layout::bucket::BUCKET_LEN);
            moves.push((*offset, hash));
        }
        for &(offset, hash) in &moves {
            let found = self.find_pointer(shared, hash, offset);
            debug_assert!(found.is_some(), "a slot in use that nothing points at");
            if let Some((number, entry)) = found {
                let len = entry.pointer.len();
                let to = self
                    .slab
                    .take_for_move(&shared.classes, emptying.class, len, page_len)
                    .expect("the other pages of the class have room");
                let data = shared.data();
                let (Some(from), Some(into)) = (data.slice(offset, len), data.slice(to, len))
                else {
                    unreachable!("slots lie inside the data region");
                };
                copy(from, into);
                let pointer = Pointer::new(to, len).expect("as long as it was");
                self.repoint(shared, (number, hash), pointer);
            }
            self.slab
                .vacate(&shared.classes, &shared.page_table, page_len, offset);
        }
        self.counts.entries_moved += moves.len() as u64;
        self.room_work += moves.len() as u64;
        self.moves = moves;
    }

    /// Moves what this partition has in some pages of the region elsewhere: one
    /// huge page's worth, which can then be given back as a whole.
    pub(crate) fn evacuate(&mut self, shared: &Shared, pages: Range<u32>) {
        self.write_what_is_unwritten(shared);
        for number in pages {
            let (classes, table) = (&shared.classes, &shared.page_table);
            let Some((class, enough)) = self.slab.page_class(classes, table, number) else {
                continue;
            };
            if !enough {
                let Some(page) = self.take_page(shared, Cap::At(0)) else {
                    return;
                };
                self.slab.add_page(classes, table, class, page);
            }
            let emptying = self.slab.begin_emptying_page(table, number);
            let page = self.empty_page(shared, emptying);
            self.give_page(shared, page);
        }
        self.settle_private(shared);
    }
}
