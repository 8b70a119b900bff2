//! A lane: the memory between one client and the server. No other client maps it.
//!
//! | word | field | writer | why |
//! |---|---|---|---|
//! | 0 | magic | server, before the client gets it | |
//! | 1 | epoch | server, likewise | |
//! | 2 | client id | server, likewise | given, not claimed: a client cannot speak for another |
//! | 3 | slot count | server, likewise | a power of two |
//! | 4 | commit | server, likewise | what commits a request: [`CommitBy`] |
//! | 5 | order | server, likewise | the inode number of the order object: a client that is handed another one notices, whatever other clients have written into it |
//! | 16 | turn | client; server by compare-and-swap | who has decided what of the newest sequence: [`Turn`] |
//! | 32 | executed | server | highest sequence that is executed or skipped: its slot is free |
//! | 48 | sleeping | server | odd while it sleeps; every sleep has its own number |
//! | 64 | waiting | client | odd while it sleeps, numbered likewise |
//! | 80 | acknowledged | server | highest sequence that the server has acknowledged; used where that commits |
//! | 512 | request slots | client | [`SLOT_LEN`] bytes each; sequence `n` stands in slot `n` modulo their count |
//! | then | answer slots | server | as many, as long; the answer to `n` stands in slot `n` |
//!
//! What stands in a slot: [`crate::slot`].

use trefoil_layout::words::{Words, WordsMut};

/// "TFLANE" and two digits, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFLANE02");

/// Bytes from one slot to the next.
pub const SLOT_LEN: usize = 1536;
/// Bytes of a slot that are ever used: a packet's.
pub const SLOT_USED_LEN_MAX: usize = 1500;
/// Slots of a lane unless configured otherwise.
pub const SLOT_COUNT_DEFAULT: u32 = 256;
/// Fewest slots.
pub const SLOT_COUNT_MIN: u32 = 2;
/// Most slots.
pub const SLOT_COUNT_MAX: u32 = 1 << 16;

const APART: usize = 16;
const WORD_MAGIC: usize = 0;
const WORD_EPOCH: usize = 1;
const WORD_CLIENT_ID: usize = 2;
const WORD_SLOT_COUNT: usize = 3;
const WORD_COMMIT: usize = 4;
const WORD_ORDER: usize = 5;
/// Of the lane; public for tests that write nonsense into it.
pub const WORD_TURN: usize = APART;
const WORD_EXECUTED: usize = 2 * APART;
const WORD_SLEEPING: usize = 3 * APART;
const WORD_WAITING: usize = 4 * APART;
const WORD_ACKNOWLEDGED: usize = 5 * APART;
/// Where the request slots begin.
pub const WORD_SLOTS: usize = 512;

/// Words of a slot.
pub const SLOT_WORDS: usize = SLOT_LEN / 8;
const _: () = {
    assert!(APART * 8 == 128, "neighbouring lines are fetched in pairs");
    assert!(WORD_ACKNOWLEDGED + APART <= WORD_SLOTS);
    assert!((WORD_SLOTS * 8).is_multiple_of(4096));
    assert!(SLOT_LEN.is_multiple_of(128) && SLOT_USED_LEN_MAX <= SLOT_LEN);
    assert!(SLOT_COUNT_DEFAULT.is_power_of_two() && SLOT_COUNT_MAX.is_power_of_two());
};

/// What is decided of a lane's newest sequence. One word, changed by
/// compare-and-swap alone, so that of two deciders one wins and the other knows.
///
/// ```text
/// Open(1), Published(n-1), Skipped(n-1)     client: n is being written ──► Claimed(n)
/// Claimed(n)    client: committed ───────────────────────────────────────► Published(n)
/// Claimed(n)    client: withdrawn, the order is broken ──────────────────► Open(n)
/// Claimed(n)    server: others have waited for it long enough ───────────► Skipped(n)
/// Published(n)  server: takes nothing more ──────────────────────────────► Closed(n+1)
/// any other     server: takes nothing more ──────────────────────────────► Closed(n)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing is claimed; this sequence is the next.
    Open(u64),
    /// The client may have a ticket for it, or may be about to take one.
    Claimed(u64),
    /// Committed: it is executed.
    Published(u64),
    /// Not committed, and never executed.
    Skipped(u64),
    /// The server takes nothing of this or any later sequence.
    Closed(u64),
}

impl Turn {
    /// As a word.
    #[inline(always)]
    pub const fn encode(self) -> u64 {
        let (sequence, state) = match self {
            Turn::Open(n) => (n, 0),
            Turn::Claimed(n) => (n, 1),
            Turn::Published(n) => (n, 2),
            Turn::Skipped(n) => (n, 3),
            Turn::Closed(n) => (n, 4),
        };
        sequence << 3 | state
    }

    /// `None`: nonsense.
    #[inline(always)]
    pub const fn decode(word: u64) -> Option<Self> {
        let sequence = word >> 3;
        match word & 7 {
            0 => Some(Turn::Open(sequence)),
            1 => Some(Turn::Claimed(sequence)),
            2 => Some(Turn::Published(sequence)),
            3 => Some(Turn::Skipped(sequence)),
            4 => Some(Turn::Closed(sequence)),
            _ => None,
        }
    }

    /// Of which sequence it speaks.
    #[inline(always)]
    pub const fn sequence(self) -> u64 {
        match self {
            Turn::Open(n)
            | Turn::Claimed(n)
            | Turn::Published(n)
            | Turn::Skipped(n)
            | Turn::Closed(n) => n,
        }
    }

    /// What it becomes when the server takes nothing more: everything below that
    /// sequence is decided, and whatever was not skipped is published.
    pub const fn closed(self) -> Self {
        match self {
            Turn::Open(n) | Turn::Claimed(n) | Turn::Closed(n) => Turn::Closed(n),
            Turn::Published(n) | Turn::Skipped(n) => Turn::Closed(n + 1),
        }
    }
}

/// What commits a request: from then on it will be executed, whatever happens to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitBy {
    /// Its client has published it. It is lost with the server's memory.
    Publication,
    /// The server has acknowledged it, or executed it: a durable queue acknowledges when it
    /// is persistent, a delegate when the queue behind it has it.
    Acknowledgement,
}

/// What both sides of a lane know from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Which life of the queue.
    pub epoch: u64,
    /// Which client.
    pub client_id: u64,
    /// Slots of the lane: a power of two between [`SLOT_COUNT_MIN`] and [`SLOT_COUNT_MAX`].
    pub slot_count: u32,
}

impl Terms {
    /// Whether the slot count is a possible one.
    pub const fn are_valid(self) -> bool {
        self.slot_count.is_power_of_two()
            && self.slot_count >= SLOT_COUNT_MIN
            && self.slot_count <= SLOT_COUNT_MAX
    }

    /// Bytes of the lane's object, a multiple of pages.
    pub const fn object_len(self) -> u64 {
        let slots = 2 * self.slot_count as u64 * SLOT_LEN as u64;
        (WORD_SLOTS as u64 * 8 + slots).next_multiple_of(trefoil_region::PAGE_LEN)
    }

    /// The first word of the slot of this sequence.
    #[inline(always)]
    pub const fn slot(self, sequence: u64) -> usize {
        let index = sequence as usize & (self.slot_count as usize - 1);
        WORD_SLOTS + index * SLOT_WORDS
    }

    /// The first word of the slot of the answer to this sequence.
    #[inline(always)]
    pub const fn answer(self, sequence: u64) -> usize {
        self.slot(sequence) + self.slot_count as usize * SLOT_WORDS
    }
}

/// Makes a fresh, zeroed object a lane.
pub fn initialise<W: WordsMut + ?Sized>(words: &W, terms: Terms) {
    words.store(WORD_EPOCH, terms.epoch);
    words.store(WORD_CLIENT_ID, terms.client_id);
    words.store(WORD_SLOT_COUNT, u64::from(terms.slot_count));
    words.store(WORD_TURN, Turn::Open(1).encode());
    words.store_release(WORD_MAGIC, MAGIC);
}

/// Says what commits requests of this lane; before its client gets it.
pub fn set_commit_by<W: WordsMut + ?Sized>(words: &W, by: CommitBy) {
    words.store(WORD_COMMIT, u64::from(by == CommitBy::Acknowledgement));
}

/// What commits requests of this lane.
pub fn commit_by<W: Words + ?Sized>(words: &W) -> CommitBy {
    match words.load(WORD_COMMIT) {
        0 => CommitBy::Publication,
        _ => CommitBy::Acknowledgement,
    }
}

/// Says which object is the order of this lane, by its inode number; before its client gets
/// it.
pub fn set_order<W: WordsMut + ?Sized>(words: &W, inode: u64) {
    words.store(WORD_ORDER, inode);
}

/// The inode number of the order object of this lane.
pub fn order<W: Words + ?Sized>(words: &W) -> u64 {
    words.load(WORD_ORDER)
}

/// Highest sequence that the server has acknowledged.
#[inline(always)]
pub fn acknowledged<W: Words + ?Sized>(words: &W) -> u64 {
    words.load_acquire(WORD_ACKNOWLEDGED)
}

/// Acknowledges everything up to this sequence.
#[inline(always)]
pub fn set_acknowledged<W: WordsMut + ?Sized>(words: &W, sequence: u64) {
    words.store_release(WORD_ACKNOWLEDGED, sequence);
}

/// What the object of a lane says of itself.
pub fn terms<W: Words + ?Sized>(words: &W) -> Option<Terms> {
    if words.load_acquire(WORD_MAGIC) != MAGIC {
        return None;
    }
    let terms = Terms {
        epoch: words.load(WORD_EPOCH),
        client_id: words.load(WORD_CLIENT_ID),
        slot_count: u32::try_from(words.load(WORD_SLOT_COUNT)).ok()?,
    };
    terms.are_valid().then_some(terms)
}

/// The turn word; `None`: nonsense.
#[inline(always)]
pub fn turn<W: Words + ?Sized>(words: &W) -> Option<Turn> {
    Turn::decode(words.load_acquire(WORD_TURN))
}

/// Highest sequence whose slot is free again.
#[inline(always)]
pub fn executed<W: Words + ?Sized>(words: &W) -> u64 {
    words.load_acquire(WORD_EXECUTED)
}

/// Frees the slots up to this sequence. What was written before is seen by
/// whoever sees this.
#[inline(always)]
pub fn set_executed<W: WordsMut + ?Sized>(words: &W, sequence: u64) {
    words.store_release(WORD_EXECUTED, sequence);
}

/// The server's announcement; to be read after [`Words::fence_full`].
#[inline(always)]
pub fn sleeping<W: Words + ?Sized>(words: &W) -> u64 {
    words.load(WORD_SLEEPING)
}

/// Announces that the server sleeps (odd) or does not (even).
pub fn set_sleeping<W: WordsMut + ?Sized>(words: &W, number: u64) {
    words.store_release(WORD_SLEEPING, number);
}

/// The client's announcement; to be read after [`Words::fence_full`].
#[inline(always)]
pub fn waiting<W: Words + ?Sized>(words: &W) -> u64 {
    words.load(WORD_WAITING)
}

/// Announces that the client sleeps (odd) or does not (even).
pub fn set_waiting<W: WordsMut + ?Sized>(words: &W, number: u64) {
    words.store_release(WORD_WAITING, number);
}
