//! Bounded memory for requests that are still being received.
//!
//! A value may have tens of megabytes, a connection hundreds of calls, and what has
//! arrived of a request lies on the heap, outside the stores' account. So a call
//! whose message is long takes room for all of it before it is read on: its length
//! stands in the message's first bytes. Those that find no room wait; flow control
//! keeps their bytes at the client. Short ones are bounded by their number.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// Messages up to this length take no room.
const SHORT_LEN: usize = 64 << 10;
/// Unit of the account.
const UNIT_LEN: usize = 1 << 10;
/// Share of the process's memory that requests may take while they arrive.
const SHARE: u64 = 16;
/// Bytes before every message: a flag, and its length.
const PREFIX_LEN: usize = 5;
/// How long a request may take to arrive, waiting for room included.
const PATIENCE: Duration = Duration::from_secs(30);

/// Room for long requests, of all connections together.
#[derive(Clone, Debug)]
pub(crate) struct Inbound {
    room: Arc<Semaphore>,
    unit_count: u32,
}

impl Inbound {
    /// Room in a process of `memory_limit` bytes, for at least one message of
    /// `message_len_max` bytes.
    pub(crate) fn new(memory_limit: u64, message_len_max: usize) -> Self {
        let share = usize::try_from(memory_limit / SHARE).unwrap_or(usize::MAX);
        let unit_count = share.max(message_len_max).div_ceil(UNIT_LEN) + 1;
        let unit_count = unit_count.min(1 << 28) as u32;
        Inbound {
            room: Arc::new(Semaphore::new(unit_count as usize)),
            unit_count,
        }
    }

    /// The same body, read only while there is room for it.
    pub(crate) fn bounded<B>(&self, body: B) -> Bounded<B> {
        Bounded {
            body,
            inbound: self.clone(),
            stage: Stage::First,
            deadline: None,
        }
    }

    /// What a message takes whose first bytes are these.
    fn units(&self, first: &[u8]) -> u32 {
        let Some(prefix) = first.first_chunk::<PREFIX_LEN>() else {
            // Nobody sends so little; whoever does is taken for the longest.
            return self.unit_count;
        };
        let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        match len <= SHORT_LEN {
            true => 0,
            // One that is too long is refused as such by who decodes it.
            false => (len.div_ceil(UNIT_LEN) as u32).min(self.unit_count),
        }
    }
}

type Room = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

enum Stage {
    /// Nothing has come yet.
    First,
    /// The first bytes have, and wait for room.
    Waiting(Room, Bytes),
    /// There is room, until the body is dropped.
    Open { _room: Option<OwnedSemaphorePermit> },
}

/// A request's body that takes room before it is read.
pub(crate) struct Bounded<B> {
    body: B,
    inbound: Inbound,
    stage: Stage,
    /// Made when something has to be waited for.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> Bounded<B> {
    /// Waits, but not for ever.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, Status>>> {
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        match deadline.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Some(Err(Status::unavailable(format!(
                "the request did not arrive within {} s, or found no room among other long ones: try again",
                PATIENCE.as_secs()
            ))))),
        }
    }
}

impl<B> Body for Bounded<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Stage::Waiting(room, first) = &mut this.stage {
            let Poll::Ready(permit) = room.as_mut().poll(context) else {
                return this.wait(context);
            };
            let first = std::mem::take(first);
            this.stage = Stage::Open { _room: permit.ok() };
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Pending => return this.wait(context),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => {
                return Poll::Ready(Some(Err(Status::from_error(error.into()))));
            }
            Poll::Ready(Some(Ok(frame))) => frame,
        };
        if !matches!(this.stage, Stage::First) {
            return Poll::Ready(Some(Ok(frame)));
        }
        let units = frame.data_ref().map_or(0, |data| this.inbound.units(data));
        if units == 0 {
            this.stage = Stage::Open { _room: None };
            return Poll::Ready(Some(Ok(frame)));
        }
        let first = frame.into_data().unwrap_or_default();
        let room = Arc::clone(&this.inbound.room).acquire_many_owned(units);
        this.stage = Stage::Waiting(Box::pin(room), first);
        self.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        !matches!(self.stage, Stage::Waiting(..)) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Full};

    /// A message of `len` bytes, with its prefix.
    fn message(len: usize) -> Full<Bytes> {
        let mut bytes = vec![0; PREFIX_LEN + len];
        bytes[1..PREFIX_LEN].copy_from_slice(&(len as u32).to_be_bytes());
        Full::new(bytes.into())
    }

    fn is_read<B>(body: &mut Bounded<B>) -> bool
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut context = Context::from_waker(std::task::Waker::noop());
        matches!(
            Pin::new(body).poll_frame(&mut context),
            Poll::Ready(Some(Ok(_)))
        )
    }

    #[tokio::test]
    async fn long_requests_wait_for_room_and_short_ones_do_not() {
        const MIB: usize = 1 << 20;
        let inbound = Inbound::new(64 << 20, 4 * MIB);
        let mut first = inbound.bounded(message(3 * MIB));
        assert!(is_read(&mut first));
        let mut second = inbound.bounded(message(3 * MIB));
        assert!(!is_read(&mut second), "no room");
        let mut short = inbound.bounded(message(SHORT_LEN));
        assert!(is_read(&mut short), "short ones go on");
        drop(first);
        assert!(is_read(&mut second), "its room has become free");
        let whole = second.collect().await.unwrap();
        assert_eq!(whole.to_bytes().len(), 0, "it was one frame");
        // Longer than all the room: read alone, refused by who decodes it.
        let mut huge = inbound.bounded(message(9 * MIB));
        assert!(is_read(&mut huge));
        let mut tiny = inbound.bounded(Full::new(Bytes::from_static(b"ab")));
        assert!(!is_read(&mut tiny), "taken for the longest");
        drop(huge);
        assert!(is_read(&mut tiny));
    }
}
