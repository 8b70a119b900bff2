//! The order object: one word from which all clients of a queue take tickets.
//!
//! | word | field | writer | why |
//! |---|---|---|---|
//! | 16 | next ticket | clients, by fetch-and-add | the ticket is the request's position, and positions are the order |
//!
//! It is all that clients share with one another. The server never reads it after its
//! beginning, so nothing in it can mislead the server; what a client that writes nonsense
//! there can do to others is in the crate's head. It says nothing of itself, because each
//! client could change that and bar all later ones: which object is the order of its lane
//! a client knows from the lane ([`crate::lane::order`]).

use crate::words::Atomics;
use trefoil_layout::words::WordsMut;

/// Bytes of the object: a page.
pub const OBJECT_LEN: u64 = 4096;
/// The first position of a queue.
pub const POSITION_FIRST: u64 = 1;

const APART: usize = 16;
/// Public for tests that write nonsense into it.
pub const WORD_TICKET: usize = APART;

const _: () = {
    assert!(APART * 8 == 128, "neighbouring lines are fetched in pairs");
    assert!((WORD_TICKET + APART) as u64 * 8 <= OBJECT_LEN);
};

/// Makes a fresh, zeroed object the order of a queue.
pub fn initialise<W: WordsMut + ?Sized>(words: &W) {
    words.store_release(WORD_TICKET, POSITION_FIRST);
}

/// Takes the next position.
#[inline(always)]
pub fn take_ticket<W: Atomics + ?Sized>(words: &W) -> u64 {
    words.fetch_add(WORD_TICKET, 1)
}
