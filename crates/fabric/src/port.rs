//! What every fabric offers to the side that asks: one backend, by one carrier.
//!
//! The operation machines of `client-core` say which reads and messages they
//! want; a driver carries them out over a [`Port`]. Everything is submitted with a
//! token of the driver's choice. A fabric that reaches the bytes by itself (`shm`)
//! answers reads at once with [`Progress::Done`]; one that has to ask somebody
//! (`softnic` a remote engine, `verbs` the NIC) answers [`Progress::Pending`] and
//! delivers a [`Completion`] with that token out of a later [`Port::poll`].
//! Messages always complete by a poll.
//!
//! ```text
//! submit reads, send messages ──► Done: feed the machine now
//!                             └─► Pending: poll
//! nothing to poll: arm, look once more (is_ready), sleep on the descriptor, disarm
//! ```
//!
//! | carrier | reads | messages | view | descriptor |
//! |---|---|---|---|---|
//! | `shm` with rings | done at once | rings | yes | the socket |
//! | `shm` without | done at once | refused (`NoMessages`) | yes | none |
//! | gRPC (in the client) | refused | calls | no | its client's bell |
//! | `softnic` | scans, and reads of data: pending, matched by token; the engine votes and says in which epoch | frames, which it puts into rings; or refused | no | its socket |
//! | `verbs` (later) | pending: data lands in registered buffers that the completion lends | sends | no | the completion channel |
//!
//! All judge buckets by [`trefoil_client_core::vote::index_vote`]. What knows that
//! a port has a [`RegionView`] reads through it directly: no token, no buffer but
//! its own, the backend takes no notice.

use crate::agreement::Agreement;
use crate::region_view::RegionView;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use trefoil_client_core::outcome::SendFailure;
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::message::{Answer, Request};
use trefoil_layout::{KeyHash, Pointer, TopologyId, Version};
use trefoil_region::WordBuffer;

/// Names what was submitted; chosen by the caller, unique among all that it ever
/// submits to one port. Travels with messages and is repeated by their answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// How far a submitted read got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// It is complete; no completion follows.
    Done(T),
    /// A completion with its token follows.
    Pending,
    /// This carrier has no such reads.
    Refused,
}

/// The pointer leads outside the window that this side knows: it is torn, or
/// the window has grown. Refresh, then read the index again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pointer leads outside the known data window")]
pub struct OutOfWindow;

/// The target is gone, or broke the protocol. Connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend has closed the connection")]
pub struct Closed {
    /// It has left in order: what it has executed was answered, and every answer was
    /// delivered. What is left without one it never executes.
    pub is_settled: bool,
}

impl Closed {
    /// It may have executed what it has not answered.
    pub const LOST: Closed = Closed { is_settled: false };
}

/// Why a message was not sent. Nothing of it can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// So much is under way to the target that more has to wait: poll for answers,
    /// then try again. A port of calls is ready when there may be room.
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
    fn from(_: Closed) -> Self {
        SendError::Closed
    }
}

/// What [`Port::refresh`] found.
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

/// What a poll delivers. Bytes are lent for the call.
#[derive(Clone, Copy, Debug)]
pub enum Completion<'a> {
    /// Of [`Port::submit_index`] and [`Port::submit_vote`].
    Index(Token, IndexVote),
    /// Of [`Port::submit_data`]. The version is the backend's flush floor, read after the
    /// bytes.
    Data(Token, Result<&'a [u8], OutOfWindow>, Version),
    /// Of [`Port::submit_scan`]; the bytes mean something if the vote is `Present`. The
    /// version is the backend's flush floor, read after them: what was flushed before
    /// the scan began is known by it.
    Scan(Token, IndexVote, &'a [u8], Version),
    /// The key's stamp (`layout::control::stamp`), just before the answer to a lookup
    /// that was sent, or to a scan: from carriers that do not map the backend's memory.
    /// It was read before the bucket.
    Stamp(Token, u64),
    /// Of [`Port::send`].
    Answer(Token, Answer<'a>),
    /// There will be no answer to a message, and why, for people.
    NoAnswer(Token, SendFailure, &'a str),
    /// There will be no answer to a question of [`Port::ask`], whose time is over for a while:
    /// nothing was heard.
    Expired(Token),
}

impl Completion<'_> {
    /// What it belongs to.
    pub fn token(&self) -> Token {
        match *self {
            Completion::Index(token, _)
            | Completion::Data(token, ..)
            | Completion::Scan(token, ..)
            | Completion::Stamp(token, _)
            | Completion::Answer(token, _)
            | Completion::NoAnswer(token, ..)
            | Completion::Expired(token) => token,
        }
    }
}

/// One backend, by one carrier.
pub trait Port {
    /// The backend's memory, if it is mapped here.
    fn view(&self) -> Option<&Arc<RegionView>>;

    /// What was agreed when it was made, if this carrier agrees upon anything: a backend
    /// of another life or hash is not read.
    fn agreement(&self) -> Option<&Agreement> {
        self.view().map(|view| view.agreement())
    }

    /// The config id that reads expect, as of the last refresh, of carriers that read.
    fn config_id(&self) -> Option<u32> {
        self.view().map(|view| view.config_id())
    }

    /// Whether a third process carries: its end says nothing of the backend.
    fn is_indirect(&self) -> bool {
        false
    }

    /// Whether a software NIC scans and reads at the far side.
    fn has_scans(&self) -> bool {
        false
    }

    /// Whether messages go.
    fn has_messages(&self) -> bool;

    /// Takes windows and config id anew.
    fn refresh(&mut self) -> Refreshed {
        Refreshed::Unchanged
    }

    /// Reads what the backend's index says about a key, in whose cohort it has place
    /// `place`.
    fn submit_index(&mut self, token: Token, place: usize, hash: KeyHash) -> Progress<IndexVote>;

    /// Reads a data entry. If it is done at once, the bytes are in `into`;
    /// otherwise they come with the completion.
    fn submit_data(
        &mut self,
        token: Token,
        pointer: Pointer,
        into: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>>;

    /// How long answers to scans take lately, in nanoseconds; 0 where that is not known.
    /// Like the next two it has no default: a port around others that forgot to pass it on
    /// would answer for them, and nobody would notice.
    fn answer_ns(&self) -> u64;

    /// How much longer one takes that is asked for now, because others come before it.
    fn backlog_ns(&self) -> u64;

    /// Whether a vote that is asked for now, and then the data, are most likely there sooner
    /// than what a scan brings: because that would have to wait for room.
    fn prefers_votes(&self) -> bool;

    /// Scans the bucket at the far side, and reads what it points at. With `is_use` the item
    /// that it finds is reported as read there.
    fn submit_scan(
        &mut self,
        token: Token,
        place: usize,
        hash: KeyHash,
        is_use: bool,
    ) -> Progress<()> {
        let _ = (token, place, hash, is_use);
        Progress::Refused
    }

    /// The same without the data: the vote alone comes, as [`Completion::Index`].
    fn submit_vote(
        &mut self,
        token: Token,
        place: usize,
        hash: KeyHash,
        is_use: bool,
    ) -> Progress<()> {
        let _ = (token, place, hash, is_use);
        Progress::Refused
    }

    /// Sends a message to a backend that was chosen by the topology `under`.
    fn send(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError>;

    /// The same with a question, whose answer nobody needs after `until_ns` on the monotonic
    /// clock: its place on the way to a backend that does not answer is free by then, or
    /// shortly after if this process stands still. An answer that comes later is delivered.
    fn ask(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
        until_ns: u64,
    ) -> Result<(), SendError> {
        let _ = until_ns;
        self.send(token, under, request)
    }

    /// Reports items that were read, at most
    /// [`trefoil_layout::message::TOUCH_COUNT_MAX`]; lost without notice if there is no
    /// room.
    fn touch(&mut self, partition: usize, batch: TouchBatch<'_>);

    /// Reports an item that was read at a backend whose windows this side does not know,
    /// and that has place `place` in the key's cohort; lost without notice if there is no
    /// room.
    fn touch_key(&mut self, place: usize, hash: KeyHash) {
        let _ = (place, hash);
    }

    /// Sends what was reported and still waits for company.
    fn flush_touches(&mut self) {}

    /// Whether the target has answered anything, to whomever, since this was asked last:
    /// of ports whose room others share, and that may be full without owing anything
    /// themselves.
    fn others_have_moved(&mut self) -> bool;

    /// Bytes of requests that are on their way to the target on what this port shares
    /// with others, whosever they are: so long an answer may take.
    fn len_under_way(&self) -> u64;

    /// The target does not answer, and is given up: nobody waits for what this port
    /// still owes, and what others share is given back. Nothing but dropping the port
    /// may follow.
    fn give_up(&mut self);

    /// Delivers what has completed and returns how much that was.
    fn poll(&mut self, on: impl FnMut(Completion<'_>)) -> Result<usize, Closed>;

    /// Whether a poll would deliver something, the connection is closed, or what was
    /// refused as [`SendError::Full`] may find room.
    fn is_ready(&self) -> bool;

    /// Asks for the descriptor to become readable. The caller then looks at
    /// [`Port::is_ready`] once more before it sleeps, and disarms afterwards.
    fn arm(&self);

    /// No longer asks for it, and takes off it what it was woken by.
    fn disarm(&self);

    /// What to sleep on; the same one for the life of the port.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
