//! The order object: one word from which all clients of a queue take tickets.
//!
//! | word | field | writer | why |
//! |---|---|---|---|
//! | 0 | magic | server, before a client gets it | |
//! | 1 | epoch | server, likewise | which life of the queue; every slot's checksum is bound to it |
//! | 16 | next ticket | clients, by fetch-and-add | the ticket is the request's position, and positions are the order |
//!
//! It is all that clients share with one another. The server never reads the
//! ticket word, so nothing in it can mislead the server; what a client that
//! writes nonsense there can do to others is in the crate's head.

use crate::words::Atomics;
use trefoil_layout::words::{Words, WordsMut};

/// "TFORDER" and a digit, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFORDER1");
/// Bytes of the object: a page.
pub const OBJECT_LEN: u64 = 4096;
/// The first position of a queue.
pub const POSITION_FIRST: u64 = 1;

const APART: usize = 16;
const WORD_MAGIC: usize = 0;
const WORD_EPOCH: usize = 1;
/// Public for tests that write nonsense into it.
pub const WORD_TICKET: usize = APART;

const _: () = {
    assert!(APART * 8 == 128, "neighbouring lines are fetched in pairs");
    assert!((WORD_TICKET + APART) as u64 * 8 <= OBJECT_LEN);
};

/// Makes a fresh, zeroed object the order of a queue in this epoch.
pub fn initialise<W: WordsMut + ?Sized>(words: &W, epoch: u64) {
    words.store(WORD_EPOCH, epoch);
    words.store(WORD_TICKET, POSITION_FIRST);
    words.store_release(WORD_MAGIC, MAGIC);
}

/// The epoch of an initialised object.
pub fn epoch<W: Words + ?Sized>(words: &W) -> Option<u64> {
    (words.load_acquire(WORD_MAGIC) == MAGIC).then(|| words.load(WORD_EPOCH))
}

/// Takes the next position.
#[inline(always)]
pub fn take_ticket<W: Atomics + ?Sized>(words: &W) -> u64 {
    words.fetch_add(WORD_TICKET, 1)
}
