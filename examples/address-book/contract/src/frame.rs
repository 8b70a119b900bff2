//! The contract's messages without HTTP/2: for callers next door, to whom gRPC
//! costs more than what the service does for them.
//!
//! | bytes | request | answer |
//! |---|---|---|
//! | 4 | length of what follows | the same |
//! | 4 | number, chosen by the caller | the request's |
//! | 1 | method: 1 lookup, 2 change | gRPC status code; 0 is success |
//! | rest | the message | the message, or a [`Refusal`] |
//!
//! Numbers are little-endian. Answers come in any order.

use crate::MESSAGE_LEN_MAX;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;

const LENGTH_LEN: usize = 4;
const HEAD_LEN: usize = 5;

/// A lookup, as a request's tag.
pub const LOOKUP: u8 = 1;
/// A change.
pub const CHANGE: u8 = 2;
/// Success, as an answer's tag.
pub const DONE: u8 = 0;

/// A request or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The request's number.
    pub number: u32,
    /// Method or status code.
    pub tag: u8,
    /// What comes behind.
    pub body: Bytes,
}

/// Bytes that are no frame; nothing behind them can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFrame {
    /// The length that was announced.
    pub len: usize,
}

impl std::fmt::Display for NoFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let most = HEAD_LEN + MESSAGE_LEN_MAX;
        write!(
            f,
            "a frame of {} bytes; from {HEAD_LEN} to {most} can be",
            self.len
        )
    }
}

impl std::error::Error for NoFrame {}

/// Takes the first frame off what has come, if all of it has.
pub fn take(input: &mut BytesMut) -> Result<Option<Frame>, NoFrame> {
    let Some(length) = input.first_chunk::<LENGTH_LEN>() else {
        return Ok(None);
    };
    let len = u32::from_le_bytes(*length) as usize;
    if !(HEAD_LEN..=HEAD_LEN + MESSAGE_LEN_MAX).contains(&len) {
        return Err(NoFrame { len });
    }
    if input.len() < LENGTH_LEN + len {
        input.reserve(LENGTH_LEN + len - input.len());
        return Ok(None);
    }
    input.advance(LENGTH_LEN);
    let mut body = input.split_to(len).freeze();
    let (number, tag) = (body.get_u32_le(), body.get_u8());
    Ok(Some(Frame { number, tag, body }))
}

/// A frame around a message.
pub fn wrap(number: u32, tag: u8, message: &impl Message) -> BytesMut {
    let len = message.encoded_len();
    let mut frame = begin(number, tag, len);
    // There is room for exactly that.
    message.encode_raw(&mut frame);
    frame
}

/// A frame around bytes.
pub fn wrap_bytes(number: u32, tag: u8, body: &[u8]) -> BytesMut {
    let mut frame = begin(number, tag, body.len());
    frame.put_slice(body);
    frame
}

fn begin(number: u32, tag: u8, body_len: usize) -> BytesMut {
    let mut frame = BytesMut::with_capacity(LENGTH_LEN + HEAD_LEN + body_len);
    frame.put_u32_le((HEAD_LEN + body_len) as u32);
    frame.put_u32_le(number);
    frame.put_u8(tag);
    frame
}

/// Why a request was not done.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Refusal {
    /// For people.
    #[prost(string, tag = "1")]
    pub message: String,
    /// The server to ask instead, where one is known.
    #[prost(string, optional, tag = "2")]
    pub address: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_come_out_as_they_went_in_and_in_pieces() {
        let refusal = Refusal {
            message: "not here".into(),
            address: Some("a:1".into()),
        };
        let mut bytes = wrap(7, 10, &refusal);
        bytes.unsplit(wrap_bytes(8, LOOKUP, b""));
        let mut input = BytesMut::new();
        let mut frames = Vec::new();
        for byte in bytes {
            input.put_u8(byte);
            frames.extend(take(&mut input).unwrap());
        }
        assert_eq!((frames[0].number, frames[0].tag), (7, 10));
        assert_eq!(Refusal::decode(&frames[0].body[..]).unwrap(), refusal);
        assert_eq!((frames[1].number, frames[1].tag), (8, LOOKUP));
        assert!(frames[1].body.is_empty() && frames.len() == 2 && input.is_empty());
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_is_kept() {
        for len in [
            0,
            HEAD_LEN - 1,
            HEAD_LEN + MESSAGE_LEN_MAX + 1,
            u32::MAX as usize,
        ] {
            let mut input = BytesMut::from(&(len as u32).to_le_bytes()[..]);
            assert_eq!(take(&mut input), Err(NoFrame { len }));
            assert!(input.capacity() < 1024);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take(&mut input) {}
        }
    }
}
