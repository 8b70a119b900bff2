//! Messages for a backend's rings, and what came of them. A message is one of
//! [`trefoil_layout::message`], as it travels in rings; the engine puts it into the ring that it
//! has with the backend, under an id of its own, and hands the answer back.
//!
//! | offset | bytes | MESSAGE (16, then the message) | why |
//! |---|---|---|---|
//! | 0 | 4 | handle | of the backend, from its OPENED |
//! | 4 | 4 | length | of the message |
//! | 8 | 4 | solicited | longest answer that the client takes; no acknowledgement is longer than the least |
//! | 12 | 4 | reserved, zero | |
//! | 16 | | message, then zeros to a multiple of 8 | its head has the id, which no other message of the session has that is under way |
//!
//! | offset | bytes | MESSAGED (24, then the answer) | why |
//! |---|---|---|---|
//! | 0 | 8 | id | the message's |
//! | 8 | 1 | status | 0: the answer follows; else see [`MessageStatus`] |
//! | 9 | 3 | reserved, zero | |
//! | 12 | 4 | length | of the answer; 0 if none follows |
//! | 16 | 8 | reserved, zero | |
//! | 24 | | answer, then zeros to a multiple of 8 | its head has that id, too |
//!
//! Each MESSAGE is answered by one MESSAGED, in any order. An engine that takes them says so
//! by its counter `message_frames` ([`super::counters`]), which is the version of these frames:
//! one of an earlier release does not count it, and is sent none. What a client may have under
//! way is in [`crate::limits`]; who has more does not keep to the protocol.

use super::{HEAD_LEN, Head, Kind, Malformed, is_zero, put, u32_at, u64_at};
use trefoil_layout::message::{ACK_LEN, MESSAGE_LEN_MAX, Request, RequestHead, request_id};

const AT_LEN: usize = 4;
const AT_SOLICITED: usize = 8;
const AT_RESERVED: usize = 12;
/// Bytes of a MESSAGE before the message.
pub const MESSAGE_HEAD_LEN: usize = 16;

const AT_STATUS: usize = 8;
const AT_GAP: usize = 9;
const AT_ANSWER_LEN: usize = 12;
const AT_ANSWER_RESERVED: usize = 16;
/// Bytes of a MESSAGED before the answer.
pub const MESSAGED_HEAD_LEN: usize = 24;

const _: () = {
    assert!(AT_SOLICITED == AT_LEN + 4 && AT_RESERVED == AT_SOLICITED + 4);
    assert!(AT_RESERVED + 4 == MESSAGE_HEAD_LEN && MESSAGE_HEAD_LEN.is_multiple_of(8));
    assert!(AT_GAP == AT_STATUS + 1 && AT_ANSWER_LEN == AT_GAP + 3);
    assert!(AT_ANSWER_RESERVED == AT_ANSWER_LEN + 4);
    assert!(AT_ANSWER_RESERVED + 8 == MESSAGED_HEAD_LEN && MESSAGED_HEAD_LEN.is_multiple_of(8));
};

/// Version of these frames.
pub const MESSAGE_FRAMES: u64 = 1;

/// The shortest answer that a client may solicit: every acknowledgement fits.
pub const MESSAGE_SOLICITED_MIN: u32 = ACK_LEN as u32;

/// A message on its way to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The backend's.
    pub handle: u32,
    /// Longest answer that the client takes.
    pub solicited: u32,
    /// Names it; in its bytes, too.
    pub id: u64,
    /// The message, with its head. Nobody has judged it.
    pub bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// Appends the frame of a request. It is no longer than a ring carries.
    pub fn encode(
        (handle, solicited): (u32, u32),
        head: RequestHead,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) {
        let len = request.encoded_len();
        let padded = len.next_multiple_of(8);
        let begin = out.len() + HEAD_LEN;
        put_head(out, Kind::Message, MESSAGE_HEAD_LEN + padded);
        out.resize(begin + MESSAGE_HEAD_LEN + padded, 0);
        let body = &mut out[begin..];
        put(body, 0, handle.to_le_bytes());
        // At most `MESSAGE_LEN_MAX`.
        put(body, AT_LEN, (len as u32).to_le_bytes());
        put(body, AT_SOLICITED, solicited.to_le_bytes());
        request.encode(head, &mut body[MESSAGE_HEAD_LEN..MESSAGE_HEAD_LEN + len]);
    }

    /// Judges one.
    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let wrong = Malformed("not a MESSAGE");
        if body.len() < MESSAGE_HEAD_LEN || !is_zero(&body[AT_RESERVED..MESSAGE_HEAD_LEN]) {
            return Err(wrong);
        }
        let bytes = padded(&body[MESSAGE_HEAD_LEN..], u32_at(body, AT_LEN)).ok_or(wrong)?;
        let solicited = u32_at(body, AT_SOLICITED);
        let is_sound = (MESSAGE_SOLICITED_MIN..=MESSAGE_LEN_MAX as u32).contains(&solicited);
        match request_id(bytes) {
            Some(id) if is_sound => Ok(Message {
                handle: u32_at(body, 0),
                solicited,
                id,
                bytes,
            }),
            _ => Err(wrong),
        }
    }

    /// What it takes of a session's window for messages.
    pub fn cost(&self) -> u32 {
        cost(self.bytes.len(), self.solicited)
    }
}

/// What a message of such a length takes of a session's window: its own frame, and the longest
/// of its answer.
pub fn cost(len: usize, solicited: u32) -> u32 {
    let frames = 2 * HEAD_LEN + MESSAGE_HEAD_LEN + MESSAGED_HEAD_LEN;
    // Each is at most `MESSAGE_LEN_MAX`.
    let padded = len.next_multiple_of(8) + (solicited as usize).next_multiple_of(8);
    (frames + padded) as u32
}

/// Why a message has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum MessageStatus {
    /// The handle names no backend that serves now. It was not executed and never will be.
    #[error("the engine reaches another process by now, or none: it was not executed")]
    Gone = 1,
    /// The backend was handed it, and will not answer: it may have been executed, or may be yet.
    #[error("the backend has ended, or does not answer: it may have been executed")]
    Lost = 2,
    /// This client may not have that executed. It never will be.
    #[error("this client may only read: it was not executed")]
    NotAllowed = 3,
    /// There is no room in the backend's ring now. It was not executed and never will be.
    #[error("there is no room on the way to the backend: it was not executed")]
    Full = 4,
    /// The engine has no ring with this backend. It was not executed and never will be.
    #[error("the engine has no ring with the backend: it was not executed")]
    NoRing = 5,
    /// Not a message that this engine understands. It was not executed and never will be.
    #[error("the engine does not understand the message: run the same release on both sides")]
    Malformed = 6,
}

impl MessageStatus {
    /// Each of them.
    pub const ALL: [MessageStatus; 6] = [
        MessageStatus::Gone,
        MessageStatus::Lost,
        MessageStatus::NotAllowed,
        MessageStatus::Full,
        MessageStatus::NoRing,
        MessageStatus::Malformed,
    ];
}

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messaged<'a> {
    /// The message's.
    pub id: u64,
    /// The answer, with its head; nobody has judged it.
    pub result: Result<&'a [u8], MessageStatus>,
}

impl<'a> Messaged<'a> {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (status, answer) = match self.result {
            Ok(answer) => (0, answer),
            Err(status) => (status as u8, &[][..]),
        };
        let padded = answer.len().next_multiple_of(8);
        put_head(out, Kind::Messaged, MESSAGED_HEAD_LEN + padded);
        let mut head = [0; MESSAGED_HEAD_LEN];
        put(&mut head, 0, self.id.to_le_bytes());
        head[AT_STATUS] = status;
        // At most `MESSAGE_LEN_MAX`.
        put(
            &mut head,
            AT_ANSWER_LEN,
            (answer.len() as u32).to_le_bytes(),
        );
        out.extend_from_slice(&head);
        let begin = out.len();
        out.extend_from_slice(answer);
        out.resize(begin + padded, 0);
    }

    /// Judges one.
    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let wrong = Malformed("not a MESSAGED");
        let is_sound = body.len() >= MESSAGED_HEAD_LEN
            && is_zero(&body[AT_GAP..AT_ANSWER_LEN])
            && is_zero(&body[AT_ANSWER_RESERVED..MESSAGED_HEAD_LEN]);
        if !is_sound {
            return Err(wrong);
        }
        let id = u64_at(body, 0);
        let answer = &body[MESSAGED_HEAD_LEN..];
        let answer = padded(answer, u32_at(body, AT_ANSWER_LEN)).ok_or(wrong)?;
        let result = match body[AT_STATUS] {
            0 if request_id(answer) == Some(id) => Ok(answer),
            0 => return Err(wrong),
            number if answer.is_empty() => {
                let known = MessageStatus::ALL.into_iter();
                let status = known.into_iter().find(|of| *of as u8 == number);
                Err(status.ok_or(wrong)?)
            }
            _ => return Err(wrong),
        };
        Ok(Messaged { id, result })
    }
}

fn put_head(out: &mut Vec<u8>, kind: Kind, len: usize) {
    let head = Head {
        len,
        kind,
        count: 1,
    };
    out.extend_from_slice(&head.encode());
}

/// The text of that length, if nothing but its padding follows.
fn padded(bytes: &[u8], len: u32) -> Option<&[u8]> {
    let len = len as usize;
    let is_sound = len <= MESSAGE_LEN_MAX
        && bytes.len() == len.next_multiple_of(8)
        && is_zero(bytes.get(len..)?);
    is_sound.then(|| &bytes[..len])
}
