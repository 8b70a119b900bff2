//! Answers that will not come: of a carrier that is gone, of a backend that is silent.

use crate::driver::Driver;
use crate::host::Host;
use crate::late::Via;
use crate::op::{Machine, Owed};
use crate::room::Way;
use crate::slab::Slab;
use trefoil_client_core::outcome::SendFailure;
use trefoil_fabric::port::{Closed, Port};

/// Takes all that a port has to tell; how it has ended, if it has.
fn drain(port: &mut impl Port, owes: &mut u32, slab: &mut Slab) -> Option<Closed> {
    loop {
        match port.poll(|completion| slab.complete(completion)) {
            Ok(0) => return None,
            Ok(count) => *owes = owes.saturating_sub(count as u32),
            Err(closed) => return Some(closed),
        }
    }
}

/// What became of what a backend has not answered whose connection has ended so; `None`: it
/// was given up.
fn failure_of(end: Option<Closed>, has_moved: bool) -> SendFailure {
    match end {
        Some(Closed { is_settled: true }) if has_moved => SendFailure::Moving,
        Some(Closed { is_settled: true }) => SendFailure::NotSent,
        _ => SendFailure::Lost,
    }
}

impl<H: Host> Driver<H> {
    /// The best carrier to a backend is gone: whatever it owes is lost.
    #[cold]
    pub(crate) fn lose(&mut self, number: usize, why: &str) {
        let now = self.host.monotonic_ns();
        if self.is_indirect(number) {
            return self.lose_indirect(number, why, now);
        }
        let end = self.last_answers(number);
        let link = &mut self.links[number];
        let has_moved = link.view().is_some_and(|view| view.has_moved());
        if has_moved && end.is_none() && link.near_owes > 0 {
            self.leave(number, why, now);
        }
        let link = &mut self.links[number];
        link.set_down(why, now, &mut self.host);
        if has_moved {
            link.has_moved(now);
            link.begin_connecting(&mut self.host, &self.topology);
        }
        link.near_owes = 0;
        if has_moved {
            // Or the cell was resized, and nobody comes there any more.
            self.begin_learning();
        }
        self.view_count += 1;
        let failure = failure_of(end, has_moved);
        let is_near = |owed: &Owed| matches!(owed, Owed::Near(_));
        self.lose_owed(number, (failure, why), is_near);
        self.lose_late(number, Via::Near);
        for way in Way::ALL {
            // What has not been sent to one that has moved, its successor gets.
            if !(has_moved && way == Way::Near) {
                self.drop_blocked(number, way);
            }
        }
        self.learn_now_and_then(now);
    }

    /// What stands in the near port by now, and how that has ended, if it has.
    pub(crate) fn last_answers(&mut self, number: usize) -> Option<Closed> {
        let link = &mut self.links[number];
        let near = link.near.as_mut()?;
        drain(near, &mut link.near_owes, &mut self.slab)
    }

    /// Whoever has sent something to the process that has moved waits for its answer, while
    /// the one that has taken its place is connected to.
    #[cold]
    fn leave(&mut self, number: usize, why: &str, now: u64) {
        // Of an earlier move.
        self.poll_leaving(number, now);
        self.lose_leaving(number, (SendFailure::Lost, why));
        self.links[number].leave(now);
        self.slab.late.leave(number as u32);
        for (_, op) in self.slab.all() {
            for (at, owed) in op.cohort.as_slice().iter().zip(&mut op.owed) {
                if let Owed::Near(token) = *owed
                    && *at as usize == number
                {
                    *owed = Owed::Leaving(token);
                }
            }
        }
    }

    /// Takes what one that has moved has answered.
    #[cold]
    pub(crate) fn poll_leaving(&mut self, number: usize, now: u64) {
        let Some(leaving) = &mut self.links[number].leaving else {
            return;
        };
        let end = match drain(&mut leaving.port, &mut leaving.owes, &mut self.slab) {
            None if leaving.owes > 0 && now < leaving.until_ns => return,
            None => Closed::LOST,
            Some(closed) => closed,
        };
        let why = end.to_string();
        self.lose_leaving(number, (failure_of(Some(end), true), &why));
    }

    fn lose_leaving(&mut self, number: usize, failure: (SendFailure, &str)) {
        if self.links[number].leaving.take().is_some() {
            let is_leaving = |owed: &Owed| matches!(owed, Owed::Leaving(_));
            self.lose_owed(number, failure, is_leaving);
            self.lose_late(number, Via::Leaving);
        }
    }

    pub(crate) fn is_indirect(&self, number: usize) -> bool {
        let near = self.links[number].near.as_ref();
        near.is_some_and(Port::is_indirect)
    }

    /// What carried to the backend by way of a third process is gone, which says nothing
    /// of the backend: calls go on.
    pub(crate) fn lose_indirect(&mut self, number: usize, why: &str, now: u64) {
        self.links[number].is_without_near(why, now, &mut self.host);
        self.view_count += 1;
        let is_near = |owed: &Owed| matches!(owed, Owed::Near(_));
        self.lose_owed(number, (SendFailure::Lost, why), is_near);
        self.lose_late(number, Via::Near);
        self.drop_blocked(number, Way::Near);
    }

    /// Whether nothing was heard for so long that calls under way would have been
    /// answered, however long their values are.
    #[cold]
    pub(crate) fn is_silent(&mut self, number: usize, now: u64) -> bool {
        let owed = self.slab.all().filter(|(_, op)| {
            let of_it =
                |(at, owed): (&u32, &Owed)| *at as usize == number && matches!(owed, Owed::Far(_));
            op.cohort.as_slice().iter().zip(&op.owed).any(of_it)
        });
        let (mut len, mut owes_reads_only) = (0, true);
        for (_, op) in owed {
            len += op.value.len() as u64;
            owes_reads_only &= matches!(op.machine, Machine::Get(_));
        }
        let link = &mut self.links[number];
        link.is_silent(len, owes_reads_only, now, &mut self.host, &self.topology)
    }

    /// A backend that is reached by calls has been silent for long, with calls under
    /// way: it hangs, or cannot be reached any more. Mutations that were sent may go on.
    #[cold]
    pub(crate) fn lose_calls(&mut self, number: usize, why: &str) {
        self.links[number].is_not_heard();
        let is_far = |owed: &Owed| matches!(owed, Owed::Far(_));
        self.lose_owed(number, (SendFailure::Lost, why), is_far);
        // An engine may still read the memory of one that hangs.
        if self.is_indirect(number) {
            let now = self.host.monotonic_ns();
            self.lose_indirect(number, why, now);
        }
        // Nor will its rings answer, if it has any: its lease has ended, too.
        self.lose(number, why);
        self.lose_late(number, Via::Far);
    }

    /// Answers of this backend that will not come.
    #[cold]
    pub(crate) fn lose_owed(
        &mut self,
        number: usize,
        (failure, why): (SendFailure, &str),
        is_lost: impl Fn(&Owed) -> bool,
    ) {
        let mut hit = Vec::new();
        for (at, op) in self.slab.all() {
            for replica in 0..op.cohort.as_slice().len() {
                if op.cohort.as_slice()[replica] as usize == number
                    && op.topology == self.topology_count
                    && is_lost(&op.owed[replica])
                {
                    op.owed[replica] = Owed::Nothing;
                    op.no_answer(replica, failure, why);
                    hit.push(at);
                }
            }
        }
        for at in hit {
            self.slab.make_ready(at);
        }
    }
}
