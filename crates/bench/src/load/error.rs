//! Why a load could not be made.

use std::io;

use crate::target::TargetError;

/// Options that describe no load, or a machine that cannot carry it.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No room for the numbers, or longer than the protocols take.
    #[error("keys of {key_len} bytes cannot name {keys_count} keys (1 to 250 bytes, 6 bits each)")]
    KeyLen {
        /// Bytes per key asked for.
        key_len: usize,
        /// Keys asked for.
        keys_count: u64,
    },
    /// Nothing to draw from.
    #[error("a load needs at least one key")]
    NoKeys,
    /// Not a Zipf exponent.
    #[error("Zipf exponent {theta} is not a number of at least 0")]
    Theta {
        /// The exponent asked for.
        theta: f64,
    },
    /// A share of operations that is none.
    #[error("{what} of {value} is not between 0 and 1")]
    Share {
        /// Which share.
        what: &'static str,
        /// What was asked for.
        value: f64,
    },
    /// Not an arrival rate.
    #[error("rate of {rate} operations per second: give a positive number")]
    Rate {
        /// The rate asked for.
        rate: f64,
    },
    /// A run that would never end.
    #[error("a run needs an end: seconds, operations, or a source that runs dry")]
    Endless,
    /// A batch of nothing.
    #[error("a batch has at least one key")]
    EmptyBatch,
    /// The load generator could not be placed.
    #[error("cannot pin the load generator to core {core}: {source}")]
    Pin {
        /// The core asked for.
        core: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// The corpus could not be written.
    #[error("loading key {key}: {source}")]
    Preload {
        /// Number of the first key of the write that failed.
        key: u64,
        /// What the target said.
        source: TargetError,
    },
    /// A client thread panicked.
    #[error("a load thread ended by panic")]
    Panicked,
}
