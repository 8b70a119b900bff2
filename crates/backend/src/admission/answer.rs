//! Answers on their way out: what a long one holds is kept until it was sent, or nobody
//! has read it for too long.
//!
//! Its data goes to the connection in slices, each a copy of its own: what the
//! connection has not sent of them is then as much as of a short answer, and the rest
//! can be given up although the connection asks for nothing more while its client
//! reads nothing.

use super::LongAnswer;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tonic::Status;

/// How long a long answer may take to be read: as long as a request may take to
/// arrive, and the clients of this workspace wait for an answer.
const DEPARTURE_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that go to the connection at a time.
const SLICE_LEN: usize = 64 << 10;

/// What is sent of a long answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// In the place of the message without data.
    Head,
    Data,
    /// What follows any message.
    Rest,
}

/// A long answer on its way: what was not sent yet.
struct Departing {
    head: Bytes,
    /// None when its time was over.
    left: Arc<Mutex<Option<Bytes>>>,
    watch: AbortHandle,
}

impl Departing {
    fn new(long: LongAnswer, patience: Duration) -> Self {
        let left = Arc::new(Mutex::new(Some(long.data)));
        let watched = Arc::downgrade(&left);
        let watch = tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            if let Some(left) = watched.upgrade() {
                left.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        });
        Departing {
            head: long.head,
            left,
            watch: watch.abort_handle(),
        }
    }

    /// The next slice, and whether it is the last one.
    fn next_slice(&self) -> Result<(Bytes, bool), Status> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(data) = left.as_mut() else {
            return Err(Status::deadline_exceeded(format!(
                "the answer was not read within {} s",
                DEPARTURE_PATIENCE.as_secs()
            )));
        };
        let len = SLICE_LEN.min(data.len());
        let slice = Bytes::copy_from_slice(&data.split_to(len));
        Ok((slice, data.is_empty()))
    }
}

impl Drop for Departing {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// An answer's body. The data of a long one is sent as it is: to encode it with
/// its message would be a second copy of all of it.
pub(crate) struct AdmittedAnswer<B> {
    inner: B,
    long: Option<Departing>,
    next: Next,
}

impl<B> AdmittedAnswer<B> {
    pub(crate) fn new(inner: B, long: Option<LongAnswer>) -> Self {
        Self::with_patience(inner, long, DEPARTURE_PATIENCE)
    }

    fn with_patience(inner: B, long: Option<LongAnswer>, patience: Duration) -> Self {
        AdmittedAnswer {
            inner,
            next: match long.is_some() {
                true => Next::Head,
                false => Next::Rest,
            },
            long: long.map(|long| Departing::new(long, patience)),
        }
    }
}

impl<B> Body for AdmittedAnswer<B>
where
    B: Body<Data = Bytes, Error = Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        match (this.next, &mut this.long) {
            (Next::Head, Some(long)) => {
                let frame = ready!(Pin::new(&mut this.inner).poll_frame(context));
                if !matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
                    return Poll::Ready(frame);
                }
                this.next = Next::Data;
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut long.head)))))
            }
            (Next::Data, Some(long)) => {
                let (slice, is_last) = match long.next_slice() {
                    Ok(next) => next,
                    Err(status) => return Poll::Ready(Some(Err(status))),
                };
                if is_last {
                    this.next = Next::Rest;
                    this.long = None;
                }
                Poll::Ready(Some(Ok(Frame::data(slice))))
            }
            // Asked for when the data has been sent.
            _ => Pin::new(&mut this.inner).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.next == Next::Rest && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.next {
            Next::Rest => self.inner.size_hint(),
            Next::Head | Next::Data => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Full};

    type Inner =
        http_body_util::combinators::MapErr<Full<Bytes>, fn(std::convert::Infallible) -> Status>;

    struct Owned {
        bytes: Vec<u8>,
        _held: Arc<()>,
    }

    impl AsRef<[u8]> for Owned {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    fn value() -> Vec<u8> {
        (0..5 * SLICE_LEN / 2)
            .map(|at| (at * 7 >> 8) as u8)
            .collect()
    }

    fn answer(held: &Arc<()>, patience: Duration) -> AdmittedAnswer<Inner> {
        let inner = Full::from("in its place").map_err((|never| match never {}) as fn(_) -> _);
        let long = LongAnswer {
            head: Bytes::from_static(b"head"),
            data: Bytes::from_owner(Owned {
                bytes: value(),
                _held: Arc::clone(held),
            }),
        };
        AdmittedAnswer::with_patience(inner, Some(long), patience)
    }

    fn block_on(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn what_is_read_is_the_head_and_the_data() {
        block_on(async {
            let held = Arc::new(());
            let answer = answer(&held, Duration::from_secs(600));
            let read = answer.collect().await.unwrap().to_bytes();
            assert_eq!(read, [b"head", &value()[..]].concat());
            assert_eq!(Arc::strong_count(&held), 1);
        });
    }

    /// Though the connection holds a part of it, and never asks for the next one.
    #[test]
    fn what_nobody_reads_is_given_up() {
        block_on(async {
            let held = Arc::new(());
            let mut answer = answer(&held, Duration::from_millis(20));
            answer.frame().await.unwrap().unwrap();
            let Some(Ok(_kept)) = answer.frame().await else {
                // A machine that has stood still meanwhile.
                return;
            };
            while Arc::strong_count(&held) > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let late = answer.frame().await.unwrap().unwrap_err();
            assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        });
    }
}
