//! Shares of memory flow between the members of a process.
//!
//! Each member's store has a limit of its own, an equal share of what the
//! process may hold. A value may be longer than a share, or than what is left of
//! it while large requests are held: then the other members give up as much of
//! theirs as is missing, and evict for it, before the value is stored. So the sum
//! never grows, and nothing is refused that the process could hold. Shares are
//! equal again when nobody has borrowed for a while.

use crate::member::Member;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Entries that are shorter fit whatever the shares are: nobody gives all.
const LEN_MIN: usize = 512 << 10;
/// Shares that differ by less are equal.
const UNEVEN_MIN: u64 = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    members: OnceLock<Vec<Weak<Member>>>,
    /// Held while shares change.
    turn: Mutex<()>,
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

    /// Makes an entry of this length fit into a member's store, if others can
    /// give what is missing. To be kept until the entry is stored: shares do not
    /// change meanwhile.
    pub(crate) fn make_fit(&self, member: &Member, entry_len: usize) -> Option<MutexGuard<'_, ()>> {
        let alone = self.members.get().is_none_or(|members| members.len() < 2);
        if entry_len < LEN_MIN || alone {
            return None;
        }
        let turn = self.turn();
        if member.store.missing_for(entry_len) > 0 {
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

    /// Gives every member the same share, or all a part of what they have, if
    /// somebody has borrowed lately.
    pub(crate) fn apply(&self, share: u64) {
        let _turn = self.turn();
        let members = self.members();
        let sum: u64 = members.iter().map(|m| m.store.memory_limit()).sum();
        let lent = self.lent.swap(false, Ordering::Relaxed);
        for member in &members {
            let part = u128::from(member.store.memory_limit()) * members.len() as u128;
            let lent_share = u128::from(share) * part / u128::from(sum.max(1));
            let wanted = if lent { lent_share as u64 } else { share };
            member.store.set_memory_limit(wanted);
        }
    }

    /// Makes shares equal again if nobody has borrowed since the last look.
    pub(crate) fn settle(&self) {
        if self.lent.swap(false, Ordering::Relaxed) {
            return;
        }
        let _turn = self.turn();
        let members = self.members();
        let Some(count) = u64::try_from(members.len()).ok().filter(|count| *count > 1) else {
            return;
        };
        let mean = members.iter().map(|m| m.store.memory_limit()).sum::<u64>() / count;
        let mut given = 0;
        for member in &members {
            let more = member.store.memory_limit().saturating_sub(mean);
            if more > UNEVEN_MIN {
                given += member.store.give_limit(more);
            }
        }
        // Only then: the sum never grows.
        for member in &members {
            let limit = member.store.memory_limit();
            let less = mean.saturating_sub(limit).min(given);
            if less > 0 {
                member.store.set_memory_limit(limit + less);
                given -= less;
            }
        }
    }

    /// Whether the process could hold an entry of this length beside the request
    /// that brings it, if nothing else were in the way.
    pub(crate) fn may_fit(&self, entry_len: usize) -> bool {
        let members = self.members();
        let all: u64 = members.iter().map(|m| m.store.memory_limit()).sum();
        entry_len >= LEN_MIN && 2 * entry_len as u64 <= all
    }

    /// What each member's store may hold on average.
    pub(crate) fn mean_share(&self) -> u64 {
        let members = self.members();
        let sum: u64 = members.iter().map(|m| m.store.memory_limit()).sum();
        sum / (members.len() as u64).max(1)
    }

    /// Charges bytes that the process holds for a request to the stores, which
    /// evict for them: the same to each, and what one has no room for to others.
    pub(crate) fn hold(&self, bytes: u64) -> Held {
        let _turn = self.turn();
        let members = self.members();
        let part = bytes.div_ceil((members.len() as u64).max(1));
        let mut held = Held::default();
        let mut left = bytes;
        for member in members.iter().chain(members.iter()) {
            let part = part.min(left);
            if part > 0 && member.store.charge(part) {
                left -= part;
                held.charged.push((Arc::clone(member), part));
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

/// Bytes on the stores' accounts, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    charged: Vec<(Arc<Member>, u64)>,
}

impl Held {
    /// How many.
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
