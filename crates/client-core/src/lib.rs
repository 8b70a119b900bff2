//! Sans-IO operation machines of a Trefoil client.

pub mod mutants;
pub mod vote;
