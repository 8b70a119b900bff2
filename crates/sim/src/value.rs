//! Values that say which key and version they belong to, so that any value in
//! a wrong place shows.

use crate::rng::mix;
use trefoil_layout::Version;

const WORDS: usize = 3;

/// The value of `key` at `version`: both, then a pattern that depends on both.
/// Its length depends on the version, up to `len_max` beyond the first words.
pub(crate) fn write(key: usize, version: Version, len_max: usize, out: &mut Vec<u8>) {
    out.clear();
    for word in [key as u64, version.time_ns, version.origin] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let seed = seed(key, version);
    let len = WORDS * 8 + (seed % (len_max as u64 + 1)) as usize;
    let mut word = seed;
    while out.len() < len {
        word = mix(word);
        let take = (len - out.len()).min(8);
        out.extend_from_slice(&word.to_le_bytes()[..take]);
    }
}

/// Whether `value` is exactly what [`write`] made.
pub(crate) fn is_right(key: usize, version: Version, value: &[u8]) -> bool {
    let Some((head, mut rest)) = value.split_at_checked(WORDS * 8) else {
        return false;
    };
    let words = [key as u64, version.time_ns, version.origin];
    if !head
        .chunks_exact(8)
        .zip(words)
        .all(|(bytes, word)| bytes == word.to_le_bytes())
    {
        return false;
    }
    let mut word = seed(key, version);
    while !rest.is_empty() {
        word = mix(word);
        let (now, later) = rest.split_at(rest.len().min(8));
        if now != &word.to_le_bytes()[..now.len()] {
            return false;
        }
        rest = later;
    }
    true
}

/// What a wrong value claims to be, for the report.
pub(crate) fn describe(value: &[u8]) -> String {
    let word = |i: usize| -> Option<u64> {
        Some(u64::from_le_bytes(
            value.get(i * 8..i * 8 + 8)?.try_into().ok()?,
        ))
    };
    match (word(0), word(1), word(2)) {
        (Some(key), Some(time_ns), Some(origin)) => {
            let version = Version { time_ns, origin };
            format!(
                "{} bytes that begin as key {key}'s value at {version:?}",
                value.len()
            )
        }
        _ => format!("{} bytes", value.len()),
    }
}

fn seed(key: usize, version: Version) -> u64 {
    mix(version.time_ns ^ mix(version.origin ^ (key as u64) << 56))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_shows() {
        let version = Version::new(77, 3, 4);
        let mut value = Vec::new();
        for len_max in [0, 5, 300] {
            write(2, version, len_max, &mut value);
            assert!(is_right(2, version, &value));
            assert!(!is_right(1, version, &value));
            assert!(!is_right(2, Version::new(77, 3, 5), &value));
            for at in 0..value.len() {
                value[at] ^= 1;
                assert!(!is_right(2, version, &value));
                value[at] ^= 1;
            }
        }
        assert!(!is_right(2, version, b"short"));
    }
}
