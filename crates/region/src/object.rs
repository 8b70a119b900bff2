//! Memory objects: anonymous files that several processes map.
//!
//! Created sparse at their maximum size, mode 0600 (so that the read-only
//! descriptor that a reader got cannot be reopened writable by another user),
//! sealed against shrinking, growing and further seals. Populated by fallocate
//! before anything there is published; given back by punching holes; never
//! truncated. `F_SEAL_FUTURE_WRITE` is not used: it would forbid hole punching.

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Whether to back an object by huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Use them if the system has enough of them reserved for the whole object.
    #[default]
    Auto,
    /// Do not.
    Off,
}

/// Why a memory object could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A system call failed.
    #[error("{what} of shared memory \"{name}\" failed: {source}")]
    System {
        /// Which object.
        name: String,
        /// Which step.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// A sealed, sparse shared memory object.
#[derive(Debug)]
pub struct MemoryObject {
    fd: OwnedFd,
    name: String,
    len: u64,
    page_len: u64,
}

impl MemoryObject {
    /// Creates an object of `len` bytes, none of them populated. `resident_max`
    /// is how many will be populated at most: it decides whether the system has
    /// enough huge pages.
    pub fn create(
        name: &str,
        len: u64,
        resident_max: u64,
        huge: HugePages,
    ) -> Result<Self, ObjectError> {
        let page_len = match huge {
            HugePages::Auto => huge_pages_for(resident_max).unwrap_or(crate::PAGE_LEN),
            HugePages::Off => crate::PAGE_LEN,
        };
        let len = len.next_multiple_of(page_len);
        let fail = |what, source: rustix::io::Errno| ObjectError::System {
            name: name.to_owned(),
            what,
            source: source.into(),
        };
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if page_len != crate::PAGE_LEN {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let fd = rustix::fs::memfd_create(name, flags).map_err(|e| fail("creation", e))?;
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(|e| fail("mode change", e))?;
        rustix::fs::ftruncate(&fd, len).map_err(|e| fail("sizing", e))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| fail("sealing", e))?;
        Ok(MemoryObject {
            fd,
            name: name.to_owned(),
            len,
            page_len,
        })
    }

    /// Bytes from end to end, populated or not.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the pages that back it.
    pub fn page_len(&self) -> u64 {
        self.page_len
    }

    /// Backs `range` with zeroed memory, so that a later write cannot fail.
    pub fn populate(&self, range: Range<u64>) -> Result<(), ObjectError> {
        self.allocate(range, FallocateFlags::empty(), "population")
    }

    /// Gives the memory of `range` back to the system; it reads as zero afterwards.
    pub fn punch(&self, range: Range<u64>) -> Result<(), ObjectError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.allocate(range, flags, "hole punching")
    }

    fn allocate(
        &self,
        range: Range<u64>,
        flags: FallocateFlags,
        what: &'static str,
    ) -> Result<(), ObjectError> {
        if range.is_empty() {
            return Ok(());
        }
        rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&self.fd, flags, range.start, range.end - range.start)
        })
        .map_err(|e| ObjectError::System {
            name: self.name.clone(),
            what,
            source: e.into(),
        })
    }

    /// Bytes that the system holds for this object now.
    pub fn resident_len(&self) -> Result<u64, ObjectError> {
        let stat = rustix::fs::fstat(&self.fd).map_err(|e| ObjectError::System {
            name: self.name.clone(),
            what: "inspection",
            source: e.into(),
        })?;
        Ok(stat.st_blocks as u64 * 512)
    }

    /// The first populated byte at or behind `offset`; `None` if there is none.
    pub fn next_populated(&self, offset: u64) -> Option<u64> {
        rustix::fs::seek(&self.fd, SeekFrom::Data(offset)).ok()
    }

    /// A second descriptor that cannot be mapped writable: what readers get.
    pub fn reopen_read_only(&self) -> Result<OwnedFd, ObjectError> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
            ObjectError::System {
                name: self.name.clone(),
                what: "read-only reopening",
                source: e.into(),
            }
        })
    }
}

impl AsFd for MemoryObject {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The huge page size if enough such pages are free.
fn huge_pages_for(resident_max: u64) -> Option<u64> {
    const HUGE: u64 = 2 << 20;
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = info.lines().find(|l| l.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let enough = field("Hugepagesize:")? * 1024 == HUGE
        && field("HugePages_Free:")?.checked_sub(field("HugePages_Rsvd:")?)? * HUGE >= resident_max;
    enough.then_some(HUGE)
}
