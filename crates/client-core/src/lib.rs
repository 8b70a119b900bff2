//! Sans-IO operation machines of a Trefoil client.

pub mod cas;
pub mod clock;
pub mod data;
pub mod get;
pub mod mode;
pub mod mutants;
pub mod mutate;
pub mod outcome;
pub mod quorum;
pub mod retry;
pub mod touch;
pub mod vote;
