//! Load: what is asked, how fast, and what came of it.

mod permutation;

pub use permutation::{Permutation, mix64};
