//! Between the contract's messages and what they mean. Decoding is total: what
//! no peer of the contract would send is a [`WireError`] that names the field.

mod map;
mod member;
mod refusal;
mod report;

pub(crate) use map::{
    assignment_from, assignment_to, diff_from, diff_to, version_from, version_to,
};
pub(crate) use member::{
    MemberRecord, freeze_from, freeze_to, lease_from, lease_to, member_from, member_to, state_from,
    state_to,
};
pub(crate) use refusal::{refusal_from, status_of};
pub(crate) use report::{report_from, report_to};

use crate::generated::v1;
use prost::Message as _;
use trefoil_sharder::{Assignment, AssignmentDiff};

/// A message that cannot be what it says it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field} is not usable: {reason}")]
pub struct WireError {
    /// Which part of the message.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

impl WireError {
    pub(crate) fn new(field: &'static str, reason: impl ToString) -> Self {
        WireError {
            field,
            reason: reason.to_string(),
        }
    }
}

/// An assignment as bytes, for whoever passes one on: about ten for a slice.
pub fn encode_assignment(assignment: &Assignment) -> Vec<u8> {
    assignment_to(assignment).encode_to_vec()
}

/// The assignment in these bytes.
pub fn decode_assignment(bytes: &[u8]) -> Result<Assignment, WireError> {
    let message =
        v1::Assignment::decode(bytes).map_err(|error| WireError::new("assignment", error))?;
    assignment_from(message)
}

/// A change as bytes.
pub fn encode_diff(diff: &AssignmentDiff) -> Vec<u8> {
    diff_to(diff).encode_to_vec()
}

/// The change in these bytes.
pub fn decode_diff(bytes: &[u8]) -> Result<AssignmentDiff, WireError> {
    let message = v1::Diff::decode(bytes).map_err(|error| WireError::new("diff", error))?;
    diff_from(message)
}
