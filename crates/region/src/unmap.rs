//! The end of a mapping, apart from the thread that ends it.
//!
//! The kernel looks at each page that is mapped: tens of milliseconds for a GiB of
//! small ones, more where nobody else holds them. The thread may be an event loop, or
//! somebody who waits for an answer, so a thread of its own does it, in pieces: while
//! one is under way nobody else in the process can map anything.

use std::ffi::c_void;
use std::ptr::NonNull;

/// Shorter ones end at once: less than a thread costs.
const LEN_MIN: usize = 1 << 20;
/// What is unmapped by one call: a millisecond if all of it is there.
const PIECE_LEN: usize = 32 << 20;

/// A range that nobody uses any more.
struct Range {
    base: NonNull<c_void>,
    len: usize,
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
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().byte_add(done), len) };
            done += len;
        }
    }
}

/// Unmaps `len` bytes at `base`, soon.
///
/// # Safety
///
/// They are one mapping, or several, of this process, and nothing refers to them.
pub(crate) unsafe fn unmap(base: NonNull<c_void>, len: usize) {
    let range = Range { base, len };
    if len < LEN_MIN {
        return;
    }
    // Without a thread it is done here: the closure is dropped.
    let _ = std::thread::Builder::new()
        .name("trefoil-unmap".to_owned())
        .spawn(move || drop(range));
}
