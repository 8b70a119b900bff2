//! Reader and channel of one backend in one hand.

use super::channel::Channel;
use super::reader::Reader;
use crate::agreement::Agreement;
use crate::initiator::{
    Closed, Completion, Initiator, OutOfWindow, Progress, Refreshed, RequestId, SendError, Token,
    Waited,
};
use std::time::Duration;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::message::{Answer, Request};
use trefoil_layout::{KeyHash, Pointer};
use trefoil_region::WordBuffer;

/// A connection to a backend on the same host. Reads take `&self` and may be
/// shared between threads; messages take `&mut self`. [`Connection::into_parts`]
/// separates the two.
#[derive(Debug)]
pub struct Connection {
    reader: Reader,
    channel: Option<Channel>,
}

impl Connection {
    pub(super) fn from_parts(reader: Reader, channel: Option<Channel>) -> Self {
        Connection { reader, channel }
    }

    /// The one-sided half and the message path, if there is one.
    pub fn into_parts(self) -> (Reader, Option<Channel>) {
        (self.reader, self.channel)
    }

    /// The one-sided half, and the message path if there is one, to be used
    /// side by side.
    #[inline(always)]
    pub fn split(&mut self) -> (&Reader, Option<&mut Channel>) {
        (&self.reader, self.channel.as_mut())
    }

    /// The one-sided half.
    #[inline(always)]
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The message path, unless the server gave none.
    #[inline(always)]
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// See [`Reader::agreement`].
    #[inline(always)]
    pub fn agreement(&self) -> &Agreement {
        self.reader.agreement()
    }

    /// See [`Reader::config_id`].
    #[inline(always)]
    pub fn config_id(&self) -> u32 {
        self.reader.config_id()
    }

    /// See [`Reader::lease_alive`].
    #[inline(always)]
    pub fn lease_alive(&self, now_monotonic_ns: u64) -> bool {
        self.reader.lease_alive(now_monotonic_ns)
    }

    /// See [`Reader::partition`].
    #[inline(always)]
    pub fn partition(&self, hash: KeyHash) -> usize {
        self.reader.partition(hash)
    }

    /// See [`Reader::window_id`].
    #[inline(always)]
    pub fn window_id(&self, partition: usize) -> u64 {
        self.reader.window_id(partition)
    }

    /// See [`Reader::refresh`].
    pub fn refresh(&mut self) -> Refreshed {
        self.reader.refresh()
    }

    /// See [`Reader::prefetch_bucket`].
    #[inline(always)]
    pub fn prefetch_bucket(&self, hash: KeyHash) {
        self.reader.prefetch_bucket(hash);
    }

    /// See [`Reader::prefetch_data`].
    #[inline(always)]
    pub fn prefetch_data(&self, pointer: Pointer) {
        self.reader.prefetch_data(pointer);
    }

    /// See [`Reader::index_vote`].
    #[inline(always)]
    pub fn index_vote(&self, hash: KeyHash) -> IndexVote {
        self.reader.index_vote(hash)
    }

    /// See [`Reader::read_data`].
    #[inline(always)]
    pub fn read_data(&self, pointer: Pointer, into: &mut WordBuffer) -> Result<(), OutOfWindow> {
        self.reader.read_data(pointer, into)
    }

    /// See [`Channel::send`].
    #[inline]
    pub fn send(&mut self, request: &Request<'_>) -> Result<RequestId, SendError> {
        match &mut self.channel {
            Some(channel) => channel.send(request),
            None => Err(SendError::NoMessages),
        }
    }

    /// See [`Channel::touch`].
    #[inline]
    pub fn touch(&mut self, partition: usize, window_id: u64, slots: &[u32]) {
        if let Some(channel) = &mut self.channel {
            channel.touch(partition, window_id, slots);
        }
    }

    /// See [`Channel::poll`].
    #[inline]
    pub fn poll(&mut self, on: impl FnMut(RequestId, Answer<'_>)) -> Result<usize, Closed> {
        match &mut self.channel {
            Some(channel) => channel.poll(on),
            None => Ok(0),
        }
    }

    /// See [`Channel::wait`]; to wait for several backends at once, see
    /// [`super::wait_any`].
    #[inline]
    pub fn wait(&self, timeout: Duration) -> Waited {
        match &self.channel {
            Some(channel) => channel.wait(timeout),
            None => Waited::TimedOut,
        }
    }
}

const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Connection>();
};

/// Reads are done when they are submitted; only answers complete later.
impl Initiator for Connection {
    fn agreement(&self) -> &Agreement {
        self.reader.agreement()
    }

    fn lease_alive(&self, now_monotonic_ns: u64) -> bool {
        self.reader.lease_alive(now_monotonic_ns)
    }

    fn window_id(&self, partition: usize) -> u64 {
        self.reader.window_id(partition)
    }

    fn refresh(&mut self) -> Refreshed {
        self.reader.refresh()
    }

    fn prefetch_bucket(&self, hash: KeyHash) {
        self.reader.prefetch_bucket(hash);
    }

    fn prefetch_data(&self, pointer: Pointer) {
        self.reader.prefetch_data(pointer);
    }

    fn submit_index(&mut self, _token: Token, hash: KeyHash) -> Progress<IndexVote> {
        Progress::Done(self.reader.index_vote(hash))
    }

    fn submit_data(
        &mut self,
        _token: Token,
        pointer: Pointer,
        into: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>> {
        Progress::Done(self.reader.read_data(pointer, into))
    }

    fn send(&mut self, request: &Request<'_>) -> Result<RequestId, SendError> {
        Connection::send(self, request)
    }

    fn touch(&mut self, partition: usize, window_id: u64, slots: &[u32]) {
        Connection::touch(self, partition, window_id, slots);
    }

    fn poll(&mut self, on: &mut dyn FnMut(Completion<'_>)) -> Result<usize, Closed> {
        Connection::poll(self, |id, answer| on(Completion::Answer(id, answer)))
    }

    fn wait(&mut self, timeout: Duration) -> Waited {
        Connection::wait(self, timeout)
    }
}
