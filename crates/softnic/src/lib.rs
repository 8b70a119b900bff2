//! The software NIC over TCP: an engine that reads a host's backends for clients
//! elsewhere, and the port by which a client reaches it.
//!
//! ```text
//!  client                           engine process                    backends
//!  EnginePort ─── connects ──► Greeter (one thread)
//!  (a carrier)                    │ sessions
//!                                 ▼
//!             ──── TCP, UDP ──► EventLoop (one or several) ── mapped ─► memory
//!                               Session, Session, …                     ▲
//!                               Backends: views, touches                │ greets, maps anew
//!                                 ▲ connections                         │
//!                                 └──── Mapper (one thread) ────────────┘
//! ```
//!
//! Beside ordered queues an engine does the same for their clients ([`RemoteQueue`]): a lane
//! for each, which the claimer asks the queue's server for, and into which the event loop
//! places what comes.
//!
//! Set-up and datapath are apart: the greeter carries out TLS handshakes and lets clients
//! in, the mapper greets backends, finds those that have moved or come back, and may wait;
//! an event loop never does. Beyond loopback both
//! sides speak TLS 1.3 with certificates (`channel`). What is said on the
//! wire, and why it is safe, is in `trefoil-softnic-core`.

mod channel;
mod datagrams;
mod dial;
pub mod engine;
mod port;
#[cfg(test)]
mod port_tests;
mod remote;
mod sessions;
mod vanished;

pub use dial::{ConnectError, DatagramUse, EngineAddress, ask_counters};
pub use engine::{
    CellPlaces, Count, Counted, ENGINE_COUNT_MAX, Engine, EngineError, EngineOptions, GivenLane,
    Place, Queues, SESSION_COUNT_MAX, Who,
};
pub use port::EnginePort;
pub use remote::RemoteQueue;
pub use sessions::Sessions;
