//! The tests of `trefoil-linklet` from outside, as one program: a module for each subject.

mod cluster;
mod copies;
mod detours;
mod each;
mod exclusive;
mod lifetimes;
mod metrics;
mod moves;
mod objects;
mod room;
mod security;
mod spans;
mod spill;
mod stale_max;
mod strangers;
mod strong;
