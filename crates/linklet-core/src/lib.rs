//! One server of a linked store, for one corpus: which keys it serves, how
//! values move with their keys, what copies there are and what is lost.
//! Sans-IO: time, messages and values are arguments; what is to be done comes
//! out as effects. The same inputs give the same outputs.
//!
//! # How it is driven
//!
//! ```text
//!   learn(assignment, alive)  lease(until)  receive(from, frame)  tick()      ─┐
//!   request()  propose()  touched()  drain()                                   ├─► Core ─► poll() → Effect
//!                       Values: publish, scan, get, store, forget, settle ◄────┘
//! ```
//!
//! * Call anything, then `poll` until it returns `None`. Call `tick` at
//!   [`Core::next_tick`].
//! * `now` is this server's monotonic clock; it is never compared with anybody
//!   else's.
//! * Threads that serve keys look at the newest published [`Table`] first, and
//!   take the core's lock only when it says [`Status::Ask`].
//! * A [`ServerId`](trefoil_sharder::ServerId) is one life. A server that the
//!   assignment does not name and that is not among the living of its view
//!   has no lease any more, and never will under this id.
//!
mod claim;
mod codec;
mod config;
mod copies;
mod core;
mod drain;
mod effect;
mod follow;
mod give;
mod link;
mod loss;
mod message;
#[doc(hidden)]
pub mod mutants;
mod ranges;
mod serve;
mod settle;
mod table;
mod values;

pub use crate::core::Core;
pub use codec::{DecodeError, FRAME_BYTES_MAX};
pub use config::{Config, ConfigError, Replication};
pub use effect::{Access, Commit, Decision, Effect, Refused, Request, Ticket, Uncertain};
pub use loss::{Extent, Loss, LossReason};
pub use message::{
    Chunk, ChunkKind, Claim, ClaimAnswer, CopyOrder, Entry, Frame, Message, Operation,
};
pub use table::{Status, Table};
pub use values::{Limit, NotStored, Scan, Values};
