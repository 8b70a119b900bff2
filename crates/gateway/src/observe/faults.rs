//! A keyspace whose faults are counted by kind: sessions turn all of them into
//! one error, and an operator wants to know which it was.
//!
//! A request whose later operation is pending is executed again, with the results
//! that its first ones have had: what those come to is counted when the request is
//! over, or goes on behind them, and once.

use super::block::Block;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use trefoil_gateway_core::keyspace::{
    Access, Decide, DecideOf, Evicted, Fault, Halt, Item, Keyspace, ListedItem, NewItem, Pending,
    Totals, Updated, Wake,
};
use trefoil_layout::Version;

/// Hands everything on, and counts what comes back without a result.
#[derive(Debug)]
pub struct Counted<K> {
    keyspace: K,
    block: Arc<Block>,
    /// Of this execution of the request.
    faults: Vec<Fault>,
    /// It will be executed again.
    is_pending: bool,
}

impl<K> Counted<K> {
    pub(super) fn new(keyspace: K, block: Arc<Block>) -> Self {
        Counted {
            keyspace,
            block,
            faults: Vec::new(),
            is_pending: false,
        }
    }

    #[inline]
    fn note<T>(&mut self, result: Result<T, Halt>) -> Result<T, Halt> {
        match &result {
            Ok(_) => {}
            Err(Halt::Fault(fault)) => self.faults.push(fault.clone()),
            Err(Halt::Pending) => self.is_pending = true,
        }
        result
    }

    /// The request is not executed again.
    #[cold]
    fn count(&mut self) {
        for fault in self.faults.drain(..) {
            self.block.fault(&fault);
        }
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
        // What it hands out it hands out once.
        let block = &self.block;
        let read = self.keyspace.get_many(keys, access, &mut |index, read| {
            if let Err(fault) = &read {
                block.fault(fault);
            }
            each(index, read)
        });
        self.is_pending |= read.is_err();
        read
    }

    #[inline]
    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        let result = self.keyspace.set(key, item);
        self.note(result)
    }

    fn put(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<(), Halt> {
        let result = self.keyspace.put(key, item);
        self.note(result)
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        let result = self.keyspace.update(key, decide);
        self.note(result)
    }

    fn update_apart(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        let result = self.keyspace.update_apart(key, decide);
        self.note(result)
    }

    fn charge(&mut self, work: u64) {
        self.keyspace.charge(work);
    }

    fn limit_held(&mut self, bytes: usize) {
        self.keyspace.limit_held(bytes);
    }

    fn set_many(
        &mut self,
        items: &[(&[u8], NewItem<'_>)],
        each: &mut dyn FnMut(usize, Result<(), Fault>),
    ) -> Result<(), Pending> {
        // It tells results once.
        let block = &self.block;
        let stored = self.keyspace.set_many(items, &mut |index, stored| {
            if let Err(fault) = &stored {
                block.fault(fault);
            }
            each(index, stored);
        });
        self.is_pending |= stored.is_err();
        stored
    }

    fn update_many(
        &mut self,
        keys: &[&[u8]],
        decide: &mut DecideOf<'_>,
        each: &mut dyn FnMut(usize, Result<Updated, Fault>),
    ) -> Result<(), Pending> {
        let block = &self.block;
        let updated = self
            .keyspace
            .update_many(keys, decide, &mut |index, updated| {
                if let Err(fault) = &updated {
                    block.fault(fault);
                }
                each(index, updated);
            });
        self.is_pending |= updated.is_err();
        updated
    }

    fn erase_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Result<bool, Fault>),
    ) -> Result<(), Pending> {
        let block = &self.block;
        let erased = self.keyspace.erase_many(keys, &mut |index, erased| {
            if let Err(fault) = &erased {
                block.fault(fault);
            }
            each(index, erased);
        });
        self.is_pending |= erased.is_err();
        erased
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

    fn page_len(&self) -> usize {
        self.keyspace.page_len()
    }

    fn isolates(&self) -> bool {
        self.keyspace.isolates()
    }

    fn isolate(&mut self) -> Result<(), Pending> {
        let isolated = self.keyspace.isolate();
        self.is_pending |= isolated.is_err();
        isolated
    }

    fn end_isolation(&mut self) {
        self.keyspace.end_isolation();
    }

    fn hold(&mut self, keys: Vec<u64>) -> Result<(), Pending> {
        let held = self.keyspace.hold(keys);
        self.is_pending |= held.is_err();
        held
    }

    fn release(&mut self) {
        self.keyspace.release();
    }

    fn ready_for(&mut self, keys: &mut dyn Iterator<Item = &[u8]>) -> Result<(), Pending> {
        let ready = self.keyspace.ready_for(keys);
        self.is_pending |= ready.is_err();
        ready
    }

    fn eviction(&self) -> &str {
        self.keyspace.eviction()
    }

    fn keep_last_use(&mut self) {
        self.keyspace.keep_last_use();
    }

    #[inline]
    fn work(&self) -> u64 {
        self.keyspace.work()
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

    fn foresees(&self) -> bool {
        self.keyspace.foresees()
    }

    #[inline]
    fn foresee(&mut self, key: &[u8]) {
        self.keyspace.foresee(key);
    }

    #[inline]
    fn enter(&mut self, connection: u64, now_ns: u64) {
        self.is_pending = false;
        self.keyspace.enter(connection, now_ns);
    }

    #[inline]
    fn conclude(&mut self) {
        if !self.faults.is_empty() {
            self.count();
        }
        self.is_pending = false;
        self.keyspace.conclude();
    }

    #[inline]
    fn leave(&mut self) {
        if !self.faults.is_empty() {
            match self.is_pending {
                true => self.faults.clear(),
                false => self.count(),
            }
        }
        self.keyspace.leave();
    }

    fn forget(&mut self, connection: u64) {
        self.keyspace.forget(connection);
    }

    fn poll(&mut self, now_ns: u64, resume: &mut dyn FnMut(u64)) {
        self.keyspace.poll(now_ns, resume);
    }

    fn due_ns(&mut self) -> Option<u64> {
        self.keyspace.due_ns()
    }

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.keyspace.descriptor()
    }

    fn arm(&mut self) -> bool {
        self.keyspace.arm()
    }

    fn held(&self, connection: u64) -> usize {
        self.keyspace.held(connection)
    }

    fn attach(&mut self, wake: Wake) {
        self.keyspace.attach(wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::block::Sums;
    use std::time::Duration;
    use trefoil_gateway_core::deferred::{DeferredKeyspace, Executor, Operation, Outcome, Ticket};

    /// Refuses every other operation at once; the rest waits for the next poll.
    #[derive(Default)]
    struct EveryOther {
        count: usize,
        waiting: Vec<Ticket>,
    }

    impl Executor for EveryOther {
        fn try_get(
            &mut self,
            _: &[u8],
            _: Access,
            _: &mut dyn FnMut(Option<&Item<'_>>),
        ) -> Option<Result<(), Fault>> {
            None
        }

        fn submit(&mut self, ticket: Ticket, _: Operation) -> Option<Outcome> {
            self.count += 1;
            if self.count % 2 == 1 {
                return Some(Outcome::Stored(Err(Fault::Contended)));
            }
            self.waiting.push(ticket);
            None
        }

        fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
            for ticket in self.waiting.drain(..) {
                each(ticket, Outcome::Stored(Ok(Version::ZERO)));
            }
        }

        fn value_len_max(&self) -> usize {
            1
        }
    }

    fn faults(block: &Block) -> u64 {
        let mut sums = Sums::default();
        block.add_to(&mut sums);
        sums.faults.iter().sum()
    }

    #[test]
    fn a_fault_counts_once_however_often_its_request_is_executed() {
        let block = Arc::new(Block::default());
        let keyspace = DeferredKeyspace::new(EveryOther::default(), Duration::ZERO, 1);
        let mut counted = Counted::new(keyspace, Arc::clone(&block));
        let item = NewItem::default();
        let request = |counted: &mut Counted<_>| {
            counted.enter(1, 0);
            assert_eq!(counted.set(b"a", &item), Err(Fault::Contended.into()));
            let second = counted.set(b"b", &item);
            if second.is_ok() {
                counted.conclude();
            }
            counted.leave();
            second
        };
        assert_eq!(request(&mut counted), Err(Halt::Pending));
        assert_eq!(
            request(&mut counted),
            Err(Halt::Pending),
            "woken for nothing"
        );
        counted.poll(0, &mut |_| {});
        assert_eq!(request(&mut counted), Ok(Version::ZERO));
        assert_eq!(faults(&block), 1);
        // One alone, whose request ends with it.
        counted.enter(1, 0);
        assert_eq!(counted.set(b"a", &item), Err(Fault::Contended.into()));
        counted.leave();
        assert_eq!(faults(&block), 2);
    }
}
