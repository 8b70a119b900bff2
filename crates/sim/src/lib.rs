//! Deterministic simulation of clients and backends, in two forms. [`whole`] drives
//! the client's own driver. What stands here steps single operations: the real
//! operation machines of `trefoil-client-core` against real stores of `trefoil-store`,
//! with one thread, one seed and no I/O.
//!
//! ```text
//!  world    who acts next: a client, a message, an answer, the surroundings
//!    client   Get, Mutate, Cas ── steps ──► reads, messages
//!    reads    word by word over the live regions; between two words anything
//!             may happen at that backend
//!    words    live memory, and what happens between two loads of it
//!    env      stores, messages on their way, crashes, fillers, maintenance
//!    recovery a crashed member comes back (rules 6 to 10), so that epochs count
//!    repair   the first of a cohort makes the three agree (rules 11 and 12)
//!    history  the promise, checked on every event
//!  profile  which troubles, how often: drawn from the seed
//!  many     seeds over threads
//! ```
//!
//! What is checked, per key: [`Property`]. Faults: messages lost, late, out of
//! order and repeated (a CAS never is), answers lost, clients that give up
//! waiting, reads torn between any two words, clocks that differ by up to 15
//! s, evictions at single replicas, expiry, forgotten tombstones, indexes that
//! grow and data that moves under readers, configuration changes, one crash
//! with the dead memory still mapped, recovery of the crashed backend. Some
//! runs are calm: nothing is lost or forgotten, and a key must keep its quorum.
//!
//! A violation names its seed; `trefoil sim --seed S` replays it step by step.

mod client;
mod env;
mod history;
mod many;
#[cfg(feature = "mutants")]
pub mod mutants;
mod profile;
mod reads;
mod recovery;
mod repair;
mod rng;
mod stats;
mod trace;
mod value;
mod violation;
pub mod whole;
pub mod words;
mod world;

pub use many::{Counts, Report, run, run_many, run_seed};
pub use stats::{Mark, Stats};
pub use violation::{Form, Property, Violation};
