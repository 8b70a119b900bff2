//! Pending marks: how a reader that reads the state behind a queue by itself, past the queue,
//! misses no mutation that was acknowledged and is not executed. Without I/O.
//!
//! One object, made by the server. Readers map it to read; clients of the queue may write it,
//! each the row of its own *place*. Keys share the marks of a row by their hash.
//!
//! | page | word | field | writer | why |
//! |---|---|---|---|---|
//! | 0 | 0 | magic | server, before anybody gets the object | |
//! | 0 | 1 | places | server | all rows from here on are free: the *directory*. 0 again when the queue has ended |
//! | 0 | 16 | nominated | clients, by compare-and-swap | no mutation was published under a version with a later time: see [`Marker::nominate`] |
//! | 0 | 256.. | conditional, one word for each mark | server | low half: mutations of such keys that are being executed by another way, and depend on what is there; high half: how many have begun |
//! | 1 + place | 0.. | marked, one word for each mark | client | mutations of such keys that the clients of this place have committed, or are about to |
//! | 1 + place | 256.. | cleared, as many | server | how many of these it has executed |
//!
//! # Thread safety
//! 1. **Marked before published.** Whoever learns of an acknowledgement finds the mark, or
//!    that it was cleared.
//! 2. **Cleared after executed** (release). A reader that finds no mark pending (acquire)
//!    finds the effects.
//! 3. **Marks are looked at before the state.**
//! 4. **A place is in the directory before its client may commit, and until it is free**, and
//!    readers look at the directory first. Whoever finds it lower (acquire) finds the effects of
//!    what was marked in the rows above.
//! 5. **What was refused is unmarked**: it is never executed. Nobody else writes that word.
//! 6. **A place is given to another client when the former one's lane is empty** and takes
//!    nothing more. All its marks are cleared then; counts go on where they were.
//!
//! 7. **Where several queues have versions decide, a version is nominated above what is known**:
//!    what was executed, and what the word *nominated* says, which is raised before anything of
//!    that version is published.
//! 8. **What depends on what is there says so before it looks at the marks**, and a client looks
//!    for that after it has published: one of the two sees the other.
//!
//! A mark that stays (its client died before it published) sends readers through the queue
//! until its lane is given up: slower, and right. A client that writes nonsense into the
//! object slows readers down. Or it hides marks, its own and those of others: then readers may
//! miss what was acknowledged until it is executed. Nothing is lost by that, nor executed.

use crate::mutants::{self, Mutant};
use crate::words::Atomics;
use trefoil_layout::words::{Words, WordsMut};

/// "TFMARKS2", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFMARKS2");
/// Clients of a queue at a time.
pub const PLACES: usize = 64;
/// Marks of a client.
pub const MARKS: usize = 256;
/// Bytes of a marks object.
pub const OBJECT_LEN: u64 = 4096 * (1 + PLACES as u64);

const WORD_MAGIC: usize = 0;
const WORD_PLACES: usize = 1;
/// A line of its own: the directory's is read by everybody, and hardly ever written.
const WORD_NOMINATED: usize = 16;
const WORD_CONDITIONAL: usize = 256;
/// One more that is under way, and one more that has begun.
const CONDITIONAL: u64 = 1 << 32 | 1;
const ROW_WORDS: usize = 512;
const AT_CLEARED: usize = MARKS;
const _: () = assert!(2 * MARKS <= ROW_WORDS && ROW_WORDS * 8 == 4096);
const _: () = assert!(WORD_NOMINATED < WORD_CONDITIONAL && WORD_CONDITIONAL + MARKS <= ROW_WORDS);

/// Which mark a key has.
#[inline(always)]
fn index(key_hash: u64) -> usize {
    key_hash as usize % MARKS
}

/// Where the row of a place begins.
#[inline(always)]
fn row(place: usize) -> usize {
    assert!(place < PLACES);
    (1 + place) * ROW_WORDS
}

/// Makes a fresh, zeroed object the marks of a queue.
pub fn initialise<W: WordsMut + ?Sized>(words: &W) {
    words.store_release(WORD_MAGIC, MAGIC);
}

/// Whether an object is that.
pub fn is_initialised<W: Words + ?Sized>(words: &W) -> bool {
    words.load_acquire(WORD_MAGIC) == MAGIC
}

/// Nothing is pending from now on. To be called when everything that was committed is
/// executed, and nothing more is taken: what clients mark now is refused.
pub fn close<W: WordsMut + ?Sized>(words: &W) {
    words.store_release(WORD_PLACES, 0);
}

/// A client's side: one mutation at a time.
#[derive(Debug)]
pub struct Marker<W> {
    words: W,
    row: usize,
    committed: Box<[u64; MARKS]>,
}

impl<W: WordsMut> Marker<W> {
    /// The side of a client that was given this place.
    pub fn new(words: W, place: usize) -> Self {
        let row = row(place);
        let cleared = |at| words.load_acquire(row + AT_CLEARED + at);
        let committed = Box::new(std::array::from_fn(cleared));
        Marker {
            words,
            row,
            committed,
        }
    }

    /// Before a mutation of such a key is claimed.
    #[inline(always)]
    pub fn mark(&self, key_hash: u64) {
        let at = index(key_hash);
        let marked = self.committed[at].wrapping_add(1);
        self.words.store_release(self.row + at, marked);
    }

    /// It is committed.
    #[inline(always)]
    pub fn commit(&mut self, key_hash: u64) {
        let committed = &mut self.committed[index(key_hash)];
        *committed = committed.wrapping_add(1);
    }

    /// It was refused.
    #[cold]
    pub fn withdraw(&self, key_hash: u64) {
        if mutants::is(Mutant::NotWithdrawn) {
            return;
        }
        let at = index(key_hash);
        self.words.store_release(self.row + at, self.committed[at]);
    }
}

impl<W: Atomics> Marker<W> {
    /// No mutation that a client of this queue has published, by way of [`Marker::nominate`],
    /// has a version with a later time. Together with what is known of what was executed:
    /// whoever nominates above both comes behind everything that was acknowledged before.
    #[inline]
    pub fn nominated(&self) -> u64 {
        self.words.load_acquire(WORD_NOMINATED)
    }

    /// What is executed by another way of such keys, and depends on what is there (a CAS, a
    /// fill). `None`: one is under way. If the same is said before a version is nominated and
    /// after its mutation is published, none came in between: those before are below that
    /// version, and those after it find the mark.
    #[inline]
    pub fn conditional(&self, key_hash: u64) -> Option<u64> {
        let word = self.words.load_acquire(WORD_CONDITIONAL + index(key_hash));
        (word as u32 == 0).then_some(word)
    }

    /// A mutation of this time is about to be published.
    #[inline]
    pub fn nominate(&self, time_ns: u64) {
        let mut known = self.nominated();
        while known < time_ns {
            match self.words.compare_exchange(WORD_NOMINATED, known, time_ns) {
                Ok(()) => return,
                Err(other) => known = other,
            }
        }
    }
}

/// A mutation that depends on what is there is executed by another way than the queue. To be
/// said before its mark is looked at, and to be followed by [`end_conditional`].
pub fn begin_conditional<W: Atomics + ?Sized>(words: &W, key_hash: u64) {
    words.fetch_add(WORD_CONDITIONAL + index(key_hash), CONDITIONAL);
    // What is looked at next: a client looks here when it has marked.
    words.fence_full();
}

/// It has been executed.
pub fn end_conditional<W: Atomics + ?Sized>(words: &W, key_hash: u64) {
    words.fetch_add(WORD_CONDITIONAL + index(key_hash), u64::MAX);
}

/// The server's side of all places: which are taken. Every GET looks at each row below the
/// topmost one that is, so the lowest are given first.
#[derive(Debug)]
pub struct Directory<W> {
    words: W,
    taken: [bool; PLACES],
}

impl<W: WordsMut + Clone> Directory<W> {
    /// Of a fresh object: all places are free.
    pub fn new(words: W) -> Self {
        Directory {
            words,
            taken: [false; PLACES],
        }
    }

    /// Whether one is.
    pub fn has_room(&self) -> bool {
        self.taken.contains(&false)
    }

    /// A place for another client, by its side of the marks. `None`: all are taken.
    pub fn take(&mut self) -> Option<Clearer<W>> {
        let place = self.taken.iter().position(|taken| !taken)?;
        self.taken[place] = true;
        self.show();
        let row = row(place);
        let cleared = |at| self.words.load(row + AT_CLEARED + at);
        let executed = Box::new(std::array::from_fn(cleared));
        Some(Clearer {
            words: self.words.clone(),
            place,
            row,
            executed,
        })
    }

    /// The client is gone, and everything that it has committed is executed: another one may
    /// have its place.
    pub fn release(&mut self, of: Clearer<W>) {
        for at in 0..MARKS {
            let marked = self.words.load(of.row + at);
            let cleared = of.row + AT_CLEARED + at;
            self.words.store_release(cleared, marked);
        }
        self.taken[of.place] = false;
        self.show();
    }

    /// What clients have written there does not count.
    fn show(&self) {
        let places = match mutants::is(Mutant::DirectoryFallsShort) {
            true => self.taken.iter().filter(|taken| **taken).count(),
            false => self
                .taken
                .iter()
                .rposition(|taken| *taken)
                .map_or(0, |last| last + 1),
        };
        self.words.store_release(WORD_PLACES, places as u64);
    }
}

/// The server's side of one client's marks: see [`Directory::take`].
#[derive(Debug)]
pub struct Clearer<W> {
    words: W,
    place: usize,
    row: usize,
    executed: Box<[u64; MARKS]>,
}

impl<W: WordsMut> Clearer<W> {
    /// Which place it is.
    pub fn place(&self) -> usize {
        self.place
    }

    /// After a mutation of such a key was executed.
    #[inline(always)]
    pub fn clear(&mut self, key_hash: u64) {
        let at = index(key_hash);
        self.executed[at] = self.executed[at].wrapping_add(1);
        let cleared = self.row + AT_CLEARED + at;
        self.words.store_release(cleared, self.executed[at]);
    }
}

/// What a look past the queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past<R> {
    /// What was read: nothing that was acknowledged before is missing.
    Read(R),
    /// A mutation of such a key may be acknowledged and not executed: ask through the queue.
    Pending,
}

/// Calls `read`, which reads the state behind the queue, if no mutation of such a key is
/// pending.
#[inline]
pub fn read<W: Words, R>(words: &W, key_hash: u64, read: impl FnOnce() -> R) -> Past<R> {
    if mutants::is(Mutant::MarksLast) {
        let found = read();
        return match is_pending(words, key_hash) {
            true => Past::Pending,
            false => Past::Read(found),
        };
    }
    match is_pending(words, key_hash) {
        true => Past::Pending,
        false => Past::Read(read()),
    }
}

/// Rows that a reader looks at.
#[inline(always)]
pub fn places<W: Words>(words: &W) -> usize {
    (words.load_acquire(WORD_PLACES) as usize).min(PLACES)
}

/// Whether a mutation of such a key may be acknowledged and not executed. To be asked before
/// the state is looked at.
#[inline]
pub fn is_pending<W: Words>(words: &W, key_hash: u64) -> bool {
    let places = match mutants::is(Mutant::DirectoryIgnored) {
        true => 1,
        false => places(words),
    };
    let at = index(key_hash);
    (0..places).map(row).any(|row| {
        let cleared = words.load_acquire(row + AT_CLEARED + at);
        words.load_acquire(row + at) != cleared
    })
}
