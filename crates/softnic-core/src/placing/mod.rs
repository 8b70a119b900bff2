//! Placing requests into an ordered queue for a client elsewhere, without sockets.
//!
//! ```text
//!  client                         engine                        server of the queue
//!  Sender ── CLAIM ─────────────► a lane for this producer ───► (set-up: it makes one)
//!         ◄──────────── CLAIMED ─
//!         ── PLACE n, n+1, … ───► Placer ─► Lane: slot filled, published
//!         ◄──────────── PLACED ──   │                            (nobody is woken)
//!         ◄──────────── ANSWERED ─  └─ looks: committed, executed, answers
//! ```
//!
//! The place in the queue is the commit; the engine acknowledges it. Where the server
//! commits (a durable queue), the engine passes on what that says.
//!
//! # Invariants
//! 1. **Numbers have no gap.** A producer numbers its requests from 1; an engine places
//!    `n + 1` behind `n` and nothing else. What is placed is in the client's order.
//! 2. **A lane has one session.** A producer that comes back gets another lane, and that only
//!    when its former one is closed and everything in it is executed. So the number that
//!    the server names is exact, and final: what is above it is in no lane, then or later,
//!    whichever engine still believes that it has the former one.
//! 3. **A client keeps what is not known to be committed**, and after a new connection sends
//!    what is above that number again: each request is in the queue once.
//! 4. **A full lane withholds.** The engine keeps no request that the lane does not take; it
//!    receives nothing more of that client.
//! 5. **What an engine says is looked up where the server wrote it**: `committed` before
//!    `executed`, and answers before the number that covers them.
//! 6. **Memory is bounded** on both sides by the lane's slots: the client has no more than
//!    so many requests that are not executed, or whose answers it has not taken.

mod placer;
mod sender;

pub use placer::{Handled, Lane, Placer, Placing};
pub use sender::{NotSent, Sender, Taken};
