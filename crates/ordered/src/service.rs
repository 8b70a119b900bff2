//! What executes requests.

use crate::slot::ANSWER_LEN_MAX;
use trefoil_region::WordBuffer;

/// A request at its turn. All of it is private memory of the server.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its place in the order of the queue.
    pub position: u64,
    /// Who sent it; the server has given this number.
    pub client_id: u64,
    /// The client's name for it.
    pub request_id: u64,
    /// Whether its client went on without an answer.
    pub nilext: bool,
    /// The client's bytes. Their meaning is not validated.
    pub payload: &'a [u8],
}

/// Executes requests, one after the other, in the order of their positions.
pub trait Service {
    /// Executes a request. What is put into `answer` goes to the client, unless the
    /// request is nilext; nothing put there is an empty answer.
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer);
}

/// The answer did not fit into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of more than {ANSWER_LEN_MAX} bytes does not fit into a slot")]
pub struct AnswerTooLong;

/// Room for one answer.
#[derive(Debug)]
pub struct Answer {
    buffer: WordBuffer,
    len: usize,
}

impl Default for Answer {
    fn default() -> Self {
        let mut buffer = WordBuffer::default();
        buffer.prepare(ANSWER_LEN_MAX);
        Answer { buffer, len: 0 }
    }
}

impl Answer {
    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), AnswerTooLong> {
        let room = self.buffer.bytes_mut().get_mut(self.len..);
        let room = room.and_then(|room| room.get_mut(..bytes.len()));
        room.ok_or(AnswerTooLong)?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// What was put.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[..self.len]
    }

    pub(crate) fn words(&self) -> &[u64] {
        self.buffer.words()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
