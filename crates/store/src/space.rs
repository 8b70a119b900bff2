//! The memory that a store lives in: three spaces, each a mapping and, unless
//! it is ordinary memory of a simulation, the memory object behind it.
//!
//! | region | contents |
//! |---|---|
//! | control | `layout::control` |
//! | index | index windows, anywhere; a replaced window's range is used again as late as possible |
//! | data | pages from the beginning (`pages_len` bytes), then the offsets for runs of large entries |

use crate::config::StoreError;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use trefoil_layout::control::CONTROL_LEN;
use trefoil_layout::limits::DATA_REGION_LEN_MAX;
use trefoil_region::{
    Gathered, Gatherer, HugePages, Mapping, MemoryObject, ObjectError, PAGE_LEN, SharedWords,
};

/// Largest data page.
pub(crate) const DATA_PAGE_LEN_MAX: u64 = 64 << 10;
/// Pages that even a small store should have.
const DATA_PAGES_WANTED: u64 = 512;
/// Below this, huge pages are too coarse: every partition's index alone takes one.
const HUGE_MEMORY_MIN: u64 = 512 << 20;
/// Offsets for runs, as a multiple of the memory that may be resident: more
/// than the base-2 logarithm of the longest run over the shortest.
const RUNS_FACTOR: u64 = 16;
/// Offsets for index windows, likewise.
const INDEX_FACTOR: u64 = 8;

/// One region.
#[derive(Debug)]
pub struct Space {
    mapping: Mapping,
    object: Option<MemoryObject>,
    frame_len: u64,
    /// See [`Space::fail_punches`].
    fails_punches: AtomicBool,
}

impl Space {
    /// A sparse memory object of `len` bytes, of which at most `resident_max`
    /// will be populated.
    pub fn memfd(
        name: &str,
        len: u64,
        resident_max: u64,
        huge: HugePages,
    ) -> Result<Self, StoreError> {
        let object = MemoryObject::create(name, len, resident_max, huge)?;
        let mapping = Mapping::owner(&object)?;
        Ok(Space {
            mapping,
            frame_len: object.page_len(),
            object: Some(object),
            fails_punches: AtomicBool::new(false),
        })
    }

    /// Ordinary memory, for simulations and Miri.
    pub fn heap(len: u64) -> Self {
        Space {
            mapping: Mapping::heap(len),
            object: None,
            frame_len: PAGE_LEN,
            fails_punches: AtomicBool::new(false),
        }
    }

    /// The object to hand to readers, if there is one.
    pub fn object(&self) -> Option<&MemoryObject> {
        self.object.as_ref()
    }

    /// Bytes from end to end.
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// Goes on gathering huge pages; at most one at a time. Nothing a reader or
    /// writer could notice but its speed.
    pub fn gather(&self, gatherer: &mut Gatherer) -> Gathered {
        match &self.object {
            Some(object) => gatherer.step(object, &self.mapping),
            None => Gathered::Unsupported,
        }
    }

    /// All of it, as words.
    #[inline(always)]
    pub fn words(&self) -> SharedWords<'_> {
        self.mapping.words()
    }

    /// The mapping, for a reader in this process: it stays readable when the store
    /// is gone.
    pub fn mapping(&self) -> Mapping {
        self.mapping.clone()
    }

    /// Bytes that become resident or not together.
    pub(crate) fn frame_len(&self) -> u64 {
        self.frame_len
    }

    /// Makes `range` resident; it reads as zero if it was not.
    pub(crate) fn populate(&self, range: Range<u64>) -> Result<(), ObjectError> {
        match &self.object {
            Some(object) => object.populate(range),
            None => Ok(()),
        }
    }

    /// [`Space::populate`], and what is written first there does not even fault.
    pub(crate) fn populate_ahead(&self, range: Range<u64>) -> Result<(), ObjectError> {
        self.populate(range.clone())?;
        self.mapping.prefault(range);
        Ok(())
    }

    /// Has the system refuse to take memory back, as far as this store can tell:
    /// for tests.
    #[doc(hidden)]
    pub fn fail_punches(&self, fails: bool) {
        self.fails_punches.store(fails, Ordering::Relaxed);
    }

    /// Gives `range` back; it reads as zero afterwards. A failure leaves the
    /// memory resident and its contents as they were: the caller keeps it on the
    /// account, and does not take it for zeroed.
    pub(crate) fn punch(&self, range: Range<u64>) -> Result<(), ObjectError> {
        if self.fails_punches.load(Ordering::Relaxed) {
            return Err(ObjectError::System {
                name: "test".to_owned(),
                what: "hole punching",
                source: std::io::ErrorKind::OutOfMemory.into(),
            });
        }
        match &self.object {
            Some(object) => object.punch(range),
            None => {
                let len = (range.end - range.start) as usize;
                if let Some(words) = self.mapping.words().slice(range.start, len) {
                    words.zero();
                }
                Ok(())
            }
        }
    }
}

/// The three regions of one backend.
#[derive(Debug)]
pub struct Regions {
    /// See [`trefoil_layout::control`].
    pub control: Space,
    /// Index windows.
    pub index: Space,
    /// Data entries.
    pub data: Space,
    memory_max: u64,
    page_len: u64,
}

/// Bytes of a data page where at most `memory_max` bytes are resident: a small
/// store has small pages, so that size classes do not starve each other.
fn page_len(memory_max: u64) -> u64 {
    let wanted = (memory_max / DATA_PAGES_WANTED).max(1);
    (1 << wanted.ilog2()).clamp(PAGE_LEN, DATA_PAGE_LEN_MAX)
}

impl Regions {
    /// Sparse memory objects for a store that never has a higher limit than
    /// `memory_max` bytes. Their names begin with `name`. Offsets are plentiful
    /// (25 times `memory_max`), resident bytes are not touched yet. Huge pages
    /// are not used for less than 512 MiB.
    pub fn memfd(name: &str, memory_max: u64, huge: HugePages) -> Result<Self, StoreError> {
        let pages = memory_max.next_multiple_of(2 << 20);
        let data = pages
            .saturating_mul(1 + RUNS_FACTOR)
            .min(DATA_REGION_LEN_MAX);
        let index = pages.saturating_mul(INDEX_FACTOR);
        let huge = if memory_max < HUGE_MEMORY_MIN {
            HugePages::Off
        } else {
            huge
        };
        let object = |part: &str, len, resident_max, huge| {
            Space::memfd(&format!("{name}-{part}"), len, resident_max, huge)
        };
        Ok(Regions {
            control: object("control", CONTROL_LEN as u64, 0, HugePages::Off)?,
            index: object("index", index, memory_max, huge)?,
            data: object("data", data, memory_max, huge)?,
            memory_max: pages,
            page_len: page_len(memory_max),
        })
    }

    /// Ordinary memory for a store of at most `memory_max` bytes: about five
    /// times that is allocated, so keep it small.
    pub fn heap(memory_max: u64) -> Self {
        let mut regions = Self::heap_of_pages(memory_max);
        regions.data = Space::heap(3 * regions.memory_max);
        regions
    }

    /// The same without room for entries of more than half a page, which get runs: less
    /// to clear, where stores are made by the thousand.
    pub fn heap_of_pages(memory_max: u64) -> Self {
        let page_len = page_len(memory_max);
        let pages = memory_max.next_multiple_of(page_len);
        Regions {
            control: Space::heap(CONTROL_LEN as u64),
            index: Space::heap(2 * pages),
            data: Space::heap(pages),
            memory_max: pages,
            page_len,
        }
    }

    /// Ordinary memory that pretends to consist of frames of `frame_len` bytes,
    /// as huge pages are: for tests.
    #[doc(hidden)]
    pub fn heap_in_frames(memory_max: u64, frame_len: u64) -> Self {
        let memory_max = memory_max.next_multiple_of(frame_len);
        let mut regions = Self::heap(memory_max);
        regions.index = Space::heap(2 * memory_max);
        regions.data = Space::heap(memory_max * 5);
        regions.data.frame_len = frame_len;
        regions.index.frame_len = frame_len;
        regions
    }

    /// The highest memory limit that these regions can serve, in bytes.
    pub fn memory_max(&self) -> u64 {
        self.memory_max
    }

    /// Bytes of a data page.
    pub(crate) fn page_len(&self) -> u64 {
        self.page_len
    }

    /// Where in the data region pages lie.
    pub(crate) fn pages_len(&self) -> u64 {
        self.memory_max
    }

    /// Where in the data region runs of large entries lie.
    pub(crate) fn runs_range(&self) -> Range<u64> {
        self.memory_max..self.data.len()
    }
}
