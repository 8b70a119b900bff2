//! What is reported of the items that lookups have read: their backends evict what
//! is not used.

use crate::driver::Driver;
use crate::host::Host;
use trefoil_cell::Cohort;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_layout::KeyHash;

/// An item that a lookup has found.
#[derive(Clone, Copy, Debug)]
pub struct ItemRead {
    /// Of its key.
    pub hash: KeyHash,
    /// Who holds it.
    pub cohort: Cohort,
    /// Where it stands, by place in the cohort; `None` where nobody looked.
    pub slots: [Option<u32>; REPLICAS_MAX],
}

impl<H: Host> Driver<H> {
    /// Reports that a hit read this slot at this backend.
    #[inline(always)]
    pub fn touch(&mut self, backend: u32, partition: usize, slot: u32) {
        if let Some(link) = self.links.get_mut(backend as usize) {
            link.touch(partition, slot);
        }
    }

    /// The same at a backend that the hit did not ask, and that has place `place` in
    /// the key's cohort.
    #[inline(always)]
    pub fn touch_by_name(&mut self, backend: u32, place: usize, hash: KeyHash) {
        if let Some(link) = self.links.get_mut(backend as usize) {
            link.touch_by_name(place, hash);
        }
    }

    /// Reports to every replica that a hit has read this item: whoever was not asked
    /// is told the key's name. If only two of three learned of a read, each would know
    /// two reads in three, and not the same ones: each would evict other items, and a
    /// key that two of three have evicted is a miss. Where one replica's word is
    /// enough, it alone is told.
    #[inline(always)]
    pub fn item_read(&mut self, read: ItemRead) {
        let all = read.cohort.as_slice().len() == REPLICAS_MAX;
        for (place, number) in read.cohort.as_slice().iter().enumerate() {
            let Some(link) = self.links.get_mut(*number as usize) else {
                continue;
            };
            let seen = match read.slots[place] {
                // The scan has said so itself.
                Some(_) if link.has_scans() => continue,
                Some(slot) => link
                    .view()
                    .map(|view| (view.partition(place, read.hash), slot)),
                None if all => None,
                None => continue,
            };
            match seen {
                Some((partition, slot)) => link.touch(partition, slot),
                None => link.touch_by_name(place, read.hash),
            }
        }
    }

    /// The same for a read through other views than the present ones: a slot number
    /// means something in one window only.
    pub fn item_read_before(&mut self, read: ItemRead) {
        if self.topology.cohort(read.hash) == read.cohort {
            self.item_read(ItemRead {
                slots: Default::default(),
                ..read
            });
        }
    }

    /// Reports the touches that are still being collected.
    pub fn flush_touches(&mut self) {
        for link in &mut self.links {
            link.make_caller_for_touches(&mut self.host, &self.topology);
            link.flush_touches();
        }
    }
}
