//! What large requests hold is charged to the stores until they are answered.
//!
//! [`crate::inbound`] bounds what is being received; here is what becomes of it.
//!
//! A body is read into memory before its request can be executed. So many large
//! ones at once would be more than the process may hold, and what they take
//! would come off the stores. Therefore the length that stands at the front of
//! every message is read first; if it is a long one, the rest is left to the
//! connection's flow control until its turn has come, and is then charged to the
//! stores, which evict for it.

use crate::inbound::Bounded;
use crate::lending::Held;
use crate::state::State;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Bytes of a message's prefix: a flag, then its length.
const PREFIX_LEN: usize = 5;
/// Shorter messages are not counted.
const LEN_MIN: usize = 64 << 10;
/// What permits count.
const UNIT: u64 = 16 << 10;
/// Share of the stores' memory that bodies may take together.
const SHARE: u64 = 3;
/// What reading a body takes beside it, as a share: frames on their way into it.
const READING_SHARE: u64 = 5;
/// How long a client may take for a body whose turn has come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Permits for large bodies.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    permits: Arc<Semaphore>,
    count: u32,
}

impl Gate {
    /// For a process whose stores have so much memory together.
    pub(crate) fn new(stores_len: u64) -> Self {
        let count = (stores_len / SHARE / UNIT).clamp(1, u64::from(u32::MAX >> 4)) as u32;
        Gate {
            permits: Arc::new(Semaphore::new(count as usize)),
            count,
        }
    }

    /// A body that is longer than all may be goes alone.
    async fn enter(self, len: usize) -> Option<OwnedSemaphorePermit> {
        let units = (len as u64).div_ceil(UNIT).min(u64::from(self.count)) as u32;
        self.permits.acquire_many_owned(units).await.ok()
    }
}

/// What a request holds until it has been answered.
#[derive(Default)]
pub(crate) struct Admitted {
    held: Option<Held>,
    permit: Option<OwnedSemaphorePermit>,
    bytes: u64,
    state: Option<Arc<State>>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            state.bound.count_transient(-(self.bytes as i64));
        }
        drop(self.held.take());
        drop(self.permit.take());
    }
}

type Turn = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

enum Stage {
    /// The prefix is not complete.
    Prefix(Vec<u8>),
    /// It is a long one, and others go first.
    Waiting {
        turn: Turn,
        len: usize,
        first: Bytes,
    },
    /// Its turn has come.
    Open(Pin<Box<Sleep>>),
    /// It is a short one.
    Short,
}

/// A request's body that waits for its turn.
pub(crate) struct AdmittedBody {
    inner: Bounded<Incoming>,
    stage: Stage,
    state: Arc<State>,
    slot: Arc<Mutex<Admitted>>,
}

impl AdmittedBody {
    /// The body, and what is to be kept until its request has been answered.
    pub(crate) fn new(inner: Bounded<Incoming>, state: Arc<State>) -> (Self, Arc<Mutex<Admitted>>) {
        let slot = Arc::<Mutex<Admitted>>::default();
        let body = AdmittedBody {
            inner,
            stage: Stage::Prefix(Vec::new()),
            state,
            slot: Arc::clone(&slot),
        };
        (body, slot)
    }

    /// Looks at a frame as long as the message's length is not known.
    fn judge(&mut self, frame: Bytes) -> Option<Bytes> {
        let Stage::Prefix(prefix) = &mut self.stage else {
            return Some(frame);
        };
        let missing = PREFIX_LEN - prefix.len();
        prefix.extend_from_slice(&frame[..frame.len().min(missing)]);
        let Some(len) = prefix.get(1..PREFIX_LEN) else {
            return Some(frame);
        };
        let len = u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize;
        if !(LEN_MIN..=trefoil_rpc::MESSAGE_LEN_MAX).contains(&len) {
            // One that is too long is refused before it is read.
            self.stage = Stage::Short;
            return Some(frame);
        }
        self.stage = Stage::Waiting {
            turn: Box::pin(self.state.gate.clone().enter(len)),
            len,
            first: frame,
        };
        None
    }

    fn admit(&mut self, permit: Option<OwnedSemaphorePermit>, len: usize) {
        let len = len as u64;
        let held = self.state.lending.hold(len + len / READING_SHARE);
        let bytes = held.bytes();
        self.state.bound.count_transient(bytes as i64);
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Admitted {
            held: Some(held),
            permit,
            bytes,
            state: Some(Arc::clone(&self.state)),
        };
    }
}

impl Body for AdmittedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        loop {
            if let Stage::Waiting { turn, .. } = &mut self.stage {
                let permit = ready!(turn.as_mut().poll(context));
                let patience = Stage::Open(Box::pin(tokio::time::sleep(PATIENCE)));
                let Stage::Waiting { len, first, .. } =
                    std::mem::replace(&mut self.stage, patience)
                else {
                    unreachable!("the stage was looked at just now");
                };
                self.admit(permit, len);
                return Poll::Ready(Some(Ok(Frame::data(first))));
            }
            let polled = Pin::new(&mut self.inner).poll_frame(context);
            if polled.is_pending()
                && let Stage::Open(patience) = &mut self.stage
                && patience.as_mut().poll(context).is_ready()
            {
                let late = tonic::Status::deadline_exceeded("the request's body did not arrive");
                return Poll::Ready(Some(Err(late)));
            }
            let frame = match ready!(polled) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Err(other) => return Poll::Ready(Some(Ok(other))),
                Ok(data) => {
                    if let Some(data) = self.judge(data) {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        !matches!(self.stage, Stage::Waiting { .. }) && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
