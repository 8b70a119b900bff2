//! Messages between an initiator and a backend, as they travel in rings and
//! in a software NIC's frames.
//!
//! Every message begins with 16 bytes; all numbers are little endian; bytes
//! not named are reserved and zero, and a parser refuses them otherwise, so
//! that they can get a meaning later. A message's length is known from what
//! carries it and has to match exactly.
//!
//! | offset | bytes | head | why |
//! |---|---|---|---|
//! | 0 | 8 | request id | chosen by the initiator, repeated by the answer |
//! | 8 | 1 | kind | 1 mutate, 2 lookup, 3 touch, 4 ping, 5 use; 129 ack, 130 lookup answer, 131 pong, 132 error, 133 use answer |
//! | 9 | 3 | by kind | the tables of the private modules `request` and `answer` |
//! | 12 | 4 | of a request: config id; of an answer: by kind | the configuration that the client chose this backend by; the life is the connection's. 0 where it does not matter: touches and pings |
//!
//! Parsing judges the form only. Whether a key is empty, an expiry in range
//! or a slot inside its window is for the store, whatever door the operation
//! came through.

mod answer;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{
    ACK_LEN, Answer, ErrorCode, LOOKUP_ANSWER_HEAD_LEN, USE_ANSWER_LEN, parse_answer,
};
pub use request::{
    MUTATE_HEAD_LEN, Request, RequestHead, Slots, TOUCH_COUNT_MAX, TOUCH_HEAD_LEN, parse_request,
};

use crate::op::Rejection;
use crate::version::Version;

/// Bytes that every message begins with.
pub const HEAD_LEN: usize = 16;

/// Longest message, in bytes: a value of 64 KiB with an ordinary key and all
/// heads. What is longer travels by RPC.
pub const MESSAGE_LEN_MAX: usize = 68 * 1024;

const AT_ID: usize = 0;
const AT_KIND: usize = 8;
const AT_DETAIL: usize = 9;
const AT_REJECTION: usize = 10;
const AT_CONFIG_ID: usize = 12;

const _: () = assert!(AT_KIND == AT_ID + 8 && AT_DETAIL == AT_KIND + 1 && AT_DETAIL < HEAD_LEN);
const _: () = assert!(AT_CONFIG_ID == AT_DETAIL + 3 && AT_CONFIG_ID + 4 == HEAD_LEN);

/// Message kinds, by their number on the wire.
mod kind {
    pub(super) const MUTATE: u8 = 1;
    pub(super) const LOOKUP: u8 = 2;
    pub(super) const TOUCH: u8 = 3;
    pub(super) const PING: u8 = 4;
    pub(super) const USE: u8 = 5;
    pub(super) const ACK: u8 = 129;
    pub(super) const LOOKUP_ANSWER: u8 = 130;
    pub(super) const PONG: u8 = 131;
    pub(super) const ERROR: u8 = 132;
    pub(super) const USE_ANSWER: u8 = 133;
}

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Shorter or longer than its fields say.
    #[error("the message's length does not match its fields")]
    Length,
    /// A kind, action, outcome or code without meaning, or a reserved byte that is not zero.
    #[error("byte {offset} of the message has no meaning here")]
    Field {
        /// Offset of the field in the message.
        offset: usize,
    },
}

/// The request id of a message, whatever else is wrong with it.
pub fn request_id(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.first_chunk::<8>()?))
}

fn exact(found: usize, said: u32) -> Result<(), MessageError> {
    if found == said as usize {
        Ok(())
    } else {
        Err(MessageError::Length)
    }
}

/// The fixed part of a message, known to be complete.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8], len: usize) -> Result<Self, MessageError> {
        Ok(Fields(bytes.get(..len).ok_or(MessageError::Length)?))
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    fn version(&self, at: usize) -> Version {
        Version {
            time_ns: self.u64(at),
            origin: self.u64(at + 8),
        }
    }

    fn rejection(&self) -> Result<Rejection, MessageError> {
        Rejection::from_number(self.0[AT_REJECTION]).ok_or(MessageError::Field {
            offset: AT_REJECTION,
        })
    }

    fn zero(&self, at: usize, len: usize) -> Result<(), MessageError> {
        match self.0[at..at + len].iter().position(|b| *b != 0) {
            None => Ok(()),
            Some(within) => Err(MessageError::Field {
                offset: at + within,
            }),
        }
    }
}

fn put_head(out: &mut [u8], len: usize, id: u64, kind: u8) {
    out[..len].fill(0);
    put_u64(out, AT_ID, id);
    out[AT_KIND] = kind;
}

fn put_u32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put_version(out: &mut [u8], at: usize, version: Version) {
    put_u64(out, at, version.time_ns);
    put_u64(out, at + 8, version.origin);
}
