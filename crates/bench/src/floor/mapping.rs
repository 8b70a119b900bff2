//! A shared mapping of anonymous memory, populated before first use.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use std::{fmt, io};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::FloorError;

/// Pages behind a mapping. Compare a floor only with a cell on the same pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum PageSize {
    /// The system's base pages.
    #[serde(rename = "4 KiB")]
    Base,
    /// Huge pages, gathered from small ones after they were written.
    #[serde(rename = "2 MiB")]
    Huge,
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Base => "4 KiB",
            Self::Huge => "2 MiB",
        })
    }
}

const HUGE_LEN: usize = 2 << 20;
/// How often a piece is tried that cannot be gathered.
const GATHER_ATTEMPTS: usize = 40;
const GATHER_PAUSE: Duration = Duration::from_millis(50);

/// Owns a `MAP_SHARED` mapping of a memfd, as words that may change under us.
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<AtomicU64>,
    len_words: usize,
    len_bytes_mapped: usize,
}

// SAFETY: the mapping is plain memory, reached only through atomics.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps at least `len_bytes`, every page present: a page fault inside the
    /// measured loop would be the kernel's cost, not the read's.
    pub fn create(len_bytes: usize, page: PageSize) -> Result<Self, FloorError> {
        let fail = |source: io::Error| FloorError::Map {
            len_bytes,
            page,
            source,
        };
        let len_bytes_mapped = len_bytes
            .max(1)
            .checked_next_multiple_of(HUGE_LEN)
            .ok_or_else(|| fail(io::ErrorKind::InvalidInput.into()))?;
        let file =
            memfd_create("trefoil-floor", MemfdFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
        ftruncate(&file, len_bytes_mapped as u64).map_err(|e| fail(e.into()))?;
        // SAFETY: a fresh reservation at an address of the kernel's choice.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes_mapped + HUGE_LEN,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|e| fail(e.into()))?;
        // The few addresses reserved around it stay unused until the process ends.
        let aligned = reserved.wrapping_byte_add(reserved.align_offset(HUGE_LEN));
        // SAFETY: inside our own reservation; a file that nobody else holds and
        // that is never truncated.
        let start = unsafe {
            mmap(
                aligned,
                len_bytes_mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE | MapFlags::FIXED,
                &file,
                0,
            )
        }
        .map_err(|e| fail(e.into()))?;
        if page == PageSize::Huge {
            gather(start, len_bytes_mapped).map_err(fail)?;
        }
        let start = NonNull::new(start.cast::<AtomicU64>())
            .ok_or_else(|| fail(io::ErrorKind::Other.into()))?;
        Ok(Self {
            start,
            len_words: len_bytes / 8,
            len_bytes_mapped,
        })
    }

    /// The mapped words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is page-aligned, maps at least `len_words` zeroed words
        // for as long as `self` lives, and atomics may be shared.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_words) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range mapped in `create`; `words` borrows `self`,
        // so no reference into it is left. Failure would leak, not dangle.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes_mapped) };
    }
}

/// Gathers huge pages for a whole mapping. While memory is fragmented the kernel
/// may have none at the moment: those pieces are tried again.
fn gather(start: *mut libc::c_void, len_bytes: usize) -> io::Result<()> {
    let mut pieces: Vec<usize> = (0..len_bytes).step_by(HUGE_LEN).collect();
    let mut error = None;
    for attempt in 0..GATHER_ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(GATHER_PAUSE);
        }
        pieces.retain(|offset| {
            let piece = start.wrapping_byte_add(*offset);
            // SAFETY: advice about our own mapping; it changes no contents.
            let failed = unsafe { libc::madvise(piece, HUGE_LEN, libc::MADV_COLLAPSE) } != 0;
            if failed {
                error = Some(io::Error::last_os_error());
            }
            failed
        });
        if pieces.is_empty() {
            return Ok(());
        }
    }
    Err(error.unwrap_or_else(|| io::ErrorKind::OutOfMemory.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn words_are_zero_writable_and_counted() {
        let mapping = SharedMapping::create(10_000, PageSize::Base).unwrap();
        let words = mapping.words();
        assert_eq!(words.len(), 1250);
        assert!(words.iter().all(|w| w.load(Relaxed) == 0));
        words[1249].store(7, Relaxed);
        assert_eq!(mapping.words()[1249].load(Relaxed), 7);
    }

    #[test]
    fn impossible_size_is_an_error() {
        assert!(SharedMapping::create(usize::MAX, PageSize::Base).is_err());
    }
}
