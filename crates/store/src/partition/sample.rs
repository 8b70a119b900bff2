//! The key behind a slot number, for those who want to know which items the
//! accesses that clients report are about.

use super::Partition;
use crate::shared::Shared;

impl Partition {
    /// The numbers by which this window's items with these names are touched. An item
    /// of the side table has one, too: other replicas may have it in their indexes,
    /// and what is read there has to be known here.
    pub(crate) fn slots_of<'a>(
        &self,
        shared: &Shared,
        window_id: u64,
        names: &[u32],
        into: &'a mut [u32],
    ) -> &'a [u32] {
        let index = &self.table.index;
        if window_id != index.window.window_id {
            return &[];
        }
        let space = &shared.regions.index;
        for name in names {
            index.prefetch_named(space, *name);
        }
        let found = names
            .iter()
            .filter_map(|name| self.table.find_named(space, *name));
        let mut count = 0;
        for (to, slot) in into.iter_mut().zip(found) {
            *to = slot;
            count += 1;
        }
        &into[..count]
    }

    /// Gives key and value length of the items in `slots`; numbers of another
    /// window, or that name nothing, are passed over.
    pub(crate) fn keys_at(
        &mut self,
        shared: &Shared,
        window_id: u64,
        slots: &[u32],
        each: &mut dyn FnMut(usize, &[u8], usize),
    ) {
        if window_id != self.table.index.window.window_id {
            return;
        }
        self.write_what_is_unwritten(shared);
        for (place, &slot) in slots.iter().enumerate() {
            // Clients know no others, whatever they say.
            if slot >= self.table.index.slot_count() {
                continue;
            }
            let entry = self.entry_at(shared, self.table.index.space | slot);
            if entry.tag == 0 {
                continue;
            }
            let offset = entry.pointer.offset();
            let head = Self::head_at(shared, offset);
            let at = offset + head.key_at as u64;
            let Some(key) = shared.data().slice(at, head.key_len.next_multiple_of(8)) else {
                continue;
            };
            self.scratch.fill_from(key);
            each(place, &self.scratch.bytes()[..head.key_len], head.value_len);
        }
        self.trim_scratch(shared);
    }
}
