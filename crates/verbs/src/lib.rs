//! RDMA devices by the system's libibverbs, which is loaded at run time: what reliable
//! connections need, and no more. Nothing of it is needed to build.
//!
//! ```text
//! Library ─► Device (opened by an address of the host; one protection domain)
//!              ├─ Region          memory that the device may read and write
//!              ├─ Completions     what it has done, and a descriptor to wait for it
//!              ├─ ReceiveQueue    receive buffers that several connections share
//!              └─ Connection      a reliable connection: send, receive, read
//! ```
//!
//! Each type owns what it has made, and holds what that needs: objects are taken apart in the
//! order that the library demands, whatever order they are dropped in.
//!
//! # Safety
//! 1. The functions have the forms, and the structures the layouts, of the library's ABI 1
//!    (`IBVERBS_1.0` and `1.1`), which its releases keep. Sizes and offsets are asserted when
//!    this is compiled (`raw.rs`), for hosts of 64 bits.
//! 2. The library may be called by any thread at any time; it locks by itself.
//! 3. A device writes into memory of this process while it runs. That memory is a
//!    [`trefoil_region::Mapping`]: nobody holds a reference to what is in it, all access is by
//!    atomic words. It is unmapped only after its registration was given back.
//! 4. Requests name memory by a region and a range of it, which is checked.

mod completions;
mod connection;
mod device;
mod error;
mod library;
mod raw;
mod receive;
mod region;

pub use completions::{Completion, Completions, Outcome};
pub use connection::{Connection, Peer, SendFlags, Timers};
pub use device::{Device, Mtu};
pub use error::VerbsError;
pub use library::{Library, LibraryError};
pub use receive::ReceiveQueue;
pub use region::{Region, RemoteUse};
