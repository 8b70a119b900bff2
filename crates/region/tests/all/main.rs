//! The tests of `trefoil-region` from outside, as one program: a module for each subject.

mod fork;
mod region;
