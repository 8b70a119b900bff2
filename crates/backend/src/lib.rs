//! A server task: one process that is one or several backends of a cell.
//!
//! ```text
//!  trefoil-shm-*   fabric's threads ─── Member::execute ─┐
//!  trefoil-rpc     gRPC, Unix and TCP ── Member::mutate ─┼─► Store ─► regions ─► readers
//!                  HTTP, metrics                         │             ▲
//!  trefoil-lease   renews every member's lease ──────────┼─────────────┘
//!  trefoil-tend    Store::maintain, memory bound ────────┤
//!  trefoil-recover Store::import, after a restart ───────┘
//! ```
//!
//! Requests are executed where they arrive: no hop to another thread, no queue.
//! The lease has a thread of its own because a lapsed one stops every reader,
//! and maintenance may take longer than a lease.
//!
//! | module | what it does |
//! |---|---|
//! | `server` | starts everything in the right order, and stops it |
//! | `oom` | whom the kernel ends first: a process that does not serve yet |
//! | `options`, `error` | what an operator chooses, and why it cannot be done |
//! | `ending` | a process's end, where it comes before the process serves |
//! | `listen` | sockets, taken before anything is served |
//! | `flush`, `behind` | a higher flush floor, put in force and served; catching up with one |
//! | `local` | the store, for other code of this process |
//! | `member` | one backend: its store, its lease, its answers |
//! | `lease`, `tend` | two threads that look after the rest |
//! | `background` | threads whose work nobody waits for |
//! | `handover` | how a backend's number moves from one process to another |
//! | `resize` | how a cell gets another number of backends |
//! | `recovery` | what a backend that has lost its memory learns from its peers |
//! | `memory` | the bound on the process's resident bytes, split over the members |
//! | `process` | what the system says about this process |
//! | `hot` | keys that are asked for most |
//! | `reporter` | other parts of the process that have something to report |
//! | `corpus` | files of an immutable cell |
//! | `service` | the RPC contract |
//! | `transport`, `access` | connections, and who may call |
//! | `admission` | bounded memory for long requests and answers |
//! | `metrics` | statistics for Prometheus |

mod access;
mod admission;
mod background;
mod behind;
mod clock;
pub mod corpus;
mod descriptors;
mod ending;
mod error;
mod flush;
mod follow;
mod guests;
mod handover;
mod heap;
mod hot;
mod lease;
mod lending;
mod listen;
mod local;
mod member;
mod memory;
mod metrics;
pub mod oom;
mod options;
mod pace;
mod permission;
mod process;
mod queue;
mod recovery;
mod repair;
mod reporter;
mod resize;
mod server;
mod service;
mod shared_stream;
mod state;
mod stop;
mod tend;
mod transport;

pub use descriptors::raise_descriptor_limit;
pub use ending::Ending;
pub use error::StartError;
pub use flush::FlushError;
pub use handover::HandoverError;
pub use heap::keep_heap_small;
pub use lease::{LEASE, RENEWAL_PERIOD};
pub use listen::{ListenError, ListenOptions, Listeners, UnixSocket, take_port};
pub use local::LocalStore;
pub use memory::{MEMORY_LIMIT_MIN, MemoryError};
pub use metrics::{METRICS, MetricInfo, encode_certificate};
pub use options::{FabricOptions, OwnPlace, ServerOptions};
pub use pace::{RECOVERY_RATE_MIN, REPAIR_RATE_MIN};
pub use process::{Cpu, Resident};
pub use repair::{REPAIR_DEFAULT, RepairOptions};
pub use reporter::{MetricSource, Reporter};
pub use resize::{FROZEN_MAX, Gather, GatherEvent, GatherOrder, Gathered, ResizeError};
pub use server::Server;
pub use trefoil_fabric::shm::UserPolicy;
