//! Clients that wait for room among the calls to one backend, in the order in which
//! they asked for it.
//!
//! * **Nobody is passed for ever**: a call goes if there is room for it and for all that
//!   waits ahead of it. So a long value gets its room beside any number of short ones.
//! * A client waits with one call, its first. With the next one it queues up behind the
//!   others.
//! * One that was told of room and does not come is passed after [`TURN`], and keeps its
//!   place: its operation may have ended, or it gets no turn of its own.

use super::account::Load;
use super::bell::Bell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For so long room is kept for a client that was told of it.
const TURN: Duration = Duration::from_millis(20);

/// Where a client hears of room for its calls to one backend.
#[derive(Debug)]
pub(crate) struct RoomWatch {
    has_room: AtomicBool,
    bell: Arc<Bell>,
}

impl RoomWatch {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        RoomWatch {
            has_room: AtomicBool::new(false),
            bell,
        }
    }

    /// Whether it was told of room since that was noticed last.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.has_room.load(Ordering::SeqCst)
    }

    /// Its client has noticed.
    pub(crate) fn clear(&self) {
        self.has_room.store(false, Ordering::SeqCst);
    }

    pub(super) fn tell(&self) {
        self.has_room.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

#[derive(Debug)]
struct Waiting {
    watch: Arc<RoomWatch>,
    /// Bytes of its call.
    len: usize,
    told_at: Option<Instant>,
}

impl Waiting {
    fn is_of(&self, watch: &Arc<RoomWatch>) -> bool {
        Arc::ptr_eq(&self.watch, watch)
    }

    /// Whether the others need not wait for it.
    fn is_passed(&self, now: Instant) -> bool {
        self.told_at
            .is_some_and(|at| now.saturating_duration_since(at) > TURN)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue(VecDeque<Waiting>);

impl Queue {
    /// `load`, and what waits ahead of a client: of all, if it does not wait yet.
    pub(super) fn load_ahead(&self, load: Load, watch: Option<&Arc<RoomWatch>>) -> Load {
        if self.0.is_empty() {
            return load;
        }
        let now = Instant::now();
        let is_other = |waiting: &&Waiting| !watch.is_some_and(|own| waiting.is_of(own));
        let ahead = self.0.iter().take_while(is_other);
        ahead
            .filter(|waiting| !waiting.is_passed(now))
            .fold(load, |load, waiting| load.and(waiting.len))
    }

    /// A client waits for room for `len` bytes; at its old place, if it has one.
    pub(super) fn wait(&mut self, watch: &Arc<RoomWatch>, len: usize) {
        match self.0.iter_mut().find(|waiting| waiting.is_of(watch)) {
            Some(waiting) => (waiting.len, waiting.told_at) = (len, None),
            None => self.0.push_back(Waiting {
                watch: Arc::clone(watch),
                len,
                told_at: None,
            }),
        }
    }

    /// A client has found room, or is no more.
    pub(super) fn leave(&mut self, watch: &Arc<RoomWatch>) {
        self.0.retain(|waiting| !waiting.is_of(watch));
    }

    /// Those who are to be told that there is room for them beside `load`.
    pub(super) fn call(&mut self, mut load: Load) -> Vec<Arc<RoomWatch>> {
        let mut called = Vec::new();
        if self.0.is_empty() {
            return called;
        }
        let now = Instant::now();
        for waiting in &mut self.0 {
            if waiting.is_passed(now) {
                continue;
            }
            if !load.takes(waiting.len) {
                break;
            }
            load = load.and(waiting.len);
            if waiting.told_at.is_none() {
                waiting.told_at = Some(now);
                called.push(Arc::clone(&waiting.watch));
            }
        }
        called
    }
}
