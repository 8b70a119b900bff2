//! What every fabric offers to the side that asks.
//!
//! The operation machines of `client-core` say which reads and messages they
//! want; a driver carries them out over an [`Initiator`]. A read is submitted
//! with a token of the driver's choice. A fabric that reaches the bytes by
//! itself (`shm`, and `simulated` when told so) answers at once with
//! [`Progress::Done`] and never completes that token again; a fabric that has
//! to ask somebody (`softnic` a remote engine, `verbs` the NIC) answers
//! [`Progress::Pending`] and delivers a [`Completion`] out of a later
//! [`Initiator::poll`]. So one driver loop serves both:
//!
//! ```text
//! submit index reads of the cohort ──► Done: feed the machine now
//!                                  └─► Pending: poll/wait, feed it then
//! ```
//!
//! How the others will fit: `softnic` puts reads into its solicited window
//! and matches answers by token; its votes are judged from the bucket bytes in
//! the answer, stamped with the epoch by the target. `verbs` posts RDMA reads
//! into registered buffers that it owns, so completed data is lent to the
//! callback, not written to the caller's buffer. `simulated` keeps submitted
//! reads in the simulator's event queue. All of them judge buckets by
//! [`trefoil_client_core::vote::index_vote`].
//!
//! `shm::Connection` has the same operations as inherent methods, which take
//! closures by value and are inlined: what knows its fabric uses those.

use crate::agreement::Agreement;
use std::time::Duration;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::message::{Answer, Request};
use trefoil_layout::{KeyHash, Pointer};
use trefoil_region::WordBuffer;

/// Names a submitted read; chosen by the caller, unique among its reads in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Names a request that was sent; repeated by its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// How far a submitted read got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// It is complete; no completion follows.
    Done(T),
    /// A completion with its token follows.
    Pending,
}

/// The pointer leads outside the window that this side knows: it is torn, or
/// the window has grown. Refresh, then read the index again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pointer leads outside the known data window")]
pub struct OutOfWindow;

/// The target is gone, or broke the protocol. Connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend has closed the connection")]
pub struct Closed;

/// Why a message was not sent. Nothing of it can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The target is behind: poll for answers, or wait, then try again.
    #[error("the message queue is full")]
    Full,
    /// Longer than this fabric carries: use RPC.
    #[error("the message is longer than this fabric carries")]
    TooLarge,
    /// Connect again, or use RPC.
    #[error("the connection is closed")]
    Closed,
    /// The target gave this connection no message path: use RPC.
    #[error("this connection carries reads only")]
    NoMessages,
}

impl From<Closed> for SendError {
    fn from(Closed: Closed) -> Self {
        SendError::Closed
    }
}

/// What [`Initiator::refresh`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refreshed {
    /// Nothing that this side did not know: if it was needed, wait a moment.
    Unchanged,
    /// Windows or config id have changed.
    Changed,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Something completed, or a connection was closed: poll to find out.
    Ready,
    /// Nothing did in time.
    TimedOut,
}

/// What a poll delivers.
#[derive(Clone, Copy, Debug)]
pub enum Completion<'a> {
    /// A submitted index read.
    Index(Token, IndexVote),
    /// A submitted data read; the bytes are lent for the call.
    Data(Token, Result<&'a [u8], OutOfWindow>),
    /// An answer to a message.
    Answer(RequestId, Answer<'a>),
}

/// One connection to one backend.
pub trait Initiator {
    /// What was agreed when the connection was made.
    fn agreement(&self) -> &Agreement;

    /// Whether what is read now may be believed, by the lease that the backend
    /// renews; always true where dead memory cannot be read.
    fn lease_alive(&self, now_monotonic_ns: u64) -> bool;

    /// Partition of a key at this backend.
    fn partition(&self, hash: KeyHash) -> usize {
        hash.partition(self.agreement().partition_count)
    }

    /// Id of the index window in use for a partition; touches carry it.
    fn window_id(&self, partition: usize) -> u64;

    /// Takes windows and config id anew.
    fn refresh(&mut self) -> Refreshed;

    /// A hint that the bucket of `hash` will be read soon.
    fn prefetch_bucket(&self, hash: KeyHash) {
        let _ = hash;
    }

    /// A hint that `pointer` will be read soon.
    fn prefetch_data(&self, pointer: Pointer) {
        let _ = pointer;
    }

    /// Reads what the backend's index says about a key.
    fn submit_index(&mut self, token: Token, hash: KeyHash) -> Progress<IndexVote>;

    /// Reads a data entry. If it is done at once, the bytes are in `into`;
    /// otherwise they come with the completion.
    fn submit_data(
        &mut self,
        token: Token,
        pointer: Pointer,
        into: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>>;

    /// Sends a message.
    fn send(&mut self, request: &Request<'_>) -> Result<RequestId, SendError>;

    /// Reports items that were read; lost without notice if there is no room.
    fn touch(&mut self, partition: usize, window_id: u64, slots: &[u32]);

    /// Delivers what has completed and returns how much that was.
    fn poll(&mut self, on: &mut dyn FnMut(Completion<'_>)) -> Result<usize, Closed>;

    /// Waits until a poll would deliver something, or the connection is closed.
    fn wait(&mut self, timeout: Duration) -> Waited;
}
