//! What payloads hold.
//!
//! From the client, requests:
//!
//! | offset | bytes | request (56) | why |
//! |---|---|---|---|
//! | 0 | 4 | attempt | repeated by the pieces of its answer |
//! | 4 | 4 | reserved, zero | |
//! | 8 | 48 | the request | as in a stream ([`crate::wire::ask`]) |
//!
//! From the engine, pieces of answers, each behind the other:
//!
//! | offset | bytes | head of a piece (24) | why |
//! |---|---|---|---|
//! | 0 | 8 | id | of the request |
//! | 8 | 4 | attempt | the request's: pieces of two looks do not fit together |
//! | 12 | 4 | total length | of the answer with its data |
//! | 16 | 4 | offset | of these bytes in it: a multiple of [`PIECE_LEN`] |
//! | 20 | 4 | length | of these bytes: [`PIECE_LEN`], but for the last piece |
//!
//! Everything is a multiple of 8 bytes long.

use super::PAYLOAD_LEN_MAX;
use crate::limits::DATA_LEN_MAX;
use crate::wire::{ANSWER_LEN, ASK_LEN, Ask, Malformed, is_zero, put, u32_at, u64_at};

/// Bytes of a request.
pub const REQUEST_LEN: usize = 8 + ASK_LEN;
/// Requests in one datagram.
pub const REQUEST_COUNT_MAX: usize = PAYLOAD_LEN_MAX / REQUEST_LEN;
/// Bytes of a piece's head.
pub const PIECE_HEAD_LEN: usize = 24;
/// Bytes of an answer in every piece but the last.
pub const PIECE_LEN: usize = PAYLOAD_LEN_MAX - PIECE_HEAD_LEN;
/// Longest answer with its data.
pub const TOTAL_LEN_MAX: usize = ANSWER_LEN + DATA_LEN_MAX;
/// Pieces of the longest answer.
pub const PIECE_COUNT_MAX: usize = TOTAL_LEN_MAX.div_ceil(PIECE_LEN);

const _: () = assert!(PIECE_LEN.is_multiple_of(8) && REQUEST_LEN.is_multiple_of(8));

/// Appends a request.
pub fn encode_request(attempt: u32, ask: &Ask, out: &mut Vec<u8>) {
    let mut head = [0; 8];
    put(&mut head, 0, attempt.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(&ask.encode());
}

/// The requests of a payload, each with its attempt.
pub fn decode_requests(
    payload: &[u8],
) -> Result<impl Iterator<Item = Result<(u32, Ask), Malformed>>, Malformed> {
    let (items, rest) = payload.as_chunks::<REQUEST_LEN>();
    if !rest.is_empty() || items.is_empty() {
        return Err(Malformed("not a payload of requests"));
    }
    Ok(items.iter().map(|item| {
        let (head, ask) = item.split_at(8);
        let mut bytes = [0; ASK_LEN];
        bytes.copy_from_slice(ask);
        match is_zero(&head[4..]) {
            true => Ok((u32_at(head, 0), Ask::decode(&bytes)?)),
            false => Err(Malformed("reserved bytes of a request are in use")),
        }
    }))
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
            && offset.is_multiple_of(PIECE_LEN)
            && len == (total_len - offset).min(PIECE_LEN);
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
