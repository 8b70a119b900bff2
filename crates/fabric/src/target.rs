//! What every fabric asks of a backend, and offers it.

use std::os::fd::{BorrowedFd, OwnedFd};
use trefoil_layout::TopologyId;
use trefoil_layout::message::{
    ACK_LEN, Answer, ErrorCode, LOOKUP_ANSWER_HEAD_LEN, MESSAGE_LEN_MAX, Request,
};
use trefoil_layout::op::{Ack, ItemUse, LookupAnswer};
use trefoil_region::WordBuffer;

/// One connection of one client, for the life of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A backend, as a fabric's target sees it. Called by the target's own
/// thread, so it must not block for long: all clients of the process wait.
pub trait Service: Send + Sync {
    /// Executes a request and answers it, at most once. The request is in
    /// private memory; its form was checked, its meaning was not. A touch is
    /// not answered. A mutation or lookup that gets no answer is answered with
    /// [`ErrorCode::Internal`]; a panic ends the process. Pings do not get here.
    ///
    /// `config_id` is the configuration that the client chose this backend by; its
    /// life is the one that was served when the connection was made.
    fn execute(
        &self,
        client: ClientId,
        config_id: u32,
        request: Request<'_>,
        answer: &mut AnswerSink<'_>,
    );

    /// What the backend serves now, for greetings. Its life never changes.
    fn topology(&self) -> TopologyId;

    /// Asks for `bytes` of the backend's memory budget for a client's rings;
    /// if refused, the client gets none and uses RPC.
    fn charge(&self, bytes: u64) -> bool;

    /// Gives charged bytes back.
    fn release(&self, bytes: u64);

    /// The marks of a backend with a queue: who reads its memory looks at them first.
    fn marks(&self) -> Option<SharedMarks<'_>> {
        None
    }

    /// Makes another client one of the queue. May take some milliseconds.
    fn admit(&self) -> Result<Lane, NoLane> {
        Err(NoLane::NoQueue)
    }
}

/// The marks object of a queue (`trefoil_ordered::marks`), for readers.
#[derive(Clone, Copy, Debug)]
pub struct SharedMarks<'a> {
    /// Not to be written through.
    pub object: BorrowedFd<'a>,
    /// Bytes of it.
    pub len: u64,
}

/// What a client of a backend's queue is given.
#[derive(Debug)]
pub struct Lane {
    /// Its row in the marks.
    pub place: u32,
    /// The marks object, to be written.
    pub marks: OwnedFd,
    /// As in `trefoil_ordered::Invitation`.
    pub order: OwnedFd,
    /// The same.
    pub lane: OwnedFd,
    /// The same.
    pub bell: OwnedFd,
}

/// Why a client gets no lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLane {
    /// The backend has no queue.
    NoQueue,
    /// All places are taken: there is one when another client leaves.
    Full,
    /// It takes nobody now, whoever leaves: it ends, or is held up, or lacks memory.
    NotNow,
}

/// Where a service puts its answer. Private memory; the fabric sends it on.
#[derive(Debug)]
pub struct AnswerSink<'a> {
    request_id: u64,
    message: &'a mut WordBuffer,
    scratch: &'a mut WordBuffer,
    answered: bool,
}

impl<'a> AnswerSink<'a> {
    /// A sink for the answer to `request_id`: it is encoded into `message`;
    /// `scratch` is lent to lookups.
    pub fn new(request_id: u64, message: &'a mut WordBuffer, scratch: &'a mut WordBuffer) -> Self {
        AnswerSink {
            request_id,
            message,
            scratch,
            answered: false,
        }
    }

    /// Answers a mutation.
    pub fn ack(&mut self, ack: Ack) {
        self.put(&Answer::Ack(ack));
    }

    /// Answers a lookup by what `look` finds; it may copy the data entry into
    /// the buffer that it is lent.
    pub fn lookup(&mut self, look: impl for<'b> FnOnce(&'b mut WordBuffer) -> LookupAnswer<'b>) {
        let answer = look(self.scratch);
        put(
            self.message,
            self.request_id,
            &mut self.answered,
            &Answer::Lookup(answer),
        );
    }

    /// Answers a question for an item's use.
    pub fn item_use(&mut self, found: Option<ItemUse>) {
        self.put(&Answer::Use(found));
    }

    /// Refuses the request.
    pub fn error(&mut self, code: ErrorCode) {
        self.put(&Answer::Error(code));
    }

    /// Answers a ping.
    pub fn pong(&mut self) {
        self.put(&Answer::Pong);
    }

    /// Whether an answer was given.
    pub fn is_answered(&self) -> bool {
        self.answered
    }

    fn put(&mut self, answer: &Answer<'_>) {
        put(self.message, self.request_id, &mut self.answered, answer);
    }
}

const _: () = assert!(ACK_LEN <= MESSAGE_LEN_MAX && LOOKUP_ANSWER_HEAD_LEN <= MESSAGE_LEN_MAX);

/// Encodes the first answer of a request; later ones are ignored.
fn put(message: &mut WordBuffer, request_id: u64, answered: &mut bool, answer: &Answer<'_>) {
    if *answered {
        return;
    }
    *answered = true;
    // Only a lookup's data can be that long.
    let answer = if answer.encoded_len() > MESSAGE_LEN_MAX {
        &Answer::Error(ErrorCode::TooLarge)
    } else {
        answer
    };
    // The padding of the last word travels along: it must not carry what an
    // answer to somebody else has left there.
    if let Some(last) = message.prepare(answer.encoded_len()).last_mut() {
        *last = 0;
    }
    answer.encode(request_id, message.bytes_mut());
}
