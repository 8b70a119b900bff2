//! A backend's number moves from one process to another of the same host while it serves
//! ([`trefoil_recovery::Handover`] says why nothing is lost).
//!
//! ```text
//! successor                        predecessor
//!   begin, copy, changes, copy …     serves
//!   freeze                           takes no mutation, for FROZEN_MAX
//!   copy the rest
//!   release                          ends its lease, frees sockets and lock, goes
//!   takes the lock and serves
//! ```
//!
//! One of both is the backend at any time, because the lock of its number says so, and the
//! predecessor gives it back only after it can acknowledge nothing any more. A successor
//! that is too late is refused: then the predecessor goes on. One that hears no answer to
//! its *release* finds out from the predecessor's memory ([`departure`]).
//!
//! The backend's limit of memory moves with it, whatever the successor was started with:
//! what was set by command since stays, and everything that is copied has its room.

mod departure;
mod giving;
#[cfg(test)]
mod lost_answers;
mod taking;

pub(crate) use departure::await_lock;
pub(crate) use giving::{Giving, step};
pub(crate) use taking::{Taken, Takeover, take};

use crate::memory::MemoryError;
use trefoil_layout::op::Rejection;
use trefoil_rpc::OtherLayout;

/// Why a process could not take a backend over. The backend goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// It does not answer.
    #[error(
        "backend {number} cannot be asked: {why}: if it is dead, start it anew instead of taking it over"
    )]
    Unreachable {
        /// Which.
        number: u32,
        /// What the system says.
        why: String,
    },
    /// Its release knows no handover.
    #[error(
        "backend {number} is of a release that cannot hand its number over: stop it and start it anew; with three copies it recovers"
    )]
    Unknown {
        /// Which.
        number: u32,
    },
    /// Its data entries have another layout, and one of both releases knows no other form.
    #[error("backend {number} (release {release}) cannot hand its items over: {why}")]
    OtherLayout {
        /// Which.
        number: u32,
        /// Its release.
        release: String,
        /// What differs, and what to do.
        why: OtherLayout,
    },
    /// It takes mutations again.
    #[error(
        "the rest of backend {number} could not be copied in the half second in which it takes no mutation: the machine is too busy, or it is written faster than is copied; try again later"
    )]
    Late {
        /// Which.
        number: u32,
    },
    /// This process cannot hold what it holds.
    #[error("what backend {number} holds cannot be stored here: {why}")]
    NotTaken {
        /// Which.
        number: u32,
        /// Why.
        why: Rejection,
    },
    /// This process cannot have the limit that it has.
    #[error(
        "what backend {number} may hold cannot be held here: {why}; set a lower limit first (`trefoil cell memory`)"
    )]
    Memory {
        /// Which.
        number: u32,
        /// Why.
        why: MemoryError,
    },
    /// It was asked to go, and nobody knows whether it has.
    #[error(
        "whether backend {number} has let go is not known ({why}), and its memory does not say so: if it lives, it goes on"
    )]
    Undecided {
        /// Which.
        number: u32,
        /// What became of the answer.
        why: String,
    },
    /// This process was told to end, and backend `number` goes on.
    #[error("told to end before backend {number} was taken over: it goes on")]
    Ended {
        /// Which.
        number: u32,
    },
    /// It does not want to, for now.
    #[error("backend {number} does not hand its number over: {why}")]
    Refused {
        /// Which.
        number: u32,
        /// What it says.
        why: String,
    },
}
