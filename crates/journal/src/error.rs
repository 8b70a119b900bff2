//! What can be wrong with a journal, and what to do about it.

use std::io;

/// Why a journal cannot be used, or not any more. Nothing that it was asked to commit
/// since the last success is acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// No room for the file.
    #[error(
        "cannot reserve {bytes} bytes for the journal {name}: {source}; \
         free space there, or choose a shorter journal"
    )]
    NoSpace {
        /// Which file.
        name: String,
        /// Bytes of the whole file.
        bytes: u64,
        /// The system's words.
        source: io::Error,
    },
    /// The system refused.
    #[error(
        "cannot {doing} the journal {name}: {source}; what was not acknowledged may or may \
         not be in it: put the disk right and start the queue again, it goes by what it finds"
    )]
    Io {
        /// Which file.
        name: String,
        /// The attempt.
        doing: &'static str,
        /// The system's words.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("the journal {name} is in use by another process; end that first")]
    InUse {
        /// Which file.
        name: String,
    },
    /// No journal.
    #[error("{name} is no journal of a queue; name another file, or remove this one")]
    Foreign {
        /// Which file.
        name: String,
    },
    /// Another release's.
    #[error(
        "the journal {name} has version {found}, and this program knows {known}; \
         let the program that wrote it execute what is in it (an orderly end does), \
         then remove the file"
    )]
    Version {
        /// Which file.
        name: String,
        /// What it says.
        found: u64,
        /// What is known here.
        known: u64,
    },
    /// Another queue's.
    #[error(
        "the journal {name} is that of queue {found:016x}, not of {expected:016x}; \
         name the file that belongs to this queue's state"
    )]
    OtherQueue {
        /// Which file.
        name: String,
        /// What it says.
        found: u64,
        /// What was asked for.
        expected: u64,
    },
    /// What was acknowledged cannot be read.
    #[error(
        "the journal {name} is damaged: {what}; put it back together with the queue's state \
         from one and the same copy"
    )]
    Damaged {
        /// Which file.
        name: String,
        /// What was found.
        what: &'static str,
    },
    /// Requests between the state and the journal are missing, or another process has made
    /// a newer state persistent since this one was loaded.
    #[error(
        "the state ends at position {state}, and the journal {name} begins at {oldest}. If \
         another process has served the queue since the state was loaded, load the state \
         again; otherwise what is between them is lost: put back a state that reaches \
         {oldest} − 1 at least"
    )]
    StateBehind {
        /// Which file.
        name: String,
        /// The last position of the state.
        state: u64,
        /// The first position of the journal.
        oldest: u64,
    },
    /// The state knows requests that the journal has never had.
    #[error(
        "the state has executed position {state}, and the journal {name} ends at {last}: it is \
         older than the state, or another one; put back the journal that belongs to the state"
    )]
    StateAhead {
        /// Which file.
        name: String,
        /// The last position of the state.
        state: u64,
        /// The last position of the journal.
        last: u64,
    },
    /// It failed before.
    #[error(
        "the journal {name} has failed before and acknowledges nothing any more; start the \
         queue again"
    )]
    Failed {
        /// Which file.
        name: String,
    },
}
