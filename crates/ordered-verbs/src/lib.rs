//! The ordered queue over RDMA: the card takes receive buffers in order and acknowledges; the
//! worker executes in that order, afterwards (Juneberry, NSDI 2025).
//!
//! ```text
//!  client A ── SEND ──┐  shared receive queue            worker
//!           ◄─ ack ───┤  ┌──┬──┬──┬──┬──┐  completions
//!  client B ── SEND ──┼─►│5 │6 │7 │8 │  │ ───────────► Arrivals ─► Service
//!           ◄─ ack ───┘  └──┴──┴──┴──┴──┘               in order of positions
//!           ◄─ SEND ──────────────────────────────────── answers to what is not nilext
//! ```
//!
//! The position of a request is that of the receive buffer that the card took for it. The
//! card's acknowledgement, which the sender sees as the completion of its SEND, is the commit:
//! the server's CPU has no part in it. Set-up goes over TCP, apart from that ([`wire`]).
//!
//! # Invariants
//! 1. **A request is one packet.** Receive buffers are shorter than what a packet holds, so
//!    whatever a sender does, a message takes one buffer and is complete with it, or is an
//!    error. No buffer waits for the rest of a message.
//! 2. **Positions are the order**, and they are given when buffers are posted. The card may
//!    report completions of several connections in another order than it took buffers in:
//!    what was reported early waits for what is before it ([`arrivals`]).
//! 3. **A full queue withholds.** Buffers are posted again when what was in them is executed.
//!    Where there is none, the card tells senders to try again (RNR), without end: their
//!    requests have no completion until there is one.
//! 4. **Numbers have no gap.** A client numbers its requests from 1; another number than the
//!    next one is nonsense, and ends that client's connection and no other.
//! 5. **Each request once.** A client that comes again is let in when its former connection
//!    takes nothing more, and all that it has taken is executed. The server then names the
//!    last number; what is above it is sent again, and nothing else.
//! 6. **What peers wrote is copied, then validated, then used.**
//! 7. **An orderly end loses nothing.** Connections are closed, so that nothing more is
//!    acknowledged; what was is executed; then the clients are told.
//!
//! What RDMA carries is not encrypted, and whoever can put packets on that network can forge
//! some: who may come in is decided at set-up, by a token, and the network has to be trusted.

pub mod arrivals;
mod clients;
mod memory;
mod queue;
mod setup;
mod vanished;
pub mod wire;
mod worker;

pub use queue::{ConnectError, QueueAddress, VerbsQueue};
pub use worker::{Counts, VerbsOptions, VerbsWorker, WorkerError};
