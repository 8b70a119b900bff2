//! The tests of `trefoil-fabric` from outside, as one program: a module for each subject.

mod early;
mod hostile;
mod messages;
mod reads;
mod support;
