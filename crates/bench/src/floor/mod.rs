//! The raw floor: what the machine charges for a one-sided read when no product
//! code takes part. Nothing here may depend on another Trefoil crate, nor share
//! code with one: a floor that rises with the product measures nothing.

mod corpus;
mod mapping;
mod ping_pong;
mod target;

use std::io;

pub use corpus::{BucketRead, FloorCorpus, FloorOptions};
pub use mapping::{PageSize, SharedMapping};
pub use ping_pong::{futex_ping_pong, ring_ping_pong};
pub use target::FloorTarget;

/// Why a floor could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// The mapping's memory is not to be had.
    #[error("cannot map {len_bytes} bytes of shared memory ({page} pages): {source}")]
    Map {
        /// Bytes asked for.
        len_bytes: usize,
        /// Page size asked for.
        page: PageSize,
        /// The system's answer.
        source: io::Error,
    },
    /// Options that describe no corpus.
    #[error("no such corpus: {0}")]
    Options(&'static str),
    /// A thread could not be placed on its core.
    #[error("cannot pin a thread to core {core}: {source}")]
    Pin {
        /// The core asked for.
        core: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// A thread of the measurement panicked.
    #[error("a measuring thread ended by panic")]
    Panicked,
}
