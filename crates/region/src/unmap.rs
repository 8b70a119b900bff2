//! The end of a mapping, apart from the thread that ends it.
//!
//! The kernel looks at each page that is mapped: tens of milliseconds for a GiB of
//! small ones, more where nobody else holds them. The thread may be an event loop, or
//! somebody who waits for an answer, so a thread of its own does it.
//!
//! Where both have one core, that thread must not keep it either: nobody is hurried by
//! the end of a mapping, and a time slice of the kernel is milliseconds long. So it gives
//! way to others, and sleeps after each short piece. While one is under way nobody
//! else in the process can map anything.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shorter ones end at once: less than a thread costs.
const LEN_MIN: usize = 1 << 20;
/// What is unmapped by one call: 50 microseconds if all of it is there, in small pages.
const PIECE_LEN: usize = 512 << 10;
/// The same where little was there: most of a region is empty.
const EMPTY_PIECE_LEN: usize = 2 << 20;
/// A piece that took less than this was about empty.
const EMPTY: Duration = Duration::from_micros(10);
/// How long the thread works before it sleeps.
const TURN: Duration = Duration::from_micros(40);
/// So many times as long as it worked, it sleeps.
const PAUSE_FACTOR: u32 = 3;
/// And so long at most: somebody else may have had the core meanwhile.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Comes after others, but not after the last of them: while many share a core, memory of
/// a process that is gone would be kept for minutes.
const NICE: i32 = 10;

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
    ranges: Vec::new(),
    has_thread: false,
});

struct Waiting {
    ranges: Vec<Range>,
    /// Whether a thread will look here again.
    has_thread: bool,
}

/// A range that nobody uses any more.
struct Range {
    base: NonNull<c_void>,
    len: usize,
    /// Told when nothing of it is mapped any more.
    ended: fn(),
}

// SAFETY: an address range that its holder alone knows.
unsafe impl Send for Range {}

impl Range {
    /// Unmaps the range; `between` is called after each piece.
    fn unmap(self, mut between: impl FnMut()) {
        let (mut done, mut piece) = (0, PIECE_LEN);
        while done < self.len {
            let begin = Instant::now();
            let len = piece.min(self.len - done);
            // SAFETY: a part of the range, which nothing refers to (see `unmap`); what
            // was unmapped before is not touched again.
            // Refused only where the process has as many mappings as it may: the part
            // then stays mapped, which harms nobody.
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().byte_add(done), len) };
            done += len;
            piece = match begin.elapsed() < EMPTY {
                true => EMPTY_PIECE_LEN,
                false => PIECE_LEN,
            };
            between();
        }
        (self.ended)();
    }
}

/// Unmaps `len` bytes at `base`, soon; then calls `ended`.
///
/// # Safety
///
/// They are one mapping, or several, of this process, and nothing refers to them.
pub(crate) unsafe fn unmap(base: NonNull<c_void>, len: usize, ended: fn()) {
    let range = Range { base, len, ended };
    if len < LEN_MIN {
        return range.unmap(|| {});
    }
    let mut waiting = lock();
    waiting.ranges.push(range);
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
    // On Linux this is about the thread, not its process. Refused, it works on.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut begin = Instant::now();
    while let Some(range) = next() {
        range.unmap(|| {
            let worked = begin.elapsed();
            if worked >= TURN {
                std::thread::sleep((worked * PAUSE_FACTOR).min(PAUSE_MAX));
                begin = Instant::now();
            }
        });
    }
}

/// The next range, or the end of the thread.
fn next() -> Option<Range> {
    let mut waiting = lock();
    let range = waiting.ranges.pop();
    waiting.has_thread = range.is_some();
    range
}

fn lock() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
