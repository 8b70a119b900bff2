//! Reader and channel of one backend in one hand.

use super::channel::Channel;
use crate::agreement::Agreement;
use crate::port::{
    Closed, Completion, OutOfWindow, Port, Progress, Refreshed, SendError, Token, Waited,
};
use crate::region_view::RegionView;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::message::{Answer, Request};
use trefoil_layout::{KeyHash, Pointer, TopologyId};
use trefoil_region::WordBuffer;

/// A connection to a backend on the same host. The view may be shared between
/// threads; messages take `&mut self`.
#[derive(Debug)]
pub struct Connection {
    view: Arc<RegionView>,
    channel: Option<Channel>,
}

impl Connection {
    pub(super) fn from_parts(view: RegionView, channel: Option<Channel>) -> Self {
        let view = Arc::new(view);
        Connection { view, channel }
    }

    /// The topology under which the backend serves, which was not agreed on when it was
    /// greeted.
    pub(super) fn serves(&mut self, topology: TopologyId) {
        if let Some(view) = Arc::get_mut(&mut self.view) {
            view.set_topology(topology);
        }
    }

    /// The one-sided half and the message path, if there is one.
    pub fn into_parts(self) -> (Arc<RegionView>, Option<Channel>) {
        (self.view, self.channel)
    }

    /// The one-sided half; others may share it.
    #[inline(always)]
    pub fn view(&self) -> &Arc<RegionView> {
        &self.view
    }

    /// The message path, unless the server gave none.
    #[inline(always)]
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// See [`RegionView::agreement`].
    #[inline(always)]
    pub fn agreement(&self) -> &Agreement {
        self.view.agreement()
    }

    /// See [`RegionView::config_id`].
    #[inline(always)]
    pub fn config_id(&self) -> u32 {
        self.view.config_id()
    }

    /// See [`RegionView::lease_alive`].
    #[inline(always)]
    pub fn lease_alive(&self, now_monotonic_ns: u64) -> bool {
        self.view.lease_alive(now_monotonic_ns)
    }

    /// See [`RegionView::partition`].
    #[inline(always)]
    pub fn partition(&self, place: usize, hash: KeyHash) -> usize {
        self.view.partition(place, hash)
    }

    /// See [`RegionView::window_id`].
    #[inline(always)]
    pub fn window_id(&self, partition: usize) -> u64 {
        self.view.window_id(partition)
    }

    /// See [`RegionView::refresh`].
    pub fn refresh(&mut self) -> Refreshed {
        RegionView::refresh_shared(&mut self.view)
    }

    /// See [`RegionView::prefetch_bucket`].
    #[inline(always)]
    pub fn prefetch_bucket(&self, place: usize, hash: KeyHash) {
        self.view.prefetch_bucket(place, hash);
    }

    /// See [`RegionView::prefetch_data`].
    #[inline(always)]
    pub fn prefetch_data(&self, pointer: Pointer) {
        self.view.prefetch_data(pointer);
    }

    /// See [`RegionView::index_vote`].
    #[inline(always)]
    pub fn index_vote(&self, place: usize, hash: KeyHash) -> IndexVote {
        self.view.index_vote(place, hash)
    }

    /// See [`RegionView::read_data`].
    #[inline(always)]
    pub fn read_data(&self, pointer: Pointer, into: &mut WordBuffer) -> Result<(), OutOfWindow> {
        self.view.read_data(pointer, into)
    }

    /// See [`Channel::send_next`].
    #[inline]
    pub fn send_next(&mut self, config_id: u32, request: &Request<'_>) -> Result<Token, SendError> {
        match &mut self.channel {
            Some(channel) => channel.send_next(config_id, request),
            None => Err(SendError::NoMessages),
        }
    }

    /// See [`Channel::touch`].
    #[inline]
    pub fn touch(&mut self, partition: usize, batch: TouchBatch<'_>) {
        if let Some(channel) = &mut self.channel {
            channel.touch(partition, batch);
        }
    }

    /// See [`Channel::poll`].
    #[inline]
    pub fn poll(&mut self, on: impl FnMut(Token, Answer<'_>)) -> Result<usize, Closed> {
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
impl Port for Connection {
    #[inline(always)]
    fn view(&self) -> Option<&Arc<RegionView>> {
        Some(&self.view)
    }

    #[inline(always)]
    fn has_messages(&self) -> bool {
        self.channel.is_some()
    }

    fn refresh(&mut self) -> Refreshed {
        Connection::refresh(self)
    }

    #[inline(always)]
    fn submit_index(&mut self, _token: Token, place: usize, hash: KeyHash) -> Progress<IndexVote> {
        Progress::Done(self.view.index_vote(place, hash))
    }

    #[inline(always)]
    fn submit_data(
        &mut self,
        _token: Token,
        pointer: Pointer,
        into: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>> {
        Progress::Done(self.view.read_data(pointer, into))
    }

    fn answer_ns(&self) -> u64 {
        0
    }

    fn backlog_ns(&self) -> u64 {
        0
    }

    fn prefers_votes(&self) -> bool {
        false
    }

    #[inline]
    fn send(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        match &mut self.channel {
            Some(channel) => channel.send(token, under.config_id, request),
            None => Err(SendError::NoMessages),
        }
    }

    fn touch(&mut self, partition: usize, batch: TouchBatch<'_>) {
        Connection::touch(self, partition, batch);
    }

    /// Its room is its own.
    fn others_have_moved(&mut self) -> bool {
        false
    }

    fn len_under_way(&self) -> u64 {
        0
    }

    fn give_up(&mut self) {}

    #[inline]
    fn poll(&mut self, mut on: impl FnMut(Completion<'_>)) -> Result<usize, Closed> {
        Connection::poll(self, |token, answer| on(Completion::Answer(token, answer)))
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| {
            channel.has_answer() || channel.is_closed() || channel.has_left()
        })
    }

    fn arm(&self) {
        if let Some(channel) = &self.channel {
            channel.arm();
        }
    }

    fn disarm(&self) {
        if let Some(channel) = &self.channel {
            channel.disarm();
            channel.silence();
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_ref()?.descriptor())
    }
}
