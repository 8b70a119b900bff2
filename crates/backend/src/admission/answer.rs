//! Answers on their way out: what a long one holds is kept until it was sent, or nobody
//! has read on for too long.
//!
//! Its data goes to the connection in slices, each a copy of its own: what the
//! connection has not sent of them is then as much as of a short answer, and the rest
//! can be given up although the connection asks for nothing more while its client
//! reads nothing.

use super::LongAnswer;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tonic::Status;

/// How long the connection may take to ask for the next slice of a long answer: as long
/// as a request may take to arrive, and the clients of this workspace wait for an answer.
const DEPARTURE_PATIENCE: Duration = Duration::from_secs(10);
/// How long all of it may take: as long as a call may. Whoever reads a byte now and then
/// keeps others out no longer.
const DEPARTURE_LIMIT: Duration = Duration::from_secs(120);
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
    left: Arc<Mutex<Left>>,
    watch: AbortHandle,
}

/// What the connection has not asked for yet.
struct Left {
    /// None when its time was over.
    data: Option<Bytes>,
    /// When the connection asked last.
    asked: Instant,
}

/// When an answer is given up.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// This long after the connection has asked for something.
    idle: Duration,
    /// This long after it began, in any case.
    whole: Duration,
}

impl Patience {
    /// When an answer that began then is given up unless it is asked for again.
    fn end(self, begin: Instant, asked: Instant) -> Instant {
        (asked + self.idle).min(begin + self.whole)
    }
}

const PATIENCE: Patience = Patience {
    idle: DEPARTURE_PATIENCE,
    whole: DEPARTURE_LIMIT,
};

impl Departing {
    fn new(long: LongAnswer, patience: Patience) -> Self {
        let begin = Instant::now();
        let left = Arc::new(Mutex::new(Left {
            data: Some(long.data),
            asked: begin,
        }));
        let watched = Arc::downgrade(&left);
        let watch = tokio::spawn(async move {
            while let Some(left) = watched.upgrade() {
                let end = {
                    let mut left = lock(&left);
                    let end = patience.end(begin, left.asked);
                    if end <= Instant::now() {
                        left.data = None;
                        return;
                    }
                    end
                };
                drop(left);
                tokio::time::sleep_until(end).await;
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
        let mut left = lock(&self.left);
        left.asked = Instant::now();
        let Some(data) = left.data.as_mut() else {
            return Err(Status::deadline_exceeded(format!(
                "nothing of the answer was read for {} s, or not all of it within {} s",
                DEPARTURE_PATIENCE.as_secs(),
                DEPARTURE_LIMIT.as_secs()
            )));
        };
        let len = SLICE_LEN.min(data.len());
        let slice = Bytes::copy_from_slice(&data.split_to(len));
        Ok((slice, data.is_empty()))
    }
}

fn lock(left: &Mutex<Left>) -> MutexGuard<'_, Left> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
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
        Self::with_patience(inner, long, PATIENCE)
    }

    fn with_patience(inner: B, long: Option<LongAnswer>, patience: Patience) -> Self {
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
            .map(|at| ((at * 7) >> 8) as u8)
            .collect()
    }

    const LONG: Duration = Duration::from_secs(600);

    fn answer(held: &Arc<()>, idle: Duration, whole: Duration) -> AdmittedAnswer<Inner> {
        let inner = Full::from("in its place").map_err((|never| match never {}) as fn(_) -> _);
        let long = LongAnswer {
            head: Bytes::from_static(b"head"),
            data: Bytes::from_owner(Owned {
                bytes: value(),
                _held: Arc::clone(held),
            }),
        };
        AdmittedAnswer::with_patience(inner, Some(long), Patience { idle, whole })
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
            let answer = answer(&held, LONG, LONG);
            let read = answer.collect().await.unwrap().to_bytes();
            assert_eq!(read, [b"head", &value()[..]].concat());
            assert_eq!(Arc::strong_count(&held), 1);
        });
    }

    /// Though the connection holds a part of it, and never asks for the next one.
    #[test]
    fn what_nobody_reads_is_given_up() {
        let short = Duration::from_millis(20);
        for (idle, whole) in [(short, LONG), (LONG, short)] {
            block_on(async {
                let held = Arc::new(());
                let mut answer = answer(&held, idle, whole);
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

    #[test]
    fn who_reads_on_has_time() {
        let second = Duration::from_secs(1);
        let begin = Instant::now();
        for (asked, end) in [(0, 10), (8, 18), (109, 119), (111, 120), (119, 120)] {
            let found = PATIENCE.end(begin, begin + asked * second);
            assert_eq!(found, begin + end * second, "asked after {asked} s");
        }
        block_on(async {
            let mut answer = answer(&Arc::new(()), LONG, LONG);
            let asked = |answer: &AdmittedAnswer<Inner>| {
                let long = answer.long.as_ref().unwrap();
                lock(&long.left).asked
            };
            answer.frame().await.unwrap().unwrap();
            for _ in 0..2 {
                let before = asked(&answer);
                tokio::time::sleep(Duration::from_millis(2)).await;
                answer.frame().await.unwrap().unwrap();
                assert!(asked(&answer) > before);
            }
        });
    }
}
