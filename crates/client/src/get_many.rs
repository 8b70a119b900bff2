//! Many lookups at once: their cache misses overlap.
//!
//! Each key has a machine of its own. A group of them goes through three
//! passes: hash and prefetch the buckets; judge the buckets and prefetch the
//! data; copy, judge, hand out. Whatever is not decided by then (a torn read, a
//! side table, another host) takes the way of a single lookup.

use crate::client::{Client, check_key};
use crate::error::OpError;
use crate::get::Lookup;
use crate::link::Link;
use crate::time;
use trefoil_cell::Cohort;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::get::{Get, GetOutcome, GetStep};
use trefoil_client_core::mode::Mode;
use trefoil_layout::{KeyHash, Pointer, Version};

/// Lookups whose cache misses overlap: enough to hide the latency of memory,
/// few enough for the prefetched lines to stay in the nearest cache.
const GROUP: usize = 24;

struct Item<const N: usize> {
    hash: KeyHash,
    cohort: Cohort,
    get: Get<N>,
    /// A data read that was prefetched and is to be carried out.
    data: Option<(usize, Pointer)>,
}

impl Client {
    /// Looks up every key and calls `on` with its index and result, in order
    /// within a group but for keys that needed a second look.
    pub fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut on: impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        for (group, keys) in keys.chunks(GROUP).enumerate() {
            let first = group * GROUP;
            match self.mode {
                Mode::R1 => self.get_group::<1, K>(keys, first, &mut on),
                Mode::R2Immutable => self.get_group::<2, K>(keys, first, &mut on),
                Mode::R32 => self.get_group::<3, K>(keys, first, &mut on),
            }
        }
    }

    fn get_group<const N: usize, K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        first: usize,
        on: &mut impl FnMut(usize, Result<Lookup<'_>, OpError>),
    ) {
        let now = time::coarse_ns();
        let limits = self.limits(now);
        let mut items: [Option<Item<N>>; GROUP] = [const { None }; GROUP];
        for (item, key) in items.iter_mut().zip(keys) {
            let key = key.as_ref();
            if check_key(key).is_err() {
                continue;
            }
            let hash = self.hash(key);
            let cohort = self.cohort(hash);
            let plan = self.plan::<N>(cohort, now);
            let rank_count = plan.fan_out.min(2).min(cohort.as_slice().len());
            for rank in 0..rank_count {
                let place = (plan.preferred + rank) % cohort.as_slice().len();
                let number = cohort.as_slice()[place];
                if let Some(connection) = self.links[number as usize].shared() {
                    connection.prefetch_bucket(hash);
                }
            }
            let get = Get::new(&plan, hash, limits, now);
            *item = Some(Item {
                hash,
                cohort,
                get,
                data: None,
            });
        }
        for item in &mut items {
            if let Some(known) = item
                && !self.read_index(known, now)
            {
                *item = None;
            }
        }
        let now_ms = time::coarse_unix_ms();
        for (place, (key, item)) in keys.iter().zip(&mut items).enumerate() {
            let key = key.as_ref();
            let check = DataCheck {
                key,
                now_ms,
                flush_floor: Version::ZERO,
            };
            match item.as_mut().and_then(|item| self.read_data(item, &check)) {
                Some(outcome) => {
                    let item = item.as_ref().expect("it gave the outcome");
                    let result = self.conclude(&item.get, outcome, item.hash, item.cohort);
                    on(first + place, result);
                }
                None => on(first + place, self.get(key)),
            }
        }
    }

    /// Second pass; `false` if the lookup is not a plain one.
    #[inline(always)]
    fn read_index<const N: usize>(&mut self, item: &mut Item<N>, now: u64) -> bool {
        loop {
            match item.get.poll(now) {
                GetStep::ReadIndex { replica } => {
                    let link = &self.links[item.cohort.as_slice()[replica] as usize];
                    let Some(connection) = link.shared() else {
                        return false;
                    };
                    item.get
                        .handle_index(replica, connection.index_vote(item.hash));
                }
                GetStep::ReadData {
                    replica, pointer, ..
                } => {
                    let link = &self.links[item.cohort.as_slice()[replica] as usize];
                    let Some(connection) = link.shared() else {
                        return false;
                    };
                    connection.prefetch_data(pointer);
                    item.data = Some((replica, pointer));
                    if self.mode.quorum() == 1 {
                        return true;
                    }
                }
                GetStep::Wait { .. } | GetStep::Done(_) => return true,
                _ => return false,
            }
        }
    }

    /// Third pass; `None` if the lookup is not decided by it. The lease is
    /// checked here, after everything that this lookup has read.
    #[inline(always)]
    fn read_data<const N: usize>(
        &mut self,
        item: &mut Item<N>,
        check: &DataCheck<'_>,
    ) -> Option<GetOutcome> {
        if let Some((replica, pointer)) = item.data.take() {
            let link = &mut self.links[item.cohort.as_slice()[replica] as usize];
            let (connection, bytes) = link.shared_and_bytes()?;
            connection.read_data(pointer, bytes).ok()?;
            item.get.handle_data(replica, bytes.bytes(), check);
        }
        let now = time::coarse_ns();
        for number in item.cohort.as_slice() {
            if let Some(connection) = self.links[*number as usize].shared()
                && !Link::lease_alive(connection, now)
            {
                return None;
            }
        }
        match item.get.poll(now) {
            GetStep::Done(outcome) if item.get.is_clean() => Some(outcome),
            _ => None,
        }
    }
}
