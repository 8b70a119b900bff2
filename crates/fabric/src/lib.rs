//! Fabrics: what carries one-sided reads and messages between a client (the
//! initiator) and a backend (the target).
//!
//! ```text
//!            initiator                              target
//!   set-up   shm::Connection::connect   <socket>    shm::Target (accept thread)
//!   reads    RegionView                 <memory>    (nobody: zero CPU)
//!   messages shm::Channel               <rings>     shm::Target (poller thread) -> Service
//! ```
//!
//! Every fabric is a module with the same pairs of files, set-up apart from
//! datapath; [`port::Port`] and [`target::Service`] are what they
//! share. [`shm`] serves clients on the same host; `trefoil-softnic` has an engine that
//! maps the same memory and reads it for clients elsewhere.

pub mod agreement;
pub mod clock;
mod idle;
pub mod port;
mod region_view;
pub mod shm;
pub mod target;

pub use agreement::Agreement;
pub use idle::Idle;
pub use port::{Closed, OutOfWindow, Port, Progress, Refreshed, SendError, Token};
pub use region_view::{Home, PREFETCH_LEN_MAX, RegionView};
pub use target::{AnswerSink, ClientId, Lane, NoLane, Service, SharedMarks};
