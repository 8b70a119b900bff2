//! A cell gets another number of backends while it serves
//! ([`trefoil_recovery::Gathering`] says why nothing is lost).
//!
//! ```text
//! processes of the cell that is to be     who changes it         backends of the cell that is
//!   begin, copy, changes, copy …                                   serve
//!   near ──────────────────────────────►  freeze ───────────────►  take no mutation
//!   the last changes; floors, epoch  ◄──  last
//!   done ──────────────────────────────►  swaps the configuration
//!                                         retire ───────────────►  end their leases, go
//!   lock, sockets, lease: they serve ◄──  begin
//! ```
//!
//! **The swap of the configuration decides.** Before it the old backends are the cell,
//! after it the new ones are, whoever dies or hangs. A frozen backend that hears nothing
//! more goes on only after a swap of its own, to the same configuration with another id:
//! then no other swap succeeds that was begun before. If that fails because the cell was
//! resized, it retires. A new process begins when every old one has ended its lease, or
//! is dead for longer than that.

mod gathering;
mod giving;
mod told;

pub(crate) use gathering::gather;
pub use gathering::{Gather, GatherEvent, GatherOrder, Gathered};
pub use giving::FROZEN_MAX;
pub(crate) use giving::{Giving, heed, step};

/// Why a process could not gather what it is to hold. The cell goes on as it was.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// It does not answer.
    #[error("backend {number} cannot be asked: {why}")]
    Unreachable {
        /// Which.
        number: u32,
        /// What the system says.
        why: String,
    },
    /// Its release knows no resizing.
    #[error(
        "backend {number} is of a release that cannot be resized: move the cell to this one first (`trefoil cell upgrade`)"
    )]
    Unknown {
        /// Which.
        number: u32,
    },
    /// This process cannot hold what it is to hold.
    #[error("what backend {number} holds cannot be stored in a backend of the new cell: {why}")]
    NotTaken {
        /// Which.
        number: u32,
        /// Why.
        why: trefoil_layout::op::Rejection,
    },
    /// It does not want to, for now.
    #[error("backend {number} takes no part: {why}")]
    Refused {
        /// Which.
        number: u32,
        /// What it says.
        why: String,
    },
    /// This process cannot have the limit that those have from which it copies.
    #[error(
        "a backend of the new cell cannot have the memory limit of backend {number}: {why}; set a lower limit first (`trefoil cell memory`)"
    )]
    Memory {
        /// Which.
        number: u32,
        /// Why.
        why: crate::memory::MemoryError,
    },
    /// The system does not give it what it needs to copy.
    #[error("nothing can be copied: {0}")]
    System(String),
    /// Whoever changes the cell has gone, or says so.
    #[error("the resize was given up")]
    GivenUp,
}
