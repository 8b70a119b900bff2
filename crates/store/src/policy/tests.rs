//! Every policy against its reference model, and what all of them must stand.

use super::reference::{Model, Random};
use super::slots::{Queue, Slots};
use super::*;

fn slots_of(policy: &AnyPolicy) -> &Slots {
    match policy {
        AnyPolicy::Lru(policy) => &policy.slots,
        AnyPolicy::Arc(policy) => &policy.slots,
        AnyPolicy::S3Fifo(policy) => &policy.slots,
        AnyPolicy::Slru(_) => unreachable!("it has no lists"),
    }
}

/// Those that keep exact lists.
const LISTED: [PolicyKind; 3] = [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::S3Fifo];

fn order(policy: &AnyPolicy) -> [Vec<u32>; 2] {
    [Queue::First, Queue::Second].map(|queue| slots_of(policy).order(queue))
}

fn order_of_model(model: &Model) -> [Vec<u32>; 2] {
    [0, 1].map(|list| model.lists[list].iter().map(|item| item.slot).collect())
}

/// A policy and its model, fed with the same calls.
struct Pair {
    policy: AnyPolicy,
    model: Model,
    /// Identity in each slot of the space that is in use.
    identities: Vec<Option<u64>>,
    space: u32,
}

/// The place of a slot in its space.
fn at(slot: u32) -> usize {
    (slot & !SPACE) as usize
}

impl Pair {
    fn new(kind: PolicyKind, slot_count: u32) -> Self {
        Pair {
            policy: new(kind, slot_count),
            model: Model::new(kind),
            identities: vec![None; slot_count as usize],
            space: 0,
        }
    }

    fn slot_of(&self, identity: u64) -> Option<u32> {
        let at = self
            .identities
            .iter()
            .position(|held| *held == Some(identity))?;
        Some(self.space | at as u32)
    }

    fn victim(&mut self) {
        let identities = &self.identities;
        let chosen = self
            .policy
            .victim(&mut |slot| identities[at(slot)].unwrap());
        assert_eq!(chosen, self.model.victim());
        if let Some(slot) = chosen {
            self.identities[at(slot)] = None;
        }
    }

    fn victim_among(&mut self, slots: &[u32]) {
        let identities = &self.identities;
        let identity_of = &mut |slot: u32| identities[at(slot)].unwrap();
        match self.policy.victim_among(slots, identity_of) {
            Some(slot) => {
                assert!(slots.contains(&slot));
                self.model.evict(slot);
                assert!(self.identities[at(slot)].take().is_some());
            }
            None => assert!(slots.iter().all(|&slot| {
                self.identities
                    .get(at(slot))
                    .is_none_or(|held| held.is_none())
            })),
        }
    }

    fn insert(&mut self, identity: u64, random: &mut Random) {
        let empty: Vec<u32> = (0..self.identities.len() as u32)
            .filter(|&slot| self.identities[slot as usize].is_none())
            .collect();
        let slot = self.space | empty[random.below(empty.len() as u64) as usize];
        self.policy.insert(slot, identity);
        self.model.insert(slot, identity);
        self.identities[at(slot)] = Some(identity);
    }

    /// Every item moves to the other space, in any order, or is dropped.
    fn move_over(&mut self, slot_count: u32, random: &mut Random) {
        let next = self.space ^ SPACE;
        let mut free: Vec<u32> = (0..slot_count).collect();
        let mut moved = vec![None; slot_count as usize];
        self.policy.resize(next | slot_count);
        for (slot, identity) in std::mem::take(&mut self.identities).into_iter().enumerate() {
            let from = self.space | slot as u32;
            if identity.is_none() {
                continue;
            }
            if random.below(20) == 0 {
                self.policy.remove(from);
                self.model.remove(from);
                continue;
            }
            let to = free.swap_remove(random.below(free.len() as u64) as usize);
            moved[to as usize] = identity;
            self.policy.relocate(from, next | to);
            for item in self.model.lists.iter_mut().flatten() {
                if item.slot == from {
                    item.slot = next | to;
                }
            }
        }
        drop(self.policy.retire(self.space));
        self.space = next;
        self.identities = moved;
    }

    fn check(&self) {
        assert_eq!(order(&self.policy), order_of_model(&self.model));
        assert_eq!(self.policy.resident_count() as usize, self.model.count());
    }
}

#[test]
fn every_policy_agrees_with_its_model() {
    for kind in LISTED {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let mut room = 1 + random.below(120) as usize;
            let mut pair = Pair::new(kind, room as u32 + 20);
            for step in 0..2500 {
                let identity = random.skewed(room as u64 * 6);
                match random.below(1000) {
                    0..20 => {
                        if let Some(slot) = pair.slot_of(identity) {
                            pair.policy.remove(slot);
                            pair.model.remove(slot);
                            pair.identities[at(slot)] = None;
                        }
                    }
                    20..30 => {
                        let nonsense = random.next() as u32;
                        pair.policy.access(nonsense);
                        pair.model.access(nonsense);
                    }
                    30..40 => {
                        let slots: Vec<u32> = (0..5)
                            .map(|_| {
                                pair.space | random.below(pair.identities.len() as u64 + 3) as u32
                            })
                            .collect();
                        pair.victim_among(&slots);
                    }
                    40..43 => {
                        room = 1 + random.below(120) as usize;
                        while pair.model.count() > room {
                            pair.victim();
                        }
                        let slot_count = pair.identities.len() + room;
                        pair.policy.resize(pair.space | slot_count as u32);
                        pair.identities.resize(slot_count, None);
                    }
                    43..46 => pair.move_over(room as u32 + 30, &mut random),
                    _ => match pair.slot_of(identity) {
                        Some(slot) => {
                            pair.policy.access(slot);
                            pair.model.access(slot);
                        }
                        None => {
                            pair.policy.prepare(identity);
                            pair.model.prepare(identity);
                            while pair.model.count() >= room {
                                pair.victim();
                            }
                            if random.below(50) != 0 {
                                pair.insert(identity, &mut random);
                            }
                        }
                    },
                }
                if step % 50 == 0 {
                    pair.check();
                }
            }
            pair.check();
        }
    }
}

#[test]
fn nonsense_from_outside_changes_nothing() {
    for kind in LISTED {
        let mut policy = new(kind, 10);
        policy.insert(3, 33);
        let before = order(&policy);
        let nonsense = [4, 10, SLOT_COUNT_MAX, u32::MAX];
        for slot in nonsense {
            policy.access(slot);
            policy.remove(slot);
            policy.prefetch(slot);
            policy.set_displacement(slot.max(10), 1);
        }
        let identity_of = &mut |_: u32| -> u64 { panic!("nothing leaves") };
        assert_eq!(policy.victim_among(&nonsense, identity_of), None);
        assert_eq!(order(&policy), before, "{kind}");
        assert_eq!(policy.victim(&mut |_| 33), Some(3));
        assert_eq!(policy.victim(&mut |_| 33), None);
    }
}

#[test]
fn the_older_of_given_slots_leaves() {
    for kind in [PolicyKind::Lru, PolicyKind::Arc] {
        let mut policy = new(kind, 1000);
        for slot in 0..1000 {
            policy.insert(slot, u64::from(slot));
        }
        for slot in 0..300 {
            policy.access(slot);
        }
        let given = [100, 800, 400, 550, 10];
        assert_eq!(policy.victim_among(&given, &mut u64::from), Some(400));
        assert_eq!(policy.victim_among(&given, &mut u64::from), Some(550));
        assert_eq!(policy.victim_among(&given, &mut u64::from), Some(800));
    }
    let mut policy = new(PolicyKind::S3Fifo, 1000);
    for slot in 0..1000 {
        policy.insert(slot, u64::from(slot));
    }
    [5, 5, 6, 700]
        .into_iter()
        .for_each(|slot| policy.access(slot));
    let given = [5, 700, 701, 6];
    assert_eq!(policy.victim_among(&given, &mut u64::from), Some(701));
    assert_eq!(policy.victim_among(&given, &mut u64::from), Some(6));
}

#[test]
fn one_call_for_a_victim_is_bounded_however_popular_everything_is() {
    let mut policy = new(PolicyKind::S3Fifo, 100_000);
    for slot in 0..100_000 {
        policy.insert(slot, u64::from(slot));
        (0..3).for_each(|_| policy.access(slot));
    }
    let before = order(&policy)[1].clone();
    assert!(policy.victim(&mut u64::from).is_some());
    let after = order(&policy)[1].clone();
    let untouched = after
        .iter()
        .zip(&before[1..])
        .take_while(|(a, b)| a == b)
        .count();
    assert!(untouched > 80_000, "{untouched}");
}

#[test]
fn displacement_stays_with_the_slot() {
    for kind in PolicyKind::ALL {
        let mut policy = new(kind, 20);
        for slot in 0..20 {
            policy.set_displacement(slot, (slot % 4) as u8);
            policy.insert(slot, u64::from(slot));
        }
        policy.access(5);
        policy.remove(6);
        policy.victim(&mut u64::from);
        for slot in 0..20 {
            assert_eq!(policy.displacement(slot), (slot % 4) as u8);
        }
        policy.resize(SPACE | 40);
        policy.relocate(7, SPACE | 27);
        assert_eq!(
            (policy.displacement(7), policy.displacement(SPACE | 27)),
            (3, 0)
        );
    }
}

#[test]
fn resident_bytes_tell_slots_and_ghosts() {
    for (kind, ghost_bytes_max) in [
        (PolicyKind::Lru, 0),
        (PolicyKind::Arc, 13),
        (PolicyKind::S3Fifo, 12),
    ] {
        let count = 10_000u32;
        let mut policy = Noted::new(kind, count);
        assert_eq!(policy.resident_bytes(), slot_bytes(kind, count));
        let mut identities: Vec<u64> = (0..u64::from(count)).collect();
        for slot in 0..count {
            policy.insert(slot, u64::from(slot));
            if slot % 2 == 0 {
                (0..2).for_each(|_| policy.access(slot));
            }
        }
        for identity in u64::from(count)..60_000 {
            policy.prepare(identity);
            let slot = policy
                .victim(&mut |slot| identities[slot as usize])
                .unwrap();
            identities[slot as usize] = identity;
            policy.insert(slot, identity);
        }
        let ghost_bytes = policy.resident_bytes() - slot_bytes(kind, count);
        assert!(
            ghost_bytes <= ghost_bytes_max * u64::from(count),
            "{kind} {ghost_bytes}"
        );
        policy.resize(count + 8);
        assert_eq!(
            policy.resident_bytes() - ghost_bytes,
            slot_bytes(kind, count + 8)
        );
    }
}

#[test]
fn names_round_trip() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let error = "LRU".parse::<PolicyKind>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no eviction policy is called \"LRU\"; choose slru, lru, arc or s3fifo"
    );
}
