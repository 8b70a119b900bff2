//! Memory that the device may read and write.

use crate::device::Device;
use crate::error::VerbsError;
use crate::raw::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, RawMr, RawSge};
use std::ops::Range;
use std::ptr::NonNull;
use trefoil_region::{Mapping, SharedWords};

/// What the other side of a connection may do with it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteUse {
    /// Nothing.
    None,
    /// Read it, if it knows the key.
    Read,
}

/// A mapping that is registered with a device. Nobody holds references into it: the device
/// changes it at any time.
#[derive(Debug)]
pub struct Region {
    raw: NonNull<RawMr>,
    // Given back before the memory is (see `drop`).
    mapping: Option<Mapping>,
    address: u64,
    len: u64,
    device: Device,
}

// SAFETY: the library locks by itself (rule 2), and memory is reached by atomic words (rule 3).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers all of a mapping. It is locked into memory.
    pub fn new(device: &Device, mapping: Mapping, by_peers: RemoteUse) -> Result<Self, VerbsError> {
        let access = match by_peers {
            RemoteUse::None => ACCESS_LOCAL_WRITE,
            RemoteUse::Read => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ,
        };
        let base = mapping.words().atomic(0).as_ptr();
        let len = mapping.len();
        // SAFETY: the mapping has so many bytes, which are read and written by atomic accesses
        // alone, and it lives until the registration has been given back.
        let raw = unsafe {
            (device.library().reg_mr)(device.domain(), base.cast(), len as usize, access)
        };
        let raw = NonNull::new(raw).ok_or_else(|| device.failed("register memory"))?;
        Ok(Region {
            raw,
            mapping: Some(mapping),
            address: base as u64,
            len,
            device: device.clone(),
        })
    }

    /// Its words.
    #[inline(always)]
    pub fn words(&self) -> SharedWords<'_> {
        match &self.mapping {
            Some(mapping) => mapping.words(),
            None => unreachable!("it is there until the end"),
        }
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins, for peers that may read it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// What peers name it by.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: it lives until `drop`.
        unsafe { self.raw.as_ref().rkey }
    }

    /// A range of it, as requests name it.
    ///
    /// # Panics
    /// If it has no such range.
    #[inline]
    pub(crate) fn part(&self, range: Range<u64>) -> RawSge {
        assert!(range.start <= range.end && range.end <= self.len);
        RawSge {
            addr: self.address + range.start,
            length: (range.end - range.start) as u32,
            // SAFETY: it lives until `drop`.
            lkey: unsafe { self.raw.as_ref().lkey },
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was registered once.
        let code = unsafe { (self.device.library().dereg_mr)(self.raw.as_ptr()) };
        if code != 0 {
            // The device may go on using it: it is never unmapped.
            std::mem::forget(self.mapping.take());
        }
    }
}
