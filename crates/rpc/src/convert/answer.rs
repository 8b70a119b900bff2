//! Answers of the data plane.

use super::{ContractError, decode_version, encode_version};
use crate::v1;
use bytes::Bytes;
use trefoil_layout::Version;
use trefoil_layout::data::{DATA_HEADER_LEN, encoded_len_max};
use trefoil_layout::limits::{GRANULE, KEY_LEN_MAX, VALUE_LEN_LIMIT};
use trefoil_layout::op::{Ack, Found, LookupAnswer, Outcome, Rejection};

/// Longest data entry, padded to its granule.
const DATA_LEN_MAX: usize = encoded_len_max(KEY_LEN_MAX, VALUE_LEN_LIMIT) + GRANULE;

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
