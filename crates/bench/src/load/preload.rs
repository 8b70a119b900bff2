//! Writes a corpus before it is measured.

use std::ops::Range;

use super::{KeyCodec, LoadError, RunShared, ValueLen, ValueWriter, mix64};
use crate::target::{Item, Target};

const CHUNK_LEN_MAX: usize = 64;
/// Chunks of large values hold fewer of them.
const CHUNK_BYTES_MAX: usize = 4 << 20;

/// Writes every key of `keys` once and notes it as acknowledged. `progress` is
/// told how many are written.
pub fn preload<T: Target>(
    target: &mut T,
    codec: KeyCodec,
    keys: Range<u64>,
    value_len: ValueLen,
    shared: &RunShared,
    progress: &mut dyn FnMut(u64),
) -> Result<(), LoadError> {
    let chunk_len = (CHUNK_BYTES_MAX / value_len.max().max(1)).clamp(1, CHUNK_LEN_MAX);
    let mut writer = ValueWriter::new(value_len.max());
    let mut arena: Vec<(Vec<u8>, Vec<u8>)> = vec![(codec.buffer(), Vec::new()); chunk_len];
    let sequence = shared.sequence_base();
    let mut start = keys.start;
    while start < keys.end {
        let end = keys.end.min(start + chunk_len as u64);
        for (key, (spelled, value)) in (start..end).zip(&mut arena) {
            codec.encode(key, spelled);
            value.clear();
            value.extend_from_slice(writer.compose(key, sequence, len_of(key, value_len)));
        }
        let items: Vec<Item<'_>> = arena[..(end - start) as usize]
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_slice()))
            .collect();
        target
            .set_many(&items)
            .map_err(|source| LoadError::Preload { key: start, source })?;
        for key in start..end {
            shared.acknowledge(key, sequence);
        }
        progress(end - keys.start);
        start = end;
    }
    Ok(())
}

/// A length that depends on the key alone, so that loading twice gives the same
/// corpus.
fn len_of(key: u64, value_len: ValueLen) -> usize {
    match value_len {
        ValueLen::Fixed(len) => len,
        ValueLen::Uniform { min, max } => {
            min + (mix64(key) % (max.saturating_sub(min) as u64 + 1)) as usize
        }
    }
}
