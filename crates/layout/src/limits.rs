//! Bounds that both sides of the shared memory rely on, on one page.

/// Number of this description of the bytes. A reader refuses any other.
pub const LAYOUT_VERSION: u8 = 3;

/// Offsets and lengths of data entries count in granules of this many bytes.
pub const GRANULE: usize = 8;

/// Longest key, in bytes. Stored as length - 1 in 16 bits; an empty key is refused.
pub const KEY_LEN_MAX: usize = 64 * 1024;

/// Longest value that a cell accepts unless it is configured otherwise, in bytes.
pub const VALUE_LEN_MAX_DEFAULT: usize = 16 * 1024 * 1024;

/// Longest value that any configuration can allow: bounded by the 25 bits of
/// the data entry's value length.
pub const VALUE_LEN_LIMIT: usize = (1 << 25) - 1 - KEY_LEN_MAX - 64;

/// Bits of a pointer's offset and length, in granules.
pub const POINTER_OFFSET_BITS: u32 = 41;
/// See [`POINTER_OFFSET_BITS`].
pub const POINTER_LEN_BITS: u32 = 22;

/// Bytes of the data region that a pointer can reach (16 TiB).
pub const DATA_REGION_LEN_MAX: u64 = (1 << POINTER_OFFSET_BITS) * GRANULE as u64;

/// How far behind its home bucket an entry may stand, in buckets. Chosen by
/// simulation: with three neighbours a load factor of 0.75 leaves 0.004 %
/// of the entries to the side table, with none 2.3 %.
pub const SPILL_MAX: usize = 3;

/// Partitions of one backend.
pub const PARTITION_COUNT_MAX: usize = 64;

/// How far a version may run ahead of a backend's clock, in nanoseconds.
/// Further, and one wrong clock would drag every floor with it.
pub const CLOCK_AHEAD_NS_MAX: u64 = 10_000_000_000;

/// A floor or bound that somebody tells of lies at most this far ahead of the clock of
/// whoever hears of it: as far as versions may, and a second for the message's way.
pub const FLOOR_AHEAD_NS_MAX: u64 = CLOCK_AHEAD_NS_MAX + 1_000_000_000;

const _: () = {
    assert!(VALUE_LEN_MAX_DEFAULT <= VALUE_LEN_LIMIT);
    // The largest entry fits a pointer's length.
    assert!(
        crate::data::encoded_len_max(KEY_LEN_MAX, VALUE_LEN_LIMIT)
            <= ((1 << POINTER_LEN_BITS) - 1) * GRANULE
    );
    assert!(KEY_LEN_MAX - 1 <= u16::MAX as usize);
};
