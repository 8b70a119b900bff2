//! The software NIC without sockets: what a client and an engine say to each other,
//! and the state of a session on either side.
//!
//! An engine stands beside the backends of a host, maps their memory as any reader
//! does, and reads it for clients on other hosts: no backend's thread takes part.
//!
//! ```text
//!  client                                              engine
//!  Initiator ── HELLO, OPEN ──────────────────────────► Target
//!            ◄───────────────────── WELCOME, OPENED ──
//!            ── ASKS: scans, reads, touches ──────────►   └─► Memory: scan, read
//!            ◄──────────────────────────── ANSWERS ──
//!            ── MESSAGE: for a backend's ring ────────►   └─► Memory: message
//!            ◄─────────────────────────── MESSAGED ──
//! ```
//!
//! [`placing`] is what a session says instead whose client puts requests into an ordered
//! queue. [`datagram`] carries requests and answers over a network that loses, doubles and
//! reorders. [`wire`] has the bytes, [`Target`] the engine's side of a session, [`Initiator`]
//! the client's. [`scaling`] says how many threads an engine is to read by. None has a socket, a clock or a thread: bytes and times are
//! arguments. `docs/softnic.md` says the same for people.
//!
//! # Invariants
//! 1. **Scans and reads change nothing.** Either may be carried out twice, or for
//!    nobody.
//! 2. **The client validates.** An answer is a copy of shared memory: torn, or of
//!    another key, like any that a client makes itself.
//! 3. **The lease is looked at after the last read of a request**, by the engine, on
//!    the clock that the lease is written in. So what an answer holds was the memory of
//!    a living backend at some moment between request and answer, and no clock of two
//!    hosts is compared.
//! 4. **Solicited bytes are bounded.** A client names the longest answer that it takes;
//!    what it has asked for and not received stays within the session's window.
//! 5. **A message is handed on once, or it is said that it was not**: who is told *gone* may
//!    send the same by another way, who is told *lost* does not know.
//! 6. **A stranger gets less than it sends**, and none of the memory.

mod choice;
pub mod datagram;
mod initiator;
pub mod limits;
pub mod placing;
pub mod scaling;
mod target;
mod way;
pub mod wire;

pub use choice::Situation;
pub use initiator::{Event, Initiator, InitiatorOptions, SessionError, Unanswered};
pub use target::{Expected, Handed, Memory, ReadRange, Scan, Target, TargetError};
