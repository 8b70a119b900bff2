//! The program's own pages, as far as they matter for a bound on resident memory.

use rustix::mm::{Advice, madvise};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Of each page in `/proc/self/pagemap`: it is in memory, or in swap; and it is a file's (or
/// shared), not one that this process has of its own.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
/// Pages that are looked up by one call: the system lets others have the core in between.
const PAGES_AT_ONCE: usize = 1024;

/// Where program and libraries are mapped, as far as this process has changed
/// nothing there.
#[derive(Debug)]
pub struct ProgramPages {
    ranges: Vec<Range<usize>>,
}

impl ProgramPages {
    /// Looks them up. Mappings with changed pages (relocations, a debugger's or tracer's marks)
    /// are not among them.
    ///
    /// Only the program's own pages are looked at: `/proc/self/smaps`, which would tell the
    /// same, has the system walk over every page that is mapped, for milliseconds in which
    /// nobody else has the core.
    pub fn find() -> Self {
        let text = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let pages = File::open("/proc/self/pagemap");
        let is_clean = |range: &Range<usize>| {
            let pages = pages.as_ref().ok();
            pages.is_some_and(|pages| is_clean(pages, range).unwrap_or(false))
        };
        ProgramPages {
            ranges: parse(&text).into_iter().filter(is_clean).collect(),
        }
    }

    /// Has the system take back those that this process has used.
    ///
    /// Starting uses several megabytes of code and tables that serving does not, and
    /// so does what is done once in a while: a large part of what a small server
    /// takes. What is needed again comes back from the page cache by itself, at a
    /// microsecond for each 64 KiB.
    pub fn give_back(&self) {
        for range in &self.ranges {
            let at = std::ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: a private mapping of a file without a page of its own reads the
            // same before and after, whoever uses it meanwhile. It is still what it
            // was when it was found: only the dynamic linker unmaps or changes
            // program text, and nothing here unloads libraries. It does not matter
            // whether it succeeds.
            let _ = unsafe { madvise(at, range.len(), Advice::LinuxDontNeed) };
        }
    }
}

/// Private mappings of files that this process may not write to, by `/proc/self/maps`.
fn parse(maps: &str) -> Vec<Range<usize>> {
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let one = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let range = address(start)?..address(end)?;
        let rights = words.next()?;
        let path = words.nth(3)?;
        let is_it = rights.starts_with('r')
            && !rights.contains('w')
            && rights.ends_with('p')
            && path.starts_with('/');
        is_it.then_some(range)
    };
    maps.lines().filter_map(one).collect()
}

/// Whether the process has no page of its own there: it has never written to it, when it was
/// loaded or later.
fn is_clean(pagemap: &File, range: &Range<usize>) -> io::Result<bool> {
    let page_len = rustix::param::page_size();
    let (mut page, end) = (range.start / page_len, range.end / page_len);
    let mut entries = vec![0; PAGES_AT_ONCE * size_of::<u64>()];
    while page < end {
        let count = (end - page).min(PAGES_AT_ONCE);
        let part = &mut entries[..count * size_of::<u64>()];
        pagemap.read_exact_at(part, (page * size_of::<u64>()) as u64)?;
        let (entries, _) = part.as_chunks();
        let mut entries = entries.iter().map(|entry| u64::from_ne_bytes(*entry));
        if entries.any(|entry| entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0) {
            return Ok(false);
        }
        page += count;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_files_that_nobody_writes_to_are_looked_at() {
        let text = "\
55d0-55e0 r-xp 00001000 fe:00 326269    /usr/bin/some program
55f0-5600 rw-p 00002000 fe:00 326269    /usr/bin/some program
5600-5610 r--s 00000000 00:01 77        /memfd:trefoil (deleted)
5610-5620 ---p 00000000 fe:00 326269    /usr/bin/some program
5620-5630 r--p 00002000 fe:00 326270    /usr/lib/some library.so
7ffd-7ffe r--p 00000000 00:00 0
7ffe-7fff r-xp 00000000 00:00 0         [vdso]
nonsense
zz-1 r-xp
";
        assert_eq!(parse(text), [0x55d0..0x55e0, 0x5620..0x5630]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it maps a file")]
    fn a_mapping_with_a_page_of_its_own_is_not_clean() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};
        let page_len = rustix::param::page_size();
        let len = 3 * page_len;
        let path = std::env::temp_dir().join(format!("trefoil-pages-{}", std::process::id()));
        fs::write(&path, vec![7; len]).unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let writes = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of this test's own.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                writes,
                MapFlags::PRIVATE,
                &file,
                0,
            )
        };
        let at = at.unwrap();
        let range = at.expose_provenance()..at.expose_provenance() + len;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let is_clean = || is_clean(&pagemap, &range).unwrap();
        assert!(is_clean(), "nothing was read");
        // SAFETY: it lies in the mapping.
        let second = unsafe { at.cast::<u8>().add(page_len) };
        // SAFETY: as above.
        assert_eq!(unsafe { second.read_volatile() }, 7);
        assert!(is_clean(), "a page was read");
        // SAFETY: as above.
        unsafe { second.write_volatile(8) };
        // SAFETY: nobody writes there any more.
        unsafe { mprotect(at, len, MprotectFlags::READ) }.unwrap();
        assert!(!is_clean(), "a page was written to");
        // SAFETY: nobody uses it any more.
        unsafe { munmap(at, len) }.unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no program to give back")]
    fn the_program_goes_on_without_its_pages() {
        let pages = ProgramPages::find();
        assert!(!pages.ranges.is_empty());
        for _ in 0..3 {
            pages.give_back();
        }
        assert_eq!(parse("1-2 r-xp 0 0:0 1 /x\n").len(), 1);
    }
}
