//! The policies written as plainly as possible, for tests to compare with:
//! vectors, linear searches, whole identities.

use super::PolicyKind;

/// A small seeded generator (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// 0 to `bound - 1`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// 0 to `bound - 1`, small numbers far more often.
    pub(super) fn skewed(&mut self, bound: u64) -> u64 {
        let fraction = self.below(1 << 20) as f64 / (1 << 20) as f64;
        (fraction.powi(4) * bound as f64) as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) slot: u32,
    pub(super) identity: u64,
    frequency: u8,
}

/// Two lists of items and two of ghosts, oldest first. What they mean depends
/// on the kind.
pub(super) struct Model {
    kind: PolicyKind,
    pub(super) lists: [Vec<Item>; 2],
    pub(super) ghosts: [Vec<u64>; 2],
    pub(super) target: f64,
    capacity: usize,
    returning: Option<(u64, usize)>,
    filling: bool,
}

impl Model {
    pub(super) fn new(kind: PolicyKind) -> Self {
        Model {
            kind,
            lists: [vec![], vec![]],
            ghosts: [vec![], vec![]],
            target: 0.0,
            capacity: 0,
            returning: None,
            filling: true,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.lists[0].len() + self.lists[1].len()
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.lists.iter().flatten()
    }

    pub(super) fn prepare(&mut self, identity: u64) {
        if self.returning.is_some_and(|(key, _)| key == identity) {
            return;
        }
        let lens = [self.ghosts[0].len() as f64, self.ghosts[1].len() as f64];
        let list = (0..2).find(|&list| self.ghosts[list].contains(&identity));
        self.returning = list.map(|list| (identity, list));
        let Some(list) = list else { return };
        self.ghosts[list].retain(|&ghost| ghost != identity);
        if self.kind == PolicyKind::Arc {
            self.target = match list {
                0 => (self.target + (lens[1] / lens[0]).max(1.0)).min(self.capacity as f64),
                _ => (self.target - (lens[0] / lens[1]).max(1.0)).max(0.0),
            };
        }
    }

    pub(super) fn insert(&mut self, slot: u32, identity: u64) {
        let item = Item {
            slot,
            identity,
            frequency: 0,
        };
        let returns = self.returning.is_some_and(|(key, _)| key == identity);
        if self.kind == PolicyKind::S3Fifo && self.filling {
            self.lists[1].push(item);
            if self.lists[0].len() < self.count() / 10 {
                let oldest = self.lists[1].remove(0);
                self.lists[0].push(oldest);
            }
            return;
        }
        self.returning = None;
        self.lists[usize::from(returns)].push(item);
    }

    pub(super) fn access(&mut self, slot: u32) {
        let Some(mut item) = self.items().find(|item| item.slot == slot).copied() else {
            return;
        };
        match self.kind {
            PolicyKind::S3Fifo => {
                for item in self.lists.iter_mut().flatten() {
                    if item.slot == slot {
                        item.frequency = (item.frequency + 1).min(3);
                    }
                }
            }
            PolicyKind::Slru | PolicyKind::Lru | PolicyKind::Arc => {
                self.remove(slot);
                item.frequency = 0;
                self.lists[usize::from(self.kind == PolicyKind::Arc)].push(item);
            }
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        for list in &mut self.lists {
            list.retain(|item| item.slot != slot);
        }
    }

    pub(super) fn victim(&mut self) -> Option<u32> {
        if self.count() == 0 {
            return None;
        }
        Some(match self.kind {
            // SLRU has no exact model: its own tests are beside it.
            PolicyKind::Slru | PolicyKind::Lru => self.lists[0].remove(0).slot,
            PolicyKind::Arc => self.victim_arc(),
            PolicyKind::S3Fifo => self.victim_s3fifo(),
        })
    }

    /// What happens to an item that leaves for lack of a place in its buckets.
    pub(super) fn evict(&mut self, slot: u32) {
        let list = usize::from(self.lists[1].iter().any(|item| item.slot == slot));
        let count = self.count();
        match self.kind {
            PolicyKind::Slru | PolicyKind::Lru => {}
            PolicyKind::Arc => {
                self.trim_arc();
                self.ghosts[list].push(self.identity_of(slot));
            }
            PolicyKind::S3Fifo if list == 0 => self.remember_s3fifo(self.identity_of(slot), count),
            PolicyKind::S3Fifo => {}
        }
        self.remove(slot);
    }

    fn identity_of(&self, slot: u32) -> u64 {
        self.items()
            .find(|item| item.slot == slot)
            .unwrap()
            .identity
    }

    /// Case IV of the paper, up to REPLACE. True if T1's oldest has to leave
    /// without becoming a ghost.
    fn trim_arc(&mut self) -> bool {
        let mut drops = 0;
        if self.lists[0].len() + self.ghosts[0].len() >= self.capacity {
            while self.lists[0].len() + self.ghosts[0].len() >= self.capacity && drops < 4 {
                drops += 1;
                if !self.ghosts[0].is_empty() {
                    self.ghosts[0].remove(0);
                }
            }
            return self.lists[0].len() >= self.capacity;
        }
        while self.count() + self.ghosts[0].len() + self.ghosts[1].len() >= 2 * self.capacity
            && drops < 4
        {
            drops += 1;
            if !self.ghosts[1].is_empty() {
                self.ghosts[1].remove(0);
            }
        }
        false
    }

    fn victim_arc(&mut self) -> u32 {
        if self.capacity != self.count() {
            if self.capacity > 0 {
                self.target *= self.count() as f64 / self.capacity as f64;
            }
            self.capacity = self.count();
        }
        if self.returning.is_none() && self.trim_arc() {
            return self.lists[0].remove(0).slot;
        }
        let once = self.lists[0].len() as f64;
        let from_b2 = self.returning.is_some_and(|(_, list)| list == 1);
        let shrink_t1 = once > 0.0
            && (once > self.target
                || from_b2 && once >= self.target.floor()
                || self.lists[1].is_empty());
        let list = usize::from(!shrink_t1);
        let item = self.lists[list].remove(0);
        self.ghosts[list].push(item.identity);
        item.slot
    }

    fn remember_s3fifo(&mut self, identity: u64, count: usize) {
        let limit = count * 9 / 10;
        if limit > 0 {
            let mut drops = 0;
            while self.ghosts[0].len() >= limit && drops < 4 {
                drops += 1;
                self.ghosts[0].remove(0);
            }
            self.ghosts[0].push(identity);
        }
    }

    fn victim_s3fifo(&mut self) -> u32 {
        self.filling = false;
        let count = self.count();
        if self.lists[0].len() >= count / 10 {
            while !self.lists[0].is_empty() {
                let mut item = self.lists[0].remove(0);
                if item.frequency < 2 {
                    self.remember_s3fifo(item.identity, count);
                    return item.slot;
                }
                item.frequency = 0;
                self.lists[1].push(item);
            }
        }
        while !self.lists[1].is_empty() {
            let mut item = self.lists[1].remove(0);
            if item.frequency == 0 {
                return item.slot;
            }
            item.frequency -= 1;
            self.lists[1].push(item);
        }
        let item = self.lists[0].remove(0);
        self.remember_s3fifo(item.identity, count);
        item.slot
    }
}
