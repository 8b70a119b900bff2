//! Which versions of keys a replica holds, as words: four for each key.

use super::ContractError;
use trefoil_layout::{KeyHash, Version};

/// Words of one.
const WORDS: usize = 4;

/// As a message has them.
pub fn encode_held(held: &[(KeyHash, Version)]) -> Vec<u64> {
    let words = |(hash, version): &(KeyHash, Version)| {
        [hash.place, hash.tag, version.time_ns, version.origin]
    };
    held.iter().flat_map(words).collect()
}

/// All of a message.
pub fn decode_held(words: &[u64]) -> Result<Vec<(KeyHash, Version)>, ContractError> {
    let (held, rest) = words.as_chunks::<WORDS>();
    if !rest.is_empty() || held.iter().any(|one| one[1] == 0) {
        return Err(ContractError::OutOfRange {
            field: "held",
            found: words.len() as u64,
            why: "not four words for each key, with a tag that is not 0",
        });
    }
    let one = |&[place, tag, time_ns, origin]: &[u64; WORDS]| {
        (KeyHash { place, tag }, Version { time_ns, origin })
    };
    Ok(held.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_back_and_nonsense_is_refused() {
        let held = [
            (KeyHash { place: 1, tag: 2 }, Version::new(3, 4, 5)),
            (KeyHash { place: 0, tag: 9 }, Version::ZERO),
        ];
        let words = encode_held(&held);
        assert_eq!(decode_held(&words).unwrap(), held);
        assert_eq!(decode_held(&[]), Ok(vec![]));
        assert!(decode_held(&words[..7]).is_err());
        assert!(decode_held(&[1, 0, 3, 4]).is_err(), "no key has tag 0");
    }
}
