//! Sans-IO operation machines of a Trefoil client.

pub mod clock;
pub mod data;
pub mod mode;
pub mod mutants;
pub mod quorum;
pub mod retry;
pub mod touch;
pub mod vote;
