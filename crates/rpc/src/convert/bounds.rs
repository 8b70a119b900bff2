//! Bounds of keys as words: four for each key.

use super::ContractError;
use trefoil_layout::{KeyHash, Version};

/// Words of one bound.
const WORDS: usize = 4;

/// Appends one.
pub fn encode_bound(words: &mut Vec<u64>, hash: KeyHash, version: Version) {
    words.extend([hash.place, hash.tag, version.time_ns, version.origin]);
}

/// All of a message.
pub fn decode_bounds(
    words: &[u64],
) -> Result<impl ExactSizeIterator<Item = (KeyHash, Version)>, ContractError> {
    let (bounds, rest) = words.as_chunks::<WORDS>();
    if !rest.is_empty() || bounds.iter().any(|bound| bound[1] == 0) {
        return Err(ContractError::OutOfRange {
            field: "bounds",
            found: words.len() as u64,
            why: "not four words for each key, with a tag that is not 0",
        });
    }
    Ok(bounds.iter().map(|&[place, tag, time_ns, origin]| {
        (KeyHash { place, tag }, Version { time_ns, origin })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_come_back_and_others_are_refused() {
        let bounds = [
            (KeyHash { place: 1, tag: 2 }, Version::new(3, 4, 5)),
            (KeyHash { place: 0, tag: 9 }, Version::ZERO),
        ];
        let mut words = Vec::new();
        for (hash, version) in bounds {
            encode_bound(&mut words, hash, version);
        }
        let decoded = decode_bounds(&words).unwrap();
        assert_eq!(decoded.collect::<Vec<_>>(), bounds);
        assert_eq!(decode_bounds(&[]).unwrap().len(), 0);
        assert!(decode_bounds(&words[..7]).is_err());
        assert!(decode_bounds(&[1, 0, 3, 4]).is_err(), "no key has tag 0");
    }
}
