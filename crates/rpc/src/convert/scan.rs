//! Keys by their hashes, and what a replica knows of them, as words: two and five for
//! each.

use super::ContractError;
use trefoil_layout::{KeyHash, Version};

const HASH_WORDS: usize = 2;
const STATE_WORDS: usize = 5;
/// Above the epoch in the first word.
const HELD: u64 = 1 << 32;
const ERASED: u64 = 1 << 33;

/// What a replica knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWords {
    /// The shard's; 0 if it gives no vote.
    pub epoch: u32,
    /// The version of its value.
    pub held: Option<Version>,
    /// Its bound.
    pub bound: Version,
    /// The bound is that of an erasure.
    pub is_erased: bool,
}

/// As a message carries them.
pub fn encode_hashes(hashes: &[KeyHash]) -> Vec<u64> {
    let words = |hash: &KeyHash| [hash.place, hash.tag];
    hashes.iter().flat_map(words).collect()
}

/// All of a message.
pub fn decode_hashes(words: &[u64]) -> Result<Vec<KeyHash>, ContractError> {
    let (hashes, rest) = words.as_chunks::<HASH_WORDS>();
    if !rest.is_empty() || hashes.iter().any(|hash| hash[1] == 0) {
        return Err(ContractError::OutOfRange {
            field: "hashes",
            found: words.len() as u64,
            why: "not two words for each key, with a tag that is not 0",
        });
    }
    let one = |&[place, tag]: &[u64; HASH_WORDS]| KeyHash { place, tag };
    Ok(hashes.iter().map(one).collect())
}

/// As a message carries them.
pub fn encode_states(states: impl Iterator<Item = StateWords>) -> Vec<u64> {
    let words = |state: StateWords| {
        let held = state.held.unwrap_or_default();
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let first = u64::from(state.epoch)
            | flag(state.held.is_some(), HELD)
            | flag(state.is_erased, ERASED);
        let bound = state.bound;
        [
            first,
            held.time_ns,
            held.origin,
            bound.time_ns,
            bound.origin,
        ]
    };
    states.flat_map(words).collect()
}

/// All of a message.
pub fn decode_states(words: &[u64]) -> Result<Vec<StateWords>, ContractError> {
    let (states, rest) = words.as_chunks::<STATE_WORDS>();
    if !rest.is_empty() {
        return Err(ContractError::OutOfRange {
            field: "states",
            found: words.len() as u64,
            why: "not five words for each key",
        });
    }
    let one = |&[first, held_time, held_origin, time_ns, origin]: &[u64; STATE_WORDS]| {
        let held = Version {
            time_ns: held_time,
            origin: held_origin,
        };
        StateWords {
            epoch: first as u32,
            held: (first & HELD != 0).then_some(held),
            bound: Version { time_ns, origin },
            is_erased: first & ERASED != 0,
        }
    };
    Ok(states.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_parts_of_them_are_refused() {
        let hashes = [KeyHash { place: 1, tag: 2 }, KeyHash { place: 0, tag: 9 }];
        let words = encode_hashes(&hashes);
        assert_eq!(decode_hashes(&words).unwrap(), hashes);
        assert!(decode_hashes(&words[..3]).is_err());
        assert!(decode_hashes(&[1, 0]).is_err(), "no key has tag 0");
        let state = StateWords {
            epoch: u32::MAX,
            held: None,
            bound: Version::new(3, 4, 5),
            is_erased: true,
        };
        let states = [
            state,
            StateWords {
                held: Some(Version::ZERO),
                is_erased: false,
                ..state
            },
        ];
        let words = encode_states(states.into_iter());
        assert_eq!(decode_states(&words).unwrap(), states);
        assert!(decode_states(&words[1..]).is_err());
    }
}
