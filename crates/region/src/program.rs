//! The program's own pages, as far as they matter for a bound on resident memory.

use rustix::mm::{Advice, madvise};
use std::fs;

/// One mapping, as `/proc/self/smaps` tells of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapped {
    start: usize,
    end: usize,
    /// Of a file, and never written to.
    is_clean_file: bool,
    resident: u64,
}

/// Has the system take the pages of program and libraries back that this process
/// has used; bytes that were resident there.
///
/// Starting uses several megabytes of code and tables that serving does not: a
/// large part of what a small server takes. What is needed again comes back from
/// the page cache by itself, at a microsecond for each 64 KiB. Pages that were
/// changed (relocations, a debugger's or tracer's marks) stay.
pub fn return_program_pages() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut returned = 0;
    for mapped in parse(&text) {
        if !mapped.is_clean_file || mapped.resident == 0 {
            continue;
        }
        let len = mapped.end - mapped.start;
        let at = std::ptr::with_exposed_provenance_mut(mapped.start);
        // SAFETY: a private mapping of a file without a page of its own reads the
        // same before and after, whoever uses it meanwhile. If it is gone or another
        // one since it was listed, it is still not writable memory: only the
        // dynamic linker unmaps program text, and nothing here unloads libraries.
        if unsafe { madvise(at, len, Advice::LinuxDontNeed) }.is_ok() {
            returned += mapped.resident;
        }
    }
    returned
}

fn parse(smaps: &str) -> Vec<Mapped> {
    let mut all: Vec<Mapped> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(name) = first.strip_suffix(':') {
            let bytes = words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(mapped), Some(kib)) = (all.last_mut(), bytes) else {
                continue;
            };
            match name {
                "Rss" => mapped.resident = kib * 1024,
                "Anonymous" if kib > 0 => mapped.is_clean_file = false,
                _ => {}
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
                resident: 0,
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
            resident: 12 << 10,
        };
        assert_eq!(clean, [expected]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no program to give back")]
    fn the_program_goes_on_without_its_pages() {
        assert!(return_program_pages() > 0);
        assert_eq!(parse("1-2 r-xp 0 0:0 1 /x\nRss: 4 kB\n").len(), 1);
    }
}
