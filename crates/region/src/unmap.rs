//! The end of a mapping, apart from the thread that ends it.
//!
//! The kernel looks at each page that is mapped: tens of milliseconds for a GiB of
//! small ones, more where nobody else holds them. The thread may be an event loop, or
//! somebody who waits for an answer, so a thread of its own does it.
//!
//! Where both have one core, that thread must not keep it either: nobody is hurried by
//! the end of a mapping, and a time slice of the kernel is milliseconds long. So it
//! sleeps after each short piece: long at first, so that fewer than one operation in a hundred
//! waits for it; less once that has taken a while, because the memory may be a dead process's,
//! and is free only then. It does not work at a lower priority: while it is at work the
//! process's addresses are locked, and whoever connects or starts a thread would wait until it
//! has its next turn.
//!
//! A region reserves hundreds of times what it holds. The kernel is asked where pages are
//! ([`crate::present`]); they are let go in place, so that nobody who maps something waits
//! for it, and then all that is left, which is nothing but addresses, ends at once. What is
//! freed by that, because nobody else holds it, is freed elsewhere: [`crate::hold`].

use crate::hold::Hold;
use crate::present::Pages;
use rustix::mm::Advice;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shorter ones end at once: less than a thread costs.
pub(crate) const LEN_MIN: usize = 1 << 20;
/// So many pages are let go at a time: 25 microseconds if they are small.
const PAGES_MAX: usize = 256;
/// Where the kernel does not tell what is there, so much at a time: 15 microseconds if all
/// of it is, in small pages.
const PIECE_LEN: usize = 128 << 10;
/// The most where nothing was there: half a millisecond if all of it is, after all.
const EMPTY_PIECE_LEN_MAX: usize = 16 << 20;
/// A piece that took less than this was about empty.
const EMPTY: Duration = Duration::from_micros(5);
/// What is unmapped by one call, once its pages are gone: their tables.
const PART_LEN: usize = 1 << 30;
/// How long the thread works before it sleeps.
const TURN: Duration = Duration::from_micros(20);
/// How long it sleeps then: of a hundred operations, fewer than one finds it at work.
const PAUSE: Duration = Duration::from_millis(4);
/// Of a range that has waited for so long, it sleeps so many times as long as it worked, and
/// so long at most: somebody else may have had the core meanwhile.
const GENTLE: Duration = Duration::from_secs(10);
const PAUSE_FACTOR: u32 = 20;
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Mappings of other processes' memory, what has yet to be unmapped of them included.
static FOREIGN: AtomicUsize = AtomicUsize::new(0);

/// Whether this process maps memory of another one that it copies from: then the system
/// counts pages as resident here that are not its own.
pub fn maps_foreign() -> bool {
    FOREIGN.load(Ordering::Acquire) > 0
}

/// Another process's memory is about to be mapped.
pub(crate) fn foreign_begins() {
    FOREIGN.fetch_add(1, Ordering::AcqRel);
}

/// All of it is unmapped again.
pub(crate) fn foreign_ends() {
    FOREIGN.fetch_sub(1, Ordering::AcqRel);
}

/// What is to be unmapped. One thread does it all: several would take their turns one
/// after another on a core that somebody else needs.
static WAITING: Mutex<Waiting> = Mutex::new(Waiting {
    ranges: VecDeque::new(),
    has_thread: false,
});

struct Waiting {
    ranges: VecDeque<Range>,
    /// Whether a thread will look here again.
    has_thread: bool,
}

/// A range that nobody uses any more.
struct Range {
    base: NonNull<c_void>,
    len: usize,
    /// Given up at last: what nobody else holds is freed then ([`crate::hold`]).
    hold: Hold,
    /// When it was given here.
    since: Instant,
    /// Told when nothing of it is mapped any more.
    ended: fn(),
}

// SAFETY: an address range that its holder alone knows.
unsafe impl Send for Range {}

impl Range {
    /// Unmaps the range; `between` is called after each piece.
    fn unmap(self, mut between: impl FnMut()) {
        if self.empty_where_pages_are(&mut between).is_some() {
            self.end(0, self.len);
        } else {
            let mut done = 0;
            while done < self.len {
                let part = PART_LEN.min(self.len - done);
                self.empty(done, part, &mut between);
                self.end(done, part);
                done += part;
                between();
            }
        }
        (self.ended)();
        drop(self.hold);
    }

    /// Lets all pages go where they are; the range stays mapped. Nothing where the kernel
    /// does not tell, or does not do it.
    fn empty_where_pages_are(&self, between: &mut impl FnMut()) -> Option<()> {
        // Not worth a look.
        if self.len < LEN_MIN {
            return Some(());
        }
        let pages = Pages::of_this_process()?;
        let base = self.base.as_ptr() as usize;
        let mut at = base;
        while at < base + self.len {
            let found = pages.look(at..base + self.len, PAGES_MAX).ok()?;
            for run in found.runs() {
                self.let_go(run.start - base, run.len())?;
            }
            // It always gets on; if it did not, this would never end.
            at = (found.looked_until > at).then_some(found.looked_until)?;
            between();
        }
        Some(())
    }

    /// The same of a part, by trying.
    fn empty(&self, from: usize, len: usize, between: &mut impl FnMut()) {
        let (mut done, mut piece) = (0, PIECE_LEN);
        while done < len {
            let begin = Instant::now();
            let now = piece.min(len - done);
            // Of a kind that this cannot be done with: unmapping does it all.
            if self.let_go(from + done, now).is_none() {
                return;
            }
            done += now;
            piece = match begin.elapsed() < EMPTY {
                true => (piece * 2).min(EMPTY_PIECE_LEN_MAX),
                false => PIECE_LEN,
            };
            between();
        }
    }

    /// Lets pages of a part go, which stays mapped.
    fn let_go(&self, from: usize, len: usize) -> Option<()> {
        // SAFETY: a part of the range, which nothing refers to (see `unmap`).
        unsafe {
            let at = self.base.as_ptr().byte_add(from);
            rustix::mm::madvise(at, len, Advice::LinuxDontNeed).ok()
        }
    }

    /// Unmaps a part, which may be all.
    fn end(&self, from: usize, len: usize) {
        // SAFETY: a part of the range, which nothing refers to (see `unmap`); what was
        // unmapped before is not touched again.
        // Refused only where the process has as many mappings as it may: the part then
        // stays mapped, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().byte_add(from), len) };
    }
}

/// Unmaps `len` bytes at `base`, soon; then calls `ended`, and gives `hold` up.
///
/// # Safety
///
/// They are one mapping, or several, of this process, and nothing refers to them.
pub(crate) unsafe fn unmap(base: NonNull<c_void>, len: usize, hold: Hold, ended: fn()) {
    let range = Range {
        base,
        len,
        hold,
        since: Instant::now(),
        ended,
    };
    if len < LEN_MIN {
        return range.unmap(|| {});
    }
    let mut waiting = lock();
    waiting.ranges.push_back(range);
    if waiting.has_thread {
        return;
    }
    let thread = std::thread::Builder::new().name("trefoil-unmap".to_owned());
    waiting.has_thread = thread.spawn(unmap_aside).is_ok();
    if !waiting.has_thread {
        let ranges = std::mem::take(&mut waiting.ranges);
        drop(waiting);
        ranges.into_iter().for_each(|range| range.unmap(|| {}));
    }
}

/// The thread that unmaps what waits.
fn unmap_aside() {
    let mut begin = Instant::now();
    while let Some(range) = next() {
        let since = range.since;
        range.unmap(|| {
            let worked = begin.elapsed();
            if worked >= TURN {
                let pause = match since.elapsed() < GENTLE {
                    true => PAUSE,
                    false => (worked * PAUSE_FACTOR).min(PAUSE_MAX),
                };
                std::thread::sleep(pause);
                begin = Instant::now();
            }
        });
    }
}

/// The next range, or the end of the thread.
fn next() -> Option<Range> {
    let mut waiting = lock();
    let range = waiting.ranges.pop_front();
    waiting.has_thread = range.is_some();
    range
}

fn lock() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    const LEN: usize = 64 << 20;

    /// A mapping with pages here and there.
    fn range() -> Range {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), LEN, protection, MapFlags::PRIVATE).unwrap()
        };
        for at in (0..LEN).step_by(3 << 20) {
            // SAFETY: inside of the mapping.
            unsafe { base.cast::<u8>().byte_add(at).write_volatile(1) };
        }
        Range {
            base: NonNull::new(base).unwrap(),
            len: LEN,
            hold: Hold::default(),
            since: Instant::now(),
            ended: || {},
        }
    }

    /// By asking, and by trying as with a kernel that does not tell.
    #[test]
    fn all_pages_are_let_go_either_way() {
        let Some(pages) = Pages::of_this_process() else {
            println!("SKIPPED: this kernel does not tell which pages are there");
            return;
        };
        for asks in [true, false] {
            let range = range();
            let base = range.base.as_ptr() as usize;
            let held = || pages.look(base..base + LEN, LEN).unwrap().runs().len();
            assert!(held() > 0);
            let mut pieces = 0;
            match asks {
                true => range.empty_where_pages_are(&mut || pieces += 1).unwrap(),
                false => range.empty(0, LEN, &mut || pieces += 1),
            }
            assert_eq!((held(), pieces > 1), (0, true), "asks: {asks}");
            range.end(0, LEN);
        }
    }
}
