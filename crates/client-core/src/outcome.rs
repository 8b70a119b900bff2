//! How a mutation ended, whatever kind it was.

use crate::retry::GiveUp;
use trefoil_layout::Version;
use trefoil_layout::op::Rejection;

/// What a mutation's caller may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutationOutcome {
    /// A quorum holds it: no GET that begins now returns anything older.
    Stored {
        /// The version under which it was finally stored.
        version: Version,
    },
    /// Something newer is known. A fine outcome for a fill. For a SET or ERASE
    /// it means that the retry budget ended, and that no quorum holds it now or
    /// ever will; it may have been seen before it was superseded.
    Superseded {
        /// The highest bound that a replica named.
        bound: Version,
    },
    /// A CAS did not find what it expected, and will never be seen.
    Exists {
        /// What a quorum holds instead; `None` for no value, and where no quorum
        /// agrees on one.
        present: Option<Version>,
    },
    /// It may have been applied or may still be: nothing can be said.
    Indeterminate,
    /// So many replicas refuse it that it will never be seen; where one of three
    /// has taken it, its other copies remain a quorum. (If a layer below repeated
    /// a SET's message, replicas may take the copies: out of memory, or a clock
    /// too far ahead, are refusals of the moment.)
    Rejected(Rejection),
    /// It was not sent, or certainly not received; nothing was done.
    Failed {
        /// Why.
        cause: GiveUp,
    },
}

/// Why there is no answer to a mutation's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFailure {
    /// It certainly did not reach the replica and never will.
    NotSent,
    /// It may have reached the replica, or may still.
    Lost,
    /// It has not been sent: it waits for room, and is sent if that comes while it is of use.
    Waits,
    /// It was not sent, or not executed: the replica is moving to another process, which takes
    /// it in a moment, or it ends.
    Moving,
}
