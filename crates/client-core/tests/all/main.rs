//! The tests of `trefoil-client-core` from outside, as one program: a module for each subject.

mod cas;
mod decisions;
mod get;
mod moves;
mod mutations;
