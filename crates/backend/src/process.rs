//! What the system says about this process and this machine.

use std::fs;

/// Resident bytes of this process, by what backs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Heap, stacks, and the program's own pages.
    pub private: u64,
    /// Of these, pages of program and libraries.
    pub program: u64,
    /// Memory objects, as far as this process has touched them.
    pub shared: u64,
    /// Huge pages, which the system counts apart.
    pub huge: u64,
}

impl Resident {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.private + self.shared + self.huge
    }

    /// The same, with at least `objects` bytes of memory objects.
    pub(crate) fn total_with(&self, objects: u64) -> u64 {
        self.private + (self.shared + self.huge).max(objects)
    }

    /// The same where this process maps memory of another one that it copies from: pages of it
    /// count here, too, and are not its own. Of memory objects it has what its stores know of.
    pub(crate) fn without_foreign(self, objects: u64) -> Self {
        Resident {
            shared: (self.shared + self.huge).min(objects),
            huge: 0,
            ..self
        }
    }

    /// As the system counts now; zeros if it does not say.
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::parse(&status)
    }

    fn parse(status: &str) -> Self {
        let mut resident = Resident::default();
        for line in status.lines() {
            let Some((name, rest)) = line.split_once(':') else {
                continue;
            };
            let bytes = || kibibytes(rest);
            match name {
                "RssAnon" => resident.private += bytes(),
                "RssFile" => {
                    resident.program = bytes();
                    resident.private += resident.program;
                }
                "RssShmem" => resident.shared = bytes(),
                "HugetlbPages" => resident.huge = bytes(),
                _ => {}
            }
        }
        resident
    }
}

fn kibibytes(field: &str) -> u64 {
    let number = field.split_ascii_whitespace().next();
    number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Share of the program and its libraries that may be in memory while it serves: up
/// to this part in every build.
const PROGRAM_PARTS: u64 = 6;
/// Heap and stacks of a process that has just begun, and are rounded up to this.
const HEAP_STEP: u64 = 512 << 10;

/// What a process of this program usually holds before any store is filled, by how
/// long the program is: the same for all of them on one host.
pub(crate) fn usual_baseline() -> u64 {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let heap = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .map_or(0, kibibytes);
    mapped_files(&maps) / PROGRAM_PARTS + heap.next_multiple_of(HEAP_STEP)
}

/// Bytes of files that are mapped, shared memory objects not among them.
fn mapped_files(maps: &str) -> u64 {
    let len = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let path = fields.nth(4)?;
        let is_file = path.starts_with('/') && !path.starts_with("/memfd:");
        let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16));
        is_file.then_some(to.ok()?.checked_sub(from.ok()?)?)
    };
    maps.lines().filter_map(len).sum()
}

/// CPU time of this process, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// In the program.
    pub user_us: u64,
    /// In the system, for the program.
    pub system_us: u64,
}

impl Cpu {
    /// As the system counts now, in its ticks of 10 ms mostly.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self::parse(&stat, rustix::param::clock_ticks_per_second())
    }

    fn parse(stat: &str, ticks_per_second: u64) -> Self {
        // The command's name, in parentheses, may hold anything.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = fields.split_ascii_whitespace().skip(11);
        let mut next = || {
            let ticks: u64 = fields.next().and_then(|f| f.parse().ok()).unwrap_or(0);
            ticks * 1_000_000 / ticks_per_second.max(1)
        };
        Cpu {
            user_us: next(),
            system_us: next(),
        }
    }
}

/// Memory of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Bytes installed.
    pub(crate) memory: u64,
    /// Bytes of huge pages that are reserved and free.
    pub(crate) huge_free: u64,
}

impl Machine {
    /// As the system says; zeros if it does not.
    pub(crate) fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    fn parse(meminfo: &str) -> Self {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.split_ascii_whitespace().next());
            number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        let free = field("HugePages_Free:").saturating_sub(field("HugePages_Rsvd:"));
        Machine {
            memory: field("MemTotal:") * 1024,
            huge_free: free * field("Hugepagesize:") * 1024,
        }
    }
}

/// Identifies the running system: shared memory reaches no further.
pub(crate) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_parsed_and_nonsense_is_zero() {
        let status = "Name:\tx\nVmRSS:\t 9 kB\nRssAnon:\t 5 kB\nRssFile:\t 3 kB\nRssShmem:\t 1 kB\nHugetlbPages:\t 2048 kB\n";
        let resident = Resident::parse(status);
        assert_eq!((resident.private, resident.program), (8 << 10, 3 << 10));
        assert_eq!(resident.total(), (9 << 10) + (2 << 20));
        // Memory objects hold no less than the stores say.
        assert_eq!(resident.total_with(2 << 20), resident.total());
        assert_eq!(resident.total_with(3 << 20), (8 << 10) + (3 << 20));
        // Of what is mapped, the rest is another process's.
        let own = resident.without_foreign(1 << 20);
        assert_eq!(own.total(), (8 << 10) + (1 << 20));
        assert_eq!(own.private, resident.private);
        let less = resident.without_foreign(3 << 20);
        assert_eq!(less.total(), resident.total(), "no more than is counted");
        assert_eq!(Resident::parse("RssAnon: many\n:\n"), Resident::default());
    }

    #[test]
    fn mapped_files_are_added_up() {
        let maps = "00400000-00402000 r-xp 00000000 08:01 131 /usr/bin/x\n\
                    7f00-7f80 rw-s 00000000 00:01 9 /memfd:data (deleted)\n\
                    00500000-00600000 rw-p 00000000 00:00 0 [heap]\n\
                    00600000-00700000 rw-p 00000000 00:00 0\n\
                    nonsense\n9-1 r--p 0 0 0 /x\n\
                    00700000-00701000 r--p 00000000 08:01 7 /lib/libc.so.6\n";
        assert_eq!(mapped_files(maps), 0x3000);
        assert!(usual_baseline() > 1 << 20);
    }

    #[test]
    fn this_process_has_memory_and_time() {
        assert!(Resident::now().private > 1 << 16);
        assert!(Machine::now().memory > 1 << 24);
        assert_eq!(boot_id().len(), 36);
    }

    #[test]
    fn stat_is_parsed_behind_any_name() {
        let stat = "12 (a) b) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0";
        let cpu = Cpu::parse(stat, 100);
        assert_eq!((cpu.user_us, cpu.system_us), (2_500_000, 500_000));
        assert_eq!(Cpu::parse("", 0), Cpu::default());
    }

    #[test]
    fn meminfo_is_parsed() {
        let text =
            "MemTotal: 100 kB\nHugePages_Free: 7\nHugePages_Rsvd: 2\nHugepagesize: 2048 kB\n";
        let machine = Machine::parse(text);
        assert_eq!(machine.memory, 100 << 10);
        assert_eq!(machine.huge_free, 5 * (2 << 20));
    }
}
