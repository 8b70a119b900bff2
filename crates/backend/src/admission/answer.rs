//! Answers on their way out: what a long one holds is kept until it was sent.

use super::LongAnswer;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// What is sent of a long answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// In the place of the message without data.
    Head,
    Data,
    /// What follows any message.
    Rest,
}

/// An answer's body. The data of a long one is sent as it is: to encode it with
/// its message would be a second copy.
pub(crate) struct AdmittedAnswer<B> {
    inner: B,
    long: Option<LongAnswer>,
    next: Next,
}

impl<B> AdmittedAnswer<B> {
    pub(crate) fn new(inner: B, long: Option<LongAnswer>) -> Self {
        AdmittedAnswer {
            inner,
            next: if long.is_some() {
                Next::Head
            } else {
                Next::Rest
            },
            long,
        }
    }
}

impl<B> Body for AdmittedAnswer<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
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
                this.next = Next::Rest;
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut long.data)))))
            }
            // Asked for when the data has been sent.
            _ => Pin::new(&mut this.inner).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.next == Next::Rest && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.long {
            None => self.inner.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}
