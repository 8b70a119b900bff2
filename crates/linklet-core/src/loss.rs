//! What is said about lost values.

use bytes::Bytes;
use std::fmt;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// Why values were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LossReason {
    /// Their owner died, by name if that is known.
    OwnerDied(Option<ServerId>),
    /// The server that was handing them over died before they had arrived.
    HandoverBroken(ServerId),
    /// The marshaller failed or panicked when the value was to be moved.
    MarshalFailed,
    /// What arrived could not be unmarshalled.
    Unreadable,
    /// There was no room where they were moved to.
    NoRoom,
    /// This server was taken for dead and replaced while it went on serving:
    /// commits that it had acknowledged after its lease are void. The new
    /// owner has reported their range.
    Replaced,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::OwnerDied(Some(owner)) => write!(f, "their owner, {owner}, died"),
            LossReason::OwnerDied(None) => write!(f, "their owner is gone"),
            LossReason::HandoverBroken(from) => write!(f, "{from} died while handing them over"),
            LossReason::MarshalFailed => write!(f, "they could not be marshalled to be moved"),
            LossReason::Unreadable => {
                write!(f, "they could not be unmarshalled where they arrived")
            }
            LossReason::NoRoom => write!(f, "there was no room where they were moved to"),
            LossReason::Replaced => write!(
                f,
                "they were committed after the lease, and somebody else had taken over"
            ),
        }
    }
}

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// Every value in the ranges.
    All,
    /// A copy is served instead, and may lack the last commits.
    LastCommits,
}

/// Values are lost. Each loss is in exactly one report of one server, apart
/// from [`LossReason::Replaced`], which names keys within a range that the new
/// owner reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Why.
    pub reason: LossReason,
    /// How much.
    pub extent: Extent,
    /// The assignment that the reporting server went by.
    pub version: AssignmentVersion,
    /// Lost ranges: whatever was in them.
    pub ranges: Vec<Slice>,
    /// Lost keys that are known by name.
    pub keys: Vec<(KeyPoint, Bytes)>,
}
