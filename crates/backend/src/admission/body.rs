//! Requests on their way in: every message of a call is measured by the length
//! that stands before it.

use super::{Admitted, LEN_MIN, admit_request};
use crate::state::State;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// Bytes of a message's prefix: a flag, then its length.
const PREFIX_LEN: usize = 5;
/// How long a message may take to arrive, once it has its turn.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(10);
/// Messages of a streamed call that are in memory at once: one that arrives, one
/// that waits, one that is being read.
const STREAMED_COUNT: u64 = 3;

/// Longest message that holds no value: touches are the longest.
const SHORT_LEN_MAX: usize = 1 << 20;
const _: () = assert!(trefoil_rpc::TOUCH_COUNT_MAX * 10 < SHORT_LEN_MAX);

/// What a message that holds no value takes when it has been read, as so many times its
/// length: an entry of a list may be two bytes of it, of a partition without touches.
const SHORT_TIMES: u64 = 32;

/// What kind of call a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One message that may hold a value, without delay.
    Unary,
    /// One message that holds none.
    Short,
    /// Several, with pauses between them.
    Streamed,
}

impl Kind {
    /// Of the call with this path.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            trefoil_rpc::RELOAD_PATH => Kind::Streamed,
            trefoil_rpc::MUTATE_PATH => Kind::Unary,
            _ => Kind::Short,
        }
    }

    /// Longest message, in bytes.
    const fn len_max(self) -> usize {
        match self {
            Kind::Unary | Kind::Streamed => trefoil_rpc::MESSAGE_LEN_MAX,
            Kind::Short => SHORT_LEN_MAX,
        }
    }

    /// What a message of so many bytes may take, until its call has been answered.
    const fn takes(self, len: usize) -> u64 {
        let times = match self {
            Kind::Unary => 1,
            Kind::Short => SHORT_TIMES,
            Kind::Streamed => STREAMED_COUNT,
        };
        len as u64 * times
    }
}

/// What a call's messages hold, to be kept until it has been answered.
#[derive(Default)]
pub(crate) struct Arrived(Mutex<Option<Arc<Admitted>>>);

impl Arrived {
    fn put(&self, admitted: Option<Arc<Admitted>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = admitted;
    }

    fn count(&self, bytes: usize) {
        let admitted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(admitted) = admitted.as_ref() {
            admitted.count(bytes as i64);
        }
    }
}

/// Where in the stream of messages the next byte lies.
#[derive(Debug, Default)]
struct Framing {
    prefix: [u8; PREFIX_LEN],
    prefix_len: usize,
    /// Bytes of the message that are still to come.
    left: u64,
}

impl Framing {
    /// Whether the next byte begins a message.
    fn is_between(&self) -> bool {
        self.prefix_len == 0 && self.left == 0
    }

    /// Passes over `data`; the length of the longest message that begins in it,
    /// or 0.
    fn pass(&mut self, mut data: &[u8]) -> usize {
        let mut longest = 0;
        while !data.is_empty() {
            if self.left > 0 {
                let skip = data
                    .len()
                    .min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= skip as u64;
                data = &data[skip..];
                continue;
            }
            let take = data.len().min(PREFIX_LEN - self.prefix_len);
            self.prefix[self.prefix_len..self.prefix_len + take].copy_from_slice(&data[..take]);
            self.prefix_len += take;
            data = &data[take..];
            if self.prefix_len == PREFIX_LEN {
                let [_, a, b, c, d] = self.prefix;
                let len = u32::from_be_bytes([a, b, c, d]);
                self.prefix_len = 0;
                self.left = u64::from(len);
                longest = longest.max(len as usize);
            }
        }
        longest
    }
}

type Turn = Pin<Box<dyn Future<Output = Result<Arc<Admitted>, Status>> + Send>>;

/// A call's body whose long messages wait for their turns.
pub(crate) struct AdmittedBody<B> {
    inner: B,
    kind: Kind,
    state: Arc<State>,
    framing: Framing,
    /// Bytes of a message for which room was taken.
    room_len: usize,
    /// A frame with the beginning of a long message, and what it waits for.
    waiting: Option<(Turn, Bytes)>,
    /// Made when something has to be waited for.
    deadline: Option<Pin<Box<Sleep>>>,
    arrived: Arc<Arrived>,
}

impl<B> AdmittedBody<B> {
    /// The body, and what is to be kept until its call has been answered.
    pub(crate) fn new(inner: B, kind: Kind, state: Arc<State>) -> (Self, Arc<Arrived>) {
        let arrived = Arc::<Arrived>::default();
        let body = AdmittedBody {
            inner,
            kind,
            state,
            framing: Framing::default(),
            room_len: 0,
            waiting: None,
            deadline: None,
            arrived: Arc::clone(&arrived),
        };
        (body, arrived)
    }

    /// What to wait for before a frame with these bytes may be read, if anything.
    fn judge(&mut self, data: &[u8]) -> Result<Option<Turn>, Status> {
        let (len, len_max) = (self.framing.pass(data), self.kind.len_max());
        // Before any of it is read.
        if len > len_max {
            return Err(Status::out_of_range(format!(
                "a message of {len} bytes: this call takes {len_max} at most"
            )));
        }
        if len < LEN_MIN || len <= self.room_len {
            return Ok(None);
        }
        // What was taken for a shorter one before goes first: nobody waits with
        // room in its hands.
        self.arrived.put(None);
        self.room_len = len;
        let turn = admit_request(Arc::clone(&self.state), self.kind.takes(len));
        Ok(Some(Box::pin(turn)))
    }

    /// Whether the client has kept others waiting for too long.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        if self.kind == Kind::Streamed && self.framing.is_between() {
            self.deadline = None;
            return false;
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(ARRIVAL_PATIENCE)));
        deadline.as_mut().poll(context).is_ready()
    }
}

impl<B> Body for AdmittedBody<B>
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
        loop {
            if let Some((turn, _)) = &mut this.waiting {
                let admitted = ready!(turn.as_mut().poll(context));
                let (_, frame) = this.waiting.take().expect("it was polled just now");
                let admitted = match admitted {
                    Ok(admitted) => admitted,
                    Err(status) => return Poll::Ready(Some(Err(status))),
                };
                admitted.count(frame.len() as i64);
                this.arrived.put(Some(admitted));
                this.deadline = None;
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            let frame = match Pin::new(&mut this.inner).poll_frame(context) {
                Poll::Pending if this.is_late(context) => {
                    let late = format!(
                        "the request did not arrive within {} s",
                        ARRIVAL_PATIENCE.as_secs()
                    );
                    return Poll::Ready(Some(Err(Status::deadline_exceeded(late))));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(Status::from_error(error.into()))));
                }
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            match this.judge(&data) {
                Err(status) => return Poll::Ready(Some(Err(status))),
                Ok(Some(turn)) => this.waiting = Some((turn, data)),
                Ok(None) => {
                    this.arrived.count(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use trefoil_rpc::v1;

    fn message(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; PREFIX_LEN + len];
        bytes[1..PREFIX_LEN].copy_from_slice(&(len as u32).to_be_bytes());
        bytes
    }

    #[test]
    fn what_is_charged_is_no_less_than_what_a_message_becomes() {
        let touches = |partitions| v1::TouchRequest {
            partitions,
            ..v1::TouchRequest::default()
        };
        let empty = v1::PartitionTouches::default();
        let short = v1::PartitionTouches {
            slots: vec![1],
            names: vec![1],
            ..empty.clone()
        };
        for partitions in [vec![empty; 40_000], vec![short; 20_000]] {
            let bytes = touches(partitions).encode_to_vec();
            assert!((LEN_MIN..SHORT_LEN_MAX).contains(&bytes.len()));
            let read = v1::TouchRequest::decode(&bytes[..]).unwrap();
            let of_lists = read
                .partitions
                .iter()
                .map(|one| 4 * (one.slots.capacity() + one.names.capacity()));
            let takes =
                read.partitions.len() * size_of::<v1::PartitionTouches>() + of_lists.sum::<usize>();
            let charged = Kind::of("/trefoil.v1.Trefoil/Touch").takes(bytes.len());
            assert!(charged >= takes as u64, "{charged} {takes}");
        }
        assert_eq!(Kind::of(trefoil_rpc::MUTATE_PATH).takes(70_000), 70_000);
    }

    #[test]
    fn every_message_is_measured_however_it_is_cut() {
        let lens = [3, 0, 70_000, 12];
        let bytes: Vec<u8> = lens.iter().flat_map(|len| message(*len)).collect();
        for cut in [1, 4, 5, 7, 4096, bytes.len()] {
            let mut framing = Framing::default();
            let seen: Vec<usize> = bytes
                .chunks(cut)
                .map(|chunk| framing.pass(chunk))
                .filter(|len| *len > 0)
                .collect();
            assert!(framing.is_between());
            if cut < 5 {
                assert_eq!(seen, [3, 70_000, 12], "{cut}");
            }
            assert_eq!(seen.into_iter().max(), Some(70_000), "{cut}");
        }
        let mut framing = Framing::default();
        framing.pass(&message(9)[..8]);
        assert!(!framing.is_between());
    }
}
