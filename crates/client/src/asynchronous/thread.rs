//! The thread that drives an async client: one client, one set of rings, for any
//! number of tasks.

use super::queue::{Answer, Command, Queue, Slot};
use super::views::{Published, Views};
use crate::cell::Cell;
use crate::client::Client;
use crate::submit::Completion;
use crate::time;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trefoil_driver::Options;
use trefoil_layout::Version;

/// Operations under way at a time: more would only wait in rings and calls.
const IN_FLIGHT_MAX: usize = 512;
/// How often touches are collected where nothing else happens.
const TOUCH_NS: u64 = 50_000_000;
/// Patience with what was sent, when somebody waits for it or the last user has gone.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);
/// How long nothing begins for the sake of connections that are being made: a replica that
/// hangs is not waited for by those who have a quorum without it.
const GREETING_NS: u64 = 200_000_000;
/// How often the queue is looked at while nothing of it begins, so that what waits
/// there ends by its deadline.
const HELD_LOOK_NS: u64 = 5_000_000;

struct Worker {
    client: Client,
    queue: Arc<Queue>,
    views: Arc<Views>,
    /// By token: where its answer goes.
    slots: Vec<Option<Arc<Slot>>>,
    free: Vec<u64>,
    in_flight: usize,
    /// The connections that the client began with are waited for: nothing begins
    /// meanwhile.
    is_greeting: bool,
    greets_until_ns: u64,
    /// Somebody waits for all that was begun before: nothing begins meanwhile.
    finishing: Option<Finishing>,
    published: Option<(u64, u64)>,
    touches_at_ns: u64,
}

/// See [`Command::Finish`].
struct Finishing {
    slot: Arc<Slot>,
    /// Everything that was begun has ended, and what was sent is waited for until
    /// then, on the monotonic clock.
    until_ns: Option<u64>,
}

/// Drives until the queue is closed and nothing is under way any more.
pub(super) fn run(cell: &Cell, options: Options, queue: &Arc<Queue>, views: &Arc<Views>) {
    let _ending = Ending { queue, views };
    let mut client = cell.begin_client(options);
    client.wakes_for(Arc::clone(&queue.signals));
    queue.set_bell(client.bell());
    let mut worker = Worker {
        client,
        queue: Arc::clone(queue),
        views: Arc::clone(views),
        slots: Vec::new(),
        free: Vec::new(),
        in_flight: 0,
        is_greeting: true,
        greets_until_ns: time::monotonic_ns().saturating_add(GREETING_NS),
        finishing: None,
        published: None,
        touches_at_ns: 0,
    };
    while worker.turn() {}
    queue.end();
    worker.views.published.store(None);
    worker.collect_touches();
    worker.client.finish(FINISH_PATIENCE);
}

/// However the thread ends, nobody waits for it any more.
struct Ending<'a> {
    queue: &'a Queue,
    views: &'a Views,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.queue.end();
        self.views.published.store(None);
        self.queue.under_way.store(0, Ordering::SeqCst);
    }
}

/// Only a panic finds operations under way.
impl Drop for Worker {
    fn drop(&mut self) {
        // Those that come now are refused before any of these hears of it.
        self.queue.end();
        self.queue.under_way.store(0, Ordering::SeqCst);
        let finishing = self.finishing.iter().map(|finishing| &finishing.slot);
        for slot in self.slots.iter().flatten().chain(finishing) {
            slot.fail("the client's thread has ended by a panic");
        }
    }
}

impl Worker {
    /// One round; `false` at the end.
    fn turn(&mut self) -> bool {
        let mut ended = 0;
        let (slots, free) = (&mut self.slots, &mut self.free);
        self.client.poll(&mut |token, completion| {
            ended += 1;
            if let Some(slot) = slots[token as usize].take() {
                free.push(token);
                slot.complete(match completion {
                    Completion::Lookup(found) => {
                        Answer::Lookup(found.map(|found| found.into_owned()))
                    }
                    Completion::Mutated(mutated) => Answer::Mutated(mutated),
                    Completion::Basis(_) | Completion::ItemUses(_) => Answer::Finished,
                });
            }
        });
        self.in_flight -= ended;
        self.give_up_dropped();
        self.is_greeting &=
            self.client.is_connecting() && time::monotonic_ns() < self.greets_until_ns;
        if !self.is_greeting {
            self.publish();
        }
        let now = time::monotonic_ns();
        let queue_deadline_ns = self.queue.expire(now);
        let mut begun = usize::from(self.finish(now));
        while self.in_flight < IN_FLIGHT_MAX && !self.holds() && self.begin_next() {
            begun += 1;
        }
        if now >= self.touches_at_ns {
            self.touches_at_ns = now + TOUCH_NS;
            self.collect_touches();
            self.client.tend();
        }
        self.tell();
        if begun > 0 || ended > 0 {
            return true;
        }
        if self.in_flight == 0 && self.queue.is_closed() {
            return false;
        }
        let mut until = self
            .client
            .next_deadline_ns()
            .unwrap_or(u64::MAX)
            .min(queue_deadline_ns)
            .min(self.touches_at_ns);
        if self.holds() {
            until = until.min(now + HELD_LOOK_NS);
        }
        let is_full = self.in_flight >= IN_FLIGHT_MAX || self.holds();
        self.client.sleep_for(until, is_full);
        true
    }

    /// Whether nothing of the queue begins, for a while.
    fn holds(&self) -> bool {
        self.is_greeting || self.finishing.is_some()
    }

    /// Begins the next operation of the queue; `false` if there is none.
    fn begin_next(&mut self) -> bool {
        let token = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u64 - 1
        });
        match self.queue.pop(token) {
            Some((Command::Finish, slot)) => {
                self.free.push(token);
                self.finishing = Some(Finishing {
                    slot,
                    until_ns: None,
                });
                true
            }
            Some((command, slot)) => {
                self.begin(token, command, slot);
                true
            }
            None => {
                self.free.push(token);
                false
            }
        }
    }

    fn begin(&mut self, token: u64, command: Command, slot: Arc<Slot>) {
        let observed = Version {
            time_ns: self.views.observed_ns.load(Ordering::Relaxed),
            origin: 0,
        };
        self.client.observe(observed);
        self.client.end_by(slot.deadline_ns);
        self.slots[token as usize] = Some(slot);
        self.in_flight += 1;
        let client = &mut self.client;
        match command {
            Command::Get(key) => client.submit_get(&key, token),
            Command::Set(key, value, options, commit) => {
                client.submit_set_by(&key, &value, options, commit, token);
            }
            Command::Fill(ticket, key, value, options) => {
                client.submit_fill(ticket, &key, &value, options, token);
            }
            Command::Erase(key, commit) => client.submit_erase_by(&key, commit, token),
            Command::Cas(key, expected, value, options) => {
                client.submit_cas(&key, expected, &value, options, token);
            }
            Command::Finish => {}
        }
    }

    /// Lookups whose futures were dropped give their places to others.
    fn give_up_dropped(&mut self) {
        for (token, slot) in self.queue.take_dropped() {
            let place = &mut self.slots[token as usize];
            if place.as_ref().is_some_and(|of| Arc::ptr_eq(of, &slot)) {
                *place = None;
                self.free.push(token);
                self.in_flight -= 1;
                self.client.abandon(token);
            }
        }
    }

    /// Lets others know how much is under way.
    fn tell(&self) {
        let (under_way, places) = (self.client.in_flight(), self.client.places());
        self.queue.under_way.store(under_way, Ordering::SeqCst);
        self.queue.places.store(places, Ordering::SeqCst);
    }

    /// Goes on with what somebody waits for: once everything that was begun has ended,
    /// for what was sent. The turns go on meanwhile; `true` if the next one is due.
    fn finish(&mut self, now: u64) -> bool {
        let Some(mut finishing) = self.finishing.take_if(|_| self.in_flight == 0) else {
            return false;
        };
        let Some(until_ns) = finishing.until_ns else {
            self.collect_touches();
            self.client.flush_touches();
            finishing.until_ns = Some(now.saturating_add(time::nanoseconds(FINISH_PATIENCE)));
            self.finishing = Some(finishing);
            return true;
        };
        if now < until_ns && !self.client.has_finished() {
            self.finishing = Some(finishing);
            return false;
        }
        self.tell();
        finishing.slot.complete(Answer::Finished);
        true
    }

    /// Lets other threads see what this one knows.
    fn publish(&mut self) {
        let (view_count, changes) = (self.client.view_count(), self.client.seen_changes());
        let now = (view_count, changes);
        if self.published != Some(now) {
            self.published = Some(now);
            let (topology, views) = self.client.views();
            let published = Published {
                topology,
                views,
                view_count,
                changes,
            };
            self.views.published.store(Some(Arc::new(published)));
        }
    }

    fn collect_touches(&mut self) {
        for stash in self.views.take_stashes() {
            for seen in stash {
                self.client.pass_read(seen.read, seen.view_count);
            }
        }
    }
}
