//! The software NIC over TCP: an engine that reads a host's backends for clients
//! elsewhere, and the port by which a client reaches it.
//!
//! ```text
//!  client                           engine process                    backends
//!  EnginePort ──── TCP ───► EventLoop (one thread) ──── mapped ─────► memory
//!  (a carrier)              Session, Session, …                        ▲
//!                           Backends: views, touches                   │ greets, maps anew
//!                                 ▲ connections                        │
//!                                 └──── Mapper (one thread) ───────────┘
//! ```
//!
//! Set-up and datapath are apart: the mapper greets backends, finds those that have
//! moved or come back, and may wait; the event loop never does. What is said on the
//! wire, and why it is safe, is in `trefoil-softnic-core`.

pub mod engine;
mod port;

pub use engine::{CellPlaces, Counters, Engine, EngineError, EngineOptions, Place};
pub use port::{ConnectError, EngineAddress, EnginePort};
