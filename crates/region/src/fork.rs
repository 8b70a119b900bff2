//! Telling a fork's child from its parent, by one load.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process that made this value. A fork's child has a copy of what its parent
/// mapped for two processes (rings and their cursors), and must not use it.
///
/// A page that the kernel wipes in a fork's child holds the process's number; it is
/// read where it is asked for, so no system call is made. Where the kernel has no
/// such pages, process ids are compared.
#[derive(Clone, Copy, Debug)]
pub struct ForkMark {
    number: Number,
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Wiped(&'static AtomicU64, u64),
    Process(u32),
}

/// The number that was given out last, here or in a process that this one was
/// forked from.
static LATEST: AtomicU64 = AtomicU64::new(0);

impl ForkMark {
    /// Of the process that runs.
    pub fn new() -> Self {
        let number = match wiped_page() {
            Some(page) => Number::Wiped(page, number_in(page)),
            None => Number::Process(std::process::id()),
        };
        ForkMark { number }
    }

    /// Whether another process runs than the one that made the mark: one that was
    /// forked from it.
    #[inline(always)]
    pub fn is_child(&self) -> bool {
        match self.number {
            Number::Wiped(page, number) => page.load(Ordering::Relaxed) != number,
            Number::Process(id) => std::process::id() != id,
        }
    }
}

impl Default for ForkMark {
    fn default() -> Self {
        ForkMark::new()
    }
}

/// The process's number; the first who asks in a process chooses it.
fn number_in(page: &AtomicU64) -> u64 {
    let known = page.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let fresh = LATEST.fetch_add(1, Ordering::Relaxed) + 1;
    match page.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(theirs) => theirs,
    }
}

/// Mapped once for each process and what is forked from it, and never unmapped.
fn wiped_page() -> Option<&'static AtomicU64> {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *PAGE.get_or_init(|| {
        if cfg!(miri) {
            return None;
        }
        let len = crate::PAGE_LEN as usize;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address of the kernel's choice touches nothing.
        let page = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE)
        }
        .ok()?;
        // SAFETY: advice about the page that was mapped above.
        let advised = unsafe { rustix::mm::madvise(page, len, Advice::LinuxWipeOnFork) };
        if advised.is_err() {
            // SAFETY: nobody has seen it.
            let _ = unsafe { rustix::mm::munmap(page, len) };
            return None;
        }
        // SAFETY: mapped for the life of the process, aligned to a page, zero, and
        // reached only as this atomic.
        Some(unsafe { &*page.cast::<AtomicU64>() })
    })
}
