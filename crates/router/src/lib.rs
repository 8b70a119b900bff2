//! For callers of the linked store: from a key to the server that has it.
//!
//! ```text
//!  key ─ hash ─► point ─► Table (the newest view, one atomic load) ─► primary, or the better of two replicas
//!                           ▲                                            │ call(channel, metadata)
//!   Watcher ── views ───────┤                                            ▼
//!   a redirect's assignment ┘ ◄──────── "not mine: server N has it, by generation M" ── at most once
//! ```
//!
//! 1. A table is only ever replaced by a newer one, and every request names the
//!    newest assignment that any server has spoken of: the generation sticks.
//! 2. A request is redirected at most once. The second attempt says so, and
//!    its server asks its peers instead of sending the caller on.
//! 3. Routing takes no lock: a hash, two atomic loads, a binary search.
//!
//! Servers read what a caller sent with [`Routed::of`] and answer with
//! [`Redirect::status`].

mod call;
mod choice;
mod error;
mod metadata;
mod metrics;
mod peer;
mod router;
mod table;

pub use call::CallOptions;
pub use error::{CallError, RouteError};
pub use metadata::{Redirect, Routed};
pub use metrics::METRICS;
pub use router::{Access, Router, RouterOptions, Target};
