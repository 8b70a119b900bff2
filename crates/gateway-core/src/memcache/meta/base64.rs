//! Base64 keys, as memcached takes them: characters outside of the alphabet
//! are skipped, and what remains must make whole groups of four.

/// Longest key that a text key of the greatest length can encode.
pub(super) const DECODED_LEN_MAX: usize = crate::memcache::KEY_LEN_MAX / 4 * 3;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn value_of(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    }))
}

/// Decodes to the front of `out`; the length, or `None` if this is no base64
/// or too long.
pub(super) fn decode(text: &[u8], out: &mut [u8; DECODED_LEN_MAX]) -> Option<usize> {
    let known = text
        .iter()
        .filter(|&&byte| value_of(byte).is_some())
        .count();
    if known == 0 || known % 4 != 0 || known / 4 * 3 > out.len() {
        return None;
    }
    let (mut group, mut count, mut padding, mut len) = (0, 0, 0, 0);
    for &byte in text {
        let Some(value) = value_of(byte) else {
            continue;
        };
        padding += usize::from(byte == b'=');
        group = group << 6 | value;
        count += 1;
        if count == 4 {
            out[len..len + 3].copy_from_slice(&u32::to_be_bytes(group)[1..]);
            len += 3;
            match padding {
                0 => {}
                1 | 2 => return Some(len - padding),
                _ => return None,
            }
            (group, count) = (0, 0);
        }
    }
    Some(len)
}

/// Appends `bytes` in base64, padded.
pub(in crate::memcache) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(word);
        for place in 0..4 {
            out.push(if place > group.len() {
                b'='
            } else {
                ALPHABET[(bits >> (18 - 6 * place)) as usize & 63]
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back() {
        for len in 1..=DECODED_LEN_MAX {
            let key: Vec<u8> = (0..len).map(|at| (at * 37 + len) as u8).collect();
            let mut text = Vec::new();
            encode(&key, &mut text);
            let mut out = [0; DECODED_LEN_MAX];
            assert_eq!(decode(&text, &mut out), Some(len));
            assert_eq!(out[..len], key);
        }
    }

    #[test]
    fn what_memcached_takes_and_refuses() {
        let cases: [(&[u8], Option<&[u8]>); 8] = [
            (b"Zm9v", Some(b"foo")),
            (b"Zm8=", Some(b"fo")),
            (b"Zg==", Some(b"f")),
            (b"Z-m-9-v", Some(b"foo")),
            (b"Zm9", None),
            (b"Z===", None),
            (b"", None),
            (b"----", None),
        ];
        for (text, expected) in cases {
            let mut out = [0; DECODED_LEN_MAX];
            let decoded = decode(text, &mut out).map(|len| &out[..len]);
            assert_eq!(decoded, expected, "{:?}", text.escape_ascii());
        }
    }
}
