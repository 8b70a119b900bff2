//! The tests of `trefoil-sim` from outside, as one program: a module for each subject.

mod mutants;
mod promise;
mod replay;
mod stability;
mod whole;
mod whole_mutants;
