//! Deterministic simulation of a linked store: the real assigner over the
//! real store of assignments, real cores of its servers, and callers, with one
//! thread, one seed and no I/O.
//!
//! ```text
//!  world         what happens next: a frame, a request, a fault
//!    queue         by time
//!    coordination  leases, the assigner or maps at random, outages
//!    elections     two assigners that both run, where one has to be elected
//!      candidate   one of them: the real assigner, and leases that it grants
//!      ledger      their store, with its terms
//!    server        a core, its values, its clock
//!    callers       requests, redirects, time-outs; how a server serves
//!      turns         changes that depend on what was there, one after the other
//!    truth         the newest commit of every key, known to nobody else
//!  profile       which troubles, how often: drawn from the seed
//!  many          seeds
//! ```
//!
//! What is checked: [`Property`]. Faults: frames lost, repeated, late and out
//! of order, servers parted from each other or from the coordination, crashes,
//! servers stopped past their lease and continued, clocks that run
//! differently, slow handovers, drains, servers that join, an assigner that is
//! down, or two that lose their lead while they do not know it, values that cannot be
//! marshalled or stored, callers that give up, machines that were suspended, windows
//! smaller than what is to be sent. After 5 s everything is well; 4 s later one server
//! dies, and within 5 s everything is owned again. Most of many seeds wait for neither: the
//! last server dies soon after everything is owned, and they end soon after it is again
//! ([`Ends`]).
//!
//! A violation names its seed and the command that replays it step by step.

mod callers;
mod candidate;
mod coordination;
mod elections;
mod ledger;
mod many;
mod profile;
mod queue;
mod rng;
mod server;
mod stats;
mod truth;
mod turns;
mod violation;
mod world;

pub use many::{Ends, Runs, run_many, run_seed};
pub use stats::Stats;
pub use violation::{Property, Violation};
