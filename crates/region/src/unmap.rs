//! The end of a mapping, apart from the thread that ends it.
//!
//! The kernel looks at each page that is mapped: tens of milliseconds for a GiB of
//! small ones, more where nobody else holds them. The thread may be an event loop, or
//! somebody who waits for an answer, so a thread of its own does it.
//!
//! Where both have one core, that thread must not keep it either: nobody is hurried by
//! the end of a mapping, and a time slice of the kernel is milliseconds long. So it gives
//! way to all others, and sleeps after each short piece. While one is under way nobody
//! else in the process can map anything.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Shorter ones end at once: less than a thread costs.
const LEN_MIN: usize = 1 << 20;
/// What is unmapped by one call: 50 microseconds if all of it is there, in small pages.
const PIECE_LEN: usize = 512 << 10;
/// So many times as long as a piece took, the thread sleeps after it.
const PAUSE_FACTOR: u32 = 3;
/// And so long at most: somebody else may have had the core meanwhile.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Comes after everybody.
const NICE: i32 = 19;

/// A range that nobody uses any more.
struct Range {
    base: NonNull<c_void>,
    len: usize,
    /// Whether a thread of its own ends it, for which nobody waits.
    is_aside: bool,
}

// SAFETY: an address range that its holder alone knows.
unsafe impl Send for Range {}

impl Drop for Range {
    fn drop(&mut self) {
        let mut done = 0;
        while done < self.len {
            let len = PIECE_LEN.min(self.len - done);
            // SAFETY: a part of the range, which nothing refers to (see `unmap`); what
            // was unmapped before is not touched again.
            // Refused only where the process has as many mappings as it may: the part
            // then stays mapped, which harms nobody.
            let begin = Instant::now();
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().byte_add(done), len) };
            done += len;
            if self.is_aside {
                std::thread::sleep((begin.elapsed() * PAUSE_FACTOR).min(PAUSE_MAX));
            }
        }
    }
}

/// Unmaps `len` bytes at `base`, soon.
///
/// # Safety
///
/// They are one mapping, or several, of this process, and nothing refers to them.
pub(crate) unsafe fn unmap(base: NonNull<c_void>, len: usize) {
    let mut range = Range {
        base,
        len,
        is_aside: false,
    };
    if len < LEN_MIN {
        return;
    }
    // Without a thread it is done here: the closure is dropped.
    let _ = std::thread::Builder::new()
        .name("trefoil-unmap".to_owned())
        .spawn(move || {
            // On Linux this is about the thread, not its process. Refused, it works on.
            let _ = rustix::process::setpriority_process(None, NICE);
            range.is_aside = true;
            drop(range);
        });
}
