//! Pending marks: how a reader that reads the state behind a queue by itself, past the queue,
//! misses no mutation that was acknowledged and is not executed. Without I/O.
//!
//! Each client has a *marks object*, which it and the server may write and readers may only
//! read; keys share its marks by their hash.
//!
//! | word | field | writer | why |
//! |---|---|---|---|
//! | 0 | magic | server, before anybody gets it | |
//! | 128 | marked, one word for each mark | client | mutations of such keys that the client has committed, or is about to |
//! | 256 | cleared, as many | server | how many of these it has executed |
//!
//! And one *directory*, which the server alone writes: word 0 is the number of admissions.
//!
//! # Thread safety
//! 1. **Marked before published.** Whoever learns of an acknowledgement finds the mark, or
//!    that it was cleared.
//! 2. **Cleared after executed** (release). A reader that finds no mark pending (acquire)
//!    finds the effects.
//! 3. **Marks are looked at before the state.**
//! 4. **A client is in the directory before it may commit**, and readers look at the directory
//!    first: one that has not mapped a client's marks does not read past the queue.
//! 5. **What was refused is unmarked**: it is never executed. Nobody else writes that word.
//!
//! A mark that stays (its client died before it published) sends readers through the queue
//! until its lane is given up: slower, and right. A client that writes nonsense into its marks
//! slows others down, or has its own mutations missed.

use crate::mutants::{self, Mutant};
use trefoil_layout::words::{Words, WordsMut};

/// "TFMARKS1", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFMARKS1");
/// Bytes of a marks object: a page.
pub const OBJECT_LEN: u64 = 4096;
/// Marks of a client.
pub const MARKS: usize = 64;

const WORD_MAGIC: usize = 0;
const WORD_MARKED: usize = 128;
const WORD_CLEARED: usize = 256;
const WORD_ADMISSIONS: usize = 0;
const _: () = assert!(WORD_MARKED + MARKS <= WORD_CLEARED && (WORD_CLEARED + MARKS) * 8 <= 4096);

/// Which mark a key has.
#[inline(always)]
fn index(key_hash: u64) -> usize {
    key_hash as usize % MARKS
}

/// Makes a fresh, zeroed object a client's marks.
pub fn initialise<W: WordsMut + ?Sized>(words: &W) {
    words.store_release(WORD_MAGIC, MAGIC);
}

/// A client's side: one mutation at a time.
#[derive(Debug)]
pub struct Marker<W> {
    words: W,
    committed: [u64; MARKS],
}

impl<W: WordsMut> Marker<W> {
    /// The side of a fresh object.
    pub fn new(words: W) -> Self {
        Marker {
            words,
            committed: [0; MARKS],
        }
    }

    /// Before a mutation of such a key is claimed.
    #[inline(always)]
    pub fn mark(&self, key_hash: u64) {
        let at = index(key_hash);
        self.words
            .store_release(WORD_MARKED + at, self.committed[at] + 1);
    }

    /// It is committed.
    #[inline(always)]
    pub fn commit(&mut self, key_hash: u64) {
        self.committed[index(key_hash)] += 1;
    }

    /// It was refused.
    #[cold]
    pub fn withdraw(&self, key_hash: u64) {
        if mutants::is(Mutant::NotWithdrawn) {
            return;
        }
        let at = index(key_hash);
        self.words
            .store_release(WORD_MARKED + at, self.committed[at]);
    }
}

/// The server's side of one client's marks.
#[derive(Debug)]
pub struct Clearer<W> {
    words: W,
    executed: [u64; MARKS],
}

impl<W: WordsMut> Clearer<W> {
    /// The side of a fresh object.
    pub fn new(words: W) -> Self {
        Clearer {
            words,
            executed: [0; MARKS],
        }
    }

    /// After a mutation of such a key was executed.
    #[inline(always)]
    pub fn clear(&mut self, key_hash: u64) {
        let at = index(key_hash);
        self.executed[at] += 1;
        self.words
            .store_release(WORD_CLEARED + at, self.executed[at]);
    }
}

/// The server: another client's marks can be mapped from now on. To be called before that
/// client gets its lane.
pub fn admit<W: WordsMut + ?Sized>(directory: &W) -> u64 {
    let admissions = directory.load(WORD_ADMISSIONS) + 1;
    directory.store_release(WORD_ADMISSIONS, admissions);
    admissions
}

/// What a look past the queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past<R> {
    /// What was read: nothing that was acknowledged before is missing.
    Read(R),
    /// A mutation of such a key may be acknowledged and not executed: ask through the queue.
    Pending,
    /// Another client was admitted: map its marks, then try again.
    Stale,
}

/// A reader's view of all clients' marks.
#[derive(Debug)]
pub struct Marks<W> {
    directory: W,
    admissions: u64,
    clients: Vec<W>,
}

impl<W: Words> Marks<W> {
    /// A view of nothing, which is stale as soon as somebody was admitted.
    pub fn new(directory: W) -> Self {
        Marks {
            directory,
            admissions: 0,
            clients: Vec::new(),
        }
    }

    /// Takes the marks of all clients, as of so many admissions.
    pub fn refresh(&mut self, admissions: u64, clients: Vec<W>) {
        self.admissions = admissions;
        self.clients = clients;
    }

    /// Calls `read`, which reads the state behind the queue, if no mutation of such a key is
    /// pending.
    #[inline]
    pub fn read<R>(&self, key_hash: u64, read: impl FnOnce() -> R) -> Past<R> {
        let is_stale = self.directory.load_acquire(WORD_ADMISSIONS) != self.admissions;
        if is_stale && !mutants::is(Mutant::DirectoryIgnored) {
            return Past::Stale;
        }
        if mutants::is(Mutant::MarksLast) {
            let found = read();
            return match self.is_pending(key_hash) {
                true => Past::Pending,
                false => Past::Read(found),
            };
        }
        match self.is_pending(key_hash) {
            true => Past::Pending,
            false => Past::Read(read()),
        }
    }

    #[inline]
    fn is_pending(&self, key_hash: u64) -> bool {
        let at = index(key_hash);
        self.clients.iter().any(|words| {
            let cleared = words.load_acquire(WORD_CLEARED + at);
            words.load_acquire(WORD_MARKED + at) != cleared
        })
    }
}
