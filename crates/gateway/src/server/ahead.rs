//! Requests that are received a little before they are executed.
//!
//! To find an item is to wait for memory twice: for its place in the index, then for the
//! item. Where several connections are ready, the next ones' requests are received
//! meanwhile, which takes as long:
//!
//! | received | begins to fetch | executed |
//! |---|---|---|
//! | first | the first one's place | |
//! | second | the second one's place, the first one's item | |
//! | third | the third one's place, the second one's item | the first |

use super::desk::INPUT_LEN;
use std::collections::VecDeque;

/// Requests that wait for their memory.
const WAITING_MAX: usize = 2;

/// A connection whose request is here.
pub(super) struct Early {
    /// Its place among the connections, and its number: another one may have that place
    /// by now.
    pub(super) index: usize,
    pub(super) number: u64,
    /// Where its input was read.
    pub(super) input: Box<[u8]>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Ahead {
    waiting: VecDeque<Early>,
    free: Vec<Box<[u8]>>,
}

impl Ahead {
    /// Where the next request can be read.
    pub(super) fn room(&mut self) -> Box<[u8]> {
        let free = self.free.pop();
        free.unwrap_or_else(|| vec![0; INPUT_LEN].into())
    }

    /// Gives such room back.
    pub(super) fn give_back(&mut self, room: Box<[u8]>) {
        self.free.push(room);
    }

    pub(super) fn push(&mut self, early: Early) {
        self.waiting.push_back(early);
    }

    /// Whether the first of them need not wait for more.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() > WAITING_MAX
    }

    pub(super) fn pop(&mut self) -> Option<Early> {
        self.waiting.pop_front()
    }
}
