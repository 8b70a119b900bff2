//! Who takes the place of a backend that is dead: decided here, without I/O.
//!
//! A *place* is a number in the cell's configuration. Whoever listens at the addresses
//! that stand there has it; a process that finds others there does not serve. A *spare*
//! is a process that has registered as one, with addresses of its own.
//!
//! ```text
//! look at the store ─► [`Controller::look`] ─► nobody is due: that was it
//!                            │ due: gone for long enough
//!                            ▼
//!         ask the backends how they are ─► [`Controller::decide`] ─► a [`Plan`], or
//!                                                                    what hinders it
//! ```
//!
//! What keeps a replacement safe:
//!
//! 1. **One write.** A plan is carried out by one transaction, which puts the next
//!    configuration in force only if everything it was made from still stands
//!    ([`Plan::conditions`]): the configuration, the leader, the spare, and that nobody is
//!    registered as the backend. A leader that was suspended has lost the key that says
//!    so with its lease, and whatever it still sends comes to nothing.
//! 2. **A backend that renews is never replaced.** Only time counts during which its
//!    registration was seen to be gone. What was counted is forgotten when the store does
//!    not answer, or when this process has not looked for a while.
//! 3. **Nor is one that answers**, whatever the store says of it.
//! 4. **One at a time, and never the second of a cohort.** All that share a cohort with
//!    the dead backend have to answer and vote, and so has whoever was replaced last.
//!
//! Why it does no harm if a dead backend was only cut off: `docs/quorum.md`.

mod decide;
mod hindrance;
mod view;

pub use decide::{Controller, DEAD_AFTER_DEFAULT, DEAD_AFTER_MIN, Rules};
pub use hindrance::{Hindrance, Unusable};
pub use view::{Health, Key, Leader, Plan, Registered, Replacement, Spare, View};
