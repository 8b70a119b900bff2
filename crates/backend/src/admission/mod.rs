//! Bounded memory for long requests and answers over gRPC.
//!
//! A message is read whole before it can be executed, and an answer is copied
//! whole before it is sent: tens of megabytes each, hundreds of calls a
//! connection. So whatever is long takes its turn first, for a share of the
//! stores' memory, and is then charged to the stores, which evict for it.
//!
//! ```text
//! frame with a message's length ─► window charged ─► turn ─► all of it charged
//!   ─► read ─► executed ─► answered ─► given back
//! ```
//!
//! | what | where it is |
//! |---|---|
//! | the queue | [`room`] |
//! | requests on their way in | [`body`] |
//! | answers on their way out | [`answer`] |
//!
//! What waits for its turn is left to the connection's flow control, which keeps
//! it at the client but for one window.

mod answer;
mod body;
mod room;

pub(crate) use answer::AdmittedAnswer;
pub(crate) use body::{AdmittedBody, Kind};

use crate::lending::Held;
use crate::state::State;
use hyper::body::Bytes;
use room::{Permit, Room};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;

/// Shorter messages are not counted: their number is bounded by the
/// connections' and their streams'.
pub(crate) const LEN_MIN: usize = 64 << 10;
/// Share of the stores' memory that all may take together.
const SHARE: u64 = 3;
/// What a long message takes beside its own length: frames on their way.
const BESIDE_LEN: u64 = 64 << 10;
/// How long a message may wait for its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(30);

/// The turns of a process.
#[derive(Debug)]
pub(crate) struct Gate {
    room: Arc<Room>,
}

impl Gate {
    /// For a process whose stores have so much memory together.
    pub(crate) fn new(stores_len: u64) -> Self {
        Gate {
            room: Room::new(stores_len / SHARE),
        }
    }

    /// The stores have another size now.
    pub(crate) fn resize(&self, stores_len: u64) {
        self.room.set_limit(stores_len / SHARE);
    }
}

/// Memory for one message: a turn, and bytes on the stores' accounts, until this
/// is dropped.
pub(crate) struct Admitted {
    /// Given back first, so that the next in turn finds it.
    _held: Held,
    /// What it held before its turn.
    _window: Option<Window>,
    _permit: Permit,
    /// Bytes that have become resident so far.
    resident: AtomicI64,
    charged: u64,
    state: Arc<State>,
}

impl Admitted {
    /// Counts bytes that have become resident, or no more are. No more than are charged: of
    /// a call of many messages only the last ones are here still.
    pub(crate) fn count(&self, bytes: i64) {
        let counted = |before: i64| (before + bytes).min(self.charged as i64);
        let before = self
            .resident
            .update(Ordering::Relaxed, Ordering::Relaxed, counted);
        let moved = counted(before) - before;
        self.state.bound.transient.count_resident(moved);
    }
}

impl std::fmt::Debug for Admitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admitted")
            .field("charged", &self.charged)
            .finish_non_exhaustive()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let transient = &self.state.bound.transient;
        transient.count_resident(-self.resident.load(Ordering::Relaxed));
        transient.count_charged(-(self.charged as i64));
    }
}

/// A long answer: among the extensions of one without data, from the handler to
/// the connection, which sends these bytes in its place.
#[derive(Clone, Debug)]
pub(crate) struct LongAnswer {
    pub(crate) head: Bytes,
    /// Owns its [`Admitted`]: the connection may hold the end of it, and with it
    /// all of it, when the call has long ended.
    pub(crate) data: Bytes,
}

/// What a message that waits holds already: as much as its connection lets come. On the
/// stores' accounts, and resident, until this is dropped.
struct Window {
    held: Held,
    state: Arc<State>,
}

impl Window {
    fn charge(state: &Arc<State>) -> Self {
        // As much as there is: the window is full or will be, whatever is charged.
        let held = state.lending.hold(BESIDE_LEN, None);
        let bytes = held.bytes() as i64;
        state.bound.transient.count_charged(bytes);
        state.bound.transient.count_resident(bytes);
        Window {
            held,
            state: Arc::clone(state),
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let bytes = self.held.bytes() as i64;
        self.state.bound.transient.count_resident(-bytes);
        self.state.bound.transient.count_charged(-bytes);
    }
}

/// Admits a message that is on its way in: see [`admit`].
pub(crate) async fn admit_request(state: Arc<State>, len: u64) -> Result<Arc<Admitted>, Status> {
    let window = Window::charge(&state);
    admit(state, len, None, Some(window)).await
}

/// Admits an answer of which nothing is there yet: see [`admit`].
pub(crate) async fn admit_answer(
    state: Arc<State>,
    len: u64,
    of: u32,
) -> Result<Arc<Admitted>, Status> {
    admit(state, len, Some(of), None).await
}

/// Waits until `len` bytes may be held, and charges them. The stores evict for it, that of
/// `spared`, a backend's number, last.
async fn admit(
    state: Arc<State>,
    len: u64,
    spared: Option<u32>,
    window: Option<Window>,
) -> Result<Arc<Admitted>, Status> {
    state.look_at_memory();
    let mut permit = timeout(TURN_PATIENCE, state.gate.room.enter(len))
        .await
        .map_err(|_| {
            Status::unavailable(format!(
                "no room among other long messages within {} s: try again",
                TURN_PATIENCE.as_secs()
            ))
        })?;
    let mut held = state.lending.hold(len, spared);
    if held.bytes() < len {
        // What is missing may be held by others in turn: once more, alone.
        drop((held, permit));
        permit = timeout(TURN_PATIENCE, state.gate.room.enter(u64::MAX >> 1))
            .await
            .map_err(|_| Status::unavailable("the memory is held by other messages: try again"))?;
        // Before the others are let in again.
        held = state.lending.hold(len, spared);
        permit.shrink_to(len);
    }
    if held.bytes() < len {
        return Err(Status::resource_exhausted(format!(
            "a message of {len} bytes does not fit in memory, even with everything evicted for it"
        )));
    }
    let charged = held.bytes();
    state.bound.transient.count_charged(charged as i64);
    Ok(Arc::new(Admitted {
        _held: held,
        _window: window,
        _permit: permit,
        resident: AtomicI64::new(0),
        charged,
        state,
    }))
}
