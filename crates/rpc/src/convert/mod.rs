//! Conversions between messages and `layout`'s types.
//!
//! Lengths of keys and values are not judged here: the store refuses what the
//! cell does not allow, with the same [`trefoil_layout::op::Rejection`]
//! whatever carried the request.

mod answer;
mod held;
mod listed;
mod plain;
mod request;
mod scan;

pub use answer::{
    decode_ack, decode_lookup_answer, encode_ack, encode_long_answer, encode_lookup_answer,
};
pub use held::{decode_held, encode_held};
pub use listed::{Listed, decode_listed, encode_listed};
pub use plain::{
    EntryForm, OtherLayout, entry_form, make_answer_plain, make_item_plain, settle_answer,
    settle_item,
};
pub use request::{
    TOUCH_COUNT_MAX, Touches, decode_mutation, decode_touches, encode_mutation, encode_touches,
};
pub use scan::{StateWords, decode_hashes, decode_states, encode_hashes, encode_states};

use crate::v1;
use trefoil_layout::{HashKind, KeyHasher, Version};

/// Why a message is not one of the contract's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// A field that every such message has is absent.
    #[error("the field \"{0}\" is missing")]
    Missing(&'static str),
    /// A field that this kind of message does not have is present.
    #[error("the field \"{field}\" does not belong to this request: {why}")]
    Unexpected {
        /// Which.
        field: &'static str,
        /// What it belongs to.
        why: &'static str,
    },
    /// A number outside its enumeration or range.
    #[error("the field \"{field}\" has the value {found}, which is {why}")]
    OutOfRange {
        /// Which.
        field: &'static str,
        /// The number.
        found: u64,
        /// What is allowed.
        why: &'static str,
    },
}

impl ContractError {
    fn unknown(field: &'static str, found: i32) -> Self {
        ContractError::OutOfRange {
            field,
            found: found as u32 as u64,
            why: "not known to this release",
        }
    }
}

/// A version as a message.
pub fn encode_version(version: Version) -> v1::Version {
    v1::Version {
        time_ns: version.time_ns,
        origin: version.origin,
    }
}

/// A message as a version; any two words are one.
pub fn decode_version(version: v1::Version) -> Version {
    Version {
        time_ns: version.time_ns,
        origin: version.origin,
    }
}

/// A hash function as a message.
pub fn encode_hash(hasher: KeyHasher) -> v1::Hash {
    let kind = match hasher.kind {
        HashKind::Xxh3 => v1::HashKind::Xxh3,
        HashKind::Sip13 => v1::HashKind::Sip13,
    };
    v1::Hash {
        kind: kind as i32,
        seed_low: hasher.seed[0],
        seed_high: hasher.seed[1],
    }
}

/// A message as a hash function.
pub fn decode_hash(hash: &v1::Hash) -> Result<KeyHasher, ContractError> {
    let kind = match v1::HashKind::try_from(hash.kind) {
        Ok(v1::HashKind::Xxh3) => HashKind::Xxh3,
        Ok(v1::HashKind::Sip13) => HashKind::Sip13,
        Ok(v1::HashKind::Unspecified) => return Err(ContractError::Missing("hash.kind")),
        Err(_) => return Err(ContractError::unknown("hash.kind", hash.kind)),
    };
    Ok(KeyHasher {
        kind,
        seed: [hash.seed_low, hash.seed_high],
    })
}
