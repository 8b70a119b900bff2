//! The program's own pages, as far as they matter for a bound on resident memory.

use rustix::mm::{Advice, madvise};
use std::fs;
use std::ops::Range;

/// One mapping, as `/proc/self/smaps` tells of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapped {
    start: usize,
    end: usize,
    /// Of a file, and never written to.
    is_clean_file: bool,
}

/// Where program and libraries are mapped, as far as this process has changed
/// nothing there.
#[derive(Debug)]
pub struct ProgramPages {
    ranges: Vec<Range<usize>>,
}

impl ProgramPages {
    /// Looks them up, which takes the longer the more memory the process holds.
    /// Mappings with changed pages (relocations, a debugger's or tracer's marks) are
    /// not among them.
    pub fn find() -> Self {
        let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let clean = parse(&text).into_iter().filter(|one| one.is_clean_file);
        ProgramPages {
            ranges: clean.map(|one| one.start..one.end).collect(),
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

fn parse(smaps: &str) -> Vec<Mapped> {
    let mut all: Vec<Mapped> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(name) = first.strip_suffix(':') {
            let kib = words.next().and_then(|word| word.parse::<u64>().ok());
            if let Some(mapped) = all.last_mut()
                && name == "Anonymous"
                && kib > Some(0)
            {
                mapped.is_clean_file = false;
            }
        } else {
            let address = |text: &str| usize::from_str_radix(text, 16).ok();
            let Some((start, end)) = first.split_once('-') else {
                continue;
            };
            let (Some(start), Some(end)) = (address(start), address(end)) else {
                continue;
            };
            let rights = words.next().unwrap_or_default();
            let path = words.nth(3).unwrap_or_default();
            all.push(Mapped {
                start,
                end,
                is_clean_file: rights.starts_with('r')
                    && !rights.contains('w')
                    && rights.ends_with('p')
                    && path.starts_with('/'),
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clean_private_files_are_given_back() {
        let text = "\
55d0-55e0 r-xp 00001000 fe:00 326269    /usr/bin/some program
Rss:                  12 kB
Anonymous:             0 kB
55e0-55f0 r--p 00002000 fe:00 326269    /usr/bin/some program
Rss:                   4 kB
Anonymous:             4 kB
55f0-5600 rw-p 00002000 fe:00 326269    /usr/bin/some program
Rss:                   4 kB
Anonymous:             0 kB
5600-5610 r--s 00000000 00:01 77        /memfd:trefoil (deleted)
Rss:                   8 kB
Anonymous:             0 kB
7ffe-7fff r-xp 00000000 00:00 0         [vdso]
Rss:                   4 kB
nonsense
zz-1 r-xp
VmFlags: rd ex mr mw me sd
";
        let clean: Vec<Mapped> = parse(text)
            .into_iter()
            .filter(|mapped| mapped.is_clean_file)
            .collect();
        let expected = Mapped {
            start: 0x55d0,
            end: 0x55e0,
            is_clean_file: true,
        };
        assert_eq!(clean, [expected]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no program to give back")]
    fn the_program_goes_on_without_its_pages() {
        let pages = ProgramPages::find();
        assert!(!pages.ranges.is_empty());
        for _ in 0..3 {
            pages.give_back();
        }
        assert_eq!(parse("1-2 r-xp 0 0:0 1 /x\nRss: 4 kB\n").len(), 1);
    }
}
