//! The journal of a durable queue: requests in a file, in the order of their positions,
//! until the service behind the queue has their effects in its own persistent state.
//!
//! ```text
//!  requests ─► push ─► commit: one write, one flush ─► acknowledged ─► executed
//!                        │                                               │
//!              file: superblocks │ ring of frames          checkpoint: effects and position,
//!                        │                                 both or neither
//!                        ▼                                               │
//!  after a crash: open replays what the state is without   release ◄─────┘
//! ```
//!
//! A *frame* holds the requests of one group commit, in one run of blocks. Frames stand
//! one behind the other in a ring.
//!
//! | module | what |
//! |---|---|
//! | [`superblock`], [`frame`] | the bytes |
//! | [`log`] | the rules, over a [`disk::Disk`] |
//! | [`file`] | a disk that is a file |
//! | [`snapshot`] | a service's state and its position, replaced as one |
//! | [`mutants`] | rules to be broken in tests |
//!
//! # Rules
//! 1. **Flushed before acknowledged, acknowledged before executed.** [`Log::commit`] returns
//!    when the group is persistent. Nobody learns of an effect before that.
//! 2. **A frame is whole or nothing.** Its checksum covers every byte, seeded by a number
//!    that only this file has: torn frames, and those of an earlier lap, end the recovery.
//! 3. **Recovery goes on from the state's own position**, which the service changes
//!    together with its effects. So each request has its effect once.
//! 4. **Room is given back after the state is persistent** up to there, and used again when
//!    the superblock that says so is.
//! 5. **The superblock has two copies**, written in turn.
//! 6. **Recovery writes the last frame and the superblock again as they are, and flushes,
//!    before it goes on.** After a flush that failed they may be in the system's cache alone.
//!    The frames before were persistent when the last one was begun. To write the same bytes
//!    over others is harmless, also when it is interrupted.
//! 7. **After a failed write or flush nothing is acknowledged any more.** The system may
//!    have dropped what it could not write, and report success the next time. A recovery
//!    finds out what there is.
//! 8. **A frame of a later life than the superblock knows is refused**: somebody has put
//!    back parts of an older file.

pub mod disk;
mod error;
pub mod file;
pub mod frame;
pub mod log;
pub mod mutants;
pub mod snapshot;
pub mod superblock;

pub use error::JournalError;
pub use file::{FileDisk, Flush};
pub use frame::Record;
pub use log::Log;
