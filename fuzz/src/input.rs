//! Input of a connection, from a fuzzer's bytes: what seeds and dictionaries
//! look like stays what a client sends.

/// Two bytes choose, the rest is what the client sends.
///
/// | byte | meaning |
/// |---|---|
/// | 0 | bit 0: clients have to authenticate; bit 1: the target's own |
/// | 1 | bits 0 to 5: longest piece that arrives at a time; 0: all at once |
///
/// So a seed that begins with `0@` is a plain connection's, in one piece.
pub struct Input {
    /// Clients have to authenticate.
    pub authentication: bool,
    /// What the target makes of it.
    pub choice: bool,
    /// What arrives, piece by piece.
    pub pieces: Vec<Vec<u8>>,
}

impl Input {
    /// Nothing if there are less than two bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let [flags, cut, sent @ ..] = bytes else {
            return None;
        };
        Some(Input {
            authentication: flags & 1 != 0,
            choice: flags & 2 != 0,
            pieces: cut_up(sent, usize::from(cut & 0x3F)),
        })
    }
}

/// Pieces of 1 to `len_max` bytes, ever others.
fn cut_up(mut sent: &[u8], len_max: usize) -> Vec<Vec<u8>> {
    if len_max == 0 {
        return vec![sent.to_vec()];
    }
    let mut pieces = Vec::new();
    let mut dice = len_max as u64;
    while !sent.is_empty() {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let len = ((dice >> 33) as usize % len_max + 1).min(sent.len());
        let (piece, rest) = sent.split_at(len);
        pieces.push(piece.to_vec());
        sent = rest;
    }
    pieces
}
