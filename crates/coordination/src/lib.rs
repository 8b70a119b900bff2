//! Coordination of the linked store: who is a member, and which assignment is
//! in force.
//!
//! ```text
//!  linklet ── Session ──┐ Register, KeepAlive, Report          ┌─ embedded: memory, or a file
//!                       ├──────────────► assigner (Node) ── Store
//!  router ─── Watcher ──┘ Watch            one leads           └─ etcd: compare-and-swap, election
//! ```
//!
//! What holds, whatever is lost, delayed, restarted or restored:
//!
//! 1. A view is only ever replaced by a newer one.
//! 2. A member that is not heard keeps its slices until its lease has ended,
//!    by the clock of the assigner and earlier by its own. Leases are granted
//!    by the assigner that leads, and only while it is sure that it does; one
//!    that is elected first gives every member the time of a whole lease.
//! 3. An id that has lost its lease gets none again.
//! 4. While nobody leads, or the store is away or behind, or an assigner was
//!    started with other flags, the map stays as it is. A membership ends only
//!    because its lease has, or another life of the server has come.

mod address;
mod clock;
mod error;
mod generated;
mod keeper;
mod lease;
pub mod limits;
mod link;
mod local;
mod log;
mod node;
mod remote;
mod service;
mod session;
mod store;
mod view;
mod viewcell;
mod vitals;
mod watcher;
mod wire;

pub use address::AssignerAddress;
pub use clock::BootInstant;
pub use error::{CoordinationError, Refusal};
pub use local::LocalCoordinator;
pub use node::{
    ChangeStatus, CorpusStatus, METRICS, MemberStatus, NodeOptions, NodeStatus, PROBLEM_KINDS,
    Problem, SliceStatus, Totals, TurnedAway,
};
pub use service::{AssignerClient, AssignerServer};
pub use session::{JoinOptions, Session, SessionEnd, Status};
pub use store::StoreAddress;
pub use trefoil_channel::Security;
pub use trefoil_etcd::{EtcdAccess, TlsFiles};
pub use view::{ServerInfo, View};
pub use vitals::{LastLoss, Vitals};
pub use watcher::Watcher;
pub use wire::{WireError, decode_assignment, decode_diff, encode_assignment, encode_diff};
