//! Judging the bytes that an index entry pointed at.

use crate::mutants::{self, Mutant};
use trefoil_layout::data::{DataEntry, DataError};
use trefoil_layout::{Pointer, Version};

/// What a data entry is checked against, besides its tag and version.
#[derive(Clone, Copy, Debug)]
pub struct DataCheck<'k> {
    /// The full key that is wanted.
    pub key: &'k [u8],
    /// Milliseconds since the Unix epoch. One reading may serve a whole GET.
    pub now_ms: u64,
    /// Entries at or below this version were flushed.
    pub flush_floor: Version,
}

/// What a data read turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataVerdict<'a> {
    /// The wanted entry, sound and valid.
    Hit(DataEntry<'a>),
    /// A concurrent mutation or relocation: read the index again.
    Torn,
    /// A sound entry of another key with the same tag: the wanted key is absent.
    OtherKey,
    /// The wanted entry, sound, but past its expiry.
    Expired,
    /// The wanted entry, sound, but flushed.
    Flushed,
}

/// Whether `pointer` lies inside a data window of `window_len` bytes: to be
/// asked before anything is read through it. If not, the window is refreshed
/// ([`crate::get::Get::handle_out_of_window`]).
#[inline(always)]
pub const fn pointer_in_window(pointer: Pointer, window_len: u64) -> bool {
    !pointer.is_empty() && pointer.offset() + pointer.len() as u64 <= window_len
}

/// Judges a private copy of what an index entry with `tag` and `version`
/// pointed at.
#[inline(always)]
pub fn judge<'a>(
    bytes: &'a [u8],
    tag: u64,
    version: Version,
    check: &DataCheck<'_>,
) -> DataVerdict<'a> {
    let entry = match validate(bytes, tag, version, check.key) {
        Ok(entry) => entry,
        Err(DataError::Torn) => return DataVerdict::Torn,
        Err(DataError::OtherKey) => return DataVerdict::OtherKey,
    };
    if version <= check.flush_floor {
        return DataVerdict::Flushed;
    }
    if entry.is_expired(check.now_ms) {
        return DataVerdict::Expired;
    }
    DataVerdict::Hit(entry)
}

#[inline(always)]
fn validate<'a>(
    bytes: &'a [u8],
    tag: u64,
    version: Version,
    key: &[u8],
) -> Result<DataEntry<'a>, DataError> {
    if mutants::is_on(Mutant::ChecksumIgnored) {
        return match DataEntry::decode(bytes) {
            Some(entry) if entry.key == key => Ok(entry),
            Some(_) => Err(DataError::OtherKey),
            None => Err(DataError::Torn),
        };
    }
    DataEntry::validate(bytes, tag, version, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let version = Version::new(100, 1, 1);
        let entry = DataEntry {
            expiry_ms: 50,
            key: b"k",
            value: b"v",
            ..DataEntry::default()
        };
        let mut bytes = vec![0; entry.encoded_len() + 3];
        entry.encode(&mut bytes, 9, version);
        let check = DataCheck {
            key: b"k",
            now_ms: 49,
            flush_floor: Version::ZERO,
        };
        assert_eq!(judge(&bytes, 9, version, &check), DataVerdict::Hit(entry));
        let expired = DataCheck {
            now_ms: 50,
            ..check
        };
        assert_eq!(judge(&bytes, 9, version, &expired), DataVerdict::Expired);
        let flushed = DataCheck {
            flush_floor: version,
            ..expired
        };
        assert_eq!(judge(&bytes, 9, version, &flushed), DataVerdict::Flushed);
        let other = DataCheck {
            key: b"other",
            ..check
        };
        assert_eq!(judge(&bytes, 9, version, &other), DataVerdict::OtherKey);
        assert_eq!(judge(&bytes, 8, version, &check), DataVerdict::Torn);
        assert_eq!(judge(&[], 9, version, &check), DataVerdict::Torn);
    }

    #[test]
    fn pointers_stay_inside_the_window() {
        let pointer = Pointer::new(64, 32).unwrap();
        assert!(pointer_in_window(pointer, 96));
        assert!(!pointer_in_window(pointer, 95));
        assert!(!pointer_in_window(Pointer(0), 96));
        assert!(!pointer_in_window(Pointer(u64::MAX), u64::MAX >> 1 >> 20));
    }
}
