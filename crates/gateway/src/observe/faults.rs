//! A keyspace whose faults are counted by kind: sessions turn all of them into
//! one error, and an operator wants to know which it was.

use super::block::Block;
use std::sync::Arc;
use trefoil_gateway_core::keyspace::{
    Access, Decide, Evicted, Fault, Halt, Item, Keyspace, ListedItem, NewItem, Pending, Totals,
    Updated, Wake,
};
use trefoil_layout::Version;

/// Hands everything on, and counts what comes back without a result.
#[derive(Debug)]
pub struct Counted<K> {
    keyspace: K,
    block: Arc<Block>,
}

impl<K> Counted<K> {
    pub(super) fn new(keyspace: K, block: Arc<Block>) -> Self {
        Counted { keyspace, block }
    }

    #[inline]
    fn note<T>(&self, result: Result<T, Halt>) -> Result<T, Halt> {
        if let Err(Halt::Fault(fault)) = &result {
            self.block.fault(fault);
        }
        result
    }
}

impl<K: Keyspace> Keyspace for Counted<K> {
    #[inline]
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        let result = self.keyspace.get(key, access, with);
        self.note(result)
    }

    #[inline]
    fn get_seen(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        let result = self.keyspace.get_seen(key, access, with);
        self.note(result)
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        access: Access,
        each: &mut dyn FnMut(usize, Result<Option<&Item<'_>>, Fault>) -> bool,
    ) -> Result<(), Pending> {
        let block = &self.block;
        self.keyspace.get_many(keys, access, &mut |index, read| {
            if let Err(fault) = &read {
                block.fault(fault);
            }
            each(index, read)
        })
    }

    #[inline]
    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        let result = self.keyspace.set(key, item);
        self.note(result)
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        let result = self.keyspace.update(key, decide);
        self.note(result)
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        let result = self.keyspace.flush(at_ms);
        self.note(result)
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        let result = self.keyspace.list(cursor, count, each);
        self.note(result)
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        let result = self.keyspace.totals();
        self.note(result)
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        let result = self.keyspace.set_memory_limit(bytes);
        self.note(result)
    }

    fn value_len_max(&self) -> usize {
        self.keyspace.value_len_max()
    }

    fn eviction(&self) -> &str {
        self.keyspace.eviction()
    }

    fn keep_last_use(&mut self) {
        self.keyspace.keep_last_use();
    }

    fn watch_evictions(&mut self, wanted: bool) {
        self.keyspace.watch_evictions(wanted);
    }

    fn take_evicted(&mut self, each: &mut dyn FnMut(&Evicted<'_>)) -> u64 {
        self.keyspace.take_evicted(each)
    }

    fn tend(&mut self) {
        self.keyspace.tend();
    }

    #[inline]
    fn enter(&mut self, connection: u64, now_ns: u64) {
        self.keyspace.enter(connection, now_ns);
    }

    #[inline]
    fn conclude(&mut self) {
        self.keyspace.conclude();
    }

    #[inline]
    fn leave(&mut self) {
        self.keyspace.leave();
    }

    fn forget(&mut self, connection: u64) {
        self.keyspace.forget(connection);
    }

    fn poll(&mut self, now_ns: u64, resume: &mut dyn FnMut(u64)) {
        self.keyspace.poll(now_ns, resume);
    }

    fn due_ns(&self) -> Option<u64> {
        self.keyspace.due_ns()
    }

    fn attach(&mut self, wake: Wake) {
        self.keyspace.attach(wake);
    }
}
