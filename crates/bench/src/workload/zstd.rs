//! Reads zstd: one frame after another, each against its checksum.

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, Read};

/// What a frame begins with.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// The bytes that a compressed input stands for. Tools that compress in
/// parallel write several frames, and frames that are to be skipped.
pub(super) struct ZstdReader<R: BufRead> {
    input: R,
    decoder: FrameDecoder,
    is_inside: bool,
}

impl<R: BufRead> ZstdReader<R> {
    pub(super) fn new(input: R) -> Self {
        ZstdReader {
            input,
            decoder: FrameDecoder::new(),
            is_inside: false,
        }
    }

    /// Goes into the next frame; false if there is none.
    fn enter(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.input) {
                Ok(()) => {
                    self.is_inside = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.input.by_ref().take(length.into());
                    if io::copy(&mut skipped, &mut io::sink())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    /// Leaves a frame whose bytes have all been read.
    fn leave(&mut self) -> io::Result<()> {
        let expected = self.decoder.get_checksum_from_data();
        if expected.is_some() && expected != self.decoder.get_calculated_checksum() {
            return Err(io::Error::other(
                "the file is damaged: a checksum of its compression differs",
            ));
        }
        self.is_inside = false;
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.is_inside || self.enter()? {
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
            }
            match self.decoder.read(buffer)? {
                0 => self.leave()?,
                len => return Ok(len),
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn frame(plain: &[u8]) -> Vec<u8> {
        compress_to_vec(plain, CompressionLevel::Fastest)
    }

    fn read(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        ZstdReader::new(packed).read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn frames_follow_one_another_and_some_are_skipped() {
        let long = vec![7; 300_000];
        let skipped = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let packed = [frame(b"first"), skipped.clone(), frame(&long), skipped].concat();
        assert_eq!(read(&packed).unwrap(), [&b"first"[..], &long].concat());
        assert_eq!(read(b"").unwrap(), b"");
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_an_error() {
        let whole = frame(b"a text that is long enough to be damaged somewhere");
        for len in 1..whole.len() {
            assert!(read(&whole[..len]).is_err(), "{len} bytes");
        }
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert!(read(&damaged).unwrap_err().to_string().contains("damaged"));
        assert!(read(&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, b'a']).is_err());
    }
}
