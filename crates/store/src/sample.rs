//! Which items reported accesses are about: see [`Store::keys_at`].

use crate::store::Store;

impl Store {
    /// Gives `(place in slots, key, value length)` of each item that a slot of
    /// this partition's window holds. Takes the partition's lock once, for some
    /// hundred nanoseconds an item: meant for a sample of what
    /// [`Store::touch`] was told.
    pub fn keys_at(
        &self,
        partition: usize,
        window_id: u64,
        slots: &[u32],
        each: &mut dyn FnMut(usize, &[u8], usize),
    ) {
        if let Some(cell) = self.partitions.get(partition) {
            let mut slot = cell.enter();
            slot.live.keys_at(&self.shared, window_id, slots, each);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Now, Regions, Store, StoreConfig};
    use trefoil_layout::Version;
    use trefoil_layout::data::DataEntry;
    use trefoil_layout::op::Outcome;

    #[test]
    fn slots_name_their_keys_and_nonsense_names_nothing() {
        let config = StoreConfig {
            partition_count: 1,
            memory_limit: 8 << 20,
            ..StoreConfig::default()
        };
        let regions = Regions::heap(config.memory_limit);
        let store = Store::new(config, regions).unwrap();
        let now = Now {
            unix_ns: 1_000_000_000,
        };
        for n in 0..50u64 {
            let key = format!("key-{n}");
            let entry = DataEntry {
                key: key.as_bytes(),
                value: &[7; 30],
                ..DataEntry::default()
            };
            let ack = store.load(now, &entry, Version::new(n + 1, 9, 0));
            assert_eq!(ack.outcome, Outcome::Applied);
        }
        let all: Vec<u32> = (0..100_000).chain([u32::MAX]).collect();
        let mut keys = Vec::new();
        let mut collect = |place: usize, key: &[u8], len: usize| {
            assert_eq!(len, 30);
            assert!(place < all.len());
            keys.push(String::from_utf8(key.to_vec()).unwrap());
        };
        store.keys_at(0, 2, &all, &mut collect);
        store.keys_at(0, 3, &all, &mut collect);
        store.keys_at(9, 2, &all, &mut collect);
        keys.sort_unstable();
        let mut expected: Vec<String> = (0..50).map(|n| format!("key-{n}")).collect();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }
}
