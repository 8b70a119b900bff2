//! Answers.
//!
//! | offset | bytes | ack | |
//! |---|---|---|---|
//! | 9 | 1 | outcome | 1 applied, 2 superseded, 3 mismatch with a value present, 4 mismatch with none, 5 rejected |
//! | 10 | 1 | rejection | outcome 5 only |
//! | 12 | 4 | epoch | |
//! | 16 | 16 | bound | outcomes 2 to 4 |
//! | 32 | 16 | present | outcome 3 only |
//!
//! | offset | bytes | lookup answer | |
//! |---|---|---|---|
//! | 9 | 1 | found | 1 present, 2 absent, 3 rejected |
//! | 10 | 1 | rejection | 3 only |
//! | 12 | 4 | epoch | |
//! | 16 | 16 | version | 1 only |
//! | 32 | 4 | data length | 1 only |
//! | 40 | | data entry | as it lies in the data region, checksum included |
//!
//! | offset | bytes | use answer | |
//! |---|---|---|---|
//! | 9 | 1 | found | 1 present, 2 absent |
//! | 10 | 1 | hit before | 1 if the item was read since it was written |
//! | 12 | 4 | last use | seconds since the Unix epoch; 0 not known |
//! | 16 | 16 | version | 1 only |
//!
//! | offset | bytes | error | |
//! |---|---|---|---|
//! | 9 | 1 | code | see [`ErrorCode`] |

use super::{
    AT_DETAIL, AT_ID, AT_KIND, AT_REJECTION, Fields, HEAD_LEN, MessageError, exact, kind, put_head,
    put_u32, put_version,
};
use crate::copied;
use crate::op::{Ack, Found, ItemUse, LookupAnswer, Outcome};

/// Bytes of an acknowledgement.
pub const ACK_LEN: usize = 48;
/// Bytes of a lookup answer before its data.
pub const LOOKUP_ANSWER_HEAD_LEN: usize = 40;

/// Bytes of an answer about an item's use.
pub const USE_ANSWER_LEN: usize = 32;

const AT_HIT_BEFORE: usize = 10;
const AT_LAST_USE: usize = 12;
const AT_USE_VERSION: usize = 16;
const AT_EPOCH: usize = 12;
const AT_BOUND: usize = 16;
const AT_PRESENT: usize = 32;
const AT_FOUND_VERSION: usize = 16;
const AT_DATA_LEN: usize = 32;

const _: () = {
    assert!(AT_REJECTION == AT_DETAIL + 1);
    assert!(AT_EPOCH + 4 == HEAD_LEN);
    assert!(AT_BOUND == HEAD_LEN && AT_PRESENT == AT_BOUND + 16 && AT_PRESENT + 16 == ACK_LEN);
    assert!(AT_FOUND_VERSION == HEAD_LEN && AT_DATA_LEN == AT_FOUND_VERSION + 16);
    assert!(AT_DATA_LEN + 8 == LOOKUP_ANSWER_HEAD_LEN);
    assert!(AT_HIT_BEFORE == AT_DETAIL + 1 && AT_LAST_USE == AT_HIT_BEFORE + 2);
    assert!(AT_USE_VERSION == AT_LAST_USE + 4 && AT_USE_VERSION == HEAD_LEN);
    assert!(AT_USE_VERSION + 16 == USE_ANSWER_LEN);
};

/// What a backend answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer<'a> {
    /// To a mutation.
    Ack(Ack),
    /// To a lookup.
    Lookup(LookupAnswer<'a>),
    /// To a question for an item's use; nothing where there is no item or the key
    /// is not this backend's.
    Use(Option<ItemUse>),
    /// To a ping.
    Pong,
    /// The request was not executed.
    Error(ErrorCode),
}

/// Why a request was not executed, or its answer cannot be carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum ErrorCode {
    /// Not a message that this backend understands. Nothing was done.
    #[error("the backend could not parse the message: run the same release on both sides")]
    Malformed = 1,
    /// The answer is longer than a message can be: ask by RPC.
    #[error("the answer is too long for a message")]
    TooLarge = 2,
    /// The backend failed while executing; whether it took effect is unknown.
    #[error("the backend failed while executing the request")]
    Internal = 3,
}

impl ErrorCode {
    fn from_number(number: u8) -> Option<Self> {
        [
            ErrorCode::Malformed,
            ErrorCode::TooLarge,
            ErrorCode::Internal,
        ]
        .into_iter()
        .find(|code| *code as u8 == number)
    }
}

impl Answer<'_> {
    /// Bytes of the encoded message.
    pub fn encoded_len(&self) -> usize {
        match self {
            Answer::Ack(_) => ACK_LEN,
            Answer::Lookup(answer) => match answer.found {
                Found::Present { data, .. } => LOOKUP_ANSWER_HEAD_LEN + data.len(),
                Found::Absent | Found::Rejected(_) => LOOKUP_ANSWER_HEAD_LEN,
            },
            Answer::Use(_) => USE_ANSWER_LEN,
            Answer::Pong | Answer::Error(_) => HEAD_LEN,
        }
    }

    /// Writes the message to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Answer::encoded_len`].
    pub fn encode(&self, id: u64, out: &mut [u8]) {
        let out = &mut out[..self.encoded_len()];
        match self {
            Answer::Ack(ack) => {
                put_head(out, ACK_LEN, id, kind::ACK);
                put_u32(out, AT_EPOCH, ack.epoch);
                match ack.outcome {
                    Outcome::Applied => out[AT_DETAIL] = 1,
                    Outcome::Superseded { bound } => {
                        out[AT_DETAIL] = 2;
                        put_version(out, AT_BOUND, bound);
                    }
                    Outcome::Mismatch { present, bound } => {
                        out[AT_DETAIL] = if present.is_some() { 3 } else { 4 };
                        put_version(out, AT_BOUND, bound);
                        put_version(out, AT_PRESENT, present.unwrap_or_default());
                    }
                    Outcome::Rejected(rejection) => {
                        out[AT_DETAIL] = 5;
                        out[AT_REJECTION] = rejection as u8;
                    }
                }
            }
            Answer::Lookup(answer) => {
                put_head(out, LOOKUP_ANSWER_HEAD_LEN, id, kind::LOOKUP_ANSWER);
                put_u32(out, AT_EPOCH, answer.epoch);
                match answer.found {
                    Found::Present { version, data } => {
                        out[AT_DETAIL] = 1;
                        put_version(out, AT_FOUND_VERSION, version);
                        put_u32(out, AT_DATA_LEN, data.len() as u32);
                        copied::fill(&mut out[LOOKUP_ANSWER_HEAD_LEN..], data);
                    }
                    Found::Absent => out[AT_DETAIL] = 2,
                    Found::Rejected(rejection) => {
                        out[AT_DETAIL] = 3;
                        out[AT_REJECTION] = rejection as u8;
                    }
                }
            }
            Answer::Use(found) => {
                put_head(out, USE_ANSWER_LEN, id, kind::USE_ANSWER);
                out[AT_DETAIL] = if found.is_some() { 1 } else { 2 };
                if let Some(found) = found {
                    out[AT_HIT_BEFORE] = u8::from(found.hit_before);
                    put_u32(out, AT_LAST_USE, found.last_use_s);
                    put_version(out, AT_USE_VERSION, found.version);
                }
            }
            Answer::Pong => put_head(out, HEAD_LEN, id, kind::PONG),
            Answer::Error(code) => {
                put_head(out, HEAD_LEN, id, kind::ERROR);
                out[AT_DETAIL] = *code as u8;
            }
        }
    }
}

/// Parses an answer out of private bytes; total like [`parse_request`].
pub fn parse_answer(bytes: &[u8]) -> Result<(u64, Answer<'_>), MessageError> {
    let head = Fields::new(bytes, HEAD_LEN)?;
    let id = head.u64(AT_ID);
    let answer = match bytes[AT_KIND] {
        kind::ACK => parse_ack(bytes)?,
        kind::LOOKUP_ANSWER => parse_lookup_answer(bytes)?,
        kind::USE_ANSWER => parse_use_answer(bytes)?,
        kind::PONG => {
            exact(bytes.len(), HEAD_LEN as u32)?;
            head.zero(AT_DETAIL, 7)?;
            Answer::Pong
        }
        kind::ERROR => {
            exact(bytes.len(), HEAD_LEN as u32)?;
            head.zero(AT_DETAIL + 1, 6)?;
            let code = ErrorCode::from_number(bytes[AT_DETAIL]);
            Answer::Error(code.ok_or(MessageError::Field { offset: AT_DETAIL })?)
        }
        _ => return Err(MessageError::Field { offset: AT_KIND }),
    };
    Ok((id, answer))
}

fn parse_ack(bytes: &[u8]) -> Result<Answer<'_>, MessageError> {
    exact(bytes.len(), ACK_LEN as u32)?;
    let head = Fields::new(bytes, ACK_LEN)?;
    head.zero(AT_REJECTION + 1, 1)?;
    let outcome = bytes[AT_DETAIL];
    let bound = head.version(AT_BOUND);
    if outcome != 5 {
        head.zero(AT_REJECTION, 1)?;
    }
    if !(2..=4).contains(&outcome) {
        head.zero(AT_BOUND, 16)?;
    }
    if outcome != 3 {
        head.zero(AT_PRESENT, 16)?;
    }
    let outcome = match outcome {
        1 => Outcome::Applied,
        2 => Outcome::Superseded { bound },
        3 => Outcome::Mismatch {
            present: Some(head.version(AT_PRESENT)),
            bound,
        },
        4 => Outcome::Mismatch {
            present: None,
            bound,
        },
        5 => Outcome::Rejected(head.rejection()?),
        _ => return Err(MessageError::Field { offset: AT_DETAIL }),
    };
    Ok(Answer::Ack(Ack {
        epoch: head.u32(AT_EPOCH),
        outcome,
    }))
}

fn parse_use_answer(bytes: &[u8]) -> Result<Answer<'_>, MessageError> {
    exact(bytes.len(), USE_ANSWER_LEN as u32)?;
    let head = Fields::new(bytes, USE_ANSWER_LEN)?;
    head.zero(AT_HIT_BEFORE + 1, 1)?;
    let found = match (bytes[AT_DETAIL], bytes[AT_HIT_BEFORE]) {
        (1, hit_before @ (0 | 1)) => Some(ItemUse {
            version: head.version(AT_USE_VERSION),
            hit_before: hit_before == 1,
            last_use_s: head.u32(AT_LAST_USE),
        }),
        (1, _) => {
            return Err(MessageError::Field {
                offset: AT_HIT_BEFORE,
            });
        }
        (2, _) => {
            head.zero(AT_HIT_BEFORE, USE_ANSWER_LEN - AT_HIT_BEFORE)?;
            None
        }
        _ => return Err(MessageError::Field { offset: AT_DETAIL }),
    };
    Ok(Answer::Use(found))
}

fn parse_lookup_answer(bytes: &[u8]) -> Result<Answer<'_>, MessageError> {
    let head = Fields::new(bytes, LOOKUP_ANSWER_HEAD_LEN)?;
    head.zero(AT_REJECTION + 1, 1)?;
    head.zero(AT_DATA_LEN + 4, 4)?;
    let data = &bytes[LOOKUP_ANSWER_HEAD_LEN..];
    exact(data.len(), head.u32(AT_DATA_LEN))?;
    let found = bytes[AT_DETAIL];
    if found != 1 {
        head.zero(AT_FOUND_VERSION, 16)?;
        exact(data.len(), 0)?;
    }
    if found != 3 {
        head.zero(AT_REJECTION, 1)?;
    }
    let found = match found {
        1 => Found::Present {
            version: head.version(AT_FOUND_VERSION),
            data,
        },
        2 => Found::Absent,
        3 => Found::Rejected(head.rejection()?),
        _ => return Err(MessageError::Field { offset: AT_DETAIL }),
    };
    Ok(Answer::Lookup(LookupAnswer {
        epoch: head.u32(AT_EPOCH),
        found,
    }))
}
