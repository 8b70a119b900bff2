//! SHA-1 (FIPS 180-4), by which Redis names scripts. For nothing that has to be secret.

/// The digest.
pub(super) type Digest = [u8; 20];

/// Of these bytes.
pub(super) fn sha1(bytes: &[u8]) -> Digest {
    let mut state = [
        0x6745_2301u32,
        0xefcd_ab89,
        0x98ba_dcfe,
        0x1032_5476,
        0xc3d2_e1f0,
    ];
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(64) - 8, 0);
    padded.extend_from_slice(&(bytes.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        mix(&mut state, block);
    }
    let mut digest = [0; 20];
    for (out, word) in digest.chunks_exact_mut(4).zip(state) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn mix(state: &mut [u32; 5], block: &[u8]) {
    let mut words = [0u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes
            .iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    for at in 16..80 {
        let mixed = words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16];
        words[at] = mixed.rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (at, word) in words.iter().enumerate() {
        let (f, k) = match at {
            0..20 => ((b & c) | (!b & d), 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6u32),
        };
        let next = a
            .rotate_left(5)
            .wrapping_add(f)
            .wrapping_add(e)
            .wrapping_add(k)
            .wrapping_add(*word);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
    }
    for (sum, add) in state.iter_mut().zip([a, b, c, d, e]) {
        *sum = sum.wrapping_add(add);
    }
}

/// As people and protocols write it.
pub(super) fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is written so, in letters of any size.
pub(super) fn from_hex(text: &[u8]) -> Option<Digest> {
    let mut digest = [0; 20];
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() == 40)?;
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
