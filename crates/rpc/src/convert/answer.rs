//! Answers of the data plane.

use super::{ContractError, decode_version, encode_version};
use crate::v1;
use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use trefoil_layout::Version;
use trefoil_layout::data::{DATA_HEADER_LEN, encoded_len_max};
use trefoil_layout::limits::{GRANULE, KEY_LEN_MAX, VALUE_LEN_LIMIT};
use trefoil_layout::op::{Ack, Found, LookupAnswer, Outcome, Rejection};

/// Longest data entry, padded to its granule.
const DATA_LEN_MAX: usize = encoded_len_max(KEY_LEN_MAX, VALUE_LEN_LIMIT) + GRANULE;

/// `LookupResponse.present`, `Present.data`, and bytes of such a field's key.
const PRESENT_FIELD: u32 = 2;
const DATA_FIELD: u32 = 2;
const KEY_LEN: usize = 1;

/// A replica's answer to a mutation as a message.
pub fn encode_ack(ack: &Ack) -> v1::MutateResponse {
    use v1::mutate_response::Outcome as Message;
    let outcome = match ack.outcome {
        Outcome::Applied => Message::Applied(v1::Applied {}),
        Outcome::Superseded { bound } => Message::Superseded(v1::Superseded {
            bound: Some(encode_version(bound)),
        }),
        Outcome::Mismatch { present, bound } => Message::Mismatch(v1::Mismatch {
            present: present.map(encode_version),
            bound: Some(encode_version(bound)),
        }),
        Outcome::Rejected(rejection) => Message::Rejected(encode_rejection(rejection)),
    };
    v1::MutateResponse {
        epoch: ack.epoch,
        outcome: Some(outcome),
    }
}

/// A message as a replica's answer to a mutation.
pub fn decode_ack(response: &v1::MutateResponse) -> Result<Ack, ContractError> {
    use v1::mutate_response::Outcome as Message;
    let outcome = match response.outcome.as_ref() {
        Some(Message::Applied(_)) => Outcome::Applied,
        Some(Message::Superseded(superseded)) => Outcome::Superseded {
            bound: required(superseded.bound, "superseded.bound")?,
        },
        Some(Message::Mismatch(mismatch)) => Outcome::Mismatch {
            present: mismatch.present.map(decode_version),
            bound: required(mismatch.bound, "mismatch.bound")?,
        },
        Some(Message::Rejected(number)) => Outcome::Rejected(decode_rejection(*number)?),
        None => return Err(ContractError::Missing("outcome")),
    };
    Ok(Ack {
        epoch: response.epoch,
        outcome,
    })
}

/// A replica's answer to a lookup as a message, with the key's stamp just
/// before. The data is copied.
pub fn encode_lookup_answer(answer: &LookupAnswer<'_>, stamp: u64) -> v1::LookupResponse {
    use v1::lookup_response::Found as Message;
    let found = match answer.found {
        Found::Present { version, data } => Message::Present(v1::Present {
            version: Some(encode_version(version)),
            data: Bytes::copy_from_slice(data),
            plain: None,
        }),
        Found::Absent => Message::Absent(v1::Absent {}),
        Found::Rejected(rejection) => Message::Rejected(encode_rejection(rejection)),
    };
    v1::LookupResponse {
        epoch: answer.epoch,
        found: Some(found),
        stamp,
    }
}

/// An answer without its data, and what is sent in its place where the data
/// follows as it lies in memory: the call's length prefix, and the message up to
/// the data's first byte. Nothing of the latter without data.
pub fn encode_long_answer(
    answer: &LookupAnswer<'_>,
    stamp: u64,
) -> (v1::LookupResponse, Option<Bytes>) {
    let Found::Present { version, data } = answer.found else {
        return (encode_lookup_answer(answer, stamp), None);
    };
    // Fields may come in any order: the one with the data comes last.
    let before = v1::LookupResponse {
        epoch: answer.epoch,
        found: None,
        stamp,
    };
    let present = v1::Present {
        version: Some(encode_version(version)),
        data: Bytes::new(),
        plain: None,
    };
    let mut message = before.encode_to_vec();
    let data_len = data.len() as u64;
    let data_field_len = KEY_LEN as u64 + encoded_len_varint(data_len) as u64 + data_len;
    encode_key(PRESENT_FIELD, WireType::LengthDelimited, &mut message);
    encode_varint(present.encoded_len() as u64 + data_field_len, &mut message);
    message.extend_from_slice(&present.encode_to_vec());
    encode_key(DATA_FIELD, WireType::LengthDelimited, &mut message);
    encode_varint(data_len, &mut message);
    let message_len = (message.len() + data.len()) as u32;
    // Not compressed.
    let mut head = vec![0];
    head.extend_from_slice(&message_len.to_be_bytes());
    head.extend_from_slice(&message);
    (before, Some(head.into()))
}

/// A message as a replica's answer to a lookup; borrows the message's data.
pub fn decode_lookup_answer(
    response: &v1::LookupResponse,
) -> Result<LookupAnswer<'_>, ContractError> {
    use v1::lookup_response::Found as Message;
    let found = match response.found.as_ref() {
        Some(Message::Present(present)) => {
            let len = present.data.len();
            if !(DATA_HEADER_LEN..=DATA_LEN_MAX).contains(&len) {
                return Err(ContractError::OutOfRange {
                    field: "present.data",
                    found: len as u64,
                    why: "no length of a data entry",
                });
            }
            Found::Present {
                version: required(present.version, "present.version")?,
                data: &present.data,
            }
        }
        Some(Message::Absent(_)) => Found::Absent,
        Some(Message::Rejected(number)) => Found::Rejected(decode_rejection(*number)?),
        None => return Err(ContractError::Missing("found")),
    };
    Ok(LookupAnswer {
        epoch: response.epoch,
        found,
    })
}

fn required(version: Option<v1::Version>, field: &'static str) -> Result<Version, ContractError> {
    version
        .map(decode_version)
        .ok_or(ContractError::Missing(field))
}

/// The contract numbers rejections as `layout` does; a test holds both together.
fn encode_rejection(rejection: Rejection) -> i32 {
    i32::from(rejection as u8)
}

fn decode_rejection(number: i32) -> Result<Rejection, ContractError> {
    u8::try_from(number)
        .ok()
        .and_then(Rejection::from_number)
        .ok_or(ContractError::unknown("rejected", number))
}
