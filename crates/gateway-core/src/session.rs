//! The contract between a connection and the protocol that it speaks.

use crate::keyspace::Keyspace;
use crate::world::World;

/// Work of the keyspace ([`Keyspace::work`]), or bytes of commands, after which a drive
/// ends, at the end of the command that it is at.
pub const DRIVE_WORK_MAX: u64 = 64 << 10;

/// Whether a drive that began when the keyspace had done so much work should end.
#[inline]
pub(crate) fn is_work_done<K: Keyspace>(keyspace: &K, began: u64) -> bool {
    keyspace.work().wrapping_sub(began) >= DRIVE_WORK_MAX
}

/// Whether a drive that has executed so many bytes should end: commands may ask for
/// neither answers nor the keyspace.
#[inline]
pub(crate) fn is_long_enough(executed: usize) -> bool {
    executed as u64 >= DRIVE_WORK_MAX
}

/// What a call of [`Session::drive`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driven {
    /// Bytes at the front of the input that are done with.
    pub consumed: usize,
    /// What the session waits for.
    pub wants: Wants,
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// More input. What remains of it will need about this many bytes in all
    /// (0: not known yet), so that the connection can make room once.
    Input(usize),
    /// That the output leaves: it has reached the limit, and the rest of the
    /// input (or of one command with a long answer) waits.
    Output,
    /// That others have had their turn: there is more work than should be done
    /// at once, and perhaps no output of it.
    Turn,
    /// That an operation has a result: the keyspace says when. Until then the
    /// session is not driven; then it is, with the input that it left.
    Operation,
    /// That the output leaves, and then the end of the connection.
    Close,
    /// That the output leaves, and then events: see `World::events`. Input
    /// still ends the wait.
    Events,
}

/// One connection's side of a protocol. Sans-IO: `drive` is called with all
/// unconsumed input whenever there is more of it, or the output has left.
///
/// It never keeps a copy of input it could leave unconsumed, executes whole
/// commands in order, and appends their answers to `out` in order. It stops
/// once `out` holds `out_len_max` bytes or more (one item may go beyond), and,
/// with [`Wants::Turn`], once the keyspace has done [`DRIVE_WORK_MAX`] of work, or so many
/// bytes are executed (one command may go beyond): a short answer may come of a long
/// value, and none of many commands.
/// A length or a line that no valid command has ends in an error answer and,
/// where the protocol cannot find the next command, in `Close`; it never asks
/// for more input than the limits of `World::settings` allow.
pub trait Session {
    /// Executes what has come.
    fn drive<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Driven;

    /// Whether the client has shown who it is.
    fn is_authenticated(&self) -> bool {
        true
    }

    /// Whether it is in the middle of what it has promised to do as a whole: it is then
    /// driven to the end of that even if its client has gone.
    fn is_bound(&self) -> bool {
        false
    }

    /// Whether others wait for it: it is driven on, then, also while its answers wait for
    /// its client, and adds none to them.
    fn is_holding(&self) -> bool {
        false
    }

    /// Its connection has no room for the rest of the request whose beginning this is,
    /// and which it has not consumed any of: answers that, and skips the rest as it comes.
    /// `false` if it cannot, and the connection has to be closed.
    fn refuse_unfinished(&mut self, _input: &[u8], _out: &mut Vec<u8>) -> bool {
        false
    }

    /// The key that the command at the front of this input is about, if that is easily
    /// seen. A guess: nothing but speed depends on it.
    fn key_ahead<'a>(&self, _input: &'a [u8]) -> Option<&'a [u8]> {
        None
    }

    /// Bytes that it keeps beside the input that it leaves.
    fn kept(&self) -> usize {
        0
    }
}
