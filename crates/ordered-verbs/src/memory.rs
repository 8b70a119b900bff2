//! Buffers of equal length in one registered region.

use crate::wire::BUFFER_LEN;
use std::ops::Range;
use trefoil_region::{
    HugePages, Mapping, MappingError, MemoryObject, ObjectError, SharedWords, WordBuffer,
};
use trefoil_verbs::{Device, Region, RemoteUse, VerbsError};

/// Why there are no buffers.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Memory could not be made.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// It could not be mapped.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The device does not take it.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// Memory for so many buffers. A memory object: children of a fork do not get a copy of it, of
/// which the device would know nothing.
pub(crate) fn mapping(count: u32) -> Result<Mapping, MemoryError> {
    let page = trefoil_region::PAGE_LEN;
    let len = (u64::from(count) * BUFFER_LEN as u64).next_multiple_of(page);
    let object = MemoryObject::create("trefoil-verbs", len, len, HugePages::Off)?;
    object.populate(0..len)?;
    Ok(Mapping::owner(&object)?)
}

/// Registers it.
pub(crate) fn region(device: &Device, mapping: &Mapping) -> Result<Region, VerbsError> {
    Region::new(device, mapping.clone(), RemoteUse::None)
}

/// The first bytes of a buffer.
#[inline]
pub(crate) fn part(buffer: u32, len: usize) -> Range<u64> {
    assert!(len <= BUFFER_LEN);
    let begin = u64::from(buffer) * BUFFER_LEN as u64;
    begin..begin + len as u64
}

/// Copies the first bytes of a buffer.
#[inline]
pub(crate) fn read<'a>(
    region: &Region,
    buffer: u32,
    len: usize,
    into: &'a mut WordBuffer,
) -> &'a [u8] {
    let len = len.min(BUFFER_LEN);
    let words = len.next_multiple_of(8);
    if let Some(from) = region.words().slice(part(buffer, words).start, words) {
        from.copy_out(into.prepare(words));
    }
    &into.bytes()[..len]
}

/// Writes into a buffer.
#[inline]
pub(crate) fn write(words: SharedWords<'_>, buffer: u32, bytes: &[u8]) {
    let whole = part(buffer, BUFFER_LEN);
    if let Some(words) = words.slice(whole.start, BUFFER_LEN) {
        words.copy_in_bytes(0, bytes);
    }
}
