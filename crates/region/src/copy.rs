//! Copying out of memory that another process may be writing.
//!
//! A compiler may not merge atomic loads, so a loop over words moves eight bytes
//! an instruction: it fills the processor's window of pending instructions with
//! one entry's bytes, and lookups that could overlap their memory latencies do
//! not. Vector moves carry sixteen. They are written in assembly because the
//! language has no racy vector load: for the compiler the block is opaque, and
//! the processor loads each aligned eight bytes of a vector as it would alone.
//! Nothing relies on more; the order of loads is that of the architecture.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words that one round of the vector loop moves.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const BLOCK_WORDS: usize = 8;

/// Loads `count` words from `from`, each exactly once, into `to`.
///
/// # Safety
/// `from` points at `count` mapped, aligned words that everybody reaches by
/// atomic operations only, `to` at as many private ones.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn load_words(from: *const u64, to: *mut u64, count: usize) {
    let (mut from, mut to) = (from, to);
    let blocks = count / BLOCK_WORDS;
    if blocks > 0 {
        // SAFETY: moves `blocks * BLOCK_WORDS` of the words; the stack is not used.
        unsafe {
            std::arch::asm!(
                "2:",
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movdqu [{to}], {a}",
                "movdqu [{to} + 16], {b}",
                "movdqu [{to} + 32], {c}",
                "movdqu [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {blocks}",
                "jnz 2b",
                from = inout(reg) from,
                to = inout(reg) to,
                blocks = inout(reg) blocks => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
    // SAFETY: what is left of both runs.
    unsafe { load_one_by_one(from, to, count % BLOCK_WORDS) };
}

/// As above, where there is no vector loop.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub(crate) unsafe fn load_words(from: *const u64, to: *mut u64, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { load_one_by_one(from, to, count) };
}

/// # Safety
/// As for [`load_words`].
#[inline(always)]
unsafe fn load_one_by_one(from: *const u64, to: *mut u64, count: usize) {
    for index in 0..count {
        // SAFETY: index < count; `AtomicU64` has the layout of `u64`.
        unsafe {
            let word = &*from.add(index).cast::<AtomicU64>();
            *to.add(index) = word.load(Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::load_words;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_length_is_copied_and_nothing_beyond() {
        let expected: Vec<u64> = (1..=70).map(|n| n * 0x0101_0101_0101_0101).collect();
        let source: Vec<AtomicU64> = expected.iter().map(|n| AtomicU64::new(*n)).collect();
        for skip in 0..3 {
            for count in 0..=source.len() - skip {
                let mut target = vec![0; count + 2];
                let (from, to) = (source[skip..].as_ptr().cast(), target[1..].as_mut_ptr());
                // SAFETY: both runs have `count` words.
                unsafe { load_words(from, to, count) };
                assert_eq!(target[0], 0);
                assert_eq!(target[1..=count], expected[skip..skip + count]);
                assert_eq!(target[count + 1], 0);
            }
        }
    }
}
