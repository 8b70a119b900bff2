//! The tests of `trefoil-linklet-core` from outside, as one program: a module for each subject.

mod alone;
mod cluster;
mod detours;
mod former;
mod scenarios;
