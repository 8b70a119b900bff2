//! The tests of `trefoil-linked-sim` from outside, as one program: a module for each subject.

mod mutants;
mod seeds;
