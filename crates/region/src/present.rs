//! Where a process maps pages.
//!
//! A region reserves hundreds of times what it holds. Since Linux 6.7 the kernel says which
//! pages of a range are there, and skips what is not by whole tables: half a TiB that is
//! empty takes microseconds (`PAGEMAP_SCAN`, Documentation/admin-guide/mm/pagemap.rst).

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Updater, opcode};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// What the kernel calls a page that is there (`PAGE_IS_PRESENT`).
const IS_PRESENT: u64 = 1 << 3;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 96 && size_of::<PageRegion>() == 24);

/// Runs of pages that one look tells at most.
const RUNS_MAX: usize = 16;

/// What one look has found.
#[derive(Debug)]
pub(crate) struct Found {
    runs: [Range<usize>; RUNS_MAX],
    run_count: usize,
    /// Up to here it was looked.
    pub(crate) looked_until: usize,
}

impl Found {
    /// Addresses of pages that are there, in their order.
    pub(crate) fn runs(&self) -> &[Range<usize>] {
        &self.runs[..self.run_count]
    }
}

/// This process's pages.
#[derive(Debug)]
pub(crate) struct Pages {
    pagemap: OwnedFd,
}

impl Pages {
    /// Nothing where the kernel does not tell.
    pub(crate) fn of_this_process() -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = rustix::fs::open("/proc/self/pagemap", flags, Mode::empty()).ok()?;
        let pages = Pages { pagemap };
        // An older kernel does not know the question.
        pages.look(0..0, 1).ok()?;
        Some(pages)
    }

    /// Looks through `range` until it has found `pages_max` pages, or some runs of them.
    pub(crate) fn look(&self, range: Range<usize>, pages_max: usize) -> Result<Found, Errno> {
        let mut regions = [PageRegion::default(); RUNS_MAX];
        let mut scan = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: range.start as u64,
            end: range.end as u64,
            vec: regions.as_mut_ptr() as u64,
            vec_len: RUNS_MAX as u64,
            max_pages: pages_max as u64,
            category_mask: IS_PRESENT,
            return_mask: IS_PRESENT,
            ..ScanArg::default()
        };
        const SCAN: ioctl::Opcode = opcode::read_write::<ScanArg>(b'f', 16);
        // SAFETY: the kernel reads and writes `scan`, which is laid out as it expects, and
        // writes at most `vec_len` elements at `vec`.
        unsafe { ioctl::ioctl(&self.pagemap, Updater::<SCAN, ScanArg>::new(&mut scan)) }?;
        let mut found = Found {
            runs: std::array::from_fn(|_| 0..0),
            run_count: 0,
            looked_until: scan.walk_end as usize,
        };
        // How many were written is the answer, which `Updater` drops: the rest is zero.
        for region in regions.iter().take_while(|region| region.end > 0) {
            found.runs[found.run_count] = region.start as usize..region.end as usize;
            found.run_count += 1;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    const PAGE: usize = 4096;

    /// A mapping of so many bytes, of which these pages were touched.
    fn mapped(len: usize, touched: &[usize]) -> usize {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }.unwrap();
        for page in touched {
            // SAFETY: inside of the mapping.
            unsafe { base.cast::<u8>().byte_add(page * PAGE).write_volatile(1) };
        }
        base as usize
    }

    #[test]
    fn pages_are_found_where_they_are() {
        let Some(pages) = Pages::of_this_process() else {
            println!("SKIPPED: this kernel does not tell which pages are there");
            return;
        };
        let len = 64 << 30;
        let far = (40 << 30) / PAGE;
        let base = mapped(len, &[1, 2, 3, 700, far]);
        let at = |pages: Range<usize>| base + pages.start * PAGE..base + pages.end * PAGE;
        let all = base..base + len;
        let found = pages.look(all.clone(), 1000).unwrap();
        assert_eq!(found.runs(), [at(1..4), at(700..701), at(far..far + 1)]);
        assert_eq!(found.looked_until, base + len);
        // A look ends where it has found as many as it may.
        let found = pages.look(all.clone(), 2).unwrap();
        assert_eq!(found.runs(), [at(1..3)]);
        let rest = found.looked_until..all.end;
        assert!(rest.start > base + PAGE && rest.start <= base + 3 * PAGE);
        let found = pages.look(rest, 1000).unwrap();
        assert_eq!(found.runs().last(), Some(&at(far..far + 1)));
        // SAFETY: nothing refers to it.
        unsafe { munmap(base as *mut _, len) }.unwrap();
    }
}
