//! The tests of `trefoil-store` from outside, as one program: a module for each subject.

mod alike;
mod common;
mod concurrent;
mod copied;
mod flush;
mod memory;
mod model;
mod mutants;
mod reshape;
mod rules;
mod shards;
mod steps;
