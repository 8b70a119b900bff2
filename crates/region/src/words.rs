//! Word-wise access to shared memory.
//!
//! # Thread safety
//!
//! Every access is an atomic operation on one aligned 8-byte word, so races
//! are defined behaviour: a reader gets each word whole, from some moment, and
//! nothing more. Which groups of words belong together is for the formats in
//! `layout` to find out, after the bytes are private.

use crate::copy;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use trefoil_layout::words::{Words, WordsMut};

/// Bytes of a cache line.
const LINE_LEN: usize = 64;

/// A borrowed run of shared words.
#[derive(Clone, Copy)]
pub struct SharedWords<'a> {
    base: NonNull<u64>,
    count: usize,
    lifetime: PhantomData<&'a [AtomicU64]>,
}

/// As many shared words as are known when the code is compiled, at half the
/// size and without checks at places that are known then, too.
#[derive(Clone, Copy)]
pub struct SharedBlock<'a, const COUNT: usize> {
    base: NonNull<u64>,
    lifetime: PhantomData<&'a [AtomicU64; COUNT]>,
}

impl<'a, const COUNT: usize> SharedBlock<'a, COUNT> {
    /// All of them.
    #[inline(always)]
    pub fn words(self) -> SharedWords<'a> {
        // SAFETY: made of a run of `COUNT` words by `SharedWords::block`.
        unsafe { SharedWords::new(self.base, COUNT) }
    }
}

// SAFETY: all access is atomic.
unsafe impl<const COUNT: usize> Send for SharedBlock<'_, COUNT> {}
// SAFETY: all access is atomic.
unsafe impl<const COUNT: usize> Sync for SharedBlock<'_, COUNT> {}

// SAFETY: all access is atomic.
unsafe impl Send for SharedWords<'_> {}
// SAFETY: all access is atomic.
unsafe impl Sync for SharedWords<'_> {}

impl<'a> SharedWords<'a> {
    /// # Safety
    /// `base` points at `count` words that stay mapped for `'a` and that every
    /// process reaches by atomic operations only; writable if a store is used.
    #[inline(always)]
    pub(crate) unsafe fn new(base: NonNull<u64>, count: usize) -> Self {
        SharedWords {
            base,
            count,
            lifetime: PhantomData,
        }
    }

    /// Words in this run.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The run of `len` bytes at `offset`, both multiples of 8; `None` if it
    /// does not lie inside.
    #[inline(always)]
    pub fn slice(&self, offset: u64, len: usize) -> Option<SharedWords<'a>> {
        let first = (offset / 8) as usize;
        let count = len / 8;
        if !offset.is_multiple_of(8) || first > self.count || count > self.count - first {
            return None;
        }
        // SAFETY: checked above to lie within this run.
        Some(unsafe { SharedWords::new(self.base.add(first), count) })
    }

    /// The block at `offset`, a multiple of 8; `None` if it does not lie inside.
    #[inline(always)]
    pub fn block<const COUNT: usize>(&self, offset: u64) -> Option<SharedBlock<'a, COUNT>> {
        let SharedWords { base, .. } = self.slice(offset, COUNT * 8)?;
        Some(SharedBlock {
            base,
            lifetime: PhantomData,
        })
    }

    /// The run of `count` words from `index` on, which lies inside.
    #[inline(always)]
    fn run(&self, index: usize, count: usize) -> SharedWords<'a> {
        assert!(index <= self.count && count <= self.count - index);
        // SAFETY: checked above to lie within this run.
        unsafe { SharedWords::new(self.base.add(index), count) }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &'a AtomicU64 {
        assert!(index < self.count);
        // SAFETY: in bounds; `AtomicU64` has the layout of `u64`; per `new`.
        unsafe { &*self.base.as_ptr().add(index).cast::<AtomicU64>() }
    }

    /// Copies this run into the front of `out`, word by word.
    #[inline]
    pub fn copy_out(&self, out: &mut [u64]) {
        let out = &mut out[..self.count];
        // SAFETY: `out` has been cut to `count` words; for the rest see `new`.
        unsafe { copy::load_words(self.base.as_ptr(), out.as_mut_ptr(), self.count) };
    }

    /// Appends the `len` bytes from byte `skip` of this run on to `out`, each
    /// word loaded once: for bytes that are wanted outside and begin anywhere.
    #[inline]
    pub fn append_to(&self, skip: usize, len: usize, out: &mut Vec<u8>) {
        let all = self.count * 8;
        assert!(skip <= all && len <= all - skip);
        out.reserve(len);
        let begin = out.len();
        let is_whole = skip.is_multiple_of(8) && len.is_multiple_of(8);
        let into = out.as_mut_ptr().wrapping_add(begin).cast::<u64>();
        if cfg!(target_endian = "little") && is_whole && into.is_aligned() {
            // SAFETY: the words lie within this run, as asserted; as many bytes were
            // reserved, at an address of words.
            unsafe {
                copy::load_words(self.base.as_ptr().add(skip / 8), into, len / 8);
                out.set_len(begin + len);
            }
            return;
        }
        let mut index = skip / 8;
        let mut left = len;
        if !skip.is_multiple_of(8) && left > 0 {
            let bytes = self.word(index).load(Ordering::Relaxed).to_le_bytes();
            let first = &bytes[skip % 8..];
            let count = first.len().min(left);
            out.extend_from_slice(&first[..count]);
            left -= count;
            index += 1;
        }
        let whole = left / 8;
        let at = out.len();
        for step in 0..whole {
            // SAFETY: index + step < count, as asserted; see `word`.
            let word = unsafe { &*self.base.as_ptr().add(index + step).cast::<AtomicU64>() }
                .load(Ordering::Relaxed);
            // SAFETY: `len` bytes were reserved, of which this is a part.
            unsafe {
                let into = out.as_mut_ptr().add(at + step * 8).cast::<u64>();
                into.write_unaligned(word.to_le());
            }
        }
        // SAFETY: reserved, and written just now.
        unsafe { out.set_len(at + whole * 8) };
        left -= whole * 8;
        if left > 0 {
            let bytes = self
                .word(index + whole)
                .load(Ordering::Relaxed)
                .to_le_bytes();
            out.extend_from_slice(&bytes[..left]);
        }
    }

    /// Copies `words` over the front of this run, word by word.
    #[inline]
    pub fn copy_in(&self, words: &[u64]) {
        assert!(words.len() <= self.count);
        for (index, word) in words.iter().enumerate() {
            // SAFETY: index < count; see `word`.
            unsafe { &*self.base.as_ptr().add(index).cast::<AtomicU64>() }
                .store(*word, Ordering::Relaxed);
        }
    }

    /// Copies `bytes` over the words from `first` on, word by word. What they leave of the
    /// last one becomes zero.
    #[inline]
    pub fn copy_in_bytes(&self, first: usize, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        assert!(first <= self.count && bytes.len().div_ceil(8) <= self.count - first);
        for (index, word) in whole.iter().enumerate() {
            // SAFETY: first + index < count; see `word`.
            unsafe { &*self.base.as_ptr().add(first + index).cast::<AtomicU64>() }
                .store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.store(first + whole.len(), u64::from_le_bytes(last));
        }
    }

    /// Sets every word to zero.
    pub fn zero(&self) {
        for index in 0..self.count {
            self.word(index).store(0, Ordering::Relaxed);
        }
    }

    /// The 32-bit word at the low half of word `index`, for futexes and flags
    /// that the kernel or the other side waits on.
    #[inline(always)]
    pub fn atomic_u32(&self, index: usize) -> &'a std::sync::atomic::AtomicU32 {
        let word = std::ptr::from_ref(self.word(index));
        // SAFETY: half of an aligned, mapped word; little endian puts the low half first.
        unsafe { &*word.cast() }
    }

    /// The word itself, for read-modify-write operations.
    #[inline(always)]
    pub fn atomic(&self, index: usize) -> &'a AtomicU64 {
        self.word(index)
    }

    /// Brings the cache line of word `index` nearer.
    #[inline(always)]
    pub fn prefetch_word(&self, index: usize) {
        prefetch_read(self.base.as_ptr().wrapping_add(index).cast());
    }

    /// Brings the cache lines of the first `len` bytes nearer.
    #[inline(always)]
    pub fn prefetch(&self, len: usize) {
        let first = self.base.as_ptr().cast::<u8>();
        let end = first.wrapping_add(len.min(self.count * 8));
        // Up to the line of the last byte, wherever the first one stands in its.
        let mut line = first.wrapping_sub(first.addr() % LINE_LEN);
        while line < end {
            prefetch_read(line);
            line = line.wrapping_add(LINE_LEN);
        }
    }
}

impl Words for SharedWords<'_> {
    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }
    #[inline(always)]
    fn load_acquire(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }
    #[inline(always)]
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }
    #[inline]
    fn load_run(&self, index: usize, out: &mut [u64]) {
        self.run(index, out.len()).copy_out(out);
    }
}

impl WordsMut for SharedWords<'_> {
    #[inline(always)]
    fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }
    #[inline(always)]
    fn store_release(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }
    #[inline(always)]
    fn fence_release(&self) {
        fence(Ordering::Release);
    }
    #[inline]
    fn store_run(&self, index: usize, words: &[u64]) {
        self.run(index, words.len()).copy_in(words);
    }
}

/// Brings the cache line at `address` nearer. Never faults.
#[inline(always)]
pub fn prefetch_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching is a hint and may name any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// A buffer of so many words, 64 KiB, takes no more than is asked for.
const LONG_WORD_COUNT: usize = 1 << 13;

/// A buffer of more words than these, 256 KiB, gives most of them back when they are
/// not needed any more: one large value must not cost its reader that much for life.
const KEPT_WORD_COUNT_MAX: usize = 1 << 15;
/// So many uses in a row needed less than a sixteenth of it.
const SMALL_USES_MAX: u32 = 64;
const SMALL_FRACTION: usize = 16;

/// Private memory that racy copies land in: words, readable as bytes. Grows
/// to the largest copy it has seen and is reused, so that a read does not allocate;
/// shrinks when only small copies have come for a while.
#[derive(Debug, Default, Clone)]
pub struct WordBuffer {
    words: Vec<u64>,
    len: usize,
    /// Uses in a row that needed little of a large buffer.
    small_uses: u32,
}

impl WordBuffer {
    /// Bytes that it holds without allocating.
    pub fn capacity(&self) -> usize {
        self.words.capacity() * 8
    }

    /// Makes room for `len` bytes and returns the words that hold them. Old
    /// contents may remain.
    #[inline]
    pub fn prepare(&mut self, len: usize) -> &mut [u64] {
        let count = len.div_ceil(8);
        if self.words.len() < count {
            // Growing by halves saves copies; what is long should not take twice.
            let grown = match count < LONG_WORD_COUNT {
                true => count.next_power_of_two(),
                false => count,
            };
            self.words.resize(grown, 0);
        }
        if self.words.len() > KEPT_WORD_COUNT_MAX {
            self.used_of_many(count);
        }
        self.len = len;
        &mut self.words[..count]
    }

    /// A large buffer was asked for so many words.
    #[cold]
    fn used_of_many(&mut self, count: usize) {
        if count >= self.words.len() / SMALL_FRACTION {
            self.small_uses = 0;
            return;
        }
        self.small_uses += 1;
        if self.small_uses >= SMALL_USES_MAX {
            self.small_uses = 0;
            self.words.truncate(count.max(LONG_WORD_COUNT));
            self.words.shrink_to_fit();
        }
    }

    /// The bytes of the last [`WordBuffer::prepare`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes lie within the initialised words; any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    /// The same, writable.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }

    /// The words of the last [`WordBuffer::prepare`].
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words[..self.len.div_ceil(8)]
    }

    /// Copies `source` into this buffer.
    #[inline]
    pub fn fill_from(&mut self, source: SharedWords<'_>) {
        source.copy_out(self.prepare(source.count() * 8));
    }
}
