//! SHA-1 (FIPS 180-4), by which Redis names scripts. For nothing that has to be secret.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA1_OUTPUT_LEN};

/// The digest.
pub(super) type Digest = [u8; SHA1_OUTPUT_LEN];

/// Of these bytes.
pub(super) fn sha1(bytes: &[u8]) -> Digest {
    let digest = ring::digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes);
    let mut own = [0; SHA1_OUTPUT_LEN];
    own.copy_from_slice(digest.as_ref());
    own
}

/// As people and protocols write it.
pub(super) fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is written so, in letters of any size.
pub(super) fn from_hex(text: &[u8]) -> Option<Digest> {
    let mut digest = [0; SHA1_OUTPUT_LEN];
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() == 2 * SHA1_OUTPUT_LEN)?;
    for (at, byte) in digest.iter_mut().enumerate() {
        let pair = text.get(2 * at..2 * at + 2)?;
        if !pair.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_the_standard() {
        let cases = [
            (b"".to_vec(), "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            (b"abc".to_vec(), "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq".to_vec(),
                "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
            ),
            (
                vec![b'a'; 1_000_000],
                "34aa973cd4c4daa4f61eeb2bdbad27316534016f",
            ),
        ];
        for (bytes, expected) in cases {
            let digest = sha1(&bytes);
            assert_eq!(hex(&digest), expected);
            assert_eq!(from_hex(expected.to_uppercase().as_bytes()), Some(digest));
        }
        for text in ["", "x", "+a39a3ee5e6b4b0d3255bfef95601890afd80709"] {
            assert_eq!(from_hex(text.as_bytes()), None, "{text}");
        }
    }
}
