//! Shares of memory flow between the members of a process.
//!
//! Each member's store has a limit of its own, an equal share of what the
//! process may hold. A value may be longer than a share, or than what is left of
//! it while large requests are held: then the other members give up as much of
//! theirs as is missing, and evict for it, before the value is stored. So the sum
//! never grows, and nothing is refused that the process could hold. Shares are
//! equal again when nobody has borrowed for a while.

use crate::member::Member;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use trefoil_store::Store;

/// Entries that are shorter fit whatever the shares are: nobody gives all.
const LEN_MIN: usize = 512 << 10;
/// What is to be charged is not cut into smaller parts than this.
const PART_MIN: u64 = 64 << 10;
/// Shares that differ by less are equal.
const UNEVEN_MIN: u64 = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    members: OnceLock<Vec<Weak<Member>>>,
    /// Held while shares change.
    turn: Mutex<()>,
    /// What all could hold together if the process held nothing else: unlike the
    /// shares, it does not change with what is measured.
    all_len: AtomicU64,
    /// Somebody has borrowed since the shares were looked at.
    lent: AtomicBool,
}

impl Lending {
    /// Those who lend to each other. Once.
    pub(crate) fn connect(&self, members: &[Arc<Member>]) {
        let _ = self
            .members
            .set(members.iter().map(Arc::downgrade).collect());
    }

    /// What all could hold together from now on.
    pub(crate) fn set_all_len(&self, bytes: u64) {
        self.all_len.store(bytes, Ordering::Relaxed);
    }

    /// Whether an entry of this length may need more than a share.
    pub(crate) fn is_for(entry_len: usize) -> bool {
        entry_len >= LEN_MIN
    }

    /// Makes an entry of this length fit into a member's store, if others can
    /// give what is missing. To be kept until the entry is stored: shares do not
    /// change meanwhile.
    pub(crate) fn make_fit(&self, member: &Member, entry_len: usize) -> Option<MutexGuard<'_, ()>> {
        if self.members.get().is_none_or(|members| members.len() < 2) {
            return None;
        }
        let turn = self.turn();
        if member.store.missing_for(entry_len) > 0 && self.may_fit(entry_len) {
            self.borrow(member, entry_len);
        }
        Some(turn)
    }

    #[cold]
    fn borrow(&self, member: &Member, entry_len: usize) {
        self.lent.store(true, Ordering::Relaxed);
        let mut others: Vec<Arc<Member>> = self.members();
        others.retain(|other| other.number != member.number);
        others.sort_by_key(|other| std::cmp::Reverse(other.store.memory_limit()));
        for other in others {
            let missing = member.store.missing_for(entry_len);
            if missing == 0 {
                return;
            }
            let given = other.store.give_limit(missing);
            let limit = member.store.memory_limit();
            member.store.set_memory_limit(limit + given);
        }
    }

    /// Gives all members `share` on average, in the proportions that they have.
    /// A member keeps what its longest entry needs.
    pub(crate) fn apply(&self, share: u64) {
        let _turn = self.turn();
        let members = self.members();
        let all = share * members.len() as u64;
        let limits = limits(&members);
        let targets = distribute(all, &limits, &limits, &needs(&members));
        for (member, target) in members.iter().zip(targets) {
            member.store.set_memory_limit(target);
        }
    }

    /// Makes shares equal again if nobody has borrowed since the last look. A
    /// member keeps what its longest entry needs.
    pub(crate) fn settle(&self) {
        if self.lent.swap(false, Ordering::Relaxed) {
            return;
        }
        let _turn = self.turn();
        let members = self.members();
        if members.len() < 2 {
            return;
        }
        let limits = limits(&members);
        let all = limits.iter().sum();
        let equal = vec![1; members.len()];
        let targets = distribute(all, &equal, &limits, &needs(&members));
        let mut given = 0;
        for (member, target) in members.iter().zip(&targets) {
            let more = member.store.memory_limit().saturating_sub(*target);
            if more > UNEVEN_MIN {
                given += member.store.give_limit(more);
            }
        }
        // Only then: the sum never grows.
        for (member, target) in members.iter().zip(&targets) {
            let limit = member.store.memory_limit();
            let less = target.saturating_sub(limit).min(given);
            if less > 0 {
                member.store.set_memory_limit(limit + less);
                given -= less;
            }
        }
    }

    /// Whether the process could hold an entry of this length, at each of its
    /// members that keep a copy, or once beside the request that brings it.
    pub(crate) fn may_fit(&self, entry_len: usize) -> bool {
        let members = self.members();
        let copies = members.iter().map(|m| m.store.shard_count()).max();
        let copies = copies.unwrap_or(1).min(members.len()).max(2);
        Self::is_for(entry_len)
            && copies as u64 * entry_len as u64 <= self.all_len.load(Ordering::Relaxed)
    }

    /// What the members' stores may hold together.
    pub(crate) fn stores_len(&self) -> u64 {
        let members = self.members();
        members.iter().map(|m| m.store.memory_limit()).sum()
    }

    /// What each member's store may hold on average.
    pub(crate) fn mean_share(&self) -> u64 {
        let members = self.members();
        let sum: u64 = members.iter().map(|m| m.store.memory_limit()).sum();
        sum / (members.len() as u64).max(1)
    }

    /// Charges bytes that the process holds for a message to the stores, which
    /// evict for them. Less than asked for if they have no more. First comes what
    /// is free, then what leaves each its longest entry, the same from each; then
    /// one after the other, `spared` last, so that few lose a long entry.
    pub(crate) fn hold(&self, bytes: u64, spared: Option<u32>) -> Held {
        let _turn = self.turn();
        let members = self.members();
        let mut held = Held::default();
        let left = held.charge_evenly(&members, bytes, Store::free_len);
        let left = held.charge_evenly(&members, left, Store::spare_len);
        let mut others: Vec<&Arc<Member>> = members.iter().collect();
        others.sort_by_key(|member| {
            let limit = member.store.memory_limit();
            (Some(member.number) == spared, std::cmp::Reverse(limit))
        });
        let mut left = left;
        for member in others {
            let mut part = left;
            while left > 0 && part >= PART_MIN.min(left) {
                match held.charge(member, part.min(left)) {
                    true => left -= part.min(left),
                    false => part /= 2,
                }
            }
        }
        held
    }

    fn members(&self) -> Vec<Arc<Member>> {
        let members = self.members.get().map_or(&[][..], Vec::as_slice);
        members.iter().filter_map(Weak::upgrade).collect()
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn limits(members: &[Arc<Member>]) -> Vec<u64> {
    let limit = |member: &Arc<Member>| member.store.memory_limit();
    members.iter().map(limit).collect()
}

/// What each member's longest entry needs.
fn needs(members: &[Arc<Member>]) -> Vec<u64> {
    let need = |member: &Arc<Member>| member.store.limit_for_longest();
    members.iter().map(need).collect()
}

/// Shares of `all` by weight, but for those who need more, as far as they have
/// it now.
fn distribute(all: u64, weights: &[u64], limits: &[u64], needs: &[u64]) -> Vec<u64> {
    let mut kept: Vec<Option<u64>> = vec![None; limits.len()];
    let mut left = all;
    loop {
        let open: Vec<usize> = (0..limits.len()).filter(|at| kept[*at].is_none()).collect();
        let weight: u128 = open.iter().map(|at| u128::from(weights[*at])).sum();
        let share = |at: usize| (u128::from(left) * u128::from(weights[at]) / weight.max(1)) as u64;
        let Some(&at) = open
            .iter()
            .find(|at| needs[**at].min(limits[**at]) > share(**at))
        else {
            let shares = kept.iter().enumerate();
            return shares
                .map(|(at, kept)| kept.unwrap_or_else(|| share(at)))
                .collect();
        };
        let keeps = needs[at].min(limits[at]).min(left);
        kept[at] = Some(keeps);
        left -= keeps;
    }
}

/// Bytes on the stores' accounts, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    charged: Vec<(Arc<Member>, u64)>,
}

impl Held {
    /// Whether these bytes are charged to the member now.
    fn charge(&mut self, member: &Arc<Member>, bytes: u64) -> bool {
        // Nothing is evicted for what cannot be charged anyway.
        let fits = member.store.missing_for(bytes as usize) == 0;
        let charged = fits && member.store.charge(bytes);
        if charged {
            self.charged.push((Arc::clone(member), bytes));
        }
        charged
    }

    /// Charges the same to each member, but no more than it has by `has`; how
    /// much is left.
    fn charge_evenly(
        &mut self,
        members: &[Arc<Member>],
        bytes: u64,
        has: fn(&Store) -> u64,
    ) -> u64 {
        let mut left = bytes;
        for round in [0, 1] {
            let part = left.div_ceil((members.len() as u64).max(1));
            for member in members {
                // What one has not, another may have, in a second round.
                let part = if round == 0 { part } else { left };
                let part = part.min(left).min(has(&member.store));
                if part > 0 && self.charge(member, part) {
                    left -= part;
                }
            }
        }
        left
    }

    /// How many there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.charged.iter().map(|(_, part)| part).sum()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (member, part) in self.charged.drain(..) {
            member.store.release(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::distribute;

    fn settled(limits: [u64; 3], needs: [u64; 3]) -> Vec<u64> {
        distribute(limits.iter().sum(), &[1; 3], &limits, &needs)
    }

    #[test]
    fn shares_settle_but_for_what_a_long_entry_needs() {
        assert_eq!(settled([40, 10, 10], [0, 0, 0]), [20, 20, 20]);
        assert_eq!(settled([40, 10, 10], [15, 20, 0]), [20, 20, 20]);
        assert_eq!(settled([40, 10, 10], [30, 0, 0]), [30, 15, 15]);
        // What was enough at the mean is not any more beside a needy one.
        assert_eq!(settled([40, 18, 2], [30, 18, 0]), [30, 18, 12]);
        // Nobody is given more for a need that it cannot meet.
        assert_eq!(settled([40, 10, 10], [99, 99, 99]), [40, 10, 10]);
    }

    #[test]
    fn less_memory_leaves_proportions_but_for_what_a_long_entry_needs() {
        let limits = [40, 10, 10];
        let less = |all, needs| distribute(all, &limits, &limits, needs);
        assert_eq!(less(30, &[0, 0, 0]), [20, 5, 5]);
        assert_eq!(less(48, &[38, 0, 0]), [38, 5, 5]);
        assert_eq!(less(30, &[38, 0, 0]), [30, 0, 0]);
    }
}
