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
/// Patience with what was sent, when the last user has gone.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);

struct Worker {
    client: Client,
    queue: Arc<Queue>,
    views: Arc<Views>,
    /// By token: where its answer goes.
    slots: Vec<Option<Arc<Slot>>>,
    free: Vec<u64>,
    in_flight: usize,
    /// Somebody waits for all that was begun before: nothing begins meanwhile.
    finishing: Option<Arc<Slot>>,
    published: Option<u64>,
    touches_at_ns: u64,
}

/// Drives until the queue is closed and nothing is under way any more.
pub(super) fn run(cell: &Cell, options: Options, queue: &Arc<Queue>, views: &Arc<Views>) {
    let mut client = cell.client(options);
    client.wakes_for(Arc::clone(&queue.count));
    queue.set_bell(client.bell());
    let mut worker = Worker {
        client,
        queue: Arc::clone(queue),
        views: Arc::clone(views),
        slots: Vec::new(),
        free: Vec::new(),
        in_flight: 0,
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
                    Completion::ItemUses(_) => Answer::Finished,
                });
            }
        });
        self.in_flight -= ended;
        self.publish();
        let mut begun = 0;
        self.finish();
        while self.in_flight < IN_FLIGHT_MAX
            && self.finishing.is_none()
            && let Some((command, slot)) = self.queue.pop()
        {
            self.begin(command, slot);
            begun += 1;
        }
        let now = time::monotonic_ns();
        if now >= self.touches_at_ns {
            self.touches_at_ns = now + TOUCH_NS;
            self.collect_touches();
        }
        self.finish();
        self.queue
            .under_way
            .store(self.client.in_flight(), Ordering::SeqCst);
        if begun > 0 || ended > 0 {
            return true;
        }
        if self.in_flight == 0 && self.queue.is_closed() {
            return false;
        }
        let until = self
            .client
            .next_deadline_ns()
            .unwrap_or(u64::MAX)
            .min(self.touches_at_ns);
        let is_full = self.in_flight >= IN_FLIGHT_MAX || self.finishing.is_some();
        self.client.sleep_for(until, is_full);
        true
    }

    fn begin(&mut self, command: Command, slot: Arc<Slot>) {
        let observed = Version {
            time_ns: self.views.observed_ns.load(Ordering::Relaxed),
            origin: 0,
        };
        self.client.observe(observed);
        if let Command::Finish = command {
            self.finishing = Some(slot);
            return;
        }
        let token = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u64 - 1
        });
        self.slots[token as usize] = Some(slot);
        self.in_flight += 1;
        let client = &mut self.client;
        match command {
            Command::Get(key) => client.submit_get(&key, token),
            Command::Set(key, value, options) => client.submit_set(&key, &value, options, token),
            Command::Fill(ticket, key, value, options) => {
                client.submit_fill(ticket, &key, &value, options, token);
            }
            Command::Erase(key) => client.submit_erase(&key, token),
            Command::Cas(key, expected, value, options) => {
                client.submit_cas(&key, expected, &value, options, token);
            }
            Command::Finish => {}
        }
    }

    /// Everything that was begun has ended: what was sent is waited for.
    fn finish(&mut self) {
        if self.in_flight == 0
            && let Some(slot) = self.finishing.take()
        {
            self.collect_touches();
            self.client.finish(FINISH_PATIENCE);
            self.queue
                .under_way
                .store(self.client.in_flight(), Ordering::SeqCst);
            slot.complete(Answer::Finished);
        }
    }

    /// Lets other threads see what this one knows.
    fn publish(&mut self) {
        let now = self.client.view_count();
        if self.published != Some(now) {
            self.published = Some(now);
            let (topology, views) = self.client.views();
            let published = Published { topology, views };
            self.views.published.store(Some(Arc::new(published)));
        }
    }

    fn collect_touches(&mut self) {
        for stash in self.views.take_stashes() {
            for touch in stash {
                self.client
                    .pass_touch(touch.backend, touch.partition, touch.window_id, touch.slot);
            }
        }
    }
}
