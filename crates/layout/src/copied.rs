//! Copies of long values.
//!
//! From some length on the C library copies by `rep movsb`. On AMD's processors since
//! Zen 3 that is ten times slower than any other way (0.3 ms for a megabyte) if the copy
//! lies one to fifteen bytes further in its cache line than the original, and where a
//! value begins in an answer is chance. So long values are copied in pieces that are
//! below that length in every build of the library.

/// Longest piece; the C library's own bound is 2,048 bytes or more.
const PIECE_LEN: usize = 1024;

/// Appends `bytes` to `out`.
#[inline]
pub fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len());
    for piece in bytes.chunks(PIECE_LEN) {
        out.extend_from_slice(piece);
    }
}

/// Copies `bytes` over `out`, which is as long.
///
/// # Panics
/// If it is not.
#[inline]
pub fn fill(out: &mut [u8], bytes: &[u8]) {
    assert_eq!(out.len(), bytes.len());
    for (to, from) in out.chunks_mut(PIECE_LEN).zip(bytes.chunks(PIECE_LEN)) {
        to.copy_from_slice(from);
    }
}

/// A copy of `bytes`, with no memory beyond them.
#[inline]
pub fn owned(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    append(&mut out, bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_all_lengths_are_whole() {
        let all: Vec<u8> = (0..5_000_u32).map(|at| (at * 7 + at / 256) as u8).collect();
        for len in [0, 1, 1_023, 1_024, 1_025, 2_048, 2_049, 4_999] {
            let bytes = &all[..len];
            assert_eq!(owned(bytes), bytes);
            for before in [0, 1, 8] {
                let mut out = vec![9; before];
                append(&mut out, bytes);
                assert!(out[..before].iter().all(|byte| *byte == 9));
                assert_eq!(&out[before..], bytes);
                out[before..].fill(0);
                fill(&mut out[before..], bytes);
                assert_eq!(&out[before..], bytes);
            }
        }
    }
}
