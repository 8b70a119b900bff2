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

    /// Where the items with these names ([`trefoil_layout::KeyHash::name`]) stand in
    /// a partition's window, or beside it where one-sided readers do not see them: puts
    /// their numbers into the front of `into` and returns them. For reports of who has
    /// read them at other replicas: [`Store::touch`] takes what is returned. Names of
    /// another window and of nothing are passed over, as are those that `into` has no
    /// room for. Takes the partition's lock once.
    pub fn slots_of<'a>(
        &self,
        partition: usize,
        window_id: u64,
        names: &[u32],
        into: &'a mut [u32],
    ) -> &'a [u32] {
        match self.partitions.get(partition) {
            Some(cell) => cell
                .enter()
                .live
                .slots_of(&self.shared, window_id, names, into),
            None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Now, Regions, Store, StoreConfig};
    use trefoil_layout::data::DataEntry;
    use trefoil_layout::op::Outcome;
    use trefoil_layout::{Version, control};

    const NOW: Now = Now::at(1_000_000_000);

    fn store() -> Store {
        let config = StoreConfig {
            partition_count: 1,
            memory_limit: 8 << 20,
            ..StoreConfig::default()
        };
        let regions = Regions::heap(config.memory_limit);
        Store::new(config, regions).unwrap()
    }

    fn load(store: &Store, key: &[u8], version: u64) {
        let entry = DataEntry {
            key,
            value: &[7; 30],
            ..DataEntry::default()
        };
        let ack = store.load(NOW, &entry, Version::new(version, 9, 0));
        assert_eq!(ack.outcome, Outcome::Applied);
    }

    #[test]
    fn slots_name_their_keys_and_nonsense_names_nothing() {
        let store = store();
        for n in 0..50u64 {
            load(&store, format!("key-{n}").as_bytes(), n + 1);
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
        // Names lead to the same slots, of this window, as far as there is room.
        let buckets = control::index_window(&store.regions().control.words(), 0)
            .unwrap()
            .bucket_count;
        let name = |n: u64| {
            let (hash, _) = store.place(format!("key-{n}").as_bytes()).unwrap();
            hash.name(buckets)
        };
        let names: Vec<u32> = (0..60).map(name).chain([0, u32::MAX]).collect();
        let mut room = [0; 64];
        let slots = store.slots_of(0, 2, &names, &mut room);
        assert_eq!(slots.len(), 50);
        let mut named = Vec::new();
        store.keys_at(0, 2, slots, &mut |_, key, _| named.push(key.to_vec()));
        let expected: Vec<Vec<u8>> = (0..50).map(|n| format!("key-{n}").into()).collect();
        assert_eq!(named, expected);
        assert_eq!(store.slots_of(0, 2, &names, &mut [0; 3]).len(), 3);
        assert!(store.slots_of(0, 3, &names, &mut room).is_empty());
        assert!(store.slots_of(9, 2, &names, &mut room).is_empty());

        keys.sort_unstable();
        let mut expected: Vec<String> = (0..50).map(|n| format!("key-{n}")).collect();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }

    #[test]
    fn what_stands_beside_the_index_is_touched_by_its_name() {
        let store = store();
        // Nobody maintains it: its index becomes crowded.
        let mut count = 0u64;
        while store.stats().side_table_items < 2 {
            count += 1;
            assert!(count < 10_000, "the index has grown by itself");
            load(&store, &count.to_le_bytes(), count);
        }
        let window = control::index_window(&store.regions().control.words(), 0).unwrap();
        let mut room = [0; 1];
        for n in 1..=count {
            let key = n.to_le_bytes();
            let (hash, _) = store.place(&key).unwrap();
            let name = hash.name(window.bucket_count);
            let slots = store.slots_of(0, window.window_id, &[name], &mut room);
            assert_eq!(slots.len(), 1, "{n} of {count}");
            assert!(!store.item_use(NOW, &key).unwrap().hit_before);
            store.touch(0, window.window_id, slots);
            assert!(store.item_use(NOW, &key).unwrap().hit_before, "{n}");
        }
    }
}
