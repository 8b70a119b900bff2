//! A keyspace for callers who may wait: an operation returns with its result, as
//! on no event loop.

use std::time::{Duration, Instant};
use trefoil_gateway_core::keyspace::{
    Access, Decide, DecideOf, Fault, Halt, Item, Keyspace, ListedItem, NewItem, Pending, Totals,
    Updated,
};
use trefoil_layout::Version;

/// Between two looks, if nobody wakes the caller: pauses end by themselves.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// See the module.
#[derive(Debug)]
pub struct Patient<K> {
    keyspace: K,
    began: Instant,
}

impl<K: Keyspace> Patient<K> {
    /// Over `keyspace`, for the thread that calls this.
    pub fn new(mut keyspace: K) -> Self {
        let caller = std::thread::current();
        keyspace.attach(std::sync::Arc::new(move || caller.unpark()));
        Patient {
            keyspace,
            began: Instant::now(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn wait<T>(&mut self, mut operation: impl FnMut(&mut K) -> Result<T, Halt>) -> Result<T, Halt> {
        loop {
            self.keyspace.enter(1, self.now_ns());
            let result = operation(&mut self.keyspace);
            if !matches!(result, Err(Halt::Pending)) {
                self.keyspace.conclude();
                self.keyspace.leave();
                return result;
            }
            self.keyspace.leave();
            let mut is_there = false;
            while !is_there {
                let now_ns = self.now_ns();
                self.keyspace.poll(now_ns, &mut |_| is_there = true);
                if !is_there {
                    std::thread::park_timeout(LOOK_AGAIN);
                }
            }
        }
    }
}

impl<K: Keyspace> Keyspace for Patient<K> {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        self.wait(|keyspace| keyspace.get(key, access, with))
    }

    fn get_seen(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        self.wait(|keyspace| keyspace.get_seen(key, access, with))
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Result<(), Pending> {
        let mut done = 0;
        let _ = self.wait(|keyspace| {
            let first = done;
            keyspace.get_many(&keys[first..], access, &mut |index, read| {
                done = first + index + 1;
                each(first + index, read)
            })?;
            Ok(())
        });
        Ok(())
    }

    fn work(&self) -> u64 {
        self.keyspace.work()
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        self.wait(|keyspace| keyspace.set(key, item))
    }

    fn put(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<(), Halt> {
        self.wait(|keyspace| keyspace.put(key, item))
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.wait(|keyspace| keyspace.update(key, decide))
    }

    fn set_many(
        &mut self,
        items: &[(&[u8], NewItem<'_>)],
        each: &mut dyn FnMut(usize, Result<(), Fault>),
    ) -> Result<(), Pending> {
        let _ = self.wait(|keyspace| Ok(keyspace.set_many(items, each)?));
        Ok(())
    }

    fn update_many(
        &mut self,
        keys: &[&[u8]],
        decide: &mut DecideOf<'_>,
        each: &mut dyn FnMut(usize, Result<Updated, Fault>),
    ) -> Result<(), Pending> {
        let _ = self.wait(|keyspace| Ok(keyspace.update_many(keys, decide, each)?));
        Ok(())
    }

    fn erase_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Result<bool, Fault>),
    ) -> Result<(), Pending> {
        let _ = self.wait(|keyspace| Ok(keyspace.erase_many(keys, each)?));
        Ok(())
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        self.wait(|keyspace| keyspace.flush(at_ms))
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        self.wait(|keyspace| keyspace.list(cursor, count, each))
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        self.wait(Keyspace::totals)
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        self.wait(|keyspace| keyspace.set_memory_limit(bytes))
    }

    fn value_len_max(&self) -> usize {
        self.keyspace.value_len_max()
    }

    fn page_len(&self) -> usize {
        self.keyspace.page_len()
    }

    fn isolates(&self) -> bool {
        self.keyspace.isolates()
    }

    fn isolate(&mut self) -> Result<(), Pending> {
        self.keyspace.isolate()
    }

    fn end_isolation(&mut self) {
        self.keyspace.end_isolation();
    }

    fn keep_last_use(&mut self) {
        self.keyspace.keep_last_use();
    }

    fn tend(&mut self) {
        self.keyspace.tend();
    }

    fn limit_held(&mut self, bytes: usize) {
        self.keyspace.limit_held(bytes);
    }
}
