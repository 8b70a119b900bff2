//! Who has sessions with an engine: it takes so many at a time, and no identity is to have
//! them all where there are several.

use super::Who;
use super::shared::locked;
use super::shares::Owner;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use trefoil_softnic_core::wire::RefusalCode;

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    /// Only of those who have some.
    of_owner: HashMap<Owner, usize>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Seats {
    /// Of all together.
    max: usize,
    /// Of one owner.
    share: usize,
    taken: Mutex<Taken>,
}

impl Seats {
    pub(super) fn new(max: usize, share: usize) -> Self {
        Seats {
            max,
            share,
            taken: Mutex::default(),
        }
    }

    /// A place for one more session of theirs.
    pub(super) fn take(self: &Arc<Self>, who: &Who) -> Result<Seat, RefusalCode> {
        let owner = Owner::from(who);
        let mut taken = locked(&self.taken);
        let own = taken.of_owner.get(&owner).copied().unwrap_or(0);
        // Where there is no room besides, more places would not help them. A share of all is
        // none.
        if self.share < self.max && own >= self.share {
            return Err(RefusalCode::Share);
        }
        if taken.count >= self.max {
            return Err(RefusalCode::Full);
        }
        taken.count += 1;
        taken.of_owner.insert(owner.clone(), own + 1);
        Ok(Seat {
            seats: Arc::clone(self),
            owner,
            of_loop: None,
        })
    }

    fn leave(&self, owner: &Owner) {
        let mut taken = locked(&self.taken);
        taken.count -= 1;
        if let Some(own) = taken.of_owner.get_mut(owner) {
            *own -= 1;
            if *own == 0 {
                taken.of_owner.remove(owner);
            }
        }
    }
}

/// A session's place among those that an engine takes, and in its loop; free again when
/// it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    owner: Owner,
    of_loop: Option<Arc<AtomicUsize>>,
}

impl Seat {
    /// It is of the loop that has this count, too, and of no other one any more.
    pub(super) fn join(&mut self, of_loop: &Arc<AtomicUsize>) {
        of_loop.fetch_add(1, Ordering::AcqRel);
        let before = self.of_loop.replace(Arc::clone(of_loop));
        if let Some(before) = before {
            before.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.leave(&self.owner);
        if let Some(count) = &self.of_loop {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_owner_has_more_than_its_share() {
        let seats = Arc::new(Seats::new(4, 2));
        let [one, two, three] = [b"1", b"2", b"3"].map(|token| Who::Token(token[..].into()));
        let first = seats.take(&one).expect("its first");
        let second = seats.take(&one).expect("its second");
        assert_eq!(seats.take(&one).err(), Some(RefusalCode::Share));
        let _others = [(); 2].map(|()| seats.take(&two).expect("a place of others"));
        assert_eq!(seats.take(&three).err(), Some(RefusalCode::Full));
        assert_eq!(seats.take(&one).err(), Some(RefusalCode::Share));
        drop(first);
        let third = seats.take(&three).expect("the place that is free again");
        assert_eq!(seats.take(&one).err(), Some(RefusalCode::Full));
        drop((second, third));
        let _again = [(); 2].map(|()| seats.take(&one).expect("both are free again"));
        assert_eq!(locked(&seats.taken).of_owner.len(), 2, "of who has some");
        let seats = Arc::new(Seats::new(1, 1));
        let _all = seats.take(&one).expect("the only one");
        assert_eq!(seats.take(&one).err(), Some(RefusalCode::Full));
    }
}
