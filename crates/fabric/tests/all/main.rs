//! The tests of `trefoil-fabric` from outside, as one program: a module for each subject.

mod hostile;
mod messages;
mod reads;
mod support;
