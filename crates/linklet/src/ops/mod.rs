//! What an application does with its objects.
//!
//! ```text
//!   operation ─► the key's part, under its lock: do the rules let me?
//!                  yes ─► done                                     (nanoseconds)
//!                  no  ─► the protocol, under its lock:
//!                           serve ─► done
//!                           wait  ─► until the key has arrived, then again
//!                           else  ─► a redirect
//! ```

mod admit;
mod away;
mod each;
mod exclusive;
mod fill;
mod freshness;
mod propose;
mod read;
mod turns;
mod write;

pub use each::EachOwned;
pub use freshness::LinkletSink;
pub use read::Held;
pub(crate) use turns::{Turn, Turns};
pub use write::Committed;
