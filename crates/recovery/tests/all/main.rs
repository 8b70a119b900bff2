//! The tests of `trefoil-recovery` from outside, as one program: a module for each subject.

mod gathering;
mod handover;
mod machine;
mod mutants;
mod scan;
mod verdicts;
