//! What payloads hold.
//!
//! From the client, requests:
//!
//! | offset | bytes | request (56) | why |
//! |---|---|---|---|
//! | 0 | 4 | attempt | counts from 1; repeated by the pieces of its answer |
//! | 4 | 2 | datagram length | the longest that its answer may come in; 0 is [`DATAGRAM_LEN_USUAL`], as engines of earlier releases have it, which know nothing else |
//! | 6 | 2 | reserved, zero | |
//! | 8 | 48 | the request | as in a stream ([`crate::wire::ask`]) |
//!
//! or a probe, which engines of earlier releases take for a request that is malformed:
//!
//! | offset | bytes | probe | why |
//! |---|---|---|---|
//! | 0 | 4 | zero | no attempt |
//! | 4 | 4 | 0xffffffff | no length |
//! | 8 | 8 | number | repeated by the answer |
//! | 16 | … | zeros | as many as make the datagram as long as is tried |
//!
//! From the engine, pieces of answers, each behind the other:
//!
//! | offset | bytes | head of a piece (24) | why |
//! |---|---|---|---|
//! | 0 | 8 | id | of the request |
//! | 8 | 4 | attempt | the request's: pieces of two looks do not fit together |
//! | 12 | 4 | total length | of the answer with its data |
//! | 16 | 4 | offset | of these bytes in it |
//! | 20 | 4 | length | of these bytes |
//!
//! or the answer to a probe, as long as that was:
//!
//! | offset | bytes | answer to a probe | why |
//! |---|---|---|---|
//! | 0 | 8 | number | the probe's |
//! | 8 | 4 | 0xffffffff | no attempt |
//! | 12 | … | zeros | no length |
//!
//! Everything is a multiple of 8 bytes long.

use super::{DATAGRAM_LEN_MAX, DATAGRAM_LEN_MIN, DATAGRAM_LEN_USUAL, payload_len};
use crate::limits::DATA_LEN_MAX;
use crate::wire::{ANSWER_LEN, ASK_LEN, Ask, Malformed, is_zero, put, u16_at, u32_at, u64_at};

/// Bytes of a request.
pub const REQUEST_LEN: usize = 8 + ASK_LEN;
/// Bytes of a piece's head.
pub const PIECE_HEAD_LEN: usize = 24;
/// Longest answer with its data.
pub const TOTAL_LEN_MAX: usize = ANSWER_LEN + DATA_LEN_MAX;
/// Bytes of a probe, and of its answer, before what makes them long.
pub const PROBE_LEN_MIN: usize = 16;

const NO_ATTEMPT: u32 = u32::MAX;
const NO_LEN: u32 = u32::MAX;

const _: () = {
    assert!(REQUEST_LEN.is_multiple_of(8) && PIECE_HEAD_LEN.is_multiple_of(8));
    assert!(DATAGRAM_LEN_MAX <= u16::MAX as usize);
};

/// Bytes of an answer in each piece but the last, where datagrams have this length.
pub const fn piece_len(datagram_len: usize) -> usize {
    payload_len(datagram_len) - PIECE_HEAD_LEN
}

/// A request with what datagrams need to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Which time it is asked, from 1.
    pub attempt: u32,
    /// The longest datagram that its answer may come in, in bytes.
    pub datagram_len: usize,
    /// The request.
    pub ask: Ask,
}

/// Appends a request.
pub fn encode_request(asked: &Asked, out: &mut Vec<u8>) {
    let mut head = [0; 8];
    put(&mut head, 0, asked.attempt.to_le_bytes());
    let len = match asked.datagram_len {
        DATAGRAM_LEN_USUAL => 0,
        // At most `DATAGRAM_LEN_MAX`.
        len => len as u16,
    };
    put(&mut head, 4, len.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(&asked.ask.encode());
}

/// The requests of a payload.
pub fn decode_requests(
    payload: &[u8],
) -> Result<impl Iterator<Item = Result<Asked, Malformed>>, Malformed> {
    let (items, rest) = payload.as_chunks::<REQUEST_LEN>();
    if !rest.is_empty() || items.is_empty() {
        return Err(Malformed("not a payload of requests"));
    }
    Ok(items.iter().map(|item| {
        let (head, ask) = item.split_at(8);
        let mut bytes = [0; ASK_LEN];
        bytes.copy_from_slice(ask);
        let datagram_len = match usize::from(u16_at(head, 4)) {
            0 => DATAGRAM_LEN_USUAL,
            len @ DATAGRAM_LEN_MIN..=DATAGRAM_LEN_MAX => len,
            _ => return Err(Malformed("datagrams of this length do not exist")),
        };
        if !is_zero(&head[6..]) {
            return Err(Malformed("reserved bytes of a request are in use"));
        }
        Ok(Asked {
            attempt: u32_at(head, 0),
            datagram_len,
            ask: Ask::decode(&bytes)?,
        })
    }))
}

/// Writes a probe of this length into a payload.
pub fn encode_probe(number: u64, len: usize, out: &mut Vec<u8>) {
    out.clear();
    out.resize(len.max(PROBE_LEN_MIN), 0);
    put(out, 4, NO_LEN.to_le_bytes());
    put(out, 8, number.to_le_bytes());
}

/// The number of the probe that this payload is; `None` if it is none.
pub fn decode_probe(payload: &[u8]) -> Option<u64> {
    let is_probe = payload.len() >= PROBE_LEN_MIN
        && u32_at(payload, 0) == 0
        && u32_at(payload, 4) == NO_LEN
        && is_zero(&payload[PROBE_LEN_MIN..]);
    is_probe.then(|| u64_at(payload, 8))
}

/// Writes the answer to a probe of this length into a payload.
pub fn encode_probe_answer(number: u64, len: usize, out: &mut Vec<u8>) {
    out.clear();
    out.resize(len.max(PROBE_LEN_MIN), 0);
    put(out, 0, number.to_le_bytes());
    put(out, 8, NO_ATTEMPT.to_le_bytes());
}

/// The number of the probe that this payload answers; `None` if it holds something else.
pub fn decode_probe_answer(payload: &[u8]) -> Option<u64> {
    let is_answer = payload.len() >= PROBE_LEN_MIN
        && u32_at(payload, 8) == NO_ATTEMPT
        && is_zero(&payload[12..]);
    is_answer.then(|| u64_at(payload, 0))
}

/// A piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Of the request.
    pub id: u64,
    /// Of the request.
    pub attempt: u32,
    /// Of the whole answer.
    pub total_len: usize,
    /// In the whole answer.
    pub offset: usize,
    /// The bytes there.
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut head = [0; PIECE_HEAD_LEN];
        put(&mut head, 0, self.id.to_le_bytes());
        put(&mut head, 8, self.attempt.to_le_bytes());
        // All of them are below `TOTAL_LEN_MAX`.
        put(&mut head, 12, (self.total_len as u32).to_le_bytes());
        put(&mut head, 16, (self.offset as u32).to_le_bytes());
        put(&mut head, 20, (self.bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(self.bytes);
    }

    /// Judges the piece at the beginning of `bytes`; and what follows it.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let wrong = Malformed("not a piece of an answer");
        let (head, rest) = bytes.split_at_checked(PIECE_HEAD_LEN).ok_or(wrong)?;
        let (total_len, offset) = (u32_at(head, 12) as usize, u32_at(head, 16) as usize);
        let len = u32_at(head, 20) as usize;
        let is_sound = (ANSWER_LEN..=TOTAL_LEN_MAX).contains(&total_len)
            && total_len.is_multiple_of(8)
            && offset < total_len
            && offset.is_multiple_of(8)
            && (1..=total_len - offset).contains(&len)
            && len.is_multiple_of(8);
        if !is_sound {
            return Err(wrong);
        }
        let (bytes, rest) = rest.split_at_checked(len).ok_or(wrong)?;
        let piece = Piece {
            id: u64_at(head, 0),
            attempt: u32_at(head, 8),
            total_len,
            offset,
            bytes,
        };
        Ok((piece, rest))
    }
}
