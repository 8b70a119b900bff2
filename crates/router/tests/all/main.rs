//! The tests of `trefoil-router` from outside, as one program: a module for each subject.

mod calls;
mod support;
