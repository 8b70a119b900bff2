//! The tests of `trefoil-linked-sim` from outside, as one program: a module for each subject.

#[cfg(feature = "mutants")]
mod mutants;
mod seeds;
