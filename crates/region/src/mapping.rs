//! Mappings of memory objects into this process, and private stand-ins for them.

use crate::PAGE_LEN;
use crate::hold::Hold;
use crate::object::MemoryObject;
use crate::unmap;
use crate::words::SharedWords;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of a huge page, and how long mappings are aligned: a mapping at an odd
/// address could never be mapped by huge pages.
pub const HUGE_PAGE_LEN: u64 = 2 << 20;

/// Why a mapping could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The kernel refused.
    #[error("cannot map {len} bytes of shared memory: {source}")]
    Map {
        /// Bytes asked for.
        len: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The other side handed over something else than a sealed object of that size.
    #[error("the shared memory handed over is not a sealed object of {expected} bytes")]
    NotSealed {
        /// Bytes that the peer announced.
        expected: u64,
    },
}

enum Backing {
    /// Unmapped when dropped.
    Kernel,
    /// The same of another process's memory, as long as something is copied from there.
    Foreign,
    /// Ordinary memory of this process, for simulations and Miri: a leaked
    /// box, so that no owner's uniqueness contradicts the shared accesses.
    Heap,
}

/// A run of shared memory, mapped whole. Clones share the mapping; the last one
/// ends it.
#[derive(Clone)]
pub struct Mapping {
    base: NonNull<u64>,
    len: u64,
    owned: Arc<Owned>,
}

/// A memory object's device, number and length.
type ObjectId = (u64, u64, u64);

/// Mappings of this process that further readers may share.
static READERS: Mutex<Vec<(ObjectId, Weak<Owned>)>> = Mutex::new(Vec::new());

/// What ends a mapping.
struct Owned {
    base: NonNull<u64>,
    len: u64,
    backing: Backing,
    /// Of another process's object.
    hold: Hold,
}

// SAFETY: used for unmapping by its last owner alone.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

// SAFETY: the memory is reached only through `SharedWords`, whose accesses are
// atomic; the mapping itself is immutable.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps an object that this process made, readable and writable.
    pub fn owner(object: &MemoryObject) -> Result<Self, MappingError> {
        let mapping = Self::map(object, object.len(), ProtFlags::READ | ProtFlags::WRITE)?;
        if object.page_len() == crate::PAGE_LEN {
            mapping.advise_huge();
        }
        Ok(mapping)
    }

    /// Maps a descriptor that another process handed over, for reading. Checks
    /// that it is a memory object of `len` bytes that nobody can shrink: a
    /// truncated one would kill the reader with SIGBUS.
    pub fn reader(fd: impl AsFd, len: u64) -> Result<Self, MappingError> {
        Self::check_sealed(&fd, len)?;
        Self::map_others(fd, len, Backing::Kernel)
    }

    /// The same for a process that bounds its own memory and copies much of another's: what
    /// it reads is counted as resident here, too, although it is the other one's. While one is
    /// there, [`maps_foreign`] says so.
    pub fn foreign_reader(fd: impl AsFd, len: u64) -> Result<Self, MappingError> {
        Self::check_sealed(&fd, len)?;
        unmap::foreign_begins();
        Self::map_others(fd, len, Backing::Foreign).inspect_err(|_| unmap::foreign_ends())
    }

    /// The same, by the mapping that this process has of that object already, if it
    /// has one: regions are reserved at their longest, some hundreds of GB each, and
    /// a process has 128 TB of addresses, however many connections it makes.
    pub fn shared_reader(fd: impl AsFd, len: u64) -> Result<Self, MappingError> {
        Self::check_sealed(&fd, len)?;
        let Ok(stat) = rustix::fs::fstat(&fd) else {
            return Self::map_others(fd, len, Backing::Kernel);
        };
        // An object's number is not given to another one while a mapping holds it.
        let object = (stat.st_dev, stat.st_ino, len);
        let mut known = READERS.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, mapping)| mapping.strong_count() > 0);
        let owned = known
            .iter()
            .find_map(|(of, mapping)| (*of == object).then(|| mapping.upgrade())?);
        if let Some(owned) = owned {
            let (base, len) = (owned.base, owned.len);
            return Ok(Mapping { base, len, owned });
        }
        let mapping = Self::map_others(fd, len, Backing::Kernel)?;
        known.push((object, Arc::downgrade(&mapping.owned)));
        Ok(mapping)
    }

    /// Maps a descriptor that another process handed over, for both directions
    /// (message rings).
    pub fn reader_writer(fd: impl AsFd, len: u64) -> Result<Self, MappingError> {
        Self::check_sealed(&fd, len)?;
        Self::map(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Ordinary private memory that behaves like a mapping.
    pub fn heap(len: u64) -> Self {
        let words = vec![0u64; (len as usize).div_ceil(8)].into_boxed_slice();
        let len = words.len() as u64 * 8;
        let base = NonNull::from(Box::leak(words)).cast();
        Self::owning(base, len, Backing::Heap, Hold::default())
    }

    fn owning(base: NonNull<u64>, len: u64, backing: Backing, hold: Hold) -> Self {
        let owned = Owned {
            base,
            len,
            backing,
            hold,
        };
        Mapping {
            base,
            len,
            owned: Arc::new(owned),
        }
    }

    fn check_sealed(fd: impl AsFd, len: u64) -> Result<(), MappingError> {
        let sealed = rustix::fs::fcntl_get_seals(&fd)
            .is_ok_and(|seals| seals.contains(rustix::fs::SealFlags::SHRINK));
        let sized = rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_size as u64 == len);
        if sealed && sized && len > 0 {
            Ok(())
        } else {
            Err(MappingError::NotSealed { expected: len })
        }
    }

    fn map(fd: impl AsFd, len: u64, prot: ProtFlags) -> Result<Self, MappingError> {
        Self::map_as(fd, len, prot, Backing::Kernel, Hold::default())
    }

    /// Maps what another process has made, to read it, and holds it.
    fn map_others(fd: impl AsFd, len: u64, backing: Backing) -> Result<Self, MappingError> {
        let hold = match len < unmap::LEN_MIN as u64 {
            true => Hold::default(),
            false => Hold::on(&fd),
        };
        Self::map_as(fd, len, ProtFlags::READ, backing, hold)
    }

    fn map_as(
        fd: impl AsFd,
        len: u64,
        prot: ProtFlags,
        backing: Backing,
        hold: Hold,
    ) -> Result<Self, MappingError> {
        let fail = |source: io::Error| MappingError::Map { len, source };
        let size = usize::try_from(len).map_err(|_| fail(io::ErrorKind::OutOfMemory.into()))?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let address = reserve_aligned(size).map_err(fail)?;
        // SAFETY: replaces a reservation that nobody has seen yet; the mapping
        // lives until `drop`.
        let base = unsafe { rustix::mm::mmap(address, size, prot, flags | MapFlags::FIXED, fd, 0) };
        let base = match base {
            Ok(base) => base,
            Err(error) => {
                // SAFETY: still our reservation, and unused.
                let _ = unsafe { rustix::mm::munmap(address, size) };
                return Err(fail(error.into()));
            }
        };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| fail(io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self::owning(base, len, backing, hold))
    }

    /// Gathers the huge page at `offset` (aligned to [`HUGE_PAGE_LEN`], wholly
    /// populated) from small ones. Works where transparent huge pages are not
    /// on by themselves; contents and resident bytes stay as they are, all
    /// mappings of the object profit.
    pub fn collapse(&self, offset: u64) -> io::Result<()> {
        assert!(offset.is_multiple_of(HUGE_PAGE_LEN) && offset + HUGE_PAGE_LEN <= self.len);
        // SAFETY: advice about a range of our own mapping; it changes no contents.
        let done = unsafe {
            libc::madvise(
                self.base.as_ptr().cast::<u8>().add(offset as usize).cast(),
                HUGE_PAGE_LEN as usize,
                libc::MADV_COLLAPSE,
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Whether all of the huge page at `offset` (aligned to [`HUGE_PAGE_LEN`]) is populated
    /// and was touched, be it in small pages or in one. Looks at these pages and no others: to ask the object
    /// for its next hole goes over all that is populated behind them.
    pub fn is_populated(&self, offset: u64) -> bool {
        assert!(offset.is_multiple_of(HUGE_PAGE_LEN) && offset + HUGE_PAGE_LEN <= self.len);
        let mut pages = [0_u8; (HUGE_PAGE_LEN / PAGE_LEN) as usize];
        let len = HUGE_PAGE_LEN as usize;
        let count = len / rustix::param::page_size();
        // SAFETY: a question about a range of our own mapping; the answer has a byte for each
        // page, and no system has shorter ones than `PAGE_LEN`.
        let done = unsafe {
            let start = self.base.as_ptr().cast::<u8>().add(offset as usize);
            libc::mincore(start.cast(), len, pages.as_mut_ptr())
        };
        // The other bits mean nothing.
        done == 0 && pages[..count].iter().all(|page| page & 1 == 1)
    }

    /// Asks for transparent huge pages where the system allows them for shared memory.
    fn advise_huge(&self) {
        // SAFETY: advice about our own mapping; it changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(
                self.base.as_ptr().cast(),
                self.len as usize,
                Advice::LinuxHugepage,
            )
        };
    }

    /// Makes `range` resident and enters it into this process's page tables,
    /// so that the first writes there cost no faults. A hint: where the system
    /// cannot, the faults come later.
    pub fn prefault(&self, range: std::ops::Range<u64>) {
        if !matches!(self.owned.backing, Backing::Kernel)
            || range.end > self.len
            || range.is_empty()
        {
            return;
        }
        let start = range.start / crate::PAGE_LEN * crate::PAGE_LEN;
        // SAFETY: the range lies inside our own writable mapping; populating it
        // changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(
                self.base.as_ptr().cast::<u8>().add(start as usize).cast(),
                (range.end - start) as usize,
                Advice::LinuxPopulateWrite,
            )
        };
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, as words.
    #[inline(always)]
    pub fn words(&self) -> SharedWords<'_> {
        // SAFETY: base and len describe memory that outlives the borrow.
        unsafe { SharedWords::new(self.base, (self.len / 8) as usize) }
    }
}

/// Reserves `size` bytes of addresses, aligned to huge pages if they could fill one.
fn reserve_aligned(size: usize) -> io::Result<*mut std::ffi::c_void> {
    let align = if size as u64 >= HUGE_PAGE_LEN {
        HUGE_PAGE_LEN as usize
    } else {
        0
    };
    let whole = size.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh reservation at an address of the kernel's choice aliases nothing.
    let start = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags)
    }?;
    if align == 0 {
        return Ok(start);
    }
    let head = start.align_offset(align);
    let base = start.wrapping_byte_add(head);
    let end = size.next_multiple_of(crate::PAGE_LEN as usize);
    // SAFETY: the parts of our own reservation before and behind what is kept.
    unsafe {
        if head > 0 {
            rustix::mm::munmap(start, head)?;
        }
        if whole > head + end {
            rustix::mm::munmap(base.wrapping_byte_add(end), whole - head - end)?;
        }
    }
    Ok(base)
}

impl Drop for Owned {
    fn drop(&mut self) {
        let (base, len) = (self.base.cast(), self.len as usize);
        let hold = std::mem::take(&mut self.hold);
        match &self.backing {
            // SAFETY: the mapping was made by `map` with this length and every
            // `SharedWords` over it has ended.
            Backing::Kernel => unsafe { unmap::unmap(base, len, hold, || {}) },
            // SAFETY: as above.
            Backing::Foreign => unsafe { unmap::unmap(base, len, hold, unmap::foreign_ends) },
            // SAFETY: `heap` leaked a box of exactly this many words.
            Backing::Heap => unsafe {
                let count = (self.len / 8) as usize;
                drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
                    self.base.as_ptr(),
                    count,
                )));
            },
        }
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
